/* fit.c - `carat fit`: would a model run on this machine, and how? Of a model that is not here the
 * head alone is read (apps/hub/preview.c); the plan is the one that opens models.
 */
#include "apps/bench_int.h"
#include "apps/commands.h"
#include "apps/device_options.h"
#include "apps/fit_report.h"
#include "apps/hub/hub.h"
#include "apps/inspect_int.h"
#include "apps/kv_options.h"
#include "apps/term.h"
#include "base/json.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum { OTHERS_SHOWN = 16, SHORT_CTX = 4096 };

typedef struct fit_options {
    device_options where;
    kv_options kv;
    int64_t n_ctx;
    const char *file, *revision, *gpu;
    bool json;
} fit_options;

static const option table[] = {
    OPT_STR(fit_options, file, "file", 0, "PATH", "this file of the repository, instead of QUANT"),
    OPT_STR(fit_options, revision, "revision", 0, "REV", "a branch, tag or commit (default: main)"),
    OPT_STR(fit_options, gpu, "gpu", 0, "SIZES",
            "on GPUs of these sizes, such as 24GB or 8GB,12GB, instead of this machine"),
    OPT_INT(fit_options, n_ctx, "ctx", 'c', "N", 1, INT32_MAX,
            "with a context of N tokens (default: as carat run)"),
    OPT_KV(fit_options),
    OPT_DEVICE_OR_SIZES(fit_options, NULL, "gpus|device|gpu"),
    OPT_FLAG(fit_options, json, "json", 0, "print one JSON object"),
    OPT_END};

static bool go_on(void *user, const hub_progress *p)
{
    (void)user;
    if (*p->note)
        term_note("%s", p->note);
    return !term_interrupts();
}

/* How fast memory is read here; a tenth of a second. Of GPUs nothing is measured. */
static void measure(fit_report *r)
{
    bench_ceilings c;
    bench_ceilings_effort = (bench_effort){
        .rounds = 2, .loop_ms = 50, .read_min = 1 << 27, .read_max = 1 << 28, .read_alone = true};
    if (!r->info.on_gpu && r->runs && !bench_measure_ceilings(0, &c, NULL))
        r->read_bytes = c.read_bytes;
}

/* What one of the repository's files needs, by the plan of the other; 0: unknown. */
static uint64_t need_of(const fit_report *r, uint64_t n_bytes)
{
    const carat_memory_plan *p = &r->plan;
    uint64_t kv = p->kv_global_bytes, own = p->weight_bytes + kv;
    uint64_t rest = p->total_bytes > own ? p->total_bytes - own : 0;
    if (p->n_ctx) /* a context gives way to weights */
        rest += p->n_ctx > SHORT_CTX ? kv / (uint64_t)p->n_ctx * SHORT_CTX : kv;
    return p->n_ctx && !r->info.on_gpu && n_bytes < UINT64_MAX - rest ? rest + n_bytes : 0;
}

static void put_others(const fit_report *r)
{
    const hub_view *v = &r->view;
    if (v->n_others < 2)
        return;
    puts("Files of the repository");
    for (size_t i = 0; i < v->n_others && i < OTHERS_SHOWN; i++) {
        uint64_t need = need_of(r, v->other[i].n_bytes), there = r->plan.available_bytes;
        fputs("  ", stdout);
        term_put_name(stdout, v->other[i].quant, strlen(v->other[i].quant), 16);
        printf(" %9.2f GB%s\n", (double)v->other[i].n_bytes * 1e-9,
               !need || !there ? ""
               : need <= there ? "  fits"
                               : "  too large");
    }
    if (v->n_others > OTHERS_SHOWN)
        printf("  and %zu more\n", v->n_others - OTHERS_SHOWN);
}

