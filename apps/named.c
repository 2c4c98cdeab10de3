/* named.c - see named.h. */
#include "apps/named.h"

#include "apps/bundled.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Is the value of --draft a word of its own, or a path that exists? */
static bool draft_stays(const char *draft)
{
    static const char *const words[] = {"auto", "none", "lookup", "dflash", "mtp", "nextn"};
    struct stat sb;
    for (size_t i = 0; draft && i < sizeof words / sizeof *words; i++)
        if (!strcmp(draft, words[i]))
            return true;
    return !draft || !*draft || !stat(draft, &sb);
}

/* The caller's `planned`, and whether it was content: weights are loaded after that. */
typedef struct watched_plan {
    carat_planned_fn planned;
    void *user;
    bool content;
} watched_plan;

static carat_status watch_plan(void *user, const carat_model *m, carat_error *e)
{
    watched_plan *w = user;
    carat_status st = w->planned ? w->planned(w->user, m, e) : OK;
    w->content = !st;
    return st;
}

/* Opens a file with its vision tower. Where carat found the tower beside
 * the model and it does not fit, the model opens without it and the log says so.
 * A failure after the plan was accepted stays a failure: weights are not loaded twice. */
static status open_seeing(const char *path, carat_model_options *o, carat_model **m, err *e)
{
    char *found = NULL, line[1200];
    err why = {0};
    bool search = o->mmproj && !strcmp(o->mmproj, "auto");
    if (o->mmproj && (search || !strcmp(o->mmproj, "none")))
        o->mmproj = NULL;
    status st = search ? mmproj_find(path, &found, e) : OK;
    if (st)
        return st;
    if (!found)
        return carat_model_open(path, o, m, e);
    watched_plan w = {o->planned, o->planned_user, false};
    carat_model_options with = *o;
    with.mmproj = found;
    with.planned = watch_plan;
    with.planned_user = &w;
    st = carat_model_open(path, &with, m, &why);
    if (st && st != E_CANCELLED && !w.content) {
        snprintf(line, sizeof line, "%s is left out, and the model sees no pictures: %.900s\n",
                 found, why.text);
        st = carat_model_open(path, o, m, e);
        if (!st && o->log)
            o->log(o->log_user, line);
    } else if (st) {
        err_set(e, st, "%s", why.text);
    }
    mem_free(found);
    return st;
}

status named_open(const char *what, const carat_model_options *o, carat_model **m, err *e)
{
    carat_model_options own = o ? *o : (carat_model_options){0};
    model_found file = {0}, draft = {0}, scorer = {0};
    carat_bytes scorer_bytes;
    struct stat sb;
    status st = OK;
    *m = NULL;
    /* A word that is no name either goes on as it is: the engine says what it expects there. */
    if (!draft_stays(own.draft) && model_known(own.draft) &&
        !(st = model_find(own.draft, &draft, e)))
        own.draft = draft.path;
    bool bundled = own.scorer && !strcmp(own.scorer, "bundled") && stat(own.scorer, &sb);
    if (!st && bundled) {
        if (!bundled_bytes(&scorer_bytes))
            st = err_set(e, E_ARG, "--kv-scorer bundled: this program was built without it");
        own.scorer = NULL;
        own.scorer_bytes = &scorer_bytes;
    }
    if (!st && own.scorer && stat(own.scorer, &sb) && model_known(own.scorer) &&
        !(st = model_find(own.scorer, &scorer, e)))
        own.scorer = scorer.path;
    if (!st && what && !(st = model_find(what, &file, e)))
        st = open_seeing(file.path, &own, m, e);
    else if (!st)
        st = bundled_open(&own, m, e);
    model_found_free(&file);
    model_found_free(&draft);
    model_found_free(&scorer);
    return st;
}
