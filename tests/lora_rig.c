/* lora_rig.c - see lora_rig.h. */
#include "tests/lora_rig.h"
#include "base/mem.h"
#include "base/str.h"
#include "num/num.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static bool is_table(const tensor *t)
{
    return text_ends_with(t->name, "token_embd.weight");
}

static bool is_adapted(const gguf *g, const tensor *t, const lora_recipe *r)
{
    bool matrix = t->n_dims >= 2 && t->ne[1] > 1 && text_ends_with(t->name, ".weight");
    bool vector = text_ends_with(t->name, "_norm.weight") || text_ends_with(t->name, "conv1d.weight");
    /* Merged into the table, it would also be in the head. */
    bool tied = !strcmp(t->name, "token_embd.weight") && !tensor_find(&g->tensors, "output.weight");
    return matrix && !vector && !tied && (!r->only || strstr(t->name, r->only));
}

/* The halves of a tensor's pair: [n_mat][rows][cols], as the file's type has them. */
typedef struct half {
    uint64_t ne[4];
    float *at;
    uint32_t type;
} half;

static void make_half(half *h, const lora_recipe *r, uint64_t seed, uint64_t cols, uint64_t rows,
                      uint64_t n_mat, double sigma)
{
    uint64_t n = cols * rows * n_mat, bytes;
    *h = (half){.ne = {cols, rows, n_mat, 1}, .type = r->type};
    if (!num_row_bytes(h->type, cols, &bytes))
        h->type = NUM_F32;
    h->at = mem_calloc((size_t)n, sizeof *h->at);
    CHECK(h->at);
    fidelity_draw(h->at, n, seed, 0, sigma);
    if (h->type == NUM_F32)
        return;
    const num_format *f = num_format_of(h->type);
    num_row_bytes(h->type, cols, &bytes);
    unsigned char *row = mem_alloc((size_t)bytes);
    for (uint64_t i = 0; i < rows * n_mat; i++) {
        f->encode(h->at + i * cols, row, (int64_t)cols);
        f->decode(row, h->at + i * cols, (int64_t)cols);
    }
    mem_free(row);
}

static void make_pair(half *a, half *b, const tensor *t, uint64_t i, const lora_recipe *r)
{
    uint64_t rank = (uint64_t)r->rank, seed = r->seed + 2 * i;
    bool table = is_table(t);
    double sigma = 1 / sqrt((double)t->ne[0]);
    make_half(a, r, seed, table ? rank : t->ne[0], table ? t->ne[1] : rank, t->ne[2],
              table ? 0.2 : sigma);
    make_half(b, r, seed + 1, rank, table ? t->ne[0] : t->ne[1], t->ne[2],
              table ? 0.2 : 0.5 / sqrt((double)rank));
}

static void put_half(gguf_writer *w, const char *name, const half *h, const lora_recipe *r)
{
    uint64_t ne[4];
    memcpy(ne, h->ne, sizeof ne);
    if (r->wide && !strcmp(name, r->wide))
        ne[0]++;
    if (r->drop && !strcmp(name, r->drop))
        return;
    gguf_put_tensor(w, r->rename && !strcmp(name, r->rename) ? r->as : name,
                    r->wide && !strcmp(name, r->wide) ? NUM_F32 : h->type, ne[2] > 1 ? 3 : 2, ne);
}

static void write_half(gguf_writer *w, const char *name, half *h, const lora_recipe *r, err *e)
{
    uint64_t n = h->ne[0] * h->ne[1] * h->ne[2], bytes;
    if (r->drop && !strcmp(name, r->drop))
        return;
    if (r->nan && !strcmp(name, r->nan))
        h->at[n - 1] = NAN;
    if (h->type == NUM_F32 || (r->wide && !strcmp(name, r->wide))) {
        CHECK_OK(gguf_write_data(w, h->at, (size_t)n * sizeof *h->at, e), *e);
        static const float more[1 << 14];
        if (r->wide && !strcmp(name, r->wide))
            CHECK_OK(gguf_write_data(w, more, (size_t)(h->ne[1] * h->ne[2]) * sizeof *more, e), *e);
        return;
    }
    const num_format *f = num_format_of(h->type);
    num_row_bytes(h->type, h->ne[0], &bytes);
    unsigned char *row = mem_alloc((size_t)bytes);
    for (uint64_t i = 0; i < n / h->ne[0]; i++) {
        f->encode(h->at + i * h->ne[0], row, (int64_t)h->ne[0]);
        CHECK_OK(gguf_write_data(w, row, (size_t)bytes, e), *e);
    }
    mem_free(row);
}

