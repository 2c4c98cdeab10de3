/* fit.h - what a model gives up to fit the memory of its GPU: context, format of keys, experts and
 * layers on the host, in this order. Chosen when a model is opened, before its weights are loaded,
 * for the sessions that its options describe. Only the thread that opens the model calls in.
 */
#ifndef ENGINE_FIT_H
#define ENGINE_FIT_H

#include "engine/engine_int.h"

/* m->dev is a GPU, and the model is divided if the options say so. Sets m->fit, and m->experts or
 * the division where the options leave them open. E_MEMORY: nothing fits; the sentence says by how
 * much, and which context would. After a failure m is divided as before. */
status fit_choose(carat_model *m, const carat_model_options *opt, err *e);

/* What would be given up if nothing of the model goes to the host: *level is CARAT_FIT_EXPERTS if
 * that does not fit. *n_ctx: the context then. Changes nothing but the division between stages. */
status fit_probe(carat_model *m, const carat_model_options *opt, carat_fit *level, int32_t *n_ctx,
                 err *e);

#endif
