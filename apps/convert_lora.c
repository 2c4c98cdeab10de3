/* convert_lora.c - adapters (LoRA) of PEFT to GGUF: a directory with adapter_config.json and
 * adapter_model.safetensors.
 *
 * The model that the adapter is of says which module is which tensor, and which rows and columns
 * have another order in GGUF files. Rows of a product are rows of B, its columns are columns of A.
 * A file has one alpha: where ranks or alphas differ from module to module, the rest of the factor
 * goes into B.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/bind.h"
#include "model/lora.h"
#include "model/unplaced.h"
#include "num/num.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* One tensor of the model and its halves, of each of its matrices; NULL: that one is not adapted.
 */
typedef struct lora_item {
    shape_tensor t;
    const tensor **a, **b; /* [n_mat], in one block: mem_free(a) */
    uint64_t rank;
    double factor; /* of B */
    bool table;
} lora_item;

typedef struct lora_job {
    safetensors from;
    json_t *config;
    model_shape *shape;
    model core;   /* of a GGUF file; else empty */
    bool *used;   /* [tensors] */
    double alpha; /* of the file */
    num_type type;
    lora_item *at;
    int32_t n;
} lora_job;

bool convert_is_lora(const char *dir)
{
    char path[4096];
    struct stat sb;
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    return !stat(path, &sb);
}

/* ---- The configuration --------------------------------------------------------------------- */

static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

static status check_config(const lora_job *j, const char *dir, err *e)
{
    static const struct {
        const char *key, *why;
    } refused[] = {
        {"use_dora", "DoRA scales whole weights"},
        {"fan_in_fan_out", "weights are stored the other way round"},
        {"alora_invocation_tokens", "it begins behind certain tokens (aLoRA)"},
        {"modules_to_save", "it replaces whole modules"},
        {"target_parameters", "parameters of several matrices are adapted in another layout"},
        {"trainable_token_indices", "it replaces embeddings of tokens"},
        {"use_qalora", "it adapts groups of inputs"},
        {"lora_bias", "its products have biases"},
    };
    const char *kind = json_string_value(json_object_get(j->config, "peft_type"));
    const char *bias = json_string_value(json_object_get(j->config, "bias"));
    if (!kind || strcmp(kind, "LORA") != 0)
        return err_set(e, E_UNSUPPORTED,
                       "%s/adapter_config.json: peft_type is %.40s, expected LORA", dir,
                       kind ? kind : "not stated");
    if (bias && strcmp(bias, "none") != 0)
        return err_set(e, E_UNSUPPORTED, "%s/adapter_config.json: bias is %.40s, expected none",
                       dir, bias);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_off(json_object_get(j->config, refused[i].key)))
            return err_set(e, E_UNSUPPORTED,
                           "%s/adapter_config.json: %s is set: %s, which carat "
                           "does not convert",
                           dir, refused[i].key, refused[i].why);
    return OK;
}

/* The value of the first pattern that is the end of the module's name, as PEFT takes it. */
static double by_pattern(const json_t *patterns, const char *module, double otherwise)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)patterns, key, v)
    {
        size_t n = strlen(key), m = strlen(module);
        if (m >= n && !strcmp(module + m - n, key) && (m == n || module[m - n - 1] == '.'))
            return json_number_value(v);
    }
    return otherwise;
}

/* alpha / rank, or alpha / sqrt(rank) with use_rslora. */
static double factor_of(const lora_job *j, const char *module, uint64_t rank)
{
    const json_t *c = j->config;
    double alpha = by_pattern(json_object_get(c, "alpha_pattern"), module,
                              json_number_value(json_object_get(c, "lora_alpha")));
    bool root = json_is_true(json_object_get(c, "use_rslora"));
    return alpha / (root ? sqrt((double)rank) : (double)rank);
}

/* ---- The model ----------------------------------------------------------------------------- */

/* The shape of the model's file: that of the family whose rows write its architecture. */
static model_shape *shape_in(const model *m)
{
    const shape_family *f;
    gguf_string arch = {"", 0};
    char buf[TABLE_ARCH];
    gguf_get_string(&m->file, "general.architecture", &arch);
    for (int32_t i = 0; (f = shape_family_at(i)); i++) {
        model_shape *s = NULL;
        err why = {0};
        if (!f->table || f->drafter || f->tower || table_read(m, f, &s, &why))
            continue;
        const char *own = table_arch(s, buf);
        if (strlen(own) == arch.n && !memcmp(own, arch.at, (size_t)arch.n))
            return s;
    }
    return NULL;
}

