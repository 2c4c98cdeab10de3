/* find.c - from a wish to one drafter file: by content, and with a word about what was left.
 *
 * A file counts by its content, not by its name. Where several files could be meant, the choice
 * and the files left are named, and a choice by chance is an error: a directory that quietly
 * resolves to the wrong file costs a factor of twenty in speed, and no answer shows it.
 */
#include "spec/find.h"
#include "base/mem.h"
#include "model/draft_kind.h"
#include "text/family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    FILES_MAX = 256, /* drafter files of a directory that are looked at */
    PATH_BYTES = 4096
};

void draft_found_free(draft_found *f)
{
    gguf_close(&f->file);
    *f = (draft_found){0};
}

/* ---- One file ------------------------------------------------------------------------------ */

/* The class that runs a kind of file; NULL: of aliens. An ordinary model drafts as a smaller one.
 */
static const draft_class *class_of(draft_kind kind)
{
    static const draft_class *const classes[] = {[DRAFT_NONE] = &draft_small,
                                                 [DRAFT_DFLASH] = &draft_dflash,
                                                 [DRAFT_MTP] = &draft_mtp,
                                                 [DRAFT_NEXTN] = &draft_nextn,
                                                 [DRAFT_ALIEN] = NULL};
    return classes[kind];
}

static const char *base_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The first tensor of a list of names; NULL: none is there. */
static const tensor *any_of(const gguf *g, const char *const *names)
{
    const tensor *t = NULL;
    for (; *names && !t; names++)
        t = tensor_find(&g->tensors, *names);
    return t;
}

/* Compares the widths, which differ between all sizes of a family. The class compares the rest. */
static status check_width(const gguf *g, draft_kind kind, const char *what, const model *target,
                          err *e)
{
    static const char *const norms[] = {"enc.output_norm.weight", "dflash.hidden_norm.weight",
                                        "dflash_hidden_norm.weight", NULL};
    static const char *const posts[] = {"nextn.post_projection.weight",
                                        "mtp.post_projection.weight",
                                        "assistant.post_projection.weight", NULL};
    const tensor *t = kind == DRAFT_NEXTN ? NULL : any_of(g, kind == DRAFT_MTP ? posts : norms);
    uint64_t width = !t ? 0 : kind == DRAFT_MTP ? t->ne[1] : t->ne[0];
    if (!t || width == (uint64_t)target->n_embd)
        return OK; /* the class reports a missing tensor */
    return err_set(e, E_ARG, "%s is %s for a model of width %" PRIu64 ", and %s has width %" PRId32,
                   g->path, what, width, target->name, target->n_embd);
}

/* A smaller model drafts ids, so each id must mean the same piece. Makers of files spell a few
 * reserved pieces in their own way: one in a hundred may differ. */
static status check_vocabulary(const gguf *g, const model *target, err *e)
{
    const char *key = "tokenizer.ggml.tokens";
    const gguf_value *mine = gguf_find(g, key), *its = gguf_find(&target->file, key);
    uint64_t at = 0, to = 0, n_differ = 0, first = 0;
    gguf_string a, b;
    if (!mine || !its)
        return err_set(e, E_UNSUPPORTED, "%s drafts for %s only if both have a tokenizer (%s)",
                       g->path, target->name, key);
    if (mine->count != its->count)
        return err_set(e, E_ARG,
                       "%s has %" PRIu64 " tokens and %s has %" PRIu64
                       ": a smaller model drafts only with the same vocabulary",
                       g->path, mine->count, target->name, its->count);
    for (uint64_t i = 0; i < mine->count; i++)
        if (!gguf_next_string(mine, &at, &a) || !gguf_next_string(its, &to, &b) || a.n != b.n ||
            memcmp(a.at, b.at, (size_t)a.n) != 0)
            first = n_differ++ ? first : i;
    if (n_differ > mine->count / 100)
        return err_set(e, E_ARG,
                       "%s and %s differ in %" PRIu64 " of %" PRIu64
                       " tokens, the first being %" PRIu64
                       ": a smaller model drafts only with the same vocabulary",
                       g->path, target->name, n_differ, mine->count, first);
    return OK;
}

