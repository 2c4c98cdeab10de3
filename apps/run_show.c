/* run_show.c - prints the events of an answer, for a reader or for a program.
 *
 * stdout gets the answer: its text and its tool calls. In a one-shot run a call is one line of
 * JSON. Thoughts, progress and speeds go to stderr.
 */
#include "apps/run_int.h"
#include "base/mem.h"
#include "base/show.h"

#include <string.h>

status answer_init(answer *a, bool json, bool interactive, err *e)
{
    *a = (answer){.json = json, .interactive = interactive};
    a->calls = json_array();
    return a->calls ? OK : err_memory(e, "an answer", 64);
}

void answer_reset(answer *a)
{
    a->thinking = a->any_output = a->broken = false;
    a->at_line_start = true;
    a->finish = CARAT_FINISH_CANCELLED;
    a->content_words = a->thought_words = (word_wrap){0};
    str_cut(&a->content, 0);
    str_cut(&a->reasoning, 0);
    json_array_clear(a->calls);
}

void answer_free(answer *a)
{
    str_free(&a->content);
    str_free(&a->reasoning);
    json_decref(a->calls);
    *a = (answer){0};
}

/* The text of an event is valid UTF-8, so json_stringn cannot refuse it. */
static json_t *text_json(const carat_event *ev)
{
    return json_stringn(ev->text, ev->n_text);
}

/* The arguments stay text, because a JSON parser would round large numbers. */
static json_t *call_json(const carat_event *ev)
{
    return json_pack("{s:s, s:o}", "name", ev->name, "arguments", text_json(ev));
}

/* Prints a line of JSON and escapes characters that terminals obey (base/show.h). */
static bool print_json_line(answer *a, const char *json, size_t n)
{
    str line = {0};
    show_put_json(&line, json, n);
    str_putc(&line, '\n');
    bool ok = !line.bad;
    if (ok)
        fwrite(line.at, 1, line.n, stdout);
    str_free(&line);
    a->any_output = true;
    return ok;
}

/* Prints a call as one line of JSON, with the arguments as the model wrote them. */
static bool print_call(answer *a, const carat_event *ev, const char *before, const char *after)
{
    json_t *name = json_string(ev->name);
    char *text = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    str line = {0};
    json_decref(name);
    str_printf(&line, "%s{\"name\":%s,\"arguments\":", before, text ? text : "\"\"");
    str_put(&line, ev->text, ev->n_text);
    str_printf(&line, "}%s", after);
    free(text);
    bool ok = !line.bad && print_json_line(a, line.at, line.n);
    str_free(&line);
    return ok;
}

static bool print_event(answer *a, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    bool ok = text && print_json_line(a, text, strlen(text));
    free(text);
    return ok;
}

static bool show_json(answer *a, const carat_event *ev)
{
    switch (ev->kind) {
    case CARAT_EV_PREFILL:
        return print_event(a, json_pack("{s:s, s:I, s:I}", "event", "prefill", "done",
                                        (json_int_t)ev->n_done, "total", (json_int_t)ev->n_total));
    case CARAT_EV_TOKEN:
        return print_event(a, json_pack("{s:s, s:i}", "event", "token", "id", (int)ev->id));
    case CARAT_EV_REASONING:
    case CARAT_EV_CONTENT:
        return print_event(a, json_pack("{s:s, s:o}", "event",
                                        ev->kind == CARAT_EV_CONTENT ? "content" : "reasoning",
                                        "text", text_json(ev)));
    case CARAT_EV_TOOL_CALL:
        return print_call(a, ev, "{\"event\":\"tool_call\",\"call\":", "}");
    case CARAT_EV_END:
        return print_event(
            a, json_pack("{s:s, s:s}", "event", "end", "finish", carat_finish_name(ev->finish)));
    }
    return true;
}

static void end_thought(answer *a)
{
    if (!a->thinking)
        return;
    a->thinking = false;
    term_end_words(stderr, &a->thought_words);
    a->thought_words = (word_wrap){0};
    term_set(stderr, TERM_PLAIN);
    fputs("\n\n", stderr);
    fflush(stderr);
}

static void show_thought(answer *a, const carat_event *ev)
{
    if (!a->thinking)
        term_set(stderr, TERM_DIM);
    a->thinking = true;
    term_put_words(stderr, &a->thought_words, ev->text, ev->n_text);
    fflush(stderr);
}

