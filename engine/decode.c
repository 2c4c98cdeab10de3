/* decode.c - the rules of the token loop: sampling, masks, stop rules, budgets, cancellation,
 * streaming.
 *
 *     logits -> sample -> TOKEN event -> end of turn? -> bytes -> stream (whole characters, stop
 *     strings) -> answer parser (reasoning, content, calls) -> events -> budget? -> next pass
 *
 * With a parser, the request's stop strings are the parser's, which looks for them in the content;
 * the stream has the family's alone.
 *
 * All memory is allocated before the first token. Between the first and the last token nothing here
 * allocates, except that the answer parser may grow its buffer for a tool call. At every end of an
 * answer the withheld text is resolved and sent, and the last event is END.
 */
#include "engine/round.h"
#include "carat_bench.h"
#include "engine/forbid.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/place.h"
#include "text/stream.h"

#include <math.h>
#include <string.h>

enum { TEXT_BYTES = 4096, LOGPROBS_MAX = 20 };

/* The state of an answer's thoughts. */
typedef struct thought {
    answer_place place;
    bool cut;
    int64_t n; /* tokens, marks included */
} thought;

struct generation {
    const carat_model *m;
    carat_generate_options opt;
    carat_event_fn fn;
    void *user;
    stream text;
    answer_parser *parser;  /* NULL: all text is content */
    uint32_t *allowed;      /* of the mask; NULL without one */
    dry_breakers *breakers; /* of DRY; NULL: none */
    float mu;               /* of mirostat */
    forbidden forbid;
    bool by_stop_id; /* g->id ended the answer */
    bool refused;    /* fn returned false: END is the only event from then on */
    bool ended;
    carat_finish finish;
    int32_t id; /* the last token */
    int64_t n_generated, n_reused;
    thought thought;
    err e; /* of the parser, which reports through callbacks */
    carat_logprob top_logprobs[LOGPROBS_MAX];
    char buf[TEXT_BYTES]; /* events carry NUL-terminated text, streams do not */
};

/* ---- Events ---------------------------------------------------------------------------- */

static bool tell_event(generation *d, const carat_event *ev)
{
    if (d->fn && !d->refused && !d->fn(d->user, ev))
        d->refused = true;
    return !d->refused;
}

static bool tell_answer(void *user, const answer_event *a)
{
    static const carat_event_kind kind[] = {[ANSWER_REASONING] = CARAT_EV_REASONING,
                                            [ANSWER_CONTENT] = CARAT_EV_CONTENT,
                                            [ANSWER_TOOL_CALL] = CARAT_EV_TOOL_CALL,
                                            [ANSWER_CALL_PART] = CARAT_EV_CALL_PART};
    carat_event ev = {.kind = kind[a->kind], .text = a->text, .n_text = a->n, .name = a->name};
    return tell_event(user, &ev);
}

/* The number of bytes that fit the buffer, without cutting a character. */
static size_t fitting(const char *text, size_t n)
{
    if (n < TEXT_BYTES)
        return n;
    n = TEXT_BYTES - 1;
    return n - utf8_partial_tail(text, n);
}

/* Receives text from the stream: whole characters, without stop strings. */
static bool take_stream_text(void *user, const char *text, size_t n)
{
    generation *d = user;
    if (d->parser)
        return answer_put(d->parser, text, n, &d->e) == OK && answer_met(d->parser) < 0;
    while (n) {
        size_t now = fitting(text, n);
        memcpy(d->buf, text, now);
        d->buf[now] = 0;
        if (!tell_event(d, &(carat_event){.kind = CARAT_EV_CONTENT, .text = d->buf, .n_text = now}))
            return false;
        text += now;
        n -= now;
    }
    return true;
}

bool generation_tell_prefill(generation *g, int64_t done, int64_t total)
{
    return tell_event(g, &(carat_event){.kind = CARAT_EV_PREFILL,
                                        .n_done = done,
                                        .n_total = total,
                                        .n_reused = g->n_reused});
}

