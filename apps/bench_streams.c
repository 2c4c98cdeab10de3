/* bench_streams.c - `carat bench --streams`: answers side by side, one row of each in every pass.
 *
 * Prompts are off the clock. Each is computed by a job of its own, whose one token becomes the
 * prompt's last: the slots keep what they have, so all answers begin in one pass. Otherwise, where
 * passes of prompts and of answers alternate, the first answers nearly end before the last begins.
 * Prompts differ, so that no slot reuses another one's prefix; with --shared the first tokens are the same,
 * and are computed and kept once.
 *
 * The clock runs while all answers are under way: from the first token of the answer that begins
 * last to the last token of the answer that ends first. All tokens of the passes between the two
 * count, and the ops of these passes are timed; on a GPU (--tail) those of one more round.
 */
#include "apps/bench_int.h"
#include "apps/draft_options.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

typedef struct streams {
    const bench_test *t;
    carat_batch *batch;
    int32_t n_begun, n_over;
    int64_t begin, end;   /* of the time when all answer, ns; 0: not yet */
    bool counts;          /* the pass is one of that time */
    int64_t n_tokens;     /* of these passes */
    int32_t n_passes;
    int32_t used, shared; /* of the pool of keys when it ends */
    err e;                /* of the first that failed; the others end too */
} streams;

typedef struct stream {
    streams *all;
    int32_t *prompt; /* [n_depth + 1] */
    int32_t n;       /* tokens so far */
    int32_t *id;     /* [n_gen] them; NULL: they are not kept */
    carat_timings timings;
    carat_script script;
    carat_generate_options opt;
} stream;

static bool stream_event(void *user, const carat_event *ev)
{
    stream *s = user;
    streams *a = s->all;
    if (ev->kind != CARAT_EV_TOKEN)
        return true;
    if (s->id && s->n < a->t->n_gen)
        s->id[s->n] = ev->id;
    a->n_tokens += a->counts;
    if (++s->n == 1 && ++a->n_begun == a->t->n_streams)
        a->begin = clock_ns();
    if (s->n == a->t->n_gen && !a->end) {
        carat_batch_info info; /* after the last pass before this one */
        a->end = clock_ns();
        carat_batch_get_info(a->batch, &info, NULL, 0);
        a->used = info.pool_tokens - info.pool_free;
        a->shared = info.pool_shared;
    }
    return !term_interrupts() && !a->e.status;
}

static bool prompt_event(void *user, const carat_event *ev)
{
    stream *s = user;
    if (ev->kind == CARAT_EV_TOKEN)
        s->prompt[s->all->t->n_depth] = ev->id;
    return !term_interrupts() && !s->all->e.status;
}

static void stream_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    stream *s = user;
    streams *a = s->all;
    s->timings = *t;
    a->n_over++;
    if (st)
        err_set(&a->e, st, "%s", e->text);
}

/* What times ops while all answer; m NULL: nothing does. */
typedef struct op_timer {
    carat_model *m;
    bool on_gpu; /* passes of the device; else the wrapper "time" */
    bool runs;
} op_timer;

static status timer_begin(op_timer *o, err *e)
{
    o->runs = true;
    if (o->on_gpu)
        return carat_time_passes(o->m, e);
    carat_op_times(o->m, NULL, 0, true);
    return OK;
}

static status timer_end(op_timer *o, bench_test *t, const streams *a, err *e)
{
    o->runs = false;
    if (o->on_gpu)
        return bench_take_tail(o->m, t, e);
    return bench_keep_ops(o->m, t, a->end - a->begin, a->n_passes, e);
}

/* One pass. Between passes nothing computes, so times may begin and end there. False after the
 * last. */
static bool run_pass(carat_batch *b, bench_test *t, streams *a, op_timer *o)
{
    a->counts = a->begin && !a->end;
    a->n_passes += a->counts;
    bool more = a->n_over < t->n_streams && carat_batch_step(b);
    if (!o->m || a->e.status)
        return more;
    if (a->begin && !a->end && !o->runs)
        timer_begin(o, &a->e);
    else if (a->end && o->runs)
        timer_end(o, t, a, &a->e);
    return more;
}

/* A job for each stream, to the end of all. n_ids: of a prompt. */
static status run_jobs(streams *a, bench_test *t, stream *list, int32_t n_ids, carat_event_fn fn,
                       op_timer *ops, err *e)
{
    int32_t n = 0;
    bool full;
    int64_t id;
    a->n_over = 0;
    for (; n < t->n_streams && !a->e.status; n++) {
        carat_generate_options opt = list[n].opt;
        list[n].all = a;
        if (fn == prompt_event) {
            opt.max_tokens = 1;
            opt.speculation = (carat_speculation){.off = true};
            opt.script = NULL;
        }
        carat_job job = {.ids = list[n].prompt,
                         .n = n_ids,
                         .opt = &opt,
                         .fn = fn,
                         .done = stream_done,
                         .user = &list[n]};
        a->n_over += carat_batch_submit(a->batch, &job, &id, &full, &a->e) != OK;
    }
    a->n_over += t->n_streams - n;
    while (run_pass(a->batch, t, a, ops))
        ;
    if (term_interrupts())
        return err_set(e, E_CANCELLED, "interrupted");
    return a->e.status ? err_set(e, a->e.status, "%s", a->e.text) : OK;
}

