/* run_show.c - prints the events of an answer, for a reader or for a program.
 *
 * stdout gets the answer: its text and its tool calls. In a one-shot run a call is one line of
 * JSON. Thoughts, progress and speeds go to stderr.
 */
#include "apps/jsonw.h"
#include "apps/run_int.h"
#include "base/show.h"

#include <string.h>

void answer_init(answer *a, answer_format format, bool interactive)
{
    *a = (answer){.format = format, .interactive = interactive};
}

void answer_reset(answer *a)
{
    a->thinking = a->any_output = a->broken = false;
    a->at_line_start = true;
    a->finish = CARAT_FINISH_CANCELLED;
    a->content_words = a->thought_words = (word_wrap){0};
    str_cut(&a->content, 0);
    str_cut(&a->reasoning, 0);
    arena_free(&a->mem);
    a->said = (carat_talk){.mem = &a->mem};
}

void answer_free(answer *a)
{
    str_free(&a->content);
    str_free(&a->reasoning);
    str_free(&a->run_calls);
    arena_free(&a->mem);
    *a = (answer){0};
}

size_t answer_count_calls(const answer *a)
{
    return a->said.n ? a->said.turn->n_calls : 0;
}

/* The arguments stay the text that the model wrote. */
static void keep_call(answer *a, const carat_event *ev)
{
    carat_talk *t = &a->said;
    jtree *arguments = arena_alloc(t->mem, sizeof *arguments);
    t->bad |= !arguments;
    if (!t->n)
        talk_add(t, TALK_ASSISTANT, "the answer", -1);
    talk_text text = talk_keep(t, ev->text, ev->n_text);
    if (arguments)
        *arguments = (jtree){.kind = JTREE_STRING, .s = text.s, .n = text.n};
    talk_put_call(
        t, (talk_call){.name = talk_keep(t, ev->name, strlen(ev->name)), .arguments = arguments});
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

/* A call as the model wrote its arguments: a JSON parser would round large numbers. Open: the
 * caller closes it. */
static void open_call(str *out, const char *key, const char *name, const char *arguments, size_t n)
{
    json_open(out, key, '{');
    json_text(out, "name", name);
    json_ready(out, "arguments", arguments, n);
}

/* Prints a call as one line of JSON. */
static bool print_call(answer *a, const carat_event *ev)
{
    str line = {0};
    open_call(&line, NULL, ev->name, ev->text, ev->n_text);
    json_close(&line, "}");
    bool ok = !line.bad && print_json_line(a, line.at, line.n);
    str_free(&line);
    return ok;
}

static void show_json(answer *a, const carat_event *ev)
{
    static const char *const names[] = {
        [CARAT_EV_PREFILL] = "prefill",     [CARAT_EV_TOKEN] = "token",
        [CARAT_EV_REASONING] = "reasoning", [CARAT_EV_CONTENT] = "content",
        [CARAT_EV_TOOL_CALL] = "tool_call", [CARAT_EV_END] = "end"};
    str line = {0};
    if (ev->kind == CARAT_EV_PROMPT_TOKEN || ev->kind == CARAT_EV_CALL_PART)
        return; /* they are not asked for */
    json_open(&line, NULL, '{');
    json_text(&line, "event", names[ev->kind]);
    if (ev->kind == CARAT_EV_PREFILL) {
        json_int(&line, "done", ev->n_done);
        json_int(&line, "total", ev->n_total);
    } else if (ev->kind == CARAT_EV_TOKEN) {
        json_int(&line, "id", ev->id);
    } else if (ev->kind == CARAT_EV_TOOL_CALL) {
        open_call(&line, "call", ev->name, ev->text, ev->n_text);
        json_close(&line, "}");
    } else if (ev->kind == CARAT_EV_END) {
        json_text(&line, "finish", carat_finish_name(ev->finish));
    } else {
        json_text_n(&line, "text", ev->text, ev->n_text);
    }
    json_close(&line, "}");
    if (!line.bad)
        print_json_line(a, line.at, line.n);
    str_free(&line);
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
    if (a->hides_call && a->hides_call(a->hides_user, ev->name)) {
        fflush(stdout);
        return;
    }
    a->any_output = true;
    if (!a->interactive) {
        print_call(a, ev);
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
        keep_call(a, ev);
    else if (ev->kind == CARAT_EV_END)
        a->finish = ev->finish;
    if (a->format == ANSWER_OBJECT)
        return !a->content.bad && !a->reasoning.bad && !a->said.bad;
    if (a->format == ANSWER_EVENTS)
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
    return !a->broken && !a->content.bad && !a->reasoning.bad && !a->said.bad;
}

void answer_finish(answer *a)
{
    term_progress_clear();
    end_thought(a);
    if (a->format == ANSWER_TEXT && a->any_output)
        end_answer_line(a);
    if (fflush(stdout) || ferror(stdout))
        a->broken = true;
}

void answer_print_speed(const carat_timings *t, const carat_session *s)
{
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
    char sparse[128] = "";
    if (t->sparse)
        snprintf(sparse, sizeof sparse, " | %s:%g%s: %.0f %% of the tiles of keys read", t->sparse,
                 (double)t->sparse_value, t->sparse_auto ? " (auto)" : "",
                 t->n_tiles ? 100.0 * (double)t->n_tiles_kept / (double)t->n_tiles : 100);
    else if (t->sparse_auto)
        snprintf(sparse, sizeof sparse, " | exact attention (auto)");
    size_t used = strlen(sparse);
    if (t->sparse && t->dropped_p99 >= 0)
        snprintf(sparse + used, sizeof sparse - used, ", p99 of the dropped mass below %.3f",
                 t->dropped_p99);
    term_note(
        "[prompt %lld tokens%s, %.1f/s | answer %lld tokens, %.1f/s%s%s | context %lld of %d | "
        "%s]",
        (long long)t->n_prompt, reused, prefill_s > 0 ? (double)t->n_computed / prefill_s : 0,
        (long long)t->n_generated, decode_s > 0 ? (double)n_steps / decode_s : 0, drafts, sparse,
        (long long)carat_session_n_past(s), carat_session_n_ctx(s), carat_finish_name(t->finish));
}

/* ---- One object ------------------------------------------------------------------------ */

/* results: of each call, or NULL. */
static void put_calls(str *out, const answer *a, const char *const *results)
{
    for (size_t i = 0; i < answer_count_calls(a); i++) {
        const talk_call *call = &a->said.turn->call[i];
        open_call(out, NULL, call->name.s, call->arguments->s, call->arguments->n);
        if (results)
            json_text(out, "result", results[i]);
        json_close(out, "}");
    }
}

status answer_keep_calls(answer *a, const char *const *results, err *e)
{
    put_calls(&a->run_calls, a, results);
    return a->run_calls.bad ? err_memory(e, "tool calls", a->run_calls.n) : OK;
}

static double per_second(int64_t n, double ms)
{
    return n > 0 && ms > 0 ? (double)n / ms * 1e3 : 0;
}

status answer_print_object(answer *a, const carat_timings *t, const carat_session *s,
                           const char *model, const compression_report *shortened, err *e)
{
    str out = {0};
    carat_pool_info pool;
    json_open(&out, NULL, '{');
    json_text(&out, "model", model ? model : "");
    json_text_n(&out, "answer", str_text(&a->content), a->content.n);
    json_text_n(&out, "thinking", str_text(&a->reasoning), a->reasoning.n);
    json_open(&out, "calls", '[');
    json_ready(&out, NULL, str_text(&a->run_calls), a->run_calls.n);
    put_calls(&out, a, NULL);
    json_close(&out, "]");
    json_text(&out, "finish", carat_finish_name(a->finish));
    json_open(&out, "usage", '{');
    json_int(&out, "prompt_tokens", t->n_prompt);
    json_int(&out, "reused_tokens", t->n_reused);
    json_int(&out, "answer_tokens", t->n_generated);
    json_int(&out, "context_tokens", carat_session_n_past(s));
    json_int(&out, "context_size", carat_session_n_ctx(s));
    if (shortened) {
        json_key(&out, "compression");
        compress_put_json(&out, shortened);
    }
    json_close(&out, "}");
    carat_session_get_pool(s, &pool);
    if (pool.on) {
        json_open(&out, "pool", '{');
        json_int(&out, "tokens", pool.n_tokens);
        json_text(&out, "policy", pool.policy);
        json_bool(&out, "lossy", pool.lossy);
        json_int(&out, "away_tokens", pool.n_paged_out);
        json_int(&out, "host_bytes", (int64_t)pool.host_bytes);
        json_close(&out, "}");
    }
    json_open(&out, "timings", '{');
    json_fixed(&out, "prompt_ms", t->prefill_ms, 3);
    json_fixed(&out, "prompt_per_second", per_second(t->n_computed, t->prefill_ms), 3);
    json_fixed(&out, "answer_ms", t->decode_ms, 3);
    json_fixed(&out, "answer_per_second", per_second(t->n_generated - 1, t->decode_ms), 3);
    if (t->n_rounds) {
        json_int(&out, "drafted", t->n_drafted);
        json_int(&out, "accepted", t->n_accepted);
        json_int(&out, "rounds", t->n_rounds);
    }
    if (t->sparse) {
        json_key(&out, "sparse");
        str_printf(&out, "\"%s:%g\"", t->sparse, (double)t->sparse_value);
        json_fixed(&out, "attention_density",
                   t->n_tiles ? (double)t->n_tiles_kept / (double)t->n_tiles : 1, 4);
    } else if (t->sparse_auto) {
        json_text(&out, "sparse", "off");
    }
    if (t->sparse && t->dropped_p99 >= 0)
        json_fixed(&out, "dropped_p99", t->dropped_p99, 4);
    if (t->offloaded_experts) {
        json_int(&out, "expert_hits", (int64_t)t->n_expert_hits);
        json_int(&out, "expert_misses", (int64_t)t->n_expert_misses);
        json_int(&out, "expert_bytes", (int64_t)t->expert_bytes);
        json_fixed(&out, "expert_wait_ms", t->expert_wait_ms, 3);
    }
    if (t->n_expert_cpu)
        json_int(&out, "expert_cpu", (int64_t)t->n_expert_cpu);
    json_close(&out, "}}");
    status st = out.bad || !print_json_line(a, out.at, out.n)
                    ? err_memory(e, "the answer as JSON", out.n)
                    : OK;
    str_free(&out);
    if (!st && (fflush(stdout) || ferror(stdout)))
        st = err_set(e, E_IO, "stdout: cannot write the answer");
    return st;
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
