/* convert.c - carat convert: a directory of safetensors to one GGUF file.
 *
 * Most weights keep their values and their order. The exceptions are in the shape's list
 * (hf_change): norms of Gemma 3 and Qwen3.5, and the latter's decays and value heads. Rotation
 * factors are computed from config.json. Weights are decoded and encoded row by row, on all
 * threads, while the file is written.
 */
#include "apps/commands.h"
#include "apps/convert_int.h"
#include "apps/term.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/show.h"
#include "carat.h"
#include "format/gguf_stream.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

typedef struct {
    const char *type, *name, *target, *dialect, *mmproj;
    int64_t n_threads;
} convert_options;

static const option table[] = {
    OPT_STR(convert_options, type, "type", 't', "TYPE",
            "of the weights (default bf16, of drafters q8_0)"),
    OPT_STR(convert_options, name, "name", 0, "TEXT", "general.name (default: the directory's)"),
    OPT_STR(
        convert_options, mmproj, "mmproj", 0, "FILE",
        "write the towers too, in bf16: the file that sees images and hears sounds for the model"),
    OPT_STR(
        convert_options, target, "target", 0, "FILE",
        "of a drafter: the GGUF file of its model, for checks and the tokenizer; of an adapter: "
        "that file, or a directory with the model's config.json"),
    OPT_STR(convert_options, dialect, "dialect", 0, "NAME",
            "of a drafter: llama.cpp (default), lucebox or ik", .words = "llama.cpp lucebox ik"),
    OPT_INT(convert_options, n_threads, "threads", 0, "N", 1, 256, "threads (default: all cores)"),
    OPT_END};

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Where the row or column i of the file is in the checkpoint. */
uint64_t convert_place_before(const hf_change *c, uint64_t i)
{
    if (!c->n_k || i < c->before)
        return i;
    uint64_t head = (i - c->before) / c->per_head, rest = (i - c->before) % c->per_head;
    uint64_t j = head % c->n_v, from = j % c->n_k * (c->n_v / c->n_k) + j / c->n_k;
    return c->before + (head - j + from) * c->per_head + rest;
}

