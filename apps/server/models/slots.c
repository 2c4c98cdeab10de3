/* slots.c - llama-server's POST /slots/N?action=save|restore|erase: the tokens of an idle slot,
 * with their keys, as a file of --slot-save-path, and back. A conversation that begins with them
 * goes on in that slot without computing them again.
 *
 *     connection:      asks the batch, waits, and reads or writes the file
 *     thread of passes: copies between slot and snapshot, between two passes
 */
#include "apps/server/models/info.h"

#include "apps/hub/names.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/request.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A question to the thread of passes, and its answer. */
typedef struct asked {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    carat_status st;
    err e;
    carat_snapshot *p;
    int64_t n;
} asked;

static void take_answer(void *user, carat_status st, const carat_error *e, carat_snapshot *p,
                        int64_t n)
{
    asked *a = user;
    pthread_mutex_lock(&a->lock);
    a->st = st;
    a->e = *e;
    a->p = p;
    a->n = n;
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Asks and waits. A loop of passes that ends answers all questions. */
static status ask(exchange *x, carat_slot_ask *question, asked *a, err *e)
{
    *a = (asked){.done = false};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    question->done = take_answer;
    question->user = a;
    status st = served_ask_slot(x->m, question, e);
    pthread_mutex_lock(&a->lock);
    while (!st && !a->done)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    return st ? st : a->st ? err_set(e, a->st, "%s", a->e.text) : OK;
}

typedef struct slot_request {
    int32_t slot;
    const char *action, *filename;
    str path;
    arena mem;
} slot_request;

/* A name of a file in DIR: no path, so that no request leaves that directory. */
static bool take_filename(exchange *x, slot_request *r, problem *p)
{
    const jtree *body;
    err e = {0};
    const char *dir = x->s->o->slot_dir;
    if (!dir)
        return problem_set(p, 501, "",
                           "this server keeps no slots: start it with --slot-save-path DIR");
    if (jtree_parse(x->body, x->n_body, "the request", 8, &r->mem, &body, &e) ||
        !jtree_is(body, JTREE_OBJECT))
        return problem_set(p, 400, "", "the body is not a JSON object with a filename");
    if (!field_text(p, body, "filename", &r->filename))
        return false;
    if (!r->filename || !file_valid(r->filename) || strchr(r->filename, '/'))
        return problem_set(p, 400, "filename",
                           "filename: expected the name of a file, without a directory");
    str_printf(&r->path, "%s/%s", dir, r->filename);
    return !r->path.bad || problem_set(p, 503, "", "no memory for a path");
}

static bool read_request(exchange *x, slot_request *r, problem *p)
{
    static const char *const actions[] = {"save", "restore", "erase"};
    char *end;
    const char *number = strrchr(x->path, '/') + 1, *action = x->query(x, "action");
    long slot = *number >= '0' && *number <= '9' ? strtol(number, &end, 10) : -1;
    for (size_t i = 0; action && i < sizeof actions / sizeof *actions; i++)
        if (!strcmp(action, actions[i]))
            r->action = actions[i];
    if (slot < 0 || slot >= SLOTS_MAX || *end)
        return problem_set(p, 400, "id", "'%.20s' is no number of a slot", number);
    r->slot = (int32_t)slot;
    if (!r->action)
        return problem_set(p, 400, "action", "?action= is save, restore or erase");
    return !strcmp(r->action, "erase") || take_filename(x, r, p);
}

static void put_result(exchange *x, const slot_request *r, const char *n_key, int64_t n,
                       const char *bytes_key, uint64_t n_bytes, double ms)
{
    str *o = &x->out;
    char key[32];
    json_open(o, NULL, '{');
    json_int(o, "id_slot", r->slot);
    if (r->filename)
        json_text(o, "filename", r->filename);
    json_int(o, n_key, n);
    if (bytes_key) {
        json_int(o, bytes_key, (int64_t)n_bytes);
        snprintf(key, sizeof key, "%s_ms", r->action);
        json_open(o, "timings", '{');
        json_number(o, key, ms);
        json_close(o, "}");
    }
    json_close(o, "}");
    x->status = 200;
}

static status save(exchange *x, const slot_request *r, err *e)
{
    double start = clock_ms();
    carat_slot_ask question = {.slot = r->slot};
    asked a;
    uint64_t n_bytes = 0;
    status st = ask(x, &question, &a, e);
    if (st)
        return st;
    st = served_write_snapshot(x->m, a.p, r->path.at, &n_bytes, e);
    carat_snapshot_free(a.p);
    if (!st)
        put_result(x, r, "n_saved", a.n, "n_written", n_bytes, clock_ms() - start);
    return st;
}

static status restore(exchange *x, const slot_request *r, err *e)
{
    double start = clock_ms();
    carat_snapshot *p;
    asked a;
    uint64_t n_bytes = 0;
    status st = served_read_snapshot(x->m, r->path.at, &p, &n_bytes, e);
    if (st)
        return st;
    carat_slot_ask question = {.slot = r->slot, .restore = p};
    st = ask(x, &question, &a, e);
    carat_snapshot_free(p);
    if (!st)
        put_result(x, r, "n_restored", a.n, "n_read", n_bytes, clock_ms() - start);
    return st;
}

static status erase(exchange *x, const slot_request *r, err *e)
{
    carat_slot_ask question = {.slot = r->slot, .erase = true};
    asked a;
    status st = ask(x, &question, &a, e);
    if (!st)
        put_result(x, r, "n_erased", a.n, NULL, 0, 0);
    return st;
}

void handle_slot(exchange *x)
{
    slot_request r = {0};
    problem p = {0};
    err e = {0};
    if (!exchange_pick_query(x))
        return;
    if (!read_request(x, &r, &p)) {
        reply_problem(x, &p);
    } else if (!strcmp(r.action, "save")      ? save(x, &r, &e)
               : !strcmp(r.action, "restore") ? restore(x, &r, &e)
                                              : erase(x, &r, &e)) {
        problem_from(&p, &e);
        if (!strcmp(r.action, "restore") && (e.status == E_FORMAT || e.status == E_IO))
            p.status = 400; /* the file is wrong, not the server */
        reply_problem(x, &p);
    }
    str_free(&r.path);
    arena_free(&r.mem);
}
