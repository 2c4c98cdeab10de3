/* daemon.c - `carat daemon`: generates for another program, one line of text per request.
 *
 *     stdin    one command per line            stdout        one line of reply per command, flushed
 *     stderr   errors outside of commands      --stream-fd   tokens as int32, -1 after the last
 *
 * Replies and tokens are separate channels; neither waits for the reader of the other. Each request
 * samples from its own seed: the given one, or one that it draws and names in its reply. A request
 * names its whole prompt. The session, or the restored snapshot, compares it token by token and
 * reuses the equal beginning.
 */
#include "apps/named.h"
#include "apps/cache_options.h"
#include "apps/compress.h"
#include "apps/commands.h"
#include "apps/daemon_int.h"
#include "apps/device_options.h"
#include "apps/draft_options.h"
#include "apps/hub_options.h"
#include "apps/kv_options.h"
#include "apps/pool_options.h"
#include "apps/sample_options.h"
#include "apps/sparse_options.h"
#include "apps/term.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

typedef struct daemon_options {
    const char *model, *isa, *tokens_file, *samp, *sparse, *repack;
    kv_options kv;
    device_options where;
    cache_options cache;
    pool_options pool;
    draft_options draft;
    hub_options hub;
    int64_t n_ctx, chunk, threads, stream_fd, n_tokens;
    bool ignore_eos, overcommit, exact, reference, no_mmap;
} daemon_options;

static const option table[] = {
    OPT_STR(daemon_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list); default: the bundled one"),
    OPT_HUB(daemon_options),
    OPT_INT(daemon_options, stream_fd, "stream-fd", 0, "N", 0, 1 << 20,
            "write tokens to this open file: int32 each, -1 after the last"),
    OPT_STR(daemon_options, tokens_file, "tokens-file", 0, "FILE",
            "answer this prompt (a file, int32 ids or numbers with commas between, or the "
            "numbers), then exit"),
    OPT_INT(daemon_options, n_tokens, "tokens", 'n', "N", 1, 1 << 30,
            "most tokens of that answer (default 128)", "tokens-file"),
    OPT_STR(daemon_options, samp, "samp", 0, "LIST",
            "how to sample it: temp,top_p,top_k,rep_pen,seed,freq_pen,pres_pen (default: greedy)",
            "tokens-file"),
    OPT_FLAG(daemon_options, ignore_eos, "ignore-eos", 0, "continue when the model ends its turn"),
    OPT_INT(daemon_options, n_ctx, "ctx", 'c', "N", 0, 1 << 30,
            "tokens of context (default: what fits)"),
    OPT_CHUNK(daemon_options),
    OPT_THREADS(daemon_options),
    OPT_KV(daemon_options),
    OPT_POOL(daemon_options),
    OPT_CACHE(daemon_options),
    OPT_DRAFT(daemon_options),
    OPT_SPARSE(daemon_options),
    OPT_EXACT(daemon_options),
    OPT_REFERENCE(daemon_options),
    OPT_REPACK(daemon_options),
    OPT_NO_MMAP(daemon_options),
    OPT_DEVICE(daemon_options),
    OPT_ISA(daemon_options),
    OPT_OVERCOMMIT(daemon_options),
    OPT_END};

typedef struct service {
    carat_model *m;
    carat_session *s;
    int stream_fd; /* -1: none */
    const char *isa, *pages;
    int32_t threads;
    bool ignore_eos, parked, reply_lost, overcommit;
    carat_snapshot *slot[DAEMON_SLOTS];
    carat_compressor *shortened;
    scorer scorer;   /* of compress; open if scorer.model is not NULL */
    str scorer_path; /* its file; empty: the target */
} service;

/* ---- Replies and tokens ---------------------------------------------------------------------- */

static void reply_line(service *v, const char *line)
{
    if (printf("%s\n", line) < 0 || fflush(stdout))
        v->reply_lost = true;
}

/* Prints one line; control characters become spaces. */
static void reply(service *v, const char *fmt, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    reply_line(v, line);
}

/* Writes one token. A slow reader loses none; a reader that has gone does not end the generation.
 */
