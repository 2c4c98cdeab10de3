/* talk_json.h - a conversation as JSON in OpenAI's form, for tests that compare it as text. */
#ifndef TESTS_TALK_JSON_H
#define TESTS_TALK_JSON_H

#include "apps/talk_json.h"

static inline void talk_json(str *o, const carat_talk *t)
{
    talk_put_json(o, NULL, t, NULL, NULL);
}

/* The conversation as JSON is this text; has it in it. */
#define CHECK_TALK(talk, want)                                                                     \
    do {                                                                                           \
        str is_ = {0};                                                                             \
        talk_json(&is_, talk);                                                                     \
        CHECK_STR(str_text(&is_), want);                                                           \
        str_free(&is_);                                                                            \
    } while (0)
#define CHECK_TALK_HAS(talk, want)                                                                 \
    do {                                                                                           \
        str is_ = {0};                                                                             \
        talk_json(&is_, talk);                                                                     \
        CHECK_MSG(strstr(str_text(&is_), want), "%s", str_text(&is_));                             \
        str_free(&is_);                                                                            \
    } while (0)

#endif
