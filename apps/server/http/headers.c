/* headers.c - see headers.h. The grammars are those of RFC 9110, 12.5.3 and 13.1.2. */
#include "apps/server/http/headers.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static size_t skip_blanks(const char *at)
{
    return strspn(at, " \t");
}

/* The quality in the parameters of a coding, ";q=0.5"; 1 if there is none. */
static double quality(const char *at, const char *end)
{
    for (; at < end; at++)
        if (*at == ';') {
            at += 1 + skip_blanks(at + 1);
            if (at + 1 < end && (*at == 'q' || *at == 'Q') && at[1] == '=')
                return strtod(at + 2, NULL);
        }
    return 1;
}

bool accepts_gzip(const char *value)
{
    double gzip = -1, any = -1;
    for (const char *at = value; at && *at;) {
        at += skip_blanks(at);
        const char *end = at + strcspn(at, ",");
        size_t n = strcspn(at, " \t;,");
        if ((n == 4 && !strncasecmp(at, "gzip", 4)) || (n == 6 && !strncasecmp(at, "x-gzip", 6)))
            gzip = quality(at + n, end);
        else if (n == 1 && *at == '*')
            any = quality(at + n, end);
        at = end + (*end == ',');
    }
    return gzip > 0 || (gzip < 0 && any > 0);
}

bool names_tag(const char *value, const char *tag)
{
    size_t n_tag = strlen(tag);
    for (const char *at = value; at && *at;) {
        at += skip_blanks(at);
        if (*at == '*')
            return true;
        if (!strncmp(at, "W/", 2))
            at += 2;
        if (!strncmp(at, tag, n_tag)) /* it ends with a quote, so it is no part of another */
            return true;
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return false;
}
