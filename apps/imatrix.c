/* imatrix.c - `carat imatrix`: how much each input of each matrix matters, for `carat quantize`.
 *
 * The text is cut into chunks, each a sequence of its own. The model computes them, and sums the
 * squares of what goes into its products. Every token's logits are wanted: else the last layers
 * would see few rows. An encoder makes an embedding of each chunk.
 */
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/named.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "format/imatrix.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    PASS_BYTES = 64 << 20 /* of the logits of a pass */
};

typedef struct imatrix_options {
    const char *model, *text, *tokens, *out, *device, *isa;
    int64_t n_ctx, n_chunks, threads;
    bool exact, overcommit;
} imatrix_options;

static const option table[] = {
    OPT_STR(imatrix_options, model, "model", 'm', "FILE",
            "a GGUF file, best in f16 or bf16, or the name of a model (carat list)"),
    OPT_STR(imatrix_options, text, "text", 'f', "FILE", "a text like those that the model is for"),
    OPT_STR(imatrix_options, tokens, "tokens", 0, "FILE",
            "token ids instead: a file, int32 little-endian or numbers with commas between, or the "
            "numbers"),
    OPT_STR(imatrix_options, out, "output", 'o', "FILE", "the importance file, GGUF"),
    OPT_INT(imatrix_options, n_ctx, "ctx", 'c', "N", 2, 1 << 24,
            "tokens of a chunk, with the begin token (default: 512)"),
    OPT_INT(imatrix_options, n_chunks, "chunks", 0, "N", 1, 1 << 24,
            "only the first N chunks (default: all)"),
    OPT_THREADS(imatrix_options),
    OPT_EXACT(imatrix_options),
    OPT_STR(imatrix_options, device, "device", 0, "NAME",
            "cpu (default), cuda or cuda:N; a GPU must hold the whole model",
            .words = "cpu cuda cuda:0"),
    OPT_ISA(imatrix_options),
    OPT_OVERCOMMIT(imatrix_options),
    OPT_END};

typedef struct imatrix_run {
    carat_model *m;
    carat_session *s;
    int32_t *ids; /* [n], without begin tokens */
    int64_t n, first;
    int32_t *chunk; /* [n_ctx] */
    int32_t n_ctx, bos;
    float *vector; /* [n_embd], of an encoder */
    uint32_t n_done;
} imatrix_run;

static bool show_progress(void *user, int64_t first, int64_t n, const float *rows)
{
    imatrix_run *r = user;
    (void)n, (void)rows;
    return term_progress(NULL, "tokens", (uint64_t)(r->first + first), (uint64_t)r->n);
}

static status compute_chunk(imatrix_run *r, const int32_t *ids, int64_t n, err *e)
{
    if (!r->vector)
        return carat_eval_rows(r->s, ids, n, show_progress, r, e);
    if (!show_progress(r, 0, 0, NULL))
        return err_set(e, E_CANCELLED, "interrupted");
    return carat_embed(r->s, ids, n, CARAT_POOL_MEAN, r->vector, e);
}

/* E_CANCELLED: after Ctrl-C; the sums have what was computed. */
static status compute(imatrix_run *r, int64_t n_chunks, err *e)
{
    int64_t n_bos = r->bos >= 0;
    status st = OK;
    while (!st && r->first < r->n && (!n_chunks || r->n_done < n_chunks)) {
        int64_t left = r->n - r->first, n = r->n_ctx - n_bos < left ? r->n_ctx - n_bos : left;
        if (n_bos)
            r->chunk[0] = r->bos;
        memcpy(r->chunk + n_bos, r->ids + r->first, (size_t)n * sizeof *r->ids);
        if (!(st = compute_chunk(r, r->chunk, n_bos + n, e))) {
            r->first += n;
            r->n_done++;
        }
    }
    term_progress_clear();
    return st;
}

static status open_session(imatrix_run *r, err *e)
{
    carat_model_info info;
    carat_model_get_info(r->m, &info);
    bool encoder = carat_model_is_encoder(r->m);
    int64_t fit = PASS_BYTES / ((int64_t)info.n_vocab * 4);
    int32_t rows = (int32_t)(fit < 1 ? 1 : fit < r->n_ctx ? fit : r->n_ctx);
    carat_session_options so = {.n_ctx = r->n_ctx,
                                .chunk = encoder ? 0 : rows,
                                .n_outputs = encoder ? 0 : rows,
                                .checkpoint_mb = -1};
    size_t n = encoder ? (size_t)info.n_embd : 0;
    r->chunk = mem_calloc((size_t)r->n_ctx, sizeof *r->chunk);
    r->vector = n ? mem_calloc(n, sizeof *r->vector) : NULL;
    if (!r->chunk || (n && !r->vector))
        return err_memory(e, "a chunk of the text", (size_t)r->n_ctx * sizeof *r->chunk);
    return carat_session_open(r->m, &so, &r->s, e);
}

