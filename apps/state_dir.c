/* state_dir.c - see state_dir.h. As XDG wants it, an empty or relative value counts as unset. */
#include "apps/state_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool state_path(char *path, size_t cap, const char *name)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && state[0] == '/')
        n = snprintf(path, cap, "%s/carat/%s", state, name);
    else if (home && home[0] == '/')
        n = snprintf(path, cap, "%s/.local/state/carat/%s", home, name);
    bool ok = n > 0 && (size_t)n < cap;
    if (!ok)
        path[0] = 0;
    return ok;
}

void state_make_parents(const char *path)
{
    char dir[4096];
    if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
        return;
    for (char *slash = strchr(dir + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(dir, 0700);
        *slash = '/';
    }
}
