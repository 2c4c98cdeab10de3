/* download.c - see download.h. */
#include "apps/hub/download.h"

#include "apps/hub/part.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    CONNECTIONS_MAX = 32,
    RUN_LEAST = 4,                   /* chunks asked for at once, in a small file */
    RUN_MIN = 64,                    /* and in others */
    RUN_MAX = 512,                   /* a failure near the end of a run must not be what decides */
    FAILURES_MAX = 5,                /* in a row, without a chunk between them */
    ASKED_MAX = 3 * CONNECTIONS_MAX, /* times that the hub is asked where a file is, as above */
    HOPS_MAX = 20,                   /* redirects of the storage, as above */
    REFUSAL_MAX = 1 << 20,           /* bytes of the text of a refusal */
    HASH_STEP = 1 << 20,
    BUSY_WAIT_S = 1
};

/* What a connection's answer turned out to be. */
typedef enum verdict {
    GOES_ON,
    WRONG_RANGE, /* other bytes than asked for */
    NO_RANGES,   /* the whole file, where a part was asked for */
    DISK_FAILED,
    WRONG_LENGTH, /* the file has another size than announced */
    ENDLESS       /* a refusal whose text does not end */
} verdict;

struct work;

typedef struct conn {
    struct work *w;
    CURL *easy; /* NULL: idle */
    reply head;
    char reason[CURL_ERROR_SIZE];
    uint64_t from, at, to; /* bytes: asked from, next one, end */
    bool begun;            /* the first byte of a body was judged */
    size_t refusal;        /* bytes of the text of a refusal */
    verdict verdict;
} conn;

typedef struct work {
    download *d;
    part part;
    conn conn[CONNECTIONS_MAX];
    int n_conns;
    char target[URL_MAX];      /* where the bytes are; "": ask the hub */
    bool no_ranges;            /* the server sends whole files only */
    bool refused;              /* by check_head */
    bool unread;               /* the first chunk was not given to check_head yet */
    bool progress;             /* bytes have come since the last failure */
    int failures, asked, hops; /* without progress: failures, questions to the hub, redirects */
    double resume_ms;          /* no new request before */
    err disk;                  /* why writing failed */
    /* The hash of the first `hashed` bytes. */
    sha_stream sha;
    sha_stream git;
    uint64_t hashed;
    unsigned char *buf; /* [HASH_STEP] */
} work;

/* ---- Hashing ------------------------------------------------------------------------------- */

/* git hashes "blob SIZE", a zero byte, and the content. */
static void begin_hash(sha_stream *sha, sha_stream *git, uint64_t n_bytes)
{
    char head[64];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)n_bytes);
    sha256_init(sha);
    sha1_init(git);
    sha_put(git, head, (size_t)n + 1);
}

/* Hashes a step of what is here in one piece from the beginning. False: nothing to do. */
static bool hash_more(work *w, status *st, err *e)
{
    part *p = &w->part;
    uint64_t chunk = w->hashed / PART_CHUNK;
    if (w->hashed >= p->n_bytes || p->chunk[chunk] != PART_HERE)
        return false;
    uint64_t left = part_end(p, chunk) - w->hashed;
    size_t n = left < HASH_STEP ? (size_t)left : HASH_STEP;
    if ((*st = part_read(p, w->hashed, w->buf, n, e)))
        return false;
    sha_put(&w->sha, w->buf, n);
    if (*w->d->file->git_sha1)
        sha_put(&w->git, w->buf, n);
    w->hashed += n;
    return true;
}

status hash_file(net *n, const char *path, uint64_t n_bytes, char sha_out[65], char git_out[41],
                 uint64_t *n_hashed, err *e)
{
    file_map m;
    sha_stream sha;
    sha_stream git;
    status st = file_map_open(&m, path, false, NULL, NULL, e);
    if (!st && m.n_bytes != n_bytes)
        st = err_set(e, E_FORMAT, "%s: the file has %llu bytes, and the hub announced %llu", path,
                     (unsigned long long)m.n_bytes, (unsigned long long)n_bytes);
    begin_hash(&sha, &git, n_bytes);
    for (uint64_t at = 0; !st && at < m.n_bytes; at += HASH_STEP) {
        size_t step = m.n_bytes - at < HASH_STEP ? (size_t)(m.n_bytes - at) : HASH_STEP;
        sha_put(&sha, m.bytes + at, step);
        sha_put(&git, m.bytes + at, step);
        file_map_forget(&m, m.bytes + at, step);
        *n_hashed = at + step;
        if (!n->tick(n->user, ""))
            st = err_set(e, E_CANCELLED, "interrupted");
    }
    if (!st) {
        sha_text(&sha, sha_out);
        sha_text(&git, git_out);
    }
    file_map_close(&m);
    return st;
}

