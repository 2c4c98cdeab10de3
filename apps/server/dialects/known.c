/* known.c - the table of all known fields of requests, the rules for the others, and for members
 * that no parser has read.
 *
 * A field that would change the answer works, or the request is refused with a 400 that names the
 * field. No such field is ignored.
 *
 *     READ       a parser reads it: api_*.c, fields.c, sampling.c, forms.c, tools.c
 *     HARMLESS   accepted without effect: about billing, storage, caching or scheduling
 *     ONLY       accepted with values that change nothing, refused with any other
 *
 * /openapi.json tells the kind of a field that is read; openapi_test.c compares it with the parser.
 *
 * A field that is not in the table is refused, as by OpenAI's and Anthropic's servers, unless its
 * value is empty: null, "", [] or {}. False and 0 are refused, too: "think": false asks for
 * something. The option --lenient accepts unknown fields, for clients that are newer than this
 * table.
 */
#include "apps/server/dialects/request.h"

#include "base/nearest.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHAT = 1 << API_CHAT,
    TEXT = 1 << API_COMPLETIONS,
    RESP = 1 << API_RESPONSES,
    MESS = 1 << API_MESSAGES,
    LLAM = 1 << API_LLAMA,
    FILL = 1 << API_INFILL,
    NATV = LLAM | FILL,
    OCHT = 1 << API_OLLAMA_CHAT,
    OGEN = 1 << API_OLLAMA_GENERATE,
    OLLA = OCHT | OGEN,
    OPTS = 1 << API_OLLAMA_OPTIONS,
    TALK = CHAT | RESP | MESS,
    OPEN = CHAT | TEXT | RESP,
    ALL = OPEN | MESS | NATV | OPTS
};

typedef enum known_kind { READ, HARMLESS, ONLY } known_kind;

typedef struct known_field {
    const char *name;
    unsigned apis;
    known_kind kind;
    /* Of ONLY: the values, separated by |; [word]: a list of it; "": empty values; "null": none but
     * that. Of READ: the kind, and after ": " a description. Each kind takes null:
     *     bool, text, int MIN, int MIN MAX, =VALUES (as of ONLY)
     *     sampling: a row of carat/sampling_settings.h
     *     Name: of schemas.json; it says itself whether null is taken */
    const char *values;
} known_field;

#define SAMPLING_FIELD(kind, field, name, also, ...)                                               \
    {name, ALL, READ, "sampling"}, {also, ALL, READ, "sampling"}, /* NULL: no field */

