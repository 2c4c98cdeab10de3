/* fuzz_gguf.c - any bytes as a GGUF file.
 *
 * The file is refused with a sentence, or it opens. Then everything in it is read: each value by
 * every reader of values, and of each tensor both ends and the last block.
 */
#include "fuzz/fuzz.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "num/num.h"

#include <stdlib.h>

static void touch_value(const gguf *g, const gguf_value *v)
{
    int64_t i;
    double f;
    uint64_t at = 0;
    gguf_string s;
    unsigned char sum = 0;
    if (gguf_find(g, v->key) != v)
        abort();
    gguf_value_i64(v, &i);
    gguf_value_f64(v, &f);
    if (gguf_value_string(v, &s) && s.n)
        sum ^= (unsigned char)(s.at[0] ^ s.at[s.n - 1]);
    for (uint64_t k = 0; k < v->count && k < 1000; k++) {
        gguf_item_i64(v, k, &i);
        gguf_item_f64(v, k, &f);
    }
    if (v->kind == GGUF_ARRAY && v->count) {
        gguf_item_i64(v, v->count - 1, &i);
        gguf_item_f64(v, v->count - 1, &f);
    }
    while (gguf_next_string(v, &at, &s))
        for (uint64_t k = 0; k < s.n; k++)
            sum ^= (unsigned char)s.at[k];
    volatile unsigned char sink = sum;
    (void)sink;
}

static void touch_tensor(const gguf *g, const tensor *t)
{
    const num_format *f = num_format_of(t->type);
    float x[256];
    char shape[96];
    if (tensor_find(&g->tensors, t->name) != t)
        abort();
    tensor_shape_text(t, shape, sizeof shape);
    volatile unsigned char sink = t->bytes[0];
    sink = t->bytes[t->n_bytes - 1];
    (void)sink;
    if (f->decode)
        f->decode(t->bytes + t->n_bytes - (uint64_t)f->block_bytes, x, f->block_n);
}

FUZZ(gguf)
{
    gguf g;
    err e = {0};
    void *copy = mem_aligned(16, n); /* as a mapping would be */
    if (!copy)
        return;
    if (n)
        memcpy(copy, data, n);
    if (gguf_open_bytes(&g, copy, n, "fuzz", &e) == OK) {
        for (uint64_t i = 0; i < g.n_values; i++)
            touch_value(&g, &g.value[i]);
        for (uint64_t i = 0; i < g.tensors.n; i++)
            touch_tensor(&g, &g.tensors.at[i]);
    } else if (!e.text[0] || !e.status) {
        abort(); /* a failure without a sentence */
    }
    gguf_close(&g);
    mem_free(copy);
}
