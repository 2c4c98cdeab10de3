/* compress.c - which units of a text are kept (compress.h), and the text that remains.
 *
 * The order of choices is in compress.h. Each takes what the budget has left; the rules on words
 * and neighbouring tokens together take at most three quarters of it, so that values always count.
 */
#include "text/compress.h"
#include "base/mem.h"
#include "text/compress_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS_MAX = 128, /* of the question */
    WORD_LEAST = 3,  /* bytes; shorter words are no names */
    TABLE = 512,     /* places for them, a power of two */
    GRAMS_MAX = COMPRESS_QUERY_TAIL,
    GAP_TOKENS = 4,     /* of the mark that takes the place of a gap */
    EDGE_SHARE = 8,     /* the first and the last unit take at most 1 / so much of the budget */
    HITS_SHOWN_MAX = 32 /* places of four tokens that are looked at */
};

/* ---- The budget ------------------------------------------------------------------------------ */

typedef struct chooser {
    const compress_input *in;
    compress_units u;
    int64_t left; /* tokens that may still be kept */
} chooser;

static int64_t cost_of(const compress_unit *x)
{
    return x->tokens ? x->tokens : 1;
}

/* A unit apart from others costs the mark of a gap, too. */
static bool take(chooser *c, size_t i)
{
    compress_unit *x = &c->u.at[i];
    bool joins = (i && x[-1].kept) || (i + 1 < c->u.n && x[1].kept);
    int64_t cost = cost_of(x) + (joins ? 0 : GAP_TOKENS);
    if (x->kept || cost > c->left)
        return x->kept;
    x->kept = true;
    c->left -= cost;
    return true;
}

static void take_edges(chooser *c)
{
    size_t edge[2] = {0, c->u.n - 1};
    int64_t most = c->left / EDGE_SHARE;
    for (int i = 0; i < 2; i++)
        if (cost_of(&c->u.at[edge[i]]) <= most)
            take(c, edge[i]);
}

/* ---- Words of the question ------------------------------------------------------------------- */

typedef struct word {
    const char *s;
    size_t n;
    int32_t hits; /* at most COMPRESS_TERM_HITS + 1 */
    size_t unit[COMPRESS_TERM_HITS];
} word;

typedef struct words {
    word at[WORDS_MAX];
    int n;
    int16_t place[TABLE]; /* number of the word, plus 1 */
} words;

static bool in_word(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (unsigned char)c >= 0x80;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

/* The next word from *at on. False: there is none. */
static bool next_word(const char *text, size_t n, size_t *at, size_t *from)
{
    while (*at < n && !in_word(text[*at]))
        ++*at;
    *from = *at;
    while (*at < n && in_word(text[*at]))
        ++*at;
    return *at > *from;
}

static bool same_word(const word *w, const char *s, size_t n)
{
    bool same = w->n == n;
    for (size_t i = 0; i < n && same; i++)
        same = lower(w->s[i]) == lower(s[i]);
    return same;
}

/* The place of a word in the table, or the free place where it would be. */
static size_t place_of(const words *q, const char *s, size_t n)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)lower(s[i])) * 1099511628211u;
    size_t at = (size_t)(h ^ h >> 32) % TABLE;
    while (q->place[at] && !same_word(&q->at[q->place[at] - 1], s, n))
        at = (at + 1) % TABLE;
    return at;
}

static void read_words(words *q, const char *text, size_t n)
{
    size_t at = 0, from;
    while (q->n < WORDS_MAX && next_word(text, n, &at, &from)) {
        size_t place = place_of(q, text + from, at - from);
        if (at - from < WORD_LEAST || q->place[place])
            continue;
        q->at[q->n] = (word){.s = text + from, .n = at - from};
        q->place[place] = (int16_t)++q->n;
    }
}

static void find_words(const chooser *c, words *q)
{
    const compress_input *in = c->in;
    size_t at = 0, from, unit = 0;
    while (next_word(in->text, in->n, &at, &from)) {
        size_t place = place_of(q, in->text + from, at - from);
        while (c->u.at[unit].to <= from)
            unit++;
        if (!q->place[place])
            continue;
        word *w = &q->at[q->place[place] - 1];
        if (w->hits < COMPRESS_TERM_HITS)
            w->unit[w->hits] = unit;
        w->hits += w->hits <= COMPRESS_TERM_HITS;
    }
}

