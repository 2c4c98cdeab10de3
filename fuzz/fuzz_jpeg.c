/* fuzz_jpeg.c - any bytes as a JPEG file (fuzz_image.h). */
#include "fuzz/fuzz_image.h"

FUZZ(jpeg)
{
    fuzz_image(data, n);
}
