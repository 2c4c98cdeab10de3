/* kv.h - what a session remembers: keys and values of the layers that own keys, and the states of
 * recurrent layers.
 *
 * A layout says how large each store is. It follows from the model's shape, the context and the
 * most rows of a pass. A cache is what one timeline remembers, and a counter: n_past, the number of
 * committed tokens.
 *
 * Linear stores lie in a pool, in pages of KV_PAGE tokens (pages.h). A cache has a table of its
 * pages, in the order of their keys; caches of one pool may share pages. A page is taken when a
 * pass is about to write to it (kv_reserve), and given back when a rewind leaves it empty. A cache
 * that is opened without a pool has one of its own, as large as its context. Rings and recurrent
 * states belong to the cache alone.
 *
 * Sliding-window layers live in rings. A ring for window W that takes up to n rows in a pass has
 * at least W + n - 1 slots: rows first .. first+n-1 then overwrite indices <= first - W, which no
 * query >= first can see. So dropping uncommitted rows is a counter, not a copy, and nothing is
 * ever cleared. How far a cache can rewind below that is one comparison (kv_can_rewind).
 *
 *     place = key mod n_slots         rings
 *     place = page[key / KV_PAGE].place + key mod KV_PAGE         linear stores
 *
 * A recurrent layer has a state and two journals (backend/step.h). The cache knows which rows of
 * which journal are pending: committed, and applied by the next pass that runs. So dropping
 * uncommitted rows is a counter here too, and so is dropping committed ones as long as they are
 * pending. Further back only a snapshot helps.
 *
 * Only the thread that runs passes may call in.
 */
#ifndef KV_KV_H
#define KV_KV_H

#include "backend/ops.h"
#include "backend/step.h"
#include "base/arena.h"
#include "kv/pages.h"

/* One layer that owns keys. */
typedef struct kv_spec {
    int32_t layer;  /* its number in the model, for rules and sentences */
    int32_t window; /* 0: all */
    int32_t n_head_kv, head_dim;
    bool wide;            /* as in kv_view */
    bool k_is_v;          /* values are the raw projection of keys: one stream can hold both */
    const weight *k_norm; /* with k_is_v: norm and rotation that make keys of values */
    const rope *k_rope;
    const weight *sinks; /* as in kv_view */
    int32_t head_all, head_kv_all;
    int8_t side;   /* which of the model's devices has the layer: pass.h */
    int32_t head0; /* of a part (kv_want_layout): the number of its first KV head */
    kv_inside inside;
} kv_spec;

/* ---- What to store: formats.c ------------------------------------------------------------ */

typedef struct kv_format {
    num_type type;
    bool rot; /* rotated before it is encoded */
} kv_format;

/* As kv_format_parse reads it, "q4_0+rot", in buf[cap], which it returns. 32 bytes suffice. */
const char *kv_format_name(kv_format f, char *buf, size_t cap);

typedef enum kv_single { KV_SINGLE_AUTO, KV_SINGLE_ON, KV_SINGLE_OFF } kv_single;

/* Layers first .. last, or all of a kind, get formats of their own. */
typedef struct kv_rule {
    enum { KV_RULE_LAYERS, KV_RULE_GLOBAL, KV_RULE_WINDOW } layers;
    int32_t first, last;
    kv_format k, v;
} kv_rule;

enum { KV_RULES_MAX = 32 };

typedef struct kv_choice {
    kv_format k, v; /* of layers without a rule */
    kv_single single;
    int32_t n_rules; /* later ones win */
    kv_rule rule[KV_RULES_MAX];
} kv_choice;

/* The options as texts. NULL: keys f16; values as keys; no rules; auto. layers: "SPEC=TYPE,...",
 * where SPEC is "global", "swa", a layer or "first-last", and TYPE a format or "keys/values". */
typedef struct kv_words {
    const char *k, *v, *layers, *single;
} kv_words;
status kv_choice_parse(kv_choice *c, const kv_words *w, err *e);

/* ---- How large: layout.c ----------------------------------------------------------------- */

typedef struct kv_layout_bytes {
    uint64_t ring;   /* of one cache */
    uint64_t linear; /* of a pool */
    uint64_t recur;  /* of one cache: states and journals */
    uint64_t table;  /* of one cache: its tables of pages */
} kv_layout_bytes;

