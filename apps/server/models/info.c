/* info.c - health, models, properties, slots, metrics, tokens. */
#include "apps/server/models/info.h"

#include "apps/server/models/loras.h"

#include "apps/hub/made.h"
#include "apps/server/answers/begin.h"
#include "apps/server/answers/generate.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/parts.h"
#include "apps/server/models/router.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>
#include <strings.h>

/* ---- Health ---- */

void handle_live(exchange *x)
{
    json_open(&x->out, NULL, '{');
    json_text(&x->out, "status", "ok");
    json_close(&x->out, "}");
    x->status = 200;
}

void handle_health(exchange *x)
{
    int state = atomic_load(&x->s->state);
    if (state == SERVER_READY) {
        handle_live(x);
        return;
    }
    problem p = {.retry_s = 2};
    problem_set(&p, 503, "",
                state == SERVER_LOADING ? "the model is being loaded"
                                        : "the server is shutting down");
    reply_problem(x, &p);
}

/* ---- Models ---- */

/* llama-server's router shows the state so; the keys of a file's facts are there once it was
 * loaded. */
static void put_model(const offer_view *v, const char *id, str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "id", id);
    json_text(o, "object", "model");
    json_int(o, "created", 0);
    json_text(o, "owned_by", "carat");
    if (v->parent) /* as vLLM has it */
        json_text(o, "parent", v->parent);
    json_open(o, "status", '{');
    json_text(o, "value", offer_state_name(v->state));
    if (*v->failure) {
        json_bool(o, "failed", true);
        json_int(o, "exit_code", 1);
        json_text(o, "message", v->failure);
    }
    json_close(o, "}");
    json_text(o, "source", offer_source_name(v->source));
    json_bool(o, "can_remove", v->source == OFFER_STORED || v->source == OFFER_MADE);
    json_int(o, "size", (int64_t)(v->file_bytes ? v->file_bytes : v->weight_bytes));
    if (v->known) {
        json_int(o, "context_length", v->n_ctx);
        json_open(o, "meta", '{');
        json_int(o, "n_vocab", v->n_vocab);
        json_int(o, "n_ctx", v->n_ctx);
        json_int(o, "n_ctx_train", v->n_ctx_train);
        json_int(o, "n_embd", v->n_embd);
        json_int(o, "n_params", (int64_t)v->n_params);
        json_int(o, "size", (int64_t)v->weight_bytes);
        json_text(o, "ftype", v->file_type);
        json_close(o, "}");
        json_open(o, "architecture", '{');
        json_open(o, "input_modalities", '[');
        json_text(o, NULL, "text");
        if (v->images)
            json_text(o, NULL, "image");
        if (v->sounds)
            json_text(o, NULL, "audio");
        json_close(o, "]");
        json_open(o, "output_modalities", '[');
        json_text(o, NULL, "text");
        json_close(o, "]}");
    }
    json_close(o, "}");
}

/* The model as Codex expects it. */
static void put_codex_model(const offer_view *v, str *o)
{
    static const char *const efforts[] = {"low", "medium", "high"};
    json_open(o, NULL, '{');
    json_text(o, "slug", v->name);
    json_text(o, "display_name", v->name);
    json_text(o, "description", v->known ? v->title : v->name);
    json_text(o, "default_reasoning_level", "medium");
    json_open(o, "supported_reasoning_levels", '[');
    for (int i = 0; i < 3; i++) {
        json_open(o, NULL, '{');
        json_text(o, "effort", efforts[i]);
        json_text(o, "description", efforts[i]);
        json_close(o, "}");
    }
    json_close(o, "]");
    json_text(o, "shell_type", "shell_command");
    json_text(o, "visibility", "list");
    json_bool(o, "supported_in_api", true);
    json_int(o, "priority", 0);
    if (v->known)
        json_int(o, "context_window", v->n_ctx);
    json_bool(o, "supports_reasoning_summaries", false);
    json_close(o, "}");
}

