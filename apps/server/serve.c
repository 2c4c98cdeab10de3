/* serve.c - `carat serve`: options, loading, the loop of passes, shutdown.
 *
 *     listen (503) -> load the model -> ready -> passes while there is work -> SIGTERM ->
 *     no new requests, running ones go on -> all answered, or --drain seconds over -> end
 *
 * The main thread loads, runs all passes and closes. Connections have threads of their own
 * (http.c). A thread waits for signals, so that no work is done in a signal handler.
 */
#include "apps/bundled.h"
#include "apps/commands.h"
#include "apps/server/http.h"
#include "apps/server/live.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/show.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LAST_WORDS_MS = 2000 };

static const option table[] = {
    OPT_STR(serve_options, model, "model", 'm', "FILE",
            "the GGUF file (default: the bundled model)"),
    OPT_STR(serve_options, host, "host", 0, "ADDRESS", "listen there (default: 127.0.0.1)"),
    OPT_INT(serve_options, port, "port", 'p', "N", 0, 65535,
            "port (default: 8080; 0 takes a free one and prints it)"),
    OPT_INT(serve_options, parallel, "parallel", 0, "N", 1, 64,
            "requests at work side by side (default: 4)"),
    OPT_INT(serve_options, queue, "queue", 0, "N", 1, 65536,
            "requests that may wait; beyond that 429 (default: 64)"),
    OPT_INT(serve_options, n_ctx, "ctx", 'c', "N", 0, 1 << 30,
            "tokens of context of each request (default: what fits)"),
    OPT_STR(serve_options, alias, "alias", 0, "NAME", "the model's name for clients"),
    OPT_STR(serve_options, api_key, "api-key", 0, "KEY", "the key that clients must send"),
    OPT_STR(serve_options, api_key_file, "api-key-file", 0, "FILE", "the same, one key per line"),
    OPT_STR(
        serve_options, cors, "cors", 0, "ORIGINS",
        "web pages that may use the server, separated by commas; * any (default: only its own)"),
    OPT_FLAG(serve_options, lenient, "lenient", 0,
             "let unknown fields of requests pass (default: 400)"),
    OPT_FLAG(serve_options, think, "think", 0,
             "let the model think when a request does not say (default: as its chat template does)"),
    OPT_FLAG(serve_options, no_think, "no-think", 0,
             "let it answer at once when a request does not say"),
    OPT_INT(serve_options, think_max, "think-max", 0, "N", 1, 1 << 30,
            "tokens of thought at high effort (default: half of the context)"),
    OPT_INT(serve_options, max_body, "max-body", 0, "BYTES", 1024, 1 << 30,
            "largest request (default: 64 MiB)"),
    OPT_INT(serve_options, connections, "connections", 0, "N", 1, 65536,
            "connections at once (default: 256)"),
    OPT_INT(serve_options, timeout_s, "timeout", 0, "SECONDS", 1, 86400,
            "silence of a client after which its connection is closed (default: 60)"),
    OPT_INT(serve_options, ping_s, "ping", 0, "SECONDS", 0, 86400,
            "silence of a stream after which a ping is sent; 0 never (default: 10)"),
    OPT_INT(serve_options, drain_s, "drain", 0, "SECONDS", 0, 86400,
            "how long requests may go on after SIGTERM (default: 60)"),
    OPT_INT(serve_options, stall_ms, "stall", 0, "MS", 1, 60000,
            "longest pause of a stream while other prompts are computed (default: 200)"),
    OPT_STR(serve_options, log, "log", 0, "FORM", "text, json or off (default: text)"),
    OPT_STR(serve_options, trace_dir, "trace", 0, "DIR",
            "write each request there with its tokens, for bug reports; made if it is not there"),
    OPT_INT(serve_options, chunk, "chunk", 0, "N", 0, 1 << 24, "prompt tokens per pass"),
    OPT_INT(serve_options, threads, "threads", 't', "N", 0, 4096,
            "threads that compute (default: the physical cores)"),
    OPT_KV(serve_options),
    OPT_CACHE(serve_options),
    OPT_DRAFT(serve_options),
    OPT_DEVICE(serve_options),
    OPT_FLAG(serve_options, exact, "exact", 0, "f32 activations in matrix products"),
    OPT_FLAG(serve_options, reference, "reference", 0, "the plain reference kernels (slow)"),
    OPT_STR(serve_options, isa, "isa", 0, "NAME", "kernels: portable, avx2, avx512 or neon"),
    OPT_FLAG(serve_options, no_mmap, "no-mmap", 0, "read the file instead of mapping it"),
    OPT_FLAG(serve_options, overcommit, "overcommit", 0,
             "go on even if the plan exceeds the memory"),
    OPT_END};