typedef struct kv_layout {
    int32_t n;         /* stores */
    kv_view *view;     /* [n], id == index */
    int32_t n_recur;   /* recurrent layers */
    recur_view *recur; /* [n_recur], id == index */
    /* What the parts make up: shapes alone. Store i is part i / n_whole of whole store i % n_whole;
     * so are recurrent layers. Several parts may have copies of a head. */
    int32_t n_whole, n_recur_whole;
    kv_view *whole;          /* [n_whole] */
    recur_view *recur_whole; /* [n_recur_whole] */
    int32_t *head0;          /* [n]: the first head of each in its whole store */
    int32_t recur_block;     /* the largest of their blocks; 0: none has any */
    int32_t n_ctx;           /* most tokens a timeline may hold */
    int32_t n_pool_pages;    /* of a pool; 0: all stores are rings */
    int32_t n_table;         /* entries of a cache's table of pages */
    int32_t rows_max;        /* most rows of one sequence in a pass */
    int32_t n_ring_slots;    /* the largest ring; 0 if all stores are linear */
    bool rows_inside;        /* a view is of KV_INSIDE_ROWS or _BLOCKS */
    bool axes;               /* rows have positions on axes, beside their position */
    int32_t reach; /* of rings of KV_INSIDE_ROWS: their window, which is on both sides; 0: none */
    kv_layout_bytes all, side[PASS_SIDES_MAX]; /* all: the sum of the sides */
    device *dev[PASS_SIDES_MAX];               /* as wanted */
    arena mem;
} kv_layout;

typedef struct kv_want_layout {
    const kv_spec *spec; /* [n]; its weights and ropes outlive the layout */
    int32_t n;
    const recur_view *recur; /* [n_recur]: shapes and sides of the recurrent layers */
    int32_t n_recur;
    int32_t n_parts;      /* stores and recurrent layers are those of so many ranks, one behind the
                             other,      each with some of the heads; 0: 1 */
    int32_t journal_rows; /* most rows of a sequence in a pass that may be dropped; 0: 1 */
    kv_choice choice;
    int32_t n_ctx, rows_max;
    int32_t n_pool; /* tokens of a pool, rounded up to whole pages; 0: one context */
    bool axes;      /* as the layout's */
    /* By side, the device whose kernels must be able to read the stores; NULL: not checked. */
    device *dev[PASS_SIDES_MAX];
} kv_want_layout;

/* E_UNSUPPORTED: heads are no multiple of the format's block, or the device cannot read the format,
 * or has no recurrent ops. E_ARG: a rule for layers that the model has not, or that own no keys;
 * one stream without a layer that allows it. */
status kv_layout_init(kv_layout *l, const kv_want_layout *w, err *e);
void kv_layout_free(kv_layout *l);

/* The parts of a recurrent store, in floats. They lie in one block of memory; each begins at a
 * multiple of KV_RECUR_ALIGN floats, which is what devices' alloc gives. */
enum { KV_RECUR_ALIGN = 64 };
typedef struct kv_recur_parts {
    size_t state, conv, block, journal;      /* sizes; journal: of one bank */
    size_t at_conv, at_block, at_journal[2]; /* offsets; the state is at 0 */
    size_t all;
} kv_recur_parts;
kv_recur_parts kv_recur_parts_of(const recur_view *v);
/* Of a layer's keys and values. */
static inline uint64_t kv_store_bytes(const kv_view *v)
{
    return (uint64_t)v->n_slots * (uint64_t)v->n_head_kv * (v->k_row_bytes + v->v_row_bytes);
}

struct kv_copy;
struct kv_mover;
struct kv_rescore;

/* The linear stores of a model, on all of its devices, for any number of caches. */
typedef struct kv_pool {
    device *dev[PASS_SIDES_MAX]; /* by side */
    const kv_layout *layout;     /* the caller's; outlives the pool */
    void *block[PASS_SIDES_MAX]; /* all stores of a side, one behind the other */
    kv_base *base;               /* [layout->n], parts of the blocks; of rings nothing */
    pages pages;
    struct kv_mover *mover; /* moves pages to the host and back (mover.h); NULL: not opened yet */
    struct kv_rescore *rescore; /* looks at pages (rescore.h); NULL: nobody does */
    bool poison;                /* free pages are filled with NaN: poison.c */
} kv_pool;

/* dev: of PASS_MAIN; the layout has those of the other sides. A layout of rings alone makes an
 * empty pool. */
status kv_pool_open(kv_pool *p, device *dev, const kv_layout *l, err *e);
void kv_pool_close(kv_pool *p);             /* after its caches; safe on a zeroed or closed pool */
uint64_t kv_page_bytes(const kv_layout *l); /* of one page, in all stores */
/* pages_take of the pool. With poison, all rows of the page are NaN. Between passes. */
int32_t kv_take_page(kv_pool *p);
/* Fills free pages that are not NaN already. Between passes. */
void kv_poison_free(kv_pool *p);
/* All rows become zeros, for tokens that are never computed. Between passes. */
void kv_blank_page(kv_pool *p, int32_t page);

