/* ids.h - token ids of a file, for the subcommands that compute given tokens. */
#ifndef APPS_IDS_H
#define APPS_IDS_H

#include "carat.h"

/* int32, little-endian, nothing else. The caller frees *ids with mem_free. */
carat_status ids_read(const char *path, int32_t **ids, int64_t *n, carat_error *e);
/* The bytes of a text file as tokens, begin-of-sequence first. */
carat_status ids_of_text(const carat_model *m, const char *path, int32_t **ids, int64_t *n,
                         carat_error *e);

#endif
