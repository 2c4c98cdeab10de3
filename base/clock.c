/* clock.c - see clock.h. */
#include "base/clock.h"

enum { NS_PER_S = 1000000000 };

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

double clock_ms(void)
{
    return (double)clock_ns() * 1e-6;
}

struct timespec clock_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

struct timespec clock_after_ms(double ms)
{
    static const double most_ms = 366 * 86400e3;
    ms = ms > 0 ? ms : 0;
    return clock_timespec(clock_ns() + (int64_t)((ms < most_ms ? ms : most_ms) * 1e6));
}

void clock_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(c, &how);
    pthread_condattr_destroy(&how);
}