static void stream(service *v, int32_t id)
{
    const uint32_t u = (uint32_t)id;
    const unsigned char b[4] = {(unsigned char)u, (unsigned char)(u >> 8), (unsigned char)(u >> 16),
                                (unsigned char)(u >> 24)};
    for (size_t at = 0; v->stream_fd >= 0 && at < sizeof b;) {
        ssize_t n = write(v->stream_fd, b + at, sizeof b - at);
        if (n > 0)
            at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = v->stream_fd, .events = POLLOUT}, 1, -1);
        else if (n >= 0 || errno != EINTR)
            return;
    }
}

enum { STREAM_END = -1 };

/* ---- Generating -------------------------------------------------------------------------------
 */

typedef struct sink {
    service *v;
    bool streamed;
    int32_t *ids; /* without streamed: the tokens, for a file */
    int64_t n, cap;
    bool full; /* an allocation failed */
} sink;

static bool take_daemon_token(void *user, const carat_event *ev)
{
    sink *k = user;
    if (ev->kind != CARAT_EV_TOKEN)
        return true;
    if (k->streamed) {
        stream(k->v, ev->id);
        return true;
    }
    if (k->n == k->cap) {
        int64_t cap = k->cap ? 2 * k->cap : 1024;
        int32_t *ids = mem_realloc(k->ids, (size_t)cap, sizeof *ids);
        if (!ids) {
            k->full = true;
            return false;
        }
        k->ids = ids;
        k->cap = cap;
    }
    k->ids[k->n++] = ev->id;
    return true;
}

/* Takes the snapshot of snap=POS:SLOT at position POS of the prompt. POS or SLOT out of range is
 * ignored. */
static status snap_on_the_way(service *v, const daemon_request *r, carat_error *e)
{
    if (!r->has_snap || r->snap_pos < 1 || r->snap_pos > r->n || r->snap_slot < 0 ||
        r->snap_slot >= DAEMON_SLOTS)
        return OK;
    carat_snapshot *p;
    status st;
    if ((st = carat_eval(v->s, r->ids, r->snap_pos, NULL, NULL, e)))
        return st;
    if ((st = carat_snapshot_take(v->s, &p, e)))
        return st;
    carat_snapshot_free(v->slot[r->snap_slot]);
    v->slot[r->snap_slot] = p;
    return OK;
}

static status generate_ids(service *v, daemon_request *r, sink *k, carat_timings *t, carat_error *e)
{
    if (!r->seed_given)
        r->sampling.seed = sample_random_seed();
    carat_generate_options o = {.max_tokens = r->n_gen, .sampling = r->sampling};
    o.sampling.ignore_eog = v->ignore_eos;
    status st = snap_on_the_way(v, r, e);
    if (!st)
        st = carat_generate(v->s, r->ids, r->n, &o, take_daemon_token, k, t, e);
    if (!st && k->full)
        st = err_memory(e, "an answer", (size_t)k->n * sizeof *k->ids);
    return st;
}

/* The prompt's pass gives the first token, so decode time belongs to the other tokens. */
static double tokens_per_second(const carat_timings *t)
{
    return t->decode_ms > 0 && t->n_generated > 1
               ? (double)(t->n_generated - 1) / (t->decode_ms * 1e-3)
               : 0;
}

/* " seed=N" where the request has drawn N, so that its answer can be had again. */
static const char *drawn_seed(const daemon_request *r, char text[24])
{
    bool drawn = r->sampling.temperature > 0 && !r->seed_given;
    text[0] = 0;
    if (drawn)
        snprintf(text, 24, " seed=%" PRIu32, r->sampling.seed);
    return text;
}

static void reply_failure(service *v, const char *why, bool sentinel)
{
    reply(v, "err %s", why);
    if (sentinel)
        stream(v, STREAM_END);
}

/* Why a request cannot begin; NULL: it can. */
static const char *obstacle(const service *v, const daemon_request *r)
{
    if (r->bad)
        return "bad_args";
    if (r->kind == DAEMON_RESTORE && !v->slot[r->slot])
        return "empty_slot";
    if (v->parked)
        return "target_parked";
    return NULL;
}

