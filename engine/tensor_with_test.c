/* tensor_with_test.c - what goes with a tensor split: adapters, drafters, pictures, pools of keys,
 * sparse prompts. Each has the same bits on any number of devices.
 *
 * CPU devices stand for GPUs.
 */
#include "base/mem.h"
#include "carat.h"
#include "engine/batch_int.h"
#include "image/image_test_int.h"
#include "tests/lora_rig.h"
#include "tests/mtp_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>
#include <string.h>

enum { RANKS = 4, CTX = 1024, PROMPT = 700, SHORT = 90, TOKENS = 24, JOBS = 4, MAX_VOCAB = 1024 };
static const char *const devices[RANKS] = {"cpu", "cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu"};

static carat_model *open_split(const char *path, carat_model_options o, int32_t n_ranks)
{
    carat_model *m;
    carat_error e = {0};
    o.device = devices[n_ranks - 1];
    o.split = "tensor";
    o.n_threads = 1;
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    CHECK_EQ(m->core.n_ranks, n_ranks);
    return m;
}

/* The same without a split: the sums of rows are others. */
static carat_model *open_whole(const char *path, carat_model_options o)
{
    carat_model *m;
    carat_error e = {0};
    o.device = "cpu";
    o.n_threads = 1;
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    return m;
}

static void check_near(const float *a, const float *b, int32_t n, const char *what)
{
    double d = 0, all = 0;
    for (int32_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)a[i] * a[i];
    }
    CHECK_MSG(sqrt(d / all) < 2e-3, "%s is %g off", what, sqrt(d / all));
}

static void fill(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = 5 + (7 + 31 * i + i * i) % 300;
}

/* Logits behind a prompt; then behind one that shares its first half. */
static void evaluate(carat_model *m, const carat_session_options *o, float logits[2][MAX_VOCAB])
{
    int32_t ids[PROMPT];
    carat_session *s;
    carat_error e = {0};
    CHECK(m->core.n_vocab <= MAX_VOCAB);
    fill(ids, PROMPT);
    CHECK_OK(carat_session_open(m, o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, PROMPT, logits[0], NULL, &e), e);
    ids[PROMPT / 2] ^= 1;
    CHECK_OK(carat_eval(s, ids, PROMPT, logits[1], NULL, &e), e);
    carat_session_close(s);
}

/* ---- Answers of a batch --------------------------------------------------------------------- */

typedef struct answer {
    int32_t ids[TOKENS], n, n_drafted;
    bool done;
} answer;

static bool keep(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n < TOKENS)
        a->ids[a->n++] = ev->id;
    return true;
}

static void ended(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    answer *a = user;
    CHECK_MSG(st == CARAT_OK, "%s", e ? e->text : "");
    a->n_drafted = (int32_t)t->n_drafted;
    a->done = true;
}

static void answer_all(carat_model *m, const carat_session_options *o, answer *out)
{
    carat_batch *b;
    carat_error e = {0};
    carat_batch_options bo = {.session = *o, .n_slots = 3};
    carat_generate_options g = {.max_tokens = TOKENS, .speculation = {.n_max = 4, .fixed = true}};
    int32_t ids[PROMPT];
    bool all = false;
    memset(out, 0, JOBS * sizeof *out);
    fill(ids, PROMPT);
    carat_sampling_default(m, &g.sampling);
    g.sampling.ignore_eog = true;
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int32_t i = 0; i < JOBS; i++) {
        int64_t id;
        g.sampling.seed = (uint32_t)i;
        carat_job j = {.ids = ids, .n = SHORT - 9 * i, .opt = &g, .fn = keep, .done = ended};
        j.user = &out[i];
        CHECK_OK(carat_batch_submit(b, &j, &id, NULL, &e), e);
    }
    while (!all) {
        carat_batch_step(b);
        all = true;
        for (int32_t i = 0; i < JOBS; i++)
            all = all && out[i].done;
    }
    carat_batch_close(b);
}

static void check_same(const answer *a, const answer *b, const char *what, int32_t n_ranks)
{
    for (int32_t i = 0; i < JOBS; i++)
        CHECK_MSG(a[i].n == TOKENS && b[i].n == TOKENS &&
                      !memcmp(a[i].ids, b[i].ids, sizeof a[i].ids),
                  "%s on %d devices, answer %d", what, n_ranks, i);
}

/* ---- Drafters ------------------------------------------------------------------------------- */

