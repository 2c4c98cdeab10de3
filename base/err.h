/* err.h - a status to branch on and one sentence for the user.
 *
 * Library code returns a status and leaves the sentence in an err: what was being done, to what,
 * what was expected, what was found. The first failure is kept. e may be NULL everywhere.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "carat.h"

typedef carat_status status;
typedef carat_error err;

/* The names that carat itself uses for the public ones. */
#define OK CARAT_OK
#define E_ARG CARAT_E_ARG
#define E_FORMAT CARAT_E_FORMAT
#define E_IO CARAT_E_IO
#define E_MEMORY CARAT_E_MEMORY
#define E_UNSUPPORTED CARAT_E_UNSUPPORTED
#define E_LIMIT CARAT_E_LIMIT
#define E_CANCELLED CARAT_E_CANCELLED
#define E_NUMERIC CARAT_E_NUMERIC

/* Stores st and the sentence unless e already holds one; returns st. Text from files may be
 * passed as an argument: it is escaped (base/show.h), so a hostile name cannot drive a terminal. */
status err_set(err *e, status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
status err_errno(err *e, const char *doing,
                 const char *what); /* E_IO; E_MEMORY if errno is ENOMEM */
status err_memory(err *e, const char *what, size_t n_bytes);
void err_clear(err *e);

#endif
