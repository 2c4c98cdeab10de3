/* rank.c - rerankers: how well a document answers a query, as the probability of "yes" against
 * "no".
 *
 * The model reads a query and a document in a fixed prompt, whose next token is "yes" or "no". The
 * probability is the soft max of these two logits. A file has the head's two rows as a matrix of
 * their own, as llama.cpp converts such models, or the whole head: then the rows are those of the
 * tokens "yes" and "no", and the model's name says that it is a reranker.
 *
 * A prompt is that of Qwen3-Reranker, or the file's own with {query} and {document}. Only its own
 * bytes may become control tokens, never those of a query or a document.
 */
#include "engine/engine_int.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/shapes.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"
static const char prompt[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n<Instruct>: " INSTRUCTION
    "\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* ---- The two rows -------------------------------------------------------------------------- */

static bool says_rerank(const char *s, size_t n)
{
    for (size_t i = 0; i + 6 <= n; i++)
        if (!strncasecmp(s + i, "rerank", 6))
            return true;
    return false;
}

/* Do the model's names say so? Files in their whole form have no other sign. */
static bool is_named_reranker(const carat_model *m)
{
    const gguf *g = &m->core.file;
    const char *slash = strrchr(g->path, '/'), *file = slash ? slash + 1 : g->path;
    gguf_string name;
    return (gguf_get_string(g, "general.name", &name) && says_rerank(name.at, (size_t)name.n)) ||
           (gguf_get_string(g, "general.basename", &name) &&
            says_rerank(name.at, (size_t)name.n)) ||
           says_rerank(file, strlen(file));
}

/* The token that is the whole of a text; -1: there is none. */
static int32_t token_of(const carat_model *m, const char *text)
{
    int32_t id;
    err e = {0};
    return carat_tokenize(m, text, strlen(text), 0, &id, 1, &e) == 1 ? id : -1;
}

status rank_open(carat_model *m, err *e)
{
    const weight *w = m->core.answers ? m->core.answers : m->core.head;
    int32_t row[RANK_ANSWERS] = {0, 1};
    if (!m->core.answers) {
        if (!m->text || !w || !is_named_reranker(m))
            return OK;
        row[0] = token_of(m, "yes");
        row[1] = token_of(m, "no");
        if (row[0] < 0 || row[1] < 0 || row[0] >= w->n_out || row[1] >= w->n_out)
            return OK;
    }
    size_t n = (size_t)w->n_in;
    m->answers = mem_alloc(RANK_ANSWERS * n * sizeof *m->answers);
    if (!m->answers)
        return err_memory(e, "the rows of \"yes\" and \"no\"", RANK_ANSWERS * n * sizeof(float));
    for (int i = 0; i < RANK_ANSWERS; i++)
        num_format_of(w->type)->decode(weight_row(w, 0, row[i]), m->answers + (size_t)i * n,
                                       w->n_in);
    for (size_t i = 0; w->factor && i < RANK_ANSWERS * n; i++)
        m->answers[i] *= w->factor[0];
    return OK;
}

float rank_of(const carat_model *m, const double *hidden)
{
    size_t n = (size_t)m->core.n_embd;
    double margin = 0; /* of yes above no */
    for (size_t i = 0; i < n; i++)
        margin += hidden[i] * ((double)m->answers[i] - (double)m->answers[n + i]);
    return (float)(1 / (1 + exp(-margin)));
}

bool carat_model_ranks(const carat_model *m)
{
    return m->answers != NULL;
}

/* ---- The prompt ---------------------------------------------------------------------------- */

typedef struct piece {
    const char *mark;
    const char *text;
    size_t n;
} piece;

/* Writes the template with its marks replaced, and the spans between them. */
static void fill(gguf_string t, const piece *p, int n_pieces, str *out, text_span *span,
                 size_t *n_spans, size_t cap)
{
    size_t from = 0;
    *n_spans = 0;
    for (size_t i = 0; i <= t.n; i++) {
        const piece *found = NULL;
        for (int k = 0; k < n_pieces && !found && i < t.n; k++)
            if (strlen(p[k].mark) <= t.n - i && !memcmp(t.at + i, p[k].mark, strlen(p[k].mark)))
                found = &p[k];
        if (!found && i < t.n)
            continue;
        if (i > from && *n_spans < cap)
            span[(*n_spans)++] = (text_span){out->n, i - from};
        str_put(out, t.at + from, i - from);
        if (found)
            str_put(out, found->text, found->n);
        from = i + (found ? strlen(found->mark) : 0);
        i = found ? from - 1 : i;
    }
}

int64_t carat_rank_tokenize(const carat_model *m, const carat_rank_text *t, int32_t *ids,
                            int64_t cap, carat_error *e)
{
    enum { SPANS = 16 };
    const piece pieces[] = {{"{query}", t->query, t->n_query},
                            {"{document}", t->document, t->n_document},
                            {INSTRUCTION, t->instruction ? t->instruction : INSTRUCTION,
                             t->instruction ? t->n_instruction : strlen(INSTRUCTION)}};
    gguf_string own, tmpl = {prompt, sizeof prompt - 1};
    text_span span[SPANS];
    size_t n_spans;
    str text = {0};
    id_list list = {0};
    int64_t n = -1;
    if (!m->answers || !m->text) {
        err_set(e, E_UNSUPPORTED,
                "%s is no reranker: expected a model such as Qwen3-Reranker, whose name or "
                "pooling_type says so",
                m->core.name);
        return -1;
    }
    if (gguf_get_string(&m->core.file, "tokenizer.chat_template.rerank", &own) &&
        memmem(own.at, (size_t)own.n, "{query}", 7) &&
        memmem(own.at, (size_t)own.n, "{document}", 10))
        tmpl = own;
    if (t->instruction && !memmem(tmpl.at, (size_t)tmpl.n, INSTRUCTION, strlen(INSTRUCTION))) {
        err_set(e, E_UNSUPPORTED, "the prompt of %s has no place for an instruction", m->core.name);
        return -1;
    }
    fill(tmpl, pieces, 3, &text, span, &n_spans, SPANS);
    if (text.bad)
        err_memory(e, "a prompt", text.n);
    else if (!vocab_encode_spans(m->text,
                                 &(marked_text){.at = text.at,
                                                .n = text.n,
                                                .mode = SPECIAL_ALL,
                                                .span = span,
                                                .n_spans = n_spans},
                                 &list, e)) {
        n = list.n;
        if (ids && cap > 0)
            memcpy(ids, list.at, (size_t)(n < cap ? n : cap) * sizeof *ids);
    }
    id_list_free(&list);
    str_free(&text);
    return n;
}
