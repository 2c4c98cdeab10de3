/* stored.c - see stored.h. */
#include "apps/server/answers/stored.h"

#include "apps/jsonw.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/str.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };

typedef struct node node;
struct node {
    node *newer, *older; /* of the listed ones, by use */
    node *chain;         /* of its bucket */
    node *parent;        /* the response before it, or NULL */
    int32_t n_refs;      /* one while it is listed, one of each child */
    int32_t owner;
    bool listed, background, running;
    char id[ID_BYTES];
    double made_ms;
    str object, input, output;
};

struct stored {
    stored_limits lim;
    pthread_mutex_t lock;
    node *bucket[BUCKETS];
    node *newest, *oldest;
    int64_t count;  /* listed */
    uint64_t bytes; /* of all nodes */
};

status stored_open(stored **out, const stored_limits *lim, err *e)
{
    stored *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "the stored responses", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->lim = *lim;
    return OK;
}

static uint64_t size_of(const node *n)
{
    return sizeof *n + n->object.cap + n->input.cap + n->output.cap;
}

/* Frees a node that nobody needs, and those before it that only it needed. */
static void drop(stored *s, node *n)
{
    while (n && --n->n_refs == 0) {
        node *parent = n->parent;
        s->bytes -= size_of(n);
        str_free(&n->object);
        str_free(&n->input);
        str_free(&n->output);
        mem_free(n);
        n = parent;
    }
}

static node **bucket_of(stored *s, const char *id)
{
    uint32_t h = 2166136261u; /* FNV-1a; ids are random */
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 16777619u;
    return &s->bucket[h % BUCKETS];
}

static void link_newest(stored *s, node *n)
{
    n->older = s->newest;
    n->newer = NULL;
    *(s->newest ? &s->newest->newer : &s->oldest) = n;
    s->newest = n;
}

static void unlink_use(stored *s, node *n)
{
    *(n->newer ? &n->newer->older : &s->newest) = n->older;
    *(n->older ? &n->older->newer : &s->oldest) = n->newer;
}

static void unlist(stored *s, node *n)
{
    node **at = bucket_of(s, n->id);
    while (*at != n)
        at = &(*at)->chain;
    *at = n->chain;
    unlink_use(s, n);
    n->listed = false;
    s->count--;
    drop(s, n);
}

