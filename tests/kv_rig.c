/* kv_rig.c - see kv_rig.h. */
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"
#include "backend/key_walk.h"
#include "model/gemma4.h"
#include "model/gemma4_shapes.h"

static const gemma4_shape rig_shape = {.family = &gemma4_shapes,
                                       .name = "rig",
                                       .n_layer = 6,
                                       .n_embd = 64,
                                       .n_vocab = RIG_VOCAB,
                                       .n_head = 4,
                                       .n_head_kv = 2,
                                       .n_head_kv_global = 1,
                                       .head_dim = 128,
                                       .head_dim_global = 256,
                                       .n_ff = 64,
                                       .n_kv_shared = 2,
                                       .k_eq_v = true,
                                       .window = RIG_WINDOW,
                                       .n_ctx_train = RIG_CTX,
                                       .eps = 1e-6f,
                                       .theta = 1e6f,
                                       .theta_swa = 1e4f,
                                       .rotary_part = 0.25f,
                                       .rope_factor = 1,
                                       .softcap = 30,
                                       .swa = {true, true, false, true, true, false}};

/* Random values that keep every feature visible; qk_norm: of the norms of queries and keys. */
static void write_tensor(gguf_writer *w, const gemma4_shape *s, const shape_tensor *t,
                         float qk_norm, uint64_t *rng)
{
    err e = {0};
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    AUTO_MEM float *x = mem_alloc(n * sizeof *x);
    CHECK(x);
    for (uint64_t i = 0; i < n; i++) {
        double r = rng_normal(rng);
        x[i] = (float)(t->role == ROLE_QK_NORM ? qk_norm * (1 + r / 3)
                       : t->role == ROLE_NORM  ? 1 + 0.2 * r
                       : t->role == ROLE_SCALE ? 0.9
                       : t->role == ROLE_EMBD  ? 0.3 * r
                                               : r / sqrt((double)t->ne[0]));
    }
    if (t->role == ROLE_ROPE_FACTORS)
        gemma4_rope_factors(s, x);
    CHECK_OK(gguf_write_data(w, x, n * sizeof *x, &e), e);
}

const char *rig_model(void)
{
    return rig_model_of(rig_shape.head_dim, rig_shape.head_dim_global, RIG_QK_NORM);
}

const char *rig_model_of(int32_t head_dim, int32_t head_dim_global, float qk_norm)
{
    gemma4_shape shape = rig_shape, *s = &shape;
    const char *path = test_temp("rig.gguf");
    shape.head_dim = head_dim;
    shape.head_dim_global = head_dim_global;
    int32_t n = table_list(&s->common, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    gguf_writer *w;
    uint64_t rng = 11;
    err e = {0};
    CHECK(list);
    CHECK_OK(table_check(&s->common, "the rig's model", &e), e);
    table_list(&s->common, list, n);
    CHECK_OK(gguf_create(&w, path, &e), e);
    table_put(w, &s->common);
    gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (int32_t i = 0; i < n; i++)
        gguf_put_tensor(w, list[i].name, NUM_F32, list[i].n_dims, list[i].ne);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (int32_t i = 0; i < n; i++)
        write_tensor(w, s, &list[i], qk_norm, &rng);
    CHECK_OK(gguf_commit(w, &e), e);
    return path;
}

/* ---- One cache and what passes over it need ---------------------------------------------- */

static size_t counted; /* bytes that the device allocated for stores */
static void *(*plain_alloc)(device *d, size_t n);
static void *counting_alloc(device *d, size_t n)
{
    counted += n;
    return plain_alloc(d, n);
}

bool rig_open_on(rig *r, const cpu_options *o)
{
    gguf g;
    err e = {0};
    *r = (rig){0};
    if (device_open_cpu(&r->dev, o, &e))
        return false;
    CHECK_OK(gguf_open(&g, rig_model(), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&r->m, &g, &e), e);
    CHECK_OK(model_load(&r->m, r->dev, NULL, NULL, &e), e);
    return true;
}

void rig_open(rig *r)
{
    CHECK(rig_open_on(r, &(cpu_options){.n_threads = 1}));
}

static void poison(const kv_view *v, const kv_base *b, int32_t first, int32_t n)
{
    for (int32_t h = 0; h < v->n_head_kv; h++) {
        memset(key_row(v, b->k, v->k_row_bytes, h, (size_t)first), 0xff,
               (size_t)n * v->k_row_bytes);
        if (!v->single)
            memset(key_row(v, b->v, v->v_row_bytes, h, (size_t)first), 0xff,
                   (size_t)n * v->v_row_bytes);
    }
}

void rig_poison_free(kv_cache *c)
{
    const pages *p = &c->pool->pages;
    for (int32_t i = 0; i < c->layout->n; i++)
        for (int32_t k = 0; k < p->n && !c->layout->view[i].window; k++)
            if (!p->holders[k])
                poison(&c->layout->view[i], &c->base[i], k * KV_PAGE, KV_PAGE);
}

void rig_poison(kv_cache *c)
{
    const pages *p = &c->pool->pages;
    rig_poison_free(c);
    for (int32_t i = 0; i < c->layout->n; i++) {
        const kv_view *v = &c->layout->view[i];
        if (v->window)
            poison(v, &c->base[i], 0, v->n_slots);
        for (int32_t k = 0; k < c->n_pages && !v->window; k++)
            if (p->holders[c->page[k]] == 1)
                poison(v, &c->base[i], c->page[k] * KV_PAGE, KV_PAGE);
    }
}

void rig_shuffle(kv_cache *c)
{
    pages *p = &c->pool->pages;
    uint64_t rng = 5;
    for (int32_t i = p->n_free - 1; i > 0; i--) {
        int32_t k = (int32_t)rng_below(&rng, (uint64_t)i + 1), page = p->free[i];
        p->free[i] = p->free[k];
        p->free[k] = page;
    }
}

void rig_open_cache(rig *r, const kv_words *words, int32_t rows)
{
    err e = {0};
    model_costs costs;
    kv_want_layout w = {.spec = r->m.kv,
                        .n = r->m.n_kv,
                        .n_ctx = RIG_CTX,
                        .rows_max = rows,
                        .n_pool = r->n_pool,
                        .dev = {r->dev}};
    CHECK_OK(kv_choice_parse(&w.choice, words, &e), e);
    CHECK_OK(kv_layout_init(&r->l, &w, &e), e);
    counted = 0;
    plain_alloc = r->dev->alloc;
    r->dev->alloc = counting_alloc;
    CHECK_OK(kv_open(&r->c, r->dev, &r->l, &e), e);
    r->dev->alloc = plain_alloc;
    CHECK_EQ(counted, r->l.all.ring + r->l.all.linear + r->l.all.table); /* as planned */
    if (r->shuffled)
        rig_shuffle(&r->c);
    CHECK_OK(kv_batch_init(&r->b, rows, RIG_SEQS, &r->l, &e), e);
    for (int32_t n = 1; n <= rows; n = n < rows && 2 * n > rows ? rows : 2 * n) {
        CHECK_OK(model_plan(&r->m, r->dev, &r->l, n, n, NULL, &costs, &e), e);
        if (costs.side[PASS_MAIN].scratch_bytes > r->scratch_bytes)
            r->scratch_bytes = costs.side[PASS_MAIN].scratch_bytes;
    }
    r->scratch_bytes += 1 << 20; /* counts between the powers of two */
    r->scratch = r->dev->alloc(r->dev, r->scratch_bytes);
    CHECK(r->scratch);
    rig_poison(&r->c);
}

void rig_close_cache(rig *r)
{
    r->dev->release(r->dev, r->scratch, r->scratch_bytes);
    r->scratch_bytes = 0;
    kv_batch_free(&r->b);
    kv_close(&r->c);
    kv_layout_free(&r->l);
}

void rig_close(rig *r)
{
    model_free(&r->m);
    device_close(r->dev);
}

void rig_pass(rig *r, float *logits)
{
    pass p;
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    mat y = model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    for (int32_t i = 0; i < r->b.st.out.n; i++)
        memcpy(logits + (size_t)i * RIG_VOCAB, mat_row(y, i), RIG_VOCAB * sizeof *logits);
    kv_batch_clear(&r->b);
}

void rig_run(rig *r, const int32_t *ids, int32_t n, int32_t keep, float *logits)
{
    err e = {0};
    CHECK_OK(kv_reserve(&r->c, n, &e), e);
    CHECK_OK(kv_batch_add(&r->b, &r->c, ids, n, NULL, KV_WANT_ALL, &e), e);
    rig_pass(r, logits);
    kv_commit(&r->c, keep);
}

void rig_draw(int32_t *ids, int32_t n, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, RIG_VOCAB);
}

