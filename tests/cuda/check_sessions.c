/* check_sessions.c - the engine's uses of caches on the CUDA device: snapshots loaded into another
 * ring, rows of several timelines in one pass, passes replayed from a recording, models divided
 * between GPU and CPU. All but the last must continue bit for bit, token by token, like an
 * untouched timeline.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "backend/cuda/attend/launch_skip.h"
#include "backend/sparse.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "kv/snapshot.h"
#include "model/model.h"
#include "tests/fidelity_model.h"
#include "tests/rig_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 3 };

/* Caches of one layout, and what their passes need. */
typedef struct top {
    rig *g;
    cpu_part division; /* to be set before top_open, as the next two */
    bool one_stream;   /* of K=V layers */
    device *second;    /* has that part instead of the CPU. Owned */
    void *second_scratch;
    model m;
    kv_layout l;
    kv_cache c[LINES];
    kv_batch b;
    float *logits;           /* [LINES, n_vocab] of the last pass */
    const sparse_rule *rule; /* [LINES]; NULL: attention is exact */
} top;

static status top_divide(top *t, err *e)
{
    enum { MOST = 64 };
    int8_t layer[MOST] = {0}, expert[MOST];
    if (t->m.n_layer > MOST)
        return err_set(e, E_LIMIT, "a check of at most %d layers", MOST);
    memset(layer, 1, (size_t)t->division.n_layers);
    memcpy(expert, layer, sizeof expert);
    if (t->division.experts)
        memset(expert, 1, sizeof expert);
    return model_place(&t->m, t->second ? &t->second : &t->g->ref, 1, layer, expert, e);
}

/* A second device on the GPU has the first layer. */
static status top_share(top *t, err *e)
{
    status st = device_open_cuda(&t->second, NULL, e);
    t->division.n_layers = 1;
    if (!st && !(t->second_scratch = t->second->alloc(t->second, t->g->scratch_bytes)))
        st = err_memory(e, "scratch", t->g->scratch_bytes);
    return st;
}

static status top_open(top *t, const char *path, num_type type, int32_t n_ctx, int32_t rows_max,
                       err *e)
{
    gguf file = {0};
    kv_want_layout want = {.choice = {.k = {type, false},
                                      .v = {type, false},
                                      .single = t->one_stream ? KV_SINGLE_ON : KV_SINGLE_OFF},
                           .n_ctx = n_ctx,
                           .rows_max = rows_max,
                           .dev = {t->g->gpu}};
    status st;
    bool divided = t->division.n_layers || t->division.experts;
    if ((st = gguf_open(&file, path, true, NULL, NULL, e)) || (st = model_bind(&t->m, &file, e)) ||
        (divided && (st = top_divide(t, e))) || (st = model_load(&t->m, t->g->gpu, NULL, NULL, e)))
        return st;
    want.dev[1] = t->m.dev[1];
    want.spec = t->m.kv;
    want.n = t->m.n_kv;
    if ((st = kv_layout_init(&t->l, &want, e)) ||
        (st = kv_batch_init(&t->b, rows_max, LINES, &t->l, e)))
        return st;
    for (int i = 0; i < LINES && !st; i++)
        st = kv_open(&t->c[i], t->g->gpu, &t->l, e);
    t->logits = mem_calloc(LINES * (size_t)t->m.n_vocab, sizeof *t->logits);
    return st ? st : t->logits ? OK : err_memory(e, "logits", 0);
}

static void top_close(top *t)
{
    mem_free(t->logits);
    for (int i = 0; i < LINES; i++)
        if (t->c[i].layout)
            kv_close(&t->c[i]);
    kv_batch_free(&t->b);
    kv_layout_free(&t->l);
    model_free(&t->m);
    if (t->second)
        t->second->release(t->second, t->second_scratch, t->g->scratch_bytes);
    device_close(t->second);
}

/* One pass with n rows of each of the first n_lines timelines; logits of the last row of each. */
static status step_all(top *t, kv_cache *const *c, int n_lines, const int32_t *const *ids,
                       int32_t n, err *e)
{
    pass p;
    status st;
    kv_batch_clear(&t->b);
    for (int i = 0; i < n_lines; i++)
        if ((st = kv_reserve(c[i], n, e)) ||
            (st = kv_batch_add(&t->b, c[i], ids[i] + c[i]->n_past, n, NULL, KV_WANT_LAST, e)))
            return st;
    for (int i = 0; i < n_lines && t->rule; i++) {
        t->b.sparse[i] = t->rule[c[i] - t->c];
        t->b.st.sparse = t->b.sparse;
    }
    t->b.st.prompt = of_prompt(n);
    pass_begin(&p, t->g->gpu, &t->b.st, t->g->gpu_scratch, t->g->scratch_bytes);
    if (t->m.n_sides > 1)
        pass_add_side(&p, t->m.dev[1], t->second ? t->second_scratch : t->g->ref_scratch,
                      t->g->scratch_bytes);
    mat y = model_forward(&p, &t->m, &t->l);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    t->g->gpu->download(t->g->gpu, t->logits, y.at,
                        (size_t)n_lines * (size_t)t->m.n_vocab * sizeof *t->logits);
    for (int i = 0; i < n_lines; i++)
        kv_commit(c[i], n);
    return OK;
}

