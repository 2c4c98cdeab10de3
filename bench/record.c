/* record.c - what sessions and batches compute, as text: two builds that write the same lines
 * answer alike, bit for bit. tools/engine_oracle.sh runs it over many models.
 *
 *     build/bench_record MODEL.gguf [DRAFTER [DEVICES]]
 *
 * Each line is the result of a call or a job: its status and sentence, counts, and a hash of its
 * logits, values or events. Sessions and batches are opened with several chunks, drafts, sparse
 * attention and pools. Nothing depends on time: drafts have fixed lengths, and no pass is cut. It
 * takes the public headers alone, so that it compiles beside the library of another build.
 */
#include "carat.h"
#include "carat_bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 2048, VECTOR_MAX = 8192, KINDS = 9, JOBS = 12 };
/* How answers are drafted. */
typedef enum drafting { CHAINS, TREES, NO_DRAFTS } drafting;

typedef struct recorder {
    carat_model *m;
    int32_t n_vocab, n_embd;
    bool encoder;
    drafting drafts;
} recorder;

typedef struct heard {
    uint64_t hash;
    int n, n_prefills, n_done;
    int cancel_at, refuse_at; /* at this token; 0: never */
    carat_session *s;         /* one of both, to cancel */
    carat_batch *b;
    int64_t id;
    float *vector; /* [n_vector] of a job without events */
    size_t n_vector;
    carat_status st;
    carat_timings t;
    carat_error e;
} heard;

static const uint64_t empty = 1469598103934665603u; /* FNV-1a */

static uint64_t mix(uint64_t hash, const void *at, size_t n)
{
    for (const unsigned char *c = at; n; n--)
        hash = (hash ^ *c++) * 1099511628211u;
    return hash;
}

static const char *sentence(carat_status st, const carat_error *e)
{
    return st ? e->text : "";
}

static void must_have(const void *p)
{
    if (p)
        return;
    fprintf(stderr, "bench_record: no memory\n");
    exit(1);
}

/* ---- Questions ---------------------------------------------------------------------------- */

static uint32_t next_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* The second half of a longer one repeats much of the first, for lookup. */
static void draw(const recorder *r, int32_t *ids, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = 20 + (int32_t)(next_number(&seed) % ((uint32_t)r->n_vocab - 20));
    for (int i = n / 2; i < n && n > 60; i++)
        if (i % 40 > 8)
            ids[i] = ids[i - n / 3];
}

static carat_generate_options options_of(int kind, drafting drafts)
{
    carat_generate_options o = {.max_tokens = 24, .speculation.fixed = true};
    carat_sampling *p = &o.sampling;
    carat_sampling_neutral(p);
    p->ignore_eog = true;
    p->seed = 7 + (uint32_t)kind;
    p->temperature = kind == 0 || kind == 5 || kind == 6 ? 0 : 0.8f;
    p->top_k = kind == 2 || kind == 4 ? 0 : 40;
    p->min_p = kind == 2 ? 0.02f : 0;
    p->repeat_penalty = kind == 2 ? 1.1f : p->repeat_penalty;
    p->penalty_last_n = kind == 2 ? 64 : p->penalty_last_n;
    p->n_top_logprobs = kind == 3 ? 5 : 0;
    if (kind == 4) {
        p->mirostat = 2;
        p->mirostat_tau = 5;
        p->mirostat_eta = 0.1f;
    }
    o.n_prompt_logprobs = kind == 5 ? 3 : 0;
    o.no_answer = kind == 6;
    if (kind == 8) {
        p->dry_multiplier = 0.8f;
        p->dry_base = 1.75f;
        p->dry_allowed_length = 2;
        p->dry_last_n = -1;
    }
    o.speculation.off = drafts == NO_DRAFTS;
    o.speculation.n_max = 4;
    o.speculation.tree_max = drafts == TREES ? 12 : -1;
    return o;
}

/* ---- Answers ------------------------------------------------------------------------------ */

