/* decode.c - files of sound by libsndfile: which kind a file is, limits, and blocks of samples that
 * become one channel at SOUND_RATE.
 *
 * libsndfile reads many kinds of files. Only those with a known beginning reach it.
 */
#include "sound/sound.h"
#include "base/mem.h"

#include <math.h>
#include <sndfile.h>
#include <string.h>

enum { BLOCK = 1 << 14 }; /* samples of all channels that are decoded at once */

static const char *const names[] = {
    [SOUND_WAV] = "WAV", [SOUND_FLAC] = "FLAC", [SOUND_MP3] = "MP3", [SOUND_OGG] = "Ogg"};

/* How files begin: `n` bytes at `at`. Kinds that are not read are here for the sentence. */
static const struct {
    const char *bytes;
    uint8_t at, n;
    int8_t format; /* -1: not read */
    const char *kind;
} beginnings[] = {
    {"RIFF", 0, 4, SOUND_WAV, NULL},
    {"RIFX", 0, 4, SOUND_WAV, NULL},
    {"RF64", 0, 4, SOUND_WAV, NULL},
    {"fLaC", 0, 4, SOUND_FLAC, NULL},
    {"OggS", 0, 4, SOUND_OGG, NULL},
    {"\xff\xfb", 0, 2, SOUND_MP3, NULL},
    {"\xff\xfa", 0, 2, SOUND_MP3, NULL},
    {"\xff\xf3", 0, 2, SOUND_MP3, NULL},
    {"\xff\xf2", 0, 2, SOUND_MP3, NULL},
    {"\xff\xf1", 0, 2, -1, "an AAC file"},
    {"\xff\xf9", 0, 2, -1, "an AAC file"},
    {"ftyp", 4, 4, -1, "an MP4 file"},
    {"\x1a\x45\xdf\xa3", 0, 4, -1, "a WebM file"},
    {"FORM", 0, 4, -1, "an AIFF file"},
    {"caff", 0, 4, -1, "a CAF file"},
    {"#!AMR", 0, 5, -1, "an AMR file"},
    {"0&\xb2u", 0, 4, -1, "a WMA file"},
};
enum { N_BEGINNINGS = sizeof beginnings / sizeof *beginnings };

static bool has(const uint8_t *bytes, size_t n, size_t at, const char *what, size_t n_what)
{
    return at <= n && n - at >= n_what && !memcmp(bytes + at, what, n_what);
}

/* The bytes of the ID3v2 tags in front (id3.org, "ID3 tag version 2.4.0", 3.1). */
static size_t tags_of(const uint8_t *bytes, size_t n)
{
    size_t at = 0;
    while (has(bytes, n, at, "ID3", 3) && n - at >= 10) {
        const uint8_t *s = bytes + at + 6; /* 7 bits a byte */
        size_t size = (size_t)(s[0] & 127) << 21 | (size_t)(s[1] & 127) << 14 |
                      (size_t)(s[2] & 127) << 7 | (s[3] & 127);
        size += bytes[at + 5] & 16 ? 20 : 10; /* with the head, and a foot where it has one */
        if (size > n - at)
            return n;
        at += size;
    }
    return at;
}

/* N_BEGINNINGS: none. libsndfile looks behind tags for any kind of file, so this does too. */
static size_t beginning_of(const uint8_t *bytes, size_t n)
{
    size_t tags = tags_of(bytes, n), i = 0;
    bytes += tags;
    n -= tags;
    while (i < N_BEGINNINGS &&
           !has(bytes, n, beginnings[i].at, beginnings[i].bytes, beginnings[i].n))
        i++;
    if (i < N_BEGINNINGS && beginnings[i].format == SOUND_WAV && !has(bytes, n, 8, "WAVE", 4))
        return N_BEGINNINGS; /* pictures and films begin with RIFF, too */
    return i;
}

sound_format sound_format_of(const void *bytes, size_t n_bytes)
{
    size_t i = beginning_of(bytes, n_bytes);
    return i < N_BEGINNINGS ? (sound_format)beginnings[i].format : SOUND_NONE;
}

const char *sound_other_kind(const void *bytes, size_t n_bytes)
{
    size_t i = beginning_of(bytes, n_bytes);
    return i < N_BEGINNINGS ? beginnings[i].kind : NULL;
}

/* ---- A file in memory ---- */

typedef struct reader {
    const uint8_t *bytes;
    sf_count_t n, at;
    const char *name;
    SNDFILE *file;
    SF_INFO is;
    sound_head head;
} reader;

static sf_count_t file_length(void *user)
{
    return ((reader *)user)->n;
}

static sf_count_t file_seek(sf_count_t offset, int whence, void *user)
{
    reader *r = user;
    sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? r->at : r->n;
    if (offset < -from || offset > r->n - from)
        return -1;
    return r->at = from + offset;
}

static sf_count_t file_read(void *to, sf_count_t n, void *user)
{
    reader *r = user;
    n = n < 0 ? 0 : n < r->n - r->at ? n : r->n - r->at;
    memcpy(to, r->bytes + r->at, (size_t)n);
    r->at += n;
    return n;
}

static sf_count_t file_write(const void *from, sf_count_t n, void *user)
{
    (void)from;
    (void)n;
    (void)user;
    return 0;
}

static sf_count_t file_tell(void *user)
{
    return ((reader *)user)->at;
}

static uint32_t le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* A WAV file whose samples end before their chunk does: libsndfile reads what is there. Programs
 * that write into a pipe do not know the length and say 0, or nearly 4 GiB. */
