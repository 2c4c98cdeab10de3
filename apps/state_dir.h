/* state_dir.h - files that the program keeps for itself: $XDG_STATE_HOME/carat, by default
 * ~/.local/state/carat. */
#ifndef APPS_STATE_DIR_H
#define APPS_STATE_DIR_H

#include <stdbool.h>
#include <stddef.h>

/* The path of a file in it. False, with path "": neither XDG_STATE_HOME nor HOME is absolute. */
bool state_path(char *path, size_t cap, const char *name);
/* Creates the directories above the file, with mode 0700. Failures show when the file is opened. */
void state_make_parents(const char *path);

#endif
