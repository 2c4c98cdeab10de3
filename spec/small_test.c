/* small_test.c - a smaller model as drafter. A copy of the target drafts what the target would
 * answer, so its drafts are known: after prompts of any length, rejected drafts, other prompts and
 * wrapped rings.
 */
#include "spec/drafter.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/kv_rig.h"
#include "tests/test.h"

enum { CHUNK = 7, SLOTS = 5, CTX = 90, N = 3 };

typedef struct small_bench {
    rig r; /* its cache computes the expected answers */
    draft_model *m;
    drafter *d;
    float *logits; /* [CTX, RIG_VOCAB] */
} small_bench;

static draft_sizes sizes_of(const rig *r)
{
    return (draft_sizes){.dev = r->dev,
                         .n_ctx = CTX,
                         .rows_max = CHUNK,
                         .outs_max = CHUNK,
                         .n_seqs = N,
                         .n_slots = SLOTS,
                         .target_kv = &r->l};
}

static gguf opened(const char *path)
{
    gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    return g;
}

static void bench_open(small_bench *b)
{
    err e = {0};
    rig_open(&b->r);
    b->r.dev->chunk_rows = CHUNK;
    gguf g = opened(b->r.m.file.path);
    CHECK_OK(draft_model_open(&draft_small, &b->r.m, &g, &b->m, &e), e);
    CHECK_OK(model_load(&b->m->core, b->r.dev, NULL, NULL, &e), e);
    rig_open_cache(&b->r, &(kv_words){.k = "f16"}, CTX);
    draft_sizes z = sizes_of(&b->r);
    CHECK_OK(draft_small.open(b->m, &z, &b->d, &e), e);
    b->logits = mem_alloc((size_t)CTX * RIG_VOCAB * sizeof *b->logits);
    CHECK(b->logits);
}

static void bench_close(small_bench *b)
{
    mem_free(b->logits);
    draft_small.close(b->d);
    draft_model_close(b->m);
    rig_close_cache(&b->r);
    rig_close(&b->r);
}

/* The target's own greedy answer to id[0..n). */
static void expect(small_bench *b, const int32_t *id, int32_t n, int32_t want[SLOTS])
{
    kv_reset(&b->r.c);
    rig_run(&b->r, id, n, n, b->logits);
    const float *z = b->logits + (size_t)(n - 1) * RIG_VOCAB;
    for (int32_t i = 0; i < SLOTS; i++, z = b->logits) {
        want[i] = 0;
        for (int32_t v = 1; v < RIG_VOCAB; v++)
            want[i] = z[v] > z[want[i]] ? v : want[i];
        if (n + i < CTX)
            rig_run(&b->r, &want[i], 1, 1, b->logits);
    }
}

static void check_proposal(small_bench *b, const draft_ask *a)
{
    int32_t want[SLOTS], room = CTX - (int32_t)a->n + 1;
    int32_t n = a->n_slots < room ? a->n_slots : room;
    expect(b, a->id, (int32_t)a->n, want);
    CHECK_EQ(a->out->n_slots, n);
    for (int32_t i = 0; i < n; i++) {
        CHECK_MSG(a->out->id[i][0] == want[i], "after %lld tokens, slot %d: %d, expected %d",
                  (long long)a->n, i, a->out->id[i][0], want[i]);
        CHECK(a->out->logp[i][0] <= 0);
    }
}

