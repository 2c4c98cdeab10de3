/* parts.h - pictures and sounds in the content of messages, for every dialect.
 *
 * A dialect takes each picture of a message into request.pictures and gets its number, which stands
 * for it in the part of its turn. Dialects that join the texts of a message write a mark
 * into the joined text instead; put_content turns such a text into parts. A mark has a byte that no
 * UTF-8 has, and texts of a request are valid UTF-8, so no client can write one.
 */
#ifndef APPS_SERVER_PARTS_H
#define APPS_SERVER_PARTS_H

#include "apps/server/dialects/request.h"

/* One of the sources of a picture. */
typedef struct picture_source {
    const jtree *url;    /* data:, file:, http: */
    const jtree *base64; /* bytes alone; a data URI is taken, too */
    const jtree *detail; /* low, auto, high, original; NULL: not given */
    const char *field;   /* of the picture, for problems */
    bool sound;          /* it is one of sound ... */
    bool any;            /* ... or of either: the file tells */
} picture_source;

/* Takes a picture. -1: a problem. */
int32_t take_picture(request *rq, const picture_source *s, problem *p);
/* The same of OpenAI's {"data", "format"}: base64, and wav, mp3 or another kind that is read; or,
 * as llama-server has it, {"url"}. */
int32_t take_sound(request *rq, const jtree *v, const char *field, problem *p);
/* A problem of apps/media, whose sentence begins with the picture's name: names its field. */
bool problem_of_picture(problem *p, const picture *of, const err *e);
/* A part of the last turn: a picture or a sound, by its number; a text. */
void put_picture(request *rq, int32_t number);
void put_text(request *rq, talk_text text);
/* `image_tokens`: tokens of a picture, or "native". */
bool read_image_tokens(request *rq, problem *p);

void mark_picture(str *text, const request *rq, int32_t number);
bool has_picture(const str *text);
/* The content of the last turn: a text, or parts. */
void put_content(request *rq, const str *text);

/* The answer goes on with the last turn: keeps its text, which grammars follow, and whether it has
 * a thought. False: it holds a picture or a sound. */
bool take_prefill(request *rq);

/* llama-server's prompt, {"prompt_string", "multimodal_data"}: a text in which each PICTURE_MARK
 * stands for the next picture. */
#define PICTURE_MARK "<__media__>"
bool read_pictured_prompt(request *rq, const jtree *v, raw_prompt *out, problem *p);

#endif
