/* chat_replay.h - conversations of tools/chat_fixtures_*.py, against what Jinja2 made of them. */
#ifndef TESTS_CHAT_REPLAY_H
#define TESTS_CHAT_REPLAY_H

#include "text/chat.h"
#include "text/jtree.h"

typedef struct replay_template {
    const char *path; /* in tests/data/chat */
    const chat_format *f;
} replay_template;

/* Renders every line of the file in each format; the hashes of a line are in the order of the
 * formats. Every format has at least n_least conversations that it renders. check: NULL, or more to
 * look at. */
void chat_replay(const char *path, const replay_template *t, int n, int n_least,
                 void (*check)(const chat_prompt *p, const carat_chat_options *opt));
/* Each line of such a file, from 1 on. */
void chat_lines(const char *path, void (*each)(void *user, int line, const jtree *c), void *user);
/* The segments tile the text. */
void chat_check_tiles(const chat_prompt *p);
/* Each template is recognised as its format, by its family alone. */
void chat_recognised(const replay_template *t, int n);

#endif
