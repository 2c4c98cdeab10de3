/* sample_options.h - the options of samplers: how `run` samples, and what `serve` takes where a
 * request does not say. */
#ifndef APPS_SAMPLE_OPTIONS_H
#define APPS_SAMPLE_OPTIONS_H

#include "apps/options.h"

/* Numbers are SAMPLE_UNSET if they are not given: then the model's value stays. */
enum { SAMPLE_UNSET = -2 };

typedef struct sample_options {
    double temperature, top_p, min_p, repeat_penalty;
    double presence_penalty, frequency_penalty; /* 0: off */
    int64_t top_k;
    double typical, sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    double dry_multiplier, dry_base, mirostat_tau, mirostat_eta;
    int64_t repeat_last_n, min_keep, dry_allowed, dry_last_n, mirostat;
    option_list breakers;
    const char *order;
} sample_options;

#define SAMPLE_OPTIONS_UNSET                                                                       \
    (sample_options)                                                                               \
    {                                                                                              \
        .temperature = SAMPLE_UNSET, .top_p = SAMPLE_UNSET, .min_p = SAMPLE_UNSET,                 \
        .repeat_penalty = SAMPLE_UNSET, .top_k = SAMPLE_UNSET, .typical = SAMPLE_UNSET,            \
        .sigma = SAMPLE_UNSET, .xtc_probability = SAMPLE_UNSET, .xtc_threshold = SAMPLE_UNSET,     \
        .dynatemp_range = SAMPLE_UNSET, .dynatemp_exponent = SAMPLE_UNSET,                         \
        .dry_multiplier = SAMPLE_UNSET, .dry_base = SAMPLE_UNSET, .mirostat_tau = SAMPLE_UNSET,    \
        .mirostat_eta = SAMPLE_UNSET, .repeat_last_n = SAMPLE_UNSET, .min_keep = SAMPLE_UNSET,     \
        .dry_allowed = SAMPLE_UNSET, .dry_last_n = SAMPLE_UNSET, .mirostat = SAMPLE_UNSET          \
    }

/* needs: SAMPLE_ALONE, or SAMPLE_REQUESTS where a request may say more. */
#define SAMPLE_ALONE(needs) needs
#define SAMPLE_REQUESTS(needs) NULL

#define OPT_SAMPLE(T, needs)                                                                       \
    OPT_REAL(T, sample.temperature, "temp", 0, "X", 0, 100,                                        \
             "temperature; 0 takes the likeliest token"),                                          \
        OPT_INT(T, sample.top_k, "top-k", 0, "N", 0, 1 << 30,                                      \
                "keep the N likeliest tokens; 0 all"),                                             \
        OPT_REAL(T, sample.top_p, "top-p", 0, "X", 0, 1,                                           \
                 "keep the likeliest tokens whose probabilities sum to X"),                        \
        OPT_REAL(T, sample.min_p, "min-p", 0, "X", 0, 1,                                           \
                 "keep tokens with X times the probability of the likeliest"),                     \
        OPT_REAL(T, sample.repeat_penalty, "repeat-penalty", 0, "X", 0.01, 100,                    \
                 "make recent tokens less likely: logits above 0 / X, others * X; 1 is off"),      \
        OPT_REAL(T, sample.presence_penalty, "presence-penalty", 0, "X", -100, 100,                \
                 "taken from the logit of every recent token; 0 is off"),                          \
        OPT_REAL(T, sample.frequency_penalty, "frequency-penalty", 0, "X", -100, 100,              \
                 "the same, times the number of occurrences; 0 is off"),                           \
        OPT_INT(T, sample.repeat_last_n, "repeat-last-n", 0, "N", -1, INT32_MAX,                   \
                "tokens that the penalties look back; -1 all (default 64)"),                       \
        OPT_REAL(T, sample.typical, "typical-p", 0, "X", 0, 1,                                     \
                 "keep tokens whose information is near the entropy; 1 is off"),                   \
        OPT_REAL(T, sample.sigma, "top-n-sigma", 0, "X", -1, 1000,                                 \
                 "keep logits within X standard deviations of the largest; -1 is off"),            \
        OPT_REAL(T, sample.xtc_probability, "xtc-probability", 0, "X", 0, 1,                       \
                 "drop the likeliest of several likely tokens with this probability; 0 is off"),   \
        OPT_REAL(T, sample.xtc_threshold, "xtc-threshold", 0, "X", 0, 1,                           \
                 "a token of at least this probability is likely (default 0.1)",                   \
                 needs("~xtc-probability")),                                                       \
        OPT_REAL(T, sample.dynatemp_range, "dynatemp-range", 0, "X", 0, 100,                       \
                 "the temperature moves within X with the entropy; 0 is off"),                     \
        OPT_REAL(T, sample.dynatemp_exponent, "dynatemp-exp", 0, "X", 0, 100,                      \
                 "the exponent of that (default 1)", needs("~dynatemp-range")),                    \
        OPT_REAL(T, sample.dry_multiplier, "dry-multiplier", 0, "X", 0, 1e6,                       \
                 "DRY: taken from tokens that would continue a repetition; 0 is off"),             \
        OPT_REAL(T, sample.dry_base, "dry-base", 0, "X", 0, 1e6,                                   \
                 "DRY: the growth with each token of the repetition (default 1.75)",               \
                 needs("~dry-multiplier")),                                                        \
        OPT_INT(T, sample.dry_allowed, "dry-allowed-length", 0, "N", 0, INT32_MAX,                 \
                "DRY: repetitions of up to N tokens cost nothing more (default 2)",                \
                needs("~dry-multiplier")),                                                         \
        OPT_INT(T, sample.dry_last_n, "dry-penalty-last-n", 0, "N", -1, INT32_MAX,                 \
                "DRY: tokens that it looks back; -1 all (default)", needs("~dry-multiplier")),     \
        OPT_LIST(T, sample.breakers, "dry-sequence-breaker", 0, "TEXT",                            \
                 "DRY: no repetition reaches across this text; repeatable",                        \
                 needs("~dry-multiplier")),                                                        \
        OPT_INT(T, sample.mirostat, "mirostat", 0, "N", 0, 2,                                      \
                "mirostat 1 or 2 in place of the other samplers; 0 is off"),                       \
        OPT_REAL(T, sample.mirostat_tau, "mirostat-tau", 0, "X", 0, 100,                           \
                 "mirostat: the target surprise in bits (default 5)", needs("~mirostat")),         \
        OPT_REAL(T, sample.mirostat_eta, "mirostat-eta", 0, "X", 0, 10,                            \
                 "mirostat: how fast it adapts (default 0.1)", needs("~mirostat")),                \
        OPT_INT(T, sample.min_keep, "min-keep", 0, "N", 0, INT32_MAX,                              \
                "top-p, min-p, typical-p and XTC leave at least N tokens"),                        \
        OPT_STR(T, sample.order, "samplers", 0, "LIST",                                            \
                "the order of samplers, by names and commas; what is left out is off")

uint32_t sample_random_seed(void); /* of the system */
/* Sets what was given. p borrows the breakers. E_ARG: an unknown name in the order. */
status sample_options_apply(const sample_options *o, carat_sampling *p, err *e);

#endif
