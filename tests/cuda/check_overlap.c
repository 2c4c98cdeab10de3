/* check_overlap.c - what several devices that share a model's layers do at the same time, and what
 * their recordings take to be true.
 *
 * In the emulator the order of launches and copies is traced (emu_trace.h): chunk i + 1 of a prompt
 * runs on one device while chunk i is on the next, no copy overwrites what is still read, and
 * nothing is read before its copy has ended. The time of a prompt is that of a pipeline without any
 * other wait. Ranks of a tensor split that add up by slices wait for all others before and after,
 * and their copies do not wait for each other. On a GPU the results alone are compared.
 */
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "engine/batch_int.h"
#include "engine/stages.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#ifdef EMU_CAN_FAIL
#include "tests/cuda/emu_trace.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CHUNK = 8,
    CHUNKS = 8,
    STEPS = 6,
    POOL_CTX = 1024,
    POOL = 512,
    WATCHED = 530,
    TAU = 8 /* half of the passes score pages, and pages move */
};

static status open_parts(const char *path, const char *gpus, carat_model **m, err *e)
{
    /* Each of eight devices would keep a reserve of the emulator's memory. */
    const carat_model_options o = {
        .device = gpus ? NULL : "cuda", .gpus = gpus, .overcommit = gpus != NULL};
    return carat_model_open(path, &o, m, e);
}

static cuda_device *stage_device(const carat_model *m, int32_t k)
{
    return model_device(m, stage_side(m, k))->self;
}

/* ---- Chunks of a prompt -----------------------------------------------------------------------
 */

#ifdef EMU_CAN_FAIL
typedef struct trace {
    const emu_traced *op;
    size_t n;
    int32_t n_stages;
    int stream[PASS_SIDES_MAX];
    /* Of stage k and chunk i. in: the copy that brings the chunk, [0]: none. Ops from `in` on to
     * the next one are the chunk's, as they are enqueued. */
    size_t in[PASS_SIDES_MAX][CHUNKS];
} trace;

static size_t end_of(const trace *t, int32_t k, int32_t i)
{
    return i + 1 < CHUNKS ? t->in[k][i + 1] : t->n;
}

/* The last launch of chunk i on stage k, or the first one; NULL: none. */
static const emu_traced *launch_of(const trace *t, int32_t k, int32_t i, bool last)
{
    const emu_traced *found = NULL;
    for (size_t at = t->in[k][i]; at < end_of(t, k, i); at++)
        if (t->op[at].stream == t->stream[k] && !t->op[at].to && (last || !found))
            found = &t->op[at];
    return found;
}

/* Copies of whole chunks from each stage to the next. False: another number of them. */
static bool find_crossings(trace *t, size_t n_bytes)
{
    int32_t n[PASS_SIDES_MAX] = {0};
    for (size_t at = 0; at < t->n; at++)
        for (int32_t k = 1; k < t->n_stages; k++)
            if (t->op[at].stream == t->stream[k - 1] && t->op[at].to &&
                t->op[at].n_bytes == n_bytes && n[k]++ < CHUNKS)
                t->in[k][n[k] - 1] = at;
    bool all = true;
    for (int32_t k = 1; k < t->n_stages; k++)
        all &= n[k] == CHUNKS;
    return all;
}

/* How long the pipeline takes if a stage waits for nothing but its own last chunk and the stage
 * before. Chunk i on stage 0 ends with its copy. */
static double ideal(const trace *t)
{
    double end[PASS_SIDES_MAX] = {0}, all = 0;
    for (int32_t i = 0; i < CHUNKS; i++) {
        double before = 0;
        for (int32_t k = 0; k < t->n_stages; k++) {
            size_t from = k ? t->in[k][i] + 1 : i ? t->in[1][i - 1] + 1 : 0;
            size_t to = k ? end_of(t, k, i) : t->in[1][i] + 1;
            double at = end[k] > before ? end[k] : before;
            for (size_t o = from; o < to; o++)
                if (t->op[o].stream == t->stream[k])
                    at += t->op[o].end - t->op[o].begin;
            end[k] = before = at;
            all = at > all ? at : all;
        }
    }
    return all;
}

