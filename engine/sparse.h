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
struct session_shape;

typedef struct sparse_choice {
    float skip, alpha; /* as sparse_rule */
    int64_t from; /* "auto": prompts of fewer tokens are exact; INT64_MAX: all are. 0: the caller
                     chose a method */
} sparse_choice;

/* "off", "skip:SCALE", "flash:ALPHA", "auto" or "auto:TOKENS"; NULL: *otherwise. "auto" is off
 * where no length was measured to win. E_ARG: another text; E_UNSUPPORTED: the model's layers or
 * device do not do it. */
status sparse_parse(sparse_choice *c, const struct carat_model *m, const char *text,
                    const sparse_choice *otherwise, err *e);
/* The same for a prompt of n tokens in sessions of such a shape, decided: skip and alpha are what
 * it is computed with. It depends on nothing but these arguments. E_ARG also as sparse_fits. */
status sparse_decide(sparse_choice *c, const struct carat_model *m, const char *text, int64_t n,
                     const struct session_shape *s, err *e);
/* Differs between decided settings; 0: exact. */
uint64_t sparse_key(sparse_choice c);
sparse_choice sparse_of_key(uint64_t key);
/* "skip", "flash"; NULL: exact. Static storage. */
const char *sparse_name(sparse_choice c);
/* Block selection wants whole query blocks in a pass. Rows of a prompt's pass that begins at token
 * `at` and may have up to `rows` of the `left` that are to come: it ends at a multiple of
 * SPARSE_TILE, or with the prompt. 0: there is no room for a query block. */
int32_t sparse_rows(sparse_choice c, int64_t at, int64_t left, int32_t rows);
/* Can sessions of such a shape do it? E_ARG. "auto" always can: it stays off where they cannot. */
status sparse_fits(sparse_choice c, const struct session_shape *s, err *e);

#endif
