/* kv_oracle_test.c - whatever the format, a cache must not change what a model says.
 *
 * The oracle is token by token: one row per pass, the same format. Against it, bit for bit at every
 * row: chunks of all sizes over prompts of 3, 8 and 43 windows whose last chunk is shorter than the
 * window; verify batches of 1 to 16 rows of which a random number is rejected; rewinds and edits in
 * the middle. Every store begins full of NaN, so what no one wrote shows at once.
 *
 * The model has all that caches can meet: rings that wrap many times, global layers with keys and
 * values alike, layers that read a donor's keys, head sizes of 128 and 256.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "model/gemma4.h"
#include "model/gemma4_shapes.h"
#include "tests/test.h"

enum {
    WINDOW = 12,
    VOCAB = 64,
    N_CTX = 640,
    LONG = 43 * WINDOW + 4, /* past 512 by less than a window */
    ROWS_MAX = 512,
    N_OWNERS = 4
};

static const gemma4_shape model_shape = {.name = "oracle",
                                         .n_layer = 6,
                                         .n_embd = 64,
                                         .n_vocab = VOCAB,
                                         .n_head = 2,
                                         .n_head_kv = 1,
                                         .n_head_kv_global = 1,
                                         .head_dim = 128,
                                         .head_dim_global = 256,
                                         .n_ff = 64,
                                         .n_kv_shared = 2,
                                         .k_eq_v = true,
                                         .window = WINDOW,
                                         .n_ctx_train = N_CTX,
                                         .eps = 1e-6f,
                                         .theta = 1e6f,
                                         .theta_swa = 1e4f,
                                         .rotary_part = 0.25f,
                                         .softcap = 30,
                                         .swa = {true, true, false, true, true, false}};

/* Random values that keep every feature visible; the norms of queries and keys are small, as the
 * scale of attention is 1. */
static void write_tensor(gguf_writer *w, const gemma4_shape *s, const gemma4_tensor *t,
                         uint64_t *rng)
{
    err e = {0};
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *x = mem_alloc(n * sizeof *x);
    CHECK(x);
    for (uint64_t i = 0; i < n; i++) {
        double r = rng_normal(rng);
        x[i] = (float)(t->role == GEMMA4_QK_NORM ? 0.3 + 0.1 * r
                       : t->role == GEMMA4_NORM  ? 1 + 0.2 * r
                       : t->role == GEMMA4_SCALE ? 0.9
                       : t->role == GEMMA4_EMBD  ? 0.3 * r
                                                 : r / sqrt((double)t->ne[0]));
    }
    if (t->role == GEMMA4_ROPE_FACTORS)
        gemma4_rope_factors(s, x);
    CHECK_OK(gguf_write_data(w, x, n * sizeof *x, &e), e);
    mem_free(x);
}

static const char *write_model(void)
{
    const gemma4_shape *s = &model_shape;
    const char *path = test_temp("oracle.gguf");
    int32_t n = gemma4_list_tensors(s, NULL, 0);
    gemma4_tensor *list = mem_calloc((size_t)n, sizeof *list);
    gguf_writer *w;
    uint64_t rng = 11;
    err e = {0};
    CHECK(list);
    CHECK_OK(gemma4_shape_check(s, "the oracle's model", &e), e);
    gemma4_list_tensors(s, list, n);
    CHECK_OK(gguf_create(&w, path, &e), e);
    gemma4_put_shape(w, s);
    gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (int32_t i = 0; i < n; i++)
        gguf_put_tensor(w, list[i].name, NUM_F32, list[i].n_dims, list[i].ne);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (int32_t i = 0; i < n; i++)
        write_tensor(w, s, &list[i], &rng);
    CHECK_OK(gguf_commit(w, &e), e);
    mem_free(list);
    return path;
}

/* ---- One cache and what passes over it need ---------------------------------------------- */

typedef struct rig {
    model m;
    device *dev;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    void *scratch;
    size_t scratch_bytes, kv_bytes;
} rig;

static size_t counted; /* bytes that the device gave for stores */
static void *(*plain_alloc)(device *d, size_t n);
static void *counting_alloc(device *d, size_t n)
{
    counted += n;
    return plain_alloc(d, n);
}

static void open_model(rig *r)
{
    gguf g;
    err e = {0};
    *r = (rig){0};
    CHECK_OK(gguf_open(&g, write_model(), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&r->m, &g, &e), e);
    CHECK_OK(device_open_cpu(&r->dev, &(cpu_options){.n_threads = 1}, &e), e);
    CHECK_OK(model_load(&r->m, r->dev, NULL, NULL, &e), e);
}

