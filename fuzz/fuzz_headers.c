/* fuzz_headers.c - values of the headers Accept-Encoding and If-None-Match. They end in yes or no.
 */
#include "fuzz/fuzz.h"
#include "apps/server/http/head.h"

#include <string.h>

FUZZ(headers)
{
    char *value = malloc(n + 1); /* exactly as long as the text, so that reading past it is seen */
    if (!value)
        return;
    memcpy(value, data, n);
    value[n] = 0;
    bool any = strcspn(value, "gGxX*") < strlen(value);
    fuzz_check(!accepts_gzip(value) || any, "gzip is accepted that was not named");
    bool tag = strstr(value, "\"0123\"") || strchr(value, '*');
    fuzz_check(!names_tag(value, "\"0123\"") || tag, "a tag is named that is not there");
    free(value);
}
