/* gguf_value.c - typed access to metadata values, which were checked when the file was opened.
 *
 * Integers of any width and signedness are accepted, because published files differ in both.
 */
#include "format/gguf.h"
#include "base/bytes.h"

static const int8_t size_of[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

const char *gguf_kind_name(gguf_kind k)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)k < sizeof names / sizeof *names ? names[k] : "unknown";
}

static bool as_i64(gguf_kind kind, const unsigned char *at, int64_t *out)
{
    reader r = reader_of(at, (size_t)size_of[kind]);
    switch (kind) {
    case GGUF_U8:
        *out = rd_u8(&r);
        return true;
    case GGUF_I8:
        *out = (int8_t)rd_u8(&r);
        return true;
    case GGUF_U16:
        *out = rd_u16(&r);
        return true;
    case GGUF_I16:
        *out = (int16_t)rd_u16(&r);
        return true;
    case GGUF_U32:
        *out = rd_u32(&r);
        return true;
    case GGUF_I32:
        *out = (int32_t)rd_u32(&r);
        return true;
    case GGUF_BOOL:
        *out = rd_u8(&r) != 0;
        return true;
    case GGUF_U64:
    case GGUF_I64: {
        int64_t v = (int64_t)rd_u64(&r);
        if (kind == GGUF_U64 && v < 0)
            return false;
        *out = v;
        return true;
    }
    default:
        return false;
    }
}

static bool as_f64(gguf_kind kind, const unsigned char *at, double *out)
{
    reader r = reader_of(at, (size_t)size_of[kind]);
    int64_t i;
    if (kind == GGUF_F32) {
        *out = rd_f32(&r);
    } else if (kind == GGUF_F64) {
        *out = rd_f64(&r);
    } else if (kind == GGUF_U64) {
        *out = (double)rd_u64(&r);
    } else if (kind != GGUF_BOOL && as_i64(kind, at, &i)) {
        *out = (double)i;
    } else {
        return false;
    }
    return true;
}

bool gguf_value_i64(const gguf_value *v, int64_t *out)
{
    return v->kind != GGUF_ARRAY && as_i64(v->kind, v->bytes, out);
}

bool gguf_value_f64(const gguf_value *v, double *out)
{
    return v->kind != GGUF_ARRAY && as_f64(v->kind, v->bytes, out);
}

bool gguf_value_string(const gguf_value *v, gguf_string *out)
{
    if (v->kind != GGUF_STRING)
        return false;
    *out = (gguf_string){(const char *)v->bytes + 8, v->n_bytes - 8};
    return true;
}

bool gguf_item_i64(const gguf_value *v, uint64_t i, int64_t *out)
{
    return v->kind == GGUF_ARRAY && i < v->count && size_of[v->item] &&
           as_i64(v->item, v->bytes + i * (uint64_t)size_of[v->item], out);
}

bool gguf_item_f64(const gguf_value *v, uint64_t i, double *out)
{
    return v->kind == GGUF_ARRAY && i < v->count && size_of[v->item] &&
           as_f64(v->item, v->bytes + i * (uint64_t)size_of[v->item], out);
}

bool gguf_next_string(const gguf_value *v, uint64_t *at, gguf_string *out)
{
    if (v->kind != GGUF_ARRAY || v->item != GGUF_STRING || *at >= v->n_bytes)
        return false;
    reader r = reader_of(v->bytes + *at, (size_t)(v->n_bytes - *at));
    gguf_string s = {.n = rd_u64(&r)};
    s.at = rd_bytes(&r, s.n);
    if (r.bad)
        return false;
    *out = s;
    *at = (uint64_t)(r.at - v->bytes);
    return true;
}

const gguf_value *gguf_find(const gguf *g, const char *key)
{
    int64_t i = name_index_find(&g->keys, g->value, sizeof *g->value, key);
    return i < 0 ? NULL : &g->value[i];
}

bool gguf_get_i64(const gguf *g, const char *key, int64_t *out)
{
    const gguf_value *v = gguf_find(g, key);
    return v && gguf_value_i64(v, out);
}

bool gguf_get_f64(const gguf *g, const char *key, double *out)
{
    const gguf_value *v = gguf_find(g, key);
    return v && gguf_value_f64(v, out);
}

bool gguf_get_bool(const gguf *g, const char *key, bool *out)
{
    int64_t i;
    if (!gguf_get_i64(g, key, &i))
        return false;
    *out = i != 0;
    return true;
}

bool gguf_get_string(const gguf *g, const char *key, gguf_string *out)
{
    const gguf_value *v = gguf_find(g, key);
    return v && gguf_value_string(v, out);
}
