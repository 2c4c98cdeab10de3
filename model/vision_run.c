/* vision_run.c - a picture through a tower: one pass of all patches, which see each other.
 *
 * All layers use one store of keys and values in turn: nothing outlives the pass. Patches
 * of a token follow each other, so that pooling and merging take rows side by side.
 */
#include "base/mem.h"
#include "model/tower_int.h"
#include "model/vision.h"

/* What a pass needs to know of each patch, by patch. */
typedef struct patch_rows {
    int32_t *zero, *index, *last, *axis[ROPE_AXES_MAX];
    float *place, *share; /* [taps] each */
} patch_rows;

static void rows_free(patch_rows *r)
{
    mem_free(r->zero);
    mem_free(r->index);
    mem_free(r->last);
    mem_free(r->axis[0]);
    mem_free(r->axis[1]);
    mem_free(r->place);
    mem_free(r->share);
}

static int32_t taps_of(const vision *v)
{
    return v->side ? 4 : 2;
}

/* Where place i of n is in a table of `side`, whose ends are the picture's: between *at and the
 * next entry, which has the share that is returned. In floats, as the reference has it. */
static float between(int32_t *at, int32_t i, int32_t n, int32_t side)
{
    float x = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1);
    *at = (int32_t)x;
    return x - (float)*at;
}

/* The entries of the position table that a patch adds up. */
static void place_patch(const vision *v, const image_grid *g, int32_t column, int32_t row,
                        float *id, float *share)
{
    if (!v->side) {
        id[0] = (float)column;
        id[1] = (float)(v->n_pos + row);
        share[0] = share[1] = 1;
        return;
    }
    int32_t x, y, last = v->side - 1;
    float right = between(&x, column, g->cols, v->side), below = between(&y, row, g->rows, v->side);
    for (int32_t k = 0; k < 4; k++) {
        int32_t px = x + k % 2 < last ? x + k % 2 : last, py = y + k / 2 < last ? y + k / 2 : last;
        id[k] = (float)(py * v->side + px);
        share[k] = (k / 2 ? below : 1 - below) * (k % 2 ? right : 1 - right);
    }
}

static status rows_init(patch_rows *r, const vision *v, const image_grid *g, err *e)
{
    size_t n = (size_t)g->n_patches, taps = (size_t)taps_of(v);
    int32_t merge = v->rule.merge, across = g->cols / merge;
    *r =
        (patch_rows){.zero = mem_calloc(n, sizeof *r->zero),
                     .index = mem_calloc(n, sizeof *r->index),
                     .last = mem_calloc(n, sizeof *r->last),
                     .axis = {mem_calloc(n, sizeof *r->axis[0]), mem_calloc(n, sizeof *r->axis[1])},
                     .place = mem_calloc(n * taps, sizeof *r->place),
                     .share = mem_calloc(n * taps, sizeof *r->share)};
    if (!r->zero || !r->index || !r->last || !r->axis[0] || !r->axis[1] || !r->place || !r->share) {
        rows_free(r);
        return err_memory(e, "the patches of a picture", (5 + 2 * taps) * n * sizeof(int32_t));
    }
    int32_t i = 0;
    for (int32_t token = 0; token < g->n_tokens; token++)
        for (int32_t k = 0; k < merge * merge; k++, i++) {
            int32_t column = token % across * merge + k % merge;
            int32_t row = token / across * merge + k / merge;
            r->index[i] = i;
            r->last[i] = g->n_patches - 1;
            r->axis[0][i] = v->rows_first ? row : column;
            r->axis[1][i] = v->rows_first ? column : row;
            place_patch(v, g, column, row, r->place + (size_t)i * taps,
                        r->share + (size_t)i * taps);
        }
    return OK;
}

/* Places of a store come in whole pages. Keys are f16 where tensor cores multiply them: after their
 * norms they are small, and f16 is closer than bf16, in which published towers were computed. */
static kv_view view_of(const vision *v, const device *dev, int32_t n_patches)
{
    bool half = !dev->host_memory && !v->exact;
    num_type type = half ? NUM_F16 : NUM_F32;
    size_t row = (size_t)v->head_dim * (half ? sizeof(uint16_t) : sizeof(float));
    int32_t n_slots = (n_patches + KV_PAGE - 1) / KV_PAGE * KV_PAGE;
    return (kv_view){.kind = STORE_LINEAR,
                     .inside = KV_INSIDE_ALL,
                     .k_type = type,
                     .v_type = type,
                     .n_head_kv = v->n_head,
                     .head_dim = v->head_dim,
                     .n_slots = n_slots,
                     .n_keys = n_patches,
                     .k_row_bytes = row,
                     .v_row_bytes = row,
                     .wide = !half};
}