/* " ids=5,6,7" where there is no stream for them. */
static void put_ids(const sink *k, str *out)
{
    str_puts(out, k->streamed ? "" : " ids=");
    for (int64_t i = 0; i < k->n; i++)
        str_printf(out, "%s%" PRId32, i ? "," : "", k->ids[i]);
}

static void reply_answer(service *v, const daemon_request *r, const sink *k, const carat_timings *t)
{
    str line = {0};
    char seed[24];
    str_printf(&line, "ok N=%" PRId64 " gen=%" PRId64, r->n, t->n_generated);
    if (r->kind == DAEMON_RESTORE)
        str_printf(&line, " prefix_len=%" PRId64 " (RESTORE slot=%d)", t->n_reused, r->slot);
    else
        str_printf(&line, " prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f", t->prefill_ms * 1e-3,
                   t->decode_ms * 1e-3, tokens_per_second(t));
    str_printf(&line, " stream_fd=%d%s", v->stream_fd, drawn_seed(r, seed));
    put_ids(k, &line);
    if (line.bad)
        reply(v, "err no memory for the reply");
    else
        reply_line(v, str_text(&line));
    str_free(&line);
}

static void run_prompt(service *v, daemon_request *r)
{
    sink k = {.v = v, .streamed = v->stream_fd >= 0};
    carat_timings t;
    carat_error e = {0};
    status st;
    const char *why = obstacle(v, r);
    if (!why && (daemon_read_ids(r, false, &e) || !r->n))
        why = "empty_prompt";
    if (why) {
        /* The -1 of a plain prompt precedes the reply; that of RESTORE follows it. */
        if (r->kind == DAEMON_PROMPT)
            stream(v, STREAM_END);
        reply_failure(v, why, r->kind == DAEMON_RESTORE);
        return;
    }
    st = r->kind == DAEMON_RESTORE ? carat_snapshot_restore(v->s, v->slot[r->slot], &e) : OK;
    if (!st)
        st = generate_ids(v, r, &k, &t, &e);
    stream(v, STREAM_END);
    if (st)
        reply(v, "err %s", e.text);
    else
        reply_answer(v, r, &k, &t);
    mem_free(k.ids);
}

static void run_to_file(service *v, daemon_request *r)
{
    sink k = {.v = v};
    carat_timings t;
    carat_error e = {0};
    char seed[24];
    const char *why = obstacle(v, r);
    if (!why && (daemon_read_ids(r, true, &e) || !r->n))
        why = "empty_prompt";
    if (why)
        reply_failure(v, why, false);
    else if (generate_ids(v, r, &k, &t, &e))
        reply(v, "err %s", e.text);
    else if (daemon_write_ids(r->out, k.ids, k.n, &e))
        reply_failure(v, "write_out", false);
    else
        reply(v,
              "ok N=%" PRId64 " gen=%" PRId64
              " prefill_s=%.3f decode_s=%.3f decode_tok_s=%.1f out=%s%s",
              r->n, t.n_generated, t.prefill_ms * 1e-3, t.decode_ms * 1e-3, tokens_per_second(&t),
              r->out, drawn_seed(r, seed));
    mem_free(k.ids);
}

/* ---- Snapshots ---------------------------------------------------------------------------------
 */

static void take_snapshot(service *v, const daemon_request *r)
{
    carat_snapshot *p = NULL;
    carat_error e = {0};
    if (r->bad) {
        reply_failure(v, "bad_args", true);
        return;
    }
    if (r->slot >= 0 && r->slot < DAEMON_SLOTS && !carat_snapshot_take(v->s, &p, &e)) {
        carat_snapshot_free(v->slot[r->slot]);
        v->slot[r->slot] = p;
    }
    reply(v, "[snap] inline slot=%d cur_pos=%" PRId64, r->slot, p ? carat_snapshot_n(p) : -1);
}

static void free_snapshot(service *v, const daemon_request *r)
{
    if (r->bad) {
        reply_failure(v, "bad_args", true);
        return;
    }
    if (r->slot >= 0 && r->slot < DAEMON_SLOTS) {
        carat_snapshot_free(v->slot[r->slot]);
        v->slot[r->slot] = NULL;
    }
    reply(v, "[snap] freed slot=%d", r->slot);
}

