/* soft.h - pictures of a request as a model's soft tokens. */
#ifndef APPS_MEDIA_SOFT_H
#define APPS_MEDIA_SOFT_H

#include "apps/media/pictures.h"
#include "carat.h"

/* The token that stands for a picture until it is expanded. -1: the vocabulary has none. */
int32_t picture_token(const carat_model *m);
/* The soft tokens of a picture, by its header alone. Sentences begin with its name. */
status picture_count(const picture *p, const carat_model *m, int32_t *n, err *e);
/* Decodes a picture and prepares it for the tower; then its file is freed. Pictures are decoded one
 * at a time, because one takes up to a gigabyte meanwhile. Any thread but the one that runs passes.
 */
status picture_open(picture *p, carat_model *m, carat_media **out, err *e);

#endif