/* What the drafter proposes behind a prompt, by the model's hidden rows. */
static void propose(const char *path, const char *draft, int32_t n_ranks, proposal *out)
{
    int32_t ids[SHORT];
    carat_session *s;
    err e = {0};
    carat_model *m = open_split(path, (carat_model_options){.draft = draft}, n_ranks);
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    fill(ids, SHORT);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_append(s, ids, SHORT - 1, false, NULL, &e), e);
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                         .target = &s->b.slot->t.kv,
                         .id = ids,
                         .n = SHORT,
                         .n_slots = 4,
                         .n_ranks = 4,
                         .out = out};
    memset(out, 0, sizeof *out);
    CHECK_OK(d->class->propose(d, &a, 1, &e), e);
    CHECK(out->n_slots > 0);
    carat_session_close(s);
    carat_model_close(m);
}

/* The drafter is on the first rank, which has every tap; answers are those without drafts. */
static void drafts_change_nothing(const char *path, const char *draft)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    answer plain[JOBS], drafted[JOBS];
    carat_model *m = open_split(path, (carat_model_options){0}, 1);
    answer_all(m, &o, plain);
    CHECK_EQ(plain[0].n_drafted, 0);
    carat_model_close(m);
    int32_t first = 0;
    proposal want, got;
    propose(path, draft, 1, &want);
    for (int32_t r = 1; r <= RANKS; r++) {
        int32_t n = 0;
        propose(path, draft, r, &got);
        CHECK_MSG(!memcmp(&want, &got, sizeof want), "%s on %d devices", draft, r);
        m = open_split(path, (carat_model_options){.draft = draft}, r);
        answer_all(m, &o, drafted);
        check_same(plain, drafted, draft, r);
        for (int32_t i = 0; i < JOBS; i++)
            n += drafted[i].n_drafted;
        first = r == 1 ? n : first;
        CHECK(n > 0 && n == first); /* the same drafts */
        carat_model_close(m);
    }
}

PLAIN_TEST(drafters_of_tensor_splits_change_no_answer)
{
    const char *path = synth_file("tiny-qwen35-keys", "f32", "--nextn", NULL);
    drafts_change_nothing(path, "nextn");
    drafts_change_nothing(path, synth_file("dflash-tiny-qwen35", "f32", "--dialect", "llama.cpp"));
    path = mem_strdup(toy_model_write(&(toy_model_file){.base = "e2b"}));
    drafts_change_nothing(path, toy_model_write(&(toy_model_file){.base = "dense"}));
}

/* An assistant attends to the model's own keys, which are on all ranks. One that nobody named gives
 * way to lookup. */
TEST(mtp_assistants_are_refused_on_several_ranks)
{
    AUTO_MEM char *path = mem_strdup(toy_model_write(&(toy_model_file){.wide_heads = true}));
    carat_model *m;
    carat_error e = {0};
    CHECK_OK(carat_model_open(path, NULL, &m, &e), e);
    const mtp_rig_file f = {.n_vocab = m->core.n_vocab};
    carat_model_close(m);
    const char *file = mtp_rig_write(&f);
    carat_model_options o = {.device = devices[1], .split = "tensor", .draft = file};
    CHECK_STATUS(carat_model_open(path, &o, &m, &e), E_UNSUPPORTED);
    CHECK_MSG(!m && strstr(e.text, "MTP assistant"), "%s", e.text);
    AUTO_MEM char *bytes;
    size_t n;
    e = (carat_error){0};
    CHECK_OK(file_read_all(file, 1 << 24, &bytes, &n, &e), e);
    const carat_bytes held = {bytes, n, "mtp"};
    o.draft = "auto";
    o.draft_bytes = &held;
    o.n_draft_bytes = 1;
    carat_model_info info;
    for (int i = 0; i < 2; i++) { /* one device has all keys */
        o.device = devices[i];
        CHECK_OK(carat_model_open(path, &o, &m, &e), e);
        carat_model_get_info(m, &info);
        CHECK_STR(info.drafter, i ? "lookup" : "mtp");
        CHECK_MSG(!i || strstr(info.drafter_why, "no device has all keys"), "%s", info.drafter_why);
        carat_model_close(m);
    }
}

/* ---- Sessions ------------------------------------------------------------------------------- */

