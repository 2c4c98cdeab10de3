/* audio.h - audio towers: models that make rows of embeddings ("soft tokens") of sound.
 *
 * A tower is the part of an mmproj file (architecture clip) whose tensors begin with "a." and
 * "mm.a.", bound as a model of its own by model_bind_audio. Its key audio.projector_type says which
 * one it is. Sound is SOUND_RATE samples a second (sound/sound.h), at most AUDIO_SECONDS_MAX at a
 * time: towers are trained on that.
 */
#ifndef MODEL_AUDIO_H
#define MODEL_AUDIO_H

#include "model/model.h"
#include "model/table.h"

enum { AUDIO_SECONDS_MAX = 30 };

/* What every tower's own data begins with: model.impl. */
typedef struct audio {
    const struct audio_arch *arch;
    const char *projector;  /* "gemma4a" */
    int32_t n_out;          /* the text model's width */
    int32_t n_near, n_embd; /* rows and width of audio_input.places; 0: it has none */
} audio;

/* A sound, as a pass gets it: memory of the device. */
typedef struct audio_input {
    mat rows;   /* of audio_features */
    mat places; /* [n_near][n_embd]: row d has sines, then cosines, of d times falling frequencies
                 */
} audio_input;

/* One of the towers. */
typedef struct audio_arch {
    const char *projector;
    const shape_family *shapes;
    status (*bind)(model *m, err *e);
    int32_t n_in;                                            /* numbers of a row of features */
    int64_t (*n_rows)(int64_t n_samples);                    /* of features; 0: too short */
    int64_t (*n_tokens)(int64_t n_rows);                     /* n_rows above 0 */
    void (*features)(float *out, const float *x, int64_t n); /* [n_rows][n_in] */
    mat (*forward)(pass *p, const model *m, const audio_input *in); /* [n_tokens, n_out] */
} audio_arch;
extern const audio_arch gemma4a_audio, gemma4ua_audio;

extern const model_arch clip_audio_arch;

/* NULL: m is no audio tower. */
const audio *audio_of(const model *m);
/* Does the file say that it has one? */
bool audio_in_file(const gguf *g);
/* Soft tokens of so many samples. E_LIMIT: too short, or longer than AUDIO_SECONDS_MAX. */
status audio_tokens(const model *m, int64_t n_samples, int32_t *n, err *e);
size_t audio_feature_count(const model *m, int64_t n_samples); /* floats */
void audio_features(const model *m, float *out, const float *x, int64_t n_samples);

/* ---- Passes ---- */

/* What a sound needs of the device's memory. */
typedef struct audio_memory {
    size_t scratch_bytes;
    size_t input_bytes; /* 0: the device reads the host's memory */
} audio_memory;
/* E_UNSUPPORTED: a device that does not compute audio towers. */
status audio_plan(const model *m, device *dev, int64_t n_samples, audio_memory *need, err *e);
/* All of it, in one piece. */
size_t audio_room(const audio_memory *need);
/* Soft tokens of one sound: soft[n_tokens][n_out]. room: as of vision_encode. m is loaded. */
status audio_encode(const model *m, device *dev, const float *features, int64_t n_samples,
                    void *room, size_t room_bytes, float *soft, err *e);

/* ---- For towers, inside model/ only ---- */

/* A file's shape is that of its vision tower, which may hold that of an audio tower: `ears`, with
 * family NULL where it does not. Tensors and keys of both, as of shape_family. */
int32_t audio_list_with(const model_shape *s, const model_shape *ears, shape_tensor *out,
                        int32_t cap);
void audio_put_with(gguf_writer *w, const model_shape *s, const model_shape *ears);

/* The keys that no row writes. */
void audio_put(gguf_writer *w, const char *projector);
/* Before layer il: false, with the pass failed, if model.progress says so. */
bool audio_goes_on(pass *p, const model *m, int32_t il);
/* The end of a tower's bind: *a's fields. */
status audio_done(model *m, const model_shape *s, audio *a, const audio_arch *arch, err *e);

#endif
