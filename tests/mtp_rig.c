/* mtp_rig.c - see mtp_rig.h. */
#include "tests/mtp_rig.h"
#include "backend/key_walk.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/gemma4_mtp_shapes.h"
#include "num/num.h"
#include "tests/test.h"

/* ---- The file ------------------------------------------------------------------------------ */

static gemma4_mtp_shape shape_of(const mtp_rig_file *f)
{
    gemma4_mtp_shape s = {.n_layer = 4,
                          .n_embd = MTP_RIG_WIDTH,
                          .n_vocab = f->n_vocab ? f->n_vocab : RIG_VOCAB,
                          .n_target_embd =
                              f->n_target_embd ? f->n_target_embd : MTP_RIG_TARGET_WIDTH,
                          .n_ff = 80,
                          .n_head = f->n_head ? f->n_head : 4,
                          .head_dim = f->head_dim ? f->head_dim : 128,
                          .head_dim_global = f->head_dim_global ? f->head_dim_global : 256,
                          .n_head_kv = 2,
                          .n_head_kv_global = 1,
                          .n_centroids = f->n_clusters,
                          .centroid_top_k = f->n_top,
                          .window = f->window ? f->window : RIG_WINDOW,
                          .n_ctx_train = RIG_CTX,
                          .eps = 1e-6f,
                          .theta = 1e6f,
                          .theta_swa = 1e4f,
                          .rotary_part = 0.25f,
                          .rope_factor = 1,
                          .dialect = f->old ? MTP_OLD : 0,
                          .swa = {true, true, true, false}};
    s.family = &gemma4_mtp_shapes;
    return s;
}

static void fill(const mtp_rig_file *f, const gemma4_mtp_shape *s, const shape_tensor *t, void *out,
                 uint64_t *rng)
{
    float *x = out;
    int32_t *id = out;
    uint64_t n = t->ne[0] * t->ne[1];
    if (t->role == ROLE_ROPE_FACTORS || t->role == ROLE_IDS) {
        gemma4_mtp_shapes.compute((const model_shape *)s, t, out);
        if (t->role == ROLE_IDS && f->list == 1)
            memset(id, 0, n * sizeof *id);
        if (t->role == ROLE_IDS && f->list > 1)
            id[n - 1] = f->list == 2 ? id[0] : (int32_t)n;
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        double r = rng_normal(rng);
        x[i] = (float)(t->role == ROLE_QK_NORM ? RIG_QK_NORM * (1 + r / 3)
                       : t->role == ROLE_NORM  ? 1 + 0.3 * r
                       : t->role == ROLE_SCALE ? 0.8
                       : t->role == ROLE_EMBD  ? 0.5 * r
                                               : r / sqrt((double)t->ne[0]));
    }
    if (f->nan && !strcmp(f->nan, t->name))
        x[0] = NAN;
}

static uint32_t type_of(const mtp_rig_file *f, const shape_tensor *t)
{
    if (t->role == ROLE_IDS)
        return NUM_I32;
    return t->n_dims == 2 && t->ne[0] % 32 == 0 ? f->type : NUM_F32;
}

static void write_rows(gguf_writer *w, const shape_tensor *t, uint32_t type, const void *x)
{
    uint64_t row = t->ne[0] * 4;
    unsigned char *out;
    err e = {0};
    if (type == NUM_F32 || type == NUM_I32) {
        CHECK_OK(gguf_write_data(w, x, row * t->ne[1], &e), e);
        return;
    }
    CHECK(num_row_bytes(type, t->ne[0], &row) && (out = mem_alloc(row)));
    for (uint64_t r = 0; r < t->ne[1]; r++) {
        num_format_of(type)->encode((const float *)x + r * t->ne[0], out, (int64_t)t->ne[0]);
        CHECK_OK(gguf_write_data(w, out, row, &e), e);
    }
    mem_free(out);
}

