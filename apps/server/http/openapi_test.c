/* openapi_test.c - the description of the server against the parsers: valid bodies are accepted,
 * invalid ones are refused, and the schemas have exactly the fields of known.c.
 *
 * The validator knows the keywords that the schemas use, and fails on any other keyword.
 */
#include "apps/server/http/openapi.h"
#include "apps/server/dialects/request.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>

static const request_limits limits = {
    .n_vocab = 1000, .images = true, .sampling = {.temperature = 1, .top_p = 1}};

static const char *const names[] = {[API_CHAT] = "ChatRequest",
                                    [API_COMPLETIONS] = "CompletionRequest",
                                    [API_RESPONSES] = "ResponsesRequest",
                                    [API_MESSAGES] = "MessagesRequest",
                                    [API_LLAMA] = "LlamaRequest",
                                    [API_INFILL] = "InfillRequest",
                                    [API_OLLAMA_CHAT] = "OllamaChatRequest",
                                    [API_OLLAMA_GENERATE] = "OllamaGenerateRequest"};

typedef struct description {
    arena mem;
    const jtree *root, *schemas;
} description;

static void open_description(description *d)
{
    AUTO(str_free) str text = {0};
    err e = {0};
    *d = (description){0};
    openapi_write(&text);
    CHECK(!text.bad);
    CHECK_OK(jtree_parse(text.at, text.n, "openapi.json", 64, &d->mem, &d->root, &e), e);
    d->schemas = jtree_get(jtree_get(d->root, "components"), "schemas");
    CHECK(d->schemas);
}

/* ---- A validator ---- */

static bool same_value(const jtree *a, const jtree *b)
{
    bool number = b->kind == JTREE_INTEGER || b->kind == JTREE_REAL;
    if (number && (a->kind == JTREE_INTEGER || a->kind == JTREE_REAL))
        return strtod(a->s, NULL) == strtod(b->s, NULL);
    if (a->kind != b->kind || a->count != b->count)
        return false;
    CHECK(!a->count); /* no members in constants */
    return a->kind != JTREE_STRING || (a->n == b->n && !memcmp(a->s, b->s, a->n));
}

static bool is_whole(const jtree *v)
{
    int64_t i;
    return tree_int(v, INT64_MIN, INT64_MAX, &i) || v->kind == JTREE_INTEGER;
}

static bool has_type(const jtree *v, const jtree *type)
{
    static const char *const kinds[] = {"null",   "boolean", "boolean", "number",
                                        "number", "string",  "array",   "object"};
    if (type->kind == JTREE_ARRAY) {
        for (const jtree *t = type->first; t; t = t->next)
            if (has_type(v, t))
                return true;
        return false;
    }
    if (!strcmp(type->s, "integer"))
        return (v->kind == JTREE_INTEGER || v->kind == JTREE_REAL) && is_whole(v);
    return !strcmp(type->s, kinds[v->kind]);
}

static bool is_valid(const description *d, const jtree *schema, const jtree *v);

static bool any_valid(const description *d, const jtree *list, const jtree *v)
{
    for (const jtree *s = list->first; s; s = s->next)
        if (is_valid(d, s, v))
            return true;
    return false;
}

/* The patterns of the schemas for names of members. */
static bool matches(const char *pattern, const char *key)
{
    if (!strcmp(pattern, "^[0-9]+$"))
        return *key && strspn(key, "0123456789") == strlen(key);
    CHECK_STR(pattern, "^speculative[.]");
    return !strncmp(key, "speculative.", 12);
}

static bool members_valid(const description *d, const jtree *schema, const jtree *v)
{
    const jtree *props = jtree_get(schema, "properties"), *more;
    const jtree *patterns = jtree_get(schema, "patternProperties");
    for (const jtree *m = v->first; m; m = m->next) {
        bool known = false;
        for (const jtree *p = props ? props->first : NULL; p; p = p->next)
            if (!strcmp(p->key, m->key)) {
                known = true;
                if (!is_valid(d, p, m))
                    return false;
            }
        for (const jtree *p = patterns ? patterns->first : NULL; p; p = p->next)
            if (matches(p->key, m->key)) {
                known = true;
                if (!is_valid(d, p, m))
                    return false;
            }
        more = jtree_get(schema, "additionalProperties");
        if (!known && more && !is_valid(d, more, m))
            return false;
    }
    return true;
}

