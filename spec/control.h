/* control.h - how many tokens to draft: by measured costs and by this request's acceptance.
 *
 * A round with r rows takes T_draft + T_pass(r). It emits 1 + a tokens, a of them drafted. The
 * controller takes the number of slots, or the size of the tree, with the largest expected number
 * of emitted tokens per time, and 0 where a plain pass is better. It never lets a request fall
 * below 97 % of plain speed for long: it keeps a balance of time lost, and drafts nothing while the
 * balance is beyond 3 % of the plain time (drafters-more.md 8.4).
 *
 * Times only decide how much is drafted, never what is answered.
 */
#ifndef SPEC_CONTROL_H
#define SPEC_CONTROL_H

#include "spec/drafter.h"
#include "spec/tree.h"

enum { DRAFTERS_MAX = 2 }; /* of a session: a drafter with weights, and lookup */

/* Times of passes, shared by the requests of one session or batch. Smoothed; by rows of the pass
 * and by powers of two of the context. */
typedef struct draft_times draft_times;

/* One request's acceptance. */
typedef struct draft_control draft_control;

/* The wish of a request or session. */
typedef struct draft_wish {
    bool off;
    int32_t n_max;    /* most slots; 0: as many as the drafter fills */
    int32_t tree_max; /* most nodes of a tree; 0: chosen; < 0: chains only */
    bool fixed;       /* always draft n_max, for measurements */
} draft_wish;

/* The limits of one round. */
typedef struct draft_room {
    int32_t rows;       /* most rows of this timeline in the pass: 1 + nodes */
    int32_t tokens;     /* tokens that the answer may still have */
    int32_t other_rows; /* rows of other timelines in the same pass */
    int64_t n_ctx;      /* tokens in the cache */
} draft_room;

typedef struct draft_choice {
    int32_t drafter; /* its number */
    int32_t n_slots; /* 0: a plain pass */
    int32_t budget;  /* nodes of a tree; 0: a chain */
} draft_choice;

status draft_times_open(draft_times **t, err *e);
void draft_times_close(draft_times *t);
/* A pass of `rows` rows, all of answers, took ms. */
void draft_times_pass(draft_times *t, int32_t rows, int64_t n_ctx, double ms);
/* Drafting took ms, for n timelines at once. */
void draft_times_draft(draft_times *t, int32_t drafter, int32_t n_slots, int32_t n, double ms);

status draft_control_open(draft_control **c, draft_times *t, int32_t n_drafters,
                          const draft_wish *wish, err *e);
void draft_control_close(draft_control *c);
/* Decides the next round, before anything is drafted. */
draft_choice draft_control_choose(draft_control *c, const draft_room *room);
/* After the drafter has answered: may cut the tree, or drop it (n = 0), since its probabilities are
 * known now. */
void draft_control_trim(draft_control *c, const draft_room *room, draft_choice choice,
                        draft_tree *t);
/* The round's outcome. t: what was verified; accepted: the depth of the last accepted node; ms: the
 * time of the round, drafting included. */
void draft_control_tell(draft_control *c, draft_choice choice, const draft_tree *t,
                        int32_t accepted, double ms);

#endif
