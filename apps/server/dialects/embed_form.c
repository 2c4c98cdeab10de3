/* embed_form.c - see embed_form.h. */
#include "apps/server/dialects/embed_form.h"

#include "apps/jsonw.h"
#include "base/base64.h"

#include <math.h>

/* ---- Reading ---- */

enum { OAI = 1 << EMBED_OPENAI, LLA = 1 << EMBED_LLAMA, OLL = 1 << EMBED_OLLAMA };
enum { OLD = 1 << EMBED_OLLAMA_OLD, ALL = OAI | LLA | OLL | OLD };

static const field_name fields[] = {
    {"model", ALL},
    {"input", OAI | LLA | OLL},
    {"content", LLA},
    {"prompt", OLD},
    {"encoding_format", OAI | LLA},
    {"dimensions", OAI | LLA | OLL},
    {"embd_normalize", OAI | LLA},
    {"pooling", ALL},
    {"truncate", ALL},
    {"prompt_name", ALL},
    {"keep_alive", ALL},
    {"options", OLL | OLD}, /* how the model is loaded, and how it samples */
    {"user", OAI | LLA},
    {NULL, 0}};

bool embed_open(embed_request *rq, embed_api api, const char *body, size_t n, bool lenient,
                problem *p)
{
    rq->api = api;
    rq->model = "";
    rq->truncate = api == EMBED_OLLAMA || api == EMBED_OLLAMA_OLD;
    rq->norm = api == EMBED_OLLAMA_OLD ? EMBED_NORM_NONE : EMBED_NORM_EUCLID;
    if (!body_parse(&rq->mem, body, n, &rq->body, p))
        return false;
    return (lenient || fields_known(p, rq->body, fields, api)) &&
           field_text(p, rq->body, "model", &rq->model) &&
           keep_alive_read(rq->body, &rq->keep_ms, p);
}

static bool is_number(const jtree *v)
{
    return v && (v->kind == JTREE_INTEGER || v->kind == JTREE_REAL);
}

static bool read_one(embed_request *rq, const char *field, const jtree *v, int32_t n_vocab,
                     problem *p)
{
    raw_prompt *out = &rq->input[rq->n_inputs++];
    if (v->kind == JTREE_ARRAY)
        return field_prompt_ids(&rq->mem, field, v, n_vocab, out, p);
    if (v->kind != JTREE_STRING)
        return problem_set(p, 400, field, "'%s' holds %s; expected strings or lists of token ids",
                           field, jtree_kind_name(v));
    if (!v->n)
        return problem_set(p, 400, field, "'%s' holds an empty string", field);
    *out = (raw_prompt){.text = v->s, .n = v->n};
    return true;
}

static bool read_input(embed_request *rq, int32_t n_vocab, problem *p)
{
    const char *field = rq->api == EMBED_OLLAMA_OLD ? "prompt" : "input";
    const jtree *v = jtree_get(rq->body, field);
    if (!v && rq->api == EMBED_LLAMA)
        v = jtree_get(rq->body, field = "content");
    bool ollama = rq->api == EMBED_OLLAMA || rq->api == EMBED_OLLAMA_OLD;
    bool list = jtree_is(v, JTREE_ARRAY) && !is_number(v->first);
    /* ollama loads the model on an empty input. */
    bool empty = !v || (v->kind == JTREE_STRING && !v->n) || (v->kind == JTREE_ARRAY && !v->count);
    if (ollama && empty)
        return true;
    if (!v)
        return problem_set(p, 400, field, "'%s' is missing", field);
    if (list && (!v->count || v->count > EMBED_INPUTS_MAX))
        return problem_set(p, 400, field, "'%s' holds %zu inputs; expected 1 to %d", field,
                           v->count, EMBED_INPUTS_MAX);
    rq->input = arena_array(&rq->mem, list ? v->count : 1, sizeof *rq->input);
    if (!rq->input)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    if (!list)
        return read_one(rq, field, v, n_vocab, p);
    for (const jtree *i = v->first; i; i = i->next)
        if (!read_one(rq, field, i, n_vocab, p))
            return false;
    return true;
}

static bool read_pooling(embed_request *rq, problem *p)
{
    const jtree *v = jtree_get(rq->body, "pooling");
    if (!v)
        return true;
    rq->pooling_given = true;
    if (tree_says(v, "mean"))
        rq->pooling = CARAT_POOL_MEAN;
    else if (tree_says(v, "last"))
        rq->pooling = CARAT_POOL_LAST;
    else
        return problem_set(p, 400, "pooling", "'pooling' is %s; expected \"mean\" or \"last\"",
                           v->kind == JTREE_STRING ? "another word" : jtree_kind_name(v));
    return true;
}

