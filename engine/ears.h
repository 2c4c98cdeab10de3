/* ears.h - the audio tower of a model: the part for sound of its mmproj file.
 *
 * It runs on a CPU, beside a GPU too: no GPU has its ops. A sound longer than AUDIO_SECONDS_MAX is
 * encoded in pieces of that length, each for itself. A last piece that is too short for a token is
 * left out.
 */
#ifndef ENGINE_EARS_H
#define ENGINE_EARS_H

#include "engine/engine_int.h"
#include "model/audio.h"

typedef struct ears {
    bool has, loaded;
    model tower;
    device *dev;               /* a CPU: media_int.h says which. Set before plans and loading */
    int32_t begin, place, end; /* ids around a sound and for it; -1: the vocabulary lacks it */
} ears;

/* Binds the audio tower of the file, if it has one. E_UNSUPPORTED: it is that of another model. */
status ears_open(ears *x, const carat_model *m, const carat_model_options *opt, err *e);
status ears_load(ears *x, const carat_model_options *opt, err *e);
void ears_unload_weights(ears *x);
status ears_load_weights(ears *x, const carat_model *m, err *e);
void ears_close(ears *x); /* safe on a zeroed one */
/* What it takes of the host's memory with a piece at work. */
status ears_plan(ears *x, uint64_t *n_bytes, err *e);
uint64_t ears_taken(const ears *x); /* of these, taken when weights were loaded */

/* Pieces of a sound, and their soft tokens. E_LIMIT: too short or too long. */
typedef struct ears_size {
    int64_t n_samples;
    int32_t n_pieces, n_tokens;
} ears_size;
status ears_size_of(const ears *x, int64_t n_samples, ears_size *out, err *e);
/* The tokens of piece k, which come after those of the pieces before it. */
int32_t ears_piece(const ears *x, const ears_size *s, int32_t k);
size_t ears_feature_count(const ears *x, const ears_size *s); /* floats */
void ears_features(const ears *x, const ears_size *s, float *out, const float *samples);
/* rows: [n_tokens][width of an embedding]. One at a time. */
status ears_encode(const ears *x, const ears_size *s, const float *features, float *rows, err *e);

#endif
