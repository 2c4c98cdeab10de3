/* serve.c - `carat serve`: options, start, shutdown.
 *
 *     listen (503) -> load the first model -> ready -> passes while there is work -> SIGTERM ->
 *     no new requests, running ones go on -> all answered, or --drain seconds over -> end
 *
 * The main thread runs all passes (passes.c) and closes. Models are loaded by a thread of their own
 * (loader.c), several of them on demand. Connections have threads, too (http.c). A thread waits for
 * signals, so that no work is done in a signal handler.
 */
#include "apps/commands.h"
#include "apps/media/fetch.h"
#include "apps/pool_options.h"
#include "apps/server/models/pulls.h"
#include "apps/server/http/http.h"
#include "apps/server/answers/live.h"
#include "apps/server/answers/recording.h"
#include "apps/server/answers/stored.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/show.h"
#include "base/utf8.h"

#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
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
#define SERVE_OPTIONS
#define OPTIONS_ROWS serve_options
#include "apps/options.def"
    OPT_END};

const serve_options serve_usual = {
#define SERVE_OPTIONS
#define OPTIONS_USUAL
#include "apps/options.def"
};

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
        if (n && sig == SIGHUP) /* a closing terminal: the kernel and the shell may each send one */
            continue;
        if (n) { /* the second signal ends the program at once */
            mcp_kill_all();
            _exit(128 + sig);
        }
        atomic_store(&g->s->state, SERVER_DRAINING);
        notify_systemd("STOPPING=1\n");
        int n_active = atomic_load(&g->s->n_active);
        if (n_active)
            log_line(g->s, "ending: %d request%s may go on for %d s; a second signal ends at once",
                     n_active, n_active == 1 ? "" : "s", (int)g->s->o->drain_s);
        passes_wake(g->s);
    }
}

static status signals_start(signals *g, server *s, err *e)
{
    g->s = s;
    sigemptyset(&g->set);
    sigaddset(&g->set, SIGTERM);
    sigaddset(&g->set, SIGINT);
    struct sigaction was;
    if (!sigaction(SIGHUP, NULL, &was) && was.sa_handler != SIG_IGN) /* nohup */
        sigaddset(&g->set, SIGHUP);
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

/* ---- Memory ---- */

/* glibc gives threads heaps of their own, eight for each processor, and after the first large text
 * is freed the next ones come from these heaps, too. Each keeps the most that it ever had. Here
 * every connection is a thread whose texts may be megabytes: two heaps are enough for what they
 * allocate, and large texts go back to the system at once. */
static void keep_heaps_small(void)
{
#ifdef M_ARENA_MAX
    enum { HEAPS = 2, LARGE = 256 << 10 };
    mallopt(M_ARENA_MAX, HEAPS);
    mallopt(M_MMAP_THRESHOLD, LARGE);
#endif
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

/* ---- At work ---- */

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

static void tell_models(const server *s)
{
    int32_t n = 0;
    offer_view *list = catalog_list(s->catalog, &n);
    mem_free(list);
    log_line(s, "%d models, loaded when a request names them", (int)n);
}

/* The model of --compress-model, which stays loaded. */
static status load_scorer(server *s, err *e)
{
    const char *path = s->o->compress.model;
    if (!path)
        return OK;
    const served_ask ask = {
        .path = strcmp(path, "bundled") ? path : NULL, .name = "scorer", .scorer = true};
    status st = served_open(&s->scorer, s, &ask, e);
    if (!st && !passes_add(s, s->scorer))
        st = err_set(e, E_CANCELLED, "the server is shutting down");
    if (!st)
        log_line(s, "scorer: %s, %d tokens at once%s", s->scorer->info.name, s->scorer->n_ctx,
                 scorer_is_shared(path, s->o->kv_scorer) ? ", of pages, too" : "");
    return st;
}

/* --log off does not silence it. */
static void warn_open(const server *s, int port)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "warning: --host %.100s without --api-key: every machine that reaches port %d can ask "
        "the models, load and unload them, and see the load of the server. So can web pages in "
        "the browsers of these machines, under a name that leads here. --api-key closes it to "
        "others, --host 127.0.0.1 to other machines",
        s->o->host, port);
    if (strcmp(s->o->log, "off"))
        log_line(s, "%s", text);
    else
        fprintf(stderr, "carat serve: %s\n", SHOWN(text));
}

