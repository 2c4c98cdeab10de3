/* cpu.c - the CPU device: opening, memory, weights.
 *
 * On a CPU an op runs when it is called, and device memory is host memory: an upload is a copy, and
 * a weight may stay where the file is mapped. The device owns packed copies of products' weights
 * (pack_int.h) and a pool of threads.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"
#include "base/mem.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count(cpu_device *c, void *p, size_t n_bytes, bool more)
{
    if (p && more)
        atomic_fetch_add_explicit(&c->n_bytes, n_bytes, memory_order_relaxed);
    else if (p)
        atomic_fetch_sub_explicit(&c->n_bytes, n_bytes, memory_order_relaxed);
}

static void *cpu_alloc(device *d, size_t n_bytes)
{
    void *p = mem_pages(n_bytes);
    count(d->self, p, n_bytes, true);
    return p;
}

static void cpu_release(device *d, void *p, size_t n_bytes)
{
    count(d->self, p, n_bytes, false);
    mem_pages_free(p, n_bytes);
}

static uint64_t cpu_used(const device *d)
{
    const cpu_device *c = d->self;
    return atomic_load_explicit(&c->n_bytes, memory_order_relaxed);
}

static void cpu_clear(device *d, void *p, size_t n_bytes)
{
    (void)d;
    memset(p, 0, n_bytes);
}

static void cpu_transfer(device *d, void *to, const void *from, size_t n_bytes)
{
    (void)d;
    if (n_bytes) /* an empty matrix has no address */
        memcpy(to, from, n_bytes);
}

/* ---- Packed weights ---------------------------------------------------------------------- */

/* Packed weights lie side by side in large pieces of memory, so that small ones are on huge pages
 * too: prefetching ends at the end of a page, and a page table walk costs more than a cache line. A
 * piece is freed with its last weight. */
typedef struct slab {
    struct slab *next;
    unsigned char *at;
    size_t n_bytes, used;
    int32_t n_live;
} slab;

static const size_t slab_bytes = (size_t)64 << 20, slab_align = 4096;

static void *slab_take(cpu_device *c, size_t n_bytes)
{
    size_t n = (n_bytes + slab_align - 1) & ~(slab_align - 1);
    slab *s = c->slabs;
    if (!s || s->n_bytes - s->used < n) {
        s = mem_calloc(1, sizeof *s);
        if (!s)
            return NULL;
        s->n_bytes = n > slab_bytes ? n : slab_bytes;
        s->at = mem_pages(s->n_bytes);
        if (!s->at) {
            mem_free(s);
            return NULL;
        }
        s->next = c->slabs;
        c->slabs = s;
    }
    void *at = s->at + s->used;
    s->used += n;
    s->n_live++;
    return at;
}

static void slab_give(cpu_device *c, const void *at)
{
    for (slab **link = &c->slabs; *link; link = &(*link)->next) {
        slab *s = *link;
        if ((const unsigned char *)at < s->at || (const unsigned char *)at >= s->at + s->n_bytes)
            continue;
        if (--s->n_live == 0) {
            *link = s->next;
            mem_pages_free(s->at, s->n_bytes);
            mem_free(s);
        }
        return;
    }
}

/* Whether products read a packed copy of w. Vectors are read as they are; a device that keeps
 * activations in f32 decodes block formats from the file's layout. */
bool cpu_wants_pack(const cpu_device *c, const weight *w)
{
    if (c->reference || c->no_repack || w->n_out < 2)
        return false;
    if (w->type == NUM_F32 || w->type == NUM_F16 || w->type == NUM_BF16)
        return true;
    return !c->exact_f32 && pack_kind_of(w->type);
}

static size_t cpu_weight_bytes(const device *d, const weight *w)
{
    const cpu_device *c = d->self;
    size_t groups = ((size_t)w->n_out + PACK_LANES - 1) / PACK_LANES;
    return cpu_wants_pack(c, w) ? groups * (size_t)w->n_mat * pack_group_bytes(w) : 0;
}

typedef struct pack_job {
    weight *w;
    size_t group_bytes;
    int32_t groups; /* of one matrix */
} pack_job;

enum { GROUPS_PER_CHUNK = 8 };

static void pack_chunk(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    const pack_job *j = arg;
    int64_t total = (int64_t)j->groups * j->w->n_mat, g0 = (int64_t)chunk * GROUPS_PER_CHUNK;
    for (int64_t g = g0; g < total && g < g0 + GROUPS_PER_CHUNK; g++)
        pack_group(j->w, (int32_t)(g / j->groups), g % j->groups * PACK_LANES,
                   (unsigned char *)j->w->packed + (size_t)g * j->group_bytes);
}

