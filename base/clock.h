/* clock.h - monotonic time, and waits until a time of it.
 *
 *     clock_cond_init(&changed);
 *     struct timespec until = clock_after_ms(500);
 *     while (!done && pthread_cond_timedwait(&changed, &lock, &until) != ETIMEDOUT)
 *         ;
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

int64_t clock_ns(void); /* monotonic, since some fixed point */
double clock_ms(void);
/* A value of clock_ns, for pthread_cond_timedwait. */
struct timespec clock_timespec(int64_t ns);
/* The time after so many milliseconds; one that has passed for none or a negative number. At most a
 * year. */
struct timespec clock_after_ms(double ms);
/* A condition whose timed waits are by this clock. It cannot fail: on Linux neither locks nor
 * conditions take memory, and pthread_mutex_init and pthread_cond_init always return 0. */
void clock_cond_init(pthread_cond_t *c);

#endif
