/* mmproj_options.h - the vision tower of a model: the options that logits and serve share. A
 * subcommand has a field `mmproj_options mmproj` in its struct and OPT_MMPROJ(type of the struct)
 * in its table. */
#ifndef APPS_MMPROJ_OPTIONS_H
#define APPS_MMPROJ_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct mmproj_options {
    const char *file;
    int64_t tokens;
} mmproj_options;

#define OPT_MMPROJ(T)                                                                              \
    OPT_STR(T, mmproj.file, "mmproj", 0, "WHAT",                                                   \
            "the model's vision tower, for pictures: a FILE, auto (the mmproj file beside the "    \
            "model) or none (default: auto)"),                                                     \
        OPT_INT(T, mmproj.tokens, "image-tokens", 0, "N", 70, 1120,                                \
                "tokens of a picture; more show smaller print (default: 560)")

/* named_open takes "auto" and "none" too. */
static inline void mmproj_options_apply(const mmproj_options *o, carat_model_options *mo)
{
    mo->mmproj = o->file ? o->file : "auto";
    mo->image_tokens = (int32_t)o->tokens;
}

#endif
