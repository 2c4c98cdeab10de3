/* media_new.c - the caller's pictures and sounds (carat/media.h): their sizes and hashes, and their
 * places in prompts. */
#include "base/mem.h"
#include "engine/media_int.h"
#include "model/gemma4.h"
#include "sound/sound.h"

#include <math.h>
#include <stdio.h>

/* ---- The caller's pictures ------------------------------------------------------------------ */

static status check_media(const carat_model *m, err *e)
{
    if (m->media)
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s was opened without a vision tower: it sees no pictures",
                   m->core.name);
}

static status grid_of(const carat_model *m, int32_t width, int32_t height,
                      const carat_image_options *opt, image_rule *rule, image_grid *g, err *e)
{
    int32_t budget = opt ? opt->n_tokens : 0;
    status st = check_media(m, e);
    if (st)
        return st;
    if (budget && budget != CARAT_IMAGE_NATIVE &&
        (budget < VISION_BUDGET_MIN || budget > VISION_BUDGET_MAX))
        return err_set(e, E_ARG, "%d tokens of a picture: expected %d to %d, or the picture's own",
                       budget, VISION_BUDGET_MIN, VISION_BUDGET_MAX);
    if (width < 1 || height < 1 || width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX ||
        (int64_t)width * height > IMAGE_PIXELS_MAX)
        return err_set(e, E_LIMIT, "a picture of %d x %d pixels: expected at most %d a side and %d",
                       width, height, IMAGE_SIDE_MAX, IMAGE_PIXELS_MAX);
    budget = budget == CARAT_IMAGE_NATIVE ? 0 : budget ? budget : m->media->budget;
    if ((st = vision_grid(&m->media->tower, budget, width, height, rule, g, "a picture", e)))
        return st;
    return vision_check(&m->media->tower, g, e);
}

carat_status carat_image_tokens(const carat_model *m, int32_t width, int32_t height,
                                const carat_image_options *opt, int32_t *n, carat_error *e)
{
    image_rule rule;
    image_grid g;
    status st = grid_of(m, width, height, opt, &rule, &g, e);
    if (!st)
        *n = g.n_tokens;
    return st;
}

static void key_of(char key[SHA256_TEXT], const image *picture, const image_grid *g)
{
    char head[96];
    sha_stream s;
    int n = snprintf(head, sizeof head, "image %d x %d in %d x %d\n", picture->width,
                     picture->height, g->width, g->height);
    sha256_init(&s);
    sha_put(&s, head, (size_t)n);
    sha_put(&s, picture->rgb, 3 * (size_t)picture->width * (size_t)picture->height);
    sha_text(&s, key);
}

carat_status carat_image_new(carat_model *m, const uint8_t *rgb, int32_t width, int32_t height,
                             const carat_image_options *opt, carat_media **out, carat_error *e)
{
    const image picture = {width, height, (uint8_t *)(uintptr_t)rgb}; /* read only */
    char key[SHA256_TEXT];
    image_rule rule;
    image_grid g;
    bool has_pixels = false;
    float *patches = NULL;
    *out = NULL;
    status st = rgb ? grid_of(m, width, height, opt, &rule, &g, e)
                    : err_set(e, E_ARG, "carat_image_new: no pixels");
    if (st)
        return st;
    carat_media *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "a picture", sizeof *c);
    c->m = m;
    key_of(key, &picture, &g);
    if ((st = media_use(m, key, &g, &(ears_size){0}, &c->item, &has_pixels, e))) {
        mem_free(c);
        return st;
    }
    if (!has_pixels && (st = image_patches_of(&patches, &g, &rule, &picture, "a picture", e))) {
        carat_media_free(c);
        return st;
    }
    st = has_pixels ? OK : media_give(m, c->item, &patches, e);
    mem_free(patches);
    if (st) {
        carat_media_free(c);
        return st;
    }
    *out = c;
    return OK;
}

/* ---- Sounds ---- */

_Static_assert((int)CARAT_SOUND_RATE == (int)SOUND_RATE &&
                   (int)CARAT_SOUND_PIECE_SECONDS == (int)AUDIO_SECONDS_MAX,
               "what callers are told");

static status size_of(const carat_model *m, int64_t n, ears_size *s, err *e)
{
    if (!media_hears(m))
        return err_set(e, E_UNSUPPORTED, "%s was opened without an audio tower: it hears no sound",
                       m->core.name);
    return ears_size_of(&m->media->ears, n, s, e);
}

carat_status carat_sound_tokens(const carat_model *m, int64_t n_samples, int32_t *n, carat_error *e)
{
    ears_size s;
    status st = size_of(m, n_samples, &s, e);
    if (!st)
        *n = s.n_tokens + 2 * (s.n_pieces - 1);
    return st;
}

static status check_samples(const float *x, int64_t n, err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= SOUND_LARGEST))
            return err_set(e, E_ARG, "sample %lld of a sound is %g; expected -1 to 1", (long long)i,
                           (double)x[i]);
    return OK;
}

static void key_of_sound(char key[SHA256_TEXT], const float *x, int64_t n)
{
    char head[64];
    sha_stream s;
    int n_head = snprintf(head, sizeof head, "sound of %lld\n", (long long)n);
    sha256_init(&s);
    sha_put(&s, head, (size_t)n_head);
    sha_put(&s, x, (size_t)n * sizeof *x);
    sha_text(&s, key);
}

