/* compress_units.c - a text as units: sentences, lines, and blocks of code between fences.
 *
 *     | line | line | ```c ... ``` | A sentence. Another one. | a long ... | ... sentence |
 *
 * A unit has about COMPRESS_UNIT tokens. It ends where a line or a sentence ends; one with more
 * than twice as many tokens ends at a space, or where there is none, between two characters. Units
 * are made before any is chosen, so what is kept never needs to grow to whole words, and the budget
 * counts what will be there.
 */
#include "text/compress_int.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    UNIT_EARLY = COMPRESS_UNIT * 3 / 4, /* from so many tokens on, the end of a sentence ends it */
    UNIT_PARAGRAPH = COMPRESS_UNIT / 2, /* the same of a paragraph */
    UNIT_MOST = COMPRESS_UNIT * 2,
    FENCE_INDENT = 3 /* columns that a closing fence may be further right than the opening one */
};

static bool put_unit(compress_units *u, compress_unit unit)
{
    if (u->n == u->cap) {
        size_t cap = u->cap ? 2 * u->cap : 64;
        compress_unit *at = mem_realloc(u->at, cap, sizeof *at);
        if (!at)
            return false;
        u->at = at;
        u->cap = cap;
    }
    u->at[u->n++] = unit;
    return true;
}

/* ---- Fences ---------------------------------------------------------------------------------- */

typedef struct fence {
    char mark;     /* ` or ~; 0: the line has none */
    size_t indent; /* columns before it, signs of quotations among them */
    size_t n;      /* marks */
    bool bare;     /* nothing but spaces follows */
} fence;

/* The fence at the beginning of a line, s[0..n) without its newline. */
static fence fence_of(const char *s, size_t n)
{
    fence f = {0};
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '>'))
        i++;
    f.indent = i;
    char mark = i < n ? s[i] : 0;
    while (i < n && s[i] == mark) {
        i++;
        f.n++;
    }
    bool info_ok = mark != '`' || !memchr(s + i, '`', n - i); /* else it is code in a line */
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\r'))
        i++;
    f.bare = i == n;
    f.mark = (mark == '`' || mark == '~') && f.n >= 3 && info_ok ? mark : 0;
    return f;
}

static size_t line_end(const char *text, size_t n, size_t at)
{
    const char *nl = memchr(text + at, '\n', n - at);
    return nl ? (size_t)(nl - text) + 1 : n;
}

/* The next block of code from `at` on, with its fences; one that is not closed goes to the end.
 * False: there is none. */
static bool next_block(const char *text, size_t n, size_t at, size_t *from, size_t *to)
{
    fence open = {0};
    while (at < n) {
        size_t end = line_end(text, n, at), len = end - at;
        fence f = fence_of(text + at, len && text[end - 1] == '\n' ? len - 1 : len);
        if (!open.mark && f.mark) {
            open = f;
            *from = at;
        } else if (open.mark && f.mark == open.mark && f.n >= open.n && f.bare &&
                   f.indent <= open.indent + FENCE_INDENT) {
            *to = end;
            return true;
        }
        at = end;
    }
    *to = n;
    return open.mark != 0;
}

/* ---- Ends of words and sentences ------------------------------------------------------------- */

typedef enum cut_kind { CUT_NONE, CUT_CHAR, CUT_WORD, CUT_SENTENCE, CUT_PARAGRAPH } cut_kind;

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The length of a mark that ends sentences, or closes a quotation, before position at; 0: none. */
static size_t mark_before(const char *text, size_t from, size_t at, bool *ends, bool *wide)
{
    static const char *const marks[] = {"\xe3\x80\x82", "\xef\xbc\x81", "\xef\xbc\x9f",
                                        "\xe2\x80\xa6"}; /* 。！？… */
    static const char *const closers[] = {"\xe2\x80\x9d", "\xe2\x80\x99", "\xc2\xbb",
                                          "\xe3\x80\x8d", "\xe3\x80\x8f"}; /* ”’»」』 */
    size_t left = at - from;
    *ends = *wide = false;
    if (left && strchr(".!?", text[at - 1])) {
        *ends = text[at - 1] != 0;
        return *ends;
    }
    if (left && text[at - 1] && strchr(")]\"'*_", text[at - 1]))
        return 1;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (left >= 3 && !memcmp(text + at - 3, marks[i], 3)) {
            *ends = *wide = true;
            return 3;
        }
    for (size_t i = 0; i < sizeof closers / sizeof *closers; i++) {
        size_t n = strlen(closers[i]);
        if (left >= n && !memcmp(text + at - n, closers[i], n))
            return n;
    }
    return 0;
}

