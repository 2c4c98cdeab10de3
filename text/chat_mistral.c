/* chat_mistral.c - conversations to prompts for Llama 2 and Mistral.
 *
 *     Llama 2   <s>[INST] <<SYS>>\n ... \n<</SYS>>\n\n ... [/INST] ... </s><s>[INST] ...
 *     v1, v3    <s>[INST] ... [/INST] ... </s>[INST] ...
 *     v7 on     <s>[SYSTEM_PROMPT] ... [/SYSTEM_PROMPT][INST] ... [/INST] ... </s>
 *
 *     tools     [AVAILABLE_TOOLS][{...}][/AVAILABLE_TOOLS] before a turn of the user's
 *     calls     v3: [TOOL_CALLS][{"name": ..., "arguments": ..., "id": ...}]
 *               v11: [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}   v13: [TOOL_CALLS]NAME[ARGS]{...}
 *     results   [TOOL_RESULTS] ... [/TOOL_RESULTS]
 *
 * Versions for SentencePiece's pieces have spaces in these places, those for Tekken have none.
 *
 * Differences from the templates:
 *   - The role developer is the role system. The texts of content parts are joined.
 *   - Without a system message there is none: the texts with the day's date that some templates
 * then write are the business of who asks.
 *   - Arguments that are JSON text are parsed and printed anew, except in v13.
 *   - Templates refuse calls whose id has another length than 9. Here the id becomes 9 letters, the
 *     same for the call and its result. A result without an id belongs to the call in its place.
 *   - In v13 a thought (reasoning_content) stands before the text of its message, as the template
 *     writes it where it is a part of the content.
 *   - Declarations of tools stand before the last user message alone, though earlier ones be equal.
 *   - With continue_last, the turn of a last assistant message stays open.
 */
#include "text/mistral.h"

#include <stdio.h>
#include <string.h>

typedef enum system_place {
    SYSTEM_NONE,  /* refused */
    SYSTEM_LLAMA, /* in marks of its own, in the first turn of the user's */
    SYSTEM_FIRST, /* at the beginning of the first */
    SYSTEM_LAST,  /* of the last message, if it is the user's */
    SYSTEM_TURN   /* a turn of its own */
} system_place;

typedef enum tool_form { TOOLS_NONE, TOOLS_LIST, TOOLS_ID, TOOLS_BARE } tool_form;

/* How the versions differ. */
typedef struct form {
    const char *open, *close;   /* of a turn of the user's */
    const char *answer, *ended; /* around an answer */
    const char *gap;            /* behind other marks */
    system_place system;
    tool_form tools;
    bool trims;      /* answers */
    bool free_turns; /* else users and answers take turns; a later system message counts as an
                        answer */
} form;

static const form forms[N_MISTRAL_FORMATS] = {
    [LLAMA2] = {"[INST] ", " [/INST]", " ", " </s>", " ", SYSTEM_LLAMA, .trims = true},
    [MISTRAL_V0] = {"[INST] ", " [/INST]", "", "</s> ", " ", .system = SYSTEM_NONE},
    [MISTRAL_V0_TIGHT] = {"[INST] ", " [/INST]", "", "</s>", " ", .system = SYSTEM_NONE},
    [MISTRAL_V1] = {" [INST] ", " [/INST]", " ", "</s>", " ", .system = SYSTEM_FIRST},
    [MISTRAL_V3] = {"[INST] ", "[/INST]", " ", "</s>", " ", .system = SYSTEM_LAST,
                    .tools = TOOLS_LIST, .trims = true},
    [MISTRAL_V3_TEKKEN] = {"[INST]", "[/INST]", "", "</s>", "", .system = SYSTEM_LAST,
                           .tools = TOOLS_LIST},
    [MISTRAL_V7] = {"[INST] ", "[/INST]", " ", "</s>", " ", SYSTEM_TURN, .free_turns = true},
    [MISTRAL_V7_TEKKEN] = {"[INST]", "[/INST]", "", "</s>", "", SYSTEM_TURN, .free_turns = true},
    [MISTRAL_V11] = {"[INST]", "[/INST]", "", "</s>", "", .system = SYSTEM_TURN, .tools = TOOLS_ID},
    [MISTRAL_V13] = {"[INST]", "[/INST]", "", "</s>", "", .system = SYSTEM_TURN,
                     .tools = TOOLS_BARE},
};

/* ---- Templates ---- */

/* Expressions that the published templates have. A template of another text with these marks is
 * unknown. */
