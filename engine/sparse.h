/* sparse.h - attention that leaves keys out: what a session or a request asks for.
 *
 * Keys and values that were computed so differ from exact ones, and differ with every setting. So a
 * timeline's rows, its checkpoints and their files carry the setting (sparse_key), and a prompt
 * reuses rows of its own setting alone.
 */
#ifndef ENGINE_SPARSE_H
#define ENGINE_SPARSE_H

#include "backend/sparse.h"
#include "base/err.h"

struct carat_model;

typedef struct sparse_choice {
    float skip; /* as sparse_rule */
} sparse_choice;

/* "off" or "skip:SCALE"; NULL: *otherwise. E_ARG: another text; E_UNSUPPORTED: the model's layers
 * or device do not do it. */
status sparse_parse(sparse_choice *c, const struct carat_model *m, const char *text,
                    const sparse_choice *otherwise, err *e);
/* Differs between settings; 0: exact. */
uint64_t sparse_key(sparse_choice c);
sparse_choice sparse_of_key(uint64_t key);
/* "skip"; NULL: exact. Static storage. */
const char *sparse_name(sparse_choice c);

#endif
