/* batch_slots.c - what a caller does with the tokens of an idle slot: takes them, puts others
 * there, forgets them; and their snapshots as files.
 *
 *     any thread:      carat_batch_ask_slot queues a question
 *     stepping thread: answers it before the next pass, by done
 *
 * A question about a slot at work waits for the end of its job. Files are read and written by the
 * caller's thread, so answers of other slots go on meanwhile.
 */
#include "engine/batch_int.h"
#include "engine/disk.h"
#include "engine/engine_int.h"
#include "base/mem.h"
#include "kv/snapshot_file.h"

#include <sys/stat.h>

struct slot_question {
    slot_question *next;
    carat_slot_ask ask;
};

carat_status carat_batch_ask_slot(carat_batch *b, const carat_slot_ask *ask, carat_error *e)
{
    if (ask->slot < 0 || ask->slot >= b->n_slots)
        return err_set(e, E_ARG, "there is no slot %d: the batch has %d, from 0 on", ask->slot,
                       b->n_slots);
    slot_question *q = mem_calloc(1, sizeof *q);
    if (!q)
        return err_memory(e, "a question about a slot", sizeof *q);
    q->ask = *ask;
    pthread_mutex_lock(&b->lock);
    slot_question **at = &b->questions;
    while (*at)
        at = &(*at)->next;
    *at = q;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return OK;
}

/* The first question whose slot is idle, taken out of the list; NULL: there is none. */
static slot_question *next_question(carat_batch *b)
{
    slot_question *q, **at = &b->questions;
    pthread_mutex_lock(&b->lock);
    while (*at && b->slot[(*at)->ask.slot].job)
        at = &(*at)->next;
    if ((q = *at))
        *at = q->next;
    pthread_mutex_unlock(&b->lock);
    return q;
}

static void answer(carat_batch *b, const carat_slot_ask *ask)
{
    timeline *t = &b->slot[ask->slot].t;
    carat_snapshot *taken = NULL;
    int64_t n = t->kv.n_past;
    err e = {0};
    status st = OK;
    if (ask->erase)
        timeline_reset(t);
    else if (ask->restore)
        st = snapshot_restore(t, ask->restore, &e);
    else if (t->kv.n_paged_out)
        st = err_set(&e, E_LIMIT,
                     "the keys of slot %d left the pool before its job was cancelled, and did not "
                     "come back",
                     ask->slot);
    else
        st = snapshot_take(t, &taken, &e);
    if (ask->restore)
        n = t->kv.n_past;
    ask->done(ask->user, st, &e, taken, st ? 0 : n);
}

bool slots_answer(carat_batch *b)
{
    slot_question *q;
    bool any = false;
    while ((q = next_question(b))) {
        answer(b, &q->ask);
        mem_free(q);
        any = true;
    }
    return any;
}

void slots_refuse(carat_batch *b)
{
    err e = {0};
    status st = err_set(&e, E_CANCELLED, "the batch was closed");
    while (b->questions) { /* no other thread uses a batch that closes */
        slot_question *q = b->questions;
        b->questions = q->next;
        q->ask.done(q->ask.user, st, &e, NULL, 0);
        mem_free(q);
    }
}

/* ---- Files --------------------------------------------------------------------------------- */

static status identify(const carat_batch *b, kv_file_id *id, err *e)
{
    *id = (kv_file_id){0};
    status st = disk_identity(&b->m->core, id->model, e);
    kv_layout_words(&b->layout, &id->layout);
    return st ? st : id->layout.bad ? err_memory(e, "a snapshot's head", id->layout.n) : OK;
}

carat_status carat_batch_write_snapshot(const carat_batch *b, const carat_snapshot *p,
                                        const char *path, uint64_t *n_bytes, carat_error *e)
{
    kv_file_id id;
    const kv_snapshot *k = snapshot_rows(p);
    if (k->way.lora)
        return err_set(
            e, E_UNSUPPORTED,
            "these tokens were computed with adapters (--lora), and such snapshots become "
            "no files");
    if (k->way.lossy || k->paging)
        return err_set(e, E_UNSUPPORTED,
                       "these tokens were computed while keys were left out (--kv-pool, --sparse), "
                       "and such snapshots become no files");
    for (int64_t i = 0; i < k->n; i++)
        if (k->ids[i] < 0)
            return err_set(e, E_UNSUPPORTED,
                           "token %lld is of a picture or a sound, whose rows no file of a slot "
                           "holds",
                           (long long)i);
    status st = identify(b, &id, e);
    if (!st)
        st = kv_snapshot_write(k, path, &id, n_bytes, e);
    str_free(&id.layout);
    return st;
}

carat_status carat_batch_read_snapshot(const carat_batch *b, const char *path, carat_snapshot **p,
                                       uint64_t *n_bytes, carat_error *e)
{
    kv_file_id id;
    struct stat sb;
    kv_snapshot *k = NULL;
    *p = NULL;
    if (lstat(path, &sb)) /* a link may lead out of the directory */
        return err_errno(e, "open", path);
    if (!S_ISREG(sb.st_mode))
        return err_set(e, E_ARG, "%s: not a regular file", path);
    status st = identify(b, &id, e);
    if (!st)
        st = kv_snapshot_read(path, &id, &b->layout, &k, e);
    for (int64_t i = 0; !st && i < k->n; i++)
        if (k->ids[i] < 0 || k->ids[i] >= b->m->core.n_vocab)
            st = err_set(e, E_FORMAT, "%s: token %lld is none of the model's", path, (long long)i);
    if (st) {
        kv_snapshot_drop(k);
        k = NULL;
    }
    if (!st)
        st = snapshot_of(b->m, k, p, e);
    str_free(&id.layout);
    if (!st)
        *n_bytes = (uint64_t)sb.st_size;
    return st;
}
