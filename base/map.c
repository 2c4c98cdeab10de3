/* map.c - whole files in, whole files out.
 *
 * Reading is a mapping, or one copy made in large steps with progress. Writing goes to a temporary
 * file in the target's directory, because rename works within one file system only. Every end but a
 * commit removes the temporary and leaves the old file: a full disk, an interrupted call, a failed
 * allocation. Devices and pipes cannot be replaced by rename and are written in place.
 */
#include "base/map.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_STEP = 16 << 20,
    OUT_BUF = 4 << 20,
    STREAM_BUF = 64 << 10,
    LINKS_MAX = 40 /* as many as the kernel follows */
};

typedef struct reading {
    int fd;
    uint64_t n_bytes;
    const char *path;
    carat_progress_fn progress; /* or NULL */
    void *user;
} reading;

static status read_direct(file_map *m, const reading *r, err *e)
{
    const char *path = r->path;
    uint64_t n = r->n_bytes;
    unsigned char *p = mem_pages(n);
    if (!p)
        return err_memory(e, path, n);
    for (uint64_t at = 0; at < n;) {
        size_t step = n - at < READ_STEP ? (size_t)(n - at) : READ_STEP;
        ssize_t got = pread(r->fd, p + at, step, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        status st = OK;
        if (got < 0)
            st = err_errno(e, "read", path);
        else if (got == 0)
            st = err_set(e, E_IO, "%s: the file became shorter while it was read", path);
        else if (r->progress && !r->progress(r->user, "bytes read", at + (uint64_t)got, n))
            st = err_set(e, E_CANCELLED, "%s: loading was cancelled", path);
        if (st) {
            mem_pages_free(p, n);
            return st;
        }
        at += (uint64_t)got;
    }
    *m = (file_map){p, n, false};
    return OK;
}

status file_map_open(file_map *m, const char *path, bool direct, carat_progress_fn progress,
                     void *user, err *e)
{
    *m = (file_map){0};
    struct stat sb;
    status st = OK;
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not wait for its writer */
    if (fd < 0)
        return err_errno(e, "open", path);
    if (fstat(fd, &sb)) {
        st = err_errno(e, "stat", path);
    } else if (!S_ISREG(sb.st_mode)) {
        st = err_set(e, E_IO, "%s: %s", path,
                     S_ISDIR(sb.st_mode) ? "a directory, not a file" : "not a regular file");
    } else if (sb.st_size <= 0) {
        st = err_set(e, E_FORMAT, "%s: the file is empty", path);
    } else if (direct) {
        const reading r = {fd, (uint64_t)sb.st_size, path, progress, user};
        st = read_direct(m, &r, e);
    } else {
        void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = err_errno(e, "map", path);
        else
            *m = (file_map){p, (uint64_t)sb.st_size, true};
    }
    close(fd);
    return st;
}

void file_map_close(file_map *m)
{
    if (m->bytes && m->mapped)
        munmap((void *)m->bytes, m->n_bytes);
    else if (m->bytes)
        mem_pages_free((void *)m->bytes, m->n_bytes);
    *m = (file_map){0};
}

/* Whole pages only: the first and the last may hold bytes of others that are in use. */
void file_map_forget(const file_map *m, const void *bytes, uint64_t n)
{
    uintptr_t base = (uintptr_t)m->bytes, from = (uintptr_t)bytes, page = 4095;
    if (!m->mapped || from < base || from - base >= m->n_bytes)
        return;
    if (n > m->n_bytes - (from - base))
        n = m->n_bytes - (from - base);
    uintptr_t first = (from + page) & ~page, end = (from + n) & ~page;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

/* The path at the end of a chain of symbolic links; it need not exist. mem_free. Only links in the
 * last component count: rename replaces such a link, and follows links in the directories itself.
 */
static status follow_links(const char *path, char **out, err *e)
{
    char target[PATH_MAX];
    *out = mem_strdup(path);
    for (int i = 0; *out && i < LINKS_MAX; i++) {
        ssize_t n = readlink(*out, target, sizeof target - 1);
        if (n < 0 || n == (ssize_t)sizeof target - 1)
            return OK; /* no link; open reports any other error */
        target[n] = 0;
        const char *slash = strrchr(*out, '/');
        size_t n_dir = target[0] == '/' || !slash ? 0 : (size_t)(slash - *out) + 1;
        char *next = mem_alloc(n_dir + (size_t)n + 1);
        if (next) {
            memcpy(next, *out, n_dir);
            memcpy(next + n_dir, target, (size_t)n + 1);
        }
        mem_free(*out);
        *out = next;
    }
    if (!*out)
        return err_memory(e, path, sizeof target);
    mem_free(*out);
    *out = NULL;
    return err_set(e, E_IO, "%s: cannot create: too many symbolic links", path);
}

/* Creates a file under a random name that does not exist yet. open gets the mode, so the process
 * never changes its umask. */
static int create_beside(const char *path, mode_t mode, char *temp, size_t cap)
{
    int fd = -1;
    for (int tries = 0; tries < 100 && fd < 0; tries++) {
        uint32_t r;
        if (getrandom(&r, sizeof r, 0) != sizeof r)
            r = (uint32_t)clock_ns();
        snprintf(temp, cap, "%s.%06x", path, (unsigned)r & 0xffffff);
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

static status open_out(file_out *f, const char *path, bool private, err *e)
{
    *f = (file_out){.fd = -1};
    status st = OK;
    if (!private)
        st = follow_links(path, &f->path, e);
    else if (!(f->path = mem_strdup(path)))
        st = err_memory(e, path, strlen(path));
    if (st)
        return st;
    path = f->path;
    size_t cap = strlen(path) + 16;
    f->temp = mem_alloc(cap);
    f->buf = mem_alloc(OUT_BUF);
    if (!f->temp || !f->buf) {
        st = err_memory(e, path, OUT_BUF);
    } else {
        struct stat sb;
        f->temp[0] = 0;
        if (!private && !stat(path, &sb) && !S_ISREG(sb.st_mode)) {
            /* A device or a pipe is written in place: renaming over it would destroy it. A
             * directory fails here, by name. */
            f->fd = open(path, O_WRONLY | O_CLOEXEC);
        } else {
            f->fd = create_beside(path, private ? 0600 : 0666, f->temp, cap);
        }
        if (f->fd < 0) {
            st = err_errno(e, "create", path);
            f->temp[0] = 0;
        }
    }
    if (st)
        file_out_discard(f);
    return st;
}

status file_out_open(file_out *f, const char *path, err *e)
{
    return open_out(f, path, false, e);
}

status file_out_open_private(file_out *f, const char *path, err *e)
{
    return open_out(f, path, true, e);
}

status file_out_reserve(file_out *f, uint64_t n, err *e)
{
#ifdef __linux__
    int mode = FALLOC_FL_KEEP_SIZE;
    off_t len = n > INT64_MAX ? INT64_MAX : (off_t)n; /* larger than any file system accepts */
    if (n && fallocate(f->fd, mode, 0, len) &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        return err_errno(e, "write", f->path);
#else
    (void)f, (void)n, (void)e;
#endif
    return OK;
}

status file_out_flush(file_out *f, err *e)
{
    for (size_t at = 0; at < f->n_buf;) {
        ssize_t put = write(f->fd, f->buf + at, f->n_buf - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(e, "write", f->path);
        at += (size_t)put;
    }
    f->n_buf = 0;
    return OK;
}

status file_out_skip(file_out *f, uint64_t n, err *e)
{
    status st = file_out_flush(f, e);
    if (st)
        return st;
    if (n > (uint64_t)INT64_MAX - f->at)
        return err_set(e, E_LIMIT, "%s: too large", f->path);
    off_t to = (off_t)(f->at + n);
    if (ftruncate(f->fd, to) || lseek(f->fd, to, SEEK_SET) != to)
        return err_errno(e, "write", f->path);
    f->at += n;
    return OK;
}

status file_out_write(file_out *f, const void *bytes, size_t n, err *e)
{
    const unsigned char *p = bytes;
    while (n) {
        if (f->n_buf == OUT_BUF) {
            status st = file_out_flush(f, e);
            if (st)
                return st;
        }
        size_t step = OUT_BUF - f->n_buf < n ? OUT_BUF - f->n_buf : n;
        memcpy(f->buf + f->n_buf, p, step);
        f->n_buf += step;
        f->at += step;
        p += step;
        n -= step;
    }
    return OK;
}

status file_out_pad(file_out *f, uint64_t align, err *e)
{
    static const unsigned char zeros[64];
    uint64_t to;
    if (!ck_align(f->at, align, &to))
        return err_set(e, E_LIMIT, "%s: too large", f->path);
    while (f->at < to) {
        uint64_t n = to - f->at < sizeof zeros ? to - f->at : sizeof zeros;
        status st = file_out_write(f, zeros, (size_t)n, e);
        if (st)
            return st;
    }
    return OK;
}

status file_out_commit(file_out *f, err *e)
{
    status st = file_out_flush(f, e);
    if (!st && fsync(f->fd) && errno != EINVAL && errno != EROFS) /* devices and pipes */
        st = err_errno(e, "write", f->path);
    /* close can report a late write error (quota, network file systems). */
    if (close(f->fd) && !st)
        st = err_errno(e, "write", f->path);
    f->fd = -1;
    if (!st && f->temp[0] && rename(f->temp, f->path))
        st = err_errno(e, "rename into place", f->path);
    if (!st)
        f->temp[0] = 0;
    file_out_discard(f);
    return st;
}

void file_out_discard(file_out *f)
{
    if (f->path) { /* a zeroed file_out has fd 0, which is not its own */
        if (f->fd >= 0)
            close(f->fd);
        if (f->temp && f->temp[0])
            unlink(f->temp);
    }
    mem_free(f->path);
    mem_free(f->temp);
    mem_free(f->buf);
    *f = (file_out){0};
    f->fd = -1;
}

status file_replace(const char *path, bool private, const void *bytes, size_t n, err *e)
{
    file_out f;
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGHUP);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGQUIT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    status st = open_out(&f, path, private, e);
    if (!st && !(st = file_out_write(&f, bytes, n, e)))
        st = file_out_commit(&f, e);
    file_out_discard(&f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

bool file_is_opened(const char *path)
{
    return !strncmp(path, "/dev/fd/", 8) || !strcmp(path, "/dev/stdin");
}

/* Reads a pipe or a terminal to its end. */
static status read_stream(int fd, const char *path, uint64_t max_bytes, char **bytes, size_t *n,
                          err *e)
{
    char *text = NULL;
    size_t used = 0, cap = 0;
    for (;;) {
        if (used == cap) {
            size_t more = cap ? 2 * cap : STREAM_BUF;
            char *longer = mem_realloc(text, more + 1, 1);
            if (!longer) {
                mem_free(text);
                return err_memory(e, path, more);
            }
            text = longer;
            cap = more;
        }
        ssize_t got = read(fd, text + used, cap - used);
        if (got == 0)
            break;
        used += got > 0 ? (size_t)got : 0;
        if (got > 0 && used <= max_bytes)
            continue;
        mem_free(text);
        return got > 0 ? err_set(e, E_LIMIT, "%s: more bytes than the %llu that carat reads", path,
                                 (unsigned long long)max_bytes)
               : errno == EINTR ? err_set(e, E_CANCELLED, "interrupted")
                                : err_errno(e, "read", path);
    }
    text[used] = 0;
    if (!used) {
        mem_free(text);
        return err_set(e, E_FORMAT, "%s: the file is empty", path);
    }
    *bytes = text;
    *n = used;
    return OK;
}

status file_read_all(const char *path, uint64_t max_bytes, char **bytes, size_t *n, err *e)
{
    file_map m;
    struct stat sb;
    *bytes = NULL;
    *n = 0;
    int fd = file_is_opened(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool streams = fd >= 0 && !fstat(fd, &sb) && (S_ISFIFO(sb.st_mode) || isatty(fd));
    status failed = streams ? read_stream(fd, path, max_bytes, bytes, n, e) : OK;
    if (fd >= 0)
        close(fd);
    if (streams)
        return failed;
    status st = file_map_open(&m, path, false, NULL, NULL, e);
    if (st)
        return st;
    if (m.n_bytes > max_bytes) {
        st = err_set(e, E_LIMIT, "%s: the file has %llu bytes, and carat reads at most %llu", path,
                     (unsigned long long)m.n_bytes, (unsigned long long)max_bytes);
    } else if (!(*bytes = mem_strndup((const char *)m.bytes, (size_t)m.n_bytes))) {
        st = err_memory(e, path, (size_t)m.n_bytes);
    } else {
        *n = (size_t)m.n_bytes;
    }
    file_map_close(&m);
    return st;
}