static void check_trace(rig *g, const char *what, trace *t)
{
    int n_waits = 0, n_early = 0, n_late = 0, n_places = 0;
    double took = 0;
    for (int32_t k = 1; k < t->n_stages; k++)
        for (int32_t i = 0; i < CHUNKS; i++) {
            const emu_traced *in = &t->op[t->in[k][i]];
            const emu_traced *first = launch_of(t, k, i, false);
            n_late += !first || !emu_ends_before(in, first);
            if (i > 0)
                n_waits += emu_ends_before(launch_of(t, k, i - 1, true), in);
            if (i > 1)
                n_early += !emu_ends_before(launch_of(t, k, i - 2, true), in);
            n_places += i > 0 && in->to == t->op[t->in[k][i - 1]].to;
            n_places += i > 1 && in->to != t->op[t->in[k][i - 2]].to;
        }
    for (size_t i = 0; i < t->n; i++)
        took = t->op[i].end > took ? t->op[i].end : took;
    verdict(g, "overlap", text("%s: copies that wait for the chunk before", what), n_waits, 0);
    verdict(g, "overlap", text("%s: copies into what is still read", what), n_early, 0);
    verdict(g, "overlap", text("%s: chunks that do not wait for their copy", what), n_late, 0);
    verdict(g, "overlap", text("%s: chunks without a place of their own", what), n_places, 0);
    verdict(g, "overlap", text("%s: time over that of a pipeline, less 1", what),
            took / ideal(t) - 1, 1e-9);
}

