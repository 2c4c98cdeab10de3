/* part.c - see part.h. */
#include "apps/hub/part.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char magic[8] = "caratmp1";
enum { MAP_HEAD = 16 };

static const uint64_t max_chunks = (uint64_t)1 << 24; /* 4 TiB */

uint64_t part_end(const part *p, uint64_t chunk)
{
    uint64_t end = (chunk + 1) * PART_CHUNK;
    return end < p->n_bytes ? end : p->n_bytes;
}

static status write_at(int fd, const char *path, uint64_t at, const void *bytes, size_t n, err *e)
{
    const char *from = bytes;
    while (n) {
        ssize_t put = pwrite(fd, from, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(e, "write", path);
        from += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return OK;
}

static status read_at(int fd, const char *path, uint64_t at, void *bytes, size_t n, err *e)
{
    char *to = bytes;
    while (n) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "read", path);
        if (!got)
            return err_set(e, E_IO, "%s: the file became shorter while it was read", path);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return OK;
}

static void put_le(unsigned char *out, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(v >> (8 * i));
}

/* Begins the map anew: nothing is here. */
static status write_map(part *p, err *e)
{
    unsigned char head[MAP_HEAD];
    memcpy(head, magic, 8);
    put_le(head + 8, p->n_bytes);
    memset(p->chunk, PART_MISSING, p->n_chunks);
    p->n_here = 0;
    if (ftruncate(p->map_fd, 0))
        return err_errno(e, "write", p->map_path);
    status st = write_at(p->map_fd, p->map_path, 0, head, sizeof head, e);
    return st ? st : write_at(p->map_fd, p->map_path, MAP_HEAD, p->chunk, p->n_chunks, e);
}

/* Reads the map of an earlier pull. False: there is none of this file. */
static bool read_map(part *p)
{
    unsigned char head[MAP_HEAD], want[MAP_HEAD];
    struct stat sb;
    memcpy(want, magic, 8);
    put_le(want + 8, p->n_bytes);
    if (fstat(p->map_fd, &sb) || (uint64_t)sb.st_size != MAP_HEAD + p->n_chunks ||
        fstat(p->fd, &sb) || (uint64_t)sb.st_size != p->n_bytes ||
        read_at(p->map_fd, p->map_path, 0, head, sizeof head, NULL) ||
        memcmp(head, want, sizeof head) ||
        read_at(p->map_fd, p->map_path, MAP_HEAD, p->chunk, p->n_chunks, NULL))
        return false;
    for (uint64_t i = 0; i < p->n_chunks; i++) {
        p->chunk[i] = p->chunk[i] == 1 ? PART_HERE : PART_MISSING;
        if (p->chunk[i] == PART_HERE)
            p->n_here += part_end(p, i) - i * PART_CHUNK;
    }
    p->resumed = p->n_here > 0;
    return true;
}

/* The file at its full length, with disk space behind it where the file system can say so. */
static status reserve(part *p, err *e)
{
    struct statvfs fs;
    struct stat sb;
    int no = p->n_bytes ? posix_fallocate(p->fd, 0, (off_t)p->n_bytes) : 0;
    if (no == EINTR || no == EOPNOTSUPP || no == ENOSYS || no == EINVAL)
        no = 0;
    if (!no && (fstat(p->fd, &sb) || (uint64_t)sb.st_size != p->n_bytes) &&
        ftruncate(p->fd, (off_t)p->n_bytes))
        no = errno;
    if (!no)
        return OK;
    if (ftruncate(p->fd, 0)) /* what was reserved is in the way of others, and of the message */
        return err_errno(e, "write", p->path);
    if ((no == ENOSPC || no == EDQUOT) && !fstatvfs(p->fd, &fs))
        return err_set(e, E_IO, "%s: no room: %.2f GB are needed, %.2f GB are free", p->path,
                       (double)p->n_bytes * 1e-9, (double)fs.f_bavail * (double)fs.f_frsize * 1e-9);
    errno = no;
    return err_errno(e, "reserve room for", p->path);
}

static char *with_ending(const char *blob, const char *ending)
{
    size_t n = strlen(blob), m = strlen(ending);
    char *out = mem_alloc(n + m + 1);
    if (out) {
        memcpy(out, blob, n);
        memcpy(out + n, ending, m + 1);
    }
    return out;
}

/* Opens and locks path.part. A blob that is there is looked for under the lock: the one who had it
 * may just have finished. */
static status open_locked(part *p, const char *blob, part_state *state, err *e)
{
    for (;;) {
        struct stat own, named;
        p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (p->fd < 0)
            return err_errno(e, "create", p->path);
        if (flock(p->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
            *state = PART_BUSY;
            return OK;
        }
        /* The one who had it may have renamed or removed it between open and lock. */
        if (!fstat(p->fd, &own) && !lstat(p->path, &named) && own.st_ino == named.st_ino &&
            own.st_dev == named.st_dev) {
            if (!access(blob, F_OK)) {
                *state = PART_DONE;
                unlink(p->map_path);
                unlink(p->path);
            }
            return OK;
        }
        close(p->fd);
        p->fd = -1;
    }
}

status part_open(part *p, const char *blob, uint64_t n_bytes, part_state *state, err *e)
{
    *p = (part){.fd = -1, .map_fd = -1, .n_bytes = n_bytes};
    *state = PART_OPEN;
    p->n_chunks = n_bytes / PART_CHUNK + (n_bytes % PART_CHUNK != 0);
    if (p->n_chunks > max_chunks)
        return err_set(e, E_LIMIT,
                       "%s: a file of %llu bytes is too large: carat pulls at most %llu", blob,
                       (unsigned long long)n_bytes, (unsigned long long)(max_chunks * PART_CHUNK));
    p->path = with_ending(blob, ".part");
    p->map_path = with_ending(blob, ".map");
    p->chunk = mem_calloc(p->n_chunks ? p->n_chunks : 1, 1);
    status st = p->path && p->map_path && p->chunk ? OK : err_memory(e, blob, p->n_chunks);
    if (!st)
        st = open_locked(p, blob, state, e);
    if (st || *state != PART_OPEN) {
        part_close(p);
        return st;
    }
    p->map_fd = open(p->map_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (p->map_fd < 0)
        st = err_errno(e, "create", p->map_path);
    if (!st && !read_map(p) && ((st = reserve(p, e)) || (st = write_map(p, e)))) {
        part_drop(p);
        return st;
    }
    if (st)
        part_close(p);
    return st;
}

void part_close(part *p)
{
    if (p->path) { /* a zeroed part has descriptor 0, which is not its own */
        if (p->map_fd >= 0)
            close(p->map_fd);
        if (p->fd >= 0)
            close(p->fd);
    }
    mem_free(p->path);
    mem_free(p->map_path);
    mem_free(p->chunk);
    *p = (part){.fd = -1, .map_fd = -1};
}

void part_drop(part *p)
{
    if (p->path) {
        unlink(p->map_path);
        unlink(p->path);
    }
    part_close(p);
}

status part_write(part *p, uint64_t at, const void *bytes, size_t n, err *e)
{
    return write_at(p->fd, p->path, at, bytes, n, e);
}

status part_mark(part *p, uint64_t chunk, err *e)
{
    static const unsigned char one = 1;
    if (p->chunk[chunk] != PART_HERE)
        p->n_here += part_end(p, chunk) - chunk * PART_CHUNK;
    p->chunk[chunk] = PART_HERE;
    return write_at(p->map_fd, p->map_path, MAP_HEAD + chunk, &one, 1, e);
}

status part_read(const part *p, uint64_t at, void *bytes, size_t n, err *e)
{
    return read_at(p->fd, p->path, at, bytes, n, e);
}

status part_restart(part *p, err *e)
{
    p->resumed = false;
    return write_map(p, e);
}

status part_finish(part *p, const char *blob, err *e)
{
    status st = OK;
    if (fsync(p->fd))
        st = err_errno(e, "write", p->path);
    if (!st && rename(p->path, blob))
        st = err_errno(e, "rename into place", blob);
    if (!st) {
        unlink(p->map_path);
        /* Read-only, as far as the file system knows modes: a program that writes into a blob
         * changes every model that has it. */
        fchmod(p->fd, 0444);
    }
    part_close(p);
    return st;
}
