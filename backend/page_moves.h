/* page_moves.h - whole pages of linear stores, moved between a device and the host while passes go
 * on.
 *
 *     page     the KV_PAGE rows from a place on, of every head, in every one of some stores
 *     packed   store after store, head after head: page_bytes in all. The host has pages packed
 *
 *     passes   .. pass | begin                              join | pass ..
 *                          |                                  ^
 *     moves                '--> page_out ..    page_in .. ----'
 *
 * A move is one copy, beside the passes. page_moves_begin puts the moves that follow behind all
 * passes so far; page_moves_join puts the passes that follow behind all pages that came in. In
 * between, no pass may write a page that goes out, nor read or write the place of one that comes.
 *
 * A move that fails loses nothing: a page that goes out stays where it is, and its place is the
 * caller's to give away only after PAGE_MOVED; one that comes in may have written some rows of its
 * place.
 *
 * Only the thread that runs passes may call in.
 */
#ifndef BACKEND_PAGE_MOVES_H
#define BACKEND_PAGE_MOVES_H

#include "backend/ops.h"

/* Bytes of a packed page. The stores' n_slots are multiples of KV_PAGE, here and below. */
size_t page_bytes(const row_store *store, int32_t n_stores);

enum { PAGE_MOVES_MAX = 64 };
typedef struct page_moves page_moves;
typedef enum page_state { PAGE_MOVING, PAGE_MOVED, PAGE_FAILED } page_state;

/* Moves for n_moves pages on their way at a time. They take no memory of the device. The stores'
 * memory outlives them; the list is copied. E_MEMORY: nothing is left behind. */
status page_moves_open(page_moves **m, device *d, const row_store *store, int32_t n_stores,
                       int32_t n_moves, err *e);
void page_moves_close(page_moves *m); /* waits for copies on their way; NULL is fine */

/* Moves from now on come after all passes so far. Without it they come after those of the last
 * call. False: a call to the device failed, and no move may begin. */
bool page_moves_begin(page_moves *m);
/* Begins to move the page at `place` to the host: to `to`, page_bytes large, best from
 * device.host_alloc. Returns the move; -1: all are taken, or it could not begin. */
int32_t page_out(page_moves *m, int32_t place, void *to);
/* Begins to move a packed page to `place`. `from` stays as it is until PAGE_MOVED. */
int32_t page_in(page_moves *m, int32_t place, const void *from);
/* Passes from now on come after all pages that have come in so far, and see them. False: a call to
 * the device failed, and no pass may read those pages. */
bool page_moves_join(page_moves *m);
/* wait: until the copy has ended; never PAGE_MOVING then. */
page_state page_move_state(page_moves *m, int32_t move, bool wait);
/* Gives the move back, at any time. A copy under way goes on, and what it was to write, or read,
 * must stay until page_move_state has not said PAGE_MOVING, or page_moves_close. */
void page_move_end(page_moves *m, int32_t move);

/* What a device with memory of its own gives to page_moves.c. */
struct page_move_ops {
    status (*open)(void **self, device *d, int32_t n_moves, err *e); /* self: the device's part */
    void (*close)(void *self);
    bool (*begin)(void *self);
    /* The page at `place` to the host's packed bytes, or (in) back. False: a call to the device
     * failed, and no copy is on its way. */
    bool (*move)(void *self, int32_t move, const row_store *store, int32_t n_stores, int32_t place,
                 void *packed, bool in);
    bool (*join)(void *self);
    page_state (*state)(void *self, int32_t move, bool wait);
};

#endif