/* The last device is opened first, so stages and streams have different orders. */
static status trace_prompt(rig *g, const char *what, const char *path, const char *gpus,
                           const fidelity *f, err *e)
{
    const carat_session_options so = {
        .n_ctx = (CHUNKS + 1) * CHUNK, .chunk = CHUNK, .checkpoint_mb = -1};
    int32_t ids[CHUNKS * CHUNK];
    carat_model *m = NULL;
    carat_session *s = NULL;
    trace t = {0};
    for (int32_t i = 0; i < CHUNKS * CHUNK; i++)
        ids[i] = (int32_t)rng_below(&g->rng, (uint64_t)f->n_vocab);
    status st = open_parts(path, gpus, &m, e);
    st = st ? st : carat_session_open(m, &so, &s, e);
    for (int i = 0; i < 2 && !st; i++) { /* buffers are made when they are needed */
        carat_reset(s);
        if (i)
            emu_trace_begin(1, 3);
        st = carat_eval(s, ids, CHUNKS * CHUNK, NULL, NULL, e);
    }
    t.op = emu_trace_end(&t.n);
    for (t.n_stages = 0; !st && t.n_stages < m->n_stages; t.n_stages++)
        t.stream[t.n_stages] = emu_stream_number(stage_device(m, t.n_stages)->stream);
    if (!st && find_crossings(&t, (size_t)CHUNK * (size_t)m->core.n_embd * sizeof(float)))
        check_trace(g, what, &t);
    else if (!st)
        st = err_set(e, E_ARG, "%s: not %d chunks", what, CHUNKS);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

/* ---- Sums of ranks ----------------------------------------------------------------------------
 */

enum { RANKS = 3, SUM_CHUNK = 71 /* more than RANK_SUM_ROWS, with slices of unlike sizes */ };

static int32_t traced_rank(const trace *t, const emu_traced *o)
{
    int32_t k = 0;
    while (k < t->n_stages && t->stream[k] != o->stream)
        k++;
    return k < t->n_stages ? k : -1;
}

/* The last op of a rank before `at`, or the first from there on; NULL: none. */
static const emu_traced *op_of(const trace *t, int32_t k, size_t at, bool before)
{
    const emu_traced *found = NULL;
    for (size_t i = before ? 0 : at; i < (before ? at : t->n) && (before || !found); i++)
        if (traced_rank(t, &t->op[i]) == k)
            found = &t->op[i];
    return found;
}

/* Of ranks that read each other's memory. They take turns, so a meeting is where the first goes on
 * behind the last: counts the pairs of ranks of which one goes on before the other has come. Of the
 * first n_most; the head comes behind all, where ranks do not meet. */
static int trace_meetings(const trace *t, int n_most, int *n_meetings)
{
    int n = 0;
    int32_t last = -1;
    for (size_t at = 0; at < t->n && *n_meetings < n_most; at++) {
        const int32_t k = traced_rank(t, &t->op[at]);
        const bool met = k == 0 && last == t->n_stages - 1 && !t->op[at].to; /* no upload */
        last = k < 0 ? last : k;
        *n_meetings += met;
        for (int32_t i = 0; i < t->n_stages * t->n_stages && met; i++) {
            const emu_traced *a = op_of(t, i / t->n_stages, at, true),
                             *b = op_of(t, i % t->n_stages, at, false);
            n += a && b && !emu_ends_before(a, b);
        }
    }
    return n;
}

/* Of others: slices that are copied one after the other in the trace. Counts copies that do not
 * wait for what was there before, or are not waited for; n_serial: that wait for another rank's. */
static int trace_exchanges(const trace *t, const size_t *n_bytes, int *n_exchanges, int *n_serial)
{
    int n = 0;
    for (size_t from = 0, to; from < t->n; from = to + 1) {
        for (to = from; to < t->n && t->op[to].to && traced_rank(t, &t->op[to]) >= 0 &&
                        (t->op[to].n_bytes == n_bytes[0] || t->op[to].n_bytes == n_bytes[1]);)
            to++;
        *n_exchanges += to > from;
        for (size_t i = from; i < to; i++) {
            for (int32_t k = 0; k < t->n_stages; k++) {
                const emu_traced *a = op_of(t, k, from, true), *b = op_of(t, k, to, false);
                n += (a && !emu_ends_before(a, &t->op[i])) || (b && !emu_ends_before(&t->op[i], b));
            }
            for (size_t j = from; j < to; j++)
                *n_serial += t->op[i].stream != t->op[j].stream &&
                             emu_ends_before(&t->op[i], &t->op[j]);
        }
    }
    return n;
}

static status trace_sums(rig *g, const char *path, const fidelity *f, bool reach, err *e)
{
    const carat_model_options mo = {.gpus = "0,0,0", .split = "tensor", .overcommit = true};
    const carat_session_options so = {
        .n_ctx = SUM_CHUNK + 1, .chunk = SUM_CHUNK, .checkpoint_mb = -1};
    int32_t ids[SUM_CHUNK];
    int n_meetings = 0, n_serial = 0, n_wrong = 0;
    carat_model *m = NULL;
    carat_session *s = NULL;
    trace t = {.n_stages = RANKS};
    for (int32_t i = 0; i < SUM_CHUNK; i++)
        ids[i] = (int32_t)rng_below(&g->rng, (uint64_t)f->n_vocab);
    if (!reach)
        setenv("CARAT_PEERS", "off", 1);
    status st = carat_model_open(path, &mo, &m, e);
    st = st ? st : carat_session_open(m, &so, &s, e);
    emu_trace_begin(1, 3);
    st = st ? st : carat_eval(s, ids, SUM_CHUNK, NULL, NULL, e);
    t.op = emu_trace_end(&t.n);
    for (int32_t k = 0; k < RANKS && !st; k++)
        t.stream[k] = emu_stream_number(((cuda_device *)model_device(m, k)->self)->stream);
    const char *how = reach ? "where they lie" : "by copies";
    if (!st) {
        const size_t row = (size_t)m->core.n_embd * sizeof(float), least = SUM_CHUNK / RANKS;
        const size_t n_bytes[] = {least * row, (least + 1) * row};
        /* Two sums a layer, two meetings each. The last sums are of the wanted row. */
        const int n_most = 4 * m->core.n_layer, n_least = n_most - 4;
        n_wrong = reach ? trace_meetings(&t, n_most, &n_meetings)
                        : trace_exchanges(&t, n_bytes, &n_meetings, &n_serial);
        verdict(g, "overlap sums", text("%s: meetings fewer than %d", how, n_least),
                n_meetings < n_least, 0);
        verdict(g, "overlap sums", text("%s: waits that are missing", how), n_wrong, 0);
        verdict(g, "overlap sums", text("%s: copies that wait for others", how), n_serial, 0);
    }
    carat_session_close(s);
    carat_model_close(m);
    unsetenv("CARAT_PEERS");
    return st;
}
#endif

/* ---- Recordings -------------------------------------------------------------------------------
 */

/* The scratch of the last stage moves while the model answers. What was recorded on other stages
 * copies to where it was. Nothing is freed, so nothing else drops recordings. */
static status move_scratch(rig *g, const char *path, const fidelity *f, err *e)
{
    const carat_session_options so = {.n_ctx = 64, .chunk = 16, .checkpoint_mb = -1};
    size_t n_bytes = (size_t)f->n_vocab * sizeof(float);
    float *x = mem_alloc(2 * n_bytes), *y = x + f->n_vocab;
    carat_model *m[2] = {NULL, NULL};
    carat_session *s[2] = {NULL, NULL};
    double differ = 0;
    void *old = NULL;
    status st = x ? OK : err_memory(e, "a check", 2 * n_bytes);
    for (int i = 0; i < 2 && !st; i++) {
        st = open_parts(path, i ? "0,0,0" : NULL, &m[i], e);
        st = st ? st : carat_session_open(m[i], &so, &s[i], e);
        st = st ? st : carat_eval(s[i], f->tokens, 16, i ? y : x, NULL, e);
    }
    for (int32_t k = 0; k < 2 * STEPS && !st; k++) {
        if (k == STEPS) {
            device *d = m[1]->dev;
            old = s[1]->b.w.scratch[PASS_MAIN].at;
            void *moved = d->alloc(d, s[1]->b.w.scratch[PASS_MAIN].n_bytes);
            st = moved ? OK : err_memory(e, "a check", s[1]->b.w.scratch[PASS_MAIN].n_bytes);
            s[1]->b.w.scratch[PASS_MAIN].at = moved ? moved : old;
        }
        for (int i = 0; i < 2 && !st; i++)
            st = carat_append(s[i], f->tokens + 16 + k, 1, false, i ? y : x, e);
        differ += !st && memcmp(x, y, n_bytes);
    }
    if (old)
        m[1]->dev->release(m[1]->dev, old, s[1]->b.w.scratch[PASS_MAIN].n_bytes);
    for (int i = 0; i < 2; i++) {
        carat_session_close(s[i]);
        carat_model_close(m[i]);
    }
    mem_free(x);
    if (!st)
        verdict(g, "overlap", "passes that differ after scratch moved", differ, 0);
    return st;
}

/* Recorded legs of passes that score pages. */
static int watched_legs(const carat_model *m, int32_t k)
{
    const cuda_device *c = stage_device(m, k);
    int n = 0;
    for (int i = 0; i < GRAPHS; i++)
        n += c->graphs[i].exec && c->graphs[i].key.watch.sums;
    return n;
}

/* The emulator would take minutes for it. What it gives needs the model. */
static status prompt_on_cpu(const char *path, const int32_t *ids, carat_model **m,
                            kv_snapshot **out, err *e)
{
    const carat_model_options mo = {.device = "cpu"};
    const carat_session_options so = {
        .n_ctx = POOL_CTX, .checkpoint_mb = -1, .kv_k = "f32", .kv_single = "off"};
    carat_session *s = NULL;
    status st = carat_model_open(path, &mo, m, e);
    st = st ? st : carat_session_open(*m, &so, &s, e);
    st = st ? st : carat_eval(s, ids, WATCHED, NULL, NULL, e);
    st = st ? st : timeline_snapshot(session_timeline(s), out, e);
    carat_session_close(s);
    return st;
}

static status record_watches(rig *g, const char *path, const fidelity *f, err *e)
{
    const carat_session_options so = {.n_ctx = POOL_CTX,
                                      .chunk = 64,
                                      .checkpoint_mb = -1,
                                      .kv_k = "f32",
                                      .kv_single = "off",
                                      .kv_resident = POOL,
                                      .kv_policy = "scored",
                                      .kv_tau = TAU};
    size_t n_bytes = (size_t)f->n_vocab * sizeof(float);
    int32_t *ids = mem_alloc((WATCHED + 4 * STEPS) * sizeof *ids);
    float *x = mem_alloc(2 * n_bytes), *y = x + f->n_vocab;
    carat_model *m[2] = {NULL, NULL}, *cpu = NULL;
    carat_session *s[2] = {NULL, NULL};
    kv_snapshot *prompt = NULL;
    double differ = 0;
    status st = x && ids ? OK : err_memory(e, "a check", 2 * n_bytes);
    for (int32_t i = 0; i < WATCHED + 4 * STEPS && !st; i++)
        ids[i] = (int32_t)rng_below(&g->rng, (uint64_t)f->n_vocab);
    st = st ? st : prompt_on_cpu(path, ids, &cpu, &prompt, e);
    for (int i = 0; i < 2 && !st; i++) {
        st = open_parts(path, i ? "0,0" : NULL, &m[i], e);
        st = st ? st : carat_session_open(m[i], &so, &s[i], e);
        st = st ? st : timeline_restore(session_timeline(s[i]), prompt, e);
    }
    for (int32_t k = 0; k < 4 * STEPS && !st; k++) {
        for (int i = 0; i < 2 && !st; i++)
            st = carat_append(s[i], ids + WATCHED + k, 1, false, i ? y : x, e);
        differ += !st && memcmp(x, y, n_bytes);
    }
    if (!st) {
        verdict(g, "overlap", "passes that score pages and differ", differ, 0);
        for (int32_t k = 0; k < 2; k++)
            verdict(g, "overlap", text("stage %d records no pass that scores pages", k),
                    watched_legs(m[1], k) == 0, 0);
    }
    for (int i = 0; i < 2; i++) {
        carat_session_close(s[i]);
        carat_model_close(m[i]);
    }
    if (prompt)
        kv_snapshot_drop(prompt);
    carat_model_close(cpu);
    mem_free(ids);
    mem_free(x);
    return st;
}

void check_overlap(rig *g)
{
    static const char *const names[] = {"dense", "qwen35", "qwen3"};
    for (int i = 0; i < 3; i++) { /* --brief leaves the last one out, which takes minutes there */
        fidelity f;
        err e = {0};
        status st = OK;
        if (!my_turn(g, "overlap"))
            continue;
        fidelity_open(&f, names[i]);
        const char *path = fidelity_write(&f, NULL);
#ifdef EMU_CAN_FAIL
        const char *gpus = i == 1 ? "0,0,0,0,0,0,0,0" : i ? "0,0" : "0,0,0";
        char what[64];
        snprintf(what, sizeof what, "%s on %s", names[i], gpus);
        st = trace_prompt(g, what, path, gpus, &f, &e);
#endif
        if (i == 0 && !st)
            st = move_scratch(g, path, &f, &e);
        if (i == 2 && !st)
            st = record_watches(g, path, &f, &e);
        if (st)
            failed(g, "overlap", e.text);
        unlink(path);
        fidelity_close(&f);
    }
#ifdef EMU_CAN_FAIL
    for (int reach = 0; reach < 2; reach++) {
        fidelity f;
        err e = {0};
        if (!my_turn(g, "overlap sums"))
            continue;
        fidelity_open(&f, names[0]);
        const char *path = fidelity_write(&f, NULL);
        if (trace_sums(g, path, &f, reach, &e))
            failed(g, "overlap sums", e.text);
        unlink(path);
        fidelity_close(&f);
    }
#endif
}
