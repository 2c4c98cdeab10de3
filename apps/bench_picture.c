/* bench_picture.c - the time that a picture or a sound takes until the next token: the tower's
 * pass, and the model's passes over its soft tokens. Decoding a file, resizing and spectra are not
 * in it.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

/* Larger than any budget: Qwen never enlarges a picture. */
enum { WIDTH = 1600, HEIGHT = 900, SOFT_MAX = 1120 };

/* The time for a prompt of the medium alone. */
static status eval_medium(carat_session *s, const carat_media *x, int64_t *ns, err *e)
{
    int32_t ids[SOFT_MAX], n = carat_media_n(x);
    for (int32_t k = 0; k < n; k++)
        ids[k] = carat_media_id(x) - k;
    carat_reset(s);
    int64_t start = clock_ns();
    status st = carat_eval(s, ids, n, NULL, NULL, e);
    *ns = clock_ns() - start;
    return st;
}

/* One of noise: one that is known would cost no pass of the tower. room: of room_bytes(t). */
static status new_medium(carat_model *m, const bench_test *t, void *room, uint64_t *rng,
                         carat_media **out, err *e)
{
    const carat_image_options o = {.n_tokens = t->n_picture};
    int64_t n = t->n_picture ? 3 * WIDTH * HEIGHT : (int64_t)t->n_seconds * CARAT_SOUND_RATE;
    uint8_t *rgb = room;
    float *samples = room;
    for (int64_t i = 0; i < n; i++) {
        int32_t byte = (int32_t)rng_below(rng, 256);
        if (t->n_picture)
            rgb[i] = (uint8_t)byte;
        else
            samples[i] = (float)(byte - 128) / 256;
    }
    return t->n_picture ? carat_image_new(m, rgb, WIDTH, HEIGHT, &o, out, e)
                        : carat_sound_new(m, samples, n, out, e);
}

static size_t room_bytes(const bench_test *t)
{
    return t->n_picture ? (size_t)3 * WIDTH * HEIGHT
                        : (size_t)t->n_seconds * CARAT_SOUND_RATE * sizeof(float);
}

status bench_run_medium(const bench_setup *b, carat_model *m, carat_session *s, bench_test *t,
                        err *e)
{
    void *room = mem_alloc(room_bytes(t));
    uint64_t rng = (uint64_t)(t->n_picture + t->n_seconds);
    status st = room ? OK : err_memory(e, "a picture or sound", room_bytes(t));
    for (int32_t rep = -1; rep < b->n_reps && !st; rep++) { /* the first warms up */
        carat_media *x = NULL;
        int64_t whole, plain;
        term_progress(NULL, t->n_picture ? "picture" : "sound", (uint64_t)(rep < 0 ? 0 : rep),
                      (uint64_t)b->n_reps);
        if (term_interrupts()) {
            st = err_set(e, E_CANCELLED, "interrupted");
            break;
        }
        if (!(st = new_medium(m, t, room, &rng, &x, e)) && !(st = eval_medium(s, x, &whole, e)))
            st = eval_medium(s, x, &plain, e);
        if (!st && rep >= 0) {
            t->n_prompt = carat_media_n(x);
            t->ours.ns[t->ours.n++] = whole;
            t->plain.ns[t->plain.n++] = plain;
        }
        carat_media_free(x);
    }
    term_progress_clear();
    mem_free(room);
    return st;
}
