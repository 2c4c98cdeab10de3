/* mmproj_options.h - the vision tower of a model: the options that commands share. A
 * subcommand has a field `mmproj_options mmproj` in its struct and OPT_MMPROJ(type of the struct)
 * in its table. */
#ifndef APPS_MMPROJ_OPTIONS_H
#define APPS_MMPROJ_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct mmproj_options {
    const char *file, *tokens;
} mmproj_options;

#define MMPROJ_TOKENS_HELP                                                                         \
    "tokens of a picture, 70 to 1120, or native: by its own size; more show smaller print "        \
    "(default: 560)"
#define OPT_MMPROJ(T)                                                                              \
    OPT_STR(T, mmproj.file, "mmproj", 0, "WHAT",                                                   \
            "the model's towers, for pictures and sounds: a FILE, auto (the mmproj file beside "   \
            "the model) or none (default: auto)",                                                  \
            .also = "-mm"),                                                                        \
        OPT_STR(T, mmproj.tokens, "image-tokens", 0, "N", MMPROJ_TOKENS_HELP,                      \
                .also = "--image-max-tokens")

/* Reads --image-tokens, NULL where it is not given, as carat_model_options has it. E_ARG. */
status image_tokens_read(const char *text, int32_t *n, err *e);
/* E_ARG: a bad --image-tokens. named_open takes "auto" and "none" too. */
status mmproj_options_apply(const mmproj_options *o, carat_model_options *mo, err *e);

#endif