/* ---- systemd ---- */

/* The protocol is one datagram. A name that begins with @ is an abstract socket. */
void notify_systemd(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || (*path != '/' && *path != '@'))
        return;
    memcpy(to.sun_path, path, n);
    if (*path == '@')
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const void *)&to, len);
    (void)sent; /* systemd reports missing messages itself */
    close(fd);
}

/* Half of the watchdog's interval, as systemd recommends; 0: no watchdog. */
static int watchdog_ms(void)
{
    const char *us = getenv("WATCHDOG_USEC");
    long long v = us ? atoll(us) : 0;
    return v > 0 ? (int)(v / 2000 > 60000 ? 60000 : v / 2000) : 0;
}

/* ---- Signals ---- */

typedef struct signals {
    sigset_t set;
    server *s;
    pthread_t thread;
    bool started;
} signals;

static void *wait_for_signals(void *arg)
{
    signals *g = arg;
    int sig;
    for (int n = 0;; n++) {
        if (sigwait(&g->set, &sig))
            return NULL;
        if (sig == SIGUSR1) /* from signals_stop */
            return NULL;
        if (n)
            _exit(128 + sig); /* the second signal ends the program at once */
        atomic_store(&g->s->state, SERVER_DRAINING);
        notify_systemd("STOPPING=1\n");
        pthread_rwlock_rdlock(&g->s->batch_lock);
        if (g->s->batch)
            carat_batch_wake(g->s->batch);
        pthread_rwlock_unlock(&g->s->batch_lock);
    }
}

static status signals_start(signals *g, server *s, err *e)
{
    g->s = s;
    sigemptyset(&g->set);
    sigaddset(&g->set, SIGTERM);
    sigaddset(&g->set, SIGINT);
    sigaddset(&g->set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &g->set, NULL); /* also in all later threads */
    signal(SIGPIPE, SIG_IGN);
    if (pthread_create(&g->thread, NULL, wait_for_signals, g))
        return err_set(e, E_MEMORY, "no thread for signals");
    g->started = true;
    return OK;
}

static void signals_stop(signals *g)
{
    if (!g->started)
        return;
    pthread_kill(g->thread, SIGUSR1);
    pthread_join(g->thread, NULL);
}

/* ---- Keys ---- */

static status add_key(api_keys *k, const char *key, size_t n, err *e)
{
    char **more = mem_realloc(k->key, (size_t)k->n + 1, sizeof *more);
    if (!more)
        return err_memory(e, "API keys", n);
    k->key = more;
    more[k->n] = mem_strndup(key, n);
    if (!more[k->n])
        return err_memory(e, "API keys", n);
    k->n++;
    return OK;
}

static status read_keys(const serve_options *o, api_keys *k, err *e)
{
    char *text = NULL;
    size_t n = 0;
    status st = OK;
    if (o->api_key && !*o->api_key)
        return err_set(e, E_ARG, "--api-key: the key is empty");
    if (o->api_key && (st = add_key(k, o->api_key, strlen(o->api_key), e)))
        return st;
    if (!o->api_key_file)
        return OK;
    if ((st = file_read_all(o->api_key_file, 1 << 20, &text, &n, e)))
        return st;
    for (size_t at = 0; at < n && !st;) {
        size_t len = 0;
        while (at + len < n && text[at + len] != '\n')
            len++;
        size_t next = at + len + 1;
        while (len && strchr(" \t\r", text[at + len - 1]))
            len--;
        if (len && text[at] != '#')
            st = add_key(k, text + at, len, e);
        at = next;
    }
    if (!st && !k->n) /* else the server would accept everyone */
        st = err_set(e, E_FORMAT, "%s: there is no key in it", o->api_key_file);
    mem_free(text);
    return st;
}

