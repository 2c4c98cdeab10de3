/* disk_test.c - conversations that outlive the program, and bad files: truncated, damaged, foreign,
 * half written by a killed program, on a full disk. */
#include "carat.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CTX = 256, N_IDS = 150 };

typedef struct {
    const char *file;
    carat_model *m;
    int32_t n_vocab;
    int32_t ids[CTX];
    float *want, *got; /* logits after ids[0 .. N_IDS) */
    char dir[512];
} fixture;

static carat_session_options options(const fixture *f)
{
    return (carat_session_options){
        .n_ctx = CTX, .chunk = 32, .cache_dir = f->dir, .kv_single = "off"};
}

static carat_session *open_with(carat_model *m, carat_session_options o)
{
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* Every format, in two streams and in one; the heads are wide enough for each format. */
static const struct {
    const char *k, *single;
} formats[] = {{"f16", "off"},  {"f16", "on"},       {"bf16", "on"},    {"f32", "off"},
               {"q8_0", "off"}, {"q8_0", "on"},      {"q5_1", "on"},    {"q5_0", "off"},
               {"q4_1", "on"},  {"q4_0", "on"},      {"iq4_nl", "off"}, {"tq3_0", "off"},
               {"tq3_0", "on"}, {"q4_0+rot", "off"}, {"q5_0+rot", "on"}};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static carat_session_options options_in(const fixture *f, int format)
{
    carat_session_options o = options(f);
    o.kv_k = formats[format].k;
    o.kv_single = formats[format].single;
    return o;
}

/* Computes f->want with a session without checkpoints, in these formats. */
static void want_format(fixture *f, int format)
{
    carat_session_options o = options_in(f, format);
    carat_error e = {0};
    o.cache_dir = NULL;
    o.checkpoint_mb = -1;
    AUTO_SESSION *s = open_with(f->m, o);
    CHECK_OK(carat_eval(s, f->ids, N_IDS, f->want, NULL, &e), e);
}

static fixture begin(void)
{
    fixture f = {.file = toy_model_write(&(toy_model_file){.wide_heads = true})};
    carat_model_info info;
    carat_error e = {0};
    uint64_t rng = test_seed();
    CHECK_OK(carat_model_open(f.file, NULL, &f.m, &e), e);
    carat_model_get_info(f.m, &info);
    f.n_vocab = info.n_vocab;
    for (int i = 0; i < CTX; i++)
        f.ids[i] = (int32_t)rng_below(&rng, (uint64_t)f.n_vocab);
    f.want = mem_calloc((size_t)f.n_vocab, sizeof *f.want);
    f.got = mem_calloc((size_t)f.n_vocab, sizeof *f.got);
    CHECK(f.want && f.got);
    snprintf(f.dir, sizeof f.dir, "%s", test_temp("cache"));
    want_format(&f, 0);
    return f;
}

static void end(fixture *f)
{
    mem_free(f->want);
    mem_free(f->got);
    carat_model_close(f->m);
}

/* A session with these options gives the right logits. Returns the tokens it reused. */
static int64_t right(fixture *f, carat_session_options o, carat_cache_info *info)
{
    AUTO_SESSION *s = open_with(f->m, o);
    int64_t n_reused = -1;
    carat_error e = {0};
    CHECK_OK(carat_eval(s, f->ids, N_IDS, f->got, &n_reused, &e), e);
    for (int32_t i = 0; i < f->n_vocab; i++)
        CHECK_MSG(!memcmp(&f->got[i], &f->want[i], sizeof *f->got), "logit %d: %g, fresh %g", i,
                  f->got[i], f->want[i]);
    if (info)
        carat_session_cache(s, info);
    return n_reused;
}

/* Computes ids[0..n) in a session with the directory, and closes it. */
static void leave_behind(const fixture *f, int64_t n, carat_session_options o)
{
    AUTO_SESSION *s = open_with(f->m, o);
    carat_error e = {0};
    CHECK_OK(carat_eval(s, f->ids, n, NULL, NULL, &e), e);
}

/* The number of files in the directory with this ending, and the path of the last. */
static int files(const fixture *f, const char *ending, char *path, size_t cap)
{
    DIR *d = opendir(f->dir);
    int n = 0;
    for (struct dirent *x; d && (x = readdir(d));) {
        size_t k = strlen(x->d_name), m = strlen(ending);
        if (x->d_name[0] == '.' || k < m || strcmp(x->d_name + k - m, ending))
            continue;
        n++;
        if (path)
            snprintf(path, cap, "%s/%s", f->dir, x->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

static void empty(const fixture *f)
{
    DIR *d = opendir(f->dir);
    CHECK(d);
    for (struct dirent *x; (x = readdir(d));)
        unlinkat(dirfd(d), x->d_name, 0); /* "." and ".." refuse */
    closedir(d);
}

static unsigned char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    CHECK(f && !fseek(f, 0, SEEK_END));
    *n = (size_t)ftell(f);
    rewind(f);
    unsigned char *b = mem_alloc(*n);
    CHECK(b && fread(b, 1, *n, f) == *n);
    fclose(f);
    return b;
}

/* Files have rows in the order of layers, wherever these are. */
PLAIN_TEST(a_conversation_moves_between_divisions)
{
    static const char *const on[] = {"cpu", "cpu,cpu", "cpu,cpu,cpu"};
    AUTO(end) fixture f = begin();
    carat_model *whole = f.m;
    carat_error e = {0};
    for (int i = 0; i < 3; i++) {
        carat_model_options o = {.device = on[i]};
        CHECK_OK(carat_model_open(f.file, &o, &f.m, &e), e);
        leave_behind(&f, 120, options(&f));
        carat_model_close(f.m);
        o.device = on[(i + 1) % 3];
        CHECK_OK(carat_model_open(f.file, &o, &f.m, &e), e);
        CHECK_EQ(right(&f, options(&f), NULL), 120);
        carat_model_close(f.m);
        empty(&f);
    }
    f.m = whole;
}

PLAIN_TEST(a_conversation_outlives_the_program)
{
    AUTO(end) fixture f = begin();
    char path[1024];
    struct stat sb;
    carat_cache_info info;
    leave_behind(&f, 120, options(&f));
    CHECK_EQ(files(&f, ".carat-kv", path, sizeof path), 1);
    CHECK(!stat(path, &sb) && (sb.st_mode & 0777) == 0600);
    CHECK_EQ(right(&f, options(&f), &info), 120);
    CHECK_EQ(info.n_rejected, 0);
    carat_session_options o = options(&f);
    o.n_ctx = CTX - 9; /* another ring, another context: the same rows */
    o.chunk = 5;
    CHECK_EQ(right(&f, o, NULL), 120);
    o.n_ctx = N_IDS;
    CHECK_EQ(right(&f, o, NULL), 120);
    for (int k = 1; k < N_FORMATS; k++) { /* each format has its own files */
        o = options_in(&f, k);
        o.checkpoint_mb = 0;
        carat_session *s = open_with(f.m, o);
        int64_t n_reused;
        carat_error e = {0};
        CHECK_OK(carat_eval(s, f.ids, N_IDS, f.want, &n_reused, &e), e);
        CHECK_EQ(n_reused, 0);
        carat_session_close(s);
        CHECK_EQ(right(&f, o, NULL), N_IDS - 1);
    }
    CHECK_EQ(files(&f, ".carat-kv", NULL, 0), N_FORMATS);
    AUTO_MODEL *other = toy_model_open(&(toy_model_file){.seed = 77, .wide_heads = true}, NULL);
    AUTO_SESSION *s = open_with(other, options(&f));
    int64_t n_reused;
    carat_error e = {0};
    CHECK_OK(carat_eval(s, f.ids, N_IDS, NULL, &n_reused, &e), e);
    CHECK_EQ(n_reused, 0); /* another model's files are not used either */
}

TEST(a_long_conversation_is_written_now_and_then)
{
    AUTO(end) fixture f = begin();
    carat_session *s = open_with(f.m, options(&f));
    carat_generate_options o = {.max_tokens = 1};
    carat_timings t;
    carat_error e = {0};
    carat_sampling_default(f.m, &o.sampling);
    for (int64_t n = 70; n < N_IDS; n += 5)
        CHECK_OK(carat_generate(s, f.ids, n, &o, NULL, NULL, &t, &e), e);
    carat_session_close(s);
    int n = files(&f, ".carat-kv", NULL, 0);
    CHECK_MSG(n >= 2 && n <= 3, "%d files", n);
    CHECK(right(&f, options(&f), NULL) >= 134);
}

/* Does damage number i of 60 to the n bytes at b, which have room for one more. Returns the number
 * of bytes to write. */
static size_t damage(unsigned char *b, size_t n, int i, uint64_t *rng)
{
    b[n] = 0;
    if (i < 20)
        return n - 1 - (size_t)i * 9; /* cut in the end, the table, and before it */
    if (i < 28)
        return (size_t)rng_below(rng, n);
    if (i == 28)
        return n + 1;
    size_t at = i < 45   ? n - 1 - (size_t)(i - 29) * 14
                : i < 50 ? (size_t)(i - 45) * 3
                         : (size_t)rng_below(rng, n);
    b[at] ^= 1u << (i < 50 ? (uint64_t)i % 8 : rng_below(rng, 8));
    return n;
}

static void believe_no_damage(fixture *f, int format, int every, uint64_t *rng)
{
    const carat_session_options o = options_in(f, format);
    char path[1024];
    size_t n;
    leave_behind(f, 120, o);
    want_format(f, format);
    CHECK_EQ(files(f, ".carat-kv", path, sizeof path), 1);
    unsigned char *whole = slurp(path, &n), *bad = mem_alloc(n + 1);
    CHECK(bad);
    for (int i = (int)rng_below(rng, (uint64_t)every); i < 60; i += every) {
        memcpy(bad, whole, n);
        size_t keep = damage(bad, n, i, rng);
        empty(f); /* removes the previous session's files */
        test_write(path, bad, keep);
        carat_cache_info info;
        int64_t n_reused = right(f, o, &info);
        /* Every byte of a file matters. */
        CHECK_MSG(!n_reused, "%s: damage %d was believed", o.kv_k, i);
        CHECK_EQ(info.n_rejected, 1);
        CHECK_MSG(info.last_error[0], "%s: damage %d went unsaid", o.kv_k, i);
    }
    empty(f);
    mem_free(bad);
    mem_free(whole);
}

/* Files cut at many lengths, or with single bits flipped: the answer is right, and the file is
 * removed. */
PLAIN_TEST(a_damaged_file_is_removed_and_never_believed)
{
    AUTO(end) fixture f = begin();
    uint64_t rng = test_seed();
    for (int k = 0; k < N_FORMATS; k++)
        believe_no_damage(&f, k, k ? 10 : 1, &rng);
}

TEST(strange_files_in_the_directory_are_left_alone)
{
    AUTO(end) fixture f = begin();
    char path[1024], name[1100], link[1100];
    leave_behind(&f, 120, options(&f));
    CHECK_EQ(files(&f, ".carat-kv", path, sizeof path), 1);
    snprintf(name, sizeof name, "%s/README", f.dir);
    test_write(name, (const unsigned char *)"hello", 5);
    snprintf(link, sizeof link, "%s.other", path);
    CHECK(!rename(path, link) && !symlink(link, path)); /* links are not followed */
    CHECK_EQ(right(&f, options(&f), NULL), 0);
    CHECK_EQ(files(&f, "README", NULL, 0), 1);
    CHECK_EQ(files(&f, ".other", NULL, 0), 1);
    carat_session_options o = options(&f);
    carat_session *s;
    carat_error e = {0};
    o.cache_dir = name;
    CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_IO);
    CHECK(strstr(e.text, "README: a file, and"));
    err_clear(&e);
    o.cache_dir = "/nowhere/at/all";
    CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_IO);
    err_clear(&e);
    o = options(&f);
    o.checkpoint_mb = -1;
    CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_ARG);
    err_clear(&e);
    o = options(&f);
    o.cache_mb = -1;
    CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_ARG);
}

