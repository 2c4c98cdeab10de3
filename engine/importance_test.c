/* importance_test.c - the importance of tokens against queries and keys of transformers
 * (tools/importance_fixture.py), in every format of keys and however the text is cut. */
#include "tests/fidelity_model.h"
#include "engine/engine_int.h"
#include "tests/test.h"

enum { N_CTX = 256, N_MAX = 200, CHUNK = 64 };

typedef struct importance_rig {
    fidelity f;
    gguf golden;
    int32_t ids[N_MAX];
    const char *path;
} importance_rig;

static void rig_open(importance_rig *r, const char *name)
{
    char key[64];
    err e = {0};
    *r = (importance_rig){0};
    fidelity_open(&r->f, name);
    r->path = fidelity_write(&r->f, NULL);
    CHECK_OK(gguf_open(&r->golden, test_path("tests/data/fidelity/importance.golden"), true, NULL,
                       NULL, &e),
             e);
    snprintf(key, sizeof key, "%s.tokens", name);
    const gguf_value *v = gguf_find(&r->golden, key);
    CHECK(v && v->count == N_MAX);
    for (int i = 0; i < N_MAX; i++) {
        int64_t id = 0;
        CHECK(gguf_item_i64(v, (uint64_t)i, &id));
        r->ids[i] = (int32_t)id;
    }
}

static void rig_close(importance_rig *r)
{
    gguf_close(&r->golden);
    fidelity_close(&r->f);
}

static carat_model *open_model(const importance_rig *r, carat_model_options o)
{
    err e = {0};
    carat_model *m;
    o.n_threads = 2;
    CHECK_OK(carat_model_open(r->path, &o, &m, &e), e);
    return m;
}

static carat_session *open_session(carat_model *m, int32_t chunk, const char *kv)
{
    err e = {0};
    carat_session *s;
    carat_session_options o = {.n_ctx = N_CTX, .chunk = chunk, .kv_k = kv};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* The largest distance from the fixture, relative to the value there. */
static double worst_of(const importance_rig *r, const char *part, const float *got, int64_t n)
{
    char name[64];
    double worst = 0;
    snprintf(name, sizeof name, "%s.%s", r->f.name, part);
    const tensor *t = tensor_find(&r->golden.tensors, name);
    CHECK_MSG(t && (int64_t)t->ne[0] == n, "%s is not in the file", name);
    for (int64_t i = 0; i < n; i++) {
        double want = ((const float *)t->bytes)[i], d = fabs(got[i] - want) / want;
        worst = d <= worst ? worst : d; /* NaN too */
    }
    return worst;
}

static void check_lengths(const importance_rig *r, carat_session *s, double bound, const char *what)
{
    static const int32_t lengths[] = {9, 40, N_MAX};
    err e = {0};
    for (int i = 0; i < 3; i++) {
        float v[N_MAX], chunk[8];
        char part[32];
        int32_t n = lengths[i];
        CHECK_OK(carat_importance(s, r->ids, n, v, &e), e);
        snprintf(part, sizeof part, "%d", n);
        double worst = worst_of(r, part, v, n);
        int64_t n_chunks = carat_importance_chunks(v, n, CHUNK, false, chunk);
        snprintf(part, sizeof part, "%d.chunks", n);
        double worst_chunk = worst_of(r, part, chunk, n_chunks);
        printf("  %s, %s, %d tokens: %.1e, chunks %.1e\n", r->f.name, what, n, worst, worst_chunk);
        CHECK_MSG(worst <= bound && worst_chunk <= bound, "%s, %s, %d tokens: %.2e, chunks %.2e",
                  r->f.name, what, n, worst, worst_chunk);
        CHECK_EQ(carat_session_n_past(s), n);
    }
}

PLAIN_TEST(importance_equals_transformers)
{
    static const char *const names[] = {"qwen3", "qwen3-yarn"};
    static const int32_t chunks[] = {1, 3, 64, 0};
    for (int i = 0; i < 2; i++) {
        AUTO(rig_close) importance_rig r;
        rig_open(&r, names[i]);
        for (int reference = 0; reference < 2; reference++) {
            AUTO_MODEL *m =
                open_model(&r, (carat_model_options){.reference = reference, .exact_f32 = true});
            for (int k = reference ? 2 : 0; k < 4; k++) {
                AUTO_SESSION *s = open_session(m, chunks[k], "f32");
                check_lengths(&r, s, 1e-5, reference ? "reference" : "f32");
            }
        }
    }
}

/* Rounded keys: about twice the measured distance. */
TEST(importance_with_rounded_keys)
{
    static const struct {
        const char *kv;
        double bound;
    } kinds[] = {{"f16", 1e-3}, {"bf16", 1e-2}, {"q8_0", 4e-2}, {"q4_0", 0.4}};
    AUTO(rig_close) importance_rig r;
    rig_open(&r, "qwen3");
    AUTO_MODEL *m = open_model(&r, (carat_model_options){.exact_f32 = true});
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        err e = {0};
        AUTO_SESSION *s;
        carat_session_options o = {.n_ctx = N_CTX, .kv_k = kinds[i].kv, .kv_v = "f32"};
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        check_lengths(&r, s, kinds[i].bound, kinds[i].kv);
    }
}

