/* quantize.c - carat quantize: a GGUF file with its weights in another format.
 *
 * On all threads, while the file is written, rows are decoded, encoded, and decoded again to
 * measure the error. The rest of the file is copied. The formats of tensors come from the table
 * that synth and convert use (model/shapes.c); the name of a tensor says its role, in all
 * GGUF models.
 */
#include "apps/commands.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "format/gguf_stream.h"
#include "model/shapes.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct quantize_options {
    int64_t n_threads;
    bool again, json;
} quantize_options;

static const option table[] = {
    OPT_INT(quantize_options, n_threads, "threads", 't', "N", 1, 256,
            "threads (default: all cores)"),
    OPT_FLAG(quantize_options, again, "again", 0, "accept a file that is quantised already"),
    OPT_FLAG(quantize_options, json, "json", 0, "print the errors as JSON lines"), OPT_END};

enum { NAME_WIDTH = 40 };

/* One tensor: what it becomes, and what that costs. */
typedef struct work_item {
    const tensor *from;
    num_type to;
    double square, lost; /* sums of squares: of the values, of their errors */
    float worst;         /* largest error */
} work_item;

typedef struct work_list {
    work_item *at;
    uint64_t n;
    pthread_mutex_t lock; /* of the sums */
} work_list;

/* ---- Which tensor gets which format -------------------------------------------------------- */

static bool name_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* A DFlash drafter has no embedding of its own, and its attn_gate has one row per head; that of a
 * model with recurrent layers is a large matrix. An embedding beside a separate head is looked up
 * alone, so it needs no more bits than other matrices. */
static tensor_role role_of(const tensor *t, const gguf *g)
{
    bool drafter = !tensor_find(&g->tensors, "token_embd.weight");
    static const struct {
        const char *end;
        tensor_role role;
    } names[] = {
        {"per_layer_token_embd.weight", ROLE_PLE_EMBD},
        {"per_layer_model_proj.weight", ROLE_PLE_PROJ},
        {"token_embd.weight", ROLE_EMBD},
        {"output.weight", ROLE_EMBD}, /* a separate head; attn_output was handled above */
        {"ffn_gate_inp.weight", ROLE_ROUTER},
        {"attn_v.weight", ROLE_ATTN_V},
        {"ffn_down.weight", ROLE_FFN_DOWN},
        {"ffn_down_exps.weight", ROLE_DOWN_EXPERTS},
        {"ffn_down_shexp.weight", ROLE_FFN_DOWN},
        /* of drafters, in all dialects */
        {"dflash.fc.weight", ROLE_EIGHT_BITS},
        {"dflash_fc.weight", ROLE_EIGHT_BITS},
        {"enc.aux_norm.weight", ROLE_NORM},
        {"ssm_conv1d.weight", ROLE_TAPS},
        {"markov_w1.weight", ROLE_HALF},
        {"markov.w1.weight", ROLE_HALF},
        {"markov_w2.weight", ROLE_EIGHT_BITS},
        {"markov.w2.weight", ROLE_EIGHT_BITS},
        {"centroids.weight", ROLE_EIGHT_BITS},
        {"nextn.eh_proj.weight", ROLE_EIGHT_BITS},
    };
    if (t->ne[1] == 1 && t->ne[2] == 1)
        return ROLE_NORM; /* vectors of every kind stay as they are */
    if (!name_ends_with(t->name, ".weight"))
        return ROLE_ROUTER;
    if (!strcmp(t->name, "fc.weight"))
        return ROLE_EIGHT_BITS;
    if (!strcmp(t->name, "token_embd.weight") && tensor_find(&g->tensors, "output.weight"))
        return ROLE_MATRIX;
    if (drafter && name_ends_with(t->name, "attn_gate.weight"))
        return ROLE_HALF;
    if (!name_ends_with(t->name, "attn_output.weight"))
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (name_ends_with(t->name, names[i].end))
                return names[i].role;
    return ROLE_MATRIX;
}

static bool is_float_type(uint32_t type)
{
    return type == NUM_F32 || type == NUM_F16 || type == NUM_BF16;
}

static status check_quantizable(const tensor *t, const quantize_options *o, const char *path,
                                err *e)
{
    const num_format *f = num_format_of(t->type);
    if (!f || !f->decode)
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s is in format %s, which carat cannot read",
                       path, t->name, num_name(t->type));
    if (!is_float_type(t->type) && !o->again)
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor %s is %s already, and quantising twice loses twice: --again "
                       "does it all the same",
                       path, t->name, f->name);
    return OK;
}

