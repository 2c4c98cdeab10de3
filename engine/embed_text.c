/* embed_text.c - texts as models of vectors want them: a prompt by name before the text, the begin
 * token, and the token that the file puts behind each text.
 *
 * Prompts are those of config_sentence_transformers.json. A file that carat converted has them; for
 * others the lists below are those that the publishers of the family give.
 */
#include "engine/engine_int.h"
#include "base/str.h"

#include <string.h>

typedef struct named_prompt {
    const char *name, *text;
} named_prompt;

#define SEARCH "task: search result | query: "
#define DOCUMENT "title: none | text: "
static const named_prompt of_embeddinggemma[] = {
    {"query", SEARCH},
    {"document", DOCUMENT},
    {"BitextMining", SEARCH},
    {"Clustering", "task: clustering | query: "},
    {"Classification", "task: classification | query: "},
    {"InstructionRetrieval", "task: code retrieval | query: "},
    {"MultilabelClassification", "task: classification | query: "},
    {"PairClassification", "task: sentence similarity | query: "},
    {"Reranking", SEARCH},
    {"Retrieval", SEARCH},
    {"Retrieval-query", SEARCH},
    {"Retrieval-document", DOCUMENT},
    {"STS", "task: sentence similarity | query: "},
    {"Summarization", "task: summarization | query: "},
};
static const named_prompt of_qwen3[] = {
    {"query", "Instruct: Given a web search query, retrieve relevant passages that answer the "
              "query\nQuery:"},
    {"document", ""},
};

/* The lists of the file, of equal length; false: it has none. */
static bool file_prompts(const carat_model *m, const gguf_value **names, const gguf_value **texts)
{
    *names = gguf_find(&m->core.file, "sentence_transformers.prompt.names");
    *texts = gguf_find(&m->core.file, "sentence_transformers.prompt.texts");
    return *names && *texts && (*names)->kind == GGUF_ARRAY && (*texts)->kind == GGUF_ARRAY &&
           (*names)->item == GGUF_STRING && (*texts)->item == GGUF_STRING &&
           (*names)->count == (*texts)->count;
}

/* The list of the family, for files without one. */
static int32_t family_prompts(const carat_model *m, const named_prompt **list)
{
    const char *arch = m->core.arch->name;
    bool stated;
    *list = of_embeddinggemma;
    if (m->core.encoder)
        return sizeof of_embeddinggemma / sizeof *of_embeddinggemma;
    *list = of_qwen3;
    carat_pooling p = carat_model_pooling(m, &stated);
    return !strcmp(arch, "qwen3") && stated && p == CARAT_POOL_LAST
               ? sizeof of_qwen3 / sizeof *of_qwen3
               : 0;
}

bool carat_model_embed_prompt(const carat_model *m, int32_t i, carat_embed_prompt *p)
{
    const gguf_value *names, *texts;
    const named_prompt *list;
    uint64_t at = 0, in = 0;
    gguf_string name = {0}, text = {0};
    if (i < 0)
        return false;
    if (!file_prompts(m, &names, &texts)) {
        if (i >= family_prompts(m, &list))
            return false;
        *p = (carat_embed_prompt){list[i].name, list[i].text, strlen(list[i].name),
                                  strlen(list[i].text)};
        return true;
    }
    for (int32_t k = 0; k <= i; k++)
        if (!gguf_next_string(names, &at, &name) || !gguf_next_string(texts, &in, &text))
            return false;
    *p = (carat_embed_prompt){name.at, text.at, (size_t)name.n, (size_t)text.n};
    return true;
}

carat_status carat_embed_prompt_named(const carat_model *m, const char *name,
                                      carat_embed_prompt *out, carat_error *e)
{
    carat_embed_prompt p;
    str known = {0};
    for (int32_t i = 0; carat_model_embed_prompt(m, i, &p); i++) {
        if (p.n_name == strlen(name) && !memcmp(p.name, name, p.n_name)) {
            *out = p;
            str_free(&known);
            return OK;
        }
        if (known.n < 400)
            str_printf(&known, "%s%.*s", i ? ", " : "", (int)(p.n_name < 60 ? p.n_name : 60),
                       p.name);
    }
    status st = err_set(e, E_ARG, "%s has no prompt %.60s: %s%s", m->core.name, name,
                        known.n ? "these are " : "it has none by name", str_text(&known));
    str_free(&known);
    return st;
}

/* The token that a file puts behind each text; -1: none. */
static int32_t end_token(const carat_model *m)
{
    const gguf *g = &m->core.file;
    int64_t add, id;
    bool wanted = gguf_get_i64(g, "tokenizer.ggml.add_eos_token", &add) && add &&
                  gguf_get_i64(g, "tokenizer.ggml.eos_token_id", &id) && id >= 0 &&
                  id < m->core.n_vocab;
    return wanted ? (int32_t)id : -1;
}

int64_t carat_embed_tokenize(const carat_model *m, const carat_embed_text *t, int64_t most,
                             int32_t *ids, int64_t cap, bool *cut, carat_error *e)
{
    str all = {0};
    int32_t end = end_token(m);
    const char *text = t->text;
    size_t n_text = t->n_text;
    if (t->n_prompt) {
        str_put(&all, t->prompt, t->n_prompt);
        str_put(&all, t->text, t->n_text);
        text = all.at;
        n_text = all.n;
    }
    int64_t n = all.bad ? err_memory(e, "a prompt before a text", t->n_text),
            -1          : carat_tokenize(m, text, n_text, CARAT_TOK_BOS, ids, cap, e);
    str_free(&all);
    if (n < 0)
        return -1;
    *cut = most > 0 && n + (end >= 0) > most;
    n = *cut ? most - (end >= 0) : n;
    if (end < 0)
        return n;
    if (ids && n < cap)
        ids[n] = end;
    return n + 1;
}
