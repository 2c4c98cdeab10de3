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
    float skip, alpha; /* as sparse_rule */
} sparse_choice;

/* "off", "skip:SCALE" or "flash:ALPHA"; NULL: *otherwise. E_ARG: another text; E_UNSUPPORTED: the
 * model's layers or device do not do it. */
status sparse_parse(sparse_choice *c, const struct carat_model *m, const char *text,
                    const sparse_choice *otherwise, err *e);
/* Differs between settings; 0: exact. */
uint64_t sparse_key(sparse_choice c);
sparse_choice sparse_of_key(uint64_t key);
/* "skip", "flash"; NULL: exact. Static storage. */
const char *sparse_name(sparse_choice c);
/* Block selection wants whole query blocks in a pass. Rows of a prompt's pass that begins at token
 * `at` and may have up to `rows` of the `left` that are to come: it ends at a multiple of
 * SPARSE_TILE, or with the prompt. 0: there is no room for a query block. */
int32_t sparse_rows(sparse_choice c, int64_t at, int64_t left, int32_t rows);
/* Can sessions of such a shape do it? E_ARG. */
struct session_shape;
status sparse_fits(sparse_choice c, const struct session_shape *s, err *e);

#endif