/* Rare words first: of each the unit of the largest value, then the others. */
static void take_words(chooser *c, words *q)
{
    read_words(q, c->in->query, c->in->n_query_bytes);
    find_words(c, q);
    for (int32_t hits = 1; hits <= COMPRESS_TERM_HITS; hits++)
        for (int i = 0; i < q->n; i++) {
            const word *w = &q->at[i];
            size_t best = w->unit[0];
            if (w->hits != hits)
                continue;
            for (int32_t k = 1; k < hits; k++)
                if (c->u.at[w->unit[k]].value > c->u.at[best].value)
                    best = w->unit[k];
            take(c, best);
        }
    for (int32_t hits = 2; hits <= COMPRESS_TERM_HITS; hits++)
        for (int i = 0; i < q->n; i++)
            for (int32_t k = 0; q->at[i].hits == hits && k < hits; k++)
                take(c, q->at[i].unit[k]);
}

/* ---- Neighbouring tokens of the question ----------------------------------------------------- */

typedef struct gram {
    int32_t id[COMPRESS_GRAM];
    int32_t hits;
    int64_t at[HITS_SHOWN_MAX]; /* tokens of the text where it begins */
} gram;

static int by_ids(const void *a, const void *b)
{
    return memcmp(a, b, sizeof((const gram *)a)->id);
}

/* Those of the question's end, sorted, each once. */
static int read_grams(const compress_input *in, gram *g)
{
    int64_t from = in->n_query > COMPRESS_QUERY_TAIL ? in->n_query - COMPRESS_QUERY_TAIL : 0;
    int n = 0, once = 0;
    for (int64_t i = from; i + COMPRESS_GRAM <= in->n_query; i++) {
        g[n] = (gram){0};
        memcpy(g[n++].id, in->query_id + i, sizeof g->id);
    }
    qsort(g, (size_t)n, sizeof *g, by_ids);
    for (int i = 0; i < n; i++)
        if (!once || by_ids(&g[once - 1], &g[i]))
            g[once++] = g[i];
    return once;
}

static void find_grams(const compress_input *in, gram *g, int n)
{
    for (int64_t i = 0; n && i + COMPRESS_GRAM <= in->n_tokens; i++) {
        gram *hit = bsearch(in->id + i, g, (size_t)n, sizeof *g, by_ids);
        if (!hit)
            continue;
        if (hit->hits < HITS_SHOWN_MAX)
            hit->at[hit->hits] = i;
        hit->hits += hit->hits <= HITS_SHOWN_MAX;
    }
}

static size_t unit_of(const compress_units *u, size_t byte)
{
    size_t lo = 0, hi = u->n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        *(u->at[mid].from <= byte ? &lo : &hi) = mid;
    }
    return lo;
}

/* Longer texts have more of everything: more hits are no noise, and a fact lies further away. */
static void take_grams(chooser *c, gram *g)
{
    int64_t chunks = c->in->n_tokens / COMPRESS_UNIT;
    int32_t most = chunks < 1024 ? 8 : chunks < 2048 ? 16 : HITS_SHOWN_MAX;
    size_t radius = chunks < 1024 ? 2 : chunks < 2048 ? 4 : 8;
    int n = read_grams(c->in, g);
    find_grams(c->in, g, n);
    for (size_t r = 0; r <= radius; r++)
        for (int i = 0; i < n; i++)
            for (int32_t k = 0; g[i].hits <= most && k < g[i].hits; k++) {
                size_t at = unit_of(&c->u, g[i].at[k] ? c->in->end[g[i].at[k] - 1] : 0);
                if (at >= r)
                    take(c, at - r);
                if (at + r < c->u.n)
                    take(c, at + r);
            }
}

static status take_query(chooser *c, err *e)
{
    struct {
        words w;
        gram g[GRAMS_MAX];
    } *q = mem_calloc(1, sizeof *q);
    int64_t kept_back = c->left / 4;
    if (!q)
        return err_memory(e, "the words of a question", sizeof *q);
    c->left -= kept_back;
    take_words(c, &q->w);
    take_grams(c, q->g);
    c->left += kept_back;
    mem_free(q);
    return OK;
}

/* ---- By value -------------------------------------------------------------------------------- */

typedef struct rank {
    float value;
    size_t unit;
} rank;

