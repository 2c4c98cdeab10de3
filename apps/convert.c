/* convert.c - carat convert: a directory of safetensors to one GGUF file.
 *
 * Values are not transformed: rows keep their order, norms their values, and no factor is folded
 * into a weight. Only the rotation factors are computed, from config.json. Weights are decoded and
 * encoded row by row, on all threads, while the file is written.
 */
#include "apps/commands.h"
#include "apps/convert_int.h"
#include "apps/term.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/show.h"
#include "format/gguf_stream.h"
#include "format/safetensors.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    const char *type, *name;
    int64_t n_threads;
} convert_options;

static const option table[] = {
    OPT_STR(convert_options, type, "type", 't', "TYPE", "of the weights (default bf16)"),
    OPT_STR(convert_options, name, "name", 0, "TEXT", "general.name (default: the directory's)"),
    OPT_INT(convert_options, n_threads, "threads", 0, "N", 1, 256, "threads (default: all cores)"),
    OPT_END};

/* One tensor of the new file and its source; source NULL: computed. */
typedef struct {
    shape_tensor t;
    const tensor *source;
    num_type type;
} item;

typedef struct {
    const model_shape *s;
    const safetensors *from;
    item *at;
    int32_t n;
} job;

/* ---- Which tensor is which ----------------------------------------------------------------- */

static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model.",
                                       ""};

static const tensor *find_source(const safetensors *from, const char *prefix, const char *name)
{
    char full[TENSOR_NAME_MAX + 1];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return tensor_find(&from->tensors, full);
}

/* Checks for the same number of elements and the same rows. A [1] may be a scalar, an [n, 1] a
 * vector. */
static status check_source(const shape_tensor *t, const tensor *src, const char *path, err *e)
{
    char want[96], have[96];
    tensor shape = {.n_dims = t->n_dims};
    memcpy(shape.ne, t->ne, sizeof shape.ne);
    if (memcmp(t->ne, src->ne, sizeof t->ne)) {
        tensor_shape_text(&shape, want, sizeof want);
        tensor_shape_text(src, have, sizeof have);
        return err_set(e, E_FORMAT, "%s: tensor %s is %s, the configuration makes it %s", path,
                       src->name, have, want);
    }
    if (!num_format_of(src->type)->decode && src->type != NUM_F64)
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s is of type %s, expected floats", path,
                       src->name, num_name(src->type));
    return OK;
}

/* Finds every tensor of the shape in the files. Drops keys that no layer uses and that the files
 * lack. n_vocab may shrink to the tokenizer's size. */
