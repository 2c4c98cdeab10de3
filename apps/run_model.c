/* run_model.c - opening a model file, or the bundled model, which other commands use too.
 *
 * The bundled model is part of the executable: an .incbin of models/demo.gguf, if the Makefile
 * finds that file. So the program works from any directory, without installation.
 */
#include "apps/bundled.h"
#include "apps/run_int.h"

#include <string.h>

#ifdef CARAT_BUNDLED
__asm__(".section .rodata\n"
        ".balign 64\n"
        "carat_bundled_begin:\n"
        ".incbin \"" CARAT_BUNDLED "\"\n"
        "carat_bundled_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const unsigned char carat_bundled_begin[], carat_bundled_end[];
#endif

static void show_log(void *user, const char *text)
{
    (void)user;
    term_progress_clear();
    term_put(stderr, text, strlen(text));
}

status bundled_open(const carat_model_options *o, carat_model **m, err *e)
{
#ifdef CARAT_BUNDLED
    return carat_model_open_bytes(carat_bundled_begin,
                                  (size_t)(carat_bundled_end - carat_bundled_begin),
                                  "the bundled model", o, m, e);
#else
    (void)o;
    *m = NULL;
    return err_set(e, E_ARG, "this program was built without the bundled model: name one with -m");
#endif
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
