/* api_stored.h - kept responses: GET /v1/responses/{id}, its input_items, cancel, and DELETE. */
#ifndef APPS_SERVER_API_STORED_H
#define APPS_SERVER_API_STORED_H

#include "apps/server/http/exchange.h"

void handle_response(exchange *x); /* and /v1/responses/{id}/input_items */
void handle_response_cancel(exchange *x);
void handle_response_delete(exchange *x);

#endif
