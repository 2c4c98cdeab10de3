/* lines.c - see lines.h. */
#include "apps/lines.h"

#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 20, ROOM = LINES_MAX }; /* the file may grow by ROOM lines before it is rewritten */

/* Opens the file and locks it. A program that rewrote it meanwhile has put another file under this
 * name, which is opened then. -1: there is none, or no lock. */
static int open_locked(const char *path, int flags)
{
    for (int i = 0; i < TRIES; i++) {
        struct stat held, named;
        int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -1;
        while (flock(fd, LOCK_EX) && errno == EINTR)
            ;
        if (!fstat(fd, &held) && S_ISREG(held.st_mode) && !stat(path, &named) &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev)
            return fd;
        close(fd);
    }
    return -1;
}

/* The bytes of a file that has the texts of h. H_SAVE_FP sets the mode of the file it writes to, so
 * a stream of memory does not do. */
static bool encode(History *h, str *out)
{
    HistEvent ev;
    FILE *f = tmpfile();
    char chunk[4096];
    if (!f)
        return false;
    bool ok = history(h, &ev, H_SAVE_FP, f) >= 0 && !fseek(f, 0, SEEK_SET);
    for (size_t n; ok && (n = fread(chunk, 1, sizeof chunk, f));)
        str_put(out, chunk, n);
    ok = ok && !ferror(f) && !out->bad;
    fclose(f);
    return ok;
}

static History *open_history(void)
{
    HistEvent ev;
    History *h = history_init();
    if (h) {
        history(h, &ev, H_SETSIZE, LINES_MAX);
        history(h, &ev, H_SETUNIQUE, 1);
    }
    return h;
}

void lines_append(const char *path, const char *text)
{
    HistEvent ev;
    History *one = open_history();
    str bytes = {0};
    struct stat sb;
    int fd = -1;
    bool ok = one && history(one, &ev, H_ENTER, text) >= 0 && encode(one, &bytes);
    const char *line = ok ? strchr(str_text(&bytes), '\n') : NULL; /* after the head */
    if (line && (fd = open_locked(path, O_WRONLY | O_APPEND | O_CREAT)) >= 0) {
        const char *from = !fstat(fd, &sb) && sb.st_size ? line + 1 : str_text(&bytes);
        size_t n = strlen(from);
        ssize_t put = write(fd, from, n);
        if (put > 0 && (size_t)put < n && ftruncate(fd, sb.st_size))
            put = 0; /* a full disk: half a line is no line */
        close(fd);
    }
    if (one)
        history_end(one);
    str_free(&bytes);
}

/* always: also where no text goes. */
static void rewrite(const char *path, bool (*gone)(void *user, const char *text), void *user,
                    bool always)
{
    HistEvent ev;
    History *all = open_history(), *kept = open_history();
    str bytes = {0};
    int fd = open_locked(path, O_RDONLY);
    bool any = always;
    if (fd >= 0 && all && kept && history(all, &ev, H_LOAD, path) >= 0) {
        for (int more = history(all, &ev, H_LAST); more >= 0; more = history(all, &ev, H_PREV)) {
            HistEvent entered;
            if (gone && gone(user, ev.str))
                any = true;
            else
                history(kept, &entered, H_ENTER, ev.str);
        }
        if (any && (history(kept, &ev, H_GETSIZE) < 0 || !ev.num))
            unlink(path);
        else if (any && encode(kept, &bytes))
            file_replace(path, true, str_text(&bytes), bytes.n, NULL);
    }
    if (fd >= 0)
        close(fd);
    if (all)
        history_end(all);
    if (kept)
        history_end(kept);
    str_free(&bytes);
}

void lines_forget(const char *path, bool (*gone)(void *user, const char *text), void *user)
{
    rewrite(path, gone, user, false);
}

static size_t count_lines(const char *path)
{
    FILE *f = fopen(path, "re");
    size_t n = 0;
    for (int c; f && (c = getc(f)) != EOF;)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

void lines_load(const char *path, History *h)
{
    HistEvent ev;
    if (count_lines(path) > LINES_MAX + ROOM)
        rewrite(path, NULL, NULL, true);
    history(h, &ev, H_LOAD, path);
}
