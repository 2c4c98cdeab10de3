/* recording.h - streams that outlive their connection, for clients that come back.
 *
 *     connection of the request:  recording_begin, then recording_add for all that is sent
 *     other connections:          recording_follow: what was sent from some place on, then what
 * comes
 *
 * A client asks for it (X-Conversation-Id, or `background` of /v1/responses). When it leaves, the
 * answer goes on for KEEP_S, or as long as another connection follows; one of `background` to its
 * end. A recording stays for KEEP_S after its end. It has the bytes as they were sent: places are
 * counted in bytes, as llama-server does, or by the id of an event. Of a long stream the beginning
 * is dropped. All recordings together have RECORDINGS_BYTES of memory: those that ended first are
 * forgotten, then beginnings are dropped.
 *
 * A recording belongs to the API key of its request. Thread-safe.
 */
#ifndef APPS_SERVER_RECORDING_H
#define APPS_SERVER_RECORDING_H

#include "apps/server/http/exchange.h"

typedef struct recordings recordings;
typedef struct recording recording;

enum {
    RECORDING_KEEP_S = 300,
    RECORDING_BYTES = 4 << 20,
    RECORDINGS_BYTES = 64 << 20,
    RECORDING_NAME_MAX = 256
};

status recordings_open(recordings **s, err *e);
void recordings_close(recordings *s); /* nobody records or follows; NULL is fine */

/* name: by which clients find it; NULL: by the answer's id alone. A recording of the same name
 * goes, and its answer ends. NULL: no memory, and p says so. */
recording *recording_begin(recordings *s, int32_t owner, const char *name, problem *p);
void recording_of_answer(recording *r, const char *id); /* its second name */
/* Events of a stream, whole ones: gives each an id, and keeps them. Comments have none. */
void recording_add(recording *r, str *events);
void recording_alone(recording *r);        /* its own client has left */
bool recording_wanted(const recording *r); /* somebody may still read what comes */
void recording_end(recording *r);          /* nothing more comes; NULL is fine */

/* Ends the answer and forgets the recording. False: there is none. */
bool recording_remove(recordings *s, int32_t owner, const char *name);
/* What a client may know of a recording whose name it knows. */
typedef struct recording_info {
    bool over;
    uint64_t n_bytes;           /* sent so far */
    int64_t begun_at, ended_at; /* seconds since 1970; 0: not yet */
} recording_info;
bool recording_poll(recordings *s, int32_t owner, const char *name, recording_info *i);

/* Where a client goes on. */
typedef struct recording_place {
    const char *name;  /* of the recording; NULL: that of last_event */
    const char *event; /* after the event with this id; or */
    int64_t after;     /* after this event, from 0 on; -1: from the beginning; or, with by_byte, */
    uint64_t from;     /* from this byte on */
    bool by_byte;
} recording_place;
/* Makes the recording the answer of x. Without one the answer is a problem. */
void recording_follow(recordings *s, exchange *x, const recording_place *at);

#endif
