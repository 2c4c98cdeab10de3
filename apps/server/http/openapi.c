/* openapi.c - see openapi.h. */
#include "apps/server/http/openapi.h"

#include "apps/embed.h"
#include "apps/server/dialects/answer.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/request.h"
#include "apps/server/http/routes.h"
#include "carat.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

EMBED("carat_schemas", CARAT_SCHEMAS);
EMBEDDED const char carat_schemas_begin[], carat_schemas_end[];

static void put_ref(str *o, const char *key, const char *of, const char *name, size_t n)
{
    json_open(o, key, '{');
    json_words(o, "$ref", "#/components/%s/%.*s", of, (int)n, name);
    json_close(o, "}");
}

/* ---- Fields ---- */

/* A type, or null. */
static void put_type(str *o, const char *type)
{
    json_open(o, "type", '[');
    json_text(o, NULL, type);
    json_text(o, NULL, "null");
    json_close(o, "]");
}

/* The words of known.c, between |: true, false, null and numbers are themselves, others texts. */
static void put_words(str *o, const char *words)
{
    json_open(o, "enum", '[');
    json_nothing(o, NULL);
    while (*words) {
        char word[64], *end;
        size_t n = strcspn(words, "|");
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        double v = strtod(word, &end);
        if (!strcmp(word, "true") || !strcmp(word, "false"))
            json_bool(o, NULL, *word == 't');
        else if (n && !*end)
            json_number(o, NULL, v);
        else if (strcmp(word, "null"))
            json_text(o, NULL, word);
        words += n + (words[n] == '|');
    }
    json_close(o, "]");
}

static void put_only(str *o, const char *name, const char *values)
{
    size_t n = strlen(values);
    if (!n) {
        put_ref(o, name, "schemas", "Nothing", strlen("Nothing"));
        return;
    }
    json_open(o, name, '{');
    if (*values == '[') { /* a list of this word alone */
        put_type(o, "array");
        json_open(o, "items", '{');
        json_text_n(o, "const", values + 1, n - 2);
        json_close(o, "}");
    } else {
        put_words(o, values);
    }
    json_close(o, "}");
}

static void put_sampling(str *o, const char *name)
{
    const carat_sampling_setting *s = carat_sampling_find(name);
    json_open(o, name, '{');
    put_type(o, s->whole ? "integer" : "number");
    if (s->whole) {
        json_int(o, "minimum", (int64_t)s->min);
        json_int(o, "maximum", (int64_t)s->max);
    } else {
        json_number(o, "minimum", s->min);
        json_number(o, "maximum", s->max);
    }
    json_text(o, "description", s->help);
    json_close(o, "}");
}

/* The bounds of "int LOW" and "int LOW HIGH", as they are spelled: a double has no room for the
 * bounds of 64 bits. */
static void put_bounds(str *o, const char *at, const char *end)
{
    size_t low = strcspn(at, " :");
    json_ready(o, "minimum", at, low);
    at += low;
    if (at < end)
        json_ready(o, "maximum", at + 1, (size_t)(end - at - 1));
    else
        json_int(o, "maximum", INT32_MAX);
}

/* A field that is read: "KIND" or "KIND: description". */
static void put_read(str *o, const char *name, const char *kind)
{
    const char *end = kind + strcspn(kind, ":");
    if (!strcmp(kind, "sampling")) {
        put_sampling(o, name);
        return;
    }
    if (isupper((unsigned char)*kind) && !*end) {
        put_ref(o, name, "schemas", kind, strlen(kind));
        return;
    }
    json_open(o, name, '{');
    if (isupper((unsigned char)*kind)) {
        json_words(o, "$ref", "#/components/schemas/%.*s", (int)(end - kind), kind);
    } else if (*kind == '=') {
        put_words(o, kind + 1);
    } else if (!strncmp(kind, "int ", 4)) {
        put_type(o, "integer");
        put_bounds(o, kind + 4, end);
    } else {
        put_type(o, *kind == 'b' ? "boolean" : "string");
    }
    if (*end)
        json_text(o, "description", end + 2);
    json_close(o, "}");
}

/* ---- Bodies of the endpoints that generate ---- */

static const struct {
    const char *name;
    api_kind api;
    const char *required[2];
} bodies[] = {
    {"ChatRequest", API_CHAT, {"messages"}},
    {"CompletionRequest", API_COMPLETIONS, {"prompt"}},
    {"ResponsesRequest", API_RESPONSES, {"input"}},
    {"MessagesRequest", API_MESSAGES, {"messages"}},
    {"LlamaRequest", API_LLAMA, {"prompt"}},
    {"InfillRequest", API_INFILL, {"input_prefix", "input_suffix"}},
    {"OllamaChatRequest", API_OLLAMA_CHAT, {"model"}},
    {"OllamaGenerateRequest", API_OLLAMA_GENERATE, {"model"}},
    {"OllamaOptions", API_OLLAMA_OPTIONS, {NULL}},
};

