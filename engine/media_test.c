/* media_test.c - prompts with pictures against models in which a picture's rows stand in the table
 * of embeddings; chunks, reused prefixes, and what is refused.
 */
#include "apps/commands.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>
#include <string.h>

enum { CTX = 256, HEAD = 5, TAIL = 9, BUDGET = 70, SPARE = 100, MOST = HEAD + BUDGET + TAIL };

typedef struct fixture {
    char text[512], tower[512];
    carat_model *m;
    carat_media *picture[2]; /* of equal sizes */
    int32_t n_soft, n, n_vocab;
    int32_t ids[2][MOST]; /* a prompt with the first picture, and with the second */
} fixture;

static status try_picture(carat_model *m, int64_t seed, carat_media **out, err *e)
{
    const carat_image_options o = {.n_tokens = BUDGET};
    AUTO(image_free) image picture;
    test_picture(&picture, seed, 40, 30);
    status st = carat_image_new(m, picture.rgb, 40, 30, &o, out, e);
    return st;
}

static carat_media *picture_of(carat_model *m, int64_t seed)
{
    const carat_image_options o = {.n_tokens = BUDGET};
    carat_media *x;
    err e = {0};
    int32_t n;
    CHECK_OK(try_picture(m, seed, &x, &e), e);
    CHECK_OK(carat_image_tokens(m, 40, 30, &o, &n, &e), e);
    CHECK_EQ(carat_media_n(x), n);
    return x;
}

static carat_model *open_model(const fixture *f)
{
    const carat_model_options o = {.n_threads = 1, .exact_f32 = true, .mmproj = f->tower};
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(f->text, &o, &m, &e), e);
    return m;
}

static void begin(fixture *f)
{
    *f = (fixture){.n = 0};
    snprintf(f->tower, sizeof f->tower, "%s", test_temp("tower.gguf"));
    const char *make[] = {"tiny-mmproj-clamped", f->tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    snprintf(f->text, sizeof f->text, "%s", toy_model_write(&(toy_model_file){.base = "e2b"}));
    f->m = open_model(f);
    f->n_vocab = toy_n_vocab(f->m);
    for (int i = 0; i < 2; i++)
        f->picture[i] = picture_of(f->m, i);
    f->n_soft = carat_media_n(f->picture[0]);
    f->n = HEAD + f->n_soft + TAIL;
    CHECK(f->n_soft > 33 && f->n <= MOST && SPARE + f->n_soft < f->n_vocab);
    for (int i = 0; i < 2; i++)
        for (int32_t k = 0; k < f->n; k++) {
            int32_t at = k - HEAD;
            f->ids[i][k] =
                at >= 0 && at < f->n_soft ? carat_media_id(f->picture[i]) - at : 10 + k % 40;
        }
}

static void end(fixture *f)
{
    carat_media_free(f->picture[0]);
    carat_media_free(f->picture[1]);
    carat_model_close(f->m);
}

typedef struct rows_to {
    float *to;
    int32_t n_vocab;
} rows_to;

static bool take(void *user, int64_t first, int64_t n, const float *rows)
{
    const rows_to *x = user;
    memcpy(x->to + (size_t)first * (size_t)x->n_vocab, rows,
           (size_t)n * (size_t)x->n_vocab * sizeof *rows);
    return true;
}

/* [n][n_vocab], for mem_free. */
static float *logits_of(carat_model *m, const int32_t *ids, int32_t n, int32_t chunk)
{
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = chunk, .n_outputs = chunk, .kv_k = "f32", .checkpoint_mb = -1};
    rows_to x = {.n_vocab = toy_n_vocab(m)};
    AUTO_SESSION *s;
    err e = {0};
    x.to = mem_calloc((size_t)n * (size_t)x.n_vocab, sizeof *x.to);
    CHECK(x.to);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_eval_rows(s, ids, n, take, &x, &e), e);
    return x.to;
}

