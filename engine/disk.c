/* disk.c - the directory of snapshot files: its contents, its budget, the thread that writes. */
#include "engine/disk.h"
#include "engine/engine_int.h"
#include "engine/media.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kv/paging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    FRESH_LEAST = 64, /* a file needs this many tokens that no file has, */
    FRESH_SHARE = 8,  /* and this share of its tokens: limits writes of long conversations */
    QUEUE_MAX = 4,    /* queued snapshots occupy memory */
    FAILURES_MAX = 5, /* consecutive failures after which writing stops */
    TEMP_AGE_S = 10,  /* a younger temporary may not be locked yet by its writer */
    HALF_LIFE_S = 6 * 3600,
    SAMPLE_BYTES = 4096,
    SAMPLES = 8,
    NAME_MAX_BYTES = 128
};

static const char suffix[] = ".carat-kv";

typedef struct file {
    int64_t n;
    uint64_t hash; /* of its n ids */
} file;

struct disk_store {
    const carat_model *m;
    uint64_t tower[2]; /* names the model's tower */
    const kv_layout *layout;
    kv_file_id id;
    uint64_t key;
    const kv_layout *draft_layout; /* NULL: there is no drafter with keys */
    kv_file_id draft_id;
    uint64_t draft_key;
    char *dir;
    uint64_t budget_bytes;
    hash_stream *h;

    pthread_t thread;
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    bool has_thread, quit;
    kv_snapshot *queue[QUEUE_MAX];
    int32_t n_queue;
    kv_snapshot *writing; /* taken from the queue, not yet a file */
    file *at;             /* the files of this key, ordered by length */
    int32_t n, cap;
    int32_t n_failures; /* consecutive */
    carat_cache_info info;
};

/* ---- Which model ---------------------------------------------------------------------------- */

static void put_u64(hash_stream *h, uint64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> (8 * i));
    hash_put(h, b, 8);
}

/* Hashes metadata, shapes and samples of every tensor: a fine-tune changes every tensor. How a
 * model is split is not part of it, as its devices are not. */
static void model_identity(const model *m, hash_stream *h, uint64_t id[2])
{
    const gguf *g = &m->file;
    for (int half = 0; half < 2; half++) {
        hash_restart(h);
        put_u64(h, (uint64_t)half);
        for (uint64_t i = 0; i < g->n_values; i++) {
            const gguf_value *v = &g->value[i];
            if (!strncmp(v->key, "tokenizer.", 10))
                continue; /* the tokenizer does not change the meaning of ids */
            hash_put(h, v->key, strlen(v->key) + 1);
            put_u64(h, v->n_bytes);
            hash_put(h, v->bytes, (size_t)v->n_bytes);
        }
        for (uint64_t i = 0; i < g->tensors.n; i++) {
            const tensor *t = &g->tensors.at[i];
            hash_put(h, t->name, strlen(t->name) + 1);
            put_u64(h, t->type);
            put_u64(h, t->n_bytes);
            for (int32_t k = 0; k < t->n_dims; k++)
                put_u64(h, t->ne[k]);
            if (t->n_bytes <= SAMPLES * SAMPLE_BYTES) {
                hash_put(h, t->bytes, (size_t)t->n_bytes);
                continue;
            }
            uint64_t apart = (t->n_bytes - SAMPLE_BYTES) / (SAMPLES - 1);
            for (int k = 0; k < SAMPLES; k++)
                hash_put(h, t->bytes + apart * (uint64_t)k, SAMPLE_BYTES);
        }
        id[half] = hash_value(h);
    }
}

status disk_identity(const model *m, uint64_t id[2], err *e)
{
    hash_stream *h = hash_open();
    if (!h)
        return err_memory(e, "a hash", 64);
    model_identity(m, h, id);
    hash_close(h);
    return OK;
}

/* ---- The directory ------------------------------------------------------------------------- */

static uint64_t hash_ids(hash_stream *h, const int32_t *ids, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        const uint32_t v = (uint32_t)ids[i];
        const unsigned char b[4] = {(unsigned char)v, (unsigned char)(v >> 8),
                                    (unsigned char)(v >> 16), (unsigned char)(v >> 24)};
        hash_put(h, b, 4);
    }
    return hash_value(h);
}

static bool has_soft(const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0)
            return true;
    return false;
}