void stored_close(stored *s)
{
    if (!s)
        return;
    while (s->oldest)
        unlist(s, s->oldest);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* Finding is use. Too old ones go here; the others in make_room. */
static node *find(stored *s, int32_t owner, const char *id)
{
    node *n = *bucket_of(s, id);
    while (n && (n->owner != owner || strcmp(n->id, id) != 0))
        n = n->chain;
    if (n && clock_ms() - n->made_ms > STORED_DAYS * 86400e3) {
        unlist(s, n);
        return NULL;
    }
    if (n) {
        unlink_use(s, n);
        link_newest(s, n);
    }
    return n;
}

static void keep(stored *s)
{
    node *newer;
    for (node *n = s->oldest; n && (s->count > s->lim.count || s->bytes > s->lim.bytes);
         n = newer) {
        newer = n->newer;
        if (!n->running)
            unlist(s, n);
    }
}

/* Behind items that are there. */
static bool add(str *to, const str *from)
{
    json_ready(to, NULL, str_text(from), from->n);
    return !to->bad;
}

/* What its request adds to the conversation. */
static bool add_input(stored *s, node *n, const stored_response *r)
{
    n->parent = r->previous ? find(s, r->owner, r->previous) : NULL;
    if (n->parent)
        n->parent->n_refs++;
    return (!r->previous || n->parent || add(&n->input, r->before)) && add(&n->input, r->input);
}

/* What a running response is now. Without memory it goes. */
static void put_again(stored *s, const stored_response *r)
{
    str object = {0}, output = {0};
    pthread_mutex_lock(&s->lock);
    node *n = find(s, r->owner, r->id);
    if (n && n->running) {
        s->bytes -= size_of(n);
        bool ok = add(&object, r->object) && add(&output, r->output) &&
                  (n->parent || n->input.n || add_input(s, n, r));
        str_free(&n->object);
        str_free(&n->output);
        n->object = object;
        n->output = output;
        n->running = r->running;
        s->bytes += size_of(n);
        if (ok)
            keep(s);
        else
            unlist(s, n);
    }
    pthread_mutex_unlock(&s->lock);
}

void stored_put(stored *s, const stored_response *r)
{
    if (r->again) {
        put_again(s, r);
        return;
    }
    node *n = mem_calloc(1, sizeof *n);
    if (!n)
        return;
    pthread_mutex_lock(&s->lock);
    bool ok = strlen(r->id) < sizeof n->id && add(&n->object, r->object) && add_input(s, n, r) &&
              add(&n->output, r->output);
    n->n_refs = 1;
    s->bytes += size_of(n);
    if (ok) {
        node **at = bucket_of(s, r->id);
        memcpy(n->id, r->id, strlen(r->id) + 1);
        n->owner = r->owner;
        n->background = r->background;
        n->running = r->running;
        n->made_ms = clock_ms();
        n->chain = *at;
        *at = n;
        n->listed = true;
        s->count++;
        link_newest(s, n);
        keep(s);
    } else {
        drop(s, n);
    }
    pthread_mutex_unlock(&s->lock);
}

bool stored_get(stored *s, int32_t owner, const char *id, str *object)
{
    pthread_mutex_lock(&s->lock);
    const node *n = find(s, owner, id);
    if (n)
        str_put(object, str_text(&n->object), n->object.n);
    pthread_mutex_unlock(&s->lock);
    return n != NULL;
}

bool stored_remove(stored *s, int32_t owner, const char *id)
{
    pthread_mutex_lock(&s->lock);
    node *n = find(s, owner, id);
    if (n)
        unlist(s, n);
    pthread_mutex_unlock(&s->lock);
    return n != NULL;
}

/* The state is the object's fourth member (api_responses.c); the members before it hold no text of
 * a client. */
static bool say_cancelled(str *object)
{
    static const char key[] = "\"status\":\"";
    str o = {0};
    const char *text = str_text(object), *at = strstr(text, key);
    const char *end = at ? strchr(at + sizeof key - 1, '"') : NULL;
    if (!end)
        return false;
    str_put(&o, text, (size_t)(at - text) + sizeof key - 1);
    str_puts(&o, "cancelled");
    str_puts(&o, end);
    if (o.bad) {
        str_free(&o);
        return false;
    }
    str_free(object);
    *object = o;
    return true;
}

stored_end stored_cancel(stored *s, int32_t owner, const char *id, str *object)
{
    stored_end end = STORED_NONE;
    pthread_mutex_lock(&s->lock);
    node *n = find(s, owner, id);
    if (n && !n->background) {
        end = STORED_NO_BACKGROUND;
    } else if (n && !n->running) {
        end = STORED_OVER;
    } else if (n) {
        s->bytes -= size_of(n);
        object->bad |= !say_cancelled(&n->object);
        s->bytes += size_of(n);
        n->running = object->bad;
        end = STORED_CANCELLED;
    }
    if (end >= STORED_OVER)
        str_put(object, str_text(&n->object), n->object.n);
    pthread_mutex_unlock(&s->lock);
    return end;
}

bool stored_runs(stored *s, int32_t owner, const char *id)
{
    pthread_mutex_lock(&s->lock);
    const node *n = find(s, owner, id);
    bool runs = n && n->running;
    pthread_mutex_unlock(&s->lock);
    return runs;
}

/* The links lead from the newest to the oldest, and the items are wanted the other way round. */
bool stored_items(stored *s, int32_t owner, const char *id, bool output, str *items)
{
    pthread_mutex_lock(&s->lock);
    node *last = find(s, owner, id), **path;
    size_t n = 0;
    if (last && output && last->running)
        last = NULL;
    for (node *i = last; i; i = i->parent)
        n++;
    path = last ? mem_calloc(n, sizeof(node *)) : NULL;
    items->bad |= last && !path;
    size_t k = n;
    for (node *i = path ? last : NULL; i; i = i->parent)
        path[--k] = i;
    for (; path && k < n; k++) {
        json_ready(items, NULL, str_text(&path[k]->input), path[k]->input.n);
        if (output || path[k] != last)
            json_ready(items, NULL, str_text(&path[k]->output), path[k]->output.n);
    }
    mem_free(path);
    pthread_mutex_unlock(&s->lock);
    return last != NULL;
}

/* Which of the sorted ids this is, or n. */
static size_t place_of(const char *const *ids, size_t n, const char *id)
{
    const char *const *at = bsearch(&id, ids, n, sizeof *ids, order_texts);
    return at ? (size_t)(at - ids) : n;
}

/* Does the text name one of the ids as somebody's "id"? It may be no item's. */
static bool may_have(const str *text, const char *const *ids, size_t n)
{
    static const char mark[] = "\"id\":\"";
    const char *at = str_text(text), *end = at + text->n;
    while ((at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
        char id[128];
        at += sizeof mark - 1;
        const char *quote = memchr(at, '"', (size_t)(end - at));
        if (!quote)
            return false;
        size_t length = (size_t)(quote - at);
        if (length >= sizeof id)
            continue;
        memcpy(id, at, length);
        id[length] = 0;
        if (place_of(ids, n, id) < n)
            return true;
    }
    return false;
}

/* Takes the wanted items out of a list of items. found: [n]. */
static void take_items(const str *text, const char *const *ids, size_t n, bool *found, str *items)
{
    arena mem = {.max_bytes = arena_limit_for(text->n)};
    str list = {0};
    const jtree *all;
    err e = {0};
    if (!text->n || !may_have(text, ids, n))
        return;
    json_open(&list, NULL, '[');
    json_ready(&list, NULL, text->at, text->n);
    json_close(&list, "]");
    if (!list.bad &&
        !jtree_parse(list.at, list.n, "the items", REQUEST_MAX_DEPTH, &mem, &all, &e)) {
        for (const jtree *v = all->first; v; v = v->next) {
            const jtree *id = jtree_get(v, "id");
            size_t i = jtree_is(id, JTREE_STRING) ? place_of(ids, n, id->s) : n;
            if (i == n || found[i])
                continue;
            found[i] = true;
            json_tree(items, NULL, v);
        }
    }
    items->bad |= list.bad;
    str_free(&list);
    arena_free(&mem);
}

void stored_find_items(stored *s, int32_t owner, const char *const *ids, size_t n, str *items)
{
    bool *found = mem_calloc(n + 1, sizeof *found);
    items->bad |= !found;
    if (!found)
        return;
    pthread_mutex_lock(&s->lock);
    for (const node *i = s->newest; i; i = i->older)
        if (i->owner == owner) {
            take_items(&i->output, ids, n, found, items);
            take_items(&i->input, ids, n, found, items);
        }
    pthread_mutex_unlock(&s->lock);
    mem_free(found);
}

void stored_count(stored *s, int64_t *count, uint64_t *bytes)
{
    pthread_mutex_lock(&s->lock);
    *count = s->count;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
}
