/* listing.c - see listing.h. */
#include "apps/hub/listing.h"

#include "apps/hub/names.h"
#include "base/json.h"

#include <string.h>
#include <strings.h>

status listing_take_revision(listing *l, const char *text, size_t n, const char *what, err *e)
{
    json_t *root;
    status st = json_parse(&root, text, n, what, e);
    if (st)
        return st;
    const char *sha = json_string_value(json_object_get(root, "sha"));
    const json_t *gated = json_object_get(root, "gated");
    if (!sha || !hex_valid(sha, 40))
        st = err_set(e, E_FORMAT, "%s: the hub names no commit", what);
    else
        memcpy(l->commit, sha, 41);
    l->gated = gated && !json_is_false(gated);
    json_decref(root);
    return st;
}

/* False: no memory. A file without a valid name, size or hash is left out. */
static bool take_file(listing *l, const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *path = json_string_value(json_object_get(v, "path"));
    const json_t *lfs = json_object_get(v, "lfs");
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : v, "size");
    const char *oid = json_string_value(json_object_get(json_is_object(lfs) ? lfs : v, "oid"));
    if (!type || strcmp(type, "file") || !path || !file_valid(path) || !json_is_integer(size) ||
        json_integer_value(size) < 0 || !oid || l->n == LISTING_MAX)
        return true;
    /* LFS writes "sha256:HEX" in places. */
    if (!strncmp(oid, "sha256:", 7))
        oid += 7;
    if (!hex_valid(oid, json_is_object(lfs) ? 64 : 40))
        return true;
    if (!(l->n & (l->n - 1))) {
        hub_file *more = arena_array(&l->mem, l->n ? 2 * l->n : 1, sizeof *more);
        if (!more)
            return false;
        if (l->n)
            memcpy(more, l->file, l->n * sizeof *more);
        l->file = more;
    }
    hub_file *f = &l->file[l->n];
    *f = (hub_file){.path = arena_strndup(&l->mem, path, strlen(path)),
                    .n_bytes = (uint64_t)json_integer_value(size)};
    if (!f->path)
        return false;
    l->n++;
    if (json_is_object(lfs))
        memcpy(f->sha256, oid, 65);
    else
        memcpy(f->git_sha1, oid, 41);
    return true;
}

status listing_take_tree(listing *l, const char *text, size_t n, const char *what, err *e)
{
    json_t *root;
    status st = json_parse(&root, text, n, what, e);
    if (st)
        return st;
    if (!json_is_array(root))
        st = err_set(e, E_FORMAT, "%s: the hub's answer is no list of files", what);
    for (size_t i = 0; !st && i < json_array_size(root); i++)
        if (!take_file(l, json_array_get(root, i)))
            st = err_memory(e, what, n);
    json_decref(root);
    return st;
}

/* ---- Hits ---------------------------------------------------------------------------------- */

static uint64_t count_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
}

/* "2026-11-29" of "2026-11-29T12:00:00.000Z". */
static void take_date(char out[11], const char *text)
{
    static const char shape[] = "dddd-dd-dd";
    for (size_t i = 0; shape[i]; i++)
        if (!text || (shape[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != shape[i]))
            return;
    memcpy(out, text, 10);
}

static void take_hit(hub_hits *h, const json_t *v)
{
    hub_hit *hit = &h->at[h->n];
    const char *id = json_string_value(json_object_get(v, "id"));
    const json_t *gated = json_object_get(v, "gated");
    if (!id)
        id = json_string_value(json_object_get(v, "modelId"));
    if (!id || strlen(id) >= sizeof hit->repo || !repo_valid(id))
        return;
    for (int i = 0; i < h->n; i++)
        if (!strcasecmp(h->at[i].repo, id))
            return;
    *hit = (hub_hit){.downloads = count_of(v, "downloads"),
                     .likes = count_of(v, "likes"),
                     .gated = gated && !json_is_false(gated) && !json_is_null(gated)};
    memcpy(hit->repo, id, strlen(id) + 1);
    take_date(hit->changed, json_string_value(json_object_get(v, "lastModified")));
    h->n++;
}

status listing_take_hits(hub_hits *h, const char *text, size_t n, err *e)
{
    json_t *root;
    status st = json_parse(&root, text, n, "the hub's answer", e);
    h->n = 0;
    if (st)
        return st;
    if (!json_is_array(root))
        st = err_set(e, E_FORMAT, "the hub's answer is no list of models");
    for (size_t i = 0; i < json_array_size(root) && h->n < HUB_HITS_MAX; i++)
        take_hit(h, json_array_get(root, i));
    json_decref(root);
    return st;
}

void listing_free(listing *l)
{
    arena_free(&l->mem);
    *l = (listing){0};
}
