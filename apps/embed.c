/* embed.c - `carat embed`: texts to vectors; `carat rerank`: texts in the order in which they
 * answer a query.
 *
 * Texts are the words of the command line, or lines of a file or of standard input. Vectors have
 * length 1, as sentence-transformers and the server give them.
 */
#include "apps/commands.h"
#include "apps/run_int.h"
#include "apps/texts.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

typedef struct embed_options {
    const char *model, *file, *prompt, *pooling, *isa, *instruction;
    kv_options kv;
    device_options where;
    int64_t dimensions, threads, top;
    bool json, raw, truncate, plain, overcommit, exact;
} embed_options;

#define OPT_TEXTS                                                                                  \
    OPT_STR(embed_options, model, "model", 'm', "FILE",                                            \
            "a GGUF file, or the name of a model (carat list)"),                                   \
        OPT_STR(embed_options, file, "file", 'f', "FILE",                                          \
                "a text on each line; - is standard input")
#define OPT_COMPUTE                                                                                \
    OPT_THREADS(embed_options), OPT_KV(embed_options), OPT_EXACT(embed_options),                   \
        OPT_DEVICE(embed_options), OPT_ISA(embed_options), OPT_OVERCOMMIT(embed_options), OPT_END

static const option embed_table[] = {
    OPT_TEXTS,
    OPT_STR(embed_options, prompt, "prompt", 'p', "NAME",
            "the prompt of that name before each text: query, document, ..."),
    OPT_INT(embed_options, dimensions, "dimensions", 'd', "N", 1, 1 << 20,
            "the first N numbers of each vector, normed again"),
    OPT_STR(embed_options, pooling, "pooling", 0, "HOW",
            "mean or last, instead of what the model's file says"),
    OPT_FLAG(embed_options, truncate, "truncate", 0,
             "cut texts that are longer than the context, which are refused otherwise"),
    OPT_FLAG(embed_options, plain, "no-norm", 0, "vectors as the model computes them"),
    OPT_FLAG(embed_options, json, "json", 0, "print one JSON object with tokens and vectors"),
    OPT_FLAG(embed_options, raw, "raw", 0, "write f32, little-endian, instead of text"),
    OPT_COMPUTE};

static const option rerank_table[] = {
    OPT_TEXTS,
    OPT_STR(embed_options, instruction, "instruction", 0, "TEXT",
            "what a good text is (default: one that answers a web search)"),
    OPT_INT(embed_options, top, "top", 'n', "N", 1, 1 << 20, "the best N texts alone"),
    OPT_FLAG(embed_options, json, "json", 0, "print JSON"), OPT_COMPUTE};

typedef struct embed_run {
    const embed_options *o;
    const char *query; /* of carat rerank; else NULL */
    carat_model *m;
    carat_model_info info;
    carat_pooling pooling;
    carat_embed_prompt prompt;
    text_list texts;
    text_ids *ids; /* [texts.n] */
    float *to;     /* [texts.n][n_embd], or [texts.n] */
    int64_t n_tokens;
    int32_t n_dims;
} embed_run;

/* ---- Texts to ids ---- */

static int64_t tokens_of(const embed_run *r, int32_t i, int32_t *ids, int64_t cap, bool *cut,
                         err *e)
{
    const char *text = r->texts.at[i];
    size_t n = r->texts.bytes[i];
    if (r->query) {
        const char *how = r->o->instruction;
        return carat_rank_tokenize(r->m,
                                   &(carat_rank_text){.query = r->query,
                                                      .n_query = strlen(r->query),
                                                      .document = text,
                                                      .n_document = n,
                                                      .instruction = how,
                                                      .n_instruction = how ? strlen(how) : 0},
                                   ids, cap, e);
    }
    return carat_embed_tokenize(
        r->m,
        &(carat_embed_text){
            .prompt = r->prompt.text, .n_prompt = r->prompt.n_text, .text = text, .n_text = n},
        r->o->truncate ? r->info.n_ctx_train : 0, ids, cap, cut, e);
}

static status read_ids(embed_run *r, err *e)
{
    r->ids = mem_calloc((size_t)r->texts.n, sizeof *r->ids);
    if (!r->ids)
        return err_memory(e, "the texts", (size_t)r->texts.n * sizeof *r->ids);
    for (int32_t i = 0; i < r->texts.n; i++) {
        text_ids *t = &r->ids[i];
        bool cut = false;
        int64_t n = tokens_of(r, i, NULL, 0, &cut, e);
        if (n < 0)
            return e->status;
        if (n > r->info.n_ctx_train)
            return err_set(e, E_LIMIT, "text %d has %lld tokens, and the context of %s holds %d%s",
                           i + 1, (long long)n, r->info.name, r->info.n_ctx_train,
                           r->query ? "" : " (--truncate)");
        if (!(t->id = mem_alloc((size_t)n * sizeof *t->id)))
            return err_memory(e, "a text", (size_t)n * sizeof *t->id);
        t->n = tokens_of(r, i, t->id, n, &cut, e);
        if (t->n < 0)
            return e->status;
        r->n_tokens += t->n;
    }
    return OK;
}

