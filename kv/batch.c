/* batch.c - fills a step: the rows of a pass, and what kernels must know about each row.
 *
 * All arrays are parts of two blocks that are allocated once. So refilling a batch allocates
 * nothing, and the arrays' addresses never change.
 */
#include "base/mem.h"
#include "kv/kv.h"

#include <string.h>

enum { ARRAYS_PER_SET = 3 + ROPE_AXES_MAX + 4 * STORE_KINDS };

static void set_arrays(rowset *r, int32_t **at, uint64_t **seen, int32_t cap)
{
    const int32_t **field[ARRAYS_PER_SET] = {&r->token,   &r->pos,     &r->seq,
                                             &r->axis[0], &r->axis[1], &r->axis[2]};
    for (int k = 0; k < STORE_KINDS; k++) {
        const int32_t ***at_kind = field + 3 + ROPE_AXES_MAX + 4 * k;
        at_kind[0] = &r->keys[k].index;
        at_kind[1] = &r->keys[k].first;
        at_kind[2] = &r->keys[k].last;
        at_kind[3] = &r->keys[k].newest;
    }
    for (int i = 0; i < ARRAYS_PER_SET; i++) {
        *field[i] = *at;
        *at += cap;
    }
    r->seen = *seen;
    *seen += cap;
}

/* What recurrent layers need to know of the rows. False: memory is short. */
static bool open_recur(kv_batch *b, int32_t n_recur)
{
    size_t seqs = (size_t)b->seqs_cap;
    if (!n_recur)
        return true;
    b->recur = mem_calloc(seqs * (size_t)n_recur, sizeof *b->recur);
    b->recur_rows = mem_calloc(seqs, sizeof *b->recur_rows);
    b->parent = mem_calloc((size_t)b->rows_cap, sizeof *b->parent);
    return b->recur && b->recur_rows && b->parent;
}

status kv_batch_init(kv_batch *b, int32_t rows_cap, int32_t seqs_cap, const kv_layout *l, err *e)
{
    *b = (kv_batch){
        .rows_cap = rows_cap, .seqs_cap = seqs_cap, .rows_inside = l->rows_inside, .axes = l->axes};
    size_t rows = (size_t)rows_cap;
    b->i32 = mem_calloc(rows * (2 * ARRAYS_PER_SET + 1), sizeof *b->i32);
    b->u64 = mem_calloc(rows * 2, sizeof *b->u64);
    b->bases = mem_calloc((size_t)seqs_cap * (size_t)l->n, sizeof *b->bases);
    b->sparse = mem_calloc((size_t)seqs_cap, sizeof *b->sparse);
    b->lora = mem_calloc((size_t)seqs_cap, sizeof *b->lora);
    if (!b->i32 || !b->u64 || !b->bases || !b->sparse || !b->lora || !open_recur(b, l->n_recur)) {
        kv_batch_free(b);
        return err_memory(e, "a batch", rows * 100);
    }
    b->st.n_kv = l->n;
    b->st.n_recur = l->n_recur;
    kv_batch_clear(b);
    return OK;
}

void kv_batch_free(kv_batch *b)
{
    mem_free(b->parent);
    mem_free(b->recur_rows);
    mem_free(b->recur);
    mem_free(b->lora);
    mem_free(b->sparse);
    mem_free(b->bases);
    mem_free(b->u64);
    mem_free(b->i32);
    *b = (kv_batch){0};
}

void kv_batch_clear(kv_batch *b)
{
    int32_t n_kv = b->st.n_kv, n_recur = b->st.n_recur;
    int32_t *at = b->i32;
    uint64_t *seen = b->u64;
    b->st = (step){.n_kv = n_kv,
                   .kv = b->bases,
                   .n_recur = n_recur,
                   .recur = b->recur,
                   .recur_seq = b->recur_rows,
                   .parent = b->parent};
    set_arrays(&b->st.all, &at, &seen, b->rows_cap);
    set_arrays(&b->st.out, &at, &seen, b->rows_cap);
    b->st.out_row = at;
    b->has_tree = false;
    for (int k = 0; k < STORE_KINDS && !b->rows_inside; k++)
        b->st.all.keys[k].newest = b->st.out.keys[k].newest = NULL;
    for (int a = 0; a < ROPE_AXES_MAX && !b->axes; a++)
        b->st.all.axis[a] = b->st.out.axis[a] = NULL;
    /* Without masks kernels take the faster path for chains. kv_batch_add_rows sets them when a
     * tree joins. */
    b->st.all.seen = b->st.out.seen = NULL;
}