static status plan_items(job *j, model_shape *s, const weight_mix *mix, int32_t n_tokens, bool tied,
                         err *e)
{
    const char *prefix = NULL, *path = j->from->part_path[0];
    const tensor *embd = NULL, *head;
    status st;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !embd; i++) {
        prefix = prefixes[i];
        embd = find_source(j->from, prefix, "embed_tokens.weight");
    }
    if (!embd)
        return err_set(e, E_FORMAT, "%s: there is no embed_tokens.weight under any known prefix",
                       path);
    if (n_tokens && n_tokens < s->n_vocab)
        s->n_vocab = n_tokens;
    int32_t n = s->family->list(s, NULL, 0), k = 0;
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    j->at = mem_calloc((size_t)n + 1, sizeof *j->at);
    if (!list || !j->at) {
        mem_free(list);
        return err_memory(e, "the list of tensors", (size_t)n * sizeof *list);
    }
    s->family->list(s, list, n);
    st = OK;
    for (int32_t i = 0; i < n && !st; i++) {
        item it = {.t = list[i], .type = weight_mix_type(mix, list, n, i)};
        if (it.t.role != ROLE_ROPE_FACTORS) {
            it.source = find_source(j->from, prefix, it.t.hf_name);
            if (!it.source && it.t.unused_kv)
                continue;
            if (!it.source) {
                st = err_set(e, E_FORMAT, "%s: tensor %s%s is missing", path, prefix, it.t.hf_name);
                break;
            }
            tensor src = *it.source;
            /* A padded embedding has more rows than the vocabulary has tokens. */
            if ((it.t.role == ROLE_EMBD || it.t.role == ROLE_PLE_EMBD) && src.ne[1] > it.t.ne[1])
                src.ne[1] = it.t.ne[1];
            st = check_source(&it.t, &src, j->from->part_path[src.part], e);
        }
        j->at[k++] = it;
    }
    /* The reference ignores the head of a tied model, even if the files contain one. */
    head = tied ? NULL : tensor_find(&j->from->tensors, "lm_head.weight");
    if (!st && !tied && !head)
        st = err_set(e, E_FORMAT,
                     "%s: tie_word_embeddings is false, and there is no lm_head.weight", path);
    if (!st && head &&
        (head->n_bytes != embd->n_bytes ||
         memcmp(head->bytes, embd->bytes, (size_t)embd->n_bytes))) {
        item it = {.t = list[0], .type = weight_mix_type(mix, list, n, 0), .source = head};
        snprintf(it.t.name, sizeof it.t.name, "output.weight");
        tensor src = *head;
        src.ne[1] = src.ne[1] > it.t.ne[1] ? it.t.ne[1] : src.ne[1];
        st = check_source(&it.t, &src, path, e);
        j->at[k++] = it;
    }
    j->n = k;
    mem_free(list);
    return st;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void decode_row(const tensor *src, uint64_t row, float *x, uint64_t n)
{
    uint64_t size;
    num_row_bytes(src->type, n, &size);
    const unsigned char *p = src->bytes + row * size;
    if (src->type == NUM_F64) {
        for (uint64_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, p + 8 * i, 8);
            x[i] = (float)v;
        }
    } else {
        num_format_of(src->type)->decode(p, x, (int64_t)n);
    }
}

static status fill_converted(void *user, uint64_t i, uint64_t first, uint64_t n_rows, void *dst,
                             err *e)
{
    const job *j = user;
    const item *it = &j->at[i];
    const num_format *f = num_format_of(it->type);
    uint64_t n = it->t.ne[0], size;
    status st = OK;
    if (!it->source) {
        j->s->family->compute(j->s, &it->t, dst);
        return OK;
    }
    float *x = mem_alloc((size_t)n * sizeof *x);
    if (!x || !num_row_bytes(it->type, n, &size)) {
        mem_free(x);
        return err_memory(e, "a row of weights", (size_t)n * sizeof *x);
    }
    for (uint64_t r = 0; r < n_rows && !st; r++) {
        decode_row(it->source, first + r, x, n);
        if (!(st = tensor_check_row(it->source, first + r, x, it->type, e)))
            f->encode(x, (unsigned char *)dst + r * size, (int64_t)n);
    }
    mem_free(x);
    return st;
}

/* ---- The file ------------------------------------------------------------------------------ */

/* The last component of a path. */
static void base_name(const char *dir, char *buf, size_t cap)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/')
        at--;
    snprintf(buf, cap, "%.*s", (int)(n - at), dir + at);
}

static status write_file(const convert_request *r, const job *j, const convert_vocab *words,
                         uint64_t *n_bytes, err *e)
{
    char base[256];
    const char *name = r->name ? r->name : base;
    gguf_writer *w = NULL;
    pool *threads = NULL;
    stream_tensor *rows = mem_calloc((size_t)j->n, sizeof *rows);
    status st;
    if (!rows)
        return err_memory(e, "the list of tensors", (size_t)j->n * sizeof *rows);
    base_name(r->dir, base, sizeof base);
    if ((st = pool_open(&threads, r->n_threads, e)) || (st = gguf_create(&w, r->out, e)))
        goto out;
    j->s->family->put(w, j->s);
    gguf_put_string(w, "general.type", "model", 5);
    gguf_put_string(w, "general.name", name, strlen(name));
    gguf_put_u32(w, "general.file_type", (uint32_t)r->mix->file_type);
    gguf_put_u32(w, "general.quantization_version", 2);
    if ((st = convert_vocab_put(words, w, e)))
        goto out;
    for (int32_t i = 0; i < j->n; i++) {
        const item *it = &j->at[i];
        rows[i].n_rows = it->t.ne[1] * it->t.ne[2];
        num_row_bytes(it->type, it->t.ne[0], &rows[i].row_bytes);
        gguf_put_tensor(w, it->t.name, it->type, it->t.n_dims, it->t.ne);
    }
    if ((st = gguf_write_header(w, e)))
        goto out;
    *n_bytes = gguf_planned_bytes(w);
    const stream_source from = {rows,      (uint64_t)j->n, fill_converted,
                                (void *)j, term_progress,  NULL};
    st = gguf_stream(w, &from, threads, e);
    if (!st) {
        st = gguf_commit(w, e);
        w = NULL;
    }
out:
    gguf_discard(w);
    pool_close(threads);
    mem_free(rows);
    return st;
}

