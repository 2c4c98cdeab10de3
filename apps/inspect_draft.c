/* inspect_draft.c - the part of `carat inspect` for drafters: what the file says about drafting,
 * contradictions in it, and the cost beside its model.
 *
 * Facts come from shapes and keys, as model/dflash_bind.c reads them: what a shape tells, no key
 * changes. With --target the model's plan is made with the drafter and compared with the plan
 * without it.
 */
#include "apps/device_options.h"
#include "apps/inspect_int.h"
#include "apps/term.h"
#include "base/json.h"
#include "model/dflash.h"
#include "model/gemma4_mtp.h"
#include "model/qwen35.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Facts --------------------------------------------------------------------------------- */

static const gguf_value *find_key(const gguf *g, const char *name)
{
    static const char *const form[] = {"%.*s.dflash.%s", "%.*s.%s"};
    gguf_string arch = {"", 0};
    const gguf_value *v = NULL;
    char key[160];
    gguf_get_string(g, "general.architecture", &arch);
    for (int i = 0; i < 2 && !v; i++) {
        snprintf(key, sizeof key, form[i], (int)(arch.n < 64 ? arch.n : 64), arch.at, name);
        v = gguf_find(g, key);
    }
    snprintf(key, sizeof key, "dflash.%s", name);
    return v ? v : gguf_find(g, key);
}

static void add_note(inspect_draft *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_note(inspect_draft *d, const char *fmt, ...)
{
    size_t n = strlen(d->notes);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->notes + n, sizeof d->notes - n, fmt, ap);
    va_end(ap);
    n = strlen(d->notes);
    snprintf(d->notes + n, sizeof d->notes - n, "\n");
}

static void read_dflash_facts(inspect_draft *d, const gguf *g)
{
    const dflash *f = d->core.impl;
    const gguf_value *ids = find_key(g, "target_layer_ids"), *mask;
    int64_t v, from = ids ? 0 : 1;
    snprintf(d->family, sizeof d->family, "DFlash%s%s", f->laguna ? ", Laguna's" : "",
             f->markov_in.n_in ? ", with DSpark's bigram correction" : "");
    d->n_layer = f->n_layer;
    d->n_embd = d->n_target_embd = f->n_embd;
    d->n_head = f->n_head;
    d->n_ff = f->n_ff;
    d->window = d->core.window;
    d->block = f->block;
    for (int32_t i = 0; i < f->n_layer; i++) {
        const kv_spec *s = &d->core.kv[i];
        uint64_t row = 4 * (uint64_t)s->n_head_kv * (uint64_t)s->head_dim; /* K and V in f16 */
        d->n_sliding += s->window > 0;
        d->n_causal += s->inside == KV_INSIDE_CAUSAL;
        d->state_bytes += s->window ? row * (uint64_t)s->window : 0;
        d->token_bytes += s->window ? 0 : row;
    }
    ids = ids ? ids : find_key(g, "target_layers");
    for (uint64_t i = 0; ids && i < ids->count && d->n_features < INSPECT_FEATURES; i++)
        if (gguf_item_i64(ids, i, &v) && v >= from && v - from <= INT32_MAX)
            d->feature[d->n_features++] = (int32_t)(v - from);
    mask = find_key(g, "mask_token_id");
    mask = mask ? mask : gguf_find(g, "tokenizer.ggml.mask_token_id");
    d->mask_id = mask && gguf_value_i64(mask, &v) && v >= 0 && v <= INT32_MAX ? (int32_t)v : -1;
    mask = gguf_find(g, "carat.draft.anchor_first");
    mask = mask ? mask : find_key(g, "sample_from_anchor");
    d->anchor_first = mask ? gguf_value_i64(mask, &v) && v : f->markov_in.n_in > 0;
    if (f->laguna)
        d->anchor_first = false;
    d->n_drafts = d->block - !d->anchor_first;
    snprintf(d->head, sizeof d->head, "the target's%s",
             f->conf.n_in ? ", and an estimate of confidence" : "");
    snprintf(d->notes, sizeof d->notes, "%s", f->notes);
    /* What binding to a target would find. */
    if (d->n_features != f->n_features) {
        add_note(d,
                 "%" PRId32 " captured layers are listed, and the tensors show %" PRId32
                 ": the usual ones are taken",
                 d->n_features, f->n_features);
        d->n_features = 0;
    }
}

