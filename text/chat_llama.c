/* chat_llama.c - conversations of Llama 3 to 3.3.
 *
 *     <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\n ... <|eot_id|>
 *     <|start_header_id|>assistant<|end_header_id|>\n\n{"name": "f", "parameters": {...}}<|eot_id|>
 *     <|start_header_id|>ipython<|end_header_id|>\n\n"result"<|eot_id|>
 *     <|start_header_id|>assistant<|end_header_id|>\n\n
 *
 * From Llama 3.1 on, the first turn is always the system's, and begins with two dates. The second
 * is the day of the template, in Llama 3.2 the day of the clock. Tools stand in front of the first
 * message behind the system's. Llama 3 has no tools: requests with them are refused.
 *
 * Differences from the templates; each replaces an exception or another role: the role developer
 * is the role system; the texts of content parts are joined; with several calls a message is
 * several turns; with continue_last, the turn of a last assistant message without calls stays open,
 * and white space at its end is kept.
 */
#include "text/llama.h"

#include <stdio.h>

#define HEADER "<|start_header_id|>"
#define HEADER_END "<|end_header_id|>\n\n"
#define TURN_END "<|eot_id|>"

/* Other templates with these headers (Functionary, FireFunction) write their turns in other ways:
 * the expression that ends a turn is the landmark. */
const chat_format *llama_recognise(const char *t, size_t n)
{
    if (!chat_says(t, n, HEADER) || !chat_says(t, n, "message['content'] | trim + '<|eot_id|>'"))
        return NULL;
    if (!chat_says(t, n, "\"Cutting Knowledge Date: December 2023"))
        return &llama_formats[LLAMA_3];
    return &llama_formats[chat_says(t, n, "strftime_now") ? LLAMA_32 : LLAMA_31];
}

static void open_turn(chat_writer *w, const char *role)
{
    chat_lit(w, HEADER);
    chat_lit(w, role);
    chat_lit(w, HEADER_END);
}