/* ---- Connections --------------------------------------------------------------------------- */

/* Judges an answer by its head, before its first byte is written. */
static verdict judge(conn *c)
{
    const reply *r = &c->head;
    uint64_t n_bytes = c->w->part.n_bytes;
    if (r->encoded)
        return WRONG_RANGE;
    if (r->code == 206) {
        if (r->range_total >= 0 && (uint64_t)r->range_total != n_bytes)
            return WRONG_LENGTH;
        return r->range_from >= 0 && (uint64_t)r->range_from == c->from &&
                       (uint64_t)r->range_to < c->to
                   ? GOES_ON
                   : WRONG_RANGE;
    }
    if (r->length >= 0 && (uint64_t)r->length != n_bytes)
        return WRONG_LENGTH;
    /* A 200 is the whole file. It is of use if this connection asked for that. */
    return c->from || c->to < n_bytes ? NO_RANGES : GOES_ON;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *user)
{
    conn *c = user;
    work *w = c->w;
    part *p = &w->part;
    (void)one;
    if (c->head.code != 200 && c->head.code != 206) {
        if ((c->refusal += n) <= REFUSAL_MAX)
            return n;
        c->verdict = ENDLESS;
        return 0;
    }
    if (!c->begun) {
        c->begun = true;
        c->verdict = judge(c);
    }
    /* More bytes than asked for. Beyond the file's end there is none to ask for again. */
    if (c->verdict == GOES_ON && n > c->to - c->at)
        c->verdict = c->head.code == 200 ? WRONG_LENGTH : WRONG_RANGE;
    if (c->verdict != GOES_ON)
        return 0;
    status st = part_write(p, c->at, bytes, n, &w->disk);
    uint64_t before = c->at / PART_CHUNK;
    c->at += n;
    w->d->n_came += n;
    uint64_t after = c->at == p->n_bytes ? p->n_chunks : c->at / PART_CHUNK;
    for (uint64_t i = before; i < after && !st; i++) {
        bool news = p->chunk[i] != PART_HERE;
        st = part_mark(p, i, &w->disk);
        /* Whole chunks that were missing count: a server that cuts each answer after a byte, or
         * sends the same bytes again, must not keep the pull busy for ever. */
        if (!news)
            continue;
        w->progress = true;
        w->failures = w->asked = w->hops = 0;
    }
    if (st)
        c->verdict = DISK_FAILED;
    return st ? 0 : n;
}

