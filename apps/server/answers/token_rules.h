/* token_rules.h - the fields of a request that name tokens by their texts, for one model. */
#ifndef APPS_SERVER_TOKEN_RULES_H
#define APPS_SERVER_TOKEN_RULES_H

#include "apps/server/dialects/request.h"

/* Tokenizes bad_words, the texts of logit_bias and the prediction: rq->bad, more entries of
 * rq->sampling.bias, rq->predicted. Once per request, by the connection's thread. */
/* The adapter of this name among the first n of m; -1: none. As in names of models, case does not
 * matter, but for two that differ by it alone. */
int32_t lora_find(const carat_model *m, int32_t n, const char *name);
/* The adapters of m that a list names. */
bool loras_named(const lora_wish *wish, int32_t n, const carat_model *m, arena *mem,
                 carat_lora_use **out, problem *p);
bool token_rules_make(request *rq, const carat_model *m, problem *p);
/* Sets the rules in o, which borrows from rq. first: of the answers to its prompt; it reports the
 * prompt's logprobs for all of them. */
void token_rules_set(const request *rq, bool first, carat_generate_options *o);

#endif