/* Does a sentence end before position at? Chinese and Japanese ones need no space after them. */
static bool sentence_ends(const char *text, size_t from, size_t at)
{
    enum { CLOSERS = 3 };
    bool ends, wide, spaced = is_space(text[at - 1]);
    while (at > from && is_space(text[at - 1]))
        at--;
    for (int i = 0; i <= CLOSERS; i++) {
        size_t n = mark_before(text, from, at, &ends, &wide);
        if (ends)
            return spaced || wide;
        if (!n)
            return false;
        at -= n;
    }
    return false;
}

/* What a cut before position at would part; from < at <= to. */
static cut_kind cut_at(const char *text, size_t from, size_t at, size_t to)
{
    if (at < to && ((unsigned char)text[at] & 0xc0) == 0x80)
        return CUT_NONE;
    if (at < to && is_space(text[at]) && text[at - 1] != '\n')
        return CUT_CHAR; /* spaces belong to what they follow */
    if (text[at - 1] == '\n')
        return at - from > 1 && text[at - 2] == '\n' ? CUT_PARAGRAPH : CUT_SENTENCE;
    if (sentence_ends(text, from, at))
        return CUT_SENTENCE;
    return is_space(text[at - 1]) ? CUT_WORD : CUT_CHAR;
}

/* ---- Units ----------------------------------------------------------------------------------- */

typedef struct cutter {
    const compress_input *in;
    compress_units *u;
    int64_t t; /* tokens that end at or before `at` */
    size_t at; /* bytes that units cover */
} cutter;

/* The mean of tokens first .. end - 1; a NaN counts as 0. */
static float mean_value(const compress_input *in, int64_t first, int64_t end)
{
    double sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += in->value[i] == in->value[i] ? (double)in->value[i] : 0;
    return end > first ? (float)(sum / (double)(end - first)) : 0;
}

/* The next unit ends at byte `to`, where t tokens have ended. */
static bool put(cutter *c, size_t to, int64_t t, bool code)
{
    const compress_input *in = c->in;
    int64_t end = t < in->n_tokens && (t ? in->end[t - 1] : 0) < to ? t + 1 : t;
    compress_unit x = {.from = c->at, .to = to, .tokens = t - c->t, .code = code};
    if (!code) {
        x.value = mean_value(in, c->t, end);
    } else {
        x.value = -INFINITY;
        for (int64_t i = c->t; i < end; i += COMPRESS_UNIT) {
            float v = mean_value(in, i, end - i < COMPRESS_UNIT ? end : i + COMPRESS_UNIT);
            x.value = v > x.value ? v : x.value;
        }
    }
    c->at = to;
    c->t = t;
    return put_unit(c->u, x);
}

static bool is_end(cut_kind k, int64_t tokens)
{
    return (k == CUT_PARAGRAPH && tokens >= UNIT_PARAGRAPH) ||
           (k >= CUT_SENTENCE && tokens >= UNIT_EARLY);
}

/* Units up to byte `to`, which has no fence before it. */
static bool cut_prose(cutter *c, size_t to)
{
    const compress_input *in = c->in;
    while (c->at < to) {
        struct {
            size_t at;
            int64_t t;
        } best[CUT_PARAGRAPH + 1] = {{0}}, end = {to, 0};
        int64_t t = c->t;
        bool found = false;
        for (size_t at = c->at + 1; at <= to && !found; at++) {
            while (t < in->n_tokens && in->end[t] <= at)
                t++;
            cut_kind k = at == to ? CUT_PARAGRAPH : cut_at(in->text, c->at, at, to);
            if (k == CUT_NONE)
                continue;
            best[k].at = at;
            best[k].t = end.t = t;
            if (at == to)
                break;
            found = is_end(k, t - c->t);
            end.at = found ? at : end.at;
            if (found || t - c->t < UNIT_MOST)
                continue;
            /* Too long: back to the last place that parts least. */
            for (k = CUT_PARAGRAPH; !best[k].at; k--)
                ;
            end.at = best[k].at;
            end.t = best[k].t;
            found = true;
        }
        if (!put(c, end.at, end.t, false))
            return false;
    }
    return true;
}

/* Tokens that end at or before byte `to`. */
static int64_t tokens_to(const cutter *c, size_t to)
{
    int64_t t = c->t;
    while (t < c->in->n_tokens && c->in->end[t] <= to)
        t++;
    return t;
}

status compress_cut(const compress_input *in, compress_units *u, err *e)
{
    cutter c = {.in = in, .u = u};
    size_t from = 0, to = 0;
    bool ok = true;
    while (ok && next_block(in->text, in->n, c.at, &from, &to))
        ok = cut_prose(&c, from) && put(&c, to, tokens_to(&c, to), true);
    ok = ok && cut_prose(&c, in->n);
    return ok ? OK : err_memory(e, "the units of a text", u->n * sizeof *u->at);
}
