/* disk_pool_test.c - conversations that keep part of their keys in the pool, on disk: a program
 * that was killed goes on as if it had not been; one of another setting uses the exact beginning;
 * files that were cut or changed are refused with a sentence.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "kv/paging.h"
#include "tests/recur_model.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CTX = 1536, KEEP = 512, ANSWER = 40, WAIT_MS = 20000 };

typedef struct setting {
    const char *path, *scorer, *policy;
    int32_t keep, tau;
    char dir[512];
} setting;

typedef struct said {
    int32_t id[CTX];
    int64_t n;
    carat_timings t;
} said;

static bool hear(void *user, const carat_event *ev)
{
    said *x = user;
    if (ev->kind == CARAT_EV_TOKEN)
        x->id[x->n++] = ev->id;
    return true;
}

static carat_model *open_model(const setting *v)
{
    carat_model *m;
    err e = {0};
    const carat_model_options o = {.n_threads = 1, .scorer = v->scorer};
    CHECK_OK(carat_model_open(v->path, &o, &m, &e), e);
    return m;
}

static carat_session *open_session(carat_model *m, const setting *v, bool on_disk)
{
    carat_session *s;
    err e = {0};
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = 64,
                                     .kv_resident = v->keep,
                                     .kv_policy = v->keep ? v->policy : NULL,
                                     .kv_tau = v->keep ? v->tau : 0,
                                     .kv_single = "off",
                                     .checkpoint_mb = 64,
                                     .cache_dir = on_disk ? v->dir : NULL};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* One turn: the conversation so far and n new tokens of the user; x->id has the whole afterwards.
 */
static void turn(carat_session *s, said *x, int64_t n, uint64_t seed)
{
    err e = {0};
    const carat_generate_options o = {
        .max_tokens = ANSWER, .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true}};
    int32_t prompt[CTX];
    for (int64_t i = 0; i < n; i++)
        x->id[x->n++] = 20 + (int32_t)rng_below(&seed, 200);
    memcpy(prompt, x->id, (size_t)x->n * sizeof *prompt);
    CHECK_OK(carat_generate(s, prompt, x->n, &o, hear, x, &x->t, &e), e);
}