/* ---- Vectors ---- */

/* Cuts a vector and gives it length 1. */
static status norm(const embed_run *r, float *v, err *e)
{
    double sum = 0;
    for (int32_t i = 0; i < r->n_dims; i++)
        sum += (double)v[i] * (double)v[i];
    if (!(sum > 0) && !r->o->plain)
        return err_set(e, E_NUMERIC,
                       "the model computed a vector of zeros, which has no direction");
    for (int32_t i = 0; i < r->n_dims && !r->o->plain; i++)
        v[i] = (float)((double)v[i] / sqrt(sum));
    return OK;
}

static json_t *numbers(const float *x, int32_t n)
{
    json_t *a = json_array();
    for (int32_t i = 0; i < n && a; i++)
        if (json_array_append_new(a, json_real(x[i]))) {
            json_decref(a);
            a = NULL;
        }
    return a;
}

static status print_json(json_t *v, err *e)
{
    if (!v)
        return err_memory(e, "the report", 0);
    bool ok = json_write(stdout, v, 0);
    json_decref(v);
    return ok ? OK : err_set(e, E_IO, "cannot write the report");
}

static status print_vectors(embed_run *r, err *e)
{
    json_t *list = r->o->json ? json_array() : NULL;
    status st = OK;
    for (int32_t i = 0; i < r->texts.n && !st; i++) {
        float *v = r->to + (size_t)i * (size_t)r->info.n_embd;
        if ((st = norm(r, v, e)))
            break;
        if (r->o->json) {
            json_t *one = json_pack("{s:i, s:I, s:o}", "index", (int)i, "tokens",
                                    (json_int_t)r->ids[i].n, "embedding", numbers(v, r->n_dims));
            if (!list || json_array_append_new(list, one))
                st = err_memory(e, "the report", 0);
        } else if (r->o->raw) {
            fwrite(v, sizeof *v, (size_t)r->n_dims, stdout); /* the host is little-endian */
        } else {                                             /* nine digits name a float exactly */
            for (int32_t k = 0; k < r->n_dims; k++)
                printf("%s%.9g", k ? "," : "[", (double)v[k]);
            puts("]");
        }
    }
    if (!st && r->o->json)
        return print_json(json_pack("{s:s, s:s, s:i, s:o}", "model", r->info.name, "pooling",
                                    r->pooling == CARAT_POOL_MEAN ? "mean" : "last", "dimensions",
                                    (int)r->n_dims, "data", list),
                          e);
    json_decref(list);
    return st;
}

static const float *scores; /* of the sort under way */
static int by_score(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return scores[x] != scores[y] ? (scores[x] < scores[y]) - (scores[x] > scores[y])
                                  : (x > y) - (x < y);
}

static status print_ranks(const embed_run *r, err *e)
{
    int32_t n = r->o->top && r->o->top < r->texts.n ? (int32_t)r->o->top : r->texts.n;
    int32_t *order = mem_alloc((size_t)r->texts.n * sizeof *order);
    json_t *list = r->o->json ? json_array() : NULL;
    status st = order ? OK : err_memory(e, "the order of texts", 0);
    for (int32_t i = 0; i < r->texts.n && order; i++)
        order[i] = i;
    scores = r->to;
    if (order)
        qsort(order, (size_t)r->texts.n, sizeof *order, by_score);
    for (int32_t k = 0; k < n && !st; k++) {
        int32_t i = order[k];
        if (r->o->json) {
            json_t *one =
                json_pack("{s:i, s:f, s:s%}", "index", (int)i, "relevance_score", (double)r->to[i],
                          "document", r->texts.at[i], (size_t)r->texts.bytes[i]);
            if (!list || json_array_append_new(list, one))
                st = err_set(e, E_FORMAT, "text %d is not UTF-8, which JSON wants", i + 1);
            continue;
        }
        printf("%.6f  %d  ", (double)r->to[i], i + 1);
        term_put(stdout, r->texts.at[i], r->texts.bytes[i]);
        putchar('\n');
    }
    mem_free(order);
    if (!st && r->o->json)
        return print_json(json_pack("{s:s, s:o}", "model", r->info.name, "results", list), e);
    json_decref(list);
    return st;
}

