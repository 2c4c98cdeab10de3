/* bpe.c - bytes to token ids, by byte-pair merges.
 *
 * The definition:
 *  1. Cut the text at its special pieces, and spell each space U+2581. In a vocabulary with
 *     space_first, put a space before the text and its parts (text_before in vocab.h).
 *  2. Cut the rest into words with the family's pre-splitter (Gemma 4: runs of LF, and runs of
 *     any other characters).
 *  3. Split each word into characters, or into bytes where the vocabulary is one of bytes. Join the
 *     neighbouring pair of lowest merge rank, leftmost first, until no pair can be joined.
 *
 * A vocabulary of bytes spells no space U+2581, and its words are short: they are not cut further.
 * In Gemma 4 a word is a whole paragraph. Three optimisations make step 3 fast and change no id:
 *  - A word is cut into parts between characters x and y if no merge joins a piece ending in x with
 *    a piece beginning in y. No merge can cross such a place, and merges act on neighbours only, so
 *    the parts are encoded independently. In English prose nearly every space begins a part.
 *  - Parts repeat. A small cache, which lasts for one call, maps parts to their ids. The vocabulary
 *    remembers the pieces that encode to themselves when they stand alone.
 *  - A short part is merged by scanning its ranks. A long part is merged with a heap of candidate
 *    pairs over a linked list; stale candidates are skipped when popped. Any text takes n log n.
 *
 * bpe_test.c implements the definition directly, in quadratic time, and compares the ids.
 */
#include "text/vocab_int.h"
#include "base/mem.h"
#include "base/utf8.h"

enum {
    SMALL_SYMBOLS = 48,       /* up to this length, scanning is faster than a heap */
    CACHE_KEY_BYTES = 26,     /* longer parts are not cached */
    CACHE_IDS = 9,            /* parts of more tokens are not cached */
    CACHE_MAX_ENTRIES = 8192, /* half a megabyte: fits a second-level cache */
    CACHE_MIN_TEXT = 256,     /* for shorter texts the set-up costs more than it saves */
};

/* A symbol is a piece id, or a character or byte without a piece as -2 - its number. */
typedef int32_t symbol;

typedef struct cache_entry {
    unsigned char n_bytes, n_ids; /* n_bytes 0: empty */
    char key[CACHE_KEY_BYTES];
    int32_t id[CACHE_IDS];
} cache_entry;

typedef struct long_symbol {
    symbol s;
    uint32_t prev, next; /* UINT32_MAX: none */
    uint32_t rank;       /* of the pair with next; NO_RANK: none, or merged away */
} long_symbol;

typedef struct encoder {
    const vocab *v;
    id_list *out;
    bool failed;   /* out of memory: nothing more is written */
    bool unk_last; /* the last id is an unknown token: unknown tokens after it are dropped */
    cache_entry *cache;
    uint32_t cache_mask;
    long_symbol *sym;
    uint64_t *heap; /* rank << 32 | position */
    size_t sym_cap, heap_cap, n_heap;
    encode_work work;
} encoder;

void id_list_free(id_list *l)
{
    mem_free(l->at);
    *l = (id_list){0};
}

static bool id_list_more(id_list *l)
{
    int64_t cap = l->cap ? l->cap * 2 : 64;
    int32_t *p = mem_realloc(l->at, (size_t)cap, sizeof *p);
    if (!p)
        return false;
    l->at = p;
    l->cap = cap;
    return true;
}

status id_list_put(id_list *l, int32_t id, err *e)
{
    if (l->n == l->cap && !id_list_more(l))
        return err_memory(e, "a list of tokens", (size_t)l->cap * 2 * sizeof *l->at);
    l->at[l->n++] = id;
    return OK;
}

static inline void put_id(encoder *E, int32_t id)
{
    if (E->out->n == E->out->cap && !id_list_more(E->out)) {
        E->failed = true;
        return;
    }
    E->out->at[E->out->n++] = id;
}

