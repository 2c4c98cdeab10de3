/* media_int.h - what media.c (towers, registry), media_work.c (rows), media_new.c (the caller's
 * pictures and sounds) and media_lasting.c (names in files) share.
 */
#ifndef ENGINE_MEDIA_INT_H
#define ENGINE_MEDIA_INT_H

#include "base/sha.h"
#include "engine/ears.h"
#include "engine/media.h"
#include "model/vision.h"

/* Of a processor that both want a tower's threads take a sixteenth: answers of others are slowed by
 * 7 %, and by at most 10 % with what caches add. */
enum { MEDIA_NICE = 12 };

struct media_item {
    char key[SHA256_TEXT];
    int32_t first;   /* its ids: first, first - 1, ... of grid.n_tokens */
    image_grid grid; /* of a sound: n_tokens alone */
    ears_size sound; /* n_pieces 0: a picture */
    int32_t n_users; /* carat_media, a tower at work, and passes that read its rows */
    float *patches;  /* or a sound's features; while there are users and no rows */
    float *rows;     /* [1 + core.n_deep][n_tokens][n_embd] */
    float *making;   /* the same, while they are made: of a sound the first n_made pieces so far */
    int32_t n_made;
    uint64_t used; /* when, by media.clock */
    int32_t span;  /* its number */
    status st;     /* of the worker's last attempt, which began at `tried` of media.clock */
    err *why;      /* of a failure; NULL: there was no memory for it */
    uint64_t tried;
    bool is_wanted;
    struct media_item *next, *next_known, *next_wanted;
};

/* The ids of a picture, and its shape in tokens. */
typedef struct media_span {
    int32_t first;
    uint16_t cols, rows; /* of a sound: cols are its tokens, and rows 0 */
    media_item *item;    /* NULL: forgotten */
} media_span;

struct media {
    ears ears;
    model tower;
    cpu_options cpu; /* of own */
    char isa[16];
    device *own;          /* a CPU for the towers, where the model's main device is one; or NULL */
    device *dev;          /* of the towers: own, or the model's main device */
    pthread_mutex_t work; /* of a tower's pass; after pass_lock, before lock */
    void *room;           /* of dev: for one picture or sound at work */
    size_t room_bytes;
    bool loaded;
    bool two_way;              /* tokens of a picture see each other in layers with windows */
    int32_t budget;            /* soft tokens of a picture that names none; 0: by its own size */
    int32_t begin, place, end; /* ids around a picture and for it; -1: the vocabulary lacks it */
    pthread_mutex_t lock;      /* of what follows; taken after pass_lock */
    media_span *span;          /* [n], by falling ids */
    int32_t n, cap;
    media_item **bucket; /* [BUCKETS] */
    media_item *known;   /* all items */
    int32_t n_known, n_known_max;
    _Atomic int64_t n_ids;           /* of all items: the ids are -1 .. -n_ids */
    uint64_t clock;                  /* of uses */
    uint64_t row_bytes, patch_bytes; /* of all items */
    uint64_t most;                   /* of both together */
    media_item *wanted;              /* by the worker, first come first */
    media_waker *wakers;
    pthread_cond_t more; /* wanted, or stop */
    pthread_t worker;
    bool has_worker, stop;
    void (*before_work)(void *user);
    void *before_user;
};

struct carat_media {
    carat_model *m;
    media_item *item;
};

/* The tokens before a picture, for it, and behind it: which is 0, 1, 2. -1: there is none. */
int32_t media_picture_token(const carat_model *m, int which);
/* The item of key, new or known, with one more user. sound.n_pieces 0: a picture. *has: it needs no
 * patches. A new one that has no room beside the others takes no ids, and nothing is forgotten for
 * it. */
status media_use(carat_model *m, const char *key, const image_grid *g, const ears_size *sound,
                 media_item **out, bool *has, err *e);
/* Takes *patches, unless the item has some by now. E_MEMORY: others hold too many. */
status media_give(carat_model *m, media_item *it, float **patches, err *e);
/* One user less. */
void media_drop_user(media *x, media_item *it);
void media_drop_user_locked(media *x, media_item *it); /* the caller holds the lock */

/* Under the lock: */
media_span *media_span_of(const media *x, int32_t id); /* the picture's, if media_has_id */
void media_drop_patches(media *x, media_item *it);
/* Drops rows of pictures that nothing uses, until all rows have at most that many bytes. */
void media_drop_rows(carat_model *m, uint64_t most);

size_t media_rows_bytes(const carat_model *m, const media_item *it);
void media_end_work(media *x); /* ends the worker, if there is one */

#endif