/* Gives back what a connection had claimed and not brought. */
static void release(conn *c)
{
    part *p = &c->w->part;
    for (uint64_t i = c->from / PART_CHUNK; i < p->n_chunks && i * PART_CHUNK < c->to; i++)
        if (p->chunk[i] == PART_CLAIMED)
            p->chunk[i] = PART_MISSING;
    if (c->easy) {
        curl_multi_remove_handle(c->w->d->net->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    c->easy = NULL;
}

static void release_all(work *w)
{
    for (int i = 0; i < w->n_conns; i++)
        if (w->conn[i].easy)
            release(&w->conn[i]);
}

/* Claims the next run of missing chunks for an idle connection. False: there is none. */
static bool claim(work *w, conn *c)
{
    part *p = &w->part;
    uint64_t first = 0, missing = 0, end;
    if (w->no_ranges) { /* all of it, and no other connection */
        for (uint64_t i = 0; i < p->n_chunks; i++)
            missing += p->chunk[i] != PART_HERE;
        if (!missing)
            return false;
        c->from = c->at = 0;
        c->to = p->n_bytes;
        for (uint64_t i = 0; i < p->n_chunks; i++)
            p->chunk[i] = p->chunk[i] == PART_HERE ? PART_HERE : PART_CLAIMED;
        return true;
    }
    while (first < p->n_chunks && p->chunk[first] != PART_MISSING)
        first++;
    if (w->unread && first) /* another connection brings the first chunk */
        return false;
    if (first == p->n_chunks)
        return false;
    for (uint64_t i = first; i < p->n_chunks; i++)
        missing += p->chunk[i] == PART_MISSING;
    /* Shorter runs near the end, so that all connections end together. */
    uint64_t most = missing / (uint64_t)(2 * w->n_conns);
    most = most < RUN_MIN ? RUN_MIN : most > RUN_MAX ? RUN_MAX : most;
    if (missing <= (uint64_t)w->n_conns * RUN_MIN)
        most = (missing + (uint64_t)w->n_conns - 1) / (uint64_t)w->n_conns;
    most = w->unread ? 1 : most < RUN_LEAST ? RUN_LEAST : most;
    for (end = first; end < p->n_chunks && end - first < most && p->chunk[end] == PART_MISSING;)
        p->chunk[end++] = PART_CLAIMED;
    c->from = c->at = first * PART_CHUNK;
    c->to = part_end(p, end - 1);
    return true;
}

static status start(work *w, conn *c, err *e)
{
    char range[64];
    c->easy = net_request(w->d->net, w->target, &c->head, c->reason);
    c->begun = false;
    c->refusal = 0;
    c->verdict = GOES_ON;
    c->w = w;
    if (!c->easy)
        return err_memory(e, "a connection", sizeof *c);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)c->from,
             (unsigned long long)c->to - 1);
    if (!w->no_ranges)
        curl_easy_setopt(c->easy, CURLOPT_RANGE, range);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    if (curl_multi_add_handle(w->d->net->multi, c->easy))
        return err_memory(e, "a connection", sizeof *c);
    return OK;
}

/* ---- What went wrong ----------------------------------------------------------------------- */

static status gave_up(const work *w, const conn *c, CURLcode result, err *e)
{
    char host[URL_PART_MAX];
    url_host(w->target, host);
    if (c->verdict == ENDLESS)
        return err_set(e, E_IO, "%s: %s answers %d with a text that does not end", w->d->file->path,
                       host, c->head.code);
    if (c->verdict == WRONG_RANGE)
        return err_set(e, E_IO, "%s: %s sends other bytes than those asked for; try again later",
                       w->d->file->path, host);
    if (c->head.code && c->head.code != 200 && c->head.code != 206)
        return err_set(e, E_IO, "%s: %s answers %d, %d times in a row; the same command continues",
                       w->d->file->path, host, c->head.code, w->failures);
    return err_set(e, E_IO,
                   "%s: the connection to %s failed %d times in a row: %s; the same "
                   "command continues",
                   w->d->file->path, host, w->failures,
                   result == CURLE_OK ? "it ended early"
                   : *c->reason       ? c->reason
                                      : curl_easy_strerror(result));
}

/* Decides what follows from the end of a request. Every way out but an error leaves the connection
 * idle, and what it did not bring missing. */
