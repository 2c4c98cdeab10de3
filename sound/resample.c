/* resample.c - see sound.h. Times are exact: sample j of the result lies at j * down / up samples
 * of the file, whole numbers without a common divisor. Its weights depend on (j * down) mod up, its
 * phase, alone. */
#include "sound/sound.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 }; /* sums of a product, added up in the end: the same on every machine */

struct resampler {
    const char *name;
    int64_t up, down;
    int32_t reach, n_taps; /* weights of samples -reach .. n_taps - reach - 1 around a time */
    float *weight;         /* [up][n_taps]; NULL: the rates are equal */
    float *held;           /* samples from place `from` on */
    int64_t from, n_held, cap;
    int64_t n_in, next; /* samples so far; the next of the result */
};

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* The modified Bessel function of order 0. */
static double bessel(double x)
{
    double sum = 1, term = 1;
    for (int32_t k = 1; term > sum * 1e-17; k++) {
        term *= x / (2 * k) * (x / (2 * k));
        sum += term;
    }
    return sum;
}

/* The weight of a sample that lies t zeros of the sinc from the time; the window is `middle` at 0.
 */
static double weight_at(double t, double middle)
{
    static const double PI = 3.14159265358979323846;
    double u = t / RESAMPLE_ZEROS;
    if (fabs(u) >= 1)
        return 0;
    double sinc = t == 0 ? 1 : sin(PI * t) / (PI * t);
    return sinc * bessel(RESAMPLE_BETA * sqrt(1 - u * u)) / middle;
}

static status fill_weights(resampler *r, int32_t rate, err *e)
{
    double lower = (double)(r->up < r->down ? r->up : r->down) * RESAMPLE_ROLL;
    double zero = lower / (double)r->down; /* zeros of the sinc in a sample of the file */
    r->reach = (int32_t)ceil(RESAMPLE_ZEROS / zero);
    r->n_taps = (2 * r->reach + 1 + LANES - 1) / LANES * LANES;
    if (r->up * r->n_taps > RESAMPLE_WEIGHTS_MAX)
        return err_set(e, E_LIMIT,
                       "%s: %d samples a second, which has no small ratio to %d: another rate is "
                       "needed, such as 16000, 44100 or 48000",
                       r->name, rate, SOUND_RATE);
    r->weight = mem_alloc((size_t)r->up * (size_t)r->n_taps * sizeof *r->weight);
    if (!r->weight)
        return err_memory(e, r->name, (size_t)r->up * (size_t)r->n_taps * sizeof *r->weight);
    const double middle = bessel(RESAMPLE_BETA);
    for (int64_t p = 0; p < r->up; p++)
        for (int32_t k = 0; k < r->n_taps; k++) {
            /* The time of phase p is p / up behind sample 0. */
            double t = ((double)(k - r->reach) - (double)p / (double)r->up) * zero;
            r->weight[p * r->n_taps + k] = (float)(weight_at(t, middle) * zero);
        }
    return OK;
}

status resampler_new(resampler **out, int32_t rate, const char *name, err *e)
{
    if (rate < SOUND_RATE_MIN || rate > SOUND_RATE_MAX)
        return err_set(e, E_LIMIT, "%s: %d samples a second; expected %d to %d", name, rate,
                       SOUND_RATE_MIN, SOUND_RATE_MAX);
    resampler *r = mem_calloc(1, sizeof *r);
    if (!r)
        return err_memory(e, name, sizeof *r);
    r->name = name;
    int64_t common = divisor(rate, SOUND_RATE);
    r->up = SOUND_RATE / common;
    r->down = rate / common;
    status st = rate == SOUND_RATE ? OK : fill_weights(r, rate, e);
    if (st) {
        resampler_free(r);
        return st;
    }
    *out = r;
    return OK;
}

void resampler_free(resampler *r)
{
    if (!r)
        return;
    mem_free(r->weight);
    mem_free(r->held);
    mem_free(r);
}

/* Room for n more samples, and for half as many as there are. */
static status make_room(const char *name, float **at, int64_t used, int64_t n, int64_t *cap, err *e)
{
    if (used + n <= *cap)
        return OK;
    int64_t want = used + n + used / 2;
    float *more = mem_realloc(*at, (size_t)want, sizeof *more);
    if (!more)
        return err_memory(e, name, (size_t)want * sizeof *more);
    *at = more;
    *cap = want;
    return OK;
}

static status room_for_result(const resampler *r, sound *out, int64_t n, err *e)
{
    if (n > (int64_t)SOUND_SECONDS_MAX * SOUND_RATE - out->n)
        return err_set(e, E_LIMIT, "%s: longer than %d seconds", r->name, SOUND_SECONDS_MAX);
    return make_room(r->name, &out->at, out->n, n, &out->cap, e);
}

static float dot(const float *a, const float *b, int32_t n)
{
    float sum[LANES] = {0};
    for (int32_t i = 0; i < n; i += LANES)
        for (int32_t k = 0; k < LANES; k++)
            sum[k] += a[i + k] * b[i + k];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* Appends n samples to those that are held; x NULL: zeros. */
static status hold(resampler *r, const float *x, int64_t n, err *e)
{
    status st = make_room(r->name, &r->held, r->n_held, n, &r->cap, e);
    if (st)
        return st;
    if (x)
        memcpy(r->held + r->n_held, x, (size_t)n * sizeof *x);
    else
        memset(r->held + r->n_held, 0, (size_t)n * sizeof *r->held);
    r->n_held += n;
    return OK;
}

/* Makes the samples below `upto` whose neighbours are held, and lets go of what no later one needs.
 */
static status make(resampler *r, int64_t upto, sound *out, err *e)
{
    int64_t n = 0;
    while (r->next + n < upto &&
           (r->next + n) * r->down / r->up - r->reach + r->n_taps <= r->from + r->n_held)
        n++;
    status st = room_for_result(r, out, n, e);
    for (; n > 0 && !st; n--, r->next++) {
        int64_t first = r->next * r->down / r->up - r->reach;
        out->at[out->n++] = dot(r->held + (first - r->from),
                                r->weight + r->next * r->down % r->up * r->n_taps, r->n_taps);
    }
    int64_t drop = r->next * r->down / r->up - r->reach - r->from;
    drop = drop < r->n_held ? drop : r->n_held;
    if (!st && drop > 0) {
        memmove(r->held, r->held + drop, (size_t)(r->n_held - drop) * sizeof *r->held);
        r->n_held -= drop;
        r->from += drop;
    }
    return st;
}

status resampler_put(resampler *r, const float *x, int32_t n, sound *out, err *e)
{
    status st;
    r->n_in += n;
    if (!r->weight) {
        if (!(st = room_for_result(r, out, n, e))) {
            memcpy(out->at + out->n, x, (size_t)n * sizeof *x);
            out->n += n;
        }
        return st;
    }
    if (!r->n_held && !r->from) { /* silence before the first sample */
        r->from = -r->reach;
        if ((st = hold(r, NULL, r->reach, e)))
            return st;
    }
    if ((st = hold(r, x, n, e)))
        return st;
    return make(r, INT64_MAX / SOUND_RATE_MAX, out, e);
}

status resampler_end(resampler *r, sound *out, err *e)
{
    if (!r->weight || !r->n_in)
        return OK;
    status st = hold(r, NULL, r->n_taps, e);
    int64_t n = (r->n_in * r->up + r->down - 1) / r->down;
    return st ? st : make(r, n, out, e);
}
