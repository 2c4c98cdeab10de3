/* made.c - see made.h. */
#include "apps/hub/made.h"

#include "apps/hub/hub.h"
#include "apps/hub/place.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "carat.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 200 };
static const char ending[] = ".json";

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool made_name_valid(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (!is_letter(name[i]) && (!strchr("-_.:/", name[i]) || !i || name[i - 1] == '/'))
            return false;
    return n && n <= NAME_MAX_BYTES && name[n - 1] != '/';
}

bool made_setting(const char *name)
{
    static const char *const others[] = {"seed",    "stop",      "num_predict", "num_keep",
                                         "num_ctx", "num_batch", "num_thread"};
    if (carat_sampling_find(name))
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return true;
    return false;
}

/* STORE/made, of mem; *dir NULL: there is no home directory. */
static status find_dir(arena *mem, const char **dir, err *e)
{
    place p;
    const char *made = NULL;
    status st = place_read(&p, false, e);
    if (st)
        return st;
    if (p.store && !(made = path_join(mem, p.store, "made")))
        st = err_memory(e, "a model", NAME_MAX_BYTES);
    if (!st)
        *dir = made;
    place_free(&p);
    return st;
}

/* The file of a model, of mem; NULL: no memory. */
static const char *file_of(arena *mem, const char *dir, const char *name)
{
    char file[NAME_MAX_BYTES + sizeof ending];
    size_t n = strlen(name);
    memcpy(file, name, n);
    memcpy(file + n, ending, sizeof ending);
    for (char *at = file; (at = strchr(at, '/'));)
        *at = '%';
    return path_join(mem, dir, file);
}

/* The name of a model by that of its file; false: it is none. */
static bool name_of(const char *file, char name[NAME_MAX_BYTES + 1])
{
    size_t n = strlen(file), k = sizeof ending - 1;
    if (n <= k || n - k > NAME_MAX_BYTES || strcmp(file + n - k, ending))
        return false;
    memcpy(name, file, n - k);
    name[n - k] = 0;
    for (char *at = name; (at = strchr(at, '%'));)
        *at = '/';
    return made_name_valid(name);
}

static status read_one(arena *mem, const char *dir, const char *name, made_model *out, err *e)
{
    const char *path = file_of(mem, dir, name);
    char *bytes = NULL;
    size_t n = 0;
    struct stat sb;
    status st = path ? OK : err_memory(e, name, strlen(name));
    *out = (made_model){.name = name};
    if (st || (st = file_read_all(path, MADE_BYTES_MAX, &bytes, &n, e)))
        return st;
    out->text = arena_strndup(mem, bytes, n);
    out->n = n;
    out->when_s = stat(path, &sb) ? 0 : (int64_t)sb.st_mtim.tv_sec;
    mem_free(bytes);
    return out->text ? OK : err_memory(e, path, n);
}

/* Another program may have removed it meanwhile. */
static bool has_gone(arena *mem, const char *dir, const char *name)
{
    const char *path = file_of(mem, dir, name);
    struct stat sb;
    return path && stat(path, &sb) && errno == ENOENT;
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcasecmp(*x, *y);
}

/* The names of all models, sorted. */
static status read_names(arena *mem, const char *dir, const char ***out, size_t *n, err *e)
{
    const char **names = arena_array(mem, MADE_MAX, sizeof *names);
    DIR *d = dir ? opendir(dir) : NULL;
    size_t n_names = 0;
    if (!names) {
        if (d)
            closedir(d);
        return err_memory(e, "the list of models", MADE_MAX * sizeof *names);
    }
    status st = OK;
    for (struct dirent *f; d && !st && n_names < MADE_MAX && (f = readdir(d));) {
        char name[NAME_MAX_BYTES + 1];
        if (!name_of(f->d_name, name))
            continue;
        if ((names[n_names] = arena_strndup(mem, name, strlen(name))))
            n_names++;
        else
            st = err_memory(e, "the list of models", strlen(name));
    }
    if (d)
        closedir(d);
    if (st)
        return st;
    qsort(names, n_names, sizeof *names, by_name);
    *out = names;
    *n = n_names;
    return OK;
}

status made_find(const char *name, arena *mem, const made_model **out, err *e)
{
    const char *dir, **names;
    struct stat sb;
    const made_model *found = NULL;
    size_t n = 0;
    status st = made_name_valid(name) ? find_dir(mem, &dir, e) : (dir = NULL, OK);
    if (st || (dir && !stat(dir, &sb) && (st = read_names(mem, dir, &names, &n, e))))
        return st;
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(names[i], name))
            continue;
        made_model *m = arena_alloc(mem, sizeof *m);
        if (!m)
            return err_memory(e, name, sizeof *m);
        err why = {0};
        if (!(st = read_one(mem, dir, names[i], m, &why)))
            found = m;
        else if (st == E_MEMORY || !has_gone(mem, dir, names[i]))
            return err_set(e, st, "%s", why.text);
        break;
    }
    *out = found;
    return OK;
}

