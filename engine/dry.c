/* dry.c - see dry.h.
 *
 * A compiled set of breakers is a bit per token (does a breaker begin in it?), another (is a whole
 * breaker in it?), and a list of (token, tail), sorted by token. A tail is the tokens of what a
 * token leaves of a breaker. Breakers share a tail per cut, so the list is small.
 */
#include "engine/dry.h"
#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct dry_tail {
    int32_t id[DRY_TAIL_TOKENS];
    int32_t n;
} dry_tail;

typedef struct dry_head {
    int32_t id, tail;
} dry_head;

struct dry_breakers {
    int32_t n_vocab;
    uint32_t *begins, *whole; /* a bit per token */
    dry_tail *tail;           /* [n_tails] */
    int32_t n_tails;
    dry_head *head; /* [n_heads], in ascending order of id */
    int64_t n_heads, cap_heads;
};

typedef struct dry_text {
    const char *at;
    size_t n;
    int32_t tail0; /* tail0 + k - 1 is the tail after the first k bytes */
} dry_text;

static const char *const usual[] = {"\n", ":", "\"", "*"};

static bool bit(const uint32_t *bits, int32_t id)
{
    return bits[id >> 5] >> (id & 31) & 1;
}

static void set_bit(uint32_t *bits, int32_t id)
{
    bits[id >> 5] |= UINT32_C(1) << (id & 31);
}

/* ---- Compiling --------------------------------------------------------------------------- */

static status add_head(dry_breakers *d, int32_t id, int32_t tail, err *e)
{
    if (d->n_heads == d->cap_heads) {
        int64_t cap = d->cap_heads ? 2 * d->cap_heads : 256;
        dry_head *more = mem_realloc(d->head, (size_t)cap, sizeof *more);
        if (!more)
            return err_memory(e, "the breakers of DRY", (size_t)cap * sizeof *more);
        d->head = more;
        d->cap_heads = cap;
    }
    d->head[d->n_heads++] = (dry_head){id, tail};
    return OK;
}

/* The tails of b, which follow each of its proper beginnings. */
static status make_tails(dry_breakers *d, const vocab *v, dry_text *b, err *e)
{
    b->tail0 = d->n_tails;
    for (size_t k = 1; k < b->n; k++) {
        dry_tail *t = &d->tail[d->n_tails++];
        id_list list = {0};
        const marked_text rest = {.at = b->at + k, .n = b->n - k, .before = BEFORE_TEXT};
        status st = vocab_encode_spans(v, &rest, &list, e);
        if (st) {
            id_list_free(&list);
            return st;
        }
        t->n = list.n < DRY_TAIL_TOKENS ? (int32_t)list.n : DRY_TAIL_TOKENS;
        if (t->n)
            memcpy(t->id, list.at, (size_t)t->n * sizeof *t->id);
        id_list_free(&list);
    }
    return OK;
}

/* Looks for b in a token's text, from every byte that is b's first. */
static status look_in(dry_breakers *d, const dry_text *b, int32_t id, const char *text, size_t n,
                      err *e)
{
    status st;
    for (size_t i = 0; i < n; i++) {
        size_t len = n - i < b->n ? n - i : b->n;
        if (text[i] != b->at[0] || memcmp(text + i, b->at, len))
            continue;
        set_bit(d->begins, id);
        if (len == b->n) {
            set_bit(d->whole, id);
            return OK; /* the tail is empty, and no tail is longer where it counts */
        }
        if ((st = add_head(d, id, b->tail0 + (int32_t)len - 1, e)))
            return st;
    }
    return OK;
}

static status compile(dry_breakers *d, const vocab *v, const dry_text *b, int32_t n, err *e)
{
    bool first[256] = {false};
    for (int32_t i = 0; i < n; i++)
        first[(unsigned char)b[i].at[0]] = true;
    for (int32_t id = 0; id < d->n_vocab; id++) {
        size_t len = 0;
        const char *text = vocab_text(v, id, true, &len);
        bool any = false;
        for (size_t i = 0; text && i < len; i++)
            any |= first[(unsigned char)text[i]];
        for (int32_t i = 0; any && i < n; i++) {
            status st = look_in(d, &b[i], id, text, len, e);
            if (st)
                return st;
        }
    }
    return OK;
}

