/* sparse_recall.c - what attention that leaves keys out loses: needles, mass, the next tokens.
 *
 *     build/bench_sparse_recall MODEL.gguf CASES.jsonl TOKENS_MOST SETTING...
 *
 * SETTING is as --sparse, "off" the first. A line of CASES is a text, questions about it and their
 * answers (tools/demo/recall_cases.py). For each setting the text is computed in a session of its
 * own, on the CPU, by one thread. Lines of JSON tell:
 *
 *     {"sparse", "tokens", "density", "seconds", "kld", "same", "mass", "mass_p5"}   of a text
 *     {"sparse", "tokens", "kind", "depth", "right"}                               of a question
 *
 * seconds  of the processor, for the prompt
 * kld      of the NEXT tokens of the text, as answers: the mean divergence from "off", in nats
 * same     the share of them whose best token is that of "off"
 * mass     of the exact soft max, the share in tiles that are read: mean and 5th percentile over
 *          layers, query heads and query blocks. Every fourth block of 128 rows is looked at, in it
 *          every 16th row
 * right    the greedy answer is the whole expected one
 *
 * tools/sparse_table.py makes a table of them.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/kernels_int.h"
#include "backend/cpu/sparse_int.h"
#include "backend/key_walk.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/str.h"
#include "engine/engine_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NEXT = 64,
    ASKS_MOST = 64,
    EACH_BLOCK = 4,
    EACH_ROW = 16,
    ROWS = SPARSE_TILE / EACH_ROW, /* that are looked at in a block */
    MASSES_MOST = 1 << 20
};

static struct {
    carat_model *m;
    device_ops ops;
    const device_ops *plain;
    int32_t n_ctx, n_vocab;
    float *key, *score; /* [n_ctx][dim], [ROWS][n_ctx] */
    double *mass;       /* [n_mass]: of a layer, query head and query block */
    int32_t n_mass;
    double looked;         /* seconds that looking at masses took */
    float *exact, *logits; /* [NEXT][n_vocab] of "off"; [n_vocab] */
} g;

static void or_exit(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "bench_sparse_recall: %s\n", e->text);
        exit(1);
    }
}

