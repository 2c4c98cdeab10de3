/* api_llama.c - llama-server's own POST /completion and POST /infill.
 *
 * A request continues texts or token ids with the sampling fields of all endpoints. The answer is
 * an object for each choice, an array if there are several; a stream is events without [DONE].
 * generate.c turns the parts of a gap into one prompt.
 */
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "base/utf8.h"

#include <string.h>

/* ---- Reading ---- */

/* n_predict 0 computes the prompt and shows nothing; -1 and -2 are no limit. */
static bool read_predict(request *rq, problem *p)
{
    static const char *const others[] = {"max_tokens", "max_completion_tokens", NULL};
    int64_t n = -1;
    if (!field_int(p, rq->body, "n_predict", -2, INT32_MAX, &n))
        return false;
    if (!n) {
        rq->evaluate_only = true;
        rq->max_tokens = 1; /* an answer has at least one token */
        return true;
    }
    rq->max_tokens = n > 0 ? n : 0;
    return read_max_tokens(rq, others, p);
}

/* What /completion and /infill share. */
static bool read_native(request *rq, const request_limits *lim, problem *p)
{
    int64_t n = 1, n_probs = 0;
    if (!read_common(rq, lim, p) || !read_predict(rq, p) || !read_stops(rq, "stop", p) ||
        !field_int(p, rq->body, "n", 1, REQUEST_MAX_CHOICES, &n) ||
        !field_int(p, rq->body, "n_cmpl", 1, REQUEST_MAX_CHOICES, &n) ||
        !field_int(p, rq->body, "logprobs", 0, 20, &n_probs) ||
        !field_int(p, rq->body, "n_probs", 0, 20, &n_probs) ||
        !field_bool(p, rq->body, "return_tokens", &rq->return_tokens) || !read_forms(rq, p))
        return false;
    rq->n = (int32_t)n;
    rq->logprobs = n_probs > 0;
    rq->sampling.n_top_logprobs = (int32_t)n_probs;
    return true;
}

bool llama_parse(request *rq, const request_limits *lim, problem *p)
{
    if (!read_native(rq, lim, p) || !read_prompt(rq, lim, p))
        return false;
    return rq->n * rq->n_prompts <= REQUEST_MAX_CHOICES ||
           problem_set(p, 400, "n", "'n' times the number of prompts is %d; at most %d",
                       rq->n * rq->n_prompts, REQUEST_MAX_CHOICES);
}

static bool read_text(request *rq, const char *key, bool needed, raw_prompt *out, problem *p)
{
    const jtree *v;
    if (!field_kind(p, rq->body, key, JTREE_STRING, &v))
        return false;
    if (!v && needed)
        return problem_set(p, 400, key, "'%s' is missing", key);
    *out = v ? (raw_prompt){.text = v->s, .n = v->n} : (raw_prompt){.text = ""};
    return true;
}

static bool read_extra(request *rq, problem *p)
{
    const jtree *list;
    if (!field_kind(p, rq->body, "input_extra", JTREE_ARRAY, &list))
        return false;
    if (!list || !list->count)
        return true;
    rq->extra = arena_array(&rq->mem, list->count, sizeof *rq->extra);
    if (!rq->extra)
        return problem_set(p, 503, "", "no memory for 'input_extra'");
    for (const jtree *i = list->first; i; i = i->next) {
        const jtree *text = jtree_get(i, "text"), *name = jtree_get(i, "filename");
        if (!jtree_is(text, JTREE_STRING) || (name && name->kind != JTREE_STRING))
            return problem_set(p, 400, "input_extra",
                               "'input_extra[%d]' is %s; expected an object with 'text' and, if "
                               "wanted, 'filename', both strings",
                               rq->n_extra, jtree_kind_name(i));
        rq->extra[rq->n_extra].text = (raw_prompt){.text = text->s, .n = text->n};
        rq->extra[rq->n_extra++].name = name ? name->s : NULL;
    }
    return true;
}

bool infill_parse(request *rq, const request_limits *lim, problem *p)
{
    rq->infill = true;
    return read_native(rq, lim, p) && read_text(rq, "input_prefix", true, &rq->before, p) &&
           read_text(rq, "input_suffix", true, &rq->after, p) &&
           read_text(rq, "prompt", false, &rq->typed, p) && read_extra(rq, p);
}

/* ---- Writing ---- */

static const char *stop_type(const choice *c)
{
    if (c->finish == CARAT_FINISH_LENGTH)
        return "limit";
    return c->stop ? "word" : "eos";
}

/* The answer ended because the context is full. */
static bool is_truncated(const answer *a, const choice *c)
{
    return c->finish == CARAT_FINISH_LENGTH &&
           (!a->rq->max_tokens || c->n_sampled < a->rq->max_tokens);
}

static void put_ids(const choice *c, int32_t from, int32_t to, str *o)
{
    json_open(o, "tokens", '[');
    for (int32_t i = from; i < to; i++)
        json_int(o, NULL, c->token[i].id);
    json_close(o, "]");
}

static void put_samplers(const carat_sampling *s, str *o)
{
    json_sampling(o, s);
    json_open(o, "samplers", '['); /* empty: all, in the default order */
    for (int32_t i = 0; i < CARAT_SAMPLERS_MAX && carat_sampler_name(s->order[i]); i++)
        json_text(o, NULL, carat_sampler_name(s->order[i]));
    json_close(o, "]");
}

