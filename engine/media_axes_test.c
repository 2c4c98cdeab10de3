/* media_axes_test.c - pictures in a tiny Qwen3.5, whose positions are on three axes, against
 * transformers: chunks, restored states, reused prefixes, drafts of the NextN layer and trees of
 * drafts after pictures, and other slots beside them.
 */
#include "apps/commands.h"
#include "base/mem.h"
#include "carat_bench.h"
#include "engine/media.h"
#include "engine/batch_int.h"
#include "image/image_test_int.h"
#include "tests/answers.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

/* As tools/axes_fixture.py has them. */
enum { SEED = 9100, HEAD = 5, SOFT = 20, BETWEEN = 3, SOFT_2 = 22, TAIL = 20, COLS = 64 };
enum { DRAFTS = 4, RANKS = 8 };
enum { SECOND = HEAD + SOFT + BETWEEN, ALL = SECOND + SOFT_2 + TAIL, CTX = 256, ANSWER = 24 };
static const int32_t width[2] = {40, 90}, height[2] = {30, 20}; /* 5 x 4 and 11 x 2 tokens */

typedef struct fixture {
    fidelity f;
    carat_model *m;
    carat_media *picture[2];
    int32_t ids[ALL], n_vocab;
} fixture;

static int32_t first_of(int i)
{
    return i ? SECOND : HEAD;
}

/* The tower's rows are replaced by those of the fixture. */
static void set_rows(fixture *x, int i)
{
    soft_run run;
    media_item *held;
    int32_t n_held = 1;
    err e = {0};
    int32_t n = carat_media_n(x->picture[i]);
    CHECK_OK(media_rows(x->m, x->ids + first_of(i), n, &run, &held, &e), e);
    CHECK_EQ(run.n, n);
    fidelity_draw((float *)(uintptr_t)run.at, (uint64_t)n * (uint64_t)x->m->core.n_embd,
                  (uint64_t)(SEED + i), 0, 1);
    media_leave(x->m, &held, &n_held);
}

