/* calibrate.c - `carat calibrate-sparse`: the scale of skip-softmax for a model and a text.
 *
 * A scale promises nothing by itself: how much of its soft max a row drops depends on the model,
 * the text and its length. So the text is computed with growing scales. The scale that is
 * recommended is the largest one found at which, in every layer, 99 of 100 pairs of row and head
 * have dropped less than --dropped, by their certificates (engine/sparse.h).
 */
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/run_int.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/show.h"

#include <inttypes.h>
#include <math.h>

enum {
    LAYERS_MAX = 1024,
    HALVINGS = 4, /* of the interval between the last scale that passes and the first that fails */
    TRIALS_MAX = 32
};
static const double first_scale = 1.0 / 64, growth = 8, last_scale = 1e6, dropped_usual = 0.05;

typedef struct calibrate_options {
    const char *model, *tokens, *text, *isa;
    kv_options kv;
    device_options where;
    double dropped;
    int64_t chunk, threads, limit;
    bool json, overcommit, exact;
} calibrate_options;

static const option table[] = {
    OPT_STR(calibrate_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list); default: the bundled one"),
    OPT_STR(calibrate_options, text, "text", 0, "FILE", "a text like those to come, and as long"),
    OPT_STR(calibrate_options, tokens, "tokens", 0, "FILE",
            "token ids instead: a file, int32 little-endian or numbers with commas between, or the "
            "numbers"),
    OPT_INT(calibrate_options, limit, "limit", 'n', "N", 2, 1 << 24, "only the first N tokens"),
    OPT_REAL(calibrate_options, dropped, "dropped", 0, "X", 1e-6, 1,
             "the most that 99 of 100 rows and heads may drop (default: 0.05)"),
    OPT_KV(calibrate_options),
    OPT_INT(calibrate_options, chunk, "chunk", 0, "N", 1, 1 << 24, "tokens per pass"),
    OPT_THREADS(calibrate_options),
    OPT_EXACT(calibrate_options),
    OPT_DEVICE(calibrate_options),
    OPT_ISA(calibrate_options),
    OPT_OVERCOMMIT(calibrate_options),
    OPT_FLAG(calibrate_options, json, "json", 0, "print JSON"),
    OPT_END};

typedef struct trial {
    double scale, p99, density, ms; /* p99: of the layer that dropped most */
    int32_t layer;
} trial;

typedef struct calibration {
    const calibrate_options *o;
    carat_model *m;
    int32_t *ids;
    int64_t n;
    carat_sparse_layer *layer; /* [LAYERS_MAX] */
    trial at[TRIALS_MAX];
    int32_t n_trials;
} calibration;

/* Computes the text at this scale. */
static status try_scale(calibration *c, double scale, trial **out, err *e)
{
    char what[64];
    carat_session *s = NULL;
    trial *t = &c->at[c->n_trials];
    uint64_t seen = 0, kept = 0;
    status st;
    snprintf(what, sizeof what, "skip:%.6g", scale);
    carat_session_options so = {
        .n_ctx = (int32_t)c->n, .chunk = (int32_t)c->o->chunk, .checkpoint_mb = -1, .sparse = what};
    kv_options_apply_exact(&c->o->kv, &so);
    if ((st = carat_session_open(c->m, &so, &s, e)))
        return st;
    term_watch(s);
    *t = (trial){.scale = scale, .ms = clock_ms()};
    st = carat_eval(s, c->ids, c->n, NULL, NULL, e);
    t->ms = clock_ms() - t->ms;
    int32_t n = st ? 0 : carat_session_sparse(s, c->layer, LAYERS_MAX, false);
    for (int32_t i = 0; i < n && i < LAYERS_MAX; i++) {
        seen += c->layer[i].n_tiles;
        kept += c->layer[i].n_kept;
        if (c->layer[i].dropped_p99 >= t->p99) {
            t->p99 = c->layer[i].dropped_p99;
            t->layer = c->layer[i].layer;
        }
    }
    t->density = seen ? (double)kept / (double)seen : 1;
    term_watch(NULL);
    carat_session_close(s);
    if (st)
        return st;
    c->n_trials++;
    *out = t;
    if (!c->o->json) {
        printf("  %10.4g  %8.1f %%  %8.4f  %5d  %8.2f s\n", t->scale, 100 * t->density, t->p99,
               t->layer, t->ms * 1e-3);
        fflush(stdout);
    }
    return OK;
}

