/* drafters.c - the drafters of a model: opened with it, shared by its sessions.
 *
 * Weights of a drafter are a model of their own (draft_model.core), on the target's main device or
 * on another one, which is opened for it. A smaller model reads tokens alone. What DFlash and NextN
 * read of the target are rows, which are copied. A drafter that reads the target's keys stays with
 * them.
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

/* The drafter is found, and its device may be another. */
static status open_apart(carat_model *m, const carat_model_options *opt, err *e)
{
    const draft_class *class = main_drafter(m)->class;
    draft_model *d = m->draft[DRAFTER_MODEL];
    if (!class->apart)
        return err_set(e, class == &draft_lookup ? E_ARG : E_UNSUPPORTED,
                       "--draft-device %.40s: the drafter (%s) is where the model is, because %s; "
                       "other drafters may be elsewhere",
                       opt->draft_device, class->name,
                       class == &draft_lookup ? "it has no weights"
                                              : "it reads the model's keys and values");
    if (opt->wrap && *opt->wrap)
        return err_set(e, E_ARG, "--wrap cannot be used with a drafter on a device of its own "
                                 "(--draft-device)");
    status st = open_draft_device(m, opt, e);
    if (st)
        return st;
    size_t at = strlen(d->why);
    snprintf(d->why + at, sizeof d->why - at, "; it is on %.80s", m->draft_dev->name);
    return OK;
}

status drafters_open(carat_model *m, const carat_model_options *opt, err *e)
{
    const char *beside = m->core.file.part ? m->core.file.path : NULL;
    draft_found f = {0};
    status st;
    if (opt->draft_device && (!opt->draft || !*opt->draft || !strcmp(opt->draft, "none")))
        return err_set(e, E_ARG, "--draft-device %.40s: there is no drafter (--draft)",
                       opt->draft_device);
    if (!opt->draft ||
        (m->core.encoder && !strcmp(opt->draft, "auto") && !opt->draft_device))
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
    if (!st && opt->draft_device)
        st = open_apart(m, opt, e);
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
    device_close(m->draft_dev);
    m->draft_dev = NULL;
}

draft_sizes plan_draft_sizes(const carat_model *m, const session_shape *s, const kv_layout *l)
{
    return (draft_sizes){.dev = drafter_device(m),
                         .target_dev = m->draft_dev ? m->dev : NULL,
                         .n_ctx = s->n_ctx,
                         .rows_max = l->rows_max,
                         .outs_max = s->n_outputs,
                         .n_seqs = s->n_seqs,
                         .n_slots = s->draft_slots,
                         .target_kv = l};
}

status drafters_plan(const carat_model *m, const session_shape *s, const kv_layout *l,
                     carat_memory_plan *plan, pass_taps *taps, err *e)
{
    const draft_sizes z = plan_draft_sizes(m, s, l);
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock;
    const int32_t at = m->draft_dev ? m->n_sides : PASS_MAIN;
    *taps = (pass_taps){0};
    for (int i = 0; i < DRAFTERS_MAX && s->draft_slots; i++) {
        const draft_model *d = m->draft[i];
        draft_costs c = {0};
        if (!d)
            continue;
        pthread_mutex_lock(lock);
        status st = d->class->plan(d, &z, &c, e);
        pthread_mutex_unlock(lock);
        if (st)
            return st;
        plan->device[at].draft_bytes += c.device_bytes +
                                        (uint64_t)s->n_seqs * c.device_state_bytes +
                                        plan_weight_bytes(z.dev, &d->core);
        for (int32_t k = 0; k < m->n_sides; k++)
            plan->device[k].draft_bytes += c.target_bytes[k];
        if (z.dev->host_memory || m->dev->host_memory)
            plan->device[z.dev->host_memory ? at : PASS_MAIN].draft_bytes += c.host_bytes;
        if (c.taps.n)
            *taps = c.taps;
    }
    for (int32_t k = 0; k < n_held_devices(m); k++)
        plan->draft_bytes += plan->device[k].draft_bytes;
    return OK;
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
            st = model_load(weights_of(m, i), drafter_device(m), opt->progress,
                            opt->progress_user, e);
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