/* Checks an open file, as far as that needs no class. */
static status check_drafter(const model *target, draft_found *out, err *e)
{
    const char *what, *path = out->file.path;
    gguf_string arch = {"", 0};
    status st;
    draft_kind kind = draft_kind_of(&out->file, &what);
    if ((st = draft_kind_check(&out->file, e)))
        return st;
    if (kind == DRAFT_NONE) {
        gguf_get_string(&out->file, "general.architecture", &arch);
        if (!text_family_of(arch.at, (size_t)arch.n))
            return err_set(e, E_UNSUPPORTED,
                           "%s: architecture '%.*s' is neither a drafter nor a model that carat "
                           "runs",
                           path, (int)(arch.n < 64 ? arch.n : 64), arch.at);
        what = "a model";
        st = check_vocabulary(&out->file, target, e);
    } else {
        st = check_width(&out->file, kind, what, target, e);
    }
    out->class = class_of(kind);
    return st;
}

static status open_drafter(const char *path, const model *target, draft_found *out, err *e)
{
    status st = gguf_open(&out->file, path, false, NULL, NULL, e);
    return st ? st : check_drafter(target, out, e);
}

/* A header of 8 bytes of length, then JSON. */
static bool is_safetensors(const file_map *m)
{
    uint64_t n = 0;
    for (int i = 0; i < 8 && m->n_bytes > 9; i++)
        n |= (uint64_t)m->bytes[i] << 8 * i;
    return n > 1 && n <= m->n_bytes - 8 && m->bytes[8] == '{';
}

static status open_file(const char *path, const model *target, draft_found *out, err *e)
{
    file_map m;
    status st = file_map_open(&m, path, false, NULL, NULL, e);
    if (st)
        return st;
    bool checkpoint = is_safetensors(&m);
    file_map_close(&m);
    if (checkpoint)
        return err_set(e, E_UNSUPPORTED,
                       "%s: a drafter in safetensors; 'carat convert DIR FILE.gguf' makes a file "
                       "that carat runs",
                       path);
    snprintf(out->why, sizeof out->why, "%s, as asked", base_name_of(path));
    return open_drafter(path, target, out, e);
}

/* ---- Files of a directory ------------------------------------------------------------------ */

typedef struct {
    char *path;
    draft_kind kind;
    int rank;    /* of its types: higher is preferred */
    err why_not; /* it cannot be used */
} candidate;

typedef struct {
    candidate at[FILES_MAX];
    int32_t n;
    bool checkpoint; /* the directory holds config.json and safetensors */
} candidates;

static bool ends_in(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n > m && !strcmp(name + n - m, tail);
}

static bool has_word(const char *name, const char *word)
{
    size_t n = strlen(word);
    for (; *name; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == word[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* NAME-00002-of-00003.gguf: its tensors are found through the first part. */
static bool is_later_part(const char *name)
{
    const char *of = strstr(name, "-of-");
    return of && of - name >= 6 && of[-6] == '-' && memcmp(of - 5, "00001", 5) != 0 &&
           strspn(of - 5, "0123456789") == 5;
}

/* Q8_0 before F16, BF16 and F32, before types of fewer bits: a drafter's speed hardly depends on
 * its type, and fewer bits cost acceptance. By the type with the most bytes. */
static int rank_of(const gguf *g)
{
    uint64_t bytes[NUM_TYPE_END] = {0};
    uint32_t most = 0;
    for (uint64_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].type < NUM_TYPE_END)
            bytes[g->tensors.at[i].type] += g->tensors.at[i].n_bytes;
    for (uint32_t t = 0; t < NUM_TYPE_END; t++)
        most = bytes[t] > bytes[most] ? t : most;
    return most == NUM_Q8_0 ? 3 : most == NUM_F16 || most == NUM_BF16 || most == NUM_F32 ? 2 : 1;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const candidate *)a)->path, ((const candidate *)b)->path);
}

static void candidates_free(candidates *c)
{
    if (c)
        for (int32_t i = 0; i < c->n; i++)
            mem_free(c->at[i].path);
    mem_free(c);
}