static void same_sessions(const char *path, carat_model_options mo, carat_session_options so)
{
    static float plain[2][MAX_VOCAB], one[2][MAX_VOCAB], more[2][MAX_VOCAB];
    so.n_ctx = CTX;
    so.chunk = 32;
    so.checkpoint_mb = -1;
    const carat_session_options usual = {.n_ctx = CTX, .chunk = 32, .checkpoint_mb = -1};
    carat_model *m = open_split(path, (carat_model_options){0}, 1);
    evaluate(m, &usual, plain);
    carat_model_close(m);
    m = open_whole(path, mo);
    evaluate(m, &so, more);
    const int32_t n = m->core.n_vocab;
    carat_model_close(m);
    for (int32_t r = 1; r <= RANKS; r++) {
        m = open_split(path, mo, r);
        evaluate(m, &so, r == 1 ? one : more);
        if (r == 1) {
            CHECK(memcmp(one[0], plain[0], (size_t)n * sizeof *plain[0])); /* it does something */
            check_near(more[0], one[0], n, path);
            check_near(more[1], one[1], n, path);
        }
        CHECK_MSG(r == 1 || !memcmp(one, more, sizeof one), "%s on %d devices", path, r);
        carat_model_close(m);
    }
}

/* Prompts whose attention leaves keys out, head by head. */
PLAIN_TEST(sparse_prompts_are_the_same_on_any_number_of_devices)
{
    const carat_session_options o = {.sparse = "skip:1000000"};
    same_sessions(synth_file("tiny-qwen3", "f32", NULL, NULL), (carat_model_options){0}, o);
    same_sessions(synth_file("tiny-qwen35-keys", "f32", NULL, NULL), (carat_model_options){0}, o);
}

/* The oldest pages leave the devices. */
PLAIN_TEST(pools_are_the_same_on_any_number_of_devices)
{
    const carat_session_options o = {.kv_resident = 512, .kv_policy = "lru"};
    same_sessions(synth_file("tiny-qwen3", "f32", NULL, NULL), (carat_model_options){0}, o);
}

/* ---- Adapters ------------------------------------------------------------------------------- */

PLAIN_TEST(adapters_are_the_same_on_any_number_of_devices)
{
    static const char *const sizes[] = {"tiny-qwen3", "tiny-qwen35-keys", "tiny-qwen3moe",
                                        "tiny-all"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *path = synth_file(sizes[i], "f32", NULL, NULL);
        const char *at = mem_strdup(test_temp("adapter.gguf"));
        lora_rig_adapter(path, at, &(lora_recipe){.rank = 4, .alpha = 8, .seed = 5});
        const carat_lora l = {at, 0.75f};
        same_sessions(path, (carat_model_options){.loras = &l, .n_loras = 1},
                      (carat_session_options){0});
    }
}

/* ---- Pictures ------------------------------------------------------------------------------- */

/* The tower is on the first rank; every rank gets its rows, and places on axes. */
static void look(carat_model *m, float *logits)
{
    enum { BEFORE = 5, AFTER = 20, MOST = 200, WIDTH = 40, HEIGHT = 30 };
    const carat_image_options o = {.n_tokens = 70};
    int32_t ids[MOST];
    carat_media *picture;
    carat_session *s;
    carat_error e = {0};
    image i;
    test_picture(&i, 0, WIDTH, HEIGHT);
    CHECK_OK(carat_image_new(m, i.rgb, WIDTH, HEIGHT, &o, &picture, &e), e);
    image_free(&i);
    int32_t n = carat_media_n(picture);
    CHECK(n > 0 && BEFORE + n + AFTER <= MOST && m->core.n_vocab <= MAX_VOCAB);
    fill(ids, MOST);
    for (int32_t k = 0; k < n; k++)
        ids[BEFORE + k] = carat_media_id(picture) - k;
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, BEFORE + n + AFTER, logits, NULL, &e), e);
    carat_session_close(s);
    carat_media_free(picture);
}

PLAIN_TEST(pictures_are_the_same_on_any_number_of_devices)
{
    static const char *const of[][2] = {{"tiny-qwen35-keys", "tiny-mmproj-qwen"},
                                        {"tiny-ple", "tiny-mmproj-clamped"}};
    static float one[MAX_VOCAB], more[MAX_VOCAB];
    for (int i = 0; i < 2; i++) {
        const char *path = synth_file(of[i][0], "f32", NULL, NULL);
        const char *tower = synth_file(of[i][1], "f32", NULL, NULL);
        carat_model *whole = open_whole(path, (carat_model_options){.mmproj = tower});
        look(whole, more);
        for (int32_t r = 1; r <= RANKS; r++) {
            carat_model *m = open_split(path, (carat_model_options){.mmproj = tower}, r);
            look(m, r == 1 ? one : more);
            if (r == 1)
                check_near(more, one, m->core.n_vocab, path);
            CHECK_MSG(r == 1 || !memcmp(one, more, sizeof one), "%s on %d devices", path, r);
            carat_model_close(m);
        }
        carat_model_close(whole);
    }
}