TEST(a_link_under_a_snapshots_name_is_replaced)
{
    AUTO(end) fixture f = begin();
    char path[1024], victim[1100], *text;
    struct stat sb;
    err e = {0};
    size_t n;
    leave_behind(&f, 120, options(&f));
    CHECK_EQ(files(&f, ".carat-kv", path, sizeof path), 1);
    snprintf(victim, sizeof victim, "%s/precious", f.dir);
    test_write(victim, (const unsigned char *)"precious", 8);
    CHECK(!unlink(path) && !symlink("precious", path));
    leave_behind(&f, 120, options(&f)); /* writes a file of the same name */
    CHECK(!lstat(path, &sb) && S_ISREG(sb.st_mode) && (sb.st_mode & 0777) == 0600);
    CHECK_OK(file_read_all(victim, 100, &text, &n, &e), e);
    CHECK(n == 8 && !memcmp(text, "precious", 8));
    mem_free(text);
    CHECK_EQ(right(&f, options(&f), NULL), 120);
}

TEST(a_directory_that_others_may_change_is_refused)
{
    AUTO(end) fixture f = begin();
    carat_session_options o = options(&f);
    carat_session *s;
    carat_error e = {0};
    leave_behind(&f, 120, o);
    const mode_t refused[] = {0770, 0777, 0702}, fine[] = {0700, 0755, 01777, 01770};
    for (int i = 0; i < 3; i++) {
        CHECK(!chmod(f.dir, refused[i]));
        CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_IO);
        CHECK(strstr(e.text, "other users may write"));
        err_clear(&e);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(!chmod(f.dir, fine[i]));
        CHECK_EQ(right(&f, o, NULL), 120);
    }
    if (!geteuid()) { /* only root can make files and directories of others */
        char path[1024];
        CHECK_EQ(files(&f, ".carat-kv", path, sizeof path), 1);
        CHECK(!chown(path, 12345, 12345));
        CHECK_EQ(right(&f, o, NULL), 0);
        CHECK(!chown(f.dir, 12345, 12345));
        CHECK_STATUS(carat_session_open(f.m, &o, &s, &e), E_IO);
        CHECK(strstr(e.text, "another user (number 12345)"));
    }
}

