/* check_pool.c - sessions on the CUDA device whose keys have a pool smaller than their context:
 * pages leave for the host and come back, the youngest ones or by scores. While everything fits the
 * logits are those without a pool, bit for bit; then they are those of the CPU with the same pool.
 * Free pages of the device are NaN. A model divided between GPU and CPU scores pages, and looks at
 * them, on both sides. Ranks of a tensor split count the votes of one device, in passes that are run,
 * recorded and played again while new pages get summaries.
 */
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "engine/batch_int.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 1024, POOL = 512, FITS = 300, TOKENS = 600, BACK = 130, MORE = 3 };

typedef struct pool_rig {
    rig *g;
    const char *name, *policy;
    carat_model *cpu, *gpu;
    int32_t id[TOKENS + MORE];
    size_t n_vocab;
    float *a, *b;
} pool_rig;

static status open_session(const pool_rig *x, carat_model *m, int32_t pool, carat_session **s,
                           err *e)
{
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = 64,
                                     .checkpoint_mb = -1,
                                     .kv_k = "f32",
                                     .kv_single = "off",
                                     .kv_resident = pool,
                                     .kv_policy = x->policy};
    return carat_session_open(m, &o, s, e);
}

/* The root mean square of a - b. */
static double distance(const pool_rig *x)
{
    double sum = 0;
    for (size_t i = 0; i < x->n_vocab; i++) {
        double d = (double)x->a[i] - (double)x->b[i];
        sum += isinf(x->a[i]) && isinf(x->b[i]) ? 0 : d * d;
    }
    return sqrt(sum / (double)x->n_vocab);
}

/* Evaluates id[0..n) in both sessions and the next tokens one by one; the largest distance. */
static status follow(pool_rig *x, carat_session *one, carat_session *two, int32_t n, double *far,
                     err *e)
{
    status st = carat_eval(one, x->id, n, x->a, NULL, e);
    st = st ? st : carat_eval(two, x->id, n, x->b, NULL, e);
    *far = st ? NAN : distance(x);
    for (int32_t i = 0; i < MORE && !st; i++) {
        st = carat_append(one, x->id + n + i, 1, false, x->a, e);
        st = st ? st : carat_append(two, x->id + n + i, 1, false, x->b, e);
        double d = st ? NAN : distance(x);
        *far = isnan(*far) || d <= *far ? *far : d;
    }
    return st;
}

static status check_pair(pool_rig *x, err *e)
{
    carat_session *whole = NULL, *pool = NULL, *cpu = NULL;
    carat_pool_info info = {0};
    double far;
    status st = open_session(x, x->gpu, 0, &whole, e);
    st = st ? st : open_session(x, x->gpu, POOL, &pool, e);
    if (!st)
        pool->b.pool.poison = true;
    st = st ? st : open_session(x, x->cpu, POOL, &cpu, e);
    if (!st && !(st = follow(x, whole, pool, FITS, &far, e)))
        verdict(x->g, "pool", text("%s %s: everything fits", x->name, x->policy), far, 0);
    /* From the start: which pages are there follows from where passes begin. */
    if (!st)
        carat_reset(pool);
    if (!st && !(st = follow(x, cpu, pool, TOKENS, &far, e)))
        verdict(x->g, "pool", text("%s %s: pages are away", x->name, x->policy), far, 0.05);
    /* Back into a page that is on the host. */
    if (!st && !(st = follow(x, cpu, pool, BACK, &far, e)))
        verdict(x->g, "pool", text("%s %s: after a rewind", x->name, x->policy), far, 0.05);
    if (pool)
        carat_session_get_pool(pool, &info);
    if (!st) {
        bool scored = !strcmp(x->policy, "scored");
        verdict(x->g, "pool", text("%s %s: pages that moved", x->name, x->policy), info.n_out < 1,
                0);
        verdict(x->g, "pool", text("%s %s: choices by scores", x->name, x->policy),
                strcmp(info.policy, x->policy) || scored != (info.n_reselected > 0), 0);
    }
    carat_session_close(whole);
    carat_session_close(pool);
    carat_session_close(cpu);
    return st;
}

/* ---- Ranks ---------------------------------------------------------------------------------- */

enum { VOTES_LONG = 570, VOTES_MORE = 12, VOTES_PAGES = CTX / KV_PAGE };

/* What a session says and counts at the last tokens of a text. */
typedef struct votes_said {
    uint64_t votes[VOTES_MORE][VOTES_PAGES];
    float logits[1024];
    int64_t n_chosen;
    int n_recorded, n_pages[2]; /* pages with summaries at the first token, and the last */
} votes_said;

static int recordings(const carat_model *m)
{
    const cuda_device *c = m->dev->self;
    int n = 0;
    for (int i = 0; i < GRAPHS; i++)
        n += c->graphs[i].exec != NULL;
    return n;
}