/* A character without a piece becomes its byte tokens. If one is missing, a run of such
 * characters becomes one unknown token. */
static void put_byte_pieces(encoder *E, uint32_t cp)
{
    char c[4];
    int n = utf8_encode(cp == ' ' ? SPACE_MARK_CP : cp, c);
    bool all = E->v->kind == VOCAB_CHARS;
    for (int i = 0; i < n; i++)
        all &= E->v->byte_id[(unsigned char)c[i]] >= 0;
    if (!all && !E->unk_last)
        put_id(E, E->v->unk);
    for (int i = 0; i < n && all; i++)
        put_id(E, E->v->byte_id[(unsigned char)c[i]]);
    E->unk_last = !all;
}

static void put_symbol(encoder *E, symbol s)
{
    if (s < 0) {
        put_byte_pieces(E, (uint32_t)(-2 - s));
        return;
    }
    put_id(E, s);
    E->unk_last = false;
}

/* Reads the character at s; n > 0. */
static inline size_t read_utf8(const char *s, size_t n, uint32_t *cp)
{
    bool ok;
    if ((unsigned char)*s < 128) {
        *cp = (unsigned char)*s;
        return 1;
    }
    size_t len = (size_t)utf8_decode(s, n, cp, &ok);
    if (*cp == SPACE_MARK_CP)
        *cp = ' ';
    return len;
}

static symbol symbol_of(const vocab *v, uint32_t cp)
{
    int32_t id = -1;
    if (cp < v->n_chars) {
        id = v->char_id[cp];
    } else if (cp >= 0x10000) {
        char c[4];
        id = vocab_find(v, c, (size_t)utf8_encode(cp, c));
        if (id >= 0 && v->flags[id] & FLAG_STRUCTURE)
            id = -1;
    }
    return id >= 0 ? id : -2 - (int32_t)cp;
}

/* The symbol that begins at s, n > 0, and its length in bytes. */
static inline size_t read_symbol(const vocab *v, const char *s, size_t n, symbol *out)
{
    uint32_t cp;
    if (v->kind == VOCAB_BYTES) {
        unsigned char c = (unsigned char)*s;
        *out = v->byte_id[c] >= 0 ? v->byte_id[c] : -2 - (int32_t)c;
        return 1;
    }
    size_t len = read_utf8(s, n, &cp);
    *out = symbol_of(v, cp);
    return len;
}

static inline uint32_t rank_of(encoder *E, symbol a, symbol b)
{
    E->work.pair_lookups++;
    uint32_t rank = (a | b) < 0 ? NO_RANK : pair_rank(E->v, a, b);
    if (rank != NO_RANK)
        __builtin_prefetch(&E->v->merged[rank]);
    return rank;
}

/* ---- A short part ---- */

/* Merges s[0..n) in place, n <= SMALL_SYMBOLS. Returns the number of symbols left. */
static int merge_small(encoder *E, symbol *s, int n)
{
    uint32_t rank[SMALL_SYMBOLS];
    /* The table is larger than the CPU caches: prefetch all slots before the first read. */
    for (int i = 0; i + 1 < n; i++)
        pair_prefetch(E->v, s[i], s[i + 1]);
    for (int i = 0; i + 1 < n; i++)
        rank[i] = rank_of(E, s[i], s[i + 1]);
    for (;;) {
        int best = 0;
        uint32_t low = NO_RANK;
        for (int i = 0; i + 1 < n; i++)
            if (rank[i] < low) {
                low = rank[i];
                best = i;
            }
        if (low == NO_RANK)
            return n;
        s[best] = E->v->merged[low];
        if (best > 0)
            pair_prefetch(E->v, s[best - 1], s[best]);
        if (best + 2 < n)
            pair_prefetch(E->v, s[best], s[best + 2]);
        n--;
        for (int i = best + 1; i < n; i++) {
            s[i] = s[i + 1];
            rank[i] = rank[i + 1];
        }
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++)
            rank[i] = rank_of(E, s[i], s[i + 1]);
    }
}

