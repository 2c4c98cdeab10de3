/* decode.c - the only token loop: sampling, stop rules, budgets, cancellation, streaming.
 *
 *     logits -> sample -> TOKEN event -> end of turn? -> bytes -> stream (whole characters, stop
 *     strings) -> answer parser (reasoning, content, calls) -> events -> budget? -> next pass
 *
 * All memory is taken before the first token; between the first and the last nothing here
 * allocates (the answer parser may grow its buffer for a tool call). Whatever ends the loop, the
 * text that was held back is decided and shown, and the last event is END.
 */
#include "engine/engine_int.h"
#include "engine/report.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/stream.h"

#include <math.h>
#include <string.h>

enum { TEXT_BYTES = 4096, LOGPROBS_MAX = 20 };

/* One carat_generate. */
typedef struct decode {
    carat_session *s;
    carat_generate_options opt;
    carat_event_fn fn;
    void *user;
    stream text;
    answer_parser *parser; /* NULL: all text is content */
    bool refused;          /* fn returned false: nothing but END is told from then on */
    bool ended;
    carat_finish finish;
    int64_t n_prompt, n_generated;
    err e; /* of the parser, which reports through callbacks */
    carat_logprob top[LOGPROBS_MAX];
    char buf[TEXT_BYTES]; /* events carry NUL-terminated text, streams do not */
} decode;

void carat_sampling_default(const carat_model *m, carat_sampling *p)
{
    const gguf *g = &m->core.file;
    double v;
    int64_t k;
    /* The family's recommendation, unless the file has its own. */
    *p = (carat_sampling){
        .temperature = 1, .top_k = 64, .top_p = 0.95f, .repeat_penalty = 1, .penalty_last_n = 64};
    if (gguf_get_f64(g, "general.sampling.temp", &v) && isfinite(v))
        p->temperature = (float)v;
    if (gguf_get_i64(g, "general.sampling.top_k", &k) && k >= 0 && k <= INT32_MAX)
        p->top_k = (int32_t)k;
    if (gguf_get_f64(g, "general.sampling.top_p", &v) && v >= 0 && v <= 1)
        p->top_p = (float)v;
    if (gguf_get_f64(g, "general.sampling.min_p", &v) && v >= 0 && v <= 1)
        p->min_p = (float)v;
}

/* Place holders for media have embeddings and so logits; a text answer must never contain them. */
static void ban_place_holders(const carat_model *m, float *logits)
{
    int32_t n = 0;
    const int32_t *id = m->text ? vocab_never_sampled(m->text, &n) : NULL;
    for (int32_t i = 0; i < n; i++)
        logits[id[i]] = -INFINITY;
}

int32_t carat_sample(const carat_model *m, const carat_sampling *p, float *logits,
                     const int32_t *past, int64_t n_past, uint64_t *rng_state)
{
    sampler s;
    int32_t id = -1;
    if (sample_check(p, m->core.n_vocab, NULL) || sampler_init(&s, m->core.n_vocab, NULL))
        return -1;
    ban_place_holders(m, logits);
    id = sample_pick(&s, p, logits, past, n_past, rng_state);
    sampler_free(&s);
    return id;
}

/* ---- Events ---------------------------------------------------------------------------- */

static bool tell(decode *d, const carat_event *ev)
{
    if (d->fn && !d->refused && !d->fn(d->user, ev))
        d->refused = true;
    return !d->refused;
}

static bool tell_answer(void *user, const answer_event *a)
{
    static const carat_event_kind kind[] = {[ANSWER_REASONING] = CARAT_EV_REASONING,
                                            [ANSWER_CONTENT] = CARAT_EV_CONTENT,
                                            [ANSWER_TOOL_CALL] = CARAT_EV_TOOL_CALL};
    carat_event ev = {.kind = kind[a->kind], .text = a->text, .n_text = a->n, .name = a->name};
    return tell(user, &ev);
}

/* What fits the buffer, cut between characters. */
static size_t fitting(const char *text, size_t n)
{
    if (n < TEXT_BYTES)
        return n;
    n = TEXT_BYTES - 1;
    return n - utf8_partial_tail(text, n);
}

/* From the stream: whole characters, free of stop strings. */
static bool take_text(void *user, const char *text, size_t n)
{
    decode *d = user;
    if (d->parser)
        return answer_put(d->parser, text, n, &d->e) == OK;
    while (n) {
        size_t now = fitting(text, n);
        memcpy(d->buf, text, now);
        d->buf[now] = 0;
        if (!tell(d, &(carat_event){.kind = CARAT_EV_CONTENT, .text = d->buf, .n_text = now}))
            return false;
        text += now;
        n -= now;
    }
    return true;
}

static bool tell_prefill(void *user, int64_t done, int64_t total)
{
    return tell(user, &(carat_event){.kind = CARAT_EV_PREFILL, .n_done = done, .n_total = total});
}

/* ---- One token ------------------------------------------------------------------------- */

/* From the session's logits to an id; -1 if there is nothing to choose from. The draw depends on
 * seed and position alone, so a repeated answer repeats, whatever batches it came in. */
static int32_t pick(decode *d, float *logprob, int32_t *n_top)
{
    carat_session *s = d->s;
    const carat_sampling *p = &d->opt.sampling;
    uint64_t rng = sample_rng_at(p->seed, s->kv.n_past);
    if (p->n_top_logprobs > 0)
        memcpy(s->raw, s->logits, (size_t)s->m->core.n_vocab * sizeof *s->raw);
    ban_place_holders(s->m, s->logits);
    int32_t id = sample_pick(&s->sampler, p, s->logits, s->id, s->kv.n_past, &rng);
    if (id >= 0 && p->n_top_logprobs > 0) {
        sample_logprobs(&s->sampler, s->raw, id, logprob, d->top, p->n_top_logprobs);
        *n_top = p->n_top_logprobs;
    }
    return id;
}

