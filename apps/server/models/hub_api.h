/* hub_api.h - what a hub has, for the page. */
#ifndef APPS_SERVER_HUB_API_H
#define APPS_SERVER_HUB_API_H

#include "apps/server/http/exchange.h"

void handle_hub_search(exchange *x); /* ?q=WORDS */
void handle_hub_fit(exchange *x);    /* ?model=NAME: as `carat fit --json` */

#endif