static void *room(size_t n)
{
    void *p = mem_calloc(1, n ? n : 1);
    if (!p) {
        fprintf(stderr, "bench_sparse_recall: no memory\n");
        exit(1);
    }
    return p;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Mass ---------------------------------------------------------------------------------- */

/* Keys [0, n) of a KV head, as f32. */
static void read_keys(const kv_view *kv, const kv_base *base, int32_t head, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        num_format_of(kv->k_type)
            ->decode(key_row(kv, base->k, kv->k_row_bytes, head, key_walk(kv, base, t).place),
                     g.key + t * kv->head_dim, kv->head_dim);
}

/* score: of row r, query head h and keys [0, n). The share of its soft max in tiles that it reads.
 */
static double kept_mass(const pass *p, const kv_view *kv, const cpu_selection *s, int32_t r,
                        int32_t head, const float *score, int64_t n)
{
    const sparse_rule *rule = sparse_rule_of(p->st, p->rows, kv, r);
    sparse_walk w = {.top = -INFINITY, .limit = sparse_limit(rule, n)};
    double all = 0, kept = 0;
    float top = -INFINITY;
    for (int64_t t = 0; t < n; t++)
        top = score[t] > top ? score[t] : top;
    for (int64_t t0 = 0; t0 < n; t0 += SPARSE_TILE) {
        int64_t in = n - t0 < SPARSE_TILE ? n - t0 : SPARSE_TILE;
        float most = -INFINITY;
        double sum = 0;
        for (int64_t t = t0; t < t0 + in; t++) {
            most = score[t] > most ? score[t] : most;
            sum += exp((double)score[t] - top);
        }
        bool reads = rule->alpha > 0 ? cpu_selected(s, r, head, t0 / SPARSE_TILE)
                                     : !sparse_drops(&w, most, in);
        all += sum;
        kept += reads ? sum : 0;
    }
    return kept / all;
}

static void score_block(pass *p, mat q, const kv_view *kv, float scale, const cpu_selection *s,
                        int32_t r0, int32_t head)
{
    int32_t group = q.heads / kv->n_head_kv, dim = kv->head_dim;
    int64_t n = row_range(p->rows, kv, r0 + SPARSE_TILE - 1).hi;
    for (int32_t h = head * group; h < (head + 1) * group; h++) {
        double sum = 0;
        const key_product x = {.type = NUM_F32,
                               .n_q = ROWS,
                               .n_keys = (int32_t)n,
                               .dim = dim,
                               .s = g.score,
                               .q = mat_row(q, r0 + EACH_ROW - 1) + (size_t)h * (size_t)dim,
                               .s_stride = g.n_ctx,
                               .q_stride = (int32_t)q.stride * EACH_ROW,
                               .k = (const char *)g.key,
                               .row_bytes = (size_t)dim * sizeof *g.key,
                               .source = ROWS_IN_CACHE};
        cpu_of(p)->k->key_dot(&x);
        for (int32_t i = 0; i < ROWS; i++) {
            int32_t r = r0 + EACH_ROW - 1 + i * EACH_ROW;
            float *score = g.score + (size_t)i * (size_t)g.n_ctx;
            for (int64_t t = 0; t < n; t++)
                score[t] *= scale;
            sum += kept_mass(p, kv, s, r, head, score, row_range(p->rows, kv, r).hi);
        }
        if (g.n_mass < MASSES_MOST)
            g.mass[g.n_mass++] = sum / ROWS;
    }
}

static void rescore(pass *p, mat q, const kv_view *kv, float scale)
{
    const int32_t *index = rows_keys(p->rows, kv)->index;
    size_t mark = pass_mark(p);
    cpu_selection s;
    cpu_selection_take(p, q, kv, pool_n_threads(cpu_of(p)->pool), &s);
    if (!p->dry && !pass_failed(p)) {
        const kv_base *base = step_store(p->st, p->rows->seq[0], kv);
        cpu_select(p, q, kv, scale, &s);
        for (int32_t head = 0; head < kv->n_head_kv; head++) {
            bool has_keys = false;
            for (int32_t r = 0; r + SPARSE_TILE <= q.rows; r++) {
                if (index[r] % (SPARSE_TILE * EACH_BLOCK) != SPARSE_TILE * (EACH_BLOCK - 1))
                    continue;
                if (!has_keys)
                    read_keys(kv, base, head, row_range(p->rows, kv, q.rows - 1).hi);
                has_keys = true;
                score_block(p, q, kv, scale, &s, r, head);
            }
        }
    }
    pass_release(p, mark);
}

static void looking_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    double at = seconds();
    if (kv->kind == STORE_LINEAR && !kv->window && (p->dry || cpu_sparse_any(p, kv)))
        rescore(p, q, kv, scale);
    g.looked += seconds() - at;
    g.plain->attend(p, o, q, kv, scale);
}

/* ---- A text and a setting ------------------------------------------------------------------ */

typedef struct ask {
    carat_chat chat;
    const char *answer;
    int32_t depth; /* of the fact, in percent of the text; -1: not said */
} ask;

typedef struct text_case {
    const char *kind;
    ask ask[ASKS_MOST];
    int32_t n_asks, n_same; /* tokens that all prompts begin with */
} text_case;

static double log_sum(const float *x, int32_t *best)
{
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < g.n_vocab; i++)
        *best = x[i] > x[*best] ? i : *best;
    for (int32_t i = 0; i < g.n_vocab; i++)
        sum += exp((double)x[i] - x[*best]);
    return x[*best] + log(sum);
}

/* Of row i of the next tokens; nats. */
static double divergence(int32_t i, bool *same)
{
    const float *x = g.exact + (size_t)i * (size_t)g.n_vocab;
    int32_t best, other;
    double a = log_sum(x, &best), b = log_sum(g.logits, &other), sum = 0;
    for (int32_t k = 0; k < g.n_vocab; k++)
        sum += exp(x[k] - a) * (x[k] - a - g.logits[k] + b);
    *same = best == other;
    return sum;
}

