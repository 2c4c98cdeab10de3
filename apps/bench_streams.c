/* bench_streams.c - `carat bench --streams`: answers side by side, one row of each in every pass.
 *
 * The clock runs while all answers are under way: from the first token of the answer that begins
 * last to the last token of the answer that ends first. Prompts are off the clock. Their tokens
 * differ, so that no slot reuses another one's prefix.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

typedef struct streams {
    const bench_test *t;
    int32_t n_begun, n_over;
    int64_t begin, end; /* of the time when all answer, ns; 0: not yet */
    int64_t n_tokens;   /* taken in it */
    err e;              /* of the first that failed */
} streams;

typedef struct stream {
    streams *all;
    int32_t n; /* tokens so far */
} stream;

static bool stream_event(void *user, const carat_event *ev)
{
    stream *s = user;
    streams *a = s->all;
    if (ev->kind != CARAT_EV_TOKEN)
        return true;
    a->n_tokens += a->begin && !a->end;
    if (++s->n == 1 && ++a->n_begun == a->t->n_streams)
        a->begin = clock_ns();
    if (s->n == a->t->n_gen && !a->end)
        a->end = clock_ns();
    return !term_interrupts();
}

static void stream_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    streams *a = ((stream *)user)->all;
    (void)t;
    a->n_over++;
    if (st)
        err_set(&a->e, st, "%s", e->text);
}

static status run_round(carat_batch *b, const bench_test *t, stream *list, const int32_t *ids,
                        int64_t *ns, err *e)
{
    streams all = {.t = t};
    int32_t n_prompt = t->n_depth ? t->n_depth : 1;
    carat_generate_options opt = {.sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true},
                                  .max_tokens = t->n_gen};
    status st;
    for (int32_t i = 0; i < t->n_streams; i++) {
        bool full;
        int64_t id;
        list[i] = (stream){.all = &all};
        carat_job job = {.ids = ids + (size_t)i * (size_t)n_prompt,
                         .n = n_prompt,
                         .opt = &opt,
                         .fn = stream_event,
                         .done = stream_done,
                         .user = &list[i]};
        if ((st = carat_batch_submit(b, &job, &id, &full, e)))
            return st;
    }
    while (all.n_over < t->n_streams && carat_batch_step(b))
        ;
    if (term_interrupts())
        return err_set(e, E_CANCELLED, "interrupted");
    if (all.e.status)
        return err_set(e, all.e.status, "%s", all.e.text);
    if (!all.begin || all.end <= all.begin || !all.n_tokens)
        return err_set(e, E_ARG, "%d tokens are too few for %d answers to be under way together",
                       t->n_gen, t->n_streams);
    /* the time of all tokens at that rate */
    *ns = (int64_t)((double)(all.end - all.begin) * bench_tokens(t) / (double)all.n_tokens);
    return OK;
}

status bench_run_streams(carat_model *m, const carat_session_options *so, int32_t n_reps,
                         bench_test *t, err *e)
{
    int32_t n_prompt = t->n_depth ? t->n_depth : 1;
    carat_batch_options bo = {.session = *so, .n_slots = t->n_streams};
    carat_model_info info;
    carat_batch *b = NULL;
    uint64_t rng = 5;
    status st;
    bo.session.n_ctx = n_prompt + t->n_gen + 1;
    bo.session.n_outputs = t->n_streams;
    carat_model_get_info(m, &info);
    size_t n = (size_t)t->n_streams * (size_t)n_prompt;
    int32_t *ids = mem_calloc(n, sizeof *ids);
    stream *list = mem_calloc((size_t)t->n_streams, sizeof *list);
    if (!ids || !list) {
        st = err_memory(e, "the streams", n * sizeof *ids);
        goto out;
    }
    if ((st = carat_batch_open(m, &bo, &b, e)))
        goto out;
    for (int32_t rep = 0; rep < n_reps && !st; rep++) {
        int64_t ns = 0;
        term_progress(NULL, "streams", (uint64_t)rep, (uint64_t)n_reps);
        for (size_t i = 0; i < n; i++) /* new tokens: a reused prefix would not be measured */
            ids[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
        if (!(st = run_round(b, t, list, ids, &ns, e)))
            t->ours.ns[t->ours.n++] = ns;
    }
    term_progress_clear();
out:
    carat_batch_close(b);
    mem_free(list);
    mem_free(ids);
    return st;
}
