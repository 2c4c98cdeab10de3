/* store.c - see store.h. */
#include "apps/hub/store.h"

#include "apps/hub/names.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES_MAX = 100000, FORMAT = 1 };

static const char manifest_name[] = "manifest.json";

const char *blob_path(arena *mem, const char *store, const char *sha256, const char *ending)
{
    size_t cap = strlen(store) + strlen(sha256) + strlen(ending) + 32;
    char *out = arena_alloc(mem, cap);
    if (out)
        snprintf(out, cap, "%s/blobs/sha256-%s%s", store, sha256, ending);
    return out;
}

model_entry *list_add(model_list *l)
{
    /* Capacities are powers of two, so that the list need not remember its own. */
    if (!(l->n & (l->n - 1))) {
        model_entry *more = arena_array(&l->mem, l->n ? 2 * l->n : 1, sizeof *more);
        if (!more)
            return NULL;
        if (l->n)
            memcpy(more, l->at, l->n * sizeof *more);
        l->at = more;
    }
    model_entry *entry = &l->at[l->n++];
    *entry = (model_entry){0};
    return entry;
}

/* ---- Manifests ----------------------------------------------------------------------------- */

static const char *text_of(const json_t *v, const char *key, arena *mem)
{
    const json_t *s = json_object_get(v, key);
    return json_is_string(s) ? arena_strndup(mem, json_string_value(s), json_string_length(s))
                             : NULL;
}

static bool parse_file(store_file *f, const json_t *v, arena *mem)
{
    const char *sha = json_string_value(json_object_get(v, "sha256"));
    const json_t *size = json_object_get(v, "size");
    f->path = text_of(v, "path", mem);
    if (!f->path || !file_valid(f->path) || !sha || !hex_valid(sha, 64) || !json_is_integer(size) ||
        json_integer_value(size) < 0)
        return false;
    memcpy(f->sha256, sha, sizeof f->sha256);
    f->n_bytes = (uint64_t)json_integer_value(size);
    return true;
}

status manifest_parse(manifest *m, const char *text, size_t n, const char *what, arena *mem, err *e)
{
    json_t *root;
    manifest read = {0}, *to = m;
    status st = json_parse(&root, text, n, what, e);
    if (st)
        return st;
    m = &read;
    const json_t *files = json_object_get(root, "files");
    const char *commit = json_string_value(json_object_get(root, "commit"));
    bool ok = json_integer_value(json_object_get(root, "format")) == FORMAT;
    m->repo = text_of(root, "repo", mem);
    m->quant = text_of(root, "quant", mem);
    m->endpoint = text_of(root, "endpoint", mem);
    m->revision = text_of(root, "revision", mem);
    m->pulled_s = json_integer_value(json_object_get(root, "pulled"));
    size_t n_files = json_array_size(files);
    /* A label is one folder, and what a name can end with. */
    ok = ok && m->repo && repo_valid(m->repo) && m->quant && file_valid(m->quant) &&
         !strpbrk(m->quant, "/: ") && strlen(m->quant) < QUANT_MAX && n_files >= 1 &&
         n_files <= STORE_FILES_MAX && commit && hex_valid(commit, 40);
    if (ok) {
        memcpy(m->commit, commit, 41);
        m->n_files = (int32_t)n_files;
        m->file = arena_array(mem, n_files, sizeof *m->file);
    }
    for (size_t i = 0; ok && m->file && i < n_files; i++)
        ok = parse_file(&m->file[i], json_array_get(files, i), mem) &&
             ck_add(m->n_bytes, m->file[i].n_bytes, &m->n_bytes);
    if (json_was_short() || (ok && !m->file))
        st = err_memory(e, what, n);
    else if (!ok)
        st = err_set(e, E_FORMAT, "%s: not a manifest of a model", what);
    else
        *to = read;
    json_decref(root);
    return st;
}

