/* embed_test.c - embeddings: hidden rows against the logits of transformers, and the same bits from
 * every chunk size, with any cache, and beside answers. */
#include "tests/fidelity_model.h"
#include "tests/toy_model.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "tests/test.h"

enum { N_CTX = 160 };

static carat_session *open_session(carat_model *m, int32_t chunk)
{
    err e = {0};
    carat_session *s;
    carat_session_options o = {.n_ctx = N_CTX, .chunk = chunk, .kv_k = "f32"};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static void embed(carat_session *s, const int32_t *ids, int64_t n, carat_pooling pooling,
                  float *out)
{
    err e = {0};
    CHECK_OK(carat_embed(s, ids, n, pooling, out, &e), e);
}

/* The head's product with a hidden row is the logits that transformers computes for its position,
 * so the row is transformers' hidden state after the final norm. */
static void check_row(const fidelity *f, const carat_model *m, const float *row, int32_t pos)
{
    const gguf *g = &m->core.file;
    const tensor *head = tensor_find(&g->tensors, "output.weight");
    size_t n_embd = (size_t)m->core.n_embd;
    double worst = 0;
    head = head ? head : tensor_find(&g->tensors, "token_embd.weight");
    CHECK(head && head->n_elements == n_embd * (size_t)f->n_vocab);
    for (int32_t v = 0; v < f->n_vocab; v++) {
        double y = 0, cap = m->core.softcap;
        for (size_t c = 0; c < n_embd; c++) {
            float w;
            memcpy(&w, head->bytes + ((size_t)v * n_embd + c) * sizeof w, sizeof w);
            y += (double)w * (double)row[c];
        }
        y = cap > 0 ? cap * tanh(y / cap) : y;
        worst =
            fmax(worst, fabs(y - (double)f->logits[(size_t)pos * (size_t)f->n_vocab + (size_t)v]));
    }
    CHECK_MSG(worst <= 1e-3, "%s, position %d: %.2e from transformers", f->name, pos, worst);
}

static void check_model(const char *name)
{
    static const int32_t chunks[] = {1, 7, 0};
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    AUTO_MODEL *m;
    fidelity_open(&f, name);
    carat_model_options o = {.n_threads = 2, .exact_f32 = true};
    CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &o, &m, &e), e);
    size_t n_embd = (size_t)m->core.n_embd, n_bytes = n_embd * sizeof(float);
    AUTO_MEM float *mean = mem_calloc(n_embd, sizeof *mean),
                   *last = mem_calloc(n_embd, sizeof *last);
    AUTO_MEM float *x = mem_calloc(n_embd, sizeof *x);
    AUTO_MEM double *sum = mem_calloc(n_embd, sizeof *sum);
    CHECK(mean && last && x && sum);
    for (int k = 0; k < 3; k++) {
        AUTO_SESSION *s = open_session(m, chunks[k]);
        embed(s, f.tokens, f.n_tokens, CARAT_POOL_MEAN, x);
        CHECK_MSG(!k || !memcmp(x, mean, n_bytes), "%s: mean of chunk %d", name, chunks[k]);
        memcpy(mean, x, n_bytes);
        embed(s, f.tokens, f.n_tokens / 2, CARAT_POOL_LAST, x); /* a part of the cache */
        embed(s, f.tokens, f.n_tokens, CARAT_POOL_LAST, x);     /* continues it */
        CHECK_MSG(!k || !memcmp(x, last, n_bytes), "%s: last of chunk %d", name, chunks[k]);
        memcpy(last, x, n_bytes);
        embed(s, f.tokens, f.n_tokens, CARAT_POOL_MEAN, x);
        CHECK_MSG(!memcmp(x, mean, n_bytes), "%s: mean over a full cache", name);
    }
    AUTO_SESSION *s = open_session(m, 0);
    int32_t n = f.n_tokens / 2;
    embed(s, f.tokens, n, CARAT_POOL_MEAN, mean);
    for (int32_t i = 0; i < n; i++) {
        embed(s, f.tokens, i + 1, CARAT_POOL_LAST, x);
        if (i % 8 == 0)
            check_row(&f, m, x, i);
        for (size_t c = 0; c < n_embd; c++)
            sum[c] += (double)x[c];
    }
    for (size_t c = 0; c < n_embd; c++)
        CHECK(mean[c] == (float)(sum[c] / n));
    check_row(&f, m, last, f.n_tokens - 1);
}

