/* pictures.h - the pictures of one request or one command, before they are decoded, and its sounds,
 * which are pictures too in all names here but where they differ. A sound is decoded once to know
 * its length, and again when tokens are made of it: it is short, and its samples are not kept.
 *
 * A picture comes as base64, as a data URI, as a path below a directory, or from an address. Its
 * file is kept, and of the file only the header is read: so sizes and limits are known, and tokens
 * can be counted, before memory for pixels is taken. soft.h makes tokens of pictures.
 *
 * A client chooses all of these bytes. Sentences begin with `name`, which says where the request
 * has the picture. One thread at a time.
 */
#ifndef APPS_MEDIA_PICTURES_H
#define APPS_MEDIA_PICTURES_H

#include "image/image.h"
#include "sound/sound.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PICTURE_MAX_BYTES = 20 << 20,       /* of one file */
    PICTURES_MAX = 16,                  /* of one request */
    PICTURES_MAX_BYTES = 64 << 20,      /* of all files of a request */
    PICTURES_ALL_BYTES = 512 << 20,     /* of the files of all requests at once */
    PICTURES_MAX_PIXELS = 1 << 28,      /* of all pictures of a request: seconds of decoding */
    PICTURE_FETCH_MAX_BYTES = 10000000, /* of one from an address */
    PICTURE_FETCH_S = 10                /* the time for it */
};

typedef struct picture {
    uint8_t *bytes; /* the file; NULL: it was dropped */
    size_t n;
    image_head head;
    int64_t n_samples; /* of a sound, at SOUND_RATE; 0: it is a picture */
    int32_t n_tokens;  /* as in carat_image_options */
    char name[112];
} picture;

typedef struct pictures { /* zeroed: none */
    picture *at;
    int32_t n;
    size_t n_bytes;
    int64_t n_pixels;
    bool keep; /* files stay after they are decoded */
} pictures;

/* What may be read. All NULL: data URIs alone. */
typedef struct picture_rules {
    const char *root; /* paths are below this directory; NULL: none is read */
    /* GETs an address. *bytes: of mem_alloc. NULL: none is read. */
    status (*fetch)(const char *url, const char *name, uint8_t **bytes, size_t *n, err *e);
} picture_rules;

void pictures_free(pictures *l); /* safe on a zeroed or freed one */
/* Frees the file of a picture, whose header stays. Once more is fine. */
void picture_drop_file(picture *p);

/* Does a file begin like a picture or a sound that is read? */
bool picture_is_one(const void *bytes, size_t n);

/* Appends picture i of `from`, which leaves its place there. E_LIMIT, E_MEMORY: it stays. */
status pictures_move(pictures *to, pictures *from, int32_t i, err *e);

/* Each appends a picture, or leaves the list as it was. E_UNSUPPORTED: no picture that is read, or
 * a way that is switched off; E_FORMAT: damaged; E_LIMIT; E_IO; E_MEMORY, also where the
 * files of all lists together reach PICTURES_ALL_BYTES. */

/* A file in memory, of mem_alloc, which the list takes in any case. */
status pictures_add(pictures *l, uint8_t *bytes, size_t n, const char *name, err *e);
status pictures_add_base64(pictures *l, const char *text, size_t n, const char *name, err *e);
/* data:, file:, http: or https:. */
status pictures_add_url(pictures *l, const picture_rules *r, const char *url, size_t n,
                        const char *name, err *e);
/* A file of the user's own machine. */
status pictures_add_file(pictures *l, const char *path, err *e);

#endif
