/* lora.c - see lora.h. */
#include "engine/engine_int.h"

#include <math.h>

static status check_scale(const char *name, float scale, err *e)
{
    return isfinite(scale) && fabsf(scale) <= 1e4f
               ? OK
               : err_set(e, E_ARG, "adapter %s with scale %g: expected a number up to 10000", name,
                         (double)scale);
}

status lora_open(carat_model *m, const carat_model_options *opt, err *e)
{
    for (int32_t i = 0; i < opt->n_loras; i++) {
        const carat_lora *l = &opt->loras[i];
        gguf g = {0};
        status st = l->path ? check_scale(l->path, l->scale, e)
                            : err_set(e, E_ARG, "an adapter without a path");
        st = st ? st : gguf_open(&g, l->path, opt->no_mmap, NULL, NULL, e);
        if (st || (st = model_add_lora(&m->core, &g, e)))
            return st;
        m->lora.scale[i] = l->scale;
    }
    m->lora.key = model_lora_key(&m->core, m->lora.scale);
    return OK;
}

status lora_check_devices(const carat_model *m, err *e)
{
    const model *core = &m->core;
    for (int32_t i = 0; i < core->n_weights; i++) {
        const weight *w = core->weights[i];
        const device *d = device_bare(model_device(m, w->side));
        if (w->lora && w->n_mat > 1 && d->kind == DEVICE_CUDA)
            return err_set(e, E_UNSUPPORTED,
                           "the adapter of %s: adapters of experts are computed on CPUs alone "
                           "(--device cpu, or --cpu-moe)",
                           w->name);
    }
    return OK;
}

static lora_choice own_choice(const carat_model *m)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->lora_lock;
    pthread_mutex_lock(lock);
    lora_choice c = m->lora;
    pthread_mutex_unlock(lock);
    return c;
}

status lora_choose(lora_choice *c, const carat_model *m, const carat_lora_use *use, int32_t n,
                   err *e)
{
    lora_choice x = {0};
    if (!use) {
        *c = own_choice(m);
        return OK;
    }
    for (int32_t i = 0; i < n; i++) {
        if (use[i].id < 0 || use[i].id >= m->core.n_loras)
            return err_set(e, E_ARG, "adapter %d: %s has %d of them, counted from 0", use[i].id,
                           m->core.name, m->core.n_loras);
        status st = check_scale(m->core.loras[use[i].id].is.name, use[i].scale, e);
        if (st)
            return st;
        x.scale[use[i].id] = use[i].scale;
    }
    x.key = model_lora_key(&m->core, x.scale);
    *c = x;
    return OK;
}

bool carat_lora_at(const carat_model *m, int32_t i, carat_lora_info *out)
{
    if (i < 0 || i >= m->core.n_loras)
        return false;
    const model_lora *x = &m->core.loras[i];
    *out = (carat_lora_info){.name = x->is.name,
                             .path = x->file.path,
                             .alpha = x->is.alpha,
                             .scale = own_choice(m).scale[i],
                             .n_pairs = x->is.n_pairs,
                             .rank = x->is.rank,
                             .rank_most = x->is.most,
                             .n_bytes = x->is.n_bytes};
    return true;
}

carat_status carat_lora_set_scales(carat_model *m, const float *scale, int32_t n, carat_error *e)
{
    lora_choice x = {0};
    if (n != m->core.n_loras)
        return err_set(e, E_ARG, "scales of %d adapters: %s has %d", n, m->core.name,
                       m->core.n_loras);
    for (int32_t i = 0; i < n; i++) {
        status st = check_scale(m->core.loras[i].is.name, scale[i], e);
        if (st)
            return st;
        x.scale[i] = scale[i];
    }
    x.key = model_lora_key(&m->core, x.scale);
    pthread_mutex_lock(&m->lora_lock);
    m->lora = x;
    pthread_mutex_unlock(&m->lora_lock);
    return OK;
}
