/* fuzz_http.c - bytes that a client sends, as libmicrohttpd reads them and the server judges them.
 *
 *     socket pair -> libmicrohttpd -> head (lengths, host, origin, keys) -> path -> body
 *
 * The library runs without threads, with the server's limits and its decoder of paths. Whatever a
 * judgement lets through is checked again, more slowly: a head that is taken has one length at
 * most, a host of this machine and no page of another; a path has the methods that are told of it.
 */
#include "fuzz/fuzz.h"
#include "apps/server/http/head.h"
#include "apps/server/http/routes.h"

#include <ctype.h>
#include <microhttpd.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#if CARAT_FUZZ
#include "apps/server/answers/api_embed.h"
#include "apps/server/answers/api_mcp.h"
#include "apps/server/models/api_ollama_info.h"
#include "apps/server/answers/api_rank.h"
#include "apps/server/answers/api_recording.h"
#include "apps/server/answers/api_stored.h"
#include "apps/server/answers/api_transcribe.h"
#include "apps/server/answers/generate.h"
#include "apps/server/models/hub_api.h"
#include "apps/server/models/info.h"
#include "apps/server/models/router.h"
#include "apps/server/http/openapi.h"

/* The handlers of routes.c, which nobody calls here, and the writers of its errors. */
#define HANDLER(name)                                                                              \
    void name(exchange *x)                                                                         \
    {                                                                                              \
        (void)x;                                                                                   \
    }
HANDLER(handle_models)
HANDLER(handle_load)
HANDLER(handle_unload)
HANDLER(handle_model_pull)
HANDLER(handle_model_remove)
HANDLER(handle_model_events)
HANDLER(handle_hub_search)
HANDLER(handle_hub_fit)
HANDLER(handle_props)
HANDLER(handle_slots)
HANDLER(handle_stream)
HANDLER(handle_stream_delete)
HANDLER(handle_streams_lookup)
HANDLER(handle_slot)
HANDLER(handle_loras)
HANDLER(handle_loras_set)
HANDLER(handle_metrics)
HANDLER(handle_tokenize)
HANDLER(handle_detokenize)
HANDLER(handle_tokenizer_info)
HANDLER(handle_template)
HANDLER(handle_openapi)
HANDLER(handle_health)
HANDLER(handle_live)
HANDLER(handle_root)
HANDLER(handle_response)
HANDLER(handle_response_delete)
HANDLER(handle_response_cancel)
HANDLER(handle_transcription)
HANDLER(handle_openai_embeddings)
HANDLER(handle_llama_embedding)
HANDLER(handle_ollama_embed)
HANDLER(handle_ollama_embeddings)
HANDLER(handle_ollama_tags)
HANDLER(handle_ollama_ps)
HANDLER(handle_ollama_show)
HANDLER(handle_ollama_pull)
HANDLER(handle_ollama_delete)
HANDLER(handle_ollama_create)
HANDLER(handle_ollama_copy)
HANDLER(handle_ollama_refused)
HANDLER(handle_ollama_version)
HANDLER(handle_mcp_call)
HANDLER(handle_mcp_tools)
HANDLER(handle_rerank)
HANDLER(handle_score)
void handle_generation(exchange *x, api_kind api)
{
    (void)x, (void)api;
}
void handle_count(exchange *x, api_kind api)
{
    (void)x, (void)api;
}
const dialect chat_dialect, messages_dialect, ollama_chat_dialect;
#endif

enum { MEMORY = 64 << 10, ROUNDS = 64 };

typedef struct seen {
    size_t n_body;
    bool taken;
} seen;

static size_t unescape(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    size_t before = strlen(text), n = url_unescape(text);
    fuzz_check(n <= before && strlen(text) == n, "a decoded path that is longer or ends early");
    return n;
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    (void)kind;
    head_take(cls, name, value);
    return MHD_YES;
}

/* The n-th value of a header, or NULL. */
typedef struct finder {
    const char *name, *value;
    int n;
} finder;

static enum MHD_Result count_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    finder *f = cls;
    (void)kind;
    if (!strcasecmp(name, f->name)) {
        f->value = value;
        f->n++;
    }
    return MHD_YES;
}

static finder find(struct MHD_Connection *c, const char *name)
{
    finder f = {.name = name};
    MHD_get_connection_values(c, MHD_HEADER_KIND, count_header, &f);
    return f;
}