/* ---- A long part ---- */

static void heap_down(encoder *E, size_t i)
{
    uint64_t *h = E->heap, key = h[i];
    for (;;) {
        size_t child = 4 * i + 1, best = child;
        if (child >= E->n_heap)
            break;
        for (size_t k = child + 1; k < child + 4 && k < E->n_heap; k++)
            if (h[k] < h[best])
                best = k;
        if (h[best] >= key)
            break;
        h[i] = h[best];
        i = best;
        E->work.heap_moves++;
    }
    h[i] = key;
}

static void heap_push(encoder *E, uint64_t key)
{
    uint64_t *h = E->heap;
    size_t i = E->n_heap++;
    while (i > 0 && h[(i - 1) / 4] > key) {
        h[i] = h[(i - 1) / 4];
        i = (i - 1) / 4;
        E->work.heap_moves++;
    }
    h[i] = key;
    E->work.heap_moves++;
}

static uint64_t heap_pop(encoder *E)
{
    uint64_t top = E->heap[0];
    E->heap[0] = E->heap[--E->n_heap];
    if (E->n_heap)
        heap_down(E, 0);
    return top;
}

/* Looks up the pair that begins at i. True if a merge joins it. */
static bool rank_pair(encoder *E, uint32_t i)
{
    long_symbol *s = &E->sym[i];
    s->rank = s->next == UINT32_MAX ? NO_RANK : rank_of(E, s->s, E->sym[s->next].s);
    return s->rank != NO_RANK;
}

/* Space for n symbols and for their candidates. At first there is one candidate per pair. Each of
 * at most n - 1 merges removes one and adds at most two. */
static bool reserve_long(encoder *E, size_t n)
{
    if (n > E->sym_cap) {
        long_symbol *s = mem_realloc(E->sym, n, sizeof *s);
        if (!s)
            return false;
        E->sym = s;
        E->sym_cap = n;
    }
    if (2 * n > E->heap_cap) {
        uint64_t *h = mem_realloc(E->heap, 2 * n, sizeof *h);
        if (!h)
            return false;
        E->heap = h;
        E->heap_cap = 2 * n;
    }
    return true;
}

static void encode_long(encoder *E, const char *text, size_t n_bytes)
{
    uint32_t n = 0;
    if (!reserve_long(E, n_bytes)) {
        E->failed = true;
        return;
    }
    for (size_t i = 0; i < n_bytes; n++) {
        symbol s;
        i += read_symbol(E->v, text + i, n_bytes - i, &s);
        E->sym[n] = (long_symbol){s, n - 1, n + 1, NO_RANK};
    }
    E->sym[n - 1].next = UINT32_MAX; /* sym[0].prev has the same value: 0 - 1 */

    E->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (rank_pair(E, i))
            E->heap[E->n_heap++] = (uint64_t)E->sym[i].rank << 32 | i;
    for (size_t i = E->n_heap / 4 + 1; i-- > 0;)
        if (i < E->n_heap)
            heap_down(E, i);

    while (E->n_heap) {
        uint64_t top = heap_pop(E);
        uint32_t i = (uint32_t)top;
        long_symbol *s = &E->sym[i];
        if (s->rank != top >> 32)
            continue; /* stale: a neighbour has been merged since */
        long_symbol *gone = &E->sym[s->next];
        s->s = E->v->merged[s->rank];
        s->next = gone->next;
        gone->rank = NO_RANK;
        if (s->next != UINT32_MAX)
            E->sym[s->next].prev = i;
        if (rank_pair(E, i))
            heap_push(E, (uint64_t)s->rank << 32 | i);
        if (s->prev != UINT32_MAX && rank_pair(E, s->prev))
            heap_push(E, (uint64_t)E->sym[s->prev].rank << 32 | s->prev);
    }
    for (uint32_t i = 0; i != UINT32_MAX; i = E->sym[i].next)
        put_symbol(E, E->sym[i].s);
}

