/* drafters.c - the drafters of a model: opened with it, shared by its sessions.
 *
 * Weights of a drafter are a model of their own (draft_model.core), on the target's main device.
 * Beside a drafter with weights there is always lookup.
 */
#include "engine/engine_int.h"
#include "spec/find.h"

#include <stdio.h>
#include <string.h>

static status add_drafter(carat_model *m, const draft_class *class, gguf *file, const char *why,
                          err *e)
{
    draft_model **d = &m->draft[class == &draft_lookup ? DRAFTER_LOOKUP : DRAFTER_MODEL];
    status st = draft_model_open(class, &m->core, file, d, e);
    if (!st)
        snprintf((*d)->why, sizeof(*d)->why, "%s", why);
    return st;
}

status drafters_open(carat_model *m, const carat_model_options *opt, err *e)
{
    const char *beside = m->core.file.part ? m->core.file.path : NULL;
    draft_found f = {0};
    status st;
    if (!opt->draft || (m->core.encoder && !strcmp(opt->draft, "auto")))
        return OK;
    if (strcmp(opt->draft, "none") != 0 && (st = model_check_writes(m, e)))
        return st;
    if (opt->sum_inputs && strcmp(opt->draft, "none") != 0)
        return err_set(e, E_ARG,
                       "sums of inputs are those of one model, and a drafter has tensors of the "
                       "same names: they cannot be used with a drafter (%s)",
                       opt->draft);
    st = draft_find_held(opt->draft, &m->core, opt->draft_bytes, opt->n_draft_bytes, &f, e);
    if (!st && !f.class)
        st = draft_find(opt->draft, &m->core, beside, &f, e);
    if (st || !f.class)
        goto out;
    if ((st = add_drafter(m, f.class, &f.file, f.why, e)))
        goto out;
    if (f.class != &draft_lookup)
        st = add_drafter(m, &draft_lookup, NULL, "it costs nothing", e);
out:
    draft_found_free(&f);
    return st;
}

void drafters_close(carat_model *m)
{
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        draft_model_close(m->draft[i]);
        m->draft[i] = NULL;
    }
}

/* For "auto", before weights are loaded: lookup takes the drafter's place and says why. false: the
 * drafter was named, or there is none. */
static bool gives_way(carat_model *m, const carat_model_options *opt, const char *why)
{
    draft_model *d = m->draft[DRAFTER_MODEL], *l = m->draft[DRAFTER_LOOKUP];
    if (!opt->draft || strcmp(opt->draft, "auto") != 0 || !d || !l)
        return false;
    snprintf(l->why, sizeof l->why, "%.90s, but %.220s", d->why, why);
    draft_model_close(d);
    m->draft[DRAFTER_MODEL] = NULL;
    return true;
}

status drafters_that_fit(carat_model *m, const carat_model_options *opt,
                         status (*fits)(void *user, const carat_model *m, err *e), void *user,
                         err *e)
{
    draft_model *d = m->draft[DRAFTER_MODEL], *l = m->draft[DRAFTER_LOOKUP];
    err with = {0}, without = {0};
    status st = fits(user, m, &with);
    bool any = opt->draft && !strcmp(opt->draft, "auto");
    if (st == E_MEMORY && any && d && l) {
        m->draft[DRAFTER_MODEL] = NULL;
        bool room = !fits(user, m, &without);
        m->draft[DRAFTER_MODEL] = d;
        snprintf(without.text, sizeof without.text, "there is no room for it: %.190s", with.text);
        if (room && gives_way(m, opt, without.text))
            return OK;
    }
    return st ? err_set(e, st, "%s", with.text) : OK;
}

/* The drafter's own weights; NULL: it has none. */
static model *weights_of(const carat_model *m, int which)
{
    draft_model *d = m->draft[which];
    return d && d->core.arch ? &d->core : NULL;
}

status drafters_load(carat_model *m, const carat_model_options *opt, err *e)
{
    status st = OK;
    for (int i = 0; i < DRAFTERS_MAX && !st; i++)
        if (weights_of(m, i))
            st = model_load(weights_of(m, i), m->dev, opt->progress, opt->progress_user, e);
    return st;
}

bool drafter_is_loaded(const carat_model *m, int which)
{
    return m->loaded && !(m->draft_parked && weights_of(m, which));
}

bool carat_model_park_drafter(carat_model *m)
{
    bool any = false;
    pthread_mutex_lock(&m->pass_lock);
    for (int i = 0; i < DRAFTERS_MAX && !m->draft_parked; i++)
        any |= weights_of(m, i) != NULL;
    if (any) {
        if (m->loaded)
            drafters_unload_weights(m);
        m->draft_parked = true;
    }
    pthread_mutex_unlock(&m->pass_lock);
    return any;
}

carat_status carat_model_unpark_drafter(carat_model *m, bool *any, carat_error *e)
{
    status st = OK;
    pthread_mutex_lock(&m->pass_lock);
    bool parked = m->draft_parked;
    if (parked) {
        st = m->loaded ? drafters_load_weights(m, e) : OK; /* else unpark loads them */
        if (st)
            drafters_unload_weights(m);
        m->draft_parked = st != OK;
    }
    pthread_mutex_unlock(&m->pass_lock);
    if (!st)
        *any = parked;
    return st;
}

void drafters_unload_weights(carat_model *m)
{
    for (int i = 0; i < DRAFTERS_MAX; i++)
        if (weights_of(m, i))
            model_unload_weights(weights_of(m, i));
}

status drafters_load_weights(carat_model *m, err *e)
{
    status st = OK;
    for (int i = 0; i < DRAFTERS_MAX && !st; i++)
        if (weights_of(m, i))
            st = model_load_weights(weights_of(m, i), m->progress, m->progress_user, e);
    return st;
}

const draft_model *main_drafter(const carat_model *m)
{
    return m->draft[DRAFTER_MODEL] ? m->draft[DRAFTER_MODEL] : m->draft[DRAFTER_LOOKUP];
}
