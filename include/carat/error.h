/* carat/error.h - errors, and what the other parts of carat.h have in common. */
#ifndef CARAT_ERROR_H
#define CARAT_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CARAT_API __attribute__((visibility("default")))
#else
#define CARAT_API
#endif

typedef enum carat_status {
    CARAT_OK = 0,
    CARAT_E_ARG,         /* the arguments make no sense */
    CARAT_E_FORMAT,      /* a file or message is malformed or damaged */
    CARAT_E_IO,          /* the operating system refused or failed */
    CARAT_E_MEMORY,      /* not enough memory, of the host or of a device */
    CARAT_E_UNSUPPORTED, /* well formed, but carat does not do it */
    CARAT_E_LIMIT,       /* longer than the context, or beyond another stated limit */
    CARAT_E_CANCELLED,   /* by carat_session_cancel or by a callback */
    CARAT_E_NUMERIC      /* the model computed NaN or infinity */
} carat_status;

/* Zero it before the first call. The first failure stays: later ones do not overwrite it. */
typedef struct carat_error {
    carat_status status;
    char text[1024]; /* one sentence for the user, UTF-8, NUL-terminated */
} carat_error;

CARAT_API const char *carat_status_name(carat_status st); /* "E_FORMAT"; static storage */
CARAT_API const char *carat_version(void);                /* "MAJOR.MINOR.PATCH"; static */

#ifdef __cplusplus
}
#endif
#endif
