/* gate.c - see gate.h.
 *
 *     accept -> waiting, oldest first -> header complete -> enter
 *                                     -> header_ms over, or pushed out -> 408, closed
 *                                     -> no HTTP -> 400, closed
 *
 * The gate reads headers with MSG_PEEK, because the library reads them again. Each look copies all
 * bytes so far, so a sender of single bytes could keep this thread busy. Therefore a connection
 * with n bytes is not looked at again for n / LOOK_BYTES_PER_MS milliseconds. Events are
 * edge-triggered.
 */
#include "apps/server/http/gate.h"

#include "apps/server/http/head.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    EVENTS = 64,
    TICK_MS = 1000,
    SOON_MS = 10, /* until a connection that found no room is tried again */
    LOOK_BYTES_PER_MS = 4096
};

typedef struct waiting {
    struct waiting *older, *newer;
    int fd;
    double until_ms, poll_ms; /* deadline of the header; earliest next look */
    bool dirty;               /* bytes came since the last look */
    bool whole;               /* the header is complete; the connection waits for room */
    size_t n_seen;
    struct sockaddr_storage address;
    socklen_t n_address;
} waiting;

struct gate {
    gate_options o;
    int poll, wake;
    pthread_t thread;
    waiting *oldest, *newest;
    int32_t n, n_dirty;
    char *header; /* header_max bytes */
};

/* ---- The list ---- */

static void unlink_waiting(gate *g, waiting *w)
{
    *(w->older ? &w->older->newer : &g->oldest) = w->newer;
    *(w->newer ? &w->newer->older : &g->newest) = w->older;
    g->n--;
    g->n_dirty -= w->dirty;
    mem_free(w);
}

static void gate_drop(gate *g, waiting *w, const char *why)
{
    if (why && w->n_seen) {
        ssize_t n = send(w->fd, why, strlen(why), MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)n; /* the socket is full: the client does not read */
    }
    close(w->fd);
    unlink_waiting(g, w);
}

static void expire(gate *g, waiting *w)
{
    static const char late[] = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                               "Content-Length: 0\r\n\r\n";
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
                               "Retry-After: 2\r\nContent-Length: 0\r\n\r\n";
    g->o.expired(g->o.user);
    gate_drop(g, w, w->whole ? full : late);
}

/* ---- One connection ---- */

/* A request begins with the letters of a method, perhaps behind empty lines; TLS does not. */
static bool is_no_http(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == '\r' || s[i] == '\n'))
        i++;
    return i < n && ((unsigned char)s[i] <= ' ' || (unsigned char)s[i] >= 0x7F);
}

static void look_at_header(gate *g, waiting *w, double now)
{
    ssize_t n = recv(w->fd, g->header, g->o.header_max, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        n = 0;
    else if (n <= 0) {
        gate_drop(g, w, NULL);
        return;
    }
    w->n_seen = (size_t)n;
    const char *end = header_end(g->header, (size_t)n);
    /* A NUL would end a path early. */
    if (is_no_http(g->header, (size_t)n) ||
        (end && memchr(g->header, 0, (size_t)(end - g->header)))) {
        gate_drop(g, w,
                  "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        return;
    }
    bool whole = w->whole = (size_t)n == g->o.header_max || end;
    if (whole) {
        epoll_ctl(g->poll, EPOLL_CTL_DEL, w->fd, NULL);
        if (g->o.enter(g->o.user, w->fd, (const struct sockaddr *)&w->address, w->n_address)) {
            unlink_waiting(g, w);
            return;
        }
    }
    w->poll_ms = whole ? now + SOON_MS : now + (double)n / LOOK_BYTES_PER_MS;
    g->n_dirty += whole - w->dirty;
    w->dirty = whole;
}

static void mark(gate *g, waiting *w, double now)
{
    g->n_dirty += !w->dirty;
    w->dirty = true;
    if (now >= w->poll_ms)
        look_at_header(g, w, now);
}

static bool gate_add(gate *g, int fd, const struct sockaddr_storage *address, socklen_t n)
{
    waiting *w = mem_calloc(1, sizeof *w);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = w};
    double now = clock_ms();
    if (!w || epoll_ctl(g->poll, EPOLL_CTL_ADD, fd, &ev)) {
        mem_free(w);
        return false;
    }
    *w = (waiting){.older = g->newest,
                   .fd = fd,
                   .until_ms = now + g->o.header_ms,
                   .address = *address,
                   .n_address = n};
    *(g->newest ? &g->newest->newer : &g->oldest) = w;
    g->newest = w;
    g->n++;
    look_at_header(g, w, now);
    return true;
}

static void accept_all(gate *g)
{
    for (;;) {
        struct sockaddr_storage address;
        socklen_t n = sizeof address;
        int fd =
            accept4(g->o.listener, (struct sockaddr *)&address, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM) && g->oldest) {
            expire(g, g->oldest); /* out of descriptors: frees the oldest's */
            continue;
        }
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN)
                usleep(SOON_MS * 1000); /* still none: do not spin */
            return;
        }
        if (g->n >= g->o.waiting_max)
            expire(g, g->oldest);
        if (!gate_add(g, fd, &address, n))
            close(fd);
    }
}

