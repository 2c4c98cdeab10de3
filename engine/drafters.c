/* drafters.c - the drafters of a model: opened with it, shared by its sessions.
 *
 * Weights of a drafter are a model of their own (draft_model.core), on the target's main device.
 */
#include "engine/engine_int.h"

#include <string.h>

status drafters_open(carat_model *m, const char *wish, err *e)
{
    if (!wish || !strcmp(wish, "none"))
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: no drafter is called '%s'", m->core.file.path, wish);
}

void drafters_close(carat_model *m)
{
    while (m->n_drafts) {
        draft_model *d = m->draft[--m->n_drafts];
        d->class->model_close(d);
    }
}