/* Row `row` of a table of floats; the bytes are the test's own. */
static float *row_of(const gguf *g, const char *name, int32_t row)
{
    const tensor *t = tensor_find(&g->tensors, name);
    CHECK(t && t->type == NUM_F32);
    return (float *)(uintptr_t)t->bytes + (size_t)row * t->ne[0];
}

/* The model with the rows of a picture as tokens SPARE and after; one that adds what per-layer
 * embeddings have for token 0. bytes: for mem_free, after the model is closed. */
static carat_model *open_with_rows(const fixture *f, int i, char **bytes)
{
    const carat_model_options o = {.n_threads = 1, .exact_f32 = true};
    size_t n_embd = (size_t)f->m->core.n_embd, n_bytes;
    carat_model *m;
    gguf g = {0};
    err e = {0};
    soft_run run;
    media_item *held;
    int32_t n_held = 1;
    CHECK_OK(media_rows(f->m, f->ids[i] + HEAD, MOST, &run, &held, &e), e);
    CHECK_EQ(run.n, f->n_soft);
    CHECK_OK(file_read_all(f->text, 64 << 20, bytes, &n_bytes, &e), e);
    CHECK_OK(gguf_open_bytes(&g, *bytes, n_bytes, "toy", &e), e);
    const tensor *ple = tensor_find(&g.tensors, "per_layer_token_embd.weight");
    CHECK(ple);
    for (int32_t k = 0; k < f->n_soft; k++) {
        float *to = row_of(&g, "token_embd.weight", SPARE + k);
        for (size_t c = 0; c < n_embd; c++)
            to[c] = run.at[(size_t)k * n_embd + c] / sqrtf((float)n_embd);
        memcpy(row_of(&g, ple->name, SPARE + k), row_of(&g, ple->name, 0),
               ple->ne[0] * sizeof(float));
    }
    media_leave(f->m, &held, &n_held);
    gguf_close(&g);
    CHECK_OK(carat_model_open_bytes(*bytes, n_bytes, "toy", &o, &m, &e), e);
    return m;
}

/* The tables are the output head too: tokens that were replaced have other logits. */
static double apart(const fixture *f, const float *a, const float *b)
{
    double worst = 0;
    for (int32_t r = 0; r < f->n; r++)
        for (int32_t c = 0; c < f->n_vocab; c++) {
            size_t at = (size_t)r * (size_t)f->n_vocab + (size_t)c;
            double d = fabs((double)a[at] - b[at]);
            if ((c < SPARE || c >= SPARE + f->n_soft) && (d > worst || isnan(d)))
                worst = d;
        }
    return worst;
}

TEST(media_rows_stand_where_embeddings_stand)
{
    static const int32_t chunks[] = {7, 1, 33};
    AUTO(end) fixture f;
    begin(&f);
    int32_t plain[MOST];
    size_t n_bytes = (size_t)f.n * (size_t)f.n_vocab * sizeof(float);
    float *got[2];
    for (int i = 0; i < 2; i++) {
        AUTO_MEM char *bytes;
        AUTO_MODEL *m = open_with_rows(&f, i, &bytes);
        for (int32_t k = 0; k < f.n; k++)
            plain[k] = f.ids[i][k] < 0 ? SPARE + k - HEAD : f.ids[i][k];
        AUTO_MEM float *want = logits_of(m, plain, f.n, 33);
        got[i] = logits_of(f.m, f.ids[i], f.n, 33);
        CHECK_MSG(apart(&f, got[i], want) < 1e-4, "picture %d: logits are %g apart", i,
                  apart(&f, got[i], want));
    }
    CHECK(apart(&f, got[0], got[1]) > 1e-2); /* the picture is seen */
    for (int c = 0; c < 3; c++) {
        AUTO_MEM float *other = logits_of(f.m, f.ids[0], f.n, chunks[c]);
        CHECK_MSG(!memcmp(other, got[0], n_bytes), "chunks of %d: other logits", chunks[c]);
    }
    mem_free(got[0]);
    mem_free(got[1]);
}