static status give_features(carat_model *m, media_item *it, const float *samples, err *e)
{
    const ears *own = &m->media->ears;
    size_t n = ears_feature_count(own, &it->sound);
    float *features = mem_calloc(n, sizeof *features);
    if (!features)
        return err_memory(e, "a sound", n * sizeof *features);
    ears_features(own, &it->sound, features, samples);
    status st = media_give(m, it, &features, e);
    mem_free(features);
    return st;
}

carat_status carat_sound_new(carat_model *m, const float *samples, int64_t n, carat_media **out,
                             carat_error *e)
{
    char key[SHA256_TEXT];
    ears_size s;
    bool has_features = false;
    *out = NULL;
    status st = samples ? size_of(m, n, &s, e) : err_set(e, E_ARG, "carat_sound_new: no samples");
    if (st || (st = check_samples(samples, n, e)))
        return st;
    carat_media *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_memory(e, "a sound", sizeof *c);
    c->m = m;
    key_of_sound(key, samples, n);
    const image_grid g = {.n_tokens = s.n_tokens};
    if ((st = media_use(m, key, &g, &s, &c->item, &has_features, e))) {
        mem_free(c);
        return st;
    }
    if (!has_features && (st = give_features(m, c->item, samples, e))) {
        carat_media_free(c);
        return st;
    }
    *out = c;
    return OK;
}

int32_t carat_media_n(const carat_media *x)
{
    return x->item->grid.n_tokens;
}

int32_t carat_media_id(const carat_media *x)
{
    return x->item->first;
}

void carat_media_free(carat_media *x)
{
    if (!x)
        return;
    media_drop_user(x->m->media, x->item);
    mem_free(x);
}

int32_t carat_image_token(const carat_model *m)
{
    return media_picture_token(m, 1);
}

int32_t carat_sound_token(const carat_model *m)
{
    static const char name[] = "<|audio|>";
    return m->core.arch == &gemma4_arch && m->text ? vocab_find(m->text, name, sizeof name - 1)
                                                   : -1;
}

/* ---- Prompts ------------------------------------------------------------------------------- */

/* A list that counts beyond its capacity. */
typedef struct id_sink {
    int32_t *to;
    int64_t n, cap;
} id_sink;

static void put_id(id_sink *s, int32_t id)
{
    if (s->n < s->cap)
        s->to[s->n] = id;
    s->n++;
}

/* The next of media takes the place of ids[i]. */
static bool takes_place(const media *x, int32_t id, const carat_media *next)
{
    return id == (next->item->sound.n_pieces ? x->ears.place : x->place);
}

static bool is_place(const media *x, int32_t id)
{
    return id >= 0 && (id == x->place || (x->ears.has && id == x->ears.place));
}

/* The soft tokens of it, with begin and end around each piece; outer ones only where ids lack them.
 */
static void put_medium(id_sink *s, const media *x, const media_item *it, bool begins, bool ends)
{
    int32_t n_pieces = it->sound.n_pieces ? it->sound.n_pieces : 1, id = it->first;
    int32_t begin = it->sound.n_pieces ? x->ears.begin : x->begin;
    int32_t end = it->sound.n_pieces ? x->ears.end : x->end;
    for (int32_t k = 0; k < n_pieces; k++) {
        int32_t n = it->sound.n_pieces ? ears_piece(&x->ears, &it->sound, k) : it->grid.n_tokens;
        if (begin >= 0 && (k || begins))
            put_id(s, begin);
        for (; n > 0; n--)
            put_id(s, id--);
        if (end >= 0 && (k + 1 < n_pieces || ends))
            put_id(s, end);
    }
}

static int32_t begin_of(const media *x, int32_t place)
{
    return place == x->place ? x->begin : x->ears.begin;
}

static int32_t end_of(const media *x, int32_t place)
{
    return place == x->place ? x->end : x->ears.end;
}

int64_t carat_media_expand(const carat_model *m, const int32_t *ids, int64_t n,
                           carat_media *const *list, int32_t n_media, int32_t *out, int64_t cap,
                           carat_error *e)
{
    id_sink s = {.to = out, .cap = out ? cap : 0};
    int64_t places = 0;
    if (check_media(m, e))
        return -1;
    const media *x = m->media;
    for (int64_t i = 0; i < n; i++)
        places += is_place(x, ids[i]);
    if (places != n_media)
        return err_set(e, E_ARG,
                       "the prompt has %lld places for pictures and sounds, and %d are given",
                       (long long)places, n_media),
               -1;
    for (int32_t i = 0; i < n_media; i++)
        if (list[i]->m != m)
            return err_set(e, E_ARG, "picture %d of the prompt is of another model", i), -1;
    for (int64_t i = 0, k = 0; i < n; i++)
        if (is_place(x, ids[i]) && !takes_place(x, ids[i], list[k++]))
            return err_set(
                       e, E_ARG, "medium %lld of the prompt is a %s, and its place is one for %s",
                       (long long)(k - 1), list[k - 1]->item->sound.n_pieces ? "sound" : "picture",
                       ids[i] == x->place ? "pictures" : "sounds"),
                   -1;
    for (int64_t i = 0; i < n; i++) {
        if (!is_place(x, ids[i])) {
            put_id(&s, ids[i]);
            continue;
        }
        put_medium(&s, x, (*list++)->item, !i || ids[i - 1] != begin_of(x, ids[i]),
                   i + 1 == n || ids[i + 1] != end_of(x, ids[i]));
    }
    return s.n;
}