static void list_slots(service *v)
{
    char line[DAEMON_SLOTS * 4] = "";
    size_t n = 0;
    for (int i = 0; i < DAEMON_SLOTS; i++)
        if (v->slot[i])
            n += (size_t)snprintf(line + n, sizeof line - n, "%s%d", n ? "," : "", i);
    reply(v, "[snap] slots=%s", line);
}

/* Parks or unparks the target. False: the reply is an error. */
static bool move_target(service *v, bool away, carat_error *e)
{
    if (away) {
        carat_model_park(v->m);
    } else if (carat_model_unpark(v->m, e)) {
        reply(v, "err %s", e->text);
        return false;
    }
    v->parked = away;
    return true;
}

/* ---- Prompt compression ------------------------------------------------------------------------
 */

static void free_scorer(service *v)
{
    scorer_close(&v->scorer);
    carat_compressor_close(v->shortened);
    v->shortened = NULL;
    str_free(&v->scorer_path);
}

/* The scorer of this file, or the target; one that is open stays. */
static status take_scorer(service *v, const char *path, carat_error *e)
{
    const scorer_ask ask = {.path = path,
                            .pages = v->pages,
                            .isa = v->isa,
                            .threads = v->threads,
                            .overcommit = v->overcommit};
    status st;
    if (v->scorer.model && !strcmp(str_text(&v->scorer_path), path ? path : ""))
        return OK;
    free_scorer(v);
    str_puts(&v->scorer_path, path ? path : "");
    if (v->scorer_path.bad)
        st = err_memory(e, "the path of a scorer", strlen(path));
    else if (!(st = scorer_open(&v->scorer, v->m, &ask, e)))
        st = carat_compressor_open(&v->shortened, 0, e);
    if (st)
        free_scorer(v);
    return st;
}

static status compress_ids(service *v, daemon_request *r, int32_t **kept, int64_t *n,
                           carat_error *e)
{
    const carat_compress_options o = {.ratio = r->keep};
    status st = take_scorer(v, r->scorer, e);
    if (st)
        return st;
    int32_t *ids = mem_calloc((size_t)r->n, sizeof *ids);
    if (!ids)
        return err_memory(e, "a shortened prompt", (size_t)r->n * sizeof *ids);
    st = carat_compress_ids(v->shortened, v->m, &v->scorer.face, r->ids, r->n, &o, ids, n, e);
    scorer_rest(&v->scorer);
    if (st)
        mem_free(ids);
    else
        *kept = ids;
    return st;
}

/* The kept ids go to the stream; stdout gets a line only if it fails. While another model scores,
 * the target's weights are away, unless the request says nopark. */
static void compress(service *v, daemon_request *r)
{
    int32_t *kept = NULL;
    int64_t n = 0;
    carat_error e = {0};
    bool own = r->scorer && !scorer_is_shared(r->scorer, v->pages); /* a model beside the target */
    bool swap = !r->bad && own && !r->no_park && !v->parked;
    if (r->bad) {
        stream(v, STREAM_END);
        return;
    }
    if (daemon_read_ids(r, false, &e) || !r->n) {
        reply_failure(v, "empty_prompt", true);
        return;
    }
    if (!own && v->parked) {
        reply_failure(v, "target_parked", true);
        return;
    }
    if (swap)
        move_target(v, true, &e);
    status st = compress_ids(v, r, &kept, &n, &e);
    if (st)
        reply(v, "err %s", e.text);
    e = (carat_error){0};
    if (swap)
        move_target(v, false, &e);
    for (int64_t i = 0; i < n && !st; i++)
        stream(v, kept[i]);
    stream(v, STREAM_END);
    mem_free(kept);
}

/* Parks or unparks the drafter, and frees the scorer of compress, which is loaded again when it is
 * needed. */
static void move_draft(service *v, bool away)
{
    carat_error e = {0};
    bool any = false;
    if (away) {
        any = v->scorer.own != NULL;
        if (any)
            free_scorer(v);
        any |= carat_model_park_drafter(v->m);
    } else if (carat_model_unpark_drafter(v->m, &any, &e)) {
        reply(v, "err %s", e.text);
    }
    if (any)
        reply(v, away ? "[park] draft released" : "[unpark] draft restored");
}

