/* stdio.c - a server as a child process: one message a line on its stdin and stdout. */
#include "apps/mcp/mcp_int.h"

#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct stdio_state {
    process p;
    str out; /* to be written */
    size_t written;
    lines in, err;
} stdio_state;

/* ---- Environment ---- */

/* What a server gets of carat's environment. The rest may hold keys that are not its business; its
 * own "env" passes them on: "${GITHUB_TOKEN}". */
static const char *const passed[] = {"HOME",
                                     "LOGNAME",
                                     "PATH",
                                     "SHELL",
                                     "TERM",
                                     "USER",
                                     "LANG",
                                     "LANGUAGE",
                                     "TZ",
                                     "TMPDIR",
                                     "http_proxy",
                                     "https_proxy",
                                     "no_proxy",
                                     "HTTP_PROXY",
                                     "HTTPS_PROXY",
                                     "NO_PROXY",
                                     "SSL_CERT_FILE",
                                     "SSL_CERT_DIR",
                                     "DISPLAY",
                                     "WAYLAND_DISPLAY",
                                     "VIRTUAL_ENV",
                                     "NODE_EXTRA_CA_CERTS",
                                     "DBUS_SESSION_BUS_ADDRESS"};
static const char *const passed_families[] = {"LC_", "XDG_"};

extern char **environ;

static bool is_passed(const char *pair)
{
    size_t n = strcspn(pair, "=");
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        if (strlen(passed[i]) == n && !strncmp(pair, passed[i], n))
            return true;
    for (size_t i = 0; i < sizeof passed_families / sizeof *passed_families; i++)
        if (!strncmp(pair, passed_families[i], strlen(passed_families[i])))
            return true;
    return false;
}

static bool same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return !strncmp(a, b, n + 1);
}

/* A list that ends with NULL, of mem. */
static status make_env(const mcp_spec *s, arena *mem, char ***out, err *e)
{
    size_t n = 0, most = 1;
    while (s->env && s->env[most - 1])
        most++;
    for (char **at = environ; *at; at++)
        most++;
    char **list = *out = arena_array(mem, most, sizeof *list);
    if (!list)
        return err_memory(e, "an environment", most * sizeof *list);
    for (size_t i = 0; s->env && s->env[i]; i++) {
        const char *pair;
        status st = spec_expand(mem, s->name, s->env[i], &pair, e);
        if (st)
            return st;
        list[n++] = (char *)pair;
    }
    size_t n_own = n;
    for (char **at = environ; *at; at++) {
        bool own = !is_passed(*at);
        for (size_t i = 0; i < n_own && !own; i++)
            own = same_name(list[i], *at);
        if (!own)
            list[n++] = *at;
    }
    list[n] = NULL;
    return OK;
}

static status make_args(const mcp_spec *s, arena *mem, char ***out, err *e)
{
    size_t n = 0;
    while (s->arg && s->arg[n])
        n++;
    const char **list = arena_array(mem, n + 2, sizeof *list);
    if (!list)
        return err_memory(e, "arguments", n * sizeof *list);
    *out = (char **)list;
    status st = spec_expand(mem, s->name, s->command, &list[0], e);
    for (size_t i = 0; i < n && !st; i++)
        st = spec_expand(mem, s->name, s->arg[i], &list[i + 1], e);
    return st;
}

/* ---- The way ---- */

static status stdio_start(mcp_client *c, err *e)
{
    stdio_state *s = c->state = mem_calloc(1, sizeof *s);
    arena mem = {0};
    char **args = NULL, **env = NULL;
    const char *cwd = NULL;
    if (!s)
        return err_memory(e, c->spec->name, sizeof *s);
    s->p = (process){.in = -1, .out = -1, .err = -1};
    status st = make_args(c->spec, &mem, &args, e);
    if (!st)
        st = make_env(c->spec, &mem, &env, e);
    if (!st && c->spec->cwd)
        st = spec_expand(&mem, c->spec->name, c->spec->cwd, &cwd, e);
    if (!st)
        st = process_start(&s->p, args, env, cwd, c->spec->name, e);
    arena_free(&mem);
    return st;
}

static status stdio_send(mcp_client *c, const char *text, size_t n, bool asks, err *e)
{
    stdio_state *s = c->state;
    (void)asks;
    str_put(&s->out, text, n);
    str_putc(&s->out, '\n');
    return s->out.bad ? err_memory(e, c->spec->name, n) : OK;
}

static bool stdio_idle(const mcp_client *c)
{
    const stdio_state *s = c->state;
    return !s || s->written == s->out.n;
}