static void put_body(str *o, size_t i)
{
    field_row row;
    json_open(o, bodies[i].name, '{');
    if (bodies[i].api == API_OLLAMA_OPTIONS)
        put_type(o, "object");
    else
        json_text(o, "type", "object");
    json_open(o, "required", '[');
    for (size_t k = 0; k < 2 && bodies[i].required[k]; k++)
        json_text(o, NULL, bodies[i].required[k]);
    json_close(o, "]");
    json_open(o, "properties", '{');
    for (size_t k = 0; field_row_at(k, bodies[i].api, &row); k++)
        if (!strcmp(row.kind, "read"))
            put_read(o, row.name, row.values);
        else if (!strcmp(row.kind, "only"))
            put_only(o, row.name, row.values);
        else
            json_bool(o, row.name, true);
    json_close(o, "}");
    json_open(o, "patternProperties", '{');
    json_bool(o, "^speculative[.]", true);
    json_close(o, "}");
    put_ref(o, "additionalProperties", "schemas", "Nothing", strlen("Nothing"));
    json_close(o, "}");
}

/* Steps of sampling: names as llama.cpp has them, and their other spellings, of which the letters
 * may be one text. */
static void put_samplers(str *o)
{
#define SPELT(step, name, others) name " " others " "
    static const char words[] = CARAT_SAMPLER_STEPS(SPELT);
#undef SPELT
    char letters[CARAT_SAMPLERS_MAX + 1] = "", *letter = letters;
    json_open(o, "Samplers", '{');
    json_open(o, "anyOf", '[');
    json_open(o, NULL, '{');
    json_text(o, "type", "null");
    json_close(o, "}");
    json_open(o, NULL, '{');
    json_text(o, "type", "array");
    json_int(o, "maxItems", CARAT_SAMPLERS_MAX);
    json_open(o, "items", '{');
    json_open(o, "enum", '[');
    for (const char *w = words; *w; w += strcspn(w, " ") + 1) {
        size_t n = strcspn(w, " ");
        json_text_n(o, NULL, w, n);
        if (n == 1)
            *letter++ = *w;
    }
    json_close(o, "]}}");
    json_open(o, NULL, '{');
    json_text(o, "type", "string");
    json_words(o, "pattern", "^[%s]*$", letters);
    json_int(o, "maxLength", CARAT_SAMPLERS_MAX);
    json_text(o, "description", "A letter for each step");
    json_close(o, "}]}");
}

/* ---- Paths ---- */

static void put_content(str *o, const char *type, const char *schema)
{
    json_open(o, type, '{');
    if (schema)
        put_ref(o, "schema", "schemas", schema, strlen(schema));
    json_close(o, "}");
}

static void put_status(str *o, const char *code, const char *description, const char *schema)
{
    json_open(o, code, '{');
    json_text(o, "description", description);
    json_open(o, "content", '{');
    put_content(o, "application/json", schema);
    json_close(o, "}}");
}

static void put_reply(str *o, const route_about *a)
{
    json_open(o, "200", '{');
    json_text(o, "description",
              a->more & EVENTS ? "The answer; with \"stream\" its events" : "The answer");
    if (!(a->more & EMPTY)) {
        json_open(o, "content", '{');
        if (a->more & PLAIN)
            put_content(o, "text/plain", NULL);
        if (!(a->more & (PLAIN | STREAM)) || a->reply)
            put_content(o, "application/json", a->reply ? a->reply : "Object");
        if (a->more & (EVENTS | STREAM))
            put_content(o, "text/event-stream", NULL);
        if (a->more & LINES)
            put_content(o, "application/x-ndjson", NULL);
        json_close(o, "}");
    }
    json_close(o, "}");
}

static const char *error_schema(const dialect *d)
{
    return d == &messages_dialect      ? "AnthropicError"
           : d == &ollama_chat_dialect ? "OllamaError"
                                       : "Error";
}

static void put_replies(str *o, const route *r)
{
    static const char wrong[] = "What is wrong, in a sentence that names the field";
    const unsigned more = r->about.more;
    const bool asks = strcmp(r->method, "GET") != 0;
    const bool named = strchr(r->path, '{');
    const struct {
        const char *status;
        bool may;
    } errors[] = {{"400", asks || named}, {"401", r->access == KEY_HOLDERS},
                  {"403", true},          {"404", more & NOT_FOUND},
                  {"413", asks},          {"429", asks && r->needs_model},
                  {"500", more & FAILS},  {"501", more & NOT_DONE},
                  {"503", true}};
    json_open(o, "responses", '{');
    put_reply(o, &r->about);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].may)
            put_status(o, errors[i].status, wrong, error_schema(r->errors));
    json_close(o, "}");
}