/* Experts that no token has reached weigh their inputs alike. */
static void tell_unused(const imatrix_sums *x, uint64_t n)
{
    uint64_t n_all = 0, n_unused = 0;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < x[i].n_mat; k++) {
            n_all++;
            n_unused += x[i].n[k] == 0;
        }
    if (n_unused)
        term_note("no token went to %" PRIu64 " of %" PRIu64
                  " matrices of experts; their inputs count alike. A longer text reaches more",
                  n_unused, n_all);
}

static status write_sums(const imatrix_run *r, const imatrix_options *o, err *e)
{
    const char *text = o->text ? o->text : o->tokens, *name = strrchr(text, '/');
    const imatrix_source from = {name ? name + 1 : text, r->n_done, (uint32_t)r->n_ctx};
    carat_input_sums s;
    int32_t n = 0;
    while (carat_input_sums_at(r->m, n, &s))
        n++;
    imatrix_sums *x = mem_calloc((size_t)n + 1, sizeof *x);
    if (!x)
        return err_memory(e, "the list of tensors", (size_t)n * sizeof *x);
    for (int32_t i = 0; i < n && carat_input_sums_at(r->m, i, &s); i++)
        x[i] = (imatrix_sums){s.tensor, (uint64_t)s.n_in, (uint64_t)s.n_mat, s.sum2, s.n};
    status st = imatrix_write(o->out, x, (uint64_t)n, &from, e);
    if (!st)
        tell_unused(x, (uint64_t)n);
    if (!st)
        term_note("%s: importance of %d tensors, from %" PRIu32 " chunks of %d tokens", o->out, n,
                  r->n_done, r->n_ctx);
    mem_free(x);
    return st;
}

static status open_text(imatrix_run *r, const imatrix_options *o, err *e)
{
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .exact_f32 = o->exact,
                              .overcommit = o->overcommit,
                              .isa = o->isa,
                              .device = o->device ? o->device : "cpu",
                              .sum_inputs = true,
                              .progress = term_progress};
    status st = named_open(o->model, &mo, &r->m, e);
    if (st || (st = ids_given(r->m, o->text, o->tokens, 0, &r->ids, &r->n, e)))
        return st;
    r->bos = carat_token_bos(r->m);
    int64_t skip = r->n && r->ids[0] == r->bos; /* each chunk gets its own */
    if (r->bos >= 0 && o->text && !skip)
        r->bos = -1; /* this model's texts begin without it */
    r->n -= skip;
    memmove(r->ids, r->ids + skip, (size_t)r->n * sizeof *r->ids);
    if (!r->n)
        return err_set(e, E_ARG, "%s has no tokens", o->text ? o->text : o->tokens);
    int64_t most = r->n + (r->bos >= 0);
    r->n_ctx = (int32_t)(o->n_ctx < most ? o->n_ctx : most);
    return open_session(r, e);
}

static int run_imatrix(const command *c, int argc, char **argv)
{
    imatrix_options o = {.n_ctx = 512};
    imatrix_run r = {0};
    int rc = 0, n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    err e = {0}, failed = {0};
    status st;
    if (bad)
        return bad - 1;
    if (!o.model || !o.out || !o.text == !o.tokens)
        return fprintf(stderr, "carat imatrix: needs --model, --output and either --text or "
                               "--tokens\nTry 'carat imatrix --help'.\n"),
               2;
    term_init();
    term_watch(NULL);
    double start_ms = clock_ms();
    if ((st = open_text(&r, &o, &e)))
        goto out;
    term_watch(r.s);
    st = compute(&r, o.n_chunks, &e);
    term_watch(NULL);
    if (!st || (st == E_CANCELLED && r.n_done)) {
        bool cut = st == E_CANCELLED;
        st = write_sums(&r, &o, &failed);
        e = failed;
        if (!st && cut) {
            term_note("interrupted: that is a part of the text");
            rc = EXIT_INTERRUPTED;
        }
    }
    if (!st && !rc)
        term_note("%" PRId64 " tokens in %.1f s", r.first, (clock_ms() - start_ms) * 1e-3);
out:
    term_watch(NULL);
    carat_session_close(r.s);
    carat_model_close(r.m);
    mem_free(r.ids);
    mem_free(r.chunk);
    mem_free(r.vector);
    return st ? term_exit_use(st, &e) : rc;
}

const command command_imatrix = {
    .name = "imatrix",
    .operands = "",
    .summary = "Measure how much each input of each matrix matters, for quantize",
    .about =
        "Computes a text and writes an importance file: for each matrix the sums of the squares\n"
        "of its inputs, for experts of the rows that were routed to each. `carat quantize\n"
        "--imatrix` and llama-quantize read it. The text is cut into chunks of --ctx tokens. A\n"
        "hundred chunks of mixed text are usual. Ctrl-C writes what was summed up so far.",
    .options = table,
    .run = run_imatrix};