/* Each stream has its options and its prompt, and nothing else set. */
static status run_round(carat_batch *b, bench_test *t, stream *list, op_timer ops, int64_t *ns,
                        err *e)
{
    streams all = {.t = t, .batch = b};
    status st = OK;
    if (t->n_depth)
        st = run_jobs(&all, t, list, t->n_depth, prompt_event, &(op_timer){0}, e);
    for (int32_t i = 0; i < t->n_streams; i++)
        list[i].n = 0;
    if (st || (st = run_jobs(&all, t, list, t->n_depth + 1, stream_event, &ops, e)))
        return st;
    if (!all.begin || all.end <= all.begin || !all.n_tokens)
        return err_set(
            e, E_ARG,
            "answers of %d tokens are too short for a time in which all %d are computed (--gen)",
            t->n_gen, t->n_streams);
    /* The first round has no checkpoints of rounds before it. */
    if (!t->pool_used || all.used < t->pool_used) {
        t->pool_used = all.used;
        t->pool_shared = all.shared;
    }
    /* the time of all tokens at that rate */
    *ns = (int64_t)((double)(all.end - all.begin) * bench_tokens(t) / (double)all.n_tokens);
    return OK;
}

/* The same answers without drafts and with. id: [2][n_streams][n_gen]. */
static status run_both(const bench_setup *b, carat_batch *batch, bench_test *t, stream *list,
                       int32_t *id, bool count, err *e)
{
    int32_t *with = id + (size_t)t->n_streams * (size_t)t->n_gen;
    int64_t ns[2] = {0};
    status st;
    for (int32_t i = 0; i < t->n_streams; i++) {
        list[i].id = id + (size_t)i * (size_t)t->n_gen;
        list[i].opt = bench_answer_options(b, t, NULL, NULL);
    }
    if ((st = run_round(batch, t, list, (op_timer){0}, &ns[0], e)))
        return st;
    for (int32_t i = 0; i < t->n_streams; i++) {
        const int32_t *plain = list[i].id;
        list[i].id = with + (size_t)i * (size_t)t->n_gen;
        list[i].opt = bench_answer_options(b, t, &list[i].script, plain);
    }
    if ((st = run_round(batch, t, list, (op_timer){0}, &ns[1], e)))
        return st;
    for (int32_t i = 0; i < t->n_streams; i++) {
        const int32_t *plain = id + (size_t)i * (size_t)t->n_gen;
        if ((st = bench_same_answer(plain, list[i].id, t->n_gen, e)))
            return st;
        if (count)
            bench_count_rounds(t, &list[i].timings);
    }
    if (count) {
        t->plain.ns[t->plain.n++] = ns[0];
        t->ours.ns[t->ours.n++] = ns[1];
    }
    return OK;
}

status bench_run_streams(const bench_setup *setup, carat_model *m, const carat_session_options *so,
                         bench_test *t, err *e)
{
    int32_t n_reps = setup->n_reps;
    int32_t *answers = NULL;
    int32_t n_prompt = t->n_depth + 1;
    carat_batch_options bo = {.session = *so,
                              .n_slots = t->n_streams,
                              .gap_ms = -1}; /* prompts are over early: they are off the clock */
    carat_model_info info;
    carat_batch *b = NULL;
    uint64_t rng = 5;
    status st;
    bo.session.n_ctx = n_prompt + t->n_gen + 1 + (t->spec ? DRAFT_TOKENS_MAX + 1 : 0);
    if (bo.session.n_ctx < t->n_streams)
        bo.session.n_ctx = t->n_streams; /* a pass has a row of each, and no more than a context */
    bo.session.n_outputs = t->n_streams;
    if (t->n_shared)
        bo.session.checkpoint_mb = 0; /* shared prefixes are kept as checkpoints */
    carat_model_get_info(m, &info);
    size_t n = (size_t)t->n_streams * (size_t)n_prompt;
    int32_t *ids = mem_calloc(n, sizeof *ids);
    stream *list = mem_calloc((size_t)t->n_streams, sizeof *list);
    if (t->spec)
        answers = mem_calloc(2 * (size_t)t->n_streams, (size_t)t->n_gen * sizeof *answers);
    if (!ids || !list || (t->spec && !answers)) {
        st = err_memory(e, "the streams", n * sizeof *ids);
        goto out;
    }
    if ((st = carat_batch_open(m, &bo, &b, e)))
        goto out;
    const bool gpu_tail = setup->tail && setup->info.on_gpu; /* by one more round */
    for (int32_t rep = t->spec ? -1 : 0; rep < n_reps + gpu_tail && !st; rep++) {
        const bool timed = rep == n_reps;
        op_timer ops = {.on_gpu = timed};
        int64_t ns = 0;
        if (timed || setup->floors || (setup->tail && !gpu_tail))
            ops.m = m;
        term_progress(NULL, "streams", (uint64_t)(rep < 0 ? 0 : rep), (uint64_t)n_reps);
        for (size_t i = 0; i < n; i++) /* new tokens: a reused prefix would not be measured */
            ids[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
        for (int32_t i = 0; i < t->n_streams; i++) {
            list[i].prompt = ids + (size_t)i * (size_t)n_prompt;
            memcpy(list[i].prompt, ids, (size_t)(i ? t->n_shared : 0) * sizeof *ids);
        }
        if (t->spec) {
            st = run_both(setup, b, t, list, answers, rep >= 0, e);
            continue;
        }
        for (int32_t i = 0; i < t->n_streams; i++)
            list[i].opt = bench_answer_options(setup, t, NULL, NULL);
        if (!(st = run_round(b, t, list, ops, &ns, e)) && !timed)
            t->ours.ns[t->ours.n++] = ns;
    }
    term_progress_clear();
    if (!st && setup->tail && !gpu_tail)
        bench_tail_of_cpu(setup, t);
out:
    carat_batch_close(b);
    mem_free(answers);
    mem_free(list);
    mem_free(ids);
    return st;
}
