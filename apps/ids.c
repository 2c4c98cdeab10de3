/* ids.c - token ids from files: as numbers, or from a text.
 *
 * The library checks that ids are the model's, as in every prompt. This file checks only the form
 * of a file of ids.
 */
#include "apps/ids.h"
#include "base/bytes.h"
#include "base/map.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 256 << 20 };

/* Whether the bytes are digits, commas, blanks and brackets alone. Four of them are an int32 above
 * 150,000,000, which is no token of any vocabulary, so no list of int32 reads as a text. */
static bool is_text(const unsigned char *p, size_t n)
{
    static const char allowed[] = "0123456789,[] \t\r\n";
    for (size_t i = 0; i < n; i++)
        if (!p[i] || !strchr(allowed, p[i]))
            return false;
    return n > 0;
}

/* Reads a text of numbers into ids[0..cap). *n: their count. */
static status parse_text(const char *path, const char *p, size_t n_bytes, int32_t *ids, int64_t *n,
                         err *e)
{
    const char *end = p + n_bytes;
    bool after_number = false;
    while (end > p && strchr(" \t\r\n", end[-1]))
        end--;
    while (p < end && strchr(" \t\r\n", *p))
        p++;
    if (end - p > 1 && *p == '[' && end[-1] == ']') {
        p++;
        end--;
    }
    for (*n = 0; p < end; p++) {
        int64_t v = 0;
        if (strchr(" \t\r\n", *p))
            continue;
        if (*p == ',' && after_number) {
            after_number = false;
            continue;
        }
        if (*p < '0' || *p > '9')
            return err_set(e, E_FORMAT, "%s: '%c' where number %lld of the list is expected", path,
                           *p, (long long)*n + 1);
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if ((v = v * 10 + (*p - '0')) > INT32_MAX)
                return err_set(e, E_FORMAT, "%s: number %lld is too large for a token id", path,
                               (long long)*n + 1);
        p--;
        ids[(*n)++] = (int32_t)v;
        after_number = true;
    }
    if (*n && !after_number)
        return err_set(e, E_FORMAT, "%s: the list ends with a comma", path);
    return OK;
}

static status parse_bytes(const char *path, const unsigned char *bytes, size_t n_bytes,
                          int32_t *ids, int64_t *n, err *e)
{
    reader r = reader_of(bytes, n_bytes);
    *n = (int64_t)(n_bytes / 4);
    if (n_bytes % 4 || n_bytes / 4 > INT32_MAX)
        return err_set(e, E_FORMAT,
                       "%s: %llu bytes are neither a list of 4-byte ids nor numbers with commas "
                       "between",
                       path, (unsigned long long)n_bytes);
    for (int64_t i = 0; i < *n; i++)
        ids[i] = (int32_t)rd_u32(&r);
    return OK;
}

/* The ids of a text or of int32 in memory. */
static status read_list(const char *path, const unsigned char *bytes, size_t n_bytes, int32_t **ids,
                        int64_t *n, err *e)
{
    bool text = is_text(bytes, n_bytes);
    size_t cap = n_bytes / (text ? 2 : 4) + 1; /* of a text: a digit and a comma each */
    int32_t *list = mem_calloc(cap, sizeof *list);
    int64_t count = 0;
    if (!list)
        return err_memory(e, path, cap * sizeof *list);
    status st = text ? parse_text(path, (const char *)bytes, n_bytes, list, &count, e)
                     : parse_bytes(path, bytes, n_bytes, list, &count, e);
    if (st) {
        mem_free(list);
        return st;
    }
    *ids = list;
    *n = count;
    return OK;
}

carat_status ids_read(const char *path, int32_t **ids, int64_t *n, carat_error *e)
{
    const unsigned char *words = (const unsigned char *)path;
    file_map f = {0};
    if (is_text(words, strlen(path)) && access(path, F_OK)) /* the list itself, and no file */
        return read_list("the list", words, strlen(path), ids, n, e);
    status st = file_map_open(&f, path, false, NULL, NULL, e);
    if (st)
        return st;
    st = read_list(path, f.bytes, (size_t)f.n_bytes, ids, n, e);
    file_map_close(&f);
    return st;
}

carat_status ids_write(const char *path, const int32_t *ids, int64_t n, carat_error *e)
{
    file_out f = {0};
    status st = file_out_open(&f, path, e);
    for (int64_t i = 0; i < n && !st; i++) {
        uint32_t u = (uint32_t)ids[i];
        const unsigned char b[4] = {(unsigned char)u, (unsigned char)(u >> 8),
                                    (unsigned char)(u >> 16), (unsigned char)(u >> 24)};
        st = file_out_write(&f, b, 4, e);
    }
    if (!st)
        return file_out_commit(&f, e);
    file_out_discard(&f);
    return st;
}

/* The bytes of a text file as tokens, begin-of-sequence first. */
static status ids_of_text(const carat_model *m, const char *path, int32_t **ids, int64_t *n, err *e)
{
    char *text = NULL;
    size_t n_bytes;
    status st = file_read_all(path, TEXT_MAX, &text, &n_bytes, e);
    if (st)
        return st;
    int64_t cap = (int64_t)n_bytes + 1, n_ids = -1; /* no token is shorter than a byte */
    int32_t *list = mem_calloc((size_t)cap, sizeof *list);
    err why = {0};
    if (!list)
        st = err_memory(e, path, (size_t)cap * sizeof *list);
    else if ((n_ids = carat_tokenize(m, text, n_bytes, CARAT_TOK_BOS, list, cap, &why)) < 0)
        st = err_set(e, why.status, "%s", why.text);
    mem_free(text);
    if (st) {
        mem_free(list);
        return st;
    }
    *ids = list;
    *n = n_ids;
    return OK;
}

carat_status ids_given(const carat_model *m, const char *text, const char *tokens, int64_t limit,
                       int32_t **ids, int64_t *n, carat_error *e)
{
    status st = text ? ids_of_text(m, text, ids, n, e) : ids_read(tokens, ids, n, e);
    if (!st && limit && *n > limit)
        *n = limit;
    return st;
}