static void read_mtp_facts(inspect_draft *d, const gguf *g)
{
    const gemma4_mtp *f = d->core.impl;
    const gguf_value *key = find_key(g, "use_ordered_embeddings");
    const tensor *embd = tensor_find(&g->tensors, "token_embd.weight");
    uint64_t n_vocab = embd ? embd->ne[1] : 0;
    int64_t v;
    snprintf(d->family, sizeof d->family, "MTP assistant of Gemma 4");
    d->n_layer = f->n_layer;
    d->n_embd = f->n_embd;
    d->n_target_embd = f->n_target_embd;
    d->window = f->window;
    for (int32_t il = 0; il < f->n_layer; il++) {
        d->n_sliding += f->layer[il].swa;
        d->n_head = f->layer[il].n_head;
        d->n_ff = f->layer[il].gate.n_out;
    }
    if (f->n_clusters)
        snprintf(d->head, sizeof d->head,
                 "its own: %" PRId32 " clusters of %" PRIu64 " tokens, %" PRId32 " used",
                 f->n_clusters, n_vocab / (uint64_t)f->n_clusters, f->n_top);
    else
        snprintf(d->head, sizeof d->head, "its own: all %" PRIu64 " tokens", n_vocab);
    if (key && gguf_value_i64(key, &v) && !v != !f->n_clusters)
        add_note(d, "%s contradicts the tensors, which show %s", key->key,
                 f->n_clusters ? "clusters" : "a dense head");
    if (!f->window)
        add_note(d, "no attention.sliding_window: the target's is taken");
}

static void read_nextn_facts(inspect_draft *d, const gguf *g)
{
    const qwen35_nextn *f = d->core.impl;
    snprintf(d->family, sizeof d->family, "%s",
             d->own ? "the NextN (MTP) layer of this file" : "NextN (MTP) layer of Qwen3.5 to 3.8");
    d->n_layer = model_nextn_layers(g);
    d->n_embd = d->n_target_embd = d->core.n_embd;
    d->n_head = f->g.n_head;
    d->n_ff = f->g.layer->gate.n_out;
    d->token_bytes = 2 * 2 * (uint64_t)d->core.kv->n_head_kv * (uint64_t)f->g.head_dim;
    snprintf(d->head, sizeof d->head, "the target's");
}

static const char *dialect_of(const gguf *g)
{
    gguf_string a = {"", 0};
    gguf_get_string(g, "general.architecture", &a);
    bool ik = tensor_find(&g->tensors, "dflash_fc.weight") != NULL;
    return a.n == 6 || (a.n > 4 && !memcmp(a.at, "qwen", 4)) ? "llama.cpp"
           : a.n == 16 && !memcmp(a.at, "gemma4-", 7)        ? "llama.cpp"
           : a.n == 16 && !memcmp(a.at, "gemma4_", 7)        ? "llama.cpp's first"
           : a.n == 10 && !memcmp(a.at, "gemma4_mtp", 10)    ? "ik_llama.cpp"
           : ik                                              ? "ik_llama.cpp"
                                                             : "Lucebox";
}

void inspect_draft_open(inspect_draft *d, const char *path, const gguf *g)
{
    const char *what;
    gguf file = {0};
    d->kind = draft_kind_of(g, &what);
    d->own = d->kind == DRAFT_NONE && model_nextn_layers(g);
    bool nextn = d->own || d->kind == DRAFT_NEXTN;
    if (d->kind == DRAFT_NONE && !d->own)
        return;
    snprintf(d->what, sizeof d->what, "%s", what ? what : "a NextN (MTP) layer");
    d->dialect = dialect_of(g);
    if (draft_kind_check(g, &d->why_not) ||
        gguf_open(&file, path, false, NULL, NULL, &d->why_not) ||
        (nextn ? model_bind_nextn(&d->core, &file, &d->why_not)
               : model_bind(&d->core, &file, &d->why_not)))
        return;
    if (nextn)
        read_nextn_facts(d, g);
    else if (d->kind == DRAFT_DFLASH)
        read_dflash_facts(d, g);
    else
        read_mtp_facts(d, g);
    d->known = true;
}

