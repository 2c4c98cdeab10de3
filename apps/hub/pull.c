/* pull.c - a model of a hub becomes one of the store.
 *
 *     revision -> commit -> files of that commit -> which ones -> each: here, in the cache, or
 * pulled
 *     -> the lock -> are all blobs still there? -> links and manifest
 *
 * The commit is fixed first, so one pull never mixes two versions. The model has a name only when
 * all of its files are there and checked.
 */
#include "apps/hub/cache.h"
#include "apps/hub/head.h"
#include "apps/hub/pull_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGES_MAX = 400,       /* of a listing; a page has up to 1000 files */
    PAGE_BYTES = 32 << 20, /* of one page */
    AGAIN_MAX = 3,         /* times that somebody removed what was just pulled */
    REPORT_EVERY_MS = 60
};

/* ---- Progress ------------------------------------------------------------------------------ */

static bool report(pull *x, bool now)
{
    const hub_ask *ask = x->ask;
    double ms = clock_ms();
    if (!ask->progress || (!now && ms - x->said_ms < REPORT_EVERY_MS))
        return true;
    x->said_ms = ms;
    return ask->progress(ask->user, &x->said);
}

static bool tick(void *user, const char *note)
{
    pull *x = user;
    hub_progress *s = &x->said;
    if (s->phase == HUB_PULLING || s->phase == HUB_CHECKING) {
        const download *d = &x->down;
        bool here = d->n_here >= s->total;
        s->came = x->came + d->n_came;
        s->phase = here ? HUB_CHECKING : HUB_PULLING;
        s->done = here ? d->n_hashed : d->n_here;
        s->all_done = x->before + (here ? s->total : d->n_here);
        note = *note ? note : d->note ? d->note : "";
    }
    /* A sentence about waiting is worth showing at once, and only once. */
    bool news = strcmp(note, s->note) != 0;
    s->note = note;
    return report(x, news);
}

static status enter_phase(pull *x, hub_phase phase, err *e)
{
    x->said.phase = phase;
    x->said.note = "";
    return report(x, true) ? OK : err_set(e, E_CANCELLED, "interrupted");
}

status pull_tell(pull *x, const char *note, err *e)
{
    x->said.note = note;
    bool go_on = report(x, true);
    x->said.note = "";
    return go_on ? OK : err_set(e, E_CANCELLED, "interrupted");
}

/* ---- Which files --------------------------------------------------------------------------- */

/* The address of the API or of a file; NULL: no memory. */
static const char *address(pull *x, const char *before, const char *between, const char *rev,
                           const char *tail, const char *path)
{
    str s = {0};
    str_printf(&s, "%s%s%s%s", x->p.endpoint, before, x->repo, between);
    url_put(&s, rev, false);
    str_puts(&s, tail);
    url_put(&s, path, true);
    const char *out = s.bad ? NULL : arena_strndup(&x->mem, str_text(&s), s.n);
    str_free(&s);
    return out;
}

const char *pull_address(pull *x, const char *path)
{
    return address(x, "/", "/resolve/", x->list.commit, "/", path);
}

static status read_listing(pull *x, err *e)
{
    str body = {0};
    reply *head = mem_alloc(sizeof *head);
    char url[URL_MAX], next[URL_MAX];
    const char *at = address(x, "/api/models/", "/revision/", x->revision, "", "");
    status st = head && at ? OK : err_memory(e, x->repo, sizeof *head);
    if (!st)
        st = net_text(&x->net, at, x->repo, PAGE_BYTES, &body, head, e);
    if (!st)
        st = listing_take_revision(&x->list, str_text(&body), body.n, x->repo, e);
    at = st ? NULL
            : address(x, "/api/models/", "/tree/", x->list.commit, "?recursive=true&expand=false",
                      "");
    if (!st && !at)
        st = err_memory(e, x->repo, sizeof url);
    if (!st)
        snprintf(url, sizeof url, "%s", at);
    for (int pages = 1; !st; pages++) {
        if ((st = net_text(&x->net, url, x->repo, PAGE_BYTES, &body, head, e)) ||
            (st = listing_take_tree(&x->list, str_text(&body), body.n, x->repo, e)))
            break;
        if (!*head->next)
            break;
        if (pages == PAGES_MAX || x->list.n == LISTING_MAX)
            st = err_set(e, E_LIMIT, "%s: more files than carat reads", x->repo);
        else if (!url_resolve(url, head->next, next) || !url_same_origin(next, x->p.endpoint))
            st = err_set(e, E_FORMAT, "%s: the next page of the list is on another host", x->repo);
        else
            strcpy(url, next);
    }
    str_free(&body);
    mem_free(head);
    return st;
}

