/* kld.c - `carat kld`: the loss of quality by a format of keys and values.
 *
 * The same tokens go, chunk by chunk, through two sessions of one model that differ only in the
 * formats of keys and values. At every position their distributions of the next token are compared:
 * the Kullback-Leibler divergence of the tested one from the base, in nats. Perplexity can hide
 * errors that raise and lower the probabilities equally often; this divergence cannot.
 */
#include "apps/pool_options.h"
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/run_int.h"
#include "apps/sparse_options.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { KLD_CHUNK_BYTES = 64 << 20 }; /* of one chunk's logits, per session */

typedef struct kld_options {
    const char *model, *tokens, *text, *base, *isa;
    const char *sparse;
    kv_options kv;
    pool_options pool;
    device_options where;
    int64_t chunk, threads, limit, from;
    bool json, overcommit, exact;
} kld_options;

static const option table[] = {
    OPT_STR(kld_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list); default: the bundled one"),
    OPT_STR(
        kld_options, tokens, "tokens", 0, "FILE",
        "token ids: a file, int32 little-endian or numbers with commas between, or the numbers"),
    OPT_STR(kld_options, text, "text", 0, "FILE", "a text instead of token ids"),
    OPT_INT(kld_options, limit, "limit", 'n', "N", 2, 1 << 24, "only the first N tokens"),
    OPT_INT(kld_options, from, "from", 0, "N", 0, 1 << 24, "count positions from N on only"),
    OPT_STR(kld_options, base, "base", 0, "TYPE", "what to compare with (default: f16)"),
    OPT_KV(kld_options),
    OPT_POOL(kld_options),
    OPT_SPARSE(kld_options),
    OPT_INT(kld_options, chunk, "chunk", 0, "N", 1, 1 << 24, "tokens per pass"),
    OPT_THREADS(kld_options),
    OPT_EXACT(kld_options),
    OPT_DEVICE(kld_options),
    OPT_ISA(kld_options),
    OPT_OVERCOMMIT(kld_options),
    OPT_FLAG(kld_options, json, "json", 0, "print JSON"),
    OPT_END};

typedef struct kld_run {
    carat_session *base, *tested;
    float *base_rows; /* [chunk, n_vocab] */
    const int32_t *ids;
    int32_t chunk, n_vocab;
    int64_t from, n_ids;
    double *kld; /* [n_tokens], of the positions that count */
    int64_t n, n_same;
    err e; /* of compare_rows */
} kld_run;

/* ---- Distances --------------------------------------------------------------------------- */

static double log_sum_exp(const float *x, int32_t n, int32_t *best)
{
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[*best])
            *best = i;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - x[*best]);
    return log(sum) + x[*best];
}

static void compare_row(kld_run *k, const float *a, const float *b)
{
    int32_t best_a, best_b;
    double la = log_sum_exp(a, k->n_vocab, &best_a), lb = log_sum_exp(b, k->n_vocab, &best_b);
    double sum = 0;
    for (int32_t i = 0; i < k->n_vocab; i++) {
        double pa = exp(a[i] - la);
        if (pa > 0) /* both ban the same tokens */
            sum += pa * ((a[i] - la) - (b[i] - lb));
    }
    k->n_same += best_a == best_b;
    k->kld[k->n++] = sum > 0 ? sum : 0; /* never negative, except by rounding */
}

/* Rows of the tested session's pass; the base computes the same tokens. */
static bool compare_rows(void *user, int64_t first, int64_t n, const float *rows)
{
    kld_run *k = user;
    if (!term_progress(NULL, "tokens", (uint64_t)first, (uint64_t)k->n_ids))
        return err_set(&k->e, E_CANCELLED, "interrupted after %" PRId64 " tokens", first), false;
    if (carat_append(k->base, k->ids + first, n, true, k->base_rows, &k->e))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (first + i >= k->from) {
            size_t row = (size_t)i * (size_t)k->n_vocab;
            compare_row(k, k->base_rows + row, rows + row);
        }
    return true;
}

