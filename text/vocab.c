/* vocab.c - builds a vocabulary from a file's lists, and answers queries about its pieces.
 *
 * The builder checks, once, types, byte pieces, and that every merge joins two pieces into a third.
 * Published files list some pieces and merges twice: the first id encodes, all ids decode, and the
 * first rank of a merge counts. It also derives the tables that make encoding fast (vocab_int.h).
 * Half a million merges have to be resolved, and nearly every look-up is a cache miss. Merges are
 * therefore resolved in batches: first the hashes of a batch, each with a prefetch, then the
 * look-ups.
 *
 * Not here: matching special pieces (special.c), encoding (bpe.c).
 */
#include "text/vocab_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>

struct vocab_builder {
    vocab *v;
    err e; /* the first failure; vocab_finish reports it */
    int64_t n_tokens, n_merges;
    int64_t tokens, merges; /* added so far */
    size_t piece_bytes, piece_cap;
    char *merge_bytes; /* A and B of every merge "A B", without the space */
    size_t n_merge_bytes, merge_cap;
    uint32_t *merge_at;  /* [n_merges + 1] */
    uint16_t *merge_cut; /* [n_merges]: length of A */
};

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

/* ---- Building ---- */

status vocab_begin(vocab_builder **out, int64_t n_tokens, int64_t n_merges, err *e)
{
    *out = NULL;
    if (n_tokens < 0 || n_tokens > VOCAB_MAX_TOKENS)
        return err_set(e, E_FORMAT, "a vocabulary of %" PRId64 " pieces: carat reads up to %d",
                       n_tokens, VOCAB_MAX_TOKENS);
    if (n_merges < 0 || n_merges > VOCAB_MAX_MERGES)
        return err_set(e, E_FORMAT, "a vocabulary with %" PRId64 " merges: carat reads up to %d",
                       n_merges, VOCAB_MAX_MERGES);
    size_t n = (size_t)n_tokens, m = (size_t)n_merges;
    vocab_builder *b = mem_calloc(1, sizeof *b);
    vocab *v = b ? b->v = mem_calloc(1, sizeof *v) : NULL;
    if (v) {
        v->piece_at = mem_calloc(n + 1, sizeof *v->piece_at);
        v->text_at = mem_calloc(n + 1, sizeof *v->text_at);
        v->type = mem_calloc(n, 1);
        v->flags = mem_calloc(n, 1);
        v->self = mem_calloc(n, sizeof *v->self);
        b->merge_at = mem_calloc(m + 1, sizeof *b->merge_at);
        b->merge_cut = mem_calloc(m, sizeof *b->merge_cut);
    }
    if (!v || !v->piece_at || !v->text_at || !v->type || !v->flags || !v->self || !b->merge_at ||
        !b->merge_cut) {
        vocab_abandon(b);
        return err_memory(e, "a vocabulary", n * 10 + m * 6);
    }
    b->n_tokens = n_tokens;
    b->n_merges = n_merges;
    *out = b;
    return OK;
}

/* Makes space for n more bytes after the first `used`. */
static bool grow_index(vocab_builder *b, char **bytes, size_t used, size_t *cap, size_t n)
{
    if (used + n > VOCAB_MAX_BYTES) {
        err_set(&b->e, E_FORMAT, "the vocabulary's pieces or merges are larger than %d bytes",
                VOCAB_MAX_BYTES);
        return false;
    }
    if (used + n <= *cap && *bytes)
        return true;
    size_t want = *cap ? *cap * 2 : 1 << 12;
    while (want < used + n)
        want *= 2;
    char *p = mem_realloc(*bytes, want, 1);
    if (!p) {
        err_memory(&b->e, "a vocabulary", want);
        return false;
    }
    *bytes = p;
    *cap = want;
    return true;
}

