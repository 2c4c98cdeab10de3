/* grammar.c - structured output: a grammar from carat.h's options, bound to a model, as a mask.
 *
 * The tree of a model's tokens is made when the first grammar needs it (a tenth of a second for
 * Gemma's vocabulary) and kept until the model is closed. Each grammar has tables of its own, so
 * generations side by side share nothing that changes.
 */
#include "engine/engine_int.h"
#include "base/mem.h"
#include "text/grammar.h"

struct carat_grammar {
    grammar *g;
    matcher *match;
    grammar_run run;
    carat_mask mask;
    err e; /* why it can go on no longer */
};

static status tree_of(carat_model *m, const token_tree **t, err *e)
{
    status st = OK;
    if (!m->text)
        return err_set(e, E_UNSUPPORTED, "%s: has no vocabulary, so no grammar can hold it",
                       m->core.file.path);
    pthread_mutex_lock(&m->tree_lock);
    if (!m->tree)
        st = token_tree_open(&m->tree, m->text, e);
    *t = m->tree;
    pthread_mutex_unlock(&m->tree_lock);
    return st;
}

static enum carat_mask_use fill_mask(void *user, uint32_t *allowed, int32_t n_vocab)
{
    carat_grammar *g = user;
    const uint64_t *bits;
    if (g->e.status || grammar_mask(&g->run, &bits, NULL, &g->e))
        return CARAT_MASK_FAIL;
    for (int32_t i = 0; i < (n_vocab + 31) / 32; i++)
        allowed[i] = (uint32_t)(bits[i / 2] >> (i % 2 * 32));
    return CARAT_MASK_APPLY;
}

static void follow_token(void *user, int32_t id)
{
    carat_grammar *g = user;
    bool ok;
    if (!g->e.status && !grammar_accept(&g->run, id, &ok, &g->e) && !ok)
        err_set(&g->e, E_ARG, "token %d was taken, which the grammar does not allow here", id);
}

static status compile(grammar **g, const carat_model *m, const carat_grammar_options *o, err *e)
{
    const grammar_setting how = {
        .answer = m->text ? text_answer_syntax(m->chat, vocab_family(m->text)) : NULL,
        .thought = o->starts_thinking ? THOUGHT_INSIDE
                   : o->thinking      ? THOUGHT_MAY
                                      : THOUGHT_NONE,
        .cancelled = o->cancelled,
        .user = o->user};
    grammar_tools tools = {.tools = o->source,
                           .n_tools = o->n_source,
                           .calls = o->must_call ? CALLS_MUST : CALLS_MAY,
                           .only = o->only_tool,
                           .one = o->one_call,
                           .schema = o->content_schema,
                           .n_schema = o->n_content_schema,
                           .json = o->content_json,
                           .strict_all = o->strict};
    if (!o->source && o->kind != CARAT_GRAMMAR_JSON)
        return err_set(e, E_ARG, "carat_grammar_open: no source");
    switch (o->kind) {
    case CARAT_GRAMMAR_JSON:
        return grammar_from_schema(g, NULL, 0, &how, e);
    case CARAT_GRAMMAR_JSON_SCHEMA:
        return grammar_from_schema(g, o->source, o->n_source, &how, e);
    case CARAT_GRAMMAR_GBNF:
        return grammar_from_gbnf(g, o->source, o->n_source, &how, e);
    case CARAT_GRAMMAR_REGEX:
        return grammar_from_regex(g, o->source, o->n_source, &how, e);
    case CARAT_GRAMMAR_TOOLS:
        return grammar_from_tools(g, &tools, &how, e);
    }
    return err_set(e, E_ARG, "carat_grammar_open: no such kind");
}

carat_status carat_grammar_open(carat_model *m, const carat_grammar_options *opt,
                                carat_grammar **out, carat_error *e)
{
    const token_tree *t = NULL;
    carat_grammar *g = mem_calloc(1, sizeof *g);
    status st;
    *out = NULL;
    if (!g)
        return err_memory(e, "a grammar", sizeof *g);
    st = compile(&g->g, m, opt, e);
    if (!st)
        st = tree_of(m, &t, e);
    if (!st && token_tree_n(t) < m->core.n_vocab)
        st = err_set(e, E_UNSUPPORTED, "%s: has logits for %d tokens and a vocabulary of %d",
                     m->core.file.path, m->core.n_vocab, token_tree_n(t));
    if (!st)
        st = matcher_open(&g->match, g->g, t, e);
    if (!st)
        st = grammar_begin(&g->run, g->match, e);
    if (st) {
        carat_grammar_close(g);
        return st;
    }
    g->mask = (carat_mask){.fill = fill_mask, .accept = follow_token, .user = g};
    *out = g;
    return OK;
}

void carat_grammar_close(carat_grammar *g)
{
    if (!g)
        return;
    grammar_end(&g->run);
    matcher_close(g->match);
    grammar_close(g->g);
    mem_free(g);
}

carat_status carat_grammar_follow(carat_grammar *g, const char *text, size_t n, carat_error *e)
{
    bool ok;
    status st = grammar_accept_bytes(&g->run, text, n, &ok, e);
    return st || ok ? st : err_set(e, E_ARG, "the grammar has no text that begins like this one");
}

const carat_mask *carat_grammar_mask(carat_grammar *g)
{
    return &g->mask;
}

bool carat_grammar_complete(const carat_grammar *g)
{
    return grammar_may_end(&g->run);
}

const char *carat_grammar_failure(const carat_grammar *g)
{
    return g->e.text;
}
