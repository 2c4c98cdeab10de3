/* fetch.h - pictures from addresses that a request names, for servers started with --media-urls. */
#ifndef APPS_MEDIA_FETCH_H
#define APPS_MEDIA_FETCH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* GETs an address within PICTURE_FETCH_S and PICTURE_FETCH_MAX_BYTES, as picture_rules.fetch.
 * The client chooses the address, so it connects to none inside this machine or its network,
 * follows no redirect and uses no proxy. Any thread. */
status picture_fetch(const char *url, const char *name, uint8_t **bytes, size_t *n, err *e);

struct sockaddr;
/* Is it an address of the public internet? */
bool address_is_public(const struct sockaddr *a);

#endif