PLAIN_TEST(embeddings_are_the_hidden_rows_of_transformers)
{
    for (int i = 0; fidelity_names[i]; i++)
        check_model(fidelity_names[i]);
}

/* ---- Encoders ----------------------------------------------------------------------------- */

/* Every text of the golden file in a session, of another length each time. worst: the largest
 * distance from sentence-transformers, against vectors whose entries have a deviation of about 1.
 */
static void check_encoder(const fidelity *f, carat_model *m, const char *kv, double worst)
{
    size_t n_embd = (size_t)m->core.n_embd;
    AUTO_MEM float *x = mem_calloc(n_embd, sizeof *x), *again = mem_calloc(n_embd, sizeof *again);
    carat_session_options o = {.n_ctx = N_CTX, .kv_k = kv};
    carat_pooling pooling = carat_model_pooling(m, NULL);
    AUTO_SESSION *s;
    err e = {0};
    CHECK(x && again);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    for (int32_t i = 0, n; (n = fidelity_length(f, i)); i++) {
        double d = 0;
        embed(s, f->tokens, n, pooling, x);
        embed(s, f->tokens, n, pooling, again); /* nothing is left of the first time */
        CHECK(!memcmp(x, again, n_embd * sizeof *x));
        for (size_t c = 0; c < n_embd; c++)
            d = fmax(d, fabs((double)x[c] - (double)f->vectors[(size_t)i * n_embd + c]));
        CHECK_MSG(d <= worst, "%s, keys in %s: %d tokens: %.2e from sentence-transformers", f->name,
                  kv, n, d);
    }
}

/* Windows on both sides, before and past their edges; the mean and the last row; dense layers. */
TEST(embeddings_of_encoders_are_those_of_sentence_transformers)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};
    for (int i = 0; fidelity_encoders[i]; i++) {
        AUTO(fidelity_close) fidelity f;
        AUTO_MODEL *m;
        err e = {0};
        fidelity_open(&f, fidelity_encoders[i]);
        const char *path = fidelity_write(&f, NULL);
        for (int k = 0; k < 5; k++) {
            carat_model_options o = {.n_threads = 2, .exact_f32 = true, .reference = k == 4};
            o.isa = k < 4 ? isas[k] : NULL;
            if (carat_model_open(path, &o, &m, NULL))
                continue; /* not this machine's */
            check_encoder(&f, m, "f32", 1e-5);
            carat_model_close(m);
        }
        CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
        check_encoder(&f, m, "f16", 0.02); /* what the defaults round */
    }
}

/* ---- In a batch ---------------------------------------------------------------------------- */

enum { JOBS = 12 };

typedef struct record {
    int32_t ids[N_CTX], answer[32];
    int64_t n, id;
    int32_t n_answer, n_done;
    carat_status st;
    carat_timings t;
    float *vector;
} record;

static bool keep(void *user, const carat_event *ev)
{
    record *r = user;
    if (ev->kind == CARAT_EV_TOKEN)
        r->answer[r->n_answer++] = ev->id;
    return true;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    record *r = user;
    r->n_done++;
    r->st = st;
    r->t = *t;
    if (st && st != CARAT_E_CANCELLED)
        printf("  %s\n", e->text);
}

static void random_ids(record *r, int32_t n_vocab, int64_t n, uint64_t *rng)
{
    r->n = n;
    for (int64_t k = 0; k < n; k++)
        r->ids[k] = (int32_t)rng_below(rng, (uint64_t)n_vocab);
}

static void submit(carat_batch *b, record *r, const carat_generate_options *o, carat_pooling p)
{
    err e = {0};
    carat_job j = {.ids = r->ids,
                   .n = r->n,
                   .opt = o,
                   .fn = keep,
                   .done = done,
                   .user = r,
                   .embedding = o ? NULL : r->vector,
                   .pooling = p};
    CHECK_OK(carat_batch_submit(b, &j, &r->id, NULL, &e), e);
}

static carat_generate_options some_tokens(const carat_model *m)
{
    carat_generate_options o = {.max_tokens = 24};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 0.8f;
    o.sampling.ignore_eog = true;
    return o;
}

