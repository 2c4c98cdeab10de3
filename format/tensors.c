/* tensors.c - the index of names, and the checks that GGUF and safetensors share.
 *
 * The index is a hash table of record numbers with open addressing, at most half full. It compares
 * whole names, so a collision of hashes costs time only. Sizes of tensors are computed in one
 * place, for reading and writing, with checked arithmetic: it refuses dimensions of zero, rows that
 * are no whole number of blocks, and products beyond 63 bits.
 */
#include "format/tensors.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "num/num.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static uint64_t hash_name(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, then mixed: its low bits alone are weak */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return rng_mix(h);
}

static const char *name_at(const void *records, size_t size, uint64_t i)
{
    const char *name;
    memcpy(&name, (const char *)records + i * size, sizeof name);
    return name;
}

bool name_index_build(name_index *x, arena *mem, const void *records, size_t size, uint64_t n,
                      const char **twice)
{
    *twice = NULL;
    x->cap = 16;
    while (x->cap < 2 * n)
        x->cap *= 2;
    x->slot = arena_array(mem, (size_t)x->cap, sizeof *x->slot);
    if (!x->slot)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        const char *name = name_at(records, size, i);
        uint64_t at = hash_name(name) & (x->cap - 1);
        for (; x->slot[at]; at = (at + 1) & (x->cap - 1))
            if (!strcmp(name_at(records, size, x->slot[at] - 1), name)) {
                *twice = name;
                return true;
            }
        x->slot[at] = (uint32_t)i + 1;
    }
    return true;
}

int64_t name_index_find(const name_index *x, const void *records, size_t size, const char *name)
{
    if (!x->slot)
        return -1;
    for (uint64_t at = hash_name(name) & (x->cap - 1); x->slot[at]; at = (at + 1) & (x->cap - 1))
        if (!strcmp(name_at(records, size, x->slot[at] - 1), name))
            return (int64_t)x->slot[at] - 1;
    return -1;
}

status tensor_set_index(tensor_set *s, arena *mem, const char *file, err *e)
{
    const char *twice;
    if (!name_index_build(&s->index, mem, s->at, sizeof *s->at, s->n, &twice))
        return err_memory(e, file, (size_t)s->n * sizeof *s->index.slot);
    if (twice)
        return err_set(e, E_FORMAT, "%s: there are two tensors named %s", file, twice);
    return OK;
}

const tensor *tensor_find(const tensor_set *s, const char *name)
{
    int64_t i = name_index_find(&s->index, s->at, sizeof *s->at, name);
    return i < 0 ? NULL : &s->at[i];
}

static bool before(const tensor *a, const tensor *b)
{
    return a->part != b->part ? a->part < b->part : a->offset < b->offset;
}

/* Heap sort of positions by place in the file: qsort may allocate, and not by base/mem.h. */
static void sort_by_place(uint32_t *order, uint64_t n, const tensor *at)
{
    for (uint64_t i = n / 2, end = n; end > 1;) {
        if (i > 0) {
            i--;
        } else {
            uint32_t t = order[--end];
            order[end] = order[0];
            order[0] = t;
        }
        for (uint64_t root = i, child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && before(&at[order[child]], &at[order[child + 1]]))
                child++;
            if (!before(&at[order[root]], &at[order[child]]))
                break;
            uint32_t t = order[root];
            order[root] = order[child];
            order[child] = t;
        }
    }
}

const char tensor_q2_0_hint[] =
    "; a file from before q2_0 was settled has groups of 128 under the same number, in 34 bytes "
    "each: such a file must be converted anew";

status tensor_set_check_overlap(const tensor_set *s, arena *mem, const char *file, err *e)
{
    uint32_t *order = arena_array(mem, (size_t)s->n, sizeof *order);
    bool sorted = true;
    if (!order)
        return err_memory(e, file, (size_t)s->n * sizeof *order);
    for (uint64_t i = 0; i < s->n; i++) {
        order[i] = (uint32_t)i;
        sorted &= !i || before(&s->at[i - 1], &s->at[i]);
    }
    if (!sorted)
        sort_by_place(order, s->n, s->at);
    for (uint64_t i = 1; i < s->n; i++) {
        const tensor *a = &s->at[order[i - 1]], *b = &s->at[order[i]];
        if (a->part == b->part && b->offset - a->offset < a->n_bytes && b->n_bytes > 0)
            return err_set(e, E_FORMAT,
                           "%s: tensors %s and %s overlap (%" PRIu64 " bytes from %" PRIu64
                           ", and one from %" PRIu64 ")%s",
                           file, a->name, b->name, a->n_bytes, a->offset, b->offset,
                           a->type == NUM_Q2_0 ? tensor_q2_0_hint : "");
    }
    return OK;
}

bool tensor_measure(tensor *t, const char **why)
{
    uint64_t n = 1, row, rows = 1;
    *why = NULL;
    for (int i = 0; i < t->n_dims && !*why; i++) {
        if (t->ne[i] == 0)
            *why = "a dimension is zero";
        else if (!ck_mul(n, t->ne[i], &n) || n > INT64_MAX || (i && !ck_mul(rows, t->ne[i], &rows)))
            *why = "the number of elements overflows";
    }
    const num_format *f = num_format_of(t->type);
    if (!*why && !f)
        *why = "its type is not known";
    else if (!*why && t->ne[0] % (uint32_t)f->block_n)
        *why = "its rows are no whole number of blocks";
    else if (!*why && (!num_row_bytes(t->type, t->ne[0], &row) || !ck_mul(row, rows, &t->n_bytes) ||
                       t->n_bytes > INT64_MAX))
        *why = "its size overflows";
    t->n_elements = n;
    return !*why;
}

const char *tensor_shape_text(const tensor *t, char *buf, size_t cap)
{
    int at = snprintf(buf, cap, "{%" PRIu64, t->ne[0]);
    for (int i = 1; i < t->n_dims && at > 0 && (size_t)at < cap; i++)
        at += snprintf(buf + at, cap - (size_t)at, ", %" PRIu64, t->ne[i]);
    if (at > 0 && (size_t)at < cap)
        snprintf(buf + at, cap - (size_t)at, "}");
    return buf;
}

status tensor_check_row(const tensor *t, uint64_t row, const float *x, uint32_t to, err *e)
{
    float most = to == NUM_F16 ? 65504.0f : 0x1.fffffep127f;
    bool bad = false;
    for (uint64_t i = 0; i < t->ne[0]; i++)
        bad |= !(fabsf(x[i]) <= most); /* NaN too */
    if (!bad)
        return OK;
    return err_set(e, E_NUMERIC,
                   "tensor %s, row %" PRIu64 ": a value is not finite or too large for %s", t->name,
                   row, num_name(to));
}
