/* cache.c - see cache.h. */
#include "apps/hub/cache.h"

#include "apps/hub/names.h"
#include "apps/hub/place.h"
#include "apps/hub/store.h"
#include "base/order.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPTH_MAX = 8,        /* folders inside of a snapshot */
    SNAPSHOT_FILES = 4096 /* of one repository */
};

static const char prefix[] = "models--";

/* "models--OWNER--NAME" to "OWNER/NAME": ids of the hub hold no "--". */
static bool repo_of(const char *folder, char out[REPO_MAX])
{
    size_t n = strlen(folder);
    if (strncmp(folder, prefix, sizeof prefix - 1) || n >= REPO_MAX)
        return false;
    memcpy(out, folder + sizeof prefix - 1, n - sizeof prefix + 2);
    char *cut = strstr(out, "--");
    if (!cut)
        return false;
    *cut = '/';
    memmove(cut + 1, cut + 2, strlen(cut + 2) + 1);
    return repo_valid(out);
}

/* Reads refs/main of a repository. False: it is not there. */
static bool read_ref(const char *path, char commit[41])
{
    char text[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 40)
        return false;
    text[n] = 0;
    text[strcspn(text, " \r\n")] = 0;
    if (!hex_valid(text, 40))
        return false;
    memcpy(commit, text, 41);
    return true;
}

/* The newest folder of snapshots/, if refs/main names none. */
static bool newest_snapshot(const char *dir, char commit[41], arena *mem)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    struct stat sb;
    bool any = false;
    time_t best = 0;
    while (d && (f = readdir(d))) {
        const char *path = hex_valid(f->d_name, 40) ? path_join(mem, dir, f->d_name) : NULL;
        if (!path || stat(path, &sb) || !S_ISDIR(sb.st_mode) || (any && sb.st_mtime <= best))
            continue;
        any = true;
        best = sb.st_mtime;
        memcpy(commit, f->d_name, 41);
    }
    if (d)
        closedir(d);
    return any;
}

typedef struct snapshot {
    const char *root;                 /* the folder of the commit */
    const char *path[SNAPSHOT_FILES]; /* of model files, inside of it */
    size_t n;
    arena *mem;
} snapshot;

static bool is_link(const char *path)
{
    struct stat sb;
    return !lstat(path, &sb) && S_ISLNK(sb.st_mode);
}

/* Collects model files in root/inside. False: no memory. */
static bool collect(snapshot *s, const char *inside, int depth)
{
    const char *dir = *inside ? path_join(s->mem, s->root, inside) : s->root;
    DIR *d = dir ? opendir(dir) : NULL;
    struct dirent *f;
    struct stat sb;
    bool ok = dir != NULL;
    while (ok && d && (f = readdir(d)) && s->n < SNAPSHOT_FILES) {
        if (f->d_name[0] == '.')
            continue;
        const char *rel = *inside ? path_join(s->mem, inside, f->d_name)
                                  : arena_strndup(s->mem, f->d_name, strlen(f->d_name));
        const char *path = rel ? path_join(s->mem, s->root, rel) : NULL;
        if (!path)
            ok = false;
        else if (!file_valid(rel) || stat(path, &sb))
            continue;
        else if (S_ISDIR(sb.st_mode))
            ok = depth == DEPTH_MAX || is_link(path) || collect(s, rel, depth + 1);
        else if (S_ISREG(sb.st_mode) && is_model_file(rel))
            s->path[s->n++] = rel;
    }
    if (d)
        closedir(d);
    return ok;
}

/* The SHA-256 that a link's target is named by; "" if it is named otherwise. */
static void digest_of(const char *path, char out[65])
{
    char target[1024];
    ssize_t n = readlink(path, target, sizeof target - 1);
    out[0] = 0;
    if (n <= 0)
        return;
    target[n] = 0;
    if (hex_valid(base_name(target), 64))
        memcpy(out, base_name(target), 65);
}

