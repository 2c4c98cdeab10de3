/* api_transcribe_test.c - where speech is cut. */
#include "apps/server/answers/api_transcribe.h"
#include "base/mem.h"
#include "tests/test.h"

/* Pieces end in the quietest place of their last quarter. */
TEST(speech_is_cut_where_it_is_quiet)
{
    int64_t n = 70 * 16000, first, second;
    float *x = mem_calloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = i / 320 == 26 * 50 || i / 320 == 10 * 50 ? 0.001f : 0.5f;
    first = transcript_cut(x, n, 0);
    CHECK(first >= 26 * 16000 && first < 26 * 16000 + 320);
    second = transcript_cut(x, n, first);
    CHECK(second > first + 22 * 16000 && second <= first + 30 * 16000);
    CHECK_EQ(transcript_cut(x, n, second), n);
    mem_free(x);
}
