/* parse_int.h - between the answer parser and the reader of one call. */
#ifndef TEXT_PARSE_INT_H
#define TEXT_PARSE_INT_H

#include "text/chat.h"
#include "text/jtree.h"

#define MARK_STRING "<|\"|>"

enum {
    CALL_MAX_DEPTH = 64,       /* nesting of a call's arguments, the outer braces included */
    CALL_MAX_NAME_BYTES = 256, /* of a function's name */
};

/* s: what stands between <|tool_call> and <tool_call|>. False if it is no call; name and arguments
 * are overwritten in any case, and `bad` when out of memory. */
bool gemma_read_call(const char *s, size_t n, bool lenient, str *name, str *arguments);

#endif
