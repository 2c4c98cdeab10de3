/* kv_codes.c - see kv_codes.h. */
#include "tests/kv_codes.h"

#include <math.h>

/* step: the largest distance of neighbouring values of a format, as a share of the largest value of
 * their block. rare: the share of values that may differ without being near an edge, for two
 * reasons. In some formats the scale has the sign of the largest value: where two values of
 * opposite signs are equally large, one side has a code less. And a scale that is fitted to all
 * codes of a block moves all of them when one changes. */
static const struct {
    num_type type;
    double step, rare;
} formats[] = {
    {NUM_F32, 0, 0},          {NUM_F16, 0x1p-10, 0},     {NUM_BF16, 0x1p-7, 0},
    {NUM_Q8_0, 1 / 127.0, 0}, {NUM_Q5_1, 2 / 31.0, 0},   {NUM_Q5_0, 1 / 16.0, 1e-4},
    {NUM_Q4_1, 2 / 15.0, 0},  {NUM_Q4_0, 1 / 8.0, 1e-4}, {NUM_IQ4_NL, 24 / 113.0, 2e-3},
    {NUM_TQ3_0, 0.4, 2e-3},
};

static double larger(double x, double than)
{
    return isnan(than) || x <= than ? than : x; /* a NaN stays */
}

void code_stats_add(code_stats *t, const stored_values *s)
{
    int32_t block = s->type == NUM_TQ3_0 ? NUM_ROT_GROUP : 32;
    double one = NAN, rare = NAN;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].type == s->type) {
            one = formats[i].step;
            rare = formats[i].rare;
        }
    t->rare += rare * s->n;
    for (int32_t i = 0; i < s->n; i += block) {
        double top = 0;
        for (int32_t j = i; j < i + block; j++)
            top = larger(fabs((double)s->x[j]), top);
        for (int32_t j = i; j < i + block; j++) {
            double x = s->x[j], own = s->own[j], first = s->first[j];
            if (own == first)
                continue;
            double loses = (fabs(first - x) - fabs(own - x)) / top;
            t->n_other++;
            t->n_far += !(loses <= t->hair);
            t->beyond = larger(fabs(own - first) / top - one, t->beyond);
        }
    }
}
