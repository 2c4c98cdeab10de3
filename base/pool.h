/* pool.h - a few worker threads that share one loop at a time, and sleep in between.
 *
 * Threads claim the chunks [0, n_chunks) of pool_run one by one, so a slow core delays no other.
 * The caller works too, as thread 0, and returns when all chunks are done. Workers spin briefly
 * between loops, since a decode step is hundreds of loops of microseconds each; then they sleep on
 * a futex, so an idle program uses no CPU. One caller at a time.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

typedef struct pool pool;
typedef void (*pool_fn)(void *arg, int32_t chunk, int32_t thread);

status pool_open(pool **p, int32_t n_threads, err *e); /* n_threads includes the caller */
/* Its threads give way to others, as `nice` of them says (0 to 19). The caller's priority stays. */
status pool_open_nice(pool **p, int32_t n_threads, int nice, err *e);
void pool_be_nice(int nice); /* the same for the calling thread */
void pool_close(pool *p);
int32_t pool_n_threads(const pool *p);
void pool_run(pool *p, int32_t n_chunks, pool_fn fn, void *arg);
int32_t pool_default_threads(void); /* physical cores this process may use */
extern int32_t pool_default_most;   /* as a rule; tests set less, before other threads start */

#endif
