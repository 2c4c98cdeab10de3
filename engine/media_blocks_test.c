/* media_blocks_test.c - pictures whose tokens see each other, in a tiny Gemma 4 without per-layer
 * embeddings, against transformers: blocks longer than the window and the ring, chunks, reused
 * prefixes, and other slots beside them.
 */
#include "apps/commands.h"
#include "base/mem.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "tests/answers.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

/* As tools/media_fixture.py has them. */
enum { SEED = 9000, HEAD = 5, SOFT = 63, BETWEEN = 2, TAIL = 9, COLS = 64 };
enum { SECOND = HEAD + SOFT + BETWEEN, ALL = SECOND + SOFT + TAIL, CTX = 256, ANSWER = 6 };

typedef struct fixture {
    fidelity f;
    carat_model *m;
    carat_media *picture[2];
    int32_t ids[ALL], n_vocab;
} fixture;

/* The tower's rows are replaced by those of the fixture. */
static void set_rows(fixture *x, int i)
{
    soft_run run;
    media_item *held;
    int32_t n_held = 1;
    err e = {0};
    CHECK_OK(media_rows(x->m, x->ids + (i ? SECOND : HEAD), SOFT, &run, &held, &e), e);
    CHECK_EQ(run.n, SOFT);
    fidelity_draw((float *)(uintptr_t)run.at, (uint64_t)SOFT * (uint64_t)x->m->core.n_embd,
                  (uint64_t)(SEED + i), 0, 2);
    media_leave(x->m, &held, &n_held);
}

static void begin(fixture *x)
{
    const char *tower = test_temp("tower.gguf");
    const char *make[] = {"tiny-mmproj-clamped", tower, "--type", "f32"};
    const carat_image_options o = {.n_tokens = 70};
    err e = {0};
    *x = (fixture){.n_vocab = 0};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    fidelity_open(&x->f, "dense");
    const carat_model_options mo = {.n_threads = 1, .exact_f32 = true, .mmproj = tower};
    CHECK_OK(carat_model_open(fidelity_write(&x->f, NULL), &mo, &x->m, &e), e);
    x->n_vocab = x->f.n_vocab;
    for (int32_t k = 0; k < ALL; k++)
        x->ids[k] = x->f.tokens[k % x->f.n_tokens];
    for (int i = 0; i < 2; i++) {
        image picture;
        test_picture(&picture, i, 40, 30);
        CHECK_OK(carat_image_new(x->m, picture.rgb, 40, 30, &o, &x->picture[i], &e), e);
        image_free(&picture);
        CHECK_EQ(carat_media_n(x->picture[i]), SOFT);
        for (int32_t k = 0; k < SOFT; k++)
            x->ids[(i ? SECOND : HEAD) + k] = carat_media_id(x->picture[i]) - k;
        set_rows(x, i);
    }
}

static void end(fixture *x)
{
    carat_media_free(x->picture[0]);
    carat_media_free(x->picture[1]);
    carat_model_close(x->m);
    fidelity_close(&x->f);
}

static carat_session *open_session(const fixture *x, int32_t chunk)
{
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = chunk, .n_outputs = chunk, .kv_k = "f32", .checkpoint_mb = -1};
    carat_session *s;
    err e = {0};
    CHECK_OK(carat_session_open(x->m, &o, &s, &e), e);
    return s;
}

static void read_golden(float *to)
{
    FILE *f = fopen(test_path("tests/data/fidelity/blocks.f32"), "rb");
    CHECK(f);
    CHECK_EQ(fread(to, sizeof *to, ALL * COLS, f), ALL * COLS);
    CHECK(fgetc(f) == EOF);
    fclose(f);
}

typedef struct worst {
    const float *want;
    int32_t n_vocab;
    double apart;
} worst;

static bool compare(void *user, int64_t first, int64_t n, const float *rows)
{
    worst *w = user;
    for (int64_t r = 0; r < n; r++)
        for (int32_t c = 0; c < COLS; c++) {
            double d = fabs((double)rows[r * w->n_vocab + c] - w->want[(first + r) * COLS + c]);
            if (d > w->apart || isnan(d))
                w->apart = d;
        }
    return true;
}