/* One word of a schema. */
static bool word_holds(const description *d, const jtree *schema, const jtree *w, const jtree *v)
{
    bool number = v->kind == JTREE_INTEGER || v->kind == JTREE_REAL;
    double x = number ? strtod(v->s, NULL) : 0, limit = w->s ? strtod(w->s, NULL) : 0;
    const char *k = w->key;
    if (!strcmp(k, "$ref")) {
        const jtree *s = jtree_get(d->schemas, strrchr(w->s, '/') + 1);
        CHECK_MSG(s, "%s", w->s);
        return is_valid(d, s, v);
    }
    if (!strcmp(k, "type"))
        return has_type(v, w);
    if (!strcmp(k, "const"))
        return same_value(v, w);
    if (!strcmp(k, "anyOf"))
        return any_valid(d, w, v);
    if (!strcmp(k, "not"))
        return !is_valid(d, w, v);
    if (!strcmp(k, "minimum"))
        return !number || x >= limit;
    if (!strcmp(k, "maximum"))
        return !number || x <= limit;
    if (!strcmp(k, "minLength"))
        return v->kind != JTREE_STRING || (double)v->n >= limit;
    if (!strcmp(k, "maxLength"))
        return v->kind != JTREE_STRING || (double)v->n <= limit;
    if (!strcmp(k, "minItems"))
        return v->kind != JTREE_ARRAY || (double)v->count >= limit;
    if (!strcmp(k, "maxItems"))
        return v->kind != JTREE_ARRAY || (double)v->count <= limit;
    if (!strcmp(k, "maxProperties"))
        return v->kind != JTREE_OBJECT || (double)v->count <= limit;
    if (!strcmp(k, "enum")) {
        for (const jtree *i = w->first; i; i = i->next)
            if (same_value(v, i))
                return true;
        return false;
    }
    if (!strcmp(k, "items")) {
        for (const jtree *i = v->kind == JTREE_ARRAY ? v->first : NULL; i; i = i->next)
            if (!is_valid(d, w, i))
                return false;
        return true;
    }
    if (!strcmp(k, "required")) {
        for (const jtree *i = w->first; i && v->kind == JTREE_OBJECT; i = i->next)
            if (!jtree_has(v, i->s))
                return false;
        return true;
    }
    if (!strcmp(k, "properties"))
        return v->kind != JTREE_OBJECT || members_valid(d, schema, v);
    if (!strcmp(k, "pattern") && strstr(w->s, "(ns|us|ms")) {
        int64_t ms;
        return v->kind != JTREE_STRING || keep_alive_parse(v->s, &ms);
    }
    if (!strcmp(k, "pattern")) /* of names of tools */
        return v->kind != JTREE_STRING || !strpbrk(v->s, " {}:\"'`<>|\177");
    if (!strcmp(k, "patternProperties") || !strcmp(k, "additionalProperties"))
        return v->kind != JTREE_OBJECT || members_valid(d, schema, v);
    CHECK_STR(k, "description");
    return true;
}

static bool is_valid(const description *d, const jtree *schema, const jtree *v)
{
    if (schema->kind == JTREE_TRUE || schema->kind == JTREE_FALSE)
        return schema->kind == JTREE_TRUE;
    CHECK_EQ(schema->kind, JTREE_OBJECT);
    for (const jtree *w = schema->first; w; w = w->next)
        if (!word_holds(d, schema, w, v))
            return false;
    return true;
}

/* ---- Bodies ---- */

static bool is_accepted(api_kind api, const char *body, char *why, size_t cap)
{
    request rq = {0};
    problem p = {0};
    bool ok = request_parse(&rq, api, body, strlen(body), &limits, &p);
    snprintf(why, cap, "%s", p.text);
    request_free(&rq);
    CHECK(ok || p.status == 400);
    return ok;
}

