/* str.h - a growing byte string. A zeroed str is empty and valid. s.at is NUL-terminated after the
 * first append. A failed append sets `bad` and keeps the contents; callers check `bad` once. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *at;
    size_t n, cap;
    bool bad; /* out of memory; sticky */
} str;

/* Appends: n bytes, a NUL-terminated text, one byte, or formatted text as printf gives it. */
void str_put(str *s, const char *bytes, size_t n);
void str_puts(str *s, const char *text);
void str_putc(str *s, char c);
void str_printf(str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void str_cut(str *s, size_t n);     /* keeps the first n bytes */
void str_drop(str *s, size_t n);    /* removes the first n bytes */
void str_fit(str *s);               /* gives memory back that the contents do not need */
const char *str_text(const str *s); /* "" when empty */
char *str_take(str *s); /* the bytes, which the caller frees with mem_free; s is empty again */
void str_free(str *s);

/* ---- Texts that are no str ---- */

bool text_ends_with(const char *s, const char *end);
int hex_digit(int c); /* its value; -1: none */

#endif