void lora_rig_adapter(const char *base, const char *to, const lora_recipe *r)
{
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    gguf_string arch;
    err e = {0};
    char name[300];
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, to, &e), e);
    CHECK(gguf_get_string(&g, "general.architecture", &arch));
    const char *general = r->general ? r->general : "adapter", *kind = r->kind ? r->kind : "lora";
    gguf_put_string(w, "general.type", general, strlen(general));
    gguf_put_string(w, "general.architecture", r->arch ? r->arch : arch.at,
                    r->arch ? strlen(r->arch) : (size_t)arch.n);
    gguf_put_string(w, "adapter.type", kind, strlen(kind));
    if (r->text_alpha)
        gguf_put_string(w, "adapter.lora.alpha", "16", 2);
    else if (r->alpha != 0)
        gguf_put_f32(w, "adapter.lora.alpha", r->alpha);
    if (r->alora)
        gguf_put_u32s(w, "adapter.alora.invocation_tokens", (const uint32_t[]){1, 2}, 2);
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < g.tensors.n; i++) {
            const tensor *t = &g.tensors.at[i];
            half h[2];
            if (!is_adapted(&g, t, r))
                continue;
            make_pair(&h[0], &h[1], t, i, r);
            for (int k = 0; k < 2; k++) {
                snprintf(name, sizeof name, "%s.lora_%c", t->name, "ab"[k]);
                if (pass)
                    write_half(w, name, &h[k], r, &e);
                else
                    put_half(w, name, &h[k], r);
                mem_free(h[k].at);
            }
        }
        if (!pass && r->norm)
            gguf_put_tensor(w, r->norm, NUM_F32, 1, (const uint64_t[]){32, 1, 1, 1});
        if (!pass)
            CHECK_OK(gguf_write_header(w, &e), e);
        if (pass && r->norm)
            CHECK_OK(gguf_write_data(w, (const float[32]){0}, 32 * sizeof(float), &e), e);
    }
    CHECK_OK(gguf_commit(w, &e), e);
}

/* w += c B A of one tensor. */
static void add_pair(double *w, const tensor *t, uint64_t i, const lora_recipe *r, float scale)
{
    half a, b;
    uint64_t rank = (uint64_t)r->rank, n_in = t->ne[0], n_out = t->ne[1];
    double c = (double)scale * (r->alpha != 0 ? (double)r->alpha / r->rank : 1);
    make_pair(&a, &b, t, i, r);
    for (uint64_t k = 0; k < t->ne[2]; k++)
        for (uint64_t o = 0; o < n_out; o++)
            for (uint64_t j = 0; j < rank; j++)
                for (uint64_t x = 0; x < n_in; x++) {
                    double half_a =
                        is_table(t) ? a.at[o * rank + j] : a.at[(k * rank + j) * n_in + x];
                    double half_b =
                        is_table(t) ? b.at[x * rank + j] : b.at[(k * n_out + o) * rank + j];
                    w[(k * n_out + o) * n_in + x] += c * half_a * half_b;
                }
    mem_free(a.at);
    mem_free(b.at);
}

void lora_rig_merge(const char *base, const char *to, const lora_recipe *r, const float *scale,
                    int n)
{
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_open(&g, base, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, to, &e), e);
    for (uint64_t i = 0; i < g.n_values; i++)
        gguf_put_value(w, &g.value[i]);
    for (uint64_t i = 0; i < g.tensors.n; i++)
        gguf_put_tensor(w, g.tensors.at[i].name, g.tensors.at[i].type, g.tensors.at[i].n_dims,
                        g.tensors.at[i].ne);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        size_t m = (size_t)t->n_elements;
        if (t->type != NUM_F32) {
            CHECK_OK(gguf_write_data(w, t->bytes, (size_t)t->n_bytes, &e), e);
            continue;
        }
        const float *from = (const float *)(const void *)t->bytes;
        double *sum = mem_calloc(m, sizeof *sum);
        float *v = mem_calloc(m, sizeof *v);
        for (size_t k = 0; k < m; k++)
            sum[k] = from[k];
        for (int k = 0; k < n; k++)
            if (is_adapted(&g, t, &r[k]))
                add_pair(sum, t, i, &r[k], scale[k]);
        for (size_t k = 0; k < m; k++)
            v[k] = (float)sum[k];
        CHECK_OK(gguf_write_data(w, v, m * sizeof *v, &e), e);
        mem_free(sum);
        mem_free(v);
    }
    CHECK_OK(gguf_commit(w, &e), e);
}
