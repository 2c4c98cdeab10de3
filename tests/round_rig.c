/* round_rig.c - requests of all kinds, and what a caller hears of their answers. */
#include "tests/round_rig.h"
#include "engine/batch_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

/* ---- What a caller sees ------------------------------------------------------------------ */

static void put(heard *h, const void *at, size_t n)
{
    str_put(&h->events, at, n);
    CHECK(!h->events.bad);
}

bool heard_event(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_PREFILL) /* one per chunk */
        return true;
    put(h, &ev->kind, sizeof ev->kind);
    switch (ev->kind) {
    case CARAT_EV_TOKEN:
        put(h, &ev->id, sizeof ev->id);
        put(h, &ev->logprob, sizeof ev->logprob);
        for (int32_t i = 0; i < ev->n_top; i++) {
            put(h, &ev->top[i].id, sizeof ev->top[i].id);
            put(h, &ev->top[i].logprob, sizeof ev->top[i].logprob);
        }
        CHECK(h->n < ANSWER_MAX);
        h->id[h->n++] = ev->id;
        if (h->cancel_in && h->n == h->cancel_at)
            carat_session_cancel(h->cancel_in);
        if (h->cancel_batch && h->n == h->cancel_at)
            carat_batch_cancel(h->cancel_batch, h->job);
        return h->n != h->refuse_at;
    case CARAT_EV_TOOL_CALL:
        put(h, ev->name, strlen(ev->name));
        /* fall through */
    case CARAT_EV_REASONING:
    case CARAT_EV_CONTENT:
        put(h, ev->text, ev->n_text);
        if (ev->kind == CARAT_EV_CONTENT)
            str_put(&h->text, ev->text, ev->n_text);
        return true;
    case CARAT_EV_END:
        put(h, &ev->finish, sizeof ev->finish);
        if (ev->stop)
            put(h, ev->stop, strlen(ev->stop));
        return true;
    default:
        return true;
    }
}

void heard_round(void *user, const carat_round *r)
{
    heard *h = user;
    CHECK(r->n_accepted >= 0 && r->n_accepted <= r->n_drafted && r->n_rows > r->n_drafted);
    h->n_rounds++;
    h->n_drafted += r->n_drafted;
    h->n_accepted += r->n_accepted;
}

void heard_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    heard *h = user;
    CHECK(!h->done);
    h->done = true;
    h->st = st;
    h->t = *t;
    if (e)
        h->e = *e;
}

void heard_free(heard *h)
{
    str_free(&h->events);
    str_free(&h->text);
    mem_free(h);
}

heard *heard_new(void)
{
    heard *h = mem_calloc(1, sizeof *h);
    CHECK(h);
    return h;
}

void heard_same(const heard *got, const heard *want, const char *what, int trial)
{
    CHECK_MSG(got->st == want->st, "%s, trial %d: %s, plain %s", what, trial, got->e.text,
              want->e.text);
    for (int32_t i = 0; i < got->n && i < want->n; i++)
        CHECK_MSG(got->id[i] == want->id[i], "%s, trial %d: token %d is %d, plain %d", what, trial,
                  i, got->id[i], want->id[i]);
    CHECK_MSG(got->n == want->n, "%s, trial %d: %d tokens, plain %d", what, trial, got->n, want->n);
    CHECK_MSG(got->events.n == want->events.n &&
                  (!got->events.n || !memcmp(got->events.at, want->events.at, got->events.n)),
              "%s, trial %d: the events differ", what, trial);
    CHECK_EQ(got->t.n_generated, want->t.n_generated);
    CHECK_EQ(got->t.n_thinking, want->t.n_thinking);
    CHECK_EQ(got->t.n_rounds, got->n_rounds);
    CHECK_EQ(got->t.n_drafted, got->n_drafted);
    CHECK_EQ(got->t.n_accepted, got->n_accepted);
}

/* ---- Requests of all kinds --------------------------------------------------------------- */

static enum carat_mask_use strict_fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    const strict *s = user;
    if (s->state % 5 == 0)
        return CARAT_MASK_NONE;
    for (int32_t id = 0; id < n_vocab; id++)
        if ((s->state >> (id % 7)) & 1)
            allowed[id >> 5] |= 1u << (id & 31);
    return CARAT_MASK_APPLY;
}

static void strict_accept(void *user, int32_t id)
{
    strict *s = user;
    s->state = rng_mix(s->state + (uint64_t)id + 1) | 2;
}

