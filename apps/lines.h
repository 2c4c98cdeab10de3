/* lines.h - the lines typed in conversations, kept between runs in one file.
 *
 * A line is in the file as soon as it is typed, so a program that is killed loses none. The file is
 * libedit's: a head, and a line of escapes for each typed text. Several programs append to it and
 * rewrite it at once: a lock on the file orders them. A failure is not reported, because the
 * history is a convenience. One thread.
 */
#ifndef APPS_LINES_H
#define APPS_LINES_H

#include "base/str.h"

#include <histedit.h>
#include <stdbool.h>

enum { LINES_MAX = 1000 };

/* Loads the newest LINES_MAX into h. */
void lines_load(const char *path, History *h);
/* Appends a text, with mode 0600 where the file is new. */
void lines_append(const char *path, const char *text);
/* Takes out every text for which gone says so. */
void lines_forget(const char *path, bool (*gone)(void *user, const char *text), void *user);

#endif