/* The text but for its last NEXT tokens as a prompt; then these. */
static void run_text(carat_session *s, const text_case *c, const char *setting, bool exact)
{
    err e = {0};
    carat_sparse_layer layer[64];
    const int32_t *ids = c->ask[0].chat.ids;
    int32_t n = c->n_same - NEXT, n_same = 0;
    double kld = 0, mass = 0, at = seconds();
    uint64_t tiles = 0, kept = 0;
    g.n_mass = 0;
    g.looked = 0;
    or_exit(carat_eval(s, ids, n, g.logits, NULL, &e), &e);
    double took = seconds() - at - g.looked;
    int32_t n_layers = carat_session_sparse(s, layer, 64, true);
    for (int32_t i = 0; i < n_layers && i < 64; i++) {
        tiles += layer[i].n_tiles;
        kept += layer[i].n_kept;
    }
    qsort(g.mass, (size_t)g.n_mass, sizeof *g.mass, order_doubles);
    for (int32_t i = 0; i < g.n_mass; i++)
        mass += g.mass[i] / g.n_mass;
    for (int32_t i = 0; i < NEXT; i++) {
        bool same;
        or_exit(carat_append(s, ids + n + i, 1, false, g.logits, &e), &e);
        if (exact)
            memcpy(g.exact + (size_t)i * (size_t)g.n_vocab, g.logits, (size_t)g.n_vocab * 4);
        kld += divergence(i, &same) / NEXT;
        n_same += same;
    }
    printf("{\"sparse\":\"%s\",\"tokens\":%d,\"density\":%.4f,\"seconds\":%.3f,\"kld\":%.3e,"
           "\"same\":%.4f,\"mass\":%.4f,\"mass_p5\":%.4f}\n",
           setting, n, tiles ? (double)kept / (double)tiles : 1, took, kld, (double)n_same / NEXT,
           g.n_mass ? mass : 1, g.n_mass ? g.mass[g.n_mass / 20] : 1);
    fflush(stdout);
}

static bool hear(void *user, const carat_event *ev)
{
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(user, ev->text, ev->n_text);
    return true;
}

static void run_ask(carat_session *s, const text_case *c, const ask *a, const char *setting)
{
    err e = {0};
    str said = {0};
    carat_generate_options o = {.sampling = {.top_p = 1, .repeat_penalty = 1},
                                .max_tokens = 120,
                                .parse = true,
                                .starts_thinking = a->chat.starts_thinking};
    or_exit(carat_generate(s, a->chat.ids, a->chat.n_ids, &o, hear, &said, NULL, &e), &e);
    bool right = !strcmp(str_text(&said), a->answer);
    printf("{\"sparse\":\"%s\",\"tokens\":%d,\"kind\":\"%s\",\"depth\":%d,\"right\":%d}\n", setting,
           c->n_same, c->kind, a->depth, right);
    fflush(stdout);
    str_free(&said);
}

/* ---- Cases --------------------------------------------------------------------------------- */

static void render(const char *frame, const char *question, carat_chat *c)
{
    err e = {0};
    str text = {0};
    const char *at = strstr(frame, "{q}");
    if (!at) {
        fprintf(stderr, "bench_sparse_recall: a text without a place for its question\n");
        exit(1);
    }
    str_put(&text, frame, (size_t)(at - frame));
    str_puts(&text, question);
    str_puts(&text, at + 3);
    json_t *j = json_pack("[{s:s, s:s}]", "role", "user", "content", str_text(&text));
    char *words = json_dumps(j, 0);
    or_exit(carat_chat_render(g.m, words, NULL, NULL, c, &e), &e);
    free(words);
    json_decref(j);
    str_free(&text);
}