static void put_settings(const answer *a, str *o)
{
    const request *rq = a->rq;
    const carat_sampling *s = &rq->sampling;
    json_open(o, "generation_settings", '{');
    json_int(o, "seed", s->seed);
    put_samplers(s, o);
    json_open(o, "stop", '[');
    for (int32_t i = 0; i < rq->n_stop; i++)
        json_text(o, NULL, rq->stop[i]);
    json_close(o, "]");
    int64_t most = rq->evaluate_only ? 0 : rq->max_tokens ? rq->max_tokens : -1;
    json_int(o, "max_tokens", most);
    json_int(o, "n_predict", most);
    json_bool(o, "ignore_eos", s->ignore_eog);
    json_bool(o, "stream", rq->stream);
    json_int(o, "n_probs", rq->logprobs ? s->n_top_logprobs : 0);
    json_close(o, "}");
}

/* The text of the prompt; of ids, as far as it is valid UTF-8. */
static void put_prompt(const answer *a, int32_t index, str *o)
{
    const request *rq = a->rq;
    str text = {0};
    const raw_prompt *q = rq->n_prompts ? &rq->prompt[index / rq->n] : &rq->before;
    for (int64_t i = 0; i < q->n_ids; i++) {
        const char *bytes = "";
        int32_t n = a->m->model ? carat_token_bytes(a->m->model, q->ids[i], true, &bytes) : 0;
        str_put(&text, bytes, n > 0 ? (size_t)n : 0);
    }
    if (!q->ids)
        str_put(&text, q->text, q->n);
    else if (!utf8_valid(str_text(&text), text.n))
        str_cut(&text, 0);
    json_text_n(o, "prompt", str_text(&text), text.n);
    o->bad |= text.bad;
    str_free(&text);
}

static void put_counts(const answer *a, const choice *c, str *o)
{
    int64_t n = a->rq->evaluate_only ? 0 : c->n_sampled;
    int64_t n_prompt = c->t.n_prompt ? c->t.n_prompt : a->n_prompt;
    json_int(o, "id_slot", -1); /* requests are not tied to slots */
    json_int(o, "tokens_predicted", n);
    json_int(o, "tokens_evaluated", n_prompt);
}

/* The members of a finished choice after content and tokens. */
static void put_end(const answer *a, int32_t index, str *o)
{
    const choice *c = &a->choice[index];
    str text = {0};
    put_parts(&text, c, PART_TEXT);
    json_bool(o, "stop", true);
    json_text(o, "model", model_name(a));
    put_counts(a, c, o);
    put_settings(a, o);
    put_prompt(a, index, o);
    json_bool(o, "has_new_line", text.n && memchr(text.at, '\n', text.n));
    json_bool(o, "truncated", is_truncated(a, c));
    json_text(o, "stop_type", stop_type(c));
    json_text(o, "stopping_word", c->stop ? c->stop : "");
    json_int(o, "tokens_cached", c->t.n_prompt + c->t.n_generated);
    put_timings(a, o);
    o->bad |= text.bad;
    str_free(&text);
}

static void put_whole_choice(const answer *a, int32_t index, str *o)
{
    const choice *c = &a->choice[index];
    bool shown = !a->rq->evaluate_only;
    str text = {0};
    if (shown)
        put_parts(&text, c, PART_TEXT);
    json_open(o, NULL, '{');
    json_int(o, "index", index);
    json_text_n(o, "content", str_text(&text), text.n);
    put_ids(c, 0, shown && a->rq->return_tokens ? c->n_shown : 0, o);
    if (a->rq->logprobs)
        put_logprobs(a, c, 0, shown ? c->n_shown : 0, o, "completion_probabilities");
    put_end(a, index, o);
    json_close(o, "}");
    o->bad |= text.bad;
    str_free(&text);
}

static void llama_whole(answer *a, str *o)
{
    if (a->n > 1)
        json_open(o, NULL, '[');
    for (int32_t i = 0; i < a->n; i++)
        put_whole_choice(a, i, o);
    if (a->n > 1)
        json_close(o, "]");
}

static void llama_begin(answer *a, str *o)
{
    (void)a, (void)o; /* a stream begins with its first text */
}

static void put_chunk(const answer *a, const choice_event *h, int32_t from, str *o)
{
    const choice *c = &a->choice[h->choice];
    event_open(o, NULL);
    json_int(o, "index", h->choice);
    json_text_n(o, "content", h->ev.text ? h->ev.text : "", h->ev.text ? h->ev.n_text : 0);
    put_ids(c, from, a->rq->return_tokens ? c->n_shown : from, o);
    json_bool(o, "stop", false);
    put_counts(a, c, o);
    if (a->rq->logprobs)
        put_logprobs(a, c, from, c->n_shown, o, "completion_probabilities");
    if (h->ev.kind == CARAT_EV_PREFILL)
        put_progress(a, &h->ev, o);
    event_close(o);
}

static void llama_event(answer *a, const choice_event *h, int32_t index, bool opened,
                        int32_t first_token, str *o)
{
    const choice *c = &a->choice[h->choice];
    (void)opened;
    if (h->done && !c->failed) {
        event_open(o, NULL);
        json_int(o, "index", h->choice);
        json_text(o, "content", "");
        put_ids(c, 0, 0, o);
        put_end(a, h->choice, o);
        event_close(o);
    } else if (!h->done && h->ev.kind == CARAT_EV_PREFILL && a->rq->progress) {
        put_chunk(a, h, c->n_shown, o);
    } else if (index >= 0 && !a->rq->evaluate_only) {
        put_chunk(a, h, first_token, o);
    }
}

static void llama_end(answer *a, str *o)
{
    (void)a, (void)o; /* each choice has ended itself */
}

const dialect llama_dialect = {.id_prefix = "cmpl-",
                               .call_prefix = "call_",
                               .begin = llama_begin,
                               .event = llama_event,
                               .end = llama_end,
                               .fail = openai_fail,
                               .whole = llama_whole,
                               .error = openai_error,
                               .ping = ": the server is at work\n\n"};