/* Returns when the server has drained. */
static status work(server *s, int port, err *e)
{
    bool leads = catalog_leads(s->catalog);
    status st = catalog_start(s->catalog, e);
    log_line(s, "listening on %s port %d%s", s->o->host, port, leads ? ", loading the model" : "");
    if (!s->loopback && !s->keys.n)
        warn_open(s, port);
    if (!st)
        st = load_scorer(s, e); /* first: models may score their pages by it, too */
    if (!st && leads)
        st = catalog_load_first(s->catalog, e);
    if (st)
        return st == E_CANCELLED ? OK : st; /* a signal during loading */
    int loading = SERVER_LOADING;
    atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY);
    notify_systemd("READY=1\nSTATUS=serving\n");
    print_address(s->o->host, port);
    if (!leads)
        tell_models(s);
    passes_run(s);
    log_line(s, "shut down; requests cut short: %d", atomic_load(&s->n_active));
    return OK;
}

static void tell_tools(void *user, const char *sentence)
{
    log_line(user, "%s", sentence);
}

static bool goes_on(void *user)
{
    const server *s = user;
    return atomic_load(&s->state) != SERVER_DRAINING;
}

static status open_tools(server *s, err *e)
{
    const mcp_set_options o = {.specs = &s->o->mcp_servers,
                               .automatic = s->o->mcp.automatic.at,
                               .n_automatic = (size_t)s->o->mcp.automatic.n,
                               .log = mcp_options_log,
                               .tell = tell_tools,
                               .user = s};
    return s->o->mcp_servers.n ? mcp_set_open(&s->tools, &o, &(mcp_watch){goes_on, s}, e) : OK;
}

/* Tools run programs: not for everyone who reaches the port. */
static status check_reach(const server *s, err *e)
{
    return s->o->mcp_servers.n && !s->loopback && !s->keys.n
               ? err_set(e, E_ARG,
                         "--mcp with --host %s needs --api-key: others could call the tools",
                         s->o->host)
               : OK;
}

