/* show.h - the door through which text from outside reaches a terminal, a log or a JSON report.
 *
 * Names of models and files, paths of requests and answers of models may hold anything: escape
 * sequences that retitle a window, C1 controls that some terminals obey, marks that reverse the
 * direction of text, bytes that are no UTF-8. Whoever prints such text sends it through here.
 *
 *     ESC becomes ^[     U+009B becomes <009B>     an invalid byte becomes U+FFFD
 *
 * The result is valid UTF-8 and holds no control characters, so a name cannot drive a terminal, end
 * a line of a log or read as what it does not say.
 */
#ifndef BASE_SHOW_H
#define BASE_SHOW_H

#include "base/str.h"

#include <stdarg.h>

typedef enum show_kind {
    SHOW_NAME, /* one line: newlines and tabs are escaped, and every mark of direction */
    SHOW_TEXT  /* many lines: newlines and tabs pass, and the marks that ordinary text needs */
} show_kind;

enum { SHOW_CHAR_MAX = 8 }; /* bytes of one character, escaped: "<2066>" */
/* Writes the first character of text[0..n), n > 0; returns how many bytes of text it takes. */
size_t show_one(const char *text, size_t n, show_kind kind, char out[SHOW_CHAR_MAX], size_t *len);
void show_put(str *out, const char *text, size_t n, show_kind kind);
/* A name into out[0..cap), cut at a character where it is too long; returns out. */
const char *show_into(char *out, size_t cap, const char *text);
/* A sentence that quotes names, formatted and made safe. cap is at most 2048. */
void show_format(char *out, size_t cap, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
/* For arguments of printf: a name of at most 1,000 bytes, until the end of the enclosing block. */
typedef struct shown {
    char at[1024];
} shown;
#define SHOWN(text) show_into((shown){{0}}.at, sizeof(shown), (text))

/* A JSON document whose strings may hold such characters: they become \u escapes, so the document
 * still says the same. */
void show_put_json(str *out, const char *json, size_t n);

#endif
