/* conversations.c - see conversations.h. */
#include "apps/conversations.h"

#include "apps/state_dir.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LOCK_LOOK_US = 5000 };

int conversations_wait_ms = 10000;

bool conversations_off(void)
{
    const char *no = getenv("CARAT_NO_HISTORY");
    return no && *no;
}

/* name "" gives the directory itself. */
static status path_of(char path[PATH_BYTES], const char *name, err *e)
{
    char rest[96];
    snprintf(rest, sizeof rest, "conversations/%s", name);
    return state_path(path, PATH_BYTES, rest)
               ? OK
               : err_set(e, E_UNSUPPORTED,
                         "there is no place for conversations: neither HOME nor "
                         "XDG_STATE_HOME is an absolute path");
}

static status path_of_number(char path[PATH_BYTES], int64_t number, err *e)
{
    char name[40];
    snprintf(name, sizeof name, "%" PRId64 ".json", number);
    return path_of(path, name, e);
}

/* "12.json" gives 12; any other name 0. */
static int64_t number_of(const char *name)
{
    size_t n = strspn(name, "0123456789");
    if (!n || n > 15 || name[0] == '0' || strcmp(name + n, ".json"))
        return 0;
    return strtoll(name, NULL, 10);
}

/* ---- Listing --------------------------------------------------------------------------- */

static int by_change(const void *a, const void *b)
{
    const talk *x = a, *y = b;
    if (x->changed.tv_sec != y->changed.tv_sec)
        return x->changed.tv_sec < y->changed.tv_sec ? 1 : -1;
    if (x->changed.tv_nsec != y->changed.tv_nsec)
        return x->changed.tv_nsec < y->changed.tv_nsec ? 1 : -1;
    return x->number < y->number ? 1 : x->number > y->number ? -1 : 0;
}

