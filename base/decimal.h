/* decimal.h - decimal numbers in text. */
#ifndef BASE_DECIMAL_H
#define BASE_DECIMAL_H

/* As strtod, but with a point in every locale: a program that uses libcarat may have set one whose
 * numbers have a comma. */
double decimal_read(const char *text, char **end);

#endif
