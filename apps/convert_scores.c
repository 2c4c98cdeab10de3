/* convert_scores.c - SentencePiece's tokenizers in tokenizer.json: their form, and scores in the
 * place of merges.
 *
 * tokenizer.json lists every cut of a piece into two as a merge, in the order of the pieces'
 * scores. A GGUF file has the scores. So the score of a piece is less, the later its first merge
 * stands in the list; a piece that no merge makes is not reached by joining, and comes behind them
 * all.
 */
#include "apps/convert_int.h"
#include "base/mem.h"

#include <stdlib.h>

typedef struct named_piece {
    gguf_string s;
    int32_t id;
} named_piece;

static int by_name(const void *a, const void *b)
{
    const gguf_string *x = a, *y = b;
    size_t n = (size_t)(x->n < y->n ? x->n : y->n);
    int c = n ? memcmp(x->at, y->at, n) : 0;
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* "A B", without the space. */
static const named_piece *result_of(gguf_string merge, const named_piece *sorted, size_t n,
                                    char *both)
{
    const char *space = memchr(merge.at + 1, ' ', (size_t)merge.n - 1);
    size_t left = (size_t)(space - merge.at);
    memcpy(both, merge.at, left);
    memcpy(both + left, space + 1, (size_t)merge.n - left - 1);
    const gguf_string key = {both, merge.n - 1};
    return bsearch(&key, sorted, n, sizeof *sorted, by_name);
}

status convert_scores(convert_vocab *v, err *e)
{
    size_t n = (size_t)v->n, longest = 1;
    named_piece *sorted = mem_calloc(n + 1, sizeof *sorted);
    for (uint64_t i = 0; i < v->n_merges; i++)
        longest = v->merge[i].n > longest ? (size_t)v->merge[i].n : longest;
    char *both = mem_alloc(longest);
    status st =
        sorted && both ? OK : err_memory(e, "the scores of a vocabulary", n * sizeof *sorted);
    for (size_t i = 0; i < n && !st; i++) {
        sorted[i] = (named_piece){v->piece[i], (int32_t)i};
        v->score[i] = -(float)v->n_merges - (float)i;
    }
    if (!st)
        qsort(sorted, n, sizeof *sorted, by_name);
    /* From the back, so that the first merge of a piece counts. */
    for (uint64_t i = v->n_merges; i-- > 0 && !st;) {
        const named_piece *p = result_of(v->merge[i], sorted, n, both);
        if (p)
            v->score[p->id] = -(float)i;
        else
            st = err_set(e, E_FORMAT, "tokenizer.json: merge %llu makes no piece of the vocabulary",
                         (unsigned long long)i);
    }
    mem_free(both);
    mem_free(sorted);
    return st;
}

static bool is_string(const jtree *v, const char *text)
{
    return jtree_is(v, JTREE_STRING) && !strcmp(v->s, text);
}

/* The normalizer Prepend, then Replace of spaces. */
static bool prepends(const jtree *normalizer)
{
    const jtree *list = jtree_get(normalizer, "normalizers"), *a = list ? list->first : NULL,
                *b = a ? a->next : NULL;
    return is_string(jtree_get(normalizer, "type"), "Sequence") && b && !b->next &&
           is_string(jtree_get(a, "type"), "Prepend") &&
           is_string(jtree_get(a, "prepend"), "\xE2\x96\x81") &&
           is_string(jtree_get(b, "type"), "Replace") &&
           is_string(jtree_get(jtree_get(b, "pattern"), "String"), " ") &&
           is_string(jtree_get(b, "content"), "\xE2\x96\x81");
}

bool convert_is_spaced(const jtree *tokenizer, bool *space_first)
{
    const jtree *normalizer = jtree_get(tokenizer, "normalizer"),
                *pre = jtree_get(tokenizer, "pre_tokenizer"),
                *scheme = jtree_get(pre, "prepend_scheme");
    bool plain = !normalizer || normalizer->kind == JTREE_NULL;
    bool no_pre = !pre || pre->kind == JTREE_NULL;
    if (!jtree_is(jtree_get(jtree_get(tokenizer, "model"), "byte_fallback"), JTREE_TRUE))
        return false;
    *space_first = !is_string(scheme, "never");
    if (no_pre)
        return prepends(normalizer);
    return plain && is_string(jtree_get(pre, "type"), "Metaspace") &&
           is_string(jtree_get(pre, "replacement"), "\xE2\x96\x81") &&
           (*space_first ? is_string(scheme, "first") || is_string(scheme, "always") : true) &&
           jtree_is(jtree_get(pre, "split"), JTREE_FALSE);
}
