/* offers.c - which models a server may load: from its options to a list of offers.
 *
 * Each of --model, --models and the operands is a file, a directory, the name of a model on this
 * machine (apps/hub/hub.h), or NAME=FILE. Without any of them it is the bundled model and every
 * model of this machine. With directories, with --store and without a word the list follows the
 * disk: new files are offered, and removed files are offered no longer.
 */
#include "apps/server/models/catalog_int.h"

#include "apps/server/models/loras.h"

#include "apps/hub/alias.h"
#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/hub/names.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/str.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum {
    OFFERS_MAX = 4096,    /* models of one server */
    NAME_BYTES_MAX = 255, /* of one name */
    RESCAN_MS = 1000,     /* between looks at directories and the store */
    NAMES_TOLD = 8        /* in the sentence about an unknown one */
};

/* ---- Names ---- */

static bool has_gguf_end(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcasecmp(name + n - 5, ".gguf");
}

/* The name of a file without directory, ".gguf" and the number of a split set. */
static char *name_of_file(const char *path)
{
    const char *base = base_name(path);
    int no, count;
    size_t n = strlen(base);
    if (!split_name(base, &no, &count, &n) && has_gguf_end(base))
        n -= 5;
    return mem_strndup(base, n);
}

/* ---- The list ---- */

/* One that is gone counts if no other has the name. */
static offer *find_exact(const catalog *c, const char *name)
{
    offer *gone = NULL;
    for (offer *o = c->first; o; o = o->next)
        if (!strcasecmp(o->name, name)) {
            if (!o->gone)
                return o;
            gone = o;
        }
    return gone;
}

/* Appends an offer. Takes name and path, which is NULL for the bundled model alone. A name that is
 * there already for the same file is no mistake. */
static status add_offer(catalog *c, char *name, char *path, offer_source source, err *e)
{
    offer *had = name ? find_exact(c, name) : NULL;
    status st = OK;
    if (had && had->gone && had->path && path && strcmp(had->path, path) != 0)
        had = NULL; /* its file has another path now */
    if (!name)
        st = err_memory(e, "the name of a model", NAME_BYTES_MAX);
    else if (!*name || strlen(name) > NAME_BYTES_MAX)
        st = err_set(e, E_ARG, "'%.40s' is no name for a model: 1 to %d bytes", name,
                     NAME_BYTES_MAX);
    else if (had && had->path && path && strcmp(had->path, path) != 0)
        st = err_set(e, E_ARG, "two models have the name %.100s: %.300s and %.300s (NAME=FILE)",
                     name, had->path, path);
    else if (!had && c->n >= OFFERS_MAX)
        st = err_set(e, E_LIMIT, "more than %d models", OFFERS_MAX);
    offer *o = st || had ? NULL : mem_calloc(1, sizeof *o);
    if (had)
        had->gone = false;
    if (!o) {
        mem_free(name);
        mem_free(path);
        return st || had ? st : err_memory(e, "a model", sizeof *o);
    }
    *o = (offer){.name = name, .path = path, .source = source, .keep_ms = c->keep_ms};
    offer **at = &c->first;
    while (*at)
        at = &(*at)->next;
    *at = o;
    c->n++;
    return OK;
}

/* The same for one of several models with a file. Takes name and path; NULL: there was no memory
 * for it. *st is the first failure. One of a name that another model has (E_ARG) keeps no other
 * model out. */
static void add_file(catalog *c, char *name, char *path, offer_source source, status *st, err *e)
{
    status own = path ? add_offer(c, name, path, source, e)
                      : err_memory(e, "the path of a model", NAME_BYTES_MAX);
    if (!path)
        mem_free(name);
    *st = *st ? *st : own;
}

void offers_free(catalog *c)
{
    while (c->first) {
        offer *o = c->first;
        c->first = o->next;
        served_close(o->m);
        mem_free(o->name);
        mem_free(o->path);
        loras_forget(&o->loras);
        mem_free(o);
    }
}

static status add_directory(catalog *c, const char *dir, err *e)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    status st = OK;
    if (!d)
        return err_errno(e, "read the directory of models", dir);
    while ((!st || st == E_ARG) && (f = readdir(d))) {
        str path = {0};
        struct stat sb;
        if (*f->d_name == '.' || !is_first_file(f->d_name))
            continue;
        str_printf(&path, "%s/%s", dir, f->d_name);
        if (path.bad)
            st = err_memory(e, "the path of a model", path.n);
        else if (!stat(path.at, &sb) && S_ISREG(sb.st_mode))
            add_file(c, name_of_file(path.at), mem_strdup(path.at), OFFER_DIRECTORY, &st, e);
        str_free(&path);
    }
    closedir(d);
    return st;
}

static offer_source source_of(model_where where)
{
    return where == MODEL_STORE      ? OFFER_STORED
           : where == MODEL_HF_CACHE ? OFFER_CACHED
                                     : OFFER_NAMED;
}