/* "Q4_0, Q8_0, BF16": what a repository has. */
static void put_labels(const listing *l, const char *const *paths, str *out)
{
    char quant[QUANT_MAX];
    int shown = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!is_first_file(paths[i]))
            continue;
        quant_among(paths[i], paths, l->n, quant);
        if (shown++ < 24)
            str_printf(out, "%s%s", shown > 1 ? ", " : "", quant);
    }
    if (shown > 24)
        str_printf(out, " and %d more", shown - 24);
}

/* A GGUF file that is not taken for a model; NULL: there is none. */
static const char *other_gguf(const char *const *paths, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(paths[i]);
        if (len > 5 && !strcasecmp(paths[i] + len - 5, ".gguf"))
            return paths[i];
    }
    return NULL;
}

static status impossible_part(const pull *x, const char *path, err *e)
{
    return err_set(e, E_FORMAT,
                   "%s: %s numbers itself as a part of a set that cannot be (1 to %d parts)",
                   x->repo, path, PARTS_MAX);
}

static status no_such_file(const pull *x, const char *const *paths, const char *file, err *e)
{
    str has = {0};
    put_labels(&x->list, paths, &has);
    const char *other = has.n ? NULL : other_gguf(paths, x->list.n);
    status st;
    if (has.bad)
        st = err_memory(e, x->repo, has.n);
    else if (other && !*file && split_broken(other))
        st = impossible_part(x, other, e);
    else if (other && !*file)
        st = err_set(e, E_ARG,
                     "%s holds no model, but files that belong to one, such as %s (--file PATH "
                     "pulls it)",
                     x->repo, other);
    else if (!has.n)
        st = err_set(e, E_ARG,
                     "%s holds no GGUF files, which carat needs; there may be a copy named "
                     "%s-GGUF, and carat convert makes them of safetensors",
                     x->repo, x->name.repo);
    else
        st = err_set(e, E_ARG, "%s has no %s; it has: %s", x->repo, *file ? file : x->name.quant,
                     has.at);
    str_free(&has);
    return st;
}

static status add_file(pull *x, int i, const hub_file *f, err *e)
{
    x->file[i] = *f;
    x->m.file[i].path = f->path;
    x->m.file[i].n_bytes = f->n_bytes;
    if (__builtin_add_overflow(x->m.n_bytes, f->n_bytes, &x->m.n_bytes))
        return err_set(e, E_FORMAT, "%s: the hub lists files of impossible sizes", x->repo);
    return OK;
}

/* Which file is meant. */
static status choose(pull *x, int *out, err *e)
{
    const listing *l = &x->list;
    const char *file = x->ask->file ? x->ask->file : x->name.file;
    const char **paths = x->paths = arena_array(&x->mem, l->n ? l->n : 1, sizeof *paths);
    int first = -1;
    if (!paths)
        return err_memory(e, x->repo, l->n * sizeof *paths);
    for (size_t i = 0; i < l->n; i++) {
        paths[i] = l->file[i].path;
        if (*file && !strcmp(paths[i], file))
            first = (int)i;
    }
    if (!*file)
        first = choose_file(paths, l->n, *x->name.quant ? x->name.quant : NULL);
    if (first < 0)
        return no_such_file(x, paths, file, e);
    if (split_broken(paths[first]))
        return impossible_part(x, paths[first], e);
    *out = first;
    return OK;
}

status pull_set(pull *x, int first, err *e)
{
    const listing *l = &x->list;
    const char **paths = x->paths;
    int no, count = 1;
    size_t n_stem = 0;
    status st = OK;
    bool split = split_name(paths[first], &no, &count, &n_stem);
    quant_among(paths[first], paths, l->n, x->quant);
    x->m = (manifest){.repo = x->repo,
                      .quant = x->quant,
                      .endpoint = x->p.endpoint,
                      .revision = x->revision,
                      .n_files = count};
    memcpy(x->m.commit, l->commit, sizeof l->commit);
    int tower = x->ask->no_mmproj ? -1 : choose_mmproj(paths, l->n, paths[first]);
    x->file = arena_array(&x->mem, (size_t)count + 1, sizeof *x->file);
    x->m.file = arena_array(&x->mem, (size_t)count + 1, sizeof *x->m.file);
    if (!x->file || !x->m.file)
        return err_memory(e, x->repo, (size_t)count * sizeof *x->file);
    for (int k = 1; k <= count; k++) {
        char want[FILE_MAX + 32];
        size_t i = (size_t)first;
        snprintf(want, sizeof want, "%s", paths[first]);
        if (split) {
            snprintf(want + n_stem, sizeof want - n_stem, "-%05d-of-%05d.gguf", k, count);
            for (i = 0; i < l->n && strcmp(paths[i], want);)
                i++;
        }
        if (i == l->n)
            return err_set(e, E_FORMAT, "%s: the model has %d files, and the hub does not list %s",
                           x->repo, count, want);
        if ((st = add_file(x, k - 1, &l->file[i], e)))
            return st;
    }
    x->n_model = count;
    if (tower >= 0 && tower != first) {
        x->m.n_files++;
        st = add_file(x, count, &l->file[tower], e);
    }
    return st;
}