static void park(service *v, const daemon_request *r)
{
    carat_error e = {0};
    bool target = r->target && v->parked == (r->kind == DAEMON_UNPARK);
    if (r->bad) {
        reply_failure(v, "bad_args", true);
        return;
    }
    if (r->draft && r->kind == DAEMON_PARK)
        move_draft(v, true);
    if (target && move_target(v, r->kind == DAEMON_PARK, &e))
        reply(v, r->kind == DAEMON_PARK ? "[park] target released" : "[unpark] target restored");
    if (r->draft && r->kind == DAEMON_UNPARK)
        move_draft(v, false);
    stream(v, STREAM_END);
}

/* Runs one line; false ends the program. */
static bool run_command(service *v, char *line)
{
    daemon_request r;
    daemon_parse(&r, line);
    switch (r.kind) {
    case DAEMON_NOTHING:
        break;
    case DAEMON_QUIT:
        return false;
    case DAEMON_PROMPT:
    case DAEMON_RESTORE:
        run_prompt(v, &r);
        break;
    case DAEMON_GENERATE:
        run_to_file(v, &r);
        break;
    case DAEMON_SNAPSHOT:
        take_snapshot(v, &r);
        break;
    case DAEMON_FREE:
        free_snapshot(v, &r);
        break;
    case DAEMON_LIST:
        list_slots(v);
        break;
    case DAEMON_PARK:
    case DAEMON_UNPARK:
        park(v, &r);
        break;
    case DAEMON_FREE_DRAFTER:
        if (v->scorer.own)
            reply(v, "[drafter] freed");
        free_scorer(v);
        stream(v, STREAM_END);
        break;
    case DAEMON_COMPRESS:
        compress(v, &r);
        break;
    default:
        reply_failure(v, "unknown_command", true);
    }
    daemon_request_free(&r);
    return !v->reply_lost;
}

/* ---- The line loop -----------------------------------------------------------------------------
 */

enum { LINE_MAX_BYTES = 64 << 10 };

/* A line longer than LINE_MAX_BYTES gets one error reply and is skipped. */
static void serve_lines(service *v)
{
    static char line[LINE_MAX_BYTES];
    char buf[4096];
    size_t n = 0;
    bool too_long = false, go_on = true;
    while (go_on) {
        ssize_t got = read(STDIN_FILENO, buf, sizeof buf);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (n && !too_long) { /* the last line may lack its newline */
                line[n] = 0;
                run_command(v, line);
            }
            return;
        }
        for (ssize_t i = 0; i < got && go_on; i++) {
            if (buf[i] == '\n') {
                line[n] = 0;
                if (too_long)
                    reply_failure(v, "bad_args", true);
                else
                    go_on = run_command(v, line);
                n = 0;
                too_long = false;
            } else if (n + 1 < sizeof line) {
                line[n++] = buf[i];
            } else {
                too_long = true;
            }
        }
    }
}

static status open_all(service *v, const daemon_options *o, carat_error *e)
{
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .isa = o->isa,
                              .overcommit = o->overcommit,
                              .exact_f32 = o->exact,
                              .reference = o->reference,
                              .no_mmap = o->no_mmap,
                              .scorer = o->pool.scorer,
                              .progress = term_progress};
    carat_session_options so = {
        .n_ctx = (int32_t)o->n_ctx, .chunk = (int32_t)o->chunk, .n_outputs = 1};
    device_options where = o->where;
    status st;
    kv_options_apply(&o->kv, &so);
    cache_options_apply(&o->cache, &so);
    draft_options_apply(&o->draft, &mo, &so);
    so.sparse = o->sparse;
    if ((st = pool_options_apply(&o->pool, &so, e)) ||
        (st = options_repack(o->repack, &mo.no_repack, e)))
        return st;
    where.session = &so;
    device_options_apply(&where, &mo);
    if (v->stream_fd >= 0 && fcntl(v->stream_fd, F_GETFD) < 0)
        return err_set(e, E_ARG, "--stream-fd %d: no open file has this number", v->stream_fd);
    if ((st = named_open(o->model, &mo, &v->m, e)))
        return st;
    if ((st = carat_session_open(v->m, &so, &v->s, e)))
        return st;
    term_progress_clear();
    pool_note_open(v->s);
    return OK;
}

