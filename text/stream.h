/* stream.h - the bytes of sampled tokens, made fit to be shown: whole characters only, and nothing
 * that might turn out to be a stop string.
 *
 * put() hands over bytes in any pieces; `out` receives valid UTF-8 in the order it came. A
 * character split over tokens is held until it is whole; a byte that can belong to none becomes
 * U+FFFD. Text that could be the beginning of a stop string is held until that is decided; when
 * one is met the text ends in front of it. The same bytes give the same text however they are cut.
 *
 * Memory is taken in init and bounded by the longest stop string: put never allocates. One thread.
 */
#ifndef TEXT_STREAM_H
#define TEXT_STREAM_H

#include "base/err.h"

enum {
    STREAM_MAX_STOPS = 64,       /* each put looks for all of them */
    STREAM_MAX_STOP_BYTES = 4096 /* of one stop string: text is held back for so long */
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
    char tail[4]; /* the beginning of a character */
    size_t n_tail;
    int32_t met;    /* index of the stop string met, -1 */
    bool cancelled; /* out returned false */
    bool ended;
} stream;

/* Stop strings are copied. E_ARG: an empty one, one that is not UTF-8, too many, too long. */
status stream_init(stream *s, const char *const *stop, int32_t n_stops, text_fn out, void *user,
                   err *e);
void stream_free(stream *s); /* safe on a zeroed or freed stream */
/* False when there is no point in going on: a stop string was met (s->met) or out cancelled. */
bool stream_put(stream *s, const char *bytes, size_t n);
/* The last token is in: shows what was held; half a character becomes U+FFFD. */
bool stream_end(stream *s);

#endif