static void poison(rig *r)
{
    for (int32_t i = 0; i < r->l.n; i++) {
        const kv_view *v = &r->l.view[i];
        size_t rows = (size_t)v->n_head_kv * (size_t)v->n_slots;
        memset(r->c.base[i].k, 0xff, rows * v->k_row_bytes);
        if (!v->single)
            memset(r->c.base[i].v, 0xff, rows * v->v_row_bytes);
    }
}

static void open_cache(rig *r, const kv_words *words, int32_t rows)
{
    err e = {0};
    model_costs costs;
    kv_want_layout w = {
        .spec = r->m.kv, .n = r->m.n_kv, .n_ctx = N_CTX, .rows_max = rows, .dev = r->dev};
    CHECK_OK(kv_choice_parse(&w.choice, words, &e), e);
    CHECK_OK(kv_layout_init(&r->l, &w, &e), e);
    counted = 0;
    plain_alloc = r->dev->alloc;
    r->dev->alloc = counting_alloc;
    CHECK_OK(kv_open(&r->c, r->dev, &r->l, &e), e);
    r->dev->alloc = plain_alloc;
    CHECK_EQ(counted, r->l.ring_bytes + r->l.linear_bytes); /* planned is actual */
    CHECK_OK(kv_batch_init(&r->b, rows, 1, r->l.n, &e), e);
    for (int32_t n = 1; n <= rows; n = n < rows && 2 * n > rows ? rows : 2 * n) {
        CHECK_OK(model_plan(&r->m, r->dev, &r->l, n, n, &costs, &e), e);
        r->scratch_bytes =
            costs.scratch_bytes > r->scratch_bytes ? costs.scratch_bytes : r->scratch_bytes;
    }
    r->scratch_bytes += 1 << 20; /* counts between the powers of two */
    r->scratch = r->dev->alloc(r->dev, r->scratch_bytes);
    CHECK(r->scratch);
    poison(r);
}

static void close_cache(rig *r)
{
    r->dev->release(r->dev, r->scratch, r->scratch_bytes);
    r->scratch_bytes = 0;
    kv_batch_free(&r->b);
    kv_close(&r->c);
    kv_layout_free(&r->l);
}

static void close_model(rig *r)
{
    model_free(&r->m);
    device_close(r->dev);
}

/* A pass of n rows after what is committed; logits [n, VOCAB]; the first `keep` rows stay. */
static void run(rig *r, const int32_t *ids, int32_t n, int32_t keep, float *logits)
{
    err e = {0};
    pass p;
    CHECK_OK(kv_reserve(&r->c, n, &e), e);
    kv_batch_clear(&r->b);
    CHECK_OK(kv_batch_add(&r->b, &r->c, ids, n, NULL, KV_WANT_ALL, &e), e);
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    mat y = model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    for (int32_t i = 0; i < n; i++)
        memcpy(logits + (size_t)i * VOCAB, mat_row(y, i), VOCAB * sizeof *logits);
    kv_commit(&r->c, keep);
}

static void draw_ids(int32_t *ids, int32_t n, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, VOCAB);
}

/* The oracle's logits of LONG tokens. */
static float *token_by_token(rig *r, const kv_words *w, const int32_t *ids)
{
    float *x = mem_alloc((size_t)LONG * VOCAB * sizeof *x);
    CHECK(x);
    open_cache(r, w, 1);
    for (int32_t i = 0; i < LONG; i++)
        run(r, ids + i, 1, 1, x + (size_t)i * VOCAB);
    close_cache(r);
    for (size_t i = 0; i < (size_t)LONG * VOCAB; i++)
        CHECK_MSG(isfinite(x[i]), "token %zu sees what no one wrote", i / VOCAB);
    return x;
}

static bool same(const float *a, const float *b, int32_t rows)
{
    return !memcmp(a, b, (size_t)rows * VOCAB * sizeof *a);
}

/* ---- Formats ----------------------------------------------------------------------------- */