/* Reads config.json with the family's reader. */
static status read_tensor_shape(const convert_vocab *v, const char *path, model_shape **s,
                                bool *tied, str *unknown, err *e)
{
    static const struct {
        const char *arch;
        convert_reader *read;
    } readers[] = {{"gemma4", convert_gemma4_shape}};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (text_is_one_of(v->family->archs, readers[i].arch, strlen(readers[i].arch)))
            return readers[i].read(v->config, path, s, tied, unknown, e);
    return err_set(e, E_UNSUPPORTED, "%s: carat cannot convert models of %s", path,
                   v->family->name);
}

status convert_model(const convert_request *r, uint64_t *n_bytes, err *e)
{
    convert_vocab words = {0};
    safetensors from = {0};
    model_shape *s = NULL;
    job j = {.from = &from};
    char config[4096];
    bool tied = true;
    status st;
    snprintf(config, sizeof config, "%s/config.json", r->dir);
    if ((st = convert_vocab_read(&words, r->dir, e)) ||
        (st = read_tensor_shape(&words, config, &s, &tied, r->unknown, e)) ||
        (st = safetensors_open(&from, r->dir, e)) ||
        (st = plan_items(&j, s, r->mix, words.n, tied, e)) ||
        (words.n && (st = convert_vocab_fit(&words, s->n_vocab, e))))
        goto out;
    j.s = s;
    st = write_file(r, &j, &words, n_bytes, e);
out:
    mem_free(j.at);
    mem_free(s);
    safetensors_close(&from);
    convert_vocab_free(&words);
    return st;
}

static int run_convert(const command *c, int argc, char **argv)
{
    convert_options o = {.type = "bf16", .n_threads = pool_default_threads()};
    int n_operands, stop = options_parse(c, argc, argv, &o, &n_operands);
    double start_ms = clock_ms();
    uint64_t n_bytes = 0;
    err e = {0};
    status st;
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL); /* Ctrl-C stops the writing and leaves no partial file */
    const weight_mix *mix = weight_mix_named(o.type);
    str unknown = {0};
    convert_request r = {argv[0], argv[1], mix, o.name, (int32_t)o.n_threads, &unknown};
    if (!mix)
        st = err_set(&e, E_ARG, "there is no type %s; the types are %s", o.type, weight_mix_names);
    else
        st = convert_model(&r, &n_bytes, &e);
    if (unknown.n)
        term_note("config.json has keys that carat does not know and ignores: %s",
                  SHOWN(unknown.at));
    str_free(&unknown);
    return term_wrote(argv[1], n_bytes, start_ms, st, &e);
}

const command command_convert = {
    .name = "convert",
    .operands = "DIR OUT.gguf",
    .summary = "Convert Gemma 4 safetensors to GGUF",
    .about =
        "DIR holds config.json, model.safetensors or its shards, and the tokenizer's files, as\n"
        "published. TYPE is bf16, f16, f32, q8_0, q4_0, or any other type that synth writes.\n"
        "Norms, scales and routers stay f32. The output appears only when it is complete.",
    .options = table,
    .n_operands_min = 2,
    .n_operands_max = 2,
    .run = run_convert};
