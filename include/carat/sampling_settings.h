/* carat/sampling_settings.h - the steps and every number of carat_sampling, once: the fields of
 * that struct, the options of `carat run` and `carat serve`, /set, parameters of made models,
 * fields of requests and responses, and the checks of the library are made from these rows.
 *
 *     #define ROW(kind, field, name, also, key, flag, words, min, max, usual, needs, help) ...
 *     CARAT_SAMPLING_SETTINGS(ROW, )
 *
 * kind: REAL (float) or WHOLE (int32_t). field: of carat_sampling. name: in JSON, as llama-server
 * spells it. also: another spelling there, of vLLM or of its users, or NULL. key: in GGUF,
 * after "general.sampling."; NULL: as name. flag: the option, without dashes. words: other
 * spellings of the option, of llama.cpp and of the APIs, with dashes and blanks between. usual:
 * where neither the file nor the model's family says; the setting is then off, or ready for the one
 * that switches it on. needs: the option without which it has no effect, as apps/options.h writes
 * it, or NULL. A second argument comes first in each row.
 *
 * What a line of help has no room for: XTC, with its probability, drops all tokens of at least the
 * threshold but the least likely of them; a threshold above 0.5 is off. DRY takes multiplier *
 * base^(n - 1 - allowed_length) from a token that would make a repetition of n >= allowed_length +
 * 1 tokens; a base below 1 is off. Mirostat keeps the surprise of tokens near tau; of the other
 * steps only bias and the plain temperature count beside it.
 */
#ifndef CARAT_SAMPLING_SETTINGS_H
#define CARAT_SAMPLING_SETTINGS_H

#include <stdint.h>

/* clang-format off */
/* The steps that choose a token, in the default order. Bias and bans come before all of them. name:
 * as llama.cpp has it. others: more spellings, without '-' and '_', with blanks between.
 *
 *     ROW(step, name, others) */
#define CARAT_SAMPLER_STEPS(ROW)                                                                                       \
    ROW(PENALTIES, "penalties", "e") /* repeat, presence and frequency */                                              \
    ROW(DRY, "dry", "d") /* tokens that would continue a repetition */                                                 \
    ROW(TOP_N_SIGMA, "top_n_sigma", "s") /* logits within n standard deviations of the largest */                      \
    ROW(TOP_K, "top_k", "k")                                                                                           \
    ROW(TYPICAL_P, "typ_p", "typicalp typ typical y") /* tokens whose information is nearest to the entropy */         \
    ROW(TOP_P, "top_p", "nucleus p")                                                                                   \
    ROW(MIN_P, "min_p", "m")                                                                                           \
    ROW(XTC, "xtc", "x") /* drops the likeliest of several likely tokens, by chance */                                 \
    ROW(TEMPERATURE, "temperature", "temp t")
/* ", penalties, dry": for sentences that list them. */
#define CARAT_SAMPLER_LISTED(step, name, others) ", " name
#define CARAT_SAMPLER_LIST CARAT_SAMPLER_STEPS(CARAT_SAMPLER_LISTED)