static const known_field fields[] = {
    /* The prompt. */
    {"messages", CHAT, READ, "Messages"},
    {"messages", MESS, READ, "AnthropicMessages"},
    {"prompt", TEXT, READ, "Prompt"},
    {"input", RESP, READ, "Input"},
    {"instructions", RESP, READ, "text"},
    {"system", MESS, READ, "System"},
    {"model", ALL, READ,
     "text: One of GET /v1/models; empty: the first. A server with one model takes any name but "
     "those of other models on this machine."},
    {"keep_alive", ALL, READ, "KeepAlive"},
    {"image_tokens", TALK | LLAM | OLLA, READ, "ImageTokens"},
    {"suffix", TEXT, READ, "Suffix"},
    {"echo", TEXT, READ, "bool: With logprobs: also of the tokens of the prompt."},
    {"previous_response_id", RESP, READ,
     "text: A stored response that this one continues. Its instructions are not carried over."},
    {"conversation", RESP, READ, "=null"},
    {"background", RESP, READ,
     "bool: The answer goes on without its client. GET /v1/responses/{id} says how far it is, with "
     "?stream=true it is streamed, and POST /v1/responses/{id}/cancel ends it. Without stream "
     "the response comes at once, queued."},
    /* The shape of the response. */
    {"stream", ALL, READ, "bool"},
    {"stream_options", OPEN, READ, "StreamOptions"},
    {"usage", CHAT | TEXT, READ, "UsageOptions"},
    {"return_progress", ALL, READ, "bool: Tells in the stream how far a long prompt is."},
    {"n", CHAT | TEXT, READ, "int 1 64"},
    {"n", RESP | MESS, ONLY, "1"},
    {"best_of", TEXT, READ, "int 0: 0, or the value of n."},
    {"best_of", CHAT, ONLY, "0|1"},
    {"logprobs", CHAT, READ, "bool"},
    {"logprobs", TEXT, READ, "int 0 20"},
    {"logprobs", RESP | MESS, ONLY, "false|0"},
    {"top_logprobs", CHAT, READ, "int 0 20: Needs logprobs."},
    {"top_logprobs", RESP, READ, "int 0 20"},
    {"top_logprobs", TEXT | MESS | NATV, ONLY, "0"},
    {"include", RESP, READ, "Include"},
    {"include_reasoning", ALL, ONLY, "true"},
    {"reasoning_format", ALL, ONLY, "auto|deepseek"},
    {"reasoning_in_content", ALL, ONLY, "false"},
    {"parse_tool_calls", ALL, ONLY, "true"},
    {"modalities", CHAT, ONLY, "[text]"},
    /* The length of the answer. */
    {"max_tokens", CHAT | RESP | NATV | OPTS, READ, "TokenLimit"},
    {"max_tokens", TEXT, READ, "int -1"},
    {"max_tokens", MESS, READ, "int 1"},
    {"max_completion_tokens", CHAT, READ, "TokenLimit"},
    {"max_output_tokens", RESP, READ, "int 1"},
    {"n_predict", TALK | OPTS, READ, "TokenLimit"},
    {"n_predict", TEXT, READ, "int -1"},
    {"n_predict", NATV, READ,
     "int -2: 0: the prompt is computed and nothing is written; below 0: no limit."},
    {"stop", OPEN, READ, "Stops: Texts that end the answer; they are not part of it."},
    {"stop_sequences", MESS, READ, "Stops"},
    {"ignore_eos", ALL, READ, "bool"},
    {"min_tokens", ALL, READ, "int 0"},
    {"stop_token_ids", ALL, READ, "TokenIds"},
    {"include_stop_str_in_output", ALL, ONLY, "false"},
    {"no_stop_trim", ALL, ONLY, "false"},
    {"t_max_predict_ms", ALL, ONLY, "0|-1"},
    {"truncation", RESP, ONLY, "disabled|auto"},
    {"truncate_prompt_tokens", ALL, ONLY, ""},
    {"verbosity", CHAT, READ, "Verbosity"},
    /* Sampling. */
    {"seed", ALL, READ,
     "int -9223372036854775808 9223372036854775807: Repeats an answer. -1 or nothing: random."},
    CARAT_SAMPLING_SETTINGS(SAMPLING_FIELD, ){
        "do_sample", ALL, READ, "bool: false: the likeliest token, as temperature 0."},
    {"logit_bias", ALL, READ, "LogitBias"},
    {"tfs_z", ALL, ONLY, "1"},
    {"top_a", ALL, ONLY, "0"},
    {"epsilon_cutoff", ALL, ONLY, "0"},
    {"eta_cutoff", ALL, ONLY, "0"},
    {"smoothing_factor", ALL, ONLY, "0"},
    {"dry_sequence_breakers", ALL, READ, "Breakers"},
    {"bad_words", ALL, READ, "Words"},
    {"allowed_token_ids", ALL, READ, "TokenIds"},
    {"samplers", ALL, READ,
     "Samplers: Their order; those that are left out are off. By default "
     "logit_bias" CARAT_SAMPLER_LIST},
    {"adaptive_target", ALL, ONLY, "-1"},
    {"use_beam_search", ALL, ONLY, "false"},
    {"num_beams", ALL, ONLY, "0|1"},
    {"num_return_sequences", ALL, ONLY, "0|1"},
    {"penalize_nl", ALL, ONLY, "true"},
    {"watermark", ALL, ONLY, "false"},
    {"length_penalty", ALL, ONLY, "1"},
    {"early_stopping", ALL, ONLY, "false"},
    {"n_probs", TEXT | NATV, READ, "int 0 20"},
    {"n_probs", TALK | OPTS, ONLY, "0"},
    {"post_sampling_probs", ALL, ONLY, "false"},
    {"prompt_logprobs", CHAT | TEXT, READ, "int 0 20"},
    {"prompt_logprobs", RESP | MESS | NATV | OPTS, ONLY, ""}, /* 0: of the prompt's tokens alone */
    {"return_token_ids", ALL, ONLY, "false"},
    {"return_tokens_as_token_ids", ALL, ONLY, "false"},
    {"return_hidden_states", ALL, ONLY, "false"},
    {"return_full_text", ALL, ONLY, "false"},
    {"details", ALL, ONLY, "false"},
    {"decoder_input_details", ALL, ONLY, "false"},
    {"top_n_tokens", ALL, ONLY, "0"},
    {"skip_special_tokens", ALL, ONLY, "true"},
    {"spaces_between_special_tokens", ALL, HARMLESS, NULL}, /* special tokens are skipped */
    {"lora", ALL, READ, "Loras"},
    /* Structured output. */
    {"response_format", CHAT | TEXT, READ, "Format"},
    {"text", RESP, READ, "TextOptions"},
    {"output_config", MESS, READ, "OutputConfig"},
    {"output_format", MESS, READ, "FlatFormat"}, /* the beta's name of output_config.format */
    {"grammar", ALL, READ, "text: GBNF; the answer follows it."},
    {"grammar_lazy", ALL, ONLY, "false"},
    {"json_schema", ALL, READ, "JsonSchema"},
    {"guided_json", ALL, READ, "JsonSchema"},
    {"guided_regex", ALL, READ, "text: The answer, whole, matches it."},
    {"guided_choice", ALL, READ, "Choices"},
    {"guided_grammar", ALL, READ, "text"},
    {"structured_outputs", ALL, READ, "StructuredOutputs"},
    {"guided_json_object", ALL, READ, "bool"},
    {"structural_tag", ALL, ONLY, ""},
    {"guided_decoding_backend", ALL, HARMLESS, NULL}, /* there is only one backend */
    {"guided_whitespace_pattern", ALL, ONLY, ""},
    /* Tools. */
    {"tools", CHAT, READ, "Tools"},
    {"tools", RESP, READ, "ResponsesTools"},
    {"tools", MESS, READ, "AnthropicTools"},
    {"tool_choice", CHAT, READ, "ToolChoice"},
    {"tool_choice", RESP, READ, "ResponsesToolChoice"},
    {"tool_choice", MESS, READ, "AnthropicToolChoice"},
    {"parallel_tool_calls", CHAT | RESP, READ, "bool"},
    {"functions", CHAT, READ, "Functions"},
    {"function_call", CHAT, READ, "FunctionChoice"},
    {"max_tool_calls", RESP, HARMLESS, NULL}, /* limits tools that the server runs: none */
    {"tool_resources", ALL, ONLY, ""},
    {"mcp_servers", MESS, ONLY, ""},
    {"enable_search", TALK, ONLY, "false"},
    {"safe_prompt", TALK, ONLY, "false"},
    {"web_search_options", CHAT, ONLY, "null"}, /* {} asks for a search */
    /* Thinking and the chat template. */
    {"thinking", TALK, READ, "Thinking"},
    {"reasoning_effort", CHAT, READ, "Effort"},
    {"reasoning", CHAT | RESP, READ, "Reasoning"},
    {"reasoning_budget_tokens", TALK, READ, "int -1"},
    {"thinking_budget_tokens", TALK, READ, "int -1"},
    {"thinking_token_budget", TALK, READ, "int -1"},
    {"reasoning_budget_message", TALK, ONLY, ""},
    {"thinking_budget", TALK, READ, "int -1"},
    {"reasoning_budget", TALK, READ, "int -1"},
    {"enable_thinking", TALK, READ, "bool"},
    {"enable_thinking", TEXT | NATV, ONLY, "false"}, /* a text is continued without a thought */
    {"think", TALK, READ, "Think"},
    {"think", TEXT | NATV, ONLY, "false"},
    {"separate_reasoning", ALL, ONLY, "true"},
    {"stream_reasoning", ALL, ONLY, "true"},
    {"chat_template_kwargs", TALK, READ, "TemplateArguments"},
    {"add_generation_prompt", TALK, READ, "bool: false: the prompt ends with the conversation."},
    {"continue_final_message", TALK, READ,
     "bool: The last message, the assistant's, is how the answer begins. Default: true where it is "
     "the assistant's."},
    {"chat_template", TALK, ONLY, ""},
    {"documents", TALK, ONLY, ""},
    {"add_special_tokens", CHAT | RESP | MESS, ONLY, "false"},
    {"add_special_tokens", TEXT, ONLY, "true"},
    {"echo", TALK | NATV, ONLY, "false"},
    /* Billing, storage, caching, scheduling; extra members of responses. */
    {"user", ALL, HARMLESS, NULL},
    {"metadata", ALL, HARMLESS, NULL},
    {"client_metadata", ALL, HARMLESS, NULL},
    {"store", RESP, READ, "bool: Keeps the response in the server's memory (default: true)."},
    {"store", ALL & ~RESP, HARMLESS, NULL},
    {"service_tier", ALL, HARMLESS, NULL},
    {"safety_identifier", ALL, HARMLESS, NULL},
    {"prompt_cache_key", ALL, HARMLESS, NULL},
    {"prompt_cache_retention", ALL, HARMLESS, NULL},
    {"prompt_cache_options", ALL, HARMLESS, NULL},
    {"request_id", ALL, HARMLESS, NULL},
    {"priority", ALL, HARMLESS, NULL},
    {"provider", CHAT | TEXT | RESP, HARMLESS, NULL}, /* OpenRouter's: who computes it */
    {"route", CHAT | TEXT | RESP, HARMLESS, NULL},
    {"models", CHAT | TEXT | RESP, HARMLESS, NULL}, /* others, if the first one fails */
    {"session_id", ALL, HARMLESS, NULL},
    {"cache_key", ALL, HARMLESS, NULL},
    {"cache_salt", ALL, HARMLESS, NULL},
    {"cache_prompt", ALL, HARMLESS, NULL},
    {"cache_control", ALL, HARMLESS, NULL},
    {"sparse", ALL, READ,
     "text: off, auto, auto:TOKENS, skip:SCALE or flash:ALPHA: attention may leave keys out."},
    {"compress", OPEN | MESS | LLAM | OPTS, READ, "Compression"},
    {"compress", FILL, ONLY, "off"},
    {"speculative", ALL, READ, "Speculation"},
    {"prediction", CHAT, READ, "Prediction"},
    {"speculative.n_max", ALL, READ, "DraftLength"},
    {"n_cache_reuse", ALL, HARMLESS, NULL},
    {"id_slot", ALL, HARMLESS, NULL},
    {"slot_id", NATV, HARMLESS, NULL},
    {"api_key", NATV, HARMLESS, NULL}, /* of llama-server's old page */
    {"use_cache", ALL, HARMLESS, NULL},
    {"n_keep", ALL, HARMLESS, NULL}, /* a context is never shifted */
    {"n_discard", ALL, HARMLESS, NULL},
    {"t_max_prompt_ms", ALL, HARMLESS, NULL},
    {"timings_per_token", ALL, HARMLESS, NULL},
    {"verbose", ALL, HARMLESS, NULL},
    {"sse_ping_interval", OPEN | MESS | NATV, READ,
     "int -1 86400: Seconds of silence of a stream before a ping; 0 and -1: none. By default, "
     "and while its model is being loaded, --ping."},
    {"sse_ping_interval", OPTS, HARMLESS, NULL},
    {"backend_sampling", ALL, HARMLESS, NULL},
    {"context_management", RESP | MESS, HARMLESS,
     NULL}, /* drops old parts of a prompt to save context */
    {"inference_geo", MESS, HARMLESS, NULL},
    {"speed", MESS, HARMLESS, NULL},
    {"anthropic_version", MESS, HARMLESS, NULL},
    {"anthropic_beta", MESS, HARMLESS, NULL},
    /* llama-server's own endpoints. */
    {"prompt", LLAM, READ, "LlamaPrompt"},
    {"prompt", FILL, READ, "text: Follows the prefix."},
    {"input_prefix", FILL, READ, "Text"},
    {"input_suffix", FILL, READ, "Text"},
    {"input_extra", FILL, READ, "InfillFiles"},
    {"stop", NATV | OPTS, READ, "Stops"},
    {"n_cmpl", NATV, READ, "int 1 64"},
    {"n", NATV, READ, "int 1 64"},
    {"max_completion_tokens", NATV, READ, "TokenLimit"},
    {"return_tokens", NATV, READ, "bool"},
    {"logprobs", NATV, READ, "int 0 20"},
    {"n_indent", NATV, ONLY, "0"},
    {"response_fields", NATV, ONLY, ""},
    {"multimodal_data", NATV, ONLY, ""},
    /* ollama's. */
    {"model", OLLA, READ, "text"},
    {"messages", OCHT, READ, "OllamaMessages"},
    {"tools", OCHT, READ, "Tools"},
    {"prompt", OGEN, READ, "text: None: the model is loaded."},
    {"suffix", OGEN, READ,
     "text: The answer goes between prompt and suffix, where the model can fill gaps."},
    {"system", OGEN, READ, "text"},
    {"raw", OGEN, READ, "bool"},
    {"template", OGEN, READ, "Unset"},
    {"context", OGEN, READ, "Unset"},
    {"images", OGEN, READ, "Images"},
    {"format", OLLA, READ, "OllamaFormat"},
    {"options", OLLA, READ, "OllamaOptions"},
    {"stream", OLLA, READ, "bool: true by default."},
    {"think", OLLA, READ, "Think: By default models think that can."},
    {"logprobs", OLLA, READ, "bool"},
    {"top_logprobs", OLLA, READ, "int 0 20"},
    {"keep_alive", OLLA, READ, "KeepAlive"},
    {"truncate", OCHT, READ,
     "bool: Leave out the oldest messages of a conversation that is longer than the context; true "
     "by default."},
    {"truncate", OGEN, READ,
     "bool: Leave out the beginning of a prompt that is longer than the context; true by default."},
    {"shift", OLLA, READ, "bool: Leave so much out that the answer has room; true by default."},
    {"_debug_render_only", OLLA, ONLY, "false"},
    {"num_predict", OPTS, READ, "int -2"},
    {"num_ctx", OPTS, READ, "int 0"}, /* of a derived model: a request's context is the server's */
    {"num_batch", OPTS, HARMLESS, NULL},
    {"num_gpu", OPTS, HARMLESS, NULL},
    {"main_gpu", OPTS, HARMLESS, NULL},
    {"num_thread", OPTS, HARMLESS, NULL},
    {"num_keep", OPTS, READ,
     "int -1: Tokens at the beginning of a raw prompt that stay if it is cut; 4 by default."},
    {"num_gqa", OPTS, HARMLESS, NULL},
    {"draft_num_predict", OPTS, HARMLESS, NULL}, /* about speed alone */
    {"numa", OPTS, HARMLESS, NULL},
    {"low_vram", OPTS, HARMLESS, NULL},
    {"f16_kv", OPTS, HARMLESS, NULL},
    {"logits_all", OPTS, HARMLESS, NULL},
    {"use_mmap", OPTS, HARMLESS, NULL},
    {"use_mlock", OPTS, HARMLESS, NULL},
    {"vocab_only", OPTS, ONLY, "false"},
    {"embedding_only", OPTS, ONLY, "false"},
    {"penalize_newline", OPTS, ONLY, "true"},
    {"rope_frequency_base", OPTS, ONLY, "0"},
    {"rope_frequency_scale", OPTS, ONLY, "0"},
};

