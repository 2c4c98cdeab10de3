/* vision.c - the architecture clip: which tower a file has, and what towers share.
 *
 * Published files spell the projector's name in one of two keys. The part for sound, where a file
 * has one, is no part of a tower: its tensors are known and not loaded.
 */
#include "model/vision.h"
#include "model/audio.h"
#include "model/bind.h"

#include <math.h>
#include <string.h>

static const vision_arch *const towers[] = {&gemma4v_vision, &gemma4uv_vision, &qwen3vl_vision};
enum { N_TOWERS = sizeof towers / sizeof *towers };

const vision *vision_of(const model *m)
{
    return m->arch == &clip_arch ? m->impl : NULL;
}

status vision_grid(const model *m, int32_t budget, int32_t width, int32_t height, image_rule *rule,
                   image_grid *g, const char *name, err *e)
{
    const vision *v = vision_of(m);
    image_rule r = v->rule;
    int64_t token = (int64_t)r.patch * r.merge;
    if (!budget && r.max_pixels) /* of Qwen: more than plans have */
        budget = VISION_BUDGET_MAX;
    r.fit = budget && !r.max_pixels ? IMAGE_FIT_BUDGET : IMAGE_FIT_PIXELS;
    r.budget = budget;
    if (!r.max_pixels) { /* Gemma has none of its own: those of llama.cpp */
        r.min_pixels = VISION_BUDGET_MIN * token * token;
        r.max_pixels = VISION_BUDGET_MAX * token * token;
    } else if (budget && budget * token * token < r.max_pixels) {
        r.max_pixels = budget * token * token;
        /* Small pictures are rounded up on both sides, which may give four times the tokens. */
        r.min_pixels = r.min_pixels < r.max_pixels / 4 ? r.min_pixels : r.max_pixels / 4;
    }
    status st = image_grid_for(g, &r, width, height, name, e);
    if (!st)
        *rule = r;
    return st;
}

/* ---- Binding ---- */

static bool is_text(gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.at, text, s.n);
}

static status find_tower(const model *m, const vision_arch **out, err *e)
{
    gguf_string s = {"", 0};
    int32_t has = 1;
    status st = bind_int(m, (int_key){"has_vision_encoder", 0, 1, 1}, &has, e);
    if (st)
        return st;
    bool named = gguf_get_string(&m->file, "clip.vision.projector_type", &s) ||
                 gguf_get_string(&m->file, "clip.projector_type", &s);
    if (!has)
        return err_set(e, E_UNSUPPORTED, "%s: has no tower for pictures (clip.has_vision_encoder)",
                       m->file.path);
    if (!named)
        return err_set(e, E_FORMAT, "%s: key clip.vision.projector_type is missing or no text",
                       m->file.path);
    for (int i = 0; i < N_TOWERS; i++)
        if (is_text(s, towers[i]->projector)) {
            *out = towers[i];
            return OK;
        }
    return err_set(e, E_UNSUPPORTED,
                   "%s: the vision tower '%.*s' is not supported (these are: gemma4v, gemma4uv, "
                   "qwen3vl_merger)",
                   m->file.path, (int)(s.n < 64 ? s.n : 64), s.at);
}

static status bind_clip(model *m, err *e)
{
    const vision_arch *a = NULL;
    status st = find_tower(m, &a, e);
    for (uint64_t i = 0; i < m->file.tensors.n && !st; i++) {
        const char *name = m->file.tensors.at[i].name;
        m->claimed[i] |= !strncmp(name, "a.", 2) || !strncmp(name, "mm.a.", 5); /* sound */
    }
    return st ? st : a->bind(m, e);
}

const model_arch clip_arch = {
    .name = "clip", .tower = true, .prefix = "v.", .bind = bind_clip, .audio = &clip_audio_arch};

/* ---- For towers ---- */

static status read_three(const model *m, const char *name, float v[3], err *e)
{
    const gguf_value *list = bind_find(m, name);
    if (!list || list->kind != GGUF_ARRAY || list->count != 3)
        return err_set(e, E_FORMAT, "%s: key clip.%s is missing or no list of three numbers",
                       m->file.path, name);
    for (uint64_t c = 0; c < 3; c++) {
        double x;
        if (!gguf_item_f64(list, c, &x) || !(fabs(x) <= 1e3))
            return err_set(e, E_FORMAT, "%s: item %d of clip.%s is not a number from -1000 to 1000",
                           m->file.path, (int)c, name);
        v[c] = (float)x;
    }
    return OK;
}

