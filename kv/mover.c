/* mover.c - see mover.h.
 *
 * Memory comes in slabs of several pages, because page-locking many small blocks is slow. A slab
 * without copies is kept for the next ones; a second one is given back.
 *
 *     slab  [c][c][ ][c]   [ ][ ][ ][ ]      free: the places of [ ]
 */
#include "kv/mover.h"
#include "backend/page_moves.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOVES = 32, /* on their way at a time, on a device that moves beside its passes */
    SLAB_BYTES = 16 << 20,
    SLAB_PAGES = 64,
    PAGES_FROM = 1 << 20 /* larger blocks come straight from the kernel */
};

typedef struct slab {
    unsigned char *at;
    int32_t n, n_used; /* pages */
} slab;

typedef struct kv_mover {
    page_moves *moves[PASS_SIDES_MAX]; /* NULL: a side without linear stores */
    size_t n_bytes[PASS_SIDES_MAX];    /* of its part of a copy */
    size_t page_bytes;
    int32_t n_moves;
    bool async;      /* a device copies beside its passes */
    bool reading;    /* copies may be on their way to a device */
    int64_t most;    /* copies in memory; < 0: any number */
    device *pin_dev; /* locks the slabs; NULL: plain memory */
    slab *slab;
    int32_t n_slabs, slabs_cap;
    unsigned char **free; /* [n_free] */
    int64_t n_memory, n_free, free_cap;
    /* The file: slot i is at (i - 1) * page_bytes. */
    int fd; /* -1: none yet */
    char *dir;
    int64_t most_slots, n_slots, n_file, n_slots_free, slots_cap;
    int32_t *slot_free; /* [n_slots_free] */
    uint64_t *hash;     /* [n_slots] */
    unsigned char *way; /* a page between the file and a device; NULL: no file yet */
    int64_t n_out, n_in;
} kv_mover;

/* ---- Opening ------------------------------------------------------------------------------ */

static bool is_async(const device *d)
{
    return device_bare(d)->page_moves != NULL;
}

static int32_t moves_of(const device *d)
{
    return is_async(d) ? MOVES : 1;
}

/* The streams of a side's linear stores; returns their number. base may be NULL. */
static int32_t list_stores(const kv_layout *l, const kv_base *base, int32_t side, row_store *to)
{
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        if (v->window || v->side != side)
            continue;
        const kv_base none = {0}, *b = base ? &base[i] : &none;
        to[n++] = (row_store){b->k, v->k_row_bytes, v->n_head_kv, v->n_slots, NULL};
        if (v->v_row_bytes)
            to[n++] = (row_store){b->v, v->v_row_bytes, v->n_head_kv, v->n_slots, NULL};
    }
    return n;
}

static size_t side_bytes(const kv_layout *l, int32_t side)
{
    size_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const kv_view *v = &l->view[i];
        if (!v->window && v->side == side)
            n += KV_PAGE * (size_t)v->n_head_kv * (v->k_row_bytes + v->v_row_bytes);
    }
    return n;
}

static status open_sides(kv_pool *p, kv_mover *m, err *e)
{
    const kv_layout *l = p->layout;
    row_store *store = mem_calloc(2 * (size_t)l->n, sizeof *store);
    status st = store ? OK : err_memory(e, "moves of pages", 2 * (size_t)l->n * sizeof *store);
    m->n_moves = MOVES;
    for (int32_t side = 0; side < PASS_SIDES_MAX && !st; side++) {
        int32_t n = list_stores(l, p->base, side, store);
        if (!n)
            continue;
        int32_t n_moves = moves_of(p->dev[side]);
        m->n_moves = n_moves < m->n_moves ? n_moves : m->n_moves;
        m->async |= is_async(p->dev[side]);
        m->n_bytes[side] = side_bytes(l, side);
        m->page_bytes += m->n_bytes[side];
        st = page_moves_open(&m->moves[side], p->dev[side], store, n, n_moves, e);
    }
    mem_free(store);
    return st;
}