static status cpu_weight_load(device *d, weight *w, err *e)
{
    cpu_device *c = d->self;
    const num_format *f = num_format_of(w->type);
    if (!f || !f->decode)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s is in format %s, which carat cannot compute with", w->name,
                       num_name(w->type));
    size_t n_bytes = cpu_weight_bytes(d, w);
    if (!n_bytes || w->packed)
        return OK;
    w->packed = slab_take(c, n_bytes);
    if (!w->packed)
        return err_memory(e, w->name, n_bytes);
    w->packed_bytes = n_bytes;
    count(c, w->packed, n_bytes, true);
    pack_job j = {w, pack_group_bytes(w), (w->n_out + PACK_LANES - 1) / PACK_LANES};
    int64_t total = (int64_t)j.groups * w->n_mat;
    pool_run(c->pool, (int32_t)((total + GROUPS_PER_CHUNK - 1) / GROUPS_PER_CHUNK), pack_chunk, &j);
    return OK;
}

static void cpu_weight_free(device *d, weight *w)
{
    count(d->self, w->packed, w->packed_bytes, false);
    if (w->packed)
        slab_give(d->self, w->packed);
    w->packed = NULL;
    w->packed_bytes = 0;
}

/* Does the device run kernels of an instruction set, not the portable ones? */
static bool by_instructions(const cpu_device *c)
{
    return !c->reference && c->k != &cpu_kernels_portable;
}

/* One stream halves the memory and costs at most a twentieth of the speed. */
static bool cpu_one_stream(const device *d, const kv_view *kv)
{
    (void)d, (void)kv;
    return true;
}

/* Every instruction set reads every format of caches; the text is for a table. */
static kernel_speed cpu_attend_kernel(const device *d, const kv_view *kv, char *text, size_t cap)
{
    const cpu_device *c = d->self;
    const num_format *k = num_format_of(kv->k_type), *v = num_format_of(kv->v_type);
    if (!k || !v || !k->encode || !v->encode)
        return KERNEL_NONE;
    const char *name = c->reference ? "reference" : c->k->name;
    const char *turned = kv->k_rot || kv->v_rot ? ", rotated" : "";
    const char *one = kv->single ? ", keys made of values" : "";
    int32_t most = c->k->block_queries;
    if (c->reference)
        snprintf(text, cap, "%s: one key at a time%s%s", name, one, turned);
    else if (k->block_n == 1 && v->block_n == 1)
        snprintf(text, cap, "%s: as stored%s", name, one);
    else if (most)
        snprintf(text, cap, "%s: blocks in registers, unpacked from %d queries on%s%s", name,
                 most + 1, one, turned);
    else
        snprintf(text, cap, "%s: blocks unpacked%s%s", name, one, turned);
    return by_instructions(c) ? KERNEL_FULL : KERNEL_SLOW;
}

/* Codes are multiplied as bytes, floats as floats. A weight without a packed copy is decoded row by
 * row in each product. */
static kernel_speed cpu_product_kernel(const device *d, const weight *w, char *text, size_t cap)
{
    const cpu_device *c = d->self;
    const num_format *f = num_format_of(w->type);
    if (!f || !f->decode)
        return KERNEL_NONE;
    const char *name = c->reference ? "reference" : c->k->name;
    const char *how = c->reference ? "one value at a time"
                      : w->type == NUM_F32 || w->type == NUM_F16 || w->type == NUM_BF16 ? "floats"
                      : c->exact_f32          ? "decoded to floats"
                      : pack_kind_of(w->type) ? "bytes"
                                              : "decoded to floats";
    bool packed = cpu_wants_pack(c, w) || w->n_out < 2;
    snprintf(text, cap, "%s: %s%s", name, how,
             packed || c->reference ? "" : ", from the file's layout");
    return packed && by_instructions(c) ? KERNEL_FULL : KERNEL_SLOW;
}

static void cpu_close(device *d)
{
    cpu_device *c = d->self;
    while (c->slabs) { /* weights that were never freed */
        slab *s = c->slabs;
        c->slabs = s->next;
        mem_pages_free(s->at, s->n_bytes);
        mem_free(s);
    }
    pool_close(c->pool);
    mem_free(c);
}

static const device_ops cpu_ops = {
    .embed = cpu_embed,
    .embed_at = cpu_embed_at,
    .rms_norm = cpu_rms_norm,
    .matmul = cpu_matmul,
    .glu = cpu_glu,
    .act_mul = cpu_act_mul,
    .rope = cpu_rope,
    .kv_store = cpu_kv_store,
    .attend = cpu_attend,
    .tail = cpu_tail,
    .watch_pages = cpu_watch_pages,
    .add = cpu_add,
    .scale = cpu_scale,
    .add_rms_norm = cpu_add_rms_norm,
    .route = cpu_route,
    .moe_glu = cpu_moe_glu,
    .moe_down = cpu_moe_down,
    .moe_matmul = cpu_moe_matmul,
    .renumber = cpu_renumber,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .gather = cpu_gather,
    .copy = cpu_copy,
    .softcap = cpu_softcap,
    .best = cpu_best,
    .unfold = cpu_unfold,
    .depthwise = cpu_depthwise,
    .near = cpu_near,
    .clamp = cpu_clamp,
    .pool = cpu_pool,
    .standardize = cpu_standardize,
    .layer_norm = cpu_layer_norm,
    .act = cpu_act,
    .embed_mix = cpu_embed_mix,
};

