/* vocab_int.h - the inside of a vocabulary, for vocab.c (builds it), special.c and bpe.c (read it).
 *
 * Pieces lie back to back in one block; an open-addressing table finds them. A second table, keyed
 * by the two ids of a pair, holds the merges. The other tables are derived at load to make encoding
 * fast: the id of each character, the pairs of characters that no merge can join, and a trie of the
 * special pieces.
 */
#ifndef TEXT_VOCAB_INT_H
#define TEXT_VOCAB_INT_H

#include "base/arena.h"
#include "text/family.h"
#include "text/vocab.h"

#include <stdatomic.h>
#include <string.h>

enum {
    VOCAB_MAX_TOKENS = 1 << 21, /* 8 times Gemma's: two ids and a rank share 64 bits */
    VOCAB_MAX_MERGES = (1 << 22) - 1,
    VOCAB_MAX_PIECE_BYTES = 65535,  /* the longest in published files: about 100 */
    VOCAB_MAX_SPECIAL_BYTES = 1024, /* of one special piece: the bound of one search */
    VOCAB_MAX_BYTES = 1 << 30,      /* of all pieces, and of all merges, together */
    VOCAB_MAX_PROBES = 4096,        /* more probes mean a file made to collide */
    VOCAB_MAX_TEXT_BYTES = 1 << 30, /* of one text to encode: positions fit in 32 bits */
};

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, how pieces spell a space */
#define SPACE_MARK_CP 0x2581u

enum {
    FLAG_EOG = 1,       /* ends generation */
    FLAG_SHOWN = 2,     /* a mark of the output parser: always spelled out */
    FLAG_STRUCTURE = 4, /* structural: never matched in content */
    FLAG_SPECIAL = 8,   /* a special piece */
    FLAG_NEVER = 16     /* never sampled */
};

enum { SELF_UNKNOWN, SELF_YES, SELF_NO };

typedef struct piece_slot {
    uint32_t tag; /* high half of the hash */
    int32_t id;   /* -1: empty */
} piece_slot;

/* left << 43 | right << 22 | rank. Encoding a rare word mostly waits for this table, so slots are
 * small: 8 bytes hit the CPU caches more often than 16. */
typedef uint64_t pair_slot;
#define PAIR_EMPTY UINT64_MAX
#define NO_RANK UINT32_MAX

typedef struct trie_slot {
    uint32_t edge; /* node << 8 | byte */
    uint32_t node; /* 0: empty slot (the root is never a child) */
} trie_slot;

struct vocab {
    const text_family *family;
    vocab_kind kind;
    size_t (*word_length)(const char *s, size_t n); /* tokenizer_name in family.h */
    bool whole_words, space_first;
    int32_t n;
    uint32_t *piece_at; /* [n + 1] into piece_bytes */
    char *piece_bytes;
    uint32_t *text_at; /* [n + 1] into text_bytes: the printed form of each token */
    char *text_bytes;
    uint8_t *type, *flags; /* [n] */
    /* [n]: whether the piece, as a part of its own, encodes to itself: SELF_*, computed on first
     * use. Any thread may write, because all write the same value. */
    _Atomic uint8_t *self;

    bool has_twins; /* real pieces of the same spelling */
    piece_slot *slot;
    uint32_t slot_mask;
    pair_slot *pair;
    uint32_t pair_mask;
    uint64_t pair_bytes; /* from mem_pages */
    int32_t *merged;     /* [n_merges]: the id that the merge of this rank makes */

    /* VOCAB_CHARS has all of these tables, VOCAB_BYTES byte_id alone: the pieces that words begin
     * with. */
    int32_t *char_id; /* [n_chars]: the piece of this one character, or -1 */
    uint32_t n_chars; /* of U+0000 to U+FFFF: up to the largest with a piece */
    int32_t byte_id[256];
    int32_t *newline_id; /* [newline_max + 1]: the piece of this many LF, or -1 */
    int32_t newline_max;

    /* Whether a merge can join a piece ending in x with a piece beginning in y. Exact for ASCII,
     * where the space stands for U+2581. Otherwise a hashed bitmap: a false "yes" costs time
     * only. */
    uint64_t join_ascii[128][2];
    uint64_t *join_other; /* join_mask + 1 bits */
    uint32_t join_mask;

    trie_slot *trie;
    uint32_t trie_mask, n_nodes;
    int32_t *node_id; /* [n_nodes]: the special piece that ends here, or -1 */
    bool first[256];  /* bytes that begin a special piece */

    int32_t bos, raw_bos, eos, unk; /* raw_bos: of raw prompts */
    int32_t *never, n_never;        /* in ascending order */
};

