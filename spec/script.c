/* script.c - see script.h. Slot i of a round that shall accept `depth` tokens:
 *
 *     i < depth    the answer's token at the script's rank, other tokens at the other ranks
 *     i >= depth   other tokens only
 *
 * The best token has the probability that the script says, and each of the others half of what is
 * left, but never more than the one before it.
 */
#include "spec/script.h"

#include <math.h>

static double chance_of(const carat_script *s, int32_t slot)
{
    if (s->n_chance <= 0)
        return 0.5;
    return s->chance[slot < s->n_chance ? slot : s->n_chance - 1];
}

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
        double prob = fmin(fmax(chance_of(s, i), 1e-6), 1), left = 1 - prob;
        for (int32_t k = 0; k < p->n_ranks; k++) {
            bool take = known && i < depth && k == rank;
            p->id[i][k] = take ? right : (right + 1 + k) % n_vocab;
            p->logp[i][k] = (float)log(prob);
            prob = fmax(fmin(prob, left *= 0.5), 1e-30);
        }
    }
}