static void put_report(const fit_report *r)
{
    const carat_memory_plan *p = &r->plan;
    const hub_view *v = &r->view;
    term_put(stdout, r->name, strlen(r->name));
    if (r->n_bytes)
        printf(": %.2f GB", (double)r->n_bytes * 1e-9);
    if (v->path)
        printf(" to pull");
    if (v->tower_bytes)
        printf(", and a vision tower of %.2f GB", (double)v->tower_bytes * 1e-9);
    putchar('\n');
    if (!r->runs) {
        fputs("Does not run here: ", stdout);
        term_put(stdout, r->why.text, strlen(r->why.text));
        putchar('\n');
    } else {
        printf("Runs on %s", r->info.device);
        printf("%s%s\n", *r->info.fit_text ? ": " : "", r->info.fit_text);
        printf("  a context of %d of %d tokens, prompts in chunks of %d\n", (int)p->n_ctx,
               (int)r->info.n_ctx_train, (int)p->chunk);
        device_print_plan(stdout, p);
        if (v->tower_bytes && !r->info.mmproj)
            puts("  without the vision tower, which does not fit or is none for this model");
        printf("  a token reads %.2f GB of weights", (double)r->info.active_bytes_per_token * 1e-9);
        if (fit_tokens_per_second(r) > 0)
            printf(", and memory gives %.1f GB/s (measured now): at most about %.*f tokens/s",
                   r->read_bytes * 1e-9, fit_tokens_per_second(r) < 10 ? 1 : 0,
                   fit_tokens_per_second(r));
        putchar('\n');
    }
    put_others(r);
}

static status put_json(const fit_report *r, err *e)
{
    json_t *o = fit_json(r);
    status st = !o ? err_memory(e, "the report", 0)
                : json_write(stdout, o, JSON_INDENT(1))
                    ? OK
                    : err_set(e, E_IO, "cannot write to standard output");
    json_decref(o);
    return st;
}

static int run_fit(const command *c, int argc, char **argv)
{
    fit_options o = {0};
    int n, stop = options_parse(c, argc, argv, &o, &n);
    fit_report r = {0};
    carat_model_options mo = {.vocab_only = true, .mmproj = "auto"};
    carat_session_options so = {.n_outputs = 1}; /* as carat run */
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL);
    device_options_apply(&o.where, &mo);
    so.n_ctx = (int32_t)o.n_ctx;
    kv_options_apply(&o.kv, &so);
    mo.session = &so;
    if (!mo.device && !mo.gpus && !mo.split && !mo.gpu_split && !o.gpu)
        mo.gpus = "auto"; /* GPUs are looked for, though nothing is loaded */
    status st = o.gpu && (o.where.gpu_mb || device_lists_gpus(&o.where))
                    ? err_set(&e, E_ARG, "%s of GPUs that are here: --gpu has sizes of its own",
                              o.where.gpu_mb ? "--gpu-mb is the memory" : "--gpus are the numbers")
                    : fit_find(&r,
                               &(hub_ask){.what = argv[0],
                                          .file = o.file,
                                          .revision = o.revision,
                                          .progress = go_on},
                               true, &e);
    if (!st && o.gpu)
        st = inspect_gpus(r.path, o.gpu, &mo, &so, o.json, &e);
    else if (!st && !(st = fit_plan(&r, &mo, &so, 1, &e))) {
        measure(&r);
        st = o.json ? put_json(&r, &e) : (put_report(&r), OK);
    }
    if (!st)
        st = term_flush(&e);
    hub_view_sentence(&r.view, &e);
    bool runs = o.gpu || r.runs;
    fit_free(&r);
    return !st && !runs ? 1 : term_exit_use(st, &e);
}

const command command_fit = {
    .name = "fit",
    .operands = "MODEL",
    .summary = "Say whether a model runs on this machine, and how, before it is pulled",
    .about =
        "MODEL is a file, a model that is here, or one of a hub as carat pull takes it. Of the\n"
        "latter carat reads the list of files and the head of one, some megabytes. It prints\n"
        "memory, context, what does not fit, and how many tokens a second the memory of this\n"
        "machine allows at most. The status is 0 if the model runs, else 1.",
    .options = table,
    .n_operands_min = 1,
    .n_operands_max = 1,
    .run = run_fit};