static status step_one(top *t, kv_cache *c, const int32_t *ids, int64_t upto, err *e)
{
    status st = OK;
    while (c->n_past < upto && !st)
        st = step_all(t, &c, 1, &ids, 1, e);
    return st;
}

/* Saves line 0 of a at n, loads it into line 0 of b, which held something else; runs 12 more tokens
 * in both. Returns the number of logits that differ; -1: failed. */
static double snapshot_at(top *a, top *b, const int32_t *ids, const int32_t *other, int64_t n,
                          err *e)
{
    kv_snapshot *k = NULL;
    size_t n_bytes = (size_t)a->m.n_vocab * sizeof *a->logits;
    double differ = 0;
    kv_reset(&a->c[0]);
    kv_reset(&b->c[0]);
    if (step_one(a, &a->c[0], ids, n, e) || step_one(b, &b->c[0], other, n + 9, e) ||
        kv_snapshot_new(&(kv_snapshot_want){.layout = &a->l, .ids = ids, .n = n}, &k, e))
        return -1;
    kv_snapshot_fill(k, &a->c[0]);
    if (!kv_snapshot_fits(k, &b->l) || kv_snapshot_load(k, &b->c[0], e))
        differ = -1;
    for (int i = 1; i <= 12 && differ >= 0; i++) {
        if (step_one(a, &a->c[0], ids, n + i, e) || step_one(b, &b->c[0], ids, n + i, e))
            differ = -1;
        else
            differ += memcmp(a->logits, b->logits, n_bytes) != 0;
    }
    kv_snapshot_drop(k);
    return differ;
}

static void check_snapshots(rig *g, const char *path, const fidelity *f, num_type type)
{
    const int64_t at[] = {1, f->window - 1, f->window, f->window + 1, 3 * f->window + 2};
    top a = {.g = g}, b = {.g = g};
    int32_t other[512];
    err e = {0};
    for (int i = 0; i < 512; i++)
        other[i] = f->tokens[(i * 7 + 3) % f->n_tokens];
    if (top_open(&a, path, type, f->n_tokens, 1, &e) ||
        top_open(&b, path, type, f->n_tokens + 5, 9, &e)) {
        failed(g, "snapshot", e.text);
    } else {
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            char shape[64];
            if (at[i] < 1 || at[i] + 13 > f->n_tokens)
                continue;
            snprintf(shape, sizeof shape, "%s at %lld: passes that differ", num_name(type),
                     (long long)at[i]);
            double differ = snapshot_at(&a, &b, f->tokens, other, at[i], &e);
            if (differ < 0)
                failed(g, "snapshot", e.text);
            else
                verdict(g, "snapshot", shape, differ, 0);
        }
    }
    top_close(&a);
    top_close(&b);
}

/* Three timelines at different positions, a row of each in one pass, against each alone. */
static void check_lines(rig *g, const char *path, const fidelity *f)
{
    static const int64_t start[LINES] = {1, 17, 40};
    top a = {.g = g}, b = {.g = g};
    err e = {0};
    size_t n_vocab;
    double differ = 0;
    status st;
    if ((st = top_open(&a, path, NUM_F16, f->n_tokens, LINES, &e)) ||
        (st = top_open(&b, path, NUM_F16, f->n_tokens, LINES, &e)))
        goto out;
    n_vocab = (size_t)a.m.n_vocab;
    kv_cache *c[LINES];
    const int32_t *ids[LINES];
    for (int i = 0; i < LINES; i++) {
        c[i] = &a.c[i];
        ids[i] = f->tokens + i; /* other texts, too */
        if ((st = step_one(&a, &a.c[i], ids[i], start[i], &e)) ||
            (st = step_one(&b, &b.c[i], ids[i], start[i], &e)))
            goto out;
    }
    for (int k = 1; k <= 12; k++) {
        if ((st = step_all(&a, c, LINES, ids, 1, &e)))
            goto out;
        for (int i = 0; i < LINES; i++) {
            if ((st = step_one(&b, &b.c[i], ids[i], start[i] + k, &e)))
                goto out;
            differ +=
                memcmp(a.logits + (size_t)i * n_vocab, b.logits, n_vocab * sizeof(float)) != 0;
        }
    }
    verdict(g, "timelines", "three in one pass and alone: rows that differ", differ, 0);
out:
    if (st)
        failed(g, "timelines", e.text);
    top_close(&a);
    top_close(&b);
}