float *rig_token_by_token(rig *r, const kv_words *w, const int32_t *ids)
{
    float *x = mem_alloc((size_t)RIG_LONG * RIG_VOCAB * sizeof *x);
    CHECK(x);
    rig_open_cache(r, w, 1);
    for (int32_t i = 0; i < RIG_LONG; i++)
        rig_run(r, ids + i, 1, 1, x + (size_t)i * RIG_VOCAB);
    rig_close_cache(r);
    for (size_t i = 0; i < (size_t)RIG_LONG * RIG_VOCAB; i++)
        CHECK_MSG(isfinite(x[i]), "token %zu sees what no one wrote", i / RIG_VOCAB);
    return x;
}

bool rig_same(const float *a, const float *b, int32_t rows)
{
    return !memcmp(a, b, (size_t)rows * RIG_VOCAB * sizeof *a);
}

/* ---- Formats ----------------------------------------------------------------------------- */

/* "auto" keeps one stream in the global layers, but for rotated formats. */
const kv_words rig_format[] = {
    {.k = "f32", .single = "off"},
    {.k = "f32", .single = "on"},
    {.k = "f16", .single = "off"},
    {.k = "f16", .single = "on"},
    {.k = "bf16", .single = "off"},
    {.k = "bf16"},
    {.k = "q8_0", .single = "off"},
    {.k = "q8_0", .single = "on"},
    {.k = "q5_1", .single = "off"},
    {.k = "q5_1"},
    {.k = "q5_0"},
    {.k = "q4_1"},
    {.k = "q4_0", .single = "off"},
    {.k = "q4_0", .single = "on"},
    {.k = "iq4_nl"},
    {.k = "tq3_0"},
    {.k = "tq3_0", .single = "on"},
    {.k = "q8_0+rot"},
    {.k = "q5_1+rot"},
    {.k = "q5_0+rot", .single = "on"},
    {.k = "q4_1+rot"},
    {.k = "q4_0+rot"},
    {.k = "q4_0+rot", .single = "on"},
    {.k = "iq4_nl+rot"},
    {.k = "q8_0", .v = "tq3_0"},
    {.k = "tq3_0", .v = "f16"},
    {.k = "f16", .layers = "global=tq3_0,swa=q8_0/q4_0,3=f32"},
};
_Static_assert(sizeof rig_format / sizeof *rig_format == RIG_FORMATS, "kv_rig.h counts them");

const char *rig_words(const kv_words *w, char *buf, size_t cap)
{
    snprintf(buf, cap, "keys %s, values %s, layers %s, one stream %s", w->k, w->v ? w->v : w->k,
             w->layers ? w->layers : "alike", w->single ? w->single : "auto");
    return buf;
}
