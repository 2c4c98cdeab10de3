/* gate.h - accepting connections, until the first request header is complete.
 *
 * The HTTP library gives each connection a thread. Slow connections must not hold threads, so one
 * thread accepts all connections and passes each to the library when its first header is complete.
 * The time for the header is fixed; arriving bytes do not extend it. If too many connections wait,
 * the oldest is closed. So a client that sends its header at once is always served.
 */
#ifndef APPS_SERVER_GATE_H
#define APPS_SERVER_GATE_H

#include "base/err.h"

#include <sys/socket.h>

typedef struct gate gate;

typedef struct gate_options {
    int listener;        /* a listening socket; the gate closes it */
    int32_t waiting_max; /* connections without a complete header */
    int header_ms;       /* time for the header */
    size_t header_max;   /* bytes; the library refuses longer headers */
    void *user;
    /* Takes the connection over. False: no room. Then the gate asks again, for header_ms in all. */
    bool (*enter)(void *user, int fd, const struct sockaddr *address, socklen_t n);
    void (*expired)(void *user); /* a connection was closed for its late header */
    void (*tick)(void *user);    /* about once a second */
} gate_options;

status gate_open(gate **g, const gate_options *o, err *e);
void gate_close(gate *g); /* closes the listener and all waiting connections; NULL is fine */

#endif
