/* term_wrap.c - see term_wrap.h. Each character either joins the held word or ends it. */
#include "apps/term_wrap.h"
#include "base/show.h"
#include "base/utf8.h"

#include <string.h>
#include <wchar.h>

enum { COLUMNS_MIN = 8, TAB_CELLS = 8, ZERO_WIDTH_JOINER = 0x200d };

/* Prints the held word: after the gap if both fit, else on the next line without the gap. */
static void release_word(word_wrap *w, FILE *f, int columns)
{
    if (!w->n_held)
        return;
    if (!w->is_rest && w->column && w->column + w->gap + w->held_cells > columns) {
        fputc('\n', f);
        w->column = 0;
    } else {
        for (int i = 0; i < w->gap; i++)
            fputc(' ', f);
        w->column += w->gap;
    }
    fwrite(w->held, 1, w->n_held, f);
    w->column += w->held_cells;
    while (w->column > columns) /* the terminal itself has broken the word */
        w->column -= columns;
    w->gap = w->held_cells = w->last_cells = 0;
    w->n_held = 0;
    w->joins = w->is_rest = false;
}

static void end_line(word_wrap *w, FILE *f)
{
    fputc('\n', f);
    w->column = w->gap = w->n_fence = 0;
    w->in_line = false;
}

/* Three ` or ~ at the beginning of a line begin or end fenced code. */
static void watch_for_fence(word_wrap *w, uint32_t c)
{
    if (w->in_line || c == ' ')
        return;
    if ((c == '`' || c == '~') && (!w->n_fence || c == (uint32_t)w->fence) &&
        (!w->fenced || c == (uint32_t)w->fence)) {
        w->fence = (char)c;
        if (++w->n_fence < 3)
            return;
        w->fenced = !w->fenced;
    }
    w->in_line = true;
}

/* True of closing punctuation in East Asian text, which must not begin a line. */
static bool closes(uint32_t c)
{
    return (c >= 0x3001 && c <= 0x3002) || c == 0x3009 || c == 0x300b || c == 0x300d ||
           c == 0x300f || c == 0x3011 || c == 0xff01 || c == 0xff09 || c == 0xff0c || c == 0xff0e ||
           c == 0xff1a || c == 0xff1b || c == 0xff1f;
}

static void hold(word_wrap *w, FILE *f, int columns, uint32_t c, const char *bytes, size_t n,
                 int cells)
{
    /* Text in wide characters has no spaces, so a line may break between any two of them. */
    if (cells > 0 && !w->joins && (cells == 2 || w->last_cells == 2) && !closes(c))
        release_word(w, f, columns);
    if (w->held_cells + cells > columns || w->n_held + n > sizeof w->held) {
        /* The word is longer than a line. The terminal breaks it, so that the user can copy it as
         * one word. */
        release_word(w, f, columns);
        w->is_rest = true;
    }
    memcpy(w->held + w->n_held, bytes, n);
    w->n_held += n;
    w->held_cells += cells;
    if (cells > 0)
        w->last_cells = cells;
    w->joins = c == ZERO_WIDTH_JOINER;
}

void wrap_put(word_wrap *w, FILE *f, int columns, const char *text, size_t n)
{
    if (columns < COLUMNS_MIN)
        columns = 1 << 20;
    for (size_t taken; n; text += taken, n -= taken) {
        char safe[SHOW_CHAR_MAX];
        size_t len;
        uint32_t c;
        bool ok;
        taken = show_one(text, n, SHOW_TEXT, safe, &len);
        if (*text == '\r') /* models write them before newlines */
            continue;
        utf8_decode(safe, len, &c, &ok);
        bool escaped = len > 1 && c < 0x80;
        int cells = escaped ? (int)len : wcwidth((wchar_t)c);
        if (cells < 0)
            cells = 1;
        watch_for_fence(w, c);
        if (c == '\n') {
            release_word(w, f, columns);
            end_line(w, f);
        } else if (w->fenced) {
            release_word(w, f, columns);
            fwrite(safe, 1, len, f);
        } else if (c == ' ' || c == '\t') {
            release_word(w, f, columns);
            w->is_rest = false;
            w->gap += c == ' ' ? 1 : TAB_CELLS - (w->column + w->gap) % TAB_CELLS;
        } else {
            hold(w, f, columns, c, safe, len, cells);
        }
    }
}

void wrap_flush(word_wrap *w, FILE *f, int columns)
{
    release_word(w, f, columns < COLUMNS_MIN ? 1 << 20 : columns);
}

void wrap_words(FILE *f, const char *s, size_t n, int at, int indent, int width)
{
    const char *end = s + n;
    bool first = true;
    while (s < end) {
        size_t gap = strspn(s, " \n"), word = strcspn(s + gap, " \n");
        s += gap;
        if (s >= end || !word)
            break;
        word = word < (size_t)(end - s) ? word : (size_t)(end - s);
        if (!first && at + 1 + (int)word > width) {
            fprintf(f, "\n%*s", indent, "");
            at = indent;
        } else if (!first) {
            fputc(' ', f);
            at++;
        }
        fprintf(f, "%.*s", (int)word, s);
        at += (int)word;
        s += word;
        first = false;
    }
    fputc('\n', f);
}

void wrap_row(FILE *f, const char *left, const char *help, int indent, int width)
{
    bool narrow = width < indent + 30;
    int at = (int)strlen(left);
    fputs(left, f);
    if (narrow)
        indent = 8;
    if (narrow || at >= indent) {
        fputc('\n', f);
        at = 0;
    }
    fprintf(f, "%*s", indent - at, "");
    wrap_words(f, help, strlen(help), indent, indent, width);
}