static status shape_of_file(lora_job *j, const char *path, err *e)
{
    gguf g = {0};
    status st = gguf_open(&g, path, false, NULL, NULL, e);
    if (st || (st = model_bind(&j->core, &g, e)))
        return st;
    const model_shape *s = shape_in(&j->core);
    if (!s)
        return err_set(e, E_UNSUPPORTED, "%s: adapters of %s are not converted", path,
                       j->core.arch->name);
    if (!(j->shape = mem_alloc(s->family->shape_bytes)))
        return err_memory(e, path, s->family->shape_bytes);
    memcpy(j->shape, s, s->family->shape_bytes);
    j->shape->n_vocab = j->core.n_vocab; /* which files do not say by a key */
    j->shape->tied = !tensor_find(&j->core.file.tensors, "output.weight");
    return OK;
}

static status shape_of_dir(lora_job *j, const char *dir, err *e)
{
    json_t *config = NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    status st = convert_read_json(&config, dir, "config.json", true, e);
    st = st ? st : convert_read_shape(config, path, &j->shape, NULL, e);
    json_decref(config);
    return st;
}

/* The model of --target, or that of base_model_name_or_path if that is a directory here. */
static status read_shape(lora_job *j, const convert_request *r, err *e)
{
    const char *named = json_string_value(json_object_get(j->config, "base_model_name_or_path"));
    const char *base = r->target ? r->target : named;
    struct stat sb;
    if (!base || stat(base, &sb))
        return err_set(
            e, E_ARG,
            "%s adapts %.200s: name that model by --target, its GGUF file or a directory "
            "with its config.json",
            r->dir, base ? base : "a model that it does not name");
    return S_ISDIR(sb.st_mode) ? shape_of_dir(j, base, e) : shape_of_file(j, base, e);
}

/* ---- Which tensor is which ----------------------------------------------------------------- */

static const tensor *take(lora_job *j, const char *name)
{
    const tensor *t = tensor_find(&j->from.tensors, name);
    if (t)
        j->used[t - j->from.tensors.at] = true;
    return t;
}

/* The halves of a module. module: as the model names it, without the prefix of its kind. True: it
 * is adapted. name: the module's, in full. */
static bool find_pair(lora_job *j, const char *module, bool table, const tensor **a,
                      const tensor **b, char *name, size_t cap)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "model.", "language_model.", ""};
    static const char *const halves[2][2] = {{"lora_A.weight", "lora_B.weight"},
                                             {"lora_embedding_A", "lora_embedding_B"}};
    char full[TENSOR_NAME_MAX + 1];
    *a = *b = NULL;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !*a && !*b; i++) {
        snprintf(name, cap, "%s%s", prefixes[i], module);
        snprintf(full, sizeof full, "base_model.model.%s.%s", name, halves[table][0]);
        *a = take(j, full);
        snprintf(full, sizeof full, "base_model.model.%s.%s", name, halves[table][1]);
        *b = take(j, full);
    }
    return *a || *b;
}

/* Names that transformers and published files spell differently. */
static bool find_module(lora_job *j, const char *hf_name, bool table, const tensor **a,
                        const tensor **b, char *name, size_t cap)
{
    char module[TENSOR_NAME_MAX + 1], other[TENSOR_NAME_MAX + 1];
    size_t n = strlen(hf_name), tail = strlen(".weight");
    const char *at;
    if (n > tail && !strcmp(hf_name + n - tail, ".weight"))
        n -= tail;
    snprintf(module, sizeof module, "%.*s", (int)n, hf_name);
    if (find_pair(j, module, table, a, b, name, cap))
        return true;
    if (!(at = strstr(module, ".shared_expert.")))
        return false;
    snprintf(other, sizeof other, "%.*s.shared_experts.%s", (int)(at - module), module,
             at + strlen(".shared_expert."));
    return find_pair(j, other, table, a, b, name, cap);
}