static status add_store(catalog *c, err *e)
{
    model_list l = {0};
    status st = model_list_read(&l, e);
    for (size_t i = 0; i < l.n && (!st || st == E_ARG); i++)
        add_file(c, mem_strdup(l.at[i].name), mem_strdup(l.at[i].path), source_of(l.at[i].where),
                 &st, e);
    model_list_free(&l);
    return st;
}

static bool is_directory(const char *path)
{
    struct stat sb;
    return !stat(path, &sb) && S_ISDIR(sb.st_mode);
}

static bool is_there(const char *path)
{
    struct stat sb;
    return !stat(path, &sb);
}

/* A made model by its name. *was: there is one. */
static status add_made(catalog *c, const char *word, bool *was, err *e)
{
    arena mem = {0};
    const made_model *made;
    const char *path = NULL;
    int32_t n_ctx = 0;
    status st = made_find(word, &mem, &made, e);
    bool is = !st && made;
    if (is && !(st = made_weights(made, &mem, &path, &n_ctx, e))) {
        char *own = path ? mem_strdup(path) : NULL;
        st = path && !own ? err_memory(e, word, strlen(path))
                          : add_offer(c, mem_strdup(made->name), own, OFFER_MADE, e);
        offer *o = st ? NULL : find_exact(c, made->name);
        if (o) {
            o->made = true;
            o->n_ctx = n_ctx;
        }
    }
    if (!st)
        *was = is;
    arena_free(&mem);
    return st;
}

static status add_word(catalog *c, const char *word, err *e)
{
    const char *eq = strchr(word, '=');
    model_found found = {0};
    bool made = false;
    status st;
    if (is_directory(word)) {
        c->moving = true;
        return add_directory(c, word, e);
    }
    if (!eq || is_there(word))
        eq = NULL;
    if (!eq && !is_there(word) && ((st = add_made(c, word, &made, e)) || made))
        return st;
    if ((st = model_find(eq ? eq + 1 : word, &found, e)))
        return st;
    if (!is_there(found.path)) { /* what is mistyped shall not wait for a request */
        st = err_errno(e, "open", found.path);
        model_found_free(&found);
        return st;
    }
    char *name = eq                          ? mem_strndup(word, (size_t)(eq - word))
                 : found.where == MODEL_PATH ? name_of_file(found.path)
                                             : mem_strdup(found.name);
    st = add_offer(c, name, found.path, eq ? OFFER_NAMED : source_of(found.where), e);
    found.path = NULL; /* taken */
    model_found_free(&found);
    return st;
}

/* Every place that the options name. */
static status each_word(catalog *c, status (*add)(catalog *, const char *, err *), err *e)
{
    const serve_options *o = c->s->o;
    status st = OK;
    for (int i = 0; i < o->model.n && !st; i++)
        st = add(c, o->model.at[i], e);
    for (int i = 0; i < o->models.n && !st; i++)
        st = add(c, o->models.at[i], e);
    for (int i = 0; i < o->n_words && !st; i++)
        st = add(c, o->words[i], e);
    return st;
}

status offers_read(catalog *c, err *e)
{
    const serve_options *o = c->s->o;
    status st = each_word(c, add_word, e);
    if (!st && o->store) {
        c->moving = c->store = true;
        st = add_store(c, e);
    }
    if (st)
        return st;
    if (!c->n && !c->moving) { /* the store is read when somebody asks for it: that takes time */
        c->moving = c->store = c->leads = true;
        c->looked_ms = -INFINITY;
        return add_offer(c, mem_strdup("bundled"), NULL, OFFER_BUNDLED, e);
    }
    if (!c->n)
        return err_set(e, E_ARG, "there is no model to serve: the %s has none",
                       o->store ? "store" : "directory");
    c->looked_ms = clock_ms();
    return OK;
}

static status add_directories(catalog *c, const char *word, err *e)
{
    return is_directory(word) ? add_directory(c, word, e) : OK;
}

/* Models that cannot be added, such as a second one of a name, are left out. False: the last look
 * is not long ago. Under the lock. */
static bool poll_again(catalog *c)
{
    err e = {0};
    double now = clock_ms();
    if (!c->moving || now - c->looked_ms < RESCAN_MS)
        return false;
    c->looked_ms = now;
    for (offer *o = c->first; o; o = o->next)
        o->gone = o->path && !is_there(o->path);
    if (each_word(c, add_directories, &e) || (c->store && add_store(c, &e)))
        log_line(c->s, "the list of models: %s", e.text);
    return true;
}

void offers_refresh(catalog *c)
{
    pthread_mutex_lock(&c->lock);
    poll_again(c);
    pthread_mutex_unlock(&c->lock);
}

/* ---- Finding ---- */

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return a && b && !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* By its name, as clients see it or with ollama's ":latest"; by the path of its file; or the word
 * for the bundled model. */
