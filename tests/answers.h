/* answers.h - what sessions and batches answer, recorded: tokens, how an answer ended, its timings;
 * for tests in which a batch answers as a session alone does.
 */
#ifndef TESTS_ANSWERS_H
#define TESTS_ANSWERS_H

#include "carat.h"

enum { QUESTION_TOKENS = 1536, ANSWER_TOKENS = 512 };

typedef struct question {
    int32_t ids[QUESTION_TOKENS];
    int64_t n;
    carat_generate_options o;
} question;

typedef struct answer {
    int32_t ids[ANSWER_TOKENS];
    int n, n_done; /* tokens; calls of answer_done */
    carat_finish finish;
    carat_status st;
    carat_error e;
    carat_timings t;
} answer;

/* Those tokens, answered greedily by `most` tokens. */
void question_ask(question *q, const int32_t *ids, int64_t n, int32_t most);
/* Callbacks of a generation or of a job; user: an answer. */
bool answer_heard(void *user, const carat_event *ev);
void answer_done(void *user, carat_status st, const carat_error *e, const carat_timings *t);
/* Answers in a session of its own. */
void answer_alone(carat_model *m, const carat_session_options *o, const question *q, answer *a);
/* a lives until the job has ended. */
void answer_submit(carat_batch *b, const question *q, answer *a);
/* The same tokens. */
bool answer_same(const answer *a, const answer *b);
/* Job i has answered, and as it does alone. */
void answer_check(const answer *got, const answer *want, int i);

#endif
