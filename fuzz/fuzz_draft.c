/* fuzz_draft.c - any bytes as a drafter: as a GGUF file if they begin like one, else as config.json
 * of a checkpoint.
 *
 * A file is told apart from other families and models. A configuration is refused with a sentence,
 * or its shape lists tensors within the limits of a shape.
 */
#include "fuzz/fuzz.h"
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/draft_kind.h"

static void try_config(const uint8_t *data, size_t n)
{
    json_t *config = NULL;
    model_shape *s = NULL;
    str unknown = {0};
    err e = {0};
    if (json_parse(&config, (const char *)data, n, "fuzz", &e))
        return;
    if (convert_is_draft(config)) {
        status st = convert_draft_shape(config, "fuzz", "d_block7", &s, &unknown, &e);
        fuzz_check(!st == !e.status && (!st || e.text[0]), "a failure without a sentence");
        fuzz_check(!st == (s != NULL), "a shape that is none");
        if (s)
            fuzz_check(s->family->list(s, NULL, 0) <= SHAPE_TENSORS_MAX, "too many tensors");
    }
    str_free(&unknown);
    mem_free(s);
    json_decref(config);
}

FUZZ(draft)
{
    gguf g;
    err e = {0};
    const char *what;
    if (n < 4 || memcmp(data, "GGUF", 4) != 0) {
        try_config(data, n);
        return;
    }
    void *copy = mem_aligned(16, n); /* as a mapping would be */
    if (!copy)
        return;
    memcpy(copy, data, n);
    if (!gguf_open_bytes(&g, copy, n, "fuzz", &e)) {
        draft_kind kind = draft_kind_of(&g, &what);
        fuzz_check((kind == DRAFT_NONE) == !what, "a kind without a name");
        status st = draft_kind_check(&g, &e);
        fuzz_check(!st == !e.status, "a status without a sentence");
        fuzz_check(kind != DRAFT_ALIEN || st, "an alien that passes");
    }
    gguf_close(&g);
    mem_free(copy);
}
