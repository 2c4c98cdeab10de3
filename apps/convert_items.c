/* convert_items.c - which tensor of a checkpoint is which tensor of the file: under its name, under
 * a former name, as experts that are apart, stacked or in blocks.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/unplaced.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model.",
                                       ""};

/* NextN layers (mtp.*) lie beside the model's own tensors, not under their prefix. */
static const tensor *find_source(const convert_job *j, const char *prefix, const char *name)
{
    char full[TENSOR_NAME_MAX + 1];
    const tensor *dense = sentence_modules_find(j->sentence, name);
    if (dense)
        return dense;
    snprintf(full, sizeof full, "%s%s", strncmp(name, "mtp.", 4) ? prefix : "", name);
    const tensor *t = tensor_find(&j->from->tensors, full);
    if (t)
        j->used[t - j->from->tensors.at] = true;
    return t;
}

/* A [1] may be a scalar, an [n, 1] a vector. */
status convert_check_source(const shape_tensor *t, const tensor *src, const char *path, err *e)
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

/* Expert k of a tensor with the matrices of all experts, of which each has `rows` rows from `first`
 * on. */
static tensor expert_of(const tensor *all, uint64_t k, uint64_t first, uint64_t rows)
{
    tensor t = *all;
    uint64_t size = 0;
    num_row_bytes(all->type, all->ne[0], &size);
    t.bytes += (k * all->ne[1] + first) * size;
    t.n_dims = 2;
    t.ne[1] = rows;
    t.ne[2] = 1;
    return t;
}

/* A tensor with all experts, as transformers saves them: gate and up in one. NULL: there is none,
 * or they have other names (Mixtral's w1 to w3). */
static const tensor *find_stacked(const convert_job *j, const convert_item *it, const char *prefix,
                                  uint64_t *first)
{
    const char *star = strchr(it->t.hf_name, '*');
    bool up = !strncmp(star, "*.up", 4), down = !strncmp(star, "*.down", 6);
    if (!up && !down && strncmp(star, "*.gate", 6) != 0)
        return NULL;
    char name[TENSOR_NAME_MAX + 1];
    snprintf(name, sizeof name, "%.*s%s", (int)(star - it->t.hf_name), it->t.hf_name,
             down ? "down_proj" : "gate_up_proj");
    const tensor *t = find_source(j, prefix, name);
    bool fits = t && t->ne[0] == it->t.ne[0] && t->ne[1] == it->t.ne[1] * (down ? 1 : 2) &&
                t->ne[2] == it->t.ne[2];
    *first = up ? it->t.ne[1] : 0;
    return fits ? t : NULL;
}

/* The tensors of all experts, whose numbers take the place of the '*' in the name. */
static status find_experts(convert_job *j, convert_item *it, const char *prefix, err *e)
{
    const char *star = strchr(it->t.hf_name, '*'), *path = j->from->part_path[0];
    uint64_t n = it->t.ne[2], first;
    size_t one_bytes = sizeof *it->experts + sizeof **it->experts;
    const tensor *all = find_stacked(j, it, prefix, &first);
    it->experts = mem_calloc((size_t)n, one_bytes);
    if (!it->experts)
        return err_memory(e, "the list of experts", (size_t)n * one_bytes);
    tensor *view = (tensor *)(it->experts + n);
    shape_tensor one = it->t;
    one.n_dims = 2;
    one.ne[2] = 1;
    for (uint64_t k = 0; k < n; k++) {
        char name[TENSOR_NAME_MAX + 1];
        snprintf(name, sizeof name, "%.*s%" PRIu64 "%s", (int)(star - it->t.hf_name), it->t.hf_name,
                 k, star + 1);
        if (all)
            view[k] = expert_of(all, k, first, it->t.ne[1]);
        const tensor *t = it->experts[k] = all ? &view[k] : find_source(j, prefix, name);
        if (!t)
            return err_set(e, E_FORMAT, "%s: tensor %s%s is missing", path, prefix, name);
        status st = convert_check_source(&one, t, j->from->part_path[t->part], e);
        if (st)
            return st;
    }
    it->n_sources = (int32_t)n;
    return OK;
}

/* Qwen3-VL's experts are turned in published files alone: the library saves them as those of Qwen3.
 * The matrix that narrows tells which. */
static void find_turned(const convert_job *j, const char *prefix, shape_tensor *t)
{
    static const char head[] = "mlp.experts.";
    const char *at = strstr(t->hf_name, head);
    char name[TENSOR_NAME_MAX + 1], stem[sizeof t->hf_name];
    if (!t->change.halves)
        return;
    bool down = !t->change.every;
    snprintf(stem, sizeof stem, "%.*s", (int)(at - t->hf_name + (int)sizeof head - 1), t->hf_name);
    snprintf(name, sizeof name, "%sdown_proj", stem);
    const tensor *narrow = find_source(j, prefix, name);
    if (!narrow || (narrow->ne[0] == t->ne[down ? 1 : 0] && narrow->ne[1] == t->ne[down ? 0 : 1]))
        return;
    snprintf(t->hf_name, sizeof t->hf_name, "%.60s*.%s_proj.weight", stem,
             down             ? "down"
             : t->change.from ? "up"
                              : "gate");
    t->change = (hf_change){0};
}

