/* convert_turned.c - experts as checkpoints of gpt-oss and Qwen3-VL have them (hf_change): the
 * inputs of a matrix before its outputs, gates and ups in turns or in halves; or in blocks of
 * MXFP4. Blocks keep their bits.
 *
 *     checkpoint   NAME [expert][input][output]    NAME_bias [expert][output]
 *     in blocks    NAME_blocks [expert][output][input / 32][16], byte j: inputs 2 j and 2 j + 1
 *                  NAME_scales [expert][output][input / 32]
 *     file         a scale and 16 bytes; byte j: inputs j and j + 16
 */
#include "apps/convert_int.h"

#include <string.h>

enum { BLOCK = 32, BLOCK_BYTES = 17, CODES = 16 };

bool convert_in_blocks(const convert_item *it)
{
    return it->t.change.turned && it->source[1];
}

/* Rows, or entries, of the checkpoint for each of the file's. */
static uint64_t every(const shape_tensor *t)
{
    return t->change.every ? t->change.every : 1;
}

/* Where row r of a matrix is among the checkpoint's. */
static uint64_t place_of(const shape_tensor *t, uint64_t r)
{
    const hf_change *c = &t->change;
    return c->halves ? c->from * t->ne[1] + r : r * every(t) + c->from;
}

static status check_bytes(const tensor *src, const uint64_t ne[TENSOR_DIMS_MAX], int32_t n_dims,
                          const char *path, err *e)
{
    char want[96], have[96];
    tensor shape = {.n_dims = n_dims};
    memcpy(shape.ne, ne, sizeof shape.ne);
    if (src->type == NUM_I8 && !memcmp(src->ne, ne, sizeof shape.ne))
        return OK;
    return err_set(e, E_FORMAT, "%s: tensor %s is %s of %s, the configuration makes it %s of bytes",
                   path, src->name, tensor_shape_text(src, have, sizeof have), num_name(src->type),
                   tensor_shape_text(&shape, want, sizeof want));
}

status convert_check_turned(const convert_item *it, const char *path, err *e)
{
    const shape_tensor *t = &it->t;
    uint64_t rows = t->ne[1] * every(t);
    if (convert_in_blocks(it)) {
        const uint64_t blocks[] = {CODES, t->ne[0] / BLOCK, rows, t->ne[2]};
        const uint64_t scales[] = {t->ne[0] / BLOCK, rows, t->ne[2], 1};
        if (t->ne[0] % BLOCK)
            return err_set(e, E_FORMAT, "%s: tensor %s: rows of %d do not fit blocks of MXFP4",
                           path, it->source[0]->name, (int)t->ne[0]);
        status st = check_bytes(it->source[0], blocks, 4, path, e);
        return st ? st : check_bytes(it->source[1], scales, 3, path, e);
    }
    shape_tensor want = *t;
    if (t->change.turned) {
        want.ne[0] = rows;
        want.ne[1] = t->ne[0];
    } else {
        want.ne[0] = t->ne[0] * every(t);
    }
    return convert_check_source(&want, it->source[0], path, e);
}

void convert_block_row(const convert_item *it, uint64_t r, unsigned char *to)
{
    const shape_tensor *t = &it->t;
    uint64_t n = t->ne[0] / BLOCK, expert = r / t->ne[1], row = r % t->ne[1];
    uint64_t at = (expert * t->ne[1] * every(t) + row * every(t) + t->change.from) * n;
    const unsigned char *scale = it->source[1]->bytes + at;
    const unsigned char *code = it->source[0]->bytes + at * CODES;
    for (uint64_t b = 0; b < n; b++, to += BLOCK_BYTES, code += CODES) {
        to[0] = scale[b];
        for (int j = 0; j < CODES; j++) {
            int shift = j % 2 * 4;
            unsigned low = code[j / 2] >> shift & 15u,
                     high = code[j / 2 + CODES / 2] >> shift & 15u;
            to[1 + j] = (unsigned char)(low | high << 4);
        }
    }
}

void convert_turned_row(const convert_item *it, uint64_t r, float *x)
{
    const shape_tensor *t = &it->t;
    const tensor *src = it->source[0];
    uint64_t n = t->ne[0], expert = r / t->ne[1], row = r % t->ne[1], size = 0;
    uint64_t at = r * n * every(t) + t->change.from, step = every(t); /* of a row of biases */
    if (t->change.turned) {
        step = t->ne[1] * every(t);
        at = expert * n * step + place_of(t, row);
    }
    num_row_bytes(src->type, 1, &size);
    const unsigned char *p = src->bytes + at * size;
    for (uint64_t i = 0; i < n; i++, p += step * size)
        convert_floats(src->type, p, &x[i], 1);
}
