/* hub_options.h - -hf as llama-server has it: the model is one of a hub, pulled if it is not here.
 * A subcommand has a field `hub_options hub` in its struct and OPT_HUB(type of the struct) in its
 * table.
 */
#ifndef APPS_HUB_OPTIONS_H
#define APPS_HUB_OPTIONS_H

#include "apps/hub/hub.h"
#include "apps/options.h"

#include <stdio.h>

typedef struct hub_options {
    const char *repo, *file;
} hub_options;

#define OPT_HUB(T)                                                                                 \
    OPT_STR(T, hub.repo, "hf-repo", 0, "OWNER/REPO[:QUANT]",                                       \
            "the model of a hub, pulled if it is not here; -hf is the same", .also = "-hf -hfr"),  \
        OPT_STR(T, hub.file, "hf-file", 0, "PATH",                                                 \
                "with --hf-repo: the file of that repository, instead of QUANT; -hff is the same", \
                .also = "-hff")

/* With --hf-repo: finds the model here, or pulls it with a bar on stderr, and sets *model to its
 * path, which belongs to found. Without: nothing. E_ARG: both -m and -hf, or a file without a
 * repository. */
status hub_options_take(const hub_options *o, const char **model, model_found *found, err *e);
/* Is this word a short name (apps/hub/alias.h) of a model that is not here? A name of the table
 * has a digit, a ':' or a '-', so that no plain word of a prompt counts; a name of the user's
 * [names] may be any word. */
bool hub_may_bring(const char *word);
/* Pulls the short names among the words whose models are not here. */
status hub_bring(char *const *words, int n, err *e);

#endif
