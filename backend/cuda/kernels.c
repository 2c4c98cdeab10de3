/* kernels.c - a description of the kernel for each weight and view on a CUDA device, and its speed
 * class. Programs print it at the start; --strict refuses slow ones.
 *
 * ops.c, attend_ops.c and blas.c choose the kernels. This file must describe their choice.
 */
#include "backend/cuda/cuda_int.h"

#include <stdio.h>

enum { ROUTER_ROWS = 1024 }; /* a matrix of floats up to this size costs little in any kernel */

/* Without the library products of long prompts are slow where it has wgmma and matmul_wide.cu has
 * not. */
static kernel_speed prompt_speed(const cuda_device *c)
{
    return cuda_blas_here(c) || !c->facts.wgmma ? KERNEL_FULL : KERNEL_SLOW;
}

/* Who multiplies the rows of long prompts by w. Before w is loaded nothing is measured. */
static const char *prompts_by(const cuda_device *c, const weight *w)
{
    if (cuda_prompts_int8(c, w, cuda_pack_kind(w)))
        return "also for prompts";
    if (!cuda_blas_here(c))
        return "bf16 tensor cores for prompts: no cuBLASLt";
    if (!w->packed)
        return "cuBLASLt or bf16 tensor cores for prompts";
    return cuda_long_choice(c, w).way == LONG_OWN ? "bf16 tensor cores for prompts"
                                                  : "cuBLASLt for prompts";
}

static kernel_speed float_kernel(const cuda_device *c, const weight *w, char *text, size_t cap)
{
    bool small = w->n_out <= ROUTER_ROWS && w->n_mat == 1;
    if (w->type == NUM_F32) {
        snprintf(text, cap, "f32 sums");
        return small ? KERNEL_FULL : KERNEL_SLOW;
    }
    if (w->n_in % PRODUCT_COLUMNS) {
        snprintf(text, cap, "f32 sums: rows of %d are no multiple of %d", w->n_in, PRODUCT_COLUMNS);
        return small ? KERNEL_FULL : KERNEL_SLOW;
    }
    snprintf(text, cap, "f32 sums, %s", prompts_by(c, w));
    return prompt_speed(c);
}

kernel_speed cuda_product_kernel(const device *d, const weight *w, char *text, size_t cap)
{
    const cuda_device *c = d->self;
    int32_t kind = cuda_pack_kind(w);
    if (kind == PACK_NONE)
        return KERNEL_NONE;
    if (kind == PACK_FILE) {
        snprintf(text, cap, "rows looked up");
        return KERNEL_FULL;
    }
    if (kind <= PACK_BF16)
        return float_kernel(c, w, text, cap);
    if (kind == PACK_G8) {
        snprintf(text, cap, "int8 dots over codes widened to 8 bits: more bytes than the file's");
        return KERNEL_SLOW;
    }
    if (w->n_mat > 1) {
        snprintf(text, cap, "int8 dots, bf16 tensor cores by expert for prompts");
        return KERNEL_FULL;
    }
    snprintf(text, cap, "int8 dots, int8 tensor cores from 2 rows on, %s", prompts_by(c, w));
    return cuda_prompts_int8(c, w, kind) ? KERNEL_FULL : prompt_speed(c);
}

kernel_speed cuda_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap)
{
    const cuda_device *c = d->self;
    attend_path little = cuda_attend_path(c, kv, true), many = cuda_attend_path(c, kv, false);
    if (little == ATTEND_NONE)
        return KERNEL_NONE;
    const char *turned = kv->k_rot || kv->v_rot ? ", rotated" : "";
    const char *one = kv->single ? ", keys made of values" : "";
    bool blocks = kv->k_type != NUM_F16 || kv->v_type != NUM_F16;
    const char *few = little == ATTEND_WGMMA ? "wgmma" : "f16 tensor cores";
    const char *by = c->hopper && kv->head_dim >= 128 ? "wgmma" : "f16 tensor cores";
    if (little >= ATTEND_TILES && many >= ATTEND_TILES) {
        bool slices = many == ATTEND_SLICES, apart = slices || strcmp(few, by) != 0;
        snprintf(text, cap, "%s%s%s%s%s%s%s%s", few, apart ? ", " : "", apart ? by : "",
                 apart ? " for prompts" : "", slices ? " over slices made f16" : "",
                 blocks ? ", made f16 in tiles" : "", one, turned);
        return KERNEL_FULL;
    }
    const char *why = kv->wide ? ": too large for f16" : many >= ATTEND_TILES ? " in answers" : "";
    snprintf(text, cap, "f32 sums%s%s%s", why, one, turned);
    return KERNEL_SLOW;
}