static status settle(work *w, conn *c, CURLcode result, err *e)
{
    const reply *r = &c->head;
    char to[URL_MAX];
    bool whole = c->at == c->to || c->at == w->part.n_bytes;
    if (c->verdict == DISK_FAILED)
        return err_set(e, w->disk.status, "%s", w->disk.text);
    if (c->verdict == WRONG_LENGTH)
        return err_set(
            e, E_FORMAT,
            "%s: the hub announced %llu bytes, and its storage has another number; try again later",
            w->d->file->path, (unsigned long long)w->part.n_bytes);
    if (c->verdict == ENDLESS)
        return gave_up(w, c, result, e);
    /* No failure: from now on in one piece. Another connection may have asked for its part before
     * the first one found out. */
    if (c->verdict == NO_RANGES) {
        w->no_ranges = true;
        w->n_conns = 1;
        return OK;
    }
    if (result == CURLE_OK && whole && (r->code == 200 || r->code == 206))
        return OK;
    if (result == CURLE_OUT_OF_MEMORY)
        return err_memory(e, "a connection", sizeof *c);
    if (result == CURLE_OK && r->code >= 300 && r->code < 400) {
        if (++w->hops > HOPS_MAX || !url_resolve(w->target, r->location, to) ||
            (url_is_https(w->target) && !url_is_https(to)))
            return err_set(e, E_IO, "%s: redirected too often, or to an address that is not valid",
                           w->d->file->path);
        strcpy(w->target, to);
        return OK;
    }
    if (result == CURLE_OK && r->code == 416 && r->range_total >= 0 &&
        (uint64_t)r->range_total != w->part.n_bytes)
        return err_set(e, E_FORMAT, "%s: the hub announced %llu bytes, its storage has %lld",
                       w->d->file->path, (unsigned long long)w->part.n_bytes,
                       (long long)r->range_total);
    if (net_is_final(result) && result != CURLE_OK)
        return gave_up(w, c, result, e);
    w->failures = w->progress ? 1 : w->failures + 1;
    w->progress = false;
    if (w->failures > FAILURES_MAX + w->n_conns) /* one bad moment may cut all connections */
        return gave_up(w, c, result, e);
    /* The storage signs addresses for a time, and some for a range: the hub gives a new one. */
    double s = result == CURLE_OK && worth_retrying(r->code) ? wait_s(r, w->failures)
                                                             : wait_s(NULL, w->failures);
    if (s < 0)
        return gave_up(w, c, result, e);
    w->target[0] = 0;
    if (result == CURLE_OK && (r->code == 401 || r->code == 403) && w->failures == 1)
        s = 0;
    w->resume_ms = clock_ms() + s * net_second_ms;
    w->d->note = r->code && r->code != 200 && r->code != 206
                     ? "the hub asks to wait, or refused; trying again"
                     : "the connection failed; trying again";
    return OK;
}

/* Asks the hub where the bytes are, and whether they are those of the listing. */
static status find_target(work *w, err *e)
{
    download *d = w->d;
    const hub_file *f = d->file;
    reply *r = mem_alloc(sizeof *r);
    if (!r)
        return err_memory(e, "an answer", sizeof *r);
    /* A hub whose addresses never work is not asked for ever. */
    status st =
        ++w->asked > ASKED_MAX
            ? err_set(e, E_IO,
                      "%s: the storage refuses every address that the hub gives; try again later",
                      f->path)
            : net_locate(d->net, d->url, d->repo, w->target, r, e);
    const char *etag = st ? "" : *r->linked_etag ? r->linked_etag : r->etag;
    if (!st && *f->sha256 && *r->linked_etag && strlen(etag) == 64 && strcmp(etag, f->sha256))
        st = err_set(e, E_FORMAT,
                     "%s: the hub lists one SHA-256 and serves another; try again later", f->path);
    if (!st && r->linked_size >= 0 && (uint64_t)r->linked_size != f->n_bytes)
        st = err_set(e, E_FORMAT, "%s: the hub lists %llu bytes and serves %lld", f->path,
                     (unsigned long long)f->n_bytes, (long long)r->linked_size);
    mem_free(r);
    return st;
}

/* ---- The whole file ------------------------------------------------------------------------ */

/* Gives the first chunk to check_head, once it is here. */
static status check_head(work *w, err *e)
{
    size_t n = (size_t)part_end(&w->part, 0);
    if (!w->unread || w->part.chunk[0] != PART_HERE)
        return OK;
    w->unread = false;
    unsigned char *head = mem_alloc(n);
    status st = head ? part_read(&w->part, 0, head, n, e) : err_memory(e, w->d->file->path, n);
    if (!st && (st = w->d->check_head(w->d, head, n, e)))
        w->refused = true;
    mem_free(head);
    return st;
}