const chat_format *mistral_recognise(const char *t, size_t n)
{
    static const struct {
        int format;
        const char *has[3];
    } rows[] = {
        {LLAMA2,
         {"set system_message = false", "bos_token + '[INST] ' + content.strip() + ' [/INST]'"}},
        {MISTRAL_V13,
         {"name + '[ARGS]' + arguments", "'[TOOL_RESULTS]' + message['content']|string"}},
        {MISTRAL_V11, {"'[CALL_ID]' + tool_call.id", "'[TOOL_CONTENT]' + content|string"}},
        {MISTRAL_V7,
         {"'[SYSTEM_PROMPT] ' + message['content']", "'[INST] ' + message['content'] + '[/INST]'"}},
        {MISTRAL_V7_TEKKEN, {"'[SYSTEM_PROMPT]' + message['content']", "'[/SYSTEM_PROMPT]'"}},
        {MISTRAL_V3,
         {"\"[AVAILABLE_TOOLS] [\"", "\"[TOOL_CALLS] [\"", "'[TOOL_RESULTS] {\"content\": '"}},
        {MISTRAL_V3_TEKKEN,
         {"\"[AVAILABLE_TOOLS][\"", "\"[TOOL_CALLS][\"", "'[TOOL_RESULTS]{\"content\": '"}},
        {MISTRAL_V1,
         {"' [INST] ' + system_message", "' [INST] ' + message['content'] + ' [/INST]'"}},
        {MISTRAL_V0,
         {"'[INST] ' + message['content'] + ' [/INST]'", "message['content'] + eos_token + ' '"}},
        {MISTRAL_V0_TIGHT,
         {"'[INST] ' + message['content'] + ' [/INST]'", "{{ message['content'] + eos_token}}"}},
    };
    static const char *const other[] = {"set system_message = '", "[ARGS]", "[TOOL_CALLS]"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tool_form tools = forms[rows[i].format].tools;
        bool all = n > 0;
        for (int k = 0; k < 3 && rows[i].has[k]; k++)
            all = all && chat_says(t, n, rows[i].has[k]);
        for (int k = 0; k < 3; k++)
            all = all && (tools || !chat_says(t, n, other[k]));
        if (all)
            return &mistral_formats[rows[i].format];
    }
    return NULL;
}

/* ---- Ids of calls ---- */

enum { ID_LETTERS = 9 };

