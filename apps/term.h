/* term.h - the terminal: colours, safe text, a progress bar, Ctrl-C, the mode of a conversation.
 *
 * Answers go to stdout, everything else to stderr. In a model's text on a terminal, control
 * characters are escaped, so an answer cannot move the cursor or retitle the window. A file or a
 * pipe gets the bytes unchanged.
 */
#ifndef APPS_TERM_H
#define APPS_TERM_H

#include "apps/term_wrap.h"
#include "base/str.h"
#include "carat.h"

#include <stdio.h>

typedef enum term_style { TERM_PLAIN, TERM_DIM, TERM_BOLD, TERM_CYAN, TERM_RED } term_style;

void term_init(void);                 /* call once; sets LC_CTYPE, reads TERM and NO_COLOR */
int term_columns(FILE *f);            /* the width of the terminal on f; 0: unknown */
bool term_is_tty(FILE *f);            /* f is stdout or stderr */
void term_set(FILE *f, term_style s); /* does nothing where colours are off */
/* Prints text from outside. On a terminal control characters are escaped: ESC as ^[. */
void term_put(FILE *f, const char *text, size_t n);
/* Prints a name, escaped in a file or a pipe too, and pads it with spaces to `cells`. */
void term_put_name(FILE *f, const char *name, size_t n, int cells);
/* Prints text with line breaks between words on a terminal. A zeroed w begins a line. */
void term_put_words(FILE *f, word_wrap *w, const char *text, size_t n);
void term_wrap_lines(bool on); /* off: lines are not broken at words; for the whole program */
void term_end_words(FILE *f, word_wrap *w); /* prints the word held back */
/* Prints "carat: SENTENCE" on stderr, after clearing the progress bar. */
void term_error(const carat_error *e);
/* E_IO, with a sentence, if stdout took less than everything. */
carat_status term_flush(carat_error *e);
/* The end of a command: prints the error of a failure. Returns the exit status: 0, 1 for failure,
 * 130 after Ctrl-C. */
enum { EXIT_INTERRUPTED = 130 };
int term_exit(carat_status st, const carat_error *e);
int term_exit_use(carat_status st, const carat_error *e); /* E_ARG is wrong use: 2 */
void term_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Appends all of stdin. A closed stdin counts as an empty one, unless `named`: then the user asked
 * for it. E_LIMIT: longer than max_bytes; E_CANCELLED: Ctrl-C. */
carat_status term_read_stdin(str *out, size_t max_bytes, bool named, carat_error *e);

/* A line of a list of commands on stderr; on a narrow terminal help goes below. */
void term_help_line(const char *left, const char *help);

/* The last line of a command that writes a file: size and time, or the error. Returns the exit
 * status, as term_exit_use does. */
int term_wrote(const char *path, uint64_t n_bytes, double start_ms, carat_status st,
               const carat_error *e);

/* A progress bar on stderr, if stderr is a terminal; it appears after 0.3 s. term_progress is a
 * carat_progress_fn and returns false after Ctrl-C. */
bool term_progress(void *user, const char *what, uint64_t done, uint64_t total);
void term_progress_clear(void);
/* A line in the bar's place, cut at the width of the terminal. Nothing if stderr is no terminal. */
void term_status(const char *line);

/* SIGINT, SIGTERM and SIGHUP, of a terminal that closes, are counted and cancel the watched
 * session. Without one, they cancel the session that is watched next. A second signal, but for
 * SIGHUP, ends the program at once with status 130. A session must not be closed while it is
 * watched. */
void term_watch(carat_session *s); /* NULL: watches none and sets the count to 0 */
int term_interrupts(void);         /* signals since the last term_watch(NULL) */
void term_prompting(
    bool on);               /* while a line is typed, SIGTERM and SIGHUP end the program at once */
bool term_terminated(void); /* one of these has come */
bool term_resized(void);    /* the terminal has another size since the last call */

/* Called, in a signal handler, before a signal ends the program: fn ends what would outlive it. */
void term_on_end(void (*fn)(void));
/* Prints the question and waits for one of these keys, pressed after that and not part of a paste.
 * Others ring the bell. 0: Ctrl-C, Ctrl-D, or there is no terminal to ask at. */
int term_ask(const char *question, const char *keys);

/* Makes the controlling terminal stdin, where stdin was something else. False: there is none. */
bool term_take_terminal(void);
/* On: the terminal marks pasted text (ESC[200~ ... ESC[201~), and a signal that ends or stops the
 * program first restores the terminal. */
void term_converse(bool on);
/* Keys typed during an answer are not echoed; the next line editing reads them. Ctrl-C still raises
 * SIGINT. */
void term_hold_keys(void);

#endif