void vocab_add_token(vocab_builder *b, const char *piece, size_t n, int64_t type)
{
    vocab *v = b->v;
    int64_t id = b->tokens;
    if (b->e.status)
        return;
    if (id >= b->n_tokens) {
        err_set(&b->e, E_ARG, "more pieces than the %" PRId64 " announced", b->n_tokens);
    } else if (type < TOKEN_NORMAL || type > TOKEN_BYTE) {
        err_set(&b->e, E_FORMAT, "piece %" PRId64 " has type %" PRId64 "; types are 1 to 6", id,
                type);
    } else if (n > VOCAB_MAX_PIECE_BYTES) {
        err_set(&b->e, E_FORMAT, "piece %" PRId64 " has %zu bytes; carat reads up to %d", id, n,
                VOCAB_MAX_PIECE_BYTES);
    } else if (!n && type != TOKEN_UNUSED) {
        err_set(&b->e, E_FORMAT, "piece %" PRId64 " is empty", id);
    } else if (grow_index(b, &v->piece_bytes, b->piece_bytes, &b->piece_cap, n)) {
        if (n)
            memcpy(v->piece_bytes + b->piece_bytes, piece, n);
        b->piece_bytes += n;
        v->type[id] = (uint8_t)type;
        v->piece_at[++b->tokens] = (uint32_t)b->piece_bytes;
    }
}

void vocab_add_merge(vocab_builder *b, const char *merge, size_t n)
{
    int64_t rank = b->merges;
    const char *space = n > 2 ? memchr(merge + 1, ' ', n - 1) : NULL;
    size_t left = space ? (size_t)(space - merge) : 0;
    if (b->e.status)
        return;
    if (rank >= b->n_merges) {
        err_set(&b->e, E_ARG, "more merges than the %" PRId64 " announced", b->n_merges);
    } else if (!space || left + 1 == n || n > VOCAB_MAX_PIECE_BYTES) {
        err_set(&b->e, E_FORMAT, "merge %" PRId64 " is \"%.*s\", not two pieces and a space", rank,
                (int)(n < 60 ? n : 60), merge);
    } else if (grow_index(b, &b->merge_bytes, b->n_merge_bytes, &b->merge_cap, n - 1)) {
        char *to = b->merge_bytes + b->n_merge_bytes;
        memcpy(to, merge, left);
        memcpy(to + left, space + 1, n - 1 - left);
        b->n_merge_bytes += n - 1;
        b->merge_cut[rank] = (uint16_t)left;
        b->merge_at[++b->merges] = (uint32_t)b->n_merge_bytes;
    }
}

void vocab_abandon(vocab_builder *b)
{
    if (!b)
        return;
    vocab_close(b->v);
    mem_free(b->merge_bytes);
    mem_free(b->merge_at);
    mem_free(b->merge_cut);
    mem_free(b);
}

void vocab_close(vocab *v)
{
    if (!v)
        return;
    special_free(v);
    mem_free(v->merged);
    mem_free(v->join_other);
    mem_free(v->newline_id);
    mem_free(v->char_id);
    mem_pages_free(v->pair, v->pair_bytes);
    mem_free(v->slot);
    mem_free((void *)v->self);
    mem_free(v->never);
    mem_free(v->flags);
    mem_free(v->type);
    mem_free(v->text_bytes);
    mem_free(v->text_at);
    mem_free(v->piece_bytes);
    mem_free(v->piece_at);
    mem_free(v);
}

/* ---- The table of pieces ---- */

static int32_t find_hashed(const vocab *v, const char *piece, size_t n, uint64_t h)
{
    if (!v->slot)
        return -1;
    for (uint32_t i = (uint32_t)h & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        const piece_slot *s = &v->slot[i];
        if (s->id < 0)
            return -1;
        if (s->tag != (uint32_t)(h >> 32))
            continue;
        uint32_t at = v->piece_at[s->id];
        if (v->piece_at[s->id + 1] - at == n && !memcmp(v->piece_bytes + at, piece, n))
            return s->id;
    }
}

int32_t vocab_find(const vocab *v, const char *piece, size_t n)
{
    return find_hashed(v, piece, n, hash_bytes(piece, n));
}

int32_t vocab_mark(const vocab *v, const char *piece)
{
    return piece ? vocab_find(v, piece, strlen(piece)) : -1;
}

/* The id after `last` with that spelling, of a vocabulary that may list it several times. last -1:
 * the one that encodes. -1: there are no more. */