static void end(decode *d, carat_finish why)
{
    if (!d->ended)
        d->finish = why;
    d->ended = true;
}

/* Makes id the next token of the answer and applies every rule that may end it. */
static void accept(decode *d, int32_t id, float logprob, int32_t n_top)
{
    const carat_model *m = d->s->m;
    size_t n = 0;
    d->n_generated++;
    carat_event ev = {
        .kind = CARAT_EV_TOKEN, .id = id, .logprob = logprob, .top = d->top, .n_top = n_top};
    if (!tell(d, &ev)) {
        end(d, CARAT_FINISH_CANCELLED);
        return;
    }
    if (m->text && vocab_is_eog(m->text, id) && !d->opt.sampling.ignore_eog) {
        end(d, CARAT_FINISH_STOP);
        return;
    }
    const char *bytes = m->text ? vocab_text(m->text, id, false, &n) : NULL;
    if (bytes && n && !stream_put(&d->text, bytes, n))
        end(d, d->text.met >= 0 ? CARAT_FINISH_STOP : CARAT_FINISH_CANCELLED);
    if (d->n_generated == d->opt.max_tokens || d->s->kv.n_past == d->s->shape.n_ctx)
        end(d, CARAT_FINISH_LENGTH);
}

/* The logits of the prompt's last token are in s->logits. Leaves why it ended in d. */
static status loop(decode *d, err *e)
{
    carat_session *s = d->s;
    status st;
    for (;;) {
        if (session_take_cancel(s))
            end(d, CARAT_FINISH_CANCELLED);
        if (d->ended)
            return OK;
        float logprob = 0;
        int32_t n_top = 0, id = pick(d, &logprob, &n_top);
        if (id < 0)
            return err_set(e, E_NUMERIC, "after %lld tokens no token has a finite probability",
                           (long long)s->kv.n_past);
        accept(d, id, logprob, n_top);
        if (!d->ended && (st = session_pass(s, &id, 1, KV_WANT_LAST, s->logits, e)))
            return st;
    }
}

/* ---- Begin and end --------------------------------------------------------------------- */

static status open_decode(decode *d, const carat_generate_options *opt, err *e)
{
    const carat_model *m = d->s->m;
    status st;
    if (opt)
        d->opt = *opt;
    else
        carat_sampling_default(m, &d->opt.sampling);
    if ((st = sample_check(&d->opt.sampling, m->core.n_vocab, e)))
        return st;
    if (d->opt.n_stop < 0 || (d->opt.n_stop && !d->opt.stop))
        return err_set(e, E_ARG, "carat_generate: a list of stop strings without entries");
    if (!m->text && (d->opt.n_stop || d->opt.parse))
        return err_set(e, E_UNSUPPORTED,
                       "%s has no vocabulary, so there is no text to parse or to stop at",
                       m->core.file.path);
    if (d->opt.parse &&
        (st = answer_open(&d->parser, m->chat, d->opt.starts_thinking, tell_answer, d, e)))
        return st;
    return stream_init(&d->text, d->opt.stop, d->opt.n_stop, take_text, d, e);
}

/* Decides all text that was held back, and tells END. */
static status close_answer(decode *d, err *e)
{
    if (!d->refused)
        stream_end(&d->text);
    /* Ended from outside: half a call must not be completed by guessing and then run. */
    if (d->parser && (d->finish != CARAT_FINISH_STOP || d->text.met >= 0))
        answer_was_cut(d->parser);
    if (d->parser && !d->refused)
        answer_end(d->parser, &d->e);
    if (d->refused)
        d->finish = CARAT_FINISH_CANCELLED;
    else if (d->e.status)
        return err_set(e, d->e.status, "%s", d->e.text);
    if (d->finish == CARAT_FINISH_STOP && d->parser && answer_n_calls(d->parser) > 0)
        d->finish = CARAT_FINISH_TOOL_CALLS;
    d->refused = false;
    tell(d, &(carat_event){.kind = CARAT_EV_END,
                           .finish = d->finish,
                           .stop = d->text.met >= 0 ? d->opt.stop[d->text.met] : NULL});
    return OK;
}

carat_status carat_generate(carat_session *s, const int32_t *ids, int64_t n,
                            const carat_generate_options *opt, carat_event_fn fn, void *user,
                            carat_timings *t, carat_error *e)
{
    decode *d = mem_calloc(1, sizeof *d);
    err why = {0};
    report r;
    status st;

    report_begin(&r, s);
    if (!d)
        return err_memory(e, "an answer", sizeof *d);
    *d = (decode){.s = s, .fn = fn, .user = user, .n_prompt = n};
    d->text.met = -1;
    if ((st = session_check_ids(s, ids, n, e)))
        goto out;
    if ((st = open_decode(d, opt, e)))
        goto out;
    session_align(s, ids, n);
    report_prompt(&r, n, s->kv.n_past);
    st = session_prefill(s, ids, n, false, s->logits, tell_prefill, d, &why);
    report_prefilled(&r);
    if (st == E_CANCELLED) {
        end(d, CARAT_FINISH_CANCELLED);
        st = OK;
    } else if (!st) {
        st = loop(d, &why);
    }
    if (st) {
        err_set(e, st, "%s", why.text);
        goto out;
    }
    report_decoded(&r, d->n_generated);
    st = close_answer(d, e);
out:
    report_end(&r, st ? CARAT_FINISH_CANCELLED : d->finish, t);
    stream_free(&d->text);
    answer_close(d->parser);
    mem_free(d);
    return st;
}
