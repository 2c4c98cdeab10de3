/* token_tree.c - the tokens of a vocabulary as a tree of their bytes (a trie).
 *
 * A mask is found by walking this tree together with an automaton: a byte that the automaton
 * refuses excludes the whole subtree. Nodes are in preorder, so skipping a subtree is a jump
 * forward. Inside strings nearly every token is allowed. So each node records whether all tokens
 * below it consist of safe characters; such tokens come from a precomputed mask without a walk. For
 * words and lists each node also records the kinds of characters below it.
 */
#include "text/grammar_int.h"
#include "text/vocab_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* For qsort_r. */
static int by_bytes(const void *a, const void *b, void *user)
{
    const token_tree *t = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t nx = t->at[x + 1] - t->at[x], ny = t->at[y + 1] - t->at[y];
    int c = memcmp(t->bytes + t->at[x], t->bytes + t->at[y], nx < ny ? nx : ny);
    return c ? c : nx != ny ? (nx < ny ? -1 : 1) : (x > y) - (x < y);
}

static bool is_safe(uint32_t cp)
{
    return cp >= 0x20 && cp != 0x7F && cp != '"' && cp != '\\' && cp != '<';
}

/* Number of characters of s if all are safe and at most SAFE_MAX; else UNSAFE. */
static int32_t safe_chars(const char *s, size_t n)
{
    int32_t count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        bool ok;
        i += (size_t)utf8_decode(s + i, n - i, &cp, &ok);
        if (!ok || !is_safe(cp) || count == SAFE_MAX)
            return UNSAFE;
    }
    return count;
}

int32_t char_kind(uint32_t cp)
{
    static const char signs[] = " ,.-'_:/()[]{}\"\\<\n\t\r=+*@"; /* a kind each, from 4 on */
    enum { FIRST_SIGN = 4, CONTROL = FIRST_SIGN + sizeof signs - 1, OTHER };
    _Static_assert((int)OTHER <= KIND_BROKEN - 1, "a kind is a bit");
    if (cp >= 0x80)
        return KIND_WIDE;
    if ((cp | 32) >= 'a' && (cp | 32) <= 'z')
        return cp <= 'Z' ? 1 : KIND_SMALL;
    if (cp >= '0' && cp <= '9')
        return 3;
    const char *at = cp ? strchr(signs, (int)cp) : NULL;
    return at ? FIRST_SIGN + (int32_t)(at - signs) : cp < 0x20 || cp == 0x7F ? CONTROL : OTHER;
}

static uint32_t kinds_of(const char *s, size_t n)
{
    uint32_t kinds = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        i += (size_t)utf8_decode(s + i, n - i, &cp, &ok);
        kinds |= (uint32_t)1 << (ok ? char_kind(cp) : KIND_BROKEN);
    }
    return kinds;
}

static status copy_texts(token_tree *t, const tree_token *tok, err *e)
{
    uint64_t total = 0;
    for (int32_t i = 0; i < t->n; i++)
        total += tok[i].n;
    if (total >= UINT32_MAX)
        return err_set(e, E_LIMIT, "the tokens of a vocabulary have more than 4 GiB of text");
    t->at = mem_calloc((size_t)t->n + 1, sizeof *t->at);
    t->bytes = mem_alloc((size_t)total + 1);
    t->eog = mem_calloc((size_t)t->n, 1);
    t->order = mem_calloc((size_t)t->n + 1, sizeof *t->order);
    if (!t->at || !t->bytes || !t->eog || !t->order)
        return err_memory(e, "the tree of tokens", (size_t)total + (size_t)t->n * 9);
    for (int32_t i = 0; i < t->n; i++) {
        size_t n = tok[i].eog ? 0 : tok[i].n;
        t->eog[i] = tok[i].eog;
        if (n)
            memcpy(t->bytes + t->at[i], tok[i].s, n);
        t->at[i + 1] = t->at[i] + (uint32_t)n;
        if (n)
            t->order[t->n_order++] = i;
        t->max_depth = n > (size_t)t->max_depth ? (int32_t)n : t->max_depth;
    }
    qsort_r(t->order, (size_t)t->n_order, sizeof *t->order, by_bytes, t);
    return OK;
}