static void read_case(const json_t *j, text_case *c)
{
    const json_t *list = json_object_get(j, "asks"), *x;
    const char *frame = json_string_value(json_object_get(j, "frame"));
    const char *kind = json_string_value(json_object_get(j, "kind"));
    size_t i;
    *c = (text_case){.kind = kind ? kind : "mixed"};
    json_array_foreach(list, i, x)
    {
        const json_t *depth = json_object_get(x, "depth");
        ask *a = &c->ask[c->n_asks];
        if (c->n_asks == ASKS_MOST)
            break;
        render(frame, json_string_value(json_object_get(x, "q")), &a->chat);
        a->answer = json_string_value(json_object_get(x, "a"));
        a->depth = depth ? (int32_t)json_integer_value(depth) : -1;
        int32_t same = 0, most = c->n_asks ? c->n_same : (int32_t)a->chat.n_ids;
        while (same < most && same < a->chat.n_ids && a->chat.ids[same] == c->ask[0].chat.ids[same])
            same++;
        c->n_same = same;
        c->n_asks++;
        if (a->chat.n_ids + 128 > g.n_ctx) {
            fprintf(stderr, "bench_sparse_recall: a case of %lld tokens\n",
                    (long long)a->chat.n_ids);
            exit(1);
        }
    }
    if (c->n_same <= 2 * NEXT) {
        fprintf(stderr, "bench_sparse_recall: a text of %d tokens\n", c->n_same);
        exit(1);
    }
}

static void run_case(const json_t *j, char **setting, int n_settings)
{
    static text_case c;
    read_case(j, &c);
    for (int i = 0; i < n_settings; i++) {
        err e = {0};
        carat_session *s;
        const carat_session_options so = {.n_ctx = g.n_ctx, .sparse = setting[i]};
        or_exit(carat_session_open(g.m, &so, &s, &e), &e);
        run_text(s, &c, setting[i], !i);
        for (int32_t k = 0; k < c.n_asks; k++)
            run_ask(s, &c, &c.ask[k], setting[i]);
        carat_session_close(s);
    }
    for (int32_t k = 0; k < c.n_asks; k++)
        carat_chat_free(&c.ask[k].chat);
}

static void open_all(const char *path, int32_t n_ctx)
{
    err e = {0};
    carat_model_options mo = {.device = "cpu", .n_threads = 1};
    int32_t dim = 1;
    or_exit(carat_model_open(path, &mo, &g.m, &e), &e);
    g.plain = g.m->dev->op;
    g.ops = *g.plain;
    g.ops.attend = looking_attend;
    g.m->dev->op = &g.ops;
    for (int32_t i = 0; i < g.m->core.n_kv; i++)
        dim = g.m->core.kv[i].head_dim > dim ? g.m->core.kv[i].head_dim : dim;
    g.n_ctx = n_ctx;
    g.n_vocab = g.m->core.n_vocab;
    g.key = room((size_t)n_ctx * (size_t)dim * sizeof *g.key);
    g.score = room((size_t)n_ctx * ROWS * sizeof *g.score);
    g.mass = room(MASSES_MOST * sizeof *g.mass);
    g.exact = room((size_t)NEXT * (size_t)g.n_vocab * sizeof *g.exact);
    g.logits = room((size_t)g.n_vocab * sizeof *g.logits);
}

int main(int argc, char **argv)
{
    int32_t n_ctx = argc > 4 ? atoi(argv[3]) : 0;
    err e = {0};
    if (argc < 5 || n_ctx < 1024 || strcmp(argv[4], "off") != 0) {
        fprintf(stderr,
                "usage: bench_sparse_recall MODEL.gguf CASES.jsonl TOKENS_MOST off SETTING...\n");
        return 2;
    }
    FILE *f = fopen(argv[2], "r");
    if (!f) {
        fprintf(stderr, "bench_sparse_recall: %s: %s\n", argv[2], strerror(errno));
        return 1;
    }
    open_all(argv[1], n_ctx);
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *j;
        or_exit(json_parse(&j, line, (size_t)n, argv[2], &e), &e);
        run_case(j, argv + 4, argc - 4);
        json_decref(j);
    }
    free(line);
    fclose(f);
    return 0;
}
