/* named.h - what -m, -hf and --draft name: a file, a model of the store, or one of a hub. */
#ifndef APPS_NAMED_H
#define APPS_NAMED_H

#include "apps/hub/hub.h"

/* Opens a model: a path or a name (apps/hub/hub.h); NULL: the bundled one. o->draft may be a name
 * too. Opens no connection. */
status named_open(const char *what, const carat_model_options *o, carat_model **m, err *e);

#endif
