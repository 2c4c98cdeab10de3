/* fuzz_webp.c - any bytes as a WebP file (fuzz_image.h). */
#include "fuzz/fuzz_image.h"

FUZZ(webp)
{
    fuzz_image(data, n);
}
