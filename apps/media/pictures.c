/* pictures.c - see pictures.h. */
#include "apps/media/pictures.h"

#include "base/base64.h"
#include "base/map.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of the files that all lists hold and that are being read. */
static atomic_llong all_bytes;

static status take_room(size_t n, const char *name, err *e)
{
    if (atomic_fetch_add(&all_bytes, (long long)n) + (long long)n <= PICTURES_ALL_BYTES)
        return OK;
    atomic_fetch_sub(&all_bytes, (long long)n);
    return err_set(e, E_MEMORY,
                   "%s: the pictures of other requests leave no room for it: try again soon", name);
}

static void give_room(size_t n)
{
    atomic_fetch_sub(&all_bytes, (long long)n);
}

void picture_drop_file(picture *p)
{
    mem_free(p->bytes);
    give_room(p->n);
    p->bytes = NULL;
    p->n = 0;
}

void pictures_free(pictures *l)
{
    for (int32_t i = 0; i < l->n; i++)
        picture_drop_file(&l->at[i]);
    mem_free(l->at);
    *l = (pictures){0};
}

static status too_large(const char *name, size_t n, err *e)
{
    return err_set(e, E_LIMIT, "%s: a file of %zu bytes; at most %d are read", name, n,
                   PICTURE_MAX_BYTES);
}

/* Is there room for one more file of n bytes? */
static status check_room(const pictures *l, size_t n, const char *name, err *e)
{
    if (l->n == PICTURES_MAX)
        return err_set(e, E_LIMIT, "%s: more than %d pictures and sounds", name, PICTURES_MAX);
    if (n > PICTURE_MAX_BYTES)
        return too_large(name, n, e);
    if (n > PICTURES_MAX_BYTES - l->n_bytes)
        return err_set(e, E_LIMIT, "%s: the pictures and sounds have more than %d bytes together",
                       name, PICTURES_MAX_BYTES);
    return OK;
}

static status append(pictures *l, const picture *p, err *e)
{
    int64_t area = (int64_t)p->head.width * p->head.height;
    if (area > PICTURES_MAX_PIXELS - l->n_pixels)
        return err_set(e, E_LIMIT, "%s: the pictures have more than %d pixels together", p->name,
                       PICTURES_MAX_PIXELS);
    if (!l->at && !(l->at = mem_calloc(PICTURES_MAX, sizeof *l->at)))
        return err_memory(e, "a picture", PICTURES_MAX * sizeof *l->at);
    l->at[l->n++] = *p;
    l->n_bytes += p->n;
    l->n_pixels += area;
    return OK;
}

/* One at a time: a sound takes up to 40 MiB while it is decoded. */
static status count_samples(picture *p, const char *name, err *e)
{
    static pthread_mutex_t decoding = PTHREAD_MUTEX_INITIALIZER;
    sound s = {0};
    pthread_mutex_lock(&decoding);
    status st = sound_decode(&s, p->bytes, p->n, name, e);
    p->n_samples = s.n;
    sound_free(&s);
    pthread_mutex_unlock(&decoding);
    return st;
}

static status read_head(picture *p, const char *name, err *e)
{
    bool reads;
    if (sound_format_of(p->bytes, p->n) != SOUND_NONE)
        return count_samples(p, name, e);
    const char *other = sound_other_kind(p->bytes, p->n);
    if (!p->n)
        return err_set(e, E_UNSUPPORTED, "%s: an empty file, neither a picture nor a sound", name);
    if (image_kind(p->bytes, p->n, &reads))
        return image_head_read(&p->head, p->bytes, p->n, name, e);
    return err_set(e, E_UNSUPPORTED,
                   "%s: %s; pictures are read from PNG, JPEG and WebP files, sounds from WAV, "
                   "FLAC, MP3 and Ogg files",
                   name, other ? other : "no picture and no sound");
}