typedef struct row {
    int32_t token, pos, seq, nth, n; /* the nth of n rows of its sequence */
    int32_t newest;                  /* the last of them that it sees */
    uint64_t seen;
    const row_axes *axes; /* NULL: pos on all */
} row;

/* The step declares the arrays const; the batch owns them and may write. */
static void put_row(rowset *r, uint64_t *seen, int32_t at, const row *x, const kv_cache *c)
{
    ((int32_t *)r->token)[at] = x->token < 0 ? 0 : x->token; /* a picture: step.soft */
    ((int32_t *)r->pos)[at] = x->pos;
    ((int32_t *)r->seq)[at] = x->seq;
    seen[at] = x->seen;
    for (int a = 0; a < ROPE_AXES_MAX && r->axis[a]; a++)
        ((int32_t *)r->axis[a])[at] = x->axes ? x->axes->at[a] : x->pos;
    for (int k = 0; k < STORE_KINDS; k++) {
        int32_t first = (int32_t)kv_n_keys(c, (store_kind)k);
        ((int32_t *)r->keys[k].index)[at] = first + x->nth;
        ((int32_t *)r->keys[k].first)[at] = first;
        ((int32_t *)r->keys[k].last)[at] = first + x->n - 1;
        int32_t newest = x->newest, reach = k == STORE_RING ? c->layout->reach : 0;
        if (reach && newest > x->nth + reach - 1)
            newest = x->nth + reach - 1;
        if (r->keys[k].newest)
            ((int32_t *)r->keys[k].newest)[at] = first + newest;
    }
}

static bool is_wanted(const kv_rows *r, int32_t i, int32_t *next)
{
    if (r->want == KV_WANT_LISTED && *next < r->n_wanted && r->wanted[*next] == i) {
        ++*next;
        return true;
    }
    if (r->want == KV_WANT_TAIL)
        return i >= r->n - r->n_wanted;
    return r->want == KV_WANT_ALL || (r->want == KV_WANT_LAST && i == r->n - 1);
}

/* The most rows that a sequence of the step has so far. */
static int32_t longest_part(const step *st)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < st->all.n; i++) {
        int32_t rows = st->all.keys[0].last[i] - st->all.keys[0].first[i] + 1;
        longest = rows > longest ? rows : longest;
    }
    return longest;
}

static status check_journal(const kv_batch *b, const kv_cache *c, const kv_rows *rows, err *e)
{
    if (!b->recur || rows->final || rows->n <= c->layout->recur[0].journal_rows)
        return OK;
    return err_set(e, E_LIMIT,
                   "%d rows that may be dropped: the journals of recurrent layers hold %d", rows->n,
                   c->layout->recur[0].journal_rows);
}

/* The sequence whose rows were added last: row0 and after. */
static void add_recur(kv_batch *b, kv_cache *c, const kv_rows *rows, int32_t row0)
{
    size_t n_recur = (size_t)b->st.n_recur, seq = (size_t)b->st.n_seqs;
    if (!b->recur)
        return;
    c->recur_rows.row0 = row0;
    c->recur_rows.n = rows->n;
    c->recur_rows.final = rows->final;
    b->recur_rows[seq] = c->recur_rows;
    memcpy(b->recur + seq * n_recur, c->recur, n_recur * sizeof *c->recur);
    for (int32_t i = 0; i < rows->n; i++) {
        int32_t from = rows->parent ? rows->parent[i] : i - 1;
        b->parent[row0 + i] = from >= 0 ? row0 + from : -1;
    }
}

