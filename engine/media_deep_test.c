/* media_deep_test.c - pictures in a tiny Qwen3-VL, dense and with experts, against transformers
 * from their pixels on: the tower with deepstack, rows that are added behind the first layers, and
 * positions on three axes. In chunks of every size, after restored states, and beside other slots.
 */
#include "base/mem.h"
#include "tests/answers.h"
#include "tests/deep_prompt.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static carat_session *open_session(const deep_prompt *x, int32_t chunk)
{
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = chunk, .n_outputs = chunk, .kv_k = "f32", .checkpoint_mb = -1};
    carat_session *s;
    err e = {0};
    CHECK_OK(carat_session_open(x->m, &o, &s, &e), e);
    return s;
}

typedef struct rows {
    float *at; /* [ALL][n_vocab] */
    int32_t n_vocab;
} rows;

static bool take(void *user, int64_t first, int64_t n, const float *from)
{
    rows *r = user;
    memcpy(r->at + first * r->n_vocab, from, (size_t)(n * r->n_vocab) * sizeof *from);
    return true;
}

TEST(media_deep_logits_are_those_of_transformers)
{
    static float want[ALL * COLS];
    static const int32_t chunks[] = {ALL, 1, 3, 16, 33};
    FILE *f = fopen(test_path("tests/data/images/deep.f32"), "rb");
    CHECK(f);
    for (int k = 0; k < DEEP_SIZES; k++) {
        AUTO(deep_end) deep_prompt x = {0};
        err e = {0};
        double worst = 0;
        CHECK_EQ(fread(want, sizeof *want, ALL * COLS, f), ALL * COLS);
        deep_begin(&x, deep_sizes[k], "cpu");
        size_t n = (size_t)ALL * (size_t)x.n_vocab;
        rows first = {mem_calloc(n, sizeof(float)), x.n_vocab},
             next = {mem_calloc(n, sizeof(float)), x.n_vocab};
        for (int i = 0; i < 5; i++) {
            AUTO_SESSION *s = open_session(&x, chunks[i]);
            CHECK_OK(carat_eval_rows(s, x.ids, ALL, take, i ? &next : &first, &e), e);
            CHECK_MSG(!i || !memcmp(first.at, next.at, n * sizeof(float)),
                      "%s, chunks of %d: other logits", deep_sizes[k], chunks[i]);
        }
        for (int32_t r = 0; r < ALL; r++)
            for (int32_t c = 0; c < COLS; c++) {
                double d = fabs((double)first.at[r * x.n_vocab + c] - want[r * COLS + c]);
                worst = d > worst || isnan(d) ? d : worst;
            }
        CHECK_MSG(worst < 2e-4, "%s: a logit is %g apart", deep_sizes[k], worst);
        mem_free(first.at);
        mem_free(next.at);
    }
    CHECK(fgetc(f) == EOF);
    fclose(f);
}

/* In the middle of a picture, behind it, and in the text after both; and by a reused prefix. */
TEST(media_deep_after_restored_states)
{
    static const int32_t cuts[] = {HEAD + 7, SECOND, ALL - 3};
    AUTO(deep_end) deep_prompt x = {0};
    err e = {0};
    int32_t text[40];
    deep_begin(&x, deep_sizes[0], "cpu");
    for (int32_t k = 0; k < 40; k++)
        text[k] = deep_word(60 + k);
    size_t n = (size_t)x.n_vocab;
    AUTO_MEM float *want = mem_calloc(n, sizeof *want), *got = mem_calloc(n, sizeof *got);
    carat_session *s = open_session(&x, 16), *plain = open_session(&x, 16);
    CHECK_OK(carat_eval(plain, x.ids, ALL, want, NULL, &e), e);
    for (int i = 0; i < 3; i++) {
        AUTO_PTR(carat_snapshot_free) carat_snapshot *k;
        carat_reset(s);
        CHECK_OK(carat_eval(s, x.ids, cuts[i], got, NULL, &e), e);
        CHECK_OK(carat_snapshot_take(s, &k, &e), e);
        CHECK_OK(carat_eval(s, text, 40, got, NULL, &e), e);
        CHECK_OK(carat_snapshot_restore(s, k, &e), e);
        CHECK_OK(carat_append(s, x.ids + cuts[i], ALL - cuts[i], false, got, &e), e);
        CHECK_MSG(!memcmp(got, want, n * sizeof *got), "restored at %d: other logits", cuts[i]);
    }
    int64_t reused = 0;
    CHECK_OK(carat_eval(s, x.ids, SECOND, got, NULL, &e), e);
    CHECK_OK(carat_eval(s, x.ids, ALL, got, &reused, &e), e);
    CHECK(reused > HEAD + SOFT && !memcmp(got, want, n * sizeof *got));
    carat_session_close(s);
    carat_session_close(plain);
}

/* Three prompts at once: their rows share passes, and deepstack finds its own. */
TEST(media_deep_beside_other_slots)
{
    enum { JOBS = 3 };
    AUTO(deep_end) deep_prompt x = {0};
    err e = {0};
    deep_begin(&x, deep_sizes[1], "cpu");
    const int32_t from[JOBS] = {0, HEAD + SOFT, SECOND + SOFT_2};
    static question q[JOBS];
    answer want[JOBS], got[JOBS];
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 16, .kv_k = "f32", .checkpoint_mb = -1};
    const carat_batch_options bo = {.session = so, .n_slots = JOBS};
    AUTO_BATCH *b;
    CHECK_OK(carat_batch_open(x.m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        question_ask(&q[i], x.ids + from[i], ALL - from[i], ANSWER);
        answer_alone(x.m, &so, &q[i], &want[i]);
        answer_submit(b, &q[i], &got[i]);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(want[i].n, ANSWER);
        answer_check(&got[i], &want[i], i);
    }
}

/* Both make embeddings of the same width by a tower of the same name. */
TEST(media_deep_towers_go_with_their_models)
{
    static const char *const pair[][3] = {
        {"tiny-qwen3-vl", "tiny-mmproj-qwen", "has deepstack for 0 layers of the text model"},
        {"tiny-qwen35", "tiny-mmproj-qwen3-vl", "has deepstack for 2 layers of the text model"}};
    for (int i = 0; i < 2; i++) {
        char tower[300];
        carat_model *m;
        err e = {0};
        snprintf(tower, sizeof tower, "%s", deep_made(pair[i][1], "tower.gguf"));
        const carat_model_options mo = {.n_threads = 1, .mmproj = tower};
        CHECK_STATUS(carat_model_open(deep_made(pair[i][0], "text.gguf"), &mo, &m, &e),
                     E_UNSUPPORTED);
        CHECK_MSG(strstr(e.text, pair[i][2]), "%s", e.text);
    }
}
