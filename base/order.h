/* order.h - the order of numbers and of texts, for qsort and bsearch. */
#ifndef BASE_ORDER_H
#define BASE_ORDER_H

#include <string.h>

static inline int order_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of `const char *`, by bytes. */
static inline int order_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#endif
