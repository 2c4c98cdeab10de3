/* taps_families_test.c - what drafters see of Qwen and Laguna: taps_test.c, for the other families.
 *
 * The stream after layer il is what a model gives to its head whose later layers add nothing. So a
 * copy of the file with those layers' output matrices at zero says which rows the tap must hold,
 * and the last norm ties the last of them to the head.
 */
#include "tests/fidelity_model.h"
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/str.h"

#include <math.h>

enum { LAYERS_CAP = 8, EMBD = 64, N = 40 };

/* After each layer, and after the last norm; rows that a tap did not fill are zero. */
typedef struct streams {
    int32_t n_layer;
    float after[LAYERS_CAP + 1][N][EMBD];
} streams;

static void run_chunk(rig *r, const pass_taps *taps, const int32_t *ids, int32_t n, kv_want want)
{
    model_costs costs;
    pass p;
    err e = {0};
    const kv_rows rows = {.token = ids, .n = n, .final = true, .want = want};
    kv_batch_clear(&r->b);
    CHECK_OK(kv_reserve(&r->c, n, &e), e);
    CHECK_OK(kv_batch_add_rows(&r->b, &r->c, &rows, &e), e);
    CHECK_OK(model_plan(&r->m, r->dev, &r->l, n, r->b.st.out.n, taps, &costs, &e), e);
    r->scratch_bytes = costs.side[PASS_MAIN].scratch_bytes;
    r->scratch = r->dev->alloc(r->dev, r->scratch_bytes);
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    p.taps = taps;
    model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    kv_commit(&r->c, n);
    r->dev->release(r->dev, r->scratch, r->scratch_bytes);
    r->scratch = NULL;
}

/* All rows of a prompt, in passes of `chunk` rows with one output or none. */
static streams *tapped(const char *path, const int32_t *ids, int32_t chunk)
{
    streams *s = mem_calloc(1, sizeof *s);
    rig r = {.scratch = NULL};
    gguf g;
    err e = {0};
    pass_taps taps = {.n = 0};
    float(*buffer)[N][EMBD] = mem_calloc(LAYERS_CAP + 1, sizeof *buffer);
    CHECK(s && buffer);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&r.m, &g, &e), e);
    CHECK_OK(device_open_cpu(&r.dev, &(cpu_options){.n_threads = 1}, &e), e);
    CHECK_OK(model_load(&r.m, r.dev, NULL, NULL, &e), e);
    const kv_want_layout w = {.spec = r.m.kv,
                              .n = r.m.n_kv,
                              .recur = r.m.recur,
                              .n_recur = r.m.n_recur,
                              .choice = {.k = {.type = NUM_F32}, .v = {.type = NUM_F32}},
                              .n_ctx = N,
                              .rows_max = chunk,
                              .dev = {r.dev}};
    CHECK_OK(kv_layout_init(&r.l, &w, &e), e);
    CHECK_OK(kv_open(&r.c, r.dev, &r.l, &e), e);
    CHECK_OK(kv_batch_init(&r.b, chunk, 1, &r.l, &e), e);
    s->n_layer = r.m.n_layer;
    CHECK(s->n_layer <= LAYERS_CAP && r.m.n_embd == EMBD);
    for (int32_t il = 0; il <= s->n_layer; il++)
        taps.at[taps.n++] = (pass_tap_point){il < s->n_layer ? il : PASS_TAP_NORM, PASS_MAIN,
                                             mat_at(buffer[il][0], chunk, 1, EMBD, EMBD)};
    for (int32_t at = 0, i = 0; at < N; at += chunk, i++) {
        int32_t n = N - at < chunk ? N - at : chunk;
        bool last = at + n == N || i % 2;
        run_chunk(&r, &taps, ids + at, n, last ? KV_WANT_LAST : KV_WANT_NONE);
        for (int32_t il = 0; il < s->n_layer; il++)
            memcpy(s->after[il][at], buffer[il], (size_t)n * sizeof buffer[il][0]);
        if (last)
            memcpy(s->after[s->n_layer][at + n - 1], buffer[s->n_layer][0], sizeof buffer[0][0]);
    }
    mem_free(buffer);
    kv_batch_free(&r.b);
    kv_close(&r.c);
    kv_layout_free(&r.l);
    model_free(&r.m);
    device_close(r.dev);
    return s;
}

