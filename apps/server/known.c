/* known.c - the table of all known fields of requests, and the rule for the others.
 *
 * A field that would change the answer works, or the request is refused with a 400 that names the
 * field. No such field is ignored.
 *
 *     READ       a parser reads it: api_*.c, fields.c, sampling.c, forms.c, tools.c
 *     HARMLESS   accepted without effect: about billing, storage, caching or scheduling
 *     ONLY       accepted with values that change nothing, refused with any other
 *
 * A field that is not in the table is refused, as by OpenAI's and Anthropic's servers, unless its
 * value is empty: null, "", [] or {}. False and 0 are refused, too: "think": false asks for
 * something. The option --lenient accepts unknown fields, for clients that are newer than this
 * table.
 */
#include "apps/server/request.h"

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
    const char *values; /* of ONLY, separated by |; [word]: a list of it; "": empty values; "null":
                           none but that */
} known_field;

#define SAMPLING_FIELD(kind, field, name, also, ...)                                               \
    {name, ALL, READ, NULL}, {also, ALL, READ, NULL}, /* NULL: no field */

static const known_field fields[] = {
    /* The prompt. */
    {"messages", CHAT | MESS, READ, NULL},
    {"prompt", TEXT, READ, NULL},
    {"input", RESP, READ, NULL},
    {"instructions", RESP, READ, NULL},
    {"system", MESS, READ, NULL},
    {"model", ALL, READ, NULL},
    {"keep_alive", ALL, READ, NULL},
    {"image_tokens", TALK | LLAM | OLLA, READ, NULL},
    {"suffix", TEXT, READ, NULL},
    {"echo", TEXT, READ, NULL},
    {"previous_response_id", RESP, READ, NULL},
    {"conversation", RESP, READ, NULL},
    {"background", RESP, READ, NULL},
    /* The shape of the response. */
    {"stream", ALL, READ, NULL},
    {"stream_options", OPEN, READ, NULL},
    {"usage", CHAT | TEXT, READ, NULL},
    {"return_progress", ALL, READ, NULL},
    {"n", CHAT | TEXT, READ, NULL},
    {"n", RESP | MESS, ONLY, "1"},
    {"best_of", TEXT, READ, NULL},
    {"best_of", CHAT, ONLY, "0|1"},
    {"logprobs", CHAT | TEXT, READ, NULL},
    {"logprobs", RESP | MESS, ONLY, "false|0"},
    {"top_logprobs", CHAT | RESP, READ, NULL},
    {"top_logprobs", TEXT | MESS | NATV, ONLY, "0"},
    {"include", RESP, READ, NULL},
    {"include_reasoning", ALL, ONLY, "true"},
    {"reasoning_format", ALL, ONLY, "auto|deepseek"},
    {"reasoning_in_content", ALL, ONLY, "false"},
    {"parse_tool_calls", ALL, ONLY, "true"},
    {"modalities", CHAT, ONLY, "[text]"},
    /* The length of the answer. */
    {"max_tokens", ALL, READ, NULL},
    {"max_completion_tokens", CHAT, READ, NULL},
    {"max_output_tokens", RESP, READ, NULL},
    {"n_predict", ALL, READ, NULL},
    {"stop", OPEN, READ, NULL},
    {"stop_sequences", MESS, READ, NULL},
    {"ignore_eos", ALL, READ, NULL},
    {"min_tokens", ALL, READ, NULL},
    {"stop_token_ids", ALL, READ, NULL},
    {"include_stop_str_in_output", ALL, ONLY, "false"},
    {"no_stop_trim", ALL, ONLY, "false"},
    {"t_max_predict_ms", ALL, ONLY, "0|-1"},
    {"truncation", RESP, ONLY, "disabled|auto"},
    {"truncate_prompt_tokens", ALL, ONLY, ""},
    {"verbosity", CHAT, READ, NULL},
    /* Sampling. */
    {"seed", ALL, READ, NULL},
    CARAT_SAMPLING_SETTINGS(SAMPLING_FIELD, ){"do_sample", ALL, READ, NULL},
    {"logit_bias", ALL, READ, NULL},
    {"tfs_z", ALL, ONLY, "1"},
    {"top_a", ALL, ONLY, "0"},
    {"epsilon_cutoff", ALL, ONLY, "0"},
    {"eta_cutoff", ALL, ONLY, "0"},
    {"smoothing_factor", ALL, ONLY, "0"},
    {"dry_sequence_breakers", ALL, READ, NULL},
    {"bad_words", ALL, READ, NULL},
    {"allowed_token_ids", ALL, READ, NULL},
    {"samplers", ALL, READ, NULL},
    {"adaptive_target", ALL, ONLY, "-1"},
    {"use_beam_search", ALL, ONLY, "false"},
    {"num_beams", ALL, ONLY, "0|1"},
    {"num_return_sequences", ALL, ONLY, "0|1"},
    {"penalize_nl", ALL, ONLY, "true"},
    {"watermark", ALL, ONLY, "false"},
    {"length_penalty", ALL, ONLY, "1"},
    {"early_stopping", ALL, ONLY, "false"},
    {"n_probs", TEXT | NATV, READ, NULL},
    {"n_probs", TALK | OPTS, ONLY, "0"},
    {"post_sampling_probs", ALL, ONLY, "false"},
    {"prompt_logprobs", CHAT | TEXT, READ, NULL},
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
    {"lora", ALL, ONLY, ""},
    /* Structured output. */
    {"response_format", CHAT | TEXT, READ, NULL},
    {"text", RESP, READ, NULL},
    {"output_config", MESS, READ, NULL},
    {"output_format", MESS, READ, NULL}, /* the beta's name of output_config.format */
    {"grammar", ALL, READ, NULL},
    {"grammar_lazy", ALL, ONLY, "false"},
    {"json_schema", ALL, READ, NULL},
    {"guided_json", ALL, READ, NULL},
    {"guided_regex", ALL, READ, NULL},
    {"guided_choice", ALL, READ, NULL},
    {"guided_grammar", ALL, READ, NULL},
    {"structured_outputs", ALL, READ, NULL},
    {"guided_json_object", ALL, READ, NULL},
    {"structural_tag", ALL, ONLY, ""},
    {"guided_decoding_backend", ALL, HARMLESS, NULL}, /* there is only one backend */
    {"guided_whitespace_pattern", ALL, ONLY, ""},
    /* Tools. */
    {"tools", TALK, READ, NULL},
    {"tool_choice", TALK, READ, NULL},
    {"parallel_tool_calls", CHAT | RESP, READ, NULL},
    {"functions", CHAT, READ, NULL},
    {"function_call", CHAT, READ, NULL},
    {"max_tool_calls", RESP, HARMLESS, NULL}, /* limits tools that the server runs: none */
    {"tool_resources", ALL, ONLY, ""},
    {"mcp_servers", MESS, ONLY, ""},
    {"enable_search", TALK, ONLY, "false"},
    {"safe_prompt", TALK, ONLY, "false"},
    {"web_search_options", CHAT, ONLY, "null"}, /* {} asks for a search */
    /* Thinking and the chat template. */
    {"thinking", TALK, READ, NULL},
    {"reasoning_effort", CHAT, READ, NULL},
    {"reasoning", CHAT | RESP, READ, NULL},
    {"reasoning_budget_tokens", TALK, READ, NULL},
    {"thinking_budget_tokens", TALK, READ, NULL},
    {"thinking_token_budget", TALK, READ, NULL},
    {"reasoning_budget_message", TALK, ONLY, ""},
    {"thinking_budget", TALK, READ, NULL},
    {"reasoning_budget", TALK, READ, NULL},
    {"enable_thinking", TALK, READ, NULL},
    {"enable_thinking", TEXT | NATV, ONLY, "false"}, /* a text is continued without a thought */
    {"think", TALK, READ, NULL},
    {"think", TEXT | NATV, ONLY, "false"},
    {"separate_reasoning", ALL, ONLY, "true"},
    {"stream_reasoning", ALL, ONLY, "true"},
    {"chat_template_kwargs", TALK, READ, NULL},
    {"add_generation_prompt", TALK, READ, NULL},
    {"continue_final_message", TALK, READ, NULL},
    {"chat_template", TALK, ONLY, ""},
    {"documents", TALK, ONLY, ""},
    {"add_special_tokens", CHAT | RESP | MESS, ONLY, "false"},
    {"add_special_tokens", TEXT, ONLY, "true"},
    {"echo", TALK | NATV, ONLY, "false"},
    /* Billing, storage, caching, scheduling; extra members of responses. */
    {"user", ALL, HARMLESS, NULL},
    {"metadata", ALL, HARMLESS, NULL},
    {"client_metadata", ALL, HARMLESS, NULL},
    {"store", RESP, READ, NULL},
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
    {"sparse", ALL, READ, NULL},
    {"compress", OPEN | MESS | LLAM | OPTS, READ, NULL},
    {"compress", FILL, ONLY, "off"},
    {"speculative", ALL, READ, NULL},
    {"prediction", CHAT, READ, NULL},
    {"speculative.n_max", ALL, READ, NULL},
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
    {"sse_ping_interval", ALL, HARMLESS, NULL},
    {"backend_sampling", ALL, HARMLESS, NULL},
    {"context_management", RESP | MESS, HARMLESS,
     NULL}, /* drops old parts of a prompt to save context */
    {"inference_geo", MESS, HARMLESS, NULL},
    {"speed", MESS, HARMLESS, NULL},
    {"anthropic_version", MESS, HARMLESS, NULL},
    {"anthropic_beta", MESS, HARMLESS, NULL},
    /* llama-server's own endpoints. */
    {"prompt", NATV, READ, NULL},
    {"input_prefix", FILL, READ, NULL},
    {"input_suffix", FILL, READ, NULL},
    {"input_extra", FILL, READ, NULL},
    {"stop", NATV | OPTS, READ, NULL},
    {"n_cmpl", NATV, READ, NULL},
    {"n", NATV, READ, NULL},
    {"max_completion_tokens", NATV, READ, NULL},
    {"return_tokens", NATV, READ, NULL},
    {"logprobs", NATV, READ, NULL},
    {"n_indent", NATV, ONLY, "0"},
    {"response_fields", NATV, ONLY, ""},
    {"multimodal_data", NATV, ONLY, ""},
    /* ollama's. */
    {"model", OLLA, READ, NULL},
    {"messages", OCHT, READ, NULL},
    {"tools", OCHT, READ, NULL},
    {"prompt", OGEN, READ, NULL},
    {"suffix", OGEN, READ, NULL},
    {"system", OGEN, READ, NULL},
    {"raw", OGEN, READ, NULL},
    {"template", OGEN, READ, NULL},
    {"context", OGEN, READ, NULL},
    {"images", OGEN, READ, NULL},
    {"format", OLLA, READ, NULL},
    {"options", OLLA, READ, NULL},
    {"stream", OLLA, READ, NULL},
    {"think", OLLA, READ, NULL},
    {"logprobs", OLLA, READ, NULL},
    {"top_logprobs", OLLA, READ, NULL},
    {"keep_alive", OLLA, READ, NULL},
    {"truncate", OLLA, READ, NULL},
    {"shift", OLLA, READ, NULL},
    {"_debug_render_only", OLLA, ONLY, "false"},
    {"num_predict", OPTS, READ, NULL},
    {"num_ctx", OPTS, READ, NULL}, /* of a derived model: a request's context is the server's */
    {"num_batch", OPTS, HARMLESS, NULL},
    {"num_gpu", OPTS, HARMLESS, NULL},
    {"main_gpu", OPTS, HARMLESS, NULL},
    {"num_thread", OPTS, HARMLESS, NULL},
    {"num_keep", OPTS, READ, NULL},
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
