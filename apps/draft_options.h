/* draft_options.h - speculative decoding: the options that run and serve share. A subcommand has a
 * field `draft_options draft` in its struct and OPT_DRAFT(type of the struct) in its table. */
#ifndef APPS_DRAFT_OPTIONS_H
#define APPS_DRAFT_OPTIONS_H

#include "apps/options.h"
#include "carat.h"

typedef struct draft_options {
    const char *drafter, *device;
    int64_t max, tree;
} draft_options;

enum { DRAFT_TOKENS_MAX = 63 }; /* in a round: a pass checks at most 64 rows of an answer */

#define OPT_DRAFT(T)                                                                               \
    OPT_STR(T, draft.drafter, "draft", 0, "WHAT",                                                  \
            "speculative decoding; answers stay the same: the FILE or DIR of a drafter, nextn "    \
            "(the model's own NextN layer), auto, lookup or none (default: none)",                 \
            .words = "@models none auto lookup nextn",                                             \
            .also = "-md --model-draft --spec-draft-model"),                                       \
        OPT_DRAFT_SIZES(T, "draft")

/* by: the option that names the drafter. */
#define OPT_DRAFT_SIZES(T, by)                                                                     \
    OPT_INT(T, draft.max, "draft-max", 0, "N", 0, DRAFT_TOKENS_MAX,                                \
            "draft at most N tokens in a row (default: what the drafter was made for, at most "    \
            "15)",                                                                                 \
            by, .also = "--draft-n --spec-draft-n-max --num-speculative-tokens"),                  \
        OPT_INT(T, draft.tree, "draft-tree", 0, "N", -1, DRAFT_TOKENS_MAX,                         \
                "draft alternatives, at most N tokens in all; -1: none (default: chosen by cost)", \
                by),                                                                               \
        OPT_STR(T, draft.device, "draft-device", 0, "NAME",                                        \
                "the drafter (dflash, nextn, a model) is on this device: cpu, cuda or cuda:N "     \
                "(default: where the model is)",                                                   \
                by, .words = "cpu cuda cuda:0 cuda:1")

static inline void draft_options_apply(const draft_options *o, carat_model_options *mo,
                                       carat_session_options *so)
{
    if (mo) {
        mo->draft = o->drafter;
        mo->draft_device = o->device;
    }
    so->draft_max = (int32_t)o->max;
    so->draft_tree = (int32_t)o->tree;
}

#endif