/* How many parts a prompt is cut into is counted apart: a batch may cut it otherwise. */
static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    bool token = ev->kind == CARAT_EV_TOKEN;
    if (ev->kind == CARAT_EV_PREFILL) {
        h->n_prefills++;
        return true;
    }
    h->hash = mix(h->hash, &ev->kind, sizeof ev->kind);
    if (token || ev->kind == CARAT_EV_PROMPT_TOKEN) {
        h->hash = mix(h->hash, &ev->id, sizeof ev->id);
        h->hash = mix(h->hash, &ev->logprob, sizeof ev->logprob);
        h->hash = mix(h->hash, &ev->rank, sizeof ev->rank);
        for (int32_t i = 0; i < ev->n_top; i++) {
            h->hash = mix(h->hash, &ev->top[i].id, sizeof ev->top[i].id);
            h->hash = mix(h->hash, &ev->top[i].logprob, sizeof ev->top[i].logprob);
        }
    } else if (ev->kind == CARAT_EV_END) {
        h->hash = mix(h->hash, &ev->finish, sizeof ev->finish);
    } else {
        h->hash = mix(h->hash, ev->text, ev->n_text);
    }
    h->n += token;
    if (token && h->n == h->cancel_at && h->s)
        carat_session_cancel(h->s);
    if (token && h->n == h->cancel_at && h->b)
        carat_batch_cancel(h->b, h->id);
    return !h->refuse_at || h->n < h->refuse_at;
}

static void show(const heard *h)
{
    const carat_timings *t = &h->t;
    printf(" %d %s, %d tokens %016" PRIx64, h->st, sentence(h->st, &h->e), h->n, h->hash);
    if (!h->st)
        printf(", %s, %" PRId64 " reused (%s), drafts %" PRId64 "/%" PRId64 "/%" PRId64
               ", tiles %" PRIu64 "/%" PRIu64 ", %s %" PRId64,
               carat_finish_name(t->finish), t->n_reused, t->reuse ? t->reuse : "", t->n_rounds,
               t->n_drafted, t->n_accepted, t->n_tiles, t->n_tiles_kept, t->lossy ? t->lossy : "",
               t->n_exact);
    printf("\n");
}

static void answer(const recorder *r, carat_session *s, const char *what, const int32_t *ids, int n,
                   int kind, heard h)
{
    const carat_generate_options o = options_of(kind, r->drafts);
    h.hash = empty;
    h.s = s;
    h.st = carat_generate(s, ids, n, &o, hear, &h, &h.t, &h.e);
    printf("%s, kind %d:", what, kind);
    show(&h);
    printf("  %" PRId64 " cached, %d parts\n", carat_session_n_past(s), h.n_prefills);
}

/* ---- Sessions ----------------------------------------------------------------------------- */

/* n floats at x; none after a failure. */
static void value(const carat_session *s, const char *what, carat_status st, const carat_error *e,
                  const float *x, size_t n)
{
    int64_t n_dropped;
    const char *reuse = carat_session_reuse(s, &n_dropped);
    printf("%s: %d %s %016" PRIx64 ", %" PRId64 " cached, %s, %" PRId64 " dropped\n", what, st,
           sentence(st, e), st ? 0 : mix(empty, x, n * sizeof *x), carat_session_n_past(s), reuse,
           n_dropped);
}

typedef struct rows_sum {
    uint64_t hash;
    size_t n_vocab;
} rows_sum;

static bool add_rows(void *user, int64_t first, int64_t n, const float *rows)
{
    rows_sum *sum = user;
    (void)first;
    sum->hash = mix(sum->hash, rows, (size_t)n * sum->n_vocab * sizeof *rows);
    return true;
}

static void evaluate(const recorder *r, carat_session *s, const int32_t *a, const int32_t *b,
                     const int32_t *c, int n, float *x)
{
    const size_t n_vocab = (size_t)r->n_vocab;
    rows_sum sum = {empty, n_vocab};
    carat_error e = {0};
    value(s, "eval a", carat_eval(s, a, n, x, NULL, &e), &e, x, n_vocab);
    value(s, "eval b", carat_eval(s, b, n, x, NULL, &e), &e, x, n_vocab);
    value(s, "eval a again", carat_eval(s, a, n, x, NULL, &e), &e, x, n_vocab);
    value(s, "eval less of a", carat_eval(s, a, n - 3, NULL, NULL, &e), &e, x, 0);
    value(s, "append 1", carat_append(s, c, 1, false, x, &e), &e, x, n_vocab);
    value(s, "append 9, all rows", carat_append(s, c, 9, true, x, &e), &e, x, 9 * n_vocab);
    value(s, "append 33", carat_append(s, c, 33, false, x, &e), &e, x, n_vocab);
    value(s, "rows", carat_eval_rows(s, c, n / 2, add_rows, &sum, &e), &e, x, 0);
    printf("  %016" PRIx64 "\n", sum.hash);
    value(s, "append too much", carat_append(s, c, carat_session_n_ctx(s), false, x, &e), &e, x, 0);
    bool rewound = carat_rewind(s, carat_session_n_past(s) - 2);
    printf("rewind: %d, %" PRId64 " cached\n", rewound, carat_session_n_past(s));
}