static void check_batch(carat_model *m, int32_t n_slots, int32_t chunk)
{
    const carat_generate_options o = some_tokens(m);
    size_t n_bytes = (size_t)m->core.n_embd * sizeof(float);
    AUTO_MEM record *r = mem_calloc(JOBS, sizeof *r), *alone = mem_calloc(1, sizeof *alone);
    AUTO_MEM float *want = mem_calloc(1, n_bytes);
    uint64_t rng = test_seed();
    AUTO_BATCH *b;
    err e = {0};
    carat_batch_options bo = {.session = {.n_ctx = N_CTX, .chunk = chunk, .kv_k = "f32"},
                              .n_slots = n_slots};
    CHECK(r && alone && want);
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        random_ids(&r[i], m->core.n_vocab, 1 + (int64_t)rng_below(&rng, N_CTX - 30), &rng);
        r[i].vector = mem_calloc(1, n_bytes);
        CHECK(r[i].vector);
        submit(b, &r[i], i % 3 ? NULL : &o, i % 3 == 1 ? CARAT_POOL_MEAN : CARAT_POOL_LAST);
        if (i % 2)
            carat_batch_step(b);
    }
    while (carat_batch_step(b))
        ;
    AUTO_SESSION *s = open_session(m, 0);
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(r[i].n_done, 1);
        CHECK_EQ(r[i].st, CARAT_OK);
        CHECK_EQ(r[i].t.n_prompt, r[i].n);
        if (i % 3) {
            embed(s, r[i].ids, r[i].n, i % 3 == 1 ? CARAT_POOL_MEAN : CARAT_POOL_LAST, want);
            CHECK_MSG(!memcmp(want, r[i].vector, n_bytes), "job %d of %d slots", i, n_slots);
            CHECK_EQ(r[i].n_answer, 0);
        } else {
            alone->n_answer = 0;
            CHECK_OK(carat_generate(s, r[i].ids, r[i].n, &o, keep, alone, NULL, &e), e);
            CHECK_EQ(r[i].n_answer, alone->n_answer);
            CHECK(!memcmp(r[i].answer, alone->answer, sizeof r[i].answer));
        }
        mem_free(r[i].vector);
    }
}

PLAIN_TEST(embeddings_of_a_batch_are_those_of_a_session)
{
    static const char *const bases[] = {"all", "e2b", "qwen35"};
    for (int i = 0; i < 3; i++) {
        AUTO_MODEL *m =
            toy_model_open(i < 2 ? &(toy_model_file){.base = bases[i]}
                                 : &(toy_model_file){.base = bases[i], .words = "qwen35"},
                           &(carat_model_options){.n_threads = 2, .draft = i ? NULL : "lookup"});
        check_batch(m, 3, 7);
        check_batch(m, 4, 0);
    }
}

/* Several whole texts share a pass: fewer passes than texts, and the vectors of a session. */
TEST(embeddings_of_encoders_share_passes)
{
    AUTO(fidelity_close) fidelity f;
    AUTO_MODEL *m;
    carat_batch *b;
    err e = {0};
    fidelity_open(&f, "encoder");
    CHECK_OK(carat_model_open(fidelity_write(&f, NULL), NULL, &m, &e), e);
    size_t n_bytes = (size_t)m->core.n_embd * sizeof(float);
    AUTO_MEM record *r = mem_calloc(JOBS, sizeof *r);
    AUTO_MEM float *want = mem_calloc(1, n_bytes);
    uint64_t rng = test_seed();
    carat_batch_options bo = {.session = {.n_ctx = N_CTX, .kv_k = "f32"}, .n_slots = 5};
    carat_batch_info info;
    CHECK(r && want);
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        int64_t n = i == 5 ? N_CTX : 1 + (int64_t)rng_below(&rng, 40);
        random_ids(&r[i], m->core.n_vocab, n, &rng);
        r[i].vector = mem_calloc(1, n_bytes);
        CHECK(r[i].vector);
        submit(b, &r[i], NULL, i % 3 ? CARAT_POOL_MEAN : CARAT_POOL_LAST);
    }
    while (carat_batch_step(b))
        ;
    carat_batch_get_info(b, &info, NULL, 0);
    CHECK_MSG(info.n_passes <= JOBS / 2, "%d passes for %d texts", (int)info.n_passes, JOBS);
    carat_session *s = open_session(m, 0);
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(r[i].n_done, 1);
        CHECK_EQ(r[i].st, CARAT_OK);
        embed(s, r[i].ids, r[i].n, i % 3 ? CARAT_POOL_MEAN : CARAT_POOL_LAST, want);
        CHECK_MSG(!memcmp(want, r[i].vector, n_bytes), "text %d", i);
        mem_free(r[i].vector);
    }
    carat_session_close(s);
    carat_batch_close(b);
}