/* The first *n of ids as files have them; *n falls to where that ends. *own is for mem_free. */
static const int32_t *lasting(const disk_store *d, const int32_t *ids, int64_t *n, int32_t **own)
{
    *own = NULL;
    if (!has_soft(ids, *n))
        return ids;
    *own = mem_alloc((size_t)*n * sizeof **own);
    *n = *own ? media_lasting(d->m, d->tower, ids, *n, *own) : 0;
    return *own;
}

/* Begins the hash of the ids of tokens whose rows were computed so. */
static void restart_ids(hash_stream *h, kv_way way, uint64_t pool)
{
    hash_restart(h);
    if (way.lossy || pool || way.lora)
        put_u64(h, way.lossy);
    if (pool || way.lora)
        put_u64(h, pool);
    if (way.lora)
        put_u64(h, way.lora);
}

/* What names the pool whose records a snapshot has; 0: it has none. */
static uint64_t pool_of(const kv_snapshot *k)
{
    return k->paging ? kv_paging_key(k->paging) : 0;
}

/* Rows that are computed in another way are those of another model. */
static kv_file_id id_of(const kv_file_id *id, kv_way way, uint64_t pool)
{
    kv_file_id x = *id;
    x.model[0] ^= way.lora;
    x.model[1] ^= way.lossy * 0x9e3779b97f4a7c15u;
    x.pool = pool;
    return x;
}

static char *path_of(const disk_store *d, const char *name)
{
    str s = {0};
    str_printf(&s, "%s/%s", d->dir, name);
    return s.bad ? (str_free(&s), NULL) : str_take(&s);
}

static void name_of(uint64_t key, const file *f, char *name, size_t cap)
{
    snprintf(name, cap, "%016" PRIx64 "-%" PRId64 "-%016" PRIx64 "%s", key, f->n, f->hash, suffix);
}

/* Parses exactly the names that the store writes. */
static bool parse_name(const char *name, uint64_t *key, file *f)
{
    char again[128];
    uint64_t its_key;
    file x = {0};
    if (sscanf(name, "%16" SCNx64 "-%18" SCNd64 "-%16" SCNx64, &its_key, &x.n, &x.hash) != 3)
        return false;
    snprintf(again, sizeof again, "%016" PRIx64 "-%" PRId64 "-%016" PRIx64 "%s", its_key, x.n,
             x.hash, suffix);
    if (x.n <= 0 || strcmp(name, again) != 0)
        return false;
    *key = its_key;
    *f = x;
    return true;
}

static void insert(disk_store *d, file f)
{
    int32_t i = d->n;
    for (int32_t k = 0; k < d->n; k++)
        if (d->at[k].n == f.n && d->at[k].hash == f.hash)
            return;
    if (d->n == d->cap) {
        int32_t cap = d->cap ? 2 * d->cap : 64;
        file *at = mem_realloc(d->at, (size_t)cap, sizeof *at);
        if (!at)
            return; /* the next start will list it */
        d->at = at;
        d->cap = cap;
    }
    while (i > 0 && d->at[i - 1].n > f.n) {
        d->at[i] = d->at[i - 1];
        i--;
    }
    d->at[i] = f;
    d->n++;
}

static void forget_file(disk_store *d, file f)
{
    for (int32_t i = 0; i < d->n; i++)
        if (d->at[i].n == f.n && d->at[i].hash == f.hash) {
            memmove(d->at + i, d->at + i + 1, (size_t)(d->n - i - 1) * sizeof *d->at);
            d->n--;
            return;
        }
}

/* True for a temporary without a writer: its program was killed. */
static void remove_stale(const char *path, const struct stat *sb)
{
    if (time(NULL) - sb->st_mtime < TEMP_AGE_S)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (!flock(fd, LOCK_EX | LOCK_NB))
        unlink(path);
    close(fd);
}

typedef struct on_disk {
    char name[NAME_MAX_BYTES];
    uint64_t key, n_bytes;
    file f;
    double worth;
} on_disk;

typedef struct listing {
    on_disk *at;
    int32_t n, cap;
    uint64_t n_bytes;
} listing;

static bool list_add(listing *l, const on_disk *f)
{
    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 64;
        on_disk *at = mem_realloc(l->at, (size_t)cap, sizeof *at);
        if (!at)
            return false;
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = *f;
    l->n_bytes += f->n_bytes;
    return true;
}

