/* stream.h - makes the bytes of sampled tokens fit for display: whole characters only, and no part
 * of a stop string.
 *
 * stream_put takes bytes in pieces of any size; `out` receives valid UTF-8 in the same order. An
 * incomplete character is held until it is complete; an invalid byte becomes U+FFFD. A possible
 * beginning of a stop string is held until it is decided; at a stop string the text ends before it.
 * The same bytes give the same text for any division into pieces.
 *
 * Memory is taken in init and bounded by the longest stop string: stream_put never allocates. One
 * thread.
 */
#ifndef TEXT_STREAM_H
#define TEXT_STREAM_H

#include "base/err.h"

enum {
    STREAM_MAX_STOPS = 64,       /* every byte is compared with all of them */
    STREAM_MAX_STOP_BYTES = 4096 /* of one stop string: the longest text held back */
};

/* Valid UTF-8, not NUL-terminated, never empty. Return false to cancel. */
typedef bool (*text_fn)(void *user, const char *text, size_t n);

typedef struct stream {
    text_fn out;
    void *user;
    int32_t n_stops;
    struct stream_stop *stop;
    char *held; /* text not shown yet: it may begin a stop string */
    size_t n_held, held_cap;
    char tail[4]; /* an incomplete character */
    size_t n_tail;
    int32_t met;    /* index of the stop string found, or -1 */
    bool cancelled; /* out returned false */
    bool ended;
} stream;

/* Copies the stop strings. E_ARG: one is empty or not UTF-8, or they are too many or too long. */
status stream_init(stream *s, const char *const *stop, int32_t n_stops, text_fn out, void *user,
                   err *e);
void stream_free(stream *s); /* safe on a zeroed or freed stream */
/* False when the text has ended: a stop string was found (s->met) or `out` cancelled. */
bool stream_put(stream *s, const char *bytes, size_t n);
/* Shows the held text: the beginning of a stop string in it is none. A part of a character stays.
 */
void stream_flush(stream *s);
/* Call after the last token: shows the held text. An incomplete character becomes U+FFFD. */
bool stream_end(stream *s);

#endif
