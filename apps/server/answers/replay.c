/* replay.c - see replay.h. A table of buckets, and a list from the oldest to the newest. */
#include "apps/server/answers/replay.h"

#include "base/arena.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKETS = 4096,
    BYTES_MAX = 64 << 20, /* of all calls: about 100000 of them */
    DEPTH_MAX = 80,       /* of JSON: the limit of a request, and some more */
    MEMBERS_MAX = 1024    /* larger objects count as different: comparing takes quadratic time */
};

typedef struct call {
    struct call *next;  /* in the bucket */
    struct call *newer; /* in the list */
    uint64_t hash;
    size_t n_bytes;
    int64_t n;
    int32_t *ids;
    char *name, *arguments;
    char id[]; /* all in one piece of memory */
} call;

struct replay {
    pthread_mutex_t lock;
    call *bucket[BUCKETS];
    call *oldest, *newest;
    size_t n_bytes;
};

status replay_open(replay **out, err *e)
{
    replay *r = mem_calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return err_memory(e, "the memory of calls", sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    return OK;
}

void replay_close(replay *r)
{
    if (!r)
        return;
    for (call *c = r->oldest, *next; c; c = next) {
        next = c->newer;
        mem_free(c);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static uint64_t hash_of_id(const char *s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a; the ids are random */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
    return h;
}

static void forget_oldest(replay *r)
{
    call *c = r->oldest, **at = &r->bucket[c->hash % BUCKETS];
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    r->oldest = c->newer;
    if (!r->oldest)
        r->newest = NULL;
    r->n_bytes -= c->n_bytes;
    mem_free(c);
}

void replay_put(replay *r, const char *id, const char *name, const char *arguments,
                const int32_t *ids, int64_t n)
{
    size_t n_id = strlen(id) + 1, n_name = strlen(name) + 1, n_args = strlen(arguments) + 1;
    size_t text = (sizeof(call) + n_id + 7) & ~(size_t)7;
    size_t bytes = text + (size_t)n * sizeof *ids + n_name + n_args;
    if (bytes > BYTES_MAX / 16)
        return;
    call *c = mem_alloc(bytes);
    if (!c)
        return; /* the prompt is computed again: slower, but correct */
    char *at = (char *)c + text;
    *c = (call){.hash = hash_of_id(id), .n_bytes = bytes, .n = n, .ids = (int32_t *)(void *)at};
    memcpy(c->id, id, n_id);
    memcpy(c->ids, ids, (size_t)n * sizeof *ids);
    c->name = at + (size_t)n * sizeof *ids;
    memcpy(c->name, name, n_name);
    c->arguments = c->name + n_name;
    memcpy(c->arguments, arguments, n_args);

    pthread_mutex_lock(&r->lock);
    c->next = r->bucket[c->hash % BUCKETS];
    r->bucket[c->hash % BUCKETS] = c;
    if (r->newest)
        r->newest->newer = c;
    else
        r->oldest = c;
    r->newest = c;
    r->n_bytes += bytes;
    while (r->n_bytes > BYTES_MAX)
        forget_oldest(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Is it still the same call? ---- */

static bool same_value(const jtree *a, const jtree *b);

static bool same_members(const jtree *a, const jtree *b)
{
    if (a->count != b->count || a->count > MEMBERS_MAX)
        return false;
    for (const jtree *i = a->first; i; i = i->next) {
        const jtree *k = b->first;
        while (k && (k->n_key != i->n_key || memcmp(k->key, i->key, i->n_key)))
            k = k->next;
        if (!k || !same_value(i, k))
            return false;
    }
    return true;
}

/* The same value, whatever the order of members and the spelling of numbers. */
static bool same_value(const jtree *a, const jtree *b)
{
    bool na = a->kind == JTREE_INTEGER || a->kind == JTREE_REAL;
    bool nb = b->kind == JTREE_INTEGER || b->kind == JTREE_REAL;
    if (na && nb)
        return (a->n == b->n && !memcmp(a->s, b->s, a->n)) ||
               (strtod(a->s, NULL) == strtod(b->s, NULL) && a->n < 16 && b->n < 16);
    if (a->kind != b->kind)
        return false;
    if (a->kind == JTREE_STRING)
        return a->n == b->n && !memcmp(a->s, b->s, a->n);
    if (a->kind == JTREE_OBJECT)
        return same_members(a, b);
    if (a->kind != JTREE_ARRAY)
        return true;
    if (a->count != b->count)
        return false;
    const jtree *k = b->first;
    for (const jtree *i = a->first; i; i = i->next, k = k->next)
        if (!same_value(i, k))
            return false;
    return true;
}

static bool same_call(const call *c, const talk_call *said, arena *mem)
{
    const jtree *given = said->arguments, *ours;
    if (!said->name.s || strcmp(said->name.s, c->name) || !given)
        return false;
    if (given->kind == JTREE_STRING &&
        jtree_parse(given->s, given->n, "arguments", DEPTH_MAX, mem, &given, NULL))
        return false;
    return !jtree_parse(c->arguments, strlen(c->arguments), "arguments", DEPTH_MAX, mem, &ours,
                        NULL) &&
           same_value(given, ours);
}

static const call *find_call(const replay *r, const char *id)
{
    uint64_t h = hash_of_id(id);
    const call *c = r->bucket[h % BUCKETS];
    while (c && (c->hash != h || strcmp(c->id, id)))
        c = c->next;
    return c;
}

/* ---- Prompts ---- */

typedef struct ids_out {
    int32_t *at;
    int64_t n, cap;
} ids_out;

static bool append_ids(ids_out *o, const int32_t *ids, int64_t n)
{
    if (o->n + n > o->cap) {
        int64_t cap = (o->n + n) * 2;
        int32_t *more = mem_realloc(o->at, (size_t)cap, sizeof *more);
        if (!more)
            return false;
        o->at = more;
        o->cap = cap;
    }
    if (n)
        memcpy(o->at + o->n, ids, (size_t)n * sizeof *ids);
    o->n += n;
    return true;
}

static int64_t next_mark(const int32_t *ids, int64_t from, int64_t n, int32_t mark)
{
    while (from < n && ids[from] != mark)
        from++;
    return from;
}

/* The calls of all messages, in order; NULL for unknown ones. The marks in the prompt have the same
 * order, because only the template writes marks. */
static const call **calls_of(const replay *r, const carat_talk *t, arena *mem, int64_t *n)
{
    size_t count = 0;
    *n = 0;
    for (size_t i = 0; i < t->n; i++)
        count += t->turn[i].n_calls;
    const call **out = arena_array(mem, count + 1, sizeof *out);
    for (size_t i = 0; i < t->n && out; i++)
        for (size_t k = 0; k < t->turn[i].n_calls; k++, ++*n) {
            const talk_call *c = &t->turn[i].call[k];
            const call *known = c->id.s ? find_call(r, c->id.s) : NULL;
            if (known && same_call(known, c, mem))
                out[*n] = known;
        }
    return out;
}

/* Marks before the calls' belong to the template's text about tools. */
static int64_t marks_before_calls(const replay_prompt *p, int64_t n_calls)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++)
        n += p->ids[i] == p->open;
    return n - n_calls;
}

static bool rebuild(const call **calls, int64_t n_calls, const replay_prompt *p, ids_out *o)
{
    const int32_t *ids = p->ids;
    int64_t n = p->n;
    int64_t at = 0, i = 0, skip = marks_before_calls(p, n_calls);
    bool ok = skip >= 0;
    while (ok && at < n) {
        int64_t from = next_mark(ids, at, n, p->open);
        ok = append_ids(o, ids + at, from - at);
        at = from;
        if (from == n || !ok)
            break;
        if (skip-- > 0) {
            ok = append_ids(o, ids + at++, 1);
            continue;
        }
        int64_t to = next_mark(ids, from, n, p->close);
        if (to == n || i >= n_calls)
            return false; /* the marks do not match the calls */
        const call *c = calls[i++];
        ok = c ? append_ids(o, c->ids, c->n) : append_ids(o, ids + from, to + 1 - from);
        at = to + 1;
    }
    return ok && i == n_calls;
}

int32_t *replay_apply(replay *r, const replay_prompt *p, int64_t *n_out)
{
    arena mem = {.max_bytes = p->talk->mem->max_bytes};
    ids_out o = {0};
    int64_t n_calls;
    bool any = false;
    if (next_mark(p->ids, 0, p->n, p->open) == p->n)
        return NULL;
    pthread_mutex_lock(&r->lock);
    const call **calls = calls_of(r, p->talk, &mem, &n_calls);
    for (int64_t i = 0; calls && i < n_calls; i++)
        any |= calls[i] != NULL;
    bool ok = any && rebuild(calls, n_calls, p, &o);
    pthread_mutex_unlock(&r->lock);
    arena_free(&mem);
    if (!ok) {
        mem_free(o.at);
        return NULL;
    }
    *n_out = o.n;
    return o.at;
}
