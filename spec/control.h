/* control.h - how many tokens to draft: by measured costs and by each request's acceptance.
 *
 * A round with r rows takes T_draft + T_pass(r). A timeline in it emits 1 + a tokens, a of them
 * drafted. The controller takes the numbers of nodes with the largest expected number of emitted
 * tokens per time, over all timelines of the pass together, and none where a plain pass is better.
 * It never lets an answer of 256 tokens or more fall below 97 % of plain speed: each request has a
 * balance of time that drafting may lose.
 *
 * Times only decide how much is drafted, never what is answered.
 *
 * One round:
 *
 *     seats: one per answering timeline of the pass, plain ones too
 *     lookup proposes for the seats that may draft           seat.found
 *     draft_control_choose                                   seat.choice
 *     the drafter with weights proposes for the seats that chose it
 *     seat.tree from the chosen proposal: tree_grow by draft_control_weigh where
 *     choice.budget > 0, else tree_chain
 *     draft_control_trim                                     cuts trees: probabilities are known
 *     the pass; the walk                                     seat.last_row, seat.ended
 *     draft_control_tell
 */
#ifndef SPEC_CONTROL_H
#define SPEC_CONTROL_H

#include "spec/drafter.h"
#include "spec/tree.h"

/* The drafters of a session. Lookup costs nothing, so it proposes before the choice. */
enum { DRAFTER_LOOKUP, DRAFTER_MODEL, DRAFTERS_MAX };

/* Times of drafts and passes, and the acceptance of all requests so far; shared by the requests of
 * one session or batch. */
typedef struct draft_times draft_times;

/* One request's acceptance and balance. */
typedef struct draft_control draft_control;

/* The wish of a request or session. */
typedef struct draft_wish {
    bool off;
    int32_t n_max;    /* most slots; 0: as many as the drafter fills */
    int32_t tree_max; /* most nodes of a tree; 0: chosen; < 0: chains only */
    bool fixed;       /* always n_max slots (and tree_max nodes), for measurements */
} draft_wish;

typedef struct draft_choice {
    int32_t drafter; /* DRAFTER_LOOKUP: of seat.found */
    int32_t n_slots; /* 0: a plain row */
    int32_t budget;  /* most nodes of a tree; 0: a chain */
} draft_choice;

/* An answering timeline of a pass. */
typedef struct draft_seat {
    draft_control *c;      /* NULL: never drafts */
    int32_t rows;          /* most rows of it in the pass: 1 + nodes */
    int32_t tokens;        /* tokens that the answer may still have */
    int64_t n_ctx;         /* tokens in its cache */
    bool chain;            /* no tree: the pass has no room for one */
    const proposal *found; /* lookup's; NULL: none */
    draft_choice choice;   /* set by draft_control_choose */
    draft_tree *tree;      /* NULL: a plain row */
    int32_t last_row;      /* of the last accepted node; 0: none was accepted */
    bool ended;            /* the answer ended there, so the nodes after it are not judged */
} draft_seat;

/* The caller closes *t, after all controls that use it. E_MEMORY. NULL may be closed. */
status draft_times_open(draft_times **t, err *e);
void draft_times_close(draft_times *t);

/* n_slots: the most slots of each drafter; 0: there is none. t outlives the control. */
status draft_control_open(draft_control **c, draft_times *t, const int32_t n_slots[DRAFTERS_MAX],
                          const draft_wish *wish, err *e);
void draft_control_close(draft_control *c); /* c may be NULL */

/* rows: the most rows of all seats together. */
void draft_control_choose(draft_times *t, draft_seat *seat, int32_t n, int32_t rows);
/* What the probabilities of the seat's proposal are worth, by the acceptance so far. */
void draft_control_weigh(const draft_times *t, const draft_seat *seat, const proposal *p,
                         tree_weights *w);
void draft_control_trim(draft_times *t, draft_seat *seat, int32_t n, int32_t rows);
/* target_ms: the target's pass and the absorbing of its rows; 0: not measured, or the pass had rows
 * of prompts too. draft_ms: each drafter's time, whole. Rounds without a draft are told too. */
void draft_control_tell(draft_times *t, const draft_seat *seat, int32_t n, double target_ms,
                        const double draft_ms[DRAFTERS_MAX]);

#endif
