/* routes.c - see routes.h. */
#include "apps/server/routes.h"

#include "apps/server/api_embed.h"
#include "apps/server/api_ollama_info.h"
#include "apps/server/api_rank.h"
#include "apps/server/generate.h"
#include "apps/server/info.h"
#include "apps/server/api_stored.h"
#include "apps/server/page.h"

#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static void post_chat(exchange *x)
{
    handle_generation(x, API_CHAT);
}

static void post_completions(exchange *x)
{
    handle_generation(x, API_COMPLETIONS);
}

static void post_responses(exchange *x)
{
    handle_generation(x, API_RESPONSES);
}

static void post_messages(exchange *x)
{
    handle_generation(x, API_MESSAGES);
}

static void post_llama(exchange *x)
{
    handle_generation(x, API_LLAMA);
}

static void post_infill(exchange *x)
{
    handle_generation(x, API_INFILL);
}

static void post_ollama_chat(exchange *x)
{
    handle_generation(x, API_OLLAMA_CHAT);
}

static void post_ollama_generate(exchange *x)
{
    handle_generation(x, API_OLLAMA_GENERATE);
}

static void count_chat(exchange *x)
{
    handle_count(x, API_CHAT);
}

static void count_responses(exchange *x)
{
    handle_count(x, API_RESPONSES);
}

static void count_messages(exchange *x)
{
    handle_count(x, API_MESSAGES);
}

