/* media_work.c - rows of pictures and sounds: the passes of towers, and who waits for them.
 *
 * A tower on a GPU runs on the thread of passes, between two of them: they share the GPU. While
 * somebody is answered, a batch has it make one part at a time, a picture or a piece of a sound:
 * several would make a long pause between two tokens. A tower on the CPU takes seconds. It has a
 * device of its own, whose threads give way to those of passes, and runs on the worker, which a
 * batch asks. So its other answers go on meanwhile.
 */
#include "base/mem.h"
#include "base/pool.h"
#include "engine/media_int.h"

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Have the towers a device of their own, so that they may run beside passes? */
static bool runs_apart(const media *x)
{
    return x->dev && x->dev == x->own;
}

/* The item's next part, into item.making: the picture, or a piece of the sound. */
static status encode_part(carat_model *m, media_item *it, err *e)
{
    media *x = m->media;
    size_t n = media_rows_bytes(m, it);
    if (!(it->sound.n_pieces ? x->ears.loaded : x->loaded))
        return err_set(e, E_ARG, "%s: its weights are parked", x->tower.file.path);
    if (!it->making && !(it->making = mem_alloc(n)))
        return err_memory(e, "the embeddings of a picture or sound", n);
    status st = it->sound.n_pieces ? ears_encode(&x->ears, &it->sound, it->n_made, it->patches,
                                                 x->room, x->room_bytes, it->making, e)
                                   : vision_encode(&x->tower, x->dev, &it->grid, it->patches,
                                                   x->room, x->room_bytes, it->making, e);
    it->n_made += !st;
    return st;
}

/* Makes a part of the rows, if there are none; *whole: there are now. The item has a user and
 * patches. Under the lock of passes, or where the tower runs apart. */
static status make_part(carat_model *m, media_item *it, bool *whole, err *e)
{
    media *x = m->media;
    status st = OK;
    if (x->before_work)
        x->before_work(x->before_user);
    pthread_mutex_lock(&x->work);
    pthread_mutex_lock(&x->lock);
    *whole = it->rows;
    pthread_mutex_unlock(&x->lock);
    if (!*whole && !(st = encode_part(m, it, e)) && it->n_made >= it->sound.n_pieces) {
        pthread_mutex_lock(&x->lock);
        it->rows = it->making;
        it->making = NULL;
        x->row_bytes += media_rows_bytes(m, it);
        media_drop_patches(x, it);
        media_drop_rows(m, MEDIA_ROWS_BYTES);
        pthread_mutex_unlock(&x->lock);
        *whole = true;
    }
    pthread_mutex_unlock(&x->work);
    return st;
}

static status make_rows(carat_model *m, media_item *it, err *e)
{
    bool whole = false;
    status st = OK;
    while (!whole && !(st = make_part(m, it, &whole, e)))
        continue;
    return st;
}

void media_leave(carat_model *m, media_item **held, int32_t *n)
{
    for (; *n > 0; --*n)
        media_drop_user(m->media, held[*n - 1]);
}

status media_rows(carat_model *m, const int32_t *ids, int32_t n, soft_run *run, media_item **held,
                  err *e)
{
    media *x = m->media;
    status st = OK;
    if (!media_has_id(m, ids[0]))
        return err_set(e, E_ARG, "id %d is that of no picture", ids[0]);
    pthread_mutex_lock(&x->lock);
    media_item *it = media_span_of(x, ids[0])->item;
    bool has_rows = it && it->rows, has_patches = it && it->patches;
    if (it) {
        it->used = ++x->clock;
        it->n_users++;
    }
    pthread_mutex_unlock(&x->lock);
    if (!has_rows)
        st = has_patches ? make_rows(m, it, e)
                         : err_set(e, E_ARG,
                                   "a picture or sound of the prompt is no longer in memory: it "
                                   "has to be given again");
    if (!st) {
        int32_t at = it->first - ids[0], most = it->grid.n_tokens - at;
        run->part = (int64_t)it->grid.n_tokens * m->core.n_embd;
        run->at = it->rows + (size_t)at * (size_t)m->core.n_embd;
        for (run->n = 1; run->n < n && run->n < most && ids[run->n] == ids[0] - run->n;)
            run->n++;
    }
    if (st && it)
        media_drop_user(x, it);
    if (!st)
        *held = it;
    return st;
}

/* The next item at ids[*i] or after it whose tower has to run, or has not ended, with one more
 * user; *i moves behind it. NULL: there is none. */
static media_item *next_new(carat_model *m, const int32_t *ids, int64_t n, int64_t *i)
{
    media *x = m->media;
    media_item *found = NULL;
    while (x && *i < n && !found) {
        int32_t id = ids[(*i)++];
        if (!media_has_id(m, id))
            continue;
        pthread_mutex_lock(&x->lock);
        media_item *it = media_span_of(x, id)->item;
        if (it && (it->is_wanted || (it->patches && !it->rows))) {
            it->n_users++;
            found = it;
        }
        pthread_mutex_unlock(&x->lock);
        while (it && *i < n && ids[*i] == ids[*i - 1] - 1 &&
               it->first - ids[*i] < it->grid.n_tokens)
            ++*i;
    }
    return found;
}