const char *mtp_rig_write(const mtp_rig_file *f)
{
    static const uint64_t one = 1;
    const float zero = 0;
    gemma4_mtp_shape s = shape_of(f);
    const char *path = test_temp(f->name ? f->name : "mtp.gguf");
    const char *arch = s.dialect ? "gemma4_assistant" : "gemma4-assistant";
    int32_t n = gemma4_mtp_shapes.list((const model_shape *)&s, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    uint64_t rng = 23;
    gguf_writer *w;
    char key[128];
    err e = {0};
    CHECK(list);
    gemma4_mtp_shapes.list((const model_shape *)&s, list, n);
    CHECK_OK(gguf_create(&w, path, &e), e);
    if (f->no_keys)
        gguf_put_string(w, "general.architecture", arch, strlen(arch));
    else
        gemma4_mtp_shapes.put(w, (const model_shape *)&s);
    if (f->no_keys && f->key) {
        snprintf(key, sizeof key, "%s.%s", arch, f->key);
        gguf_put_u32(w, key, f->value);
    }
    for (int32_t i = 0; i < n; i++)
        if (!f->drop || strcmp(f->drop, list[i].name) != 0)
            gguf_put_tensor(w, list[i].name, type_of(f, &list[i]), list[i].n_dims, list[i].ne);
    if (f->extra)
        gguf_put_tensor(w, f->extra, NUM_F32, 1, &one);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (int32_t i = 0; i < n; i++) {
        const shape_tensor *t = &list[i];
        AUTO_MEM void *x = mem_alloc(t->ne[0] * t->ne[1] * 4);
        CHECK(x);
        fill(f, &s, t, x, &rng);
        if (!f->drop || strcmp(f->drop, t->name) != 0)
            write_rows(w, t, type_of(f, t), x);
    }
    if (f->extra)
        CHECK_OK(gguf_write_data(w, &zero, sizeof zero, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    return path;
}

/* ---- The arithmetic ------------------------------------------------------------------------ */

enum { WIDE = 4096 };

static const tensor *tensor_of(const gguf *g, int32_t il, const char *tail)
{
    char name[96];
    if (il < 0)
        snprintf(name, sizeof name, "%s", tail);
    else
        snprintf(name, sizeof name, "blk.%d.%s", il, tail);
    return tensor_find(&g->tensors, name);
}

/* The tensor of one of two names. */
static const tensor *either(const gguf *g, const char *a, const char *b)
{
    const tensor *t = tensor_of(g, -1, a);
    return t ? t : tensor_of(g, -1, b);
}

static void row_of(const tensor *t, uint64_t r, float *x)
{
    uint64_t row = 0;
    CHECK(t && num_row_bytes(t->type, t->ne[0], &row));
    num_format_of(t->type)->decode(t->bytes + r * row, x, (int64_t)t->ne[0]);
}

/* y = W x */
static void times(const tensor *t, const double *x, double *y)
{
    float w[WIDE];
    CHECK(t && t->ne[0] <= WIDE);
    for (uint64_t o = 0; o < t->ne[1]; o++) {
        row_of(t, o, w);
        y[o] = 0;
        for (uint64_t i = 0; i < t->ne[0]; i++)
            y[o] += (double)w[i] * x[i];
    }
}

static void norm(const tensor *t, const double *x, double *y, int n)
{
    float w[WIDE];
    double sum = 0;
    row_of(t, 0, w);
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + 1e-6) * w[i];
}

/* Pairs (i, i + n / 2) of a head. Sliding: all turn, base 1e4. Global: base 1e6, and of the pairs
 * the first quarter. */
static void turn(double *x, int n, bool sliding, int64_t pos)
{
    int half = n / 2, turning = sliding ? half : half / 4;
    for (int i = 0; i < turning; i++) {
        double angle = (double)pos * pow(sliding ? 1e4 : 1e6, -2.0 * i / n);
        double a = x[i], b = x[i + half];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = a * sin(angle) + b * cos(angle);
    }
}

/* The stored row of position t, decoded, and turned back where the format rotates it. */
static void stored(const kv_cache *c, int32_t id, bool keys, int32_t head, int64_t t, double *x)
{
    const kv_view *v = &c->layout->view[id];
    device *d = kv_device(c, v);
    size_t n_bytes = keys || v->single ? v->k_row_bytes : v->v_row_bytes;
    num_type type = keys || v->single ? v->k_type : v->v_type;
    unsigned char row[WIDE * 4];
    float f[WIDE];
    const kv_base base = kv_host_base(c, id);
    void *stream = keys || v->single ? base.k : base.v;
    d->download(d, row, key_row(v, stream, n_bytes, head, key_walk(v, &base, t).place), n_bytes);
    num_format_of(type)->decode(row, f, v->head_dim);
    if (keys || v->single ? v->k_rot : v->v_rot)
        num_unrotate(f, v->head_dim);
    for (int32_t i = 0; i < v->head_dim; i++)
        x[i] = f[i];
}

/* As it is, or a multiple of it rounded to f16. */
static double rounded(const mtp_plain *p, double x)
{
    double by = 1 + 0.23 * (p->halves - 1);
    return p->halves ? (double)num_f16_to_f32(num_f32_to_f16((float)(x * by))) / by : x;
}

static void attend(const mtp_plain *p, bool sliding, int64_t c, const double *q, int32_t n_head,
                   double *out)
{
    /* Six layers: sliding sliding global sliding sliding global, the last two without keys. The
     * donors are the last with keys of each kind. */
    int32_t id = sliding ? 3 : 2;
    const kv_view *v = &p->cache->layout->view[id];
    int32_t n = v->head_dim, share = n_head / v->n_head_kv;
    for (int32_t h = 0; h < n_head; h++) {
        double score[RIG_CTX], k[WIDE], top = -INFINITY, sum = 0;
        float w[WIDE];
        for (int64_t t = 0; t < c; t++) {
            score[t] = -INFINITY;
            if (sliding && c - t >= RIG_WINDOW)
                continue;
            stored(p->cache, id, true, h / share, t, k);
            if (v->single) { /* values are stored; keys are those, weighted and turned */
                row_of(tensor_of(&p->target->file, id, "attn_k_norm.weight"), 0, w);
                for (int32_t i = 0; i < n; i++)
                    k[i] *= w[i];
                turn(k, n, sliding, t);
            }
            score[t] = 0; /* the scale is 1 */
            for (int32_t i = 0; i < n; i++)
                score[t] += rounded(p, q[h * n + i]) * rounded(p, k[i]);
            top = score[t] > top ? score[t] : top;
        }
        for (int32_t i = 0; i < n; i++)
            out[h * n + i] = 0;
        for (int64_t t = 0; t < c; t++) {
            if (score[t] == -INFINITY)
                continue;
            double e = exp(score[t] - top);
            stored(p->cache, id, false, h / share, t, k);
            sum += e;
            for (int32_t i = 0; i < n; i++)
                out[h * n + i] += rounded(p, e) * rounded(p, k[i]);
        }
        for (int32_t i = 0; i < n; i++)
            out[h * n + i] /= sum;
    }
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void layer(const mtp_plain *p, int32_t il, int64_t c, double *x)
{
    const gguf *g = p->draft;
    double y[WIDE], q[WIDE], a[WIDE], f[WIDE], u[WIDE];
    float scale;
    int32_t d = MTP_RIG_WIDTH, n = (int32_t)tensor_of(g, il, "attn_q_norm.weight")->ne[0];
    int32_t n_head = (int32_t)tensor_of(g, il, "attn_q.weight")->ne[1] / n;
    int32_t n_ff = (int32_t)tensor_of(g, il, "ffn_gate.weight")->ne[1];
    bool sliding = il < 3;
    norm(tensor_of(g, il, "attn_norm.weight"), x, y, d);
    times(tensor_of(g, il, "attn_q.weight"), y, q);
    for (int32_t h = 0; h < n_head; h++) {
        norm(tensor_of(g, il, "attn_q_norm.weight"), q + h * n, q + h * n, n);
        turn(q + h * n, n, sliding, c);
    }
    attend(p, sliding, c, q, n_head, a);
    times(tensor_of(g, il, "attn_output.weight"), a, y);
    norm(tensor_of(g, il, "post_attention_norm.weight"), y, y, d);
    for (int32_t i = 0; i < d; i++)
        x[i] += y[i];
    norm(tensor_of(g, il, "ffn_norm.weight"), x, y, d);
    times(tensor_of(g, il, "ffn_gate.weight"), y, f);
    times(tensor_of(g, il, "ffn_up.weight"), y, u);
    for (int32_t i = 0; i < n_ff; i++)
        f[i] = gelu(f[i]) * u[i];
    times(tensor_of(g, il, "ffn_down.weight"), f, y);
    norm(tensor_of(g, il, "post_ffw_norm.weight"), y, y, d);
    row_of(tensor_of(g, il, "layer_output_scale.weight"), 0, &scale);
    for (int32_t i = 0; i < d; i++)
        x[i] = (x[i] + y[i]) * scale;
}

/* Keeps the logits of the tokens in the clusters whose centroids score best. Gives the margin, as
 * mtp_plain_step. */
static double keep_clusters(const gguf *g, const double *hn, double *logits)
{
    const tensor *c = either(g, "masked_embd_centroids.weight", "mtp.centroids.weight");
    const tensor *o = either(g, "masked_embd_ordering", "mtp.token_ordering.weight");
    int64_t top = 0;
    double score[RIG_VOCAB];
    bool keep[RIG_VOCAB] = {0};
    if (!c)
        return INFINITY;
    if (!gguf_get_i64(g, "gemma4-assistant.centroid_top_k", &top))
        CHECK(gguf_get_i64(g, "gemma4_assistant.centroid_top_k", &top));
    times(c, hn, score);
    int32_t n = (int32_t)c->ne[1], each = RIG_VOCAB / n;
    double last = INFINITY, other = -INFINITY;
    for (int64_t k = 0; k < top; k++) {
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++)
            best = score[i] > score[best] ? i : best;
        last = score[best];
        score[best] = -INFINITY;
        for (int32_t i = 0; i < each; i++)
            keep[((const int32_t *)(const void *)o->bytes)[best * each + i]] = true;
    }
    for (int32_t i = 0; i < RIG_VOCAB; i++)
        logits[i] = keep[i] ? logits[i] : -INFINITY;
    for (int32_t i = 0; i < n; i++)
        other = fmax(other, score[i]);
    return last - other;
}

double mtp_plain_step(const mtp_plain *p, int64_t c, int32_t token, double *h, double *logits)
{
    const gguf *g = p->draft;
    double in[2 * MTP_RIG_TARGET_WIDTH], x[MTP_RIG_WIDTH], hn[MTP_RIG_WIDTH];
    float e[WIDE];
    int32_t n = MTP_RIG_TARGET_WIDTH;
    row_of(tensor_of(&p->target->file, -1, "token_embd.weight"), (uint64_t)token, e);
    for (int32_t i = 0; i < n; i++) { /* the embedding first, the hidden vector second */
        in[i] = sqrt((double)n) * e[i];
        in[n + i] = h[i];
    }
    times(either(g, "nextn.pre_projection.weight", "mtp.pre_projection.weight"), in, x);
    for (int32_t il = 0; il < 4; il++)
        layer(p, il, c, x);
    norm(tensor_of(g, -1, "output_norm.weight"), x, hn, MTP_RIG_WIDTH);
    times(tensor_of(g, -1, "token_embd.weight"), hn, logits);
    double margin = keep_clusters(g, hn, logits);
    times(either(g, "nextn.post_projection.weight", "mtp.post_projection.weight"), hn, h);
    return margin;
}

void mtp_plain_log_softmax(double *logits, int32_t n)
{
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - top);
    for (int32_t i = 0; i < n; i++)
        logits[i] -= top + log(sum);
}