static status serve(server *s, err *e)
{
    signals g = {0};
    http *h = NULL;
    int port = 0;
    status st;
    const stored_limits kept = {s->o->responses, (uint64_t)s->o->responses_mb << 20};
    passes_init(&s->passes);
    if ((kept.count && (st = stored_open(&s->stored, &kept, e))) ||
        (st = recordings_open(&s->recordings, e)) || (st = events_open(&s->events, e)) ||
        (st = pulls_open(&s->pulls, s, e)) || (st = catalog_open(&s->catalog, s, e)) ||
        (st = signals_start(&g, s, e)) || (st = waker_start(&s->waker, e)) ||
        (st = http_open(&h, s, &port, e)) || (st = check_reach(s, e)) || (st = open_tools(s, e)) ||
        (st = http_start(h, e)))
        goto out;
    st = work(s, port, e);
out:
    atomic_store(&s->state, SERVER_DRAINING);
    if (h)
        http_stop_accepting(h);
    passes_end(s);
    catalog_stop(s->catalog);
    pulls_stop(s->pulls);
    wait_for_last_words(s);
    http_close(h);
    mcp_set_close(s->tools);
    waker_stop(&s->waker);
    signals_stop(&g);
    catalog_close(s->catalog);
    served_close(s->scorer);
    stored_close(s->stored);
    recordings_close(s->recordings);
    pulls_close(s->pulls);
    events_close(s->events);
    passes_free(&s->passes);
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

/* Whoever may write there can make a conversation of others go on from other tokens. */
static status check_slots(const char *dir, err *e)
{
    struct stat sb;
    if (!dir)
        return OK;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return err_errno(e, "create the directory for slots", dir);
    if (stat(dir, &sb) || access(dir, R_OK | W_OK | X_OK))
        return err_errno(e, "keep slots in", dir);
    if (!S_ISDIR(sb.st_mode))
        return err_set(e, E_ARG, "--slot-save-path: %s is not a directory", dir);
    if (sb.st_uid != geteuid() || (sb.st_mode & 022))
        return err_set(e, E_ARG,
                       "--slot-save-path: other users may change files of %s, which hold "
                       "conversations: chmod go-w %s",
                       dir, dir);
    return OK;
}

static status check_media_path(const char *dir, err *e)
{
    struct stat sb;
    if (!dir)
        return OK;
    if (stat(dir, &sb))
        return err_errno(e, "read pictures below --media-path", dir);
    if (!S_ISDIR(sb.st_mode))
        return err_set(e, E_ARG, "--media-path: %s is not a directory", dir);
    return access(dir, R_OK | X_OK) ? err_errno(e, "read pictures below --media-path", dir) : OK;
}

static bool check_options(const serve_options *o)
{
    const char *l = o->log;
    if (strcmp(l, "text") && strcmp(l, "json") && strcmp(l, "off")) {
        fprintf(stderr, "carat serve: --log: %s is none of text, json and off\n", SHOWN(l));
        return false;
    }
    if (o->system && !utf8_valid(o->system, strlen(o->system))) {
        fprintf(stderr, "carat serve: --system: the text is not valid UTF-8\n");
        return false;
    }
    err e = {0};
    int32_t pool, tokens;
    if (pool_scorer_check(o->kv_policy, o->kv_scorer, &e) ||
        pool_tokens_read(o->kv_pool, &pool, &e) ||
        image_tokens_read(o->mmproj.tokens, &tokens, &e) || check_media_path(o->media_path, &e)) {
        fprintf(stderr, "carat serve: %s\n", e.text);
        return false;
    }
    return true;
}

static bool of_command_line(const option_marks *m, const char *name)
{
    return m->layer[options_find(table, name) - table] == OPTION_LAYER_COMMAND_LINE;
}

/* Models of the command line replace those of a file or the environment. */
static void choose_models(serve_options *o, const option_marks *m)
{
    bool one = of_command_line(m, "model"), several = of_command_line(m, "models");
    if (!one && !several && !o->n_words && !o->hub.repo && !of_command_line(m, "store"))
        return;
    if (!one)
        o->model.n = 0;
    if (!several)
        o->models.n = 0;
}

static int run_serve(const command *cmd, int argc, char **argv)
{
    serve_options o = serve_usual;
    config settings;
    int n_operands, bad = config_parse(cmd, argc, argv, &o, &n_operands, &settings);
    static server s;
    model_found pulled;
    err e = {0};
    if (bad)
        return bad - 1;
    if ((bad = options_check(cmd, &o, &settings.marks, settings.origin))) {
        config_free(&settings);
        return bad - 1;
    }
    carat_sampling sampling = {0};
    if (sample_options_apply(&o.sample, &sampling, &e)) {
        term_error(&e);
        config_free(&settings);
        return 2;
    }
    if (!check_options(&o)) {
        config_free(&settings);
        return 2;
    }
    s.pictures =
        (picture_rules){.root = o.media_path, .fetch = o.media_urls ? picture_fetch : NULL};
    if (compress_options_read(&o.compress, &s.compress, &s.compresses, &e)) {
        term_error(&e);
        config_free(&settings);
        return 2;
    }
    keep_heaps_small();
    o.words = argv;
    o.n_words = n_operands;
    choose_models(&o, &settings.marks);
    term_init();
    s.o = &o;
    metrics_init(&s.m);
    const char *first = o.model.n ? o.model.at[0] : NULL;
    status st = hub_options_take(&o.hub, &first, &pulled, &e);
    if (!st)
        st = hub_bring(o.words, o.n_words, &e);
    if (!st && first && !o.model.n)
        o.model.at[o.model.n++] = first;
    if (!st)
        st = check_trace(o.trace_dir, &e);
    if (!st)
        st = check_slots(o.slot_dir, &e);
    if (!st)
        st = read_keys(&o, &s.keys, &e);
    if (!st)
        st = mcp_options_specs(&o.mcp, &settings, &o.mcp_servers, &e);
    if (!st)
        st = serve(&s, &e);
    if (st)
        term_error(&e);
    free_keys(&s.keys);
    mcp_specs_free(&o.mcp_servers);
    model_found_free(&pulled);
    config_free(&settings);
    return st ? 1 : 0;
}

const command command_serve = {
    .name = "serve",
    .operands = "[MODEL...]",
    .n_operands_max = -1,
    .summary = "Serve models over HTTP: the APIs of OpenAI, Anthropic and ollama",
    .about = "Clients find the OpenAI API at http://HOST:PORT/v1 (chat/completions,\n"
             "completions, responses, models), and at http://HOST:PORT the Anthropic API\n"
             "(v1/messages), ollama's (api/chat) and a chat page. /openapi.json lists all\n"
             "paths.\n"
             "\n"
             "The address is printed on stdout once the model is loaded; until then\n"
             "requests get 503. Log lines go to stderr.\n"
             "\n"
             "Only this machine can connect unless --host says otherwise. There is no\n"
             "TLS: put a reverse proxy in front.\n"
             "\n"
             "SIGTERM, Ctrl-C and a terminal that closes let the requests at work finish,\n"
             "for --drain seconds; a second signal ends the program at once.",
    .options = table,
    .first =
        "model hf-repo store host port parallel ctx alias api-key mmproj threads kv-type draft "
        "device gpu-layers",
    .run = run_serve};
