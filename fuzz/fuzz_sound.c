/* fuzz_sound.c - any bytes as a file of sound: refused with a sentence, or finite samples. */
#include "fuzz/fuzz.h"
#include "sound/sound.h"

#include <math.h>

FUZZ(sound)
{
    sound_head h;
    sound s = {0};
    err e = {0};
    status st = sound_head_read(&h, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    if (st || n > 1 << 14)
        return;
    st = sound_decode(&s, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    fuzz_check(st ? !s.at : s.n > 0, "samples, or none");
    for (int64_t i = 0; i < s.n; i++)
        fuzz_check(isfinite(s.at[i]), "samples are numbers");
    sound_free(&s);
}
