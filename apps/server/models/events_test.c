/* events_test.c - clients that watch the models: slow ones, ones that leave, the end of the server.
 */
#include "apps/server/models/events.h"
#include "tests/test.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct rig {
    serve_options o;
    server s;
    exchange x;
    events *v;
    int client;
    str seen;
} rig;

static void rig_open(rig *r)
{
    int fd[2];
    err e = {0};
    *r = (rig){0};
    r->s.o = &r->o;
    atomic_store(&r->s.state, SERVER_READY);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
    r->x = (exchange){.s = &r->s, .fd = fd[0]};
    r->client = fd[1];
    CHECK_OK(events_open(&r->v, &e), e);
    events_add(r->v, "early", "model_status", NULL); /* nobody reads yet */
    events_follow(r->v, &r->x);
    CHECK(r->x.status == 200 && r->x.feed);
}

static int64_t take(rig *r)
{
    char buf[4096];
    int64_t n = r->x.feed->read(r->x.feed, buf, sizeof buf);
    if (n > 0)
        str_put(&r->seen, buf, (size_t)n);
    return n;
}

static void rig_close(rig *r)
{
    r->x.feed->close(r->x.feed);
    events_add(r->v, "late", "model_status", NULL);
    events_close(r->v);
    close(r->x.fd);
    if (r->client >= 0)
        close(r->client);
    str_free(&r->seen);
}

static int count(const str *s, const char *text)
{
    int n = 0;
    for (const char *at = str_text(s); (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

TEST(events_reach_a_reader_in_order)
{
    AUTO(rig_close) rig r;
    rig_open(&r);
    events_add(r.v, "a\"b", "model_status", "{\"status\":\"loaded\"}");
    events_add(r.v, "c", "model_remove", NULL);
    while (!strstr(str_text(&r.seen), "remove"))
        CHECK(take(&r) > 0);
    CHECK_STR(r.seen.at,
              ": events of models follow\n\n"
              "data: {\"model\":\"a\\\"b\",\"event\":\"model_status\",\"data\":{\"status\":"
              "\"loaded\"}}\n\ndata: {\"model\":\"c\",\"event\":\"model_remove\"}\n\n");
    atomic_store(&r.s.state, SERVER_DRAINING);
    CHECK_EQ(take(&r), 0);
}

TEST(events_tell_a_slow_reader_that_it_missed_some)
{
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (int i = 0; i < 700; i++)
        events_add(r.v, i == 699 ? "last" : "some", "model_status", NULL);
    while (!strstr(str_text(&r.seen), "last"))
        CHECK(take(&r) > 0);
    CHECK_EQ(count(&r.seen, "models_reload"), 1);
    CHECK_EQ(count(&r.seen, "model_status"), 256);
    close(r.client);
    r.client = -1;
    CHECK_EQ(take(&r), -1);
}