static const kv_words formats[] = {
    {.k = "f32", .single = "off"},
    {.k = "f32", .single = "on"},
    {.k = "f16", .single = "off"},
    {.k = "f16", .single = "on"},
    {.k = "bf16"},
    {.k = "q8_0", .single = "off"},
    {.k = "q8_0", .single = "on"},
    {.k = "q5_1"},
    {.k = "q5_0"},
    {.k = "q4_1"},
    {.k = "q4_0", .single = "off"},
    {.k = "q4_0", .single = "on"},
    {.k = "iq4_nl"},
    {.k = "tq3_0"},
    {.k = "tq3_0", .single = "on"},
    {.k = "q4_0+rot"},
    {.k = "q8_0", .v = "tq3_0"},
    {.k = "f16", .layers = "global=tq3_0,swa=q8_0/q4_0,3=f32"},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static const char *words_text(const kv_words *w, char *buf, size_t cap)
{
    snprintf(buf, cap, "keys %s, values %s, layers %s, one stream %s", w->k, w->v ? w->v : w->k,
             w->layers ? w->layers : "alike", w->single ? w->single : "auto");
    return buf;
}

typedef void (*check_fn)(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng);

/* fn for every format of which i % of == part: tests run side by side. */
static void each_format(check_fn fn, int part, int of)
{
    uint64_t rng = test_seed();
    int32_t ids[LONG];
    rig r;
    char text[128];
    open_model(&r);
    draw_ids(ids, LONG, &rng);
    for (int i = part; i < N_FORMATS; i += of) {
        printf("  %s\n", words_text(&formats[i], text, sizeof text));
        float *want = token_by_token(&r, &formats[i], ids);
        fn(&r, &formats[i], ids, want, &rng);
        mem_free(want);
    }
    close_model(&r);
}

static void check_chunks(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng)
{
    static const int32_t chunks[] = {5, 64, WINDOW - 1, WINDOW, WINDOW + 1, ROWS_MAX, LONG};
    static const int32_t lengths[] = {3 * WINDOW + 1, 8 * WINDOW + 5, LONG};
    float *got = mem_alloc((size_t)LONG * VOCAB * sizeof *got);
    (void)rng;
    CHECK(got);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        open_cache(r, w, chunks[i]);
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            int32_t n = lengths[j];
            kv_reset(&r->c);
            poison(r); /* what an earlier prompt left would hide a hole */
            for (int32_t at = 0; at < n; at += chunks[i]) {
                int32_t rows = n - at < chunks[i] ? n - at : chunks[i];
                run(r, ids + at, rows, rows, got + (size_t)at * VOCAB);
            }
            CHECK_MSG(same(got, want, n), "chunks of %d over %d tokens: other bits", chunks[i], n);
        }
        close_cache(r);
    }
    mem_free(got);
}

TEST(kv_oracle_chunks_of_every_size_a)
{
    each_format(check_chunks, 0, 2);
}
TEST(kv_oracle_chunks_of_every_size_b)
{
    each_format(check_chunks, 1, 2);
}

/* A speculating decoder that is right now and then: drafts of up to 15, a random number of them
 * right, the rest wrong. What was rejected must leave nothing behind. */
static void check_verify(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                         uint64_t *rng)
{
    float got[16 * VOCAB];
    int32_t batch[16], n_rejected = 0;
    open_cache(r, w, 16);
    for (int32_t at = 0; at < LONG;) {
        int32_t n = 1 + (int32_t)rng_below(rng, 16), good;
        n = n < LONG - at ? n : LONG - at;
        good = (int32_t)rng_below(rng, (uint64_t)n + 1); /* 0: the verify is abandoned */
        memcpy(batch, ids + at, sizeof *batch * (size_t)n);
        for (int32_t i = good; i < n; i++)
            batch[i] = (batch[i] + 1 + (int32_t)rng_below(rng, VOCAB - 1)) % VOCAB;
        run(r, batch, n, good, got);
        CHECK_MSG(same(got, want + (size_t)at * VOCAB, good),
                  "a batch of %d at %d, %d accepted: other bits", n, at, good);
        n_rejected += n - good;
        at += good;
    }
    CHECK(n_rejected > LONG / 4);
    close_cache(r);
}

TEST(kv_oracle_verify_batches_with_rejections)
{
    each_format(check_verify, 0, 1);
}

/* Random rewinds (refused ones start over), then on with chunks of random sizes. */
static void check_edits(rig *r, const kv_words *w, const int32_t *ids, const float *want,
                        uint64_t *rng)
{
    float *got = mem_alloc((size_t)40 * VOCAB * sizeof *got);
    int n_rewound = 0, n_refused = 0;
    CHECK(got);
    open_cache(r, w, 40);
    for (int round = 0; round < 120; round++) {
        int64_t at = r->c.n_past;
        if (at && rng_below(rng, 3) == 0) {
            int64_t to = at - (int64_t)rng_below(rng, (uint64_t)(at < 50 ? at : 50));
            if (kv_rewind(&r->c, to)) {
                n_rewound++;
            } else {
                n_refused++;
                kv_reset(&r->c);
            }
            at = r->c.n_past;
        }
        int32_t n = 1 + (int32_t)rng_below(rng, 40);
        if (at + n > LONG) {
            kv_reset(&r->c);
            continue;
        }
        if (rng_below(rng, 4) == 0) { /* another text for a while: an edit that is taken back */
            int32_t other[40];
            draw_ids(other, n, rng);
            run(r, other, n, 0, got);
        }
        run(r, ids + at, n, n, got);
        CHECK_MSG(same(got, want + (size_t)at * VOCAB, n), "%d rows at %lld: other bits", n,
                  (long long)at);
    }
    CHECK(n_rewound > 3 && n_refused > 3);
    close_cache(r);
    mem_free(got);
}

