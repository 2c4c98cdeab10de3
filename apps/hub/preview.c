/* preview.c - what a model of a hub would need here, before it is pulled.
 *
 *     names of files -> heads (keys, tokenizer, list of tensors) by ranges -> files of full size
 *     with a head and no bytes behind it -> the engine's plan, which reads no weight
 *
 * Such files take as much of the disk as their heads, lie in a folder of their own, and are gone
 * when the view is freed.
 */
#include "apps/hub/head.h"
#include "apps/hub/pull_int.h"
#include "base/mem.h"
#include "carat.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_FIRST = 1 << 20, /* bytes asked for first; a tokenizer needs more */
    HEAD_STEP = 4 << 20,
    HEAD_LONG = 16 << 20,
    HEAD_MAX = 64 << 20, /* of one file; those of 262,144 tokens have 16 MB */
    HEADS_FILES = 64,    /* of a split set */
    CHECKED_MAX = 1024,  /* values of one tensor */
    CHECKED_ROWS = 4096, /* tensors of one file; models have one or two of a layer */
    OTHERS_MAX = 1024,   /* of a repository */
    OLD_S = 3600         /* of a folder of heads */
};

#define FOLDER "carat-heads-"

/* ---- Heads --------------------------------------------------------------------------------- */

static void ignore(void *user, const head_tensor *t)
{
    (void)user;
    (void)t;
}

/* The head of one file into `head`, as far as it goes. */
static status read_head(pull *x, const hub_file *f, bool first, str *head, err *e)
{
    const char *url = pull_address(x, f->path);
    str piece = {0};
    status st = url ? OK : err_memory(e, f->path, URL_MAX);
    for (size_t end = 0; !st && !end;) {
        /* Each piece is read from the head's beginning, so that long heads come in fewer ones. */
        uint64_t from = head->n, total = 0;
        uint64_t to = from + (!from ? HEAD_FIRST : from < HEAD_LONG ? HEAD_STEP : from);
        err why = {0};
        to = to < f->n_bytes ? to : f->n_bytes;
        if (from == to)
            st = err_set(e, E_FORMAT, "%s: its head goes on past the end of the file", f->path);
        else if (from >= HEAD_MAX)
            st = err_set(e, E_LIMIT, "%s: its head is longer than %d MiB", f->path, HEAD_MAX >> 20);
        else if (!(st = net_range(&x->net, url, x->repo, from, to, &piece, &total, e)) && total &&
                 total != f->n_bytes)
            st = err_set(e, E_FORMAT, "%s: the hub lists %llu bytes and its storage has %llu",
                         f->path, (unsigned long long)f->n_bytes, (unsigned long long)total);
        else if (!st && piece.n < to - from) /* byte by byte a head would take days */
            st =
                err_set(e, E_IO, "%s: its storage sends fewer bytes than those asked for", f->path);
        if (st)
            break;
        str_put(head, str_text(&piece), piece.n);
        if (head->bad)
            st = err_memory(e, f->path, (size_t)to);
        else if (first && !from)
            st = model_head_check(head->at, head->n, f->path, e);
        if (!st &&
            (st = head_measure(head->at, head->n, f->path, &end, ignore, NULL, &why)) == E_LIMIT)
            st = OK;
        else if (st && !e->status)
            err_set(e, st, "%s", why.text);
        if (!st && end)
            str_cut(head, end);
    }
    str_free(&piece);
    return st;
}

/* A file and how many tensors may still get values: a hostile head has millions, each of which
 * takes a block of the disk. */
typedef struct checked_file {
    int fd, n_left;
} checked_file;

/* Opening a model checks these values, on which no plan depends: each gets one that passes. */
static void put_checked(void *user, const head_tensor *t)
{
    static const struct {
        const char *end;
        float value;
    } checked[] = {{"rope_freqs.weight", 1}, {".ssm_a", -1}};
    checked_file *f = user;
    for (size_t i = 0; i < sizeof checked / sizeof *checked; i++) {
        size_t n = strlen(checked[i].end);
        if (t->type || t->n > CHECKED_MAX || t->n_name < n ||
            memcmp(t->name + t->n_name - n, checked[i].end, n) != 0 || !f->n_left)
            continue;
        f->n_left--;
        float row[CHECKED_MAX];
        for (uint64_t k = 0; k < t->n; k++)
            row[k] = checked[i].value;
        if (t->at <= INT64_MAX && pwrite(f->fd, row, (size_t)t->n * sizeof *row, (off_t)t->at) < 0)
            break; /* opening the model says what is wrong */
    }
}

