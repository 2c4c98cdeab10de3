/* bench_vs.c - another program's time for a test, through its JSON.
 *
 * The other program is started for every repetition, with the arguments of llama-bench; its warm-up
 * and loading are off its clock. A program whose name starts with "carat" gets the arguments of
 * carat, so that two builds of carat can be compared.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ARGS_MAX = 40, NUMBER_CAP = 16, OUTPUT_MAX = 4 << 20, POLL_MS = 200 };

typedef struct args {
    const char *at[ARGS_MAX + 1];
    char number[ARGS_MAX][NUMBER_CAP];
    int n;
} args;

static void put_cell(args *a, const char *text)
{
    if (a->n < ARGS_MAX)
        a->at[a->n++] = text;
}

static void put_cell_number(args *a, const char *flag, int32_t v)
{
    put_cell(a, flag);
    if (a->n < ARGS_MAX) {
        snprintf(a->number[a->n], NUMBER_CAP, "%d", v);
        put_cell(a, a->number[a->n]);
    }
}

static bool is_carat(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !strncmp(slash ? slash + 1 : path, "carat", 5);
}

static void build_args(args *a, const bench_setup *b, const bench_test *t)
{
    bool carat = is_carat(b->other);
    put_cell(a, b->other);
    if (carat)
        put_cell(a, "bench");
    put_cell(a, "-m");
    put_cell(a, b->model_path);
    put_cell_number(a, "-p", t->n_prompt);
    put_cell_number(a, "-n", t->n_gen);
    put_cell_number(a, "-d", t->n_depth);
    put_cell_number(a, "-t", b->n_threads);
    put_cell_number(a, "-r", 1);
    if (carat) {
        put_cell_number(a, "-c", b->chunk);
        put_cell(a, "--kv-k");
        put_cell(a, b->kv_k);
        put_cell(a, "--kv-v");
        put_cell(a, b->kv_v);
        if (b->kv_layers) {
            put_cell(a, "--kv-layer");
            put_cell(a, b->kv_layers);
        }
        if (b->kv_single) {
            put_cell(a, "--kv-single");
            put_cell(a, b->kv_single);
        }
        put_cell(a, "--json");
    } else {
        put_cell_number(a, "-ub", b->chunk);
        put_cell_number(a, "-b", b->chunk > 2048 ? b->chunk : 2048);
        put_cell(a, "-ctk");
        put_cell(a, b->kv_k);
        put_cell(a, "-ctv");
        put_cell(a, b->kv_v);
        put_cell(a, "-o");
        put_cell(a, "json");
    }
}

/* Reads fd to its end, and stops at Ctrl-C. */
static status read_output(int fd, const char *who, str *out, err *e)
{
    char buf[4096];
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        int ready = poll(&p, 1, POLL_MS);
        if (term_interrupts())
            return err_set(e, E_CANCELLED, "interrupted");
        if (ready < 0 && errno != EINTR)
            return err_errno(e, "wait for", who);
        if (ready <= 0)
            continue;
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "read from", who);
        if (!n)
            return OK;
        str_put(out, buf, (size_t)n);
        if (out->bad || out->n > OUTPUT_MAX)
            return err_set(e, E_LIMIT, "%s prints too much", who);
    }
}

/* The first sample of the one test in the output: an array of tests, or an object that has one. */
static status read_sample(const char *who, const str *out, int64_t *ns, err *e)
{
    json_error_t je;
    json_t *root = json_loadb(str_text(out), out->n, 0, &je);
    json_t *tests = json_is_object(root) ? json_object_get(root, "tests") : root;
    json_t *samples = json_object_get(json_array_get(tests, 0), "samples_ns");
    json_int_t v = json_integer_value(json_array_get(samples, 0));
    json_decref(root);
    if (v <= 0)
        return err_set(e, E_FORMAT,
                       "%s printed no JSON with samples_ns, as llama-bench -o json does", who);
    *ns = v;
    return OK;
}

status bench_run_other(const bench_setup *b, bench_test *t, err *e)
{
    args a = {0};
    str out = {0};
    int fd[2] = {-1, -1}, code = 0, rc;
    pid_t pid = -1;
    posix_spawn_file_actions_t files;
    int64_t ns = 0;
    status st;

    build_args(&a, b, t);
    if (pipe2(fd, O_CLOEXEC))
        return err_errno(e, "open a pipe to", b->other);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fd[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    rc = posix_spawnp(&pid, b->other, &files, NULL, (char *const *)a.at, environ);
    posix_spawn_file_actions_destroy(&files);
    close(fd[1]);
    if (rc) {
        errno = rc;
        st = err_errno(e, "start", b->other);
        goto out;
    }
    st = read_output(fd[0], b->other, &out, e);
    if (st)
        kill(pid, SIGTERM);
    while (waitpid(pid, &code, 0) < 0 && errno == EINTR)
        ;
    if (!st && !(WIFEXITED(code) && WEXITSTATUS(code) == 0))
        st = err_set(e, E_IO, "%s ended with %s %d on -p %d -n %d -d %d", b->other,
                     WIFEXITED(code) ? "status" : "signal",
                     WIFEXITED(code) ? WEXITSTATUS(code) : WTERMSIG(code), t->n_prompt, t->n_gen,
                     t->n_depth);
    if (!st && !(st = read_sample(b->other, &out, &ns, e)))
        t->other.ns[t->other.n++] = ns;
out:
    close(fd[0]);
    str_free(&out);
    return st;
}
