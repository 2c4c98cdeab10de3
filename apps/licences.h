/* licences.h - the licences of carat and of the files of other projects that are part of it. */
#ifndef APPS_LICENCES_H
#define APPS_LICENCES_H

const char *licences_text(void); /* UTF-8, NUL-terminated; static storage */

#endif
