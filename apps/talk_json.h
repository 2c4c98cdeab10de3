/* talk_json.h - a conversation as JSON in OpenAI's form, as files and tests have it. talk_read
 * (text/talk.h) reads it again. */
#ifndef APPS_TALK_JSON_H
#define APPS_TALK_JSON_H

#include "apps/jsonw.h"
#include "text/talk.h"

/* Writes a part in a form of its own. False: it has the usual one. */
typedef bool talk_part_writer(void *user, const talk_part *part, str *o);
/* The array of turns. put NULL: an image or a sound is {"type": "image", "number": N}. */
void talk_put_json(str *o, const char *key, const carat_talk *t, talk_part_writer *put, void *user);
void talk_put_text_json(str *o, const char *key, talk_text t); /* nothing if it is not given */

#endif