TEST(media_prefixes_know_one_picture_from_another)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    carat_session *s;
    AUTO(end) fixture f;
    err e = {0};
    int64_t reused = -1;
    begin(&f);
    CHECK_OK(carat_session_open(f.m, &o, &s, &e), e);
    CHECK_OK(carat_eval(s, f.ids[0], f.n, NULL, &reused, &e), e);
    CHECK_EQ(reused, 0);
    carat_media *again = picture_of(f.m, 0);
    CHECK_EQ(carat_media_id(again), carat_media_id(f.picture[0]));
    carat_media_free(again);
    /* In more tokens it is another picture. */
    image same;
    test_picture(&same, 0, 40, 30);
    CHECK_OK(carat_image_new(f.m, same.rgb, 40, 30, &(carat_image_options){.n_tokens = 2 * BUDGET},
                             &again, &e),
             e);
    CHECK(carat_media_n(again) > f.n_soft && carat_media_id(again) < carat_media_id(f.picture[1]));
    image_free(&same);
    carat_media_free(again);
    f.ids[0][f.n - 1]++;
    CHECK_OK(carat_eval(s, f.ids[0], f.n, NULL, &reused, &e), e);
    CHECK_EQ(reused, f.n - 1);
    CHECK_OK(carat_eval(s, f.ids[1], f.n, NULL, &reused, &e), e);
    CHECK(reused <= HEAD);
    /* Rows stay for a while after the last carat_media. */
    carat_media_free(f.picture[0]);
    f.picture[0] = NULL;
    CHECK_OK(carat_eval(s, f.ids[0], f.n, NULL, &reused, &e), e);
    CHECK(reused <= HEAD);
    carat_session_close(s);
}

TEST(media_memory_is_bounded_and_given_back)
{
    AUTO(end) fixture f;
    carat_media *x[2] = {NULL, NULL}, *again;
    err e = {0};
    begin(&f);
    int32_t next = carat_media_id(f.picture[1]) - carat_media_n(f.picture[1]);
    media_limit(f.m, 0, MEDIA_ITEMS);
    CHECK_STATUS(try_picture(f.m, 7, &x[0], &e), E_MEMORY);
    CHECK_MSG(!x[0] && strstr(e.text, "no room for one"), "%s", e.text);
    CHECK_OK(try_picture(f.m, 0, &again, &e), e); /* it has its patches */
    CHECK_EQ(carat_media_id(again), carat_media_id(f.picture[0]));
    carat_media_free(again);
    for (int i = 0; i < 2; i++) {
        carat_media_free(f.picture[i]);
        f.picture[i] = NULL;
    }
    for (uint64_t most = 1; !x[0] && most < 1 << 30; most += most / 8 + 1) {
        media_limit(f.m, most, MEDIA_ITEMS); /* in the end that of one picture, and less than two */
        try_picture(f.m, 7, &x[0], &e);
    }
    CHECK(x[0]);
    CHECK_EQ(carat_media_id(x[0]), next); /* refused pictures take no ids */
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(try_picture(f.m, 8, &x[1], &e), E_MEMORY);
        CHECK(!x[1]);
        carat_media_free(x[0]);
        CHECK_OK(try_picture(f.m, 8, &x[1], &e), e);
        carat_media_free(x[1]);
        CHECK_OK(try_picture(f.m, 7, &x[0], &e), e);
    }
    carat_media_free(x[0]);
}

static void plan_of(const char *text, const char *tower, int64_t gpu_mb, carat_memory_plan *plan)
{
    const carat_model_options o = {.n_threads = 1,
                                   .vocab_only = true,
                                   .mmproj = tower,
                                   .plan_gpu_mb = {gpu_mb},
                                   .card = gpu_mb ? "9.0" : NULL,
                                   .overcommit = true};
    const carat_session_options so = {.n_ctx = CTX, .checkpoint_mb = -1};
    AUTO_MODEL *m;
    err e = {0};
    CHECK_OK(carat_model_open(text, &o, &m, &e), e);
    CHECK_OK(carat_plan(m, &so, plan, &e), e);
}

