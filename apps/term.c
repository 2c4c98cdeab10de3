/* term.c - see term.h.
 *
 * term_init asks once whether stdout and stderr are terminals. The progress bar is one line that is
 * drawn over itself, so it must not be wider than the terminal. All other output clears it first.
 *
 * The signal handler counts the signal and cancels the watched session; the call that uses the
 * session then returns. So the handler needs atomics only, and no answer ends inside a character.
 * While a line is typed there is no call to wait for, and SIGTERM and SIGHUP end the program at
 * once.
 */
#include "apps/term.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/show.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum {
    BAR_AFTER_MS = 300,
    BAR_EVERY_MS = 80,
    BAR_CELLS = 24,
    HELP_CELLS = 24, /* of the left column of a list of commands */
    BAR_COLUMNS = 72 /* of the longest bar: two numbers and a unit */
};

/* Bracketed paste: xterm marks both ends of pasted text. */
#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

static bool tty[3], colour[3]; /* by file descriptor */
static bool obeys;             /* stderr is a terminal that understands escape sequences */

/* wcwidth and libedit need a locale of UTF-8, which is the encoding of all text here. The user's is
 * for systems without C.UTF-8: in a Turkish one "IQ4_NL" is not "iq4_nl" for strcasecmp. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        setlocale(LC_CTYPE, "");
}

void term_init(void)
{
    use_utf8();
    const char *no = getenv("NO_COLOR"), *kind = getenv("TERM");
    bool smart = kind && *kind && strcmp(kind, "dumb") != 0, want = !(no && *no) && smart;
    for (int fd = 1; fd <= 2; fd++) {
        tty[fd] = isatty(fd);
        colour[fd] = tty[fd] && want;
    }
    obeys = tty[2] && smart;
}

static int fd_of(FILE *f)
{
    return f == stdout ? 1 : 2;
}

bool term_is_tty(FILE *f)
{
    return tty[fd_of(f)];
}

void term_set(FILE *f, term_style s)
{
    static const char *const code[] = {[TERM_PLAIN] = "\033[0m",
                                       [TERM_DIM] = "\033[2m",
                                       [TERM_BOLD] = "\033[1m",
                                       [TERM_CYAN] = "\033[36m",
                                       [TERM_RED] = "\033[31m"};
    if (colour[fd_of(f)])
        fputs(code[s], f);
}

/* Carriage returns are dropped on a terminal; models write them before newlines. */
void term_put(FILE *f, const char *text, size_t n)
{
    if (!tty[fd_of(f)]) {
        fwrite(text, 1, n, f);
        return;
    }
    while (n) {
        char safe[SHOW_CHAR_MAX];
        size_t len, taken = show_one(text, n, SHOW_TEXT, safe, &len);
        if (*text != '\r')
            fwrite(safe, 1, len, f);
        text += taken;
        n -= taken;
    }
}

void term_put_name(FILE *f, const char *name, size_t n, int cells)
{
    while (n) {
        char safe[SHOW_CHAR_MAX];
        size_t len, taken = show_one(name, n, SHOW_NAME, safe, &len);
        fwrite(safe, 1, len, f);
        cells -= (int)len;
        name += taken;
        n -= taken;
    }
    for (; cells > 0; cells--)
        fputc(' ', f);
}

static bool no_wrap;

void term_wrap_lines(bool on)
{
    no_wrap = !on;
}

int term_columns(FILE *f)
{
    struct winsize size;
    return ioctl(fd_of(f), TIOCGWINSZ, &size) ? 0 : size.ws_col;
}

void term_put_words(FILE *f, word_wrap *w, const char *text, size_t n)
{
    if (tty[fd_of(f)])
        wrap_put(w, f, no_wrap ? 0 : term_columns(f), text, n);
    else
        fwrite(text, 1, n, f);
}