/* A limit on file sizes fills the disk in the middle of the ids, the rings or the rest. */
static void on_a_full_disk(fixture *f, int format, rlim_t n_bytes)
{
    struct rlimit small = {n_bytes, RLIM_INFINITY}, before;
    carat_cache_info info;
    want_format(f, format);
    CHECK(!getrlimit(RLIMIT_FSIZE, &before));
    small.rlim_max = before.rlim_max;
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    carat_session *s = open_with(f->m, options_in(f, format));
    carat_error e = {0};
    CHECK_OK(carat_eval(s, f->ids, N_IDS, f->got, NULL, &e), e);
    CHECK(!memcmp(f->got, f->want, (size_t)f->n_vocab * sizeof *f->got));
    carat_generate_options o = {.max_tokens = 2};
    carat_sampling_default(f->m, &o.sampling);
    for (int i = 0; i < 8; i++) { /* other conversations, each of which is to be saved */
        f->ids[0] ^= 1 + i;
        CHECK_OK(carat_generate(s, f->ids, N_IDS, &o, NULL, NULL, NULL, &e), e);
        f->ids[0] ^= 1 + i;
    }
    carat_session_cache(s, &info);
    CHECK(info.n_failed >= 3 && !info.n_written && info.last_error[0]);
    carat_session_close(s);
    CHECK_EQ(files(f, "", NULL, 0), 0);
    CHECK(!setrlimit(RLIMIT_FSIZE, &before));
}