status kv_batch_add_rows(kv_batch *b, kv_cache *c, const kv_rows *rows, err *e)
{
    step *st = &b->st;
    int32_t n = rows->n, row0 = st->all.n, first = (int32_t)c->n_past, next = 0;
    uint64_t *seen_all = b->u64, *seen_out = b->u64 + b->rows_cap;
    if (st->n_seqs == b->seqs_cap || n < 1 || n > b->rows_cap - row0)
        return err_set(e, E_LIMIT, "the batch holds %d rows of %d sequences", b->rows_cap,
                       b->seqs_cap);
    bool tree = b->has_tree || rows->parent;
    int32_t longest = tree ? longest_part(st) : 0;
    longest = n > longest ? n : longest;
    if (tree && longest > STEP_TREE_ROWS_MAX)
        return err_set(e, E_LIMIT, "%d rows of one sequence in a pass with a tree: at most %d",
                       longest, STEP_TREE_ROWS_MAX);
    if (check_journal(b, c, rows, e))
        return E_LIMIT;
    kv_show_pages(c);
    for (int32_t i = 0; i < n; i++) {
        /* A row sees itself and every row that its parent sees. */
        int32_t from = rows->parent ? rows->parent[i] : i - 1;
        if (from >= i || from < -1)
            return err_set(e, E_ARG, "row %d of a tree follows row %d", i, from);
        uint64_t self = i < 64 ? (uint64_t)1 << i : 0;
        const row x = {.token = rows->token[i],
                       .pos = from >= 0 ? st->all.pos[row0 + from] + 1 : first,
                       .seq = st->n_seqs,
                       .nth = i,
                       .n = n,
                       .newest = rows->both_ways ? n - 1 : i,
                       .seen = self | (from >= 0 ? seen_all[row0 + from] : 0),
                       .axes = rows->axes ? rows->axes + i : NULL};
        put_row(&st->all, seen_all, row0 + i, &x, c);
        if (is_wanted(rows, i, &next)) {
            ((int32_t *)st->out_row)[st->out.n] = row0 + i;
            put_row(&st->out, seen_out, st->out.n, &x, c);
            st->out.n++;
        }
    }
    if (rows->want == KV_WANT_LISTED && next < rows->n_wanted)
        return err_set(e, E_ARG, "wanted row %d of %d rows is row %d", next, n, rows->wanted[next]);
    st->all.n += n;
    memcpy(b->bases + (size_t)st->n_seqs * (size_t)st->n_kv, c->base,
           (size_t)st->n_kv * sizeof *c->base);
    add_recur(b, c, rows, row0);
    b->sparse[st->n_seqs] = rows->sparse;
    if (rows->sparse.skip > 0 || rows->sparse.alpha > 0)
        st->sparse = b->sparse;
    b->lora[st->n_seqs] = rows->lora;
    if (rows->lora)
        st->lora = b->lora;
    st->n_seqs++;
    b->has_tree = tree;
    if (tree) {
        st->all.seen = seen_all;
        st->out.seen = seen_out;
    }
    return OK;
}

void kv_batch_block(kv_batch *b, int32_t row0, int32_t n)
{
    const rowset *all = &b->st.all, *out = &b->st.out;
    for (int k = 0; k < STORE_KINDS && b->rows_inside; k++) {
        int32_t last = all->keys[k].index[row0 + n - 1];
        for (int32_t i = row0; i < row0 + n; i++)
            ((int32_t *)all->keys[k].newest)[i] = last;
        for (int32_t i = 0; i < out->n; i++)
            if (b->st.out_row[i] >= row0 && b->st.out_row[i] < row0 + n)
                ((int32_t *)out->keys[k].newest)[i] = last;
    }
}

status kv_batch_add(kv_batch *b, kv_cache *c, const int32_t *token, int32_t n,
                    const int32_t *parent, kv_want want, err *e)
{
    const kv_rows rows = {.token = token, .parent = parent, .n = n, .want = want};
    return kv_batch_add_rows(b, c, &rows, e);
}