/* The text is one prompt of the tested session: attention that leaves keys out chooses them by the
 * whole prompt. */
static status evaluate(kld_run *k, err *e)
{
    status st = carat_eval_rows(k->tested, k->ids, k->n_ids, compare_rows, k, e);
    if (st && k->e.status) {
        err_clear(e);
        return err_set(e, k->e.status, "%s", k->e.text);
    }
    term_progress_clear();
    return st;
}

/* ---- Report ------------------------------------------------------------------------------ */

typedef struct kld_report {
    const char *base, *k, *v;
    double mean, p99, max, same; /* same: share of positions with the same best token */
    int64_t n;
    uint64_t base_bytes, tested_bytes; /* of keys and values */
} kld_report;

static void summarise(kld_run *k, kld_report *r)
{
    double sum = 0;
    for (int64_t i = 0; i < k->n; i++)
        sum += k->kld[i];
    qsort(k->kld, (size_t)k->n, sizeof *k->kld, order_doubles);
    r->n = k->n;
    r->mean = sum / (double)k->n;
    r->p99 = k->kld[(k->n - 1) * 99 / 100];
    r->max = k->kld[k->n - 1];
    r->same = (double)k->n_same / (double)k->n;
}

static void print_report(const kld_report *r, const char *layers)
{
    printf("keys %s, values %s%s%s against %s, %" PRId64 " positions\n", r->k, r->v,
           layers ? ", " : "", SHOWN(layers ? layers : ""), r->base, r->n);
    printf("  KLD mean   %.3e\n  KLD p99    %.3e\n  KLD max    %.3e\n", r->mean, r->p99, r->max);
    printf("  same top   %.3f %%\n  cache      %.2f MiB of %.2f\n", 100 * r->same,
           (double)r->tested_bytes * 0x1p-20, (double)r->base_bytes * 0x1p-20);
}

/* ---- What attention left out --------------------------------------------------------------- */

/* The published factors promise nothing: beyond this the setting is called lossy. */
static const double dropped_most = 0.05;

static double density(const carat_sparse_layer *x)
{
    return (double)x->n_kept / (double)x->n_tiles;
}

/* The layers that left keys out, of the tested session; the caller frees. */
static status sparse_layers(const kld_run *k, carat_sparse_layer **list, int32_t *n, err *e)
{
    int32_t n_layers = carat_session_sparse(k->tested, NULL, 0, false);
    carat_sparse_layer *all = mem_calloc((size_t)n_layers + 1, sizeof *all);
    if (!all)
        return err_memory(e, "the layers", (size_t)n_layers * sizeof *all);
    carat_session_sparse(k->tested, all, n_layers, false);
    *list = all;
    *n = n_layers;
    return OK;
}

/* Shares of the pairs of row and head, by the decade of their certificate. */
static void print_sparse(const char *what, const carat_sparse_layer *list, int32_t n)
{
    printf(
        "attention leaves keys out: %s. Share of the soft max that a row and head dropped, at "
        "most:\n"
        "  layer  tiles read     p50     p99     max   %% of rows below 1e-6  1e-4  0.001  0.01   "
        "0.1\n",
        SHOWN(what));
    for (int32_t i = 0; i < n; i++) {
        static const int ends[] = {2, 4, 5, 6, 7}; /* bins below 10^-6, -4, -3, -2, -1 */
        const carat_sparse_layer *x = &list[i];
        uint64_t all = 0, sum = 0;
        for (int b = 0; b < CARAT_SPARSE_BINS; b++)
            all += x->bin[b];
        if (!all) {
            printf("  %5d  %8.1f %%  no bound: blocks were left out by an estimate\n", x->layer,
                   100 * density(x));
            continue;
        }
        printf("  %5d  %8.1f %%  %.1e %.1e %.1e              ", x->layer, 100 * density(x),
               x->dropped_p50, x->dropped_p99, x->dropped_max);
        for (int b = 0, j = 0; b < CARAT_SPARSE_BINS && j < 5; b++) {
            sum += x->bin[b];
            if (b == ends[j]) {
                printf(" %5.1f", 100 * (double)sum / (double)all);
                j++;
            }
        }
        printf("\n");
    }
}