/* Is there a file of n tokens, or, n 0, any? *path: the last of them. */
static bool has_file(const setting *v, int64_t n, char path[1024])
{
    char part[64];
    bool found = false;
    DIR *d = opendir(v->dir);
    snprintf(part, sizeof part, "-%lld-", (long long)n);
    for (struct dirent *x; d && (x = readdir(d));) {
        size_t k = strlen(x->d_name);
        if (k < 9 || strcmp(x->d_name + k - 9, ".carat-kv") || (n && !strstr(x->d_name, part)))
            continue;
        found = true;
        snprintf(path, 1024, "%s/%s", v->dir, x->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

/* Another process has the first turn, and is killed once it is on disk. */
static void first_turn_of_a_killed_process(const setting *v, int64_t n)
{
    int how;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        static said x;
        char path[1024];
        carat_session *s = open_session(open_model(v), v, true);
        turn(s, &x, n, 1);
        int64_t rest = s->b.slot->t.kv.n_past;
        for (int ms = 0; ms < WAIT_MS && !has_file(v, rest, path); ms++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(waitpid(child, &how, 0), child);
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

/* Turns of one process that lives. */
static void both_turns(const setting *v, int64_t n, int64_t more, said *x, int64_t *rest)
{
    AUTO_MODEL *m = open_model(v);
    AUTO_SESSION *s = open_session(m, v, false);
    turn(s, x, n, 1);
    *rest = s->b.slot->t.kv.n_past;
    CHECK(kv_pager_lossy(&s->b.slot->t.kv));
    turn(s, x, more, 2);
}

static void killed_and_back(setting *v, int64_t n, int64_t more, const char *dir)
{
    static said want, got;
    int64_t rest;
    want = got = (said){.n = 0};
    snprintf(v->dir, sizeof v->dir, "%s", test_temp(dir));
    both_turns(v, n, more, &want, &rest);
    first_turn_of_a_killed_process(v, n);
    AUTO_MODEL *m = open_model(v);
    AUTO_SESSION *s = open_session(m, v, true);
    memcpy(got.id, want.id, (size_t)(n + ANSWER) * sizeof *got.id);
    got.n = n + ANSWER;
    turn(s, &got, more, 2);
    CHECK_STR(carat_session_reuse(s, NULL), "restored from disk");
    CHECK_MSG(got.t.n_reused == rest, "%s: %lld of %lld tokens reused", v->policy,
              (long long)got.t.n_reused, (long long)rest);
    CHECK(got.n == want.n && !memcmp(got.id, want.id, (size_t)want.n * sizeof *want.id));
}

static const char *plain_model(void)
{
    return toy_model_write(&(toy_model_file){.n_ctx_train = CTX, .scale = 4});
}

/* Lengths: a last chunk shorter than the windows; whole chunks; past the end of the rings. */
static void killed_with(setting v)
{
    static const int64_t n[] = {KEEP + 131, KEEP + 256, KEEP + 600};
    for (int i = 0; i < 3; i++) {
        char dir[32];
        snprintf(dir, sizeof dir, "cache%d", i);
        killed_and_back(&v, n[i], 30 + 40 * i, dir);
    }
}

PLAIN_TEST(a_killed_conversation_with_a_scored_pool_goes_on)
{
    killed_with((setting){.path = plain_model(), .policy = "scored", .keep = KEEP, .tau = 24});
}

PLAIN_TEST(a_killed_conversation_with_an_lru_pool_goes_on)
{
    killed_with((setting){.path = plain_model(), .policy = "lru", .keep = KEEP, .tau = 24});
}

PLAIN_TEST(a_killed_conversation_with_a_snapkv_pool_goes_on)
{
    killed_with((setting){.path = plain_model(), .policy = "snapkv", .keep = KEEP, .tau = 24});
}

PLAIN_TEST(a_killed_conversation_with_a_pool_by_another_models_scores_goes_on)
{
    char path[256];
    snprintf(path, sizeof path, "%s", plain_model());
    killed_with(
        (setting){.path = path, .scorer = path, .policy = "drafter", .keep = KEEP, .tau = 24});
}

TEST(a_killed_conversation_of_recurrent_layers_with_a_pool_goes_on)
{
    killed_with(
        (setting){.path = recur_model_write(NULL), .policy = "scored", .keep = KEEP, .tau = 24});
}

/* The exact beginning serves every other setting; the answers are those without the directory. */
PLAIN_TEST(a_killed_conversation_of_another_pool_keeps_its_exact_beginning)
{
    setting v = {.path = plain_model(), .policy = "scored", .keep = KEEP, .tau = 24};
    static const struct {
        const char *policy;
        int32_t keep, tau;
    } other[] = {{"scored", KEEP + 128, 24}, {"lru", KEEP, 24}, {"scored", KEEP, 48}, {NULL, 0, 0}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        static said want, got;
        char dir[32];
        snprintf(dir, sizeof dir, "cache%d", (int)i);
        snprintf(v.dir, sizeof v.dir, "%s", test_temp(dir));
        first_turn_of_a_killed_process(&v, KEEP + 300);
        setting w = v;
        want = got = (said){.n = 0};
        w.policy = other[i].policy;
        w.keep = other[i].keep;
        w.tau = other[i].tau;
        AUTO_MODEL *m = open_model(&w);
        carat_session *a = open_session(m, &w, false), *b = open_session(m, &w, true);
        turn(a, &want, KEEP + 300, 1);
        turn(b, &got, KEEP + 300, 1);
        CHECK_MSG(got.t.n_reused >= KEEP - 64 && got.t.n_reused <= KEEP, "%d: %lld reused", (int)i,
                  (long long)got.t.n_reused);
        CHECK(got.n == want.n && !memcmp(got.id, want.id, (size_t)want.n * sizeof *want.id));
        carat_session_close(a);
        carat_session_close(b);
    }
}

/* Any byte that is changed or missing is found, and the tokens are computed. */
PLAIN_TEST(a_damaged_file_of_a_pooled_conversation_is_refused)
{
    setting v = {.path = plain_model(), .policy = "scored", .keep = KEEP, .tau = 24};
    static said want, got;
    int64_t rest;
    char path[1024];
    static unsigned char bytes[8 << 20];
    uint64_t rng = test_seed();
    snprintf(v.dir, sizeof v.dir, "%s", test_temp("cache"));
    both_turns(&v, KEEP + 131, 30, &want, &rest);
    first_turn_of_a_killed_process(&v, KEEP + 131);
    CHECK(has_file(&v, rest, path));
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    CHECK(feof(f) && !fclose(f));
    AUTO_MODEL *m = open_model(&v);
    for (int trial = 0; trial < 24; trial++) {
        carat_cache_info info;
        size_t at = trial % 2 ? rng_below(&rng, n) : n - 1 - rng_below(&rng, 1200);
        size_t keep = trial % 4 == 3 ? at : n;
        unsigned char was = bytes[at];
        bytes[at] ^= (unsigned char)(1 + rng_below(&rng, 255));
        f = fopen(path, "wb");
        CHECK(f && fwrite(bytes, 1, keep, f) == keep && !fclose(f));
        bytes[at] = was;
        got = want;
        got.n = KEEP + 131 + ANSWER;
        AUTO_SESSION *s = open_session(m, &v, true);
        turn(s, &got, 30, 2);
        carat_session_cache(s, &info);
        CHECK(got.t.n_reused <= KEEP);
        CHECK_MSG(info.n_rejected >= 1 && strstr(info.last_error, ".carat-kv: "), "byte %zu: %s",
                  at, info.last_error);
    }
}

/* Records that no pager has. */
TEST(impossible_records_of_a_pool_are_refused)
{
    kv_paging_page page[3] = {
        {.used = 1, .resident = true}, {.used = 2}, {.used = 3, .resident = true}};
    uint64_t votes[3] = {0, 1, 2};
    const kv_paging good = {.policy = KV_POLICY_SCORED,
                            .pool = 2,
                            .tau = 24,
                            .rows_max = 64,
                            .n_pages = 3,
                            .n_exact = 100,
                            .clock = 3,
                            .n_watched = 1,
                            .page = page,
                            .n_votes = 3,
                            .votes = votes};
    unsigned char bytes[512];
    const char *why;
    size_t n = kv_paging_packed_bytes(&good);
    CHECK(n <= sizeof bytes);
    kv_paging_pack(&good, bytes);
    kv_paging *s = kv_paging_unpack(bytes, n, 150, &why);
    CHECK(s && !why && kv_paging_key(s) == kv_paging_key(&good) && s->n_exact == 100);
    CHECK(s->page[1].used == 2 && !s->page[1].resident && s->n_votes == 3 && s->votes[2] == 2);
    kv_paging_free(s);
    CHECK(!kv_paging_unpack(bytes, n - 1, 150, &why) && why);
    CHECK(!kv_paging_unpack(bytes, 10, 150, &why) && why);
    CHECK(!kv_paging_unpack(bytes, n, 200, &why) && why);
    static const struct {
        int at;
        unsigned char value;
    } wrong[] = {{0, 9},     {4, 0},     {4, 1},     {8, 0},    {15, 0x80}, {16, 8},
                 {16, 4},    {23, 1},    {31, 0x80}, {24, 151}, {39, 0x80}, {47, 0x80},
                 {55, 0x80}, {63, 0x80}, {64, 200},  {76, 16},  {76, 9},    {108, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kv_paging_pack(&good, bytes);
        bytes[wrong[i].at] = wrong[i].value;
        CHECK_MSG(!kv_paging_unpack(bytes, n, 150, &why) && why, "byte %d is %d", wrong[i].at,
                  wrong[i].value);
    }
    kv_paging_pack(&good, bytes);
    for (int64_t k = 0; k < 3; k++) {
        mem_fail_after(k);
        CHECK(!kv_paging_unpack(bytes, n, 150, &why) && !why);
        mem_fail_after(-1);
    }
}
