/* find.c - the models of this machine, and which one the user means. */
#include "apps/hub/alias.h"
#include "apps/hub/cache.h"
#include "apps/hub/made.h"
#include "apps/hub/names.h"
#include "apps/hub/store.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { NAMES_SHOWN = 6 }; /* of models, in a sentence */

/* Newest first; the store before the cache; then by name, so that the order is the same each time.
 */
static int by_time(const void *a, const void *b)
{
    const model_entry *x = a, *y = b;
    if (x->when_s != y->when_s)
        return x->when_s < y->when_s ? 1 : -1;
    return x->where != y->where ? (int)x->where - (int)y->where : strcmp(x->name, y->name);
}

status model_list_read(model_list *l, err *e)
{
    place p;
    *l = (model_list){0};
    status st = place_read(&p, false, e);
    if (st)
        return st;
    if (p.store)
        st = store_read(p.store, l, e);
    size_t n_own = l->n;
    if (!st && p.hf_cache)
        st = cache_read(p.hf_cache, l, e);
    /* A model of the store hides the same one in the cache. */
    size_t n = n_own;
    for (size_t i = n_own; !st && i < l->n; i++) {
        bool hidden = false;
        for (size_t k = 0; k < n_own && !hidden; k++)
            hidden = !strcasecmp(l->at[i].name, l->at[k].name);
        if (!hidden)
            l->at[n++] = l->at[i];
    }
    l->n = n;
    if (st)
        model_list_free(l);
    else if (l->n)
        qsort(l->at, l->n, sizeof *l->at, by_time);
    place_free(&p);
    return st;
}

void model_list_free(model_list *l)
{
    arena_free(&l->mem);
    *l = (model_list){0};
}

void model_found_free(model_found *f)
{
    mem_free(f->path);
    mem_free(f->name);
    *f = (model_found){0};
}

/* ---- Which one ----------------------------------------------------------------------------- */

static void put_names(str *out, const model_list *l)
{
    for (size_t i = 0; i < l->n && i < NAMES_SHOWN; i++) {
        str_puts(out, i ? ", " : "");
        str_puts(out, l->at[i].name);
    }
    if (l->n > NAMES_SHOWN)
        str_printf(out, " and %zu more (carat list)", l->n - NAMES_SHOWN);
}

/* The part of a name that people type: REPO without "-GGUF". */
static const char *short_name(const char *repo, arena *mem)
{
    const char *name = base_name(repo);
    size_t n = strlen(name);
    return arena_strndup(mem, name, n > 5 && !strcasecmp(name + n - 5, "-gguf") ? n - 5 : n);
}

/* What may have been meant: a name that is near in letters, or holds what was typed. NULL: none. */
static const char *suggest(const name_parts *n, const model_list *l, arena *mem)
{
    const char **words = arena_array(mem, 2 * l->n + 1, sizeof *words);
    size_t n_words = 0;
    for (size_t i = 0; words && i < l->n; i++) {
        words[n_words++] = base_name(l->at[i].repo);
        words[n_words] = short_name(l->at[i].repo, mem);
        n_words += words[n_words] != NULL;
    }
    const char *near = words ? nearest_word(n->repo, words, n_words) : NULL;
    for (size_t i = 0; i < l->n; i++) {
        const char *own = short_name(l->at[i].repo, mem);
        if (near && own && (!strcmp(near, own) || !strcmp(near, base_name(l->at[i].repo))))
            return l->at[i].name;
    }
    /* "gemma4" of "gemma-4-E2B-it-GGUF": letters and digits alone, in order. */
    for (size_t i = 0; strlen(n->repo) >= 3 && i < l->n; i++) {
        const char *typed = n->repo;
        for (const char *at = base_name(l->at[i].repo); *at && *typed; at++) {
            while (*typed && strchr("-_.", *typed))
                typed++;
            if (strchr("-_.", *at))
                continue;
            if (!strncasecmp(typed, at, 1))
                typed++;
            else
                break;
        }
        if (!*typed)
            return l->at[i].name;
    }
    for (size_t i = 0; strlen(n->repo) >= 3 && i < l->n; i++)
        if (strcasestr(l->at[i].name, n->repo))
            return l->at[i].name;
    return NULL;
}

