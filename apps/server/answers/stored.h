/* stored.h - responses of /v1/responses that were kept, for previous_response_id and GET.
 *
 * In memory only, and bounded by count, bytes and age; the response used longest ago goes first. A
 * response belongs to the API key of its request, and no other key finds it. A response keeps its
 * own items and a link to the one before it; the texts of a removed response stay as long as later
 * ones need them. A response of `background` is here from the beginning, and replaced while its
 * answer runs; no limit removes it meanwhile. Thread-safe.
 */
#ifndef APPS_SERVER_STORED_H
#define APPS_SERVER_STORED_H

#include "apps/server/dialects/answer.h"

typedef struct stored stored;

enum { STORED_DAYS = 30 }; /* as OpenAI keeps them */

typedef struct stored_limits {
    int64_t count;
    uint64_t bytes; /* of all texts */
} stored_limits;

typedef struct stored_response {
    const char *id;
    int32_t owner;        /* the number of the API key */
    const char *previous; /* the id of the response before it, or NULL */
    const str *object;    /* the response as JSON */
    const str *input;     /* its own items, separated by commas */
    const str *output;    /* the same */
    const str *before;    /* the items of `previous`, for the case that it has gone meanwhile */
    bool background;      /* it may be cancelled */
    bool running;         /* its answer is not over */
    bool again;           /* it replaces the running one of its id. Where there is none, it was
                             cancelled or removed, and nothing is kept */
} stored_response;

status stored_open(stored **s, const stored_limits *lim, err *e);
void stored_close(stored *s); /* NULL is fine */
/* Copies. Without memory, or beyond the limits, the response is not kept. */
void stored_put(stored *s, const stored_response *r);
/* False: no response of this id and owner. */
bool stored_get(stored *s, int32_t owner, const char *id, str *object);
bool stored_remove(stored *s, int32_t owner, const char *id);
/* The response of `background` becomes a cancelled one if it runs. Its object is appended then, and
 * if it was over before. */
typedef enum { STORED_NONE, STORED_NO_BACKGROUND, STORED_OVER, STORED_CANCELLED } stored_end;
stored_end stored_cancel(stored *s, int32_t owner, const char *id, str *object);
bool stored_runs(stored *s, int32_t owner, const char *id);
/* Appends the items of the conversation up to this response, separated by commas: those before it,
 * its input and, with `output`, what was answered. With `output` a running response is none. */
bool stored_items(stored *s, int32_t owner, const char *id, bool output, str *items);
/* Appends the items with these ids, which are sorted by strcmp, separated by commas, in any order,
 * each once. */
void stored_find_items(stored *s, int32_t owner, const char *const *ids, size_t n, str *items);
/* What it holds now. */
void stored_count(stored *s, int64_t *count, uint64_t *bytes);

#endif