static void check_host(const char *host)
{
    char name[16];
    snprintf(name, sizeof name, "%.15s", host);
    for (char *at = name; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    bool local = !strncmp(name, "localhost", 9) || !strncmp(name, "127.", 4) ||
                 !strncmp(name, "[::1]", 5) || !strncmp(name, "::1", 3);
    fuzz_check(local && !strpbrk(host, "/@ \t"), "a host that is none of this machine");
}

static void check_path(const char *method, const char *path)
{
    char allow[METHODS_BYTES];
    const route *r = find_route(method, path);
    bool any = route_methods(path, allow);
    const char *as = strcmp(method, "HEAD") ? method : "GET";
    fuzz_check(!r || (any && strstr(allow, as)), "a route whose method is not told");
    fuzz_check(!any || strlen(allow) + 1 < METHODS_BYTES, "methods that do not fit");
    const char *near = r ? NULL : route_near(path);
    fuzz_check(!near || *near == '/', "a path is meant that is none");
    route_errors(path);
    route_refusal(path);
}

/* As http.c does: the head is judged before the body is read. */
static bool take_head(struct MHD_Connection *c, const char *method, const char *path)
{
    static const char *const once[] = {"Host", "Origin", "Authorization", "X-Api-Key"};
    head h = {0};
    problem p = {0};
    check_path(method, path);
    MHD_get_connection_values(c, MHD_HEADER_KIND, see_header, &h);
    if (!head_check(&h, &p)) {
        fuzz_check(p.status >= 400 && p.status < 500 && *p.text, "refused without a reason");
        return false;
    }
    fuzz_check(find(c, "Content-Length").n + find(c, "Transfer-Encoding").n <= 1, "two lengths");
    for (size_t i = 0; i < 4; i++)
        fuzz_check(find(c, once[i]).n <= 1, "a header that must come once");
    const char *host = find(c, "Host").value, *origin = find(c, "Origin").value;
    if (host && host_is_local(host))
        check_host(host);
    if (origin && origin_is_own(origin, host))
        fuzz_check(strlen(origin) >= strlen(host) + 3, "a page of another origin");
    fuzz_check(!origin || !origin_is_listed("https://a.example", origin) ||
                   !strcasecmp(origin, "https://a.example"),
               "an origin that is not listed");
    const char *key = find(c, "X-Api-Key").value;
    fuzz_check(!key || key_is("secret", key) == !strcmp(key, "secret"), "a key");
    return true;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *n_upload, void **state)
{
    static char text[] = "ok";
    seen *s = *state;
    (void)cls, (void)version, (void)upload;
    if (!s) {
        if (!(s = calloc(1, sizeof *s)))
            return MHD_NO;
        *state = s;
        s->taken = take_head(c, method, path);
        if (s->taken)
            return MHD_YES;
    } else if (*n_upload) {
        s->n_body += *n_upload;
        *n_upload = 0;
        return MHD_YES;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result ok = MHD_queue_response(c, s->taken ? 200 : 400, r);
    MHD_destroy_response(r);
    return ok;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode why)
{
    (void)cls, (void)c, (void)why;
    free(*state);
    *state = NULL;
}

static struct MHD_Daemon *daemon_once(void)
{
    static struct MHD_Daemon *d;
    if (!d)
        d = MHD_start_daemon(MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, NULL,
                             MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY,
                             MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK,
                             unescape, NULL, MHD_OPTION_END);
    return d;
}

FUZZ(http)
{
    struct MHD_Daemon *d = daemon_once();
    const struct sockaddr_un none = {.sun_family = AF_UNIX};
    int fd[2];
    char sink[4096];
    const char *end = header_end((const char *)data, n);
    fuzz_check(!end || (end >= (const char *)data && end + 2 <= (const char *)data + n),
               "a header that ends outside");
    if (!d || n > MEMORY || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd))
        return;
    ssize_t sent = send(fd[0], data, n, MSG_NOSIGNAL);
    (void)sent; /* what does not fit is not sent */
    shutdown(fd[0], SHUT_WR);
    if (MHD_add_connection(d, fd[1], (const struct sockaddr *)&none, sizeof none) == MHD_YES)
        for (int i = 0; i < ROUNDS; i++) {
            MHD_run(d);
            if (recv(fd[0], sink, sizeof sink, 0) == 0)
                break; /* the library has closed its end */
        }
    close(fd[0]);
    MHD_run(d);
}