/* ---- Recorded passes ------------------------------------------------------------------------ */

static int n_recordings_of(const device *d)
{
    const cuda_device *c = d->self;
    int n = 0;
    for (int i = 0; i < GRAPHS; i++)
        n += c->graphs[i].exec != NULL;
    return n;
}

/* Of the device with the fewest. */
static int n_recordings(const top *t)
{
    int n = n_recordings_of(t->g->gpu), other = t->second ? n_recordings_of(t->second) : n;
    return n < other ? n : other;
}

/* Two timelines in turn, in passes of `rows` rows, with recording and replay or without: the logits
 * of every pass, one after the other. */
static status run_turns(top *t, const int32_t *const *ids, int32_t rows, int n_passes, bool plainly,
                        float *out, err *e)
{
    cuda_device *c = t->g->gpu->self, *other = t->second ? t->second->self : c;
    size_t width = (size_t)t->m.n_vocab;
    bool was = c->no_graphs;
    status st = OK;
    kv_reset(&t->c[0]);
    kv_reset(&t->c[1]);
    c->no_graphs = other->no_graphs = plainly || was;
    for (int i = 0; i < 2 * n_passes && !st; i++) {
        kv_cache *line = &t->c[i % 2];
        if (t->second && !plainly && i == n_passes) /* the other replays on */
            cuda_graphs_drop(c);
        st = step_all(t, &line, 1, &ids[i % 2], rows, e);
        memcpy(out + (size_t)i * width, t->logits, width * sizeof *out);
    }
    if (plainly)
        c->no_graphs = other->no_graphs = was;
    return st;
}

/* Whether some layer's values are its raw keys: the published E2B computes values of their own. */
static bool has_one_stream(const char *name)
{
    return strcmp(name, "e2b") != 0;
}

/* A replayed pass is bit-identical to a computed one, whichever timeline was recorded. */
static void check_replays(rig *g, const char *path, const fidelity *f, const char *what,
                          bool one_stream, bool shared)
{
    static const int32_t rows[] = {1, 2, 7};
    cuda_device *c = g->gpu->self;
    const int32_t *ids[2] = {f->tokens, f->tokens + 3};
    top t = {.g = g, .one_stream = one_stream};
    err e = {0};
    if ((shared && top_share(&t, &e)) || top_open(&t, path, NUM_F16, f->n_tokens, 8, &e)) {
        failed(g, "replay", e.text);
        top_close(&t);
        return;
    }
    for (int i = 0; i < 3; i++) {
        char shape[128];
        int n = (f->n_tokens - 4) / rows[i] < 12 ? (f->n_tokens - 4) / rows[i] : 12;
        size_t size = 2 * (size_t)n * (size_t)t.m.n_vocab;
        float *a = mem_calloc(size, sizeof *a), *b = mem_calloc(size, sizeof *b);
        if (!a || !b || run_turns(&t, ids, rows[i], n, false, a, &e)) {
            failed(g, "replay", e.text);
        } else if (c->no_graphs) {
            printf("      replay: this runtime records nothing\n");
        } else if (run_turns(&t, ids, rows[i], n, true, b, &e)) {
            failed(g, "replay", e.text);
        } else {
            snprintf(shape, sizeof shape, "%s%s%s, %d rows: logits that differ", what,
                     one_stream ? " one" : "", shared ? ", two devices" : "", rows[i]);
            verdict(g, "replay", shape,
                    n_recordings(&t) ? memcmp(a, b, size * sizeof *a) != 0 : NAN, 0);
        }
        mem_free(a);
        mem_free(b);
    }
    top_close(&t);
}

/* The same of answers that drop tiles: what each timeline's account says is compared too. */
static void check_skip_replays(rig *g)
{
    enum { ROWS = 7, PASSES = 26, TOKENS = ROWS * PASSES + 3, LAYERS = 16 };
    static sparse_stats stats[2][LINES][LAYERS];
    cuda_device *c = g->gpu->self;
    int32_t tokens[TOKENS];
    const int32_t *ids[2] = {tokens, tokens + 3};
    float *out[2] = {NULL};
    uint64_t n_dropped = 0;
    top t = {.g = g};
    err e = {0};
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (i * 7919 + 13) % (RIG_VOCAB - 3);
    c->skip_least = 1;
    status st = top_open(&t, rig_model_of(128, 256, 4), NUM_F16, TOKENS, 8, &e);
    size_t size = 2 * PASSES * (size_t)t.m.n_vocab;
    for (int plainly = 0; plainly < 2 && !st; plainly++) {
        sparse_rule rule[LINES];
        for (int i = 0; i < LINES; i++)
            rule[i] = (sparse_rule){.skip = 60, .stats = stats[plainly][i]};
        t.rule = rule;
        out[plainly] = mem_calloc(size, sizeof *out[0]);
        st = run_turns(&t, ids, ROWS, PASSES, plainly, out[plainly], &e);
    }
    for (int il = 0; il < LAYERS; il++)
        n_dropped += stats[1][0][il].n_tiles - stats[1][0][il].n_kept;
    if (st) {
        failed(g, "replay", e.text);
    } else {
        verdict(g, "replay", "tiles dropped: logits that differ",
                n_recordings(&t) && n_dropped ? memcmp(out[0], out[1], size * sizeof *out[0]) != 0
                                              : NAN,
                0);
        verdict(g, "replay", "tiles dropped: accounts that differ",
                memcmp(stats[0], stats[1], sizeof stats[0]) != 0, 0);
    }
    c->skip_least = SKIP_LEAST;
    mem_free(out[0]);
    mem_free(out[1]);
    top_close(&t);
}

