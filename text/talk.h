/* talk.h - a conversation as a value: turns with their role, parts, calls and results.
 *
 * Whoever takes a conversation from outside fills one: talk_read from JSON in OpenAI's form, each
 * dialect of the server from its own. Prompts are rendered from it (chat.h), and whoever changes a
 * conversation edits it: a system message more, old turns less, shorter texts.
 *
 * A talk and all that it points to live in its arena, or in memory that lives as long. Copies of
 * turns are cheap, because they share parts. JSON stays where it is the value itself: arguments,
 * results and schemas of tools are trees.
 */
#ifndef TEXT_TALK_H
#define TEXT_TALK_H

#include "text/jtree.h"

typedef enum talk_role {
    TALK_SYSTEM,
    TALK_DEVELOPER,
    TALK_USER,
    TALK_ASSISTANT,
    TALK_TOOL,
    TALK_ROLES
} talk_role;

extern const char *const talk_role_names[TALK_ROLES];

/* Bytes of a conversation. NUL-terminated only if they are a whole string. s NULL: not given. */
typedef struct talk_text {
    const char *s;
    size_t n;
} talk_text;

/* A film is told from an unknown kind so that a model can say that it sees none. */
typedef enum talk_kind { TALK_TEXT, TALK_IMAGE, TALK_AUDIO, TALK_VIDEO, TALK_KINDS } talk_kind;

/* A place in a text that names an image or a sound: "picture 2". */
typedef struct talk_mention {
    size_t at;
    int32_t number; /* as that of the part */
} talk_mention;

typedef struct talk_part {
    talk_kind kind;        /* TALK_KINDS: unknown; the chat format refuses it */
    const char *name;      /* the client's word for the kind */
    talk_text text;        /* of TALK_TEXT; of an image or a sound its file's name, or not given */
    int32_t number;        /* of an image or a sound: which of the request's; -1: the next one */
    talk_mention *mention; /* [n_mentions] of TALK_TEXT, in the order of their places */
    size_t n_mentions;
    const jtree *from; /* what it was read from; NULL: made here */
} talk_part;

typedef struct talk_call {
    talk_text id, name;
    const jtree *arguments; /* an object, or a string that holds its JSON; NULL: none */
} talk_call;

/* A result inside the message that calls, as Google's form has it. */
typedef struct talk_result {
    talk_text name;
    const jtree *value; /* NULL: not given */
    bool given;         /* null was */
} talk_result;

/* What the content was: nothing or null, one text, or a list of parts. Templates trim the parts of
 * a list one by one. */
typedef enum talk_shape { TALK_NOTHING, TALK_WHOLE, TALK_LIST } talk_shape;

/* The thought of a turn, under the names that clients use; templates prefer one or another. */
typedef enum talk_thought {
    TALK_REASONING_CONTENT,
    TALK_REASONING,
    TALK_THINKING,
    TALK_THOUGHTS
} talk_thought;

typedef struct talk_turn {
    talk_role role;
    /* Where the turn is in the request, for error messages: "messages[2]", "system". */
    const char *list;
    int32_t index; /* below 0: the place is `list` */
    talk_shape shape;
    const talk_part *part; /* [n_parts]; one if it is TALK_WHOLE */
    size_t n_parts;        /* arrays that talk_put_part has not made are never appended to */
    talk_text thought[TALK_THOUGHTS];
    const talk_call *call;
    size_t n_calls;
    const talk_result *result;
    size_t n_results;
    talk_text name;    /* of the tool, in its result */
    talk_text call_id; /* of the call that this is the result of */
} talk_turn;

typedef struct carat_talk carat_talk;
struct carat_talk {
    arena *mem;
    talk_turn *turn; /* [n]; made by talk_add */
    size_t n;
    const jtree *tools;  /* an array in OpenAI's form, or NULL */
    int32_t n_functions; /* calls of OpenAI's old form so far, whose ids are made of it */
    bool bad;            /* no memory for a part of it; sticky */
};

enum { TALK_WHERE = 120 }; /* bytes of a place */

/* "messages[2]" and `behind`, such as ".content". */
void talk_where(const talk_turn *m, const char *behind, char where[TALK_WHERE]);
bool talk_is_system(const talk_turn *m); /* or the developer's */
/* Its content is not empty: has a text, or parts. */
bool talk_has_content(const talk_turn *m);

/* The same turns in an array of its own, in out->mem. They share parts; out->bad: no memory. */
void talk_copy(const carat_talk *t, carat_talk *out);

/* Removes turns i .. i + n - 1. */
void talk_remove(carat_talk *t, size_t i, size_t n);

/* ---- Filling ---- */

/* A new turn at the end. Later calls fill the last turn; lack of memory sets t->bad. */
void talk_add(carat_talk *t, talk_role role, const char *list, int32_t index);
talk_turn *talk_last(carat_talk *t); /* NULL: there is none */
/* The content as one text, which must live as long as the conversation. talk_keep makes a copy
 * that does. */
void talk_set_text(carat_talk *t, const char *s, size_t n);
talk_text talk_keep(carat_talk *t, const char *s, size_t n);
/* Parts of a list. A first one replaces a content that is one text. */
void talk_put_part(carat_talk *t, talk_part part);
void talk_put_call(carat_talk *t, talk_call call);
talk_call talk_keep_call(carat_talk *t, const talk_call *call); /* a copy in t->mem */
/* A turn at the end like m, which is of another conversation. It is in t->mem, but for `list`; its
 * parts have no `from` unless their kind is unknown. */
void talk_put_turn(carat_talk *t, const talk_turn *m);
/* E_MEMORY: t->bad; E_LIMIT: its arena's limit is why. */
status talk_check(const carat_talk *t, err *e);
/* A string of a tree; not given if it is absent or no string. */
talk_text talk_string(const jtree *v);

/* ---- From JSON in OpenAI's form ---- */

/* The role by its name; an error that names the place. */
status talk_read_role(const jtree *message, const char *list, size_t i, talk_role *out, err *e);
/* A turn with everything of a message but its content: thoughts, calls, results, names. */
status talk_read_turn(carat_talk *t, const jtree *message, talk_role role, const char *list,
                      size_t i, err *e);
/* The content of the last turn: a string, parts or null. */
status talk_read_content(carat_talk *t, const jtree *content, err *e);
/* An array of messages. */
status talk_read(carat_talk *t, const jtree *messages, err *e);

#endif
