/* fuzz_lora.c - any bytes as an adapter of a tiny Qwen3 with experts.
 *
 * The file is refused with a sentence, or its pairs are beside the model's weights.
 */
#include "fuzz/fuzz.h"
#include "base/mem.h"
#include "model/lora.h"
#include "tests/table_file.h"

#include <stdlib.h>
#include <string.h>

FUZZ(lora)
{
    static table_file f;
    model m = {0};
    gguf g = {0};
    err e = {0}, own = {0};
    void *copy = mem_aligned(16, n); /* as a mapping would be */
    if (!copy)
        return;
    memcpy(copy, data, n);
    if (!f.shape && !table_file_make(&f, "tiny-qwen3moe"))
        abort();
    if (table_file_bind(&f, &m, &own))
        abort();
    status st = gguf_open_bytes(&g, copy, n, "fuzz", &e);
    st = st ? st : model_add_lora(&m, &g, &e);
    if (st && (!e.text[0] || !e.status))
        abort(); /* a failure without a sentence */
    if (!st && (m.n_loras != 1 || m.loras[0].n_pairs < m.loras[0].is.n_pairs))
        abort();
    model_place_loras(&m);
    model_free(&m);
    mem_free(copy);
}
