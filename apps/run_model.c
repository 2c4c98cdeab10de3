/* run_model.c - opening a model file, or the bundled model, which other commands use too. */
#include "apps/bundled.h"
#include "apps/run_int.h"

#include <string.h>

static void show_log(void *user, const char *text)
{
    (void)user;
    term_progress_clear();
    term_put(stderr, text, strlen(text));
}

status run_open_model(const char *path, const run_options *o, carat_model **m, err *e)
{
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .no_mmap = o->no_mmap,
                              .exact_f32 = o->exact,
                              .reference = o->reference,
                              .overcommit = o->overcommit,
                              .isa = o->isa,
                              .wrap = o->wrap,
                              .draft = o->draft.drafter,
                              .progress = term_progress,
                              .log = show_log};
    status st = options_repack(o->repack, &mo.no_repack, e);
    device_options_apply(&o->where, &mo);
    *m = NULL;
    if (st)
        return st;
    return path ? carat_model_open(path, &mo, m, e) : bundled_open(&mo, m, e);
}