static bool wav_ends_early(const reader *r)
{
    size_t at = 12, n = (size_t)r->n;
    if (memcmp(r->bytes, "RIFF", 4))
        return false;
    while (at <= n && n - at >= 8) {
        uint32_t size = le32(r->bytes + at + 4);
        if (!memcmp(r->bytes + at, "data", 4))
            return size > n - at - 8 && size < 0x7fffff00;
        at += 8 + (size_t)size + (size & 1);
    }
    return false;
}

static status check_head(const reader *r, err *e)
{
    const SF_INFO *is = &r->is;
    if (is->channels < 1 || is->channels > SOUND_CHANNELS_MAX)
        return err_set(e, E_LIMIT, "%s: %d channels; at most %d are read", r->name, is->channels,
                       SOUND_CHANNELS_MAX);
    if (is->samplerate < SOUND_RATE_MIN || is->samplerate > SOUND_RATE_MAX)
        return err_set(e, E_LIMIT, "%s: %d samples a second; expected %d to %d", r->name,
                       is->samplerate, SOUND_RATE_MIN, SOUND_RATE_MAX);
    if (r->head.format == SOUND_WAV && wav_ends_early(r))
        return err_set(e, E_FORMAT, "%s: the WAV file ends in the middle of the sound", r->name);
    /* Some kinds do not say how long they are. */
    if (is->frames != SF_COUNT_MAX && (is->frames / is->samplerate > SOUND_SECONDS_MAX ||
                                       is->frames > (sf_count_t)(SOUND_VALUES_MAX / is->channels)))
        return err_set(e, E_LIMIT,
                       "%s: %lld samples of %d channels, %d a second; at most %d seconds and %d "
                       "samples are read",
                       r->name, (long long)is->frames, is->channels, is->samplerate,
                       SOUND_SECONDS_MAX, SOUND_VALUES_MAX);
    return OK;
}

static status open_reader(reader *r, err *e)
{
    SF_VIRTUAL_IO io = {file_length, file_seek, file_read, file_write, file_tell};
    size_t i = beginning_of(r->bytes, (size_t)r->n);
    if (i == N_BEGINNINGS || beginnings[i].format < 0)
        return err_set(e, E_UNSUPPORTED, "%s: %s; sound is read from WAV, FLAC, MP3 and Ogg files",
                       r->name,
                       i < N_BEGINNINGS ? beginnings[i].kind
                       : r->n           ? "no sound"
                                        : "an empty file");
    r->head.format = (sound_format)beginnings[i].format;
    r->file = sf_open_virtual(&io, SFM_READ, &r->is, r);
    if (!r->file) /* why, libsndfile tells all threads together */
        return err_set(e, E_FORMAT,
                       "%s: a %s file that is damaged or has a coding that is not read", r->name,
                       names[r->head.format]);
    r->head.rate = r->is.samplerate;
    r->head.n_channels = r->is.channels;
    return check_head(r, e);
}

static void close_reader(reader *r)
{
    if (r->file)
        sf_close(r->file);
}

status sound_head_read(sound_head *h, const void *bytes, size_t n_bytes, const char *name, err *e)
{
    reader r = {.bytes = bytes, .n = (sf_count_t)n_bytes, .name = name};
    status st = open_reader(&r, e);
    if (!st)
        *h = r.head;
    close_reader(&r);
    return st;
}

/* ---- Samples ---- */

/* n frames to their mean, in place. */
static status mix(const reader *r, float *x, sf_count_t n, int64_t at, err *e)
{
    int channels = r->is.channels;
    for (sf_count_t i = 0; i < n; i++) {
        double sum = 0;
        for (int c = 0; c < channels; c++) {
            float v = x[i * channels + c];
            if (!(fabsf(v) <= SOUND_LARGEST))
                return err_set(e, E_FORMAT, "%s: sample %lld is %g; expected -1 to 1", r->name,
                               (long long)(at + i), (double)v);
            sum += (double)v;
        }
        x[i] = (float)(sum / channels);
    }
    return OK;
}

static status read_all(const reader *r, resampler *to, sound *out, err *e)
{
    const sf_count_t frames = BLOCK / r->is.channels;
    float *x = mem_alloc(BLOCK * sizeof *x);
    sf_count_t n, done = 0;
    status st = x ? OK : err_memory(e, r->name, BLOCK * sizeof *x);
    while (!st && (n = sf_readf_float(r->file, x, frames)) > 0) {
        if ((done += n) > (sf_count_t)(SOUND_VALUES_MAX / r->is.channels))
            st = err_set(e, E_LIMIT, "%s: more than %d samples", r->name, SOUND_VALUES_MAX);
        else if (!(st = mix(r, x, n, done - n, e)))
            st = resampler_put(to, x, (int32_t)n, out, e);
    }
    mem_free(x);
    if (st)
        return st;
    bool counted = r->head.format == SOUND_FLAC && r->is.frames != SF_COUNT_MAX;
    if (sf_error(r->file) || (counted && done < r->is.frames))
        return err_set(e, E_FORMAT, "%s: the %s file is damaged or ends early, after %lld samples",
                       r->name, names[r->head.format], (long long)done);
    if (!done)
        return err_set(e, E_FORMAT, "%s: a %s file without a sample", r->name,
                       names[r->head.format]);
    return resampler_end(to, out, e);
}

status sound_decode(sound *out, const void *bytes, size_t n_bytes, const char *name, err *e)
{
    reader r = {.bytes = bytes, .n = (sf_count_t)n_bytes, .name = name};
    resampler *to = NULL;
    sound s = {0};
    status st = open_reader(&r, e);
    if (!st && !(st = resampler_new(&to, r.is.samplerate, name, e)))
        st = read_all(&r, to, &s, e);
    resampler_free(to);
    close_reader(&r);
    if (st)
        sound_free(&s);
    else
        *out = s;
    return st;
}

void sound_free(sound *s)
{
    mem_free(s->at);
    *s = (sound){0};
}
