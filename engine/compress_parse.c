/* compress_parse.c - the words of --compress and of the field `compress`.
 *
 * A file of its own: readers of requests need it without a model.
 */
#include "base/decimal.h"
#include "base/err.h"
#include "carat.h"

#include <string.h>

carat_status carat_compress_parse(const char *text, carat_compress_options *opt, carat_error *e)
{
    char *end = NULL;
    bool from = !strncmp(text, "auto:", 5);
    const char *number = from ? text + 5 : text;
    if (!strcmp(text, "auto")) {
        *opt = (carat_compress_options){0};
        return OK;
    }
    double v = decimal_read(number, &end);
    bool good = end != number && strspn(number, "0123456789.") == (size_t)(end - number);
    if (from && good && (*end == 'k' || *end == 'K')) {
        v *= 1024;
        end++;
    }
    if (!good || *end ||
        (from ? !(v >= 1 && v <= INT32_MAX && v == (double)(int64_t)v) : !(v >= 0.01 && v <= 0.99)))
        return err_set(e, E_ARG,
                       "compression '%.40s': expected auto, auto:TOKENS, or the share of tokens to "
                       "keep, from 0.01 to 0.99",
                       text);
    *opt = from ? (carat_compress_options){.least_tokens = (int64_t)v}
                : (carat_compress_options){.ratio = v};
    return OK;
}
