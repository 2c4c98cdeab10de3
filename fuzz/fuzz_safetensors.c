/* fuzz_safetensors.c - any bytes as a safetensors file.
 *
 * The file is refused with a sentence, or it opens. Then the first and the last byte of each tensor
 * are read.
 */
#include "fuzz/fuzz.h"
#include "format/safetensors.h"

#include <stdlib.h>

FUZZ(safetensors)
{
    safetensors s;
    err e = {0};
    if (safetensors_open_bytes(&s, data, n, "fuzz", &e) == OK) {
        for (uint64_t i = 0; i < s.tensors.n; i++) {
            const tensor *t = &s.tensors.at[i];
            if (tensor_find(&s.tensors, t->name) != t)
                abort();
            volatile unsigned char sink = t->bytes[0];
            sink = t->bytes[t->n_bytes - 1];
            (void)sink;
        }
    } else if (!e.text[0] || !e.status) {
        abort(); /* a failure without a sentence */
    }
    safetensors_close(&s);
}
