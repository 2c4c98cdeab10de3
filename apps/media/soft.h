/* soft.h - pictures of a request as a model's soft tokens. */
#ifndef APPS_MEDIA_SOFT_H
#define APPS_MEDIA_SOFT_H

#include "apps/media/pictures.h"
#include "carat.h"

/* The soft tokens of a picture, by its header alone. Sentences begin with its name. */
status picture_count(const picture *p, const carat_model *m, int32_t *n, err *e);

/* The placeholders of a prompt, in its order: what carat_chat says. */
typedef struct picture_places {
    const int32_t *number; /* of pictures of a list */
    int32_t n, n_around;
} picture_places;

/* What pictures add to the length of a prompt with a placeholder for each, by their headers alone.
 * *bad: on failure the number of the picture; -1: none. */
status pictures_count(const pictures *l, const carat_model *m, picture_places at, int64_t *more,
                      int32_t *bad, err *e);
/* Puts soft tokens in the place of placeholders: *out, for mem_free. media[PICTURES_MAX] has the
 * pictures that were opened before, by number, and gets the others, for carat_media_free, also on
 * failure. To open a picture is to decode it and to prepare it for the tower; then its file is
 * freed, unless l->keep. Pictures are decoded side by side while they take a gigabyte
 * together. Any thread but the one that runs passes. */
status pictures_place(pictures *l, carat_model *m, carat_media **media, picture_places at,
                      const int32_t *ids, int64_t n, int32_t **out, int64_t *n_out, int32_t *bad,
                      err *e);

#endif
