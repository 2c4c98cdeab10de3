/* loras.h - adapters of a loaded model: those of --lora, and those of models that are made of it.
 *
 * --lora is loaded with every model. Made models (apps/hub/made.h) share the weights of the model
 * that they are made of, so their adapters are loaded beside it, with scale 0 in the answers of
 * others. One that was made later makes the model load again.
 */
#ifndef APPS_SERVER_LORAS_H
#define APPS_SERVER_LORAS_H

#include "apps/server/answers/begin.h"
#include "apps/server/http/exchange.h"

/* Adds the adapters of made models of these weights (NULL: the bundled model) to f, which has n.
 * Those that do not fit are left out, and the log says so. Those that the model had come first, in
 * their order: their ids stay. Returns the number of all. mem: of their paths. */
int32_t loras_of_made(server *s, const char *weights, lora_history *had, lora_files *f, int32_t n,
                      arena *mem);
/* The model has these now. Without memory it remembers fewer. */
void loras_remember(const served *m, lora_history *had);
void loras_forget(lora_history *had);
/* The scales of --lora, which clients may have set: those of a model that is unloaded, and set in
 * the same model when it is loaded again. The first returns their number. */
int32_t loras_scales(const served *m, float scale[LORA_FILES_MAX]);
void loras_set_again(served *m, const float *scale, int32_t n);
/* The first adapter of the made model that m has not loaded; NULL: it has all. */
const char *loras_lacking(const beginning *b, const served *m);
/* May m be loaded again, for this adapter of the made model? False: p says why not. */
bool loras_may_load(const beginning *b, const served *m, const char *lacking, problem *p);
/* Chooses the adapters of a request that names none: those of its made model, beside the model's
 * own scales, or the one whose name it gives as its model. False: no memory. */
bool loras_choose(request *rq, const beginning *b, const served *m, problem *p);
/* Refuses a name that means an adapter, for what is computed without. */
bool loras_refuse(exchange *x, const char *name, problem *p);
/* Is there an adapter of --lora of this name? */
bool loras_has(const served *m, const char *name);
/* Adapters of --lora, which requests may name as their model, as views of their models behind
 * list[0..*n). NULL: no memory. */
offer_view *loras_add_views(exchange *x, const offer_view *list, int32_t *n, arena *mem);

#endif