PLAIN_TEST(a_full_disk_costs_files_and_nothing_else)
{
    static const rlim_t room[] = {400, 4000, 20000};
    AUTO(end) fixture f = begin();
    signal(SIGXFSZ, SIG_IGN);
    for (int k = 0; k < N_FORMATS; k++) {
        on_a_full_disk(&f, k, room[k % 3]);
        leave_behind(&f, 120, options_in(&f, k));
        CHECK_EQ(right(&f, options_in(&f, k), NULL), 120);
        empty(&f);
    }
}

TEST(the_directory_keeps_to_its_budget)
{
    AUTO(end) fixture f = begin();
    carat_session_options o = options(&f);
    uint64_t rng = 5;
    const uint64_t rounds = test_brief() ? 12 : 24;
    o.cache_mb = 1;
    for (uint64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < CTX; k++)
            f.ids[k] = (int32_t)rng_below(&rng, (uint64_t)f.n_vocab);
        leave_behind(&f, 200, o);
    }
    DIR *d = opendir(f.dir);
    uint64_t sum = 0, n = 0;
    for (struct dirent *x; (x = readdir(d));) {
        struct stat sb;
        CHECK(!fstatat(dirfd(d), x->d_name, &sb, 0));
        if (S_ISREG(sb.st_mode)) {
            sum += (uint64_t)sb.st_size;
            n++;
        }
    }
    closedir(d);
    CHECK_MSG(sum <= 1 << 20, "%llu bytes", (unsigned long long)sum);
    CHECK_MSG(n > 1 && n < rounds, "%llu files of %llu bytes", (unsigned long long)n,
              (unsigned long long)sum);
}