static void check_all_replays(rig *g)
{
    static const char *const names[] = {"all", "e2b", "moe"};
    static const num_type types[] = {NUM_F32, NUM_Q8_0, NUM_Q4_0};
    check_skip_replays(g);
    for (int i = 0; i < 3; i++) {
        fidelity f;
        char what[64];
        const char *const *known = fidelity_names;
        while (*known && strcmp(*known, names[i]))
            known++;
        if (!*known)
            continue;
        fidelity_open(&f, names[i]);
        const char *path = fidelity_write(&f, &(fidelity_file){.type = types[i]});
        snprintf(what, sizeof what, "%s of %s", names[i], num_name(types[i]));
        check_replays(g, path, &f, what, false, false);
        check_replays(g, path, &f, what, false, true);
        if (has_one_stream(names[i]))
            check_replays(g, path, &f, what, true, false);
        unlink(path);
        fidelity_close(&f);
    }
}

/* ---- Divided models -------------------------------------------------------------------------- */

/* The last logits of every pass, against those of the transformers package. */
static void check_division(rig *g, const char *path, const fidelity *f, cpu_part d, bool one_stream)
{
    top t = {.g = g, .division = d, .one_stream = one_stream};
    kv_cache *line = &t.c[0];
    const int32_t *ids = f->tokens;
    err e = {0};
    char shape[64];
    double top_diff = 0;
    status st = top_open(&t, path, NUM_F32, f->n_tokens, 8, &e);
    while (!st && line->n_past < f->n_tokens) {
        int64_t left = f->n_tokens - line->n_past;
        if ((st = step_all(&t, &line, 1, &ids, left < 8 ? (int32_t)left : 8, &e)))
            break;
        const float *want = f->logits + (size_t)(line->n_past - 1) * (size_t)f->n_vocab;
        for (int32_t i = 0; i < f->n_vocab; i++)
            if (t.logits[i] != want[i] && !(fabs((double)t.logits[i] - want[i]) <= top_diff))
                top_diff = fabs((double)t.logits[i] - want[i]);
    }
    snprintf(shape, sizeof shape, "%s%s: %d layers%s on the CPU, max", f->name,
             one_stream ? " one" : "", d.n_layers, d.experts ? " and experts" : "");
    if (st)
        failed(g, "divided", e.text);
    else
        verdict(g, "divided", shape, top_diff, 1e-3);
    top_close(&t);
}

static void check_divisions(rig *g)
{
    static const char *const names[] = {"all", "e2b", "moe", "dense"};
    for (int i = 0; i < 4; i++) {
        fidelity f;
        fidelity_open(&f, names[i]);
        const char *path = fidelity_write(&f, NULL);
        check_division(g, path, &f, (cpu_part){.n_layers = 1}, false);
        if (has_one_stream(names[i]))
            check_division(g, path, &f, (cpu_part){.n_layers = 1}, true);
        if (!strcmp(names[i], "all") || !strcmp(names[i], "moe")) {
            check_division(g, path, &f, (cpu_part){.experts = true}, true);
            check_division(g, path, &f, (cpu_part){.n_layers = 1, .experts = true}, false);
        }
        unlink(path);
        fidelity_close(&f);
    }
}

void check_sessions(rig *g)
{
    if (my_turn(g, "divided"))
        check_divisions(g);
    if (my_turn(g, "replay"))
        check_all_replays(g);
    static const num_type types[] = {NUM_F16, NUM_BF16, NUM_F32}; /* blocks: check_caches.c */
    fidelity f;
    if (!wanted(g, "snapshot") && !wanted(g, "timelines"))
        return;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, NULL);
    if (my_turn(g, "snapshot"))
        for (int i = 0; i < 3; i++)
            check_snapshots(g, path, &f, types[i]);
    if (my_turn(g, "timelines"))
        check_lines(g, path, &f);
    unlink(path);
    fidelity_close(&f);
}