/* ---- Parts, words, fragments ---- */

enum { WHOLE_BYTES = 512 }; /* no published piece is longer */

/* The id of the piece with the part's spelling. -1: none, or a structural piece. */
static int32_t find_whole(const vocab *v, const char *text, size_t n_bytes)
{
    char piece[3 * WHOLE_BYTES + 2]; /* utf8_encode may write 4 bytes */
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (v->kind == VOCAB_BYTES) {
            n += (size_t)utf8_encode(byte_to_char((unsigned char)text[i]), piece + n);
        } else if (text[i] == ' ') {
            memcpy(piece + n, SPACE_MARK, 3);
            n += 3;
        } else {
            piece[n++] = text[i];
        }
    }
    int32_t id = vocab_find(v, piece, n);
    return id >= 0 && !(v->flags[id] & FLAG_STRUCTURE) ? id : -1;
}

static void remember_word(cache_entry *c, const char *text, size_t n_bytes, const int32_t *id,
                          int n)
{
    if (!c || n > CACHE_IDS)
        return;
    for (int i = 0; i < n; i++)
        if (id[i] < 0)
            return; /* a character without a piece */
    c->n_bytes = (unsigned char)n_bytes;
    c->n_ids = (unsigned char)n;
    memcpy(c->key, text, n_bytes);
    memcpy(c->id, id, (size_t)n * sizeof *id);
}

static void encode_part(encoder *E, const char *text, size_t n_bytes)
{
    const vocab *v = E->v;
    cache_entry *c = NULL;
    int32_t whole = -1;
    E->work.words++;
    if (n_bytes <= CACHE_KEY_BYTES) {
        if (E->cache) {
            c = &E->cache[(uint32_t)hash_bytes(text, n_bytes) & E->cache_mask];
            if (c->n_bytes == n_bytes && !memcmp(c->key, text, n_bytes)) {
                E->work.cache_hits++;
                for (int i = 0; i < c->n_ids; i++)
                    put_id(E, c->id[i]);
                E->unk_last = false;
                return;
            }
        }
    }
    if (n_bytes <= (v->whole_words ? WHOLE_BYTES : CACHE_KEY_BYTES)) {
        whole = find_whole(v, text, n_bytes);
        if (whole >= 0 &&
            (v->whole_words ||
             atomic_load_explicit(&v->self[whole], memory_order_relaxed) == SELF_YES)) {
            E->work.whole_hits++;
            put_symbol(E, whole);
            remember_word(c, text, n_bytes, &whole, 1);
            return;
        }
    }
    symbol s[SMALL_SYMBOLS];
    int n = 0;
    size_t i = 0;
    while (i < n_bytes && n < SMALL_SYMBOLS)
        i += read_symbol(v, text + i, n_bytes - i, &s[n++]);
    if (i < n_bytes) {
        encode_long(E, text, n_bytes);
        return;
    }
    n = merge_small(E, s, n);
    if (whole >= 0)
        atomic_store_explicit(&v->self[whole], n == 1 && s[0] == whole ? SELF_YES : SELF_NO,
                              memory_order_relaxed);
    for (int k = 0; k < n; k++)
        put_symbol(E, s[k]);
    remember_word(c, text, n_bytes, s, n);
}

/* Bytes of the part that begins at text[0], n > 0. It ends at the first place that no merge can
 * cross. */
static size_t part_length(const vocab *v, const char *text, size_t n)
{
    uint32_t x, y;
    if (v->kind == VOCAB_BYTES)
        return n;
    size_t i = read_utf8(text, n, &x);
    while (i < n) {
        unsigned char c = (unsigned char)text[i];
        if ((x | c) < 128) {
            if (!(v->join_ascii[x][c >> 6] >> (c & 63) & 1))
                return i;
            x = c;
            i++;
            continue;
        }
        size_t len = read_utf8(text + i, n - i, &y);
        if (!may_join(v, x, y))
            return i;
        x = y;
        i += len;
    }
    return i;
}