static const known_field *find_field(const char *name, api_kind api)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].name && !strcmp(fields[i].name, name) && fields[i].apis & 1u << api)
            return &fields[i];
    /* llama-server's other rules of drafting: about speed alone. */
    return !strncmp(name, "speculative.", 12) ? find_field("priority", api) : NULL;
}

bool field_row_at(size_t i, api_kind api, field_row *row)
{
    static const char *const kinds[] = {"read", "harmless", "only"};
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        if (fields[k].name && fields[k].apis & 1u << api && i-- == 0) {
            *row = (field_row){fields[k].name, kinds[fields[k].kind], fields[k].values};
            return true;
        }
    return false;
}

static bool equals_word(const jtree *v, const char *word, size_t n)
{
    char *end;
    switch (v->kind) {
    case JTREE_FALSE:
        return n == 5 && !memcmp(word, "false", 5);
    case JTREE_TRUE:
        return n == 4 && !memcmp(word, "true", 4);
    case JTREE_INTEGER:
    case JTREE_REAL: {
        double want = strtod(word, &end);
        return n && end == word + n && strtod(v->s, NULL) == want;
    }
    case JTREE_STRING:
        return n && v->n == n && !memcmp(v->s, word, n);
    case JTREE_ARRAY: /* "[word]": a list of this word alone */
        for (const jtree *i = v->first; i; i = i->next)
            if (n < 2 || *word != '[' || i->kind != JTREE_STRING ||
                !equals_word(i, word + 1, n - 2))
                return false;
        return n && *word == '[';
    case JTREE_NULL:
    case JTREE_OBJECT:
        break;
    }
    return false;
}