static void free_keys(api_keys *k)
{
    for (int32_t i = 0; i < k->n; i++)
        mem_free(k->key[i]);
    mem_free(k->key);
    *k = (api_keys){0};
}

/* ---- Loading ---- */

static bool go_on_loading(void *user, const char *what, uint64_t done, uint64_t total)
{
    server *s = user;
    if (!strcmp(s->o->log, "text"))
        term_progress(NULL, what, done, total);
    return atomic_load(&s->state) != SERVER_DRAINING;
}

static void find_marks(server *s)
{
    answer_model *a = &s->names;
    carat_marks marks;
    carat_model_get_marks(s->model, &marks);
    _Static_assert(sizeof a->marks == sizeof marks.all, "every mark has its place");
    memcpy(a->marks, marks.all, sizeof marks.all);
    a->n_marks = marks.n_all;
    a->call_open = marks.call_open;
    a->call_close = marks.call_close;
    s->thought_open = marks.thought_open;
    s->thought_close = marks.thought_close;
    for (int32_t id = 0; id < s->info.n_vocab && s->n_ends < 16; id++)
        if (carat_token_is_eog(s->model, id))
            s->ends[s->n_ends++] = id;
}

/* Logs the plan before weights are loaded: devices, and the memory of a slot. */
static carat_status tell_plan(void *user, const carat_model *m, carat_error *e)
{
    server *s = user;
    carat_session_options so = s->session;
    carat_model_info info;
    carat_memory_plan p;
    char states[160];
    carat_status st = carat_plan(m, &so, &p, e);
    if (st)
        return st;
    carat_model_get_info(m, &info);
    log_line(s, "device %s: %s", info.device, info.device_why);
    if (info.drafter)
        log_line(s, "drafter %s: %s", info.drafter, info.drafter_why);
    for (const char *at = info.drafter_notes; *at;) {
        int n = (int)strcspn(at, "\n");
        log_line(s, "drafter's file: %.*s", n, at);
        at += n + (at[n] != 0);
    }
    for (int32_t i = 0; i < p.n_devices; i++) {
        const carat_device_plan *d = &p.device[i];
        log_line(s,
                 "plan: %d layers on %s: weights %.1f MiB, a slot's window caches %.1f and global "
                 "caches %.1f, scratch %.1f, reserve %.1f; %.1f available",
                 d->n_layers, d->device, (double)d->weight_bytes * 0x1p-20,
                 (double)d->kv_swa_bytes * 0x1p-20, (double)d->kv_global_bytes * 0x1p-20,
                 (double)d->scratch_bytes * 0x1p-20, (double)d->reserve_bytes * 0x1p-20,
                 (double)d->available_bytes * 0x1p-20);
        if (d->recurrent_bytes)
            log_line(s, "plan: a slot's recurrent states on %s: %.1f MiB", d->device,
                     (double)d->recurrent_bytes * 0x1p-20);
    }
    if (device_plan_checkpoints(&p, states, sizeof states))
        log_line(s, "plan: %s", states);
    return carat_plan_check(m, &p, e);
}