/* ---- The bytes ----------------------------------------------------------------------------- */

static bool has_size(const char *path, uint64_t n_bytes)
{
    struct stat sb;
    return !stat(path, &sb) && S_ISREG(sb.st_mode) && (uint64_t)sb.st_size == n_bytes;
}

/* Takes a file from the cache of Python's client, as a second name of it. False: it is not there,
 * lies on another file system, or is damaged: then it is pulled. */
static bool adopt(pull *x, const hub_file *f, const char *blob, status *st, err *e)
{
    char sha[65], git[41], real[4096];
    const char *from = *f->sha256 && x->p.hf_cache
                           ? cache_find_blob(x->p.hf_cache, x->repo, f->sha256, f->n_bytes, &x->mem)
                           : NULL;
    /* The cache's own entry may be a link into a store that repositories share. */
    if (!from || !realpath(from, real))
        return false;
    err why = {0};
    x->down.n_here = f->n_bytes;
    *st = hash_file(&x->net, real, f->n_bytes, sha, git, &x->down.n_hashed, &why);
    if (*st == E_CANCELLED || *st == E_MEMORY) {
        err_set(e, *st, "%s", why.text);
        return true;
    }
    bool ok = !*st && !strcmp(sha, f->sha256) && !link(real, blob);
    *st = OK;
    x->down.n_here = x->down.n_hashed = 0;
    return ok;
}

static status check_head(const download *d, const void *bytes, size_t n, err *e)
{
    return model_head_check(bytes, n, d->file->path, e);
}

/* Brings one file into the store, and writes its hash to the manifest. */
static status bring(pull *x, int i, err *e)
{
    const hub_file *f = &x->file[i];
    status st = OK;
    char key[64];
    snprintf(key, sizeof key, "git-%s", f->git_sha1);
    const char *blob = *f->sha256 ? blob_path(&x->mem, x->p.store, f->sha256, "")
                                  : blob_path(&x->mem, x->p.store, key, "");
    const char *url = pull_address(x, f->path);
    if (!blob || !url)
        return err_memory(e, f->path, URL_MAX);
    x->down = (download){.net = &x->net,
                         .repo = x->repo,
                         .url = url,
                         .file = f,
                         .blob = blob,
                         .connections = x->ask->connections,
                         .check_head = i ? NULL : check_head,
                         .note = ""};
    x->said.file = f->path;
    x->said.digest = f->sha256;
    x->said.done = 0;
    x->said.total = f->n_bytes;
    memcpy(x->down.digest, f->sha256, sizeof f->sha256);
    if ((st = enter_phase(x, HUB_PULLING, e)))
        return st;
    bool here = *f->sha256 && (has_size(blob, f->n_bytes) || adopt(x, f, blob, &st, e));
    if (!here && !st)
        st = download_file(&x->down, e);
    if (st)
        return st;
    memcpy(x->m.file[i].sha256, x->down.digest, sizeof x->down.digest);
    if (!*f->sha256) { /* its name in the store is its SHA-256, which is known now */
        const char *to = blob_path(&x->mem, x->p.store, x->down.digest, "");
        if (!to)
            return err_memory(e, f->path, URL_MAX);
        if (rename(blob, to) && !has_size(to, f->n_bytes))
            return err_errno(e, "rename into place", to);
    }
    x->before += f->n_bytes;
    x->came += x->down.n_came;
    x->said.came = x->came;
    x->said.done = f->n_bytes;
    x->said.all_done = x->before;
    return report(x, true) ? OK : err_set(e, E_CANCELLED, "interrupted");
}

/* Whether carat has a tower for a model is known when the model's head is here. True: it has none,
 * and the file is left out. */
static bool drop_tower(pull *x)
{
    const char *blob = blob_path(&x->mem, x->p.store, x->m.file[0].sha256, "");
    if (!blob || mmproj_may_fit(blob))
        return false;
    x->m.n_files--;
    x->m.n_bytes -= x->m.file[x->m.n_files].n_bytes;
    x->said.all_total = x->m.n_bytes;
    return true;
}