/* Names that the files of a published model and those saved by its library spell differently. */
static const tensor *find_renamed(const convert_job *j, const char *prefix, const char *name)
{
    static const char *const other[][2] = {
        {"mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"},
        {"mlp.shared_expert.", "mlp.shared_experts."},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char renamed[TENSOR_NAME_MAX + 1];
        const char *at = strstr(name, other[i][0]);
        if (!at)
            continue;
        snprintf(renamed, sizeof renamed, "%.*s%s%s", (int)(at - name), name, other[i][1],
                 at + strlen(other[i][0]));
        return find_source(j, prefix, renamed);
    }
    return NULL;
}

/* Checkpoints keep the taps of a convolution as [channels, 1, taps]. */
static void drop_middle_axis(tensor *src)
{
    if (src->n_dims == 3 && src->ne[1] == 1) {
        src->ne[1] = src->ne[2];
        src->ne[2] = 1;
        src->n_dims = 2;
    }
}

/* MLX stores the norms of this kind with 1 added already, and taps as [channels, taps, 1]. */
static status refuse_mlx(const convert_job *j, const convert_item *it, const tensor *src, err *e)
{
    bool turned = it->t.change.taps && src->n_dims == 3 && src->ne[0] == 1;
    if (!turned && !(it->t.change.around_0 && j->from->by_mlx))
        return OK;
    return err_set(e, E_UNSUPPORTED,
                   "%s: tensor %s is in the form of MLX, which stores norms with 1 added: convert "
                   "the original checkpoint",
                   j->from->part_path[src->part], src->name);
}

/* The same without MLX's marks: norms that are near 0 before 1 is added are near 1. */
void convert_note_shifted_norms(const convert_job *j, str *notes)
{
    double sum = 0, n = 0;
    for (int32_t i = 0; i < j->n; i++) {
        const convert_item *it = &j->at[i];
        float *x =
            it->t.change.around_0 && it->t.n_dims == 1 ? mem_alloc(it->t.ne[0] * sizeof *x) : NULL;
        for (uint64_t k = 0; x && k < it->t.ne[0]; k++) {
            if (!k)
                convert_decode_row(it, 0, x);
            sum += x[k];
            n++;
        }
        mem_free(x);
    }
    if (n > 0 && sum / n > 0.5)
        str_printf(notes,
                   "%sthe mean of the norms is %.2f, and conversion adds 1: if another program "
                   "has added it before, the new file is wrong",
                   notes->n ? "; " : "", sum / n);
}

/* Experts in MXFP4 keep it, whatever type is wanted: their bits are the publisher's. False: they
 * are not in blocks. */