static status plan_work(work_list *l, const gguf *g, const weight_mix *mix,
                        const quantize_options *o, err *e)
{
    uint64_t n = g->tensors.n;
    shape_tensor *roles = NULL;
    status st = OK;
    if (n > SHAPE_TENSORS_MAX) /* the mixes look at all tensors for each */
        return err_set(e, E_LIMIT, "%s: %" PRIu64 " tensors; a model has at most %d", g->path, n,
                       SHAPE_TENSORS_MAX);
    l->n = n;
    l->at = mem_calloc((size_t)n, sizeof *l->at);
    roles = mem_calloc((size_t)n, sizeof *roles);
    if (!l->at || !roles) {
        st = err_memory(e, "the list of tensors", (size_t)n * sizeof *roles);
        goto out;
    }
    for (uint64_t i = 0; i < n; i++) {
        const tensor *t = &g->tensors.at[i];
        roles[i].role = role_of(t, g);
        memcpy(roles[i].ne, t->ne, sizeof t->ne);
    }
    for (uint64_t i = 0; i < n && !st; i++) {
        const tensor *t = &g->tensors.at[i];
        l->at[i].from = t;
        l->at[i].to = (num_type)t->type;
        if (roles[i].role == ROLE_NORM || roles[i].role == ROLE_ROUTER ||
            roles[i].role == ROLE_TAPS)
            continue;
        if (!(st = check_quantizable(t, o, g->path, e)))
            l->at[i].to = weight_mix_type(mix, roles, (int32_t)n, (int32_t)i);
    }
out:
    mem_free(roles);
    return st;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void add_loss(work_item *sum, const float *x, const float *y, uint64_t n)
{
    double square = 0, lost = 0;
    float worst = sum->worst;
    for (uint64_t i = 0; i < n; i++) {
        float d = fabsf(x[i] - y[i]);
        square += (double)x[i] * x[i];
        lost += (double)d * d;
        worst = d > worst ? d : worst;
    }
    sum->square += square;
    sum->lost += lost;
    sum->worst = worst;
}

static status fill_rows(void *user, uint64_t i, uint64_t first, uint64_t n_rows, void *dst, err *e)
{
    work_list *l = user;
    work_item *it = &l->at[i];
    uint64_t n = it->from->ne[0], from_bytes = 0, to_bytes = 0;
    const num_format *from = num_format_of(it->from->type), *to = num_format_of(it->to);
    status st = OK;
    num_row_bytes(it->from->type, n, &from_bytes);
    num_row_bytes(it->to, n, &to_bytes);
    if (it->from->type == it->to) {
        memcpy(dst, it->from->bytes + first * from_bytes, (size_t)(n_rows * to_bytes));
        return OK;
    }
    float *x = mem_calloc((size_t)n, 2 * sizeof *x);
    if (!x)
        return err_memory(e, "a row of weights", (size_t)n * 2 * sizeof *x);
    work_item sum = {0};
    for (uint64_t r = 0; r < n_rows && !st; r++) {
        unsigned char *row = (unsigned char *)dst + r * to_bytes;
        from->decode(it->from->bytes + (first + r) * from_bytes, x, (int64_t)n);
        if ((st = tensor_check_row(it->from, first + r, x, it->to, e)))
            break;
        to->encode(x, row, (int64_t)n);
        to->decode(row, x + n, (int64_t)n);
        add_loss(&sum, x, x + n, n);
    }
    mem_free(x);
    pthread_mutex_lock(&l->lock);
    it->square += sum.square;
    it->lost += sum.lost;
    it->worst = sum.worst > it->worst ? sum.worst : it->worst;
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* ---- The file ------------------------------------------------------------------------------ */

/* Keys about the file itself, which the new file sets anew. */
static bool is_own(const char *key)
{
    return !strcmp(key, "general.file_type") || !strcmp(key, "general.quantization_version") ||
           !strcmp(key, "general.alignment") || !strncmp(key, "split.", 6);
}

static void declare(gguf_writer *w, const gguf *g, const work_list *l, const weight_mix *mix,
                    stream_tensor *rows)
{
    for (uint64_t i = 0; i < g->n_values; i++)
        if (!is_own(g->value[i].key))
            gguf_put_value(w, &g->value[i]);
    gguf_put_u32(w, "general.file_type", (uint32_t)mix->file_type);
    gguf_put_u32(w, "general.quantization_version", 2);
    for (uint64_t i = 0; i < l->n; i++) {
        const tensor *t = l->at[i].from;
        rows[i].n_rows = t->ne[1] * t->ne[2] * t->ne[3]; /* checked when the file was opened */
        num_row_bytes(l->at[i].to, t->ne[0], &rows[i].row_bytes);
        gguf_put_tensor(w, t->name, l->at[i].to, t->n_dims, t->ne);
    }
}

typedef struct target {
    const char *path;
    const weight_mix *mix;
    int32_t n_threads;
    uint64_t n_bytes; /* of the file, once it is written */
} target;

static status write_quantized(target *to, const gguf *g, work_list *l, err *e)
{
    gguf_writer *w = NULL;
    pool *threads = NULL;
    stream_tensor *rows = mem_calloc((size_t)l->n, sizeof *rows);
    status st;
    if (!rows)
        return err_memory(e, "the list of tensors", (size_t)l->n * sizeof *rows);
    if ((st = pool_open(&threads, to->n_threads, e)) || (st = gguf_create(&w, to->path, e)))
        goto out;
    declare(w, g, l, to->mix, rows);
    if ((st = gguf_write_header(w, e)))
        goto out;
    to->n_bytes = gguf_planned_bytes(w);
    const stream_source from = {rows, l->n, fill_rows, l, term_progress, NULL};
    if ((st = gguf_stream(w, &from, threads, e)))
        goto out;
    st = gguf_commit(w, e);
    w = NULL;
out:
    gguf_discard(w);
    pool_close(threads);
    mem_free(rows);
    return st;
}

/* ---- The report ---------------------------------------------------------------------------- */

static double relative(double lost, double square)
{
    return square > 0 ? sqrt(lost / square) : 0;
}

/* JSON has no word for what a tensor of infinities gives. */
static json_t *number_json(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void print_losses_json(const work_item *it)
{
    const char *name = it->from->name;
    json_t *o = json_pack("{s:o, s:s, s:s, s:I, s:o, s:o}", "tensor",
                          json_lossy_text(name, strlen(name)), "from", num_name(it->from->type),
                          "to", num_name(it->to), "elements", (json_int_t)it->from->n_elements,
                          "relative_error", number_json(relative(it->lost, it->square)),
                          "worst_error", number_json((double)it->worst));
    if (o)
        json_write(stdout, o, JSON_REAL_PRECISION(9));
    json_decref(o);
}

static void print_loss(const work_list *l, bool json)
{
    double lost = 0, square = 0;
    if (!json)
        printf("%-40s %-18s %-14s %10s %10s\n", "tensor", "shape", "format", "error", "worst");
    for (uint64_t i = 0; i < l->n; i++) {
        const work_item *it = &l->at[i];
        char shape[96];
        if (it->from->type == it->to)
            continue;
        if (json) {
            print_losses_json(it);
            continue;
        }
        tensor_shape_text(it->from, shape, sizeof shape);
        term_put_name(stdout, it->from->name, strlen(it->from->name), 0);
        int pad = NAME_WIDTH - (int)strlen(it->from->name);
        printf("%*s %-18s %4s to %-6s %9.4f%% %10.3g\n", pad > 0 ? pad : 0, "", shape,
               num_name(it->from->type), num_name(it->to), 100 * relative(it->lost, it->square),
               (double)it->worst);
        lost += it->lost;
        square += it->square;
    }
    if (!json)
        printf("%-40s %-18s %-14s %9.4f%%\n", "all of these", "", "", 100 * relative(lost, square));
}

static status quantize(const char *from, const quantize_options *o, target *to, err *e)
{
    gguf g = {0};
    work_list l = {0};
    status st = gguf_open(&g, from, false, NULL, NULL, e);
    if (st)
        return st;
    if (pthread_mutex_init(&l.lock, NULL)) {
        gguf_close(&g);
        return err_set(e, E_MEMORY, "cannot make a lock");
    }
    if (!(st = plan_work(&l, &g, to->mix, o, e)) && !(st = write_quantized(to, &g, &l, e))) {
        term_progress_clear();
        print_loss(&l, o->json);
    }
    pthread_mutex_destroy(&l.lock);
    mem_free(l.at);
    gguf_close(&g);
    return st;
}

static int run_quantize(const command *c, int argc, char **argv)
{
    quantize_options o = {.n_threads = pool_default_threads()};
    int n_operands, stop = options_parse(c, argc, argv, &o, &n_operands);
    double start_ms = clock_ms();
    err e = {0};
    status st;
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL); /* Ctrl-C ends the writing, and leaves no half file */
    const weight_mix *mix = weight_mix_named(argv[2]);
    target to = {argv[1], mix, (int32_t)o.n_threads, 0};
    if (!mix || !weight_mix_writes(mix))
        st = err_set(&e, E_ARG, "carat writes no type %.40s; the types are %s", argv[2],
                     weight_mix_names);
    else
        st = quantize(argv[0], &o, &to, &e);
    return term_wrote(argv[1], to.n_bytes, start_ms, st, &e);
}

const command command_quantize = {
    .name = "quantize",
    .operands = "IN.gguf OUT.gguf TYPE",
    .summary = "Write a model file with its weights in another format",
    .about =
        "TYPE is q4_0, q4_k_m, q5_k_m, q6_k, q8_0, or any other of the types of synth that carat "
        "writes. Norms,\n"
        "scales and routers stay as they are; embeddings and some layers of a mix get more\n"
        "bits, and rows that a format's blocks do not divide get the next wider one. For each\n"
        "tensor that changed the error is printed: the root mean square of what was lost, as a\n"
        "part of the values', and the largest single difference. The output appears only when\n"
        "it is complete.",
    .options = table,
    .n_operands_min = 3,
    .n_operands_max = 3,
    .run = run_quantize};
