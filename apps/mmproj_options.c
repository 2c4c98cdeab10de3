/* mmproj_options.c - see mmproj_options.h. */
#include "apps/mmproj_options.h"

#include <string.h>

enum { TOKENS_LEAST = 70, TOKENS_MOST = 1120 };

status image_tokens_read(const char *text, int32_t *n, err *e)
{
    double v = 0;
    bool native = text && !strcmp(text, "native");
    if (text && !native &&
        (!options_number(text, &v) || !(v >= TOKENS_LEAST && v <= TOKENS_MOST) ||
         v != (double)(int32_t)v))
        return err_set(e, E_ARG,
                       "--image-tokens %.40s: expected a whole number from %d to %d, or native",
                       text, TOKENS_LEAST, TOKENS_MOST);
    *n = native ? CARAT_IMAGE_NATIVE : (int32_t)v;
    return OK;
}

status mmproj_options_apply(const mmproj_options *o, carat_model_options *mo, err *e)
{
    mo->mmproj = o->file ? o->file : "auto";
    return image_tokens_read(o->tokens, &mo->image_tokens, e);
}
