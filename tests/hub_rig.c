/* hub_rig.c - see hub_rig.h. */
#include "tests/hub_rig.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/sha.h"
#include "base/str.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TICK_S = 1 };

static const char commit[] = "00112233445566778899aabbccddeeff00112233";

typedef struct request {
    char method[8], path[2048];
    bool ranged, token;
    long long from, to; /* to: -1 open */
} request;

typedef struct visitor {
    hub_rig *r;
    int fd;
    bool storage;
} visitor;

/* ---- Reading and writing ------------------------------------------------------------------- */

/* Sockets wake up after TICK_S, to see whether the rig ends. */
static bool try_again(const hub_rig *r, ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR) && !atomic_load(&r->stop);
}

static bool read_request(const hub_rig *r, int fd, request *q)
{
    char text[8192];
    size_t n = 0;
    while (n < sizeof text - 1) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (try_again(r, got))
            continue;
        if (got <= 0)
            return false;
        n += (size_t)got;
        text[n] = 0;
        if (strstr(text, "\r\n\r\n"))
            break;
    }
    *q = (request){.to = -1};
    if (sscanf(text, "%7s %2047s", q->method, q->path) != 2)
        return false;
    const char *range = strcasestr(text, "\r\nRange: bytes=");
    if (range)
        q->ranged = sscanf(range + 15, "%lld-%lld", &q->from, &q->to) >= 1;
    q->token = strcasestr(text, "\r\nAuthorization:") != NULL;
    return true;
}

static bool has_token(const char *token, bool sent)
{
    return !token || sent;
}

static void send_all(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n) {
        ssize_t put = send(fd, p, n, MSG_NOSIGNAL);
        if (put <= 0)
            return;
        p += put;
        n -= (size_t)put;
    }
}

static void send_head(int fd, int code, const char *lines, long long length)
{
    AUTO(str_free) str s = {0};
    str_printf(&s, "HTTP/1.1 %d X\r\nConnection: close\r\n%s", code, lines);
    if (length >= 0)
        str_printf(&s, "Content-Length: %lld\r\n", length);
    str_puts(&s, "\r\n");
    send_all(fd, s.at, s.n);
}

static void send_text(int fd, int code, const char *lines, const char *text)
{
    send_head(fd, code, lines, (long long)strlen(text));
    send_all(fd, text, strlen(text));
}

/* ---- Files --------------------------------------------------------------------------------- */

static void pause_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000};
    nanosleep(&t, NULL);
}

static bool counted(atomic_int *seen, int most)
{
    int n = atomic_fetch_add(seen, 1);
    if (n >= most)
        atomic_fetch_sub(seen, 1);
    return n < most;
}

/* The bytes of a file, by range or whole, with what `how` makes of them. */
static void send_file(visitor *v, const request *q, const hub_rig_file *f)
{
    hub_rig *r = v->r;
    const hub_rig_how *how = &r->how;
    char lines[512];
    long long from = 0, to = (long long)f->n;
    if (how->always_416 && q->ranged) {
        snprintf(lines, sizeof lines, "Content-Range: bytes */%zu\r\n", f->n);
        send_text(v->fd, 416, lines, "");
        return;
    }
    if (how->endless && !strcmp(q->method, "GET")) {
        char junk[65536];
        memset(junk, 'a', sizeof junk);
        send_head(v->fd, how->endless_status ? how->endless_status : 200, "", -1);
        while (!atomic_load(&r->stop)) {
            ssize_t put = send(v->fd, junk, sizeof junk, MSG_NOSIGNAL);
            if (try_again(r, put))
                continue;
            if (put <= 0)
                return;
            atomic_fetch_add(&r->n_sent, put);
        }
        return;
    }
    bool part = q->ranged && !how->no_ranges;
    if (part) {
        from = q->from;
        to = q->to < 0 || q->to >= to ? to : q->to + 1;
        to = how->one_byte && from < to ? from + 1 : to;
        if (from >= (long long)f->n) {
            snprintf(lines, sizeof lines, "Content-Range: bytes */%zu\r\n", f->n);
            send_text(v->fd, 416, lines, "");
            return;
        }
    }
    long long said = how->other_range && from ? from - 1 : from;
    char total[32] = "*";
    if (!how->no_total)
        snprintf(total, sizeof total, "%zu", f->n);
    if (part)
        snprintf(lines, sizeof lines, "Content-Range: bytes %lld-%lld/%s\r\n", said, to - 1, total);
    else
        lines[0] = 0;
    if (how->gzip)
        strcat(lines, "Content-Encoding: gzip\r\n");
    if (!how->no_commit)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines),
                 "X-Repo-Commit: %s\r\nETag: \"%s\"\r\n", commit, f->oid);
    bool body = strcmp(q->method, "HEAD") != 0;
    send_head(v->fd, part ? 206 : 200, lines, how->more_bytes ? -1 : to - from);
    if (!body)
        return;
    bool cut = how->cut_times && counted(&r->n_cut, how->cut_times);
    long long end = cut && (long long)how->cut_at < to - from ? from + (long long)how->cut_at : to;
    for (long long at = from; at < end && !atomic_load(&r->stop);) {
        size_t step = end - at < 65536 ? (size_t)(end - at) : 65536;
        size_t most = how->bytes_per_ms;
        if (most) {
            step = step < most ? step : most;
            pause_ms(1);
        }
        unsigned char copy[65536];
        memcpy(copy, f->bytes + at, step);
        if (how->other_bytes && at <= 4 && 4 - at < (long long)step)
            copy[4 - at] ^= 1;
        ssize_t put = send(v->fd, copy, step, MSG_NOSIGNAL);
        if (try_again(r, put))
            continue;
        if (put <= 0)
            return;
        at += put;
        atomic_fetch_add(&r->n_sent, put);
    }
    if (how->more_bytes)
        send_all(v->fd, "more", 4);
}