TEST(kv_oracle_rewinds_and_edits)
{
    each_format(check_edits, 0, 1);
}

/* ---- Streams and donors ------------------------------------------------------------------ */

static double largest_distance(const float *a, const float *b, int32_t *n_flips)
{
    double most = 0;
    *n_flips = 0;
    for (int32_t r = 0; r < LONG; r++) {
        int32_t best[2] = {0, 0};
        for (int32_t i = 0; i < VOCAB; i++) {
            size_t at = (size_t)r * VOCAB + (size_t)i;
            most = fmax(most, fabs((double)a[at] - b[at]));
            best[0] = a[at] > a[(size_t)r * VOCAB + (size_t)best[0]] ? i : best[0];
            best[1] = b[at] > b[(size_t)r * VOCAB + (size_t)best[1]] ? i : best[1];
        }
        *n_flips += best[0] != best[1];
    }
    return most;
}

/* In f32 both are the same function in another order of rounding; coarser formats round u instead
 * of w u, which is no worse. Distances are from two streams of f32. */
TEST(kv_oracle_one_stream_is_two)
{
    static const struct {
        const char *type;
        double most; /* distance of one stream; measured about a third of it */
    } kinds[] = {{"f32", 1e-4}, {"f16", 2e-2}, {"q8_0", 0.3}, {"q4_0", 4}, {"tq3_0", 8}};
    uint64_t rng = test_seed();
    int32_t ids[LONG], flips;
    rig r;
    open_model(&r);
    draw_ids(ids, LONG, &rng);
    float *exact = token_by_token(&r, &(kv_words){.k = "f32", .single = "off"}, ids);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double far[2];
        for (int one = 0; one < 2; one++) {
            kv_words w = {.k = kinds[i].type, .single = one ? "on" : "off"};
            float *x = token_by_token(&r, &w, ids);
            far[one] = largest_distance(x, exact, &flips);
            printf("  %s, one stream %s: largest distance %.2e, %d of %d best tokens differ\n", w.k,
                   w.single, far[one], flips, LONG);
            CHECK(i > 0 || flips == 0);
            mem_free(x);
        }
        CHECK_MSG(far[1] <= kinds[i].most && far[1] <= 3 * far[0] + 1e-4,
                  "%s: %.2e in one stream, %.2e in two", kinds[i].type, far[1], far[0]);
    }
    mem_free(exact);
    close_model(&r);
}

/* Layers 4 and 5 read the last owners of their kinds: by type, by size, and in truth: the model
 * notices when the donor's content changes, and only then. */
TEST(kv_oracle_donors_are_of_their_kind)
{
    uint64_t rng = test_seed();
    int32_t ids[40];
    float want[VOCAB], got[VOCAB];
    rig r;
    open_model(&r);
    draw_ids(ids, 40, &rng);
    const gemma4 *g = r.m.impl;
    CHECK_EQ(r.m.n_kv, N_OWNERS);
    CHECK(g->layer[4].kv == 3 && g->layer[5].kv == 2);
    for (int i = 0; i < N_FORMATS; i++) {
        open_cache(&r, &formats[i], 40);
        for (int32_t il = 0; il < g->n_layer; il++) {
            const kv_view *v = &r.l.view[g->layer[il].kv];
            CHECK_EQ(v->head_dim, g->layer[il].head_dim);
            CHECK_EQ(v->n_head_kv, g->layer[il].n_head_kv);
            CHECK_EQ(v->window, g->layer[il].swa ? WINDOW : 0);
            CHECK_EQ(v->n_slots, v->window ? WINDOW + 40 - 1 : N_CTX);
        }
        float all[40 * VOCAB];
        for (int damaged = -1; damaged < N_OWNERS; damaged++) {
            kv_reset(&r.c);
            poison(&r);
            run(&r, ids, 39, 39, all);
            if (damaged >= 0) { /* one slot in sight becomes another's */
                const kv_view *v = &r.l.view[damaged];
                char *k = r.c.base[damaged].k;
                memcpy(k + 37 * v->k_row_bytes, k + 33 * v->k_row_bytes, v->k_row_bytes);
            }
            run(&r, ids + 39, 1, 1, got);
            if (damaged < 0)
                memcpy(want, got, sizeof want);
            else
                CHECK_MSG(!same(got, want, 1), "nobody reads the keys of layer %d", damaged);
        }
        close_cache(&r);
    }
    close_model(&r);
}
