/* recording_test.c - recordings of streams together: their memory, and the ids of their events. */
#include "apps/server/answers/recording.h"
#include "tests/test.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Adds an event of n bytes. */
static void add(recording *r, size_t n)
{
    AUTO(str_free) str ev = {0};
    str_printf(&ev, "data: %0*d\n\n", (int)n - 8, 0);
    recording_add(r, &ev);
    CHECK(!ev.bad);
}

static recording *begin(recordings *s, const char *name)
{
    problem p = {0};
    recording *r = recording_begin(s, 0, name, &p);
    CHECK_MSG(r, "%s", p.text);
    return r;
}

/* A string's memory doubles as it grows, so these have about twice their 2.1 MiB each. */
TEST(recordings_keep_within_their_memory)
{
    enum { N = 30 };
    recordings *s;
    recording *r[N];
    recording_info info;
    err e = {0};
    CHECK_OK(recordings_open(&s, &e), e);
#if defined(__GLIBC_PREREQ) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GLIBC_PREREQ(2, 33)
#define HEAP
    struct mallinfo2 before = mallinfo2(), after;
#endif
#endif
    for (int i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        r[i] = begin(s, name);
        for (int k = 0; k < 21; k++)
            add(r[i], 100 << 10);
    }
#ifdef HEAP
    after = mallinfo2();
    size_t held = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    CHECK_MSG(held <= RECORDINGS_BYTES + (1 << 20), "%zu bytes are held", held);
    CHECK_MSG(held >= RECORDINGS_BYTES / 2, "%zu bytes are held", held);
#endif
    /* Those that have ended need no more than their contents, so all of them fit. */
    for (int i = 0; i < N; i++)
        recording_end(r[i]);
    recording *last = begin(s, "last");
    for (int i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        CHECK_MSG(recording_poll(s, 0, name, &info) && info.over, "%d", i);
    }
    recording_end(last);
    recordings_close(s);
}

typedef struct writer {
    recording *r;
    int n;
    size_t n_bytes;
} writer;

static void *write_events(void *user)
{
    const writer *w = user;
    for (int i = 0; i < w->n; i++)
        add(w->r, w->n_bytes);
    return NULL;
}

/* A stream that grows drops the beginning of the longest one, whose own connection adds to it. The
 * ids of that one are numbers without gaps. ThreadSanitizer sees a number that is read outside the
 * lock; without it this sees only what became of one. */
TEST(recordings_number_their_events_while_others_drop_them)
{
    enum { SHORT = 60, EVENTS = 1500 };
    recordings *s;
    recording *many[SHORT];
    pthread_t thread;
    err e = {0};
    CHECK_OK(recordings_open(&s, &e), e);
    for (int i = 0; i < SHORT; i++) { /* together nearly all of the memory */
        many[i] = begin(s, NULL);
        add(many[i], 900 << 10);
    }
    recording *r = begin(s, "numbered");
    writer other = {begin(s, NULL), 40, 90 << 10};
    CHECK(!pthread_create(&thread, NULL, write_events, &other));
    str all = {0};
    for (int i = 0; i < EVENTS; i++) {
        AUTO(str_free) str ev = {0};
        str_printf(&ev, ": ping\n\ndata: %d\n\ndata: %02800d\n\n", i, i);
        recording_add(r, &ev);
        str_puts(&all, str_text(&ev));
    }
    pthread_join(thread, NULL);
    int64_t n = 0;
    for (const char *at = str_text(&all); (at = strstr(at, "id: ")); n++) {
        const char *colon = strchr(at, ':');
        colon = colon ? strchr(colon + 1, ':') : NULL;
        CHECK_MSG(colon && strtoll(colon + 1, NULL, 10) == n, "event %lld is %.60s", (long long)n,
                  at);
        at = colon;
    }
    CHECK_EQ(n, 2 * EVENTS);
    str_free(&all);
    recording_end(r);
    recording_end(other.r);
    for (int i = 0; i < SHORT; i++)
        recording_end(many[i]);
    recordings_close(s);
}