static const hub_rig_file *find_file(const hub_rig *r, const char *path)
{
    char plain[1024];
    size_t n = strcspn(path, "?");
    snprintf(plain, sizeof plain, "%.*s", (int)n, path);
    for (int i = 0; i < r->n_files; i++)
        if (!strcmp(r->file[i].path, plain))
            return &r->file[i];
    return NULL;
}

/* ---- The hub ------------------------------------------------------------------------------- */

static void send_tree(visitor *v, const char *path)
{
    hub_rig *r = v->r;
    int from = 0, to = r->n_files;
    char lines[512] = "Content-Type: application/json; charset=utf-8\r\n";
    const char *cursor = strstr(path, "cursor=");
    AUTO(str_free) str s = {0};
    if (cursor)
        from = atoi(cursor + 7);
    if (r->how.page && to > from + r->how.page) {
        to = from + r->how.page;
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines),
                 "Link: <%s/api/models/%s/tree/%s?recursive=true&expand=false&cursor=%d>; "
                 "rel=\"next\"\r\n",
                 r->how.next ? r->how.next : r->endpoint, r->repo, commit, to);
    }
    str_putc(&s, '[');
    for (int i = from; i < to; i++) {
        const hub_rig_file *f = &r->file[i];
        str_printf(&s, "%s{\"type\":\"%s\",\"path\":\"%s\",\"size\":%lld,\"oid\":\"%s\"",
                   i > from ? "," : "", f->type ? f->type : "file", f->path, (long long)f->size,
                   f->git ? f->oid : "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        if (!f->git)
            str_printf(&s, ",\"lfs\":{\"oid\":\"%s\",\"size\":%lld,\"pointerSize\":130}", f->oid,
                       (long long)f->size);
        str_puts(&s, ",\"xetHash\":\"00\"}");
    }
    str_putc(&s, ']');
    send_text(v->fd, 200, lines, s.at);
}

static void send_hits(visitor *v, const request *q)
{
    static const char json[] = "Content-Type: application/json\r\n";
    hub_rig *r = v->r;
    char text[512];
    snprintf(r->searched, sizeof r->searched, "%.500s", q->path);
    if (r->how.endless_hits) {
        char junk[65536];
        memset(junk, ' ', sizeof junk);
        send_head(v->fd, 200, json, -1);
        while (!atomic_load(&r->stop)) {
            ssize_t put = send(v->fd, junk, sizeof junk, MSG_NOSIGNAL);
            if (put <= 0 && !try_again(r, put))
                return;
        }
        return;
    }
    /* As the hub does: what was not asked for is not there. */
    snprintf(text, sizeof text, "[{\"id\":\"%s\",\"downloads\":7,\"likes\":2%s%s}]", r->repo,
             strstr(q->path, "&expand=gated") ? ",\"gated\":\"manual\"" : "",
             strstr(q->path, "&expand=lastModified")
                 ? ",\"lastModified\":\"2026-11-29T01:02:03.000Z\""
                 : "");
    send_text(v->fd, 200, json, r->how.hits ? r->how.hits : text);
}

