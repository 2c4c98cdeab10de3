/* mmproj.c - the vision tower that goes with a model file: an mmproj file in the same directory.
 *
 * Names prove nothing: a directory may have the towers of several models. A tower makes embeddings
 * of one width, and each size of a model has a width of its own, so widths decide. Both are in the
 * heads of the files.
 */
#include "apps/hub/head.h"
#include "apps/hub/hub.h"
#include "apps/hub/names.h"
#include "apps/hub/place.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/order.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOWERS_MAX = 64 }; /* files of a directory that are looked at */

typedef enum kind { NO_PICTURES, OF_GEMMA, OF_QWEN, OF_QWEN3_VL, UNKNOWN } kind;

/* Architectures that can be opened with a tower. engine/media.c refuses others. */
static kind kind_of_model(const char *arch)
{
    static const struct {
        const char *arch;
        kind kind;
    } seeing[] = {{"gemma4", OF_GEMMA},
                  {"qwen35", OF_QWEN},
                  {"qwen35moe", OF_QWEN},
                  {"qwen3vl", OF_QWEN3_VL},
                  {"qwen3vlmoe", OF_QWEN3_VL}};
    for (size_t i = 0; i < sizeof seeing / sizeof *seeing; i++)
        if (!strcmp(arch, seeing[i].arch))
            return seeing[i].kind;
    return NO_PICTURES;
}

/* Qwen's towers have the same widths as Gemma's, and Qwen3-VL's, which have deepstack, those of its
 * successors. */
static kind kind_of_tower(const char *arch, const uint8_t *at, size_t n)
{
    char name[64];
    if (strcmp(arch, "clip") != 0)
        return NO_PICTURES;
    if (!head_text(at, n, "clip.vision.projector_type", name, sizeof name) &&
        !head_text(at, n, "clip.projector_type", name, sizeof name))
        return UNKNOWN;
    if (!strcmp(name, "qwen3vl_merger"))
        return head_any(at, n, "clip.vision.is_deepstack_layers") ? OF_QWEN3_VL : OF_QWEN;
    return !strncmp(name, "gemma4", 6) ? OF_GEMMA : NO_PICTURES;
}

/* The width of embeddings: of a model with pictures, or of a tower for those of `want`. 0: not
 * known; -1: neither. */
static int64_t width_of(const char *path, bool tower, kind *want)
{
    file_map m;
    char arch[64], key[96] = "clip.vision.projection_dim";
    uint64_t width = 0;
    kind is = NO_PICTURES;
    if (file_map_open(&m, path, false, NULL, NULL, NULL))
        return -1;
    size_t n = (size_t)m.n_bytes;
    if (head_text(m.bytes, n, "general.architecture", arch, sizeof arch))
        is = tower ? kind_of_tower(arch, m.bytes, n) : kind_of_model(arch);
    if (!tower)
        *want = is;
    bool ok = is != NO_PICTURES && (is == *want || is == UNKNOWN);
    if (!tower && ok)
        snprintf(key, sizeof key, "%s.embedding_length", arch);
    if (ok && (!head_number(m.bytes, n, key, &width) || width > INT32_MAX))
        width = 0;
    file_map_close(&m);
    return ok ? (int64_t)width : -1;
}

bool mmproj_hears(const char *path)
{
    file_map m;
    char name[64];
    if (file_map_open(&m, path, false, NULL, NULL, NULL))
        return false;
    bool hears =
        head_text(m.bytes, (size_t)m.n_bytes, "clip.audio.projector_type", name, sizeof name) &&
        !strncmp(name, "gemma4", 6);
    file_map_close(&m);
    return hears;
}

const char *mmproj_gives(const char *path)
{
    return !path ? "" : mmproj_hears(path) ? "sees images, hears" : "sees images";
}

bool mmproj_may_fit(const char *model)
{
    kind k;
    return width_of(model, false, &k) >= 0;
}

/* Names of towers' files in a directory. */
static status read_names(const char *dir, const char *name[TOWERS_MAX], size_t *n, arena *mem,
                         err *e)
{
    DIR *d = opendir(dir);
    status st = OK;
    for (struct dirent *f; !st && d && *n < TOWERS_MAX && (f = readdir(d));)
        if (is_mmproj_file(f->d_name)) {
            name[*n] = arena_strndup(mem, f->d_name, strlen(f->d_name));
            st = name[(*n)++] ? OK : err_memory(e, dir, *n);
        }
    if (d)
        closedir(d);
    if (!st && *n)
        qsort(name, *n, sizeof *name, order_texts);
    return st;
}

status mmproj_find(const char *model, char **out, err *e)
{
    arena mem = {0};
    const char *name[TOWERS_MAX], *silent = NULL, *found = NULL; /* silent: has no width */
    size_t n = 0, n_dir = (size_t)(base_name(model) - model);
    kind k = NO_PICTURES;
    int64_t width = width_of(model, false, &k);
    char *dir =
        n_dir ? arena_strndup(&mem, model, n_dir > 1 ? n_dir - 1 : 1) : arena_strndup(&mem, ".", 1);
    status st = dir ? OK : err_memory(e, model, n_dir);
    *out = NULL;
    if (!st && width >= 0)
        st = read_names(dir, name, &n, &mem, e);
    for (int i; !st && !found && (i = choose_mmproj(name, n, base_name(model))) >= 0;) {
        const char *path = path_join(&mem, dir, name[i]);
        int64_t its = path ? width_of(path, true, &k) : -1;
        if (!path)
            st = err_memory(e, dir, strlen(dir));
        else if (its > 0 && its == width)
            found = path;
        else if (its >= 0 && (!its || !width) && !silent)
            silent = path;
        name[i] = "";
    }
    found = found ? found : silent;
    if (!st && found && !(*out = mem_strdup(found)))
        st = err_memory(e, found, strlen(found));
    arena_free(&mem);
    return st;
}
