/* taps_test.c - taps copy the stream after any layer, of every row, and the input of the head, of
 * the wanted rows. The copies are bit-identical for every composition of passes, on one device or
 * two. Rows are computed up to the last layer that a tap or a wanted row needs, no further.
 */
#include "tests/kv_rig.h"
#include "tests/test.h"
#include "base/mem.h"

enum { LAYERS = 6, EMBD = 64, N = 40, CHUNK = 10, LAST_OWNER = 3 };

/* The rows after each layer and, last, the norm's: [LAYERS + 1][N][EMBD]. */
typedef float streams[LAYERS + 1][N][EMBD];

typedef struct tapped {
    rig r;
    device *host; /* of a divided model; NULL */
    void *host_scratch;
    size_t host_bytes;
    pass_taps taps;
    float buffer[LAYERS + 1][CHUNK][EMBD]; /* what the taps fill */
    float logits[CHUNK * RIG_VOCAB];
} tapped;

static void tap(tapped *t, int32_t il, int8_t side)
{
    int32_t slot = il == PASS_TAP_NORM ? LAYERS : il;
    mat to = mat_at(t->buffer[slot][0], CHUNK, 1, EMBD, EMBD);
    t->taps.at[t->taps.n++] = (pass_tap_point){il, side, to};
}

