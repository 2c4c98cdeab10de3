/* chat_gemma.c - conversations in the Gemma 4 format, in each revision of its template.
 *
 *     <bos><|turn>system\n[<|think|>\n] system text, <|tool>declaration...<tool|> <turn|>\n
 *     <|turn>user\n ... <turn|>\n
 *     <|turn>model\n <|channel>thought\n...\n<channel|> <|tool_call>call:f{...}<tool_call|>
 *         <|tool_response>response:f{...}<tool_response|> content <turn|>\n
 *     <|turn>model\n
 *
 * A model's turn includes its tool calls, their results and the assistant messages that follow. All
 * revisions have the same system block, calls, responses and content. They differ in when a turn
 * opens, when it closes, and which thoughts are kept.
 *
 * Three differences from the templates, in every revision:
 *   - Repair of a gap: after a tool's result with content behind it, the templates close the turn
 *     and add no generation prompt. Here such a prompt gets "<|turn>model\n" if it asks for an
 *     answer and ends in a closed turn.
 *   - With continue_last, the turn of a last assistant message stays open and its content is not
 *     trimmed. If this message is the whole turn, the turn begins like an answer.
 *   - Unknown roles and parts, results without a call, and contents of a wrong type are errors. The
 *     templates drop them silently or print them as Python text.
 */
#include "text/gemma4.h"

#include <string.h>

#define EMPTY_THOUGHT "<|channel>thought\n<channel|>"

typedef enum last_said { SAID_OTHER, SAID_CALL, SAID_RESPONSE } last_said;

typedef struct gemma {
    chat_writer *w;
    int32_t revision;
    const carat_chat_options *opt;
    const talk_turn *m;
    size_t n;
    int64_t last_user; /* -1: none */
    last_said said;
    bool closed; /* the text ends in "<turn|>\n" */
    bool begun;  /* the text ends in the beginning of an answer */
} gemma;

/* ---- Content ---- */

/* Text without thoughts: cut it at each <channel|>, and keep of each part the text before its first
 * <|channel>. */
static void put_without_thoughts(gemma *g, const char *s, size_t n)
{
    static const char open[] = "<|channel>", close[] = "<channel|>";
    str kept = {0};
    while (n) {
        const char *end = memmem(s, n, close, sizeof close - 1);
        size_t n_part = end ? (size_t)(end - s) : n;
        const char *cut = memmem(s, n_part, open, sizeof open - 1);
        str_put(&kept, s, cut ? (size_t)(cut - s) : n_part);
        size_t skip = end ? n_part + sizeof close - 1 : n;
        s += skip;
        n -= skip;
    }
    if (kept.bad)
        chat_fail(g->w, E_MEMORY, "no memory for a message");
    s = str_text(&kept);
    n = kept.n;
    text_trim(&s, &n);
    chat_put(g->w, s, n);
    str_free(&kept);
}

static void put_trimmed(gemma *g, const char *s, size_t n)
{
    text_trim(&s, &n);
    chat_put(g->w, s, n);
}

static const chat_media marks = {
    .n_around = 2,

    .mark = {[TALK_IMAGE] = "<|image|>", [TALK_AUDIO] = "<|audio|>", [TALK_VIDEO] = "<|video|>"}};

/* Returns whether a part is media. */
static bool put_content(gemma *g, const talk_turn *m)
{
    bool any_media = false;
    for (size_t i = 0; i < m->n_parts && chat_check_part(g->w, m, &m->part[i], &marks); i++) {
        const talk_part *part = &m->part[i];
        if (part->kind != TALK_TEXT) {
            chat_put_media(g->w, &marks, part);
            any_media = true;
        } else if (m->role == TALK_ASSISTANT) {
            put_without_thoughts(g, part->text.s, part->text.n);
        } else {
            put_trimmed(g, part->text.s, part->text.n);
        }
    }
    return any_media;
}

/* The exact beginning of an answer. */
static void put_beginning(gemma *g, const talk_turn *m)
{
    for (size_t i = 0; i < m->n_parts && chat_check_part(g->w, m, &m->part[i], &marks); i++)
        if (m->part[i].kind != TALK_TEXT)
            chat_put_media(g->w, &marks, &m->part[i]);
        else
            chat_put_text(g->w, m->part[i].text);
}

