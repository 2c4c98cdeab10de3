/* stream.c - see stream.h.
 *
 *     bytes -> [ tail: part of a character ] -> characters -> [ held: maybe a stop string ] -> out
 *
 * Each stop string has a Knuth-Morris-Pratt automaton. Its state is one counter: the length of the
 * longest prefix of the stop string that the text ends in. The largest counter is exactly the
 * number of bytes to hold back. Time is linear for any text.
 */
#include "text/stream.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

typedef struct stream_stop {
    char *text;
    uint16_t *fail; /* [n]: length of the longest proper prefix that ends text[0..i] */
    uint16_t n, matched;
} stream_stop;

enum { OUT_CHUNK_BYTES = 1024 }; /* shown at once */

static status stop_init(stream_stop *s, const char *text, err *e)
{
    size_t n = text ? strlen(text) : 0;
    if (!n)
        return err_set(e, E_ARG, "a stop string is empty");
    if (n > STREAM_MAX_STOP_BYTES)
        return err_set(e, E_ARG, "a stop string has %zu bytes; carat takes up to %d", n,
                       STREAM_MAX_STOP_BYTES);
    if (!utf8_valid(text, n))
        return err_set(e, E_ARG, "a stop string is not valid UTF-8");
    s->text = mem_strndup(text, n);
    s->fail = mem_calloc(n, sizeof *s->fail);
    if (!s->text || !s->fail)
        return err_memory(e, "a stop string", n * 3);
    s->n = (uint16_t)n;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && text[i] != text[k])
            k = s->fail[k - 1];
        if (text[i] == text[k])
            k++;
        s->fail[i] = (uint16_t)k;
    }
    return OK;
}

status stream_init(stream *s, const char *const *stop, int32_t n_stops, text_fn out, void *user,
                   err *e)
{
    status st = OK;
    size_t longest = 0;

    *s = (stream){.out = out, .user = user, .met = -1};
    if (n_stops < 0 || n_stops > STREAM_MAX_STOPS)
        return err_set(e, E_ARG, "%d stop strings; carat takes up to %d", n_stops,
                       STREAM_MAX_STOPS);
    if (n_stops) {
        s->stop = mem_calloc((size_t)n_stops, sizeof *s->stop);
        if (!s->stop)
            return err_memory(e, "stop strings", (size_t)n_stops * sizeof *s->stop);
        s->n_stops = n_stops;
    }
    for (int32_t i = 0; i < n_stops && !st; i++) {
        st = stop_init(&s->stop[i], stop[i], e);
        if (s->stop[i].n > longest)
            longest = s->stop[i].n;
    }
    s->held_cap = longest + OUT_CHUNK_BYTES;
    if (!st && !(s->held = mem_alloc(s->held_cap)))
        st = err_memory(e, "held text", s->held_cap);
    if (st)
        stream_free(s);
    return st;
}

void stream_free(stream *s)
{
    for (int32_t i = 0; i < s->n_stops; i++) {
        mem_free(s->stop[i].text);
        mem_free(s->stop[i].fail);
    }
    mem_free(s->stop);
    mem_free(s->held);
    *s = (stream){.met = -1};
}

/* The start of the character that contains byte i of held. */
static size_t char_start(const stream *s, size_t i)
{
    while (i > 0 && i < s->n_held && ((unsigned char)s->held[i] & 0xC0) == 0x80)
        i--;
    return i;
}

/* Shows all but the last `keep` bytes of held, whole characters only. */
static void show(stream *s, size_t keep)
{
    size_t n = char_start(s, s->n_held - keep);
    if (!n)
        return;
    if (!s->cancelled && !s->out(s->user, s->held, n))
        s->cancelled = true;
    memmove(s->held, s->held + n, s->n_held - n);
    s->n_held -= n;
}

/* Bytes at the end of held that may begin a stop string. */
static size_t open_bytes(const stream *s)
{
    size_t most = 0;
    for (int32_t i = 0; i < s->n_stops; i++)
        if (s->stop[i].matched > most)
            most = s->stop[i].matched;
    return most;
}

/* Takes one byte of valid text. False when a stop string is complete. */
static bool accept(stream *s, char c)
{
    int32_t met = -1;
    s->held[s->n_held++] = c;
    for (int32_t i = 0; i < s->n_stops; i++) {
        stream_stop *p = &s->stop[i];
        while (p->matched && c != p->text[p->matched])
            p->matched = p->fail[p->matched - 1];
        if (c == p->text[p->matched])
            p->matched++;
        /* Two stop strings may end here. The longer one removes more of the text. */
        if (p->matched == p->n && (met < 0 || p->n > s->stop[met].n))
            met = i;
    }
    if (met < 0)
        return true;
    s->met = met;
    s->n_held -= s->stop[met].n;
    show(s, 0);
    return false;
}

/* Takes one whole character, or U+FFFD. */
static bool accept_text(stream *s, const char *text, size_t n)
{
    if (s->held_cap - s->n_held < n)
        show(s, open_bytes(s)); /* keeps less than the longest stop string */
    for (size_t i = 0; i < n; i++)
        if (!accept(s, text[i]))
            return false;
    return true;
}

bool stream_put(stream *s, const char *bytes, size_t n)
{
    bool going = s->met < 0 && !s->cancelled && !s->ended;
    for (size_t i = 0; i < n && going;) {
        /* While tail holds bytes, they and the next byte are read as one character. */
        if (s->n_tail) {
            s->tail[s->n_tail++] = bytes[i++];
            if (utf8_partial_tail(s->tail, s->n_tail) == s->n_tail)
                continue; /* still incomplete */
            uint32_t cp;
            bool ok;
            size_t len = (size_t)utf8_decode(s->tail, s->n_tail, &cp, &ok);
            if (ok) {
                going = accept_text(s, s->tail, len);
                s->n_tail = 0;
                continue;
            }
            /* The tail begins no valid character: its bytes are invalid. The new byte is examined
             * again, alone. */
            i--;
            for (size_t bad = s->n_tail - 1; bad > 0 && going; bad--)
                going = accept_text(s, "\xEF\xBF\xBD", 3);
            s->n_tail = 0;
            continue;
        }
        uint32_t cp;
        bool ok;
        size_t len = (size_t)utf8_decode(bytes + i, n - i < 4 ? n - i : 4, &cp, &ok);
        if (ok) {
            going = accept_text(s, bytes + i, len);
        } else if (n - i < 4 && utf8_partial_tail(bytes + i, n - i) == n - i) {
            s->n_tail = n - i;
            memcpy(s->tail, bytes + i, n - i);
            len = n - i;
        } else {
            going = accept_text(s, "\xEF\xBF\xBD", 3);
        }
        i += len;
    }
    if (s->met < 0 && !s->ended)
        show(s, open_bytes(s));
    return s->met < 0 && !s->cancelled && !s->ended;
}

void stream_flush(stream *s)
{
    if (s->met >= 0 || s->ended)
        return;
    for (int32_t i = 0; i < s->n_stops; i++)
        s->stop[i].matched = 0;
    show(s, 0);
}

bool stream_end(stream *s)
{
    if (!s->ended && s->met < 0) {
        bool going = true;
        for (size_t i = 0; i < s->n_tail && going; i++)
            going = accept_text(s, "\xEF\xBF\xBD", 3);
        if (s->met < 0)
            show(s, 0);
    }
    s->n_tail = 0;
    s->ended = true;
    return s->met < 0 && !s->cancelled;
}