static void put_models(exchange *x, const offer_view *list, int32_t n)
{
    str *o = &x->out;
    json_open(o, NULL, '{');
    json_text(o, "object", "list");
    json_open(o, "data", '[');
    for (int32_t i = 0; i < n; i++)
        put_model(&list[i], list[i].name, o);
    if (!strcmp(x->path, "/models")) /* clients of /v1/models take what is listed for usable */
        router_put_pulls(x);
    json_close(o, "]");
    if (catalog_offers_all(x->s->catalog))
        json_text(o, "role", "router");
    json_bool(o, "has_more", false);
    json_text(o, "first_id", n ? list[0].name : NULL);
    json_text(o, "last_id", n ? list[n - 1].name : NULL);
    json_open(o, "models", '[');
    for (int32_t i = 0; i < n; i++)
        put_codex_model(&list[i], o);
    json_close(o, "]}");
}

/* One model by a name that requests may have; NULL: none. */
static const offer_view *view_named(const exchange *x, const offer_view *list, int32_t n,
                                    const char *name)
{
    if (!utf8_valid(name, strlen(name)))
        return NULL;
    for (int32_t i = 0; i < n; i++)
        if (!strcasecmp(list[i].name, name))
            return &list[i];
    const char *meant = catalog_meant(x->s->catalog, name);
    for (int32_t i = 0; i < n && meant; i++)
        if (!strcmp(list[i].name, meant))
            return &list[i];
    return NULL;
}

/* The list with the models that are made of its models, as views of these; of mem. NULL: no memory.
 */
static offer_view *with_made(exchange *x, const offer_view *list, int32_t *n, arena *mem)
{
    const made_model *made;
    size_t n_made;
    int32_t n_all = *n;
    if (made_list(mem, &made, &n_made, NULL))
        return NULL;
    offer_view *all = arena_array(mem, (size_t)*n + n_made + 1, sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, list, (size_t)*n * sizeof *all);
    for (size_t i = 0; i < n_made; i++) {
        beginning b = {0};
        const offer_view *base = exchange_base_of(x, made[i].name, list, *n, &b);
        if (base) {
            all[n_all] = *base;
            all[n_all].source = OFFER_MADE;
            all[n_all++].name = made[i].name;
        }
        beginning_free(&b);
    }
    *n = n_all;
    return all;
}

void handle_models(exchange *x)
{
    static const char one[] = "/v1/models/";
    bool all = strncmp(x->path, one, sizeof one - 1) != 0;
    const char *name = all ? "" : x->path + sizeof one - 1;
    problem p = {0};
    int32_t n = 0;
    arena mem = {0};
    offer_view *own = catalog_list(x->s->catalog, &n);
    const offer_view *list = own ? with_made(x, own, &n, &mem) : NULL;
    list = list ? loras_add_views(x, list, &n, &mem) : NULL;
    const offer_view *v = all || !list ? NULL : view_named(x, list, n, name);
    if (!list)
        problem_set(&p, 503, "", "no memory for the list of models");
    else if (!all && !v)
        problem_set(&p, 404, "model", "there is no such model");
    else if (all)
        put_models(x, list, n);
    else
        put_model(v, catalog_leads(x->s->catalog) ? name : v->name, &x->out);
    x->status = 200;
    if (p.status)
        reply_problem(x, &p);
    arena_free(&mem);
    mem_free(own);
}

static void put_defaults(const served *m, str *o)
{
    json_open(o, "default_generation_settings", '{');
    json_int(o, "n_ctx", m->n_ctx);
    json_sampling(o, &m->limits.sampling);
    json_bool(o, "thinking", m->s->o->think);
    json_close(o, "}");
}

/* The file's chat template, as Jinja text. */
static void put_template(const carat_model *m, str *o)
{
    carat_meta v;
    if (carat_model_find_meta(m, "tokenizer.chat_template", &v) && v.kind == CARAT_META_TEXT)
        json_text_n(o, "chat_template", v.text, (size_t)v.n_text);
    else
        json_text(o, "chat_template", "");
}