void term_end_words(FILE *f, word_wrap *w)
{
    if (tty[fd_of(f)])
        wrap_flush(w, f, no_wrap ? 0 : term_columns(f));
}

/* Prints one line on stderr, without its newline. */
static void put_line(const char *before, const char *text)
{
    word_wrap w = {0};
    term_put_words(stderr, &w, before, strlen(before));
    term_put_words(stderr, &w, text, strlen(text));
    term_end_words(stderr, &w);
}

void term_error(const carat_error *e)
{
    term_progress_clear();
    put_line("carat: ", e->text);
    fputs("\n", stderr);
}

carat_status term_flush(carat_error *e)
{
    return fflush(stdout) || ferror(stdout) ? err_set(e, E_IO, "cannot write to standard output")
                                            : CARAT_OK;
}

int term_exit(carat_status st, const carat_error *e)
{
    if (st)
        term_error(e);
    return st == CARAT_E_CANCELLED ? EXIT_INTERRUPTED : st ? 1 : 0;
}

int term_exit_use(carat_status st, const carat_error *e)
{
    int code = term_exit(st, e);
    return st == CARAT_E_ARG ? 2 : code;
}

void term_note(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    show_format(line, sizeof line, fmt, ap);
    va_end(ap);
    term_progress_clear();
    term_set(stderr, TERM_DIM);
    put_line("", line);
    term_set(stderr, TERM_PLAIN);
    fputs("\n", stderr);
}

void term_help_line(const char *left, const char *help)
{
    int columns = tty[2] ? term_columns(stderr) : 0;
    wrap_row(stderr, left, help, HELP_CELLS, columns ? columns : 100);
}

int term_wrote(const char *path, uint64_t n_bytes, double start_ms, carat_status st,
               const carat_error *e)
{
    term_progress_clear();
    if (st)
        return term_exit_use(st, e);
    double s = (clock_ms() - start_ms) * 1e-3;
    term_note("%s: %.1f MiB in %.1f s, %.2f GB/s", path, (double)n_bytes * 0x1p-20, s,
              (double)n_bytes * 1e-9 / s);
    return 0;
}

/* ---- The bar --------------------------------------------------------------------------- */

static struct {
    const char *what;
    double start_ms, shown_ms;
    bool visible;
} bar;

void term_progress_clear(void)
{
    if (bar.visible)
        fputs("\r\033[K", stderr);
    bar.visible = false;
    bar.what = NULL;
}

bool term_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user;
    double now = clock_ms();
    if (term_interrupts())
        return false;
    if (!obeys || !total)
        return true;
    if (bar.what != what) { /* a new task: names are string literals, so pointers suffice */
        term_progress_clear();
        bar.what = what;
        bar.start_ms = bar.shown_ms = now;
    }
    if (done >= total) {
        term_progress_clear();
        return true;
    }
    if (now - bar.start_ms < BAR_AFTER_MS || now - bar.shown_ms < BAR_EVERY_MS)
        return true;
    bar.shown_ms = now;
    bar.visible = true;
    int width = term_columns(stderr);
    if (width && width < BAR_COLUMNS) {
        fprintf(stderr, "\r\033[K%d%%", (int)((double)done / (double)total * 100));
        fflush(stderr);
        return true;
    }
    char cells[BAR_CELLS + 1];
    int full = (int)((double)done / (double)total * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++)
        cells[i] = i < full ? '#' : '.';
    cells[BAR_CELLS] = 0;
    bool bytes = total >= 10 << 20;
    double unit = bytes ? 0x1p-20 : 1;
    fprintf(stderr, "\r\033[K[%s] %.0f / %.0f %s%s", cells, (double)done * unit,
            (double)total * unit, bytes ? "Mi" : "", what);
    fflush(stderr);
    return true;
}

void term_status(const char *line)
{
    int width = term_columns(stderr), n = (int)strlen(line);
    if (!obeys)
        return;
    fprintf(stderr, "\r\033[K%.*s", width > 1 && n >= width ? width - 1 : n, line);
    fflush(stderr);
    bar.visible = true;
}

