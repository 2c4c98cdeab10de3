/* spawn.c - see spawn.h. */
#include "tests/spawn.h"
#include "tests/test.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 160 };

void spawn_become(const char *name, const char *const *argv)
{
    char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path / 2);
    CHECK(n > 0 && strlen(name) < sizeof path / 4);
    path[n] = 0;
    char *slash = strrchr(path, '/');
    CHECK(slash);
    strcpy(slash + 1, name);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL); /* nohup leaves it ignored, and so would the program */
    alarm(0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(path, (char *const *)argv);
    _exit(126);
}

static void become(const char *name, const char *const *args)
{
    const char *argv[ARGS_MAX] = {name};
    for (int n = 1; *args && n < ARGS_MAX - 1; args++)
        argv[n++] = *args;
    spawn_become(name, argv);
}

static int open_tty(int *child)
{
    if (access("/dev/pts/ptmx", F_OK)) /* as in a bare chroot */
        test_skip("there are no pseudo-terminals: /dev/pts is not mounted");
    int fd = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(fd >= 0 && !grantpt(fd) && !unlockpt(fd));
    *child = open(ptsname(fd), O_RDWR | O_NOCTTY);
    CHECK(*child >= 0);
    struct winsize size = {.ws_row = 40, .ws_col = 120};
    ioctl(fd, TIOCSWINSZ, &size);
    return fd;
}

/* Reads what has arrived; false at the end. A terminal without its other side gives EIO. */
static bool drain(int fd, str *to)
{
    char buf[65536];
    ssize_t n = read(fd, buf, sizeof buf);
    if (n > 0)
        str_put(to, buf, (size_t)n);
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

static int wait_code(pid_t pid)
{
    int how = 0;
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

void spawn_carat(spawned *r, const spawn_options *o, const char *const *args)
{
    static const spawn_options none;
    int in[2], out[2] = {-1, -1}, errs[2];
    o = o ? o : &none;
    *r = (spawned){0};
    CHECK(!pipe2(in, O_CLOEXEC) && !pipe2(errs, O_CLOEXEC));
    if (o->out_tty)
        out[0] = open_tty(&out[1]);
    else
        CHECK(!pipe2(out, O_CLOEXEC));
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setsid(); /* no /dev/tty, wherever the tests run */
        if (o->env)
            putenv((char *)(size_t)o->env);
        dup2(in[0], 0);
        if (o->no_in)
            close(0);
        if (o->out_path && *o->out_path)
            dup2(open(o->out_path, O_WRONLY | O_CREAT, 0600), 1);
        else if (o->out_path)
            close(1);
        else
            dup2(out[1], 1);
        dup2(errs[1], 2);
        become(o->program ? o->program : "carat", args);
    }
    close(in[0]);
    close(out[1]);
    close(errs[1]);
    signal(SIGPIPE, SIG_IGN);
    size_t n_in = o->n_in ? o->n_in : o->in ? strlen(o->in) : 0;
    for (size_t at = 0; at < n_in;) {
        ssize_t n = write(in[1], o->in + at, n_in - at);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    close(in[1]);
    struct pollfd p[2] = {{out[0], POLLIN, 0}, {errs[0], POLLIN, 0}};
    bool signalled = false;
    double start = clock_ms();
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        CHECK_MSG(clock_ms() - start < PATIENCE_MS, "the program does not end; so far: %s",
                  str_text(&r->err));
        poll(p, 2, 1000);
        if (p[0].revents && !drain(p[0].fd, &r->out))
            p[0].fd = -1;
        if (p[1].revents && !drain(p[1].fd, &r->err))
            p[1].fd = -1;
        if (o->signal && r->out.n && !signalled) {
            kill(pid, o->signal);
            signalled = true;
        }
        if (o->close_early && r->out.n && p[0].fd >= 0) {
            close(out[0]);
            p[0].fd = -1;
        }
    }
    if (!o->close_early)
        close(out[0]);
    close(errs[0]);
    r->code = wait_code(pid);
}

bool spawned_says(const str *said, const char *text)
{
    return !*text || (said->n && memmem(said->at, said->n, text, strlen(text)));
}

void spawn_check(int code, const char *out, const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == code, "exit status %d, expected %d: %s%s", r.code, code, str_text(&r.out),
              str_text(&r.err));
    CHECK_MSG(!out || spawned_says(&r.out, out), "'%s' should say '%s'; stderr: %s",
              str_text(&r.out), out, str_text(&r.err));
    CHECK_MSG(!says || spawned_says(&r.err, says), "'%s' should say '%s'", str_text(&r.err), says);
}

