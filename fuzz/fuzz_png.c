/* fuzz_png.c - any bytes as a PNG file (fuzz_image.h). */
#include "fuzz/fuzz_image.h"

FUZZ(png)
{
    fuzz_image(data, n);
}