status vision_read_stats(const model *m, image_rule *rule, err *e)
{
    status st = read_three(m, "vision.image_mean", rule->mean, e);
    if (!st)
        st = read_three(m, "vision.image_std", rule->std, e);
    for (int c = 0; c < 3 && !st; c++)
        if (!(rule->std[c] >= 1e-6f))
            return err_set(e, E_FORMAT,
                           "%s: item %d of clip.vision.image_std is %g, expected above 0",
                           m->file.path, c, (double)rule->std[c]);
    return st;
}

status vision_read_positions(const model *m, int32_t *n, err *e)
{
    const tensor *t = tensor_find(&m->file.tensors, "v.position_embd.weight");
    if (!t || t->ne[1] > CTX_MAX)
        return err_set(e, E_FORMAT, "%s: tensor v.position_embd.weight is missing or too long",
                       m->file.path);
    *n = (int32_t)t->ne[1];
    return OK;
}

void vision_put(gguf_writer *w, const char *projector, float mean, float std)
{
    gguf_put_bool(w, "clip.has_vision_encoder", true);
    gguf_put_string(w, "clip.vision.projector_type", projector, strlen(projector));
    gguf_put_f32s(w, "clip.vision.image_mean", (const float[]){mean, mean, mean}, 3);
    gguf_put_f32s(w, "clip.vision.image_std", (const float[]){std, std, std}, 3);
}

status vision_bind_patches(model *m, weight *w, const char *name, int32_t patch, int32_t n_embd,
                           err *e)
{
    return model_weight(m, w,
                        &(model_want){.name = name,
                                      .n_in = (int64_t)3 * patch * patch,
                                      .n_out = n_embd,
                                      .n_mat = 1,
                                      .folded = true,
                                      .active = 1},
                        e);
}

status vision_bind_positions(model *m, weight *w, int32_t n_embd, int32_t n_rows, err *e)
{
    return model_weight(m, w,
                        &(model_want){.name = "v.position_embd.weight",
                                      .n_in = n_embd,
                                      .n_out = n_rows,
                                      .n_mat = 1,
                                      .flat = true,
                                      .gather = true},
                        e);
}

status vision_bind_rope(model *m, rope *r, int32_t n_dims, double theta, bool parted, err *e)
{
    int32_t n = n_dims / 2;
    size_t n_bytes = 2 * (size_t)n * sizeof(float);
    float *inv = arena_array(&m->mem, 2 * (size_t)n, sizeof *inv);
    if (!inv)
        return err_memory(e, "rotation frequencies", n_bytes);
    for (int32_t i = 0; i < n; i++)
        inv[i] = inv[n + i] = (float)pow(theta, -2.0 * i / n_dims);
    *r = (rope){
        .n_pairs = 2 * n, .n_turning = 2 * n, .inv_freq = inv, .n_axes = 2, .parted = parted};
    return model_add_table(m, (const void **)&r->inv_freq, n_bytes, e);
}

status vision_done(model *m, const model_shape *s, vision *v, const vision_arch *a, err *e)
{
    v->arch = a;
    v->projector = a->projector;
    m->n_kv = 0;
    v->rule.grouped = true;
    v->exact = true;
    for (int32_t i = 0; i < m->n_weights; i++)
        v->exact &= m->weights[i]->n_out < 2 || m->weights[i]->type == NUM_F32;
    return bind_done(m, s, v, NULL, NULL, e);
}

bool vision_goes_on(pass *p, const model *m, int32_t il)
{
    p->il = il;
    if (!p->dry && !pass_failed(p) && m->progress &&
        !m->progress(m->progress_user, "layers of a picture's tower", (uint64_t)il,
                     (uint64_t)m->n_layer))
        err_set(&p->e, E_CANCELLED, "interrupted in layer %d of the vision tower", il);
    return !pass_failed(p);
}
