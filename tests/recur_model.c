/* recur_model.c - see recur_model.h. Values are so large that every part of the model counts: keys
 * of the delta rule are far longer than the epsilon of their norm, decays are neither 0 nor 1. */
#include "tests/recur_model.h"
#include "tests/test.h"
#include "apps/synth_vocab.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "engine/batch_int.h"
#include "model/qwen35.h"

#include <math.h>

static float draw(const shape_tensor *t, float scale, uint64_t *rng)
{
    double r = rng_normal(rng), centre = t->centre != 0 ? t->centre : 1;
    switch (t->role) {
    case ROLE_EMBD:
        return (float)r * 0.2f * scale;
    case ROLE_NORM:
    case ROLE_QK_NORM:
    case ROLE_SCALE:
        return (float)(centre * (1 + 0.2 * r));
    case ROLE_BIAS:
        return (float)(0.5 * r);
    case ROLE_DECAY:
        return (float)-exp(r - 1.5);
    case ROLE_TAPS:
        return (float)(0.6 * r);
    default:
        return (float)(r / sqrt((double)t->ne[0]));
    }
}

/* What makes layers add nothing, and the NextN layer pass its token's embedding on. */
static void silence(const shape_tensor *t, float *x)
{
    static const char *const outputs[] = {"attn_output.weight", "ssm_out.weight", "ffn_down.weight",
                                          "ffn_down_exps.weight", "ffn_down_shexp.weight"};
    uint64_t n_in = t->ne[0], n = n_in * t->ne[1] * t->ne[2];
    bool join = text_ends_with(t->name, "nextn.eh_proj.weight"), none = join;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        none |= text_ends_with(t->name, outputs[i]);
    if (none)
        memset(x, 0, n * sizeof *x);
    for (uint64_t r = 0; join && r < t->ne[1]; r++)
        x[r * n_in + r] = 1;
    if (t->role == ROLE_NORM)
        for (uint64_t i = 0; i < n; i++)
            x[i] = 1;
}

static void write_tensor(gguf_writer *w, const shape_tensor *t, const recur_model_file *v,
                         uint64_t *rng)
{
    err e = {0};
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *x = mem_alloc(n * sizeof *x);
    CHECK(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = draw(t, v->scale > 0 ? v->scale : 1, rng);
    if (v->next_by_last)
        silence(t, x);
    if (v->nan_tensor && !strcmp(t->name, v->nan_tensor))
        x[0] = NAN;
    CHECK_OK(gguf_write_data(w, x, n * sizeof *x, &e), e);
    mem_free(x);
}

const char *recur_model_write(const recur_model_file *v)
{
    static const recur_model_file plain;
    static int n_written;
    v = v ? v : &plain;
    const char *size = v->experts ? "tiny-qwen35moe" : "tiny-qwen35";
    const shape_family *f = &qwen35_shapes;
    qwen35_shape s = {.family = f};
    char file[64];
    gguf_writer *w;
    uint64_t rng = 35;
    err e = {0};
    CHECK(f->named(size, &s.common));
    if (v->nextn)
        f->set_nextn(&s.common, 1);
    CHECK_OK(f->check(&s.common, size, &e), e);
    int32_t n = f->list(&s.common, NULL, 0);
    AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    CHECK(list);
    f->list(&s.common, list, n);
    snprintf(file, sizeof file, "recur-%d.gguf", n_written++);
    const char *path = test_temp(file);
    CHECK_OK(gguf_create(&w, path, &e), e);
    f->put(w, &s.common);
    CHECK_OK(synth_vocab_put(w, "qwen35", "qwen35", s.n_vocab, &e), e);
    for (int32_t i = 0; i < n; i++)
        gguf_put_tensor(w, list[i].name, NUM_F32, list[i].n_dims, list[i].ne);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (int32_t i = 0; i < n; i++)
        write_tensor(w, &list[i], v, &rng);
    CHECK_OK(gguf_commit(w, &e), e);
    return path;
}

carat_model *recur_model_open(const recur_model_file *v, const carat_model_options *opt)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(recur_model_write(v), opt, &m, &e), e);
    return m;
}

carat_session *recur_session(carat_model *m, carat_session_options o)
{
    carat_session *s;
    err e = {0};
    o.n_ctx = o.n_ctx ? o.n_ctx : RECUR_CTX;
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

void recur_draw(const carat_model *m, int32_t *ids, int64_t n, uint64_t *rng)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
}

int64_t recur_like_fresh(carat_session *s, const int32_t *ids, int64_t n, int32_t n_ctx)
{
    size_t n_vocab = (size_t)s->b.m->core.n_vocab;
    AUTO_MEM float *a = mem_calloc(n_vocab, sizeof *a), *b = mem_calloc(n_vocab, sizeof *b);
    int64_t n_reused = -1;
    err e = {0};
    CHECK(a && b);
    AUTO_SESSION *fresh =
        recur_session(s->b.m, (carat_session_options){.n_ctx = n_ctx, .checkpoint_mb = -1});
    CHECK_OK(carat_eval(s, ids, n, a, &n_reused, &e), e);
    CHECK_OK(carat_eval(fresh, ids, n, b, NULL, &e), e);
    CHECK_MSG(!memcmp(a, b, n_vocab * sizeof *a), "%lld tokens, %lld reused (%s): other logits",
              (long long)n, (long long)n_reused, carat_session_reuse(s, NULL));
    return n_reused;
}

bool recur_hear(void *user, const carat_event *ev)
{
    recur_heard *h = user;
    if (ev->kind == CARAT_EV_TOKEN)
        h->id[h->n++] = ev->id;
    return ev->kind != CARAT_EV_TOKEN || h->n != h->refuse_at;
}

carat_generate_options recur_greedy(int32_t max_tokens)
{
    return (carat_generate_options){
        .max_tokens = max_tokens,
        .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true}};
}
