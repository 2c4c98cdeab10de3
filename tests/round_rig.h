/* round_rig.h - two sessions that must stay alike: one without a drafter, one with; requests of all
 * kinds, and everything that a caller hears of their answers.
 */
#ifndef TESTS_ROUND_RIG_H
#define TESTS_ROUND_RIG_H

#include "engine/round.h"
#include "carat_bench.h"
#include "base/str.h"
#include "tests/toy_model.h"
#include "tests/auto.h"

enum { CTX = 384, PROMPT_MAX = 1024, ANSWER_MAX = CTX, DEPTHS = 61, SLOTS = 8 };

typedef struct heard {
    str events; /* all fields of all events */
    str text;
    int32_t id[ANSWER_MAX];
    int32_t n, n_rounds, n_drafted, n_accepted;
    int32_t refuse_at, cancel_at; /* the token at which the callback does so; 0: never */
    carat_session *cancel_in;
    carat_batch *cancel_batch;
    int64_t job;
    carat_status st;
    carat_error e;
    carat_timings t;
    bool done;
} heard;

/* A mask that depends on all tokens so far. */
typedef struct strict {
    uint64_t state;
    bool loose;
} strict;

typedef struct request {
    int32_t ids[PROMPT_MAX];
    int64_t n;
    carat_generate_options o;
    strict strict;
    carat_mask mask;
    const char *stop[2];
    char stop_text[16];
} request;

typedef struct pair {
    carat_model *m, *with; /* without a drafter, and with lookup */
    carat_session *plain, *fast;
    float *a, *b;
    int32_t depth[DEPTHS];
} pair;

/* Callbacks of a generation; user: a heard. */
bool heard_event(void *user, const carat_event *ev);
void heard_round(void *user, const carat_round *r);
/* The end of a job of a batch; user: a heard. */
void heard_done(void *user, carat_status st, const carat_error *e, const carat_timings *t);
heard *heard_new(void);
void heard_free(heard *h);
RELEASED_AT(heard_free, heard)
/* The same events, and counts that agree with the timings. */
void heard_same(const heard *got, const heard *want, const char *what, int trial);
/* n prompt tokens; kind: sampling, masks, budgets, stop rules by its bits. */
void request_draw(const carat_model *m, request *q, int64_t n, int kind, uint64_t *rng);
/* A stop string out of the plain answer. */
void request_add_stop(request *q, const heard *plain, uint64_t *rng);
/* Gives h. */
heard *heard_say(carat_session *s, request *q, heard *h);

void pair_open(pair *p, const toy_model_file *v, carat_session_options o);
void pair_open_of(pair *p, const char *path, const char *draft, carat_session_options o);
/* Of p->m and p->with, which are open. */
void pair_open_sessions(pair *p, carat_session_options o);
void pair_close(pair *p);
/* The timelines hold the same tokens, and their next logits are equal. */
void pair_same(pair *p, const char *what, int trial);
carat_script pair_script(pair *p, const heard *plain, int32_t width, uint64_t *rng);
/* One request, plain and with drafts of `width` tokens, as a chain or a tree. */
void pair_compare(pair *p, request *q, int32_t width, bool tree, bool scripted, uint64_t *rng,
                  const char *what, int trial);

#endif