static status load_model(server *s, err *e)
{
    const serve_options *o = s->o;
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .no_mmap = o->no_mmap,
                              .exact_f32 = o->exact,
                              .reference = o->reference,
                              .overcommit = o->overcommit,
                              .isa = o->isa,
                              .progress = go_on_loading,
                              .progress_user = s};
    carat_batch_options bo = {.session = {.n_ctx = (int32_t)o->n_ctx, .chunk = (int32_t)o->chunk},
                              .n_slots = (int32_t)o->parallel,
                              .queue_max = (int32_t)o->queue,
                              .stall_ms = (int32_t)o->stall_ms};
    carat_batch *b = NULL;
    device_options_apply(&o->where, &mo);
    kv_options_apply(&o->kv, &bo.session);
    cache_options_apply(&o->cache, &bo.session);
    draft_options_apply(&o->draft, &mo, &bo.session);
    s->session = bo.session;
    mo.planned = tell_plan;
    mo.planned_user = s;
    status st =
        o->model ? carat_model_open(o->model, &mo, &s->model, e) : bundled_open(&mo, &s->model, e);
    if (!strcmp(o->log, "text"))
        term_progress_clear();
    if (st)
        return st;
    carat_model_get_info(s->model, &s->info);
    if (!s->info.has_vocab)
        return err_set(e, E_UNSUPPORTED, "%s has no vocabulary: it cannot be served",
                       o->model ? o->model : "the bundled model");
    if ((st = carat_batch_open(s->model, &bo, &b, e)))
        return st;
    s->n_ctx = carat_batch_n_ctx(b);
    s->n_slots = bo.n_slots;
    bo.session.n_ctx = s->n_ctx;
    carat_plan(s->model, &bo.session, &s->plan, NULL);
    carat_sampling_default(s->model, &s->limits.sampling);
    s->limits.n_vocab = s->info.n_vocab;
    s->limits.lenient = o->lenient;
    s->names.name = o->alias ? o->alias : s->info.name;
    s->names.model = s->model;
    find_marks(s);
    if ((st = replay_open(&s->calls, e))) {
        carat_batch_close(b);
        return st;
    }
    pthread_rwlock_wrlock(&s->batch_lock);
    s->batch = b;
    pthread_rwlock_unlock(&s->batch_lock);
    return OK;
}

/* ---- At work ---- */

static bool draining(server *s)
{
    return atomic_load(&s->state) == SERVER_DRAINING;
}

/* Errors of conversation files change no answer, so only the log shows them: a line for each new
 * sentence. told: the last one. */
static void tell_cache_errors(server *s, char *told, size_t cap)
{
    carat_batch_info info;
    carat_batch_get_info(s->batch, &info, NULL, 0);
    if (!info.cache.last_error[0] || !strcmp(info.cache.last_error, told))
        return;
    snprintf(told, cap, "%s", info.cache.last_error);
    log_line(s, "kept conversations: %s", told);
}

static void run_passes(server *s)
{
    enum { LOOK_MS = 1000 };
    char told[sizeof((carat_cache_info *)NULL)->last_error] = "";
    double looked = 0;
    int beat_ms = watchdog_ms();
    double beaten = clock_ms(), deadline = 0;
    for (;;) {
        bool any = carat_batch_step(s->batch);
        ringer_go(&s->bells);
        double now = clock_ms();
        if (draining(s) && deadline <= 0)
            deadline = now + 1000.0 * (double)s->o->drain_s;
        bool last = draining(s) && (atomic_load(&s->n_active) == 0 || now > deadline);
        if (!any || last || now - looked > LOOK_MS) {
            tell_cache_errors(s, told, sizeof told);
            looked = now;
        }
        if (last)
            return;
        if (beat_ms && now - beaten > beat_ms) {
            notify_systemd("WATCHDOG=1\n");
            beaten = now;
        }
        if (!any)
            carat_batch_wait(s->batch, draining(s) ? 20 : beat_ms ? beat_ms : 1000);
    }
}

static void close_batch(server *s)
{
    pthread_rwlock_wrlock(&s->batch_lock);
    carat_batch *b = s->batch;
    s->batch = NULL;
    pthread_rwlock_unlock(&s->batch_lock);
    carat_batch_close(b); /* cancels the jobs that still run */
    if (s->bells.started)
        ringer_go(&s->bells);
}

/* Streams that the batch's end cut get their last words. A client that does not read delays the end
 * of the program by LAST_WORDS_MS at most. */
static void wait_for_last_words(server *s)
{
    double until = clock_ms() + LAST_WORDS_MS;
    while (atomic_load(&s->n_active) > 0 && clock_ms() < until)
        usleep(5000);
}

/* The address for clients on this machine. */
static void print_address(const char *host, int port)
{
    bool all = !strcmp(host, "0.0.0.0") || !strcmp(host, "::");
    bool v6 = strchr(host, ':') && !all;
    printf("http://%s%s%s:%d\n", v6 ? "[" : "", all ? "127.0.0.1" : host, v6 ? "]" : "", port);
    fflush(stdout);
}