/* Changes a row's values and the order of its columns. spare: as long as the row. */
static void change_row(const hf_change *c, float *x, float *spare, uint64_t n)
{
    for (uint64_t i = 0; i < n && c->add != 0; i++)
        x[i] += c->add;
    for (uint64_t i = 0; i < n && c->neg_exp; i++)
        x[i] = -expf(x[i]);
    for (uint64_t i = 0; i < n && c->softplus; i++)
        x[i] = (float)(fmax((double)x[i], 0) + log1p(exp(-fabs((double)x[i]))));
    if (!c->n_k || !c->columns)
        return;
    memcpy(spare, x, (size_t)n * sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = spare[convert_place_before(c, i)];
}

void convert_floats(num_type type, const unsigned char *from, float *x, uint64_t n)
{
    if (type != NUM_F64)
        num_format_of(type)->decode(from, x, (int64_t)n);
    for (uint64_t i = 0; i < n && type == NUM_F64; i++) {
        double v;
        memcpy(&v, from + 8 * i, 8);
        x[i] = (float)v;
    }
}

static uint64_t item_rows(const convert_item *it)
{
    return it->t.ne[1] * it->t.ne[2] * it->t.ne[3];
}

void convert_decode_row(const convert_item *it, uint64_t r, float *x)
{
    uint64_t n = it->t.ne[0], size, rows = item_rows(it), share;
    if (!it->n_sources) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    if (convert_is_turned(it)) {
        convert_turned_row(it, r, x);
        return;
    }
    if (convert_is_pictured(it)) {
        convert_pictured_row(it, r, x);
        return;
    }
    if (!it->t.change.columns)
        r = convert_place_before(&it->t.change, r);
    share = rows / (uint64_t)it->n_sources;
    const tensor *src = convert_source(it, r / share);
    num_row_bytes(src->type, n, &size);
    convert_floats(src->type, src->bytes + (it->first_row + r % share) * size, x, n);
}

/* Token ids, from integers of 4 or 8 bytes. Ids are below 2^31: convert_draft has looked. */
static void copy_ids(const tensor *src, int32_t *out)
{
    for (uint64_t i = 0; i < src->n_elements; i++) {
        int64_t wide;
        if (src->type == NUM_I64) {
            memcpy(&wide, src->bytes + 8 * i, 8);
            out[i] = (int32_t)wide;
        } else {
            memcpy(&out[i], src->bytes + 4 * i, 4);
        }
    }
}

static status fill_converted(void *user, uint64_t i, uint64_t first, uint64_t n_rows, void *dst,
                             err *e)
{
    const convert_job *j = user;
    const convert_item *it = &j->at[i];
    const num_format *f = num_format_of(it->type);
    uint64_t n = it->t.ne[0], size, share;
    status st = OK;
    if (it->t.role == ROLE_ROPE_FACTORS) {
        j->s->family->compute(j->s, &it->t, dst);
        return OK;
    }
    if (it->t.role == ROLE_IDS) {
        copy_ids(it->source[0], dst);
        return OK;
    }
    if (convert_in_blocks(it)) {
        num_row_bytes(it->type, n, &size);
        for (uint64_t r = 0; r < n_rows; r++)
            convert_block_row(it, first + r, (unsigned char *)dst + r * size);
        return OK;
    }
    float *x = mem_alloc(2 * (size_t)n * sizeof *x);
    if (!x || !num_row_bytes(it->type, n, &size)) {
        mem_free(x);
        return err_memory(e, "a row of weights", 2 * (size_t)n * sizeof *x);
    }
    share = it->n_sources ? item_rows(it) / (uint64_t)it->n_sources : 1;
    for (uint64_t r = 0; r < n_rows && !st; r++) {
        convert_decode_row(it, first + r, x);
        change_row(&it->t.change, x, x + n, n);
        /* Rows of their sources have another length. */
        if (convert_is_pictured(it) || convert_is_turned(it))
            st = convert_check_pictured(it, first + r, x, e);
        else if (it->n_sources && it->t.role != ROLE_LOW && it->t.role != ROLE_HIGH)
            st = tensor_check_row(convert_source(it, (first + r) / share),
                                  it->first_row + (first + r) % share, x, it->type, e);
        if (!st)
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

/* Copies the tokenizer of the target of a drafter: other engines expect one. */
static void put_tokenizer_of(gguf_writer *w, const gguf *target)
{
    for (uint64_t i = 0; i < target->n_values; i++)
        if (!strncmp(target->value[i].key, "tokenizer.", 10) &&
            strcmp(target->value[i].key, "tokenizer.ggml.mask_token_id") != 0)
            gguf_put_value(w, &target->value[i]);
}

status convert_write(const convert_request *r, const convert_job *j, const convert_vocab *words,
                     const gguf *target, uint64_t *n_bytes, err *e)
{
    char base[256];
    const char *name = r->name ? r->name : base;
    gguf_writer *w = NULL;
    pool *threads = NULL;
    file_map written = {0};
    stream_tensor *rows = mem_calloc((size_t)j->n, sizeof *rows);
    status st;
    if (!rows)
        return err_memory(e, "the list of tensors", (size_t)j->n * sizeof *rows);
    base_name(r->dir, base, sizeof base);
    if ((st = pool_open(&threads, r->n_threads, e)) || (st = gguf_create(&w, r->out, e)))
        goto out;
    j->s->family->put(w, j->s);
    const char *kind = j->s->family->tower ? "mmproj" : "model";
    gguf_put_string(w, "general.type", kind, strlen(kind));
    gguf_put_string(w, "general.name", name, strlen(name));
    gguf_put_u32(w, "general.file_type", (uint32_t)r->mix->file_type);
    gguf_put_u32(w, "general.quantization_version", 2);
    if (words && (st = convert_vocab_put(words, w, e)))
        goto out;
    if (j->sentence && (st = sentence_modules_put(j->sentence, w, e)))
        goto out;
    if (target)
        put_tokenizer_of(w, target);
    else if (!words && !j->s->family->tower)
        gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (int32_t i = 0; i < j->n; i++) {
        const convert_item *it = &j->at[i];
        rows[i].n_rows = item_rows(it);
        num_row_bytes(it->type, it->t.ne[0], &rows[i].row_bytes);
        gguf_put_tensor(w, it->t.name, it->type, it->t.n_dims, it->t.ne);
    }
    if ((st = gguf_write_header(w, e)))
        goto out;
    uint64_t planned = gguf_planned_bytes(w);
    const stream_source from = {rows,      (uint64_t)j->n, fill_converted,
                                (void *)j, term_progress,  NULL};
    st = gguf_stream(w, &from, threads, e);
    if (!st)
        st = gguf_map_written(w, &written, e);
    if (!st && written.n_bytes)
        st = j->check(j, &written, r->out, e);
    file_map_close(&written);
    if (!st) {
        st = gguf_commit(w, e);
        w = NULL;
    }
    if (!st)
        *n_bytes = planned;
out:
    gguf_discard(w);
    pool_close(threads);
    mem_free(rows);
    return st;
}

/* A file that the loader refuses is not written. */
static status open_written(const convert_job *j, const file_map *m, const char *path, err *e)
{
    carat_model *opened;
    status st = carat_model_open_bytes(
        m->bytes, m->n_bytes, path,
        &(carat_model_options){.vocab_only = true, .overcommit = true, .device = "cpu"}, &opened,
        e);
    (void)j;
    carat_model_close(opened);
    return st;
}

static bool is_known_type(const char *type)
{
    const config_family *c = config_families;
    while (c->shapes && !config_is_type(c, type))
        c++;
    return c->shapes != NULL;
}

status convert_read_shape(const json_t *config, const char *path, model_shape **s, str *unknown,
                          err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *inner = json_string_value(json_object_get(text, "model_type"));
    for (const config_family *c = config_families; c->shapes && type; c++)
        if (config_is_type(c, type) && (!inner || config_is_type(c, inner)) &&
            (!c->flag || json_is_true(json_object_get(config, c->flag))))
            return config_read_shape(c, config, path, s, unknown, e);
    bool inside = inner && is_known_type(inner);
    if (inside && type && is_known_type(type))
        return err_set(
            e, E_UNSUPPORTED,
            "%s: model_type is %.64s, and that of text_config %.64s: expected one family", path,
            type, inner);
    return config_refuse_type(path, inner && !inside ? inner : type ? type : "null", e);
}

/* transformers saves models without their NextN layers, and leaves them in the configuration. */
static void drop_missing_nextn(const convert_request *r, const safetensors *from, model_shape *s)
{
    if (!s->family->set_nextn || tensor_find(&from->tensors, "mtp.fc.weight"))
        return;
    if (s->family->set_nextn(s, 0) && r->notes)
        str_puts(r->notes, "config.json states an MTP layer, and no tensor mtp.fc.weight is there: "
                           "the new file has no NextN layer");
}

static status convert_target(const convert_request *r, uint64_t *n_bytes, err *e)
{
    convert_vocab words = {0};
    safetensors from = {0};
    model_shape *s = NULL;
    sentence_modules modules = {0};
    convert_job j = {.from = &from, .sentence = &modules};
    char config[4096];
    status st;
    if (r->target || r->dialect)
        return err_set(e, E_ARG, "%s is a model: --target and --dialect are for drafters", r->dir);
    snprintf(config, sizeof config, "%s/config.json", r->dir);
    if ((st = convert_vocab_read(&words, r->dir, e)) ||
        (st = convert_read_shape(words.config, config, &s, r->unknown, e)) ||
        (st = sentence_modules_read(&modules, r->dir, e)) ||
        (st = sentence_modules_apply(&modules, s, r->dir, r->notes, e)) ||
        (st = safetensors_open(&from, r->dir, e)))
        goto out;
    drop_missing_nextn(r, &from, s);
    /* Outside text_config the key may say the opposite. transformers 5 follows it, and writes no
     * head. */
    s->tied |= !convert_has_head(&from.tensors) &&
               json_is_true(json_object_get(words.config, "tie_word_embeddings"));
    if ((st = convert_plan_items(&j, s, r->mix, words.n, r->notes, e)) ||
        (words.n && (st = convert_vocab_fit(&words, s->n_vocab, e))))
        goto out;
    j.s = s;
    j.check = open_written;
    if (r->notes)
        convert_note_shifted_norms(&j, r->notes);
    st = convert_write(r, &j, &words, NULL, n_bytes, e);
out:
    for (int32_t i = 0; j.at && i < j.n; i++)
        mem_free(j.at[i].experts);
    mem_free(j.at);
    mem_free(j.used);
    mem_free(s);
    safetensors_close(&from);
    sentence_modules_free(&modules);
    convert_vocab_free(&words);
    return st;
}

status convert_model(const convert_request *request, uint64_t *n_bytes, err *e)
{
    convert_request r = *request;
    json_t *config = NULL;
    if (convert_is_lora(r.dir))
        return convert_lora(&r, n_bytes, e);
    status st = convert_read_json(&config, r.dir, "config.json", true, e);
    bool draft = !st && convert_is_draft(config);
    if (!st && r.mmproj && draft)
        st = err_set(e, E_ARG, "%s is a drafter, which has no vision tower (--mmproj)", r.dir);
    if (!st && r.mmproj) { /* before the large file: it may be refused */
        convert_request tower = {.dir = r.dir,
                                 .out = r.mmproj,
                                 .mix = weight_mix_named("bf16"),
                                 .name = r.name,
                                 .n_threads = r.n_threads,
                                 .unknown = r.unknown};
        st = convert_tower(&tower, config, n_bytes, e);
    }
    r.mix = r.mix ? r.mix : weight_mix_named(draft ? "q8_0" : "bf16");
    if (!st)
        st = draft ? convert_draft(&r, config, n_bytes, e) : convert_target(&r, n_bytes, e);
    json_decref(config);
    return st;
}

/* Whether `out` is the target, or a file of a checkpoint, by any path. Other GGUF files may lie in
 * the directory. */
static bool is_source(const char *dir, const char *target, const char *out)
{
    struct stat own, other;
    if (stat(out, &own))
        return false;
    bool found =
        target && !stat(target, &other) && other.st_dev == own.st_dev && other.st_ino == own.st_ino;
    DIR *d = opendir(dir);
    for (struct dirent *it; d && !found && (it = readdir(d));) {
        size_t n = strlen(it->d_name);
        if (n < 5 || strcasecmp(it->d_name + n - 5, ".gguf") != 0)
            found = !fstatat(dirfd(d), it->d_name, &other, 0) && S_ISREG(other.st_mode) &&
                    other.st_dev == own.st_dev && other.st_ino == own.st_ino;
    }
    if (d)
        closedir(d);
    return found;
}

static int run_convert(const command *c, int argc, char **argv)
{
    convert_options o = {.n_threads = pool_default_threads()};
    int n_operands, stop = options_parse(c, argc, argv, &o, &n_operands);
    double start_ms = clock_ms();
    uint64_t n_bytes = 0;
    err e = {0};
    status st;
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL); /* Ctrl-C stops the writing and leaves no partial file */
    const weight_mix *mix = o.type ? weight_mix_named(o.type) : NULL;
    str unknown = {0}, notes = {0};
    convert_request r = {.dir = argv[0],
                         .out = argv[1],
                         .mix = mix,
                         .name = o.name,
                         .n_threads = (int32_t)o.n_threads,
                         .unknown = &unknown,
                         .notes = &notes,
                         .target = o.target,
                         .dialect = o.dialect,
                         .mmproj = o.mmproj};
    if (mix && !weight_mix_writes(mix) && weight_mix_quantizes(mix))
        st =
            err_set(&e, E_ARG,
                    "convert writes no type %s: convert to bf16, and carat quantize makes %s of it",
                    o.type, o.type);
    else if (o.type && (!mix || !weight_mix_writes(mix)))
        st = err_set(&e, E_ARG, "carat writes no type %s; the types are %s", o.type,
                     weight_mix_names);
    else if (is_source(argv[0], o.target, argv[1]))
        st = err_set(&e, E_ARG, "%s is read by this conversion, so it cannot be the output",
                     argv[1]);
    else if (o.mmproj && (is_source(argv[0], NULL, o.mmproj) || !strcmp(o.mmproj, argv[1])))
        st = err_set(&e, E_ARG, "%s is used by this conversion, so the tower cannot be there",
                     o.mmproj);
    else
        st = convert_model(&r, &n_bytes, &e);
    if (unknown.n)
        term_note("config.json has keys that carat does not know and ignores: %s",
                  SHOWN(unknown.at));
    if (notes.n)
        term_note("%s", notes.at);
    str_free(&notes);
    str_free(&unknown);
    return term_wrote(argv[1], n_bytes, start_ms, st, &e);
}

const command command_convert = {
    .name = "convert",
    .operands = "DIR OUT.gguf",
    .summary = "Convert safetensors of Gemma, Qwen3 to 3.8, Laguna, gpt-oss, Llama, Mistral or a "
               "drafter",
    .about =
        "DIR holds config.json, model.safetensors or its shards, and the tokenizer's files, as\n"
        "published. TYPE is bf16, f16, f32, q8_0, q4_0, or any other of the types of synth that "
        "carat writes.\n"
        "Experts in MXFP4, as of gpt-oss, keep their bits whatever TYPE is. "
        "Norms, scales and routers stay f32. The output appears only when it is complete. The "
        "NextN\n"
        "(MTP) layer of Qwen3.5 to 3.8 is written if the files have it; the vision tower of Gemma "
        "4,\n"
        "Qwen3-VL and Qwen3.5 to 3.8 by --mmproj.\n"
        "\n"
        "Drafters: DFlash (also Laguna's, and DSpark's with a bigram correction) and the\n"
        "assistants of Gemma 4. config.json decides, and a tensor of another shape, a missing\n"
        "value or an unknown tensor is an error. Other families are refused by name.\n"
        "\n"
        "Adapters (LoRA) of PEFT: DIR holds adapter_config.json and adapter_model.safetensors, "
        "and\n"
        "--target names the model. TYPE is f32 (the default), f16 or bf16.",
    .options = table,
    .n_operands_min = 2,
    .n_operands_max = 2,
    .run = run_convert};
