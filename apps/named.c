/* named.c - see named.h. */
#include "apps/named.h"

#include "apps/bundled.h"

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
        st = carat_model_open(file.path, &own, m, e);
    else if (!st && !what)
        st = bundled_open(&own, m, e);
    model_found_free(&file);
    model_found_free(&draft);
    model_found_free(&scorer);
    return st;
}