/* A file of its full size that has a head alone. */
static status write_head(const char *path, const str *head, uint64_t n_bytes, err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    status st = fd < 0 ? err_errno(e, "create", path) : OK;
    checked_file f = {fd, CHECKED_ROWS};
    size_t end;
    if (!st)
        st = head_measure(head->at, head->n, path, &end, put_checked, &f, e);
    for (size_t at = 0; !st && at < head->n;) {
        ssize_t n = write(fd, head->at + at, head->n - at);
        if (n < 0 && errno != EINTR)
            st = err_errno(e, "write", path);
        at += n > 0 ? (size_t)n : 0;
    }
    if (!st && ftruncate(fd, (off_t)n_bytes))
        st = err_errno(e, "give its size to", path);
    if (fd >= 0)
        close(fd);
    return st;
}

/* Takes the name of the folder out of a sentence: users have not heard of it. */
static void without_folder(const char *dir, char *text)
{
    size_t n = strlen(dir);
    for (char *at = text; (at = strstr(at, dir));) {
        size_t len = n + (at[n] == '/');
        memmove(at, at + len, strlen(at + len) + 1);
    }
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    while (d && (f = readdir(d)))
        if (*f->d_name != '.')
            unlinkat(dirfd(d), f->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

/* Removes the folders that killed programs have left. A look takes seconds, so no running program
 * uses an old folder. */
static void remove_old_folders(const char *tmp)
{
    DIR *d = opendir(tmp);
    struct dirent *f;
    struct stat sb;
    char path[PATH_MAX];
    while (d && (f = readdir(d)))
        if (!strncmp(f->d_name, FOLDER, sizeof FOLDER - 1) &&
            snprintf(path, sizeof path, "%s/%s", tmp, f->d_name) < (int)sizeof path &&
            !lstat(path, &sb) && S_ISDIR(sb.st_mode) && sb.st_uid == geteuid() &&
            sb.st_mtime < time(NULL) - OLD_S)
            remove_folder(path);
    if (d)
        closedir(d);
}

/* Writes the heads of the model in x->m into a new folder, with that of its vision tower if
 * asked for. *path: of the first file, of x->mem. */
static status write_heads(pull *x, bool tower, const char **dir, const char **path, err *e)
{
    const char *given = getenv("TMPDIR"), *tmp = given && *given ? given : "/tmp";
    char *made = NULL;
    str head = {0};
    status st = OK;
    int n_heads = tower ? x->m.n_files : x->n_model;
    remove_old_folders(tmp);
    *dir = path_join(&x->mem, tmp, FOLDER "XXXXXX");
    if (!*dir || !(made = arena_strndup(&x->mem, *dir, strlen(*dir))))
        return err_memory(e, x->repo, URL_MAX);
    if (x->n_model > HEADS_FILES)
        return err_set(e, E_LIMIT, "%s: a model of more than %d files", x->repo, HEADS_FILES);
    if (!mkdtemp(made))
        return err_errno(e, "make the folder", made);
    *dir = made;
    for (int i = 0; i < n_heads && !st; i++) {
        const char *to = path_join(&x->mem, made, base_name(x->file[i].path));
        str_cut(&head, 0);
        st = to ? read_head(x, &x->file[i], !i, &head, e) : err_memory(e, made, URL_MAX);
        if (!st)
            st = write_head(to, &head, x->file[i].n_bytes, e);
        else if (i >= x->n_model && (st == E_FORMAT || st == E_LIMIT)) { /* the model runs alone */
            err_clear(e);
            st = OK;
        }
        if (!i)
            *path = to;
    }
    str_free(&head);
    if (st)
        remove_folder(made);
    return st;
}

/* ---- Which file fits ------------------------------------------------------------------------ */

typedef enum how_well {
    FITS,     /* all of it where it belongs */
    SQUEEZED, /* layers leave the GPU */
    TOO_LARGE
} how_well;

/* How well the model that begins with file `first` runs here. */
static status plan_file(pull *x, int first, how_well *how, err *why, err *e)
{
    const carat_model_options mo = {.vocab_only = true};
    const carat_session_options so = {.n_outputs = 1};
    const char *dir = NULL, *path = NULL;
    carat_memory_plan plan;
    carat_model_info info;
    carat_model *m = NULL;
    status st = pull_set(x, first, e);
    *why = (err){0};
    if (!st)
        st = write_heads(x, false, &dir, &path, e);
    if (st)
        return st;
    st = carat_model_open(path, &mo, &m, why);
    remove_folder(dir);
    without_folder(dir, why->text);
    if (!st && !(st = carat_plan(m, &so, &plan, why)) && !(st = carat_plan_check(m, &plan, why))) {
        carat_model_get_info(m, &info);
        *how = info.fit == CARAT_FIT_LAYERS ? SQUEEZED : FITS;
    } else {
        *how = TOO_LARGE;
    }
    carat_model_close(m);
    if (st == E_MEMORY)
        return OK;
    return st ? err_set(e, st, "%s", why->text) : OK;
}

static uint64_t size_of(const pull *x, int first)
{
    uint64_t sum = 0;
    int no, count, n_first, n_count;
    size_t n_stem, n_other;
    if (!split_name(x->paths[first], &n_first, &n_count, &n_stem))
        return x->list.file[first].n_bytes;
    for (size_t i = 0; i < x->list.n; i++)
        if (split_name(x->paths[i], &no, &count, &n_other) && n_other == n_stem &&
            count == n_count && !strncmp(x->paths[i], x->paths[first], n_stem))
            sum = sum + x->list.file[i].n_bytes < sum ? UINT64_MAX : sum + x->list.file[i].n_bytes;
    return sum;
}

typedef struct candidate {
    int first;
    uint64_t n_bytes;
} candidate;

static int by_size(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->n_bytes < y->n_bytes ? 1 : x->n_bytes > y->n_bytes ? -1 : x->first - y->first;
}

/* The other models of the repository by size, largest first; those of at most max bytes. Each is
 * compared with every file, so there are only so many. */
static candidate *list_others(pull *x, uint64_t max, size_t *n)
{
    candidate *c = arena_array(&x->mem, OTHERS_MAX, sizeof *c);
    char quant[QUANT_MAX];
    size_t n_seen = 0;
    *n = 0;
    for (size_t i = 0; c && i < x->list.n && n_seen < OTHERS_MAX; i++) {
        if (!is_first_file(x->paths[i]) || names_drafter(x->paths[i]))
            continue;
        quant_of(x->paths[i], quant);
        if (!quant_valid(quant + (strncasecmp(quant, "UD-", 3) ? 0 : 3)))
            continue;
        uint64_t n_bytes = size_of(x, (int)i);
        n_seen++;
        if (n_bytes <= max)
            c[(*n)++] = (candidate){(int)i, n_bytes};
    }
    if (*n)
        qsort(c, *n, sizeof *c, by_size);
    return c;
}

/* The largest smaller file that runs here, by halving: what a larger file lacks in memory, all
 * larger ones lack. A file that leaves layers to the CPU is as fast as one of fewer bits only if
 * that loses more than half of them, so of such models no file of less than half the size counts.
 */
static status find_smaller(pull *x, int *first, how_well worse_than, err *e)
{
    uint64_t own = size_of(x, *first), least = worse_than == SQUEEZED ? own / 2 : 0;
    size_t n, low = 0;
    candidate *c = list_others(x, own ? own - 1 : 0, &n);
    err why;
    status st = c ? OK : err_memory(e, x->repo, x->list.n * sizeof *c);
    while (n && c[n - 1].n_bytes < least)
        n--;
    int best = -1;
    for (size_t high = n; !st && low < high;) {
        size_t mid = low + (high - low) / 2;
        how_well how;
        st = plan_file(x, c[mid].first, &how, &why, e);
        if (!st && how < worse_than) {
            best = c[mid].first;
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    if (best >= 0)
        *first = best;
    return st;
}

/* Small beside the memory, or here already: then no plan is needed. */
static bool surely_runs(pull *x, int first)
{
    const char *sha = x->list.file[first].sha256;
    const char *blob = *sha ? blob_path(&x->mem, x->p.store, sha, "") : NULL;
    bool short_name = *x->alias && !*x->name.quant;
    uint64_t there = mem_available_bytes();
    return (blob && !access(blob, F_OK)) || !there ||
           size_of(x, first) < there / (short_name ? 16 : 2);
}

status pull_choose_by_memory(pull *x, int *first, err *e)
{
    char quant[QUANT_MAX], other[QUANT_MAX], text[700];
    const char *note = text;
    how_well how = FITS;
    err why, lost = {0};
    int was = *first;
    bool open = *x->alias && !*x->name.quant && !x->ask->file;
    if (surely_runs(x, *first))
        return OK;
    status st = plan_file(x, *first, &how, &why, &lost);
    if (!st && how != FITS && open)
        st = find_smaller(x, first, how, &lost);
    /* Without a plan the pull goes on: opening the model will say what is wrong with it. */
    if (st == E_CANCELLED || st == E_MEMORY)
        return err_set(e, st, "%s", lost.text);
    if (st || (was == *first && (how != TOO_LARGE || x->previews)))
        return OK;
    quant_of(x->paths[was], quant);
    quant_of(x->paths[*first], other);
    if (was != *first)
        snprintf(text, sizeof text, "%s %s; %s is taken", quant,
                 how == SQUEEZED ? "would leave layers to the CPU"
                                 : "needs more memory than is here",
                 other);
    else
        snprintf(text, sizeof text, "this model would not run here: %.600s", why.text);
    note = arena_strndup(&x->mem, text, strlen(text));
    return note ? pull_tell(x, note, e) : err_memory(e, x->repo, sizeof text);
}

/* ---- hub_preview -------------------------------------------------------------------------------
 */

static status fill_view(pull *x, const char *dir, const char *path, hub_view *v, err *e)
{
    size_t n, n_others = 0;
    candidate *c = list_others(x, UINT64_MAX, &n);
    v->dir = mem_strdup(dir);
    v->path = mem_strdup(path);
    v->other = arena_array(&v->mem, n + 1, sizeof *v->other);
    if (!c || !v->dir || !v->path || !v->other)
        return err_memory(e, x->repo, n * sizeof *v->other);
    snprintf(v->name, sizeof v->name, "%s:%s", x->repo, x->quant);
    v->n_files = x->n_model;
    for (int i = 0; i < x->m.n_files; i++)
        *(i < x->n_model ? &v->n_bytes : &v->tower_bytes) += x->file[i].n_bytes;
    for (size_t i = 0; i < n; i++) {
        hub_other *o = &v->other[n_others++];
        quant_among(x->paths[c[i].first], x->paths, x->list.n, o->quant);
        o->n_bytes = c[i].n_bytes;
    }
    v->n_others = n_others;
    return OK;
}

status hub_preview(const hub_ask *ask, hub_view *v, err *e)
{
    const char *dir = NULL, *path = NULL;
    int first;
    *v = (hub_view){0};
    pull *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, ask->what, sizeof *x);
    x->previews = true;
    status st = pull_begin(x, ask, &first, e);
    if (!st && !(st = pull_choose_by_memory(x, &first, e)) && !(st = pull_set(x, first, e)) &&
        !(st = write_heads(x, true, &dir, &path, e)) && (st = fill_view(x, dir, path, v, e))) {
        if (!v->dir)
            remove_folder(dir);
        hub_view_free(v);
    }
    pull_end(x);
    mem_free(x);
    return st;
}

void hub_view_free(hub_view *v)
{
    if (v->dir)
        remove_folder(v->dir);
    mem_free(v->dir);
    mem_free(v->path);
    arena_free(&v->mem);
    *v = (hub_view){0};
}

void hub_view_sentence(const hub_view *v, err *e)
{
    if (v->dir)
        without_folder(v->dir, e->text);
}