TEST(small_model_drafts_what_it_would_answer)
{
    uint64_t rng = test_seed();
    AUTO_MEM proposal *out = mem_calloc(N, sizeof *out);
    int32_t id[N][CTX], n[N] = {1, 20, 40};
    draft_state *s[N];
    draft_ask a[N];
    AUTO(bench_close) small_bench b;
    err e = {0};
    CHECK(out);
    bench_open(&b);
    for (int i = 0; i < N; i++) {
        CHECK_OK(draft_small.state_open(b.d, &s[i], &e), e);
        rig_draw(id[i], CTX, &rng);
    }
    for (int round = 0; round < (SANITIZED ? 15 : 60); round++) {
        int32_t asked = 1 + (int32_t)rng_below(&rng, N), k = 0;
        int32_t first = (int32_t)rng_below(&rng, N);
        for (int i = 0; i < asked; i++, k++) {
            int t = (first + i) % N;
            a[k] = (draft_ask){.s = s[t],
                               .target = &b.r.c,
                               .id = id[t],
                               .n = n[t],
                               .n_slots = 1 + (int32_t)rng_below(&rng, SLOTS),
                               .n_ranks = 1 + (int32_t)rng_below(&rng, 3),
                               .out = &out[k]};
        }
        CHECK_OK(draft_small.propose(b.d, a, asked, &e), e);
        for (int i = 0; i < asked; i++)
            check_proposal(&b, &a[i]);
        for (int i = 0; i < asked; i++) { /* accept some, then another token */
            int t = (first + i) % N;
            int32_t keep = (int32_t)rng_below(&rng, (uint64_t)out[i].n_slots + 1);
            for (int32_t j = 0; j < keep && n[t] < CTX; j++)
                id[t][n[t]++] = out[i].id[j][0];
            if (n[t] < CTX)
                n[t]++;
            if (rng_below(&rng, 6) == 0 || n[t] == CTX) { /* another prompt, with the same start */
                int32_t same = (int32_t)rng_below(&rng, (uint64_t)n[t]);
                rig_draw(id[t] + same, CTX - same, &rng);
                n[t] = 1 + (int32_t)rng_below(&rng, CTX);
                draft_small.forget(b.d, s[t], same);
            }
        }
    }
    for (int i = 0; i < N; i++)
        draft_small.state_close(b.d, s[i]);
}

TEST(small_model_refuses_another_vocabulary)
{
    AUTO(rig_close) rig r;
    err e = {0};
    draft_model *m = NULL;
    rig_open(&r);
    gguf g = opened(r.m.file.path);
    r.m.n_vocab++;
    CHECK(draft_model_open(&draft_small, &r.m, &g, &m, &e) == E_ARG && !m &&
          strstr(e.text, "vocabulary"));
    r.m.n_vocab--;
}

static status open_all(void *arg, err *e)
{
    rig *r = arg;
    draft_sizes z = sizes_of(r);
    draft_model *m = NULL;
    draft_costs costs;
    drafter *d = NULL;
    draft_state *s = NULL;
    gguf g;
    status st = gguf_open(&g, r->m.file.path, false, NULL, NULL, e);
    if (st || (st = draft_model_open(&draft_small, &r->m, &g, &m, e)))
        return st;
    if (!(st = draft_small.plan(m, &z, &costs, e)) && !(st = draft_small.open(m, &z, &d, e)) &&
        !(st = draft_small.state_open(d, &s, e)))
        draft_small.state_close(d, s);
    if (d)
        draft_small.close(d);
    draft_model_close(m);
    return st;
}

TEST(small_model_opens_without_memory)
{
    AUTO(rig_close) rig r;
    rig_open(&r);
    test_every_allocation(open_all, &r);
}

static size_t counted;
static void *(*plain_alloc)(device *d, size_t n);
static void *counting_alloc(device *d, size_t n)
{
    counted += n;
    return plain_alloc(d, n);
}

TEST(small_model_plan_is_exact)
{
    draft_costs costs;
    draft_state *s;
    AUTO(bench_close) small_bench b;
    err e = {0};
    bench_open(&b);
    draft_small.close(b.d);
    draft_sizes z = sizes_of(&b.r);
    CHECK_OK(draft_small.plan(b.m, &z, &costs, &e), e);
    plain_alloc = b.r.dev->alloc;
    b.r.dev->alloc = counting_alloc;
    CHECK_OK(draft_small.open(b.m, &z, &b.d, &e), e);
    CHECK_EQ(counted, costs.device_bytes);
    counted = 0;
    CHECK_OK(draft_small.state_open(b.d, &s, &e), e);
    CHECK_EQ(counted, costs.device_state_bytes);
    b.r.dev->alloc = plain_alloc;
    draft_small.state_close(b.d, s);
}
