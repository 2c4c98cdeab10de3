/* bundled.h - the model inside the program, if it was built with one. */
#ifndef APPS_BUNDLED_H
#define APPS_BUNDLED_H

#include "base/err.h"

/* E_ARG: there is none. */
status bundled_open(const carat_model_options *o, carat_model **m, err *e);

#endif
