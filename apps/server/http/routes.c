/* routes.c - see routes.h. */
#include "apps/server/http/routes.h"

#include "apps/server/answers/api_embed.h"
#include "apps/server/answers/api_mcp.h"
#include "apps/server/answers/api_recording.h"
#include "apps/server/models/api_ollama_info.h"
#include "apps/server/answers/api_rank.h"
#include "apps/server/answers/api_transcribe.h"
#include "apps/server/answers/generate.h"
#include "apps/server/models/hub_api.h"
#include "apps/server/models/info.h"
#include "apps/server/models/router.h"
#include "apps/server/http/openapi.h"
#include "apps/server/answers/api_stored.h"

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
/* clang-format off: it would give each member a line */
static const route routes[] = {
    {"POST", "/v1/chat/completions", post_chat, KEY_HOLDERS, true, ROUTE_CHAT, OAI,
     .about = {.summary = "An answer to a conversation",
               .request = "ChatRequest",
               .reply = "ChatAnswer",
               .more = EVENTS}},
    {"POST", "/v1/completions", post_completions, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI,
     .about = {.summary = "Texts continued",
               .request = "CompletionRequest",
               .reply = "CompletionAnswer",
               .more = EVENTS}},
    {"POST", "/v1/responses", post_responses, KEY_HOLDERS, true, ROUTE_RESPONSES, OAI,
     .about = {.summary = "An answer, as items",
               .request = "ResponsesRequest",
               .reply = "ResponsesAnswer",
               .more = EVENTS}},
    {"POST", "/v1/messages", post_messages, KEY_HOLDERS, true, ROUTE_MESSAGES, ANT,
     .about = {.summary = "An answer, in Anthropic's dialect",
               .request = "MessagesRequest",
               .reply = "MessagesAnswer",
               .more = EVENTS}},
    {"POST", "/v1/messages/count_tokens", count_messages, KEY_HOLDERS, true, ROUTE_OTHER, ANT,
     .about = {.summary = "How many tokens a conversation is",
               .request = "MessagesRequest",
               .reply = "TokenCount"}},
    {"POST", "/v1/chat/completions/input_tokens", count_chat, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "How many tokens a conversation is",
               .request = "ChatRequest",
               .reply = "TokenCount"}},
    {"POST", "/v1/responses/input_tokens", count_responses, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "How many tokens a conversation is",
               .request = "ResponsesRequest",
               .reply = "TokenCount"}},
    {"POST", "/v1/audio/transcriptions", handle_transcription, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "The text of speech",
               .request = "TranscriptionRequest",
               .reply = "Transcription",
               .more = FORM | PLAIN}},
    {"POST", "/v1/embeddings", handle_openai_embeddings, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Texts as vectors",
               .request = "EmbeddingRequest",
               .reply = "EmbeddingAnswer"}},
    {"POST", "/v1/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Documents in the order in which they answer a query, by a reranker",
               .request = "RerankRequest",
               .reply = "RerankAnswer"}},
    {"POST", "/v1/score", handle_score, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "How well texts answer others, by a reranker",
               .request = "ScoreRequest",
               .reply = "ScoreAnswer"}},
    {"POST", "/v2/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    {"POST", "/score", handle_score, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    /* llama-server's own, and its names for others'. */
    {"POST", "/rerank", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    {"POST", "/reranking", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    {"POST", "/v1/reranking", handle_rerank, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    {"POST", "/completion", post_llama, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI,
     .about = {.summary = "llama-server's own: texts or tokens to go on from",
               .request = "LlamaRequest",
               .reply = "LlamaAnswer",
               .more = EVENTS}},
    {"POST", "/completions", post_llama, KEY_HOLDERS, true, ROUTE_COMPLETIONS, .errors = OAI},
    {"POST", "/infill", post_infill, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OAI,
     .about = {.summary = "What stands between two texts, by models that were trained for it",
               .request = "InfillRequest",
               .reply = "LlamaAnswer",
               .more = EVENTS | NOT_DONE}},
    {"POST", "/embedding", handle_llama_embedding, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "llama-server's own: a bare list",
               .request = "LlamaEmbeddingRequest",
               .reply = "LlamaEmbeddingAnswer"}},
    {"POST", "/embeddings", handle_llama_embedding, KEY_HOLDERS, true, ROUTE_OTHER, .errors = OAI},
    {"POST", "/chat/completions", post_chat, KEY_HOLDERS, true, ROUTE_CHAT, .errors = OAI},
    {"POST", "/responses", post_responses, KEY_HOLDERS, true, ROUTE_RESPONSES, .errors = OAI},
    {"POST", "/chat/completions/input_tokens", count_chat, KEY_HOLDERS, true, ROUTE_OTHER,
     .errors = OAI},
    {"POST", "/responses/input_tokens", count_responses, KEY_HOLDERS, true, ROUTE_OTHER,
     .errors = OAI},
    {"GET", "/models", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "The models, and those that are being pulled", .reply = "Models"}},
    {"POST", "/models", handle_model_pull, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Begin to pull a model of a hub",
               .request = "ModelName",
               .reply = "Loading",
               .more = FAILS}},
    {"DELETE", "/models", handle_model_remove, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Remove a model from the store, or end its pull",
               .reply = "Loading",
               .more = NOT_FOUND,
               .query = "model"}},
    {"GET", "/models/sse", handle_model_events, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "What happens to the models", .more = STREAM}},
    {"POST", "/tokenize", handle_tokenize, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Text to tokens", .request = "TokenizeRequest", .reply = "Tokens"}},
    {"POST", "/detokenize", handle_detokenize, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Tokens to text", .request = "DetokenizeRequest", .reply = "TextAnswer"}},
    {"GET", "/tokenizer_info", handle_tokenizer_info, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "The tokenizer's special tokens and the chat template, as "
                          "vLLM tells them"}},
    {"POST", "/apply-template", handle_template, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "A conversation as the text of its prompt",
               .request = "ChatRequest",
               .reply = "TemplateAnswer"}},
    {"GET", "/v1/responses/{response_id}/input_items", handle_response, KEY_HOLDERS, false,
     ROUTE_OTHER, OAI,
     .about = {.summary = "The items that a stored response answers",
               .reply = "Items",
               .more = NOT_FOUND,
               .query = "limit order after"}},
    {"GET", "/v1/responses/{response_id}", handle_response, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "A stored response, or its stream",
               .reply = "StoredResponse",
               .more = EVENTS | NOT_FOUND,
               .query = "stream starting_after"}},
    {"POST", "/v1/responses/{response_id}/cancel", handle_response_cancel, KEY_HOLDERS, false,
     ROUTE_OTHER, OAI,
     .about = {.summary = "End a response of background",
               .reply = "StoredResponse",
               .more = NOT_FOUND}},
    {"DELETE", "/v1/responses/{response_id}", handle_response_delete, KEY_HOLDERS, false,
     ROUTE_OTHER, OAI,
     .about = {.summary = "Forget a stored response", .reply = "Deleted", .more = NOT_FOUND}},
    {"GET", "/v1/stream", handle_stream, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "The rest of a stream whose request had X-Conversation-Id",
               .more = EVENTS | NOT_FOUND,
               .query = "conv_id from"}},
    {"DELETE", "/v1/stream", handle_stream_delete, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "End such a stream, and its answer", .more = EMPTY, .query = "conv_id"}},
    {"POST", "/v1/streams/lookup", handle_streams_lookup, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Which of these streams there are",
               .request = "StreamNames",
               .reply = "StreamList"}},
    {"GET", "/v1/models", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "The models", .reply = "Models"}},
    {"GET", "/v1/models/{model}", handle_models, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "One model", .reply = "Model"}},
    {"POST", "/models/load", handle_load, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Begin to load a model",
               .request = "ModelName",
               .reply = "Loading",
               .more = NOT_FOUND | FAILS}},
    {"POST", "/models/unload", handle_unload, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Unload a model once its requests are answered, or end its pull",
               .request = "ModelName",
               .reply = "Loading",
               .more = NOT_FOUND | FAILS}},
    {"GET", "/hub/search", handle_hub_search, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Models of the hub whose name has the words",
               .reply = "HubModels",
               .more = FAILS,
               .query = "q"}},
    {"GET", "/hub/fit", handle_hub_fit, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Whether a model of the hub or the store would run here, as carat fit "
                          "says it",
               .reply = "Fit",
               .more = FAILS,
               .query = "model"}},
    {"GET", "/mcp/tools", handle_mcp_tools, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "The tools of MCP servers (--mcp)",
               .reply = "McpTools",
               .more = NOT_FOUND | FAILS,
               .query = "model"}},
    {"POST", "/mcp/call", handle_mcp_call, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Call one of them, after the user has allowed it",
               .request = "McpCall",
               .reply = "McpResult",
               .more = NOT_FOUND | FAILS}},
    {"GET", "/props", handle_props, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Settings of the server"}},
    {"GET", "/slots", handle_slots, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "What is at work", .reply = "Slots", .query = "fail_on_no_slot"}},
    {"POST", "/slots/{id}", handle_slot, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Save, restore or erase the tokens of an idle slot",
               .request = "SlotFile",
               .reply = "SlotResult",
               .more = NOT_DONE | FAILS,
               .query = "action"}},
    {"GET", "/lora-adapters", handle_loras, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "The model's adapters, and their scales in answers that name none",
               .reply = "LoraAdapters"}},
    {"POST", "/lora-adapters", handle_loras_set, KEY_HOLDERS, true, ROUTE_OTHER, OAI,
     .about = {.summary = "Set those scales; adapters that are not named get 0",
               .request = "Loras"}},
    {"GET", "/metrics", handle_metrics, KEY_HOLDERS, false, ROUTE_OTHER, OAI,
     .about = {.summary = "Numbers for Prometheus", .more = PLAIN}},
    {"GET", "/openapi.json", handle_openapi, ANYONE, false, ROUTE_OTHER, OAI,
     .about = {.summary = "This"}},
    {"GET", "/health", handle_health, ANYONE, false, ROUTE_OTHER, OAI,
     .about = {.summary = "200 when requests are taken", .reply = "Health"}},
    {"GET", "/v1/health", handle_health, ANYONE, false, ROUTE_OTHER, .errors = OAI},
    {"GET", "/health/ready", handle_health, ANYONE, false, ROUTE_OTHER, .errors = OAI},
    {"GET", "/health/live", handle_live, ANYONE, false, ROUTE_OTHER, OAI,
     .about = {.summary = "200 when the process is alive", .reply = "Health"}},
    {"GET", "/", handle_root, ANYONE, false, ROUTE_OTHER, .errors = OAI},
    /* ollama's. */
    {"POST", "/api/chat", post_ollama_chat, KEY_HOLDERS, true, ROUTE_CHAT, OLL,
     .about = {.summary = "ollama's: the next message of a conversation",
               .request = "OllamaChatRequest",
               .reply = "OllamaAnswer",
               .more = LINES}},
    {"POST", "/api/generate", post_ollama_generate, KEY_HOLDERS, true, ROUTE_COMPLETIONS, OLL,
     .about = {.summary = "ollama's: an answer to one prompt",
               .request = "OllamaGenerateRequest",
               .reply = "OllamaAnswer",
               .more = LINES | NOT_DONE}},
    {"POST", "/api/embed", handle_ollama_embed, KEY_HOLDERS, true, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: embeddings of length 1", .request = "OllamaEmbedRequest"}},
    {"POST", "/api/embeddings", handle_ollama_embeddings, KEY_HOLDERS, true, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's former one: the embedding of `prompt`, not normed",
               .request = "OllamaEmbeddingsRequest"}},
    {"GET", "/api/tags", handle_ollama_tags, KEY_HOLDERS, true, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: the models", .reply = "OllamaModels"}},
    {"GET", "/api/ps", handle_ollama_ps, KEY_HOLDERS, true, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: the loaded models", .reply = "OllamaModels"}},
    {"POST", "/api/show", handle_ollama_show, KEY_HOLDERS, true, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: what a model is",
               .request = "OllamaNamed",
               .more = NOT_FOUND}},
    {"POST", "/api/pull", handle_ollama_pull, KEY_HOLDERS, false, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: fetches a model of the Hugging Face hub",
               .request = "OllamaPullRequest",
               .reply = "Status",
               .more = LINES | FAILS}},
    {"DELETE", "/api/delete", handle_ollama_delete, KEY_HOLDERS, false, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: removes a model of the store",
               .request = "OllamaNamed",
               .more = EMPTY | NOT_FOUND}},
    {"POST", "/api/create", handle_ollama_create, KEY_HOLDERS, false, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: a model made of another, with a system message, "
                          "settings and messages",
               .request = "OllamaCreateRequest",
               .reply = "Status",
               .more = LINES | NOT_FOUND}},
    {"POST", "/api/copy", handle_ollama_copy, KEY_HOLDERS, false, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: a second name for a model",
               .request = "OllamaCopyRequest",
               .more = EMPTY | NOT_FOUND}},
    {"POST", "/api/push", handle_ollama_refused, KEY_HOLDERS, false, ROUTE_OTHER, OLL,
     .about = {.summary = "ollama's: refused", .more = NOT_DONE}},
    {"POST", "/api/blobs/{digest}", handle_ollama_refused, KEY_HOLDERS, false, ROUTE_OTHER,
     .errors = OLL},
    {"GET", "/api/version", handle_ollama_version, ANYONE, false, ROUTE_OTHER, OLL,
     .about = {.summary = "The version of ollama whose API this is", .reply = "Version"}},
};
/* clang-format on */