static int32_t next_spelled(const vocab *v, const char *piece, int32_t last)
{
    size_t n = strlen(piece), n_other;
    if (last < 0)
        return vocab_find(v, piece, n);
    for (int32_t id = last + 1; v->has_twins && id < v->n; id++) {
        const char *p = vocab_piece(v, id, &n_other);
        if (v->type[id] != TOKEN_UNUSED && n_other == n && !memcmp(p, piece, n))
            return id;
    }
    return -1;
}

static uint32_t table_size(uint64_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static status build_pieces(vocab *v, err *e)
{
    uint32_t size = table_size((uint64_t)v->n);
    v->slot_mask = size - 1;
    v->slot = mem_alloc(size * sizeof *v->slot);
    if (!v->slot)
        return err_memory(e, "the table of pieces", size * sizeof *v->slot);
    memset(v->slot, 0xFF, size * sizeof *v->slot);
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *piece = vocab_piece(v, id, &n);
        uint64_t h = hash_bytes(piece, n);
        uint32_t i = (uint32_t)h & v->slot_mask, probes = 0;
        bool twin = !n;
        for (; v->slot[i].id >= 0 && !twin; i = (i + 1) & v->slot_mask) {
            if (++probes > VOCAB_MAX_PROBES)
                return err_set(e, E_FORMAT, "the vocabulary's pieces collide around piece %d", id);
            if (v->slot[i].tag != (uint32_t)(h >> 32))
                continue;
            int32_t other = v->slot[i].id;
            size_t n_other;
            const char *p = vocab_piece(v, other, &n_other);
            if (n_other != n || memcmp(p, piece, n))
                continue;
            /* A real piece replaces an unused one of the same spelling. */
            if (v->type[other] == TOKEN_UNUSED)
                v->slot[i].id = id;
            else if (v->type[id] != TOKEN_UNUSED)
                v->has_twins = true;
            twin = true;
            break;
        }
        if (!twin)
            v->slot[i] = (piece_slot){(uint32_t)(h >> 32), id};
    }
    return OK;
}

/* ---- The table of merges ---- */

static uint32_t last_char(const char *s, size_t n)
{
    size_t i = n - 1;
    uint32_t cp;
    bool ok;
    while (i > 0 && n - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80)
        i--;
    utf8_decode(s + i, n - i, &cp, &ok);
    return cp == SPACE_MARK_CP ? ' ' : cp;
}

static uint32_t first_char(const char *s, size_t n)
{
    uint32_t cp;
    bool ok;
    utf8_decode(s, n, &cp, &ok);
    return cp == SPACE_MARK_CP ? ' ' : cp;
}

status merges_put(vocab *v, int32_t left, int32_t right, uint32_t rank, err *e)
{
    uint32_t i = (uint32_t)hash_pair(left, right) & v->pair_mask, probes = 0;
    uint64_t key = pair_key(left, right);
    for (; v->pair[i] != PAIR_EMPTY; i = (i + 1) & v->pair_mask) {
        if (v->pair[i] >> 22 == key)
            return OK;
        if (++probes > VOCAB_MAX_PROBES)
            return err_set(e, E_FORMAT, "the vocabulary's merges collide around merge %" PRIu32,
                           rank);
    }
    v->pair[i] = key << 22 | rank;
    return OK;
}

/* Whether bytes or merges may make the piece. Plain text must not become structure. In VOCAB_BYTES
 * a special piece is spelled as the text it stands for, which is the spelling of other bytes unless
 * it is printable ASCII. */
static bool spells_words(const vocab *v, int32_t id)
{
    size_t n, i = 0;
    const char *p = vocab_piece(v, id, &n);
    if (v->flags[id] & FLAG_STRUCTURE)
        return false;
    if (v->kind != VOCAB_BYTES || !(v->flags[id] & FLAG_SPECIAL))
        return true;
    while (i < n && p[i] > ' ' && p[i] < 0x7F)
        i++;
    return i == n;
}

