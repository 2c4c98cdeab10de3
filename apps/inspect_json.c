/* inspect_json.c - the report of `carat inspect` as JSON, for scripts.
 *
 * It has the contents of the text report and all metadata. Of long arrays it has the first few
 * items. NaN and infinities become null. If memory runs out the report fails; it is never
 * shortened.
 */
#include "apps/inspect_int.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>

static json_t *number_of(uint64_t v)
{
    return v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v);
}

static json_t *real_of(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *scalar_of(const gguf_value *v)
{
    gguf_string s;
    int64_t i;
    double f;
    if (gguf_value_string(v, &s))
        return json_lossy_text(s.at, (size_t)s.n);
    if (gguf_value_i64(v, &i))
        return v->kind == GGUF_BOOL ? json_boolean(i) : json_integer(i);
    return gguf_value_f64(v, &f) ? real_of(f) : json_null();
}

/* {"kind": "string", "count": 262144, "first": [...]} */
static json_t *array_of(const gguf_value *v)
{
    json_t *first = json_array();
    uint64_t at = 0;
    gguf_string s;
    for (uint64_t k = 0; k < v->count && k < INSPECT_ITEMS; k++) {
        int64_t i;
        double f;
        if (v->item == GGUF_STRING && gguf_next_string(v, &at, &s))
            json_array_append_new(first, json_lossy_text(s.at, (size_t)s.n));
        else if (gguf_item_i64(v, k, &i))
            json_array_append_new(first, v->item == GGUF_BOOL ? json_boolean(i) : json_integer(i));
        else if (gguf_item_f64(v, k, &f))
            json_array_append_new(first, real_of(f));
    }
    return json_pack("{s:s, s:o, s:o}", "kind", gguf_kind_name(v->item), "count",
                     number_of(v->count), "first", first);
}

static json_t *tensors_of(const gguf *g)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        json_t *shape = json_array();
        for (int k = 0; k < t->n_dims; k++)
            json_array_append_new(shape, number_of(t->ne[k]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:o, s:o, s:i}", "name",
                                              json_lossy_text(t->name, strlen(t->name)), "type",
                                              num_name(t->type), "shape", shape, "bytes",
                                              number_of(t->n_bytes), "offset", number_of(t->offset),
                                              "file", (int)t->part + 1));
    }
    return list;
}

static json_t *kv_kinds_json(const inspect_report *r)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_kinds && i < INSPECT_KINDS; i++) {
        const carat_kv_kind *k = &r->kind[i];
        json_array_append_new(
            list,
            json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:b, s:o, s:s, s:b}", "layers",
                      (int)k->n_layers, "first", (int)k->first, "window", (int)k->window,
                      "kv_heads", (int)k->n_head_kv, "head_size", (int)k->head_dim, "slots",
                      (int)k->n_slots, "keys", k->k, "values", k->v, "one_stream", (int)k->single,
                      "bytes", number_of(k->n_bytes), "kernel", k->kernel, "slow", (int)k->slow));
    }
    return list;
}

static json_t *weights_of(const inspect_report *r)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < r->n_weights; i++) {
        const carat_weight_kind *k = &r->weight[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:o, s:s, s:b}", "what", k->what,
                                              "type", k->type, "tensors", (int)k->n, "bytes",
                                              number_of(k->n_bytes), "kernel", k->kernel, "slow",
                                              (int)k->slow));
    }
    return list;
}

static json_t *devices_of(const inspect_report *r)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < r->plan.n_devices; i++) {
        const carat_device_plan *d = &r->plan.device[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "device",
                      d->device, "layers", (int)d->n_layers, "first_layer", (int)d->first_layer,
                      "crossing_bytes_per_token", number_of(d->crossing_bytes), "weight_bytes",
                      number_of(d->weight_bytes), "kv_window_bytes", number_of(d->kv_swa_bytes),
                      "kv_global_bytes", number_of(d->kv_global_bytes), "recurrent_bytes",
                      number_of(d->recurrent_bytes), "scratch_bytes", number_of(d->scratch_bytes),
                      "reserve_bytes", number_of(d->reserve_bytes), "total_bytes",
                      number_of(d->total_bytes), "available_bytes", number_of(d->available_bytes)));
    }
    return list;
}

static json_t *plan_json(const inspect_report *r)
{
    const carat_memory_plan *p = &r->plan;
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "device", r->model->device, "device_why", r->model->device_why, "context", (int)p->n_ctx,
        "chunk", (int)p->chunk, "weight_bytes", number_of(p->weight_bytes), "repack_bytes",
        number_of(p->repack_bytes), "kv_window_bytes", number_of(p->kv_swa_bytes),
        "kv_global_bytes", number_of(p->kv_global_bytes), "recurrent_bytes",
        number_of(p->recurrent_bytes), "checkpoint_state_bytes",
        number_of(p->checkpoint_state_bytes), "scratch_bytes", number_of(p->scratch_bytes),
        "total_bytes", number_of(p->total_bytes), "available_bytes", number_of(p->available_bytes),
        "devices", devices_of(r), "kv", kv_kinds_json(r), "weights", weights_of(r));
}

/* jansson frees what json_pack could not place and passes NULL on, so a check at the end does. */
status inspect_json(const inspect_report *r, err *e)
{
    const gguf *g = r->g;
    json_was_short();
    json_t *metadata = json_object(), *types = json_object(), *root;
    for (uint64_t i = 0; i < g->n_values; i++) {
        const gguf_value *v = &g->value[i];
        json_t *key = json_lossy_text(v->key, strlen(v->key));
        if (key)
            json_object_set_new_nocheck(metadata, json_string_value(key),
                                        v->kind == GGUF_ARRAY ? array_of(v) : scalar_of(v));
        json_decref(key);
    }
    for (uint32_t t = 0; t < NUM_TYPE_END; t++)
        if (r->n_of_type[t])
            json_object_set_new(types, num_name(t),
                                json_pack("{s:o, s:o}", "tensors", number_of(r->n_of_type[t]),
                                          "bytes", number_of(r->bytes_of_type[t])));
    root = json_pack(
        "{s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o?, s:o?, s:o, s:o, s:o, s:o}", "file",
        json_lossy_text(g->path, strlen(g->path)), "version", (int)g->version, "files",
        (int)g->n_parts, "file_bytes", number_of(g->file_bytes), "metadata", metadata, "types",
        types, "parameters", number_of(r->n_params), "active_parameters", number_of(r->n_active),
        "tensors", tensors_of(g), "plan", r->plan.n_ctx ? plan_json(r) : json_null(), "problem",
        r->why_not.status ? json_lossy_text(r->why_not.text, strlen(r->why_not.text)) : json_null(),
        "drafter", inspect_draft_json(&r->draft), "vision", inspect_vision_json(&r->vision),
        "audio", inspect_audio_json(&r->vision), "text", inspect_words_json(&r->words));
    if (json_was_short() || !root) {
        json_decref(root);
        return err_memory(e, "the report", 0);
    }
    if (r->lora.is_adapter)
        json_object_set_new(root, "adapter", inspect_lora_json(&r->lora));
    bool ok = json_write(stdout, root, JSON_INDENT(1));
    json_decref(root);
    return ok ? OK : err_set(e, E_IO, "cannot write to standard output");
}
