/* openapi.h - the description of the server in the form of OpenAPI 3.1.
 *
 * It is written from the table of paths (routes.c), the table of fields (known.c), the numbers of
 * sampling (carat/sampling_settings.h) and the named schemas of schemas.json.
 */
#ifndef APPS_SERVER_OPENAPI_H
#define APPS_SERVER_OPENAPI_H

#include "apps/server/http/exchange.h"

/* Appends the document. o->bad is set if memory ran out. Any thread. */
void openapi_write(str *o);
void handle_openapi(exchange *x);

#endif