/* The tower is on the model's device; what waits for it and what it made are on the host. */
TEST(media_is_planned_where_it_is)
{
    const uint64_t host = MEDIA_MOST_BYTES;
    const char *tower = test_temp("tower.gguf");
    const char *make[] = {"tiny-mmproj-clamped", tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    for (int64_t gpu_mb = 0; gpu_mb <= 4096; gpu_mb += 4096) {
        carat_memory_plan without, with;
        plan_of(text, NULL, gpu_mb, &without);
        plan_of(text, tower, gpu_mb, &with);
        const carat_device_plan *a = &without.device[0], *b = &with.device[0];
        CHECK(!without.vision_bytes && !without.picture_bytes && !a->vision_bytes);
        CHECK(b->vision_bytes > 10 << 20); /* 10080 patches */
        CHECK_EQ(with.vision_bytes, b->vision_bytes);
        CHECK_EQ(with.picture_bytes, host);
        CHECK_EQ(b->total_bytes - a->total_bytes, b->vision_bytes + (gpu_mb ? 0 : host));
        CHECK_EQ(with.total_bytes - without.total_bytes, b->total_bytes - a->total_bytes);
        CHECK(!with.audio_bytes);
    }
}

/* Towers work one after the other in one room: an audio tower whose work fits the room of a picture
 * takes its weights alone. */
TEST(media_plans_audio_towers_beside_the_vision_towers)
{
    const char *tower = test_temp("tower.gguf");
    const char *make[] = {"tiny-mmproj-hears", tower, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    for (int64_t gpu_mb = 0; gpu_mb <= 4096; gpu_mb += 4096) {
        carat_memory_plan without, with;
        plan_of(text, NULL, gpu_mb, &without);
        plan_of(text, tower, gpu_mb, &with);
        CHECK(!without.audio_bytes && with.audio_bytes > 1 << 20); /* 1500 rows of 64 by 128 */
        CHECK_EQ(with.device[0].vision_bytes, with.vision_bytes + with.audio_bytes);
        CHECK_EQ(with.device[0].total_bytes - without.device[0].total_bytes,
                 with.vision_bytes + with.audio_bytes + (gpu_mb ? 0 : with.picture_bytes));
    }
}

static status open_and_encode(void *arg, err *e)
{
    static const uint8_t rgb[40 * 30 * 3];
    const fixture *f = arg;
    const carat_model_options o = {.n_threads = 1, .exact_f32 = true, .mmproj = f->tower};
    const carat_image_options io = {.n_tokens = BUDGET};
    const carat_session_options so = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    AUTO_MODEL *m = NULL;
    AUTO_SESSION *s = NULL;
    AUTO_PTR(carat_media_free) carat_media *x = NULL;
    status st = carat_model_open(f->text, &o, &m, e);
    if (!st)
        st = carat_session_open(m, &so, &s, e);
    if (!st && !(st = carat_image_new(m, rgb, 40, 30, &io, &x, e)))
        st = carat_eval(s, &(int32_t){carat_media_id(x)}, 1, NULL, NULL, e);
    return st;
}

TEST(media_every_allocation_may_fail)
{
    AUTO(end) fixture f;
    begin(&f);
    test_every_allocation(open_and_encode, &f);
}

/* Timelines may have ids of pictures that are forgotten. Given again a picture has other ids, and
 * the same logits. */
TEST(media_forgets_what_nothing_uses)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    carat_session *s, *other;
    AUTO(end) fixture f;
    err e = {0};
    int64_t reused;
    begin(&f);
    size_t n = (size_t)f.n_vocab;
    AUTO_MEM float *want = mem_calloc(n, sizeof *want), *got = mem_calloc(n, sizeof *got);
    int32_t first = carat_media_id(f.picture[0]), second = carat_media_id(f.picture[1]);
    media_limit(f.m, MEDIA_MOST_BYTES, 4);
    CHECK_OK(carat_session_open(f.m, &o, &s, &e), e);
    CHECK_OK(carat_session_open(f.m, &o, &other, &e), e);
    CHECK_OK(carat_eval(s, f.ids[0], f.n, want, NULL, &e), e);
    carat_media_free(f.picture[0]);
    for (int i = 0; i < 2; i++) { /* it is one of four known ones, then it is not */
        for (int k = 0; k < 2; k++)
            carat_media_free(picture_of(f.m, 10 + 2 * i + k));
        if (!i) {
            f.picture[0] = picture_of(f.m, 0);
            CHECK_EQ(carat_media_id(f.picture[0]), first);
            carat_media_free(f.picture[0]);
        }
    }
    CHECK_OK(carat_eval(other, f.ids[0], HEAD, NULL, NULL, &e), e);
    for (int k = 0; k < 3; k++)
        carat_media_free(picture_of(f.m, 20 + k));
    f.picture[0] = picture_of(f.m, 0); /* a session's rows stay until its own next pass */
    CHECK_EQ(carat_media_id(f.picture[0]), first);
    carat_media_free(f.picture[0]);
    CHECK_OK(carat_eval(s, f.ids[0], f.n, got, &reused, &e), e);
    CHECK(reused == f.n - 1 && !memcmp(got, want, n * sizeof *got));
    for (int k = 0; k < 4; k++)
        carat_media_free(picture_of(f.m, 30 + k));
    carat_reset(s);
    CHECK_STATUS(carat_eval(s, f.ids[0], f.n, got, NULL, &e), E_ARG);
    e = (err){0};
    f.picture[0] = picture_of(f.m, 0);
    CHECK(carat_media_id(f.picture[0]) < second && carat_media_id(f.picture[0]) != first);
    for (int32_t k = 0; k < f.n_soft; k++)
        f.ids[0][HEAD + k] = carat_media_id(f.picture[0]) - k;
    CHECK_OK(carat_eval(s, f.ids[0], f.n, got, NULL, &e), e);
    CHECK(!memcmp(got, want, n * sizeof *got));
    carat_media *again = picture_of(f.m, 1); /* in use, so it was never forgotten */
    CHECK_EQ(carat_media_id(again), second);
    carat_media_free(again);
    carat_session_close(other);
    carat_session_close(s);
}

TEST(media_refuses_what_it_cannot_do)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    carat_session *s;
    carat_model *m = NULL;
    AUTO(end) fixture f;
    err e = {0};
    int32_t n = 7;
    begin(&f);
    CHECK_OK(carat_session_open(f.m, &o, &s, &e), e);
    const int32_t unknown[] = {3, -1000, 4};
    CHECK_STATUS(carat_eval(s, unknown, 3, NULL, NULL, &e), E_ARG);
    float *vector = mem_calloc((size_t)f.m->core.n_embd, sizeof *vector);
    CHECK_STATUS(carat_embed(s, f.ids[0], f.n, CARAT_POOL_LAST, vector, &e), E_UNSUPPORTED);
    mem_free(vector);
    /* A picture without rows, whose carat_media was freed. */
    carat_media_free(f.picture[1]);
    f.picture[1] = NULL;
    CHECK_STATUS(carat_eval(s, f.ids[1], f.n, NULL, NULL, &e), E_ARG);
    carat_session_close(s);

    e = (err){0};
    CHECK_STATUS(carat_image_tokens(f.m, 40, 30, &(carat_image_options){.n_tokens = 69}, &n, &e),
                 E_ARG);
    CHECK_STATUS(carat_image_tokens(f.m, 0, 30, NULL, &n, &e), E_LIMIT);
    CHECK_STATUS(carat_image_tokens(f.m, 1 << 20, 30, NULL, &n, &e), E_LIMIT);
    CHECK_EQ(n, 7);
    const carat_model_options text = {.mmproj = f.text}, big = {.image_tokens = 5000};
    CHECK_STATUS(carat_model_open(f.text, &text, &m, &e), E_UNSUPPORTED);
    CHECK_STATUS(carat_model_open(f.text, &big, &m, &e), E_ARG);
    CHECK(!m);
    m = toy_model_open(&(toy_model_file){.base = "e2b"}, NULL);
    CHECK_STATUS(carat_image_tokens(m, 40, 30, NULL, &n, &e), E_UNSUPPORTED);
    carat_model_close(m);
}

