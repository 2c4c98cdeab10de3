/* tool_kinds.h - tools that are no functions: which of them the client runs, and how their calls
 * look to it.
 *
 * A tool that the client runs is declared to the model as a function. Its calls go back in the form
 * that the client expects: in /v1/responses an item of a type of its own, in /v1/messages a
 * `tool_use` of the tool's name. A tool that only a host can run is left out.
 */
#ifndef APPS_SERVER_TOOL_KINDS_H
#define APPS_SERVER_TOOL_KINDS_H

#include "apps/server/dialects/request.h"

struct tool_kind {
    tools_shape shape;
    const char *type;        /* that of the request; "bash_": of any date */
    const char *name;        /* of the function, unless the request has one */
    const char *description; /* NULL: the request's */
    const char *parameters;  /* the function's JSON schema; NULL: the request's */
    /* Of /v1/responses: the types of the items of a call and of its result; the member of the call
     * with the arguments, and the one argument that it holds as a text (NULL: all, as an object);
     * members that stand before them; the beginning of its id. */
    const char *call, *result, *member, *text, *constant, *id_prefix;
};

/* NULL: none that the client runs. */
const tool_kind *tool_kind_find(tools_shape shape, const char *type);
/* The kind whose calls, or (result) whose results, are items of this type; NULL: none. */
const tool_kind *tool_kind_of_item(const jtree *type, bool result);
/* Why a tool of this type is left out, as the end of a sentence. */
const char *tool_kind_why(const char *type);

#endif
