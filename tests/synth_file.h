/* synth_file.h - models that `carat synth` makes, for tests. */
#ifndef TESTS_SYNTH_FILE_H
#define TESTS_SYNTH_FILE_H

/* carat synth SIZE FILE --type TYPE [MORE [VALUE]], in a temporary file of the test. more, value: a
 * further option, or NULL. The path is valid for 15 further calls. */
const char *synth_file(const char *size, const char *type, const char *more, const char *value);

#endif