status kv_mover_open(kv_pool *p, const kv_mover_want *w, err *e)
{
    status st;
    if (!p->layout->n_pool_pages)
        return OK;
    kv_mover *m = p->mover = mem_calloc(1, sizeof *m);
    if (!m)
        return err_memory(e, "moves of pages", sizeof *m);
    m->fd = -1;
    m->pin_dev = p->dev[PASS_MAIN]->host_alloc ? p->dev[PASS_MAIN] : NULL;
    st = open_sides(p, m, e);
    m->most = w->host_bytes < 0 || !m->page_bytes ? -1 : w->host_bytes / (int64_t)m->page_bytes;
    if (!st && w->dir) {
        m->dir = mem_strdup(w->dir);
        m->most_slots = m->page_bytes ? w->file_bytes / (int64_t)m->page_bytes : 0;
        m->most_slots = m->most_slots < INT32_MAX ? m->most_slots : INT32_MAX - 1;
        st = m->dir ? OK : err_memory(e, "moves of pages", strlen(w->dir));
    }
    if (st)
        kv_mover_close(p);
    return st;
}

static size_t slab_bytes(const kv_mover *m, const slab *s)
{
    return (size_t)s->n * m->page_bytes;
}

static void free_slab(kv_mover *m, slab *s)
{
    if (slab_bytes(m, s) < PAGES_FROM)
        mem_free(s->at);
    else if (m->pin_dev)
        m->pin_dev->host_free(m->pin_dev, s->at, slab_bytes(m, s));
    else
        mem_pages_free(s->at, slab_bytes(m, s));
}

void kv_mover_close(kv_pool *p)
{
    kv_mover *m = p->mover;
    if (!m)
        return;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        page_moves_close(m->moves[side]);
    for (int32_t i = 0; i < m->n_slabs; i++)
        free_slab(m, &m->slab[i]);
    if (m->fd >= 0)
        close(m->fd);
    mem_free(m->way);
    mem_free(m->hash);
    mem_free(m->slot_free);
    mem_free(m->dir);
    mem_free(m->free);
    mem_free(m->slab);
    mem_free(m);
    p->mover = NULL;
}

void kv_mover_get_info(const kv_pool *p, kv_mover_info *info)
{
    const kv_mover *m = p->mover;
    *info = (kv_mover_info){0};
    if (m)
        *info = (kv_mover_info){.n_memory = m->n_memory,
                                .n_file = m->n_file,
                                .n_out = m->n_out,
                                .n_in = m->n_in,
                                .page_bytes = m->page_bytes};
}

int64_t kv_mover_room(const kv_pool *p)
{
    const kv_mover *m = p->mover;
    return !m || m->most < 0 ? -1 : m->most - m->n_memory + m->most_slots - m->n_file;
}

/* ---- Places for copies in memory ----------------------------------------------------------- */

/* Room in a list of n for `more`. */
static bool grow(void **list, int64_t *cap, int64_t n, int64_t more, size_t size)
{
    if (n + more <= *cap)
        return true;
    int64_t next = n + more + *cap / 2;
    void *at = mem_realloc(*list, (size_t)next, size);
    if (!at)
        return false;
    *list = at;
    *cap = next;
    return true;
}

static bool add_slab(kv_mover *m)
{
    int64_t all = 0, n = (int64_t)(SLAB_BYTES / m->page_bytes), slabs_cap = m->slabs_cap;
    void *slabs = m->slab, *places = m->free;
    for (int32_t i = 0; i < m->n_slabs; i++)
        all += m->slab[i].n;
    n = n < 1 ? 1 : n > SLAB_PAGES ? SLAB_PAGES : n;
    if (m->most >= 0 && n > m->most - all)
        n = m->most - all;
    if (n < 1 || !grow(&slabs, &slabs_cap, m->n_slabs, 1, sizeof *m->slab))
        return false;
    m->slab = slabs;
    m->slabs_cap = (int32_t)slabs_cap;
    /* All places of all slabs may be free at once, so that freeing one allocates nothing. */
    bool listed = grow(&places, &m->free_cap, all, n, sizeof *m->free);
    m->free = places;
    if (!listed)
        return false;
    slab s = {.n = (int32_t)n};
    size_t n_bytes = slab_bytes(m, &s);
    s.at = n_bytes < PAGES_FROM ? mem_alloc(n_bytes)
           : m->pin_dev         ? m->pin_dev->host_alloc(m->pin_dev, n_bytes)
                                : mem_pages(n_bytes);
    if (!s.at)
        return false;
    m->slab[m->n_slabs++] = s;
    for (int64_t i = n - 1; i >= 0; i--)
        m->free[m->n_free++] = s.at + (size_t)i * m->page_bytes;
    return true;
}