/* A copy of the file whose layers after il add nothing. */
static const char *cut_after(const char *path, int32_t il)
{
    static const char *const outputs[] = {
        "attn_output.weight",    "attn_output.bias",     "ssm_out.weight",    "ffn_down.weight",
        "ffn_down_shexp.weight", "ffn_down_exps.weight", "ffn_down_exps.bias"};
    static const char zero[4096];
    const char *to = test_temp("cut.gguf");
    AUTO_MEM char *bytes;
    size_t n;
    AUTO(gguf_close) gguf g;
    err e = {0};
    CHECK_OK(file_read_all(path, 1 << 24, &bytes, &n, &e), e);
    FILE *f = fopen(to, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    for (size_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        int layer = -1;
        bool out = false;
        for (size_t k = 0; k < sizeof outputs / sizeof *outputs; k++)
            out |= text_ends_with(t->name, outputs[k]);
        if (!out || sscanf(t->name, "blk.%d.", &layer) != 1 || layer <= il)
            continue;
        CHECK(!fseek(f, (long)t->offset, SEEK_SET));
        for (uint64_t left = t->n_bytes, k; left; left -= k) {
            k = left < sizeof zero ? left : sizeof zero;
            CHECK(fwrite(zero, 1, k, f) == k);
        }
    }
    CHECK(!fclose(f));
    return to;
}

/* The norm's row follows from the last layer's. */
static void check_norm(const streams *s, const char *path)
{
    AUTO(gguf_close) gguf g;
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    const tensor *t = tensor_find(&g.tensors, "output_norm.weight");
    const float *x = s->after[s->n_layer - 1][N - 1], *y = s->after[s->n_layer][N - 1];
    double sum = 0;
    CHECK(t && t->n_elements == EMBD);
    for (int32_t i = 0; i < EMBD; i++)
        sum += (double)x[i] * x[i];
    for (int32_t i = 0; i < EMBD; i++) {
        float w;
        memcpy(&w, t->bytes + (size_t)i * sizeof w, sizeof w);
        double want = x[i] / sqrt(sum / EMBD + 1e-6) * w;
        CHECK_MSG(fabs(want - y[i]) < 1e-5, "column %d: %g, expected %g", i, (double)y[i], want);
    }
}

PLAIN_TEST(taps_of_every_family_have_the_rows_of_every_layer)
{
    static const char *const names[] = {"gemma3", "qwen3",     "laguna",
                                        "qwen35", "qwen35moe", "gpt-oss"};
    static const int32_t chunks[] = {1, 7, 16};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, names[k]);
        const char *path = fidelity_write(&f, NULL);
        AUTO_MEM streams *whole = tapped(path, f.tokens, N);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            AUTO_MEM streams *s = tapped(path, f.tokens, chunks[i]);
            for (int32_t il = 0; il < s->n_layer; il++)
                CHECK_MSG(!memcmp(s->after[il], whole->after[il], sizeof *s->after),
                          "%s, passes of %d rows: layer %d", names[k], chunks[i], il);
            check_norm(s, path);
        }
        for (int32_t il = 0; il < whole->n_layer - 1; il++) {
            AUTO_MEM streams *s = tapped(cut_after(path, il), f.tokens, N);
            CHECK_MSG(!memcmp(s->after[s->n_layer - 1], whole->after[il], sizeof *s->after),
                      "%s: layer %d", names[k], il);
            if (il)
                CHECK(memcmp(whole->after[il], whole->after[il - 1], sizeof *s->after));
        }
    }
}
