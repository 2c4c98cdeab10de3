/* answers.c - see answers.h. */
#include "tests/answers.h"
#include "tests/test.h"

#include <string.h>

void question_ask(question *q, const int32_t *ids, int64_t n, int32_t most)
{
    CHECK(n <= QUESTION_TOKENS);
    *q = (question){.n = n, .o = {.max_tokens = most}};
    memcpy(q->ids, ids, (size_t)n * sizeof *ids);
    carat_sampling_neutral(&q->o.sampling);
    q->o.sampling.temperature = 0;
    q->o.sampling.ignore_eog = true;
}

bool answer_heard(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN) {
        CHECK(a->n < ANSWER_TOKENS);
        a->ids[a->n++] = ev->id;
    }
    if (ev->kind == CARAT_EV_END)
        a->finish = ev->finish;
    return true;
}

void answer_done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    answer *a = user;
    CHECK_EQ(a->n_done++, 0);
    a->st = st;
    a->t = *t;
    if (e)
        a->e = *e;
}

void answer_alone(carat_model *m, const carat_session_options *o, const question *q, answer *a)
{
    AUTO_SESSION *s;
    carat_error e = {0};
    *a = (answer){.n = 0};
    CHECK_OK(carat_session_open(m, o, &s, &e), e);
    CHECK_OK(carat_generate(s, q->ids, q->n, &q->o, answer_heard, a, &a->t, &e), e);
}

void answer_submit(carat_batch *b, const question *q, answer *a)
{
    carat_error e = {0};
    const carat_job j = {
        .ids = q->ids, .n = q->n, .opt = &q->o, .fn = answer_heard, .done = answer_done, .user = a};
    *a = (answer){.n = 0};
    CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
}

bool answer_same(const answer *a, const answer *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
}

void answer_check(const answer *got, const answer *want, int i)
{
    CHECK_EQ(got->n_done, 1);
    CHECK_OK(got->st, got->e);
    CHECK_MSG(got->n == want->n, "job %d: %d tokens, alone %d", i, got->n, want->n);
    for (int k = 0; k < got->n; k++)
        CHECK_MSG(got->ids[k] == want->ids[k], "job %d, token %d: %d, alone %d", i, k, got->ids[k],
                  want->ids[k]);
    CHECK_EQ(got->finish, want->finish);
    CHECK_EQ(!got->t.lossy, !want->t.lossy);
}
