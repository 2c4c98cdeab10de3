/* lora.h - which adapters an answer has, and how much of each (model/lora.h has their files).
 *
 * Keys and values depend on them. So a timeline's rows, its checkpoints and their files carry the
 * choice's key (kv_way.lora), and a prompt reuses rows of its own choice alone.
 */
#ifndef ENGINE_LORA_H
#define ENGINE_LORA_H

#include "model/lora.h"

struct carat_model;

typedef struct lora_choice {
    uint64_t key; /* model_lora_key; 0: none */
    float scale[LORAS_MAX];
} lora_choice;

/* Opens the adapters of the options and binds them, before devices are chosen. */
status lora_open(struct carat_model *m, const carat_model_options *opt, err *e);
/* Once the devices are known. E_UNSUPPORTED: they do not compute such adapters. */
status lora_check_devices(const struct carat_model *m, err *e);
/* use NULL: the model's own scales. E_ARG: an adapter that is not there, or a scale that is not
 * finite. */
status lora_choose(lora_choice *c, const struct carat_model *m, const carat_lora_use *use,
                   int32_t n, err *e);
/* As rows of a pass have it; NULL: none. */
static inline const float *lora_scales(const lora_choice *c)
{
    return c->key ? c->scale : NULL;
}

#endif
