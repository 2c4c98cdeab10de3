/* conversations.h - conversations kept between runs, a numbered JSON file for each.
 *
 * They are in $XDG_STATE_HOME/carat/conversations (~/.local/state by default), which only the user
 * may read. Numbers are given once and in ascending order, so a number never comes to mean another
 * conversation. Files appear complete or not at all. Several programs may write at once: a lock
 * orders them, and whoever finds its conversation changed by another writes a new one.
 *
 * A file: {"version": 1, "title": TEXT, "model": TEXT, "open": TEXT or absent, "tools": TEXT or
 * absent, "messages": [...]}. "open" is what -m was given. Other keys are not read.
 */
#ifndef APPS_TALKS_H
#define APPS_TALKS_H

#include "base/err.h"
#include "text/talk.h"

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

enum {
    TALKS_MAX = 1000,        /* a new one beyond this removes the one unchanged for longest */
    TALK_BYTES = 96 << 20,   /* of a file: 64 MiB of pictures are 86 as text */
    CONVERSATION_DEPTH = 64, /* of JSON in messages and tools, as in requests */
    TALK_TITLE = 60          /* characters of a title made from a message */
};

typedef struct talk {
    int64_t number;
    struct timespec changed;
} talk;

/* Those that exist, the last changed first. */
typedef struct talk_list {
    talk *at;
    size_t n;
} talk_list;

/* Where a conversation stands, as its writer knows it. Zeroed: it has no number yet. */
typedef struct talk_place {
    int64_t number;
    ino_t inode; /* of the file when this program read or wrote it last */
    struct timespec changed;
} talk_place;

/* A file. Texts that it lacks are NULL. */
typedef struct kept_talk {
    arena mem;
    const char *title, *model, *open, *tools;
    carat_talk talk;
    const jtree *all; /* the whole object */
} kept_talk;

extern int conversations_wait_ms; /* most that a writer waits for others */
bool conversations_off(void);     /* the environment says CARAT_NO_HISTORY */
/* A directory that does not exist is an empty list, as is *l after a failure. */
status conversations_list(talk_list *l, err *e);
void conversations_free(talk_list *l);
/* which: a number, "last" or NULL for the last changed one, or a part of one title. E_ARG: there is
 * none, or several. */
status conversations_find(const char *which, int64_t *number, err *e);
/* A list of messages, which may be empty, into a conversation without turns. */
status conversations_take(const jtree *list, carat_talk *out, const char *path, err *e);
/* The bytes of a file (kept_free); zeroed after a failure. path appears in messages. */
status conversations_parse(kept_talk *out, const char *text, size_t n, const char *path, bool lists,
                           err *e);
/* A file of any name. lists: it may be a list of messages alone. */
status conversations_read_file(kept_talk *out, const char *path, bool lists, err *e);
/* A kept file. place may be NULL. */
status conversations_read(int64_t number, kept_talk *out, talk_place *place, err *e);
void kept_free(kept_talk *k); /* safe on a zeroed or freed one */
/* Writes the text of a file. Gives it a number if it has none, or if another program has changed or
 * removed the file since `place` was set; *moved then says so. */
status conversations_write(talk_place *place, const str *text, bool *moved, err *e);
/* Removes the file of a conversation that its writer has deleted, and zeroes place. *other: another
 * program has changed the file, so it stays. */
status conversations_forget(talk_place *place, bool *other, err *e);
status conversations_remove(int64_t number, err *e);
/* Appends the text of a message, whose content may have parts. pictures: with a line for each. */
void conversations_put_text(str *out, const talk_turn *m, bool pictures);

#endif
