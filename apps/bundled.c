/* bundled.c - the bundled model, its drafters and its vision tower: parts of the executable.
 *
 * The Makefile names the files of models/ that exist; .incbin puts their bytes among the constants.
 * So the program works from any directory, without installation.
 */
#include "apps/bundled.h"
#include "apps/embed.h"

#include <string.h>

#ifdef BUNDLED_MODEL
EMBED("carat_demo", BUNDLED_MODEL);
EMBEDDED const unsigned char carat_demo_begin[], carat_demo_end[];
#endif
#ifdef BUNDLED_DFLASH
EMBED("carat_demo_dflash", BUNDLED_DFLASH);
EMBEDDED const unsigned char carat_demo_dflash_begin[], carat_demo_dflash_end[];
#endif
#ifdef BUNDLED_MTP
EMBED("carat_demo_mtp", BUNDLED_MTP);
EMBEDDED const unsigned char carat_demo_mtp_begin[], carat_demo_mtp_end[];
#endif

#ifdef BUNDLED_MMPROJ
EMBED("carat_demo_mmproj", BUNDLED_MMPROJ);
EMBEDDED const unsigned char carat_demo_mmproj_begin[], carat_demo_mmproj_end[];
#endif

bool bundled_bytes(carat_bytes *b)
{
#ifdef BUNDLED_MODEL
    *b = (carat_bytes){carat_demo_begin, (size_t)(carat_demo_end - carat_demo_begin),
                       "the bundled model"};
    return true;
#else
    (void)b;
    return false;
#endif
}

status bundled_open(const carat_model_options *o, carat_model **m, err *e)
{
#ifdef BUNDLED_MODEL
    carat_model_options own = o ? *o : (carat_model_options){0};
    carat_bytes drafters[2];
    own.draft_bytes = drafters;
    own.n_draft_bytes = 0;
#ifdef BUNDLED_DFLASH
    drafters[own.n_draft_bytes++] =
        (carat_bytes){carat_demo_dflash_begin,
                      (size_t)(carat_demo_dflash_end - carat_demo_dflash_begin), "dflash"};
#endif
#ifdef BUNDLED_MTP
    drafters[own.n_draft_bytes++] = (carat_bytes){
        carat_demo_mtp_begin, (size_t)(carat_demo_mtp_end - carat_demo_mtp_begin), "mtp"};
#endif
#ifdef BUNDLED_MMPROJ
    const carat_bytes tower = {carat_demo_mmproj_begin,
                               (size_t)(carat_demo_mmproj_end - carat_demo_mmproj_begin),
                               "the bundled tower"};
    if (own.mmproj && !strcmp(own.mmproj, "auto"))
        own.mmproj_bytes = &tower;
#endif
    if (own.mmproj && (!strcmp(own.mmproj, "auto") || !strcmp(own.mmproj, "none")))
        own.mmproj = NULL;
    return carat_model_open_bytes(carat_demo_begin, (size_t)(carat_demo_end - carat_demo_begin),
                                  "the bundled model", &own, m, e);
#else
    (void)o;
    *m = NULL;
    return err_set(e, E_ARG, "this program was built without the bundled model: name one with -m");
#endif
}
