/* server.h - what the files of `carat serve` share.
 *
 *     serve.c      options, signals, start and end
 *     passes.c     the loop that runs passes, draining
 *     catalog.c    the models by name: who has one, who waits     offers.c  which there are
 *     loader.c     the thread that loads and unloads them
 *     served.c     one loaded model: loading, its plan, its batch
 *     router.c     models by hand     pulls.c  from a hub     events.c  what happens to them
 *     hub_api.c    what a hub has
 *     http.c       connections: keys, limits, bodies in, answers and streams out
 *     routes.c     the table of paths and their handlers
 *     exchange.c   one request on its way from http.c to a handler, and its answer back
 *     gate.c       connections whose first header is not complete yet
 *     live.c       a running request: its jobs in the batch, and the mailbox between two threads
 *     replay.c     sampled tokens of calls       constrain.c   grammars and forced calls
 *     shorten.c    prompts that are shortened first (prompt compression)
 *     generate.c   requests to prompts, budgets and masks; events to answers and streams
 *     api_embed.c  embeddings              api_ollama_info.c   models as ollama lists them
 *     api_mcp.c    tools of MCP servers, for the page
 *     info.c       models, health, props, slots, tokens
 *     metrics.c    counters and histograms     log.c  a line per request, --trace
 *     request.h known.c fields.c forms.c tools.c api_*.c answer.c jsonw.c
 *                  requests and answers as data, without connection and model
 *
 * Threads: one runs passes (passes.c), one loads models (loader.c), one accepts connections
 * (gate.c), one per connection parses and writes, one wakes those (live.c), one waits for signals.
 * They share the batches, which are thread-safe, the mailbox of each live, and the fields below
 * that are atomic or under a lock.
 */
#ifndef APPS_SERVER_SERVER_H
#define APPS_SERVER_SERVER_H

#include "apps/cache_options.h"
#include "apps/compress.h"
#include "apps/device_options.h"
#include "apps/config.h"
#include "apps/draft_options.h"
#include "apps/mcp_options.h"
#include "apps/media/pictures.h"
#include "apps/lora_options.h"
#include "apps/mmproj_options.h"
#include "apps/sparse_options.h"
#include "apps/hub_options.h"
#include "apps/kv_options.h"
#include "apps/sample_options.h"
#include "apps/server/http/metrics.h"
#include "apps/server/answers/passes.h"

#include <pthread.h>
#include <stdatomic.h>

/* A field for each option. */
typedef struct serve_options {
#define SERVE_OPTIONS
#define OPTIONS_MEMBERS
#include "apps/options.def"
    char *const *words; /* operands: models, too */
    int n_words;
    mcp_specs mcp_servers; /* that .mcp names */
} serve_options;
extern const serve_options serve_usual; /* no option was given */

typedef struct api_keys {
    char **key;
    int32_t n;
} api_keys;

/* live.c: the lives with new events, and the thread that wakes their connections. */
typedef struct waker {
    pthread_t thread;
    pthread_mutex_t lock; /* of the next three */
    pthread_cond_t go;
    struct live *first; /* the lives to wake */
    bool going, ending;
    bool started;
} waker;

enum { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };

typedef struct server {
    const serve_options *o;
    api_keys keys;
    bool loopback; /* only this machine can connect */
    atomic_int state;

    picture_rules pictures;        /* where those of requests may come from */
    mcp_set *tools;                /* of --mcp; NULL: none */
    struct catalog *catalog;       /* catalog.h: the models */
    struct events *events;         /* events.h: what happens to them; NULL: nobody is told */
    struct pulls *pulls;           /* pulls.h: those that come from a hub */
    struct recordings *recordings; /* recording.h: streams that outlive their connection */
    struct stored *stored;         /* stored.h: kept responses; NULL: none are kept */
    struct served *scorer; /* served.h: --compress-model; NULL: each model scores for itself */
    bool compresses;       /* --compress: conversations whose request does not say */
    carat_compress_options compress;
    passes passes; /* passes.h: their batches take turns */
    waker waker;
    atomic_int n_active;         /* requests being answered */
    atomic_int n_questions;      /* hub_api.c: requests that wait for a hub */
    atomic_llong body_bytes;     /* of all bodies held in memory */
    atomic_llong work_bytes;     /* estimated memory for parsing and tokenising them */
    atomic_ullong odd_calls[64]; /* hashes of calls that the log has named: prompts.c */
    metrics m;
} server;

struct answer;   /* answer.h */
struct exchange; /* exchange.h */

/* ---- log.c ---- */

void log_line(const server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_exchange(const struct exchange *x);
/* For --trace: the request, its prompt and its sampled tokens, as ID.json. Failures are logged. */
typedef struct trace_prompt {
    const int32_t *ids, *sampled;
    int64_t n, n_sampled;
} trace_prompt;
void trace_write(const struct exchange *x, const struct answer *a, const trace_prompt *p,
                 int32_t n);

/* ---- serve.c ---- */

void notify_systemd(const char *state); /* nothing without NOTIFY_SOCKET */

#endif