status merges_begin(vocab *v, uint64_t n_pairs, uint64_t n_ranks, err *e)
{
    uint32_t size = table_size(n_pairs);
    v->pair_mask = size - 1;
    v->pair_bytes = size * sizeof *v->pair;
    v->pair = mem_pages(v->pair_bytes);
    bool cuts = v->kind == VOCAB_CHARS;
    uint32_t n_bits = 64;
    while (cuts && n_bits < JOIN_BITS_MAX && n_bits < n_pairs * JOIN_BITS_PER_MERGE)
        n_bits *= 2;
    v->join_mask = n_bits - 1;
    v->join_other = mem_calloc(n_bits / 64, 8);
    v->merged = mem_alloc((size_t)n_ranks * sizeof *v->merged);
    if (!v->pair || !v->join_other || !v->merged)
        return err_memory(e, "the table of merges", v->pair_bytes);
    memset(v->pair, 0xFF, v->pair_bytes);
    return OK;
}

void merges_may_join(vocab *v, const char *left, size_t n_left, const char *right, size_t n_right)
{
    uint32_t x = last_char(left, n_left), y = first_char(right, n_right);
    if ((x | y) < 128) {
        v->join_ascii[x][y >> 6] |= (uint64_t)1 << (y & 63);
    } else {
        uint32_t bit = join_bit(v, x, y);
        v->join_other[bit >> 6] |= (uint64_t)1 << (bit & 63);
    }
}

static status build_merges(vocab_builder *b, err *e)
{
    enum { BATCH = 32 };
    vocab *v = b->v;
    uint64_t n_merges = (uint64_t)b->merges;
    status st = merges_begin(v, n_merges, n_merges, e);
    if (st)
        return st;
    for (int64_t base = 0; base < b->merges; base += BATCH) {
        int n_batch = (int)(b->merges - base < BATCH ? b->merges - base : BATCH);
        uint64_t h[BATCH][3];
        int32_t id[BATCH][3];
        for (int k = 0; k < n_batch; k++) {
            const char *s = b->merge_bytes + b->merge_at[base + k];
            size_t n = b->merge_at[base + k + 1] - b->merge_at[base + k];
            size_t cut = b->merge_cut[base + k];
            h[k][0] = hash_bytes(s, cut);
            h[k][1] = hash_bytes(s + cut, n - cut);
            h[k][2] = hash_bytes(s, n);
            for (int j = 0; j < 3; j++)
                __builtin_prefetch(&v->slot[(uint32_t)h[k][j] & v->slot_mask]);
        }
        /* The slot's spelling is a second cache miss: a second round prefetches it. */
        for (int k = 0; k < n_batch; k++)
            for (int j = 0; j < 3; j++) {
                int32_t guess = v->slot[(uint32_t)h[k][j] & v->slot_mask].id;
                if (guess >= 0)
                    __builtin_prefetch(v->piece_bytes + v->piece_at[guess]);
            }
        for (int k = 0; k < n_batch; k++) {
            const char *s = b->merge_bytes + b->merge_at[base + k];
            size_t n = b->merge_at[base + k + 1] - b->merge_at[base + k];
            size_t cut = b->merge_cut[base + k];
            id[k][0] = find_hashed(v, s, cut, h[k][0]);
            id[k][1] = find_hashed(v, s + cut, n - cut, h[k][1]);
            id[k][2] = find_hashed(v, s, n, h[k][2]);
            for (int j = 0; j < 3; j++)
                if (id[k][j] < 0)
                    return err_set(e, E_FORMAT,
                                   "merge %" PRId64 " joins \"%.*s\" and \"%.*s\", but %s is not a "
                                   "piece of the vocabulary",
                                   base + k, (int)(cut < 60 ? cut : 60), s,
                                   (int)(n - cut < 60 ? n - cut : 60), s + cut,
                                   j == 0   ? "the first"
                                   : j == 1 ? "the second"
                                            : "the whole");
            __builtin_prefetch(&v->pair[(uint32_t)hash_pair(id[k][0], id[k][1]) & v->pair_mask]);
        }
        for (int k = 0; k < n_batch; k++) {
            const char *s = b->merge_bytes + b->merge_at[base + k];
            size_t n = b->merge_at[base + k + 1] - b->merge_at[base + k];
            size_t cut = b->merge_cut[base + k];
            v->merged[base + k] = id[k][2];
            if (!spells_words(v, id[k][2]))
                continue;
            if ((st = merges_put(v, id[k][0], id[k][1], (uint32_t)(base + k), e)))
                return st;
            if (v->kind == VOCAB_CHARS)
                merges_may_join(v, s, cut, s + cut, n - cut);
        }
    }
    return OK;
}