void handle_props(exchange *x)
{
    str *o = &x->out;
    if (!exchange_pick_query(x))
        return;
    const served *m = x->m;
    json_open(o, NULL, '{');
    put_defaults(m, o);
    json_int(o, "total_slots", m->n_slots);
    json_int(o, "token_gap_ms", m->s->o->token_gap_ms);
    json_text(o, "model_alias", m->names.name);
    json_text(o, "model_name", m->info.name);
    json_text(o, "model_ftype", m->info.file_type);
    json_text(o, "architecture", m->info.architecture);
    json_text(o, "device", m->info.device);
    json_text(o, "device_why", m->info.device_why);
    json_text(o, "build_info", carat_version());
    if (catalog_offers_all(x->s->catalog)) { /* as llama-server's router */
        json_text(o, "role", "router");
        json_int(o, "max_instances", x->s->o->max_loaded);
        json_bool(o, "models_autoload", !x->s->o->no_autoload);
    }
    put_template(m->model, o);
    json_text(o, "media_marker", PICTURE_MARK);
    json_text(o, "pooling",
              carat_model_pooling(m->model, NULL) == CARAT_POOL_LAST ? "last" : "mean");
    json_open(o, "modalities", '{');
    json_bool(o, "vision", m->limits.images);
    json_bool(o, "audio", m->limits.sounds);
    json_close(o, "}");
    json_open(o, "capabilities", '{');
    json_bool(o, "chat", m->info.has_chat);
    json_bool(o, "tools", m->can_call);
    json_bool(o, "reasoning", m->thought_open >= 0);
    json_close(o, "}");
    json_open(o, "memory", '{');
    json_int(o, "weight_bytes", (int64_t)m->plan.weight_bytes);
    json_int(o, "kv_bytes_per_slot",
             (int64_t)(m->plan.kv_swa_bytes + m->plan.kv_global_bytes + m->plan.recurrent_bytes));
    json_int(o, "scratch_bytes", (int64_t)m->plan.scratch_bytes);
    json_close(o, "}}");
    x->status = 200;
}

/* ---- The batch ---- */

void handle_slots(exchange *x)
{
    carat_batch_info b = {0};
    carat_slot_info slots[SLOTS_MAX] = {0};
    str *o = &x->out;
    if (!exchange_pick_query(x))
        return;
    served_refresh(x->m, &b, slots);
    if (query_has(x, "fail_on_no_slot", "1") && b.n_busy >= b.n_slots) {
        problem p = {.retry_s = 1};
        problem_set(&p, 503, "", "all %d slots are at work", b.n_slots);
        reply_problem(x, &p);
        return;
    }
    json_open(o, NULL, '[');
    for (int32_t i = 0; i < b.n_slots && i < SLOTS_MAX; i++) {
        json_open(o, NULL, '{');
        json_int(o, "id", i);
        json_int(o, "n_ctx", x->m->n_ctx);
        json_bool(o, "speculative", x->m->info.drafter != NULL);
        json_bool(o, "is_processing", slots[i].id > 0);
        json_int(o, "id_task", slots[i].id);
        json_int(o, "n_past", slots[i].n_past);
        json_int(o, "n_prompt_tokens", slots[i].n_prompt);
        json_int(o, "n_prompt_tokens_processed", slots[i].n_done);
        json_int(o, "n_decoded", slots[i].n_generated);
        json_bool(o, "waits_for_room", slots[i].waits);
        json_bool(o, "paged_out", slots[i].paged_out);
        json_int(o, "n_away", slots[i].n_paged_out);
        json_close(o, "}");
    }
    json_close(o, "]");
    x->status = 200;
}

static void look_at_model(served *m, metrics_model *now)
{
    carat_slot_info slots[SLOTS_MAX] = {0};
    if (!served_refresh(m, &now->batch, slots))
        return;
    now->weight_bytes = m->plan.weight_bytes;
    now->n_devices = carat_memory(m->model, now->device);
    now->plan = m->plan.device;
    carat_experts(m->model, &now->experts);
    for (int32_t i = 0; i < now->n_devices && now->experts.n_slots; i++)
        carat_experts_on(m->model, i, &now->on_device[i]);
    for (int32_t i = 0; i < now->batch.n_slots && i < SLOTS_MAX; i++)
        now->kv_tokens += (uint64_t)slots[i].n_past;
    now->kv_capacity = (uint64_t)now->batch.n_slots * (uint64_t)m->n_ctx;
    if (now->batch.pool_tokens && (uint64_t)now->batch.pool_tokens < now->kv_capacity)
        now->kv_capacity = (uint64_t)now->batch.pool_tokens;
}

