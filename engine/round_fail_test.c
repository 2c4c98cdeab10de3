/* round_fail_test.c - passes of a batch that fail, with every drafter: nothing refers to answers
 * that ended, and answers that go on are those of a batch without failures.
 *
 * The device says that a pass failed after it was computed. Only the pass itself fails: a drafter
 * that fails stops drafting, and the test would see no more drafts.
 */
#include "engine/batch_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/dflash_file.h"
#include "tests/kv_rig.h"
#include "tests/mtp_rig.h"
#include "tests/recur_model.h"
#include "tests/round_rig.h"
#include "tests/test.h"

enum { JOBS = 14, LONG_PROMPT = 90 };

/* ---- Failures ---------------------------------------------------------------------------- */

static struct {
    const carat_batch *b;
    uint64_t rng;
    int32_t one_in; /* passes; 0: none fails */
    bool spare;     /* passes of one sequence succeed */
    bool asked;     /* the pass of this step */
    int32_t n;      /* failures */
} fails;

static status fail_at_random(const device *d, err *e)
{
    (void)d;
    if (fails.asked || !fails.b->w.batch.st.all.n || !fails.one_in)
        return OK;
    fails.asked = true;
    if (fails.spare && fails.b->w.batch.st.n_seqs == 1)
        return OK;
    if (rng_below(&fails.rng, (uint64_t)fails.one_in))
        return OK;
    fails.n++;
    return err_set(e, E_IO, "the device fell off");
}

static bool step_batch(carat_batch *b, bool short_of_memory)
{
    kv_batch_clear(&b->w.batch); /* drafters propose before the pass fills it */
    fails.asked = false;
    if (short_of_memory)
        mem_fail_after((int64_t)rng_below(&fails.rng, 4));
    bool more = carat_batch_step(b);
    mem_fail_after(-1);
    CHECK_EQ(b->rounds->n_seats, 0);
    CHECK(b->rounds->n_kept == 0 && b->rounds->n_kept_rows == 0);
    return more;
}

/* ---- Jobs -------------------------------------------------------------------------------- */

typedef struct load {
    request q[JOBS];
    heard *want[JOBS], *got[JOBS];
    int32_t depth[JOBS][DEPTHS];
    carat_script script[JOBS];
    float *vector[JOBS]; /* NULL: an answer */
} load;

/* What the test itself writes takes no memory between failures. */
static void make_room(str *s)
{
    static const char blank[1 << 16];
    str_put(s, blank, sizeof blank);
    str_cut(s, 0);
    CHECK(!s->bad);
}

/* Answers with chains, trees and no drafts, prompts longer than a tree may be, and embeddings. */
static void draw(load *x, pair *p, uint64_t *rng)
{
    for (int i = 0; i < JOBS; i++) {
        int64_t n = i % 3 ? 1 + (int64_t)rng_below(rng, 30) : LONG_PROMPT + i;
        request_draw(p->m, &x->q[i], n, i, rng);
        x->q[i].o.max_tokens = 24;
        x->want[i] = heard_new();
        x->got[i] = heard_new();
        make_room(&x->got[i]->events);
        make_room(&x->got[i]->text);
        x->vector[i] = NULL;
        if (i % 5 == 4) {
            x->vector[i] = mem_calloc((size_t)p->m->core.n_embd, sizeof(float));
            CHECK(x->vector[i]);
            continue;
        }
        heard_say(p->plain, &x->q[i], x->want[i]);
        x->script[i] = pair_script(p, x->want[i], 8, rng);
        memcpy(x->depth[i], p->depth, sizeof x->depth[i]);
        x->script[i].accept = x->depth[i];
        x->q[i].o.script = &x->script[i];
        x->q[i].o.speculation = (carat_speculation){
            .n_max = 2 + i % 5, .tree_max = i % 4 ? 12 : -1, .fixed = true, .off = i == 7};
        x->q[i].o.round_user = x->got[i];
        if (i % 6 == 5) { /* somebody leaves */
            x->got[i]->cancel_at = 3;
        }
    }
}

static void submit(load *x, int i, carat_batch *b)
{
    err e = {0};
    const carat_job j = {.ids = x->q[i].ids,
                         .n = x->q[i].n,
                         .opt = x->vector[i] ? NULL : &x->q[i].o,
                         .embedding = x->vector[i],
                         .fn = x->vector[i] ? NULL : heard_event,
                         .done = heard_done,
                         .user = x->got[i]};
    x->got[i]->cancel_batch = x->got[i]->cancel_at ? b : NULL;
    CHECK_OK(carat_batch_submit(b, &j, &x->got[i]->job, NULL, &e), e);
}

/* An answer that ended early is the beginning of the whole one. */
static void check_beginning(const heard *got, const heard *want, const char *what, int i)
{
    CHECK_MSG(got->n <= want->n && !memcmp(got->id, want->id, (size_t)got->n * sizeof *got->id),
              "%s, job %d: its %d tokens are not the beginning of the answer", what, i, got->n);
}