/* All files, then the entry. Somebody may remove a blob in between: then once more. */
static status bring_all(pull *x, const char **path, err *e)
{
    const char *blobs = path_join(&x->mem, x->p.store, "blobs");
    status st = blobs ? make_dirs(blobs, e) : err_memory(e, x->p.store, 0);
    x->said.all_total = x->m.n_bytes;
    for (int again = 0; !st; again++) {
        store_lock lock;
        bool whole = true;
        x->before = 0;
        for (int i = 0; i < x->m.n_files && !st; i++)
            if (i < x->n_model || !drop_tower(x))
                st = bring(x, i, e);
        if (st || (st = enter_phase(x, HUB_WRITING, e)))
            break;
        if (store_has(x->p.store, &x->m, &x->mem,
                      path)) /* also in a store that cannot be written */
            break;
        if ((st = store_lock_take(&lock, x->p.store, e)))
            break;
        for (int i = 0; i < x->m.n_files && whole; i++) {
            const char *blob = blob_path(&x->mem, x->p.store, x->m.file[i].sha256, "");
            whole = blob && has_size(blob, x->m.file[i].n_bytes);
        }
        if (whole || again == AGAIN_MAX) {
            x->m.pulled_s = (int64_t)time(NULL);
            st = store_enter(x->p.store, &x->m, &x->mem, path, e);
            store_lock_drop(&lock);
            break;
        }
        store_lock_drop(&lock);
    }
    return st;
}

/* ---- hub_pull ------------------------------------------------------------------------------ */

static status check_ask(pull *x, err *e)
{
    const hub_ask *ask = x->ask;
    char near[ALIAS_MAX];
    bool own;
    status st = alias_find(ask->what, x->alias, &own, e);
    if (st)
        return st;
    if (!name_parse(*x->alias ? x->alias : ask->what, x->p.endpoint, &x->name))
        return err_set(e, E_ARG,
                       "'%s' is no name of a model, which is OWNER/REPO or OWNER/REPO:QUANT",
                       ask->what);
    if (!*x->name.owner && alias_near(ask->what, near))
        return err_set(e, E_ARG,
                       "'%s' is no short name that carat knows; did you mean %s? Other models have "
                       "an owner: OWNER/%s",
                       ask->what, near, x->name.repo);
    if (!*x->name.owner)
        return err_set(
            e, E_ARG,
            "'%s': carat pulls from the Hugging Face hub, whose names have an owner: OWNER/%s%s%s",
            ask->what, x->name.repo, *x->name.quant ? ":" : "", x->name.quant);
    int n = snprintf(x->repo, sizeof x->repo, "%s/%s", x->name.owner, x->name.repo);
    if (n >= (int)sizeof x->repo || !repo_valid(x->repo))
        return err_set(e, E_ARG, "'%s' is no repository's name", x->repo);
    if (ask->file && !file_valid(ask->file))
        return err_set(e, E_ARG, "'%s' is no path in a repository", ask->file);
    x->revision = ask->revision ? ask->revision : *x->name.revision ? x->name.revision : "main";
    if (!revision_valid(x->revision))
        return err_set(e, E_ARG, "'%s' is no branch, tag or commit", x->revision);
    if (!url_valid(x->p.endpoint))
        return err_set(e, E_ARG, "HF_ENDPOINT=%s: not an http or https address", x->p.endpoint);
    if (!x->p.store)
        return err_set(e, E_ARG,
                       "there is no place for models: HOME and XDG_DATA_HOME are not set");
    if (x->p.offline)
        return err_set(e, E_IO, "HF_HUB_OFFLINE is set, so nothing is pulled");
    return OK;
}

status pull_begin(pull *x, const hub_ask *ask, int *first, err *e)
{
    x->ask = ask;
    x->said = (hub_progress){.phase = HUB_LISTING, .file = "", .digest = "", .note = ""};
    status st = place_read(&x->p, true, e);
    if (!st && !(st = check_ask(x, e)))
        st = net_open(&x->net, &x->p, e);
    x->net.tick = tick;
    x->net.user = x;
    if (!st && !(st = enter_phase(x, HUB_LISTING, e)) && !(st = read_listing(x, e)))
        st = choose(x, first, e);
    return st;
}

void pull_end(pull *x)
{
    net_close(&x->net);
    listing_free(&x->list);
    place_free(&x->p);
    arena_free(&x->mem);
}

status hub_pull(const hub_ask *ask, model_found *out, err *e)
{
    const char *path = NULL;
    int first;
    *out = (model_found){0};
    pull *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, ask->what, sizeof *x);
    status st = pull_begin(x, ask, &first, e);
    if (!st && !(st = pull_choose_by_memory(x, &first, e)) && !(st = pull_set(x, first, e)) &&
        !(st = bring_all(x, &path, e))) {
        size_t cap = strlen(x->repo) + strlen(x->quant) + 2;
        *out = (model_found){mem_strdup(path), mem_alloc(cap), MODEL_STORE};
        if (!out->path || !out->name) {
            model_found_free(out);
            st = err_memory(e, path, cap);
        } else {
            snprintf(out->name, cap, "%s:%s", x->repo, x->quant);
            x->said.phase = HUB_DONE;
            report(x, true);
        }
    }
    pull_end(x);
    mem_free(x);
    return st;
}
