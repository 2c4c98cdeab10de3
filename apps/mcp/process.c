/* process.c - starts a server as a child process with pipes, and ends its process group.
 *
 * It is the leader of its own process group. So Ctrl-C of the terminal reaches carat alone, and
 * signals of carat reach what the server has started too: `npx` runs the server as its child. It
 * inherits stdin, stdout and stderr and no other descriptor.
 */
#include "apps/mcp/mcp_int.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LIVE_MAX = 64,   /* processes at once */
    LEAVE_MS = 1000, /* for a server to end after its stdin is closed */
    TERM_MS = 500    /* and after SIGTERM */
};

/* ---- Those that run, for the end of the program ---- */

static atomic_int live[LIVE_MAX];

static bool note_live(pid_t pid)
{
    for (size_t i = 0; i < LIVE_MAX; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&live[i], &none, (int)pid))
            return true;
    }
    return false;
}

static void forget_live(pid_t pid)
{
    for (size_t i = 0; i < LIVE_MAX; i++) {
        int it = (int)pid;
        atomic_compare_exchange_strong(&live[i], &it, 0);
    }
}

void mcp_kill_all(void)
{
    for (size_t i = 0; i < LIVE_MAX; i++) {
        int pid = atomic_load(&live[i]);
        if (pid)
            kill(-pid, SIGKILL);
    }
}

/* ---- Starting ---- */

#if defined __GLIBC__ && (__GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 34))
static bool keep_others_closed(posix_spawn_file_actions_t *files)
{
    return !posix_spawn_file_actions_addclosefrom_np(files, 3);
}
#else
/* Every descriptor of this process is marked to be closed by exec; nothing here relies on one that
 * is not. */
static bool keep_others_closed(posix_spawn_file_actions_t *files)
{
    long most = sysconf(_SC_OPEN_MAX);
    (void)files;
    for (int fd = 3; fd < (most > 0 && most < 65536 ? most : 65536); fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags >= 0 && !(flags & FD_CLOEXEC))
            fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
    return true;
}
#endif

static void close_pair(int fd[2])
{
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

/* 0, or an error number. pipes: of stdin, stdout, stderr. */
static int spawn(pid_t *pid, char *const *argv, char *const *envp, const char *cwd, int pipes[3][2])
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    if (posix_spawn_file_actions_init(&files))
        return ENOMEM;
    if (posix_spawnattr_init(&how)) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int rc = posix_spawn_file_actions_adddup2(&files, pipes[0][0], 0);
    for (int i = 1; i < 3 && !rc; i++)
        rc = posix_spawn_file_actions_adddup2(&files, pipes[i][1], i);
    if (!rc && cwd)
        rc = posix_spawn_file_actions_addchdir_np(&files, cwd);
    if (!rc && !keep_others_closed(&files))
        rc = ENOMEM;
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setflags(
        &how, (short)(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    if (!rc)
        rc = posix_spawnp(pid, argv[0], &files, &how, argv, envp);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

status process_start(process *p, char *const *argv, char *const *envp, const char *cwd,
                     const char *what, err *e)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    struct stat sb;
    int rc = 0;
    *p = (process){.in = -1, .out = -1, .err = -1};
    if (cwd && (stat(cwd, &sb) || !S_ISDIR(sb.st_mode)))
        return err_set(e, E_ARG, "MCP server '%s': there is no directory %s", what, cwd);
    for (int i = 0; i < 3 && !rc; i++)
        rc = pipe2(pipes[i], O_CLOEXEC) ? errno : 0;
    if (!rc)
        rc = spawn(&p->pid, argv, envp, cwd, pipes);
    if (!rc && !note_live(p->pid)) {
        kill(-p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        rc = EAGAIN;
    }
    if (rc) {
        for (int i = 0; i < 3; i++)
            close_pair(pipes[i]);
        p->pid = 0;
        if (rc == ENOENT)
            return err_set(e, E_ARG, "MCP server '%s': there is no program '%s'%s", what, argv[0],
                           strchr(argv[0], '/') ? "" : " in PATH");
        return err_set(e, E_IO, "MCP server '%s': cannot start %s: %s", what, argv[0],
                       strerror(rc));
    }
    p->in = pipes[0][1];
    p->out = pipes[1][0];
    p->err = pipes[2][0];
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    const int ours[] = {p->in, p->out, p->err};
    for (size_t i = 0; i < 3; i++)
        fcntl(ours[i], F_SETFL, O_NONBLOCK);
    return OK;
}

/* ---- Ending ---- */

/* Has it ended within ms? It stays a zombie, so that its group cannot be another one's. */
static bool has_ended(pid_t pid, double ms)
{
    double until = clock_ms() + ms;
    for (long nap_us = 500;; nap_us = nap_us < 16000 ? nap_us * 2 : nap_us) {
        siginfo_t info = {.si_pid = 0};
        int rc = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
        if ((rc && errno != EINTR) || info.si_pid)
            return true;
        if (clock_ms() >= until)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = nap_us * 1000}, NULL);
    }
}

int process_end(process *p)
{
    int how = -1;
    if (p->in >= 0)
        close(p->in);
    if (p->out >= 0)
        close(p->out);
    if (p->err >= 0)
        close(p->err);
    if (p->pid) {
        if (!has_ended(p->pid, LEAVE_MS)) {
            kill(-p->pid, SIGTERM);
            has_ended(p->pid, TERM_MS);
        }
        kill(-p->pid, SIGKILL); /* what is left of the group */
        forget_live(p->pid);
        while (waitpid(p->pid, &how, 0) < 0 && errno == EINTR)
            ;
    }
    *p = (process){.in = -1, .out = -1, .err = -1};
    return how;
}