/* ---- Types, flags, characters, what tokens print as ---- */

/* "<0x0A>" to 10; -1 for any other form. */
static int byte_of(const char *p, size_t n)
{
    int value = 0;
    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        int c = p[i];
        if (c >= '0' && c <= '9')
            value = value * 16 + c - '0';
        else if (c >= 'A' && c <= 'F')
            value = value * 16 + c - 'A' + 10;
        else
            return -1;
    }
    return value;
}

static void set_flag(vocab *v, const char *const *piece, uint8_t flag)
{
    for (; *piece; piece++)
        for (int32_t id = -1; (id = next_spelled(v, *piece, id)) >= 0;)
            if (v->type[id] != TOKEN_BYTE)
                v->flags[id] |= flag;
}

/* Files differ in the types of a family's pieces. Marks of an answer are found in any text; other
 * ends of a generation are control pieces, so that they neither appear in answers nor match in
 * content. */
static void set_types(vocab *v)
{
    const text_family *f = v->family;
    for (const char *const *piece = f->shown; *piece; piece++)
        for (int32_t id = -1; (id = next_spelled(v, *piece, id)) >= 0;)
            if (v->type[id] == TOKEN_NORMAL)
                v->type[id] = TOKEN_USER_DEFINED;
    for (const char *const *piece = f->ends; *piece; piece++)
        for (int32_t id = -1; (id = next_spelled(v, *piece, id)) >= 0;)
            if ((v->type[id] == TOKEN_NORMAL || v->type[id] == TOKEN_USER_DEFINED) &&
                !text_is_one_of(f->shown, *piece, strlen(*piece)))
                v->type[id] = TOKEN_CONTROL;
}

static void set_flags(vocab *v)
{
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = vocab_piece(v, id, &n);
        uint8_t f = 0;
        bool marker =
            n >= 4 && ((p[0] == '<' && p[1] == '|') || (p[n - 2] == '|' && p[n - 1] == '>'));
        if (v->type[id] == TOKEN_CONTROL || v->type[id] == TOKEN_UNKNOWN)
            f |= FLAG_SPECIAL | FLAG_STRUCTURE;
        if (v->type[id] == TOKEN_USER_DEFINED)
            f |= marker ? FLAG_SPECIAL | FLAG_STRUCTURE : FLAG_SPECIAL;
        v->flags[id] = f;
    }
    set_flag(v, v->family->shown, FLAG_SHOWN);
    set_flag(v, v->family->ends, FLAG_EOG);
    for (const char *const *mark = v->family->shown; *mark; mark++)
        for (int32_t id = -1; (id = next_spelled(v, *mark, id)) >= 0;)
            if (v->type[id] == TOKEN_USER_DEFINED)
                v->flags[id] |= FLAG_STRUCTURE;
}

/* Placeholders: of media, and the tokens of type UNUSED, which fill the vocabulary up to the rows
 * of the embedding. Those that end a generation are none. */
static status list_never(vocab *v, err *e)
{
    int32_t n = 0;
    set_flag(v, v->family->media, FLAG_NEVER);
    for (int32_t id = 0; id < v->n; id++) {
        if (v->type[id] == TOKEN_UNUSED && !(v->flags[id] & FLAG_EOG))
            v->flags[id] |= FLAG_NEVER;
        n += (v->flags[id] & FLAG_NEVER) != 0;
    }
    if (!(v->never = mem_calloc((size_t)n + 1, sizeof *v->never)))
        return err_memory(e, "the vocabulary", (size_t)n * sizeof *v->never);
    for (int32_t id = 0; id < v->n; id++)
        if (v->flags[id] & FLAG_NEVER)
            v->never[v->n_never++] = id;
    return OK;
}

