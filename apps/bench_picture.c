/* bench_picture.c - the time that a picture takes until the next token: the tower's pass over its
 * patches, and the model's passes over its soft tokens. Decoding a file and resizing are not in it.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

/* Larger than any budget: Qwen never enlarges a picture. */
enum { WIDTH = 1600, HEIGHT = 900, SOFT_MAX = 1120 };

/* The time for a prompt of the picture alone. */
static status eval_picture(carat_session *s, const carat_media *x, int64_t *ns, err *e)
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

status bench_run_picture(const bench_setup *b, carat_model *m, carat_session *s, bench_test *t,
                         err *e)
{
    const carat_image_options o = {.n_tokens = t->n_picture};
    size_t n_bytes = (size_t)3 * WIDTH * HEIGHT;
    uint8_t *rgb = mem_alloc(n_bytes);
    uint64_t rng = (uint64_t)t->n_picture;
    status st = rgb ? OK : err_memory(e, "a picture", n_bytes);
    for (int32_t rep = -1; rep < b->n_reps && !st; rep++) { /* the first warms up */
        carat_media *x = NULL;
        int64_t whole, plain;
        term_progress(NULL, "picture", (uint64_t)(rep < 0 ? 0 : rep), (uint64_t)b->n_reps);
        if (term_interrupts()) {
            st = err_set(e, E_CANCELLED, "interrupted");
            break;
        }
        for (size_t i = 0; i < n_bytes; i++) /* a picture that is known would cost no tower pass */
            rgb[i] = (uint8_t)rng_below(&rng, 256);
        if (!(st = carat_image_new(m, rgb, WIDTH, HEIGHT, &o, &x, e)) &&
            !(st = eval_picture(s, x, &whole, e)))
            st = eval_picture(s, x, &plain, e);
        if (!st && rep >= 0) {
            t->n_prompt = carat_media_n(x);
            t->ours.ns[t->ours.n++] = whole;
            t->plain.ns[t->plain.n++] = plain;
        }
        carat_media_free(x);
    }
    term_progress_clear();
    mem_free(rgb);
    return st;
}
