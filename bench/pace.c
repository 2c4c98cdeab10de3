/* pace.c - what a gap between tokens costs, by arithmetic: `make bench-pace`, or build/bench_pace
 * [SEEDS].
 *
 * Clients that ask again and again, prompts of 512 and answers of 256 tokens, on a device whose
 * times are those of a mixture of experts on an H200 (26B-A4B). With n clients, answers in passes of
 * A ms and prompts in parts of r rows that take c(r) ms, a token takes
 *
 *     A / n + c(r) 512 / (r 256)        and the gap is A + c(r)
 *
 * The table has the widest parts for a gap by that, what engine/pace.c is to choose where they would
 * cost more than a fifth of all tokens, and what a run of engine/pace.c over the same times gives.
 * Then SEEDS (default 1000) random companies on random devices: the time until all have their
 * answers, beside that of whole prompts.
 */
#include "tests/pace_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 512, ANSWER = 256, KEYS = 640 };

static const pace_device h200 = {.answers = {{1, 2, 4, 8, 16, 32, 48, 64}, {1.7, 2.1, 2.85, 3.9, 5.45, 7.7, 9.8, 11.9}},
                                 .parts = {{1, 16, 32, 64, 128, 256, 512, 2048},
                                           {6, 7.3, 8.5, 10.7, 14.4, 17.5, 25, 76}},
                                 .apart = true,
                                 .jitter = 0.02};

static double token_ms(int32_t n_clients, double rows)
{
    return pace_answer_ms(&h200, n_clients, 0) / n_clients +
           pace_part_ms(&h200, (int32_t)rows, 0) * PROMPT / rows / ANSWER;
}

/* The widest part that keeps the gap; 0: none. */
static int32_t widest(int32_t n_clients, double gap_ms)
{
    int32_t n = PROMPT;
    while (n && pace_answer_ms(&h200, n_clients, 0) + pace_part_ms(&h200, n, 0) > gap_ms)
        n--;
    return n;
}

/* The number of equal parts of a prompt for which the gap times the square of the time is least: two
 * or more if that is 0.97 of what one has, or less, and takes at most a fifth longer. */
static int32_t cheapest(int32_t n_clients)
{
    int32_t best = 1;
    double least = INFINITY;
    for (int32_t k = 1; k <= 8; k++) {
        const double rows = (double)PROMPT / k, ms = token_ms(n_clients, rows);
        const double gap = pace_answer_ms(&h200, n_clients, 0) +
                           pace_part_ms(&h200, (int32_t)rows, 0);
        if (gap * ms * ms >= least || ms > 1.2 * token_ms(n_clients, PROMPT))
            continue;
        best = k;
        least = (k > 1 ? 1 : 0.97) * gap * ms * ms;
    }
    return best;
}

static void gaps(int32_t n_clients)
{
    pace_company who = {n_clients, {PROMPT, PROMPT}, {ANSWER, ANSWER}, 2560, 4000, 14000, 0};
    const pace_outcome whole = pace_run(&h200, &who, (pace_way){PACE_WHOLE, 12, 0}, 1);
    printf("%d clients; whole prompts: %.0f tokens/s by the formula; run %.0f, gap of 99 %% %.1f ms\n"
           "gap | widest part for it, tokens/s of that, of whole | to choose | by the formula, share, "
           "gap | run: tokens/s, share, gap of 99 %%, first token\n",
           n_clients, 1000 / token_ms(n_clients, PROMPT), whole.tokens, whole.late);
    for (double gap = 8; gap <= 36; gap += 4) {
        const int32_t n = widest(n_clients, gap);
        const double keeps = n ? 1000 / token_ms(n_clients, n) : 0;
        const double share = keeps * token_ms(n_clients, PROMPT) / 1000;
        const double rows =
            share >= 1 / 1.2 ? ceil(PROMPT / ceil((double)PROMPT / n)) : PROMPT / cheapest(n_clients);
        const pace_outcome run = pace_run(&h200, &who, (pace_way){PACE_RULE, gap, 0}, 1);
        printf("%3.0f | %3d %5.0f %.3f | %3.0f%s | %5.0f %.3f %5.1f | %5.0f %.3f %5.1f %6.1f\n", gap, n,
               keeps, share, rows, share >= 1 / 1.2 ? ", kept" : "      ",
               1000 / token_ms(n_clients, rows),
               token_ms(n_clients, PROMPT) / token_ms(n_clients, rows),
               pace_answer_ms(&h200, n_clients, 0) + pace_part_ms(&h200, (int32_t)rows, 0),
               run.tokens, run.tokens / whole.tokens, run.late, run.first);
    }
}

int main(int argc, char **argv)
{
    const int n_seeds = argc > 1 ? atoi(argv[1]) : 1000;
    double worst = 1, sum = 0;
    int unended = 0, worst_seed = 0;
    int64_t n_kept = 0, n_lost = 0;
    gaps(4);
    gaps(16);
    gaps(64);
    for (int i = 0; i < n_seeds; i++) {
        pace_device d;
        pace_company who;
        pace_draw((uint64_t)i, &d, &who);
        const pace_outcome whole = pace_run(&d, &who, (pace_way){PACE_WHOLE, 12, 0}, 1);
        const pace_outcome run = pace_run(&d, &who, (pace_way){PACE_RULE, 12, 0}, 1);
        const double ratio = whole.ms / run.ms;
        unended += run.n_unended > 0;
        n_kept += run.n_kept;
        n_lost += run.n_lost;
        sum += ratio;
        if (ratio < worst) {
            worst = ratio;
            worst_seed = i;
        }
    }
    printf("%d random companies: %d stood still; speed beside whole prompts %.3f, the worst %.3f (seed "
           "%d); of gaps that could be kept for a tenth of all time %.2f %% were\n",
           n_seeds, unended, n_seeds ? sum / n_seeds : 1, worst, worst_seed,
           n_kept + n_lost ? 100.0 * (double)n_kept / (double)(n_kept + n_lost) : 100);
    return 0;
}