/* n_host: layers on a second device. */
static void open_tapped(tapped *t, int32_t n_host)
{
    rig *r = &t->r;
    gguf g;
    err e = {0};
    *t = (tapped){0};
    CHECK_OK(gguf_open(&g, rig_model(), false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(&r->m, &g, &e), e);
    CHECK_OK(device_open_cpu(&r->dev, &(cpu_options){.n_threads = 1}, &e), e);
    if (n_host) {
        CHECK_OK(device_open_cpu(&t->host, &(cpu_options){.n_threads = 1}, &e), e);
        int8_t side[LAYERS] = {0};
        memset(side, 1, (size_t)n_host);
        CHECK_OK(model_place(&r->m, &t->host, 1, side, side, &e), e);
    }
    CHECK_OK(model_load(&r->m, r->dev, NULL, NULL, &e), e);
    const kv_want_layout w = {.spec = r->m.kv,
                              .n = r->m.n_kv,
                              .choice = {.k = {.type = NUM_F32}, .v = {.type = NUM_F32}},
                              .n_ctx = N,
                              .rows_max = CHUNK,
                              .dev = {r->dev, t->host}};
    CHECK_OK(kv_layout_init(&r->l, &w, &e), e);
    CHECK_OK(kv_open(&r->c, r->dev, &r->l, &e), e);
    CHECK_OK(kv_batch_init(&r->b, CHUNK, 1, &r->l, &e), e);
}

static void free_scratch(tapped *t)
{
    if (t->r.scratch)
        t->r.dev->release(t->r.dev, t->r.scratch, t->r.scratch_bytes);
    if (t->host_scratch)
        t->host->release(t->host, t->host_scratch, t->host_bytes);
    t->r.scratch = t->host_scratch = NULL;
}

static void close_tapped(tapped *t)
{
    rig *r = &t->r;
    free_scratch(t);
    kv_batch_free(&r->b);
    kv_close(&r->c);
    kv_layout_free(&r->l);
    model_free(&r->m);
    device_close(r->dev);
    device_close(t->host);
}

/* Exactly the scratch that was planned for this pass. */
static void take_scratch(tapped *t, int32_t rows, int32_t outs)
{
    model_costs costs;
    err e = {0};
    free_scratch(t);
    CHECK_OK(model_plan(&t->r.m, t->r.dev, &t->r.l, rows, outs, &t->taps, &costs, &e), e);
    t->r.scratch_bytes = costs.side[PASS_MAIN].scratch_bytes;
    t->r.scratch = t->r.dev->alloc(t->r.dev, t->r.scratch_bytes);
    t->host_bytes = costs.side[1].scratch_bytes;
    if (t->host)
        t->host_scratch = t->host->alloc(t->host, t->host_bytes);
}

static void run_tapped(tapped *t, const int32_t *ids, int32_t n, kv_want want)
{
    rig *r = &t->r;
    pass p;
    err e = {0};
    kv_batch_clear(&r->b);
    CHECK_OK(kv_reserve(&r->c, n, &e), e);
    CHECK_OK(kv_batch_add(&r->b, &r->c, ids, n, NULL, want, &e), e);
    take_scratch(t, n, r->b.st.out.n);
    pass_begin(&p, r->dev, &r->b.st, r->scratch, r->scratch_bytes);
    p.taps = &t->taps;
    if (t->host)
        pass_add_side(&p, t->host, t->host_scratch, t->host_bytes);
    mat y = model_forward(&p, &r->m, &r->l);
    CHECK_OK(p.e.status, p.e);
    for (int32_t i = 0; i < r->b.st.out.n; i++)
        memcpy(t->logits + (size_t)i * RIG_VOCAB, mat_row(y, i), RIG_VOCAB * sizeof *t->logits);
    kv_commit(&r->c, n);
}

static void token_by_token(streams *s, float *logits, const int32_t *ids)
{
    tapped t;
    open_tapped(&t, 0);
    for (int32_t il = PASS_TAP_NORM; il < LAYERS; il++)
        tap(&t, il, PASS_MAIN);
    for (int32_t i = 0; i < N; i++) {
        run_tapped(&t, ids + i, 1, KV_WANT_LAST);
        for (int32_t k = 0; k <= LAYERS; k++)
            memcpy((*s)[k][i], t.buffer[k][0], sizeof t.buffer[k][0]);
        memcpy(logits + (size_t)i * RIG_VOCAB, t.logits, RIG_VOCAB * sizeof *logits);
    }
    close_tapped(&t);
}

typedef struct oracle {
    int32_t ids[N];
    streams s;
    float logits[N * RIG_VOCAB];
} oracle;

static oracle *oracle_open(void)
{
    uint64_t rng = test_seed();
    oracle *o = mem_calloc(1, sizeof *o);
    CHECK(o);
    rig_draw(o->ids, N, &rng);
    token_by_token(&o->s, o->logits, o->ids);
    return o;
}

/* Compares the taps of a pass at `at` with token by token. */
static void same_streams(const tapped *t, const oracle *o, int32_t at, int32_t n, int32_t wanted)
{
    for (int i = 0; i < t->taps.n; i++) {
        int32_t il = t->taps.at[i].il, slot = il == PASS_TAP_NORM ? LAYERS : il;
        int32_t rows = il == PASS_TAP_NORM ? wanted : n;
        CHECK_MSG(!memcmp(t->buffer[slot], o->s[slot][at + n - rows],
                          (size_t)rows * sizeof t->buffer[0][0]),
                  "layer %d, %d rows at %d", il, rows, at);
    }
    CHECK(!memcmp(t->logits, o->logits + (size_t)(at + n - wanted) * RIG_VOCAB,
                  (size_t)wanted * RIG_VOCAB * sizeof *t->logits));
}

static void go_through(tapped *t, const oracle *o)
{
    static const kv_want wants[] = {KV_WANT_NONE, KV_WANT_LAST, KV_WANT_ALL};
    static const int32_t n_wanted[] = {0, 1, CHUNK};
    for (int32_t at = 0, i = 0; at < N; at += CHUNK, i++) {
        run_tapped(t, o->ids + at, CHUNK, wants[i % 3]);
        same_streams(t, o, at, CHUNK, n_wanted[i % 3]);
    }
}

PLAIN_TEST(taps_have_the_rows_of_every_layer)
{
    AUTO_MEM oracle *o = oracle_open();
    for (int32_t il = PASS_TAP_NORM; il < LAYERS; il++) { /* each alone, and all of them */
        tapped t;
        open_tapped(&t, 0);
        tap(&t, il, PASS_MAIN);
        go_through(&t, o);
        close_tapped(&t);
    }
    tapped t;
    open_tapped(&t, 0);
    for (int32_t il = PASS_TAP_NORM; il < LAYERS; il++)
        tap(&t, il, PASS_MAIN);
    go_through(&t, o);
    close_tapped(&t);
}

TEST(taps_of_a_model_on_two_devices)
{
    AUTO_MEM oracle *o = oracle_open();
    for (int i = 0; i < 4; i++) {
        int8_t side = (int8_t)(i % 2);
        tapped t;
        open_tapped(&t, 2);
        t.r.dev->host_memory = t.host->host_memory = i < 2; /* else copies are staged */
        for (int32_t il = PASS_TAP_NORM; il < LAYERS; il++)
            tap(&t, il, side); /* layers on both devices, copies on one */
        go_through(&t, o);
        close_tapped(&t);
    }
}

/* The number of rows of each layer's attention in the last pass. */
static struct {
    const device_ops *usual;
    device_ops ops;
    int32_t rows[LAYERS];
} counted;

static void count_rows(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    if (!p->dry)
        counted.rows[p->il] = q.rows;
    counted.usual->attend(p, o, q, kv, scale);
}

PLAIN_TEST(taps_end_where_nobody_reads_further)
{
    AUTO_MEM oracle *o = oracle_open();
    for (int32_t last = PASS_TAP_NORM; last < LAYERS; last++) {
        tapped t;
        open_tapped(&t, 0);
        counted.usual = t.r.dev->op;
        counted.ops = *counted.usual;
        counted.ops.attend = count_rows;
        t.r.dev->op = &counted.ops;
        tap(&t, last, PASS_MAIN);
        run_tapped(&t, o->ids, CHUNK, KV_WANT_LAST);
        for (int32_t il = 0; il < LAYERS; il++)
            CHECK_EQ(counted.rows[il], il < LAST_OWNER || il <= last ? CHUNK : 1);
        t.r.dev->op = counted.usual;
        close_tapped(&t);
    }
}
