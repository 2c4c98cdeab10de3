/* licences.c - `carat version --licences`: the licences of carat and of what is part of it, as
 * tools/licences.sh writes them when carat is built. */
#include "apps/licences.h"

#include "apps/embed.h"

EMBED("carat_licences", CARAT_LICENCES);
EMBEDDED const char carat_licences_begin[];

const char *licences_text(void)
{
    return carat_licences_begin;
}
