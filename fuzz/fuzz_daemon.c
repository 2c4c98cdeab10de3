/* fuzz_daemon.c - lines of the daemon's protocol, one after the other, as a program sends them.
 *
 * Every line gives a request; one that is not marked as bad has what its command needs, in range.
 */
#include "fuzz/fuzz.h"
#include "apps/daemon_int.h"

#include <math.h>
#include <string.h>

#if CARAT_FUZZ
/* Of ids.c, which also reads texts; no line holds one. */
int64_t carat_tokenize(const carat_model *m, const char *text, size_t n_bytes, int32_t flags,
                       int32_t *ids, int64_t cap, carat_error *e)
{
    (void)m, (void)text, (void)n_bytes, (void)flags, (void)ids, (void)cap, (void)e;
    return -1;
}
#endif

static bool is_inside(const char *s, const char *line, size_t n)
{
    return !s || (s >= line && s + strlen(s) <= line + n);
}

static void check_request(const daemon_request *r, const char *line, size_t n)
{
    fuzz_check(is_inside(r->path, line, n) && is_inside(r->out, line, n) &&
                   is_inside(r->scorer, line, n),
               "a word outside of the line");
    fuzz_check(isfinite(r->sampling.temperature) && r->sampling.temperature >= 0 &&
                   r->sampling.top_p >= 0 && r->sampling.top_p <= 1 && r->sampling.top_k >= 0 &&
                   r->sampling.repeat_penalty > 0,
               "sampling out of range");
    if (r->bad)
        return;
    bool prompt = r->kind == DAEMON_PROMPT || r->kind == DAEMON_RESTORE;
    fuzz_check((!prompt && r->kind != DAEMON_GENERATE) || (r->path && r->n_gen > 0),
               "a prompt without its file or length");
    fuzz_check(r->kind != DAEMON_RESTORE || (r->slot >= 0 && r->slot < DAEMON_SLOTS), "a slot");
    fuzz_check(r->kind != DAEMON_GENERATE || r->out, "no output");
    fuzz_check(r->kind != DAEMON_COMPRESS || (r->path && r->keep > 0 && r->keep < 1), "a share");
    fuzz_check((r->kind != DAEMON_PARK && r->kind != DAEMON_UNPARK) || r->target || r->draft,
               "nothing to park");
}

FUZZ(daemon)
{
    const char *at = (const char *)data, *end = at + n;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        char *line = malloc(length + 1); /* exactly as long, so that reading past it is seen */
        daemon_request r;
        if (!line)
            return;
        memcpy(line, at, length);
        line[length] = 0;
        daemon_parse(&r, line);
        check_request(&r, line, length);
        daemon_request_free(&r);
        free(line);
        at += length + 1;
    }
}