/* Gives the number of jobs that failed. */
static int check_jobs(load *x, const char *what)
{
    int n_failed = 0;
    for (int i = 0; i < JOBS; i++) {
        heard *got = x->got[i];
        CHECK_MSG(got->done, "%s: job %d has no end", what, i);
        n_failed += got->st != OK;
        if (got->st) {
            CHECK_MSG(got->st == E_IO || got->st == E_MEMORY, "%s, job %d: %s", what, i,
                      got->e.text);
            check_beginning(got, x->want[i], what, i);
        } else if (got->cancel_at && !x->vector[i]) {
            check_beginning(got, x->want[i], what, i);
        } else if (!x->vector[i]) {
            heard_same(got, x->want[i], what, i);
        }
        heard_free(got);
        heard_free(x->want[i]);
        mem_free(x->vector[i]);
    }
    return n_failed;
}

/* Gives the number of jobs that failed. */
static int run_load(pair *p, const char *what, bool short_of_memory, uint64_t *rng)
{
    static load x;
    AUTO_BATCH *b;
    err e = {0};
    const carat_batch_options o = {.session = {.n_ctx = CTX}, .n_slots = 5};
    CHECK_OK(carat_batch_open(p->with, &o, &b, &e), e);
    draw(&x, p, rng);
    fails.b = b;
    fails.n = 0;
    p->with->dev->failed = fail_at_random;
    for (int sent = 0, more = 1; more || sent < JOBS;) {
        if (sent < JOBS && (!more || rng_below(rng, 2)))
            submit(&x, sent++, b);
        more = step_batch(b, short_of_memory);
    }
    p->with->dev->failed = NULL;
    CHECK(b->rounds->n_drafted > 0);
    CHECK(b->info.n_busy == 0 && b->info.n_queued == 0);
    for (int d = 0; d < DRAFTERS_MAX; d++)
        CHECK_MSG(short_of_memory || !b->rounds->failed[d], "%s", b->rounds->why.text);
    return check_jobs(&x, what);
}

static void run(pair *p, const char *what)
{
    bool recurrent = p->plain->b.layout.n_recur > 0;
    uint64_t rng = test_seed();
    fails.rng = rng + 1;
    for (int trial = 0; trial < test_trials(1); trial++) {
        fails.one_in = 0;
        CHECK_EQ(run_load(p, what, false, &rng), 0);
        /* A failure that does not come again costs no answer, unless it cost a state. */
        fails.one_in = 4;
        fails.spare = true;
        int n = run_load(p, what, false, &rng);
        CHECK(fails.n > 0);
        CHECK(recurrent || !n);
        fails.spare = false;
        run_load(p, what, false, &rng);
        CHECK(fails.n > 0);
        fails.one_in = 8;
        run_load(p, what, true, &rng);
    }
    pair_close(p);
}

PLAIN_TEST(failed_passes_of_a_batch_with_lookup)
{
    pair p;
    pair_open(&p, NULL, (carat_session_options){0});
    run(&p, "lookup");
}

PLAIN_TEST(failed_passes_of_a_batch_with_a_dflash_drafter)
{
    pair p;
    pair_open_of(&p, rig_model(), df_write(&(df_options){0}, "draft.gguf"),
                 (carat_session_options){0});
    run(&p, "dflash");
}

PLAIN_TEST(failed_passes_of_a_batch_with_a_dflash_drafter_on_another_device)
{
    const carat_model_options o = {.draft = df_write(&(df_options){0}, "draft.gguf"),
                                   .draft_device = "cpu"};
    pair p = {0};
    err e = {0};
    CHECK_OK(carat_model_open(rig_model(), NULL, &p.m, &e), e);
    CHECK_OK(carat_model_open(rig_model(), &o, &p.with, &e), e);
    pair_open_sessions(&p, (carat_session_options){0});
    run(&p, "dflash apart");
}

PLAIN_TEST(failed_passes_of_a_batch_with_an_mtp_assistant)
{
    pair p;
    pair_open_of(&p, rig_model(), mtp_rig_write(&(mtp_rig_file){0}), (carat_session_options){0});
    run(&p, "mtp");
}

PLAIN_TEST(failed_passes_of_a_batch_with_a_nextn_layer)
{
    pair p;
    pair_open_of(&p, recur_model_write(&(recur_model_file){.nextn = true}), "nextn",
                 (carat_session_options){0});
    run(&p, "nextn");
}

PLAIN_TEST(failed_passes_of_a_batch_with_a_model_as_drafter)
{
    pair p;
    char path[256];
    snprintf(path, sizeof path, "%s", toy_model_write(NULL));
    pair_open_of(&p, path, path, (carat_session_options){0});
    run(&p, "model");
}