void request_draw(const carat_model *m, request *q, int64_t n, int kind, uint64_t *rng)
{
    *q = (request){.n = n};
    carat_sampling *s = &q->o.sampling;
    for (int64_t i = 0; i < n; i++)
        q->ids[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
    carat_sampling_default(m, s);
    s->seed = (uint32_t)rng_below(rng, 1000);
    s->temperature = kind % 3 ? 0.9f : 0;
    s->ignore_eog = kind % 4 != 3;
    q->o.max_tokens = 2 + (int32_t)rng_below(rng, 90);
    if (kind % 5 == 1) {
        s->repeat_penalty = 1.3f;
        s->frequency_penalty = 0.2f;
        s->penalty_last_n = 20;
    }
    if (kind % 7 == 2) { /* with a state that goes from token to token */
        s->mirostat = 1 + kind % 2;
        s->mirostat_tau = 3;
    } else if (kind % 7 == 3) {
        s->dry_multiplier = 0.8f;
        s->dry_allowed_length = 1;
        s->xtc_probability = 0.5f;
        s->xtc_threshold = 0.02f;
    } else if (kind % 7 == 5) {
        s->typical_p = 0.7f;
        s->top_n_sigma = 2;
        s->dynatemp_range = 0.5f;
        s->min_keep = 2;
    }
    if (kind % 5 == 2)
        s->n_top_logprobs = 5;
    if (kind % 5 == 3) {
        q->strict.state = rng_below(rng, 1 << 20) | 2;
        q->mask = (carat_mask){.fill = strict_fill, .accept = strict_accept, .user = &q->strict};
        q->o.mask = &q->mask;
    }
    if (kind % 5 == 4 && m->text) {
        q->o.parse = q->o.starts_thinking = true;
        q->o.max_thinking = (int32_t)rng_below(rng, 20);
        q->o.answer_reserve = (int32_t)rng_below(rng, 20);
    }
}

/* The stop string begins at a byte of the plain answer. */
void request_add_stop(request *q, const heard *plain, uint64_t *rng)
{
    size_t n = plain->text.n, len = 1 + rng_below(rng, 6);
    if (n < 12)
        return;
    size_t at = rng_below(rng, n - 8);
    for (size_t i = at; i < at + len; i++)
        if (plain->text.at[i] & 0x80) /* no half characters */
            return;
    memcpy(q->stop_text, plain->text.at + at, len);
    q->stop_text[len] = 0;
    if (!q->stop_text[0])
        return;
    q->stop[0] = q->stop_text;
    q->o.stop = q->stop;
    q->o.n_stop = 1;
}

heard *heard_say(carat_session *s, request *q, heard *h)
{
    strict before = q->strict;
    q->o.on_round = heard_round;
    q->o.round_user = h;
    h->cancel_in = h->cancel_at ? s : NULL;
    h->st = carat_generate(s, q->ids, q->n, &q->o, heard_event, h, &h->t, &h->e);
    q->strict = before;
    return h;
}

/* ---- Two sessions that must stay alike --------------------------------------------------- */

void pair_open_sessions(pair *p, carat_session_options o)
{
    err e = {0};
    o.n_ctx = o.n_ctx ? o.n_ctx : CTX;
    o.checkpoint_mb = o.checkpoint_mb ? o.checkpoint_mb : -1;
    CHECK_OK(carat_session_open(p->m, &o, &p->plain, &e), e);
    CHECK_OK(carat_session_open(p->with, &o, &p->fast, &e), e);
    p->a = mem_calloc((size_t)p->m->core.n_vocab, sizeof *p->a);
    p->b = mem_calloc((size_t)p->m->core.n_vocab, sizeof *p->b);
    CHECK(p->a && p->b);
}

void pair_open(pair *p, const toy_model_file *v, carat_session_options o)
{
    *p = (pair){.m = toy_model_open(v, NULL),
                .with = toy_model_open(v, &(carat_model_options){.draft = "lookup"})};
    pair_open_sessions(p, o);
}

void pair_open_of(pair *p, const char *path, const char *draft, carat_session_options o)
{
    err e = {0};
    *p = (pair){0};
    CHECK_OK(carat_model_open(path, NULL, &p->m, &e), e);
    CHECK_OK(carat_model_open(path, &(carat_model_options){.draft = draft}, &p->with, &e), e);
    pair_open_sessions(p, o);
}

void pair_close(pair *p)
{
    carat_session_close(p->plain);
    carat_session_close(p->fast);
    carat_model_close(p->m);
    carat_model_close(p->with);
    mem_free(p->a);
    mem_free(p->b);
}

/* The timelines hold the same tokens, and their next logits are equal. */
void pair_same(pair *p, const char *what, int trial)
{
    timeline *a = session_timeline(p->plain), *b = session_timeline(p->fast);
    err e = {0};
    CHECK_MSG(a->kv.n_past == b->kv.n_past, "%s, trial %d: %lld tokens, plain %lld", what, trial,
              (long long)b->kv.n_past, (long long)a->kv.n_past);
    CHECK(!memcmp(a->id, b->id, (size_t)a->kv.n_past * sizeof *a->id));
    if (a->kv.n_past == a->kv.layout->n_ctx)
        return;
    int32_t next = 3;
    CHECK_OK(carat_append(p->plain, &next, 1, false, p->a, &e), e);
    CHECK_OK(carat_append(p->fast, &next, 1, false, p->b, &e), e);
    CHECK_MSG(!memcmp(p->a, p->b, (size_t)p->m->core.n_vocab * sizeof *p->a),
              "%s, trial %d: the logits after the answer differ", what, trial);
}

carat_script pair_script(pair *p, const heard *plain, int32_t width, uint64_t *rng)
{
    for (int32_t i = 0; i < DEPTHS; i++)
        p->depth[i] = (int32_t)rng_below(rng, (uint64_t)width + 1);
    return (carat_script){.answer = plain->id,
                          .n_answer = plain->n,
                          .accept = p->depth,
                          .n_accept = DEPTHS,
                          .rank = (int32_t)rng_below(rng, 3)};
}

/* One request, plain and with drafts of `width` tokens, as a chain or a tree. */
void pair_compare(pair *p, request *q, int32_t width, bool tree, bool scripted, uint64_t *rng,
                  const char *what, int trial)
{
    AUTO_PTR(heard_free) heard *want = heard_say(p->plain, q, heard_new()), *got = heard_new();
    carat_script script = pair_script(p, want, width, rng);
    got->cancel_at = want->cancel_at;
    q->o.speculation = (carat_speculation){.n_max = width,
                                           .tree_max = !tree        ? -1
                                                       : width < 40 ? 1 + width + width / 2
                                                                    : 63,
                                           .fixed = true};
    q->o.script = scripted ? &script : NULL;
    heard_say(p->fast, q, got);
    CHECK(!want->n_rounds);
    heard_same(got, want, what, trial);
    q->o.script = NULL;
}
