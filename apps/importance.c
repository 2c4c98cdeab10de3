/* importance.c - `carat importance`: which parts of a text its end attends to.
 *
 * A text or token ids in; for each chunk of tokens the mean value of carat_importance out, with the
 * beginning of its text. A small model that answers this quickly can say which parts of a prompt a
 * large one needs.
 */
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/run_int.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/show.h"
#include "base/str.h"

#include <inttypes.h>

typedef struct importance_options {
    const char *model, *tokens, *text, *isa;
    kv_options kv;
    device_options where;
    int64_t chunk, batch, threads, limit;
    bool normal, json, overcommit, exact;
} importance_options;

static const option table[] = {
    OPT_STR(importance_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list)"),
    OPT_STR(importance_options, text, "text", 0, "FILE", "a text"),
    OPT_STR(importance_options, tokens, "tokens", 0, "FILE",
            "token ids instead: a file, int32 little-endian or numbers with commas between, or the "
            "numbers"),
    OPT_INT(importance_options, limit, "limit", 'n', "N", 2, 1 << 24, "only the first N tokens"),
    OPT_INT(importance_options, chunk, "chunk", 0, "N", 1, 1 << 20,
            "tokens of a line (default: 64)"),
    OPT_FLAG(importance_options, normal, "normal", 0,
             "values less their mean, over their standard deviation"),
    OPT_INT(importance_options, batch, "batch", 0, "N", 1, 1 << 24, "tokens per pass"),
    OPT_THREADS(importance_options),
    OPT_KV(importance_options),
    OPT_EXACT(importance_options),
    OPT_DEVICE(importance_options),
    OPT_ISA(importance_options),
    OPT_OVERCOMMIT(importance_options),
    OPT_FLAG(importance_options, json, "json", 0, "print JSON"),
    OPT_END};

typedef struct importance_run {
    carat_model *m;
    carat_session *s;
    int32_t *ids;
    int64_t n, n_chunks;
    float *value, *chunk; /* of tokens; of chunks */
} importance_run;

static status compute(const importance_options *o, importance_run *r, err *e)
{
    carat_session_options so = {
        .n_ctx = (int32_t)r->n, .chunk = (int32_t)o->batch, .checkpoint_mb = -1};
    status st;
    kv_options_apply_exact(&o->kv, &so);
    if ((st = carat_session_open(r->m, &so, &r->s, e)))
        return st;
    term_watch(r->s);
    r->value = mem_calloc((size_t)r->n, sizeof *r->value);
    r->chunk = mem_calloc((size_t)r->n, sizeof *r->chunk);
    if (!r->value || !r->chunk)
        return err_memory(e, "the importance of tokens", (size_t)r->n * 2 * sizeof *r->value);
    if ((st = carat_importance(r->s, r->ids, r->n, r->value, e)))
        return st;
    r->n_chunks = carat_importance_chunks(r->value, r->n, (int32_t)o->chunk, o->normal, r->chunk);
    return OK;
}

/* The text of tokens from .. to - 1, cut after `cap` bytes. */
static void put_text(str *out, const importance_run *r, int64_t from, int64_t to, size_t cap)
{
    for (int64_t i = from; i < to && out->n < cap; i++) {
        const char *piece;
        int32_t n = carat_token_bytes(r->m, r->ids[i], true, &piece);
        str_put(out, piece, n > 0 ? (size_t)n : 0);
    }
}

static status print_lines(const importance_options *o, const importance_run *r, err *e)
{
    enum { SHOWN_BYTES = 48 };
    status st = OK;
    for (int64_t i = 0; i < r->n_chunks && !st; i++) {
        int64_t from = i * o->chunk, to = from + o->chunk < r->n ? from + o->chunk : r->n;
        str text = {0}, line = {0};
        put_text(&text, r, from, to, SHOWN_BYTES);
        show_put(&line, str_text(&text), text.n < SHOWN_BYTES ? text.n : SHOWN_BYTES, SHOW_NAME);
        if (text.bad || line.bad)
            st = err_memory(e, "a line", 0);
        else
            printf("%7" PRId64 " %7" PRId64 "  %9.5f  %s\n", from, to, (double)r->chunk[i],
                   str_text(&line));
        str_free(&line);
        str_free(&text);
    }
    return st;
}

static json_t *numbers(const float *x, int64_t n)
{
    json_t *a = json_array();
    for (int64_t i = 0; i < n && a; i++)
        if (json_array_append_new(a, json_real(x[i]))) {
            json_decref(a);
            a = NULL;
        }
    return a;
}

static status print_json(const importance_options *o, const importance_run *r, err *e)
{
    json_t *v =
        json_pack("{s:I, s:I, s:o, s:o}", "tokens", (json_int_t)r->n, "chunk", (json_int_t)o->chunk,
                  "chunks", numbers(r->chunk, r->n_chunks), "values", numbers(r->value, r->n));
    if (!v)
        return err_memory(e, "the report", 0);
    bool ok = json_write(stdout, v, 0);
    json_decref(v);
    return ok ? OK : err_set(e, E_IO, "cannot write the report");
}

static int run_importance(const command *c, int argc, char **argv)
{
    importance_options o = {.chunk = 64};
    importance_run r = {0};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    carat_model_info info;
    err e = {0};
    status st;

    if (bad)
        return bad - 1;
    if (!o.tokens == !o.text)
        return fprintf(stderr, "carat importance: needs either --text or --tokens\n"
                               "Try 'carat importance --help'.\n"),
               2;
    term_init();
    term_watch(NULL);
    double start_ms = clock_ms();
    run_options ro = {.threads = o.threads,
                      .isa = o.isa,
                      .where = o.where,
                      .exact = o.exact,
                      .overcommit = o.overcommit};
    if ((st = run_open_model(o.model, &ro, &r.m, &e)) ||
        (st = ids_given(r.m, o.text, o.tokens, o.limit, &r.ids, &r.n, &e)) ||
        (st = compute(&o, &r, &e)))
        goto out;
    carat_model_get_info(r.m, &info);
    if (!(st = o.json ? print_json(&o, &r, &e) : print_lines(&o, &r, &e)) && !(st = term_flush(&e)))
        term_note("%" PRId64 " tokens in %.2f s on %s", r.n, (clock_ms() - start_ms) * 1e-3,
                  info.device);
out:
    term_watch(NULL);
    carat_session_close(r.s);
    carat_model_close(r.m);
    mem_free(r.value);
    mem_free(r.chunk);
    mem_free(r.ids);
    return term_exit(st, &e);
}

const command command_importance = {
    .name = "importance",
    .operands = "",
    .summary = "Show which parts of a text its end attends to",
    .about = "Computes a text with a small model, such as Qwen3-0.6B, and prints a value for each\n"
             "64 tokens: how much the last eight tokens attend to them, before the rotation, as\n"
             "the largest share of any head. Where a large model has no room for a whole text,\n"
             "the parts with small values are those to leave out. On CPUs only.",
    .options = table,
    .run = run_importance};
