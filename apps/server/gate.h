/* gate.h - connections until their first request header is there.
 *
 * The HTTP library gives each connection a thread, which is too much for one that says nothing. So
 * one thread accepts, and watches any number of silent or slow connections; a connection goes to
 * the library when its header is complete. The time for that is fixed, whatever trickles. Too many
 * of them push out the oldest, so an honest client, which sends its header at once, always gets in.
 */
#ifndef APPS_SERVER_GATE_H
#define APPS_SERVER_GATE_H

#include "base/err.h"

#include <sys/socket.h>

typedef struct gate gate;

typedef struct gate_options {
    int listener;        /* listening; the gate closes it */
    int32_t waiting_max; /* connections without a complete header */
    int header_ms;       /* time for it */
    size_t header_max;   /* bytes; a longer one is the library's to refuse */
    void *user;
    /* Takes the connection over. False: no room now, it is asked again until header_ms are over. */
    bool (*enter)(void *user, int fd, const struct sockaddr *address, socklen_t n);
    void (*expired)(void *user); /* one was closed for its header */
    void (*tick)(void *user);    /* about once a second */
} gate_options;

status gate_open(gate **g, const gate_options *o, err *e);
void gate_close(gate *g); /* closes the listener and those that wait; NULL is fine */

#endif