/* ---- Interrupts ------------------------------------------------------------------------ */

static _Atomic(carat_session *) watched;
static atomic_int n_interrupts;
static atomic_bool terminated, prompting, resized;
static struct termios at_start;
static bool handling, has_terminal;
static atomic_bool conversing;
static void (*_Atomic on_end)(void);

void term_on_end(void (*fn)(void))
{
    atomic_store(&on_end, fn);
}

static void end_others(void)
{
    void (*fn)(void) = atomic_load(&on_end);
    if (fn)
        fn();
}

/* Restores the terminal. Signal handlers call it, so it uses async-signal-safe calls only. */
static void give_terminal_back(void)
{
    if (atomic_load(&conversing) && write(STDERR_FILENO, PASTE_OFF, sizeof PASTE_OFF - 1) < 0)
        return; /* the terminal is gone */
    if (has_terminal)
        tcsetattr(STDIN_FILENO, TCSANOW, &at_start);
}

static void on_signal(int sig)
{
    bool ends = sig == SIGTERM || sig == SIGHUP;
    if (ends && atomic_load(&prompting)) {
        /* A line is being typed: restore the terminal from the line editor's mode and end. */
        give_terminal_back();
        end_others();
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    /* Of a terminal that closes, the kernel and the shell may each send one. */
    if (ends && atomic_exchange(&terminated, true) && sig == SIGHUP)
        return;
    /* The first signal takes effect at the next token or chunk; a second one does not wait. */
    if (atomic_fetch_add(&n_interrupts, 1) >= 1) {
        if (atomic_load(&conversing) || atomic_load(&prompting))
            give_terminal_back();
        end_others();
        _exit(EXIT_INTERRUPTED);
    }
    carat_session *s = atomic_load(&watched);
    if (s)
        carat_session_cancel(s);
}

static void on_resize(int sig)
{
    (void)sig;
    atomic_store(&resized, true);
}

bool term_resized(void)
{
    return atomic_exchange(&resized, false);
}

void term_watch(carat_session *s)
{
    if (!s)
        atomic_store(&n_interrupts, 0);
    atomic_store(&watched, s);
    if (s && term_interrupts()) /* a signal came before the session was watched */
        carat_session_cancel(s);
    if (!handling) {
        has_terminal = !tcgetattr(STDIN_FILENO, &at_start);
        struct sigaction sa = {.sa_handler = on_signal};
        sigemptyset(&sa.sa_mask);
        sigaction(SIGINT, &sa,
                  NULL); /* no SA_RESTART: reading the prompt from stdin must end too */
        sigaction(SIGTERM, &sa, NULL);
        struct sigaction was;
        if (!sigaction(SIGHUP, NULL, &was) && was.sa_handler != SIG_IGN) /* nohup */
            sigaction(SIGHUP, &sa, NULL);
        sa.sa_handler = on_resize;
        sa.sa_flags = SA_RESTART; /* it interrupts poll alone */
        sigaction(SIGWINCH, &sa, NULL);
        handling = true;
    }
}

bool term_take_terminal(void)
{
    int fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = dup2(fd, STDIN_FILENO) >= 0; /* stdio has read nothing of stdin yet */
    close(fd);
    has_terminal = ok && !tcgetattr(STDIN_FILENO, &at_start);
    return has_terminal;
}

void term_prompting(bool on)
{
    struct termios t;
    atomic_store(&prompting, on);
    if (!on || !atomic_load(&conversing) || tcgetattr(STDIN_FILENO, &t))
        return;
    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR); /* libedit's INLCR makes two ends of a pasted CR LF */
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

bool term_terminated(void)
{
    return atomic_load(&terminated);
}

int term_interrupts(void)
{
    return atomic_load(&n_interrupts);
}

/* ---- A conversation --------------------------------------------------------------------- */

/* Installed with SA_RESETHAND and SA_NODEFER, so raise() in it takes the default action. */
static void on_end_or_stop(int sig);

static void handle_end_and_stop(bool on)
{
    static const int signals[] = {SIGTSTP, SIGQUIT};
    struct sigaction sa = {.sa_handler = on ? on_end_or_stop : SIG_DFL,
                           .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &sa, NULL);
}

static void on_end_or_stop(int sig)
{
    struct termios now;
    bool known = !tcgetattr(STDIN_FILENO, &now);
    give_terminal_back();
    if (sig != SIGTSTP)
        end_others();
    raise(sig);
    /* Reached only after a stop, when the program is continued. */
    handle_end_and_stop(true);
    if (known)
        tcsetattr(STDIN_FILENO, TCSANOW, &now);
    if (write(STDERR_FILENO, PASTE_ON, sizeof PASTE_ON - 1) < 0)
        return;
}

void term_converse(bool on)
{
    if (!obeys || !has_terminal || on == atomic_load(&conversing))
        return;
    if (on) {
        atomic_store(&conversing, true);
        handle_end_and_stop(true);
        fputs(PASTE_ON, stderr);
        return;
    }
    give_terminal_back();
    handle_end_and_stop(false);
    atomic_store(&conversing, false);
}

void term_hold_keys(void)
{
    if (!atomic_load(&conversing))
        return;
    struct termios t = at_start;
    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR);
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

/* ---- Input ---- */

/* The byte that has come alone; 0: none yet, or several at once, as of a paste or an arrow key. */
static int lone_key(void)
{
    enum { AGAIN_MS = 20 };
    unsigned char bytes[256];
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    bool alone = n == 1;
    while (n > 0 && poll(&p, 1, AGAIN_MS) > 0) {
        alone = false;
        n = read(STDIN_FILENO, bytes, sizeof bytes);
    }
    return n < 0 && errno != EINTR && errno != EAGAIN ? -1 : n == 0 ? -1 : alone ? bytes[0] : 0;
}

int term_ask(const char *question, const char *keys)
{
    struct termios before, t;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    int key = 0;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || tcgetattr(STDIN_FILENO, &before))
        return 0;
    t = before;
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    t.c_lflag |= ISIG;
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    if (!atomic_load(&conversing)) /* otherwise handlers give the terminal back meanwhile */
        t.c_cc[VSUSP] = t.c_cc[VQUIT] = _POSIX_VDISABLE;
    atomic_store(&prompting, true);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &t); /* keys that were typed before answer nothing */
    fputs(question, stderr);
    fflush(stderr);
    while (!term_interrupts() && key >= 0 && (!key || !strchr(keys, key))) {
        if (poll(&p, 1, 100) <= 0)
            continue;
        key = lone_key();
        if (key && key == t.c_cc[VEOF] && key != _POSIX_VDISABLE)
            key = -1;
        if (key >= 0 && (!key || !strchr(keys, key)))
            fputc('\a', stderr); /* no answer */
    }
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    atomic_store(&prompting, false);
    return term_interrupts() || key < 0 ? 0 : key;
}

carat_status term_read_stdin(str *out, size_t max_bytes, bool named, carat_error *e)
{
    char buf[65536];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, buf, sizeof buf);
        if (n < 0 && errno == EINTR && !term_interrupts())
            continue;
        if (n < 0 && errno == EINTR)
            return err_set(e, E_CANCELLED, "interrupted");
        if (n < 0 && errno == EBADF && !named)
            return OK;
        if (n < 0)
            return err_errno(e, "read", "stdin");
        if (n == 0)
            return out->bad ? err_memory(e, "the text of stdin", out->n) : OK;
        str_put(out, buf, (size_t)n);
        if (out->n > max_bytes)
            return err_set(e, E_LIMIT, "stdin: a text of more than %zu bytes", max_bytes);
    }
}