/* A longer text goes on from a shorter one, with the bits of a fresh session. */
TEST(importance_of_a_growing_text)
{
    AUTO(rig_close) importance_rig r;
    err e = {0};
    rig_open(&r, "qwen3");
    AUTO_MODEL *m = open_model(&r, (carat_model_options){.n_threads = 0});
    AUTO_SESSION *s = open_session(m, 16, NULL);
    for (int32_t n = 9; n <= N_MAX; n += n < 30 ? 1 : 37) {
        float a[N_MAX], b[N_MAX];
        AUTO_SESSION *fresh = open_session(m, 50, NULL);
        CHECK_OK(carat_importance(s, r.ids, n, a, &e), e);
        CHECK_OK(carat_importance(fresh, r.ids, n, b, &e), e);
        CHECK_MSG(!memcmp(a, b, (size_t)n * sizeof *a), "%d tokens: other bits", n);
    }
}

TEST(importance_refuses_what_it_cannot_measure)
{
    AUTO(rig_close) importance_rig r;
    err e = {0};
    float v[N_CTX + 1];
    int32_t many[N_CTX + 1] = {0};
    rig_open(&r, "qwen3");
    AUTO_MODEL *m = open_model(&r, (carat_model_options){.n_threads = 0});
    AUTO_SESSION *s = open_session(m, 0, NULL);
    CHECK_STATUS(carat_importance(s, r.ids, 8, v, &e), CARAT_E_ARG);
    CHECK_MSG(strstr(e.text, "8 tokens"), "%s", e.text);
    e = (err){0};
    CHECK_STATUS(carat_importance(s, many, N_CTX + 1, v, &e), CARAT_E_LIMIT);
    carat_session_cancel(s);
    e = (err){0};
    CHECK_STATUS(carat_importance(s, r.ids, 40, v, &e), CARAT_E_CANCELLED);
}

/* Of the other families the layers that see the whole text; of recurrent ones those with keys. The
 * plain kernels are the reference. As jobs of a batch, two at a time beside an answer, the values
 * have the bits of a session. */
typedef struct family_job {
    float value[N_MAX];
    bool over;
} family_job;

static void family_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    (void)t;
    CHECK_OK(st, *e);
    ((family_job *)user)->over = true;
}

static void in_batch(carat_model *m, const int32_t *ids, int32_t n, const float *want)
{
    AUTO_BATCH *b;
    err e = {0};
    family_job job[3];
    memset(job, 0, sizeof job);
    carat_batch_options o = {.session = {.n_ctx = N_CTX, .chunk = 16, .kv_k = "f32"}, .n_slots = 3};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int i = 0; i < 3; i++) {
        carat_generate_options g = {
            .max_tokens = 6, .sampling = {.ignore_eog = true, .top_p = 1, .repeat_penalty = 1}};
        carat_job j = {.ids = ids,
                       .n = i == 2 ? n - 3 : n,
                       .opt = &g,
                       .done = family_done,
                       .user = &job[i],
                       .importance = i < 2 ? job[i].value : NULL};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < 3; i++) {
        CHECK(job[i].over);
        CHECK(i == 2 || !memcmp(job[i].value, want, (size_t)n * sizeof *want));
    }
    carat_job short_one = {.ids = ids, .n = 8, .importance = job[0].value};
    CHECK_STATUS(carat_batch_submit(b, &short_one, NULL, NULL, &e), CARAT_E_ARG);
}

/* The passes of one job or of both: the importance of 17 tokens, an embedding of 60. */
static uint64_t count_passes(carat_model *m, const int32_t *ids, bool measures, bool embeds)
{
    const carat_batch_options o = {.session = {.n_ctx = N_CTX, .chunk = CHUNK}, .n_slots = 2};
    family_job job[2] = {{.over = !embeds}, {.over = !measures}};
    carat_batch_info info;
    AUTO_BATCH *b;
    err e = {0};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int i = 0; i < 2; i++) {
        const carat_job j = {.ids = ids,
                             .n = i ? 17 : 60,
                             .done = family_done,
                             .user = &job[i],
                             .embedding = i ? NULL : job[i].value,
                             .importance = i ? job[i].value : NULL};
        if (!job[i].over)
            CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    CHECK(job[0].over && job[1].over);
    carat_batch_get_info(b, &info, NULL, 0);
    return info.n_passes;
}