static void show_content(answer *a, const carat_event *ev)
{
    end_thought(a);
    term_put_words(stdout, &a->content_words, ev->text, ev->n_text);
    a->any_output = true;
    a->at_line_start = ev->n_text && ev->text[ev->n_text - 1] == '\n';
}

static void end_answer_line(answer *a)
{
    term_end_words(stdout, &a->content_words);
    a->content_words = (word_wrap){0};
    if (!a->at_line_start)
        fputs("\n", stdout);
    a->at_line_start = true;
}

static void show_call(answer *a, const carat_event *ev)
{
    end_thought(a);
    end_answer_line(a);
    a->any_output = true;
    if (!a->interactive) {
        print_call(a, ev, "", "");
        return;
    }
    term_set(stdout, TERM_CYAN);
    fputs("call ", stdout);
    term_put(stdout, ev->name, strlen(ev->name));
    term_set(stdout, TERM_PLAIN);
    fputs(" ", stdout);
    term_put(stdout, ev->text, ev->n_text);
    fputs("\n", stdout);
}

bool answer_show(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_PREFILL) {
        if (!term_progress(NULL, "prompt tokens", (uint64_t)ev->n_done, (uint64_t)ev->n_total))
            return false;
    } else {
        term_progress_clear();
    }
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(&a->content, ev->text, ev->n_text);
    else if (ev->kind == CARAT_EV_REASONING)
        str_put(&a->reasoning, ev->text, ev->n_text);
    else if (ev->kind == CARAT_EV_TOOL_CALL)
        json_array_append_new(a->calls, call_json(ev));
    else if (ev->kind == CARAT_EV_END)
        a->finish = ev->finish;
    if (a->json)
        show_json(a, ev);
    else if (ev->kind == CARAT_EV_REASONING)
        show_thought(a, ev);
    else if (ev->kind == CARAT_EV_CONTENT)
        show_content(a, ev);
    else if (ev->kind == CARAT_EV_TOOL_CALL)
        show_call(a, ev);
    if (ev->kind != CARAT_EV_PREFILL && ev->kind != CARAT_EV_TOKEN &&
        (fflush(stdout) || ferror(stdout)))
        a->broken = true;
    return !a->broken && !a->content.bad && !a->reasoning.bad;
}

void answer_finish(answer *a)
{
    term_progress_clear();
    end_thought(a);
    if (!a->json && a->any_output)
        end_answer_line(a);
    if (fflush(stdout) || ferror(stdout))
        a->broken = true;
}

void answer_print_speed(const carat_timings *t, const carat_session *s)
{
    int64_t n_computed = t->n_prompt - t->n_reused;
    double prefill_s = t->prefill_ms * 1e-3, decode_s = t->decode_ms * 1e-3;
    char reused[96] = "";
    if (t->n_reused)
        snprintf(reused, sizeof reused, " (%lld reused: %s)", (long long)t->n_reused, t->reuse);
    /* The prompt's pass gives the first token, so decode time belongs to the other tokens. */
    int64_t n_steps = t->n_generated > 1 ? t->n_generated - 1 : 0;
    char drafts[128] = "";
    if (t->n_rounds)
        snprintf(drafts, sizeof drafts, " | %s: %lld of %lld drafts accepted, %.1f per round",
                 t->drafter, (long long)t->n_accepted, (long long)t->n_drafted,
                 (double)t->n_accepted / (double)t->n_rounds);
    term_note(
        "[prompt %lld tokens%s, %.1f/s | answer %lld tokens, %.1f/s%s | context %lld of %d | %s]",
        (long long)t->n_prompt, reused, prefill_s > 0 ? (double)n_computed / prefill_s : 0,
        (long long)t->n_generated, decode_s > 0 ? (double)n_steps / decode_s : 0, drafts,
        (long long)carat_session_n_past(s), carat_session_n_ctx(s), carat_finish_name(t->finish));
}

/* On a terminal the words so far are in the line of the cursor. */
static void leave_line(word_wrap *w, FILE *f)
{
    if (!term_is_tty(f) || !term_is_tty(stderr) || !w->column)
        return;
    fflush(f);
    fputs("\n", stderr);
    w->column = 0;
}

void answer_print_round(void *user, const carat_round *r)
{
    answer *a = user;
    leave_line(&a->content_words, stdout);
    leave_line(&a->thought_words, stderr);
    term_note("[%s: %d of %d drafts%s accepted, %d rows, draft %.2f ms, pass %.2f ms]", r->drafter,
              r->n_accepted, r->n_drafted, r->tree ? " in a tree" : "", r->n_rows, r->draft_ms,
              r->pass_ms);
}