static bool find_blocks(const convert_job *j, convert_item *it, const char *prefix)
{
    char name[TENSOR_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s_blocks", it->t.hf_name);
    const tensor *blocks = find_source(j, prefix, name);
    snprintf(name, sizeof name, "%s_scales", it->t.hf_name);
    const tensor *scales = find_source(j, prefix, name);
    if (!blocks || !scales)
        return false;
    it->source[0] = blocks;
    it->source[1] = scales;
    it->type = NUM_MXFP4;
    return true;
}

static const char *const head_names[] = {"lm_head.weight", "language_model.lm_head.weight",
                                         "model.lm_head.weight"};

bool convert_has_head(const tensor_set *t)
{
    bool head = false;
    for (size_t i = 0; i < sizeof head_names / sizeof *head_names; i++)
        head |= tensor_find(t, head_names[i]) != NULL;
    return head;
}

static const tensor *find_head(const convert_job *j)
{
    const tensor *head = NULL;
    for (size_t i = 0; i < sizeof head_names / sizeof *head_names && !head; i++)
        head = find_source(j, "", head_names[i]);
    return head;
}

static bool same_bytes(const tensor *a, const tensor *b)
{
    return a->n_bytes == b->n_bytes && !memcmp(a->bytes, b->bytes, (size_t)a->n_bytes);
}

/* A tensor without a use is one that the model would lack. NextN layers that the configuration does
 * not state are left out, with a note. */
static status check_used(const convert_job *j, const model_shape *s, str *notes, err *e)
{
    const tensor_set *set = &j->from->tensors;
    const tensor *join = tensor_find(set, "mtp.fc.weight");
    bool may_lack = s->family->set_nextn && !(join && j->used[join - set->at]), nextn = false;
    unplaced u = {0};
    for (uint64_t i = 0; i < set->n; i++) {
        const char *name = set->at[i].name;
        bool left_out = may_lack && !strncmp(name, "mtp.", 4);
        nextn |= left_out;
        if (!j->used[i] && !left_out && !unplaced_is_allowed(name))
            unplaced_add(&u, name);
    }
    if (nextn && notes && !notes->n)
        str_puts(notes, "there are tensors of an MTP layer, and config.json states none: the new "
                        "file has no NextN layer");
    return unplaced_refuse(&u, j->from->part_path[0], "a model of this config.json", e);
}

/* Finds the sources of a tensor of the shape. *there: false for keys that no layer uses and that
 * the files lack. */
static status plan_item(convert_job *j, convert_item *it, const char *prefix, const tensor *embd,
                        bool *there, err *e)
{
    *there = true;
    find_turned(j, prefix, &it->t);
    if (strchr(it->t.hf_name, '*'))
        return find_experts(j, it, prefix, e);
    if (it->t.role == ROLE_ROPE_FACTORS)
        return OK;
    it->source[0] = find_source(j, prefix, it->t.hf_name);
    if (!it->source[0])
        it->source[0] = find_renamed(j, prefix, it->t.hf_name);
    it->n_sources = it->source[0] != NULL;
    if (!it->n_sources && it->t.change.turned && !it->t.change.halves)
        it->n_sources = find_blocks(j, it, prefix);
    *there = it->n_sources || !it->t.unused_kv;
    if (!*there)
        return OK;
    if (!it->n_sources)
        return err_set(e, E_FORMAT, "%s: tensor %s%s is missing", j->from->part_path[0], prefix,
                       it->t.hf_name);
    tensor src = *it->source[0];
    /* A padded embedding has more rows than the vocabulary has tokens. */
    if ((it->source[0] == embd || it->t.role == ROLE_PLE_EMBD) && src.ne[1] > it->t.ne[1])
        src.ne[1] = it->t.ne[1];
    const char *path = j->from->part_path[src.part];
    status st = refuse_mlx(j, it, &src, e);
    if (st)
        return st;
    if (convert_is_turned(it))
        return convert_check_turned(it, path, e);
    if (it->t.change.taps)
        drop_middle_axis(&src);
    return convert_check_source(&it->t, &src, path, e);
}

/* The head, if the files have one of its own. it: the shape's entry for it, or the embedding's. The
 * reference ignores the head of a tied model, even if the files contain one. */
static status plan_head(convert_job *j, const model_shape *s, convert_item it, const tensor *embd,
                        str *notes, err *e)
{
    const char *path = j->from->part_path[0];
    const tensor *head = find_head(j);
    bool own = head && !same_bytes(head, embd);
    if (s->tied && own && notes)
        str_printf(notes,
                   "%s is not the embedding, and tie_word_embeddings is true: it is left out",
                   head->name);
    if (!s->tied && !head)
        return err_set(e, E_FORMAT,
                       "%s: tie_word_embeddings is false, and there is no lm_head.weight%s", path,
                       tensor_find(&j->from->tensors, "score.weight")
                           ? ", but score.weight: heads of classifiers are not supported"
                           : "");
    if (s->tied || !own)
        return OK;
    it.source[0] = head;
    it.n_sources = 1;
    snprintf(it.t.name, sizeof it.t.name, "output.weight");
    tensor src = *head;
    src.ne[1] = src.ne[1] > it.t.ne[1] ? it.t.ne[1] : src.ne[1];
    j->at[j->n++] = it;
    return convert_check_source(&it.t, &src, path, e);
}

status convert_plan_items(convert_job *j, model_shape *s, const weight_mix *mix, int32_t n_tokens,
                          str *notes, err *e)
{
    const char *prefix = NULL, *path = j->from->part_path[0];
    const tensor *embd = NULL;
    status st = OK;
    j->used = mem_calloc((size_t)j->from->tensors.n + 1, sizeof *j->used);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && j->used && !embd; i++) {
        prefix = prefixes[i];
        embd = find_source(j, prefix, "embed_tokens.weight");
    }
    if (!j->used)
        return err_memory(e, path, (size_t)j->from->tensors.n);
    if (!embd)
        return err_set(e, E_FORMAT, "%s: there is no embed_tokens.weight under any known prefix",
                       path);
    if (n_tokens && n_tokens < s->n_vocab)
        s->n_vocab = n_tokens;
    int32_t n = s->family->list(s, NULL, 0), head = 0;
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    j->at = mem_calloc((size_t)n + 1, sizeof *j->at);
    if (!list || !j->at) {
        mem_free(list);
        return err_memory(e, "the list of tensors", (size_t)n * sizeof *list);
    }
    s->family->list(s, list, n);
    for (int32_t i = 0; i < n && !st; i++) {
        convert_item it = {.t = list[i], .type = weight_mix_type(mix, list, n, i)};
        bool there = false;
        if (!strcmp(it.t.name, "output.weight"))
            head = i;
        else
            st = plan_item(j, &it, prefix, embd, &there, e);
        if (there)
            j->at[j->n++] = it; /* after a failure too: the job frees its experts */
    }
    const convert_item it = {.t = list[head], .type = weight_mix_type(mix, list, n, head)};
    if (!st)
        st = plan_head(j, s, it, embd, notes, e);
    mem_free(list);
    return st ? st : check_used(j, s, notes, e);
}