/* --tokens-file: answers one prompt, like its line in the protocol. */
static status serve_one(service *v, const daemon_options *o, carat_error *e)
{
    daemon_request r = {.kind = DAEMON_PROMPT, .path = (char *)o->tokens_file};
    char samp[256];
    r.n_gen = o->n_tokens ? (int32_t)o->n_tokens : 128;
    daemon_greedy(&r.sampling);
    if (v->stream_fd < 0)
        return err_set(e, E_ARG, "--tokens-file needs --stream-fd: the answer goes there");
    if (o->samp) {
        snprintf(samp, sizeof samp, "%s", o->samp);
        if (!daemon_parse_samp(samp, &r))
            return err_set(e, E_ARG,
                           "--samp '%.100s': expected numbers with commas between: "
                           "temp,top_p,top_k,rep_pen,seed,freq_pen,pres_pen",
                           o->samp);
    }
    run_prompt(v, &r);
    mem_free(r.ids);
    return OK;
}

static int run_daemon(const command *c, int argc, char **argv)
{
    daemon_options o = {.stream_fd = -1, .cache = CACHE_OPTIONS_NONE};
    carat_model_info info;
    model_found pulled;
    carat_error e = {0};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    if (bad)
        return bad - 1;
    service v = {.stream_fd = (int)o.stream_fd,
                 .ignore_eos = o.ignore_eos,
                 .isa = o.isa,
                 .pages = o.pool.scorer,
                 .threads = (int32_t)o.threads,
                 .overcommit = o.overcommit};
    signal(SIGPIPE, SIG_IGN); /* a closed channel must not end the program */
    status st = hub_options_take(&o.hub, &o.model, &pulled, &e);
    if (st || (st = open_all(&v, &o, &e)))
        goto out;
    carat_model_get_info(v.m, &info);
    if (o.tokens_file) {
        st = serve_one(&v, &o, &e);
        goto out;
    }
    reply(&v, "[daemon] ready vocab=%d max_ctx=%d", info.n_vocab, carat_session_n_ctx(v.s));
    serve_lines(&v);
out:
    for (int i = 0; i < DAEMON_SLOTS; i++)
        carat_snapshot_free(v.slot[i]);
    free_scorer(&v);
    carat_session_close(v.s);
    carat_model_close(v.m);
    model_found_free(&pulled);
    if (st)
        term_error(&e);
    return st ? 1 : 0;
}

const command command_daemon = {
    .name = "daemon",
    .operands = "",
    .summary = "Answer prompts of token ids, line by line, for another program",
    .about =
        "Reads commands from stdin and answers each with a line on stdout; tokens go to\n"
        "--stream-fd as they come, as int32 little-endian, with -1 after the last; without it\n"
        "they are in the reply, as ids=5,6,7. Prompts are\n"
        "files of int32 ids, or of numbers with commas between; paths cannot contain spaces.\n\n"
        "  PATH N [snap=POS:SLOT] [samp=LIST]               N tokens after the prompt in PATH\n"
        "  RESTORE SLOT PATH N [snap=POS:SLOT] [samp=LIST]  the same, from a snapshot on\n"
        "  generate IN N OUT [samp=LIST]                    into a file; both begin with a count\n"
        "  SNAPSHOT SLOT, FREE_SNAPSHOT SLOT, LIST_SLOTS    64 slots, 0 to 63\n"
        "  park [all|target|draft], unpark [...]            weights off the device and back\n"
        "  compress PATH KEEP [FILE] [nopark]               KEEP thousandths of the ids in PATH, "
        "as\n"
        "                                                   FILE, a model, or the target judges\n"
        "  free drafter                                     that model off the device\n"
        "  quit\n\n"
        "LIST is temp,top_p,top_k,rep_pen,seed,freq_pen,pres_pen, from the left as many as "
        "wanted;\n"
        "without it decoding is greedy. A request without a seed draws one, and its reply ends "
        "with\n"
        "seed=N. While the draft is parked, answers are the same, without its drafts.",
    .options = table,
    .run = run_daemon};