/* Lists DIR/NAME.gguf, sorted. named: only names that contain dflash, mtp or assistant. */
static status list_files(candidates *c, const char *dir, bool named, err *e)
{
    bool config = false, weights = false;
    DIR *d = opendir(dir);
    status st = OK;
    if (!d)
        return err_errno(e, "open", dir);
    for (struct dirent *f; !st && (f = readdir(d));) {
        const char *name = f->d_name;
        config |= !strcmp(name, "config.json");
        weights |= ends_in(name, ".safetensors");
        if (!ends_in(name, ".gguf") || name[0] == '.' || is_later_part(name) ||
            (named && !has_word(name, "dflash") && !has_word(name, "mtp") &&
             !has_word(name, "assistant")))
            continue;
        size_t n = strlen(dir) + strlen(name) + 2;
        if (c->n == FILES_MAX) {
            st = err_set(e, E_LIMIT, "%s: more than %d files could be drafters", dir, FILES_MAX);
        } else if (!(c->at[c->n].path = mem_alloc(n))) {
            st = err_memory(e, dir, n);
        } else {
            snprintf(c->at[c->n].path, n, "%s/%s", dir, name);
            c->n++;
        }
    }
    closedir(d);
    c->checkpoint = config && weights;
    qsort(c->at, (size_t)c->n, sizeof *c->at, by_path);
    return st;
}

/* Opens every file and keeps the reason against each that cannot be used. Ordinary models are no
 * candidates. With `bind`, the class must accept the file too. Fails for lack of memory alone. */
static status look_at(candidates *c, const model *target, bool bind, err *e)
{
    int32_t n = 0, n_all = c->n;
    for (int32_t i = 0; i < n_all; i++) {
        candidate k = c->at[i];
        draft_found f = {0};
        const char *what;
        status st = open_drafter(k.path, target, &f, &k.why_not);
        if (f.file.path) {
            k.kind = draft_kind_of(&f.file, &what);
            k.rank = rank_of(&f.file);
            if (k.kind == DRAFT_NONE) {
                draft_found_free(&f);
                mem_free(k.path);
                c->at[i].path = NULL;
                continue;
            }
        }
        if (!st && bind) {
            draft_model *m = NULL;
            if (!draft_model_open(f.class, target, &f.file, &m, &k.why_not))
                draft_model_close(m);
        }
        draft_found_free(&f);
        c->at[i].path = NULL;
        c->at[n++] = k;
    }
    c->n = n;
    for (int32_t i = 0; i < n; i++)
        if (c->at[i].why_not.status == E_MEMORY)
            return err_set(e, E_MEMORY, "%s", c->at[i].why_not.text);
    return OK;
}

/* "a.gguf, b.gguf and 3 more", without number `taken`. */
static const char *others(const candidates *c, int32_t taken, char *buf, size_t cap)
{
    size_t n = 0;
    int32_t shown = 0, left = c->n - (taken >= 0);
    buf[0] = 0;
    for (int32_t i = 0; i < c->n && shown < 2; i++)
        if (i != taken && n < cap) {
            n += (size_t)snprintf(buf + n, cap - n, "%s%.60s", shown ? ", " : "",
                                  base_name_of(c->at[i].path));
            shown++;
        }
    if (left > shown && n < cap)
        snprintf(buf + n, cap - n, " and %" PRId32 " more", left - shown);
    return buf;
}

static status open_directory(const char *dir, const model *target, draft_found *out, err *e)
{
    candidates *c = mem_calloc(1, sizeof *c);
    char rest[200];
    int32_t best = -1, equal = -1;
    status st;
    if (!c)
        return err_memory(e, dir, sizeof *c);
    if ((st = list_files(c, dir, false, e)) || (st = look_at(c, target, false, e)))
        goto out;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->at[i].why_not.status)
            continue;
        if (best < 0 || c->at[i].rank > c->at[best].rank) {
            best = i;
            equal = -1;
        } else if (c->at[i].rank == c->at[best].rank) {
            equal = i;
        }
    }
    if (equal >= 0) {
        st = err_set(e, E_ARG, "%s: the drafters %s and %s fit equally well: name one of them", dir,
                     base_name_of(c->at[best].path), base_name_of(c->at[equal].path));
    } else if (best >= 0) {
        st = open_drafter(c->at[best].path, target, out, e);
        if (c->n > 1 || c->checkpoint)
            snprintf(out->why, sizeof out->why, "%.80s, and not %s%s%s",
                     base_name_of(c->at[best].path), others(c, best, rest, sizeof rest),
                     c->n > 1 && c->checkpoint ? ", " : "", c->checkpoint ? "the safetensors" : "");
        else
            snprintf(out->why, sizeof out->why, "%.100s, the only drafter there",
                     base_name_of(c->at[best].path));
    } else if (c->n == 1) {
        st = err_set(e, c->at[0].why_not.status, "%s", c->at[0].why_not.text);
    } else if (c->n) {
        st = err_set(e, c->at[0].why_not.status, "%s: none of %" PRId32 " files fits. %s", dir,
                     c->n, c->at[0].why_not.text);
    } else if (c->checkpoint) {
        st = err_set(e, E_UNSUPPORTED,
                     "%s: a checkpoint in safetensors; 'carat convert %s FILE.gguf' makes a file "
                     "that carat runs",
                     dir, dir);
    } else {
        st = err_set(e, E_ARG, "%s: there is no drafter in this directory", dir);
    }
