/* place.h - where an answer is: in a thought, in a call, or in the words of a mark. By its tokens,
 * one after the other. */
#ifndef TEXT_PLACE_H
#define TEXT_PLACE_H

#include "text/family.h"

typedef struct answer_place {
    const vocab *v;
    const answer_syntax *a; /* NULL: answers are plain text */
    int32_t thought_open, thought_close, call_open, call_close, start, channel, message;
    bool thinking; /* inside a thought */
    bool calling;  /* inside a call, behind its mark and some text */
    bool heading;  /* in the header of a message */
    bool marking;  /* the last token is a mark of thoughts, or in a header: no text */
    bool marked;   /* behind the mark of a call */
    bool begun;    /* some token has come */
    bool answered; /* the last message is no thought */
    char head[64]; /* the header so far, from its role on; bytes PLACE_ stand for its marks */
    size_t n_head;
} answer_place;

enum { PLACE_START = 1, PLACE_CHANNEL, PLACE_MESSAGE };

/* v and f may be NULL. */
void place_begin(answer_place *p, const vocab *v, const struct chat_format *f,
                 bool starts_thinking);
void place_next(answer_place *p, int32_t id);
/* Whether the next token is one of a message's header, or may be: the first of an answer. */
bool place_in_header(const answer_place *p);
/* In a header: which tokens may come next, where neither a thought nor a comment may
 * (no_thoughts), or no call (no_calls). A header that has begun as one of those, or as none that is
 * known, goes on with any token. It holds until the place changes. */
typedef struct place_form {
    int kind;
    char text[128]; /* what is left of such a header, behind the place's */
    size_t n;
} place_form;
typedef struct place_rule {
    const answer_place *p;
    int may; /* kinds of headers */
    bool any;
    place_form form[5]; /* those that begin like the place's header */
    int n_forms;
} place_rule;
void place_rule_begin(place_rule *r, const answer_place *p, bool no_thoughts, bool no_calls);
bool place_rule_allows(const place_rule *r, int32_t id);

#endif
