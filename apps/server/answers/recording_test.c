/* recording_test.c - what is dropped of a long stream, and of many. */
#include "apps/server/answers/recording.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

static const char one[] = "data: 0123456789012345678901234567890123456789012345678901234567890\n\n";

/* What a client gets from a place on; the status, if it is refused. */
static int follow(recordings *s, const recording_place *at, str *out)
{
    exchange x = {.fd = -1, .owner = 1, .errors = &chat_dialect};
    char buf[5000];
    int64_t n;
    recording_follow(s, &x, at);
    str_cut(out, 0);
    while (x.feed && (n = x.feed->read(x.feed, buf, sizeof buf)) > 0)
        str_put(out, buf, (size_t)n);
    if (x.feed)
        x.feed->close(x.feed);
    str_free(&x.out);
    return x.status;
}

TEST(recordings_drop_the_beginning_of_a_long_stream)
{
    recordings *s;
    err e = {0};
    problem p = {0};
    recording_info i;
    str out = {0}, again = {0};
    uint64_t sent = 0;
    int64_t n = 0;
    CHECK_OK(recordings_open(&s, &e), e);
    recording *r = recording_begin(s, 1, "a", &p);
    CHECK(r);
    while (sent < RECORDING_BYTES + RECORDING_BYTES / 2) {
        str text = {0};
        str_puts(&text, ": ping\n\n");
        for (int k = 0; k < 100; k++, n++)
            str_puts(&text, one);
        recording_add(r, &text);
        CHECK(!text.bad);
        sent += text.n;
        str_free(&text);
    }
    CHECK(recording_wanted(r));
    recording_end(r);
    CHECK(recording_poll(s, 1, "a", &i) && i.over && i.n_bytes == sent);
    CHECK(!recording_poll(s, 2, "a", &i));
    /* What is kept is at most the limit and at least half of it, and begins with an event. */
    CHECK_EQ(follow(s, &(recording_place){.name = "a", .by_byte = true, .from = 0}, &out), 400);
    CHECK_EQ(follow(s, &(recording_place){.name = "a", .after = -1}, &out), 400);
    CHECK_EQ(follow(s, &(recording_place){.name = "a", .after = n}, &out), 400);
    CHECK_EQ(follow(s, &(recording_place){.name = "a", .after = n - 1}, &out), 200);
    CHECK_EQ(out.n, 0);
    int64_t low = 0, high = n - 1; /* the first event after which all is kept */
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (follow(s, &(recording_place){.name = "a", .after = mid}, &out) == 200)
            high = mid;
        else
            low = mid + 1;
    }
    CHECK_EQ(follow(s, &(recording_place){.name = "a", .after = low}, &out), 200);
    CHECK(out.n <= RECORDING_BYTES && out.n > RECORDING_BYTES / 2);
    CHECK(!strncmp(out.at, "id: ", 4) || !strncmp(out.at, ": ping\n\nid: ", 12));
    recording_place from = {.name = "a", .by_byte = true, .from = sent - out.n};
    CHECK_EQ(follow(s, &from, &again), 200);
    CHECK_STR(again.at, out.at);
    str_free(&again);
    str_free(&out);
    recordings_close(s);
}

static void add_bytes(recording *r, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        str text = {0};
        for (int k = 0; k < 1000; k++)
            str_puts(&text, one);
        recording_add(r, &text);
        CHECK(!text.bad);
        sent += text.n;
        str_free(&text);
    }
}

TEST(recordings_have_a_budget)
{
    enum { N = RECORDINGS_BYTES / RECORDING_BYTES + 8, OVER = N - 4 };
    recordings *s;
    err e = {0};
    recording *r[N], *more;
    problem p = {0};
    recording_info i;
    str out = {0};
    char name[16];
    int n_there = 0;
    CHECK_OK(recordings_open(&s, &e), e);
    /* Those that ended first are forgotten. */
    for (int k = 0; k < OVER; k++) {
        snprintf(name, sizeof name, "n%d", k);
        CHECK((r[k] = recording_begin(s, 1, name, &p)));
        add_bytes(r[k], RECORDING_BYTES);
        recording_end(r[k]);
    }
    for (int k = 0; k < OVER; k++) {
        snprintf(name, sizeof name, "n%d", k);
        bool there = recording_poll(s, 1, name, &i);
        CHECK_MSG(there || !n_there, "n%d is forgotten, and one before it is not", k);
        n_there += there;
    }
    CHECK_MSG(n_there >= RECORDINGS_BYTES / RECORDING_BYTES - 1 && n_there < OVER, "%d are there",
              n_there);
    /* At work they all stay, without their beginnings. */
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "w%d", k);
        CHECK((r[k] = recording_begin(s, 1, name, &p)));
        add_bytes(r[k], RECORDING_BYTES / 2 + RECORDING_BYTES / 5);
    }
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "w%d", k);
        CHECK(recording_poll(s, 1, name, &i) && recording_wanted(r[k]));
    }
    CHECK(i.n_bytes > RECORDING_BYTES / 2);
    snprintf(name, sizeof name, "n%d", OVER - 1);
    CHECK(!recording_poll(s, 1, name, &i));
    CHECK_EQ(follow(s, &(recording_place){.name = "w0", .by_byte = true, .from = 0}, &out), 400);
    /* Of the same name: the one before it ends. */
    CHECK((more = recording_begin(s, 1, "w3", &p)) && !recording_wanted(r[3]));
    CHECK(recording_remove(s, 1, "w3") && !recording_wanted(more));
    CHECK(!recording_remove(s, 1, "w3"));
    for (int k = 0; k < N; k++)
        recording_end(r[k]);
    recording_end(more);
    str_free(&out);
    recordings_close(s);
}