static void compare_verdicts(const description *d, api_kind api, const char *body)
{
    AUTO(arena_free) arena mem = {0};
    const jtree *v;
    err e = {0};
    char why[1024];
    CHECK_OK(jtree_parse(body, strlen(body), "a body", 64, &mem, &v, &e), e);
    bool valid = is_valid(d, jtree_get(d->schemas, names[api]), v);
    bool taken = is_accepted(api, body, why, sizeof why);
    CHECK_MSG(valid == taken, "%s: the schema calls it %s; the server %s%s", body,
              valid ? "valid" : "invalid", taken ? "accepts it" : "says ", why);
}

/* The rest of a body, so that a single field can be tested. */
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
static const char *const companions[] = {
    [API_CHAT] = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true",
    [API_COMPLETIONS] = "\"prompt\":\"x\"",
    [API_RESPONSES] = "\"input\":\"x\"",
    [API_MESSAGES] = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]",
    [API_LLAMA] = "\"prompt\":\"x\"",
    [API_INFILL] = "\"input_prefix\":\"x\",\"input_suffix\":\"y\"",
    [API_OLLAMA_CHAT] =
        "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true",
    [API_OLLAMA_GENERATE] = "\"model\":\"m\",\"prompt\":\"x\",\"logprobs\":true"};

static const char *const values[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "-2",
    "2",
    "64",
    "65",
    "0.5",
    "1.0",
    "21",
    "101",
    "1e10",
    "-1e10",
    "1e300",
    "\"\"",
    "\"x\"",
    "\"auto\"",
    "\"none\"",
    "\"required\"",
    "\"any\"",
    "\"low\"",
    "\"medium\"",
    "\"x-high\"",
    "\"disabled\"",
    "\"deepseek\"",
    "\"text\"",
    "[]",
    "[\"x\"]",
    "[\"\"]",
    "[1]",
    "[1.5]",
    "[null]",
    "[[1]]",
    "[[1,2]]",
    "[[1,false]]",
    "[[1,\"x\"]]",
    "[\"text\"]",
    "{}",
    "{\"1\":1}",
    "{\"1\":\"x\"}",
    "{\"1\":false}",
    "{\"x\":1}",
    "{\"a\":null}",
    "{\"type\":\"text\"}",
    "{\"type\":\"json_object\"}",
    "{\"type\":\"json_object\",\"schema\":{}}",
    "{\"type\":\"json_object\",\"schema\":1}",
    "{\"type\":\"json_schema\"}",
    "{\"type\":\"json_schema\",\"schema\":{}}",
    "{\"type\":\"json_schema\",\"schema\":3}",
    "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}",
    "{\"type\":\"json_schema\",\"json_schema\":{}}",
    "{\"format\":{\"type\":\"json_object\"}}",
    "{\"format\":{\"type\":\"xml\"}}",
    "{\"format\":{\"type\":\"json_schema\"}}",
    "{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}",
    "{\"verbosity\":\"low\"}",
    "{\"verbosity\":\"medium\"}",
    "{\"effort\":\"high\"}",
    "{\"effort\":\"huge\"}",
    "{\"effort\":null}",
    "{\"effort\":3}",
    "{\"summary\":\"auto\"}",
    "{\"enabled\":true}",
    "{\"exclude\":true}",
    "{\"max_tokens\":0}",
    "{\"max_tokens\":5}",
    "{\"type\":\"enabled\"}",
    "{\"type\":\"odd\"}",
    "{\"type\":\"enabled\",\"budget_tokens\":-1}",
    "{\"type\":\"adaptive\",\"budget_tokens\":7,\"reply_budget\":null}",
    "{\"include_usage\":true}",
    "{\"include_usage\":1}",
    "{\"enable_thinking\":true}",
    "{\"enable_thinking\":\"yes\"}",
    "{\"preserve_thinking\":1}",
    "{\"messages\":[]}",
    "{\"messages\":null}",
    "{\"odd\":7}",
    "{\"json\":{}}",
    "{\"json\":5}",
    "{\"regex\":\"a\"}",
    "{\"regex\":1}",
    "{\"choice\":[\"a\"]}",
    "{\"choice\":[]}",
    "{\"json_object\":true}",
    "{\"structural_tag\":\"x\"}",
    "{\"disable_any_whitespace\":true}",
    "{\"disable_fallback\":true}",
    "{\"grammar\":\"root ::= [a]\"}",
    "[{\"role\":\"user\",\"content\":\"x\"}]",
    "[{\"name\":\"f\"}]",
    "[{\"name\":\"a b\"}]",
    "[{\"name\":\"f\",\"parameters\":[]}]",
    "[" TOOL "]",
    "[{\"type\":\"function\",\"name\":\"f\"}]",
    "[{\"type\":\"web_search\"}]",
    "[{\"type\":\"text\",\"text\":\"x\"}]",
    "[{\"type\":\"image\"}]"};