static void answer_hub(visitor *v, const request *q)
{
    hub_rig *r = v->r;
    const hub_rig_how *how = &r->how;
    char lines[4096], prefix[256];
    bool head = !strcmp(q->method, "HEAD");
    if (q->token)
        atomic_fetch_add(&r->tokens_at_hub, 1);
    if (how->portal_to) {
        snprintf(lines, sizeof lines, "Location: %s\r\n", how->portal_to);
        send_head(v->fd, 302, lines, 0);
        return;
    }
    if (how->portal) {
        send_text(v->fd, 200, "Content-Type: text/html\r\n", head ? "" : "<html>Log in</html>");
        return;
    }
    if (how->busy_times && counted(&r->n_busy, how->busy_times)) {
        if (how->busy_after < 0)
            snprintf(lines, sizeof lines, "RateLimit: \"api\";r=0;t=0\r\n");
        else
            snprintf(lines, sizeof lines, "Retry-After: %d\r\n", how->busy_after);
        send_head(v->fd, 429, lines, 0);
        return;
    }
    if (how->refuse_status || !has_token(how->token, q->token)) {
        snprintf(lines, sizeof lines, "%s%s%s%s%s%s", how->refuse_code ? "X-Error-Code: " : "",
                 how->refuse_code ? how->refuse_code : "", how->refuse_code ? "\r\n" : "",
                 how->refuse_message ? "X-Error-Message: " : "",
                 how->refuse_message ? how->refuse_message : "", how->refuse_message ? "\r\n" : "");
        send_head(v->fd, how->refuse_status ? how->refuse_status : 401, lines, 0);
        return;
    }
    if (how->rename && strncmp(q->path, "/api/models/new/", 16) && strncmp(q->path, "/new/", 5)) {
        const char *rest = strstr(q->path, r->repo);
        snprintf(lines, sizeof lines, "Location: %s/new/%s\r\n",
                 strncmp(q->path, "/api/", 5) ? "" : "/api/models",
                 rest ? strchr(rest, '/') + 1 : "");
        send_head(v->fd, 307, lines, 0);
        return;
    }
    if (!strncmp(q->path, "/api/models?", 12)) {
        send_hits(v, q);
        return;
    }
    if (!strncmp(q->path, "/api/models/", 12)) {
        atomic_fetch_add(&r->n_api, 1);
        if (strstr(q->path, "/revision/")) {
            char text[256];
            snprintf(text, sizeof text, "{\"id\":\"x\",\"sha\":\"%s\",\"gated\":false}", commit);
            send_text(v->fd, 200, "Content-Type: application/json\r\n", text);
        } else {
            send_tree(v, q->path);
        }
        return;
    }
    snprintf(prefix, sizeof prefix, "/resolve/%s/", commit);
    const char *at = strstr(q->path, prefix);
    const hub_rig_file *f = at ? find_file(r, at + strlen(prefix)) : NULL;
    if (!f) {
        send_head(v->fd, 404, "X-Error-Code: EntryNotFound\r\n", 0);
        return;
    }
    atomic_fetch_add(head ? &r->n_head : &r->n_get, 1);
    if (how->no_storage || f->git) {
        send_file(v, q, f);
        return;
    }
    snprintf(lines, sizeof lines,
             "Location: %s/blob/%s?signed=1\r\nX-Linked-Etag: \"%s\"\r\nX-Linked-Size: %zu\r\n"
             "X-Xet-Hash: 00\r\n",
             r->storage, f->path, f->oid, f->n);
    if (!how->no_commit)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "X-Repo-Commit: %s\r\n",
                 commit);
    send_text(v->fd, 302, lines, head ? "" : "moved");
}

static void answer_storage(visitor *v, const request *q)
{
    hub_rig *r = v->r;
    const hub_rig_file *f = strncmp(q->path, "/blob/", 6) ? NULL : find_file(r, q->path + 6);
    char lines[4096];
    if (q->token)
        atomic_fetch_add(&r->tokens_at_storage, 1);
    atomic_fetch_add(&r->n_get, 1);
    if (r->how.expire_times && counted(&r->n_expired, r->how.expire_times)) {
        send_text(v->fd, 403, "", "Request has expired");
    } else if (r->how.error_times && counted(&r->n_errors, r->how.error_times)) {
        send_text(v->fd, 503, "", "slow down");
    } else if (r->how.loop) {
        snprintf(lines, sizeof lines, "Location: %s%s\r\n", r->storage, q->path);
        send_head(v->fd, 302, lines, 0);
    } else if (f) {
        int now = atomic_fetch_add(&r->at_once, 1) + 1, most = atomic_load(&r->most_at_once);
        while (now > most && !atomic_compare_exchange_weak(&r->most_at_once, &most, now))
            ;
        send_file(v, q, f);
        atomic_fetch_sub(&r->at_once, 1);
    } else {
        send_head(v->fd, 404, "", 0);
    }
}

