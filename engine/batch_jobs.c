/* batch_jobs.c - jobs of a batch from the queue into slots, and out again.
 *
 * A job goes to the idle slot that has the longest prefix of its prompt. One whose prefix a running
 * job is computing waits for it.
 */
#include "engine/batch_int.h"
#include "base/clock.h"

#include <string.h>

enum { WAIT_GAIN = 16 /* shared tokens that make waiting for another job worthwhile */ };

/* The idle slot for j: the slot with the longest usable prefix, if that prefix is at least as long
 * as the rest of the slot's timeline, which the job would overwrite; else the slot unused for the
 * longest time. */
static slot *slot_for(carat_batch *b, const job *j)
{
    slot *best = NULL, *oldest = NULL;
    int64_t most = 0;
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        if (s->job)
            continue;
        int64_t usable = j->anew ? 0 : timeline_usable(&s->t, job_way(j), j->ids, j->n);
        if (usable > most && usable >= s->t.kv.n_past - usable) {
            most = usable;
            best = s;
        }
        if (!oldest || s->used_at < oldest->used_at)
            oldest = s;
    }
    return best ? best : oldest;
}

/* Running jobs whose timelines share a prefix with j's prompt save a checkpoint of it. */
static void ask_others(carat_batch *b, const slot *s, const job *j)
{
    for (int32_t i = 0; b->store && !j->anew && i < b->n_slots; i++) {
        slot *o = &b->slot[i];
        if (o->job && o != s && kv_same_way(timeline_way(&o->t), job_way(j)))
            timeline_offer(&o->t, j->ids, j->n, timeline_usable(&s->t, job_way(j), j->ids, j->n));
    }
}

void begin_job(carat_batch *b, slot *s, job *j)
{
    err e = {0};
    ask_others(b, s, j);
    for (int64_t i = j->first; i < j->n; i++)
        j->pictures = j->ids[i - j->first] < 0 ? i + 1 : j->pictures;
    s->job = j;
    s->answering = s->previewed = s->alone = false;
    s->used_at = b->n_steps;
    status st = timeline_use(&s->t, j->sparse, &j->lora, &e);
    if (!st && j->class->begin)
        st = j->class->begin(s, &e);
    else if (!st && j->anew)
        timeline_restart(&s->t);
    else if (!st)
        timeline_prepare(&s->t, j->ids, j->n);
    report_prompt(&j->r, j->n, &s->t);
    s->n_reused = s->t.kv.n_past;
    s->due = b->n_prompt_rows + j->n - s->n_reused;
    pthread_mutex_lock(&b->lock);
    b->running[s - b->slot] = j->id;
    if (j->cancelled)
        atomic_store(&s->cancel, true);
    b->admitted = NULL;
    b->info.n_busy++;
    b->info.n_jobs++;
    b->info.n_prompt += (uint64_t)j->n;
    b->info.n_reused += (uint64_t)s->t.kv.n_past;
    pthread_mutex_unlock(&b->lock);
    if (st)
        end_job(b, s, st, &e);
}

void end_job(carat_batch *b, slot *s, status st, err *e)
{
    job *j = s->job;
    s->used_at = b->n_steps;
    if (s->t.kv.n_paged_out) /* it ends while it waits: not worth bringing back */
        timeline_reset(&s->t);
    st = j->class->end ? j->class->end(s, st, e) : st;
    s->job = NULL;
    pthread_mutex_lock(&b->lock);
    b->info.n_tiles += j->r.t.n_tiles;
    b->info.n_tiles_kept += j->r.t.n_tiles_kept;
    b->info.n_sparse += j->r.t.sparse != NULL;
    b->running[s - b->slot] = 0;
    atomic_store(&s->cancel, false); /* one that came meanwhile was for this job */
    b->info.n_busy--;
    b->shown[s - b->slot] = (carat_slot_info){.n_past = s->t.kv.n_past};
    pthread_mutex_unlock(&b->lock);
    job_done(j, st, e);
}

/* True if a running job is computing a prefix that j's prompt shares, so that waiting saves at
 * least WAIT_GAIN tokens. Requests for several answers to one prompt arrive together. */
static bool better_wait(const carat_batch *b, const job *j)
{
    for (int32_t i = 0; b->store && !j->anew && i < b->n_slots; i++) {
        slot *o = &b->slot[i];
        if (!o->job || o->answering || o->job->vector || !kv_same_way(job_way(o->job), job_way(j)))
            continue;
        int64_t at = o->t.kv.n_past, same = at, most = o->job->n < j->n ? o->job->n : j->n;
        if (at > most || memcmp(o->job->ids, j->ids, (size_t)at * sizeof *j->ids))
            continue;
        while (same < most && o->job->ids[same] == j->ids[same])
            same++;
        if (same - at < WAIT_GAIN)
            continue;
        timeline_stop_at(&o->t, same < j->n ? same : j->n - 1);
        return true;
    }
    return false;
}

static bool is_cancelled(carat_batch *b, const job *j)
{
    (void)b;
    return j->cancelled;
}

static bool may_begin(carat_batch *b, const job *j)
{
    return !better_wait(b, j) && admission_allows(b, j);
}

/* Removes the first job that satisfies as_asked from the queue. NULL: there is none. */
static job *take_queued(carat_batch *b, bool (*as_asked)(carat_batch *b, const job *j))
{
    pthread_mutex_lock(&b->lock);
    job **at = &b->head;
    while (*at && !as_asked(b, *at))
        at = &(*at)->next;
    job *j = *at;
    if (j) {
        *at = j->next;
        if (!j->next)
            b->tail = at;
        j->next = NULL;
        b->admitted = j;
        b->info.n_queued--;
    }
    pthread_mutex_unlock(&b->lock);
    return j;
}

static bool any_idle(const carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++)
        if (!b->slot[i].job)
            return true;
    return false;
}

bool admit_jobs(carat_batch *b, double most_ms)
{
    const double start = clock_ms();
    job *j;
    while ((j = take_queued(b, is_cancelled))) {
        err e = {0};
        pthread_mutex_lock(&b->lock);
        b->admitted = NULL;
        pthread_mutex_unlock(&b->lock);
        err_set(&e, E_CANCELLED, "cancelled while waiting for a slot");
        job_done(j, E_CANCELLED, &e);
    }
    for (;;) {
        admission_begin_search(b);
        if (!any_idle(b) || !(j = take_queued(b, may_begin)))
            return false;
        report_waited(&j->r);
        begin_job(b, slot_for(b, j), j);
        if (clock_ms() - start > most_ms)
            return true;
    }
}

void end_cancelled(carat_batch *b)
{
    for (int32_t i = 0; i < b->n_slots; i++) {
        slot *s = &b->slot[i];
        err e = {0};
        if (!s->job || !atomic_load_explicit(&s->cancel, memory_order_relaxed))
            continue;
        err_set(&e, E_CANCELLED, "cancelled after %lld of %lld prompt tokens",
                (long long)s->t.kv.n_past, (long long)s->job->n);
        end_job(b, s, E_CANCELLED, &e);
    }
}
