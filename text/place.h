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
    char head[64]; /* the words of the header so far, a line for each channel */
    size_t n_head;
} answer_place;

/* v and f may be NULL. */
void place_begin(answer_place *p, const vocab *v, const struct chat_format *f,
                 bool starts_thinking);
void place_next(answer_place *p, int32_t id);

#endif