static bool is_neutral(const jtree *v, const char *values)
{
    if (!*values)
        return tree_is_empty(v);
    for (const char *at = values;;) {
        size_t n = strcspn(at, "|");
        if (equals_word(v, at, n))
            return true;
        if (!at[n])
            return false;
        at += n + 1;
    }
}

/* The field that was probably meant. */
static const char *near_field(const char *name, api_kind api)
{
    const char *names[sizeof fields / sizeof *fields];
    size_t n = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].name && fields[i].apis & 1u << api && fields[i].kind == READ)
            names[n++] = fields[i].name;
    return nearest_word(name, names, n);
}

bool check_fields(const request *rq, const request_limits *lim, problem *p)
{
    for (const jtree *v = rq->body->first; v; v = v->next) {
        const known_field *f = find_field(v->key, rq->api);
        if (v->kind == JTREE_NULL || (f && f->kind != ONLY) || (!f && lim->lenient))
            continue;
        if (!f && !tree_is_empty(v)) {
            const char *near = near_field(v->key, rq->api);
            p->code = "unknown_parameter";
            return problem_set(p, 400, v->key,
                               "'%.100s' is an unknown field%s%s%s; /openapi.json lists the fields "
                               "of each endpoint, and carat serve --lenient ignores others",
                               v->key, near ? "; did you mean '" : "", near ? near : "",
                               near ? "'?" : "");
        }
        if (f && !is_neutral(v, f->values)) {
            p->code = "unsupported_parameter";
            return problem_set(p, 400, v->key, "'%s' is not supported: leave it out%s%s", v->key,
                               *f->values ? ", or send " : "", f->values);
        }
    }
    return true;
}