/* Lists this user's snapshot files of all models, and removes stale temporaries. */
static status list_dir(const disk_store *d, listing *l, err *e)
{
    *l = (listing){0};
    DIR *dir = opendir(d->dir);
    status st = OK;
    if (!dir)
        return err_set(e, E_IO, "%s: cannot open the directory: %s", d->dir, strerror(errno));
    for (struct dirent *x; !st && (x = readdir(dir));) {
        on_disk f = {0};
        struct stat sb;
        if (strlen(x->d_name) >= sizeof f.name ||
            fstatat(dirfd(dir), x->d_name, &sb, AT_SYMLINK_NOFOLLOW) || !S_ISREG(sb.st_mode) ||
            sb.st_uid != geteuid())
            continue;
        const char *end = strstr(x->d_name, suffix);
        if (end && strlen(end) == sizeof suffix - 1 + 7 && end[sizeof suffix - 1] == '.') {
            char *path = path_of(d, x->d_name);
            if (path)
                remove_stale(path, &sb);
            mem_free(path);
            continue;
        }
        if (!parse_name(x->d_name, &f.key, &f.f))
            continue;
        strcpy(f.name, x->d_name);
        f.n_bytes = (uint64_t)sb.st_size;
        double age = difftime(time(NULL), sb.st_mtime);
        f.worth = (double)f.f.n / (double)(f.n_bytes + 1) * exp2(-age / HALF_LIFE_S);
        if (!list_add(l, &f))
            st = err_memory(e, d->dir, sizeof f);
    }
    closedir(dir);
    if (st) {
        mem_free(l->at);
        *l = (listing){0};
    }
    return st;
}

/* Removes the least valuable files, never `keep`, until the budget holds. */
static void trim(disk_store *d, const char *keep)
{
    listing l;
    if (list_dir(d, &l, NULL))
        return;
    int32_t left = l.n;
    while (l.n_bytes > d->budget_bytes && left > 0) {
        int32_t worst = -1;
        for (int32_t i = 0; i < l.n; i++)
            if (l.at[i].n_bytes && strcmp(l.at[i].name, keep) &&
                (worst < 0 || l.at[i].worth < l.at[worst].worth))
                worst = i;
        if (worst < 0)
            break;
        on_disk *f = &l.at[worst];
        char *path = path_of(d, f->name);
        if (path)
            unlink(path);
        mem_free(path);
        pthread_mutex_lock(&d->lock);
        if (f->key == d->key)
            forget_file(d, f->f);
        pthread_mutex_unlock(&d->lock);
        l.n_bytes -= f->n_bytes;
        f->n_bytes = 0;
        left--;
    }
    pthread_mutex_lock(&d->lock);
    d->info.n_files = left;
    d->info.file_bytes = l.n_bytes;
    pthread_mutex_unlock(&d->lock);
    mem_free(l.at);
}