/* Paths of other servers that carat does not have, and why. One that ends in '/' is a beginning. */
static const struct {
    const char *path, *why;
} refusals[] = {
    {"/v1/load_lora_adapter",
     "adapters are loaded with their model: --lora FILE when the server starts"},
    {"/v1/unload_lora_adapter",
     "adapters stay with their model: POST /lora-adapters with scale 0 leaves one out"},
#define CLASSES                                                                                    \
    "carat runs no models that classify texts; /v1/score has scores of a reranker, and "           \
    "/v1/completions with echo and logprobs scores of tokens"
    {"/classify", CLASSES},
    {"/pooling", CLASSES},
    {"/v1/moderations", CLASSES},
    {"/v1/chat/completions/control",
     "a running answer cannot be steered: end the connection to stop "
     "it, or limit its thought in the request"},
    {"/v1/audio/", "carat hears sound and makes none: /v1/audio/transcriptions writes it down"},
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

bool route_at(size_t i, route *out)
{
    if (i >= sizeof routes / sizeof *routes)
        return false;
    *out = routes[i];
    for (const route *r = routes; r < routes + sizeof routes / sizeof *routes; r++)
        if (!out->about.summary && r->about.summary && r->handle == out->handle &&
            !strcmp(r->method, out->method)) {
            out->about = r->about;
            out->same_as = r->path;
        }
    return true;
}

static bool path_matches(const route *r, const char *path)
{
    const char *p = r->path;
    for (; *p; p++) {
        if (*p != '{') {
            if (*p != *path++)
                return false;
            continue;
        }
        p = strchr(p, '}');
        size_t n = p[1] ? strcspn(path, "/") : strlen(path);
        if (!n)
            return false;
        path += n;
    }
    return !*path;
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
