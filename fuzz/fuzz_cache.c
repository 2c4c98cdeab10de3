/* fuzz_cache.c - a cache of Python's client of the hub, made of the input in a folder, and read.
 *
 *     one line, one thing: a letter, a path in the cache and, after a tab, a text
 *
 *     f PATH TEXT   a file         d PATH        a folder
 *     l PATH TEXT   a link         t PATH TEXT   a folder that was changed TEXT seconds after 1970
 *
 * In paths and texts "@" stands for a commit, "%" for a SHA-256, "^" for models--own--Repo. Nothing
 * outside of the rules may come out: a name that cannot be typed, a path outside of its snapshot, a
 * size that is not that of the files.
 */
#include "fuzz/fuzz.h"
#include "apps/hub/cache.h"
#include "apps/hub/names.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES_MAX = 24, TEXT_MAX = 512, PARTS_OF_PATH = 14 };

static char root[64]; /* on a file system in memory, where there is one */

static void make_root(void)
{
    if (*root)
        return;
    snprintf(root, sizeof root, "/dev/shm/carat-fuzz-XXXXXX");
    if (!mkdtemp(root)) {
        snprintf(root, sizeof root, "/tmp/carat-fuzz-XXXXXX");
        fuzz_check(mkdtemp(root) != NULL, "no folder to work in");
    }
}

/* Removes what is in the folder, and the folder too if `whole`. Links are not followed. */
static void clear(int at, const char *name, bool whole)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *f;
    while (d && (f = readdir(d)))
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0 &&
            unlinkat(dirfd(d), f->d_name, 0))
            clear(dirfd(d), f->d_name, true);
    if (d)
        closedir(d);
    if (whole)
        unlinkat(at, name, AT_REMOVEDIR);
}

/* The bytes of a line to a text with the abbreviations written out. */
static void spell(const char *s, size_t n, char out[TEXT_MAX])
{
    static const char commit[] = "0123456789abcdef0123456789abcdef01234567";
    static const char sha[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    size_t k = 0;
    for (size_t i = 0; i < n && k + 70 < TEXT_MAX; i++) {
        const char *word = s[i] == '@'   ? commit
                           : s[i] == '%' ? sha
                           : s[i] == '^' ? "models--own--Repo"
                                         : NULL;
        size_t len = word ? strlen(word) : 1;
        memcpy(out + k, word ? word : s + i, len);
        k += len;
    }
    out[k] = 0;
}

/* Nothing is made above the folder: the path has no part "..". Its folders are made too. */
static bool reach(int dir, char *path)
{
    int n = 0;
    if (!*path || *path == '/' || strstr(path, ".."))
        return false;
    for (char *at = path; (at = strchr(at, '/')); at++) {
        if (++n > PARTS_OF_PATH)
            return false;
        *at = 0;
        struct stat sb;
        mkdirat(dir, path, 0700);
        bool folder = !fstatat(dir, path, &sb, AT_SYMLINK_NOFOLLOW) && S_ISDIR(sb.st_mode);
        *at = '/';
        if (!folder)
            return false; /* a link, which may lead outside */
    }
    return true;
}

/* A link leads to what the input made, never to what the machine has. */
static bool stays_inside(const char *path, const char *target)
{
    size_t n_up = 0, n_folders = 0;
    for (; !strncmp(target, "../", 3); target += 3)
        n_up++;
    for (; *path; path++)
        n_folders += *path == '/';
    return *target && *target != '/' && !strstr(target, "..") && n_up <= n_folders;
}

static void make_one(int dir, const char *line, size_t n)
{
    char path[TEXT_MAX], text[TEXT_MAX];
    const char *tab = n > 2 ? memchr(line + 2, '\t', n - 2) : NULL;
    size_t n_path = n < 2 ? 0 : tab ? (size_t)(tab - line) - 2 : n - 2;
    spell(line + (n < 2 ? 0 : 2), n_path, path);
    spell(tab ? tab + 1 : "", tab ? n - n_path - 3 : 0, text);
    if (!n || !reach(dir, path))
        return;
    if (*line == 'd' || *line == 't')
        mkdirat(dir, path, 0700);
    if (*line == 't') {
        struct timespec when = {.tv_sec = atoi(text)};
        utimensat(dir, path, (struct timespec[2]){when, when}, AT_SYMLINK_NOFOLLOW);
    } else if (*line == 'l') {
        if (stays_inside(path, text) && symlinkat(text, dir, path))
            return;
    } else if (*line == 'f') {
        int fd = openat(dir, path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        ssize_t put = fd < 0 ? 0 : write(fd, text, strlen(text));
        (void)put;
        if (fd >= 0)
            close(fd);
    }
}

static void check_entry(const model_entry *m)
{
    char start[160];
    name_parts parts;
    struct stat sb;
    size_t n_repo = strlen(m->repo);
    fuzz_check(repo_valid(m->repo), "a repository");
    fuzz_check(!strncmp(m->name, m->repo, n_repo) && m->name[n_repo] == ':', "a name");
    fuzz_check(name_parse(m->name, NULL, &parts) && *parts.quant, "a name that cannot be typed");
    fuzz_check(m->where == MODEL_HF_CACHE && (!*m->digest || hex_valid(m->digest, 64)), "a hash");
    fuzz_check(m->n_files >= 1 && m->n_files <= PARTS_MAX, "a count of files");
    int n = snprintf(start, sizeof start, "%s/models--", root);
    fuzz_check(!strncmp(m->path, start, (size_t)n), "a path outside of the cache");
    const char *inside = strstr(m->path, "/snapshots/");
    fuzz_check(inside && strlen(inside) > 11 + 41, "a path outside of the snapshots");
    inside += 11 + 41;
    fuzz_check(file_valid(inside) && is_first_file(inside), "a path in the snapshot");
    fuzz_check(!stat(m->path, &sb) && S_ISREG(sb.st_mode), "no file");
    fuzz_check(m->n_files == 1 ? m->n_bytes == (uint64_t)sb.st_size
                               : m->n_bytes >= (uint64_t)sb.st_size,
               "a size");
}

FUZZ(cache)
{
    const char *s = (const char *)data;
    model_list l = {0};
    arena mem = {0};
    err e = {0};
    make_root();
    int dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fuzz_check(dir >= 0, "no folder to work in");
    for (size_t at = 0, i = 0; at < n && i < LINES_MAX; i++) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (s + at)) : n - at;
        char line[256];
        memcpy(line, s + at, len < sizeof line ? len : sizeof line);
        if (len < sizeof line && !memchr(line, 0, len))
            make_one(dir, line, len);
        at += len + 1;
    }
    fuzz_check(!cache_read(root, &l, &e), "a cache that cannot be read");
    for (size_t i = 0; i < l.n; i++) {
        check_entry(&l.at[i]);
        if (*l.at[i].digest)
            cache_find_blob(root, l.at[i].repo, l.at[i].digest, l.at[i].n_bytes, &mem);
    }
    model_list_free(&l);
    arena_free(&mem);
    clear(dir, ".", false);
    close(dir);
#if !CARAT_FUZZ
    rmdir(root); /* a target of libFuzzer keeps it: it goes on with the next input */
    *root = 0;
#endif
}