status conversations_list(talk_list *l, err *e)
{
    char dir[PATH_BYTES];
    size_t cap = 0;
    *l = (talk_list){0};
    status st = path_of(dir, "", e);
    if (st)
        return st;
    DIR *d = opendir(dir);
    if (!d)
        return errno == ENOENT ? OK : err_errno(e, "list", dir);
    for (struct dirent *f; !st && (f = readdir(d));) {
        int64_t number = number_of(f->d_name);
        struct stat sb;
        if (!number || fstatat(dirfd(d), f->d_name, &sb, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(sb.st_mode))
            continue;
        if (l->n == cap) {
            size_t more = cap ? 2 * cap : 64;
            talk *at = mem_realloc(l->at, more, sizeof *at);
            if (!at) {
                st = err_memory(e, "the list of conversations", more * sizeof *at);
                break;
            }
            l->at = at;
            cap = more;
        }
        l->at[l->n++] = (talk){number, sb.st_mtim};
    }
    closedir(d);
    if (st)
        conversations_free(l);
    else if (l->n)
        qsort(l->at, l->n, sizeof *l->at, by_change);
    return st;
}

void conversations_free(talk_list *l)
{
    mem_free(l->at);
    *l = (talk_list){0};
}

static bool title_has(int64_t number, const char *part)
{
    kept_talk k;
    bool has = false;
    if (!conversations_read(number, &k, NULL, NULL))
        has = k.title && strcasestr(k.title, part);
    kept_free(&k);
    return has;
}

status conversations_find(const char *which, int64_t *number, err *e)
{
    talk_list l;
    status st = conversations_list(&l, e);
    char others[200] = "";
    int n_found = 0;
    int64_t found = 0;
    if (st)
        return st;
    bool last = !which || !*which || !strcmp(which, "last");
    bool digits = !last && !which[strspn(which, "0123456789")] && strlen(which) < 16;
    int64_t wanted = digits ? strtoll(which, NULL, 10) : 0;
    for (size_t i = 0; i < l.n; i++) {
        if (last ? i > 0 : digits ? l.at[i].number != wanted : !title_has(l.at[i].number, which))
            continue;
        if (!n_found++)
            found = l.at[i].number;
        size_t at = strlen(others);
        snprintf(others + at, sizeof others - at, "%s%" PRId64, at ? ", " : "", l.at[i].number);
    }
    conversations_free(&l);
    if (n_found == 1) {
        *number = found;
        return OK;
    }
    if (n_found)
        return err_set(e, E_ARG, "%d conversations have '%.60s' in their titles: %s", n_found,
                       which, others);
    if (last)
        return err_set(e, E_ARG, "no conversation is kept yet");
    return err_set(e, E_ARG,
                   digits ? "there is no conversation %.40s: carat history lists them"
                          : "no conversation has '%.40s' in its title: carat history lists them",
                   which);
}

/* ---- Reading --------------------------------------------------------------------------- */

status conversations_take(const jtree *list, carat_talk *out, const char *path, err *e)
{
    err why = {0};
    if (!jtree_is(list, JTREE_ARRAY))
        return err_set(e, E_FORMAT, "%s: expected an array of messages", path);
    status st = list->count ? talk_read(out, list, &why) : OK;
    return st ? err_set(e, st, "%s: %s", path, why.text) : OK;
}

static const char *text_at(const jtree *all, const char *key)
{
    const jtree *v = jtree_get(all, key);
    return jtree_is(v, JTREE_STRING) ? v->s : NULL;
}

status conversations_parse(kept_talk *out, const char *text, size_t n, const char *path, bool lists,
                           err *e)
{
    *out = (kept_talk){.mem.max_bytes = arena_limit_for(n)};
    status st = jtree_parse(text, n, path, CONVERSATION_DEPTH, &out->mem, &out->all, e);
    const jtree *list = jtree_get(out->all, "messages");
    if (!st && lists && jtree_is(out->all, JTREE_ARRAY))
        list = out->all;
    else if (!st && !jtree_is(list, JTREE_ARRAY))
        st = err_set(e, E_FORMAT, "%s: expected an object with messages", path);
    out->title = text_at(out->all, "title");
    out->model = text_at(out->all, "model");
    out->open = text_at(out->all, "open");
    out->tools = text_at(out->all, "tools");
    out->talk.mem = &out->mem;
    if (!st)
        st = conversations_take(list, &out->talk, path, e);
    if (st)
        kept_free(out);
    return st;
}

void kept_free(kept_talk *k)
{
    arena_free(&k->mem);
    *k = (kept_talk){0};
}

status conversations_read_file(kept_talk *out, const char *path, bool lists, err *e)
{
    char *text = NULL;
    size_t n;
    *out = (kept_talk){0};
    status st = file_read_all(path, TALK_BYTES, &text, &n, e);
    if (!st)
        st = conversations_parse(out, text, n, path, lists, e);
    mem_free(text);
    return st;
}

status conversations_read(int64_t number, kept_talk *out, talk_place *place, err *e)
{
    char path[PATH_BYTES];
    struct stat sb;
    *out = (kept_talk){0};
    status st = path_of_number(path, number, e);
    /* Before the file is read: a later writer then shows as a change. */
    if (!st && stat(path, &sb))
        st = errno == ENOENT
                 ? err_set(e, E_ARG,
                           "there is no conversation %" PRId64 ": carat history lists them", number)
                 : err_errno(e, "read", path);
    if (!st)
        st = conversations_read_file(out, path, false, e);
    if (!st && place)
        *place = (talk_place){number, sb.st_ino, sb.st_mtim};
    return st;
}

/* ---- Writing --------------------------------------------------------------------------- */

/* The lock's file holds the largest number ever given. A file system without locks gives none; a
 * number is then taken by the first to create its file. */
static status lock_conversations(int *fd, err *e)
{
    char path[PATH_BYTES];
    status st = path_of(path, ".lock", e);
    if (st)
        return st;
    state_make_parents(path);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return err_errno(e, "open", path);
    double until = clock_ms() + conversations_wait_ms;
    while (flock(file, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            break;
        if (clock_ms() > until) {
            close(file);
            return err_set(e, E_IO, "%s: another program holds the lock", path);
        }
        usleep(LOCK_LOOK_US);
    }
    *fd = file;
    return OK;
}

/* Claims the next number by creating its empty file, and removes what is beyond TALKS_MAX. */
static status claim_number(int lock, int64_t *number, err *e)
{
    char path[PATH_BYTES], text[32] = "";
    talk_list l;
    status st = conversations_list(&l, e);
    if (st)
        return st;
    ssize_t n = pread(lock, text, sizeof text - 1, 0);
    int64_t largest = n > 0 ? strtoll(text, NULL, 10) : 0;
    largest = largest < 0 || largest > INT64_C(100000000000000) ? 0 : largest;
    for (size_t i = 0; i < l.n; i++) {
        if (l.at[i].number > largest)
            largest = l.at[i].number;
        if (i >= TALKS_MAX - 1 && !path_of_number(path, l.at[i].number, NULL))
            unlink(path);
    }
    conversations_free(&l);
    for (;;) {
        if ((st = path_of_number(path, ++largest, e)))
            return st;
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
            break;
        }
        if (errno != EEXIST)
            return err_errno(e, "create", path);
    }
    *number = largest;
    int len = snprintf(text, sizeof text, "%" PRId64 "\n", largest);
    if (pwrite(lock, text, (size_t)len, 0) != len)
        return OK; /* a full disk shows when the conversation is written */
    return OK;
}

static bool unchanged(const talk_place *place)
{
    char path[PATH_BYTES];
    struct stat sb;
    return place->number && !path_of_number(path, place->number, NULL) && !stat(path, &sb) &&
           sb.st_ino == place->inode && sb.st_mtim.tv_sec == place->changed.tv_sec &&
           sb.st_mtim.tv_nsec == place->changed.tv_nsec;
}

status conversations_write(talk_place *place, const str *text, bool *moved, err *e)
{
    char path[PATH_BYTES];
    int lock = -1;
    talk_place now = *place;
    struct stat sb;
    status st = text->bad ? err_memory(e, "a conversation", text->n) : lock_conversations(&lock, e);
    if (st)
        goto out;
    bool fresh = !unchanged(place), was_numbered = place->number;
    if (fresh && (st = claim_number(lock, &now.number, e)))
        goto out;
    if ((st = path_of_number(path, now.number, e)))
        goto out;
    if ((st = file_replace(path, true, str_text(text), text->n, e))) {
        if (fresh)
            unlink(path); /* the empty file that claimed the number */
        goto out;
    }
    if (stat(path, &sb)) {
        st = err_errno(e, "read", path);
        goto out;
    }
    *place = (talk_place){now.number, sb.st_ino, sb.st_mtim};
    *moved = fresh && was_numbered;
out:
    if (lock >= 0)
        close(lock);
    return st;
}

status conversations_remove(int64_t number, err *e)
{
    char path[PATH_BYTES];
    int lock;
    status st = path_of_number(path, number, e);
    if (st || (st = lock_conversations(&lock, e)))
        return st;
    if (unlink(path))
        st = errno == ENOENT ? err_set(e, E_ARG, "there is no conversation %" PRId64, number)
                             : err_errno(e, "remove", path);
    close(lock);
    return st;
}

status conversations_forget(talk_place *place, bool *other, err *e)
{
    char path[PATH_BYTES];
    int lock;
    if (!place->number) {
        *other = false;
        return OK;
    }
    status st = path_of_number(path, place->number, e);
    if (st || (st = lock_conversations(&lock, e)))
        return st;
    bool changed = !unchanged(place) && !access(path, F_OK);
    if (!changed && unlink(path) && errno != ENOENT)
        st = err_errno(e, "remove", path);
    close(lock);
    if (!st) {
        *place = (talk_place){0};
        *other = changed;
    }
    return st;
}

void conversations_put_text(str *out, const talk_turn *m, bool pictures)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        const talk_part *part = &m->part[i];
        bool sound = part->kind == TALK_AUDIO;
        if (part->kind == TALK_TEXT)
            str_put(out, part->text.s ? part->text.s : "", part->text.n);
        else if (pictures && (sound || part->kind == TALK_IMAGE))
            str_printf(out, "[%s: %s]\n", sound ? "sound" : "picture",
                       part->text.s ? part->text.s : "without a name");
    }
}