static void *serve_one(void *arg)
{
    AUTO_PTR(free) visitor *v = arg;
    request q;
    if (read_request(v->r, v->fd, &q)) {
        if (v->storage)
            answer_storage(v, &q);
        else
            answer_hub(v, &q);
    }
    shutdown(v->fd, SHUT_WR);
    char rest[256]; /* closing with unread bytes would reset the connection */
    while (!atomic_load(&v->r->stop) && recv(v->fd, rest, sizeof rest, 0) > 0)
        ;
    close(v->fd);
    atomic_fetch_sub(&v->r->n_threads, 1);
    return NULL;
}

typedef struct door {
    hub_rig *r;
    int i;
} door;

static void *listen_on(void *arg)
{
    door d = *(door *)arg;
    free(arg);
    while (!atomic_load(&d.r->stop)) {
        struct pollfd p = {d.r->listener[d.i], POLLIN, 0};
        if (poll(&p, 1, 50) <= 0)
            continue;
        int fd = accept(p.fd, NULL, NULL);
        if (fd < 0)
            continue;
        struct timeval most = {TICK_S, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
        visitor *v = malloc(sizeof *v);
        pthread_t t;
        *v = (visitor){d.r, fd, d.i == 1};
        atomic_fetch_add(&d.r->n_threads, 1);
        if (pthread_create(&t, NULL, serve_one, v))
            abort();
        pthread_detach(t);
    }
    return NULL;
}

void hub_rig_open(hub_rig *r, const char *repo)
{
    memset(r, 0, sizeof *r);
    r->repo = repo;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof at;
        r->listener[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(r->listener[i] >= 0 && !bind(r->listener[i], (void *)&at, sizeof at) &&
              !listen(r->listener[i], 64) && !getsockname(r->listener[i], (void *)&at, &n));
        snprintf(i ? r->storage : r->endpoint, sizeof r->storage, "http://127.0.0.1:%d",
                 ntohs(at.sin_port));
    }
    for (int i = 0; i < 2; i++) {
        door *d = malloc(sizeof *d);
        *d = (door){r, i};
        CHECK(!pthread_create(&r->thread[i], NULL, listen_on, d));
    }
    setenv("HF_ENDPOINT", r->endpoint, 1);
    setenv("XDG_DATA_HOME", test_temp("data"), 1);
    setenv("HF_HOME", test_temp("hf"), 1);
    unsetenv("http_proxy");
}

void hub_rig_clear(hub_rig *r)
{
    for (int i = 0; i < r->n_files; i++)
        if (r->file[i].mapped)
            munmap(r->file[i].bytes, r->file[i].n);
        else
            mem_free(r->file[i].bytes);
    r->n_files = 0;
}

void hub_rig_close(hub_rig *r)
{
    atomic_store(&r->stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(r->thread[i], NULL);
    while (atomic_load(&r->n_threads))
        pause_ms(1);
    for (int i = 0; i < 2; i++)
        close(r->listener[i]);
    hub_rig_clear(r);
}

hub_rig_file *hub_rig_add_bytes(hub_rig *r, const char *path, const void *bytes, size_t n, bool git)
{
    CHECK(r->n_files < RIG_FILES);
    hub_rig_file *f = &r->file[r->n_files++];
    *f = (hub_rig_file){.path = path, .n = n, .git = git, .size = (int64_t)n};
    f->bytes = mem_alloc(n + 1);
    CHECK(f->bytes);
    memcpy(f->bytes, bytes, n);
    if (git) {
        char head[32];
        sha_stream h;
        sha1_init(&h);
        sha_put(&h, head, (size_t)snprintf(head, sizeof head, "blob %zu", n) + 1);
        sha_put(&h, bytes, n);
        sha_text(&h, f->oid);
    } else {
        sha_stream h;
        sha256_init(&h);
        sha_put(&h, bytes, n);
        sha_text(&h, f->oid);
    }
    return f;
}

hub_rig_file *hub_rig_add(hub_rig *r, const char *path, size_t n)
{
    unsigned char *bytes = mem_alloc(n + 4);
    uint64_t seed = n + (size_t)r->n_files;
    CHECK(bytes);
    memcpy(bytes, "GGUF", 4);
    for (size_t i = 4; i < n; i++)
        bytes[i] = (unsigned char)rng_next(&seed);
    hub_rig_file *f = hub_rig_add_bytes(r, path, bytes, n, false);
    mem_free(bytes);
    return f;
}

hub_rig_file *hub_rig_add_file(hub_rig *r, const char *path, const char *from)
{
    struct stat sb;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && !fstat(fd, &sb));
    hub_rig_file *f = hub_rig_add_bytes(r, path, from, strlen(from), false);
    mem_free(f->bytes);
    f->n = (size_t)sb.st_size;
    f->size = sb.st_size;
    f->mapped = true;
    f->bytes = mmap(NULL, f->n, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(f->bytes != MAP_FAILED);
    close(fd);
    return f;
}
