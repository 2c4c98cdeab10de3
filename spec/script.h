/* script.h - proposals whose outcome is decided beforehand: for benchmarks and tests, by
 * carat_generate_options.script. No request can set it.
 */
#ifndef SPEC_SCRIPT_H
#define SPEC_SCRIPT_H

#include "carat_bench.h"
#include "spec/drafter.h"

/* Replaces *ask->out for the given round of an answer that has n_done tokens, the last of ask->id
 * included: the script's next tokens as far as this round shall accept them, other tokens after
 * that. */
void script_propose(const carat_script *s, int64_t n_done, int64_t round, int32_t n_vocab,
                    const draft_ask *ask);

#endif
