/* ids.h - token ids of a file, for the subcommands that compute given tokens. */
#ifndef APPS_IDS_H
#define APPS_IDS_H

#include "carat.h"

/* A file of int32, little-endian, nothing else; or of numbers with commas or blanks between,
 * perhaps in brackets. path may be such numbers itself, if no file has that name. The caller frees
 * *ids with mem_free. Failed: *ids and *n are as before. */
carat_status ids_read(const char *path, int32_t **ids, int64_t *n, carat_error *e);
/* Writes the first form. */
carat_status ids_write(const char *path, const int32_t *ids, int64_t n, carat_error *e);
/* What --text and --tokens name, whichever is given, and of these the first --limit (0: all). */
carat_status ids_given(const carat_model *m, const char *text, const char *tokens, int64_t limit,
                       int32_t **ids, int64_t *n, carat_error *e);

#endif