status media_await(carat_model *m, const int32_t *ids, int64_t n, err *e)
{
    status st = OK;
    int64_t i = 0;
    bool apart = m->media && runs_apart(m->media);
    for (media_item *it; apart && !st && (it = next_new(m, ids, n, &i));) {
        st = make_rows(m, it, e);
        media_drop_user(m->media, it);
    }
    return st;
}

/* ---- The worker ---------------------------------------------------------------------------- */

static void *work(void *arg)
{
    carat_model *m = arg;
    media *x = m->media;
    pool_be_nice(MEDIA_NICE);
    pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        media_item *it = x->wanted;
        if (!it) {
            pthread_cond_wait(&x->more, &x->lock);
            continue;
        }
        x->wanted = it->next_wanted;
        it->tried = ++x->clock;
        it->st = OK;
        bool used = it->n_users > 1; /* by others than the queue */
        pthread_mutex_unlock(&x->lock);
        err e = {0};
        status st = used ? make_rows(m, it, &e) : OK;
        err *why = st ? mem_alloc(sizeof *why) : NULL;
        if (why)
            *why = e;
        pthread_mutex_lock(&x->lock);
        it->is_wanted = false;
        it->st = st;
        mem_free(it->why);
        it->why = why;
        media_drop_user_locked(
            x, it); /* before anyone goes on: whether it is forgotten is no matter of timing */
        for (media_waker *w = x->wakers; w; w = w->next)
            w->fn(w->user);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* Under the lock. */
static status start_worker(carat_model *m, err *e)
{
    media *x = m->media;
    if (x->has_worker)
        return OK;
    if (pthread_create(&x->worker, NULL, work, m))
        return err_set(e, E_MEMORY, "cannot start a thread for a tower");
    x->has_worker = true;
    return OK;
}

/* Asks the worker for an item's rows, unless it is asked already; or tells the failure of an
 * attempt that began after *since, which 0 becomes now. The item has a user of the caller. */
static status want(carat_model *m, media_item *it, uint64_t *since, err *e)
{
    media *x = m->media;
    pthread_mutex_lock(&x->lock);
    *since = *since ? *since : x->clock + 1;
    status st = it->tried >= *since ? it->st : OK;
    if (st && it->why)
        *e = *it->why;
    else if (st)
        err_set(e, st, "a picture or sound cannot be encoded");
    if (!st && !it->is_wanted && !it->rows && !(st = start_worker(m, e))) {
        media_item **last = &x->wanted;
        while (*last)
            last = &(*last)->next_wanted;
        it->next_wanted = NULL;
        *last = it;
        it->is_wanted = true;
        it->n_users++;
        pthread_cond_signal(&x->more);
    }
    pthread_mutex_unlock(&x->lock);
    return st;
}

status media_ask(carat_model *m, const int32_t *ids, int64_t n, uint64_t *since, bool *ready,
                 err *e)
{
    status st = OK;
    int64_t i = 0;
    bool apart = m->media && runs_apart(m->media);
    *ready = true;
    for (media_item *it; apart && !st && (it = next_new(m, ids, n, &i));) {
        *ready = false;
        st = want(m, it, since, e);
        media_drop_user(m->media, it);
    }
    return st;
}

status media_make_one(carat_model *m, const int32_t *ids, int64_t n, bool *may, bool *ready, err *e)
{
    int64_t i = 0;
    bool whole;
    status st = OK;
    media_item *it = m->media && !runs_apart(m->media) ? next_new(m, ids, n, &i) : NULL;
    if (it && *may) {
        *may = false;
        pthread_mutex_lock(&m->pass_lock);
        st = make_part(m, it, &whole, e);
        pthread_mutex_unlock(&m->pass_lock);
        media_drop_user(m->media, it);
        i = 0;
        it = st ? NULL : next_new(m, ids, n, &i);
    }
    *ready = !st && !it;
    if (it)
        media_drop_user(m->media, it);
    return st;
}

void media_add_waker(carat_model *m, media_waker *w)
{
    media *x = m->media;
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    w->next = x->wakers;
    x->wakers = w;
    pthread_mutex_unlock(&x->lock);
}

void media_remove_waker(carat_model *m, media_waker *w)
{
    media *x = m->media;
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    for (media_waker **at = &x->wakers; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    pthread_mutex_unlock(&x->lock);
}

void media_end_work(media *x)
{
    if (!x->has_worker)
        return;
    pthread_mutex_lock(&x->lock);
    x->stop = true;
    pthread_cond_signal(&x->more);
    pthread_mutex_unlock(&x->lock);
    pthread_join(x->worker, NULL);
}

void media_before_work(carat_model *m, void (*fn)(void *user), void *user)
{
    m->media->before_work = fn;
    m->media->before_user = user;
}