static int by_value(const void *a, const void *b)
{
    const rank *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

static status take_best(chooser *c, err *e)
{
    rank *r = mem_calloc(c->u.n, sizeof *r);
    bool any = false;
    if (!r)
        return err_memory(e, "the order of a text's units", c->u.n * sizeof *r);
    for (size_t i = 0; i < c->u.n; i++)
        r[i] = (rank){c->u.at[i].value, i};
    qsort(r, c->u.n, sizeof *r, by_value);
    for (size_t i = 0; i < c->u.n; i++)
        any |= take(c, r[i].unit);
    for (size_t i = 0; i < c->u.n; i++)
        any |= c->u.at[i].kept;
    if (!any)
        c->u.at[r[0].unit].kept = true;
    mem_free(r);
    return OK;
}

/* ---- Spans ----------------------------------------------------------------------------------- */

/* A gap that is no longer than its mark is kept. */
static void fill_gaps(compress_units *u)
{
    for (size_t i = 1; i + 1 < u->n; i++)
        u->at[i].kept |= u->at[i - 1].kept && u->at[i + 1].kept && u->at[i].tokens <= GAP_TOKENS;
}

static status put_spans(const chooser *c, compress_result *out, err *e)
{
    const compress_units *u = &c->u;
    out->span = mem_calloc(u->n, sizeof *out->span);
    if (!out->span)
        return err_memory(e, "the spans of a text", u->n * sizeof *out->span);
    for (size_t i = 0; i < u->n; i++) {
        if (!u->at[i].kept)
            continue;
        text_span *last = out->n ? &out->span[out->n - 1] : NULL;
        out->n_kept += u->at[i].tokens;
        if (last && last->at + last->n == u->at[i].from)
            last->n = u->at[i].to - last->at;
        else
            out->span[out->n++] = (text_span){u->at[i].from, u->at[i].to - u->at[i].from};
    }
    /* Not shorter with its marks: the whole text. */
    if (out->n_kept + (int64_t)(out->n + 1) * GAP_TOKENS >= c->in->n_tokens) {
        out->span[0] = (text_span){0, c->in->n};
        out->n = 1;
        out->n_kept = c->in->n_tokens;
    }
    return OK;
}

status compress_choose(const compress_input *in, compress_result *out, err *e)
{
    chooser c = {.in = in};
    status st = OK;
    *out = (compress_result){0};
    if (!in->n || in->n_tokens < 1 || in->end[in->n_tokens - 1] != in->n)
        return err_set(e, E_ARG, "a text of %zu bytes, and tokens for %zu of them", in->n,
                       in->n_tokens > 0 ? in->end[in->n_tokens - 1] : (size_t)0);
    if (!(in->keep > 0 && in->keep < 1))
        return err_set(e, E_ARG, "a share of %g to keep: above 0 and below 1", in->keep);
    if ((st = compress_cut(in, &c.u, e)))
        goto out;
    c.left = (int64_t)floor(in->keep * (double)in->n_tokens);
    take_edges(&c);
    if ((st = take_query(&c, e)) || (st = take_best(&c, e)))
        goto out;
    fill_gaps(&c.u);
    st = put_spans(&c, out, e);
out:
    mem_free(c.u.at);
    if (st)
        compress_result_free(out);
    return st;
}

void compress_result_free(compress_result *r)
{
    mem_free(r->span);
    *r = (compress_result){0};
}

static bool ends_line(const str *s, size_t from)
{
    return s->n == from || s->at[s->n - 1] == '\n';
}

void compress_join(const char *text, const text_span *span, size_t n, str *out)
{
    size_t from = out->n, at = 0;
    for (size_t i = 0; i < n && !out->bad; i++) {
        if (span[i].at > at) {
            bool line = ends_line(out, from);
            bool blank = !line && out->at[out->n - 1] == ' ';
            str_puts(out, line ? "[...]\n" : blank ? "[...] " : " [...] ");
        }
        str_put(out, text + span[i].at, span[i].n);
        at = span[i].at + span[i].n;
    }
}

double compress_keep_of(int64_t n)
{
    static const struct {
        double n, keep;
    } at[] = {{2048, 0.30}, {8192, 0.20}, {32768, 0.10}, {65536, 0.05}, {131072, 0.02}};
    enum { N = sizeof at / sizeof *at };
    int i = 0;
    while (i < N && (double)n > at[i].n)
        i++;
    if (i == 0 || i == N)
        return at[i ? N - 1 : 0].keep;
    double part = ((double)n - at[i - 1].n) / (at[i].n - at[i - 1].n);
    return at[i - 1].keep + part * (at[i].keep - at[i - 1].keep);
}
