/* carat/media.h - pictures and sounds in prompts, for models that were opened with their towers
 * (carat_model_options.mmproj).
 *
 * A picture becomes soft tokens: rows that stand where the embeddings of tokens stand. In a prompt
 * they are ids below 0. Equal pictures have equal ids as long as the model is open, and no two
 * others share one, so prompts with pictures are compared, reused and saved like all others.
 *
 *     carat_image_new(m, rgb, width, height, NULL, &picture, &e);
 *     n_full = carat_media_expand(m, ids, n, &picture, 1, full, cap, &e);
 *     carat_generate(s, full, n_full, NULL, on_event, user, NULL, &e);
 *
 * The tower runs when a pass first needs the rows, so a picture that is in a session's cache costs
 * nothing. A prompt has all tokens of a picture: in some models they see each other. Rows stay as
 * long as a carat_media of the picture lives, and some longer. Calls that take a prompt of text
 * alone (embeddings, scores, importance) refuse ids below 0.
 */
#ifndef CARAT_MEDIA_H
#define CARAT_MEDIA_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One picture, or one sound, as a model's soft tokens. Must be freed before its model is closed. */
typedef struct carat_media carat_media;

enum {
    CARAT_IMAGE_NATIVE = -1
}; /* the picture's own size, within the model's limits
    * and at most 1120 tokens */
typedef struct carat_image_options {
    /* The most soft tokens: 70 to 1120, or CARAT_IMAGE_NATIVE. 0: carat_model_options.image_tokens
     */
    int32_t n_tokens;
} carat_image_options;

/* rgb: [height][width][3], read during the call only. opt may be NULL. E_UNSUPPORTED: the model has
 * no vision tower; E_LIMIT: such a shape is refused; E_ARG; E_MEMORY, also where pictures that live
 * have all the memory planned for them (512 MiB). On failure *out is NULL. Any thread. */
CARAT_API carat_status carat_image_new(carat_model *m, const uint8_t *rgb, int32_t width,
                                       int32_t height, const carat_image_options *opt,
                                       carat_media **out, carat_error *e);
/* The number of soft tokens of a picture of that size, without its begin and end tokens. Errors as
 * carat_image_new. Any thread. */
CARAT_API carat_status carat_image_tokens(const carat_model *m, int32_t width, int32_t height,
                                          const carat_image_options *opt, int32_t *n,
                                          carat_error *e);

/* A sound: n samples of one channel, CARAT_SOUND_RATE a second, from -1 to 1, read during the call
 * only. Models hear 30 seconds at a time; a longer sound becomes several pieces of that length,
 * each with begin and end tokens of its own. carat_model_info.hears says whether m takes sounds.
 * Errors as carat_image_new; E_LIMIT also for less than a token and for more than 10 minutes. Any
 * thread. */
enum { CARAT_SOUND_RATE = 16000, CARAT_SOUND_PIECE_SECONDS = 30 };
CARAT_API carat_status carat_sound_new(carat_model *m, const float *samples, int64_t n,
                                       carat_media **out, carat_error *e);
/* Its tokens, those that stand between pieces included. */
CARAT_API carat_status carat_sound_tokens(const carat_model *m, int64_t n_samples, int32_t *n,
                                          carat_error *e);

CARAT_API int32_t carat_media_n(const carat_media *x);  /* soft tokens */
CARAT_API int32_t carat_media_id(const carat_media *x); /* of the first; others are each 1 less */
CARAT_API void carat_media_free(carat_media *x);        /* x may be NULL. Any thread */

/* The token that stands for a picture in a prompt: "<|image|>", of Qwen "<|image_pad|>". -1: models
 * of this architecture see no pictures, or the vocabulary lacks it. */
CARAT_API int32_t carat_image_token(const carat_model *m);
/* The same for a sound: "<|audio|>". */
CARAT_API int32_t carat_sound_token(const carat_model *m);
/* Replaces each placeholder among ids (carat_image_token, carat_sound_token) by the soft tokens of
 * the next of media, with begin and end tokens around them where ids has none. Returns
 * the number of ids of the whole prompt, of which the first cap are written; out may be NULL with
 * cap 0. -1: failed. E_ARG: there are more or fewer placeholders than media, or a medium is of
 * another model or of another kind than its placeholder. Any thread. */
CARAT_API int64_t carat_media_expand(const carat_model *m, const int32_t *ids, int64_t n,
                                     carat_media *const *media, int32_t n_media, int32_t *out,
                                     int64_t cap, carat_error *e);

#ifdef __cplusplus
}
#endif
#endif
