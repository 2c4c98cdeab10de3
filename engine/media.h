/* media.h - pictures and sounds of a model: its towers, and the registry of soft ids.
 *
 * A soft token has an id below 0. The registry gives every distinct picture a run of such ids,
 * first, first - 1, ..., and never uses a run twice. Pictures are told apart by SHA-256 of their
 * pixels and the size that they are computed in, sounds by that of their samples. What is said of
 * pictures holds for sounds; only, their tokens never see later ones. So comparing ids compares
 * pictures, and whatever compares ids (prefixes, checkpoints, batches, lookup) needs to know
 * nothing of pictures.
 *
 * What an id says of its picture's shape is kept as long as the model, 16 bytes a picture:
 * timelines, checkpoints and snapshots may have the id. All else of a picture that nothing uses any
 * more is forgotten when MEDIA_ITEMS are known; seen again it gets other ids, and so is computed
 * again.
 *
 * The rows of a picture are computed when a pass first needs them; media_work.c says where.
 * They stay as long as a carat_media of the picture lives. Those of others are dropped, the ones
 * unused for the longest time first, when all together exceed MEDIA_ROWS_BYTES. Patches that wait
 * for the tower and all rows together take at most MEDIA_MOST_BYTES: a picture beyond is refused.
 */
#ifndef ENGINE_MEDIA_H
#define ENGINE_MEDIA_H

#include "engine/engine_int.h"

enum {
    MEDIA_ITEMS = 4096,
    MEDIA_ROWS_BYTES = 128 << 20, /* of pictures without a carat_media */
    MEDIA_MOST_BYTES = 512 << 20  /* 16 pictures of the most tokens */
};

/* Opens the mmproj file that opt names or holds. direct: as gguf_open's. */
status media_file(gguf *g, const carat_model_options *opt, bool direct, err *e);
/* Opens the tower that opt names, weights not yet loaded. Plans count it from here on. */
status media_open(carat_model *m, const carat_model_options *opt, err *e);
status media_load(carat_model *m, const carat_model_options *opt, err *e);
/* Gives back what the weights take, and takes it again. */
void media_unload_weights(carat_model *m);
status media_load_weights(carat_model *m, err *e);
void media_close(carat_model *m); /* safe on a model without a tower */

/* Sets *p's vision_bytes, audio_bytes and picture_bytes. E_UNSUPPORTED: the device does not compute
 * the tower. */
status media_plan(const carat_model *m, carat_memory_plan *p, err *e);
/* Of the main device's memory, taken with the weights: room for a picture or a sound at work. */
uint64_t media_taken(const carat_model *m);

const model *media_tower(const carat_model *m);       /* NULL: there is none */
const model *media_audio_tower(const carat_model *m); /* the same */
const char *media_path(const carat_model *m);         /* of the tower's file; NULL: no tower */
bool media_hears(const carat_model *m);               /* has an audio tower */

/* Is the id of a picture of m? */
bool media_has_id(const carat_model *m, int32_t id);
/* Do tokens of a picture see each other both ways? Then all of a picture's tokens are in one pass,
 * and what is kept of a prompt ends before a picture or behind it. */
bool media_two_way(const carat_model *m);
/* The tokens of the picture that ids[0] is one of, which come after it, itself included, if they
 * have to be in one pass; else 0. */
int32_t media_block(const carat_model *m, const int32_t *ids);
/* Of the next n ids of a prompt, how many a pass takes that shall have `rows`. It has more than
 * that where it begins with a longer picture. */
int32_t media_pass_rows(const carat_model *m, const int32_t *ids, int64_t n, int32_t rows);
/* n, or the place before it where the picture begins that n would cut. n_ids: of all ids. */
int64_t media_whole(const carat_model *m, const int32_t *ids, int64_t n, int64_t n_ids);
/* E_ARG: a picture lacks some of its tokens, where they see each other or places are on axes.
 * before: the id before them; 0: there is none. */
status media_check(const carat_model *m, int32_t before, const int32_t *ids, int64_t n, err *e);
/* The most rows of a pass that one picture may need; 0: any will do. */
int32_t media_rows_max(const carat_model *m);

/* The next token's place on the axes of M-RoPE, which moves *p on. before: the id before it. */
row_axes media_place(const carat_model *m, axes_place *p, int32_t before, int32_t id);

typedef struct media_item media_item;
/* Ends the uses of *n pictures whose rows a pass has read; *n becomes 0. Any thread. */
void media_leave(carat_model *m, media_item **held, int32_t *n);
/* The rows of ids[0 .. run->n), which are the first ones of ids[0 .. n) that follow each other in
 * one picture. Sets run->at, run->n and *held, the picture, whose rows stay until media_leave.
 * Under the lock of passes. E_ARG: the rows were dropped, and no carat_media has the picture. */
status media_rows(carat_model *m, const int32_t *ids, int32_t n, soft_run *run, media_item **held,
                  err *e);

/* Writes ids[0 .. n) as files have them: those of texts as they are, those of pictures by content.
 * tower: names the tower. Returns how many it wrote: up to a picture that was forgotten, or of
 * which too few tokens follow. */
int64_t media_lasting(const carat_model *m, const uint64_t tower[2], const int32_t *ids, int64_t n,
                      int32_t *out);

/* For towers on the device of passes: makes rows of the first picture, or of the next piece of the
 * first sound, among ids[0 .. n) that has none, if *may, which then becomes false. *ready: all of
 * them have rows. A pass makes the rows that it lacks by itself. */
status media_make_one(carat_model *m, const int32_t *ids, int64_t n, bool *may, bool *ready,
                      err *e);
/* For towers that run beside passes: rows of all pictures among ids[0 .. n) that have none.
 * media_await computes them. media_ask has the worker do so, and tells whether all are there; the
 * wakers are called on its thread, under a lock of the registry, when it has made or failed to make
 * some. A caller sets *since to 0 before its first call; media_ask then writes the time of that
 * call there. media_ask reports the failure of an attempt that began after that time. */
status media_await(carat_model *m, const int32_t *ids, int64_t n, err *e);
status media_ask(carat_model *m, const int32_t *ids, int64_t n, uint64_t *since, bool *ready,
                 err *e);
typedef struct media_waker {
    void (*fn)(void *user);
    void *user;
    struct media_waker *next;
} media_waker;
void media_add_waker(carat_model *m, media_waker *w); /* without a tower nothing happens */
void media_remove_waker(carat_model *m, media_waker *w);

/* For tests: fn is called before each pass of a tower. */
void media_before_work(carat_model *m, void (*fn)(void *user), void *user);
/* For tests: another MEDIA_MOST_BYTES, another MEDIA_ITEMS, before any picture. */
void media_limit(carat_model *m, uint64_t most, int32_t n_items);

#endif
