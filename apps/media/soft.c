/* soft.c - see soft.h. */
#include "apps/media/soft.h"
#include "base/mem.h"

#include <pthread.h>

/* Pictures that are decoded side by side take at most DECODING_BYTES; one alone may take more. They
 * begin in the order in which they came, so a large one waits for no more than those before it. */
enum {
    DECODING_BYTES = 1 << 30,
    PIXEL_BYTES = 16,       /* all copies of a pixel together */
    SOUND_BYTES = 128 << 20 /* of ten minutes: samples and features */
};
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t last, begun; /* numbers of pictures */
    uint64_t bytes;       /* that the pictures take which are being decoded */
} decoding = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void decoding_begin(uint64_t bytes)
{
    pthread_mutex_lock(&decoding.lock);
    uint64_t own = ++decoding.last;
    while (own != decoding.begun + 1 || (decoding.bytes && decoding.bytes + bytes > DECODING_BYTES))
        pthread_cond_wait(&decoding.changed, &decoding.lock);
    decoding.begun = own;
    decoding.bytes += bytes;
    pthread_cond_broadcast(&decoding.changed);
    pthread_mutex_unlock(&decoding.lock);
}

static void decoding_end(uint64_t bytes)
{
    pthread_mutex_lock(&decoding.lock);
    decoding.bytes -= bytes;
    pthread_cond_broadcast(&decoding.changed);
    pthread_mutex_unlock(&decoding.lock);
}

/* The library does not know where a picture comes from. */
static status named(const picture *p, const err *own, err *e)
{
    return err_set(e, own->status, "%s: %.800s", p->name, own->text);
}

status picture_count(const picture *p, const carat_model *m, int32_t *n, err *e)
{
    const carat_image_options o = {.n_tokens = p->n_tokens};
    err own = {0};
    if (p->n_samples)
        return carat_sound_tokens(m, p->n_samples, n, &own) ? named(p, &own, e) : OK;
    return carat_image_tokens(m, p->head.width, p->head.height, &o, n, &own) ? named(p, &own, e)
                                                                             : OK;
}

status pictures_count(const pictures *l, const carat_model *m, picture_places at, int64_t *more,
                      int32_t *bad, err *e)
{
    status st = OK;
    *more = 0;
    *bad = -1;
    for (int32_t i = 0; i < at.n && !st; i++) {
        int32_t n_soft = 0, k = at.number[i];
        if (k < 0 || k >= l->n)
            return err_set(e, E_ARG, "a message names a picture that is not there");
        *bad = k;
        st = picture_count(&l->at[k], m, &n_soft, e);
        *more += n_soft + at.n_around - 1;
    }
    return st;
}

static status open_sound(const picture *p, carat_model *m, carat_media **out, err *e)
{
    sound s = {0};
    err own = {0};
    status st = sound_decode(&s, p->bytes, p->n, p->name, e);
    if (!st && carat_sound_new(m, s.at, s.n, out, &own))
        st = named(p, &own, e);
    sound_free(&s);
    return st;
}

static status open_image(const picture *p, carat_model *m, carat_media **out, err *e)
{
    const carat_image_options o = {.n_tokens = p->n_tokens};
    image pixels = {0};
    err own = {0};
    status st = image_decode(&pixels, p->bytes, p->n, p->name, e);
    if (!st && carat_image_new(m, pixels.rgb, pixels.width, pixels.height, &o, out, &own))
        st = named(p, &own, e);
    image_free(&pixels);
    return st;
}

static status open_picture(picture *p, carat_model *m, bool keep, carat_media **out, err *e)
{
    uint64_t bytes = p->n_samples
                         ? SOUND_BYTES
                         : PIXEL_BYTES * (uint64_t)p->head.width * (uint64_t)p->head.height;
    decoding_begin(bytes);
    status st = p->n_samples ? open_sound(p, m, out, e) : open_image(p, m, out, e);
    if (!st && !keep)
        picture_drop_file(p);
    decoding_end(bytes);
    return st;
}

status pictures_place(pictures *l, carat_model *m, carat_media **media, picture_places at,
                      const int32_t *ids, int64_t n, int32_t **out, int64_t *n_out, int32_t *bad,
                      err *e)
{
    carat_media *list[PICTURES_MAX];
    *bad = -1;
    if (at.n > PICTURES_MAX)
        return err_set(e, E_LIMIT, "a prompt with %d pictures; at most %d are seen", at.n,
                       PICTURES_MAX);
    for (int32_t i = 0; i < at.n; i++) {
        int32_t k = at.number[i];
        if (k < 0 || k >= l->n)
            return err_set(e, E_ARG, "a message names a picture that is not there");
        *bad = k;
        status st = media[k] ? OK : open_picture(&l->at[k], m, l->keep, &media[k], e);
        if (st)
            return st;
        list[i] = media[k];
    }
    *bad = -1;
    int64_t n_all = carat_media_expand(m, ids, n, list, at.n, NULL, 0, e);
    if (n_all < 0)
        return e->status;
    int32_t *all = mem_calloc((size_t)n_all, sizeof *all);
    if (!all)
        return err_memory(e, "a prompt with pictures", (size_t)n_all * sizeof *all);
    carat_media_expand(m, ids, n, list, at.n, all, n_all, NULL);
    *out = all;
    *n_out = n_all;
    return OK;
}