/* A sentence about a name that fits nothing. */
static status not_there(const char *what, const name_parts *n, const char *alias,
                        const model_list *l, err *e)
{
    arena mem = {0};
    char other[ALIAS_MAX] = "";
    str s = {0};
    const made_model *made;
    if (!made_find(what, &mem, &made, NULL) && made) {
        err_set(
            e, E_ARG,
            "'%s' is made of another model: `carat run`, `carat serve` and `carat show` know it, "
            "other commands take the model that it is made of",
            made->name);
        arena_free(&mem);
        return E_ARG;
    }
    const char *near = suggest(n, l, &mem);
    if (!near && !*alias && !*n->owner && alias_near(what, other))
        near = other;
    str_printf(&s, "there is no model '%s' here", what);
    if (near)
        str_printf(&s, "; did you mean %s?", near);
    if (!l->n && near) {
        ; /* what to pull follows */
    } else if (l->n) {
        str_puts(&s, near ? " There are: " : "; there are: ");
        put_names(&s, l);
    } else {
        str_puts(&s, ": none was pulled yet");
    }
    if (*alias)
        str_printf(&s, "; carat pull %s fetches it (%s)", what, alias);
    else if (*other)
        str_printf(&s, "%s carat pull %s fetches it", l->n ? "." : "", other);
    else if (*n->owner)
        str_printf(&s, "%s carat pull %s/%s%s%s fetches it", near ? "." : ";", n->owner, n->repo,
                   *n->quant ? ":" : "", n->quant);
    else
        str_printf(&s, "%s carat pull OWNER/REPO fetches one", near ? "." : ";");
    status st = s.bad ? err_memory(e, what, s.n) : err_set(e, E_ARG, "%s", s.at);
    str_free(&s);
    arena_free(&mem);
    return st;
}

/* The entry that a name means, or NULL with *several: models of different owners fit. */
static const model_entry *pick(const name_parts *n, const model_list *l, const model_entry **other)
{
    const model_entry *best = NULL;
    *other = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const model_entry *m = &l->at[i];
        if (!name_fits(n, m->repo, m->quant))
            continue;
        if (best && strcasecmp(best->repo, m->repo)) {
            *other = m;
            return best;
        }
        /* The whole label before its end; then what is preferred; then the newest. */
        bool whole = *n->quant && !strcasecmp(m->quant, n->quant);
        if (!best || (whole && strcasecmp(best->quant, n->quant)) ||
            (!*n->quant && quant_rank(m->quant) < quant_rank(best->quant)))
            best = m;
    }
    return best;
}

/* Finds the entry of a name; E_ARG with a sentence if there is not exactly one. */
static status find_entry(const char *what, const model_list *l, const model_entry **out, err *e)
{
    place p;
    name_parts n;
    const model_entry *found = NULL, *other = NULL;
    char alias[ALIAS_MAX];
    bool own;
    status st = place_read(&p, false, e);
    if (st)
        return st;
    /* Names of the user come before those of models, and these before the table. */
    if ((st = alias_find(what, alias, &own, e)))
        ;
    else if (!name_parse(own ? alias : what, p.endpoint, &n))
        st = err_set(e, E_ARG,
                     "'%s': no such file, and no name of a model, which is OWNER/REPO:QUANT", what);
    else if (!(found = pick(&n, l, &other)) &&
             (own || !*alias || !name_parse(alias, p.endpoint, &n) ||
              !(found = pick(&n, l, &other))))
        st = not_there(what, &n, alias, l, e);
    else if (other)
        st = err_set(e, E_ARG, "'%s' may be %s or %s: name the owner too", what, found->name,
                     other->name);
    else
        *out = found;
    place_free(&p);
    return st;
}

/* A word that can only be meant as a path gets the error of a path. */
static bool only_path(const char *what)
{
    size_t n = strlen(what);
    return strchr("/.~", *what) || (n > 5 && !strcasecmp(what + n - 5, ".gguf"));
}

