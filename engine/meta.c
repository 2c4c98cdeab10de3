/* meta.c - the metadata of a model's file, for callers that show it, and what it says of pooling.
 */
#include "engine/engine_int.h"
#include "model/shapes.h"
#include "base/utf8.h"

#include <stdio.h>

static void text_entry(gguf_string s, carat_meta *out)
{
    bool valid = utf8_valid(s.at, (size_t)s.n);
    out->kind = valid ? CARAT_META_TEXT : CARAT_META_OTHER;
    out->text = valid ? s.at : NULL;
    out->n_text = valid ? s.n : 0;
}

static void fill_entry(const gguf_value *v, carat_meta *out)
{
    gguf_string s;
    *out = (carat_meta){.key = v->key, .kind = CARAT_META_OTHER};
    switch (v->kind) {
    case GGUF_STRING:
        if (gguf_value_string(v, &s))
            text_entry(s, out);
        return;
    case GGUF_ARRAY:
        if (v->item != GGUF_ARRAY)
            *out = (carat_meta){
                .key = v->key, .kind = CARAT_META_LIST, .n_items = v->count, .list = v};
        return;
    case GGUF_F32:
    case GGUF_F64:
        if (gguf_value_f64(v, &out->real))
            out->kind = CARAT_META_REAL;
        return;
    default:
        out->kind = v->kind == GGUF_BOOL ? CARAT_META_BOOL : CARAT_META_INT;
        if (!gguf_value_i64(v, &out->i))
            out->i = INT64_MAX;
    }
}

bool carat_model_meta(const carat_model *m, int64_t i, carat_meta *out)
{
    const gguf *g = &m->core.file;
    if (i < 0 || (uint64_t)i >= g->n_values)
        return false;
    fill_entry(&g->value[i], out);
    return true;
}

bool carat_model_find_meta(const carat_model *m, const char *key, carat_meta *out)
{
    const gguf_value *v = gguf_find(&m->core.file, key);
    if (v)
        fill_entry(v, out);
    return v != NULL;
}

bool carat_meta_next(const carat_meta *list, uint64_t *at, carat_meta *item)
{
    const gguf_value *v = list->list;
    gguf_string s;
    if (list->kind != CARAT_META_LIST)
        return false;
    if (v->item == GGUF_STRING) {
        if (!gguf_next_string(v, at, &s))
            return false;
        *item = (carat_meta){.kind = CARAT_META_OTHER};
        text_entry(s, item);
        return true;
    }
    if (*at >= v->count)
        return false;
    *item = (carat_meta){.kind = CARAT_META_OTHER};
    if (v->item == GGUF_F32 || v->item == GGUF_F64) {
        if (gguf_item_f64(v, *at, &item->real))
            item->kind = CARAT_META_REAL;
    } else {
        item->kind = v->item == GGUF_BOOL ? CARAT_META_BOOL : CARAT_META_INT;
        if (!gguf_item_i64(v, *at, &item->i))
            item->i = INT64_MAX;
    }
    ++*at;
    return true;
}

carat_pooling carat_model_pooling(const carat_model *m, bool *stated)
{
    char key[96];
    int64_t v = 0;
    snprintf(key, sizeof key, "%s.pooling_type", m->core.arch->name);
    bool known = gguf_get_i64(&m->core.file, key, &v) && (v == POOLING_MEAN || v == POOLING_LAST);
    if (stated)
        *stated = known;
    return known && v == POOLING_LAST ? CARAT_POOL_LAST : CARAT_POOL_MEAN;
}

bool carat_model_is_encoder(const carat_model *m)
{
    return m->core.encoder;
}