void inspect_draft_plan(inspect_draft *d, const char *path, const char *target, const char *where,
                        const carat_model_options *opt, const carat_session_options *so)
{
    carat_model_options with = *opt;
    carat_model *m = NULL;
    with.draft = d->own ? "nextn" : path;
    with.draft_device = where;
    with.mmproj = NULL;
    if (d->kind == DRAFT_NONE && !d->own) { /* any model with the same tokens */
        snprintf(d->family, sizeof d->family, "a model of its own");
        d->known = true;
    }
    if (d->known && !carat_model_open(target, &with, &m, &d->plan_why))
        carat_plan(m, so, &d->plan, &d->plan_why);
    carat_model_close(m);
}

void inspect_draft_close(inspect_draft *d)
{
    model_free(&d->core);
}

/* ---- Text ---------------------------------------------------------------------------------- */

static const char *joined(const inspect_draft *d, char *buf, size_t cap)
{
    size_t n = 0;
    buf[0] = 0;
    for (int32_t i = 0; i < d->n_features && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId32, i ? ", " : "", d->feature[i]);
    return buf;
}

static void put_dflash(const inspect_draft *d)
{
    char list[256];
    if (d->n_features)
        printf("  %-28s the outputs of layers %s\n", "sees of the target",
               joined(d, list, sizeof list));
    if (d->n_causal == 0)
        puts("  inside a block               every slot sees all slots");
    else if (d->n_causal == d->n_layer)
        puts("  inside a block               a slot sees the slots before it");
    else
        printf("  %-28s a slot sees the slots before it in %" PRId32 " layers, all in the rest\n",
               "inside a block", d->n_causal);
    printf("  %-28s %" PRId32 " slots, %" PRId32 " of them draft\n", "block", d->block,
           d->n_drafts);
    if (d->mask_id >= 0)
        printf("  %-28s %" PRId32 "\n", "mask token", d->mask_id);
    printf("  %-28s %.1f KiB a token, and %.1f MiB for windows (f16)\n", "keys and values",
           (double)d->token_bytes / 1024, (double)d->state_bytes / (1 << 20));
}

static void put_notes(const char *notes)
{
    for (const char *at = notes; *at;) {
        size_t n = strcspn(at, "\n");
        fputs("  warning: ", stdout);
        term_put_name(stdout, at, n, 0);
        putchar('\n');
        at += n + (at[n] == '\n');
    }
}

static void put_facts(const inspect_draft *d)
{
    printf("  %-28s %s\n", "names as in", d->dialect);
    printf("  %-28s a model of width %" PRId32 "\n", "drafts for", d->n_target_embd);
    printf("  %-28s %" PRId32 ", %" PRId32 " of them sliding", "layers", d->n_layer, d->n_sliding);
    if (d->window)
        printf(" over %" PRId32 " tokens", d->window);
    printf("\n  %-28s width %" PRId32 ", %" PRId32 " heads, feed-forward %" PRId32 "\n", "a layer",
           d->n_embd, d->n_head, d->n_ff);
    if (d->kind == DRAFT_DFLASH)
        put_dflash(d);
    else if (d->own || d->kind == DRAFT_NEXTN)
        printf("  %-28s %.1f KiB a token (f16)\n", "keys and values",
               (double)d->token_bytes / 1024);
    else
        puts("  keys and values              the target's");
    printf("  %-28s %s\n", "head", d->head);
    put_notes(d->notes);
}

