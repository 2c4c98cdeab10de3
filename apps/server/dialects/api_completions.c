/* api_completions.c - POST /v1/completions: continues texts or token ids.
 *
 * `prompt` is a string, or an array of strings, of token ids, or of arrays of ids. Each prompt gets
 * n answers, in order. There are no chat format, reasoning and tools.
 */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/parts.h"
#include "base/utf8.h"

/* ---- Reading ---- */

bool read_prompt(request *rq, const request_limits *lim, problem *p)
{
    const jtree *v = jtree_get(rq->body, "prompt");
    if (!v)
        return problem_set(p, 400, "prompt", "'prompt' is missing");
    bool list = v->kind == JTREE_ARRAY;
    bool of_ids =
        list && v->first && (v->first->kind == JTREE_INTEGER || v->first->kind == JTREE_REAL);
    bool pictured = rq->api == API_LLAMA; /* its prompts may be objects */
    if (!list && v->kind != JTREE_STRING && !(pictured && v->kind == JTREE_OBJECT))
        return problem_set(p, 400, "prompt",
                           "'prompt' is %s; expected a string, an array of "
                           "strings, or token ids",
                           jtree_kind_name(v));
    size_t count = list && !of_ids ? v->count : 1;
    if (!count || count > REQUEST_MAX_CHOICES)
        return problem_set(p, 400, "prompt", "'prompt' holds %zu prompts; expected 1 to %d", count,
                           REQUEST_MAX_CHOICES);
    rq->prompt = arena_array(&rq->mem, count, sizeof *rq->prompt);
    if (!rq->prompt)
        return problem_set(p, 503, "", "no memory for 'prompt'");
    if (of_ids) {
        rq->n_prompts = 1;
        return field_prompt_ids(&rq->mem, "prompt", v, lim->n_vocab, &rq->prompt[0], p);
    }
    for (const jtree *i = list ? v->first : v; i; i = list ? i->next : NULL) {
        raw_prompt *out = &rq->prompt[rq->n_prompts++];
        if (i->kind == JTREE_STRING)
            *out = (raw_prompt){.text = i->s, .n = i->n};
        else if (i->kind == JTREE_OBJECT && pictured) {
            if (!read_pictured_prompt(rq, i, out, p))
                return false;
        } else if (i->kind != JTREE_ARRAY)
            return problem_set(p, 400, "prompt",
                               "'prompt' holds %s; expected strings or arrays of "
                               "token ids",
                               jtree_kind_name(i));
        else if (!field_prompt_ids(&rq->mem, "prompt", i, lim->n_vocab, out, p))
            return false;
    }
    return true;
}

static bool read_refused(request *rq, problem *p)
{
    const jtree *suffix = jtree_get(rq->body, "suffix");
    int64_t best = 0;
    if (suffix && !(suffix->kind == JTREE_STRING && !suffix->n))
        return problem_set(
            p, 400, "suffix",
            "'suffix' is not supported by this path: it continues a text; /infill fills a "
            "gap between two texts");
    if (!field_int(p, rq->body, "best_of", 0, INT32_MAX, &best))
        return false;
    if (best && best != rq->n)
        return problem_set(p, 400, "best_of", "'best_of' is %d; carat takes only the value of 'n'",
                           (int)best);
    return true;
}

/* logprobs, as OpenAI has it; n_probs, llama-server's name for it, where 0 means none. */
static bool read_logprobs(request *rq, problem *p)
{
    int64_t top = 0, probs = 0;
    const jtree *l = jtree_get(rq->body, "logprobs");
    if (!field_int(p, rq->body, "logprobs", 0, REQUEST_MAX_LOGPROBS, &top) ||
        !field_int(p, rq->body, "n_probs", 0, REQUEST_MAX_LOGPROBS, &probs))
        return false;
    rq->logprobs = l != NULL || probs > 0;
    rq->sampling.n_top_logprobs = (int32_t)(top > probs ? top : probs);
    return true;
}

bool completions_parse(request *rq, const request_limits *lim, problem *p)
{
    static const char *const limits[] = {"max_tokens", "n_predict", NULL};
    const jtree *options, *format;
    int64_t n = 1;
    if (!read_common(rq, lim, p) ||
        !field_kind(p, rq->body, "stream_options", JTREE_OBJECT, &options) ||
        !read_usage(rq, options, p) || !field_int(p, rq->body, "n", 1, REQUEST_MAX_CHOICES, &n) ||
        !read_max_tokens(rq, limits, p) || !read_logprobs(rq, p) || !read_prompt_logprobs(rq, p) ||
        !read_stops(rq, "stop", p) || !field_bool(p, rq->body, "echo", &rq->echo) ||
        !read_prompt(rq, lim, p))
        return false;
    rq->n = (int32_t)n;
    if (n * rq->n_prompts > REQUEST_MAX_CHOICES)
        return problem_set(p, 400, "n", "'n' times the number of prompts is %d; at most %d",
                           (int)(n * rq->n_prompts), REQUEST_MAX_CHOICES);
    return read_refused(rq, p) &&
           field_kind(p, rq->body, "response_format", JTREE_OBJECT, &format) &&
           read_format(rq, format, "response_format", false, p) && read_forms(rq, p);
}

/* ---- Writing ---- */

static const char *completion_finish(const choice *c)
{
    return c->finish == CARAT_FINISH_LENGTH ? "length" : "stop";
}

#define OBJECT "text_completion" /* of whole answers and of chunks */