static slab *slab_of(kv_mover *m, const unsigned char *at)
{
    for (int32_t i = 0; i < m->n_slabs; i++)
        if (at >= m->slab[i].at && at < m->slab[i].at + slab_bytes(m, &m->slab[i]))
            return &m->slab[i];
    return NULL;
}

static unsigned char *take_memory(kv_mover *m)
{
    if (!m->n_free && !add_slab(m))
        return NULL;
    unsigned char *at = m->free[--m->n_free];
    slab_of(m, at)->n_used++;
    m->n_memory++;
    return at;
}

/* Gives slab i back, none of whose places is in use. */
static void remove_slab(kv_mover *m, int32_t i)
{
    const slab s = m->slab[i];
    int64_t left = 0;
    for (int64_t k = 0; k < m->n_free; k++)
        if (m->free[k] < s.at || m->free[k] >= s.at + slab_bytes(m, &s))
            m->free[left++] = m->free[k];
    m->n_free = left;
    free_slab(m, &m->slab[i]);
    m->slab[i] = m->slab[--m->n_slabs];
}

static void free_memory(kv_mover *m, unsigned char *at)
{
    slab *s = slab_of(m, at);
    int32_t n_idle = 0;
#ifdef CARAT_DEBUG
    memset(at, 0xff, m->page_bytes); /* NaN: no copy is read after its release */
#endif
    m->free[m->n_free++] = at;
    m->n_memory--;
    if (--s->n_used)
        return;
    for (int32_t i = 0; i < m->n_slabs; i++)
        n_idle += !m->slab[i].n_used;
    if (n_idle > 1)
        remove_slab(m, (int32_t)(s - m->slab));
}

/* ---- The file ------------------------------------------------------------------------------ */

