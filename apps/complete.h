/* complete.h - what may stand at a place of the command line, for the shells' completion. */
#ifndef APPS_COMPLETE_H
#define APPS_COMPLETE_H

#include "apps/options.h"

typedef enum complete_kind {
    COMPLETE_NONE, /* a number or a text of the user's */
    COMPLETE_FILE,
    COMPLETE_DIR,
    COMPLETE_MODEL, /* a name of this machine, or a file */
    COMPLETE_HUB,   /* the same, or a short name of the hub's models */
    COMPLETE_TALK,  /* a kept conversation */
    COMPLETE_PRESET,
    COMPLETE_SHORT, /* a short name of the hub's models */
    COMPLETE_WORDS
} complete_kind;

typedef struct complete_what {
    complete_kind kind;
    const char *words; /* COMPLETE_WORDS, or beside the names of other kinds; "" none */
} complete_what;

complete_what complete_option(const option *o);
/* Operand number `index`, from 0; `before` is the first operand where index > 0. */
complete_what complete_operand(const command *c, int index, const char *before);

/* `carat __complete WORDS...`: prints "VALUE\tDESCRIPTION" lines for the last of the words that
 * follow "carat". Opens no connection; failures print nothing. Always 0. */
int complete_print(int n_words, char **words);

#endif