/* Computes and writes forever; reports its start. */
_Noreturn static void write_until_killed(const fixture *f, int format, int ready)
{
    fixture g = *f;
    carat_error e = {0};
    CHECK_OK(carat_model_open(g.file, NULL, &g.m, &e), e); /* threads do not survive a fork */
    CHECK(write(ready, "", 1) == 1);
    for (int i = 0;; i++)
        leave_behind(&g, 70 + (i * 13) % 80, options_in(&g, format));
}

PLAIN_TEST(killed_at_any_moment_nothing_is_lost_or_wrong)
{
    AUTO(end) fixture f = begin();
    uint64_t rng = test_seed();
    for (int round = 0; round < (RACES ? 1 : 2) * N_FORMATS; round++) {
        int k = round % N_FORMATS, ready[2];
        char byte;
        CHECK(!pipe(ready));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid)
            write_until_killed(&f, k, ready[1]);
        close(ready[1]);
        CHECK(read(ready[0], &byte, 1) == 1);
        close(ready[0]);
        nanosleep(&(struct timespec){.tv_nsec = (long)rng_below(&rng, 50000000)}, NULL);
        CHECK(!kill(pid, SIGKILL));
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        carat_cache_info info;
        want_format(&f, k);
        right(&f, options_in(&f, k), &info);
        CHECK_MSG(!info.n_rejected, "%s", info.last_error);
    }
    want_format(&f, 0);
    CHECK(files(&f, ".carat-kv", NULL, 0) > 0);
    CHECK(right(&f, options(&f), NULL) >= 70);
    /* A half-written file is removed once it is too old to have a writer. */
    char path[1024];
    DIR *d = opendir(f.dir);
    struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    for (struct dirent *x; (x = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", f.dir, x->d_name);
        if (!strstr(x->d_name, ".carat-kv") || x->d_name[strlen(x->d_name) - 7] == '.')
            utimensat(AT_FDCWD, path, old, 0);
    }
    closedir(d);
    right(&f, options(&f), NULL);
    CHECK_EQ(files(&f, "", NULL, 0), files(&f, ".carat-kv", NULL, 0));
}

TEST(every_allocation_beside_a_directory_may_fail)
{
    AUTO(end) fixture f = begin();
    leave_behind(&f, 120, options(&f));
    for (int64_t n = 0;; n++) {
        carat_session *s = NULL;
        carat_error e = {0};
        carat_session_options o = options(&f);
        mem_fail_after(n);
        carat_status st = carat_session_open(f.m, &o, &s, &e);
        if (!st)
            st = carat_eval(s, f.ids, N_IDS, f.got, NULL, &e);
        carat_session_close(s);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_MSG(!st || (hit && st == E_MEMORY), "allocation %lld: %s", (long long)n, e.text);
        if (!st)
            CHECK(!memcmp(f.got, f.want, (size_t)f.n_vocab * sizeof *f.got));
        if (!hit)
            break;
        CHECK(n < 2000);
    }
    CHECK(right(&f, options(&f), NULL) >= 120);
}