static json_t *sparse_json(const carat_sparse_layer *list, int32_t n)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < n; i++) {
        json_t *bins = json_array();
        for (int b = 0; b < CARAT_SPARSE_BINS; b++)
            json_array_append_new(bins, json_integer((json_int_t)list[i].bin[b]));
        json_array_append_new(all,
                              json_pack("{s:i, s:I, s:I, s:f, s:f, s:f, s:o}", "layer",
                                        (int)list[i].layer, "tiles", (json_int_t)list[i].n_tiles,
                                        "tiles_read", (json_int_t)list[i].n_kept, "dropped_p50",
                                        list[i].dropped_p50, "dropped_p99", list[i].dropped_p99,
                                        "dropped_max", list[i].dropped_max, "decades", bins));
    }
    return all;
}

static void warn_sparse(const carat_sparse_layer *list, int32_t n)
{
    double worst = 0;
    int32_t layer = 0;
    for (int32_t i = 0; i < n; i++)
        if (list[i].dropped_p99 > worst) {
            worst = list[i].dropped_p99;
            layer = list[i].layer;
        }
    if (worst > dropped_most)
        term_note(
            "warning: in layer %d the 99th percentile of the dropped share may be %.2f, above "
            "%.2f: take a smaller scale",
            layer, worst, dropped_most);
}

static status print_distances_json(const kld_report *r, const char *layers,
                                   const carat_sparse_layer *list, int32_t n, err *e)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s?, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "base", r->base,
                  "keys", r->k, "values", r->v, "layers", layers, "positions", (json_int_t)r->n,
                  "mean", r->mean, "p99", r->p99, "max", r->max, "same_top", r->same, "base_bytes",
                  (json_int_t)r->base_bytes, "tested_bytes", (json_int_t)r->tested_bytes);
    if (o && n)
        json_object_set_new(o, "sparse", sparse_json(list, n));
    if (!o)
        return err_memory(e, "the report", 0);
    bool ok = json_write(stdout, o, 0);
    json_decref(o);
    return ok ? OK : err_set(e, E_IO, "cannot write the report");
}

/* ---- The command ------------------------------------------------------------------------- */

static status open_sessions(kld_run *k, const kld_options *o, carat_model *m, int64_t n,
                            kld_report *r, err *e)
{
    const char *type = kv_options_k(&o->kv);
    carat_session_options so = {.n_ctx = (int32_t)n,
                                .chunk = k->chunk,
                                .n_outputs = k->chunk,
                                .kv_k = o->base ? o->base : "f16",
                                .kv_single = "off",
                                .checkpoint_mb = -1};
    carat_memory_plan plan;
    status st;
    r->base = so.kv_k;
    if ((st = carat_plan(m, &so, &plan, e)) || (st = carat_session_open(m, &so, &k->base, e)))
        return st;
    r->base_bytes = plan.kv_swa_bytes + plan.kv_global_bytes;
    kv_options_apply_exact(&o->kv, &so);
    if ((st = pool_options_apply(&o->pool, &so, e)))
        return st;
    so.sparse = o->sparse;
    if ((st = carat_plan(m, &so, &plan, e)) || (st = carat_session_open(m, &so, &k->tested, e)))
        return st;
    r->tested_bytes = plan.kv_swa_bytes + plan.kv_global_bytes;
    r->k = type ? type : "f16";
    r->v = so.kv_v ? so.kv_v : r->k;
    size_t cells = (size_t)k->chunk * (size_t)k->n_vocab;
    k->base_rows = mem_calloc(cells, sizeof *k->base_rows);
    k->kld = mem_calloc((size_t)n, sizeof *k->kld);
    if (!k->base_rows || !k->kld)
        return err_memory(e, "the logits of a chunk", cells * sizeof *k->base_rows);
    return OK;
}