/* ---- Calls and responses ---- */

/* The name that a result states itself. */
static talk_text given_name(gemma *g, const talk_turn *m, talk_text name)
{
    static const talk_text unknown = {"unknown", 7};
    if (name.n && !chat_is_name(name))
        chat_fail_at(g->w, m, E_FORMAT, ".name: braces or control characters in a name");
    return name.n ? name : unknown;
}

static void put_arguments(gemma *g, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const jtree *a = chat_arguments(g->w, m, i, where);
    if (a)
        tools_put_members(g->w, a, true, where);
}

static void put_calls(gemma *g, const talk_turn *m)
{
    for (size_t i = 0; i < m->n_calls && !g->w->st; i++) {
        const talk_text *name = chat_call_name(g->w, m, i);
        if (!name)
            return;
        chat_lit(g->w, "<|tool_call>call:");
        chat_put(g->w, name->s, name->n);
        chat_lit(g->w, "{");
        put_arguments(g, m, i);
        chat_lit(g->w, "}<tool_call|>");
    }
    g->said = SAID_CALL;
}

/* A result is outside data and may contain anything, even the delimiter. Content never matches
 * special tokens, so the delimiter stays plain text there. */
static void put_response(gemma *g, const talk_turn *m, talk_text name, const jtree *response)
{
    char where[TALK_WHERE];
    talk_where(m, "", where);
    chat_lit(g->w, "<|tool_response>response:");
    chat_put_text(g->w, name);
    if (jtree_is(response, JTREE_OBJECT)) {
        chat_lit(g->w, "{");
        tools_put_members(g->w, response, false, where);
    } else {
        static const jtree null = {.kind = JTREE_NULL};
        chat_lit(g->w, "{value:");
        tools_put_value(g->w, response ? response : &null, false, false, where);
    }
    chat_lit(g->w, "}<tool_response|>");
    g->said = SAID_RESPONSE;
}

/* The results inside an assistant message (Google's form). */
static void put_own_responses(gemma *g, const talk_turn *m)
{
    for (size_t i = 0; i < m->n_results && !g->w->st; i++) {
        const talk_result *r = &m->result[i];
        talk_text name = given_name(g, m, r->name);
        if (!r->given)
            chat_fail_at(g->w, m, E_FORMAT, ".tool_responses: an entry has no response");
        put_response(g, m, name, r->value);
    }
}

/* One `tool` message after the call it answers. */
static void put_tool_message(gemma *g, const talk_turn *caller, const talk_turn *m)
{
    talk_text name = given_name(g, m, m->name);
    str text = {0};
    for (size_t i = 0; i < caller->n_calls && !g->w->st; i++)
        if (chat_same_id(caller->call[i].id, m->call_id)) {
            const talk_text *called = chat_call_name(g->w, caller, i);
            name = called ? *called : name;
        }
    for (size_t i = 0; i < m->n_parts && chat_check_part(g->w, m, &m->part[i], &marks); i++)
        if (m->part[i].kind == TALK_TEXT)
            str_put(&text, m->part[i].text.s, m->part[i].text.n);
    if (text.bad)
        chat_fail(g->w, E_MEMORY, "no memory for a message");
    jtree whole = {.kind = JTREE_STRING, .s = str_text(&text), .n = text.n};
    put_response(g, m, name, m->shape == TALK_NOTHING ? NULL : &whole);
    str_free(&text);
    if (g->revision == GEMMA4_APRIL_LATE)
        return; /* this revision drops the media */
    for (size_t i = 0; i < m->n_parts && !g->w->st; i++)
        if (m->part[i].kind != TALK_TEXT)
            chat_put_media(g->w, &marks, &m->part[i]);
}

/* ---- Turns ---- */

static void open_turn(gemma *g, talk_role r)
{
    chat_lit(g->w, "<|turn>");
    chat_lit(g->w, r == TALK_ASSISTANT ? "model" : talk_role_names[r]);
    chat_lit(g->w, "\n");
    g->closed = false;
}