/* Fields whose validity depends on other fields, or that openapi_bodies tests. */
static bool needs_others(const char *name)
{
    static const char *const them[] = {
        "samplers", "tool_choice", "function_call", "continue_final_message",
        "best_of",  "messages",    "input",         "prompt",
        "logprobs", "tools",       "images",        "background"};
    for (size_t i = 0; i < sizeof them / sizeof *them; i++)
        if (!strcmp(them[i], name))
            return true;
    return false;
}

TEST(openapi_every_field_alone)
{
    description d;
    char body[1024];
    size_t n = 0;
    open_description(&d);
    for (int api = 0; api < (int)(sizeof names / sizeof *names); api++) {
        const jtree *props = jtree_get(jtree_get(d.schemas, names[api]), "properties");
        for (const jtree *p = props->first; p; p = p->next)
            for (size_t i = 0; i < sizeof values / sizeof *values && !needs_others(p->key);
                 i++, n++) {
                snprintf(body, sizeof body, "{%s,\"%s\":%s}", companions[api], p->key, values[i]);
                compare_verdicts(&d, (api_kind)api, body);
            }
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            snprintf(body, sizeof body, "{%s,\"never_heard_of\":%s,\"speculative.n\":%s}",
                     companions[api], values[i], values[i]);
            compare_verdicts(&d, (api_kind)api, body);
        }
    }
    CHECK(n > 20000);
    arena_free(&d.mem);
}

#define DOT                                                                                        \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"   \
    "Jggg"
#define PICTURE                                                                                    \
    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64," DOT                  \
    "\",\"detail\":\"low\"}}"