typedef struct interruption {
    carat_session *s;
    int n_layers, after; /* calls; the one that ends the tower's pass */
} interruption;

static bool interrupt(void *user, const char *what, uint64_t done, uint64_t total)
{
    interruption *x = user;
    if (strcmp(what, "layers of a picture's tower") != 0)
        return true;
    CHECK(done < total);
    if (++x->n_layers != x->after)
        return true;
    carat_session_cancel(x->s); /* as the signal does */
    return false;
}

/* Ctrl-C in the middle of a tower's pass ends that answer alone. */
TEST(media_tower_is_interrupted_between_layers)
{
    interruption stop = {.after = 2};
    const carat_session_options so = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    carat_generate_options go = {.max_tokens = 2};
    carat_model *m;
    carat_session *s;
    carat_timings t[2];
    AUTO(end) fixture f;
    err e = {0};
    begin(&f);
    const carat_model_options o = {
        .n_threads = 1, .mmproj = f.tower, .progress = interrupt, .progress_user = &stop};
    CHECK_OK(carat_model_open(f.text, &o, &m, &e), e);
    carat_media *x = picture_of(m, 0);
    for (int32_t k = 0; k < f.n_soft; k++)
        f.ids[0][HEAD + k] = carat_media_id(x) - k;
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    stop.s = s;
    carat_sampling_default(m, &go.sampling);
    go.sampling.ignore_eog = true;
    for (int i = 0; i < 2; i++)
        CHECK_OK(carat_generate(s, f.ids[0], f.n, &go, NULL, NULL, &t[i], &e), e);
    CHECK_EQ(t[0].finish, CARAT_FINISH_CANCELLED);
    CHECK_EQ(t[0].n_generated, 0);
    CHECK_EQ(t[1].n_generated, 2);
    CHECK_EQ(stop.n_layers, stop.after + 3); /* the tower has three */
    carat_session_close(s);
    carat_media_free(x);
    carat_model_close(m);
}

