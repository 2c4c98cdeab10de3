/* multipart.h - bodies of the type multipart/form-data (RFC 7578), as programs upload files.
 *
 * A client chooses all bytes. Nothing is copied: fields point into the body.
 */
#ifndef APPS_SERVER_MULTIPART_H
#define APPS_SERVER_MULTIPART_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MULTIPART_MAX = 64 /* fields */, MULTIPART_BOUNDARY_MAX = 70 /* RFC 2046 */ };

typedef struct multipart_field {
    const char *name, *file; /* as they stand between quotes; file NULL: not one */
    size_t n_name, n_file;
    const char *at;
    size_t n;
} multipart_field;

typedef struct multipart {
    int32_t n;
    multipart_field field[MULTIPART_MAX];
} multipart;

/* Is it that type? type: a Content-Type, or NULL. */
bool multipart_is(const char *type);
/* E_FORMAT: no such body; E_LIMIT: more fields than MULTIPART_MAX. On failure *out is unspecified.
 */
status multipart_split(multipart *out, const char *type, const char *body, size_t n, err *e);
/* The first field of that name; NULL: there is none. */
const multipart_field *multipart_find(const multipart *m, const char *name);

#endif