static status set_specials(vocab *v, const vocab_settings *s, err *e)
{
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"begin-of-sequence", s->bos},
               {"end-of-sequence", s->eos},
               {"end-of-turn", s->eot},
               {"unknown", s->unk},
               {"padding", s->pad}};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        if (ids[i].id < -1 || ids[i].id >= v->n)
            return err_set(e, E_FORMAT, "the %s id is %d; the vocabulary has %d pieces",
                           ids[i].name, ids[i].id, v->n);
    const text_family *f = v->family;
    v->bos = s->bos >= 0 ? s->bos : vocab_mark(v, f->bos);
    v->eos = s->eos >= 0 ? s->eos : vocab_mark(v, f->eos);
    v->unk = s->unk >= 0 ? s->unk : vocab_mark(v, f->unk);
    v->raw_bos = !f->bos_never && (f->bos_always || s->add_bos) ? v->bos : -1;
    const int32_t ends[] = {s->eos, s->eot};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        size_t n;
        const char *p = vocab_piece(v, ends[i], &n);
        if (p && !text_is_one_of(f->ends_not, p, n))
            v->flags[ends[i]] |= FLAG_EOG;
    }
    return list_never(v, e);
}

static bool all_newlines(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] == '\n')
        i++;
    return n && i == n;
}

/* Whether piece id is one character below U+10000. */
static bool is_char(const vocab *v, int32_t id, uint32_t *cp)
{
    size_t n;
    bool ok;
    const char *p = vocab_piece(v, id, &n);
    return n >= 1 && n <= 3 && utf8_decode(p, n, cp, &ok) == (int)n && ok;
}

static status build_chars(vocab *v, err *e)
{
    v->n_chars = SPACE_MARK_CP + 1;
    for (int32_t id = 0; id < v->n; id++) {
        uint32_t cp;
        if (is_char(v, id, &cp) && cp >= v->n_chars)
            v->n_chars = cp + 1;
    }
    size_t char_bytes = v->n_chars * sizeof *v->char_id;
    v->char_id = mem_alloc(char_bytes);
    if (!v->char_id)
        return err_memory(e, "the table of characters", char_bytes);
    memset(v->char_id, 0xFF, char_bytes);
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = vocab_piece(v, id, &n);
        uint32_t cp;
        if (v->type[id] == TOKEN_BYTE) {
            int byte = byte_of(p, n);
            if (byte < 0)
                return err_set(e, E_FORMAT, "piece %d is of type byte but is spelled \"%.*s\"", id,
                               (int)(n < 60 ? n : 60), p);
            v->byte_id[byte] = v->byte_id[byte] < 0 ? id : v->byte_id[byte];
        } else if (all_newlines(p, n) && (int32_t)n > v->newline_max) {
            v->newline_max = (int32_t)n;
        }
        if (!is_char(v, id, &cp))
            continue;
        int32_t *first = &v->char_id[cp];
        if (!(v->flags[id] & FLAG_STRUCTURE) &&
            (*first < 0 || (v->type[*first] == TOKEN_UNUSED && v->type[id] != TOKEN_UNUSED)))
            *first = id;
    }
    v->char_id[' '] = v->char_id[SPACE_MARK_CP]; /* texts spell U+2581 as a space */
    for (int byte = 0; byte < 256; byte++)
        if (v->byte_id[byte] < 0 && v->unk < 0)
            return err_set(e, E_FORMAT,
                           "the vocabulary has neither a piece for byte 0x%02X nor an unknown "
                           "token, so not every text can be encoded",
                           (unsigned)byte);
    size_t n_lines = (size_t)v->newline_max + 1;
    v->newline_id = mem_alloc(n_lines * sizeof *v->newline_id);
    char *run = mem_alloc(n_lines);
    if (v->newline_id && run) {
        memset(run, '\n', n_lines);
        for (size_t i = 0; i < n_lines; i++)
            v->newline_id[i] = i ? vocab_find(v, run, i) : -1;
    }
    mem_free(run);
    return v->newline_id && run ? OK : err_memory(e, "the table of line breaks", n_lines * 5);
}

/* VOCAB_BYTES: the piece that each byte of a text begins as: the first with its spelling that is no
 * structure. */
