/* carat/drafter.h - the weights of a drafter that come and go, and the model that scores pages. */
#ifndef CARAT_DRAFTER_H
#define CARAT_DRAFTER_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As carat_model_park and carat_model_unpark, for the drafter's weights alone: meanwhile answers
 * are the same, without its drafts. park returns false, and unpark sets *any to false, where there
 * was nothing to do: no drafter with weights of its own, or it is there already. */
CARAT_API bool carat_model_park_drafter(carat_model *m);
CARAT_API carat_status carat_model_unpark_drafter(carat_model *m, bool *any, carat_error *e);
/* The model of carat_model_options.scorer, which may score texts as well; NULL: there is none. It
 * belongs to m. */
CARAT_API carat_model *carat_model_page_scorer(carat_model *m);

#ifdef __cplusplus
}
#endif

#endif
