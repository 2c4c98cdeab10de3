/* media_disk_test.c - conversations with pictures that outlive the program: a picture is known
 * again by its pixels and its size in tokens, and costs no tower pass; another one is never taken
 * for it.
 */
#include "apps/commands.h"
#include "base/mem.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>

enum { CTX = 256, HEAD = 5, TAIL = 9, WIDTH = 40, HEIGHT = 30 };

typedef struct process {
    carat_model *m;
    int32_t n_vocab;
    int n_passes; /* of the tower */
} process;

static void count(void *user)
{
    ++*(int *)user;
}

static void write_tower(const char *path, const char *seed)
{
    const char *make[] = {"tiny-mmproj-clamped", path, "--type", "f32", "--seed", seed};
    CHECK_EQ(command_synth.run(&command_synth, 6, (char **)make), 0);
}

static void start(process *p, const char *text, const char *tower)
{
    const carat_model_options o = {.n_threads = 1, .exact_f32 = true, .mmproj = tower};
    carat_model_info info;
    err e = {0};
    *p = (process){0};
    CHECK_OK(carat_model_open(text, &o, &p->m, &e), e);
    carat_model_get_info(p->m, &info);
    p->n_vocab = info.n_vocab;
    media_before_work(p->m, count, &p->n_passes);
}

/* changed: in one pixel. */
static carat_media *picture_of(process *p, int64_t seed, int32_t budget, bool changed)
{
    const carat_image_options o = {.n_tokens = budget};
    AUTO(image_free) image picture;
    carat_media *x;
    err e = {0};
    test_picture(&picture, seed, WIDTH, HEIGHT);
    picture.rgb[3 * WIDTH * HEIGHT - 1] ^= changed;
    CHECK_OK(carat_image_new(p->m, picture.rgb, WIDTH, HEIGHT, &o, &x, &e), e);
    return x;
}

static int64_t prompt_of(int32_t *ids, const carat_media *x)
{
    int64_t n = 0;
    for (int i = 0; i < HEAD; i++)
        ids[n++] = 10 + i;
    for (int32_t k = 0; k < carat_media_n(x); k++)
        ids[n++] = carat_media_id(x) - k;
    for (int i = 0; i < TAIL; i++)
        ids[n++] = 20 + i;
    return n;
}

/* Logits after ids, for mem_free; with or without the directory. */
static float *eval(process *p, const char *dir, const int32_t *ids, int64_t n, int64_t *reused)
{
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = 33, .kv_k = "f32", .cache_dir = dir, .checkpoint_mb = dir ? 0 : -1};
    float *row = mem_calloc((size_t)p->n_vocab, sizeof *row);
    AUTO_SESSION *s;
    err e = {0};
    CHECK_OK(carat_session_open(p->m, &o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, n, row, reused, &e), e);
    return row;
}

/* In another process: what is reused of the prompt with that picture, whose logits are right. */
static int64_t again(const char *text, const char *tower, const char *dir, int64_t seed,
                     int32_t budget, bool changed, int *n_passes)
{
    process p;
    int32_t ids[CTX];
    int64_t reused = -1;
    start(&p, text, tower);
    carat_media *other = picture_of(&p, 77, budget, false); /* so that ids differ */
    carat_media *x = picture_of(&p, seed, budget, changed);
    int64_t n = prompt_of(ids, x);
    ids[n++] = 50; /* the conversation goes on */
    ids[n++] = 51;
    float *got = eval(&p, dir, ids, n, &reused);
    *n_passes = p.n_passes;
    float *want = eval(&p, NULL, ids, n, NULL);
    CHECK_MSG(!memcmp(got, want, (size_t)p.n_vocab * sizeof *got), "other logits than fresh ones");
    mem_free(got);
    mem_free(want);
    carat_media_free(x);
    carat_media_free(other);
    carat_model_close(p.m);
    return reused;
}