/* The text of a manifest, or a string that is bad. */
static void manifest_text(const manifest *m, str *out)
{
    json_t *root = json_object(), *files = json_array();
    json_init();
    json_object_set_new(root, "format", json_integer(FORMAT));
    json_object_set_new(root, "repo", json_string(m->repo));
    json_object_set_new(root, "quant", json_string(m->quant));
    json_object_set_new(root, "endpoint", json_string(m->endpoint ? m->endpoint : ""));
    json_object_set_new(root, "revision", json_string(m->revision ? m->revision : "main"));
    json_object_set_new(root, "commit", json_string(m->commit));
    json_object_set_new(root, "pulled", json_integer(m->pulled_s));
    for (int32_t i = 0; i < m->n_files; i++) {
        json_t *f = json_object();
        json_object_set_new(f, "path", json_string(m->file[i].path));
        json_object_set_new(f, "sha256", json_string(m->file[i].sha256));
        json_object_set_new(f, "size", json_integer((json_int_t)m->file[i].n_bytes));
        json_array_append_new(files, f);
    }
    json_object_set_new(root, "files", files);
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text)
        str_puts(out, text);
    str_putc(out, '\n');
    if (json_was_short() || !text)
        out->bad = true;
    free(text); /* of jansson */
}

/* ---- The lock ------------------------------------------------------------------------------ */