/* ---- Instruction sets -------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Older clang has no name for it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static bool runs_here(const cpu_kernels *k)
{
#if defined(__x86_64__)
    if (k == &cpu_kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    if (k == &cpu_kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
    (void)k;
    return true;
}

/* Best first. */
static const cpu_kernels *const kernel_sets[] = {
#if defined(__x86_64__)
    &cpu_kernels_avx512,
    &cpu_kernels_avx2,
#elif defined(__aarch64__)
    &cpu_kernels_neon,
#endif
    &cpu_kernels_portable,
};

/* CARAT_ISA pins the instruction set of every CPU device whose options name none, so that a whole
 * test suite can run under another one than this processor's best. No other code reads it. */
static const char *isa_from_environment(void)
{
    const char *isa = getenv("CARAT_ISA");
    return isa && *isa ? isa : NULL;
}

static status choose_kernels(const char *isa, const cpu_kernels **k, err *e)
{
    for (size_t i = 0; i < sizeof kernel_sets / sizeof *kernel_sets; i++) {
        const cpu_kernels *set = kernel_sets[i];
        if (isa && strcmp(isa, set->name) != 0)
            continue;
        if (runs_here(set)) {
            *k = set;
            return OK;
        }
        if (isa)
            return err_set(e, E_UNSUPPORTED, "this processor has not all of %s", isa);
    }
    return err_set(e, E_ARG, "instruction set %.40s: expected %sportable", isa,
#if defined(__x86_64__)
                   "amx, avx512bf16, avx512, avx2 or "
#elif defined(__aarch64__)
                   "neon or "
#else
                   ""
#endif
    );
}

/* The AVX-512 table exists with products of bf16 by AMX ("amx") or vdpbf16ps ("avx512bf16"), and
 * without ("avx512"). Without a name the best one is taken; a device of f32 activations never takes
 * products of bf16. */
static bool of_pairs(const char *isa)
{
    return isa && (!strcmp(isa, "amx") || !strcmp(isa, "avx512bf16"));
}

static status choose_pairs(cpu_device *c, const char *isa, err *e)
{
    const pair_kernels *set = NULL;
#if defined(__x86_64__)
    bool bf16 = c->k == &cpu_kernels_avx512 && __builtin_cpu_supports("avx512bf16");
    if (bf16 && (!isa || !strcmp(isa, "amx")) && cpu_has_amx())
        set = &cpu_pairs_amx;
    else if (bf16 && (!isa || !strcmp(isa, "avx512bf16")))
        set = &cpu_pairs_avx512;
#endif
    if (!set && of_pairs(isa))
        return err_set(e, E_UNSUPPORTED, "this processor has not all of %s", isa);
    if (!set || c->exact_f32)
        return OK;
    c->pairs = set;
    c->with_pairs = *c->k;
    c->with_pairs.name = set->name;
    c->k = &c->with_pairs;
    return OK;
}

status device_open_cpu(device **out, const cpu_options *opt, err *e)
{
    static const cpu_options defaults;
    *out = NULL;
    if (!opt)
        opt = &defaults;
    cpu_device *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "the CPU device", sizeof *c);
    c->n_threads = opt->n_threads > 0 ? opt->n_threads : pool_default_threads();
    c->exact_f32 = opt->exact_f32;
    c->no_repack = opt->no_repack;
    c->reference = opt->reference;
    const char *pinned = opt->isa ? NULL : isa_from_environment();
    const char *isa = pinned ? pinned : opt->isa;
    err why = {0};
    status st = choose_kernels(of_pairs(isa) ? "avx512" : isa, &c->k, &why);
    if (!st)
        st = choose_pairs(c, isa, &why);
    if (st)
        err_set(e, st, "%s%s", pinned ? "CARAT_ISA: " : "", why.text);
    if (!st)
        st = pool_open_nice(&c->pool, c->n_threads, opt->nice, e);
    if (st) {
        mem_free(c);
        return st;
    }
    snprintf(c->name, sizeof c->name, "cpu (%s, %d thread%s)",
             c->reference ? "reference" : c->k->name, c->n_threads, c->n_threads == 1 ? "" : "s");
    c->dev = (device){
        .op = c->reference ? &cpu_ref_ops : &cpu_ops,
        .kind = DEVICE_CPU,
        .name = c->name,
        .acts = (1u << ACT_KINDS) - 1,
        .chunk_rows = 512,
        .host_memory = true,
        .select_timed = true,
        .one_stream = cpu_one_stream,
        .self = c,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .clear = cpu_clear,
        .upload = cpu_transfer,
        .download = cpu_transfer,
        .settle = c->reference ? cpu_ref_settle : cpu_settle,
        .sum_pages = c->reference ? cpu_ref_sum_pages : cpu_sum_pages,
        .rescore_pages = c->reference ? cpu_ref_rescore_pages : cpu_rescore_pages,
        .weight_load = cpu_weight_load,
        .weight_free = cpu_weight_free,
        .weight_bytes = cpu_weight_bytes,
        .used_bytes = cpu_used,
        .attend_kernel = cpu_attend_kernel,
        .product_kernel = cpu_product_kernel,
        .close = cpu_close,
    };
    *out = &c->dev;
    return OK;
}