/* *best: the trial to recommend; NULL: even the first scale drops too much. */
static status search(calibration *c, const trial **best, err *e)
{
    double low = 0, high = 0;
    trial *t;
    const trial *found = NULL;
    status st;
    for (double scale = first_scale; scale <= last_scale; scale *= growth) {
        if ((st = try_scale(c, scale, &t, e)))
            return st;
        if (t->p99 > c->o->dropped) {
            high = scale;
            break;
        }
        low = scale;
        found = t;
    }
    for (int i = 0; high > 0 && low > 0 && i < HALVINGS; i++) {
        double scale = sqrt(low * high);
        if ((st = try_scale(c, scale, &t, e)))
            return st;
        if (t->p99 > c->o->dropped) {
            high = scale;
        } else {
            low = scale;
            found = t;
        }
    }
    *best = found;
    return OK;
}

static status print_json(const calibration *c, const carat_model_info *info, const trial *best,
                         err *e)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < c->n_trials; i++) {
        const trial *t = &c->at[i];
        json_array_append_new(all, json_pack("{s:f, s:f, s:f, s:i, s:f}", "scale", t->scale,
                                             "density", t->density, "dropped_p99", t->p99, "layer",
                                             (int)t->layer, "ms", t->ms));
    }
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:f, s:o*, s:o}", "model", info->name, "text",
                          c->o->text ? c->o->text : c->o->tokens, "device", info->device, "tokens",
                          (json_int_t)c->n, "dropped", c->o->dropped, "scale",
                          best ? json_real(best->scale) : NULL, "trials", all);
    if (!o)
        return err_memory(e, "the report", 0);
    bool ok = json_write(stdout, o, 0);
    json_decref(o);
    return ok ? OK : err_set(e, E_IO, "cannot write the report");
}

static void print_choice(const calibration *c, const carat_model_info *info, const trial *best)
{
    const calibrate_options *o = c->o;
    printf("measured on %s, %" PRId64 " tokens of %s, on %s\n", SHOWN(info->name), c->n,
           SHOWN(o->text ? o->text : o->tokens), SHOWN(info->device));
    if (best)
        printf(
            "--sparse skip:%.4g   reads %.0f %% of the tiles; 99 of 100 rows and heads drop less "
            "than %.3f in every layer\n",
            best->scale, 100 * best->density, best->p99 > 0 ? best->p99 : 1e-8);
    else
        printf("no scale: even %.4g drops more than %.3g; leave --sparse off for such texts\n",
               first_scale, o->dropped);
}

static status get_ids(calibration *c, err *e)
{
    const calibrate_options *o = c->o;
    status st = ids_given(c->m, o->text, o->tokens, o->limit, &c->ids, &c->n, e);
    if (!st && c->n < 2 * 128)
        st =
            err_set(e, E_ARG, "%s has %" PRId64 " tokens: expected 256 (two tiles of keys) or more",
                    o->text ? o->text : o->tokens, c->n);
    return st;
}

static int run_calibrate(const command *cmd, int argc, char **argv)
{
    calibrate_options o = {.dropped = dropped_usual};
    int n_operands, bad = options_parse(cmd, argc, argv, &o, &n_operands);
    calibration c = {.o = &o};
    carat_model_info info;
    const trial *best = NULL;
    err e = {0};
    status st;

    if (bad)
        return bad - 1;
    if (!o.tokens == !o.text)
        return fprintf(stderr, "carat calibrate-sparse: needs either --tokens or --text\n"
                               "Try 'carat calibrate-sparse --help'.\n"),
               2;
    term_init();
    run_options ro = {.threads = o.threads,
                      .isa = o.isa,
                      .where = o.where,
                      .exact = o.exact,
                      .overcommit = o.overcommit};
    if ((st = run_open_model(o.model, &ro, &c.m, &e)) || (st = get_ids(&c, &e)))
        goto out;
    carat_model_get_info(c.m, &info);
    c.layer = mem_calloc(LAYERS_MAX, sizeof *c.layer);
    if (!c.layer) {
        st = err_memory(&e, "the layers", LAYERS_MAX * sizeof *c.layer);
        goto out;
    }
    if (!o.json)
        printf("       scale  tiles read       p99  layer      prompt\n");
    if ((st = search(&c, &best, &e)))
        goto out;
    if (!o.json)
        print_choice(&c, &info, best);
    else if ((st = print_json(&c, &info, best, &e)))
        goto out;
    st = term_flush(&e);
out:
    term_watch(NULL);
    carat_model_close(c.m);
    mem_free(c.layer);
    mem_free(c.ids);
    return term_exit(st, &e);
}

const command command_calibrate_sparse = {
    .name = "calibrate-sparse",
    .operands = "",
    .summary = "Find the scale of skip-softmax for a model and a text",
    .about = "Computes the text with growing scales of --sparse skip:SCALE, and recommends the\n"
             "largest at which 99 of 100 rows and heads of every layer drop less than --dropped\n"
             "of their attention. The result holds for such texts of about this length.",
    .options = table,
    .run = run_calibrate};
