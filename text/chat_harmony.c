/* chat_harmony.c - conversations in gpt-oss' format, harmony.
 *
 *     <|start|>system<|message|>identity, dates, effort, channels<|end|>
 *     <|start|>developer<|message|># Instructions\n\n ... # Tools\n\n ... <|end|>
 *     <|start|>user<|message|> ... <|end|>
 *     <|start|>assistant<|channel|>analysis<|message|> thought <|end|>
 *     <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>
 *     <|start|>functions.NAME to=assistant<|channel|>commentary<|message|>"result"<|end|>
 *     <|start|>assistant<|channel|>final<|message|> ... <|end|>
 *     <|start|>assistant
 *
 * The system's message is the template's own; what clients call the system prompt is the
 * developer's. The thought of a message with calls is kept until a later answer without calls. An
 * answer's own thought is dropped.
 *
 * Without thinking, the prompt opens the final channel. Calls are not possible there: with tools
 * the prompt ends at the role, and the answer's headers open no thought (place_rule).
 *
 * Differences from the template; each replaces an exception, or text that is left out:
 *   - All system and developer messages are the developer's message, wherever they stand.
 *   - Null content is empty content; parts of text are joined. The thought of a message is its
 *     reasoning_content, reasoning or thinking.
 *   - A message may have several calls. A result belongs to the call with its tool_call_id. If
 *     there is none, it belongs to the last call.
 *   - A message with calls, content and a thought: the content is a commentary behind the thought.
 *   - With preserve_thinking, thoughts of messages with calls are kept; with drop_thinking, none.
 *   - The efforts are low, medium and high: minimal is low; xhigh and max are high.
 *   - With continue_last, the message of a last assistant message without calls stays open.
 */
#include "text/gpt_oss.h"

#include <stdio.h>
#include <string.h>

#define START "<|start|>"
#define MESSAGE "<|message|>"
#define END "<|end|>"
#define ANSWER START "assistant<|channel|>"

typedef struct harmony {
    chat_writer *w;
    const carat_chat_options *opt;
    const talk_turn *m;
    size_t n;
    size_t n_turns;          /* without system messages at the end */
    int64_t last_answer;     /* the last assistant message without calls; -1: none */
    const talk_turn *caller; /* the last assistant message so far, if it calls; NULL: none */
} harmony;

/* ---- The system's and the developer's message ---- */

static const char *effort_of(const carat_chat_options *opt)
{
    static const char *const is[][2] = {{"minimal", "low"}, {"low", "low"},     {"high", "high"},
                                        {"xhigh", "high"},  {"x-high", "high"}, {"max", "high"}};
    for (size_t i = 0; opt->reasoning_effort && i < sizeof is / sizeof *is; i++)
        if (!strcmp(opt->reasoning_effort, is[i][0]))
            return is[i][1];
    return "medium";
}

static void put_system(harmony *h, bool tools)
{
    char today[40];
    const chat_day d = chat_today(h->w, h->opt);
    snprintf(today, sizeof today, "%04d-%02d-%02d", d.year, d.month, d.day);
    chat_lit(h->w,
             START "system" MESSAGE "You are ChatGPT, a large language model trained by OpenAI.\n"
                   "Knowledge cutoff: 2024-06\nCurrent date: ");
    chat_puts(h->w, today);
    chat_lit(h->w, "\n\nReasoning: ");
    chat_lit(h->w, effort_of(h->opt));
    chat_lit(h->w,
             "\n\n# Valid channels: analysis, commentary, final. Channel must be included for "
             "every message.");
    if (tools)
        chat_lit(h->w, "\nCalls to these tools must go to the commentary channel: 'functions'.");
    chat_lit(h->w, END);
}

static void put_developer(harmony *h, const jtree *tools)
{
    bool said = false;
    for (size_t i = 0; i < h->n && !h->w->st; i++) {
        talk_text t =
            talk_is_system(&h->m[i]) ? chat_text_of(h->w, &h->m[i], NULL) : (talk_text){"", 0};
        if (!t.n)
            continue;
        chat_lit(h->w, said ? "\n\n" : START "developer" MESSAGE "# Instructions\n\n");
        chat_put_text(h->w, t);
        said = true;
    }
    if (!said && !tools)
        return;
    chat_lit(h->w, said ? "\n\n" : START "developer" MESSAGE);
    if (tools) {
        chat_lit(h->w, "# Tools\n\n");
        harmony_put_tools(h->w, tools);
    }
    chat_lit(h->w, END);
}

/* ---- Turns ---- */

static talk_text thought_of(const talk_turn *m)
{
    int i = 0;
    while (i + 1 < TALK_THOUGHTS && !m->thought[i].n)
        i++;
    return m->thought[i];
}

static void put_channel(harmony *h, const char *channel, talk_text t)
{
    chat_lit(h->w, ANSWER);
    chat_lit(h->w, channel);
    chat_lit(h->w, MESSAGE);
    chat_put_text(h->w, t);
    chat_lit(h->w, END);
}

