/* script.c - see script.h. Slot i of a round that shall accept `depth` tokens:
 *
 *     i < depth    the answer's token at the script's rank, other tokens at the other ranks
 *     i >= depth   other tokens only
 */
#include "spec/script.h"

#include <math.h>

void script_propose(const carat_script *s, int64_t n_done, int64_t round, int32_t n_vocab,
                    const draft_ask *ask)
{
    proposal *p = ask->out;
    int32_t depth = s->n_accept > 0 ? s->accept[round % s->n_accept] : 0;
    int32_t rank = s->rank < ask->n_ranks ? s->rank : 0;
    p->n_slots = ask->n_slots;
    p->n_ranks = ask->n_ranks < n_vocab ? ask->n_ranks : n_vocab;
    for (int32_t i = 0; i < p->n_slots; i++) {
        bool known = n_done + i < s->n_answer;
        int32_t right = known ? s->answer[n_done + i] : 0;
        for (int32_t k = 0; k < p->n_ranks; k++) {
            bool take = known && i < depth && k == rank;
            p->id[i][k] = take ? right : (right + 1 + k) % n_vocab;
            p->logp[i][k] = -(float)(k + 1) * logf(2);
        }
    }
}
