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
    for (int i = 0; i < DRAFTERS_MAX; i++) {
        if (m->draft[i])
            m->draft[i]->class->model_close(m->draft[i]);
        m->draft[i] = NULL;
    }
}

const draft_model *main_drafter(const carat_model *m)
{
    return m->draft[DRAFTER_MODEL] ? m->draft[DRAFTER_MODEL] : m->draft[DRAFTER_LOOKUP];
}