status dry_open(dry_breakers **out, const vocab *v, const carat_sampling *p, err *e)
{
    const char *const *from = p->dry_breakers ? p->dry_breakers : usual;
    int32_t given = p->dry_breakers ? p->n_dry_breakers : (int32_t)(sizeof usual / sizeof *usual);
    dry_text b[DRY_BREAKERS_MAX];
    int32_t n = 0;
    size_t words = ((size_t)vocab_n(v) + 31) / 32, n_tails = 0;
    dry_breakers *d = mem_calloc(1, sizeof *d);
    status st = OK;
    *out = NULL;
    for (int32_t i = 0; i < given && n < DRY_BREAKERS_MAX; i++) {
        size_t len = strnlen(from[i], DRY_BREAKER_BYTES);
        if (len)
            b[n++] = (dry_text){from[i], len, 0};
        n_tails += len;
    }
    if (!d)
        return err_memory(e, "the breakers of DRY", sizeof *d);
    d->n_vocab = vocab_n(v);
    d->begins = mem_calloc(words, sizeof *d->begins);
    d->whole = mem_calloc(words, sizeof *d->whole);
    d->tail = mem_calloc(n_tails + 1, sizeof *d->tail);
    if (!d->begins || !d->whole || !d->tail)
        st = err_memory(e, "the breakers of DRY", 2 * words * sizeof *d->begins);
    for (int32_t i = 0; i < n && !st; i++)
        st = make_tails(d, v, &b[i], e);
    if (!st)
        st = compile(d, v, b, n, e);
    if (st)
        dry_close(d);
    else
        *out = d;
    return st;
}

void dry_close(dry_breakers *d)
{
    if (!d)
        return;
    mem_free(d->head);
    mem_free(d->tail);
    mem_free(d->whole);
    mem_free(d->begins);
    mem_free(d);
}

/* ---- Counting ---------------------------------------------------------------------------- */

static const dry_head *heads_of(const dry_breakers *d, int32_t id)
{
    int64_t lo = 0, hi = d->n_heads;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (d->head[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return d->head + lo;
}

/* The number of tokens after the last breaker in past[0..n); matches are at most this long. */
static int64_t reach(const dry_breakers *d, const int32_t *past, int64_t n)
{
    for (int64_t i = 0; d && i < n; i++) {
        int32_t id = past[n - 1 - i];
        int64_t longest = -1;
        if (id < 0 || id >= d->n_vocab || !bit(d->begins, id))
            continue;
        if (bit(d->whole, id))
            longest = 0;
        const dry_head *end = d->head + d->n_heads;
        for (const dry_head *h = heads_of(d, id); h < end && h->id == id; h++) {
            const dry_tail *t = &d->tail[h->tail];
            if (t->n > longest && t->n <= i &&
                !memcmp(t->id, past + (n - i), (size_t)t->n * sizeof *t->id))
                longest = t->n;
        }
        if (longest >= 0)
            return i - longest;
    }
    return n;
}

int64_t dry_window(const carat_sampling *p, int64_t n_past)
{
    return p->dry_last_n < 0 || p->dry_last_n > n_past ? n_past : p->dry_last_n;
}

bool dry_count(const dry_breakers *d, const carat_sampling *p, const int32_t *past, int64_t n_past,
               int32_t n_vocab, int32_t *match, int32_t *count)
{
    int64_t n = dry_window(p, n_past), allowed = p->dry_allowed_length, left = 0, right = 0;
    const int32_t *newest = past + n_past - 1; /* newest[-k]: k tokens before it */
    bool any = false;
    if (n <= allowed)
        return false;
    int64_t most = reach(d, past + (n_past - n), n);
    if (most < allowed)
        return false;
    /* match[k]: the length of the common suffix of the past and of the past without its last k
     * tokens. [left, right), counted from the newest token, is the match that reaches furthest
     * back. */
    for (int64_t k = 1; k < n; k++) {
        int64_t m = 0;
        if (k < right) {
            m = match[k - left];
            m = m < right - k ? m : right - k;
        }
        if (k + m >= right) {
            while (k + m < n && newest[-m] == newest[-(k + m)])
                m++;
            left = k;
            right = k + m;
        }
        match[k] = (int32_t)m;
        m = m < most ? m : most;
        int32_t next = newest[1 - k];
        if (m < allowed || next < 0 || next >= n_vocab ||
            (d && next < d->n_vocab && bit(d->whole, next)))
            continue;
        int32_t c = (int32_t)(m - allowed + 1);
        count[next] = count[next] > c ? count[next] : c;
        any = true;
    }
    return any;
}

float dry_penalty(const carat_sampling *p, int32_t count)
{
    double exponent = count - 1, ln = log(p->dry_base);
    /* Beyond this the power exceeds a float. */
    if (ln > 0 && exponent > log(FLT_MAX) / ln)
        exponent = floor(log(FLT_MAX) / ln);
    double v = p->dry_multiplier * pow(p->dry_base, exponent);
    return v < FLT_MAX / 2 ? (float)v : FLT_MAX / 2;
}