void spawned_free(spawned *r)
{
    str_free(&r->out);
    str_free(&r->err);
}

void terminal_open(terminal *t, const char *const *env, const char *const *args)
{
    terminal_open_piped(t, NULL, env, args);
}

void terminal_open_piped(terminal *t, const char *in, const char *const *env,
                         const char *const *args)
{
    int child, pipe_in[2] = {-1, -1};
    CHECK(!in || !pipe2(pipe_in, O_CLOEXEC));
    *t = (terminal){.fd = open_tty(&child)};
    fflush(stdout);
    t->pid = fork();
    CHECK(t->pid >= 0);
    if (t->pid == 0) {
        setsid();
        ioctl(child, TIOCSCTTY, 0);
        for (; env && *env; env++)
            putenv((char *)(size_t)*env);
        for (int fd = 0; fd <= 2; fd++)
            dup2(in && !fd ? pipe_in[0] : child, fd);
        close(child);
        close(t->fd);
        become("carat", args);
    }
    close(child);
    if (!in)
        return;
    close(pipe_in[0]);
    CHECK_EQ(write(pipe_in[1], in, strlen(in)), strlen(in)); /* less than a pipe holds */
    close(pipe_in[1]);
}

void terminal_type(terminal *t, const char *text)
{
    size_t n = strlen(text);
    CHECK_EQ(write(t->fd, text, n), n);
}

void terminal_expect(terminal *t, const char *text)
{
    double start = clock_ms();
    struct pollfd p = {t->fd, POLLIN, 0};
    for (;;) {
        char *at = t->seen.n ? memmem(t->seen.at, t->seen.n, text, strlen(text)) : NULL;
        if (at) {
            str_drop(&t->seen, (size_t)(at - t->seen.at) + strlen(text));
            return;
        }
        bool more = clock_ms() - start < PATIENCE_MS;
        if (more && poll(&p, 1, 1000) > 0)
            more = drain(t->fd, &t->seen);
        if (!more)
            test_fail(__FILE__, __LINE__, "waited for \"%s\", saw \"%s\"", text,
                      str_text(&t->seen));
    }
}

void terminal_expect_answer(terminal *t)
{
    double start = clock_ms();
    struct pollfd p = {t->fd, POLLIN, 0};
    while (clock_ms() - start < PATIENCE_MS) {
        /* The editor ends its line with a newline. What follows it is written by the answer. */
        char *end = t->seen.n ? memchr(t->seen.at, '\n', t->seen.n) : NULL;
        if (end && end + 1 < t->seen.at + t->seen.n)
            return;
        if (poll(&p, 1, 1000) > 0 && !drain(t->fd, &t->seen))
            break;
    }
    test_fail(__FILE__, __LINE__, "waited for an answer, saw \"%s\"", str_text(&t->seen));
}

int terminal_close(terminal *t)
{
    double start = clock_ms();
    struct pollfd p = {t->fd, POLLIN, 0};
    bool open = true;
    while (open && clock_ms() - start < PATIENCE_MS)
        if (poll(&p, 1, 1000) > 0)
            open = drain(t->fd, &t->seen);
    if (open)
        kill(t->pid, SIGKILL);
    int code = wait_code(t->pid);
    close(t->fd);
    str_free(&t->seen);
    return code;
}