out:
    candidates_free(c);
    return st;
}

/* ---- auto ---------------------------------------------------------------------------------- */

static void take_lookup(draft_found *out, const char *why)
{
    draft_found_free(out);
    out->class = &draft_lookup;
    snprintf(out->why, sizeof out->why, "%.159s", why);
}

static size_t shared_start(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* DFlash before MTP: it is as fast on dense models and faster on mixtures of experts. NextN before
 * DFlash: Qwen's is faster on both. Then by type, then by likeness of the names. */
static bool is_better(const candidate *a, const candidate *b, const char *target_name)
{
    static const int order[] = {[DRAFT_NEXTN] = 2, [DRAFT_DFLASH] = 1, [DRAFT_ALIEN] = 0};
    if (order[a->kind] != order[b->kind])
        return order[a->kind] > order[b->kind];
    if (a->rank != b->rank)
        return a->rank > b->rank;
    return shared_start(base_name_of(a->path), target_name) >
           shared_start(base_name_of(b->path), target_name);
}

static status find_beside(const model *target, const char *target_path, draft_found *out, err *e)
{
    char dir[PATH_BYTES], rest[200];
    const char *name = base_name_of(target_path);
    size_t n_dir = (size_t)(name - target_path);
    candidates *c;
    err left = {0};
    int32_t best = -1;
    status st = OK;
    if (n_dir >= sizeof dir) {
        take_lookup(out, "the model's path is too long to look beside it");
        return OK;
    }
    snprintf(dir, sizeof dir, "%.*s", (int)(n_dir > 1 ? n_dir - 1 : n_dir), target_path);
    if (!(c = mem_calloc(1, sizeof *c)))
        return err_memory(e, target_path, sizeof *c);
    if ((st = list_files(c, n_dir ? dir : ".", true, &left))) {
        if (st == E_MEMORY) {
            st = err_set(e, st, "%s", left.text);
        } else {
            take_lookup(out, left.text);
            st = OK;
        }
        goto out;
    }
    if ((st = look_at(c, target, true, e)))
        goto out;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->at[i].why_not.status && (best < 0 || is_better(&c->at[i], &c->at[best], name)))
            best = i;
    if (best >= 0) {
        st = open_drafter(c->at[best].path, target, out, e);
        snprintf(out->why, sizeof out->why, "%.70s lies beside the model%s%s",
                 base_name_of(c->at[best].path), c->n > 1 ? "; not " : "",
                 c->n > 1 ? others(c, best, rest, sizeof rest) : "");
    } else if (c->n) {
        /* The sentence begins with the path, of which the name is enough here. */
        const char *path = c->at[0].path, *text = c->at[0].why_not.text;
        size_t n = (size_t)(base_name_of(path) - path);
        take_lookup(out, strncmp(text, path, n) ? text : text + n);
    } else {
        take_lookup(out, "no drafter lies beside the model");
    }
out:
    candidates_free(c);
    return st;
}

/* ---- The model's own NextN layer ----------------------------------------------------------- */