/* Do the halves fit the tensor and each other? */
static status check_halves(const lora_job *j, lora_item *it, const tensor *a, const tensor *b,
                           const char *name, err *e)
{
    const char *path = j->from.part_path[0];
    char have[2][96];
    uint64_t n_in = it->t.ne[0], n_out = it->t.ne[1];
    if (!a || !b)
        return err_set(e, E_FORMAT, "%s: module %s has one half of an adapter alone", path, name);
    uint64_t rank = a->ne[1];
    bool fits =
        it->table ? a->ne[0] >= n_out && b->ne[1] == n_in : a->ne[0] == n_in && b->ne[1] >= n_out;
    if (!fits || b->ne[0] != rank || a->n_dims != 2 || b->n_dims != 2 ||
        (it->rank && it->rank != rank))
        return err_set(e, E_FORMAT,
                       "%s: module %s has halves of %s and %s, and the model's tensor is {%" PRIu64
                       ", %" PRIu64 "}: is it an adapter of another model?",
                       path, name, tensor_shape_text(a, have[0], sizeof have[0]),
                       tensor_shape_text(b, have[1], sizeof have[1]), n_in, n_out);
    if (rank < 1 || rank > LORA_RANK_MAX)
        return err_set(e, E_LIMIT, "%s: module %s has rank %" PRIu64 ", expected 1 to %d", path,
                       name, rank, LORA_RANK_MAX);
    for (int k = 0; k < 2; k++) {
        const tensor *t = k ? b : a;
        if (t->type != NUM_F32 && t->type != NUM_F16 && t->type != NUM_BF16)
            return err_set(e, E_UNSUPPORTED, "%s: tensor %s is of type %s, expected floats", path,
                           t->name, num_name(t->type));
    }
    it->rank = rank;
    return OK;
}

/* The adapters of the tensor of it, if there are any. */
static status find_item(lora_job *j, lora_item *it, err *e)
{
    uint64_t n = it->t.ne[2];
    const char *hf = it->t.hf_name, *star = strchr(hf, '*');
    char module[TENSOR_NAME_MAX + 1], name[TENSOR_NAME_MAX + 64];
    status st = OK;
    if (n > 1 && !star)
        return OK; /* of several matrices in one parameter: they have no modules */
    if (!(it->a = mem_calloc((size_t)(2 * n), sizeof *it->a)))
        return err_memory(e, "the list of experts", (size_t)(2 * n) * sizeof *it->a);
    it->b = it->a + n;
    for (uint64_t k = 0; k < n && !st; k++) {
        snprintf(module, sizeof module, "%s", hf);
        if (star)
            snprintf(module, sizeof module, "%.*s%" PRIu64 "%s", (int)(star - hf), hf, k, star + 1);
        if (!find_module(j, module, it->table, &it->a[k], &it->b[k], name, sizeof name))
            continue;
        st = check_halves(j, it, it->a[k], it->b[k], name, e);
        it->factor = st ? 0 : factor_of(j, name, it->rank);
    }
    return st;
}

static status check_used(const lora_job *j, err *e)
{
    unplaced u = {0};
    for (uint64_t i = 0; i < j->from.tensors.n; i++)
        /* PEFT saves adapted tables with their own weights beside. */
        if (!j->used[i] && !strstr(j->from.tensors.at[i].name, ".base_layer.weight"))
            unplaced_add(&u, j->from.tensors.at[i].name);
    return u.n ? err_set(e, E_UNSUPPORTED,
                         "%s: %" PRIu64
                         " tensors adapt no matrix of the model that carat knows: %s",
                         j->from.part_path[0], u.n, u.names)
               : OK;
}