static size_t shared(const token_tree *t, int32_t a, int32_t b)
{
    size_t na = t->at[a + 1] - t->at[a], nb = t->at[b + 1] - t->at[b], n = 0;
    while (n < na && n < nb && t->bytes[t->at[a] + n] == t->bytes[t->at[b] + n])
        n++;
    return n;
}

/* Tokens sorted by bytes give the tree in preorder: a token adds nodes from the byte where it
 * differs from its predecessor. */
static status make_nodes(token_tree *t, err *e)
{
    uint64_t n_nodes = 1;
    int32_t *open = mem_calloc((size_t)t->max_depth + 1, sizeof *open);
    for (int32_t i = 0; i < t->n_order; i++) {
        int32_t id = t->order[i];
        n_nodes += t->at[id + 1] - t->at[id] - (i ? shared(t, t->order[i - 1], id) : 0);
    }
    if (n_nodes < INT32_MAX)
        t->node = mem_calloc((size_t)n_nodes + 1, sizeof *t->node);
    if (!open || !t->node) {
        mem_free(open);
        return err_memory(e, "the tree of tokens", (size_t)n_nodes * sizeof *t->node);
    }
    int32_t depth = 0, n = 1, filled = 0;
    for (int32_t i = 0; i < t->n_order; i++) {
        int32_t id = t->order[i], len = (int32_t)(t->at[id + 1] - t->at[id]);
        int32_t same = i ? (int32_t)shared(t, t->order[i - 1], id) : 0;
        for (; depth > same; depth--)
            t->node[open[depth]].end = (uint32_t)n;
        while (depth < len) {
            t->node[n].byte = (uint8_t)t->bytes[t->at[id] + (uint32_t)depth];
            t->node[n].depth = (uint16_t)(depth + 1);
            open[++depth] = n++;
        }
        /* Token i ends at node open[len]; its predecessor ends at or before this node. */
        while (filled < open[len])
            t->node[++filled].token = (uint32_t)i;
    }
    for (; depth > 0; depth--)
        t->node[open[depth]].end = (uint32_t)n;
    while (filled < n)
        t->node[++filled].token = (uint32_t)t->n_order;
    t->node[0].end = (uint32_t)n;
    t->n_nodes = n;
    mem_free(open);
    return OK;
}

static void note_characters(token_tree *t)
{
    for (uint32_t cp = 0; cp < 0x80; cp++)
        t->unsafe_kinds |= (uint32_t)!is_safe(cp) << char_kind(cp);
    for (int32_t i = t->n_nodes - 1; i >= 0; i--) {
        tree_node *x = &t->node[i];
        int32_t worst = 0;
        for (uint32_t k = x->token; k < t->node[i + 1].token; k++) {
            int32_t id = t->order[k],
                    c = safe_chars(t->bytes + t->at[id], t->at[id + 1] - t->at[id]);
            worst = c > worst ? c : worst;
            for (int32_t l = c; l <= SAFE_MAX; l++)
                t->safe_mask[l][id >> 6] |= (uint64_t)1 << (id & 63);
            if (c != UNSAFE && c > t->safe_max)
                t->safe_max = c;
            uint32_t kinds = kinds_of(t->bytes + t->at[id], t->at[id + 1] - t->at[id]);
            x->kinds |= kinds;
            t->tree_mask[id >> 6] |= (uint64_t)1 << (id & 63);
            for (; kinds; kinds &= kinds - 1)
                t->kind_mask[__builtin_ctz(kinds)][id >> 6] |= (uint64_t)1 << (id & 63);
        }
        for (int32_t k = i + 1; k < (int32_t)x->end; k = (int32_t)t->node[k].end) {
            worst = t->node[k].safe > worst ? t->node[k].safe : worst;
            x->kinds |= t->node[k].kinds;
        }
        x->safe = (uint8_t)worst;
    }
}