static void restore(const recorder *r, carat_session *s, const int32_t *c, int n, float *x)
{
    carat_snapshot *p;
    carat_error e = {0};
    carat_status st = carat_snapshot_take(s, &p, &e);
    value(s, "snapshot", st, &e, x, 0);
    if (st)
        return;
    answer(r, s, "between", c, n, 0, (heard){0});
    value(s, "restore", carat_snapshot_restore(s, p, &e), &e, x, 0);
    value(s, "append 3", carat_append(s, c, 3, false, x, &e), &e, x, (size_t)r->n_vocab);
    carat_snapshot_free(p);
}

static void write_answers(const recorder *r, carat_session *s, const int32_t *a, const int32_t *b,
                          const int32_t *c, int n, float *x)
{
    recorder plain = *r;
    carat_error e = {0};
    plain.drafts = NO_DRAFTS;
    for (int kind = 0; kind < KINDS; kind++)
        answer(r, s, "a", a, n, kind, (heard){0});
    answer(r, s, "b", b, n, 0, (heard){0});
    answer(&plain, s, "b without drafts", b, n, 1, (heard){0});
    answer(r, s, "c, cancelled", c, n, 1, (heard){.cancel_at = 5});
    answer(r, s, "c, refused", c, n, 1, (heard){.refuse_at = 6});
    answer(r, s, "c", c, n, 1, (heard){0});
    carat_session_cancel(s);
    answer(r, s, "a, cancelled before", a, n, 0, (heard){0});
    carat_session_cancel(s);
    value(s, "eval c, cancelled before", carat_eval(s, c, n, x, NULL, &e), &e, x, 0);
    answer(r, s, "a again", a, n, 0, (heard){0});
}

static void vectors(const recorder *r, carat_session *s, const int32_t *a, const int32_t *b, int n,
                    float *x)
{
    const size_t n_embd = (size_t)r->n_embd;
    carat_error e = {0};
    value(s, "last", carat_embed(s, a, n, CARAT_POOL_LAST, x, &e), &e, x, n_embd);
    value(s, "mean", carat_embed(s, a, n, CARAT_POOL_MEAN, x, &e), &e, x, n_embd);
    value(s, "last of less", carat_embed(s, a, n / 3, CARAT_POOL_LAST, x, &e), &e, x, n_embd);
    value(s, "importance", carat_importance(s, b, n, x, &e), &e, x, (size_t)n);
    value(s, "mean of nothing", carat_embed(s, b, 0, CARAT_POOL_MEAN, x, &e), &e, x, 0);
}

static void record_session(const recorder *r, const char *name, const carat_session_options *o)
{
    carat_session *s;
    carat_error e = {0};
    carat_status st = carat_session_open(r->m, o, &s, &e);
    printf("== session, %s: %d %s\n", name, st, sentence(st, &e));
    if (st)
        return;
    int32_t a[IDS_MAX], b[IDS_MAX], c[IDS_MAX];
    const int n = carat_session_n_ctx(s) > 1000 ? 700 : 210;
    float *x = calloc((size_t)VECTOR_MAX + 16 * (size_t)r->n_vocab, sizeof *x);
    must_have(x);
    draw(r, a, n, 1);
    memcpy(b, a, sizeof a);
    draw(r, b + n / 2, n - n / 2, 2);
    draw(r, c, n, 3);
    if (!r->encoder) {
        evaluate(r, s, a, b, c, n, x);
        write_answers(r, s, a, b, c, n, x);
        restore(r, s, c, n, x);
    }
    vectors(r, s, a, b, n, x);
    if (!r->encoder)
        answer(r, s, "b at last", b, n, 1, (heard){0});
    carat_cache_info cache;
    carat_session_cache(s, &cache);
    printf("%" PRId64 " checkpoints\n", cache.n_checkpoints);
    free(x);
    carat_session_close(s);
}

/* ---- Batches ------------------------------------------------------------------------------ */

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    heard *h = user;
    h->n_done++;
    h->st = st;
    h->t = *t;
    if (st)
        h->e = *e;
}

static void submit(const recorder *r, carat_batch *b, int k, const int32_t *ids, int n, heard *h)
{
    const carat_generate_options o = options_of(k % KINDS, r->drafts);
    carat_job j = {.ids = ids, .n = n, .opt = &o, .fn = hear, .done = done, .user = h};
    bool embeds = r->encoder || k == 3 || k == 9, measures = !embeds && k == 6;
    *h = (heard){.hash = empty, .b = b, .cancel_at = k == 8 ? 4 : 0};
    h->n_vector = embeds ? (size_t)r->n_embd : measures ? (size_t)n : 0;
    must_have(h->vector = calloc(h->n_vector + 1, sizeof *h->vector));
    j.embedding = embeds ? h->vector : NULL;
    j.importance = measures ? h->vector : NULL;
    j.pooling = k == 3 ? CARAT_POOL_MEAN : CARAT_POOL_LAST;
    h->st = carat_batch_submit(b, &j, &h->id, NULL, &h->e);
}

