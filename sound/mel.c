/* mel.c - see sound.h: windows, a DFT, triangles in mel, logarithms. */
#include "sound/sound.h"

#include <math.h>
#include <pthread.h>

enum { DFT = 512, BINS = DFT / 2 + 1 };

static const double PI = 3.14159265358979323846;

static struct {
    float window[MEL_FRAME];
    double cosine[DFT / 2], sine[DFT / 2]; /* of 2 pi i / DFT */
    double rise[BINS], fall[BINS];         /* the shares of a bin in the triangles ... */
    int32_t triangle[BINS];                /* ... that rises there, and in the one before it */
} table;

static double to_mel(double hz)
{
    return 2595.0 * log10(1.0 + hz / 700.0);
}

static double to_hz(double mel)
{
    return 700.0 * (pow(10.0, mel / 2595.0) - 1.0);
}

/* Triangle m rises from edge m to edge m + 1, and falls to edge m + 2. So between two edges one
 * triangle rises and the one before it falls. */
static void fill_triangles(void)
{
    double edge[MEL_BINS + 2], top = to_mel(SOUND_RATE / 2);
    for (int32_t i = 0; i < MEL_BINS + 2; i++)
        edge[i] = to_hz(top * i / (MEL_BINS + 1));
    for (int32_t k = 0, m = 0; k < BINS; k++) {
        double hz = (double)k * SOUND_RATE / DFT;
        while (m < MEL_BINS && hz >= edge[m + 1])
            m++;
        table.triangle[k] = m;
        table.rise[k] = fmax(0, (hz - edge[m]) / (edge[m + 1] - edge[m]));
        table.fall[k] = fmax(0, (edge[m + 1] - hz) / (edge[m + 1] - edge[m]));
    }
}

static void fill_table(void)
{
    for (int32_t i = 0; i < MEL_FRAME; i++)
        table.window[i] = (float)(0.5 - 0.5 * cos(2 * PI * i / MEL_FRAME));
    for (int32_t i = 0; i < DFT / 2; i++) {
        table.cosine[i] = cos(2 * PI * i / DFT);
        table.sine[i] = sin(2 * PI * i / DFT);
    }
    fill_triangles();
}

static pthread_once_t filled = PTHREAD_ONCE_INIT;

/* In place: the transform of DFT complex numbers (Cooley and Tukey, radix 2). */
static void transform(double *re, double *im)
{
    for (int32_t i = 1, j = 0; i < DFT; i++) {
        int32_t bit = DFT >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            double t = re[i];
            re[i] = re[j];
            re[j] = t;
            t = im[i];
            im[i] = im[j];
            im[j] = t;
        }
    }
    for (int32_t half = 1; half < DFT; half *= 2)
        for (int32_t at = 0; at < DFT; at += 2 * half)
            for (int32_t k = 0; k < half; k++) {
                double c = table.cosine[k * (DFT / 2 / half)];
                double s = -table.sine[k * (DFT / 2 / half)];
                int32_t a = at + k, b = a + half;
                double r = re[b] * c - im[b] * s, i = re[b] * s + im[b] * c;
                re[b] = re[a] - r;
                im[b] = im[a] - i;
                re[a] += r;
                im[a] += i;
            }
}

int64_t mel_length(int64_t n)
{
    /* A frame counts where the sample behind it is there too: the reference's frames have one more
     * sample than they use. */
    int64_t with_zeros = n + MEL_FRAME / 2, longer = MEL_FRAME + 1;
    return with_zeros < longer ? 0 : (with_zeros - longer) / MEL_HOP + 1;
}

/* Two frames at once: one is the real part, the other the imaginary one. */
static void mel_pair(float *first, float *second, const float *x, int64_t at)
{
    double re[DFT] = {0}, im[DFT] = {0}, a[MEL_BINS + 1] = {0}, b[MEL_BINS + 1] = {0};
    for (int32_t i = 0; i < MEL_FRAME; i++) {
        int64_t k = at + i - MEL_FRAME / 2;
        re[i] = k < 0 ? 0 : (double)x[k] * (double)table.window[i];
        if (second)
            im[i] = k + MEL_HOP < 0 ? 0 : (double)x[k + MEL_HOP] * (double)table.window[i];
    }
    transform(re, im);
    for (int32_t k = 0; k < BINS; k++) {
        int32_t o = (DFT - k) % DFT, m = table.triangle[k];
        double ra = re[k] + re[o], ia = im[k] - im[o], rb = im[k] + im[o], ib = re[o] - re[k];
        double va = 0.5 * sqrt(ra * ra + ia * ia), vb = 0.5 * sqrt(rb * rb + ib * ib);
        a[m] += va * table.rise[k];
        b[m] += vb * table.rise[k];
        if (m) {
            a[m - 1] += va * table.fall[k];
            b[m - 1] += vb * table.fall[k];
        }
    }
    for (int32_t m = 0; m < MEL_BINS; m++) {
        first[m] = (float)log(a[m] + 1e-3);
        if (second)
            second[m] = (float)log(b[m] + 1e-3);
    }
}

void mel_rows(float *out, const float *x, int64_t n)
{
    int64_t rows = mel_length(n);
    pthread_once(&filled, fill_table);
    for (int64_t r = 0; r < rows; r += 2) {
        float *to = out + r * MEL_BINS;
        mel_pair(to, r + 1 < rows ? to + MEL_BINS : NULL, x, r * MEL_HOP);
    }
}
