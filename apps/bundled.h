/* bundled.h - the model that is part of the program, if the build had one. */
#ifndef APPS_BUNDLED_H
#define APPS_BUNDLED_H

#include "base/err.h"

/* The model's file in memory; false: the program has no bundled model. */
bool bundled_bytes(carat_bytes *b);
/* o->mmproj: "auto" is the bundled tower. E_ARG: the program has no bundled model. */
status bundled_open(const carat_model_options *o, carat_model **m, err *e);

#endif