static status serve(server *s, err *e)
{
    signals g = {0};
    http *h = NULL;
    int port = 0;
    status st;
    if ((st = signals_start(&g, s, e)) || (st = ringer_start(&s->bells, e)) ||
        (st = http_open(&h, s, &port, e)))
        goto out;
    log_line(s, "listening on %s port %d, loading the model", s->o->host, port);
    if ((st = load_model(s, e)))
        goto out;
    int loading = SERVER_LOADING;
    atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY);
    notify_systemd("READY=1\nSTATUS=serving\n");
    print_address(s->o->host, port);
    log_line(s, "ready: %s, %d slots of %d tokens", s->names.name, s->n_slots, s->n_ctx);
    if (!s->loopback && !s->keys.n)
        log_line(s, "everyone who reaches %s can use this server: --api-key changes that",
                 s->o->host);
    run_passes(s);
    log_line(s, "shutting down, %d requests at work", atomic_load(&s->n_active));
out:
    atomic_store(&s->state, SERVER_DRAINING);
    if (h)
        http_stop_accepting(h);
    close_batch(s);
    wait_for_last_words(s);
    http_close(h);
    ringer_stop(&s->bells);
    if (st == E_CANCELLED && !s->info.n_vocab) /* a signal during loading */
        st = OK;
    signals_stop(&g);
    return st;
}

/* Fails at the start, because later each trace would fail. */
static status check_trace(const char *dir, err *e)
{
    struct stat sb;
    if (!dir)
        return OK;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return err_errno(e, "create the directory for traces", dir);
    if (!stat(dir, &sb) && !S_ISDIR(sb.st_mode))
        return err_set(e, E_ARG, "--trace: %s is not a directory", dir);
    return access(dir, W_OK | X_OK) ? err_errno(e, "write traces into it", dir) : OK;
}

static bool check_options(const serve_options *o)
{
    const char *l = o->log;
    if (strcmp(l, "text") && strcmp(l, "json") && strcmp(l, "off")) {
        fprintf(stderr, "carat serve: --log: %s is none of text, json and off\n", SHOWN(l));
        return false;
    }
    return true;
}

static int run_serve(const command *cmd, int argc, char **argv)
{
    serve_options o = {.host = "127.0.0.1",
                       .port = 8080,
                       .parallel = 4,
                       .queue = 64,
                       .max_body = 64 << 20,
                       .connections = 256,
                       .timeout_s = 60,
                       .ping_s = 10,
                       .drain_s = 60,
                       .stall_ms = 200,
                       .log = "text",
                       .cache = CACHE_OPTIONS_NONE};
    int n_operands, bad = options_parse(cmd, argc, argv, &o, &n_operands);
    static server s;
    err e = {0};
    if (bad)
        return bad - 1;
    if (!check_options(&o))
        return 2;
    term_init();
    s.o = &o;
    metrics_init(&s.m);
    pthread_rwlock_init(&s.batch_lock, NULL);
    status st = check_trace(o.trace_dir, &e);
    if (!st)
        st = read_keys(&o, &s.keys, &e);
    if (!st)
        st = serve(&s, &e);
    if (st)
        term_error(&e);
    replay_close(s.calls);
    carat_model_close(s.model);
    free_keys(&s.keys);
    pthread_rwlock_destroy(&s.batch_lock);
    return st ? 1 : 0;
}

const command command_serve = {
    .name = "serve",
    .operands = "",
    .summary = "Serve the model over HTTP: OpenAI's and Anthropic's APIs",
    .about = "Clients find the OpenAI API at http://HOST:PORT/v1 (chat/completions, completions,\n"
             "responses, models) and the Anthropic API at http://HOST:PORT (v1/messages). "
             "/openapi.json\n"
             "lists all there is. The address is printed on stdout once the model is loaded; until "
             "then\n"
             "requests get 503. Log lines go to stderr.\n\n"
             "Only this machine can connect unless --host says otherwise. There is no TLS: put a "
             "reverse\n"
             "proxy in front.\n\n"
             "SIGTERM and Ctrl-C let the requests at work finish, for --drain seconds; a second "
             "one ends\n"
             "the program at once.",
    .options = table,
    .run = run_serve};
