/* err.c - a status and one sentence; the first one stays.
 *
 * The first failure is the cause and later ones follow from it, so a set error is not overwritten.
 * Sentences quote names from files and end on terminals, so they go through base/show.h. Every
 * function accepts NULL for the err.
 */
/* For the POSIX strerror_r, which fills the buffer it is given; GNU's has another type. */
#undef _GNU_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "base/err.h"

#include "base/show.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

status err_set(err *e, status st, const char *fmt, ...)
{
    if (!e || e->status)
        return st;
    e->status = st;
    va_list ap;
    va_start(ap, fmt);
    show_format(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return st;
}

status err_errno(err *e, const char *doing, const char *what)
{
    int no = errno;
    char text[128];
    /* strerror itself is not thread-safe. */
    if (strerror_r(no, text, sizeof text))
        snprintf(text, sizeof text, "error %d", no);
    return err_set(e, no == ENOMEM ? E_MEMORY : E_IO, "%s: cannot %s: %s", what, doing, text);
}

status err_memory(err *e, const char *what, size_t n_bytes)
{
    return err_set(e, E_MEMORY, "not enough memory for %s (%zu bytes)", what, n_bytes);
}

void err_clear(err *e)
{
    if (e)
        *e = (err){0};
}

const char *carat_status_name(carat_status st)
{
    static const char *const names[] = {"OK",      "E_ARG",       "E_FORMAT",
                                        "E_IO",    "E_MEMORY",    "E_UNSUPPORTED",
                                        "E_LIMIT", "E_CANCELLED", "E_NUMERIC"};
    return (unsigned)st < sizeof names / sizeof *names ? names[st] : "E_UNKNOWN";
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *carat_version(void)
{
    return VERSION_TEXT(CARAT_VERSION_MAJOR, CARAT_VERSION_MINOR, CARAT_VERSION_PATCH);
}
