/* heads.c - the headers of messages, in answers that are made of messages (answer_heads in
 * family.h).
 *
 *     header  = [ end space ] [ start role ] [ to ] { channel NAME [ to ] } [ type ] message
 *     to      = " to=" RECIPIENT
 *     type    = [ " " ] [ constrain ] WORD
 *
 * A model's mistakes that are understood: no end, no start, no channel, or two channels.
 */
#include "text/parse_int.h"

#include <string.h>

typedef struct head_reading {
    const char *s;
    size_t n, at;
    bool open; /* the text ended where something of the header could go on */
} head_reading;

static bool take(head_reading *r, const char *what)
{
    size_t len = strlen(what), left = r->n - r->at;
    if (memcmp(r->s + r->at, what, left < len ? left : len))
        return false;
    r->open |= left < len;
    r->at += left < len ? 0 : len;
    return left >= len;
}

/* Up to the next space or mark. */
static size_t take_until_gap(head_reading *r)
{
    size_t from = r->at;
    while (r->at < r->n && (unsigned char)r->s[r->at] > ' ' && r->s[r->at] != '<')
        r->at++;
    r->open |= r->at == r->n;
    return r->at - from;
}

/* " to=NAME": a call of that tool, unless the recipient is a reader of text. */
static bool take_recipient(head_reading *r, const answer_heads *x, answer_head *h)
{
    static const char *const readers_of_text[] = {"assistant", "all", NULL};
    size_t at, n;
    if (!take(r, " to="))
        return true;
    at = r->at;
    n = take_until_gap(r);
    if (r->at == r->n && n <= CALL_MAX_NAME_BYTES)
        return true; /* more of it may come */
    if (!n || n > CALL_MAX_NAME_BYTES)
        return false;
    if (text_is_one_of(readers_of_text, r->s + at, n))
        return true;
    size_t n_space = strlen(x->call_space);
    bool inside = n > n_space && !memcmp(r->s + at, x->call_space, n_space);
    h->kind = HEAD_CALL;
    h->name = at + (inside ? n_space : 0);
    h->n_name = n - (inside ? n_space : 0);
    return true;
}

static bool take_channel(head_reading *r, const answer_heads *x, answer_head *h)
{
    const char *const names[] = {x->thought, x->commentary, x->text, NULL};
    const char *name = r->s + r->at;
    size_t n = take_until_gap(r);
    for (int i = 0; r->at == r->n && names[i]; i++)
        if (n <= strlen(names[i]) && !memcmp(names[i], name, n))
            return true; /* more of it may come */
    if (!text_is_one_of(names, name, n))
        return false;
    if (h->kind != HEAD_CALL)
        h->kind = text_is_one_of((const char *const[]){x->thought, NULL}, name, n) ? HEAD_THOUGHT
                                                                                   : HEAD_TEXT;
    return true;
}

static void take_type(head_reading *r, const answer_heads *x)
{
    bool marked;
    take(r, " ");
    marked = take(r, x->constrain);
    if (marked || r->s[r->at - 1] == ' ')
        take_until_gap(r);
}

static bool take_end(head_reading *r, const answer_heads *x)
{
    bool any = false;
    for (const char *const *end = x->ends; *end && !any; end++)
        any = take(r, *end);
    while (any && r->at < r->n && call_is_space(r->s[r->at]))
        r->at++;
    r->open |= any && r->at == r->n;
    return any;
}

head_found head_read(const answer_heads *x, const char *s, size_t n, answer_head *h)
{
    head_reading r = {s, n < HEAD_MAX_BYTES ? n : HEAD_MAX_BYTES, 0, false};
    bool ended = take_end(&r, x), started, fits = true;
    *h = (answer_head){.kind = HEAD_TEXT, .at = r.at};
    started = take(&r, x->start);
    fits = !started || take(&r, x->role) || r.open;
    bool any = started;
    fits = fits && (ended && !started ? true : take_recipient(&r, x, h));
    while (fits && take(&r, x->channel)) {
        any = true;
        fits = take_channel(&r, x, h) && take_recipient(&r, x, h);
    }
    if (fits && r.at > h->at)
        take_type(&r, x);
    if (fits && (any || !ended) && take(&r, x->message)) {
        h->n = r.at;
        return HEAD_WHOLE;
    }
    return fits && r.open && r.n == n ? HEAD_OPEN : HEAD_NONE;
}