TEST(media_blocks_are_those_of_transformers)
{
    static float want[ALL * COLS];
    static const int32_t chunks[] = {SOFT, 100, ALL};
    AUTO(end) fixture x;
    err e = {0};
    begin(&x);
    read_golden(want);
    for (int i = 0; i < 3; i++) {
        worst w = {want, x.n_vocab, 0};
        AUTO_SESSION *s = open_session(&x, chunks[i]);
        CHECK_OK(carat_eval_rows(s, x.ids, ALL, compare, &w, &e), e);
        CHECK_MSG(w.apart < 2e-3, "chunks of %d: a logit is %g apart", chunks[i], w.apart);
    }
}

static bool ignore(void *user, int64_t first, int64_t n, const float *rows)
{
    (void)user, (void)first, (void)n, (void)rows;
    return true;
}

/* Passes are as long as a picture where chunks are shorter. Logits of all rows have no room then.
 */
TEST(media_blocks_are_never_cut)
{
    static const int32_t chunks[] = {ALL, 1, 7, 33, 64};
    AUTO(end) fixture x;
    err e = {0};
    begin(&x);
    AUTO_MEM float *want = mem_calloc((size_t)x.n_vocab, sizeof *want),
                   *got = mem_calloc((size_t)x.n_vocab, sizeof *got);
    for (int i = 0; i < 5; i++) {
        AUTO_SESSION *s = open_session(&x, chunks[i]);
        CHECK_OK(carat_eval(s, x.ids, ALL, i ? got : want, NULL, &e), e);
        CHECK_MSG(!i || !memcmp(got, want, (size_t)x.n_vocab * sizeof *got),
                  "chunks of %d: other logits", chunks[i]);
        if (chunks[i] < SOFT)
            CHECK_STATUS(carat_eval_rows(s, x.ids, ALL, ignore, NULL, &e), E_LIMIT);
        e = (err){0};
    }
    /* What is kept of a prompt ends before a picture or behind it. */
    AUTO_SESSION *s = open_session(&x, 33);
    CHECK_OK(carat_eval(s, x.ids, SECOND + SOFT, want, NULL, &e), e);
    CHECK(!carat_rewind(s, SECOND + 10));
    int64_t reused = -1;
    CHECK_OK(carat_eval(s, x.ids, SECOND + SOFT, got, &reused, &e), e);
    CHECK(reused <= SECOND);
    CHECK(!memcmp(got, want, (size_t)x.n_vocab * sizeof *got));
    CHECK_STATUS(carat_eval(s, x.ids, SECOND + 10, got, NULL, &e), E_ARG);
    e = (err){0};
    CHECK_STATUS(carat_eval(s, x.ids + HEAD + 1, SOFT, got, NULL, &e), E_ARG);
}

/* Two prompts with pictures and one of text, which take turns in short chunks beside answers. */
TEST(media_blocks_beside_other_slots)
{
    enum { JOBS = 3 };
    AUTO(end) fixture x;
    err e = {0};
    static question q[JOBS];
    answer alone[JOBS], beside[JOBS];
    AUTO_BATCH *b;
    begin(&x);
    const struct {
        int32_t from, n;
    } part[JOBS] = {{0, ALL}, {HEAD + SOFT, BETWEEN + SOFT + TAIL}, {SECOND + SOFT, TAIL}};
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 16, .kv_k = "f32", .checkpoint_mb = -1};
    const carat_batch_options bo = {.session = so, .n_slots = JOBS};
    CHECK_OK(carat_batch_open(x.m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        question_ask(&q[i], x.ids + part[i].from, part[i].n, ANSWER);
        answer_alone(x.m, &so, &q[i], &alone[i]);
        answer_submit(b, &q[i], &beside[i]);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(alone[i].n, ANSWER);
        answer_check(&beside[i], &alone[i], i);
    }
}