void generation_tell_prompt(generation *g, const float *logits, int32_t id, sampler *s)
{
    carat_event ev = {.kind = CARAT_EV_PROMPT_TOKEN, .id = id};
    if (logits) {
        ev.n_top = g->opt.n_prompt_logprobs;
        ev.top = g->top_logprobs;
        ev.rank = 1;
        for (int32_t i = 0; i < g->m->core.n_vocab; i++)
            ev.rank += logits[i] > logits[id];
        sample_logprobs(s, logits, id, &ev.logprob, g->top_logprobs, ev.n_top);
    }
    tell_event(g, &ev);
}

void generation_reuses(generation *g, int64_t n)
{
    g->n_reused = n;
}

/* ---- One token ------------------------------------------------------------------------- */

void generation_stop(generation *g, carat_finish why)
{
    if (!g->ended)
        g->finish = why;
    g->ended = true;
}

/* The budget of thoughts is used up, or the rest of the tokens is reserved for the answer. */
static bool budget_is_spent(const generation *g)
{
    const carat_generate_options *o = &g->opt;
    if (o->max_thinking > 0 && g->thought.n >= o->max_thinking)
        return true;
    return o->answer_reserve > 0 && o->max_tokens > 0 &&
           o->max_tokens - g->n_generated <= o->answer_reserve;
}

/* No message with a thought may come any more. */
static bool thoughts_are_over(const generation *g)
{
    return g->opt.no_thoughts || g->thought.cut || budget_is_spent(g);
}

/* The next token is one of a header, and some headers may not come. */
static bool rules_header(const generation *g)
{
    return place_in_header(&g->thought.place) && (g->opt.no_calls || thoughts_are_over(g));
}

static void rule_header(const generation *g, float *logits)
{
    place_rule r;
    place_rule_begin(&r, &g->thought.place, thoughts_are_over(g), g->opt.no_calls);
    for (int32_t id = 0; id < g->m->core.n_vocab; id++)
        if (!place_rule_allows(&r, id))
            logits[id] = -INFINITY;
}

/* The mark of calls, if no call may come; -1: there is none. */
static int32_t barred_mark(const generation *g)
{
    const answer_place *p = &g->thought.place;
    return g->opt.no_calls && !p->a->heads ? p->call_open : -1;
}

static void drop_candidate(row_logits *x, int32_t id)
{
    int32_t left = 0;
    for (int32_t i = 0; i < x->n_candidates; i++)
        if (x->candidates[i].id != id)
            x->candidates[left++] = x->candidates[i];
    x->n_candidates = left;
}

static status apply_mask(generation *g, float *logits, err *e)
{
    const carat_mask *k = g->opt.mask;
    int32_t n = g->m->core.n_vocab;
    bool any = false;
    memset(g->allowed, 0, ((size_t)n + 31) / 32 * sizeof *g->allowed);
    switch (k->fill(k->user, g->allowed, n)) {
    case CARAT_MASK_NONE:
        return OK;
    case CARAT_MASK_APPLY:
        break;
    default:
        return err_set(e, E_LIMIT, "the token mask failed after %lld tokens of the answer",
                       (long long)g->n_generated);
    }
    for (int32_t id = 0; id < n; id++) {
        if (g->allowed[id >> 5] >> (id & 31) & 1)
            any |= logits[id] > -INFINITY;
        else
            logits[id] = -INFINITY;
    }
    if (!any)
        return err_set(e, E_ARG, "the token mask allows no token after %lld tokens of the answer",
                       (long long)g->n_generated);
    return OK;
}

/* Samples the token at position n. The draw depends on seed and position alone, so an answer is the
 * same in every batch. */