/* Moves bytes until the file is whole and hashed. */
static status bring(work *w, err *e)
{
    download *d = w->d;
    status st = OK;
    while (!st && w->hashed < w->part.n_bytes) {
        if ((st = check_head(w, e)))
            break;
        int running = 0;
        bool missing = w->part.n_here < w->part.n_bytes;
        for (int i = 0; i < w->n_conns && missing && !st; i++) {
            conn *c = &w->conn[i];
            if (!c->easy && clock_ms() >= w->resume_ms && claim(w, c)) {
                if (!w->target[0])
                    st = find_target(w, e);
                if (!st)
                    st = start(w, c, e);
            }
            running += c->easy != NULL;
        }
        if (st)
            break;
        bool busy = hash_more(w, &st, e);
        d->n_here = w->part.n_here;
        d->n_hashed = w->hashed;
        if (running && w->progress)
            d->note = "";
        if (!st)
            st = net_poll(d->net, running, busy, e);
        int left;
        for (CURLMsg *m; !st && (m = curl_multi_info_read(d->net->multi, &left));) {
            conn *c = NULL;
            CURLcode result = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
            if (m->msg != CURLMSG_DONE || !c)
                continue;
            st = settle(w, c, result, e);
            bool alone = c->verdict == NO_RANGES;
            release(c);
            if (alone)
                for (int i = 1; i < CONNECTIONS_MAX; i++)
                    if (w->conn[i].easy)
                        release(&w->conn[i]);
        }
    }
    release_all(w);
    return st;
}

/* Compares the hash of the downloaded file with the hash that the hub's listing gives. */
static status verify(work *w, err *e)
{
    const hub_file *f = w->d->file;
    char git[41], magic[4] = {0};
    sha_text(&w->sha, w->d->digest);
    sha_text(&w->git, git);
    if (*f->sha256 && strcmp(f->sha256, w->d->digest))
        return err_set(e, E_FORMAT, "%s: its SHA-256 is %.16s... and should be %.16s...", f->path,
                       w->d->digest, f->sha256);
    if (*f->git_sha1 && strcmp(f->git_sha1, git))
        return err_set(e, E_FORMAT, "%s: its git SHA-1 is %.16s... and should be %.16s...", f->path,
                       git, f->git_sha1);
    if (f->n_bytes >= 4 && part_read(&w->part, 0, magic, 4, e))
        return E_IO;
    if (memcmp(magic, "GGUF", 4))
        return err_set(e, E_FORMAT, "%s is no GGUF file%s", f->path,
                       !memcmp(magic, "vers", 4) ? ", but a pointer of Git LFS to one" : "");
    return OK;
}

status download_file(download *d, err *e)
{
    work *w = mem_calloc(1, sizeof *w);
    status st = OK;
    part_state state;
    d->note = "";
    d->n_here = d->n_hashed = 0;
    if (!w || !(w->buf = mem_alloc(HASH_STEP))) {
        mem_free(w);
        return err_memory(e, d->file->path, sizeof *w + HASH_STEP);
    }
    w->d = d;
    w->n_conns = d->connections < 1                 ? 4
                 : d->connections > CONNECTIONS_MAX ? CONNECTIONS_MAX
                                                    : d->connections;
    while (!(st = part_open(&w->part, d->blob, d->file->n_bytes, &state, e)) && state == PART_BUSY)
        if ((st =
                 net_wait(d->net, BUSY_WAIT_S, "another pull brings this file; waiting for it", e)))
            break;
    if (!st && state == PART_DONE) {
        char git[41];
        if (*d->file->sha256)
            memcpy(d->digest, d->file->sha256, sizeof d->digest);
        else
            st = hash_file(d->net, d->blob, d->file->n_bytes, d->digest, git, &d->n_hashed, e);
    }
    while (!st && state == PART_OPEN) {
        begin_hash(&w->sha, &w->git, d->file->n_bytes);
        w->hashed = 0;
        w->unread = d->check_head && w->part.n_chunks;
        st = bring(w, e);
        if (w->refused)
            part_drop(&w->part);
        if (st)
            break;
        err why = {0};
        bool resumed = w->part.resumed;
        if (!(st = verify(w, &why))) {
            st = part_finish(&w->part, d->blob, e);
            break;
        }
        /* What an earlier pull left may be damaged: after a power cut, say. Once more from the
         * start. */
        if (!resumed) {
            part_drop(&w->part);
            st = err_set(e, st, "%s", why.text);
            break;
        }
        d->note = "what an earlier pull left is damaged; starting again";
        w->progress = false;
        st = part_restart(&w->part, e);
    }
    part_close(&w->part);
    mem_free(w->buf);
    mem_free(w);
    return st;
}
