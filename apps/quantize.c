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
#include "format/imatrix.h"
#include "model/shapes.h"
#include "base/str.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct quantize_options {
    int64_t n_threads;
    bool again, json;
    const char *imatrix;
} quantize_options;

static const option table[] = {
    OPT_INT(quantize_options, n_threads, "threads", 't', "N", 1, 256,
            "threads (default: all cores)"),
    OPT_STR(quantize_options, imatrix, "imatrix", 0, "FILE",
            "how much each input of a matrix matters: an importance file of carat imatrix or "
            "llama.cpp (GGUF or "
            ".dat). The types iq1_*, iq2_*, iq3_xxs and iq3_xs need one"),
    OPT_FLAG(quantize_options, again, "again", 0, "accept a file that is quantised already"),
    OPT_FLAG(quantize_options, json, "json", 0, "print the errors as JSON lines"), OPT_END};

enum { NAME_WIDTH = 40 };

/* One tensor: what it becomes, and what that costs. */
typedef struct work_item {
    const tensor *from; /* NULL: factors, which the old file lacks */
    num_type to;
    float *factor; /* of each matrix; NULL: the format has none */
    /* The matrices that this tensor, NAME.scale, has the factors of. The values of the old file, if
     * it has any, are multiplied by them: Gemma 4 keeps the scales of its experts there. */
    const struct work_item *factors_of;
    const float *importance; /* of the inputs of each matrix; NULL: all are equal */
    double square, lost;     /* sums of squares: of the values, of their errors */
    float worst;             /* largest error */
} work_item;

typedef struct work_list {
    work_item *at;
    uint64_t n;
    pthread_mutex_t lock; /* of the sums */
} work_list;

/* ---- Which tensor gets which format -------------------------------------------------------- */

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
    if (!text_ends_with(t->name, ".weight"))
        return ROLE_ROUTER;
    if (!strcmp(t->name, "fc.weight"))
        return ROLE_EIGHT_BITS;
    if (!strcmp(t->name, "token_embd.weight") && tensor_find(&g->tensors, "output.weight"))
        return ROLE_MATRIX;
    if (drafter && text_ends_with(t->name, "attn_gate.weight"))
        return ROLE_HALF;
    if (!text_ends_with(t->name, "attn_output.weight"))
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (text_ends_with(t->name, names[i].end))
                return names[i].role;
    return ROLE_MATRIX;
}

static bool is_float_type(uint32_t type)
{
    return type == NUM_F32 || type == NUM_F16 || type == NUM_BF16;
}

/* NAME.scale for NAME.weight: where NVFP4 has the factors of its matrices. */
static const char *factor_name(const tensor *t, char *buf, size_t cap)
{
    int n = (int)(strlen(t->name) - strlen(".weight"));
    snprintf(buf, cap, "%.*s.scale", n, t->name);
    return buf;
}

static uint64_t n_matrices(const tensor *t)
{
    return t->ne[2] * t->ne[3];
}

static bool has_factors(const tensor *t, const gguf *g)
{
    char name[TENSOR_NAME_MAX + 1];
    return t->type == NUM_NVFP4 && text_ends_with(t->name, ".weight") &&
           tensor_find(&g->tensors, factor_name(t, name, sizeof name));
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

/* Formats of so few bits that rounding without importance ruins a model. */
static bool needs_importance(num_type t)
{
    return t == NUM_IQ1_S || t == NUM_IQ1_M || t == NUM_IQ2_XXS || t == NUM_IQ2_XS ||
           t == NUM_IQ2_S || t == NUM_IQ3_XXS;
}

/* Products of a text do not read every matrix, so no importance file has all of them. Only drafts
 * read the NextN layers, which are the last ones; nothing reads keys and values of Gemma 4's last
 * layers, which take those of earlier layers. Only judgements read the head of a reranker. */
static bool has_no_inputs(const gguf *g, const tensor *t)
{
    static const char *const names[] = {"block_count", "nextn_predict_layers",
                                        "attention.shared_kv_layers"};
    int64_t n[3] = {0};
    gguf_string arch;
    int il = -1;
    if (!strcmp(t->name, "cls.output.weight"))
        return true;
    if (!gguf_get_string(g, "general.architecture", &arch) || arch.n > 32 ||
        sscanf(t->name, "blk.%9d.", &il) != 1 || il < 0)
        return false;
    for (int i = 0; i < 3; i++) {
        char key[96];
        snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.at, names[i]);
        gguf_get_i64(g, key, &n[i]);
    }
    bool keys =
        text_ends_with(t->name, "attn_k.weight") || text_ends_with(t->name, "attn_v.weight");
    return il < n[0] && (n[0] - il <= n[1] || (keys && n[0] - il <= n[2]));
}