status store_lock_take(store_lock *l, const char *store, err *e)
{
    arena mem = {0};
    status st = make_dirs(store, e);
    const char *path = path_join(&mem, store, "lock");
    l->fd = -1;
    if (!st && !path)
        st = err_memory(e, store, strlen(store));
    if (!st && (l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0)
        st = err_errno(e, "open", path);
    while (!st && flock(l->fd, LOCK_EX) && errno == EINTR)
        ;
    arena_free(&mem);
    return st;
}

void store_lock_drop(store_lock *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* Calls visit for each folder in path that is a valid name; stops at an error. */
typedef status (*visit_fn)(void *arg, const char *path, const char *name, err *e);

static status each_dir(const char *path, visit_fn visit, void *arg, err *e)
{
    DIR *d = opendir(path);
    struct dirent *f;
    arena mem = {0};
    status st = OK;
    if (!d)
        return errno == ENOENT || errno == ENOTDIR ? OK : err_errno(e, "read", path);
    while (!st && (f = readdir(d))) {
        if (f->d_name[0] == '.')
            continue;
        const char *sub = path_join(&mem, path, f->d_name);
        st = sub ? visit(arg, sub, f->d_name, e) : err_memory(e, path, strlen(path));
    }
    closedir(d);
    arena_free(&mem);
    return st;
}

/* The manifest of a folder of the store. OK with repo NULL: there is none, or it is damaged. */
static status read_manifest(manifest *m, const char *dir, arena *mem, err *e)
{
    arena own = {0};
    char *text = NULL;
    size_t n = 0;
    err why = {0};
    *m = (manifest){0};
    const char *path = path_join(&own, dir, manifest_name);
    status st = path ? file_read_all(path, MANIFEST_MAX, &text, &n, &why) : E_MEMORY;
    if (!st)
        st = manifest_parse(m, text, n, path, mem, &why);
    if (st && st != E_MEMORY)
        st = OK;
    if (st)
        err_memory(e, dir, n);
    mem_free(text);
    arena_free(&own);
    return st;
}

typedef struct walk {
    const char *owner, *repo;
    status (*take)(void *arg, const char *dir, const manifest *m, err *e);
    void *arg;
    arena *mem;
    int n;
} walk;

static status visit_quant(void *arg, const char *path, const char *name, err *e)
{
    walk *w = arg;
    manifest m;
    char repo[REPO_MAX];
    status st = read_manifest(&m, path, w->mem, e);
    int n = snprintf(repo, sizeof repo, "%s/%s", w->owner, w->repo);
    /* A folder that was copied under another name is not the model of its manifest. */
    if (st || !m.repo || n >= (int)sizeof repo || strcmp(m.repo, repo) || strcmp(m.quant, name) ||
        w->n++ >= ENTRIES_MAX)
        return st;
    return w->take(w->arg, path, &m, e);
}

static status visit_repo(void *arg, const char *path, const char *name, err *e)
{
    walk *w = arg;
    w->repo = name;
    return each_dir(path, visit_quant, w, e);
}

static status visit_owner(void *arg, const char *path, const char *name, err *e)
{
    walk *w = arg;
    w->owner = name;
    return each_dir(path, visit_repo, w, e);
}

static status each_manifest(const char *store, walk *w, err *e)
{
    const char *dir = path_join(w->mem, store, "models");
    return dir ? each_dir(dir, visit_owner, w, e) : err_memory(e, store, strlen(store));
}

static status add_entry(void *arg, const char *dir, const manifest *m, err *e)
{
    model_list *l = arg;
    model_entry *entry = list_add(l);
    size_t cap = strlen(m->repo) + strlen(m->quant) + 2;
    char *name = arena_alloc(&l->mem, cap);
    const char *path = path_join(&l->mem, dir, base_name(m->file[0].path));
    if (!entry || !name || !path)
        return err_memory(e, "the list of models", cap);
    snprintf(name, cap, "%s:%s", m->repo, m->quant);
    *entry = (model_entry){.name = name,
                           .repo = m->repo,
                           .quant = m->quant,
                           .path = path,
                           .n_bytes = m->n_bytes,
                           .n_files = m->n_files,
                           .when_s = m->pulled_s,
                           .where = MODEL_STORE};
    memcpy(entry->digest, m->file[0].sha256, sizeof entry->digest);
    return OK;
}

status store_read(const char *store, model_list *l, err *e)
{
    walk w = {.take = add_entry, .arg = l, .mem = &l->mem};
    return each_manifest(store, &w, e);
}

/* ---- Blobs that nothing names -------------------------------------------------------------- */

/* Clears the hashes of *arg that this manifest also names. */
static status spare_files(void *arg, const char *dir, const manifest *m, err *e)
{
    manifest *gone = arg;
    (void)dir, (void)e;
    for (int32_t i = 0; i < m->n_files; i++)
        for (int32_t k = 0; k < gone->n_files; k++)
            if (!strcmp(m->file[i].sha256, gone->file[k].sha256))
                gone->file[k].sha256[0] = 0;
    return OK;
}

/* Deletes the blobs of a manifest that is no longer there, but for those of other models. Adds
 * their sizes to *freed. The caller holds the lock. */
static status drop_blobs(const char *store, manifest *gone, arena *mem, uint64_t *freed, err *e)
{
    walk w = {.take = spare_files, .arg = gone, .mem = mem};
    status st = each_manifest(store, &w, e);
    for (int32_t i = 0; !st && i < gone->n_files; i++) {
        const char *sha = gone->file[i].sha256,
                   *blob = *sha ? blob_path(mem, store, sha, "") : NULL;
        if (blob && !unlink(blob)) /* of two equal files of one model the second is gone already */
            *freed += gone->file[i].n_bytes;
    }
    return st;
}

/* ---- Entering ------------------------------------------------------------------------------ */

/* Makes dir/name a link to the blob, replacing what is there. Where the file system has no symbolic
 * links, a second name of the same file. */
static status link_blob(const char *dir, const char *name, const char *store, const store_file *f,
                        arena *mem, err *e)
{
    char target[128], temp_name[64];
    snprintf(target, sizeof target, "../../../../blobs/sha256-%s", f->sha256);
    snprintf(temp_name, sizeof temp_name, ".link-%ld", (long)getpid());
    const char *path = path_join(mem, dir, name), *temp = path_join(mem, dir, temp_name);
    const char *blob = blob_path(mem, store, f->sha256, "");
    if (!path || !temp || !blob)
        return err_memory(e, name, strlen(name));
    unlink(temp);
    if (symlink(target, temp) && link(blob, temp))
        return err_errno(e, "link", path);
    if (rename(temp, path)) {
        status st = err_errno(e, "rename into place", path);
        unlink(temp);
        return st;
    }
    return OK;
}

/* Removes links of an older version, and those that an interrupted program left. */
static void drop_other_files(const char *dir, const manifest *m, arena *mem)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    while (d && (f = readdir(d))) {
        bool keep = !strcmp(f->d_name, ".") || !strcmp(f->d_name, "..") ||
                    !strcmp(f->d_name, manifest_name);
        for (int32_t i = 0; m && !keep && i < m->n_files; i++)
            keep = !strcmp(f->d_name, base_name(m->file[i].path));
        const char *path = keep ? NULL : path_join(mem, dir, f->d_name);
        if (path)
            unlink(path);
    }
    if (d)
        closedir(d);
}

bool store_has(const char *store, const manifest *m, arena *mem, const char **path)
{
    manifest old;
    const char *dir = path_join(mem, store, "models");
    dir = dir ? path_join(mem, dir, m->repo) : NULL;
    dir = dir ? path_join(mem, dir, m->quant) : NULL;
    const char *first = dir ? path_join(mem, dir, base_name(m->file[0].path)) : NULL;
    if (!first || read_manifest(&old, dir, mem, NULL) || !old.repo || strcmp(old.repo, m->repo) ||
        strcmp(old.commit, m->commit) || old.n_files != m->n_files)
        return false;
    for (int32_t i = 0; i < m->n_files; i++) {
        const char *file = path_join(mem, dir, base_name(m->file[i].path));
        if (!file || access(file, R_OK) || strcmp(old.file[i].path, m->file[i].path) ||
            strcmp(old.file[i].sha256, m->file[i].sha256))
            return false;
    }
    *path = first;
    return true;
}

status store_enter(const char *store, const manifest *m, arena *mem, const char **path, err *e)
{
    str text = {0};
    file_out out = {0};
    manifest old = {0};
    status st = OK;
    struct stat sb;
    uint64_t freed = 0;
    const char *dir = path_join(mem, store, "models");
    dir = dir ? path_join(mem, dir, m->repo) : NULL;
    dir = dir ? path_join(mem, dir, m->quant) : NULL;
    const char *to = dir ? path_join(mem, dir, manifest_name) : NULL;
    const char *first = dir ? path_join(mem, dir, base_name(m->file[0].path)) : NULL;
    if (!to || !first)
        return err_memory(e, m->repo, strlen(store));
    for (int32_t i = 0; i < m->n_files; i++) {
        const char *blob = blob_path(mem, store, m->file[i].sha256, "");
        if (!blob)
            return err_memory(e, m->repo, strlen(store));
        if (stat(blob, &sb))
            return err_errno(e, "open", blob);
        if ((uint64_t)sb.st_size != m->file[i].n_bytes)
            return err_set(e, E_FORMAT, "%s has %llu bytes and should have %llu: remove it", blob,
                           (unsigned long long)sb.st_size, (unsigned long long)m->file[i].n_bytes);
    }
    if ((st = read_manifest(&old, dir, mem, e)))
        return st;
    manifest_text(m, &text);
    st = text.bad ? err_memory(e, "a manifest", text.n) : make_dirs(dir, e);
    for (int32_t i = 0; !st && i < m->n_files; i++)
        st = link_blob(dir, base_name(m->file[i].path), store, &m->file[i], mem, e);
    if (!st && !(st = file_out_open_private(&out, to, e))) {
        st = file_out_write(&out, text.at, text.n, e);
        if (st)
            file_out_discard(&out);
        else
            st = file_out_commit(&out, e);
    }
    if (!st) {
        drop_other_files(dir, m, mem);
        st = drop_blobs(store, &old, mem, &freed, e); /* of the version that this one replaces */
    }
    if (!st)
        *path = first;
    str_free(&text);
    return st;
}

/* ---- Removing ------------------------------------------------------------------------------ */

status store_remove(const char *store, const model_entry *entry, uint64_t *freed, err *e)
{
    store_lock lock;
    arena mem = {0};
    manifest gone = {0};
    uint64_t n_freed = 0;
    status st = store_lock_take(&lock, store, e);
    char *dir = arena_strndup(&mem, entry->path, strlen(entry->path)), *end;
    const char *file = NULL;
    if (dir) {
        *strrchr(dir, '/') = 0;
        file = path_join(&mem, dir, manifest_name);
    }
    if (!st && !file)
        st = err_memory(e, entry->name, strlen(entry->path));
    if (!st)
        st = read_manifest(&gone, dir, &mem, e);
    if (!st && !gone.repo)
        st = err_set(e, E_ARG, "%s has just been removed", entry->name);
    if (!st && unlink(file))
        st = err_errno(e, "remove", file);
    if (!st)
        st = drop_blobs(store, &gone, &mem, &n_freed, e);
    if (!st) {
        *freed = n_freed;
        drop_other_files(dir, NULL, &mem);
        for (int i = 0; i < 3 && !rmdir(dir) && (end = strrchr(dir, '/')); i++)
            *end = 0; /* QUANT, then REPO and OWNER, where they are empty now */
    }
    store_lock_drop(&lock);
    arena_free(&mem);
    return st;
}