/* Adds the model whose first file is s->path[i]; nothing if a part of it is not there. */
static status add_model(const snapshot *s, size_t i, const char *repo, model_list *l, err *e)
{
    char quant[QUANT_MAX];
    int no, count = 1;
    size_t n_stem = 0;
    struct stat sb = {0};
    uint64_t n_bytes = 0;
    bool split = split_name(s->path[i], &no, &count, &n_stem);
    for (int k = 1; k <= count; k++) {
        char part[FILE_MAX + 32];
        snprintf(part, sizeof part, "%s", s->path[i]);
        if (split)
            snprintf(part + n_stem, sizeof part - n_stem, "-%05d-of-%05d.gguf", k, count);
        const char *path = path_join(s->mem, s->root, part);
        if (!path)
            return err_memory(e, repo, sizeof part);
        if (stat(path, &sb) || sb.st_size < 0)
            return OK;
        n_bytes += (uint64_t)sb.st_size;
    }
    quant_among(s->path[i], s->path, s->n, quant);
    model_entry *entry = list_add(l);
    size_t cap = strlen(repo) + strlen(quant) + 2;
    char *name = arena_alloc(&l->mem, cap);
    const char *path = path_join(&l->mem, s->root, s->path[i]);
    const char *own_repo = arena_strndup(&l->mem, repo, strlen(repo));
    if (!entry || !name || !path || !own_repo) {
        l->n -= entry != NULL;
        return err_memory(e, "the list of models", cap);
    }
    snprintf(name, cap, "%s:%s", repo, quant);
    *entry = (model_entry){.name = name,
                           .repo = own_repo,
                           .quant = name + strlen(repo) + 1,
                           .path = path,
                           .n_bytes = n_bytes,
                           .n_files = count,
                           .when_s = sb.st_mtime,
                           .where = MODEL_HF_CACHE};
    digest_of(path, entry->digest);
    return OK;
}

static status read_repo(const char *dir, const char *repo, model_list *l, arena *mem, err *e)
{
    char commit[41];
    const char *refs = path_join(mem, dir, "refs/main"), *snaps = path_join(mem, dir, "snapshots");
    snapshot *s = arena_alloc(mem, sizeof *s);
    if (!refs || !snaps || !s)
        return err_memory(e, repo, sizeof *s);
    if (!read_ref(refs, commit) && !newest_snapshot(snaps, commit, mem))
        return OK;
    *s = (snapshot){.root = path_join(mem, snaps, commit), .mem = mem};
    if (!s->root || !collect(s, "", 0))
        return err_memory(e, repo, sizeof commit);
    qsort(s->path, s->n, sizeof *s->path, order_texts);
    status st = OK;
    for (size_t i = 0; i < s->n && !st; i++)
        if (is_first_file(s->path[i]))
            st = add_model(s, i, repo, l, e);
    return st;
}

status cache_read(const char *cache, model_list *l, err *e)
{
    DIR *d = opendir(cache);
    struct dirent *f;
    status st = OK;
    if (!d)
        return errno == ENOMEM ? err_errno(e, "read", cache) : OK;
    while (!st && (f = readdir(d))) {
        char repo[REPO_MAX];
        arena mem = {0};
        if (!repo_of(f->d_name, repo))
            continue;
        const char *dir = path_join(&mem, cache, f->d_name);
        st = dir ? read_repo(dir, repo, l, &mem, e) : err_memory(e, cache, strlen(cache));
        arena_free(&mem);
    }
    closedir(d);
    return st;
}

const char *cache_find_blob(const char *cache, const char *repo, const char *sha256,
                            uint64_t n_bytes, arena *mem)
{
    const char *slash = strchr(repo, '/');
    size_t cap = strlen(cache) + strlen(repo) + 128;
    char *path = arena_alloc(mem, cap);
    struct stat sb;
    if (!path || !slash)
        return NULL;
    snprintf(path, cap, "%s/%s%.*s--%s/blobs/%s", cache, prefix, (int)(slash - repo), repo,
             slash + 1, sha256);
    return !stat(path, &sb) && S_ISREG(sb.st_mode) && (uint64_t)sb.st_size == n_bytes ? path : NULL;
}