void handle_metrics(exchange *x)
{
    server *s = x->s;
    served *held[PASSES_MAX];
    int32_t n = catalog_hold(s->catalog, held), n_offers = 0;
    metrics_model *model = mem_calloc((size_t)n + 1, sizeof *model);
    offer_view *offers = catalog_list(s->catalog, &n_offers);
    metrics_now now = {.n_active = atomic_load(&s->n_active) - 1, /* not counting this request */
                       .busy_s = (double)atomic_load(&s->passes.busy_us) * 1e-6,
                       .ready = atomic_load(&s->state) == SERVER_READY,
                       .n_offered = n_offers,
                       .model = model,
                       .n_models = n || !catalog_leads(s->catalog) ? n : 1};
    for (int32_t i = 0; i < n && model; i++) {
        model[i].name = catalog_leader(s->catalog, held[i]) ? NULL : catalog_name(held[i]);
        look_at_model(held[i], &model[i]);
    }
    if (model && offers)
        metrics_put(&s->m, &now, &x->out);
    x->out.bad |= !model || !offers;
    catalog_drop(s->catalog, held, n);
    mem_free(model);
    mem_free(offers);
    x->type = "text/plain; version=0.0.4; charset=utf-8";
    x->status = 200;
}

/* ---- Tokens ---- */

typedef struct token_request {
    arena mem;
    const jtree *body;
} token_request;

/* Parses the body and picks the model that it names. */
static bool parse_body(exchange *x, token_request *t, problem *p)
{
    const char *name = "";
    return body_parse(&t->mem, x->body, x->n_body, &t->body, p) &&
           field_text(p, t->body, "model", &name) && exchange_pick(x, name, p);
}

/* Bytes that are no text become U+FFFD. */
static void put_shown(const char *bytes, size_t n, str *o)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        int len = utf8_decode(bytes + i, n - i, &cp, &ok);
        str_put(o, ok ? bytes + i : "\xEF\xBF\xBD", ok ? (size_t)len : 3);
        i += (size_t)len;
    }
}

static void put_piece(const exchange *x, int32_t id, str *o)
{
    const char *bytes = "";
    int32_t n = carat_token_bytes(x->m->model, id, true, &bytes);
    n = n < 0 ? 0 : n;
    json_open(o, NULL, '{');
    json_int(o, "id", id);
    if (utf8_valid(bytes, (size_t)n)) {
        json_text_n(o, "piece", bytes, (size_t)n);
    } else {
        json_open(o, "piece", '[');
        for (int32_t i = 0; i < n; i++)
            json_int(o, NULL, (unsigned char)bytes[i]);
        json_close(o, "]");
    }
    json_close(o, "}");
}

static void put_token_strs(const exchange *x, const int32_t *ids, int64_t n, str *o)
{
    json_open(o, "token_strs", '[');
    for (int64_t i = 0; i < n; i++) {
        const char *bytes = "";
        int32_t n_bytes = carat_token_bytes(x->m->model, ids[i], true, &bytes);
        str shown = {0};
        put_shown(bytes, n_bytes < 0 ? 0 : (size_t)n_bytes, &shown);
        json_text_n(o, NULL, str_text(&shown), shown.n);
        o->bad |= shown.bad;
        str_free(&shown);
    }
    json_close(o, "]");
}

void put_tokens(exchange *x, const int32_t *ids, int64_t n, bool pieces, bool strs)
{
    str *o = &x->out;
    json_open(o, NULL, '{');
    json_open(o, "tokens", '[');
    for (int64_t i = 0; i < n; i++) {
        if (pieces)
            put_piece(x, ids[i], o);
        else
            json_int(o, NULL, ids[i]);
    }
    json_close(o, "]");
    json_int(o, "count", n);
    json_int(o, "max_model_len", x->m->n_ctx);
    if (strs)
        put_token_strs(x, ids, n, o);
    json_close(o, "}");
    x->status = 200;
}