static void close_turn(gemma *g)
{
    chat_lit(g->w, "<turn|>\n");
    g->closed = true;
}

static void put_thought(gemma *g, talk_text text, const char *end)
{
    chat_lit(g->w, "<|channel>thought\n");
    chat_put_text(g->w, text);
    chat_lit(g->w, end);
}

/* The next message after i that is not a tool's, or NULL. */
static const talk_turn *next_spoken(const gemma *g, size_t i)
{
    for (i++; i < g->n; i++)
        if (g->m[i].role != TALK_TOOL)
            return &g->m[i];
    return NULL;
}

static const talk_turn *previous_spoken(const gemma *g, size_t i)
{
    while (i-- > 0)
        if (g->m[i].role != TALK_TOOL)
            return &g->m[i];
    return NULL;
}

static talk_text reasoning_of(const talk_turn *m)
{
    talk_text a = m->thought[TALK_REASONING];
    return a.n ? a : m->thought[TALK_REASONING_CONTENT];
}

static bool has_text(const chat_prompt *p, size_t from)
{
    const char *s = str_text(&p->text) + from;
    size_t n = p->text.n - from;
    text_trim(&s, &n);
    return n > 0;
}

static bool wants_empty_thought(const gemma *g)
{
    return g->revision != GEMMA4_JULY_SMALL && !g->opt->thinking;
}

/* Whether the answer continues message i. False for calls without results, and for results without
 * content. */
static bool is_beginning(const gemma *g, size_t i)
{
    const talk_turn *m = &g->m[i];
    return g->opt->continue_last && i + 1 == g->n && m->role == TALK_ASSISTANT &&
           (m->n_results ? talk_has_content(m) : !m->n_calls);
}

/* July 2026 and late April: results of the `tool` role follow the calls they answer. */
static void put_message(gemma *g, size_t i)
{
    const talk_turn *m = &g->m[i], *before = previous_spoken(g, i), *after = next_spoken(g, i);
    bool july = g->revision >= GEMMA4_JULY_SMALL, model = m->role == TALK_ASSISTANT;
    bool last_turn = (int64_t)i > g->last_user, answered = false;

    g->said = SAID_OTHER;
    g->begun = is_beginning(g, i);
    bool opens = !(model && before && before->role == TALK_ASSISTANT) || (g->begun && g->closed);
    if (opens)
        open_turn(g, m->role);
    g->closed = false;

    talk_text thought = reasoning_of(m);
    bool keep =
        july ? last_turn || (g->opt->preserve_thinking && m->n_calls) : last_turn && m->n_calls;
    if (thought.n && keep)
        put_thought(g, thought, "\n<channel|>");
    else if (g->begun && opens && !m->n_calls && !m->n_results && wants_empty_thought(g))
        chat_lit(g->w, EMPTY_THOUGHT);
    if (m->n_calls)
        put_calls(g, m);
    if (m->n_results) {
        put_own_responses(g, m);
        answered = true;
    } else if (m->n_calls) {
        for (size_t k = i + 1; k < g->n && g->m[k].role == TALK_TOOL; k++) {
            put_tool_message(g, m, &g->m[k]);
            answered = true;
        }
    }

    if (g->begun) {
        put_beginning(g, m);
        return;
    }
    size_t from = g->w->p->text.n;
    bool media = put_content(g, m);
    bool waiting = g->said == SAID_CALL && !answered;
    if (july) {
        bool content = has_text(g->w->p, from);
        bool goes_on = model && after && after->role == TALK_ASSISTANT && (!m->n_calls || answered);
        if (waiting)
            chat_lit(g->w, "<|tool_response>");
        else if (!goes_on && !(answered && !content && !after))
            close_turn(g);
    } else {
        if (media) {
            g->said = SAID_OTHER;
            waiting = false;
        }
        if (waiting)
            chat_lit(g->w, "<|tool_response>");
        else if (!(answered && !talk_has_content(m)))
            close_turn(g);
    }
}

