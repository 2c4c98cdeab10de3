/* run_file.c - files as parts of a message: `carat run -f FILE` and /file. What begins as a picture
 * or a sound does is one (run_pictures.c); other files are text.
 *
 * A file becomes its name and its text between two fences. The fence is longer than every run of
 * backticks in the text, so no file can end its own block. A file that may be shortened
 * (--compress) has no fences.
 */
#include "apps/run_int.h"
#include "base/map.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wordexp.h>

enum { FILE_MAX = 16 << 20, FENCE_MIN = 3 };

/* A regular file, or a pipe that the shell has opened. */
static status read_file(const char *path, str *out, err *e)
{
    bool from_shell = file_is_opened(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | (from_shell ? 0 : O_NONBLOCK));
    struct stat sb;
    char buf[65536];
    status st = OK;
    if (fd < 0)
        return err_errno(e, "open", path);
    if (fstat(fd, &sb))
        st = err_errno(e, "read", path);
    else if (S_ISDIR(sb.st_mode))
        st = err_set(e, E_ARG, "%s: a directory, not a file", path);
    else if (!S_ISREG(sb.st_mode) && !(S_ISFIFO(sb.st_mode) && from_shell))
        st = err_set(e, E_ARG, "%s: not a regular file", path);
    for (ssize_t n; !st;) {
        n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR && !term_interrupts())
            continue;
        if (n < 0)
            st = errno == EINTR ? err_set(e, E_CANCELLED, "interrupted")
                                : err_errno(e, "read", path);
        if (n <= 0)
            break;
        str_put(out, buf, (size_t)n);
        if (out->n > PICTURE_MAX_BYTES)
            st = err_set(e, E_LIMIT, "%s: a file of more than %d bytes", path, PICTURE_MAX_BYTES);
    }
    close(fd);
    return !st && out->bad ? err_memory(e, path, out->n) : st;
}

/* A picture or a sound goes to the list. *done: it was one. */
static status take_picture(const char *path, str *bytes, pictures *to, bool *done, err *e)
{
    size_t n = bytes->n;
    *done = picture_is_one(str_text(bytes), n);
    return *done ? pictures_add(to, (uint8_t *)str_take(bytes), n, path, e) : OK;
}

/* Text is valid UTF-8 without U+0000. A mark at its beginning (BOM) is dropped. */
static status check_text(const char *path, str *text, err *e)
{
    const unsigned char *b = (const unsigned char *)text->at;
    bool reads;
    if (text->n > FILE_MAX)
        return err_set(e, E_LIMIT, "%s: a text file of more than %d bytes", path, FILE_MAX);
    if (text->n >= 2 && ((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff)))
        return err_set(e, E_FORMAT, "%s: text in UTF-16; a message takes UTF-8", path);
    if (text->n >= 3 && !memcmp(b, "\xef\xbb\xbf", 3))
        str_drop(text, 3);
    for (size_t at = 0; at < text->n;) {
        uint32_t cp;
        bool ok;
        int len = utf8_decode(text->at + at, text->n - at, &cp, &ok);
        if ((!ok || !cp) && sound_other_kind(text->at, text->n))
            return err_set(e, E_UNSUPPORTED,
                           "%s: %s; sound is read from WAV, FLAC, MP3 and Ogg files", path,
                           sound_other_kind(text->at, text->n));
        if ((!ok || !cp) && image_kind(text->at, text->n, &reads))
            return err_set(e, E_UNSUPPORTED,
                           "%s: %s; pictures are read from PNG, JPEG and WebP files", path,
                           image_kind(text->at, text->n, &reads));
        if (!ok || !cp)
            return err_set(
                e, E_FORMAT,
                "%s: not a text file: byte %zu is 0x%02x, which %s; a message takes text "
                "in UTF-8",
                path, at + 1, (unsigned char)text->at[at], cp ? "is no UTF-8" : "no text has");
        at += (size_t)len;
    }
    return OK;
}

static int fence_length(const str *text)
{
    int longest = FENCE_MIN - 1, run = 0;
    for (size_t i = 0; i < text->n; i++) {
        run = text->at[i] == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest + 1;
}

static void put_fence(str *out, int n)
{
    for (int i = 0; i < n; i++)
        str_putc(out, '`');
    if (n)
        str_putc(out, '\n');
}

status message_add_file(str *out, pictures *to, const char *path, file_form form, err *e)
{
    str text = {0};
    bool done = false;
    status st = read_file(path, &text, e);
    if (!st)
        st = take_picture(path, &text, to, &done, e);
    if (st || done) {
        str_free(&text);
        return st;
    }
    st = check_text(path, &text, e);
    if (!st && form == FILE_ALONE) {
        str_put(out, str_text(&text), text.n);
    } else if (!st && !(st = check_utf8("the name of a file", path, strlen(path), e))) {
        int fence = form == FILE_FENCED ? fence_length(&text) : 0;
        str_printf(out, "%s%s:\n", out->n ? "\n" : "", path);
        put_fence(out, fence);
        str_put(out, str_text(&text), text.n);
        if (text.n && text.at[text.n - 1] != '\n')
            str_putc(out, '\n');
        put_fence(out, fence);
    }
    str_free(&text);
    return !st && out->bad ? err_memory(e, path, out->n) : st;
}

/* Reads `words` as a shell would: quotes, backslashes, ~ and patterns; commands are not run. A name
 * with spaces that exists needs no quotes. */
status message_add_files(str *out, int *n_files, pictures *to, const char *words, file_form form,
                         err *e)
{
    size_t before = out->n;
    wordexp_t w = {0};
    status st = OK;
    if (!access(words, F_OK)) {
        if (!(st = message_add_file(out, to, words, form, e)))
            *n_files += out->n > before;
        else
            str_cut(out, before);
        return st;
    }
    int bad = wordexp(words, &w, WRDE_NOCMD | WRDE_UNDEF);
    if (bad == WRDE_NOSPACE)
        return err_memory(e, "names of files", strlen(words));
    if (bad)
        return err_set(e, E_ARG, "%s: names with the shell's special characters need quotes",
                       words);
    int n_texts = 0;
    for (size_t i = 0; !st && i < w.we_wordc; i++) {
        size_t n = out->n;
        st = message_add_file(out, to, w.we_wordv[i], form, e);
        n_texts += out->n > n;
    }
    if (st)
        str_cut(out, before);
    else
        *n_files += n_texts;
    wordfree(&w);
    return st;
}