static void put_call(harmony *h, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const talk_text *name = chat_call_name(h->w, m, i);
    const jtree *arguments = name ? chat_arguments(h->w, m, i, where) : NULL;
    if (h->w->st)
        return;
    chat_lit(h->w, START "assistant to=functions.");
    chat_put(h->w, name->s, name->n);
    chat_lit(h->w, "<|channel|>commentary json" MESSAGE);
    if (arguments)
        chat_put_json(h->w, arguments, where);
    else
        chat_lit(h->w, "{}");
    chat_lit(h->w, "<|call|>");
}

static void put_calls(harmony *h, size_t i)
{
    const talk_turn *m = &h->m[i];
    talk_text thought = thought_of(m);
    talk_text content = chat_text_of(h->w, m, NULL);
    bool over = (int64_t)i < h->last_answer && !h->opt->preserve_thinking;
    if (!over && !h->opt->drop_thinking) {
        if (thought.n)
            put_channel(h, "analysis", thought);
        else if (content.n)
            put_channel(h, "analysis", content);
    }
    if (thought.n && content.n)
        put_channel(h, "commentary", content);
    for (size_t k = 0; k < m->n_calls && !h->w->st; k++)
        put_call(h, m, k);
}

static void put_answer(harmony *h, size_t i)
{
    const talk_turn *m = &h->m[i];
    bool last = i + 1 == h->n_turns;
    bool open = last && h->opt->continue_last;
    talk_text thought = thought_of(m);
    if (last && thought.n && (open || h->opt->no_generation_prompt) && !h->opt->drop_thinking)
        put_channel(h, "analysis", thought);
    chat_lit(h->w, ANSWER "final" MESSAGE);
    chat_put_text(h->w, chat_text_of(h->w, m, NULL));
    if (!open)
        chat_lit(h->w, last && h->opt->no_generation_prompt ? "<|return|>" : END);
}

/* The name of the function that message i has the result of. */
static const talk_text *called(harmony *h, size_t i)
{
    const talk_text id = h->m[i].call_id, *last = NULL;
    const talk_turn *m = h->caller;
    for (size_t at = 0; m && at < m->n_calls && !h->w->st; at++) {
        last = chat_call_name(h->w, m, at);
        if (id.s && chat_same_id(id, m->call[at].id))
            break;
    }
    if (!last)
        chat_fail_at(h->w, &h->m[i], E_FORMAT,
                     " is the result of a tool, and no message before it calls one");
    return last;
}

static void put_result(harmony *h, size_t i)
{
    const talk_text *name = called(h, i);
    talk_text t = chat_text_of(h->w, &h->m[i], NULL);
    str quoted = {0};
    if (h->w->st)
        return;
    chat_lit(h->w, START "functions.");
    chat_put(h->w, name->s, name->n);
    chat_lit(h->w, " to=assistant<|channel|>commentary" MESSAGE);
    jtree_put_string(&quoted, t.s, t.n);
    if (quoted.bad)
        chat_fail(h->w, E_MEMORY, "no memory for a result of %zu bytes", t.n);
    chat_put(h->w, str_text(&quoted), quoted.n);
    str_free(&quoted);
    chat_lit(h->w, END);
}

void harmony_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                    const carat_chat_options *opt)
{
    harmony h = {.w = w, .opt = opt, .last_answer = -1};
    const talk_turn *m = h.m = t->turn;
    const jtree *tools = chat_tools(t);
    (void)f;
    h.n = t->n;
    bool open = chat_goes_on(opt, m, h.n, h.n - 1);
    for (size_t i = 0; i < h.n; i++) {
        if (m[i].role == TALK_ASSISTANT && !m[i].n_calls)
            h.last_answer = (int64_t)i;
        if (!talk_is_system(&m[i]))
            h.n_turns = i + 1;
        chat_refuse_results(w, &m[i]);
    }
    put_system(&h, tools);
    put_developer(&h, tools);
    for (size_t i = 0; i < h.n && !w->st; i++) {
        if (m[i].role == TALK_ASSISTANT)
            h.caller = m[i].n_calls ? &m[i] : NULL;
        if (m[i].role == TALK_TOOL) {
            put_result(&h, i);
        } else if (m[i].role == TALK_USER) {
            chat_lit(w, START "user" MESSAGE);
            chat_put_text(w, chat_text_of(w, &m[i], NULL));
            chat_lit(w, END);
        } else if (m[i].n_calls) {
            put_calls(&h, i);
        } else if (!talk_is_system(&m[i])) {
            put_answer(&h, i);
        }
    }
    if (!opt->no_generation_prompt && !open)
        chat_lit(w, opt->thinking || tools ? START "assistant" : ANSWER "final" MESSAGE);
}

const chat_format *harmony_recognise(const char *t, size_t n)
{
    static const char *const marks[] = {"<|channel|>analysis<|message|>", "render_typescript_type",
                                        "<|call|>"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (!chat_says(t, n, marks[i]))
            return NULL;
    return &harmony_format;
}
