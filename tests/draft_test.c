/* draft_test.c - how much of what the bundled drafters guess the bundled model accepts.
 *
 * A wrong drafter never shows in an answer: it only has fewer of its tokens accepted. So these
 * tests compare the acceptance on held-out prompts with that of PyTorch (tools/demo/README.md) and
 * with the values that this code had when it was right: a wrong tap, norm, mask, rotation, scale or
 * order of rows moves them. Answers are compared with those without a drafter in passing.
 */
#include "tests/test.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#include "carat.h"

#include <stdlib.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 22, SLOTS = 7, ROUNDS = 512, ANSWER = 160 };

/* A round has room if the answer goes on for at least as many tokens as were drafted. */
typedef struct tally {
    int n_rounds, n_accepted;
    int n_roomy, slot[SLOTS]; /* rounds with room; those of them that accepted slot i and all before */
} tally;

typedef struct speaker {
    carat_model *m;
    carat_session *s;
    carat_speculation how;
    int n_slots;
    tally t;
    int n, accepted[ROUNDS]; /* rounds of the current answer */
    int32_t *ids;            /* the answer */
    int n_ids;
} speaker;

static bool keep_token(void *user, const carat_event *ev)
{
    speaker *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n_ids < ANSWER)
        a->ids[a->n_ids++] = ev->token;
    return true;
}

static void keep_round(void *user, const carat_round *r)
{
    speaker *a = user;
    CHECK(a->n < ROUNDS);
    a->accepted[a->n++] = r->n_accepted;
}

/* The drafter in that file; NULL: none. */
static bool open_speaker(speaker *a, const char *drafter, const carat_session_options *so)
{
    const char *model = test_path("models/demo.gguf");
    carat_model_options mo = {.draft = drafter ? strdup(test_path(drafter)) : NULL};
    err e = {0};
    *a = (speaker){.ids = mem_calloc(ANSWER, sizeof *a->ids)};
    if (access(model, R_OK) || (drafter && access(mo.draft, R_OK)))
        test_skip("models/demo.gguf or its drafters are not there");
    CHECK_OK(carat_model_open(model, &mo, &a->m, &e), e);
    CHECK_OK(carat_session_open(a->m, so, &a->s, &e), e);
    free((char *)mo.draft);
    return true;
}

static void close_speaker(speaker *a)
{
    carat_session_close(a->s);
    carat_model_close(a->m);
    mem_free(a->ids);
}
