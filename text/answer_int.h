/* answer_int.h - the state of an answer's parser, shared by parse.c and parse_calls.c. */
#ifndef TEXT_ANSWER_INT_H
#define TEXT_ANSWER_INT_H

#include "text/chat.h"
#include "text/parse_int.h"
#include "text/stream.h"

enum {
    SPACE_HELD_BYTES = 4096,    /* longer runs of white space are not held */
    READ_AGAIN_BYTES = 64 << 20 /* the bound of all text that is parsed again */
};

/* Marks from MARK_STRAY on are the strays of answer_syntax. */
typedef enum mark {
    MARK_NONE = -1,
    MARK_THOUGHT,
    MARK_THOUGHT_END,
    MARK_CALL,
    MARK_CALL_END,
    MARK_QUOTE,
    MARK_VALUE,
    MARK_VALUE_END,
    MARK_BARE,
    MARK_BARE_END,
    MARK_STRAY,
    MARKS_MAX = 20
} mark;

typedef struct mark_text {
    const char *s;
    size_t n; /* 0: the family has no such mark */
} mark_text;

typedef enum state { START, TEXT, LABEL, CALL, HEAD } state;

struct answer_parser {
    const answer_syntax *syntax; /* NULL: all is content */
    mark_text mark[MARKS_MAX];
    int n_marks;
    size_t longest; /* bytes of the longest mark */
    char first;     /* the first byte of every mark */
    answer_fn fn;
    void *user;
    stream bytes; /* joins bytes to characters */
    state state;
    answer_kind kind; /* of text: REASONING or CONTENT */
    bool fresh;       /* directly after a thought or call: leading white space is trimmed */
    bool said;        /* some text or a call has been told */
    bool called;      /* directly after a call */
    bool spilled;     /* the white space at the end was too long to hold and has been shown */
    bool told[2];     /* some text of that kind has been told */
    stream stops;     /* content passes through it, if there are stop strings */
    int32_t n_stops;
    str held;
    size_t at; /* held[0..at) is finished */
    str space; /* white space not shown yet */
    str out;   /* the text of one event */
    str args;  /* of a call */
    str name;
    /* Of a call whose mark ends at held[at]: */
    size_t scanned;          /* bytes of the call already searched */
    bool in_string, escaped; /* escaped: a backslash of JSON is the last byte searched */
    bool bare;               /* it begins with bare_open, which is part of its text */
    size_t n_head;           /* bytes of its header, from the name on */
    str head;                /* the header's text before the name */
    bool known;              /* its name is declared */
    size_t noted;            /* offset of the first end marker inside a string; SIZE_MAX: none */
    size_t again_bytes;      /* of all calls: text that was parsed again */
    bool tells_parts;
    call_parts parts;
    str sent, piece; /* the arguments that were told in parts; the next part */
    arena mem;
    const jtree *tools; /* the declared tools, in mem; NULL: none */
    int32_t n_calls;
    bool ending; /* no more text will come, */
    bool cut;    /* because of the token limit */
    bool cancelled, no_memory;
};

/* ---- parse.c ---- */

/* The first mark at or after s[from], and its place in *where. MARK_NONE: *where is the place of a
 * possible incomplete mark, or n. */
mark answer_find_mark(const answer_parser *a, const char *s, size_t from, size_t n, size_t *where);
void answer_tell(answer_parser *a, const answer_event *ev);
/* Puts text of the current kind; content ends at a stop string. */
void answer_text(answer_parser *a, const char *s, size_t n);
/* Changes the kind of the text from here on, and trims the white space around the border. */
void answer_change_kind(answer_parser *a, answer_kind kind);

/* ---- parse_calls.c ---- */

bool answer_declares(const answer_parser *a, const char *name, size_t len); /* a tool */
/* A call's text begins at held[at]. bare: its mark, which stands before held[at], is part of it. */
void answer_begin_call(answer_parser *a);
void answer_begin_bare_call(answer_parser *a);
/* A step through the text of a call. False: more text is needed. last: no more will come. */
bool answer_step_call(answer_parser *a, bool last);

#endif