static size_t store_bytes(const kv_view *kv)
{
    return (size_t)kv->n_slots * (size_t)kv->n_head_kv * kv->k_row_bytes;
}

status vision_check(const model *m, const image_grid *g, err *e)
{
    const vision *v = vision_of(m);
    int32_t longer = g->cols > g->rows ? g->cols : g->rows;
    if (!v->side && longer > v->n_pos)
        return err_set(e, E_LIMIT, "a picture of %d patches a side; the tower has %d positions",
                       longer, v->n_pos);
    return OK;
}

static vision_input input_of(const vision *v, const image_grid *g, const kv_view *kv,
                             const patch_rows *r, const float *patches)
{
    int32_t values = 3 * v->rule.patch * v->rule.patch;
    return (vision_input){.patches = tower_mat(patches, g->n_patches, values),
                          .places = tower_mat(r ? r->place : NULL, g->n_patches, taps_of(v)),
                          .shares = tower_mat(r ? r->share : NULL, g->n_patches, taps_of(v)),
                          .kv = kv,
                          .merged = v->rule.merge * v->rule.merge};
}

/* Where what a picture needs lies in the room: scratch first. */
static size_t keys_at(const vision_memory *n)
{
    return tower_align(n->scratch_bytes);
}

static size_t inputs_at(const vision_memory *n)
{
    return keys_at(n) + n->key_bytes; /* whole pages of keys */
}

size_t vision_room(const vision_memory *n)
{
    return inputs_at(n) + n->input_bytes;
}

status vision_plan(const model *m, device *dev, const image_grid *g, vision_memory *need, err *e)
{
    const vision *v = vision_of(m);
    const kv_view kv = view_of(v, dev, g->n_patches);
    const vision_input in = input_of(v, g, &kv, NULL, NULL);
    const step s = {
        .prompt = true, .all = {.n = g->n_patches}, .out = {.n = g->n_tokens}, .n_seqs = 1};
    pass p;
    pass_begin(&p, dev, &s, NULL, 0);
    v->arch->forward(&p, m, &in);
    pass_end(&p);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    *need =
        (vision_memory){.scratch_bytes = p.side[PASS_MAIN].peak, .key_bytes = 2 * store_bytes(&kv)};
    if (!dev->host_memory)
        need->input_bytes =
            tower_mat_bytes(in.patches) + tower_mat_bytes(in.places) + tower_mat_bytes(in.shares);
    return OK;
}

static status run(const model *m, device *dev, const image_grid *g, const patch_rows *r,
                  const vision_memory *need, char *room, const float *patches, float *soft, err *e)
{
    const vision *v = vision_of(m);
    const kv_view kv = view_of(v, dev, g->n_patches);
    vision_input in = input_of(v, g, &kv, r, patches);
    char *keys = room + keys_at(need), *inputs = room + inputs_at(need);
    if (need->input_bytes) {
        in.patches = tower_placed(dev, &inputs, in.patches);
        in.places = tower_placed(dev, &inputs, in.places);
        in.shares = tower_placed(dev, &inputs, in.shares);
    }
    const kv_base base = {.k = keys, .v = keys + store_bytes(&kv)};
    rowset all = {.n = g->n_patches,
                  .token = r->zero,
                  .pos = r->index,
                  .seq = r->zero,
                  .axis = {r->axis[0], r->axis[1]}};
    for (int k = 0; k < STORE_KINDS; k++)
        all.keys[k] = (row_keys){r->index, r->zero, r->last, r->last};
    step s = {.prompt = true, .all = all, .out = all, .n_seqs = 1, .n_kv = 1, .kv = &base};
    s.out.n = g->n_tokens;
    s.out_row = r->index;
    pass p;
    pass_begin(&p, dev, &s, room, need->scratch_bytes);
    mat y = v->arch->forward(&p, m, &in);
    pass_end(&p);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    dev->download(dev, soft, y.at, tower_mat_bytes(y));
    return dev->failed ? dev->failed(dev, e) : OK;
}

status vision_encode(const model *m, device *dev, const image_grid *g, const float *patches,
                     void *room, size_t room_bytes, float *soft, err *e)
{
    vision_memory need;
    patch_rows r;
    status st = vision_check(m, g, e);
    if (st || (st = vision_plan(m, dev, g, &need, e)))
        return st;
    if (vision_room(&need) > room_bytes)
        return err_set(e, E_MEMORY, "a picture of %d patches needs %zu bytes, and %zu are planned",
                       g->n_patches, vision_room(&need), room_bytes);
    if ((st = rows_init(&r, vision_of(m), g, e)))
        return st;
    st = run(m, dev, g, &r, &need, room, patches, soft, e);
    rows_free(&r);
    return st;
}