static void record_batch(const recorder *r, const char *name, const carat_batch_options *o)
{
    carat_batch *b;
    carat_batch_info info;
    carat_error e = {0};
    carat_status st = carat_batch_open(r->m, o, &b, &e);
    printf("== batch, %s: %d %s\n", name, st, sentence(st, &e));
    if (st)
        return;
    const int n = carat_batch_n_ctx(b) > 1000 ? 500 : 150;
    for (int round = 0; round < 2; round++) {
        heard h[JOBS];
        for (int k = 0; k < JOBS; k++) {
            int32_t ids[IDS_MAX];
            draw(r, ids, n, 100 + (uint64_t)k % 5);
            draw(r, ids + n / 2, n - n / 2, 200 + (uint64_t)k);
            submit(r, b, k, ids, n - 3 * k, &h[k]);
            for (int i = 0; i < 3 && k == 5; i++) /* the others come while these are at work */
                carat_batch_step(b);
        }
        while (carat_batch_step(b))
            ;
        for (int k = 0; k < JOBS; k++) {
            printf("job %d of round %d, done %d:", k, round, h[k].n_done);
            h[k].hash = mix(h[k].hash, h[k].vector, h[k].n_vector * sizeof *h[k].vector);
            show(&h[k]);
            free(h[k].vector);
        }
    }
    carat_batch_get_info(b, &info, NULL, 0);
    printf("%" PRIu64 " jobs, %" PRIu64 " tokens of prompts, %" PRIu64 " of answers\n", info.n_jobs,
           info.n_prompt, info.n_generated);
    carat_batch_close(b);
}

/* ---- A model ------------------------------------------------------------------------------ */

static void record_sessions(recorder *r, bool drafts)
{
    static const char *const policy[] = {"scored", "lru", "snapkv"};
    carat_session_options o = {.n_ctx = 320, .checkpoint_mb = 64};
    record_session(r, "plain", &o);
    r->drafts = TREES;
    if (drafts)
        record_session(r, "trees", &o);
    r->drafts = CHAINS;
    o.chunk = 48;
    o.checkpoint_mb = -1;
    record_session(r, "chunks of 48", &o);
    o = (carat_session_options){.n_ctx = 1536, .chunk = 128, .checkpoint_mb = 64};
    o.sparse = "flash:0.1";
    record_session(r, "block selection", &o);
    o.sparse = "skip:1";
    record_session(r, "skip-softmax", &o);
    o.sparse = NULL;
    o.kv_resident = 512;
    for (int i = 0; i < 3; i++) {
        o.kv_policy = policy[i];
        record_session(r, policy[i], &o);
    }
}

static void record_batches(recorder *r, bool drafts)
{
    carat_batch_options o = {
        .session = {.n_ctx = 256, .checkpoint_mb = 64}, .n_slots = 3, .gap_ms = -1};
    record_batch(r, "plain", &o);
    r->drafts = TREES;
    if (drafts)
        record_batch(r, "trees", &o);
    r->drafts = CHAINS;
    o.session.kv_pool = 512;
    record_batch(r, "a small pool", &o);
    o.session = (carat_session_options){
        .n_ctx = 1536, .chunk = 128, .checkpoint_mb = 64, .kv_resident = 512, .kv_pool = 1024};
    record_batch(r, "keys away", &o);
}

int main(int argc, char **argv)
{
    const carat_model_options o = {.n_threads = 1,
                                   .draft = argc > 2 && strcmp(argv[2], "none") ? argv[2] : NULL,
                                   .device = argc > 3 ? argv[3] : NULL};
    recorder r = {.drafts = CHAINS};
    carat_model_info info;
    carat_error e = {0};
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: bench_record MODEL.gguf [DRAFTER [DEVICES]]\n");
        return 2;
    }
    if (carat_model_open(argv[1], &o, &r.m, &e)) {
        fprintf(stderr, "bench_record: %s\n", e.text);
        return 1;
    }
    carat_model_get_info(r.m, &info);
    r.n_vocab = info.n_vocab;
    r.n_embd = info.n_embd;
    r.encoder = carat_model_is_encoder(r.m);
    record_sessions(&r, o.draft != NULL);
    record_batches(&r, o.draft != NULL);
    carat_model_close(r.m);
    return 0;
}