#define CARAT_SAMPLING_SETTINGS(ROW, ...)                                                                              \
    ROW(__VA_ARGS__ REAL, temperature, "temperature", NULL, "temp", "temp", "--temperature",                           \
        0, 100, 1, NULL, "temperature; 0 takes the likeliest token")                                                   \
    ROW(__VA_ARGS__ WHOLE, top_k, "top_k", NULL, NULL, "top-k", "",                                                    \
        -1, INT32_MAX, 0, NULL, "keep the N likeliest tokens; 0 all")                                                  \
    ROW(__VA_ARGS__ REAL, top_p, "top_p", NULL, NULL, "top-p", "",                                                     \
        0, 1, 1, NULL, "keep the likeliest tokens whose probabilities sum to X")                                       \
    ROW(__VA_ARGS__ REAL, min_p, "min_p", NULL, NULL, "min-p", "",                                                     \
        0, 1, 0, NULL, "keep tokens with X times the probability of the likeliest")                                    \
    ROW(__VA_ARGS__ REAL, repeat_penalty, "repeat_penalty", "repetition_penalty", "penalty_repeat", "repeat-penalty",  \
        "--repetition-penalty",                                                                                        \
        0.01, 100, 1, NULL, "make recent tokens less likely: logits above 0 / X, others * X; 1 is off")                \
    ROW(__VA_ARGS__ REAL, presence_penalty, "presence_penalty", NULL, NULL, "presence-penalty", "",                    \
        -100, 100, 0, NULL, "taken from the logit of every recent token; 0 is off")                                    \
    ROW(__VA_ARGS__ REAL, frequency_penalty, "frequency_penalty", NULL, NULL, "frequency-penalty", "",                 \
        -100, 100, 0, NULL, "taken from a logit for each recent occurrence; 0 is off")                                 \
    ROW(__VA_ARGS__ WHOLE, penalty_last_n, "repeat_last_n", NULL, "penalty_last_n", "repeat-last-n", "",               \
        -1, INT32_MAX, 64, NULL, "tokens that the penalties look back; -1 all (default 64)")                           \
    ROW(__VA_ARGS__ REAL, typical_p, "typical_p", "typ_p", NULL, "typical-p", "--typical --typ-p",                     \
        0, 1, 1, NULL, "keep tokens whose information is near the entropy; 1 is off")                                  \
    ROW(__VA_ARGS__ REAL, top_n_sigma, "top_n_sigma", NULL, NULL, "top-n-sigma", "--top-nsigma",                       \
        -1, 1000, -1, NULL, "keep logits within X standard deviations of the largest; -1 is off")                      \
    ROW(__VA_ARGS__ REAL, xtc_probability, "xtc_probability", NULL, NULL, "xtc-probability", "",                       \
        0, 1, 0, NULL, "drop the likeliest of several likely tokens with this probability; 0 is off")                  \
    ROW(__VA_ARGS__ REAL, xtc_threshold, "xtc_threshold", NULL, NULL, "xtc-threshold", "",                             \
        0, 1, 0.1, "~xtc-probability", "a token of at least this probability is likely (default 0.1)")                 \
    ROW(__VA_ARGS__ REAL, dynatemp_range, "dynatemp_range", NULL, NULL, "dynatemp-range", "",                          \
        0, 100, 0, NULL, "the temperature moves within X with the entropy; 0 is off")                                  \
    ROW(__VA_ARGS__ REAL, dynatemp_exponent, "dynatemp_exponent", NULL, NULL, "dynatemp-exp", "--dynatemp-exponent",   \
        0, 100, 1, "~dynatemp-range", "the exponent of the entropy there (default 1)")                                 \
    ROW(__VA_ARGS__ REAL, dry_multiplier, "dry_multiplier", NULL, NULL, "dry-multiplier", "",                          \
        0, 1e6, 0, NULL, "DRY: taken from tokens that would continue a repetition; 0 is off")                          \
    ROW(__VA_ARGS__ REAL, dry_base, "dry_base", NULL, NULL, "dry-base", "",                                            \
        0, 1e6, 1.75, "~dry-multiplier", "DRY: the growth with each token of the repetition (default 1.75)")           \
    ROW(__VA_ARGS__ WHOLE, dry_allowed_length, "dry_allowed_length", NULL, NULL, "dry-allowed-length", "",             \
        0, INT32_MAX, 2, "~dry-multiplier", "DRY: repetitions of up to N tokens cost nothing more (default 2)")        \
    ROW(__VA_ARGS__ WHOLE, dry_last_n, "dry_penalty_last_n", NULL, NULL, "dry-penalty-last-n", "",                     \
        -1, INT32_MAX, -1, "~dry-multiplier", "DRY: tokens that it looks back; -1 all (default)")                      \
    ROW(__VA_ARGS__ WHOLE, mirostat, "mirostat", "mirostat_mode", NULL, "mirostat", "--mirostat-mode",                 \
        0, 2, 0, NULL, "mirostat 1 or 2 in place of the other samplers; 0 is off")                                     \
    ROW(__VA_ARGS__ REAL, mirostat_tau, "mirostat_tau", NULL, NULL, "mirostat-tau", "--mirostat-ent",                  \
        0, 100, 5, "~mirostat", "mirostat: the target surprise in bits (default 5)")                                   \
    ROW(__VA_ARGS__ REAL, mirostat_eta, "mirostat_eta", NULL, NULL, "mirostat-eta", "--mirostat-lr",                   \
        0, 10, 0.1, "~mirostat", "mirostat: how fast it adapts (default 0.1)")                                         \
    ROW(__VA_ARGS__ WHOLE, min_keep, "min_keep", NULL, NULL, "min-keep", "",                                           \
        0, INT32_MAX, 0, NULL, "top-p, min-p, typical-p and XTC leave at least N tokens")
/* clang-format on */

#endif