/* ---- The commands ---- */

static status open_run(embed_run *r, err *e)
{
    const embed_options *o = r->o;
    run_options ro = {.threads = o->threads,
                      .isa = o->isa,
                      .where = o->where,
                      .exact = o->exact,
                      .overcommit = o->overcommit};
    bool stated;
    status st = run_open_model(o->model, &ro, &r->m, e);
    if (st)
        return st;
    carat_model_get_info(r->m, &r->info);
    r->pooling = r->query ? CARAT_POOL_RANK : carat_model_pooling(r->m, &stated);
    if (o->pooling && strcmp(o->pooling, "mean") != 0 && strcmp(o->pooling, "last") != 0)
        return err_set(e, E_ARG, "--pooling '%s': expected mean or last", o->pooling);
    if (o->pooling)
        r->pooling = *o->pooling == 'm' ? CARAT_POOL_MEAN : CARAT_POOL_LAST;
    if (o->json && o->raw)
        return err_set(e, E_ARG, "--json and --raw: expected one of them");
    if (o->dimensions > r->info.n_embd)
        return err_set(e, E_ARG, "--dimensions %lld: vectors of %s have %d numbers",
                       (long long)o->dimensions, r->info.name, r->info.n_embd);
    r->n_dims = o->dimensions ? (int32_t)o->dimensions : r->info.n_embd;
    return o->prompt ? carat_embed_prompt_named(r->m, o->prompt, &r->prompt, e) : OK;
}

static status compute(embed_run *r, err *e)
{
    size_t width = r->query ? 1 : (size_t)r->info.n_embd, n = (size_t)r->texts.n;
    carat_session_options so = {.checkpoint_mb = -1};
    kv_options_apply(&r->o->kv, &so);
    if (!(r->to = mem_calloc(n * width, sizeof *r->to)))
        return err_memory(e, "the vectors", n * width * sizeof *r->to);
    return texts_compute(r->m, r->ids, r->texts.n, r->pooling, &so, r->to, e);
}

/* words: of the command line, without the query. */
static int run_texts(embed_run *r, char **words, int n_words)
{
    err e = {0};
    status st;
    term_init();
    term_watch(NULL);
    double start_ms = clock_ms();
    if ((st = texts_read(&r->texts, words, n_words, r->o->file, &e)) || (st = open_run(r, &e)) ||
        (st = read_ids(r, &e)) || (st = compute(r, &e)) ||
        (st = r->query ? print_ranks(r, &e) : print_vectors(r, &e)))
        goto out;
    if (!(st = term_flush(&e)))
        term_note("%d texts, %lld tokens in %.2f s on %s", r->texts.n, (long long)r->n_tokens,
                  (clock_ms() - start_ms) * 1e-3, r->info.device);
out:
    for (int32_t i = 0; r->ids && i < r->texts.n; i++)
        mem_free(r->ids[i].id);
    mem_free(r->ids);
    mem_free(r->to);
    texts_free(&r->texts);
    carat_model_close(r->m);
    return term_exit(st, &e);
}

static int run_embed(const command *c, int argc, char **argv)
{
    embed_options o = {0};
    embed_run r = {.o = &o};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    return bad ? bad - 1 : run_texts(&r, argv, n_operands);
}

static int run_rerank(const command *c, int argc, char **argv)
{
    embed_options o = {0};
    embed_run r = {.o = &o};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    if (bad)
        return bad - 1;
    r.query = argv[0];
    return run_texts(&r, argv + 1, n_operands - 1);
}

const command command_embed = {
    .name = "embed",
    .operands = "[TEXT ...]",
    .summary = "Make vectors of texts",
    .about = "Prints a line for each text: a JSON list of numbers, of length 1. Without TEXT the\n"
             "texts are the lines of --file, or of standard input. Several texts share a pass.\n"
             "Models made for it are EmbeddingGemma and Qwen3-Embedding; they want a prompt\n"
             "before a text, which --prompt names (query, document, Clustering, ...). An unknown\n"
             "name is answered with the list.",
    .options = embed_table,
    .n_operands_max = -1,
    .run = run_embed};

const command command_rerank = {
    .name = "rerank",
    .operands = "QUERY [TEXT ...]",
    .summary = "Order texts by how well they answer a query",
    .about = "Prints a line for each text, best first: the probability that it answers the query,\n"
             "its number, and the text. Without TEXT the texts are the lines of --file, or of\n"
             "standard input. The model is a reranker, such as Qwen3-Reranker.",
    .options = rerank_table,
    .n_operands_min = 1,
    .n_operands_max = -1,
    .run = run_rerank};