offer *offers_find_own(catalog *c, const char *name)
{
    static const char latest[] = ":latest";
    size_t n = strlen(name), k = sizeof latest - 1;
    offer *o = find_exact(c, name);
    if (n > k && !strcasecmp(name + n - k, latest))
        n -= k;
    for (offer *i = c->first; i && !o; i = i->next) {
        const char *shown = offer_shown_name(c, i);
        if ((strlen(i->name) == n && !strncasecmp(i->name, name, n)) ||
            (strlen(shown) == n && !strncasecmp(shown, name, n)) ||
            (!i->path && !strcmp(name, "bundled")) || (*name == '/' && same_file(i->path, name)))
            o = i;
    }
    return o && o->gone && o->state == OFFER_UNLOADED ? NULL : o;
}

/* By a short name of its repository: of several files of it, as model_find prefers them. */
static offer *find_by_alias(catalog *c, const char *name)
{
    char repo[ALIAS_MAX];
    name_parts want, has;
    bool own;
    offer *best = NULL;
    int rank = 0;
    if (alias_find(name, repo, &own, NULL) || !*repo || !name_parse(repo, NULL, &want))
        return NULL;
    for (offer *o = c->first; o; o = o->next) {
        char whole[REPO_MAX];
        if (o->gone || o->made || !name_parse(o->name, NULL, &has) || !*has.owner ||
            snprintf(whole, sizeof whole, "%s/%s", has.owner, has.repo) >= (int)sizeof whole ||
            !name_fits(&want, whole, has.quant))
            continue;
        if (!best || quant_rank(has.quant) < rank) {
            best = o;
            rank = quant_rank(has.quant);
        }
    }
    return best;
}

/* The offer of the model of this machine that has this name, as model_find knows it, or of this
 * file. *other: there is such a model, and it is not offered. */
static offer *find_on_disk(const catalog *c, const char *name, bool *other)
{
    model_found f = {0};
    struct stat sb;
    bool file = has_gguf_end(name) && !stat(name, &sb) && S_ISREG(sb.st_mode);
    bool known = !file && model_known(name) && !model_find(name, &f, NULL);
    offer *o = file || known ? c->first : NULL;
    while (o && (o->gone || !same_file(o->path, file ? name : f.path)))
        o = o->next;
    *other = (file || known) && !o;
    model_found_free(&f);
    return o;
}

static offer *find_named(catalog *c, const char *name)
{
    offer *o = offers_find_own(c, name);
    return o ? o : find_by_alias(c, name);
}

/* Is this a name that a pulled model could have, OWNER/REPO or a short one? */
static bool could_be_pulled(const char *name)
{
    char repo[ALIAS_MAX];
    name_parts n;
    bool own;
    return (!alias_find(name, repo, &own, NULL) && *repo) ||
           (name_parse(name, NULL, &n) && *n.owner);
}

/* *other: the name is that of another model, here or, where all are offered, at a hub. */
static offer *find_known(catalog *c, const char *name, bool *other)
{
    *other = false;
    offer *o = *name ? find_named(c, name) : c->first;
    if (!o && poll_again(c))
        o = find_named(c, name);
    if (!o)
        o = find_on_disk(c, name, other);
    if (!o && c->store && could_be_pulled(name))
        *other = true;
    return o;
}

offer *offers_find_known(catalog *c, const char *name)
{
    bool other;
    return find_known(c, name, &other);
}

/* By an adapter of --lora that is loaded. */
static offer *find_adapted(const catalog *c, const char *name)
{
    offer *o = c->first;
    while (o && !(o->state == OFFER_LOADED && loras_has(o->m, name)))
        o = o->next;
    return o;
}

offer *offers_find(catalog *c, const char *name)
{
    bool other;
    offer *o = find_known(c, name, &other);
    o = o ? o : find_adapted(c, name);
    return !o && c->leads && !other ? c->first : o;
}

bool offers_missing(catalog *c, const char *name, problem *p)
{
    const char *names[OFFERS_MAX];
    int n = 0;
    str list = {0};
    for (const offer *o = c->first; o && n < OFFERS_MAX; o = o->next)
        if (!o->gone)
            names[n++] = offer_shown_name(c, o);
    for (int i = 0; i < n && i < NAMES_TOLD; i++)
        str_printf(&list, "%s%s", i ? ", " : "", names[i]);
    if (n > NAMES_TOLD)
        str_printf(&list, " and %d more", n - NAMES_TOLD);
    const char *near = nearest_word(name, names, n);
    p->code = "model_not_found";
    problem_set(p, 404, "model", "there is no model \"%.100s\" here%s%.100s%s: %.600s%s", name,
                near ? "; did you mean \"" : "", near ? near : "", near ? "\"" : "",
                str_text(&list),
                c->single  ? "; `carat serve --store` serves every model of this machine"
                : c->store ? "; `carat pull NAME` fetches others"
                           : "");
    str_free(&list);
    return false;
}