static status set_found(model_found *out, const char *path, const char *name, model_where where,
                        err *e)
{
    *out = (model_found){mem_strdup(path), mem_strdup(name), where};
    if (out->path && out->name)
        return OK;
    model_found_free(out);
    return err_memory(e, path, strlen(path));
}

static status is_directory(const char *path, err *e)
{
    return err_set(e, E_ARG,
                   "%s: a directory, not a file: name the GGUF file in it, or make one of a "
                   "checkpoint with carat convert",
                   path);
}

status model_find(const char *what, model_found *out, err *e)
{
    struct stat sb;
    model_list l;
    const model_entry *found;
    *out = (model_found){0};
    if (!*what)
        return err_set(e, E_ARG, "the name of the model is empty");
    /* A directory of the name OWNER/REPO may be here by chance; a model of that name comes first.
     */
    bool there = !stat(what, &sb), directory = there && S_ISDIR(sb.st_mode);
    if (!directory && (there || only_path(what)))
        return set_found(out, what, what, MODEL_PATH, e);
    if (only_path(what))
        return is_directory(what, e);
    status st = model_list_read(&l, e);
    if (st)
        return st;
    err why = {0};
    if (!(st = find_entry(what, &l, &found, &why)))
        st = set_found(out, found->path, found->name, found->where, e);
    else
        err_set(e, st, "%s%s", why.text,
                directory ? ". The directory of that name is no model: name the GGUF file in it"
                          : "");
    model_list_free(&l);
    return st;
}

bool model_known(const char *what)
{
    model_list l;
    const model_entry *found;
    if (!*what || only_path(what) || model_list_read(&l, NULL))
        return false;
    bool known = !find_entry(what, &l, &found, NULL);
    model_list_free(&l);
    return known;
}

/* E_ARG: models that are made of this one, by name. */
static status check_unused(const model_entry *m, err *e)
{
    arena mem = {0};
    const made_model *made;
    size_t n, n_users = 0;
    str names = {0};
    status st = made_list(&mem, &made, &n, e);
    for (size_t i = 0; !st && i < n; i++) {
        const char *path;
        int32_t n_ctx;
        if (!made_weights(&made[i], &mem, &path, &n_ctx, NULL) && path && !strcmp(path, m->path))
            str_printf(&names, "%s%s", n_users++ ? ", " : "", made[i].name);
    }
    if (!st && names.bad)
        st = err_memory(e, m->name, names.n);
    else if (!st && n_users)
        st = err_set(e, E_ARG,
                     "%s stays: %.600s %s made of it and would lose the weights; remove %s first",
                     m->name, names.at, n_users > 1 ? "are" : "is", n_users > 1 ? "them" : "it");
    str_free(&names);
    arena_free(&mem);
    return st;
}

status model_remove(const char *what, uint64_t *freed, err *e)
{
    place p;
    model_list l;
    const model_entry *found;
    bool made;
    status st = made_remove(what, &made, e);
    if (st)
        return st;
    if (made) {
        *freed = 0;
        return OK;
    }
    if ((st = place_read(&p, false, e)))
        return st;
    if ((st = model_list_read(&l, e))) {
        place_free(&p);
        return st;
    }
    if (!(st = find_entry(what, &l, &found, e))) {
        const model_entry *other = NULL;
        for (size_t i = 0; i < l.n && !strcasestr(what, found->quant); i++)
            if (&l.at[i] != found && l.at[i].where == MODEL_STORE &&
                !strcmp(l.at[i].repo, found->repo))
                other = &l.at[i];
        if (other)
            st = err_set(e, E_ARG, "'%s' may be %s or %s: name the one to remove", what,
                         found->name, other->name);
        else if (found->where == MODEL_HF_CACHE)
            st = err_set(e, E_ARG,
                         "%s lies in the cache of Python's client, which carat does not change: "
                         "'hf cache rm' removes it",
                         found->name);
        else if (!(st = check_unused(found, e)))
            st = store_remove(p.store, found, freed, e);
    }
    model_list_free(&l);
    place_free(&p);
    return st;
}