static void begin(fixture *x, const char *name)
{
    const char *tower = test_temp("tower.gguf");
    const char *make[] = {"tiny-mmproj-qwen", tower, "--type", "f32"};
    const carat_image_options o = {.n_tokens = 70};
    err e = {0};
    *x = (fixture){.n_vocab = 0};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    fidelity_open(&x->f, name);
    const carat_model_options mo = {
        .n_threads = 1, .exact_f32 = true, .mmproj = tower, .draft = "auto"};
    CHECK_OK(carat_model_open(fidelity_write(&x->f, NULL), &mo, &x->m, &e), e);
    x->n_vocab = x->f.n_vocab;
    for (int32_t k = 0; k < ALL; k++)
        x->ids[k] = x->f.tokens[k % x->f.n_tokens];
    for (int i = 0; i < 2; i++) {
        image picture;
        test_picture(&picture, i, width[i], height[i]);
        CHECK_OK(carat_image_new(x->m, picture.rgb, width[i], height[i], &o, &x->picture[i], &e),
                 e);
        image_free(&picture);
        CHECK_EQ(carat_media_n(x->picture[i]), i ? SOFT_2 : SOFT);
        for (int32_t k = 0; k < carat_media_n(x->picture[i]); k++)
            x->ids[first_of(i) + k] = carat_media_id(x->picture[i]) - k;
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

/* Without its last token, its first, one in the middle. */
TEST(pictures_on_axes_are_whole)
{
    static const int lacks[] = {HEAD, HEAD + 7, HEAD + SOFT - 1};
    const carat_session_options o = {.n_ctx = CTX};
    AUTO(end) fixture x;
    AUTO_SESSION *s;
    err e = {0};
    begin(&x, "qwen35-nextn");
    CHECK_OK(carat_session_open(x.m, &o, &s, &e), e);
    for (int i = 0; i < 3; i++) {
        int32_t ids[ALL];
        memcpy(ids, x.ids, sizeof ids);
        memmove(ids + lacks[i], ids + lacks[i] + 1, (size_t)(ALL - lacks[i] - 1) * sizeof *ids);
        err_clear(&e);
        CHECK_STATUS(carat_eval(s, ids, ALL - 1, NULL, NULL, &e), E_ARG);
        CHECK_MSG(strstr(e.text, "lacks some of its tokens, and the positions"), "%s", e.text);
    }
    err_clear(&e);
    CHECK_OK(carat_eval(s, x.ids, HEAD + SOFT - 1, NULL, NULL, &e), e); /* it may go on, */
    CHECK_STATUS(carat_append(s, x.ids, 1, false, NULL, &e), E_ARG);    /* but not otherwise */
    err_clear(&e);
    CHECK_OK(carat_append(s, x.ids + HEAD + SOFT - 1, 2, false, NULL, &e), e);
    CHECK_OK(carat_eval(s, x.ids, ALL, NULL, NULL, &e), e);
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

static void read_golden(float *to, int64_t at, size_t n)
{
    FILE *f = fopen(test_path("tests/data/fidelity/axes.f32"), "rb");
    CHECK(f && !fseek(f, (long)at * (long)sizeof *to, SEEK_SET));
    CHECK_EQ(fread(to, sizeof *to, n, f), n);
    fclose(f);
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

TEST(media_axes_are_those_of_transformers)
{
    static float want[ALL * COLS];
    static const int32_t chunks[] = {ALL, 1, 3, 16, 33};
    AUTO(end) fixture x;
    err e = {0};
    double worst = 0;
    begin(&x, "qwen35");
    read_golden(want, 0, ALL * COLS);
    size_t n = (size_t)ALL * (size_t)x.n_vocab;
    rows first = {mem_calloc(n, sizeof(float)), x.n_vocab},
         next = {mem_calloc(n, sizeof(float)), x.n_vocab};
    for (int i = 0; i < 5; i++) {
        AUTO_SESSION *s = open_session(&x, chunks[i]);
        CHECK_OK(carat_eval_rows(s, x.ids, ALL, take, i ? &next : &first, &e), e);
        CHECK_MSG(!i || !memcmp(first.at, next.at, n * sizeof(float)), "chunks of %d: other logits",
                  chunks[i]);
    }
    for (int32_t r = 0; r < ALL; r++)
        for (int32_t c = 0; c < COLS; c++) {
            double d = fabs((double)first.at[r * x.n_vocab + c] - want[r * COLS + c]);
            worst = d > worst || isnan(d) ? d : worst;
        }
    CHECK_MSG(worst < 1e-3, "a logit is %g apart", worst);
    mem_free(first.at);
    mem_free(next.at);
}

/* Its own limit is 16,384 tokens; memory is planned for fewer. */
TEST(media_axes_native_size_is_bounded)
{
    const carat_image_options native = {.n_tokens = CARAT_IMAGE_NATIVE};
    AUTO(end) fixture x;
    err e = {0};
    int32_t n = 0;
    begin(&x, "qwen35");
    CHECK_OK(carat_image_tokens(x.m, 160, 120, &native, &n, &e), e);
    CHECK_EQ(n, 20 * 15);
    CHECK_OK(carat_image_tokens(x.m, 4000, 3000, &native, &n, &e), e);
    CHECK_MSG(n > 1000 && n <= 1120, "%d tokens", n);
}

/* Where text goes on follows from the ids, so it is right after every way back. */
TEST(media_axes_after_restored_states)
{
    static const int32_t cuts[] = {HEAD + 7, SECOND, ALL - 3};
    AUTO(end) fixture x;
    err e = {0};
    begin(&x, "qwen35");
    size_t n = (size_t)x.n_vocab;
    AUTO_MEM float *want = mem_calloc(n, sizeof *want), *got = mem_calloc(n, sizeof *got);
    carat_session *s = open_session(&x, 16), *plain = open_session(&x, 16);
    CHECK_OK(carat_eval(plain, x.ids, ALL, want, NULL, &e), e);
    for (int i = 0; i < 3; i++) {
        AUTO_PTR(carat_snapshot_free) carat_snapshot *k;
        carat_reset(s);
        CHECK_OK(carat_eval(s, x.ids, cuts[i], got, NULL, &e), e);
        CHECK_OK(carat_snapshot_take(s, &k, &e), e);
        CHECK_OK(carat_eval(s, x.f.tokens + 9, 40, got, NULL, &e), e); /* text, and as long */
        CHECK_OK(carat_snapshot_restore(s, k, &e), e);
        CHECK_OK(carat_append(s, x.ids + cuts[i], ALL - cuts[i], false, got, &e), e);
        CHECK_MSG(!memcmp(got, want, n * sizeof *got), "restored at %d: other logits", cuts[i]);
    }
    /* A prompt that goes on in another way behind the first picture, and back. */
    int64_t reused;
    CHECK_OK(carat_eval(s, x.ids, ALL, got, NULL, &e), e);
    CHECK_OK(carat_eval(s, x.ids, ALL, got, &reused, &e), e);
    CHECK(!memcmp(got, want, n * sizeof *got));
    carat_session_close(s);
    carat_session_close(plain);
}

/* Texts of a model with a tower have the bits of one without. */
TEST(media_axes_of_text_are_positions)
{
    AUTO(end) fixture x;
    err e = {0};
    begin(&x, "qwen35");
    size_t n = (size_t)x.n_vocab;
    AUTO_MEM float *want = mem_calloc(n, sizeof *want), *got = mem_calloc(n, sizeof *got);
    carat_session *s = open_session(&x, 16), *plain;
    const carat_model_options mo = {.n_threads = 1, .exact_f32 = true};
    AUTO_MODEL *blind;
    CHECK_OK(carat_model_open(fidelity_write(&x.f, NULL), &mo, &blind, &e), e);
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .kv_k = "f32"};
    CHECK_OK(carat_session_open(blind, &o, &plain, &e), e);
    CHECK_OK(carat_eval(s, x.f.tokens, 60, got, NULL, &e), e);
    CHECK_OK(carat_eval(plain, x.f.tokens, 60, want, NULL, &e), e);
    CHECK(!memcmp(got, want, n * sizeof *got));
    carat_session_close(plain);
    carat_session_close(s);
}

/* The NextN layer embeds rows of pictures, and its keys are at the places of their tokens. */
TEST(media_axes_of_drafts_are_those_of_transformers)
{
    static const int32_t chunks[] = {ALL, 1, 7, 33};
    float want[2 * DRAFTS * RANKS];
    AUTO(end) fixture x;
    begin(&x, "qwen35-nextn");
    read_golden(want, ALL * COLS, 2 * DRAFTS * RANKS);
    for (int c = 0; c < 4; c++) {
        AUTO_SESSION *s = open_session(&x, chunks[c]);
        drafter *d = s->b.rounds->d[DRAFTER_MODEL];
        proposal p = {0};
        err e = {0};
        CHECK_OK(carat_append(s, x.ids, ALL - 1, false, NULL, &e), e);
        const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                             .target = &s->b.slot->t.kv,
                             .id = x.ids,
                             .n = ALL,
                             .n_slots = DRAFTS,
                             .n_ranks = RANKS,
                             .at = timeline_place(session_timeline(s)).next,
                             .out = &p};
        CHECK_OK(d->class->propose(d, &a, 1, &e), e);
        CHECK_EQ(p.n_slots, DRAFTS);
        for (int k = 0; k < DRAFTS * RANKS; k++) {
            float logp = p.logp[k / RANKS][k % RANKS], far = fabsf(logp - want[DRAFTS * RANKS + k]);
            CHECK_MSG(p.id[k / RANKS][k % RANKS] == (int32_t)want[k] && far < 1e-3f,
                      "chunks of %d, draft %d: %d (%g), transformers %g (%g)", chunks[c], k,
                      p.id[k / RANKS][k % RANKS], (double)logp, (double)want[k],
                      (double)want[DRAFTS * RANKS + k]);
        }
    }
}

/* By the NextN layer, whose drafts also need the places, in chains and in trees; alone, and in a
 * batch with a prompt of text. */
TEST(media_axes_of_drafts)
{
    enum { JOBS = 3 };
    AUTO(end) fixture x;
    err e = {0};
    answer want[JOBS] = {0};
    begin(&x, "qwen35-nextn");
    const struct {
        int32_t from, n;
    } part[JOBS] = {{0, ALL}, {HEAD + SOFT, BETWEEN + SOFT_2 + TAIL}, {SECOND + SOFT_2, TAIL}};
    carat_generate_options o = {.max_tokens = ANSWER};
    carat_sampling_neutral(&o.sampling);
    o.sampling.temperature = 0;
    o.sampling.ignore_eog = true;
    o.speculation.off = true;
    for (int i = 0; i < JOBS; i++) {
        AUTO_SESSION *s = open_session(&x, 16);
        CHECK_OK(carat_generate(s, x.ids + part[i].from, part[i].n, &o, answer_heard, &want[i],
                                NULL, &e),
                 e);
    }
    o.speculation = (carat_speculation){.n_max = 3, .fixed = true};
    for (int tree = 0; tree < 2; tree++) {
        o.speculation.tree_max = tree ? 8 : -1;
        const carat_session_options so = {.n_ctx = CTX,
                                          .chunk = 16,
                                          .kv_k = "f32",
                                          .draft_max = 3,
                                          .draft_tree = tree ? 8 : 0,
                                          .checkpoint_mb = -1};
        const carat_batch_options bo = {.session = so, .n_slots = JOBS};
        answer alone[JOBS] = {0}, beside[JOBS] = {0};
        AUTO_BATCH *b;
        for (int i = 0; i < JOBS; i++) {
            AUTO_SESSION *s;
            CHECK_OK(carat_session_open(x.m, &so, &s, &e), e);
            CHECK_OK(carat_generate(s, x.ids + part[i].from, part[i].n, &o, answer_heard, &alone[i],
                                    NULL, &e),
                     e);
            CHECK_MSG(!memcmp(alone[i].ids, want[i].ids, ANSWER * sizeof *want[i].ids),
                      "job %d, tree %d: drafts change the answer", i, tree);
            /* The same by drafts of which three are right. */
            static const int32_t right[] = {3};
            const carat_script script = {
                .answer = want[i].ids, .n_answer = ANSWER, .accept = right, .n_accept = 1};
            carat_generate_options by_script = o;
            by_script.script = &script;
            alone[i].n = 0;
            CHECK_OK(carat_generate(s, x.ids + part[i].from, part[i].n, &by_script, answer_heard,
                                    &alone[i], NULL, &e),
                     e);
            CHECK_MSG(!memcmp(alone[i].ids, want[i].ids, ANSWER * sizeof *want[i].ids),
                      "job %d, tree %d: accepted drafts change the answer", i, tree);
        }
        CHECK_OK(carat_batch_open(x.m, &bo, &b, &e), e);
        for (int i = 0; i < JOBS; i++) {
            const carat_job j = {.ids = x.ids + part[i].from,
                                 .n = part[i].n,
                                 .opt = &o,
                                 .fn = answer_heard,
                                 .done = answer_done,
                                 .user = &beside[i]};
            CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
        }
        while (carat_batch_step(b))
            ;
        for (int i = 0; i < JOBS; i++) {
            CHECK(beside[i].n_done && !beside[i].st);
            CHECK_EQ(beside[i].n, ANSWER);
            CHECK_MSG(!memcmp(beside[i].ids, want[i].ids, ANSWER * sizeof *want[i].ids),
                      "job %d, tree %d: others change the answer", i, tree);
        }
    }
}
