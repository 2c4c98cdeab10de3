/* parse_int.h - the limits of one call, for all readers of calls. */
#ifndef TEXT_PARSE_INT_H
#define TEXT_PARSE_INT_H

enum {
    CALL_MAX_DEPTH = 64,       /* nesting of a call's arguments, the outer braces included */
    CALL_MAX_NAME_BYTES = 256, /* of a function's name */
};

#endif