static status build_bytes(vocab *v, err *e)
{
    for (int32_t id = 0; id < v->n; id++)
        if (v->type[id] == TOKEN_BYTE)
            return err_set(e, E_FORMAT,
                           "piece %d is of type byte, and in this vocabulary every piece is bytes",
                           id);
    for (int byte = 0; byte < 256; byte++) {
        char piece[4] = {0};
        size_t n = vocab_spell_byte((unsigned char)byte, piece);
        int32_t id = next_spelled(v, piece, -1);
        while (id >= 0 && !spells_words(v, id))
            id = next_spelled(v, piece, id);
        v->byte_id[byte] = id;
        if (v->byte_id[byte] < 0 && v->unk < 0)
            return err_set(e, E_FORMAT,
                           "the vocabulary has neither the piece \"%.*s\" for byte 0x%02X nor an "
                           "unknown token, so not every text can be encoded",
                           (int)n, piece, (unsigned)byte);
    }
    return OK;
}

/* The bytes that an ordinary piece of VOCAB_BYTES spells. A character that spells none stays as it
 * is. Returns their number, at most n. */
static size_t spelled_bytes(const char *p, size_t n, char *out)
{
    size_t at = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        bool ok;
        size_t len = (size_t)utf8_decode(p + i, n - i, &c, &ok);
        int byte = ok ? char_to_byte(c) : -1;
        if (byte >= 0) {
            out[at++] = (char)byte;
        } else {
            memcpy(out + at, p + i, len);
            at += len;
        }
        i += len;
    }
    return at;
}

static status build_texts(vocab *v, err *e)
{
    /* A token's text is never longer than its piece. */
    size_t cap = v->piece_at[v->n], at = 0;
    if (!(v->text_bytes = mem_alloc(cap)))
        return err_memory(e, "the texts of a vocabulary", cap);
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = vocab_piece(v, id, &n);
        if (v->type[id] == TOKEN_BYTE) {
            v->text_bytes[at++] = (char)byte_of(p, n);
        } else if (v->kind == VOCAB_BYTES) {
            bool plain = v->type[id] == TOKEN_NORMAL || v->type[id] == TOKEN_UNUSED;
            if (!plain)
                memcpy(v->text_bytes + at, p, n);
            at += plain ? spelled_bytes(p, n, v->text_bytes + at) : n;
        } else {
            for (size_t i = 0; i < n;) {
                bool space = n - i >= 3 && !memcmp(p + i, SPACE_MARK, 3);
                v->text_bytes[at++] = space ? ' ' : p[i];
                i += space ? 3 : 1;
            }
        }
        v->text_at[id + 1] = (uint32_t)at;
    }
    return OK;
}

/* The sentence lists the tokenizers of every family that has all architectures of f. An
 * architecture that f alone has leaves f's own. */
static status refuse_kind(const text_family *f, const char *model, const char *pre, bool merges,
                          err *e)
{
    char known[200] = "";
    size_t n = 0;
    for (const text_family *const *g = text_families; *g; g++) {
        bool all = true;
        for (const char *const *a = f->archs; *a; a++)
            all &= text_is_one_of((*g)->archs, *a, strlen(*a));
        for (const tokenizer_name *t = (*g)->tokenizers; all && t->model; t++)
            if (n < sizeof known)
                n += (size_t)snprintf(known + n, sizeof known - n, "%s\"%s\"%s%s%s", n ? ", " : "",
                                      t->model, t->pre ? " (pre \"" : "", t->pre ? t->pre : "",
                                      t->pre ? "\")" : "");
    }
    return err_set(
        e, E_UNSUPPORTED,
        "the tokenizer is \"%.64s\" (pre \"%.64s\")%s, which carat does not know for %s; it "
        "knows %s",
        model, pre, merges ? "" : " without merges", f->name, known);
}

static status choose_kind(const vocab_builder *b, const vocab_settings *s, bool *by_score, err *e)
{
    const char *model = s->model ? s->model : "", *pre = s->pre ? s->pre : "";
    vocab *v = b->v;
    v->family = s->family;
    if (!strcmp(model, "no_vocab")) {
        v->kind = VOCAB_NONE;
        return OK;
    }
    const tokenizer_name *t = s->family->tokenizers;
    while (t->model &&
           (!text_is_tokenizer(t, model, pre) || ((t->how & NEEDS_MERGES) && !b->merges)))
        t++;
    if (!t->model)
        return refuse_kind(s->family, model, pre, b->merges, e);
    *by_score = (t->how & BY_SCORE) && s->score;
    if (!b->merges && !*by_score)
        return err_set(e, E_FORMAT, "the tokenizer is \"%s\" but the file has no merges%s for it",
                       model, t->how & BY_SCORE ? " or scores" : "");
    v->kind = t->kind;
    v->word_length = t->word_length;
    v->whole_words = t->how & WHOLE_WORDS;
    v->space_first = (t->how & SPACE_FIRST) && !s->no_space_first;
    return OK;
}