static status pick_token(generation *g, const timeline *t, int64_t n, workspace *w, row_logits x,
                         carat_event *ev, err *e)
{
    const carat_sampling *p = &g->opt.sampling;
    sample_state at = {.past = t->id,
                       .n_past = n,
                       .breakers = g->breakers,
                       .rng = sample_rng_at(p->seed, n),
                       .mu = g->mu};
    status st;
    if (p->n_top_logprobs > 0)
        memcpy(w->raw, x.all, (size_t)g->m->core.n_vocab * sizeof *w->raw);
    if (g->thought.place.thinking && budget_is_spent(g)) {
        ev->id = g->thought.place.thought_close;
        g->thought.cut = true;
    } else if (x.candidates) {
        drop_place_holders(g->m, &x);
        drop_candidate(&x, barred_mark(g));
        ev->id = sample_pick_among(&w->sampler, p, x.candidates, x.n_candidates, &at);
    } else {
        ban_place_holders(g->m, x.all);
        forbid_tokens(&g->forbid, t->id, n, g->n_generated, x.all);
        if (barred_mark(g) >= 0)
            x.all[barred_mark(g)] = -INFINITY;
        if (rules_header(g))
            rule_header(g, x.all);
        if (g->opt.mask && (st = apply_mask(g, x.all, e)))
            return st;
        ev->id = sample_pick(&w->sampler, p, x.all, &at);
    }
    if (ev->id < 0) /* the model's own logits are finite: run_pass looks */
        return err_set(e, E_ARG,
                       "after %lld tokens no token may come: the biases, the bans, the allowed "
                       "tokens and the form of the request leave none",
                       (long long)n);
    g->mu = at.mu;
    if (p->n_top_logprobs > 0) {
        sample_logprobs(&w->sampler, w->raw, ev->id, &ev->logprob, g->top_logprobs,
                        p->n_top_logprobs);
        ev->n_top = p->n_top_logprobs;
        ev->top = g->top_logprobs;
    }
    return OK;
}

static void count_thought(thought *t, int32_t id)
{
    bool before = t->place.thinking;
    place_next(&t->place, id);
    t->n += before || t->place.thinking;
}

/* The request's stop string that ended the text, or NULL. */
static const char *was_stopped(const generation *g)
{
    int32_t met = g->parser ? answer_met(g->parser) : g->text.met;
    return met >= 0 && met < g->opt.n_stop ? g->opt.stop[met] : NULL;
}

/* Appends ev's token to the answer and applies every rule that may end the answer. */
static void accept_token(generation *g, const carat_event *ev, bool context_full)
{
    const carat_model *m = g->m;
    size_t n = 0;
    g->id = ev->id;
    g->n_generated++;
    count_thought(&g->thought, ev->id);
    if (g->opt.mask && g->opt.mask->accept)
        g->opt.mask->accept(g->opt.mask->user, ev->id);
    if (!tell_event(g, ev)) {
        generation_stop(g, CARAT_FINISH_CANCELLED);
        return;
    }
    if (m->text && vocab_is_eog(m->text, ev->id) && !g->opt.sampling.ignore_eog) {
        generation_stop(g, CARAT_FINISH_STOP);
        return;
    }
    const char *bytes = m->text ? vocab_text(m->text, ev->id, false, &n) : NULL;
    if (bytes && n && !stream_put(&g->text, bytes, n))
        generation_stop(g, g->text.met >= 0 || was_stopped(g) ? CARAT_FINISH_STOP
                                                              : CARAT_FINISH_CANCELLED);
    if (!g->ended && forbid_is_stop(&g->forbid, ev->id)) {
        g->by_stop_id = true;
        generation_stop(g, CARAT_FINISH_STOP);
    }
    if (g->n_generated == g->opt.max_tokens || context_full)
        generation_stop(g, CARAT_FINISH_LENGTH);
}

int32_t generation_needs(const generation *g)
{
    bool all = g->opt.mask || forbids_any(&g->forbid, g->n_generated) || rules_header(g);
    int32_t k = all ? 0 : sample_needs(&g->opt.sampling), n_never = 0;
    if (g->m->text)
        vocab_never_sampled(g->m->text, &n_never);
    n_never += barred_mark(g) >= 0;
    return k && k + n_never <= CANDIDATES_MAX / 2 ? k + n_never
                                                  : 0; /* half the buffer is for equal logits */
}

status generation_next(generation *g, const timeline *t, int64_t n, workspace *w, row_logits logits,
                       err *e)
{
    carat_event ev = {.kind = CARAT_EV_TOKEN};
    if (g->opt.no_answer) {
        generation_stop(g, CARAT_FINISH_LENGTH);
        return OK;
    }
    status st = pick_token(g, t, n, w, logits, &ev, e);
    if (!st)
        accept_token(g, &ev, n == t->kv.layout->n_ctx);
    return st;
}

int32_t generation_token(const generation *g)
{
    return g->id;
}