static void put_dates(chat_writer *w, bool clock, const carat_chat_options *opt)
{
    static const char *const month[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const chat_day d = clock ? chat_today(w, opt) : (chat_day){2024, 7, 26};
    char today[40];
    snprintf(today, sizeof today, "%02d %s %d", d.day, month[d.month - 1], d.year);
    chat_lit(w, "Cutting Knowledge Date: December 2023\nToday Date: ");
    chat_puts(w, today);
    chat_lit(w, "\n\n");
}

/* JSON as json.dumps prints it with an indent of four. */
static void put_indented(chat_writer *w, str *out, const jtree *v, int depth, const char *where)
{
    bool object = v->kind == JTREE_OBJECT;
    if ((!object && v->kind != JTREE_ARRAY) || !v->first) {
        if (!jtree_put_python_json(out, v))
            chat_fail(w, E_FORMAT, "%s: a number is too large for a double", where);
        return;
    }
    str_putc(out, object ? '{' : '[');
    for (const jtree *it = v->first; it && !w->st; it = it->next) {
        str_printf(out, "\n%*s", 4 * (depth + 1), "");
        if (object) {
            jtree_put_string(out, it->key, it->n_key);
            str_puts(out, ": ");
        }
        put_indented(w, out, it, depth + 1, where);
        str_puts(out, it->next ? "," : "");
    }
    str_printf(out, "\n%*s%c", 4 * depth, "", object ? '}' : ']');
}

static void put_tools(chat_writer *w, const jtree *tools)
{
    char where[TALK_WHERE];
    size_t i = 0;
    str out = {0};
    chat_lit(
        w, "Given the following functions, please respond with a JSON for a function call with its "
           "proper arguments that best answers the given prompt.\n\nRespond in the format "
           "{\"name\": function name, \"parameters\": dictionary of argument name and its value}."
           "Do not use variables.\n\n");
    for (const jtree *t = tools->first; t && !w->st; t = t->next, i++) {
        chat_tool_place(t, i, where);
        if (!chat_function_of(w, t, where))
            break;
        put_indented(w, &out, t, 0, where);
        str_puts(&out, "\n\n");
    }
    if (out.bad)
        chat_fail(w, E_MEMORY, "no memory for the tools");
    chat_put(w, str_text(&out), out.n);
    str_free(&out);
}

static void put_calls(chat_writer *w, const talk_turn *m)
{
    char where[TALK_WHERE];
    for (size_t i = 0; i < m->n_calls && !w->st; i++) {
        const talk_text *name = chat_call_name(w, m, i);
        const jtree *arguments = name ? chat_arguments(w, m, i, where) : NULL;
        if (w->st)
            return;
        open_turn(w, "assistant");
        chat_lit(w, "{\"name\": \"");
        chat_put(w, name->s, name->n);
        chat_lit(w, "\", \"parameters\": ");
        if (arguments)
            chat_put_json(w, arguments, where);
        else
            chat_lit(w, "{}");
        chat_lit(w, "}" TURN_END);
    }
}

static void put_result(chat_writer *w, const talk_turn *m)
{
    talk_text t = chat_text_of(w, m, NULL);
    str quoted = {0};
    open_turn(w, "ipython");
    jtree_put_string(&quoted, t.s, t.n);
    if (quoted.bad)
        chat_fail(w, E_MEMORY, "no memory for a result of %zu bytes", t.n);
    chat_put(w, str_text(&quoted), quoted.n);
    str_free(&quoted);
    chat_lit(w, TURN_END);
}

static void put_trimmed(chat_writer *w, const talk_turn *m)
{
    talk_text t = chat_trimmed(chat_text_of(w, m, NULL));
    chat_put(w, t.s, t.n);
}

/* Refuses what the format cannot write. */
static void check(chat_writer *w, const talk_turn *m, size_t n, bool dated, const jtree *tools)
{
    size_t first = talk_is_system(&m[0]);
    if (tools && !dated)
        chat_fail(
            w, E_UNSUPPORTED,
            "tools: Llama 3's chat format has none, that of Llama 3.1 and later has; describe "
            "them, and the answer that you expect, in a message");
    if (tools && (first == n || m[first].role != TALK_USER))
        chat_fail(w, E_FORMAT,
                  "messages: with tools, the first message behind the system's must be the user's");
    for (size_t i = 0; i < n; i++) {
        chat_refuse_results(w, &m[i]);
        if (!dated && (m[i].n_calls || m[i].role == TALK_TOOL))
            chat_fail_at(w, &m[i], E_UNSUPPORTED,
                         ": Llama 3's chat format has no calls and results");
    }
}

void llama_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                  const carat_chat_options *opt)
{
    const talk_turn *m = t->turn;
    const jtree *tools = chat_tools(t);
    size_t n = t->n, i = 0;
    bool dated = f->revision != LLAMA_3;
    check(w, m, n, dated, tools);
    chat_lit(w, "<|begin_of_text|>");
    if (dated) {
        open_turn(w, "system");
        chat_lit(w, tools ? "Environment: ipython\n" : "");
        put_dates(w, f->revision == LLAMA_32, opt);
        if (talk_is_system(&m[0]))
            put_trimmed(w, &m[i++]);
        chat_lit(w, TURN_END);
    }
    for (bool first = true; i < n && !w->st; i++, first = false) {
        if (m[i].n_calls) {
            put_calls(w, &m[i]);
            continue;
        }
        if (m[i].role == TALK_TOOL) {
            put_result(w, &m[i]);
            continue;
        }
        open_turn(w, talk_is_system(&m[i]) ? "system" : talk_role_names[m[i].role]);
        if (first && tools)
            put_tools(w, tools);
        talk_text text = chat_text_of(w, &m[i], NULL), trimmed = chat_trimmed(text);
        if (opt->continue_last && i + 1 == n && m[i].role == TALK_ASSISTANT) {
            chat_put(w, trimmed.s, trimmed.n ? (size_t)(text.s + text.n - trimmed.s) : 0);
            return;
        }
        chat_put(w, trimmed.s, trimmed.n);
        chat_lit(w, TURN_END);
    }
    if (!opt->no_generation_prompt)
        open_turn(w, "assistant");
}
