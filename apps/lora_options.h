/* lora_options.h - adapters of a model (--lora): the options that commands share. A subcommand has
 * a field `lora_options lora` in its struct and OPT_LORA(type of the struct) in its table. */
#ifndef APPS_LORA_OPTIONS_H
#define APPS_LORA_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct lora_options {
    option_list files;
    bool unapplied;
} lora_options;

#define OPT_LORA(T)                                                                                \
    OPT_LIST(T, lora.files, "lora", 0, "FILE[:SCALE]",                                             \
             "an adapter (LoRA) of the model, a GGUF file, and how much of it (default: 1); may "  \
             "be repeated",                                                                        \
             .also = "--lora-scaled")
/* For servers, whose requests name adapters. */
#define OPT_LORA_UNAPPLIED(T)                                                                      \
    OPT_FLAG(T, lora.unapplied, "lora-init-without-apply", 0,                                      \
             "answers are without adapters unless the request or POST /lora-adapters says so")

enum { LORA_FILES_MAX = 16 };
typedef struct lora_files {
    carat_lora at[LORA_FILES_MAX];
    char *own[LORA_FILES_MAX]; /* paths that were cut out of a word */
} lora_files;

/* Reads the options into *f, which *mo refers to until lora_files_free. E_ARG: too many, or a scale
 * that is no number. f is zeroed before; free it after a failure too. */
status lora_options_apply(const lora_options *o, lora_files *f, carat_model_options *mo, err *e);
void lora_files_free(lora_files *f);
/* Do these adapters fit the model? model: its file, NULL: the bundled one. Reads no weights of it.
 */
status lora_check(const char *model, const char *const *adapter, size_t n, err *e);

#endif
