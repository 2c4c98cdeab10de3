/* infill.h - a gap between two texts as one prompt, for models that were trained to fill gaps.
 *
 *     [other files] PRE before typed SUF after MID         the answer is what stands between
 *
 * With several files, REP and SEP name them where the model has these tokens. The ids come from the
 * file's metadata (tokenizer.ggml.fim_*_token_id), else from pieces of the usual spellings.
 */
#ifndef APPS_SERVER_INFILL_H
#define APPS_SERVER_INFILL_H

#include "apps/server/models/served.h"

typedef struct infill_marks {
    int32_t pre, suf, mid, rep, sep; /* -1: the model has no such token */
} infill_marks;

infill_marks infill_find(const carat_model *m);
/* Can the model fill gaps? */
bool infill_possible(const infill_marks *marks);
/* The prompt of a request with rq->infill, cut so that it fits the context: other files first, then
 * the far ends of the texts. *ids: in the request's arena. False: a problem; without the tokens it
 * is a 501 that names one. */
bool infill_encode(request *rq, const served *m, int32_t **ids, int64_t *n, problem *p);

#endif