static status get_ids(const kld_options *o, const carat_model *m, int32_t **ids, int64_t *n, err *e)
{
    int32_t *all = NULL;
    int64_t n_all = 0;
    status st = ids_given(m, o->text, o->tokens, o->limit, &all, &n_all, e);
    if (st)
        return st;
    if (n_all <= o->from) {
        mem_free(all);
        return err_set(e, E_ARG,
                       "%s has %" PRId64 " tokens: --from %" PRId64 " leaves none to count",
                       o->text ? o->text : o->tokens, n_all, o->from);
    }
    *ids = all;
    *n = n_all;
    return OK;
}

static int32_t choose_chunk(const kld_options *o, int32_t n_vocab, int64_t n)
{
    int64_t fit = KLD_CHUNK_BYTES / ((int64_t)n_vocab * 4), chunk = o->chunk;
    if (!chunk)
        chunk = fit < 1 ? 1 : fit < 512 ? fit : 512;
    return (int32_t)(chunk < n ? chunk : n);
}

static int run_kld(const command *c, int argc, char **argv)
{
    kld_options o = {0};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    carat_model *m = NULL;
    carat_model_info info;
    kld_report r = {0};
    kld_run k = {0};
    carat_sparse_layer *sparse = NULL;
    int32_t *ids = NULL, n_sparse = 0;
    int64_t n = 0;
    err e = {0};
    status st;

    if (bad)
        return bad - 1;
    if (!o.tokens == !o.text)
        return fprintf(stderr, "carat kld: needs either --tokens or --text\n"
                               "Try 'carat kld --help'.\n"),
               2;
    term_init();
    term_watch(NULL);
    double start_ms = clock_ms();
    run_options ro = {.threads = o.threads,
                      .isa = o.isa,
                      .where = o.where,
                      .exact = o.exact,
                      .overcommit = o.overcommit,
                      .pool = o.pool};
    if ((st = run_open_model(o.model, &ro, &m, &e)) || (st = get_ids(&o, m, &ids, &n, &e)))
        goto out;
    carat_model_get_info(m, &info);
    k.n_vocab = info.n_vocab;
    k.chunk = choose_chunk(&o, info.n_vocab, n);
    k.from = o.from;
    if ((st = open_sessions(&k, &o, m, n, &r, &e)))
        goto out;
    term_watch(k.tested);
    k.ids = ids;
    k.n_ids = n;
    if ((st = evaluate(&k, &e)))
        goto out;
    summarise(&k, &r);
    if ((st = sparse_layers(&k, &sparse, &n_sparse, &e)))
        goto out;
    if (o.json && (st = print_distances_json(&r, o.kv.layers, sparse, n_sparse, &e)))
        goto out;
    if (!o.json)
        print_report(&r, o.kv.layers);
    if (!o.json && n_sparse)
        print_sparse(o.sparse, sparse, n_sparse);
    warn_sparse(sparse, n_sparse);
    if (!(st = term_flush(&e)))
        term_note("%" PRId64 " tokens twice in %.2f s on %s", n, (clock_ms() - start_ms) * 1e-3,
                  info.device);
out:
    term_watch(NULL);
    carat_session_close(k.base);
    carat_session_close(k.tested);
    carat_model_close(m);
    mem_free(sparse);
    mem_free(k.base_rows);
    mem_free(k.kld);
    mem_free(ids);
    return term_exit(st, &e);
}

const command command_kld = {
    .name = "kld",
    .operands = "",
    .summary = "Compare formats of keys and values, or sparse attention, by KL divergence",
    .about = "Computes given tokens in two sessions. They differ in the formats of keys\n"
             "and values, or with --sparse in the keys that attention reads. The\n"
             "distributions of the next token are compared at every position: mean, 99th\n"
             "percentile and maximum of the Kullback-Leibler divergence in nats, and how\n"
             "often the likeliest token is the same. The base stores keys and values\n"
             "separately, never as one stream (see --kv-single).",
    .options = table,
    .run = run_kld};