/* First April template: every message is a turn of its own, results included. */
static void put_message_first(gemma *g, size_t i)
{
    const talk_turn *m = &g->m[i];
    if (!(g->said == SAID_RESPONSE && m->n_calls))
        open_turn(g, m->role);
    g->said = SAID_OTHER;
    g->closed = false;
    g->begun = is_beginning(g, i);
    if (g->begun && !m->n_calls && !m->n_results && wants_empty_thought(g))
        chat_lit(g->w, EMPTY_THOUGHT);
    if (m->n_calls) {
        talk_text thought = m->thought[TALK_REASONING_CONTENT];
        if (thought.n && (int64_t)i > g->last_user)
            put_thought(g, thought, "<channel|>");
        put_calls(g, m);
    }
    if (m->n_results)
        put_own_responses(g, m);
    if (g->begun) {
        put_beginning(g, m);
        return;
    }
    if (put_content(g, m))
        g->said = SAID_OTHER;
    if (!(m->n_results && !talk_has_content(m)))
        close_turn(g);
}

/* The text of the first system message. */
static void put_system(gemma *g, const talk_turn *m)
{
    for (size_t i = 0; i < m->n_parts && chat_check_part(g->w, m, &m->part[i], &marks); i++) {
        if (m->part[i].kind != TALK_TEXT)
            chat_fail_at(g->w, m, E_FORMAT, ".content: a system message holds text only");
        put_trimmed(g, m->part[i].text.s, m->part[i].text.n);
        chat_lit(g->w, m->shape == TALK_LIST ? " " : "");
    }
}

static void put_generation_prompt(gemma *g)
{
    bool thinking = g->opt->thinking, july = g->revision >= GEMMA4_JULY_SMALL;
    bool first = g->revision == GEMMA4_APRIL_FIRST;
    bool opens = g->said == SAID_OTHER || (first && g->said == SAID_CALL);
    if (opens) {
        open_turn(g, TALK_ASSISTANT);
    } else if (g->closed) {
        open_turn(g, TALK_ASSISTANT); /* the repair: see the top of this file */
        if (!first)
            return;
    } else if (july && g->said == SAID_RESPONSE && thinking) {
        chat_lit(g->w, "<|channel>thought\n");
        g->w->p->starts_thinking = true;
    }
    if (wants_empty_thought(g) && (opens || first))
        chat_lit(g->w, EMPTY_THOUGHT);
}

void gemma_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                  const carat_chat_options *opt)
{
    gemma g = {
        .w = w, .revision = f->revision, .opt = opt, .m = t->turn, .n = t->n, .last_user = -1};
    const jtree *tools = chat_tools(t);
    size_t i;

    w->python = f->revision < GEMMA4_JULY_SMALL;
    chat_lit(w, "<bos>");
    bool system = talk_is_system(&g.m[0]);
    if (opt->thinking || tools || system) {
        open_turn(&g, TALK_SYSTEM);
        if (opt->thinking)
            chat_lit(w, "<|think|>\n");
        if (system) {
            put_system(&g, &g.m[0]);
            g.m++;
            g.n--;
        }
        i = 0;
        for (const jtree *it = tools ? tools->first : NULL; it && !w->st; it = it->next) {
            chat_lit(w, "<|tool>");
            tools_put_declaration(w, it, i++, f->revision);
            chat_lit(w, "<tool|>");
        }
        close_turn(&g);
    }
    for (i = 0; i < g.n; i++)
        if (g.m[i].role == TALK_USER)
            g.last_user = (int64_t)i;
    bool after_call = false;
    for (i = 0; i < g.n && !w->st; i++) {
        if (f->revision == GEMMA4_APRIL_FIRST) {
            put_message_first(&g, i);
        } else if (g.m[i].role != TALK_TOOL) {
            put_message(&g, i);
            after_call = g.m[i].n_calls && !g.m[i].n_results;
        } else if (!after_call) {
            chat_fail_at(w, &g.m[i], E_FORMAT,
                         " is a tool's result, but no tool was called right before it");
        }
    }
    if (!opt->no_generation_prompt && !g.begun && !w->st)
        put_generation_prompt(&g);
}