static void encode_fragment(encoder *E, const char *text, size_t n)
{
    const vocab *v = E->v;
    for (size_t i = 0, end; i < n && !E->failed; i = end) {
        size_t length = v->word_length ? v->word_length(text + i, n - i) : n;
        end = i + length;
        /* A run of line feeds with a piece of its own becomes this piece, whatever the merges
         * give. */
        if (v->word_length && text[i] == '\n' && length <= (size_t)v->newline_max &&
            v->newline_id[length] >= 0) {
            put_symbol(E, v->newline_id[length]);
            continue;
        }
        while (i < end && !E->failed) {
            size_t len = part_length(v, text + i, end - i);
            encode_part(E, text + i, len);
            i += len;
        }
    }
    E->work.chars += n;
}

/* The same behind a space. */
static void encode_spaced(encoder *E, const char *text, size_t n)
{
    char *copy = mem_alloc(n + 1);
    E->failed |= !copy;
    if (E->failed) {
        mem_free(copy);
        return;
    }
    copy[0] = ' ';
    memcpy(copy + 1, text, n);
    encode_fragment(E, copy, n + 1);
    mem_free(copy);
}

/* A text between special pieces, and what stands before it. */
static void encode_between(encoder *E, const char *text, size_t n, text_before before)
{
    bool space = n && E->v->space_first &&
                 (before == BEFORE_NOTHING || (before == BEFORE_SPECIAL && *text != ' '));
    E->unk_last = false;
    if (space)
        encode_spaced(E, text, n);
    else
        encode_fragment(E, text, n);
}

status encode_counted(const vocab *v, const marked_text *t, id_list *out, encode_work *work, err *e)
{
    encoder E = {.v = v, .out = out};
    special_hit *hit = NULL;
    size_t n_hits = 0, at = 0, n = t->n;
    int64_t n_before = out->n;
    status st;

    if (v->kind == VOCAB_NONE)
        return err_set(e, E_UNSUPPORTED, "this model has no vocabulary: it reads token ids only");
    if (n > VOCAB_MAX_TEXT_BYTES)
        return err_set(e, E_LIMIT, "a text of %zu bytes; carat encodes up to %d at once", n,
                       VOCAB_MAX_TEXT_BYTES);
    if ((st = special_find(v, t, &hit, &n_hits, e)))
        return st;
    if (n >= CACHE_MIN_TEXT) {
        uint32_t size = 16;
        while (size < n / 16 && size < CACHE_MAX_ENTRIES)
            size *= 2;
        E.cache_mask = size - 1;
        E.cache = mem_calloc(size, sizeof *E.cache);
        E.failed = !E.cache;
    }
    for (size_t i = 0; i <= n_hits && !E.failed; i++) {
        size_t end = i < n_hits ? hit[i].at : n;
        encode_between(&E, t->at + at, end - at, i ? BEFORE_SPECIAL : t->before);
        if (i < n_hits) {
            put_id(&E, hit[i].id);
            at = end + hit[i].n;
        }
    }
    mem_free(E.cache);
    mem_free(E.heap);
    mem_free(E.sym);
    mem_free(hit);
    if (E.failed) {
        out->n = n_before;
        return err_memory(e, "encoding a text", n);
    }
    if (work)
        *work = E.work;
    return OK;
}

status vocab_encode_spans(const vocab *v, const marked_text *t, id_list *out, err *e)
{
    return encode_counted(v, t, out, NULL, e);
}

status vocab_encode(const vocab *v, const char *text, size_t n, special_mode mode, id_list *out,
                    err *e)
{
    const text_span all = {0, n};
    return vocab_encode_spans(v, &(marked_text){text, n, mode, &all, 1, BEFORE_NOTHING}, out, e);
}