/* ---- The thread ---- */

static int patience(const gate *g, double now, double tick_ms)
{
    double ms = tick_ms - now;
    if (g->oldest && g->oldest->until_ms - now < ms)
        ms = g->oldest->until_ms - now;
    if (g->n_dirty && ms > SOON_MS)
        ms = SOON_MS;
    return ms > 0 ? (int)ms + 1 : 0;
}

static void poll_again(gate *g, double now)
{
    for (waiting *w = g->oldest, *next; w; w = next) {
        next = w->newer;
        if (w->until_ms <= now)
            expire(g, w);
        else if (w->dirty && now >= w->poll_ms)
            look_at_header(g, w, now);
    }
}

static void *gate_watch(void *arg)
{
    gate *g = arg;
    struct epoll_event ev[EVENTS];
    double tick_ms = clock_ms() + TICK_MS;
    for (;;) {
        int n = epoll_wait(g->poll, ev, EVENTS, patience(g, clock_ms(), tick_ms));
        double now = clock_ms();
        bool arrivals = false;
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr == &g->wake)
                return NULL;
            if (ev[i].data.ptr == g)
                arrivals = true; /* handled last: accepting may close others */
            else
                mark(g, ev[i].data.ptr, now);
        }
        if (arrivals)
            accept_all(g);
        if (g->n_dirty || (g->oldest && g->oldest->until_ms <= now))
            poll_again(g, now);
        if (now >= tick_ms) {
            g->o.tick(g->o.user);
            tick_ms = now + TICK_MS;
        }
    }
}

static bool watch_fd(const gate *g, int fd, void *what)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = what};
    return fd >= 0 && !epoll_ctl(g->poll, EPOLL_CTL_ADD, fd, &ev);
}

status gate_open(gate **out, const gate_options *o, err *e)
{
    gate *g = mem_calloc(1, sizeof *g);
    status st = OK;
    *out = NULL;
    if (!g)
        return err_memory(e, "the server", sizeof *g);
    g->o = *o;
    g->header = mem_alloc(o->header_max);
    g->poll = epoll_create1(EPOLL_CLOEXEC);
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!g->header)
        st = err_memory(e, "the server", o->header_max);
    else if (g->poll < 0 || !watch_fd(g, g->wake, &g->wake) || !watch_fd(g, o->listener, g))
        st = err_errno(e, "wait for connections", "the server");
    else if (pthread_create(&g->thread, NULL, gate_watch, g))
        st = err_set(e, E_MEMORY, "no thread for connections");
    if (st) {
        if (g->poll >= 0)
            close(g->poll);
        if (g->wake >= 0)
            close(g->wake);
        mem_free(g->header);
        mem_free(g);
        return st;
    }
    *out = g;
    return OK;
}

void gate_close(gate *g)
{
    uint64_t one = 1;
    if (!g)
        return;
    ssize_t n = write(g->wake, &one, sizeof one);
    (void)n; /* cannot fail on a counter of 0 */
    pthread_join(g->thread, NULL);
    while (g->oldest)
        gate_drop(g, g->oldest, NULL);
    close(g->o.listener);
    close(g->poll);
    close(g->wake);
    mem_free(g->header);
    mem_free(g);
}