/* Finds the importance of all matrices. A file that changes nothing is refused. */
static status plan_importance(work_list *l, const gguf *g, const imatrix *m, const char *path,
                              err *e)
{
    uint64_t n = g->tensors.n;
    bool used = false, could = false;
    status st = OK;
    for (uint64_t i = 0; i < n && !st; i++) {
        work_item *it = &l->at[i];
        const tensor *t = it->from;
        if (it->to == (num_type)t->type || !num_format_of(it->to)->weigh)
            continue;
        if (m)
            st = imatrix_find(m, t->name, t->ne[0], n_matrices(t), &it->importance, e);
        could = true;
        used |= it->importance != NULL;
        if (st || it->importance || !needs_importance(it->to))
            continue;
        if (m && has_no_inputs(g, t))
            it->to = NUM_Q4_K; /* in blocks of 256, as those that need importance */
        else if (m)
            st = err_set(e, E_ARG,
                         "%s has no importance of tensor %s, which would be %s: without, the "
                         "model is ruined",
                         path, t->name, num_name(it->to));
        else
            st = err_set(e, E_ARG,
                         "tensor %s would be %s, which without importance ruins a model: say "
                         "which inputs matter (--imatrix FILE)",
                         t->name, num_name(it->to));
    }
    if (!st && m && !used)
        st = err_set(
            e, E_ARG,
            could
                ? "%s: no importance of any tensor of this model"
                : "%s: importance has no effect on the formats that the tensors of this model get",
            path);
    return st;
}

/* The tensor with the factors of item i: one of the old file, or one more. */
static status plan_factors(work_list *l, uint64_t i, const gguf *g, err *e)
{
    work_item *it = &l->at[i];
    char name[TENSOR_NAME_MAX + 1];
    uint64_t n_mat = n_matrices(it->from);
    const tensor *old = tensor_find(&g->tensors, factor_name(it->from, name, sizeof name));
    if (old && (old->type != NUM_F32 || old->n_elements != n_mat))
        return err_set(e, E_FORMAT,
                       "%s: tensor %s is no list of %" PRIu64 " numbers in f32, so it cannot take "
                       "the factors of NVFP4",
                       g->path, old->name, n_mat);
    if (n_mat > EXPERTS_MAX)
        return err_set(e, E_LIMIT, "%s: tensor %s: %" PRIu64 " matrices; at most %d have factors",
                       g->path, it->from->name, n_mat, EXPERTS_MAX);
    if (!(it->factor = mem_calloc((size_t)n_mat, sizeof *it->factor)))
        return err_memory(e, "the factors of NVFP4", (size_t)n_mat * sizeof *it->factor);
    work_item *own = old ? &l->at[old - g->tensors.at] : &l->at[l->n++];
    own->factors_of = it;
    own->to = NUM_F32;
    return OK;
}

static status plan_work(work_list *l, const gguf *g, const weight_mix *mix,
                        const quantize_options *o, const imatrix *m, err *e)
{
    uint64_t n = g->tensors.n;
    shape_tensor *roles = NULL;
    status st = OK;
    if (n > SHAPE_TENSORS_MAX) /* the mixes look at all tensors for each */
        return err_set(e, E_LIMIT, "%s: %" PRIu64 " tensors; a model has at most %d", g->path, n,
                       SHAPE_TENSORS_MAX);
    l->n = n;
    l->at = mem_calloc(2 * (size_t)n, sizeof *l->at); /* with factors */
    roles = mem_calloc((size_t)n, sizeof *roles);
    if (!l->at || !roles) {
        st = err_memory(e, "the list of tensors", (size_t)n * sizeof *roles);
        goto out;
    }
    for (uint64_t i = 0; i < n; i++) {
        const tensor *t = &g->tensors.at[i];
        roles[i].role = role_of(t, g);
        snprintf(roles[i].name, sizeof roles[i].name, "%s", t->name);
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
        if (!st && l->at[i].to != (num_type)t->type && has_factors(t, g))
            st = err_set(e, E_UNSUPPORTED,
                         "%s: tensor %s is nvfp4 with factors of its own, which carat does not "
                         "take into %s",
                         g->path, t->name, num_name(l->at[i].to));
    }
    if (!st)
        st = plan_importance(l, g, m, o->imatrix, e);
    for (uint64_t i = 0; i < n && !st; i++)
        if (l->at[i].to == NUM_NVFP4 && l->at[i].from->type != NUM_NVFP4)
            st = plan_factors(l, i, g, e);
out:
    mem_free(roles);
    return st;
}

static void free_work(work_list *l)
{
    for (uint64_t i = 0; i < l->n; i++)
        mem_free(l->at[i].factor);
    mem_free(l->at);
}

/* ---- Factors ------------------------------------------------------------------------------- */

