/* fuzz_sound.c - any bytes as a file of sound: refused with a sentence, or finite samples.
 *
 * Resampling takes up to millions of weights for rates without a small ratio to SOUND_RATE, and
 * then a second. A fuzzer decodes at rates of few weights alone, thousands of files a second; the
 * corpus has others too. */
#include "fuzz/fuzz.h"
#include "sound/sound.h"

#include <math.h>

#if CARAT_FUZZ
/* Of each Ogg file libvorbis keeps 5.8 KB that libsndfile 1.2 does not free; tests/main.c says the
 * same. A run of a minute loses less than its limit. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:vorbis_info_init\n";
}
enum { RATE_STEP = 1000, RATE_MOST = 48000 };
#else
enum { RATE_STEP = 1, RATE_MOST = SOUND_RATE_MAX };
#endif

FUZZ(sound)
{
    sound_head h;
    sound s = {0};
    err e = {0};
    status st = sound_head_read(&h, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    if (st || n > 1 << 14 || h.rate % RATE_STEP || h.rate > RATE_MOST)
        return;
    st = sound_decode(&s, data, n, "fuzz", &e);
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    fuzz_check(st ? !s.at : s.n > 0, "samples, or none");
    for (int64_t i = 0; i < s.n; i++)
        fuzz_check(isfinite(s.at[i]), "samples are numbers");
    sound_free(&s);
}