static status add_checked(pictures *l, uint8_t *bytes, size_t n, const char *name, err *e)
{
    picture p = {.bytes = bytes, .n = n};
    status st = check_room(l, n, name, e);
    if (st || (st = read_head(&p, name, e)) || (st = take_room(n, name, e)))
        return st;
    snprintf(p.name, sizeof p.name, "%s", name);
    if ((st = append(l, &p, e)))
        give_room(n);
    return st;
}

status pictures_move(pictures *to, pictures *from, int32_t i, err *e)
{
    picture *p = &from->at[i];
    status st = check_room(to, p->n, p->name, e);
    if (!st && !(st = append(to, p, e)))
        *p = (picture){0};
    return st;
}

status pictures_add(pictures *l, uint8_t *bytes, size_t n, const char *name, err *e)
{
    status st = add_checked(l, bytes, n, name, e);
    if (st)
        mem_free(bytes);
    return st;
}

status pictures_add_base64(pictures *l, const char *text, size_t n, const char *name, err *e)
{
    size_t most = base64_most(n), n_bytes = 0, bad = 0;
    status st;
    if (n > PICTURE_MAX_BYTES / 3 * 4 + PICTURE_MAX_BYTES / 16) /* line breaks included */
        return too_large(name, most, e);
    if ((st = check_room(l, 0, name, e)))
        return st;
    uint8_t *bytes = mem_alloc(most);
    if (!bytes)
        return err_memory(e, name, most);
    if (!base64_decode(text, n, bytes, &n_bytes, &bad)) {
        mem_free(bytes);
        return err_set(e, E_FORMAT, "%s: no base64: character %zu of %zu", name, bad + (bad < n),
                       n);
    }
    return pictures_add(l, bytes, n_bytes, name, e);
}

bool picture_is_one(const void *bytes, size_t n)
{
    bool reads = sound_format_of(bytes, n) != SOUND_NONE;
    if (!reads)
        image_kind(bytes, n, &reads);
    return reads;
}

/* ---- data: ---- */

/* data:[TYPE][;NAME=VALUE]...;base64,BYTES. The type is not believed, but it must be one of
 * pictures, of sounds or of bytes. */
static status add_data(pictures *l, const char *url, size_t n, const char *name, err *e)
{
    static const char base64[] = ";base64", picture_type[] = "image/", sound_type[] = "audio/",
                      any[] = "application/octet-stream";
    const char *head = url + 5, *comma = memchr(head, ',', n - 5);
    size_t n_head = comma ? (size_t)(comma - head) : 0, n_type = strcspn(head, ";,");
    if (!comma || n_head < sizeof base64 - 1 ||
        strncasecmp(comma - (sizeof base64 - 1), base64, sizeof base64 - 1))
        return err_set(e, E_FORMAT, "%s: a data URI without \";base64,\"", name);
    if (n_type && strncasecmp(head, picture_type, sizeof picture_type - 1) &&
        strncasecmp(head, sound_type, sizeof sound_type - 1) &&
        !(n_type == sizeof any - 1 && !strncasecmp(head, any, n_type)))
        return err_set(e, E_UNSUPPORTED,
                       "%s: a data URI of type %.*s; expected image/... or audio/...", name,
                       n_type < 60 ? (int)n_type : 60, head);
    return pictures_add_base64(l, comma + 1, n - (size_t)(comma + 1 - url), name, e);
}

/* ---- file: ---- */

static bool is_dots(const char *part, size_t n)
{
    return (n == 1 || n == 2) && !strncmp(part, "..", n);
}

/* Opens a path below dir, which is closed, one name after the other: no "..", no link, nothing that
 * is no file. -1: errno says why. */
static int open_below(int dir, const char *path)
{
    while (dir >= 0) {
        char part[256];
        size_t n = strcspn(path, "/");
        bool last = !path[n];
        int next = -1;
        if (n >= sizeof part)
            errno = ENAMETOOLONG;
        else if (!n || is_dots(path, n))
            errno = EINVAL;
        else {
            memcpy(part, path, n);
            part[n] = 0;
            next =
                openat(dir, part,
                       O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (last ? 0 : O_DIRECTORY));
        }
        int why = errno;
        close(dir);
        errno = why;
        if (last)
            return next;
        dir = next;
        path += n + 1;
    }
    return -1;
}

