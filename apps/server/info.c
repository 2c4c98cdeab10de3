/* info.c - health, models, properties, slots, metrics, tokens, embedded files. */
#include "apps/server/info.h"

#include "apps/embed.h"
#include "apps/server/jsonw.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

/* Files that the Makefile embeds in the program. */
EMBED("carat_openapi", CARAT_OPENAPI);
extern const char carat_openapi_begin[], carat_openapi_end[];
#ifdef CARAT_PAGE
EMBED("carat_page", CARAT_PAGE);
extern const char carat_page_begin[], carat_page_end[];
#endif

/* ---- Health ---- */

void handle_live(exchange *x)
{
    json_open(&x->out, NULL, '{');
    json_text(&x->out, "status", "ok");
    json_close(&x->out, '}');
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

void handle_openapi(exchange *x)
{
    x->file = carat_openapi_begin;
    x->n_file = (size_t)(carat_openapi_end - carat_openapi_begin);
    x->status = 200;
}

void handle_page(exchange *x)
{
#ifdef CARAT_PAGE
    x->file = carat_page_begin;
    x->n_file = (size_t)(carat_page_end - carat_page_begin);
    x->type = "text/html; charset=utf-8";
#else
    handle_live(x);
#endif
    x->status = 200;
}

void handle_embeddings(exchange *x)
{
    problem p = {.code = "unsupported_endpoint"};
    problem_set(&p, 400, "", "carat serves models that write text; it has no embeddings");
    reply_problem(x, &p);
}

/* ---- The model ---- */

static void put_model(const exchange *x, const char *id, str *o)
{
    const carat_model_info *i = &x->s->info;
    json_open(o, NULL, '{');
    json_text(o, "id", id);
    json_text(o, "object", "model");
    json_int(o, "created", 0);
    json_text(o, "owned_by", "carat");
    json_int(o, "context_length", x->s->n_ctx);
    json_open(o, "meta", '{');
    json_int(o, "n_vocab", i->n_vocab);
    json_int(o, "n_ctx", x->s->n_ctx);
    json_int(o, "n_ctx_train", i->n_ctx_train);
    json_int(o, "n_embd", i->n_embd);
    json_int(o, "n_params", (int64_t)i->n_params);
    json_int(o, "size", (int64_t)i->weight_bytes);
    json_text(o, "ftype", i->file_type);
    json_close(o, '}');
    json_close(o, '}');
}

/* The model as Codex expects it. */
static void put_codex_model(const exchange *x, str *o)
{
    static const char *const efforts[] = {"low", "medium", "high"};
    json_open(o, NULL, '{');
    json_text(o, "slug", x->s->names.name);
    json_text(o, "display_name", x->s->names.name);
    json_text(o, "description", x->s->info.name);
    json_text(o, "default_reasoning_level", "medium");
    json_open(o, "supported_reasoning_levels", '[');
    for (int i = 0; i < 3; i++) {
        json_open(o, NULL, '{');
        json_text(o, "effort", efforts[i]);
        json_text(o, "description", efforts[i]);
        json_close(o, '}');
    }
    json_close(o, ']');
    json_text(o, "shell_type", "shell_command");
    json_text(o, "visibility", "list");
    json_bool(o, "supported_in_api", true);
    json_int(o, "priority", 0);
    json_int(o, "context_window", x->s->n_ctx);
    json_bool(o, "supports_reasoning_summaries", false);
    json_close(o, '}');
}

void handle_models(exchange *x)
{
    static const char one[] = "/v1/models/";
    str *o = &x->out;
    x->status = 200;
    if (!strncmp(x->path, one, sizeof one - 1)) { /* any name means this model */
        const char *name = x->path + sizeof one - 1;
        if (utf8_valid(name, strlen(name))) {
            put_model(x, name, o);
            return;
        }
        problem p = {0};
        problem_set(&p, 404, "model", "there is no such model");
        reply_problem(x, &p);
        return;
    }
    json_open(o, NULL, '{');
    json_text(o, "object", "list");
    json_open(o, "data", '[');
    put_model(x, x->s->names.name, o);
    json_close(o, ']');
    json_bool(o, "has_more", false);
    json_text(o, "first_id", x->s->names.name);
    json_text(o, "last_id", x->s->names.name);
    json_open(o, "models", '[');
    put_codex_model(x, o);
    json_close(o, ']');
    json_close(o, '}');
}

static void put_defaults(const server *s, str *o)
{
    const carat_sampling *p = &s->limits.sampling;
    json_open(o, "default_generation_settings", '{');
    json_int(o, "n_ctx", s->n_ctx);
    json_number(o, "temperature", p->temperature);
    json_int(o, "top_k", p->top_k);
    json_number(o, "top_p", p->top_p);
    json_number(o, "min_p", p->min_p);
    json_number(o, "repeat_penalty", p->repeat_penalty);
    json_bool(o, "thinking", s->o->think);
    json_close(o, '}');
}

void handle_props(exchange *x)
{
    const server *s = x->s;
    str *o = &x->out;
    json_open(o, NULL, '{');
    put_defaults(s, o);
    json_int(o, "total_slots", s->n_slots);
    json_text(o, "model_alias", s->names.name);
    json_text(o, "model_name", s->info.name);
    json_text(o, "model_ftype", s->info.file_type);
    json_text(o, "architecture", s->info.architecture);
    json_text(o, "device", s->info.device);
    json_text(o, "device_why", s->info.device_why);
    json_text(o, "build_info", carat_version());
    json_open(o, "modalities", '{');
    json_bool(o, "vision", false);
    json_bool(o, "audio", false);
    json_close(o, '}');
    json_open(o, "capabilities", '{');
    json_bool(o, "chat", s->info.has_chat);
    json_bool(o, "tools", s->names.call_open >= 0);
    json_bool(o, "reasoning", s->thought_open >= 0);
    json_close(o, '}');
    json_open(o, "memory", '{');
    json_int(o, "weight_bytes", (int64_t)s->plan.weight_bytes);
    json_int(o, "kv_bytes_per_slot", (int64_t)(s->plan.kv_swa_bytes + s->plan.kv_global_bytes + s->plan.recurrent_bytes));
    json_int(o, "scratch_bytes", (int64_t)s->plan.scratch_bytes);
    json_close(o, '}');
    json_close(o, '}');
    x->status = 200;
}

/* ---- The batch ---- */

enum { SLOTS_MAX = 64 };

static bool look_into_batch(const exchange *x, carat_batch_info *info, carat_slot_info *slots)
{
    server *s = x->s;
    pthread_rwlock_rdlock(&s->batch_lock);
    bool there = s->batch != NULL;
    if (there)
        carat_batch_get_info(s->batch, info, slots, SLOTS_MAX);
    pthread_rwlock_unlock(&s->batch_lock);
    return there;
}

void handle_slots(exchange *x)
{
    carat_batch_info b = {0};
    carat_slot_info slots[SLOTS_MAX] = {0};
    str *o = &x->out;
    look_into_batch(x, &b, slots);
    if (x->query_has(x, "fail_on_no_slot", "1") && b.n_busy >= b.n_slots) {
        problem p = {.retry_s = 1};
        problem_set(&p, 503, "", "all %d slots are at work", b.n_slots);
        reply_problem(x, &p);
        return;
    }
    json_open(o, NULL, '[');
    for (int32_t i = 0; i < b.n_slots && i < SLOTS_MAX; i++) {
        json_open(o, NULL, '{');
        json_int(o, "id", i);
        json_int(o, "n_ctx", x->s->n_ctx);
        json_bool(o, "speculative", x->s->info.drafter != NULL);
        json_bool(o, "is_processing", slots[i].id > 0);
        json_int(o, "id_task", slots[i].id);
        json_int(o, "n_past", slots[i].n_past);
        json_int(o, "n_prompt_tokens", slots[i].n_prompt);
        json_int(o, "n_prompt_tokens_processed", slots[i].n_done);
        json_int(o, "n_decoded", slots[i].n_generated);
        json_close(o, '}');
    }
    json_close(o, ']');
    x->status = 200;
}

void handle_metrics(exchange *x)
{
    carat_slot_info slots[SLOTS_MAX] = {0};
    server *s = x->s;
    metrics_now now = {.n_active = atomic_load(&s->n_active) - 1, /* not counting this request */
                       .ready = atomic_load(&s->state) == SERVER_READY};
    if (look_into_batch(x, &now.batch, slots)) {
        now.weight_bytes = s->plan.weight_bytes;
        now.n_devices = carat_memory(s->model, now.device);
        for (int32_t i = 0; i < now.batch.n_slots && i < SLOTS_MAX; i++)
            now.kv_tokens += (uint64_t)slots[i].n_past;
        now.kv_capacity = (uint64_t)now.batch.n_slots * (uint64_t)s->n_ctx;
    }
    metrics_put(&s->m, &now, &x->out);
    x->type = "text/plain; version=0.0.4; charset=utf-8";
    x->status = 200;
}

/* ---- Tokens ---- */

typedef struct token_request {
    arena mem;
    const jtree *body;
} token_request;

static bool parse_body(exchange *x, token_request *t, problem *p)
{
    err e = {0};
    t->mem.max_bytes = arena_limit_for(x->n_body);
    if (jtree_parse(x->body, x->n_body, "the body", REQUEST_MAX_DEPTH, &t->mem, &t->body, &e))
        return problem_from(p, &e);
    return t->body->kind == JTREE_OBJECT ||
           problem_set(p, 400, "", "the body is %s; expected a JSON object",
                       jtree_kind_name(t->body));
}

static void put_piece(const exchange *x, int32_t id, str *o)
{
    const char *bytes = "";
    int32_t n = carat_token_bytes(x->s->model, id, true, &bytes);
    n = n < 0 ? 0 : n;
    json_open(o, NULL, '{');
    json_int(o, "id", id);
    if (utf8_valid(bytes, (size_t)n)) {
        json_text_n(o, "piece", bytes, (size_t)n);
    } else {
        json_open(o, "piece", '[');
        for (int32_t i = 0; i < n; i++)
            json_int(o, NULL, (unsigned char)bytes[i]);
        json_close(o, ']');
    }
    json_close(o, '}');
}

static bool tokenize(exchange *x, token_request *t, problem *p)
{
    bool bos = false, special = true, pieces = false;
    const jtree *text;
    err e = {0};
    if (!parse_body(x, t, p) || !field_kind(p, t->body, "content", JTREE_STRING, &text) ||
        !field_bool(p, t->body, "add_special", &bos) ||
        !field_bool(p, t->body, "parse_special", &special) ||
        !field_bool(p, t->body, "with_pieces", &pieces))
        return false;
    if (!text)
        return problem_set(p, 400, "content", "'content' is missing");
    int32_t flags = (bos ? CARAT_TOK_BOS : 0) | (special ? CARAT_TOK_SPECIAL : 0);
    int64_t n = carat_tokenize(x->s->model, text->s, text->n, flags, NULL, 0, &e);
    int32_t *ids = n >= 0 ? arena_array(&t->mem, (size_t)n + 1, sizeof *ids) : NULL;
    if (n < 0)
        return problem_from(p, &e);
    if (!ids)
        return problem_set(p, 503, "", "no memory for %lld tokens", (long long)n);
    carat_tokenize(x->s->model, text->s, text->n, flags, ids, n, &e);
    json_open(&x->out, NULL, '{');
    json_open(&x->out, "tokens", '[');
    for (int64_t i = 0; i < n; i++) {
        if (pieces)
            put_piece(x, ids[i], &x->out);
        else
            json_int(&x->out, NULL, ids[i]);
    }
    json_close(&x->out, ']');
    json_close(&x->out, '}');
    return true;
}

static bool detokenize(exchange *x, token_request *t, problem *p)
{
    const jtree *list;
    str text = {0}, shown = {0};
    int64_t id;
    if (!parse_body(x, t, p) || !field_kind(p, t->body, "tokens", JTREE_ARRAY, &list))
        return false;
    if (!list)
        return problem_set(p, 400, "tokens", "'tokens' is missing");
    for (const jtree *i = list->first; i && !p->status; i = i->next) {
        const char *bytes = "";
        int32_t n = -1;
        if (tree_int(i, 0, x->s->info.n_vocab - 1, &id))
            n = carat_token_bytes(x->s->model, (int32_t)id, true, &bytes);
        if (n < 0)
            problem_set(p, 400, "tokens", "'tokens' holds what is no token id; ids are 0 to %d",
                        x->s->info.n_vocab - 1);
        else
            str_put(&text, bytes, (size_t)n);
    }
    for (size_t i = 0; i < text.n && !p->status;) {
        uint32_t cp;
        bool ok;
        int n = utf8_decode(text.at + i, text.n - i, &cp, &ok);
        str_put(&shown, ok ? text.at + i : "\xEF\xBF\xBD", ok ? (size_t)n : 3);
        i += (size_t)n;
    }
    if (!p->status) {
        json_open(&x->out, NULL, '{');
        json_text_n(&x->out, "content", str_text(&shown), shown.n);
        json_close(&x->out, '}');
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
    if (work(x, &t, &p))
        x->status = 200;
    else
        reply_problem(x, &p);
    arena_free(&t.mem);
}

void handle_tokenize(exchange *x)
{
    with_tokens(x, tokenize);
}

void handle_detokenize(exchange *x)
{
    with_tokens(x, detokenize);
}