/* write() that returns EPIPE when the reader is gone, instead of a signal that ends the program. */
static ssize_t write_quietly(int fd, const char *bytes, size_t n)
{
    sigset_t pipes, before, pending;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipes, &before);
    ssize_t done = write(fd, bytes, n);
    int why = errno;
    if (done < 0 && why == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipes, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return done;
}

static void push(stdio_state *s)
{
    ssize_t n = write_quietly(s->p.in, s->out.at + s->written, s->out.n - s->written);
    if (n > 0)
        s->written += (size_t)n;
    if (s->written == s->out.n || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        /* Of one that has closed its stdin the end of stdout tells more. */
        str_cut(&s->out, 0);
        s->written = 0;
    }
}

/* Reads what there is. *end: the other side has closed it. */
static status pull(mcp_client *c, int fd, lines *to, bool *end, err *e)
{
    char buf[65536];
    *end = false;
    ssize_t n = read(fd, buf, sizeof buf);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return OK;
    if (n <= 0) {
        *end = true;
        return OK;
    }
    str_put(&to->buf, buf, (size_t)n);
    return to->buf.bad ? err_memory(e, c->spec->name, to->buf.n) : client_count(c, (size_t)n, e);
}

static void take_err(mcp_client *c, stdio_state *s)
{
    const char *line;
    size_t n;
    while (lines_next(&s->err, &line, &n))
        client_log(c, "stderr", line, n);
    if (s->err.buf.n > 65536) { /* a line without an end */
        client_log(c, "stderr", s->err.buf.at, s->err.buf.n);
        str_free(&s->err.buf);
        s->err = (lines){0};
    }
}

static status take_out(mcp_client *c, stdio_state *s, err *e)
{
    const char *line;
    size_t n;
    status st = OK;
    while (!st && lines_next(&s->in, &line, &n))
        st = client_take(c, line, n, e);
    if (!st && s->in.buf.n > MESSAGE_MAX)
        st = err_set(e, E_LIMIT, "MCP server '%s' sends a message of more than %d MiB",
                     c->spec->name, MESSAGE_MAX >> 20);
    return st;
}

/* stdout has ended: so has the server, or it will. */
static status tell_end(mcp_client *c, stdio_state *s, err *e)
{
    bool end = s->p.err < 0;
    err none = {0};
    while (!end && !pull(c, s->p.err, &s->err, &end, &none) && s->err.buf.n > s->err.seen)
        take_err(c, s);
    if (s->err.buf.n)
        client_log(c, "stderr", s->err.buf.at, s->err.buf.n);
    int how = process_end(&s->p);
    char why[64] = "";
    if (how >= 0 && WIFEXITED(how) && WEXITSTATUS(how))
        snprintf(why, sizeof why, " with status %d", WEXITSTATUS(how));
    else if (how >= 0 && WIFSIGNALED(how) && WTERMSIG(how) != SIGKILL)
        snprintf(why, sizeof why, " by signal %d", WTERMSIG(how));
    return err_set(e, E_IO, "MCP server '%s' ended%s%s%s%s%s", c->spec->name, why,
                   *c->last_words ? "; its last words: " : "", c->last_words,
                   *c->log_path ? "; log: " : "", c->log_path);
}

static status stdio_turn(mcp_client *c, int ms, err *e)
{
    stdio_state *s = c->state;
    bool pushes = s->written < s->out.n, end;
    struct pollfd p[3] = {{.fd = s->p.out, .events = POLLIN},
                          {.fd = s->p.err, .events = POLLIN},
                          {.fd = pushes ? s->p.in : -1, .events = POLLOUT}};
    if (s->p.out < 0)
        return tell_end(c, s, e); /* again: whoever heard it first had no request to end */
    if (poll(p, 3, ms) <= 0)
        return OK; /* nothing yet, or a signal */
    if (p[2].revents)
        push(s);
    if (p[1].revents) {
        status st = pull(c, s->p.err, &s->err, &end, e);
        if (st)
            return st;
        take_err(c, s);
        if (end) {
            close(s->p.err);
            s->p.err = -1;
        }
    }
    if (!p[0].revents)
        return OK;
    status st = pull(c, s->p.out, &s->in, &end, e);
    if (!st)
        st = take_out(c, s, e);
    return !st && end && !c->answer ? tell_end(c, s, e) : st;
}

static void stdio_end(mcp_client *c, bool in_order)
{
    stdio_state *s = c->state;
    if (!s)
        return;
    if (!in_order && s->p.pid) /* it floods or does not listen: there is nothing to wait for */
        kill(-s->p.pid, SIGKILL);
    process_end(&s->p);
    str_free(&s->out);
    str_free(&s->in.buf);
    str_free(&s->err.buf);
    mem_free(s);
    c->state = NULL;
}

const way stdio_way = {stdio_start, stdio_send, stdio_turn, stdio_idle, stdio_end};