bool generation_ended(const generation *g)
{
    return g->ended;
}

const carat_generate_options *generation_options(const generation *g)
{
    return &g->opt;
}

int32_t generation_left(const generation *g)
{
    int64_t left = g->opt.max_tokens > 0 ? g->opt.max_tokens - g->n_generated : INT32_MAX;
    return left < INT32_MAX ? (int32_t)left : INT32_MAX;
}

int64_t generation_count(const generation *g)
{
    return g->n_generated;
}

void generation_report(const generation *g, carat_timings *t)
{
    t->n_generated = g->n_generated;
    t->n_thinking = g->thought.n;
    t->thinking_cut = g->thought.cut;
    t->finish = g->finish;
}

/* ---- Begin and end --------------------------------------------------------------------- */

static status open_thought(generation *g, err *e)
{
    const carat_model *m = g->m;
    thought *t = &g->thought;
    place_begin(&t->place, m->text, m->chat, g->opt.starts_thinking);
    if (t->place.thought_close < 0 && (g->opt.max_thinking > 0 || g->opt.answer_reserve > 0))
        return err_set(
            e, E_UNSUPPORTED,
            "%s: a thinking budget needs a chat format with thoughts, and this model has none",
            m->core.file.path);
    bool heads = t->place.a && t->place.a->heads;
    bool marks = t->place.call_open >= 0 && !t->place.a->begins_calls;
    bool calls = g->opt.no_calls && !heads && !marks; /* cannot be kept away */
    if (calls || (g->opt.no_thoughts && !heads))
        return err_set(e, E_UNSUPPORTED,
                       "%s: no token of its answers begins a %s, so none can be kept away",
                       m->core.file.path, calls ? "call" : "thought's message");
    return OK;
}

static status open_mask(generation *g, err *e)
{
    size_t words = ((size_t)g->m->core.n_vocab + 31) / 32;
    if (!g->opt.mask)
        return OK;
    if (!g->opt.mask->fill)
        return err_set(e, E_ARG, "a token mask without its fill function");
    g->allowed = mem_calloc(words, sizeof *g->allowed);
    return g->allowed ? OK : err_memory(e, "a token mask", words * sizeof *g->allowed);
}

/* The texts of breakers are the caller's, who may free them after this. */
static status open_breakers(generation *g, err *e)
{
    carat_sampling *p = &g->opt.sampling;
    status st = OK;
    g->mu = sample_first_mu(p);
    if (g->m->text && sample_uses_dry(p))
        st = dry_open(&g->breakers, g->m->text, p, e);
    p->dry_breakers = NULL;
    p->n_dry_breakers = 0;
    return st;
}

static status check_speculation(const carat_generate_options *o, err *e)
{
    const carat_speculation *s = &o->speculation;
    const carat_script *k = o->script;
    if (s->n_max < 0 || s->n_max > DRAFT_SLOTS_MAX || s->tree_max > DRAFT_SLOTS_MAX)
        return err_set(
            e, E_ARG,
            "speculation: %d drafted tokens a round, or a tree of %d: expected at most %d",
            s->n_max, s->tree_max, DRAFT_SLOTS_MAX);
    if (k && (k->n_answer < 0 || (k->n_answer && !k->answer) || k->n_accept < 0 ||
              (k->n_accept && !k->accept) || k->rank < 0 || k->n_chance < 0 ||
              (k->n_chance && !k->chance)))
        return err_set(e, E_ARG, "speculation: a script without its tokens, depths or chances");
    for (int64_t i = 0; k && i < k->n_answer; i++)
        if (k->answer[i] < 0)
            return err_set(e, E_ARG, "speculation: token %lld of the script is %d", (long long)i,
                           k->answer[i]);
    if (o->n_predicted < 0 || (o->n_predicted && !o->predicted))
        return err_set(e, E_ARG, "speculation: a predicted answer without its tokens");
    return OK;
}

