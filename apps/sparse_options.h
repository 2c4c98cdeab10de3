/* sparse_options.h - the option on attention that leaves keys out. A subcommand has a field
 * `const char *sparse` in its struct and OPT_SPARSE(type of the struct) in its table. */
#ifndef APPS_SPARSE_OPTIONS_H
#define APPS_SPARSE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

#define OPT_SPARSE(T)                                                                              \
    OPT_STR(T, sparse, "sparse", 0, "WHAT",                                                        \
            "attention may leave keys out, which changes answers: off, auto, auto:TOKENS, "        \
            "skip:SCALE or flash:ALPHA; docs/sparse.md (default: off)")

#endif
