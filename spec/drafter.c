/* drafter.c - the model of a drafter, of any class: opening and closing. The classes have files of
 * their own. */
#include "spec/drafter.h"
#include "base/mem.h"

status draft_model_open(const draft_class *class, const model *target, gguf *file,
                        draft_model **out, err *e)
{
    draft_model *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m) {
        if (file)
            gguf_close(file);
        return err_memory(e, "a drafter", sizeof *m);
    }
    *m = (draft_model){.class = class, .target = target};
    status st = class->bind(m, file, e);
    if (st)
        draft_model_close(m);
    else
        *out = m;
    return st;
}

void draft_model_close(draft_model *m)
{
    if (m)
        model_free(&m->core);
    mem_free(m);
}
