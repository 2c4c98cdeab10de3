/* ids.c - token ids from files: as numbers, or from a text.
 *
 * The library checks that ids are the model's, as in every prompt. This file checks only the form
 * of a file of ids.
 */
#include "apps/ids.h"
#include "base/bytes.h"
#include "base/map.h"
#include "base/mem.h"

enum { TEXT_MAX = 256 << 20 };

carat_status ids_read(const char *path, int32_t **ids, int64_t *n, carat_error *e)
{
    file_map f = {0};
    status st = file_map_open(&f, path, false, NULL, NULL, e);
    if (st)
        return st;
    if (f.n_bytes % 4 || f.n_bytes / 4 > INT32_MAX) {
        st = err_set(e, E_FORMAT, "%s: %llu bytes are not a list of 4-byte ids", path,
                     (unsigned long long)f.n_bytes);
        goto out;
    }
    *n = (int64_t)(f.n_bytes / 4);
    *ids = mem_calloc((size_t)*n, sizeof **ids);
    if (!*ids) {
        st = err_memory(e, path, (size_t)f.n_bytes);
        goto out;
    }
    reader r = reader_of(f.bytes, (size_t)f.n_bytes);
    for (int64_t i = 0; i < *n; i++)
        (*ids)[i] = (int32_t)rd_u32(&r);
out:
    file_map_close(&f);
    return st;
}

carat_status ids_of_text(const carat_model *m, const char *path, int32_t **ids, int64_t *n,
                         carat_error *e)
{
    char *text = NULL;
    size_t n_bytes;
    status st = file_read_all(path, TEXT_MAX, &text, &n_bytes, e);
    if (st)
        return st;
    int64_t cap = (int64_t)n_bytes + 1; /* no token is shorter than a byte */
    *ids = mem_calloc((size_t)cap, sizeof **ids);
    if (!*ids) {
        st = err_memory(e, path, (size_t)cap * sizeof **ids);
        goto out;
    }
    *n = carat_tokenize(m, text, n_bytes, CARAT_TOK_BOS, *ids, cap, e);
    st = *n < 0 ? e->status : OK;
out:
    mem_free(text);
    return st;
}