/* The parts {name} of the path, and the parameters of the query. */
static void put_parameters(str *o, const route *r)
{
    const char *q = r->about.query ? r->about.query : "";
    json_open(o, "parameters", '[');
    for (const char *at = strchr(r->path, '{'); at; at = strchr(at + 1, '{'))
        put_ref(o, NULL, "parameters", at + 1, strcspn(at + 1, "}"));
    for (; *q; q += strcspn(q, " "), q += strspn(q, " "))
        put_ref(o, NULL, "parameters", q, strcspn(q, " "));
    json_close(o, "]");
}

static void put_operation(str *o, const route *r)
{
    char key[8], *k = key;
    for (const char *m = r->method; *m; m++)
        *k++ = (char)tolower((unsigned char)*m);
    *k = '\0';
    json_open(o, key, '{');
    json_key(o, "operationId"); /* post_v1_chat_completions */
    str_printf(o, "\"%s", key);
    for (const char *p = r->path; *p; p++)
        if (*p != '{' && *p != '}')
            str_putc(o, isalnum((unsigned char)*p) ? *p : '_');
    str_putc(o, '"');
    json_text(o, "summary", r->about.summary);
    if (r->same_as)
        json_words(o, "description", "The same as %s", r->same_as);
    put_parameters(o, r);
    if (r->about.request) {
        json_open(o, "requestBody", '{');
        json_bool(o, "required", true);
        json_open(o, "content", '{');
        put_content(o, r->about.more & FORM ? "multipart/form-data" : "application/json",
                    r->about.request);
        json_close(o, "}}");
    }
    put_replies(o, r);
    json_close(o, "}");
}

static void put_options(str *o, const char *path)
{
    char methods[METHODS_BYTES];
    const route bare = {.path = path};
    route_methods(path, methods);
    json_open(o, "options", '{');
    put_parameters(o, &bare);
    json_words(o, "summary", "What may be asked here: %s", methods);
    json_open(o, "security", '[');
    json_empty(o, NULL, "{}");
    json_close(o, "]");
    json_open(o, "responses", '{');
    json_open(o, "204", '{');
    json_text(o, "description", "In the header Allow");
    json_open(o, "headers", '{');
    json_open(o, "Allow", '{');
    json_open(o, "schema", '{');
    json_text(o, "const", methods);
    json_close(o, "}}}}}}");
}

/* A path stands once, with all of its methods, where its first row stands. */
static void put_paths(str *o)
{
    route r, other;
    json_open(o, "paths", '{');
    for (size_t i = 0; route_at(i, &r); i++) {
        bool first = r.about.summary != NULL;
        for (size_t k = 0; k < i && route_at(k, &other); k++)
            first &= strcmp(other.path, r.path) != 0;
        if (!first)
            continue;
        json_open(o, r.path, '{');
        for (size_t k = i; route_at(k, &other); k++)
            if (!strcmp(other.path, r.path))
                put_operation(o, &other);
        put_options(o, r.path);
        json_close(o, "}");
    }
    json_close(o, "}");
}

/* ---- The document ---- */

static void put_security(str *o, const char *scheme)
{
    json_open(o, NULL, '{');
    json_empty(o, scheme, "[]");
    json_close(o, "}");
}

static void put_head(str *o)
{
    json_open(o, NULL, '{');
    json_text(o, "openapi", "3.1.0");
    json_open(o, "info", '{');
    json_text(o, "title", "carat");
    json_text(o, "version", carat_version());
    json_text(o, "summary",
              "Language models over the APIs of OpenAI, Anthropic, ollama and llama-server");
    json_open(o, "license", '{');
    json_text(o, "name", "Apache-2.0");
    json_text(o, "identifier", "Apache-2.0");
    json_close(o, "}");
    json_text(
        o, "description",
        "Requests: JSON of at most --max-body bytes (64 MiB), nested at most 64 deep; its tree "
        "may take 16 MiB and 8 times the body. A field that would change the answer works or "
        "is refused with 400 and its name; those that are accepted without effect have the "
        "schema true. OPTIONS tells the methods of each path.");
    json_close(o, "}");
    json_open(o, "security", '[');
    json_empty(o, NULL, "{}");
    put_security(o, "bearer");
    put_security(o, "header");
    json_close(o, "]");
}

void openapi_write(str *o)
{
    /* schemas.json ends with the object of schemas: theirs follow the generated ones. */
    static const char mark[] = "\"schemas\": {";
    const char *schemas =
        memmem(carat_schemas_begin, (size_t)(carat_schemas_end - carat_schemas_begin), mark,
               sizeof mark - 1);
    schemas += sizeof mark - 1;
    put_head(o);
    put_paths(o);
    json_ready(o, "components", carat_schemas_begin, (size_t)(schemas - carat_schemas_begin));
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        put_body(o, i);
    put_samplers(o);
    json_ready(o, NULL, schemas, (size_t)(carat_schemas_end - schemas));
    json_close(o, "}");
}

void handle_openapi(exchange *x)
{
    openapi_write(&x->out);
    x->status = 200;
}
