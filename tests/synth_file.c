/* synth_file.c - see synth_file.h. */
#include "tests/synth_file.h"
#include "apps/commands.h"
#include "tests/test.h"

#include <stdio.h>

enum { PATHS = 16, PATH_BYTES = 4096 };

const char *synth_file(const char *size, const char *type, const char *more, const char *value)
{
    static char paths[PATHS][PATH_BYTES]; /* test_temp has few */
    static int n;
    char name[64], *path = paths[n % PATHS];
    snprintf(name, sizeof name, "%s-%d.gguf", size, n++);
    snprintf(path, PATH_BYTES, "%s", test_temp(name));
    const char *argv[] = {size, path, "--type", type, more, value};
    CHECK_EQ(command_synth.run(&command_synth, value ? 6 : more ? 5 : 4, (char **)argv), 0);
    return path;
}