/* What an encoder cannot do is refused with the reason. */
TEST(encoders_write_no_text)
{
    static const int32_t ids[] = {3, 1, 4};
    AUTO(fidelity_close) fidelity f;
    carat_model *m;
    carat_session *s, *none;
    carat_batch *b;
    float *logits;
    err e = {0};
    fidelity_open(&f, "encoder");
    CHECK_OK(carat_model_open(fidelity_write(&f, NULL), NULL, &m, &e), e);
    CHECK(logits = mem_calloc((size_t)m->core.n_vocab, sizeof *logits));
    s = open_session(m, 0);
    CHECK_STATUS(carat_generate(s, ids, 3, NULL, NULL, NULL, NULL, &e), CARAT_E_UNSUPPORTED);
    CHECK(strstr(e.text, "is an encoder"));
    e = (err){0};
    CHECK_STATUS(carat_eval(s, ids, 3, logits, NULL, &e), CARAT_E_UNSUPPORTED);
    e = (err){0};
    embed(s, ids, 3, CARAT_POOL_MEAN, logits);
    CHECK_STATUS(carat_append(s, ids, 3, false, logits, &e), CARAT_E_UNSUPPORTED);
    e = (err){0};
    CHECK_STATUS(carat_importance(s, f.tokens, 20, logits, &e), CARAT_E_UNSUPPORTED);
    carat_session_close(s);
    const carat_session_options wrong[] = {
        {.n_ctx = 128, .chunk = 64}, {.kv_pool = 1024}, {.kv_resident = -1}};
    for (int i = 0; i < 3; i++) {
        e = (err){0};
        CHECK_STATUS(carat_session_open(m, &wrong[i], &none, &e), CARAT_E_ARG);
    }
    e = (err){0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.chunk = 64}, &s, &e), e);
    CHECK_EQ(carat_session_n_ctx(s), 64); /* a text is a chunk */
    carat_session_close(s);
    CHECK_OK(carat_batch_open(m, NULL, &b, &e), e);
    CHECK_STATUS(carat_batch_submit(b, &(carat_job){.ids = ids, .n = 3}, NULL, NULL, &e),
                 CARAT_E_UNSUPPORTED);
    carat_batch_close(b);
    mem_free(logits);
    carat_model_close(m);
    e = (err){0};
    CHECK_STATUS(carat_model_open(fidelity_write(&f, NULL),
                                  &(carat_model_options){.draft = "lookup"}, &m, &e),
                 CARAT_E_UNSUPPORTED);
}

/* A pass of answers is never more than one pass away. */
TEST(answers_go_on_beside_embeddings)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    const carat_generate_options o = some_tokens(m);
    AUTO_MEM record *r = mem_calloc(3, sizeof *r);
    uint64_t rng = test_seed();
    AUTO_BATCH *b;
    err e = {0};
    carat_batch_options bo = {.session = {.n_ctx = N_CTX, .chunk = 2}, .n_slots = 3};
    CHECK(r);
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int i = 0; i < 3; i++) {
        random_ids(&r[i], m->core.n_vocab, i ? N_CTX - 30 : 1, &rng);
        r[i].vector = mem_calloc((size_t)m->core.n_embd, sizeof(float));
        CHECK(r[i].vector);
        submit(b, &r[i], i ? NULL : &o, CARAT_POOL_MEAN);
    }
    int n_steps = 0;
    while (!r[0].n_done && carat_batch_step(b))
        n_steps++;
    CHECK_MSG(n_steps <= 2 * 24 + 2, "%d passes for an answer of 24 tokens", n_steps);
    carat_batch_cancel(b, r[1].id);
    while (carat_batch_step(b))
        ;
    CHECK_EQ(r[1].st, CARAT_E_CANCELLED);
    CHECK_EQ(r[2].st, CARAT_OK);
    for (int i = 0; i < 3; i++)
        mem_free(r[i].vector);
}

static void ended_well(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    (void)t;
    CHECK_OK(st, *e);
    ++*(int *)user;
}