void inspect_draft_put(const inspect_draft *d, const char *target)
{
    printf("\nDrafter: %s\n", d->known ? d->family : d->what);
    if (!d->known) {
        fputs("  not usable: ", stdout);
        term_put(stdout, d->why_not.text, strlen(d->why_not.text));
        putchar('\n');
        return;
    }
    if (d->kind != DRAFT_NONE || d->own)
        put_facts(d);
    if (d->own)
        puts("  taken by                     --draft nextn, or auto");
    if (!target && !d->own)
        return;
    if (d->plan.n_ctx) {
        printf("  %-28s %.2f MiB at %" PRId32 " tokens of context: weights, keys, work space\n",
               "cost beside the target", (double)d->plan.draft_bytes / (1 << 20), d->plan.n_ctx);
        printf("  %-28s %.2f MiB of %.2f MiB available\n", "both at work",
               (double)d->plan.total_bytes / (1 << 20),
               (double)d->plan.available_bytes / (1 << 20));
        for (int32_t i = 0; i < d->plan.n_devices; i++) {
            const carat_device_plan *p = &d->plan.device[i];
            if (device_drafts_alone(p))
                printf("  %-28s %.2f MiB of %s, %.2f MiB available\n", "the drafter takes",
                       (double)p->total_bytes / (1 << 20), p->device,
                       (double)p->available_bytes / (1 << 20));
        }
    } else {
        fputs("  not usable with the target: ", stdout);
        term_put(stdout, d->plan_why.text, strlen(d->plan_why.text));
        putchar('\n');
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* What put_facts prints. */
static json_t *facts_of(const inspect_draft *d)
{
    json_t *ids = json_array(), *notes = json_array();
    for (int32_t i = 0; i < d->n_features; i++)
        json_array_append_new(ids, json_integer(d->feature[i]));
    for (const char *at = d->notes; *at;) {
        size_t n = strcspn(at, "\n");
        json_array_append_new(notes, json_lossy_text(at, n));
        at += n + (at[n] == '\n');
    }
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:o}", "family",
                          d->family, "dialect", d->dialect, "target_width", (int)d->n_target_embd,
                          "width", (int)d->n_embd, "layers", (int)d->n_layer, "sliding_layers",
                          (int)d->n_sliding, "window", (int)d->window, "heads", (int)d->n_head,
                          "feed_forward", (int)d->n_ff, "head", d->head, "warnings", notes);
    if (d->own || d->kind == DRAFT_NEXTN)
        json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)d->token_bytes));
    if (d->kind != DRAFT_DFLASH) {
        json_decref(ids);
        return o;
    }
    json_object_set_new(o, "captured_layers", ids);
    json_object_set_new(o, "causal_layers", json_integer(d->n_causal));
    json_object_set_new(o, "block", json_integer(d->block));
    json_object_set_new(o, "drafts", json_integer(d->n_drafts));
    json_object_set_new(o, "mask_token", d->mask_id >= 0 ? json_integer(d->mask_id) : json_null());
    json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)d->token_bytes));
    json_object_set_new(o, "window_bytes", json_integer((json_int_t)d->state_bytes));
    return o;
}

json_t *inspect_draft_json(const inspect_draft *d)
{
    if (!d->known)
        return d->kind == DRAFT_NONE && !d->own
                   ? json_null()
                   : json_pack("{s:s, s:o}", "family", d->what, "problem",
                               json_lossy_text(d->why_not.text, strlen(d->why_not.text)));
    json_t *o =
        d->kind == DRAFT_NONE && !d->own ? json_pack("{s:s}", "family", d->family) : facts_of(d);
    if (d->plan.n_ctx) {
        json_object_set_new(o, "context", json_integer(d->plan.n_ctx));
        json_object_set_new(o, "draft_bytes", json_integer((json_int_t)d->plan.draft_bytes));
        json_object_set_new(o, "total_bytes", json_integer((json_int_t)d->plan.total_bytes));
        for (int32_t i = 0; i < d->plan.n_devices; i++)
            if (device_drafts_alone(&d->plan.device[i]))
                json_object_set_new(o, "device", json_string(d->plan.device[i].device));
    } else if (d->plan_why.status) {
        json_object_set_new(o, "target_problem",
                            json_lossy_text(d->plan_why.text, strlen(d->plan_why.text)));
    }
    return o;
}