static status open_file(kv_mover *m, err *e)
{
    char path[4096];
    if (!m->way && !(m->way = mem_aligned(64, (m->page_bytes + 63) / 64 * 64)))
        return err_memory(e, "a page of keys and values", m->page_bytes);
    if (m->fd >= 0)
        return OK;
    m->fd = open(m->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (m->fd >= 0)
        return OK;
    snprintf(path, sizeof path, "%s/pages.XXXXXX", m->dir); /* a file system that cannot */
    m->fd = mkstemp(path);
    if (m->fd < 0)
        return err_errno(e, "making a file for pages of keys and values in", m->dir);
    unlink(path);
    fcntl(m->fd, F_SETFD, FD_CLOEXEC);
    return OK;
}

static int32_t take_slot(kv_mover *m)
{
    if (m->n_slots_free)
        return m->slot_free[--m->n_slots_free];
    void *hash = m->hash, *list = m->slot_free;
    int64_t cap = m->slots_cap, list_cap = m->slots_cap;
    bool grown = grow(&hash, &cap, m->n_slots, 1, sizeof *m->hash);
    m->hash = hash;
    if (!grown)
        return 0;
    grown = grow(&list, &list_cap, m->n_slots, 1, sizeof *m->slot_free);
    m->slot_free = list;
    if (!grown)
        return 0;
    m->slots_cap = cap < list_cap ? cap : list_cap;
    return (int32_t)++m->n_slots;
}

static status write_all(const kv_mover *m, int32_t slot, err *e)
{
    off_t at = (off_t)(slot - 1) * (off_t)m->page_bytes;
    for (size_t done = 0; done < m->page_bytes;) {
        ssize_t n = pwrite(m->fd, m->way + done, m->page_bytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return err_errno(e, "writing a page of keys and values in", m->dir);
        done += (size_t)n;
    }
    return OK;
}

static status read_all(const kv_mover *m, int32_t slot, unsigned char *to, err *e)
{
    off_t at = (off_t)(slot - 1) * (off_t)m->page_bytes;
    for (size_t done = 0; done < m->page_bytes;) {
        ssize_t n = pread(m->fd, to + done, m->page_bytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return err_errno(e, "reading a page of keys and values in", m->dir);
        done += (size_t)n;
    }
    if (hash64(to, m->page_bytes) != m->hash[slot - 1])
        return err_set(e, E_FORMAT, "%s: the file with pages of keys and values there is damaged",
                       m->dir);
    return OK;
}

/* From m->way. */
static status write_slot(kv_mover *m, int32_t *slot, err *e)
{
    status st;
    if (!(*slot = take_slot(m)))
        return err_memory(e, "the list of pages in a file", (size_t)m->n_slots);
    if ((st = write_all(m, *slot, e))) {
        m->slot_free[m->n_slots_free++] = *slot;
        *slot = 0;
        return st;
    }
    m->hash[*slot - 1] = hash64(m->way, m->page_bytes);
    m->n_file++;
    return OK;
}

/* ---- Copies -------------------------------------------------------------------------------- */

/* Waits for copies on their way to the devices: what they read may change now. */
static void end_reads(kv_mover *m)
{
    for (int32_t side = 0; side < PASS_SIDES_MAX && m->reading; side++)
        for (int32_t i = 0; m->moves[side] && i < m->n_moves; i++)
            page_move_state(m->moves[side], i, true);
    m->reading = false;
}

void kv_copy_drop(kv_pool *p, kv_copy *c)
{
    kv_mover *m = p->mover;
    if (c->at) {
        end_reads(m);
        free_memory(m, c->at);
    } else if (c->slot) {
        m->slot_free[m->n_slots_free++] = c->slot;
        m->n_file--;
    }
    *c = (kv_copy){0};
}

/* A place for a copy: in memory, or *at is m->way, for the file. */
static status take_place(kv_mover *m, unsigned char **at, err *e)
{
    bool spent = m->most >= 0 && m->n_memory >= m->most;
    *at = NULL;
    if (!spent) {
        *at = take_memory(m);
        return *at ? OK : err_memory(e, "a page of keys and values", m->page_bytes);
    }
    if (!m->dir || m->n_file >= m->most_slots)
        return err_set(e, E_LIMIT,
                       "a page of keys and values must leave the device, and host memory for pages "
                       "is full: %lld pages of %.2f MiB%s",
                       (long long)m->n_memory, (double)m->page_bytes * 0x1p-20,
                       m->dir ? " (--kv-host-mb), and the directory (--kv-cache-mb)"
                              : " (--kv-host-mb); --kv-cache-dir would take more");
    end_reads(m);
    status st = open_file(m, e);
    *at = st ? NULL : m->way;
    return st;
}

/* The place has its bytes. */
static status fill_copy(kv_mover *m, unsigned char *at, kv_copy *c, err *e)
{
    status st = OK;
    if (at != m->way)
        c->at = at;
    else
        st = write_slot(m, &c->slot, e);
    return st;
}

static void give_place_back(kv_mover *m, unsigned char *at)
{
    if (at && at != m->way)
        free_memory(m, at);
}

/* A page on its way to the host. */
typedef struct outgoing {
    unsigned char *at;
    int32_t move[PASS_SIDES_MAX];
} outgoing;

/* Ends the moves; false: one of them failed. */
static bool end_out(kv_mover *m, outgoing *o)
{
    bool moved = true;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        if (!m->moves[side])
            continue;
        if (o->move[side] < 0) {
            moved = false;
            continue;
        }
        moved &= page_move_state(m->moves[side], o->move[side], true) == PAGE_MOVED;
        page_move_end(m->moves[side], o->move[side]);
    }
    return moved;
}

/* Moves from now on come after all passes so far. */
static status begin_moves(kv_mover *m, err *e)
{
    bool begun = true;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        begun &= !m->moves[side] || page_moves_begin(m->moves[side]);
    return begun ? OK : err_set(e, E_IO, "pages of keys and values cannot be moved");
}

static status begin_out(kv_mover *m, int32_t page, outgoing *o, err *e)
{
    unsigned char *to;
    bool begun = true;
    status st = take_place(m, &o->at, e);
    if (st)
        return st;
    to = o->at;
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        o->move[side] = -1;
        if (!m->moves[side])
            continue;
        if (begun) {
            o->move[side] = page_out(m->moves[side], page * KV_PAGE, to);
            if (o->move[side] < 0) { /* copies to the device may have all moves */
                end_reads(m);
                o->move[side] = page_out(m->moves[side], page * KV_PAGE, to);
            }
            begun = o->move[side] >= 0;
        }
        to += m->n_bytes[side];
    }
    if (begun)
        return OK;
    end_out(m, o);
    give_place_back(m, o->at);
    return err_set(e, E_IO, "a page of keys and values cannot be copied to the host");
}

static status finish_out(kv_mover *m, outgoing *o, kv_copy *c, err *e)
{
    status st = end_out(m, o)
                    ? fill_copy(m, o->at, c, e)
                    : err_set(e, E_IO, "a page of keys and values was not copied to the host");
    if (st)
        give_place_back(m, o->at);
    else
        m->n_out++;
    return st;
}

status kv_move_out(kv_pool *p, const kv_move *v, int32_t n, int32_t *n_done, err *e)
{
    kv_mover *m = p->mover;
    outgoing on_way[MOVES];
    int32_t begun = 0, ended = 0;
    status st = begin_moves(m, e), ends;
    *n_done = 0;
    while (ended < n && (!st || ended < begun)) {
        /* The way to the file is for one page. */
        bool free_way = begun == ended || on_way[(begun - 1) % MOVES].at != m->way;
        if (!st && begun < n && begun - ended < m->n_moves && free_way) {
            st = begin_out(m, v[begun].page, &on_way[begun % MOVES], e);
            begun += !st;
            continue;
        }
        if (ended == begun)
            break;
        outgoing *o = &on_way[ended % MOVES];
        ends = finish_out(m, o, v[ended].copy, st ? NULL : e);
        st = st ? st : ends;
        if (!ends && ended == *n_done)
            ++*n_done;
        else if (!ends) /* behind one that failed */
            kv_copy_drop(p, v[ended].copy);
        ended++;
    }
    return st;
}

static status move_one_in(kv_mover *m, const kv_move *v, err *e)
{
    const unsigned char *from = v->copy->at;
    status st;
    if (v->copy->slot) {
        end_reads(m);
        if ((st = open_file(m, e)) || (st = read_all(m, v->copy->slot, m->way, e)))
            return st;
        from = m->way;
    }
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++) {
        page_moves *s = m->moves[side];
        if (!s)
            continue;
        int32_t move = page_in(s, v->page * KV_PAGE, from);
        if (move < 0) {
            end_reads(m);
            move = page_in(s, v->page * KV_PAGE, from);
        }
        m->reading |= m->async;
        if (move < 0)
            return err_set(e, E_IO, "a page of keys and values cannot be copied to the device");
        page_move_end(s, move);
        from += m->n_bytes[side];
    }
    m->n_in++;
    return OK;
}

