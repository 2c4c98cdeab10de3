/* sample_options.h - the options of samplers: how `run` samples, and what `serve` takes where a
 * request does not say. */
#ifndef APPS_SAMPLE_OPTIONS_H
#define APPS_SAMPLE_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

/* Numbers are SAMPLE_UNSET if they are not given: then the model's value stays. */
enum { SAMPLE_UNSET = INT32_MIN };

#define SAMPLE_MEMBER_REAL double
#define SAMPLE_MEMBER_WHOLE int64_t
#define SAMPLE_MEMBER(kind, field, ...) SAMPLE_MEMBER_##kind field;
typedef struct sample_options {
    CARAT_SAMPLING_SETTINGS(SAMPLE_MEMBER, )
    option_list breakers;
    const char *order;
} sample_options;

#define SAMPLE_MEMBER_UNSET(kind, field, ...) .field = SAMPLE_UNSET,
#define SAMPLE_OPTIONS_UNSET                                                                       \
    {                                                                                              \
        CARAT_SAMPLING_SETTINGS(SAMPLE_MEMBER_UNSET, )                                             \
    }

/* The options of all numbers of sampling, as one text of words; a blank ends each. */
#define SAMPLE_FLAG(kind, field, name, also, key, flag, ...) flag " "
#define SAMPLE_FLAGS CARAT_SAMPLING_SETTINGS(SAMPLE_FLAG, )

/* needs: SAMPLE_ALONE, or SAMPLE_REQUESTS where a request may say more. */
#define SAMPLE_ALONE(needs) needs
#define SAMPLE_REQUESTS(needs) NULL

#define SAMPLE_OPTION_REAL(...) OPT_REAL(__VA_ARGS__)
#define SAMPLE_OPTION_WHOLE(...) OPT_INT(__VA_ARGS__)
#define SAMPLE_ARG_REAL "X"
#define SAMPLE_ARG_WHOLE "N"
#define SAMPLE_OPTION(T, when, kind, field, json, other, key, flag, spelled, min, max, usual,      \
                      needs, help)                                                                 \
    SAMPLE_OPTION_##kind(T, sample.field, flag, 0, SAMPLE_ARG_##kind, min, max, help, when(needs), \
                         .also = spelled),

#define OPT_SAMPLE(T, needs)                                                                       \
    CARAT_SAMPLING_SETTINGS(SAMPLE_OPTION, T, needs, )                                             \
    OPT_LIST(T, sample.breakers, "dry-sequence-breaker", 0, "TEXT",                                \
             "DRY: no repetition reaches across this text; repeatable", needs("~dry-multiplier")), \
        OPT_STR(T, sample.order, "samplers", 0, "LIST",                                            \
                "the order of samplers, by names and commas; what is left out is off")

uint32_t sample_random_seed(void); /* of the system */
/* Sets what was given. p borrows the breakers. E_ARG: an unknown name in the order. */
status sample_options_apply(const sample_options *o, carat_sampling *p, err *e);

#endif
