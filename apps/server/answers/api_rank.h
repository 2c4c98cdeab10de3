/* api_rank.h - handlers of requests to rerankers (rank_form.h). */
#ifndef APPS_SERVER_API_RANK_H
#define APPS_SERVER_API_RANK_H

#include "apps/server/http/exchange.h"

void handle_rerank(exchange *x);
void handle_score(exchange *x);

#endif