static size_t mask_bytes(const token_tree *t)
{
    return (size_t)t->n_words * (SAFE_MAX + 3 + N_KINDS) * 8;
}

status token_tree_build(token_tree **out, const tree_token *tok, int32_t n, err *e)
{
    token_tree *t = mem_calloc(1, sizeof *t);
    status st = OK;
    *out = NULL;
    if (!t)
        return err_memory(e, "the tree of tokens", sizeof *t);
    t->n = n;
    t->n_words = (n + 63) / 64;
    for (int32_t i = 0; i < n && !st; i++)
        if (tok[i].n > UINT16_MAX)
            st = err_set(e, E_LIMIT, "token %d has more than %d bytes", i, UINT16_MAX);
    t->safe_mask[0] = mem_calloc((size_t)t->n_words * (SAFE_MAX + 2) + 1, sizeof(uint64_t));
    t->kind_mask[0] = mem_calloc((size_t)t->n_words * (N_KINDS + 1) + 1, sizeof(uint64_t));
    if ((!t->safe_mask[0] || !t->kind_mask[0]) && !st)
        st = err_memory(e, "the masks of a vocabulary", mask_bytes(t));
    if (!st)
        st = copy_texts(t, tok, e);
    if (!st)
        st = make_nodes(t, e);
    if (st) {
        token_tree_close(t);
        return st;
    }
    for (int32_t l = 1; l <= SAFE_MAX; l++)
        t->safe_mask[l] = t->safe_mask[0] + (size_t)l * (size_t)t->n_words;
    for (int32_t k = 1; k < N_KINDS; k++)
        t->kind_mask[k] = t->kind_mask[0] + (size_t)k * (size_t)t->n_words;
    t->tree_mask = t->kind_mask[0] + (size_t)N_KINDS * (size_t)t->n_words;
    t->eog_mask = t->safe_mask[0] + (size_t)(SAFE_MAX + 1) * (size_t)t->n_words;
    for (int32_t i = 0; i < n; i++)
        t->eog_mask[i >> 6] |= (uint64_t)t->eog[i] << (i & 63);
    note_characters(t);
    *out = t;
    return OK;
}

status token_tree_open(token_tree **out, const vocab *v, err *e)
{
    int32_t n = vocab_n(v), n_never = 0;
    const int32_t *never = vocab_never_sampled(v, &n_never);
    tree_token *tok = mem_calloc((size_t)n + 1, sizeof *tok);
    *out = NULL;
    if (vocab_kind_of(v) == VOCAB_NONE) {
        mem_free(tok);
        return err_set(e, E_UNSUPPORTED, "a grammar needs text, and this model has only ids");
    }
    if (!tok)
        return err_memory(e, "the tree of tokens", (size_t)n * sizeof *tok);
    for (int32_t id = 0; id < n; id++) {
        token_type type = vocab_type(v, id);
        tok[id].eog = vocab_is_eog(v, id);
        bool words = type == TOKEN_NORMAL || type == TOKEN_BYTE || type == TOKEN_USER_DEFINED;
        if (words && !(v->flags[id] & FLAG_STRUCTURE))
            tok[id].s = vocab_text(v, id, false, &tok[id].n);
    }
    for (int32_t i = 0; i < n_never; i++)
        tok[never[i]].n = 0;
    status st = token_tree_build(out, tok, n, e);
    mem_free(tok);
    if (!st)
        (*out)->v = v;
    return st;
}

void token_tree_close(token_tree *t)
{
    if (!t)
        return;
    mem_free(t->node);
    mem_free(t->order);
    mem_free(t->at);
    mem_free(t->bytes);
    mem_free(t->eog);
    mem_free(t->safe_mask[0]);
    mem_free(t->kind_mask[0]);
    mem_free(t);
}

int32_t token_tree_n(const token_tree *t)
{
    return t->n;
}

size_t token_tree_bytes(const token_tree *t)
{
    return sizeof *t + (size_t)t->n_nodes * sizeof *t->node + (size_t)t->n * 9 + t->at[t->n] +
           mask_bytes(t);
}