status made_list(arena *mem, const made_model **out, size_t *n, err *e)
{
    const char *dir, **names;
    size_t n_names, n_read = 0;
    status st = find_dir(mem, &dir, e);
    if (st || (st = read_names(mem, dir, &names, &n_names, e)))
        return st;
    made_model *list = arena_array(mem, n_names + 1, sizeof *list);
    if (!list)
        return err_memory(e, "the list of models", n_names * sizeof *list);
    for (size_t i = 0; i < n_names; i++) {
        err why = {0};
        st = read_one(mem, dir, names[i], &list[n_read], &why);
        if (st == E_MEMORY)
            return err_set(e, st, "%s", why.text);
        n_read += !st; /* one that has just gone, or is damaged, is left out */
    }
    *out = list;
    *n = n_read;
    return OK;
}

status made_weights(const made_model *m, arena *mem, const char **path, int32_t *n_ctx, err *e)
{
    json_t *root;
    struct stat sb;
    model_found found = {0};
    status st = json_parse(&root, m->text, m->n, m->name, e);
    if (st)
        return st;
    const char *from = json_string_value(json_object_get(root, "from"));
    const char *file = json_string_value(json_object_get(root, "file"));
    json_int_t wants =
        json_integer_value(json_object_get(json_object_get(root, "parameters"), "num_ctx"));
    bool bundled = json_is_true(json_object_get(root, "bundled"));
    const char *at = NULL;
    if (!from || !*from)
        st = err_set(e, E_FORMAT, "%s does not say which model it is made of", m->name);
    else if (!bundled && file && !stat(file, &sb))
        at = file;
    else if (!bundled && !(st = model_find(from, &found, e)))
        at = found.path;
    const char *own = st || bundled ? NULL : arena_strndup(mem, at, strlen(at));
    if (!st && !bundled && !own)
        st = err_memory(e, m->name, strlen(at));
    if (!st) {
        *path = own;
        *n_ctx = wants > 0 && wants <= INT32_MAX ? (int32_t)wants : 0;
    }
    model_found_free(&found);
    json_decref(root);
    return st;
}

status made_adapters(const made_model *m, arena *mem, const char ***path, size_t *n, err *e)
{
    json_t *root;
    status st = json_parse(&root, m->text, m->n, m->name, e);
    *path = NULL;
    *n = 0;
    if (st)
        return st;
    const json_t *list = json_object_get(root, "adapters");
    size_t count = json_array_size(list);
    const char **all = arena_array(mem, count + 1, sizeof *all);
    bool good = (!list || json_is_array(list)) && count <= MADE_ADAPTERS_MAX;
    for (size_t i = 0; i < count && good && all; i++) {
        const char *one = json_string_value(json_array_get(list, i));
        good = one && *one;
        if (good && !(all[i] = arena_strndup(mem, one, strlen(one))))
            all = NULL;
    }
    json_decref(root);
    if (!all)
        return err_memory(e, m->name, count);
    if (!good)
        return err_set(e, E_FORMAT, "%s: its adapters are no list of at most %d files", m->name,
                       MADE_ADAPTERS_MAX);
    *path = all;
    *n = count;
    return OK;
}

status made_write(const char *name, const char *text, size_t n, err *e)
{
    arena mem = {0};
    const char *dir, *path;
    const made_model *had;
    file_out f = {0};
    if (!made_name_valid(name))
        return err_set(e, E_ARG,
                       "'%.80s' is no name for a model: 1 to %d letters, digits and -_.:/ ; the "
                       "first one, and one after a '/', is a letter or a digit",
                       name, NAME_MAX_BYTES);
    if (n > MADE_BYTES_MAX)
        return err_set(e, E_LIMIT, "%s: more than %d bytes", name, MADE_BYTES_MAX);
    status st = find_dir(&mem, &dir, e);
    if (!st && !dir)
        st = err_set(e, E_IO, "there is no home directory, so there is no place for a model");
    if (!st && !(st = make_dirs(dir, e)) && !(st = made_find(name, &mem, &had, e))) {
        /* It keeps the spelling under which it is there. */
        path = file_of(&mem, dir, had ? had->name : name);
        st = path ? OK : err_memory(e, name, n);
        if (!st && !(st = file_out_open_private(&f, path, e)) &&
            !(st = file_out_write(&f, text, n, e)))
            st = file_out_commit(&f, e);
        file_out_discard(&f);
    }
    arena_free(&mem);
    return st;
}

status made_remove(const char *name, bool *was, err *e)
{
    arena mem = {0};
    const char *dir = NULL;
    const made_model *had = NULL;
    bool gone = false;
    status st = made_find(name, &mem, &had, e);
    if (!st && had && !(st = find_dir(&mem, &dir, e))) {
        const char *path = file_of(&mem, dir, had->name);
        if (!path)
            st = err_memory(e, name, NAME_MAX_BYTES);
        else if (!(gone = !unlink(path)) && errno != ENOENT)
            st = err_errno(e, "remove", path);
    }
    if (!st)
        *was = gone;
    arena_free(&mem);
    return st;
}