enum { PARTS = 16 };            /* of a matrix, for threads */
#define NVFP4_MOST (6.0f * 448) /* the largest level by the largest scale */

typedef struct measuring {
    work_list *l;
    work_item *it;
    bool no_memory;
} measuring;

/* The largest magnitude in some rows of one matrix. A value that is not finite is found later, when
 * its row is quantised. */
static void measure_part(void *arg, int32_t chunk, int32_t thread)
{
    measuring *m = arg;
    const tensor *t = m->it->from;
    uint64_t k = (uint64_t)chunk / PARTS, part = (uint64_t)chunk % PARTS, rows = t->ne[1];
    uint64_t bytes = 0;
    float most = 0, *x = mem_alloc((size_t)t->ne[0] * sizeof *x);
    (void)thread;
    num_row_bytes(t->type, t->ne[0], &bytes);
    for (uint64_t r = rows * part / PARTS; x && r < rows * (part + 1) / PARTS; r++) {
        num_format_of(t->type)->decode(t->bytes + (k * rows + r) * bytes, x, (int64_t)t->ne[0]);
        for (uint64_t i = 0; i < t->ne[0]; i++)
            most = fabsf(x[i]) > most && isfinite(x[i]) ? fabsf(x[i]) : most;
    }
    pthread_mutex_lock(&m->l->lock);
    m->no_memory |= !x;
    m->it->factor[k] = fmaxf(m->it->factor[k], most);
    pthread_mutex_unlock(&m->l->lock);
    mem_free(x);
}

/* The factor of a matrix maps its largest value to the largest of NVFP4, as NVIDIA's files do: so
 * the scales of blocks use the whole range of their eight bits. */
static status measure_factors(work_list *l, pool *threads, err *e)
{
    for (uint64_t i = 0; i < l->n; i++) {
        measuring m = {l, &l->at[i], false};
        if (!m.it->factor)
            continue;
        uint64_t n_mat = n_matrices(m.it->from);
        pool_run(threads, (int32_t)n_mat * PARTS, measure_part, &m);
        if (m.no_memory)
            return err_memory(e, "a row of weights", (size_t)m.it->from->ne[0] * sizeof(float));
        for (uint64_t k = 0; k < n_mat; k++) {
            float d = m.it->factor[k] / NVFP4_MOST;
            m.it->factor[k] = d >= 1e-30f ? d : 1; /* its reciprocal is finite */
        }
        if (!term_progress(NULL, "tensors measured", i + 1, l->n))
            return err_set(e, E_CANCELLED, "writing was cancelled");
    }
    return OK;
}