/* A CPU computes the beginning of the text, which would take the emulator minutes. */
static status write_beginning(const char *path, const char *file, const int32_t *ids, err *e)
{
    const carat_session_options o = {.n_ctx = CTX, .checkpoint_mb = -1};
    const carat_batch_options bo = {.session = o, .n_slots = 1};
    carat_model *m = NULL;
    carat_session *s = NULL;
    carat_batch *b = NULL;
    carat_snapshot *p = NULL;
    uint64_t n_bytes;
    status st = carat_model_open(path, &(carat_model_options){.device = "cpu"}, &m, e);
    st = st ? st : carat_session_open(m, &o, &s, e);
    st = st ? st : carat_batch_open(m, &bo, &b, e);
    st = st ? st : carat_eval(s, ids, VOTES_LONG, NULL, NULL, e);
    st = st ? st : carat_snapshot_take(s, &p, e);
    st = st ? st : carat_batch_write_snapshot(b, p, file, &n_bytes, e);
    carat_snapshot_free(p);
    carat_batch_close(b);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

/* Every token is watched. */
static status count_votes(carat_model *m, const char *file, const int32_t *ids, votes_said *x,
                          err *e)
{
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = 64,
                                     .checkpoint_mb = -1,
                                     .kv_resident = POOL,
                                     .kv_policy = "scored",
                                     .kv_tau = KV_WATCH_TOKENS};
    const carat_batch_options bo = {.session = o, .n_slots = 1};
    carat_session *s = NULL;
    carat_batch *b = NULL;
    carat_snapshot *p = NULL;
    uint64_t n_bytes;
    status st = carat_session_open(m, &o, &s, e);
    st = st ? st : carat_batch_open(m, &bo, &b, e);
    st = st ? st : carat_batch_read_snapshot(b, file, &p, &n_bytes, e);
    st = st ? st : carat_snapshot_restore(s, p, e);
    for (int i = 0; i < VOTES_MORE && !st; i++) {
        const kv_cache *c = &session_timeline(s)->kv;
        if ((st = carat_append(s, ids + VOTES_LONG + i, 1, false, x->logits, e)))
            break;
        x->n_pages[i > 0] = c->pager->watch.n_pages;
        kv_pager_get_votes(c, x->votes[i], c->pager->watch.n_pages);
        x->n_chosen = c->pager->n_reselected;
    }
    x->n_recorded = recordings(m);
    carat_snapshot_free(p);
    carat_batch_close(b);
    carat_session_close(s);
    return st;
}

static void check_pool_ranks(rig *g)
{
    const char *path = synth_file("tiny-qwen3", "f32", NULL, NULL);
    const char *file = test_temp("votes.carat-kv");
    votes_said *one = mem_calloc(2, sizeof *one), *more = one + 1;
    int32_t ids[VOTES_LONG + VOTES_MORE];
    err e = {0};
    for (int i = 0; i < VOTES_LONG + VOTES_MORE; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    status st = one ? write_beginning(path, file, ids, &e) : err_memory(&e, "a check", sizeof *one);
    for (int32_t n = 1; n <= SPLITS_MAX && !st; n++) {
        carat_model *m = NULL;
        const split_place at = {.split = "tensor", .n = n, .gpu = true};
        st = splits_open(path, (carat_model_options){0}, at, &m, &e);
        st = st ? st : count_votes(m, file, ids, n == 1 ? one : more, &e);
        carat_model_close(m);
        if (st || n == 1)
            continue;
        verdict(g, "pool", text("%d ranks: votes that differ", n),
                memcmp(one->votes, more->votes, sizeof one->votes) != 0, 0);
        verdict(g, "pool", text("%d ranks: logits that differ", n),
                memcmp(one->logits, more->logits, sizeof one->logits) != 0, 0);
        verdict(g, "pool", text("%d ranks: nothing chosen, or recorded, or no new page", n),
                more->n_chosen < 2 || !more->n_recorded || more->n_pages[0] == more->n_pages[1], 0);
    }
    if (st)
        failed(g, "pool", e.text);
    mem_free(one);
    unlink(file);
    unlink(path);
}

void check_pool(rig *g)
{
    static const struct {
        const char *name, *base;
        int32_t gpu_layers;
    } c[] = {{"qwen3", "qwen3", 0}, {"qwen3 divided", "qwen3", 1}, {"dense", "dense", 0}};
    for (int i = 0; i < (g->quick ? 2 : 3); i++) {
        pool_rig x = {.g = g, .name = c[i].name};
        fidelity f;
        carat_model_info info;
        err e = {0};
        if (!my_turn(g, "pool"))
            continue;
        fidelity_open(&f, c[i].base);
        const char *path = fidelity_write(&f, NULL);
        const carat_model_options mo = {.device = "cuda", .gpu_layers = c[i].gpu_layers};
        status st = carat_model_open(path, &mo, &x.gpu, &e);
        st = st ? st : carat_model_open(path, &(carat_model_options){.device = "cpu"}, &x.cpu, &e);
        if (!st) {
            carat_model_get_info(x.gpu, &info);
            x.n_vocab = (size_t)info.n_vocab;
            x.a = mem_calloc(x.n_vocab, 2 * sizeof *x.a);
            x.b = x.a + x.n_vocab;
            for (int32_t k = 0; k < TOKENS + MORE; k++)
                x.id[k] = (int32_t)rng_below(&g->rng, x.n_vocab);
            st = x.a ? OK : err_memory(&e, "logits", x.n_vocab * 8);
            for (int k = g->quick; k < 2 && !st; k++) {
                x.policy = k ? "scored" : "lru";
                st = check_pair(&x, &e);
            }
        }
        if (st)
            failed(g, "pool", e.text);
        mem_free(x.a);
        carat_model_close(x.gpu);
        carat_model_close(x.cpu);
        unlink(path);
        fidelity_close(&f);
    }
    if (my_turn(g, "pool"))
        check_pool_ranks(g);
}