/* The target's file once more: a drafter has a file of its own, and the mapping costs nothing. */
static status open_own(const model *target, const char *target_path, const char *why,
                       draft_found *out, err *e)
{
    if (!model_nextn_layers(&target->file))
        return err_set(e, E_ARG, "%s has no NextN (MTP) layer in its file", target->name);
    if (!target_path)
        return err_set(e, E_UNSUPPORTED,
                       "%s: carat runs the NextN layer of a file, and this model is in memory",
                       target->name);
    status st = gguf_open(&out->file, target_path, false, NULL, NULL, e);
    out->class = &draft_nextn;
    snprintf(out->why, sizeof out->why, "%s", why);
    return st;
}

/* Tries it, as the class would. OK with class NULL: the layer cannot be used, and *left says why.
 */
static status find_own(const model *target, const char *target_path, draft_found *out, err *left,
                       err *e)
{
    draft_found try = {0};
    draft_model *m = NULL;
    status st = open_own(target, target_path, "", &try, left);
    if (!st && !(st = draft_model_open(&draft_nextn, target, &try.file, &m, left)))
        draft_model_close(m);
    draft_found_free(&try);
    if (st)
        return st == E_MEMORY ? err_set(e, st, "%s", left->text) : OK;
    return open_own(target, target_path, "the model's file has a NextN layer", out, e);
}

static status find_any(const model *target, const char *target_path, draft_found *out, err *e)
{
    err left = {0};
    status st = OK;
    if (model_nextn_layers(&target->file))
        st = find_own(target, target_path, out, &left, e);
    if (st || out->class)
        return st;
    st = find_beside(target, target_path, out, e);
    if (!st && out->class == &draft_lookup && left.status) {
        /* The sentence begins with the path, of which the name is enough here. */
        size_t n = (size_t)(base_name_of(target_path) - target_path);
        take_lookup(out, strncmp(left.text, target_path, n) ? left.text : left.text + n);
    }
    return st;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static status take_held(const carat_bytes *held, const model *target, const char *why,
                        draft_found *out, err *e)
{
    status st = gguf_open_bytes(&out->file, held->at, held->n, held->name, e);
    if (!st)
        st = check_drafter(target, out, e);
    snprintf(out->why, sizeof out->why, "%.60s %s", held->name, why);
    if (st)
        draft_found_free(out);
    return st;
}

status draft_find_held(const char *wish, const model *target, const carat_bytes *held, int32_t n,
                       draft_found *out, err *e)
{
    bool any = wish && !strcmp(wish, "auto");
    *out = (draft_found){0};
    for (int32_t i = 0; i < n; i++) {
        err left = {0};
        if (wish && !strcmp(wish, held[i].name))
            return take_held(&held[i], target, "is part of this program, as asked", out, e);
        if (!any)
            continue;
        status st = take_held(&held[i], target, "is part of this program", out, &left);
        if (st == E_MEMORY)
            return err_set(e, st, "%s", left.text);
        if (!st)
            return OK;
    }
    return OK;
}

/* -------------------------------------------------------------------------------------------- */

status draft_find(const char *wish, const model *target, const char *target_path, draft_found *out,
                  err *e)
{
    struct stat sb;
    status st;
    *out = (draft_found){0};
    if (!wish || !wish[0] || !strcmp(wish, "none"))
        return OK;
    if (!strcmp(wish, "lookup")) {
        take_lookup(out, "as asked");
        return OK;
    }
    if (!strcmp(wish, "auto") && !target_path) {
        take_lookup(out, "the model is in no directory");
        return OK;
    }
    if (!strcmp(wish, "auto"))
        st = find_any(target, target_path, out, e);
    else if (!strcmp(wish, "nextn") || (!strcmp(wish, "mtp") && model_nextn_layers(&target->file)))
        st = open_own(target, target_path, "the model's own NextN layer, as asked", out, e);
    else if (!stat(wish, &sb))
        st = S_ISDIR(sb.st_mode) ? open_directory(wish, target, out, e)
                                 : open_file(wish, target, out, e);
    else if (errno == ENOENT && !strchr(wish, '/') && !strchr(wish, '.'))
        st = err_set(
            e, E_ARG,
            "there is no drafter '%s': expected none, lookup, auto, nextn, or the path of a "
            "file or directory",
            wish);
    else
        st = err_errno(e, "open", wish);
    if (st)
        draft_found_free(out);
    return st;
}