status vocab_finish(vocab_builder *b, const vocab_settings *s, vocab **out, err *e)
{
    vocab *v = b->v;
    bool by_score = false;
    status st;

    *out = NULL;
    if (b->e.status) {
        st = err_set(e, b->e.status, "%s", b->e.text);
        goto out;
    }
    if (b->tokens != b->n_tokens || b->merges != b->n_merges) {
        st = err_set(e, E_ARG,
                     "a vocabulary of %" PRId64 " pieces and %" PRId64 " merges was announced, and "
                     "%" PRId64 " and %" PRId64 " came",
                     b->n_tokens, b->n_merges, b->tokens, b->merges);
        goto out;
    }
    v->n = (int32_t)b->tokens;
    v->bos = v->raw_bos = v->eos = v->unk = -1;
    if (!v->piece_bytes && !(v->piece_bytes = mem_calloc(1, 1))) {
        st = err_memory(e, "a vocabulary", 1);
        goto out;
    }
    if (!s->family) {
        st = err_set(e, E_ARG, "a vocabulary of no family");
        goto out;
    }
    if ((st = choose_kind(b, s, &by_score, e)))
        goto out;
    if ((st = build_pieces(v, e)))
        goto out;
    set_types(v);
    set_flags(v);
    if ((st = set_specials(v, s, e)))
        goto out;
    if ((st = build_texts(v, e)))
        goto out;
    if (v->kind != VOCAB_NONE &&
        ((st = v->kind == VOCAB_BYTES ? build_bytes(v, e) : build_chars(v, e)) ||
         (st = by_score ? spm_build(v, s->score, e) : build_merges(b, e)) ||
         (st = special_build(v, e))))
        goto out;
    *out = v;
    b->v = NULL;
out:
    vocab_abandon(b);
    return st;
}

/* ---- Questions ---- */

vocab_kind vocab_kind_of(const vocab *v)
{
    return v->kind;
}

int32_t vocab_n(const vocab *v)
{
    return v->n;
}

const text_family *vocab_family(const vocab *v)
{
    return v->family;
}

int32_t vocab_bos(const vocab *v)
{
    return v->raw_bos;
}

int32_t vocab_bos_token(const vocab *v)
{
    return v->bos;
}

int32_t vocab_eos(const vocab *v)
{
    return v->eos;
}

bool vocab_is_eog(const vocab *v, int32_t id)
{
    return id >= 0 && id < v->n && v->flags[id] & FLAG_EOG;
}

const int32_t *vocab_never_sampled(const vocab *v, int32_t *n)
{
    *n = v->n_never;
    return v->never;
}

bool vocab_is_never_sampled(const vocab *v, int32_t id)
{
    return id >= 0 && id < v->n && v->flags[id] & FLAG_NEVER;
}

token_type vocab_type(const vocab *v, int32_t id)
{
    return id >= 0 && id < v->n ? (token_type)v->type[id] : TOKEN_UNUSED;
}

size_t vocab_spell_byte(unsigned char byte, char out[4])
{
    return (size_t)utf8_encode(byte_to_char(byte), out);
}

const char *vocab_piece(const vocab *v, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= v->n)
        return NULL;
    *n = v->piece_at[id + 1] - v->piece_at[id];
    return v->piece_bytes + v->piece_at[id];
}

const char *vocab_text(const vocab *v, int32_t id, bool special, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= v->n)
        return NULL;
    uint8_t t = v->type[id], f = v->flags[id];
    bool control = t == TOKEN_CONTROL || t == TOKEN_UNKNOWN;
    bool hidden = f & FLAG_EOG || (control && !(f & FLAG_SHOWN));
    if (special || !hidden)
        *n = v->text_at[id + 1] - v->text_at[id];
    return v->text_bytes + v->text_at[id];
}
