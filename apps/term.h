/* term.h - what programs know of the terminal: colours, safe text, a progress bar, Ctrl-C.
 *
 * Answers go to stdout, everything else to stderr. Text that a model wrote reaches a terminal
 * without its control characters, so no answer can move the cursor, retitle the window or paste;
 * a file or a pipe gets every byte.
 */
#ifndef APPS_TERM_H
#define APPS_TERM_H

#include "apps/term_wrap.h"
#include "carat.h"

#include <stdio.h>

typedef enum term_style { TERM_PLAIN, TERM_DIM, TERM_BOLD, TERM_CYAN, TERM_RED } term_style;

void term_init(void);                 /* once: looks at stdout, stderr, TERM and NO_COLOR */
bool term_is_tty(FILE *f);            /* of stdout or stderr */
void term_set(FILE *f, term_style s); /* nothing where colours are not wanted */
/* Text from outside. On a terminal control characters are shown, not sent: ESC as ^[. */
void term_put(FILE *f, const char *text, size_t n);
/* A name or another text of one line, escaped for a file too, and spaces up to `cells` in all. */
void term_put_name(FILE *f, const char *name, size_t n, int cells);
/* Text, broken between words on a terminal. w is zeroed at the beginning of a line. */
void term_put_words(FILE *f, word_wrap *w, const char *text, size_t n);
void term_end_words(FILE *f, word_wrap *w); /* the word that may have been held back */
/* One sentence on stderr, "carat: ..."; the progress bar makes way. */
void term_error(const carat_error *e);
void term_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The last line of a program that was to write a file: its size and the time it took, or why there
 * is none. Returns the exit status: 0, 1, 2 for wrong use, 130 after Ctrl-C. */
int term_wrote(const char *path, uint64_t n_bytes, double start_ms, carat_status st,
               const carat_error *e);

/* A bar on stderr if that is a terminal, once something has taken 0.3 s. term_progress has the
 * type of carat_progress_fn; it returns false after Ctrl-C. */
bool term_progress(void *user, const char *what, uint64_t done, uint64_t total);
void term_progress_clear(void);

/* While a session is watched, SIGINT (and SIGTERM) cancel what it does and are counted; else they
 * are only counted, and cancel what is watched next. A second one while the first is being obeyed
 * ends the program with 130. A session must not be closed while it is watched. */
void term_watch(carat_session *s); /* NULL: no session, and the count begins anew */
int term_interrupts(void);         /* since the last term_watch(NULL) */
void term_prompting(bool on);      /* a line is being typed: SIGTERM ends the program at once */
bool term_terminated(void);        /* by SIGTERM, at some time */

/* Between on and off the terminal marks pasted text (ESC[200~ ... ESC[201~). Every signal that ends
 * or stops the program first gives the terminal back as it was at the start. */
void term_converse(bool on);
/* Keys typed from now on are kept, unechoed, for the next line editing; Ctrl-C stays a signal. */
void term_hold_keys(void);

#endif