/* Of a cache's table: two entries behind those of its pages are for copies of pages. */
enum { KV_TABLE_MORE = 2 };

typedef struct kv_cache {
    device *dev[PASS_SIDES_MAX]; /* by side */
    const kv_layout *layout;     /* the caller's; outlives the cache */
    kv_pool *pool;               /* outlives the cache */
    kv_pool *own;                /* the same, if the cache has opened it; else NULL */
    int32_t n_pages;             /* page[0 .. n_pages) */
    int32_t *page; /* [layout->n_table] pages of the pool, in the order of their keys; -1: away */
    struct kv_copy *paged_out; /* [layout->n_table] such a page on the host; else empty. With a
                             pager it has them */
    int32_t n_paged_out;
    kv_page *table;                 /* [layout->n_table] the same as kernels see it */
    kv_page *shown[PASS_SIDES_MAX]; /* its copies in memory of the devices; NULL: none there */
    int32_t stale_lo, stale_hi;     /* entries that differ from the copies */
    kv_base *base;                  /* [layout->n], for step.kv */
    recur_base *recur;              /* [layout->n_recur], for step.recur */
    recur_seq recur_rows;           /* pending rows; row0, n and final: of the pass added last */
    struct kv_pager *pager;         /* NULL: every page is in the pool (pager.h) */
    int64_t n_absent;               /* committed rows in pages that the pager has on the host */
    int64_t n_past;                 /* committed rows */
    int64_t n_written;              /* highest index ever written since reset, plus one */
    int64_t n_reserved;             /* end of the rows that the next pass may write */
    int64_t n_loaded; /* of the snapshot loaded; rings hold nothing below its windows */
} kv_cache;

/* The number of committed keys in a store of that kind, and so the number of the next key. */
static inline int64_t kv_n_keys(const kv_cache *c, store_kind kind)
{
    return kind == STORE_LINEAR ? c->n_past - c->n_absent : c->n_past;
}
static inline device *kv_device(const kv_cache *c, const kv_view *v)
{
    return c->dev[v->side];
}
/* The number of tokens that the states of recurrent layers have seen, pending rows excluded. */
static inline int64_t kv_n_settled(const kv_cache *c)
{
    return c->n_past - c->recur_rows.n_pending;
}
/* dev: of PASS_MAIN; the layout has those of the other sides. */
status kv_open(kv_cache *c, device *dev, const kv_layout *l, err *e);
/* A cache whose pages are those of p, which has the same layout and devices. */
status kv_open_in(kv_cache *c, kv_pool *p, err *e);
void kv_close(kv_cache *c); /* safe on a zeroed or closed cache */
/* ---- A cache that waits: preempt.c ---- */

/* Moves pages to the host that have no other holder; or, with `leaving`, no holder beyond
 * leaving[page]. Until kv_page_in nothing may compute with the cache. After an error, as
 * kv_move_out, some may have moved. Between passes. */
status kv_page_out(kv_cache *c, const int32_t *leaving, err *e);
/* Brings all of them back, into any pages. E_LIMIT: the pool has fewer than n_paged_out free ones,
 * and nothing has changed. After another error, as kv_move_in, some may have come. */
status kv_page_in(kv_cache *c, err *e);

/* What the host reads of store i: its table of pages is memory of the host. */
kv_base kv_host_base(const kv_cache *c, int32_t i);

/* Before a pass that adds n rows, which take indices n_past .. n_past+n-1. Takes their pages: a
 * shared page that the rows would change is copied first. E_LIMIT: the context is full, or the pool
 * is; then nothing has changed. Between passes; a device may copy later, but before the next pass.
 */
status kv_reserve(kv_cache *c, int32_t n, err *e);
/* Free pages that kv_reserve(c, n) would take. */
int32_t kv_pages_needed(const kv_cache *c, int32_t n);
/* Gives the devices the table of pages as it is now. Between passes; adding rows to a batch does
 * so. */
void kv_show_pages(kv_cache *c);
/* Rows 0 .. n - 1 of page `to` of the pool become those of page `from`, in all stores. As
 * device_keep_rows. */
void kv_copy_page(kv_cache *c, int32_t to, int32_t from, int32_t n);
/* Entry i of the table becomes a page that the caller holds for c; pos: of its first key. */
void kv_set_page_at(kv_cache *c, int32_t i, int32_t page, int32_t pos);
void kv_set_page(kv_cache *c, int32_t i, int32_t page); /* at i * KV_PAGE */
/* The page of the pool that has key KV_PAGE * i of the timeline; -1: none, or it is away. */
int32_t kv_page_of(const kv_cache *c, int32_t i);
/* Pages of c that it would free by giving them back. */
int32_t kv_own_pages(const kv_cache *c);
/* Gives back the pages behind the first n tokens. */
void kv_cut_pages(kv_cache *c, int64_t n);
/* After every pass that ran, also if it keeps nothing: keeps the pass's first n rows; the others
 * are dropped. Rows of a final pass are in the recurrent states already, so fewer than all of them
 * reset a cache that has recurrent layers. After a pass that failed it is unknown which layers have
 * applied the pending rows: then such a cache must be reset. */