#define OAI &chat_dialect
#define ANT &messages_dialect
#define OLL &ollama_chat_dialect
static const route routes[] = {
    {"POST", "/v1/chat/completions", post_chat, KEY_HOLDERS, true, ROUTE_CHAT, OAI},
    {"POST", "/v1/completions", post_completions, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI},
    {"POST", "/v1/responses", post_responses, KEY_HOLDERS, true, ROUTE_RESPONSES, OAI},
    {"POST", "/v1/messages", post_messages, KEY_HOLDERS, true, ROUTE_MESSAGES, ANT},
    {"POST", "/v1/messages/count_tokens", count_messages, KEY_HOLDERS, true, ROUTE_OTHER, ANT},
    {"POST", "/v1/chat/completions/input_tokens", count_chat, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v1/responses/input_tokens", count_responses, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v1/embeddings", handle_openai_embeddings, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v1/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v1/score", handle_score, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v2/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/score", handle_score, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    /* llama-server's own, and its names for others'. */
    {"POST", "/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/reranking", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/v1/reranking", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/completion", post_llama, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI},
    {"POST", "/completions", post_llama, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI},
    {"POST", "/infill", post_infill, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI},
    {"POST", "/embedding", handle_llama_embedding, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/embeddings", handle_llama_embedding, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/chat/completions", post_chat, KEY_HOLDERS, true, ROUTE_CHAT, OAI},
    {"POST", "/responses", post_responses, KEY_HOLDERS, true, ROUTE_RESPONSES, OAI},
    {"POST", "/chat/completions/input_tokens", count_chat, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/responses/input_tokens", count_responses, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/models", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/tokenize", handle_tokenize, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/detokenize", handle_detokenize, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/tokenizer_info", handle_tokenizer_info, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/apply-template", handle_template, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/v1/responses/", handle_response, KEY_HOLDERS, false, ROUTE_OTHER, OAI},
    {"DELETE", "/v1/responses/", handle_response_delete, KEY_HOLDERS, false, ROUTE_OTHER, OAI},
    {"GET", "/v1/models", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/v1/models/", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/models/load", handle_load, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"POST", "/models/unload", handle_unload, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/props", handle_props, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/slots", handle_slots, KEY_HOLDERS, true, ROUTE_OTHER, OAI},
    {"GET", "/metrics", handle_metrics, KEY_HOLDERS, false, ROUTE_OTHER, OAI},
    {"GET", "/openapi.json", handle_openapi, ANYONE, false, ROUTE_OTHER, OAI},
    {"GET", "/health", handle_health, ANYONE, false, ROUTE_OTHER, OAI},
    {"GET", "/v1/health", handle_health, ANYONE, false, ROUTE_OTHER, OAI},
    {"GET", "/health/ready", handle_health, ANYONE, false, ROUTE_OTHER, OAI},
    {"GET", "/health/live", handle_live, ANYONE, false, ROUTE_OTHER, OAI},
    {"GET", "/", handle_root, ANYONE, false, ROUTE_OTHER, OAI},
    /* ollama's. */
    {"POST", "/api/chat", post_ollama_chat, KEY_HOLDERS, true, ROUTE_CHAT, OLL},
    {"POST", "/api/generate", post_ollama_generate, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OLL},
    {"POST", "/api/embed", handle_ollama_embed, KEY_HOLDERS, true, ROUTE_OTHER, OLL},
    {"POST", "/api/embeddings", handle_ollama_embeddings, KEY_HOLDERS, true, ROUTE_OTHER, OLL},
    {"GET", "/api/tags", handle_ollama_tags, KEY_HOLDERS, true, ROUTE_OTHER, OLL},
    {"GET", "/api/ps", handle_ollama_ps, KEY_HOLDERS, true, ROUTE_OTHER, OLL},
    {"POST", "/api/show", handle_ollama_show, KEY_HOLDERS, true, ROUTE_OTHER, OLL},
    {"POST", "/api/pull", handle_ollama_pull, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"DELETE", "/api/delete", handle_ollama_delete, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"POST", "/api/create", handle_ollama_create, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"POST", "/api/copy", handle_ollama_copy, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"POST", "/api/push", handle_ollama_refused, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"POST", "/api/blobs/", handle_ollama_refused, KEY_HOLDERS, false, ROUTE_OTHER, OLL},
    {"GET", "/api/version", handle_ollama_version, ANYONE, false, ROUTE_OTHER, OLL},
};

/* Paths of other servers that carat does not have, and why. One that ends in '/' is a beginning. */
static const struct {
    const char *path, *why;
} refusals[] = {
    {"/slots/",
     "carat saves and restores conversations by itself: --kv-cache-dir keeps them on disk, "
     "and /slots shows what is at work"},
    {"/lora-adapters", "carat has no adapters: merge them into the model's file"},
    {"/v1/load_lora_adapter", "carat has no adapters: merge them into the model's file"},
    {"/v1/unload_lora_adapter", "carat has no adapters: merge them into the model's file"},
#define RERANK "carat runs no reranking models; /v1/embeddings has vectors of texts"
    {"/rerank", RERANK},
    {"/reranking", RERANK},
    {"/v1/rerank", RERANK},
    {"/v2/rerank", RERANK},
    {"/v1/reranking", RERANK},
#define SCORE                                                                                      \
    "carat runs no models that score or classify texts; /v1/completions with echo and "            \
    "logprobs scores their tokens"
    {"/score", SCORE},
    {"/v1/score", SCORE},
    {"/classify", SCORE},
    {"/pooling", SCORE},
    {"/v1/moderations", SCORE},
    {"/v1/chat/completions/control",
     "a running answer cannot be steered: end the connection to stop "
     "it, or limit its thought in the request"},
    {"/v1/audio/", "carat reads no sound and writes none"},
    {"/v1/images/", "carat writes text only"},
    {"/v1/videos", "carat writes text only"},
    {"/v1/realtime", "carat has no sessions over WebSockets: /v1/chat/completions streams"},
#define STORE                                                                                      \
    "carat stores no files, batches, threads and conversations; /v1/responses continues an "       \
    "answer by previous_response_id"
    {"/v1/files", STORE},
    {"/v1/files/", STORE},
    {"/v1/uploads", STORE},
    {"/v1/batches", STORE},
    {"/v1/batches/", STORE},
    {"/v1/messages/batches", STORE},
    {"/v1/messages/batches/", STORE},
    {"/v1/vector_stores", STORE},
    {"/v1/vector_stores/", STORE},
    {"/v1/assistants", STORE},
    {"/v1/assistants/", STORE},
    {"/v1/threads", STORE},
    {"/v1/threads/", STORE},
    {"/v1/conversations", STORE},
    {"/v1/conversations/", STORE},
    {"/v1/fine_tuning/", "carat trains no models"},
    {"/v1/responses/compact",
     "carat shortens prompts by 'compress' in a request, and conversations by "
     "none of its own"},
};

static bool path_matches(const route *r, const char *path)
{
    size_t n = strlen(r->path);
    bool prefix = n > 1 && r->path[n - 1] == '/';
    return prefix ? !strncmp(r->path, path, n) && path[n] : !strcmp(r->path, path);
}

const route *find_route(const char *method, const char *path)
{
    if (!strcmp(method, "HEAD"))
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (path_matches(&routes[i], path) && !strcmp(routes[i].method, method))
            return &routes[i];
    return NULL;
}

bool route_methods(const char *path, char out[METHODS_BYTES])
{
    static const char *const methods[] = {"GET", "POST", "DELETE"};
    bool all = !strcmp(path, "*");
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (all || find_route(methods[i], path))
            at += (size_t)snprintf(out + at, METHODS_BYTES - at, "%s, ",
                                   i ? methods[i] : "GET, HEAD");
    if (at)
        snprintf(out + at, METHODS_BYTES - at, "OPTIONS");
    return at > 0;
}

const char *route_near(const char *path)
{
    const char *paths[sizeof routes / sizeof *routes];
    size_t n = sizeof routes / sizeof *routes;
    for (size_t i = 0; i < n; i++)
        paths[i] = routes[i].path;
    const char *near = nearest_word(path, paths, n);
    if (near)
        return near;
    /* A client's base address often has a part too much: /v1/v1/messages, /v1/api/chat. */
    for (const char *at = strchr(path + (*path != 0), '/'); at; at = strchr(at + 1, '/'))
        for (size_t i = 0; i < n && at[1]; i++)
            if (path_matches(&routes[i], at))
                return routes[i].path;
    return NULL;
}

const char *route_refusal(const char *path)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        size_t n = strlen(refusals[i].path);
        bool prefix = refusals[i].path[n - 1] == '/';
        if (prefix ? !strncmp(path, refusals[i].path, n) : !strcmp(path, refusals[i].path))
            return refusals[i].why;
    }
    return NULL;
}

const dialect *route_errors(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (path_matches(&routes[i], path))
            return routes[i].errors;
    return !strncmp(path, "/v1/messages", 12) ? ANT : !strncmp(path, "/api/", 5) ? OLL : OAI;
}