/* The stop strings: the request's, then the family's texts that end an answer. */
static status open_text(generation *g, err *e)
{
    const char *const *more =
        g->m->text && !g->opt.sampling.ignore_eog ? vocab_family(g->m->text)->end_texts : NULL;
    const char *stop[STREAM_MAX_STOPS];
    int32_t n = g->parser ? 0 : g->opt.n_stop;
    status st = OK;
    if (g->parser && (st = answer_stops(g->parser, g->opt.stop, g->opt.n_stop, e)))
        return st;
    if (!more || n >= STREAM_MAX_STOPS)
        return stream_init(&g->text, g->opt.stop, n, take_stream_text, g, e);
    for (int32_t i = 0; i < n; i++)
        stop[i] = g->opt.stop[i];
    for (; *more && n < STREAM_MAX_STOPS; more++)
        stop[n++] = *more;
    return stream_init(&g->text, stop, n, take_stream_text, g, e);
}

static status open_parts(generation *g, err *e)
{
    const carat_model *m = g->m;
    status st;
    if ((st = model_check_writes(m, e)) || (st = check_speculation(&g->opt, e)))
        return st;
    if ((st = sample_check(&g->opt.sampling, m->core.n_vocab, e)))
        return st;
    if (g->opt.n_prompt_logprobs < 0 || g->opt.n_prompt_logprobs > LOGPROBS_MAX)
        return err_set(e, E_ARG,
                       "%d logprobs of the prompt were asked for, and 0 to %d are possible",
                       g->opt.n_prompt_logprobs, LOGPROBS_MAX);
    if (g->opt.n_stop < 0 || (g->opt.n_stop && !g->opt.stop))
        return err_set(e, E_ARG, "carat_generate: a list of stop strings without entries");
    if (!m->text && (g->opt.n_stop || g->opt.parse))
        return err_set(e, E_UNSUPPORTED,
                       "%s has no vocabulary, so there is no text to parse or to stop at",
                       m->core.file.path);
    if ((st = open_thought(g, e)) || (st = open_mask(g, e)) || (st = open_breakers(g, e)) ||
        (st = forbidden_open(&g->forbid, m, &g->opt, e)))
        return st;
    if (g->opt.parse &&
        (st = answer_open(&g->parser, m->chat, g->opt.starts_thinking, tell_answer, g, e)))
        return st;
    const char *tools = g->opt.tools_json;
    if (g->parser && tools &&
        (st = answer_tools(g->parser, tools, strlen(tools), g->opt.call_parts, e)))
        return st;
    return open_text(g, e);
}

status generation_open(generation **out, const carat_model *m, const carat_generate_options *opt,
                       carat_event_fn fn, void *user, err *e)
{
    generation *g = mem_calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return err_memory(e, "an answer", sizeof *g);
    *g = (generation){.m = m, .fn = fn, .user = user, .id = -1};
    g->text.met = -1;
    if (opt)
        g->opt = *opt;
    else
        carat_sampling_default(m, &g->opt.sampling);
    status st = open_parts(g, e);
    if (st)
        generation_close(g);
    else
        *out = g;
    return st;
}

void generation_close(generation *g)
{
    if (!g)
        return;
    stream_free(&g->text);
    answer_close(g->parser);
    forbidden_free(&g->forbid);
    dry_close(g->breakers);
    mem_free(g->allowed);
    mem_free(g);
}

status generation_finish(generation *g, err *e)
{
    if (!g->refused)
        stream_end(&g->text);
    if (g->parser && !g->refused)
        answer_end(g->parser, g->finish == CARAT_FINISH_LENGTH, &g->e);
    if (g->refused)
        g->finish = CARAT_FINISH_CANCELLED;
    else if (g->e.status)
        return err_set(e, g->e.status, "%s", g->e.text);
    if (g->finish == CARAT_FINISH_LENGTH && was_stopped(g)) /* it was held as a part of a mark */
        g->finish = CARAT_FINISH_STOP;
    if (g->finish == CARAT_FINISH_STOP && g->parser && answer_n_calls(g->parser) > 0)
        g->finish = CARAT_FINISH_TOOL_CALLS;
    g->refused = false;
    tell_event(g, &(carat_event){.kind = CARAT_EV_END,
                                 .finish = g->finish,
                                 .stop = was_stopped(g),
                                 .by_stop_id = g->by_stop_id,
                                 .stop_id = g->by_stop_id ? g->id : 0});
    return OK;
}