void kv_commit(kv_cache *c, int32_t n);
/* The same of a tree: keeps rows path[0] < path[1] < ... < path[n-1] of the pass, a path from the
 * committed context downwards, and moves each to the index of its depth, bit for bit. Between
 * passes; a device may do it later, but before the next pass. */
void kv_commit_path(kv_cache *c, const int32_t *path, int32_t n);
/* Applies the pending rows below n to the recurrent states, for copies of them: afterwards
 * kv_n_settled is n, or was above n already. Between passes; a device may do it later, but before
 * its next transfer. */
void kv_settle(kv_cache *c, int64_t n);
bool kv_can_rewind(const kv_cache *c, int64_t n_past);
/* False, and unchanged, if rings or states have lost what it needs. Gives back the pages behind. */
bool kv_rewind(kv_cache *c, int64_t n_past);
void kv_reset(kv_cache *c);

/* A step for one sequence that extends a timeline: the engine's usual pass. The arrays belong to
 * the batch; sized once for rows_max rows, refilled for every pass without allocating. */
typedef struct kv_batch {
    step st;
    int32_t rows_cap, seqs_cap;
    bool has_tree;
    bool rows_inside, axes; /* as the layout's */
    int32_t *i32;           /* backing of the step's int32 arrays */
    uint64_t *u64;
    kv_base *bases;
    const float **lora;
    sparse_rule *sparse;
    recur_base *recur; /* NULL: no recurrent layers */
    recur_seq *recur_rows;
    int32_t *parent;
} kv_batch;

/* For caches of layout l, which need not outlive the call. */
status kv_batch_init(kv_batch *b, int32_t rows_cap, int32_t seqs_cap, const kv_layout *l, err *e);
void kv_batch_free(kv_batch *b);
void kv_batch_clear(kv_batch *b);
/* Rows of one sequence in a pass. */
typedef enum kv_want {
    KV_WANT_NONE,
    KV_WANT_LAST,
    KV_WANT_TAIL, /* the last n_wanted rows, or all, if there are fewer */
    KV_WANT_ALL,
    KV_WANT_LISTED
} kv_want;
/* A row's position on each axis. */
typedef struct row_axes {
    int32_t at[ROPE_AXES_MAX];
} row_axes;
typedef struct kv_rows {
    const int32_t *token;  /* [n]; below 0: rows of a picture, for which the step has 0 */
    const int32_t *parent; /* [n]: the row that each row follows, -1: the committed context; a
                              parent comes before its children. NULL: a chain */
    int32_t n;
    bool both_ways;        /* in views of KV_INSIDE_ROWS each row sees all n rows, of a ring those
                              in its window on both sides; else those up to its own */
    bool final;            /* all rows will be committed: those of prompts */
    kv_want want;          /* which rows' logits are wanted */
    const int32_t *wanted; /* [n_wanted], ascending: the rows of KV_WANT_LISTED */
    int32_t n_wanted;
    sparse_rule sparse;   /* what their attention leaves out */
    const float *lora;    /* as an entry of step.lora */
    const row_axes *axes; /* [n], where the layout has axes; NULL: as rows of text */
} kv_rows;
static inline int32_t kv_rows_wanted(const kv_rows *r)
{
    return r->want == KV_WANT_ALL      ? r->n
           : r->want == KV_WANT_LISTED ? r->n_wanted
           : r->want == KV_WANT_TAIL   ? (r->n < r->n_wanted ? r->n : r->n_wanted)
                                       : r->want == KV_WANT_LAST;
}

/* Adds rows of c's timeline after its n_past. The caller has reserved. E_LIMIT if the batch is
 * full, a pass with a tree has more than STEP_TREE_ROWS_MAX rows of one sequence, or a journal has
 * too few rows; E_ARG for parents or wanted rows that are out of order. After an error: clear the
 * batch. */
status kv_batch_add_rows(kv_batch *b, kv_cache *c, const kv_rows *rows, err *e);
/* Rows row0 .. row0 + n - 1 of the step, of one sequence, see each other both ways in views of
 * KV_INSIDE_BLOCKS. Their pass has no tree. */
void kv_batch_block(kv_batch *b, int32_t row0, int32_t n);
status kv_batch_add(kv_batch *b, kv_cache *c, const int32_t *token, int32_t n,
                    const int32_t *parent, kv_want want, err *e);

#endif