static void put_id(chat_writer *w, const char *s, size_t n)
{
    static const char letter[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char id[ID_LETTERS];
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    if (n == ID_LETTERS) {
        chat_put(w, s, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    for (int i = 0; i < ID_LETTERS; i++, h /= 62)
        id[i] = letter[h % 62];
    chat_put(w, id, ID_LETTERS);
}

/* The id of call number i of the message; a call without one has its number. */
static void put_call_id(chat_writer *w, const talk_turn *m, size_t i)
{
    char number[40];
    size_t turn = (size_t)(m - w->talk->turn);
    talk_text id = i < m->n_calls ? m->call[i].id : (talk_text){0};
    if (!id.n)
        id = (talk_text){number, (size_t)snprintf(number, sizeof number, "%zu.%zu", turn, i)};
    put_id(w, id.s, id.n);
}

/* Of the result m[i]; m[k]: the message before the results. */
static void put_result_id(chat_writer *w, const talk_turn *m, size_t i, size_t k)
{
    talk_text id = m[i].call_id;
    if (id.n)
        put_id(w, id.s, id.n);
    else
        put_call_id(w, &m[k], i - k - 1);
}

/* ---- Tools, calls and results ---- */

static void put_result(chat_writer *w, const form *f, const talk_turn *m, size_t i, size_t before)
{
    talk_text t = chat_text_of(w, &m[i], NULL);
    chat_lit(w, "[TOOL_RESULTS]");
    if (f->tools == TOOLS_LIST) {
        chat_lit(w, f->gap);
        chat_lit(w, "{\"content\": ");
        chat_put(w, t.s, t.n);
        chat_lit(w, ", \"call_id\": \"");
        put_result_id(w, m, i, before);
        chat_lit(w, "\"}");
    } else {
        if (f->tools == TOOLS_ID) {
            put_result_id(w, m, i, before);
            chat_lit(w, "[TOOL_CONTENT]");
        }
        chat_put(w, t.s, t.n);
    }
    chat_lit(w, "[/TOOL_RESULTS]");
}

static void put_arguments(chat_writer *w, const form *f, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const jtree *a = m->call[i].arguments;
    if (f->tools == TOOLS_BARE && jtree_is(a, JTREE_STRING)) {
        chat_put(w, a->s, a->n);
        chat_lit(w, a->n ? "" : "{}");
        return;
    }
    a = chat_arguments(w, m, i, where);
    if (a)
        chat_put_json(w, a, where);
    else
        chat_lit(w, "{}");
}

static void put_calls(chat_writer *w, const form *f, const talk_turn *m)
{
    for (size_t i = 0; i < m->n_calls && !w->st; i++) {
        const talk_text *name = chat_call_name(w, m, i);
        if (!name)
            return;
        if (f->tools == TOOLS_LIST) {
            chat_lit(w, i ? ", " : "[TOOL_CALLS]");
            chat_lit(w, i ? "" : f->gap);
            chat_lit(w, i ? "{\"name\": " : "[{\"name\": ");
            chat_put_json(w, &(jtree){.kind = JTREE_STRING, .s = name->s, .n = name->n}, "");
            chat_lit(w, ", \"arguments\": ");
            put_arguments(w, f, m, i);
            chat_lit(w, ", \"id\": \"");
            put_call_id(w, m, i);
            chat_lit(w, i + 1 < m->n_calls ? "\"}" : "\"}]");
            continue;
        }
        chat_lit(w, "[TOOL_CALLS]");
        chat_put(w, name->s, name->n);
        if (f->tools == TOOLS_ID) {
            chat_lit(w, "[CALL_ID]");
            put_call_id(w, m, i);
        }
        chat_lit(w, "[ARGS]");
        put_arguments(w, f, m, i);
    }
}

/* v3 writes the members of a function one by one, and texts as they are. */
static void put_function(chat_writer *w, const jtree *function, const char *where)
{
    bool any = false;
    chat_lit(w, "{\"type\": \"function\", \"function\": {");
    for (const jtree *x = function->first; x && !w->st; x = x->next) {
        if (x->n_key == 6 && !memcmp(x->key, "return", 6))
            continue;
        chat_lit(w, any ? ", \"" : "\"");
        chat_put(w, x->key, x->n_key);
        chat_lit(w, x->kind == JTREE_STRING ? "\": \"" : "\": ");
        if (x->kind == JTREE_STRING)
            chat_put(w, x->s, x->n);
        else
            chat_put_json(w, x, where);
        chat_lit(w, x->kind == JTREE_STRING ? "\"" : "");
        any = true;
    }
    chat_lit(w, "}}");
}

static void put_tools(chat_writer *w, const form *f, const jtree *tools)
{
    char where[TALK_WHERE];
    size_t i = 0;
    if (!tools)
        return;
    chat_lit(w, "[AVAILABLE_TOOLS]");
    chat_lit(w, f->gap);
    chat_lit(w, "[");
    for (const jtree *t = tools->first; t && !w->st; t = t->next, i++) {
        chat_tool_place(t, i, where);
        const jtree *function = chat_function_of(w, t, where);
        chat_lit(w, i ? ", " : "");
        if (function && f->tools == TOOLS_LIST)
            put_function(w, function, where);
        else if (function)
            chat_put_json(w, t, where);
    }
    chat_lit(w, "][/AVAILABLE_TOOLS]");
}

/* ---- Turns ---- */

static void put_system_turn(chat_writer *w, const form *f, const talk_turn *m)
{
    talk_text t = chat_text_of(w, m, NULL);
    chat_lit(w, "[SYSTEM_PROMPT]");
    chat_lit(w, f->gap);
    chat_put(w, t.s, t.n);
    chat_lit(w, "[/SYSTEM_PROMPT]");
}

/* system NULL: none in this turn. Llama 2 trims its text and the message together. */
static void put_user(chat_writer *w, const form *f, const talk_turn *m, const talk_turn *system)
{
    bool llama = f->system == SYSTEM_LLAMA;
    talk_text t = chat_text_of(w, m, NULL), s = {0}, trimmed = chat_trimmed(t);
    if (system)
        s = chat_text_of(w, system, NULL);
    chat_lit(w, f->open);
    if (system && llama) {
        chat_lit(w, "<<SYS>>\n");
        chat_put(w, s.s, s.n);
        chat_lit(w, "\n<</SYS>>");
        chat_lit(w, trimmed.n ? "\n\n" : "");
        t.n = trimmed.n ? (size_t)(trimmed.s + trimmed.n - t.s) : 0;
    } else if (system) {
        chat_put(w, s.s, s.n);
        chat_lit(w, "\n\n");
    } else if (llama) {
        t = trimmed;
    }
    chat_put(w, t.s, t.n);
    chat_lit(w, f->close);
}

static void put_answer(chat_writer *w, const form *f, const talk_turn *m, bool open)
{
    talk_text t = chat_text_of(w, m, NULL), trimmed = f->trims ? chat_trimmed(t) : t;
    talk_text thought = m->thought[TALK_REASONING_CONTENT];
    thought.n = f->tools == TOOLS_BARE ? thought.n : 0;
    if (open && trimmed.n)
        trimmed.n = (size_t)(t.s + t.n - trimmed.s);
    if (f->tools == TOOLS_BARE && !t.n && !m->n_calls && !thought.n && !open)
        chat_fail_at(w, m, E_FORMAT, ": an answer without text and calls");
    if (thought.n) {
        chat_lit(w, "[THINK]");
        chat_put_text(w, thought);
        chat_lit(w, "[/THINK]");
    }
    if (!m->n_calls || f->tools == TOOLS_BARE) {
        chat_lit(w, m->n_calls ? "" : f->answer);
        chat_put(w, trimmed.s, trimmed.n);
    }
    if (m->n_calls)
        put_calls(w, f, m);
    if (!open)
        chat_lit(w, m->n_calls ? "</s>" : f->ended);
}

/* Roles that take turns: as the templates count them. */
static void check_turns(chat_writer *w, const form *f, const chat_format *format,
                        const talk_turn *m, size_t first, size_t n)
{
    size_t turn = 0;
    for (size_t i = first; i < n && !w->st; i++) {
        bool call = m[i].role == TALK_TOOL || m[i].n_calls;
        if (call && !f->tools)
            chat_fail_at(w, &m[i], E_UNSUPPORTED,
                         ": the chat format %s has no calls and their results", format->name);
        if (m[i].n_results)
            chat_fail_at(w, &m[i], E_UNSUPPORTED,
                         ".tool_responses: results are messages with the role tool");
        if (talk_is_system(&m[i]) && (f->system != SYSTEM_TURN || f->tools == TOOLS_BARE))
            chat_fail_at(w, &m[i], E_FORMAT,
                         f->system ? ": the chat format %s takes one system message, the first"
                                   : ": the chat format %s has no system message",
                         format->name);
        if (call || f->free_turns)
            continue;
        if ((m[i].role == TALK_USER) != (turn++ % 2 == 0))
            chat_fail_at(w, &m[i], E_FORMAT,
                         " has the role %s; in the chat format %s users and answers take turns",
                         talk_role_names[m[i].role], format->name);
    }
}

void mistral_render(chat_writer *w, const chat_format *format, const carat_talk *t,
                    const carat_chat_options *opt)
{
    const form *f = &forms[format->revision];
    const talk_turn *m = t->turn;
    const jtree *tools = chat_tools(t);
    size_t n = t->n, last_user = SIZE_MAX;
    if (tools && !f->tools)
        chat_fail(w, E_UNSUPPORTED,
                  "tools: the chat format %s has none; describe them, and the answer that you "
                  "expect, in a message",
                  format->name);
    size_t first = f->system && talk_is_system(&m[0]) && !f->free_turns;
    if (first == n && f->system != SYSTEM_TURN)
        chat_fail(w, E_FORMAT, "messages: a system message needs a user message behind it");
    check_turns(w, f, format, m, first, n);
    for (size_t i = first; i < n; i++)
        last_user = m[i].role == TALK_USER ? i : last_user;
    chat_lit(w, "<s>");
    if (first && f->system == SYSTEM_TURN)
        put_system_turn(w, f, &m[0]);
    if (f->tools == TOOLS_BARE)
        put_tools(w, f, tools);
    for (size_t i = first, before = 0; i < n && !w->st; i++) {
        before = m[i].role == TALK_TOOL ? before : i;
        bool with_system =
            first &&
            (f->system == SYSTEM_LAST ? i + 1 == n : f->system != SYSTEM_TURN && i == first);
        if (m[i].role == TALK_TOOL) {
            put_result(w, f, m, i, before);
        } else if (m[i].role == TALK_ASSISTANT) {
            put_answer(w, f, &m[i], opt->continue_last && i + 1 == n);
        } else if (talk_is_system(&m[i])) {
            put_system_turn(w, f, &m[i]);
        } else {
            if (f->system == SYSTEM_LLAMA && i != first)
                chat_lit(w, "<s>");
            if (i == last_user && f->tools != TOOLS_BARE)
                put_tools(w, f, tools);
            put_user(w, f, &m[i], with_system ? &m[0] : NULL);
        }
    }
}