status kv_move_in(kv_pool *p, const kv_move *v, int32_t n, int32_t *n_done, err *e)
{
    kv_mover *m = p->mover;
    status st = begin_moves(m, e);
    bool joined = true;
    for (*n_done = 0; *n_done < n && !st; *n_done += !st)
        st = move_one_in(m, &v[*n_done], e);
    for (int32_t side = 0; side < PASS_SIDES_MAX; side++)
        joined &= !m->moves[side] || page_moves_join(m->moves[side]);
    if (joined)
        return st;
    end_reads(m); /* their places are free again */
    *n_done = 0;
    return st ? st : err_set(e, E_IO, "pages of keys and values do not come to the device");
}

size_t kv_packed_keys(const kv_pool *p, int32_t i)
{
    const kv_mover *m = p->mover;
    const kv_view *view = p->layout->view;
    size_t at = 0;
    for (int32_t side = 0; side < view[i].side; side++)
        at += m->n_bytes[side];
    for (int32_t k = 0; k < i; k++)
        if (!view[k].window && view[k].side == view[i].side)
            at += KV_PAGE * (size_t)view[k].n_head_kv * (view[k].k_row_bytes + view[k].v_row_bytes);
    return at;
}

status kv_copy_read(kv_pool *p, const kv_copy *c, unsigned char *to, err *e)
{
    kv_mover *m = p->mover;
    if (c->slot)
        return read_all(m, c->slot, to, e);
    memcpy(to, c->at, m->page_bytes);
    return OK;
}
