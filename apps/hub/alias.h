/* alias.h - short names of models, such as "gemma4:e4b", to repositories of the hub.
 *
 *     carat pull gemma4:e4b          ggml-org/gemma-4-E4B-it-GGUF
 *     carat pull gemma4:e4b-q8_0     ggml-org/gemma-4-E4B-it-GGUF:Q8_0
 *
 * The table is part of the program. Names of the user come first; where they are kept is the
 * program's business (alias_ask).
 */
#ifndef APPS_HUB_ALIAS_H
#define APPS_HUB_ALIAS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { ALIAS_MAX = 384 }; /* bytes of a name: OWNER/REPO and a label (names.h) */

/* What a name of the user stands for, another short name or a repository; "": it is none. Any
 * thread may call it. */
typedef status (*alias_own_fn)(const void *user, const char *name, char out[ALIAS_MAX], err *e);

/* Sets the function that looks up the user's names; NULL: there are none. Call it once, before
 * other threads start. */
void alias_ask(alias_own_fn fn, const void *user);
/* What a short name stands for, OWNER/REPO or OWNER/REPO:QUANT; "": it is none. *own: a name of the
 * user led there. E_ARG: names of the user lead in a circle, or to no model. */
status alias_find(const char *what, char out[ALIAS_MAX], bool *own, err *e);
/* The same by these names of a user. */
status alias_follow(const char *what, alias_own_fn fn, const void *user, char out[ALIAS_MAX],
                    bool *own, err *e);
/* The short name of the table that is most like a mistyped one. False: none. */
bool alias_near(const char *what, char out[ALIAS_MAX]);

/* The i-th row: its short name (the first, of several) and repository. False: past the last. */
bool alias_row(size_t i, char name[ALIAS_MAX], const char **repo);

#endif