/* Passes of the end of a text have few rows, and no others do for them. */
TEST(importance_cuts_no_passes_of_embeddings)
{
    AUTO(rig_close) importance_rig r;
    rig_open(&r, "qwen3");
    AUTO_MODEL *m = open_model(&r, (carat_model_options){.n_threads = 0});
    CHECK(m->core.n_embd <= N_MAX);
    uint64_t alone = count_passes(m, r.ids, true, false) + count_passes(m, r.ids, false, true);
    CHECK(count_passes(m, r.ids, true, true) <= alone);
}

TEST(importance_in_every_family)
{
    static const char *const names[] = {"dense", "e2b", "moe", "laguna", "qwen35", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        AUTO(fidelity_close) fidelity f;
        float v[3][N_MAX];
        carat_model *m = NULL;
        err e = {0};
        fidelity_open(&f, names[i]);
        int32_t n = f.n_tokens < N_MAX ? f.n_tokens : N_MAX;
        for (int k = 0; k < 3; k++) {
            carat_model_options o = {.n_threads = 2, .exact_f32 = true, .reference = k == 0};
            CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &o, &m, &e), e);
            carat_session *s = open_session(m, k == 2 ? 7 : 0, "f32");
            CHECK_OK(carat_importance(s, f.tokens, n, v[k], &e), e);
            carat_session_close(s);
            if (k == 2)
                in_batch(m, f.tokens, n, v[2]);
            carat_model_close(m);
        }
        double worst = 0;
        for (int32_t j = 0; j < n; j++)
            worst = fmax(worst, fabs((double)v[0][j] - v[1][j]) / v[0][j]);
        CHECK_MSG(worst <= 1e-3, "%s: %.2e from the plain kernels", names[i], worst);
        CHECK_MSG(!memcmp(v[1], v[2], (size_t)n * sizeof **v), "%s: other bits in chunks of 7",
                  names[i]);
    }
}

/* A NaN in a norm of queries reaches every share. */
TEST(importance_of_damaged_weights)
{
    static const fidelity_file broken = {.nan_tensor = "blk.1.attn_q_norm.weight", .nan_at = 3};
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    AUTO_MODEL *m;
    float v[64];
    fidelity_open(&f, "qwen3");
    CHECK_OK(carat_model_open(fidelity_write(&f, &broken), NULL, &m, &e), e);
    AUTO_SESSION *s = open_session(m, 0, NULL);
    status st = carat_importance(s, f.tokens, 64, v, &e);
    CHECK_MSG(st == CARAT_E_NUMERIC, "%s: %s", carat_status_name(st), e.text);
}

typedef struct attempt {
    carat_session *s;
    const int32_t *ids;
} attempt;

static status measure(void *arg, err *e)
{
    attempt *a = arg;
    float v[40];
    return carat_importance(a->s, a->ids, 40, v, e);
}

TEST(importance_without_memory)
{
    AUTO(rig_close) importance_rig r;
    rig_open(&r, "qwen3");
    AUTO_MODEL *m = open_model(&r, (carat_model_options){.n_threads = 0});
    AUTO_SESSION *s;
    err e = {0};
    carat_session_options o = {.n_ctx = N_CTX, .checkpoint_mb = -1}; /* they may fail silently */
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    test_every_allocation(measure, &(attempt){s, r.ids});
}

TEST(importance_of_chunks)
{
    const float v[] = {1, 3, 5, 7, 20};
    float out[3];
    CHECK_EQ(carat_importance_chunks(v, 5, 2, false, out), 3);
    CHECK_NEAR(out[0], 2, 0);
    CHECK_NEAR(out[1], 6, 0);
    CHECK_NEAR(out[2], 20, 0);
    CHECK_EQ(carat_importance_chunks(v, 5, 2, true, out), 3);
    CHECK_NEAR(out[0] + out[1] + out[2], 0, 1e-6);
    CHECK_NEAR(out[0] * out[0] + out[1] * out[1] + out[2] * out[2], 3, 1e-5);
    CHECK_EQ(carat_importance_chunks(v, 1, 2, true, out), 1);
    CHECK_NEAR(out[0], 0, 0);
    CHECK_EQ(carat_importance_chunks(v, 0, 2, true, out), 0);
}
