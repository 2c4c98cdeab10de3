/* main.c - runs the tests: `carat_test [-j N] [-v] [-f] [-l] [-x SUBSTRING] [SUBSTRING...]`.
 *
 * Each test runs in a forked child with its output captured, so a crash is one failed test and the
 * others still run. The exit status is 0 only if a test ran and none failed. Tests that took
 * longest in the last run start first, so that no processor waits for one of them at the end.
 */
#include "tests/mcp_rig.h"
#include "tests/test.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_SKIP = 77, TIMEOUT_S = 600, MAX_JOBS = 16 };

static test_case *all;
static const test_case *current;
static bool brief = true; /* TEST_LONG is not set */
static char temp_dir[256];

void test_register(test_case *t)
{
    t->next = all;
    all = t;
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stdout, "  %s:%d: ", file, line);
    vfprintf(stdout, fmt, ap);
    fprintf(stdout, "\n  (seed %llu)\n", (unsigned long long)test_seed());
    va_end(ap);
    fflush(stdout);
    _exit(1);
}

void test_skip(const char *why)
{
    printf("  skipped: %s\n", why);
    fflush(stdout);
    _exit(EXIT_SKIP);
}

bool test_brief(void)
{
    return SANITIZED || brief;
}

uint64_t test_seed(void)
{
    const char *s = getenv("TEST_SEED");
    if (s)
        return strtoull(s, NULL, 10);
    uint64_t h = 1469598103934665603u;
    for (const char *c = current ? current->name : ""; *c; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    return rng_mix(h);
}

const char *test_path(const char *rel)
{
    static char path[1024];
    const char *root = getenv("CARAT_ROOT");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", rel);
    return path;
}

const char *test_temp(const char *name)
{
    static char paths[160][512]; /* not from the heap: the leak checker is listening */
    static int n_paths;
    if (!temp_dir[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(temp_dir, sizeof temp_dir, "%s/carat-test-XXXXXX", base ? base : "/tmp");
        if (!mkdtemp(temp_dir))
            test_fail(__FILE__, __LINE__, "cannot make %s", temp_dir);
    }
    if (n_paths == 160)
        test_fail(__FILE__, __LINE__, "more than 160 temporary files");
    snprintf(paths[n_paths], sizeof paths[0], "%s/%s", temp_dir, name);
    return paths[n_paths++];
}

void test_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wbe");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f))
        test_fail(__FILE__, __LINE__, "cannot write %s: %s", path, strerror(errno));
}

void test_write_in(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    test_write(path, bytes, n);
}

static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    while (d && (f = readdir(d))) {
        char path[1024];
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, ".."))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        if (unlink(path) && (errno == EISDIR || errno == EPERM))
            remove_dir(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

void test_every_allocation(status (*fn)(void *arg, err *e), void *arg)
{
    for (int64_t n = 0;; n++) {
        err e = {0};
        mem_fail_after(n);
        status st = fn(arg, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            CHECK_OK(st, e);
            CHECK_MSG(n > 0, "nothing was allocated, so nothing was tested");
            return;
        }
        CHECK_MSG(st == E_MEMORY, "allocation %lld failed and the call gave %s: %s", (long long)n,
                  carat_status_name(st), e.text);
    }
}

/* Longest first. Tests of whole programs (tests/) last longer than those beside the code; a test
 * without a time of its own is one of these. */
static int by_time(const void *a, const void *b)
{
    const test_case *x = *(test_case *const *)a, *y = *(test_case *const *)b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? 1 : -1;
    int c = strcmp(x->file, y->file);
    return c ? c : strcmp(x->name, y->name);
}

static int by_time_shortest(const void *a, const void *b)
{
    return by_time(b, a);
}

/* PROGRAM.times has a line "seconds name" for each test of the last runs. */
static void read_times(const char *program)
{
    char path[1024], name[256];
    float seconds;
    for (test_case *t = all; t; t = t->next)
        t->seconds = strncmp(t->file, "tests/", 6) ? 0.01f : 1;
    snprintf(path, sizeof path, "%s.times", program);
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%f %255s", &seconds, name) == 2)
        for (test_case *t = all; t; t = t->next)
            if (!strcmp(t->name, name))
                t->seconds = seconds;
    if (f)
        fclose(f);
}

/* Other runs may write at the same time, so the file is replaced whole. A folder that cannot be
 * written to costs the order alone. */
static void write_times(const char *program)
{
    char path[1024], part[1100];
    snprintf(path, sizeof path, "%s.times", program);
    snprintf(part, sizeof part, "%s.%d", path, (int)getpid());
    FILE *f = fopen(part, "we");
    if (!f)
        return;
    for (const test_case *t = all; t; t = t->next)
        fprintf(f, "%.2f %s\n", (double)t->seconds, t->name);
    if (fclose(f) || rename(part, path))
        unlink(part);
}

typedef struct {
    test_case *t;
    pid_t pid;
    int out;
    double start_ms;
} job;

/* No test reads the models, caches, settings or tokens of whoever runs the tests. */
static void live_nowhere(void)
{
    static const char *const dirs[] = {"XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME",
                                       "HF_HOME"};
    static const char *const unset[] = {"HF_TOKEN",       "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
                                        "HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE",  "HF_ENDPOINT",
                                        "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    const char *nowhere =
        test_temp("nowhere"); /* a compiler's cache may make it, as root anywhere */
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        setenv(dirs[i], nowhere, 1);
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        unsetenv(unset[i]);
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1); /* a hub that nobody reaches */
}

/* Models of tests are so small that a second thread only waits for the first, a third of all time,
 * and tests run side by side. Those of threads say how many they want. The long suite, and the one
 * that looks for races, have as many as users have. */
static void take_one_thread(void)
{
    if (!brief || RACES)
        return;
    pool_default_most = 1;
    setenv("CARAT_THREADS", "1", 0); /* of programs that tests start */
}

static void start(job *j, test_case *t)
{
    char path[] = "/tmp/carat-out-XXXXXX";
    *j = (job){.t = t, .out = mkstemp(path), .start_ms = clock_ms()};
    unlink(path);
    fflush(stdout);
    j->pid = fork();
    if (j->pid == 0) {
        dup2(j->out, 1);
        dup2(j->out, 2);
        alarm(TIMEOUT_S);
        current = t;
        live_nowhere();
        take_one_thread();
        t->fn();
        if (temp_dir[0])
            remove_dir(temp_dir);
        fflush(stdout);
        exit(0); /* not _exit: the leak checker runs here */
    }
}

static double cpu_seconds(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

/* Prints the verdict of a finished job; adds to count[passed, failed, skipped]. The time on
 * processors includes that of programs which the test started and waited for. */
static void finish(job *j, int wstatus, const struct rusage *used, bool verbose, int count[3])
{
    double s = (clock_ms() - j->start_ms) * 1e-3, cpu = cpu_seconds(used);
    int code = WIFEXITED(wstatus) ? WEXITSTATUS(wstatus) : -1;
    int kind = code == 0 ? 0 : code == EXIT_SKIP ? 2 : 1;
    static const char *const word[] = {"ok", "FAIL", "skip"};
    count[kind]++;
    j->t->seconds = (float)s;
    if (kind || verbose || cpu > 5)
        printf("%-4s %s (%s, %.1f s, on processors %.1f s)\n", word[kind], j->t->name, j->t->file,
               s, cpu);
    if (WIFSIGNALED(wstatus))
        printf("  ended by signal %d (%s)\n", WTERMSIG(wstatus), strsignal(WTERMSIG(wstatus)));
    if (kind || verbose) {
        char buf[4096];
        ssize_t n;
        fflush(stdout);
        lseek(j->out, 0, SEEK_SET);
        while ((n = read(j->out, buf, sizeof buf)) > 0)
            fwrite(buf, 1, (size_t)n, stdout);
    }
    close(j->out);
}

static const char usage[] =
    "usage: carat_test [-j N] [-v] [-f] [-l] [-x SUBSTRING]... [SUBSTRING...]\n"
    "  -j N       run N tests side by side (default: 1)\n"
    "  -v         list the tests that passed, with their output\n"
    "  -f         stop at the first failure, and begin with the shortest tests\n"
    "  -l         list the names of the tests and run none\n"
    "  -x SUBSTRING  leave out the tests whose name or file contains it\n"
    "  SUBSTRING  run only tests whose name or file contains one, such as kv/kv_test; =NAME: that "
    "test\n"
    "TEST_LONG=1 in the environment runs the long suite.\n";

static bool is_named(const test_case *t, char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (words[i][0] == '=' ? !strcmp(t->name, words[i] + 1)
                               : strstr(t->name, words[i]) || strstr(t->file, words[i]))
            return true;
    return false;
}

/* libsndfile 1.2 does not free what libvorbis keeps of each Ogg file: 5.8 KB. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:vorbis_info_init\n";
}

int main(int argc, char **argv)
{
    bool verbose = false, first_failure = false, names = false;
    int n_jobs = 1, n = 0, n_left = 0, count[3] = {0}, n_without = 0;
    int first = 1;
    const char *text = getenv("TEST_LONG");
    brief = !text || !*text || !strcmp(text, "0");
    if (argc == 3 && !strcmp(argv[1], "--mcp-fake"))
        mcp_fake_main(argv[2]);
    char **without = calloc((size_t)argc, sizeof *without);
    for (; first < argc && argv[first][0] == '-'; first++) {
        if (!strcmp(argv[first], "-v"))
            verbose = true;
        else if (!strcmp(argv[first], "-f"))
            first_failure = true;
        else if (!strcmp(argv[first], "-l"))
            names = true;
        else if (!strcmp(argv[first], "-j") && first + 1 < argc)
            n_jobs = atoi(argv[++first]);
        else if (!strcmp(argv[first], "-x") && first + 1 < argc && without)
            without[n_without++] = argv[++first];
        else
            return fputs(usage, stderr), 2;
    }
    n_jobs = n_jobs < 1 ? 1 : n_jobs > MAX_JOBS ? MAX_JOBS : n_jobs;
    for (test_case *t = all; t; t = t->next)
        n++;
    test_case **list = calloc((size_t)n + 1, sizeof *list);
    if (!list)
        return 2;
    n = 0;
    for (test_case *t = all; t; t = t->next) {
        if ((first < argc && !is_named(t, argv + first, argc - first)) ||
            is_named(t, without, n_without))
            continue;
        if (brief && (t->when == TEST_LONG || (t->when == TEST_PLAIN && ADDRESSES)))
            n_left++;
        else
            list[n++] = t;
    }
    read_times(argv[0]);
    qsort(list, (size_t)n, sizeof *list, first_failure ? by_time_shortest : by_time);

    for (int i = 0; names && i < n; i++)
        puts(list[i]->name);
    if (names)
        n = 0;
    job jobs[MAX_JOBS];
    int running = 0;
    for (int next = 0; next < n || running;) {
        if (first_failure && count[1])
            next = n;
        if (next < n && running < n_jobs) {
            start(&jobs[running++], list[next++]);
            continue;
        }
        int wstatus;
        struct rusage used;
        pid_t pid = wait4(-1, &wstatus, 0, &used);
        for (int i = 0; i < running; i++)
            if (jobs[i].pid == pid) {
                finish(&jobs[i], wstatus, &used, verbose, count);
                jobs[i] = jobs[--running];
                break;
            }
    }
    free(list);
    free(without);
    if (names)
        return 0;
    if (!first_failure)
        write_times(argv[0]);
    if (n_left)
        printf("%d only in the long suite (TEST_LONG=1)\n", n_left);
    printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    return count[1] || !count[0];
}
