/* spawn.h - runs the carat program that was built beside the tests, through pipes or a terminal.
 *
 * Every wait lasts up to PATIENCE_MS, so that no test fails because a machine is slow, but one that
 * hangs does. Programs end with the test that started them.
 */
#ifndef TESTS_SPAWN_H
#define TESTS_SPAWN_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum { PATIENCE_MS = 300000 };

/* In a freshly forked child: executes the program of that name beside the tests. argv ends with
 * NULL. */
_Noreturn void spawn_become(const char *name, const char *const *argv);

typedef struct spawn_options {
    const char *program;  /* another program beside the tests; NULL: carat */
    const char *in;       /* stdin; NULL: empty */
    size_t n_in;          /* 0: strlen(in) */
    const char *out_path; /* stdout goes there; "" closes it */
    bool no_in;           /* stdin is closed */
    bool out_tty;         /* stdout is a terminal */
    int signal;           /* sent after the first bytes on stdout; 0: none */
    bool close_early;     /* the reader of stdout goes away after the first bytes */
    const char *env;      /* one NAME=VALUE more */
} spawn_options;

typedef struct spawned {
    str out, err;
    int code; /* exit status, or 128 + signal */
} spawned;

/* args: the words after `carat`, ending with NULL. */
void spawn_carat(spawned *r, const spawn_options *o, const char *const *args);
/* An answer of a toy model may hold U+0000, at which strstr() ends. */
bool spawned_says(const str *said, const char *text);
void spawned_free(spawned *r);
/* Runs it and checks its exit status, and what stdout and stderr say; NULL: anything. */
void spawn_check(int code, const char *out, const char *says, const char *const *args);

/* An interactive program on a terminal of its own (stdin, stdout and stderr). */
typedef struct terminal {
    int fd;
    int pid;
    str seen; /* all that came since the last terminal_expect that matched */
} terminal;

void terminal_open(terminal *t, const char *const *env, const char *const *args);
/* The same with `in`, at most 4 KiB, on a pipe as stdin. */
void terminal_open_piped(terminal *t, const char *in, const char *const *env,
                         const char *const *args);
void terminal_type(terminal *t, const char *text);
void terminal_expect(terminal *t, const char *text); /* in time, or the test fails */
/* After one line was typed at a prompt that terminal_expect has seen: waits for the first bytes of
 * its answer. From then on Ctrl-C is a signal. */
void terminal_expect_answer(terminal *t);
int terminal_close(terminal *t); /* waits for the end; its exit status */

#endif
