/* round.h - the rounds of answers: what is drafted, checked in one pass, and kept.
 *
 * A round computes an answer's last token and drafted tokens after it in one pass. Each row's
 * logits give a token, exactly as without drafts. As long as that token is the token of a next row,
 * the next row's logits are used too; the first that is not ends the round. So a round takes 1 to
 * 1 + drafted tokens, the tokens that passes of one row would have taken.
 *
 *     rounds_draft       which tokens to check: per answer a chain, a tree or none
 *     reply_part        the rows of the pass, for run_pass
 *     reply_walk        takes tokens, and keeps the rows of the path
 *     rounds_keep        the same of a prompt's rows
 *     rounds_absorb      tells the drafters of all kept rows
 *     rounds_tell        tells the controller and the callers
 *
 *     rounds_drop        instead of all after a pass that failed
 *
 * A session or batch has one `rounds`, with or without drafters. The thread that runs its passes
 * makes all calls. A failed drafter ends its drafting and nothing else.
 */
#ifndef ENGINE_ROUND_H
#define ENGINE_ROUND_H

#include "engine/generation.h"

/* One answer in the making. */
typedef struct reply {
    timeline *t;
    generation *g;
    draft_control *control; /* NULL: it never drafts */
    int64_t n_rounds, n_drafted, n_accepted;
    /* The current round. */
    proposal found, proposed; /* of lookup; of the drafter with weights */
    draft_tree tree;          /* n 0: a plain row */
    int32_t drafter;
    int32_t path[STEP_TREE_ROWS_MAX], n_path; /* rows kept */
    bool ended;
} reply;

struct rounds {
    carat_model *m;
    int32_t n_seqs, verify_rows, draft_slots, draft_tree;
    drafter *d[DRAFTERS_MAX]; /* NULL: there is none */
    bool failed[DRAFTERS_MAX];
    err why;                                  /* the first failure */
    draft_times *times;                       /* NULL: no drafters */
    uint64_t n_rounds, n_drafted, n_accepted; /* of all answers */
    uint8_t n_fresh[STEP_TREE_ROWS_MAX + 1];  /* fresh passes of so many rows, not measured */
    reply *reply;                             /* [n_seqs] */
    /* The current round. */
    int32_t n_seats;
    reply **seated;   /* [n_seqs]: the answer of each seat */
    draft_seat *seat; /* [n_seqs] */
    draft_ask *ask;   /* [n_seqs] */
    double draft_ms[DRAFTERS_MAX], absorb_ms;
    /* Rows kept and not absorbed yet. */
    draft_kept *kept; /* [n_seqs] */
    timeline **kept_t;
    int32_t *kept_row; /* [rows_max] */
    int32_t n_kept, n_kept_rows;
    const step *pass; /* of these rows */
};

/* w->taps becomes those of a drafter that has any. */
status rounds_open(rounds **r, carat_model *m, const session_shape *shape, const kv_layout *l,
                   workspace *w, err *e);
void rounds_close(rounds *r); /* r may be NULL; its timelines are closed before */
/* Opens the drafters' states of t. */
status rounds_attach(rounds *r, timeline *t, err *e);
void rounds_detach(timeline *t);
/* t was cut to its first n tokens. */
void rounds_forget(timeline *t, int64_t n);

/* x->t is set. opt as generation_open. */
status reply_open(rounds *r, reply *x, generation *g, err *e);
void reply_close(reply *x); /* safe on a zeroed or closed answer; closes no generation */

/* Decides what the next pass checks. rows: the most rows of all n answers together, n or more.
 * chains: no trees. */
void rounds_draft(rounds *r, reply *const *x, int32_t n, int32_t rows, bool chains);
/* The part of the next pass: rows, and no buffers. */
pass_part reply_part(const reply *x);
/* Takes tokens from the rows of the last pass and keeps the rows of the path. cancel: no row after
 * the next token is kept. An error is the answer's own. */
status reply_walk(rounds *r, reply *x, workspace *w, const pass_part *part,
                  const atomic_bool *cancel, err *e);

/* Keeps rows as timeline_commit does. */
void rounds_keep(rounds *r, const pass_part *part, const int32_t *path, int32_t n);
void rounds_absorb(rounds *r);
/* Afterwards the caches of t's drafters have all rows that were absorbed. */
void rounds_settle(timeline *t);
/* pass_ms: of the pass; n_rows: its rows; mixed: it had rows of prompts too; fresh: pass.fresh. */
void rounds_tell(rounds *r, double pass_ms, int32_t n_rows, bool mixed, bool fresh);
/* After a pass that failed: its round never was, and its answers may end. */
void rounds_drop(rounds *r);
/* Adds the counts of the answer. */
void reply_report(const reply *x, carat_timings *t);

#endif
