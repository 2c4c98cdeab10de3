/* sound.h - sound: files to samples, samples to another rate, and samples to the spectra that a
 * model's tower hears.
 *
 * A sound is one channel of 16,000 samples a second, in f32 from -1 to 1. Decoders read WAV, FLAC,
 * MP3 and Ogg (Vorbis, Opus) from memory, by libsndfile. They are in programs alone: libcarat takes
 * samples, and is linked with no codec.
 *
 * A file may be hostile. Lengths are checked before memory is taken and again while samples come,
 * because compressed silence has any length. Any thread may call. libsndfile notes why an opening
 * failed in a global, which is not read here.
 */
#ifndef SOUND_SOUND_H
#define SOUND_SOUND_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SOUND_RATE = 16000,         /* samples a second */
    SOUND_SECONDS_MAX = 600,    /* of a file */
    SOUND_RATE_MIN = 4000,      /* of a file */
    SOUND_RATE_MAX = 384000,    /* of a file */
    SOUND_CHANNELS_MAX = 8,     /* of a file */
    SOUND_VALUES_MAX = 1 << 28, /* samples of all channels of a file: enough of 48 kHz in 8 */
    SOUND_LARGEST = 65536       /* magnitude of a sample: some files of floats count to 32768 */
};

typedef enum sound_format {
    SOUND_NONE = -1,
    SOUND_WAV,
    SOUND_FLAC,
    SOUND_MP3,
    SOUND_OGG
} sound_format;

typedef struct sound { /* zeroed: empty */
    float *at;         /* [n], freed by sound_free */
    int64_t n, cap;
} sound;

/* What the beginning of a file says. */
typedef struct sound_head {
    sound_format format;
    int32_t rate, n_channels;
} sound_head;

/* By the first bytes of a file. SOUND_NONE: none that is read. */
sound_format sound_format_of(const void *bytes, size_t n_bytes);
/* "an AAC file": a kind that is known and not read. NULL: any other. */
const char *sound_other_kind(const void *bytes, size_t n_bytes);
/* Checks the head of a file. name is for messages. E_UNSUPPORTED: another kind of file; E_LIMIT;
 * E_FORMAT: a damaged file, or a coding that is not read. */
status sound_head_read(sound_head *h, const void *bytes, size_t n_bytes, const char *name, err *e);
/* The sound of a file: the mean of its channels, at SOUND_RATE. E_FORMAT too where a WAV file
 * (RIFF) or a FLAC file ends early, or a sample is no number; other files that are cut give what is
 * there. On failure *out is as it was. */
status sound_decode(sound *out, const void *bytes, size_t n_bytes, const char *name, err *e);
void sound_free(sound *s); /* safe on a zeroed or freed one */

/* ---- Other rates: resample.c ----
 *
 * Sample j of the result is a weighted sum of the samples near its time. The weights are a sinc of
 * RESAMPLE_ROLL times half the lower rate, within RESAMPLE_ZEROS of its zeros to either side, under
 * a Kaiser window. It is the formula of torchaudio ("sinc_interp_kaiser") with the numbers of
 * resampy ("kaiser_best"): in closed form, so two programs agree, and -100 dB beyond the band.
 */
#define RESAMPLE_ROLL 0.9475937167399596
#define RESAMPLE_BETA 14.769656459379492
enum {
    RESAMPLE_ZEROS = 64,
    RESAMPLE_WEIGHTS_MAX = 1 << 23 /* of all phases: 32 MiB. Rates of no small ratio need more */
};

/* Samples that come in pieces, at any rate of SOUND_RATE_MIN to SOUND_RATE_MAX. */
typedef struct resampler resampler;
/* name is for messages, and stays valid. E_LIMIT: a rate outside, or one whose ratio to SOUND_RATE
 * has too many phases. */
status resampler_new(resampler **r, int32_t rate, const char *name, err *e);
void resampler_free(resampler *r); /* r may be NULL */
/* Takes the next n samples, and appends to *out. E_LIMIT: it becomes longer than
 * SOUND_SECONDS_MAX; E_MEMORY. */
status resampler_put(resampler *r, const float *x, int32_t n, sound *out, err *e);
/* Appends what is left. */
status resampler_end(resampler *r, sound *out, err *e);

/* ---- Spectra: mel.c ----
 *
 * Rows of 128 numbers, one each 10 ms, as transformers' Gemma4AudioFeatureExtractor makes them:
 * magnitudes of a DFT of 512 over 320 samples under a Hann window, in 128 triangles that are
 * equally wide in mel (2595 log10(1 + f / 700)) from 0 to 8000 Hz, and the logarithm of the sum
 * plus 0.001. 160 zeros stand before the first sample. All in f64, except the window.
 */
enum { MEL_BINS = 128, MEL_HOP = 160, MEL_FRAME = 320 };
/* 0: shorter than a row. */
int64_t mel_length(int64_t n);
/* out: [mel_length(n)][MEL_BINS]. */
void mel_rows(float *out, const float *x, int64_t n);

#endif