static void check_model(const char *text)
{
    process p;
    int32_t ids[CTX];
    int n_passes;
    const char *tower = test_temp("tower.gguf"), *dir = test_temp("cache");
    write_tower(tower, "1");
    start(&p, text, tower);
    carat_media *x = picture_of(&p, 1, 140, false);
    int64_t n = prompt_of(ids, x);
    CHECK(n > 64 + HEAD && carat_media_n(x) > 64);
    mem_free(eval(&p, dir, ids, n, NULL));
    CHECK_EQ(p.n_passes, 1);
    carat_media_free(x);
    carat_model_close(p.m);

    int64_t reused = again(text, tower, dir, 1, 140, false, &n_passes);
    CHECK_MSG(reused >= n - TAIL, "only %lld of %lld tokens reused", (long long)reused,
              (long long)n);
    CHECK_EQ(n_passes, 0);
    /* Each leaves a file of its own, with the same text. */
    static const struct {
        const char *what;
        int64_t seed;
        int32_t budget;
        bool changed;
    } others[] = {{"another picture", 2, 140, false},
                  {"one pixel", 1, 140, true},
                  {"another budget", 1, 120, false}};
    for (int i = 0; i < 3; i++) {
        reused =
            again(text, tower, dir, others[i].seed, others[i].budget, others[i].changed, &n_passes);
        CHECK_MSG(reused <= HEAD && n_passes == 1, "%s: %lld tokens reused, %d passes of the tower",
                  others[i].what, (long long)reused, n_passes);
    }
    reused = again(text, tower, dir, 1, 140, false, &n_passes);
    CHECK_MSG(reused >= n - TAIL && !n_passes, "the first picture is lost");
    write_tower(test_temp("other.gguf"), "2");
    reused = again(text, test_temp("other.gguf"), dir, 1, 140, false, &n_passes);
    CHECK_MSG(reused <= HEAD && n_passes == 1, "rows of another tower");
}

TEST(pictures_are_known_again_from_files)
{
    check_model(toy_model_write(&(toy_model_file){.base = "e2b"}));
}

TEST(two_way_pictures_are_known_again_from_files)
{
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "dense");
    check_model(fidelity_write(&f, NULL));
}

/* Names of tokens: equal in every process, and none for what says too little. */
TEST(soft_tokens_have_lasting_names)
{
    process p[2];
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    const uint64_t tower[2] = {1, 2}, others[2] = {1, 3};
    int32_t ids[2][CTX], name[2][CTX], one[CTX];
    int64_t n = 0;
    write_tower(test_temp("tower.gguf"), "1");
    for (int i = 0; i < 2; i++) {
        start(&p[i], text, test_temp("tower.gguf"));
        AUTO_PTR(carat_media_free) carat_media *first = i ? picture_of(&p[i], 9, 70, false) : NULL;
        AUTO_PTR(carat_media_free) carat_media *x = picture_of(&p[i], 1, 140, false);
        (void)first; /* so that x is not the first picture of both processes */
        n = prompt_of(ids[i], x);
        CHECK_EQ(media_lasting(p[i].m, tower, ids[i], n, name[i]), n);
    }
    CHECK(memcmp(ids[0], ids[1], (size_t)n * 4) && !memcmp(name[0], name[1], (size_t)n * 4));
    for (int64_t i = 0; i < n; i++) {
        CHECK((name[0][i] < 0) == (ids[0][i] < 0));
        for (int64_t k = HEAD; k < i && name[0][i] < 0; k++)
            CHECK(name[0][k] != name[0][i]);
    }
    CHECK_EQ(media_lasting(p[0].m, others, ids[0], n, one), n);
    CHECK(one[HEAD] != name[0][HEAD]);
    /* The first of eight tokens are too few, also where a text follows. */
    CHECK_EQ(media_lasting(p[0].m, tower, ids[0], HEAD + 7, one), HEAD);
    CHECK_EQ(media_lasting(p[0].m, tower, ids[0], HEAD + 8, one), HEAD + 8);
    ids[0][HEAD + 7] = 5;
    CHECK_EQ(media_lasting(p[0].m, tower, ids[0], n, one), HEAD);
    /* Tokens from the middle of a picture are not its first ones. */
    CHECK_EQ(media_lasting(p[1].m, tower, ids[1] + HEAD + 8, 16, one), 16);
    CHECK(memcmp(one, name[1] + HEAD, 64) && !memcmp(one, name[1] + HEAD + 8, 64));
    for (int i = 0; i < 2; i++)
        carat_model_close(p[i].m);
}