/* Gemma's half a million merges have the most bits; few merges need few. */
enum { JOIN_BITS_MAX = 1 << 21, JOIN_BITS_PER_MERGE = 4 };

/* How pieces of VOCAB_BYTES spell a byte: printable characters of Latin-1 as themselves, the other
 * 68 bytes as U+0100 and on, in order. */
static inline uint32_t byte_to_char(unsigned char b)
{
    if (b <= ' ')
        return 0x100u + b;
    if (b >= 0x7F && b <= 0xA0)
        return 0x121u + b - 0x7F;
    return b == 0xAD ? 0x143u : b;
}

/* The byte that the character spells; -1: none. */
static inline int char_to_byte(uint32_t c)
{
    if (c < 0x100)
        return byte_to_char((unsigned char)c) == c ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

static inline uint64_t hash_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Hash of a short byte string: eight bytes a step; two overlapping reads cover the tail. */
static inline uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, a, b;
    while (n > 8) {
        memcpy(&a, s, 8);
        h = hash_fold(h ^ a ^ 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu);
        s += 8;
        n -= 8;
    }
    if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        b = (uint64_t)hi << 32 | lo;
    } else if (n > 0) {
        b = (uint64_t)(unsigned char)s[0] << 16 | (uint64_t)(unsigned char)s[n >> 1] << 8 |
            (unsigned char)s[n - 1];
    } else {
        b = 0;
    }
    return hash_fold(h ^ b ^ 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u);
}

static inline uint64_t hash_pair(int32_t left, int32_t right)
{
    return hash_fold(((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ 0xa0761d6478bd642fu,
                     0xe7037ed1a0b428dbu);
}

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 21 | (uint32_t)right;
}

static inline void pair_prefetch(const vocab *v, int32_t left, int32_t right)
{
    __builtin_prefetch(&v->pair[(uint32_t)hash_pair(left, right) & v->pair_mask]);
}

/* Building the table of merges: memory for n_pairs pairs and n_ranks results (v->merged); a pair
 * that is put again keeps its first rank; its pieces' texts may stand side by side in one part. */
status merges_begin(vocab *v, uint64_t n_pairs, uint64_t n_ranks, err *e);
status merges_put(vocab *v, int32_t left, int32_t right, uint32_t rank, err *e);
void merges_may_join(vocab *v, const char *left, size_t n_left, const char *right, size_t n_right);

/* The merges that scores stand for; score: of every piece. */
status spm_build(vocab *v, const float *score, err *e); /* spm.c */

/* The rank of the merge of two pieces, or NO_RANK. */
static inline uint32_t pair_rank(const vocab *v, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint32_t i = (uint32_t)hash_pair(left, right) & v->pair_mask;;
         i = (i + 1) & v->pair_mask) {
        pair_slot p = v->pair[i];
        if (p >> 22 == key && p != PAIR_EMPTY)
            return (uint32_t)p & VOCAB_MAX_MERGES;
        if (p == PAIR_EMPTY)
            return NO_RANK;
    }
}

static inline uint32_t join_bit(const vocab *v, uint32_t x, uint32_t y)
{
    return (uint32_t)hash_fold((uint64_t)x << 32 | y, 0xe7037ed1a0b428dbu) & v->join_mask;
}

/* x and y: characters of pieces, with the space in place of U+2581. */
static inline bool may_join(const vocab *v, uint32_t x, uint32_t y)
{
    if ((x | y) < 128)
        return v->join_ascii[x][y >> 6] >> (y & 63) & 1;
    uint32_t b = join_bit(v, x, y);
    return v->join_other[b >> 6] >> (b & 63) & 1;
}

/* ---- special.c ---- */

/* One special piece found in a text. */
typedef struct special_hit {
    size_t at;
    uint32_t n;
    int32_t id;
} special_hit;

status special_build(vocab *v, err *e); /* the trie, from types and flags */
void special_free(vocab *v);
/* All special pieces to cut out of the text, in text order, without overlap. *hits belongs to the
 * caller (mem_free); NULL if there are none. Work memory: at most 60 bytes for each byte of text
 * that begins a special piece. */
status special_find(const vocab *v, const marked_text *t, special_hit **hits, size_t *n_hits,
                    err *e);

/* ---- bpe.c ---- */

/* Work counters of one encode, for tests that bound the work. */
typedef struct encode_work {
    uint64_t chars, words, cache_hits, whole_hits, pair_lookups, heap_moves;
} encode_work;

status encode_counted(const vocab *v, const marked_text *t, id_list *out, encode_work *work,
                      err *e);

#endif