static void fill_factors(const work_item *it, void *dst)
{
    uint64_t n = n_matrices(it->factors_of->from);
    for (uint64_t k = 0; k < n; k++) {
        float old = 1, new;
        if (it->from)
            memcpy(&old, it->from->bytes + k * sizeof old, sizeof old);
        new = old * it->factors_of->factor[k];
        memcpy((unsigned char *)dst + k * sizeof new, &new, sizeof new);
    }
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
    if (it->factors_of) {
        fill_factors(it, dst);
        return OK;
    }
    uint64_t n = it->from->ne[0], from_bytes = 0, to_bytes = 0;
    const num_format *from = num_format_of(it->from->type), *to = num_format_of(it->to);
    status st = OK;
    num_row_bytes(it->from->type, n, &from_bytes);
    num_row_bytes(it->to, n, &to_bytes);
    if (it->from->type == it->to) {
        memcpy(dst, it->from->bytes + first * from_bytes, (size_t)(n_rows * to_bytes));
        return OK;
    }
    float *x = mem_calloc((size_t)n, 2 * sizeof *x), *y = x + n;
    if (!x)
        return err_memory(e, "a row of weights", (size_t)n * 2 * sizeof *x);
    work_item sum = {0};
    for (uint64_t r = 0; r < n_rows && !st; r++) {
        unsigned char *row = (unsigned char *)dst + r * to_bytes;
        from->decode(it->from->bytes + (first + r) * from_bytes, x, (int64_t)n);
        if ((st = tensor_check_row(it->from, first + r, x, it->to, e)))
            break;
        uint64_t mat = (first + r) / it->from->ne[1];
        float d = it->factor ? it->factor[mat] : 1;
        for (uint64_t k = 0; k < n; k++)
            y[k] = x[k] / d;
        if (to->weigh)
            to->weigh(y, it->importance ? it->importance + mat * n : NULL, row, (int64_t)n);
        else
            to->encode(y, row, (int64_t)n);
        to->decode(row, y, (int64_t)n);
        for (uint64_t k = 0; k < n; k++)
            y[k] *= d;
        add_loss(&sum, x, y, n);
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

typedef struct target {
    const char *path;
    const weight_mix *mix;
    const char *imatrix; /* NULL: none */
    int32_t n_threads;
    uint64_t n_bytes; /* of the file, once it is written */
} target;

/* Keys about the file itself, which the new file sets anew. */
static bool is_own(const char *key)
{
    return !strcmp(key, "general.file_type") || !strcmp(key, "general.quantization_version") ||
           !strcmp(key, "general.alignment") || !strncmp(key, "split.", 6) ||
           !strncmp(key, "quantize.imatrix.", 17);
}

static void declare(gguf_writer *w, const gguf *g, const work_list *l, const target *to,
                    stream_tensor *rows)
{
    for (uint64_t i = 0; i < g->n_values; i++)
        if (!is_own(g->value[i].key))
            gguf_put_value(w, &g->value[i]);
    gguf_put_u32(w, "general.file_type", (uint32_t)to->mix->file_type);
    if (to->imatrix) {
        const char *name = strrchr(to->imatrix, '/') ? strrchr(to->imatrix, '/') + 1 : to->imatrix;
        gguf_put_string(w, "quantize.imatrix.file", name, strlen(name));
    }
    gguf_put_u32(w, "general.quantization_version", 2);
    for (uint64_t i = 0; i < l->n; i++) {
        const tensor *t = l->at[i].from;
        tensor more = {0};
        char name[TENSOR_NAME_MAX + 1];
        if (!t) {
            const tensor *of = l->at[i].factors_of->from;
            more.name = factor_name(of, name, sizeof name);
            more.n_dims = 1;
            more.ne[0] = n_matrices(of);
            more.ne[1] = more.ne[2] = more.ne[3] = 1;
            t = &more;
        }
        rows[i].n_rows = t->ne[1] * t->ne[2] * t->ne[3]; /* checked when the file was opened */
        num_row_bytes(l->at[i].to, t->ne[0], &rows[i].row_bytes);
        gguf_put_tensor(w, t->name, l->at[i].to, t->n_dims, t->ne);
    }
}

static status write_quantized(target *to, const gguf *g, work_list *l, err *e)
{
    gguf_writer *w = NULL;
    pool *threads = NULL;
    stream_tensor *rows = mem_calloc((size_t)l->n, sizeof *rows);
    status st;
    if (!rows)
        return err_memory(e, "the list of tensors", (size_t)l->n * sizeof *rows);
    if ((st = pool_open(&threads, to->n_threads, e)) || (st = measure_factors(l, threads, e)) ||
        (st = gguf_create(&w, to->path, e)))
        goto out;
    declare(w, g, l, to, rows);
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
        if (it->factors_of || it->from->type == it->to)
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
    imatrix *m = NULL;
    status st = o->imatrix ? imatrix_open(&m, o->imatrix, e) : OK;
    if (st || (st = gguf_open(&g, from, false, NULL, NULL, e))) {
        imatrix_close(m);
        return st;
    }
    pthread_mutex_init(&l.lock, NULL);
    if (!(st = plan_work(&l, &g, to->mix, o, m, e)) && !(st = write_quantized(to, &g, &l, e))) {
        term_progress_clear();
        print_loss(&l, o->json);
    }
    pthread_mutex_destroy(&l.lock);
    free_work(&l);
    imatrix_close(m);
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
    target to = {argv[1], mix, o.imatrix, (int32_t)o.n_threads, 0};
    if (!mix || !weight_mix_quantizes(mix))
        st = err_set(&e, E_ARG, "carat writes no type %.40s; the types are %s, %s", argv[2],
                     weight_mix_names, weight_mix_quantize_names);
    else
        st = quantize(argv[0], &o, &to, &e);
    return term_wrote(argv[1], to.n_bytes, start_ms, st, &e);
}

const command command_quantize = {
    .name = "quantize",
    .operands = "IN.gguf OUT.gguf TYPE",
    .summary = "Write a model file with its weights in another format",
    .about =
        "TYPE is f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q6_k, iq4_nl, iq4_xs, mxfp4, "
        "nvfp4,\n"
        "tq1_0, tq2_0, q1_0, q2_0, or one of the mixes q2_k, q3_k_m, q4_k_s, q4_k_m, q5_k_s, "
        "q5_k_m,\n"
        "iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq2_m, iq3_xxs, iq3_xs, iq3_s, iq3_m.\n"
        "Norms, scales and routers stay as they are; embeddings and some layers of a mix get more\n"
        "bits, and rows that a format's blocks do not divide get the next wider one. With nvfp4\n"
        "each matrix has a factor in a tensor NAME.scale. For each tensor that changed the error "
        "is\n"
        "printed: the root mean square of what was lost, as a part of the values', and the "
        "largest\n"
        "single difference. The output appears only when it is complete.",
    .options = table,
    .n_operands_min = 3,
    .n_operands_max = 3,
    .run = run_quantize};