static void put_prompt_text(const answer *a, int32_t index, str *text)
{
    const raw_prompt *p = &a->rq->prompt[index / a->rq->n];
    if (p->ids) {
        for (int64_t i = 0; i < p->n_ids; i++) {
            const char *bytes = "";
            int32_t n = a->m->model ? carat_token_bytes(a->m->model, p->ids[i], false, &bytes) : 0;
            str_put(text, bytes, n > 0 ? (size_t)n : 0);
        }
        if (!utf8_valid(str_text(text), text->n))
            str_cut(text, 0); /* the ids are not valid UTF-8: no echo */
    } else {
        str_put(text, p->text, p->n);
    }
}

/* A piece of a choice: its text and its tokens. */
typedef struct stretch {
    int32_t choice;
    const choice *before; /* the tokens of the prompt come first; or NULL */
    const char *text;
    size_t n;
    int32_t from, to;
    const char *finish; /* NULL: not the last */
    bool prompt;        /* with prompt_logprobs */
} stretch;

static void put_completion_choice(answer *a, const stretch *t, str *o)
{
    choice *c = &a->choice[t->choice];
    json_open(o, NULL, '{');
    json_int(o, "index", t->choice);
    json_text_n(o, "text", t->text, t->n);
    if (a->rq->logprobs) {
        json_open(o, "logprobs", '{');
        c->n_chars = put_old_logprobs(a, t->before, c, t->from, t->to, c->n_chars, o);
        put_logprobs(a, c, t->from, t->to, o, "content"); /* llama.cpp's layout */
        json_close(o, "}");
    } else {
        json_nothing(o, "logprobs");
    }
    json_text(o, "finish_reason", t->finish);
    put_stop_reason(a, c, t->finish, o);
    if (t->prompt)
        put_prompt_logprobs(a, prompt_of(a, t->choice), o);
    json_close(o, "}");
}

static void completions_whole(answer *a, str *o)
{
    json_open(o, NULL, '{');
    openai_head(a, OBJECT, o);
    json_open(o, "choices", '[');
    for (int32_t i = 0; i < a->n; i++) {
        const choice *c = &a->choice[i];
        str text = {0};
        if (a->rq->echo)
            put_prompt_text(a, i, &text);
        put_parts(&text, c, PART_TEXT);
        stretch t = {.choice = i,
                     .text = str_text(&text),
                     .n = text.n,
                     .to = c->n_shown,
                     .finish = completion_finish(c),
                     .prompt = true};
        if (a->rq->echo && a->rq->logprobs) {
            t.before = prompt_of(a, i);
            t.to = c->n_tokens;
        }
        put_completion_choice(a, &t, o);
        o->bad |= text.bad;
        str_free(&text);
    }
    json_close(o, "]");
    openai_usage(a, o);
    put_timings(a, o);
    json_close(o, "}");
}

/* progress: a CARAT_EV_PREFILL, or NULL. */
static void put_chunk(answer *a, const stretch *t, const carat_event *progress, str *o)
{
    event_open(o, NULL);
    openai_head(a, OBJECT, o);
    json_open(o, "choices", '[');
    put_completion_choice(a, t, o);
    json_close(o, "]");
    if (progress)
        put_progress(a, progress, o);
    event_close(o);
}

/* The prompt's own chunk: its text, if it is echoed, and the logprobs of its tokens. */
static void tell_prompt(answer *a, int32_t i, str *o)
{
    const request *rq = a->rq;
    stretch t = {.choice = i, .text = "", .prompt = true};
    str text = {0};
    if (rq->echo) {
        put_prompt_text(a, i, &text);
        t.text = str_text(&text);
        t.n = text.n;
        t.before = rq->logprobs ? prompt_of(a, i) : NULL;
    }
    put_chunk(a, &t, NULL, o);
    a->choice[i].prompt_report = true;
    o->bad |= text.bad;
    str_free(&text);
}

static bool scores_prompt(const request *rq)
{
    return rq->prompt_logprobs >= 0 || (rq->echo && rq->logprobs);
}

static void completions_begin(answer *a, str *o)
{
    for (int32_t i = 0; i < a->n && a->rq->echo && !scores_prompt(a->rq); i++)
        tell_prompt(a, i, o);
}

static void completions_event(answer *a, const choice_event *h, int32_t index, bool opened,
                              int32_t first_token, str *o)
{
    const choice *c = &a->choice[h->choice];
    bool progress = !h->done && h->ev.kind == CARAT_EV_PREFILL;
    (void)opened;
    /* All tokens of a prompt come before the first one of its answer. */
    if (scores_prompt(a->rq) && !c->prompt_report && !progress && !c->failed &&
        (h->done || h->ev.kind != CARAT_EV_PROMPT_TOKEN))
        tell_prompt(a, h->choice, o);
    stretch t = {.choice = h->choice, .text = "", .from = c->n_shown, .to = c->n_shown};
    if (h->done && !c->failed)
        t.finish = completion_finish(c);
    else if (!progress && index >= 0)
        t = (stretch){.choice = h->choice,
                      .text = h->ev.text,
                      .n = h->ev.n_text,
                      .from = first_token,
                      .to = c->n_shown};
    else if (!progress || !a->rq->progress)
        return;
    put_chunk(a, &t, progress ? &h->ev : NULL, o);
}

static void completions_end(answer *a, str *o)
{
    openai_end(a, OBJECT, o);
}

const dialect completions_dialect = {.id_prefix = "cmpl-",
                                     .call_prefix = "call_",
                                     .begin = completions_begin,
                                     .event = completions_event,
                                     .end = completions_end,
                                     .fail = openai_fail,
                                     .whole = completions_whole,
                                     .error = openai_error,
                                     .ping = ": the server is at work\n\n"};
