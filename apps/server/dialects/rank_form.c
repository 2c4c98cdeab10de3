/* rank_form.c - see rank_form.h. */
#include "apps/server/dialects/rank_form.h"

#include "apps/jsonw.h"
#include "base/mem.h"

#include <stdlib.h>

/* ---- Reading ---- */

enum { DOCS = 1 << RANK_DOCUMENTS, PAIRS = 1 << RANK_PAIRS, BOTH = DOCS | PAIRS };
static const field_name fields[] = {{"model", BOTH},
                                    {"instruction", BOTH},
                                    {"keep_alive", BOTH},
                                    {"user", BOTH},
                                    {"query", DOCS},
                                    {"documents", BOTH},
                                    {"texts", DOCS},
                                    {"top_n", DOCS},
                                    {"return_documents", DOCS},
                                    {"return_text", DOCS},
                                    {"text_1", PAIRS},
                                    {"text_2", PAIRS},
                                    {"queries", PAIRS},
                                    {"data_1", PAIRS},
                                    {"data_2", PAIRS},
                                    {NULL, 0}};

/* A text, or an object that has it as `text`. */
static const jtree *text_of(const jtree *v)
{
    const jtree *t = jtree_is(v, JTREE_OBJECT) ? jtree_get(v, "text") : v;
    return jtree_is(t, JTREE_STRING) ? t : NULL;
}

/* One text, or a list of them. */
static bool read_texts(rank_request *rq, const char *field, const jtree *v, bool list,
                       const jtree ***out, int32_t *n, problem *p)
{
    bool one = !list && v && v->kind != JTREE_ARRAY;
    if (!v)
        return problem_set(p, 400, field, "'%s' is missing", field);
    if (!one && (v->kind != JTREE_ARRAY || !v->count || v->count > RANK_TEXTS_MAX))
        return problem_set(p, 400, field, "'%s' is %s of %zu; expected a list of 1 to %d texts",
                           field, jtree_kind_name(v), v->count, RANK_TEXTS_MAX);
    *out = arena_array(&rq->mem, one ? 1 : v->count, sizeof **out);
    if (!*out)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    for (const jtree *i = one ? v : v->first; i; i = one ? NULL : i->next)
        if (!((*out)[(*n)++] = text_of(i)))
            return problem_set(p, 400, field,
                               "'%s' holds %s; expected texts, or objects with a 'text'", field,
                               jtree_kind_name(i));
    return true;
}

static bool read_documents(rank_request *rq, problem *p)
{
    const jtree *query = jtree_get(rq->body, "query"), *list = jtree_get(rq->body, "documents");
    rq->tei = !list && (list = jtree_get(rq->body, "texts"));
    const char *with = rq->tei ? "return_text" : "return_documents";
    if (!field_int(p, rq->body, "top_n", 1, INT32_MAX, &rq->top_n) ||
        !field_bool(p, rq->body, with, &rq->texts))
        return false;
    if (query && (query->kind != JTREE_STRING || !query->n))
        return problem_set(p, 400, "query", "'query' is %s; expected a text",
                           query->n ? jtree_kind_name(query) : "empty");
    return read_texts(rq, "query", query, false, &rq->query, &rq->n_queries, p) &&
           read_texts(rq, rq->tei ? "texts" : "documents", list, true, &rq->document, &rq->n, p);
}

/* The first of three names that the request has. */
static const char *first_of(const jtree *body, const char *a, const char *b, const char *c)
{
    return jtree_get(body, a) ? a : jtree_get(body, b) ? b : jtree_get(body, c) ? c : a;
}

static bool read_pairs(rank_request *rq, problem *p)
{
    const char *one = first_of(rq->body, "text_1", "queries", "data_1");
    const char *two = first_of(rq->body, "text_2", "documents", "data_2");
    if (!read_texts(rq, one, jtree_get(rq->body, one), false, &rq->query, &rq->n_queries, p) ||
        !read_texts(rq, two, jtree_get(rq->body, two), false, &rq->document, &rq->n, p))
        return false;
    return rq->n_queries == 1 || rq->n_queries == rq->n ||
           problem_set(p, 400, two, "%d texts in '%s' and %d in '%s': expected one, or as many",
                       rq->n_queries, one, rq->n, two);
}

bool rank_read(rank_request *rq, rank_api api, const char *body, size_t n, bool lenient, problem *p)
{
    rq->api = api;
    rq->model = "";
    if (!body_parse(&rq->mem, body, n, &rq->body, p))
        return false;
    return (lenient || fields_known(p, rq->body, fields, api)) &&
           field_text(p, rq->body, "model", &rq->model) &&
           keep_alive_read(rq->body, &rq->keep_ms, p) &&
           field_text(p, rq->body, "instruction", &rq->instruction) &&
           (api == RANK_PAIRS ? read_pairs(rq, p) : read_documents(rq, p));
}

void rank_free(rank_request *rq)
{
    arena_free(&rq->mem);
    *rq = (rank_request){0};
}

/* ---- Writing ---- */

typedef struct place {
    int32_t i;
    float score;
} place;

static int by_score(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->i > y->i) - (x->i < y->i);
}

static void put_document(const rank_request *rq, place at, str *o)
{
    const jtree *text = rq->document[at.i];
    json_open(o, NULL, '{');
    json_int(o, "index", at.i);
    json_number(o, rq->tei ? "score" : "relevance_score", (double)at.score);
    if (rq->texts && rq->tei) {
        json_text_n(o, "text", text->s, text->n);
    } else if (rq->texts) {
        json_open(o, "document", '{');
        json_text_n(o, "text", text->s, text->n);
        json_close(o, "}");
    }
    json_close(o, "}");
}

static bool put_documents(const rank_request *rq, const float *scores, str *o)
{
    int32_t n = rq->top_n && rq->top_n < rq->n ? (int32_t)rq->top_n : rq->n;
    place *order = mem_alloc((size_t)rq->n * sizeof *order);
    if (!order)
        return false;
    for (int32_t i = 0; i < rq->n; i++)
        order[i] = (place){i, scores[i]};
    qsort(order, (size_t)rq->n, sizeof *order, by_score);
    json_open(o, rq->tei ? NULL : "results", '[');
    for (int32_t i = 0; i < n; i++)
        put_document(rq, order[i], o);
    json_close(o, "]");
    mem_free(order);
    return true;
}

bool rank_put(const rank_request *rq, const float *scores, const char *model, int64_t n_tokens,
              str *o)
{
    if (rq->tei)
        return put_documents(rq, scores, o);
    json_open(o, NULL, '{');
    json_text(o, "object", "list");
    json_text(o, "model", model);
    json_open(o, "usage", '{');
    json_int(o, "prompt_tokens", n_tokens);
    json_int(o, "total_tokens", n_tokens);
    json_close(o, "}");
    bool ok = rq->api == RANK_PAIRS || put_documents(rq, scores, o);
    if (rq->api == RANK_PAIRS) {
        json_open(o, "data", '[');
        for (int32_t i = 0; i < rq->n; i++) {
            json_open(o, NULL, '{');
            json_text(o, "object", "score");
            json_int(o, "index", i);
            json_number(o, "score", (double)scores[i]);
            json_close(o, "}");
        }
        json_close(o, "]");
    }
    json_close(o, "}");
    return ok;
}