#define USER "{\"role\":\"user\",\"content\":\"x\"}"
TEST(openapi_bodies)
{
    static const struct {
        api_kind api;
        const char *body;
    } bodies[] = {
        {API_CHAT, "{}"},
        {API_CHAT, "{\"messages\":[]}"},
        {API_CHAT, "{\"messages\":{}}"},
        {API_CHAT, "{\"messages\":[1]}"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[" PICTURE "]}]}"},
        {API_CHAT, "{\"messages\":[" USER "],\"image_tokens\":\"native\"}"},
        {API_CHAT, "{\"messages\":[" USER "],\"image_tokens\":280}"},
        {API_CHAT, "{\"messages\":[" USER "],\"image_tokens\":69}"},
        {API_CHAT, "{\"messages\":[" USER "],\"image_tokens\":\"many\"}"},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}"},
        {API_CHAT, "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"A\"}]}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":\"required\"}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":\"some\"}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":[{\"type\":\"web\"}]}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":[{\"type\":\"function\"}]}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":{}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":null,\"logprobs\":null}"},
        {API_CHAT, "{\"messages\":[" USER "],\"functions\":[{\"name\":\"f\"}],\"function_call\":"
                   "{\"name\":\"f\"}}"},
        {API_CHAT,
         "{\"messages\":[" USER "],\"functions\":[{\"name\":\"f\"}],\"function_call\":7}"},
        {API_CHAT, "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":{\"type\":"
                   "\"function\",\"function\":{\"name\":\"f\"}}}"},
        {API_CHAT,
         "{\"messages\":[" USER "],\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"odd\"}}"},
        {API_COMPLETIONS, "{\"prompt\":\"\"}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative\":{\"n_max\":4,\"p_min\":0.5}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative\":{\"n_max\":64}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"prediction\":{\"type\":\"content\","
                   "\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"prediction\":{\"type\":\"content\"}}"},
        {API_CHAT,
         "{\"messages\":[" USER "],\"prediction\":{\"type\":\"text\",\"content\":\"a\"}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"prediction\":\"a\"}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative\":{\"tree_max\":-1}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative\":{\"type\":\"draft\"}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative\":{\"type\":\"\"}}"},
        {API_CHAT, "{\"messages\":[" USER "],\"speculative.n_max\":4.5}"},
        {API_COMPLETIONS, "{\"prompt\":[1,2]}"},
        {API_COMPLETIONS, "{\"prompt\":[[1],[2]]}"},
        {API_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}"},
        {API_COMPLETIONS, "{\"prompt\":[]}"},
        {API_COMPLETIONS, "{\"prompt\":[1,\"a\"]}"},
        {API_COMPLETIONS, "{\"prompt\":{}}"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":20}"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":21}"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":true}"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"tools\":[" TOOL "]}"},
        {API_RESPONSES, "{\"input\":\"x\"}"},
        {API_RESPONSES, "{\"input\":[]}"},
        {API_RESPONSES, "{\"input\":7}"},
        {API_RESPONSES, "{\"input\":[1]}"},
        {API_RESPONSES, "{\"input\":[" USER "],\"tools\":[{\"type\":\"web_search\"}]}"},
        {API_RESPONSES, "{\"input\":[" USER "],\"tools\":[{}]}"},
        {API_RESPONSES, "{\"input\":[" USER "],\"tool_choice\":\"odd\"}"},
        {API_RESPONSES, "{\"input\":[" USER "],\"tool_choice\":\"auto\"}"},
        {API_RESPONSES, "{\"input\":\"x\",\"previous_response_id\":\"r\"}"},
        {API_RESPONSES, "{\"input\":\"x\",\"response_format\":{\"type\":\"json_object\"}}"},
        {API_MESSAGES, "{\"messages\":[" USER "]}"},
        {API_MESSAGES, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}"},
        {API_MESSAGES, "{\"messages\":[{\"role\":\"user\"}]}"},
        {API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}"},
        {API_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{"
         "\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"" DOT "\"}}]}]}"},
        {API_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}"},
        {API_MESSAGES,
         "{\"messages\":[" USER "],\"tools\":[{\"name\":\"f\",\"input_schema\":{}}]}"},
        {API_MESSAGES, "{\"messages\":[" USER "],\"tools\":[1]}"},
        {API_MESSAGES, "{\"messages\":[" USER "],\"tool_choice\":\"auto\"}"},
        {API_MESSAGES, "{\"messages\":[" USER "],\"tool_choice\":{\"type\":\"auto\"}}"},
        {API_MESSAGES, "{\"messages\":[" USER "],\"tool_choice\":{\"type\":\"odd\"}}"},
        {API_MESSAGES, "{\"messages\":[" USER "],\"stop\":\"x\"}"},
    };
    description d;
    open_description(&d);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        compare_verdicts(&d, bodies[i].api, bodies[i].body);
    arena_free(&d.mem);
}

/* The kind of a field according to its schema. */
static const char *described_kind(const jtree *p)
{
    const jtree *ref = jtree_get(p, "$ref");
    if (p->kind == JTREE_TRUE)
        return "harmless";
    if (ref && !strcmp(ref->s, "#/components/schemas/Nothing"))
        return "only";
    return "";
}

TEST(openapi_names_every_field)
{
    description d;
    open_description(&d);
    for (int api = 0; api < (int)(sizeof names / sizeof *names); api++) {
        const jtree *props = jtree_get(jtree_get(d.schemas, names[api]), "properties");
        field_row row;
        size_t n = 0;
        for (; field_row_at(n, (api_kind)api, &row); n++) {
            const jtree *p = jtree_get(props, row.name);
            CHECK_MSG(p, "%s: no %s", names[api], row.name);
            CHECK_MSG(strcmp(row.kind, "harmless") ? strcmp(described_kind(p), "harmless") != 0
                                                   : !strcmp(described_kind(p), "harmless"),
                      "%s: %s is %s", names[api], row.name, row.kind);
        }
        CHECK_EQ(props->count, n);
    }
    arena_free(&d.mem);
}
