/* spm.c - merges of a vocabulary that has scores instead (SentencePiece).
 *
 * SentencePiece joins the two neighbours whose joined piece has the highest score, leftmost first.
 * So the rank of a merge is the place of its result among all pieces by score; equal scores by id.
 * Each way to cut a piece into two other pieces is a merge of that rank. bpe.c then needs nothing
 * new.
 */
#include "text/vocab_int.h"
#include "base/mem.h"

#include <stdlib.h>

enum { SPM_PIECE_MAX = 256 }; /* a piece of more bytes is not made by merges */

typedef struct scored {
    float score;
    int32_t id;
} scored;

typedef struct spm_pair {
    int32_t left, right;
    uint32_t rank;
} spm_pair;

typedef struct spm_pairs {
    spm_pair *at;
    size_t n, cap;
} spm_pairs;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Can merges of text give this token? Control tokens, bytes and unused tokens come another way. */
static bool is_word(const vocab *v, int32_t id)
{
    return id >= 0 && !(v->flags[id] & FLAG_STRUCTURE) && v->type[id] != TOKEN_BYTE &&
           v->type[id] != TOKEN_UNUSED;
}

static bool add(spm_pairs *l, spm_pair p)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1 << 12;
        spm_pair *at = mem_realloc(l->at, cap, sizeof *at);
        if (!at)
            return false;
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = p;
    return true;
}

/* All cuts of piece id. */
static status cut(const vocab *v, int32_t id, uint32_t rank, spm_pairs *l, err *e)
{
    size_t n;
    const char *p = vocab_piece(v, id, &n);
    for (size_t i = 1; i < n && n <= SPM_PIECE_MAX; i++) {
        if (((unsigned char)p[i] & 0xC0) == 0x80)
            continue; /* inside a character */
        int32_t left = vocab_find(v, p, i), right;
        if (!is_word(v, left) || !is_word(v, right = vocab_find(v, p + i, n - i)))
            continue;
        if (l->n == VOCAB_MAX_MERGES)
            return err_set(e, E_FORMAT, "the vocabulary's pieces can be cut in more than %d ways",
                           VOCAB_MAX_MERGES);
        if (!add(l, (spm_pair){left, right, rank}))
            return err_memory(e, "the merges of a vocabulary", l->cap * 2 * sizeof *l->at);
    }
    return OK;
}

status spm_build(vocab *v, const float *score, err *e)
{
    size_t n = 0, n_all = (size_t)v->n;
    scored *order = mem_calloc(n_all + 1, sizeof *order);
    spm_pairs pairs = {0};
    status st = order ? OK : err_memory(e, "the scores of a vocabulary", n_all * sizeof *order);
    for (int32_t id = 0; id < v->n && !st; id++)
        if (is_word(v, id)) /* NaN would have no place in an order */
            order[n++] = (scored){score[id] == score[id] ? score[id] : 0, id};
    if (!st)
        qsort(order, n, sizeof *order, by_score);
    for (size_t i = 0; i < n && !st; i++)
        st = cut(v, order[i].id, (uint32_t)i, &pairs, e);
    st = st ? st : merges_begin(v, pairs.n, n, e);
    for (size_t i = 0; i < n && !st; i++)
        v->merged[i] = order[i].id;
    for (size_t i = 0; i < pairs.n && !st; i++) {
        size_t n_left, n_right;
        const spm_pair *p = &pairs.at[i];
        const char *left = vocab_piece(v, p->left, &n_left);
        const char *right = vocab_piece(v, p->right, &n_right);
        st = merges_put(v, p->left, p->right, p->rank, e);
        merges_may_join(v, left, n_left, right, n_right);
    }
    mem_free(pairs.at);
    mem_free(order);
    return st;
}