static status read_whole(int fd, const char *name, uint8_t **bytes, size_t *n, err *e)
{
    struct stat sb;
    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode))
        return err_set(e, E_UNSUPPORTED, "%s: no plain file", name);
    if (sb.st_size < 0 || sb.st_size > PICTURE_MAX_BYTES)
        return too_large(name, (size_t)sb.st_size, e);
    size_t size = (size_t)sb.st_size, at = 0;
    status st = take_room(size, name, e);
    if (st)
        return st;
    uint8_t *to = mem_alloc(size + 1);
    while (to && at < size) {
        ssize_t got = read(fd, to + at, size - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        at += (size_t)got;
    }
    give_room(size); /* pictures_add takes it again */
    if (!to)
        return err_memory(e, name, size);
    *bytes = to;
    *n = at; /* a file that got shorter meanwhile is a truncated picture */
    return OK;
}

/* file://PATH, with PATH below the root, or naming the root itself in front. */
static status add_path(pictures *l, const picture_rules *r, const char *url, const char *name,
                       err *e)
{
    const char *path = url + 5 + (strncmp(url + 5, "//", 2) ? 0 : 2);
    uint8_t *bytes = NULL;
    size_t n = 0, n_root = r && r->root ? strlen(r->root) : 0;
    if (!n_root)
        return err_set(e, E_UNSUPPORTED,
                       "%s: a file of the server; it reads none without --media-path", name);
    while (n_root > 1 && r->root[n_root - 1] == '/')
        n_root--;
    if (!strncmp(path, r->root, n_root) && path[n_root] == '/')
        path += n_root;
    path += strspn(path, "/");
    int fd = open_below(open(r->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
    if (fd < 0)
        return errno == EINVAL || errno == ELOOP
                   ? err_set(e, E_UNSUPPORTED,
                             "%s: the path leaves --media-path, or a part of it is a link", name)
                   : err_set(e, E_FORMAT, "%s: no such file below --media-path (%s)", name,
                             strerror(errno));
    status st = read_whole(fd, name, &bytes, &n, e);
    close(fd);
    return st ? st : pictures_add(l, bytes, n, name, e);
}

/* ---- */

status pictures_add_url(pictures *l, const picture_rules *r, const char *url, size_t n,
                        const char *name, err *e)
{
    status st = check_room(l, 0, name, e);
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    if (st)
        return st;
    if (n >= 5 && !strncasecmp(url, "data:", 5))
        return add_data(l, url, n, name, e);
    if (strlen(url) != n)
        return err_set(e, E_FORMAT, "%s: an address with a zero character", name);
    if (!strncasecmp(url, "file:", 5))
        return add_path(l, r, url, name, e);
    if (strncasecmp(url, "http://", 7) && strncasecmp(url, "https://", 8))
        return err_set(e, E_UNSUPPORTED,
                       "%s: neither a data URI (data:image/png;base64,...) nor an address", name);
    if (!r || !r->fetch)
        return err_set(e, E_UNSUPPORTED,
                       "%s: pictures of other servers are not fetched: send a data URI, or start "
                       "the server with --media-urls",
                       name);
    if ((st = take_room(PICTURE_FETCH_MAX_BYTES, name, e)))
        return st;
    st = r->fetch(url, name, &bytes, &n_bytes, e);
    give_room(PICTURE_FETCH_MAX_BYTES);
    if (st)
        return st;
    return pictures_add(l, bytes, n_bytes, name, e);
}

status pictures_add_file(pictures *l, const char *path, err *e)
{
    char *bytes;
    size_t n;
    status st = check_room(l, 0, path, e);
    if (st || (st = file_read_all(path, PICTURE_MAX_BYTES, &bytes, &n, e)))
        return st;
    return pictures_add(l, (uint8_t *)bytes, n, path, e);
}
