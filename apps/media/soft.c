/* soft.c - see soft.h. */
#include "apps/media/soft.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t decoding = PTHREAD_MUTEX_INITIALIZER;

/* The library does not know where a picture comes from. */
static status named(const picture *p, const err *own, err *e)
{
    return err_set(e, own->status, "%s: %.800s", p->name, own->text);
}

int32_t picture_token(const carat_model *m)
{
    static const char name[] = "<|image|>";
    int32_t id;
    return carat_tokenize(m, name, sizeof name - 1, CARAT_TOK_SPECIAL, &id, 1, NULL) == 1 ? id : -1;
}

status picture_count(const picture *p, const carat_model *m, int32_t *n, err *e)
{
    const carat_image_options o = {.n_tokens = p->n_tokens};
    err own = {0};
    return carat_image_tokens(m, p->head.width, p->head.height, &o, n, &own) ? named(p, &own, e)
                                                                             : OK;
}

status picture_open(picture *p, carat_model *m, carat_media **out, err *e)
{
    const carat_image_options o = {.n_tokens = p->n_tokens};
    image pixels = {0};
    err own = {0};
    *out = NULL;
    pthread_mutex_lock(&decoding);
    status st = image_decode(&pixels, p->bytes, p->n, p->name, e);
    if (!st && carat_image_new(m, pixels.rgb, pixels.width, pixels.height, &o, out, &own))
        st = named(p, &own, e);
    if (!st)
        picture_drop_file(p);
    image_free(&pixels);
    pthread_mutex_unlock(&decoding);
    return st;
}