/* Each placeholder becomes a picture between its begin and end, which a template may have written.
 */
TEST(media_expands_placeholders)
{
    static const char prompt[] = "a<|image|>b<|image><|image|><image|>c";
    AUTO(end) fixture f;
    err e = {0};
    int32_t ids[64], full[400];
    begin(&f);
    int64_t n = carat_tokenize(f.m, prompt, sizeof prompt - 1, CARAT_TOK_SPECIAL, ids, 64, &e);
    CHECK_EQ(n, 7);
    int64_t all = 3 + 2 * (2 + f.n_soft);
    CHECK_EQ(carat_media_expand(f.m, ids, n, f.picture, 2, NULL, 0, &e), all);
    CHECK_EQ(carat_media_expand(f.m, ids, n, f.picture, 2, full, 400, &e), all);
    int64_t at = 0;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(full[at++], ids[i ? 2 : 0]);
        CHECK_EQ(full[at++], ids[3]);
        for (int32_t k = 0; k < f.n_soft; k++)
            CHECK_EQ(full[at++], carat_media_id(f.picture[i]) - k);
        CHECK_EQ(full[at++], ids[5]);
    }
    CHECK_EQ(full[at++], ids[6]);
    CHECK_EQ(at, all);
    CHECK_EQ(carat_media_expand(f.m, ids, n, f.picture, 1, full, 400, &e), -1);
    CHECK_EQ(e.status, E_ARG);
}
