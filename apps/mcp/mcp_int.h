/* mcp_int.h - a client and its two ways to a server, for the files of this folder. */
#ifndef APPS_MCP_INT_H
#define APPS_MCP_INT_H

#include "apps/mcp/mcp.h"

#include <sys/types.h>

enum {
    MESSAGE_MAX = 16 << 20, /* bytes of one message of a server */
    ANSWER_MAX = 64 << 20,  /* bytes that it may send until it has answered */
    MESSAGES_MAX = 100000,  /* and messages */
    ASKS_MAX = 1000,        /* requests of its own meanwhile */
    LOG_MAX = 1 << 20,      /* bytes of a log */
    TURN_MS = 100,          /* the longest wait between two looks at the watch */
    RESULT_MAX = 4 << 20    /* bytes of a result as text */
};

/* ---- A child process (process.c) ---- */

typedef struct process {
    pid_t pid;        /* its own process group; 0: none */
    int in, out, err; /* our ends, which do not block; -1: closed */
} process;

/* argv, envp: end with NULL. what: for sentences. */
status process_start(process *p, char *const *argv, char *const *envp, const char *cwd,
                     const char *what, err *e);
/* Closes its stdin and waits a little, then ends it by signals, with what it has started. Returns
 * its wait status, -1: none was running. */
int process_end(process *p);

/* ---- Lines out of bytes ---- */

typedef struct lines {
    str buf;
    size_t at, seen; /* where the next line begins; how far there is no newline */
} lines;

/* The next whole line, without its newline; it stays valid until the buffer is appended to. After
 * false the buffer holds the beginning of a line and nothing else. */
bool lines_next(lines *l, const char **line, size_t *n);

/* ---- Events of a stream (events.c) ---- */

typedef struct events {
    lines in;
    str data, id;     /* of the event that is being read; the last id that was sent */
    int64_t retry_ms; /* -1: not said */
} events;

typedef void events_fn(void *user, const char *data, size_t n);
/* Takes bytes of text/event-stream and calls `each` with the data of every whole event. False: an
 * event beyond MESSAGE_MAX, or no memory. */
bool events_take(events *v, const char *bytes, size_t n, events_fn *each, void *user);
void events_free(events *v);

/* ---- A client ---- */

typedef struct way way;
typedef struct mcp_client {
    const mcp_spec *spec;
    const way *way;
    void *state; /* of the way */
    bool up;     /* the program runs, or the session has begun */
    bool ready;  /* it has answered to initialize */
    bool over;   /* http: the server has forgotten the session */
    bool changed;
    int64_t id;                         /* of the last request */
    bool waits;                         /* for the answer to it */
    json_t *answer;                     /* when it has come */
    bool progressed;                    /* since the last look */
    size_t n_bytes, n_messages, n_asks; /* that the server sent since the request */
    char title[160], revision[16];
    char last_words[240]; /* of its stderr */
    char log_path[4096];
    int log; /* -1: none */
    size_t n_logged;
} mcp_client;

/* A way to a server. `send` queues a message; `turn` moves bytes for at most ms and gives whole
 * messages to client_take. asks: the message is a request. */
struct way {
    status (*start)(mcp_client *c, err *e);
    status (*send)(mcp_client *c, const char *text, size_t n, bool asks, err *e);
    status (*turn)(mcp_client *c, int ms, err *e);
    bool (*idle)(const mcp_client *c); /* has the client sent every queued byte? */
    void (*end)(mcp_client *c, bool in_order);
};
extern const way stdio_way, http_way;

/* One message of the server. Anything else is logged. A damaged message ends the request that
 * waits, because it may be the answer; the server stays up. */
status client_take(mcp_client *c, const char *text, size_t n, err *e);
/* Counts bytes of the server; E_LIMIT: it floods. */
status client_count(mcp_client *c, size_t n, err *e);
/* A line for the log; from: "stderr". */
void client_log(mcp_client *c, const char *from, const char *text, size_t n);
/* Text of settings with the environment's values in place of ${NAME}. Of mem. */
status spec_expand(arena *mem, const char *server, const char *text, const char **out, err *e);

/* A result of tools/call as text for the model (result.c). */
void result_put(str *out, const json_t *result, bool *failed);
/* Cuts at a character, so that at most max bytes stay, and says how much is left out. */
void result_cut(str *out, size_t max);

#endif