/* What leaves the pool depends on no chunk and on no batch. */
TEST(embeddings_where_keys_are_away)
{
    enum { LONG = 700 };
    static const int32_t chunks[] = {64, 192, 512};
    AUTO_MODEL *m = toy_model_open(&(toy_model_file){.base = "dense", .n_ctx_train = 2048},
                                   &(carat_model_options){.n_threads = 2, .exact_f32 = true});
    size_t n_bytes = (size_t)m->core.n_embd * sizeof(float);
    AUTO_MEM float *want = mem_alloc(n_bytes), *got = mem_alloc(n_bytes);
    int32_t ids[LONG];
    int n_ended = 0;
    err e = {0};
    CHECK(want && got);
    toy_random_ids(m, ids, LONG, test_seed());
    for (int k = 0; k < 3; k++) {
        carat_batch_options o = {.session = {.n_ctx = 1024,
                                             .chunk = chunks[k],
                                             .kv_resident = 512,
                                             .kv_policy = "scored",
                                             .checkpoint_mb = -1},
                                 .n_slots = 2};
        carat_session *s;
        carat_batch *b;
        CHECK_OK(carat_session_open(m, &o.session, &s, &e), e);
        embed(s, ids, LONG, CARAT_POOL_LAST, k ? got : want);
        carat_session_close(s);
        CHECK_MSG(!k || !memcmp(got, want, n_bytes), "chunks of %d", chunks[k]);
        CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
        carat_job j = {.ids = ids,
                       .n = LONG,
                       .embedding = got,
                       .pooling = CARAT_POOL_LAST,
                       .done = ended_well,
                       .user = &n_ended};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        while (carat_batch_step(b))
            ;
        carat_batch_close(b);
        CHECK_MSG(n_ended == k + 1 && !memcmp(got, want, n_bytes), "a job, chunks of %d",
                  chunks[k]);
    }
    AUTO_SESSION *whole;
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 1024}, &whole, &e), e);
    embed(whole, ids, LONG, CARAT_POOL_LAST, got);
    CHECK_MSG(memcmp(got, want, n_bytes), "no key was missed");
}

/* ---- Failures ------------------------------------------------------------------------------ */

typedef struct attempt {
    carat_session *s;
    float *out;
} attempt;

static status try_embedding(void *arg, err *e)
{
    static const int32_t ids[] = {3, 1, 4, 1, 5};
    attempt *a = arg;
    return carat_embed(a->s, ids, 5, CARAT_POOL_MEAN, a->out, e);
}

TEST(embeddings_fail_with_a_sentence)
{
    err e = {0};
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_session *s = open_session(m, 0);
    AUTO_MEM float *out = mem_calloc((size_t)m->core.n_embd, sizeof *out);
    static const int32_t wrong[] = {-1};
    CHECK(out);
    test_every_allocation(try_embedding, &(attempt){s, out});
    CHECK_EQ(carat_embed(s, wrong, 1, CARAT_POOL_MEAN, out, &e), CARAT_E_ARG);
    e = (err){0};
    CHECK_EQ(carat_embed(s, wrong, 0, CARAT_POOL_MEAN, out, &e), CARAT_E_ARG);
    e = (err){0};
    CHECK_EQ(carat_embed(s, wrong, N_CTX + 1, CARAT_POOL_LAST, out, &e), CARAT_E_LIMIT);
    carat_session_close(s);
    mem_free(out);
    carat_model_close(m);
    m = toy_model_open(&(toy_model_file){.nan_tensor = "output_norm.weight"}, NULL);
    s = open_session(m, 0);
    out = mem_calloc((size_t)m->core.n_embd, sizeof *out);
    e = (err){0};
    CHECK_EQ(try_embedding(&(attempt){s, out}, &e), CARAT_E_NUMERIC);
    carat_session_close(s);
}

TEST(metadata_of_a_model_can_be_read)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_meta v, item = {0};
    bool stated = true;
    int64_t n = 0, n_lists = 0;
    CHECK(carat_model_find_meta(m, "general.architecture", &v) && v.kind == CARAT_META_TEXT);
    CHECK(v.n_text == 6 && !memcmp(v.text, "gemma4", 6));
    CHECK(!carat_model_find_meta(m, "none.such", &v));
    for (; carat_model_meta(m, n, &v); n++) {
        uint64_t at = 0, n_items = 0;
        CHECK(v.key);
        while (carat_meta_next(&v, &at, &item))
            n_items++;
        CHECK_EQ(n_items, v.kind == CARAT_META_LIST ? v.n_items : 0);
        n_lists += v.kind == CARAT_META_LIST;
        carat_meta last = item; /* the end of a list leaves it alone */
        CHECK(!carat_meta_next(&v, &at, &item) && !memcmp(&last, &item, sizeof last));
    }
    CHECK(n > 10 && n_lists > 0);
    CHECK_EQ(carat_model_pooling(m, &stated), CARAT_POOL_MEAN);
    CHECK(!stated);
}