/* ---- Members that no parser has read ----
 *
 * Below the fields at the top of a body each parser reads the members that it knows, and jtree_get
 * notes which these are. The others are found after the parsers have run, and named as without
 * effect: the request goes on, because clients decorate their messages and tools in many ways.
 *
 * An object of which no member was read is passed on as a whole, such as a schema or the arguments
 * of a call, or its holder was left out and named; it is not searched.
 */

/* A member of an object or an item of an array, and what holds it. */
typedef struct place {
    const struct place *up;
    const char *key; /* NULL: an item */
    size_t i;
} place;

typedef struct finds {
    request *rq;
    const char *key[REQUEST_MAX_WARNINGS]; /* named already: each item of a list may have it */
    size_t n;
} finds;

/* Names, states and marks of caches say nothing to the model. */
static bool is_decoration(const char *key)
{
    static const char *const names[] = {"annotations",
                                        "cache_control",
                                        "caller",
                                        "created_at",
                                        "data",
                                        "description",
                                        "display_number",
                                        "eager_input_streaming",
                                        "encrypted_content",
                                        "end_turn",
                                        "execution",
                                        "id",
                                        "include_obfuscation",
                                        "index",
                                        "logprobs",
                                        "max_characters",
                                        "max_output_length",
                                        "media_type",
                                        "name",
                                        "object",
                                        "phase",
                                        "role",
                                        "server_label",
                                        "signature",
                                        "status",
                                        "strict",
                                        "summary",
                                        "type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i]))
            return true;
    return false;
}

static void put_place(str *out, const place *at)
{
    if (!at)
        return;
    put_place(out, at->up);
    if (at->key)
        str_printf(out, "%s%.60s", at->up ? "." : "", at->key);
    else
        str_printf(out, "[%zu]", at->i);
}

static void say_place(finds *f, const place *at)
{
    str path = {0};
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->key[i], at->key))
            return;
    if (f->n == REQUEST_MAX_WARNINGS)
        return;
    f->key[f->n++] = at->key;
    put_place(&path, at);
    leave_out(f->rq, "'%s' has no effect", str_text(&path));
    f->rq->left_out.bad |= path.bad;
    str_free(&path);
}

static void search(finds *f, const jtree *v, const place *at)
{
    bool any = false;
    size_t i = 0;
    if (v->use == JTREE_PASSED)
        return;
    for (const jtree *m = v->kind == JTREE_OBJECT ? v->first : NULL; m && !any; m = m->next)
        any = m->use != JTREE_UNREAD;
    for (const jtree *m = v->first; m; m = m->next, i++) {
        place here = {at, v->kind == JTREE_OBJECT ? m->key : NULL, i};
        if (v->kind == JTREE_ARRAY || m->use != JTREE_UNREAD)
            search(f, m, &here);
        else if (any && !tree_is_empty(m) && m->kind != JTREE_FALSE && !is_decoration(m->key))
            say_place(f, &here);
    }
}

void say_unread(request *rq)
{
    finds f = {.rq = rq};
    for (const jtree *m = rq->body->first; m; m = m->next) {
        place here = {NULL, m->key, 0};
        if (strcmp(m->key, "options") != 0) /* known.c has read it */
            search(&f, m, &here);
    }
}