static void note(disk_store *d, const err *e)
{
    pthread_mutex_lock(&d->lock);
    snprintf(d->info.last_error, sizeof d->info.last_error, "%.255s", e->text);
    pthread_mutex_unlock(&d->lock);
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* A rename is durable only after its directory is synchronised. */
static void sync_dir(const disk_store *d)
{
    int fd = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

static bool disk_is_full(const disk_store *d, uint64_t n_bytes)
{
    struct statvfs v;
    return !statvfs(d->dir, &v) && (uint64_t)v.f_bavail * v.f_frsize < n_bytes;
}

/* Removes n_bytes of this store's files. */
static void make_disk_room(disk_store *d, uint64_t n_bytes)
{
    uint64_t budget = d->budget_bytes;
    pthread_mutex_lock(&d->lock);
    uint64_t there = d->info.file_bytes;
    pthread_mutex_unlock(&d->lock);
    d->budget_bytes = there > n_bytes ? there - n_bytes : 0;
    trim(d, "");
    d->budget_bytes = budget;
}

/* The drafter's keys of the conversation in file f. It does without them after a failure. */
static void write_draft(disk_store *d, const file *f, const kv_snapshot *k, const int32_t *ids)
{
    char name[NAME_MAX_BYTES];
    kv_file_id id = d->draft_id;
    id.ids = ids;
    err e = {0};
    uint64_t n_bytes = 0;
    if (!k || !d->draft_layout)
        return;
    name_of(d->draft_key, f, name, sizeof name);
    char *path = path_of(d, name);
    if (path && kv_snapshot_write(k, path, &id, &n_bytes, &e))
        note(d, &e);
    mem_free(path);
}

static void write_one(disk_store *d, hash_stream *h, const kv_snapshot *k)
{
    char name[NAME_MAX_BYTES];
    err e = {0};
    uint64_t n_bytes = 0;
    kv_file_id id = id_of(&d->id, k->way, pool_of(k));
    int64_t n = k->n;
    int32_t *own;
    id.ids = lasting(d, k->ids, &n, &own);
    if (n < k->n) { /* its picture was forgotten meanwhile */
        mem_free(own);
        return;
    }
    restart_ids(h, k->way, pool_of(k));
    file f = {.n = n, .hash = hash_ids(h, id.ids, 0, n)};
    name_of(d->key, &f, name, sizeof name);
    char *path = path_of(d, name);
    if (!path) {
        mem_free(own);
        return;
    }
    write_draft(d, &f, k->draft, id.ids);
    status st = kv_snapshot_write(k, path, &id, &n_bytes, &e);
    if (st == E_IO && disk_is_full(d, k->own_bytes)) {
        make_disk_room(d, k->own_bytes);
        err_clear(&e);
        st = kv_snapshot_write(k, path, &id, &n_bytes, &e);
    }
    mem_free(path);
    mem_free(own);
    if (st)
        note(d, &e);
    else
        sync_dir(d);
    pthread_mutex_lock(&d->lock);
    d->n_failures = st ? d->n_failures + 1 : 0;
    d->info.n_failed += st != OK;
    d->info.n_written += !st;
    if (!st)
        insert(d, f);
    pthread_mutex_unlock(&d->lock);
    if (!st)
        trim(d, name);
}

static void *writer(void *arg)
{
    disk_store *d = arg;
    hash_stream *h = hash_open();
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->n_queue && !d->quit)
            pthread_cond_wait(&d->changed, &d->lock);
        if (!d->n_queue)
            break;
        kv_snapshot *k = d->queue[0];
        memmove(d->queue, d->queue + 1, (size_t)--d->n_queue * sizeof *d->queue);
        d->writing = k;
        bool off = !h || d->n_failures >= FAILURES_MAX;
        pthread_mutex_unlock(&d->lock);
        if (!off)
            write_one(d, h, k);
        pthread_mutex_lock(&d->lock);
        d->writing = NULL;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        kv_snapshot_drop(k);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    hash_close(h);
    return NULL;
}

/* The longest file that is a prefix of ids[0..n), lasting ones, up to n itself. The caller holds
 * the lock. */
static file longest(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n,
                    int64_t above)
{
    file best = {0};
    int64_t at = 0;
    restart_ids(d->h, way, pool);
    for (int32_t i = 0; i < d->n && d->at[i].n <= n; i++) {
        uint64_t hash = hash_ids(d->h, ids, at, d->at[i].n);
        at = d->at[i].n;
        if (hash == d->at[i].hash && at > above)
            best = d->at[i];
    }
    return best;
}

/* The caller holds the lock. */
static bool is_worth_a_file(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n)
{
    int32_t *own;
    int64_t n_named = n;
    if (d->n_queue == QUEUE_MAX || d->n_failures >= FAILURES_MAX)
        return false;
    const int32_t *names = lasting(d, ids, &n_named, &own);
    int64_t there = n_named < n ? n : longest(d, way, pool, names, n, 0).n;
    mem_free(own);
    for (int32_t i = -1; i < d->n_queue; i++) {
        const kv_snapshot *q = i < 0 ? d->writing : d->queue[i];
        if (q && q->n <= n && q->n > there && kv_same_way(q->way, way) && pool_of(q) == pool &&
            !memcmp(q->ids, ids, (size_t)q->n * sizeof *q->ids))
            there = q->n;
    }
    if (pool)
        return n > there;
    return n - there >= FRESH_LEAST && n - there >= n / FRESH_SHARE;
}

bool disk_wants(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n)
{
    pthread_mutex_lock(&d->lock);
    bool yes = is_worth_a_file(d, way, pool, ids, n);
    pthread_mutex_unlock(&d->lock);
    return yes;
}

void disk_offer(disk_store *d, kv_snapshot *k)
{
    pthread_mutex_lock(&d->lock);
    if (is_worth_a_file(d, k->way, pool_of(k), k->ids, k->n)) {
        kv_snapshot_keep(k);
        d->queue[d->n_queue++] = k;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* The drafter's keys of file f; NULL: there are none, or they cannot be read. */
static kv_snapshot *load_draft(disk_store *d, const file *f, const kv_snapshot *of)
{
    char name[NAME_MAX_BYTES];
    kv_snapshot *k = NULL;
    err e = {0};
    if (!d->draft_layout)
        return NULL;
    name_of(d->draft_key, f, name, sizeof name);
    char *path = path_of(d, name);
    if (!path || access(path, F_OK)) {
        mem_free(path);
        return NULL;
    }
    status st = kv_snapshot_read(path, &d->draft_id, d->draft_layout, &k, &e);
    if (!st && (k->n != of->n || memcmp(k->ids, of->ids, (size_t)k->n * sizeof *k->ids))) {
        kv_snapshot_drop(k);
        k = NULL;
        st = err_set(&e, E_FORMAT, "%s: holds other tokens than its name says", path);
    }
    if (!st)
        utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
    else if (st == E_FORMAT)
        unlink(path);
    if (st)
        note(d, &e);
    mem_free(path);
    return k;
}

/* Reads the longest file of ids into *out, which stays NULL if there is none. True: that file
 * cannot be used, and another one may be. */
static bool load_longest(disk_store *d, const kv_file_id *id, const int32_t *ids, int64_t n,
                         kv_way way, int64_t above, kv_snapshot **out)
{
    char name[NAME_MAX_BYTES];
    kv_snapshot *k = NULL;
    err e = {0};
    pthread_mutex_lock(&d->lock);
    file f = longest(d, way, id->pool, ids, n, above);
    pthread_mutex_unlock(&d->lock);
    if (!f.n)
        return false;
    name_of(d->key, &f, name, sizeof name);
    char *path = path_of(d, name);
    if (!path)
        return false;
    status st = kv_snapshot_read(path, id, d->layout, &k, &e);
    if (!st && (k->n != f.n || memcmp(k->ids, ids, (size_t)k->n * sizeof *ids))) {
        kv_snapshot_drop(k);
        k = NULL;
        st = err_set(&e, E_FORMAT, "%s: holds other tokens than its name says", path);
    }
    if (!st) {
        k->way = way;
        k->draft = load_draft(d, &f, k);
        utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW); /* marks it as used now */
    } else if (st == E_FORMAT) {
        unlink(path); /* it would fail again */
    }
    mem_free(path);
    *out = k;
    if (!st || st == E_MEMORY)
        return false;
    note(d, &e);
    pthread_mutex_lock(&d->lock);
    d->info.n_rejected += st == E_FORMAT;
    forget_file(d, f);
    pthread_mutex_unlock(&d->lock);
    return true;
}

kv_snapshot *disk_load(disk_store *d, kv_way way, uint64_t pool, const int32_t *ids, int64_t n,
                       int64_t above)
{
    const kv_file_id id = id_of(&d->id, way, pool);
    int32_t *own;
    const int32_t *names = lasting(d, ids, &n, &own);
    kv_snapshot *found = NULL;
    while (load_longest(d, &id, names, n, way, above, &found))
        ;
    if (found && own) { /* in this process they have the ids that the prompt has */
        memcpy(found->ids, ids, (size_t)found->n * sizeof *ids);
        if (found->draft)
            memcpy(found->draft->ids, ids, (size_t)found->n * sizeof *ids);
    }
    mem_free(own);
    return found;
}

void disk_settle(disk_store *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_queue || d->writing)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

void disk_info(disk_store *d, carat_cache_info *info)
{
    pthread_mutex_lock(&d->lock);
    d->info.n_checkpoints = info->n_checkpoints;
    d->info.checkpoint_bytes = info->checkpoint_bytes;
    *info = d->info;
    pthread_mutex_unlock(&d->lock);
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* A user who may rename files in the directory can exchange or remove conversations. So the
 * directory must belong to this user or to root, and no other user may write to it, unless its
 * sticky bit protects the files of one user from another. */
static status check_owner(const disk_store *d, const struct stat *sb, err *e)
{
    if (sb->st_uid != geteuid() && sb->st_uid != 0)
        return err_set(e, E_IO,
                       "%s: conversations are not kept in a directory of another user (number %u)",
                       d->dir, (unsigned)sb->st_uid);
    if ((sb->st_mode & (S_IWGRP | S_IWOTH)) && !(sb->st_mode & S_ISVTX))
        return err_set(e, E_IO,
                       "%s: conversations are not kept in a directory that other users may write "
                       "to (mode %03o): chmod go-w",
                       d->dir, (unsigned)sb->st_mode & 0777);
    return OK;
}

static status open_dir(disk_store *d, err *e)
{
    listing l;
    struct stat sb;
    status st;
    if (mkdir(d->dir, 0700) && errno != EEXIST)
        return err_set(e, E_IO, "%s: cannot make the directory: %s", d->dir, strerror(errno));
    if (stat(d->dir, &sb))
        return err_set(e, E_IO, "%s: cannot keep conversations there: %s", d->dir, strerror(errno));
    if (!S_ISDIR(sb.st_mode))
        return err_set(e, E_IO, "%s: a file, and conversations are kept in a directory", d->dir);
    if ((st = check_owner(d, &sb, e)))
        return st;
    if (access(d->dir, R_OK | W_OK | X_OK))
        return err_set(e, E_IO, "%s: cannot keep conversations there: %s", d->dir, strerror(errno));
    if ((st = list_dir(d, &l, e)))
        return st;
    for (int32_t i = 0; i < l.n; i++)
        if (l.at[i].key == d->key)
            insert(d, l.at[i].f);
    d->info.n_files = l.n;
    d->info.file_bytes = l.n_bytes;
    mem_free(l.at);
    trim(d, "");
    return OK;
}

static uint64_t key_of(hash_stream *h, const kv_file_id *id, const kv_layout *l)
{
    hash_restart(h);
    put_u64(h, kv_file_version(l->n_recur, false));
    put_u64(h, id->model[0]);
    put_u64(h, id->model[1]);
    hash_put(h, id->layout.at, id->layout.n);
    return hash_value(h);
}

void disk_know_drafter(disk_store *d, const model *m, const kv_layout *l)
{
    uint64_t target[2] = {d->id.model[0], d->id.model[1]};
    if (d->draft_layout)
        return;
    kv_layout_words(l, &d->draft_id.layout);
    if (d->draft_id.layout.bad)
        return;
    /* Keys made of a target's features are of use with that target alone. */
    model_identity(m, d->h, d->draft_id.model);
    for (int i = 0; i < 2; i++) {
        hash_restart(d->h);
        put_u64(d->h, d->draft_id.model[i]);
        put_u64(d->h, target[i]);
        d->draft_id.model[i] = hash_value(d->h);
    }
    d->draft_key = key_of(d->h, &d->draft_id, l);
    d->draft_layout = l;
}

status disk_open(disk_store **out, const struct carat_model *m, const kv_layout *l, const char *dir,
                 uint64_t budget_bytes, err *e)
{
    disk_store *d = mem_calloc(1, sizeof *d);
    status st = OK;
    *out = NULL;
    if (!d)
        return err_memory(e, "the cache on disk", sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->m = m;
    d->layout = l;
    d->budget_bytes = budget_bytes;
    d->dir = mem_strdup(dir);
    d->h = hash_open();
    kv_layout_words(l, &d->id.layout);
    if (!d->dir || !d->h || d->id.layout.bad) {
        st = err_memory(e, "the cache on disk", sizeof *d);
        goto out;
    }
    model_identity(&m->core, d->h, d->id.model);
    if (media_tower(m))
        model_identity(media_tower(m), d->h, d->tower);
    d->key = key_of(d->h, &d->id, l);
    if ((st = open_dir(d, e)))
        goto out;
    d->has_thread = !pthread_create(&d->thread, NULL, writer, d);
    if (!d->has_thread)
        st = err_set(e, E_MEMORY, "cannot start the thread that writes checkpoints");
out:
    if (st)
        disk_close(d);
    else
        *out = d;
    return st;
}

void disk_close(disk_store *d)
{
    if (!d)
        return;
    if (d->has_thread) {
        pthread_mutex_lock(&d->lock);
        d->quit = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->at);
    str_free(&d->draft_id.layout);
    str_free(&d->id.layout);
    hash_close(d->h);
    mem_free(d->dir);
    mem_free(d);
}
