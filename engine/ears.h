/* ears.h - the audio tower of a model: the part for sound of its mmproj file.
 *
 * It is on the device of the vision tower, and works in the same room. A sound longer than
 * AUDIO_SECONDS_MAX is encoded in pieces of that length, each for itself. A last piece that is too
 * short for a token is left out.
 */
#ifndef ENGINE_EARS_H
#define ENGINE_EARS_H

#include "engine/engine_int.h"
#include "model/audio.h"

typedef struct ears {
    bool has, loaded;
    model tower;
    int32_t begin, place, end; /* ids around a sound and for it; -1: the vocabulary lacks it */
} ears;

/* Binds the audio tower of the file, if it has one. E_UNSUPPORTED: it is that of another model. */
status ears_open(ears *x, const carat_model *m, const carat_model_options *opt, err *e);
status ears_load(ears *x, device *dev, const carat_model_options *opt, err *e);
void ears_unload_weights(ears *x);
status ears_load_weights(ears *x, const carat_model *m, err *e);
void ears_close(ears *x); /* safe on a zeroed one */
/* What its weights take of the device's memory, and the room that a piece needs; 0: it has none. */
status ears_plan(const ears *x, device *dev, uint64_t *weight_bytes, size_t *room_bytes, err *e);

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
/* Piece k: from features of all pieces to its part of rows, [n_tokens][width of an embedding].
 * room: memory of the device, as ears_plan says. One at a time. */
status ears_encode(const ears *x, const ears_size *s, int32_t k, const float *features, void *room,
                   size_t room_bytes, float *rows, err *e);

#endif
