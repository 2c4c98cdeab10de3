/* page_moves.h - whole pages of linear stores: copied to other places of their stores, and moved
 * between a device and the host while passes go on.
 *
 *     page     the KV_PAGE rows from a place on, of every head, in every one of some stores
 *     packed   store after store, head after head: page_bytes in all
 *
 *     out      pack: with the passes | one copy: beside them     -> the host's bytes
 *     in       one copy: beside the passes | put: with them      -> a place
 *
 * The moves of one set of stores have room for n_moves packed pages on the device. A move takes one
 * of them, from page_out or page_in to page_move_end. No pass waits for a copy: page_put is for a
 * page whose copy has come, or else it makes the passes after it wait.
 *
 * A move that fails changes nothing: a page that goes out stays where it is, and its place is the
 * caller's to give away only after PAGE_MOVED; a page that comes in has written to no place.
 *
 * Only the thread that runs passes may call in.
 */
#ifndef BACKEND_PAGE_MOVES_H
#define BACKEND_PAGE_MOVES_H

#include "backend/ops.h"

/* All rows of a page; both multiples of KV_PAGE. */
typedef struct page_copy {
    int32_t from, to;
} page_copy;

/* Copies pages in every store; no page of `to` is another's `from` or `to`. Ordered with the
 * passes, not waited for. The stores' n_slots are multiples of KV_PAGE, here and below. */
void device_copy_pages(device *d, const row_store *store, int32_t n_stores, const page_copy *copy,
                       int32_t n);

/* Bytes of a packed page. */
size_t page_bytes(const row_store *store, int32_t n_stores);

enum { PAGE_MOVES_MAX = 64 };
typedef struct page_moves page_moves;
typedef enum page_state {
    PAGE_MOVING,
    PAGE_MOVED, /* out: the host has it; in: page_put waits for nothing */
    PAGE_FAILED
} page_state;

/* Takes n_moves * page_bytes of the device's memory. The stores' memory outlives the moves; the
 * list is copied. E_MEMORY: nothing is left behind. */
status page_moves_open(page_moves **m, device *d, const row_store *store, int32_t n_stores,
                       int32_t n_moves, err *e);
void page_moves_close(page_moves *m); /* waits for copies on their way; NULL is fine */

/* Begins to move the page at `place` to the host: to `to`, page_bytes large, best from
 * device.host_alloc. What later passes write to the page is not in it. Returns the move; -1: all
 * are taken, or it could not begin. */
int32_t page_out(page_moves *m, int32_t place, void *to);
/* Begins to move a packed page to the device. `from` stays as it is until PAGE_MOVED. */
int32_t page_in(page_moves *m, const void *from);
/* wait: until the copy has ended; never PAGE_MOVING then. */
page_state page_move_state(page_moves *m, int32_t move, bool wait);
/* Writes the page that a move brought in to `place`, before all later passes. Any number of times.
 * False: the copy has failed, as far as is known now, and nothing is written. */
bool page_put(page_moves *m, int32_t move, int32_t place);
/* Gives the move back, at any time. A copy under way goes on, and what it was to write, or read,
 * must stay until page_move_state has not said PAGE_MOVING, or page_moves_close. */
void page_move_end(page_moves *m, int32_t move);

/* What a device with memory of its own gives to page_moves.c. */
struct page_move_ops {
    void (*copy)(device *d, const row_store *store, int32_t n_stores, const page_copy *copy,
                 int32_t n);
    /* self: the device's part. packed: the device's memory for n_moves pages. */
    status (*open)(void **self, device *d, int32_t n_moves, err *e);
    void (*close)(void *self);
    /* Each returns false, and leaves no work behind, where a call to the device fails. */
    bool (*out)(void *self, int32_t move, const row_store *store, int32_t n_stores, int32_t place,
                void *packed, void *to, size_t n_bytes);
    bool (*in)(void *self, int32_t move, void *packed, const void *from, size_t n_bytes);
    bool (*put)(void *self, int32_t move, const row_store *store, int32_t n_stores, int32_t place,
                const void *packed);
    page_state (*state)(void *self, int32_t move, bool wait);
};

#endif