bool embed_read(embed_request *rq, int32_t n_vocab, int32_t n_embd, problem *p)
{
    const jtree *form = jtree_get(rq->body, "encoding_format");
    int64_t norm = rq->norm;
    if (!read_input(rq, n_vocab, p) || !read_pooling(rq, p) ||
        !field_bool(p, rq->body, "truncate", &rq->truncate) ||
        !field_text(p, rq->body, "prompt_name", &rq->prompt_name) ||
        !field_int(p, rq->body, "embd_normalize", -1, 100, &norm) ||
        !field_int(p, rq->body, "dimensions", 1, n_embd, &rq->dimensions))
        return false;
    rq->norm = (int32_t)norm;
    rq->base64 = tree_says(form, "base64");
    if (form && !rq->base64 && !tree_says(form, "float"))
        return problem_set(p, 400, "encoding_format",
                           "'encoding_format' is %s; expected \"float\" or \"base64\"",
                           form->kind == JTREE_STRING ? "another word" : jtree_kind_name(form));
    int64_t values = (int64_t)rq->n_inputs * (rq->dimensions ? rq->dimensions : n_embd);
    return values <= EMBED_VALUES_MAX ||
           problem_set(p, 400, "input",
                       "%d inputs give %lld numbers, and an answer holds %d: send fewer at once, "
                       "or set 'dimensions'",
                       rq->n_inputs, (long long)values, EMBED_VALUES_MAX);
}

void embed_free(embed_request *rq)
{
    arena_free(&rq->mem);
    *rq = (embed_request){0};
}

/* ---- Norms ---- */

bool embed_norm(const embed_request *rq, float *v, int32_t *n, problem *p)
{
    double sum = 0, largest = 0, by = 1;
    int32_t dims = rq->dimensions && rq->dimensions < *n ? (int32_t)rq->dimensions : *n;
    for (int32_t i = 0; i < dims;
         i++) { /* by fmax, gcc 12 for AArch64 stops with an internal error */
        double size = fabs((double)v[i]);
        largest = size > largest ? size : largest;
    }
    bool plain = rq->norm == EMBED_NORM_NONE;
    if (!plain && !(largest > 0))
        return problem_set(p, 500, "",
                           "the model computed an embedding of zeros, which has no "
                           "direction");
    if (rq->norm == EMBED_NORM_MAX) {
        by = 32760 / largest;
    } else if (!plain) {
        for (int32_t i = 0; i < dims; i++) /* by shares of the largest: no overflow for any p */
            sum += pow(fabs((double)v[i]) / largest, rq->norm);
        by = 1 / (largest * pow(sum, 1.0 / rq->norm));
    }
    for (int32_t i = 0; i < dims && !plain; i++)
        v[i] = (float)((double)v[i] * by);
    *n = dims;
    return true;
}

/* ---- Writing ---- */

/* Nine digits name a float exactly. */
static void put_vector(const embed_answer *a, const char *key, const float *v, int32_t n, str *o)
{
    if (a->rq->base64) {
        json_key(o, key);
        str_putc(o, '"');
        base64_put(o, v, (size_t)n * sizeof *v); /* little-endian, as every machine of carat's */
        str_putc(o, '"');
        return;
    }
    json_open(o, key, '[');
    for (int32_t i = 0; i < n; i++)
        str_printf(o, i ? ",%.9g" : "%.9g", (double)v[i]);
    json_close(o, "]");
}

void embed_begin(const embed_answer *a, str *o)
{
    json_open(o, NULL, a->rq->api == EMBED_LLAMA ? '[' : '{');
    switch (a->rq->api) {
    case EMBED_OPENAI:
        json_text(o, "object", "list");
        json_open(o, "data", '[');
        break;
    case EMBED_OLLAMA:
        json_text(o, "model", a->model);
        json_open(o, "embeddings", '[');
        break;
    case EMBED_OLLAMA_OLD:
        if (!a->rq->n_inputs)
            json_empty(o, "embedding", "[]");
        break;
    case EMBED_LLAMA:
        break;
    }
}

void embed_put(const embed_answer *a, int32_t index, const float *v, int32_t n, str *o)
{
    switch (a->rq->api) {
    case EMBED_OPENAI:
        json_open(o, NULL, '{');
        json_text(o, "object", "embedding");
        json_int(o, "index", index);
        put_vector(a, "embedding", v, n, o);
        json_close(o, "}");
        break;
    case EMBED_LLAMA: /* a list of vectors, of one even if they are pooled */
        json_open(o, NULL, '{');
        json_int(o, "index", index);
        json_open(o, "embedding", '[');
        put_vector(a, NULL, v, n, o);
        json_close(o, "]}");
        break;
    case EMBED_OLLAMA:
        put_vector(a, NULL, v, n, o);
        break;
    case EMBED_OLLAMA_OLD:
        put_vector(a, "embedding", v, n, o);
        break;
    }
}

void embed_end(const embed_answer *a, str *o)
{
    switch (a->rq->api) {
    case EMBED_OPENAI:
        json_close(o, "]");
        json_text(o, "model", a->model);
        json_text(o, "pooling", a->pooling);
        json_open(o, "usage", '{');
        json_int(o, "prompt_tokens", a->n_tokens);
        json_int(o, "total_tokens", a->n_tokens);
        json_close(o, "}}");
        break;
    case EMBED_LLAMA:
        json_close(o, "]");
        break;
    case EMBED_OLLAMA:
        json_close(o, "]");
        json_int(o, "total_duration", (int64_t)(a->total_ms * 1e6));
        json_int(o, "load_duration", (int64_t)(a->load_ms * 1e6));
        json_int(o, "prompt_eval_count", a->n_tokens);
        json_close(o, "}");
        break;
    case EMBED_OLLAMA_OLD:
        json_close(o, "}");
        break;
    }
}
