/* media_lasting.c - names of soft tokens that mean the same in every process, for files.
 *
 * The ids of the registry are those of this process. In a file, token k of a picture has 31 bits of
 * a SHA-256 instead, and the top bit: of the tower, of the picture's key (pixels and size), and of
 * k / 8, whose digest has a word for each of eight tokens. So eight tokens that follow each other
 * have 248 bits. Fewer have no name: a name is no proof then.
 */
#include "engine/media_int.h"

#include <stdio.h>
#include <string.h>

enum { WORDS = 8 }; /* of a digest */

/* What is left of the picture of id, from this token on; 0: it is forgotten. */
static int32_t find(const carat_model *m, int32_t id, char key[SHA256_TEXT], int32_t *k)
{
    media *x = m->media;
    int32_t left = 0;
    if (!media_has_id(m, id))
        return 0;
    pthread_mutex_lock(&x->lock);
    const media_item *it = media_span_of(x, id)->item;
    if (it) {
        memcpy(key, it->key, SHA256_TEXT);
        *k = it->first - id;
        left = it->grid.n_tokens - *k;
    }
    pthread_mutex_unlock(&x->lock);
    return left;
}

static void digest(const uint64_t tower[2], const char *key, int32_t block, uint32_t word[WORDS])
{
    char text[SHA256_TEXT], head[64];
    sha_stream s;
    int n = snprintf(head, sizeof head, "%016llx %016llx %d ", (unsigned long long)tower[0],
                     (unsigned long long)tower[1], block);
    sha256_init(&s);
    sha_put(&s, head, (size_t)n);
    sha_put(&s, key, strlen(key));
    sha_text(&s, text);
    for (int i = 0; i < WORDS; i++)
        sscanf(text + 8 * i, "%8x", &word[i]);
}

int64_t media_lasting(const carat_model *m, const uint64_t tower[2], const int32_t *ids, int64_t n,
                      int32_t *out)
{
    for (int64_t i = 0; i < n;) {
        char key[SHA256_TEXT];
        int32_t k = 0;
        int64_t end = i + 1;
        if (ids[i] >= 0) {
            out[i] = ids[i];
            i++;
            continue;
        }
        int32_t left = find(m, ids[i], key, &k);
        while (end < n && end - i < left && ids[end] == ids[end - 1] - 1)
            end++;
        if (!left || end - i < WORDS)
            return i;
        uint32_t word[WORDS];
        for (int32_t block = -1; i < end; i++, k++) {
            if (k / WORDS != block)
                digest(tower, key, block = k / WORDS, word);
            out[i] = (int32_t)(word[k % WORDS] | 0x80000000u);
        }
    }
    return n;
}