/* llama-server's form has `content`, vLLM's `prompt` or `messages`. */
static bool tokenize(exchange *x, token_request *t, problem *p)
{
    bool bos = false, special = true, pieces = false, strs = false;
    const jtree *text, *prompt;
    err e = {0};
    if (!parse_body(x, t, p) || !field_kind(p, t->body, "content", JTREE_STRING, &text) ||
        !field_kind(p, t->body, "prompt", JTREE_STRING, &prompt) ||
        !field_bool(p, t->body, "return_token_strs", &strs))
        return false;
    if (jtree_get(t->body, "messages")) {
        if (text || prompt)
            return problem_set(p, 400, text ? "content" : "prompt",
                               "'messages' and a text exclude each other");
        handle_tokens(x, strs);
        return true;
    }
    if (text && prompt)
        return problem_set(p, 400, "prompt", "'content' and 'prompt' exclude each other");
    bos = !text; /* vLLM's default */
    text = text ? text : prompt;
    if (!text)
        return problem_set(p, 400, "content", "'content' is missing, or 'prompt', or 'messages'");
    if (!field_bool(p, t->body, "add_special", &bos) ||
        !field_bool(p, t->body, "add_special_tokens", &bos) ||
        !field_bool(p, t->body, "parse_special", &special) ||
        !field_bool(p, t->body, "with_pieces", &pieces))
        return false;
    int32_t flags = (bos ? CARAT_TOK_BOS : 0) | (special ? CARAT_TOK_SPECIAL : 0);
    int64_t n = carat_tokenize(x->m->model, text->s, text->n, flags, NULL, 0, &e);
    int32_t *ids = n >= 0 ? arena_array(&t->mem, (size_t)n + 1, sizeof *ids) : NULL;
    if (n < 0)
        return problem_from(p, &e);
    if (!ids)
        return problem_set(p, 503, "", "no memory for %lld tokens", (long long)n);
    carat_tokenize(x->m->model, text->s, text->n, flags, ids, n, &e);
    put_tokens(x, ids, n, pieces, strs);
    return true;
}

static bool detokenize(exchange *x, token_request *t, problem *p)
{
    const jtree *list;
    str text = {0}, shown = {0};
    int32_t *ids;
    int64_t n_ids;
    if (!parse_body(x, t, p) || !field_kind(p, t->body, "tokens", JTREE_ARRAY, &list))
        return false;
    if (!list)
        return problem_set(p, 400, "tokens", "'tokens' is missing");
    if (!field_ids(&t->mem, "tokens", list, x->m->info.n_vocab, &ids, &n_ids, p))
        return false;
    for (int64_t i = 0; i < n_ids && !p->status; i++) {
        const char *bytes = "";
        int32_t n = carat_token_bytes(x->m->model, ids[i], true, &bytes);
        if (n < 0)
            problem_set(p, 400, "tokens", "'tokens' holds %d, which the vocabulary lacks", ids[i]);
        else
            str_put(&text, bytes, (size_t)n);
    }
    if (!p->status) {
        put_shown(str_text(&text), text.n, &shown);
        json_open(&x->out, NULL, '{');
        json_text_n(&x->out, "content", str_text(&shown), shown.n);
        json_text_n(&x->out, "prompt", str_text(&shown), shown.n); /* vLLM's name of it */
        json_close(&x->out, "}");
        x->status = 200;
    }
    x->out.bad |= text.bad | shown.bad;
    str_free(&text);
    str_free(&shown);
    return !p->status;
}

static void with_tokens(exchange *x, bool (*work)(exchange *, token_request *, problem *))
{
    token_request t = {0};
    problem p = {0};
    if (!work(x, &t, &p))
        reply_problem(x, &p);
    arena_free(&t.mem);
}

/* vLLM's description of the tokenizer, in the words of tokenizer_config.json. */
void handle_tokenizer_info(exchange *x)
{
    static const struct {
        const char *name, *key;
    } ids[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
               {"eos_token", "tokenizer.ggml.eos_token_id"},
               {"pad_token", "tokenizer.ggml.padding_token_id"},
               {"unk_token", "tokenizer.ggml.unknown_token_id"}};
    str *o = &x->out;
    carat_meta v;
    if (!exchange_pick_query(x))
        return;
    const carat_model *m = x->m->model;
    json_open(o, NULL, '{');
    json_text(o, "tokenizer_class", "carat");
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const char *bytes = "";
        bool has = carat_model_find_meta(m, ids[i].key, &v) && v.kind == CARAT_META_INT &&
                   v.i >= 0 && v.i < x->m->info.n_vocab;
        int32_t n = has ? carat_token_bytes(m, (int32_t)v.i, true, &bytes) : -1;
        if (n > 0 && utf8_valid(bytes, (size_t)n))
            json_text_n(o, ids[i].name, bytes, (size_t)n);
        else
            json_nothing(o, ids[i].name);
    }
    json_int(o, "vocab_size", x->m->info.n_vocab);
    json_int(o, "model_max_length", x->m->n_ctx);
    put_template(m, o);
    json_close(o, "}");
    x->status = 200;
}

void handle_tokenize(exchange *x)
{
    with_tokens(x, tokenize);
}

void handle_detokenize(exchange *x)
{
    with_tokens(x, detokenize);
}
