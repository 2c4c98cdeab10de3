/* search.c - repositories of a hub by words. */
#include "apps/hub/listing.h"
#include "apps/hub/net.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    ANSWER_MAX = 1 << 20, /* bytes; thirty entries have some ten thousand */
    WAIT_MS = 20000       /* people wait for it */
};

typedef struct search {
    hub_progress_fn progress;
    void *user;
    double until_ms;
    bool late;
} search;

static bool tick(void *user, const char *note)
{
    search *s = user;
    const hub_progress p = {.file = "", .digest = "", .note = note};
    s->late = clock_ms() > s->until_ms;
    return !s->late && (!s->progress || s->progress(s->user, &p));
}

static status ask(const place *p, const char *words, search *s, hub_hits *out, err *e)
{
    net n = {0};
    reply *head = mem_alloc(sizeof *head);
    str url = {0}, body = {0};
    str_printf(&url, "%s/api/models?search=", p->endpoint);
    url_put(&url, words, false);
    /* A list by downloads has neither dates nor licences unless they are asked for. */
    str_printf(&url,
               "&filter=gguf&sort=downloads&direction=-1&limit=%d&expand=downloads&expand=likes"
               "&expand=gated&expand=lastModified",
               HUB_HITS_MAX);
    status st = head && !url.bad ? net_open(&n, p, e) : err_memory(e, "a search", sizeof *head);
    n.tick = tick;
    n.user = s;
    if (!st)
        st = net_text(&n, url.at, "the list of models", ANSWER_MAX, &body, head, e);
    if (!st)
        st = listing_take_hits(out, str_text(&body), body.n, e);
    net_close(&n);
    str_free(&url);
    str_free(&body);
    mem_free(head);
    return st;
}

status hub_search(const char *words, hub_progress_fn progress, void *user, hub_hits *out, err *e)
{
    search s = {.progress = progress, .user = user, .until_ms = clock_ms() + WAIT_MS};
    place p;
    status st = place_read(&p, true, e);
    out->n = 0;
    if (st)
        return st;
    if (!url_valid(p.endpoint))
        st = err_set(e, E_ARG, "HF_ENDPOINT=%s: not an http or https address", p.endpoint);
    else if (p.offline)
        st = err_set(e, E_IO, "HF_HUB_OFFLINE is set, so no hub is asked");
    else
        st = ask(&p, words, &s, out, e);
    if (st == E_CANCELLED && s.late)
        st = err_set(e, E_IO, "%s gave no whole answer within %d s", p.endpoint, WAIT_MS / 1000);
    place_free(&p);
    return st;
}
