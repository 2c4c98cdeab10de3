/* ears.c - see ears.h. */
#include "engine/ears.h"
#include "engine/media.h"
#include "model/gemma4.h"
#include "sound/sound.h"

#include <string.h>

enum { PIECE = AUDIO_SECONDS_MAX * SOUND_RATE };

static status check_family(const ears *x, const carat_model *m, err *e)
{
    const model *t = &x->tower, *c = &m->core;
    if (c->arch != &gemma4_arch || audio_of(t)->n_out != c->n_embd)
        return err_set(e, E_UNSUPPORTED,
                       "%s: its audio tower makes embeddings of %d numbers for gemma4, and %s has "
                       "the architecture %s with embeddings of %d",
                       t->file.path, audio_of(t)->n_out, c->name, c->arch->name, c->n_embd);
    return OK;
}

static int32_t token_of(const carat_model *m, const char *text)
{
    return m->text ? vocab_find(m->text, text, strlen(text)) : -1;
}

status ears_open(ears *x, const carat_model *m, const carat_model_options *opt, err *e)
{
    gguf g = {0};
    /* Always mapped: the vision tower's copy of the file may be in memory already. */
    status st = media_file(&g, opt, false, e);
    if (st)
        return st;
    if (!audio_in_file(&g)) {
        gguf_close(&g);
        return OK;
    }
    x->has = true;
    if ((st = model_bind_audio(&x->tower, &g, e)) || (st = check_family(x, m, e)))
        return st;
    x->tower.progress = m->progress;
    x->tower.progress_user = m->progress_user;
    x->begin = token_of(m, "<|audio>");
    x->place = token_of(m, "<|audio|>");
    x->end = token_of(m, "<audio|>");
    return OK;
}

status ears_load(ears *x, device *dev, const carat_model_options *opt, err *e)
{
    if (!x->has)
        return OK;
    status st = model_load(&x->tower, dev, opt->progress, opt->progress_user, e);
    x->loaded = !st;
    return st;
}

void ears_unload_weights(ears *x)
{
    if (x->loaded)
        model_unload_weights(&x->tower);
    x->loaded = false;
}

status ears_load_weights(ears *x, const carat_model *m, err *e)
{
    status st = x->has ? model_load_weights(&x->tower, m->progress, m->progress_user, e) : OK;
    x->loaded = x->has && !st;
    return st;
}

void ears_close(ears *x)
{
    if (x->has)
        model_free(&x->tower);
    *x = (ears){0};
}

status ears_plan(const ears *x, device *dev, uint64_t *weight_bytes, size_t *room_bytes, err *e)
{
    audio_memory need = {0};
    status st = x->has ? audio_plan(&x->tower, dev, PIECE, &need, e) : OK;
    if (st)
        return st;
    *weight_bytes = x->has ? plan_weight_bytes(dev, &x->tower) : 0;
    *room_bytes = audio_room(&need);
    return OK;
}

/* ---- Sounds ---- */

static int64_t samples_of(const ears_size *s, int32_t k)
{
    int64_t left = s->n_samples - (int64_t)k * PIECE;
    return left < PIECE ? left : PIECE;
}

status ears_size_of(const ears *x, int64_t n_samples, ears_size *out, err *e)
{
    ears_size s = {.n_samples = n_samples};
    if (n_samples > (int64_t)SOUND_SECONDS_MAX * SOUND_RATE)
        return err_set(e, E_LIMIT, "a sound of %.0f seconds; at most %d are heard",
                       (double)n_samples / SOUND_RATE, SOUND_SECONDS_MAX);
    do {
        int32_t n;
        status st = audio_tokens(&x->tower, samples_of(&s, s.n_pieces), &n, s.n_pieces ? NULL : e);
        if (st && !s.n_pieces)
            return st;
        if (st) /* the end, which is too short for a token */
            break;
        s.n_tokens += n;
        s.n_pieces++;
    } while ((int64_t)s.n_pieces * PIECE < n_samples);
    *out = s;
    return OK;
}

int32_t ears_piece(const ears *x, const ears_size *s, int32_t k)
{
    int32_t n = 0;
    audio_tokens(&x->tower, samples_of(s, k), &n, NULL); /* ears_size_of has seen it succeed */
    return n;
}

size_t ears_feature_count(const ears *x, const ears_size *s)
{
    size_t n = 0;
    for (int32_t k = 0; k < s->n_pieces; k++)
        n += audio_feature_count(&x->tower, samples_of(s, k));
    return n;
}

void ears_features(const ears *x, const ears_size *s, float *out, const float *samples)
{
    for (int32_t k = 0; k < s->n_pieces; k++) {
        audio_features(&x->tower, out, samples + (size_t)k * PIECE, samples_of(s, k));
        out += audio_feature_count(&x->tower, samples_of(s, k));
    }
}

status ears_encode(const ears *x, const ears_size *s, int32_t k, const float *features, void *room,
                   size_t room_bytes, float *rows, err *e)
{
    for (int32_t i = 0; i < k; i++) {
        features += audio_feature_count(&x->tower, samples_of(s, i));
        rows += (size_t)ears_piece(x, s, i) * (size_t)audio_of(&x->tower)->n_out;
    }
    return audio_encode(&x->tower, x->tower.dev[PASS_MAIN], features, samples_of(s, k), room,
                        room_bytes, rows, e);
}