static status plan(lora_job *j, err *e)
{
    const shape_family *f = j->shape->family;
    int32_t n = f->list(j->shape, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    j->used = mem_calloc((size_t)j->from.tensors.n + 1, sizeof *j->used);
    j->at = mem_calloc((size_t)n, sizeof *j->at);
    status st = list && j->used && j->at ? OK : err_memory(e, "the list of tensors", (size_t)n);
    if (!st)
        f->list(j->shape, list, n);
    for (int32_t i = 0; i < n && !st; i++) {
        lora_item *it = &j->at[j->n];
        bool head = !strcmp(list[i].name, "output.weight");
        *it = (lora_item){.t = list[i], .table = strstr(list[i].name, "token_embd.weight")};
        if (head && j->shape->tied) /* there is no such tensor in the file */
            continue;
        if (head)
            snprintf(it->t.hf_name, sizeof it->t.hf_name, "lm_head.weight");
        if (!it->t.hf_name[0] || it->t.n_dims < 2 || it->t.role == ROLE_ROPE_FACTORS)
            continue;
        if ((st = find_item(j, it, e)) || it->rank)
            j->n++;
        else
            mem_free(it->a);
    }
    mem_free(list);
    st = st ? st : check_used(j, e);
    if (!st && !j->n)
        st = err_set(e, E_FORMAT, "%s: an adapter without tensors", j->from.part_path[0]);
    return st;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static void decode_row(const tensor *t, uint64_t r, float *x)
{
    uint64_t size;
    num_row_bytes(t->type, t->ne[0], &size);
    num_format_of(t->type)->decode(t->bytes + r * size, x, (int64_t)t->ne[0]);
}

/* A row as the file has it: finite, and within the type. */
static status put_row(gguf_writer *w, const lora_job *j, const tensor *t, uint64_t r, float *x,
                      uint64_t n, unsigned char *room, err *e)
{
    uint64_t size;
    status st = t ? tensor_check_row(t, r, x, j->type, e) : OK;
    if (st)
        return st;
    num_row_bytes(j->type, n, &size);
    num_format_of(j->type)->encode(x, room, (int64_t)n);
    return gguf_write_data(w, room, (size_t)size, e);
}

/* The halves of one matrix of an item. x: room for a row, three times. */
static status put_half(gguf_writer *w, const lora_job *j, const lora_item *it, uint64_t k, bool b,
                       float *x, err *e)
{
    const hf_change *c = &it->t.change;
    const tensor *t = b ? it->b[k] : it->a[k];
    uint64_t cols = b || it->table ? it->rank : it->t.ne[0];
    uint64_t rows = b ? it->t.ne[it->table ? 0 : 1] : it->table ? it->t.ne[1] : it->rank;
    uint64_t most = t && t->ne[0] > cols ? t->ne[0] : cols;
    float *spare = x + most;
    unsigned char *room = (unsigned char *)(spare + most);
    status st = OK;
    for (uint64_t r = 0; r < rows && !st; r++) {
        uint64_t from = b && !it->table && !c->columns ? convert_place_before(c, r) : r;
        memset(x, 0, (size_t)most * sizeof *x);
        if (t && !b && it->table)
            for (uint64_t i = 0; i < cols; i++) {
                uint64_t size;
                num_row_bytes(t->type, 1, &size);
                num_format_of(t->type)->decode(t->bytes + (i * t->ne[0] + r) * size, x + i, 1);
            }
        else if (t)
            decode_row(t, from, x);
        if (t && !b && !it->table && c->columns) {
            memcpy(spare, x, (size_t)cols * sizeof *x);
            for (uint64_t i = 0; i < cols; i++)
                x[i] = spare[convert_place_before(c, i)];
        }
        double rest = b && it->rank ? it->factor / (j->alpha / (double)it->rank) : 1;
        for (uint64_t i = 0; rest != 1 && i < cols; i++)
            x[i] = (float)(x[i] * rest);
        st = put_row(w, j, t, from, x, cols, room, e);
    }
    return st;
}

static void declare(gguf_writer *w, const lora_job *j, const lora_item *it, bool b)
{
    char name[96];
    uint64_t rank = it->rank, n_in = it->t.ne[0], n_out = it->t.ne[1];
    uint64_t ne[4] = {b || it->table ? rank : n_in,
                      b           ? (it->table ? n_in : n_out)
                      : it->table ? n_out
                                  : rank,
                      it->t.ne[2], 1};
    snprintf(name, sizeof name, "%s.lora_%c", it->t.name, b ? 'b' : 'a');
    gguf_put_tensor(w, name, (uint32_t)j->type, ne[2] > 1 ? 3 : 2, ne);
}

/* A file that --lora would refuse is not written. */
static status check_written(lora_job *j, gguf_writer *w, const char *path, err *e)
{
    file_map map = {0};
    gguf g = {0};
    lora_file f;
    status st = gguf_map_written(w, &map, e);
    if (st || !map.n_bytes)
        return st;
    if (!(st = gguf_open_bytes(&g, map.bytes, map.n_bytes, path, e)))
        st = j->core.arch ? model_add_lora(&j->core, &g, e) : lora_read(&g, &f, e);
    gguf_close(&g);
    if (j->core.arch) /* its adapter is in the map */
        model_free(&j->core);
    file_map_close(&map);
    return st;
}

static status write_file(lora_job *j, const convert_request *r, uint64_t *n_bytes, err *e)
{
    gguf_writer *w = NULL;
    char buf[TABLE_ARCH];
    const char *arch = table_arch(j->shape, buf);
    status st = gguf_create(&w, r->out, e);
    uint64_t widest = LORA_RANK_MAX;
    for (int32_t i = 0; i < j->n; i++)
        for (int k = 0; k < 2; k++)
            widest = j->at[i].t.ne[k] > widest ? j->at[i].t.ne[k] : widest;
    for (uint64_t i = 0; i < j->from.tensors.n; i++)
        widest = j->from.tensors.at[i].ne[0] > widest ? j->from.tensors.at[i].ne[0] : widest;
    float *x = mem_alloc((size_t)widest * 3 * sizeof *x);
    if (!st && !x)
        st = err_memory(e, "a row of an adapter", (size_t)widest * 3 * sizeof *x);
    if (st)
        goto out;
    gguf_put_string(w, "general.architecture", arch, strlen(arch));
    gguf_put_string(w, "general.type", "adapter", 7);
    gguf_put_string(w, "adapter.type", "lora", 4);
    if (r->name)
        gguf_put_string(w, "general.name", r->name, strlen(r->name));
    gguf_put_f32(w, "adapter.lora.alpha", (float)j->alpha);
    for (int32_t i = 0; i < j->n; i++)
        for (int b = 0; b < 2; b++)
            declare(w, j, &j->at[i], b);
    st = gguf_write_header(w, e);
    for (int32_t i = 0; i < j->n && !st; i++)
        for (int b = 0; b < 2 && !st; b++)
            for (uint64_t k = 0; k < j->at[i].t.ne[2] && !st; k++)
                st = put_half(w, j, &j->at[i], k, b, x, e);
    st = st ? st : check_written(j, w, r->out, e);
    if (st)
        goto out;
    *n_bytes = gguf_planned_bytes(w);
    st = gguf_commit(w, e);
    w = NULL;
out:
    mem_free(x);
    gguf_discard(w);
    return st;
}

status convert_lora(const convert_request *r, uint64_t *n_bytes, err *e)
{
    lora_job j = {.type = NUM_F32};
    char path[4096];
    status st = OK;
    if (r->mix && strcmp(r->mix->name, "f32") && strcmp(r->mix->name, "f16") &&
        strcmp(r->mix->name, "bf16"))
        return err_set(e, E_ARG, "%s is an adapter: its type is f32, f16 or bf16", r->dir);
    if (r->mix)
        j.type = !strcmp(r->mix->name, "f16")    ? NUM_F16
                 : !strcmp(r->mix->name, "bf16") ? NUM_BF16
                                                 : NUM_F32;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", r->dir);
    st = r->mmproj || r->dialect
             ? err_set(e, E_ARG, "%s is an adapter: --mmproj and --dialect are not for it", r->dir)
             : convert_read_json(&j.config, r->dir, "adapter_config.json", true, e);
    st = st ? st : check_config(&j, r->dir, e);
    st = st ? st : read_shape(&j, r, e);
    st = st ? st : safetensors_open(&j.from, path, e);
    st = st ? st : plan(&j, e);
    if (!st) { /* of the first module: of most files that of all */
        j.alpha = j.at[0].factor * (double)j.at[0].rank;
        st = j.alpha != 0 && isfinite(j.alpha)
                 ? write_file(&j, r, n_bytes, e)
                 : err_set(e, E_FORMAT, "%s/adapter_config.json: lora_alpha is 0 or no number",
                           r->dir);
    }
    for (int32_t i = 0; j.at && i < j.n; i++)
        mem_free(j.at[i].a);
    mem_free(j.at);
    mem_free(j.used);
    mem_free(j.shape);
    model_free(&j.core);
    safetensors_close(&j.from);
    json_decref(j.config);
    return st;
}
