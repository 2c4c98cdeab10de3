/* ranks.c - see ranks.h.
 *
 * The one idea: whose turn it is, is a number under a lock. A rank that meets passes the turn on
 * and waits until it comes back. So when it goes on, all others have met too. The last one of a
 * round copies what was posted, before anybody goes on and overwrites it.
 */
#include "backend/ranks.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* What a rank gives to the others at a meeting, and what it wants of them. The same of all ranks:
 * waits, and whether there are copies. */
typedef struct rank_post {
    /* True: later work of every rank begins after the earlier work of all ranks and after all
     * copies. False: only the two ranks of a copy wait: the copy begins after their earlier work,
     * and their later work begins after the copy. */
    bool waits;
    float *mine[2], *of[RANKS_MAX][2]; /* memory for the others' ops; of the ranks, filled in */
    /* Copies, by the other rank: `give` is copied to that rank, and n_bytes of that rank's `give`
     * are copied to `to`. NULL: nothing. */
    struct rank_copy {
        const void *give;
        void *to;
        size_t n_bytes;
    } with[RANKS_MAX];
} rank_post;

typedef struct rank_thread {
    ranks *of;
    int32_t rank;
    pthread_t thread;
    bool started;
    pthread_cond_t wake; /* its turn has come, or the end */
} rank_thread;

struct ranks {
    int32_t n;
    pthread_mutex_t lock;
    rank_thread at[RANKS_MAX];
    int32_t turn;
    bool running[RANKS_MAX]; /* has not returned from fn */
    bool closing;
    ranks_fn *fn;
    void *arg;
    pass *of;    /* [n] */
    bool direct; /* each rank's ops read the others' memory */
    /* Of rank_sum. cols 0: there are no inboxes. */
    void *inbox[RANKS_MAX];
    device *dev[RANKS_MAX]; /* whose inboxes they are */
    int32_t cols;
    bool apart;   /* each rank has a GPU of its own, and no other model's ranks wait on them */
    bool reached; /* inboxes are memory of the devices */
    /* Of a round: who has met, and with what. Touched by the rank that has its turn. */
    bool met[RANKS_MAX];
    rank_post *post[RANKS_MAX];
};

/* ---- Turns ---------------------------------------------------------------------------------- */

/* With the lock held. */
static void wait_turn(ranks *r, int32_t rank)
{
    while (r->turn != rank && !r->closing)
        pthread_cond_wait(&r->at[rank].wake, &r->lock);
}

/* To the next rank that runs; if there is none, to rank 0, whose ranks_run returns. */
static void pass_on(ranks *r, int32_t rank)
{
    int32_t next = 0;
    for (int32_t i = 1; i <= r->n; i++)
        if (r->running[(rank + i) % r->n]) {
            next = (rank + i) % r->n;
            break;
        }
    r->turn = next;
    pthread_cond_signal(&r->at[next].wake);
}

static void run_turn(ranks *r, int32_t rank)
{
    r->fn(r->arg, rank);
    pthread_mutex_lock(&r->lock);
    r->running[rank] = false;
    pass_on(r, rank);
}

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    ranks *r = t->of;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->closing && !(r->turn == t->rank && r->running[t->rank]))
            pthread_cond_wait(&t->wake, &r->lock);
        if (r->closing)
            break;
        pthread_mutex_unlock(&r->lock);
        run_turn(r, t->rank);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

bool ranks_read_each_other(device *const *dev, int32_t n)
{
    bool all = true;
    for (int32_t i = 0; i < n && all; i++)
        for (int32_t k = 0; k < n && all; k++)
            all = i == k || (dev[i]->line_up && dev[i]->reaches && dev[i]->reaches(dev[i], dev[k]));
    return all;
}

void ranks_run(ranks *r, pass *of, ranks_fn *fn, void *arg)
{
    pthread_mutex_lock(&r->lock);
    r->of = of;
    r->fn = fn;
    r->arg = arg;
    r->turn = 0;
    for (int32_t i = 0; i < r->n; i++) {
        r->running[i] = true;
        r->met[i] = false;
        r->dev[i] = of[i].dev;
    }
    r->direct = ranks_read_each_other(r->dev, r->n);
    pthread_mutex_unlock(&r->lock);
    run_turn(r, 0);
    wait_turn(r, 0); /* the others have returned */
    pthread_mutex_unlock(&r->lock);
}

/* ---- Meetings ------------------------------------------------------------------------------- */

static bool copies_any(const ranks *r)
{
    bool any = false;
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t k = 0; k < r->n; k++)
            any = any || r->post[i]->with[k].to;
    return any;
}

/* What all are given later comes after what all were given so far. False: devices that compute at
 * once are among them. */
static bool line_up(ranks *r)
{
    for (int32_t i = 0; i < r->n; i++)
        if (!r->dev[i]->line_up)
            return false;
    r->dev[0]->line_up(r->dev, r->n);
    return true;
}

/* With `waits`, copies are between two waits of all for all. A wait for each copy would let the two
 * directions of a link go one after the other. */
static void exchange(ranks *r)
{
    const bool copies = copies_any(r), lined = r->post[0]->waits && line_up(r);
    for (int32_t to = 0; to < r->n && copies; to++)
        for (int32_t from = 0; from < r->n; from++) {
            const struct rank_copy *c = &r->post[to]->with[from];
            if (c->to && c->n_bytes)
                pass_carry(&r->of[to], from, c->to, r->post[from]->with[to].give, c->n_bytes,
                           lined ? SEND_UNORDERED : SEND_BEHIND_BOTH);
        }
    if (copies && lined)
        line_up(r);
}

/* Ends a round. If every rank has met, they get what was posted. Otherwise their passes fail. */
static void end_round(ranks *r)
{
    const pass *failed = NULL;
    bool all = true;
    for (int32_t i = 0; i < r->n; i++) {
        failed = !failed && pass_failed(&r->of[i]) ? &r->of[i] : failed;
        all = all && r->met[i];
    }
    for (int32_t i = 0; i < r->n && all; i++)
        for (int32_t k = 0; k < r->n; k++) /* posts are gone when their ranks go on */
            memcpy(r->post[i]->of[k], r->post[k]->mine, sizeof r->post[k]->mine);
    if (all && !failed)
        exchange(r);
    for (int32_t i = 0; i < r->n; i++) {
        pass *p = &r->of[i];
        if (r->met[i] && !pass_failed(p) && failed)
            err_set(&p->e, failed->e.status, "%s", failed->e.text);
        else if (r->met[i] && !pass_failed(p) && !all)
            err_set(&p->e, E_ARG, "layer %d: the ranks of a model do not do the same", p->il);
        r->met[i] = false;
    }
}

static void meet(pass *p, rank_post *post)
{
    ranks *r = p->ranks;
    if (p->dry)
        return;
    const int32_t rank = p->rank;
    bool all = true;
    r->met[rank] = true;
    r->post[rank] = post;
    for (int32_t i = 0; i < r->n; i++)
        all = all && r->met[i];
    if (all)
        end_round(r);
    pthread_mutex_lock(&r->lock);
    pass_on(r, rank);
    wait_turn(r, rank);
    pthread_mutex_unlock(&r->lock);
    if (r->met[rank]) /* somebody has returned without meeting */
        end_round(r);
}

/* ---- Ops ------------------------------------------------------------------------------------ */

static size_t mat_bytes(mat y)
{
    return (size_t)y.rows * (size_t)y.stride * sizeof *y.at;
}

static void count_crossing(pass *p, size_t n_bytes)
{
    if (p->plans)
        p->side[p->here].crossed += n_bytes;
}

void ranks_spread(pass *p, mat y)
{
    const size_t n = mat_bytes(y);
    rank_post post = {0};
    if (p->n_ranks < 2)
        return;
    for (int32_t i = 1; i < p->n_ranks && !p->rank; i++)
        post.with[i].give = y.at;
    if (p->rank) {
        post.with[0] = (struct rank_copy){.to = y.at, .n_bytes = n};
        count_crossing(p, n);
    }
    meet(p, &post);
}

/* A product whose inputs are cut. r NULL: of a matrix; else of experts. */
typedef struct cut_product {
    mat x;
    const weight *w;
    const routing *r;
} cut_product;

/* Columns first .. first + n - 1 of every tile of every row, side by side. */
static mat copy_tiles(pass *p, mat x, int32_t n_tiles, int32_t first, int32_t n)
{
    if (!pass_shapes(p, "matmul", x.stride == x.cols && x.cols % n_tiles == 0))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, n_tiles * n);
    mat from = mat_columns(mat_head_rows(mat_heads(x, x.cols / n_tiles)), first, n);
    if (!pass_failed(p))
        op_copy(p, mat_head_rows(mat_heads(y, n)), from);
    return y;
}

/* The inputs of a segment: columns of every row, or of every tile of every row. Of experts every
 * pair's row is a tile. Segments of whole experts have the same. */
static mat inputs_of(pass *p, const cut_product *c, int32_t segment)
{
    mat x = c->x;
    const int32_t n = c->w->segment[segment].n_in, tiles = c->r ? x.heads : c->w->n_tiles;
    int32_t first = 0;
    if (n == x.cols)
        return x;
    for (int32_t i = 0; i < segment; i++)
        first += c->w->segment[i].n_in;
    if (c->r)
        return mat_heads(copy_tiles(p, mat_flat(x), tiles, first, n), n);
    if (tiles > 1)
        return copy_tiles(p, x, tiles, first / tiles, n / tiles);
    return mat_columns(x, first, n);
}

static mat product(pass *p, const cut_product *c, int32_t segment)
{
    const weight *w = &c->w->segment[segment];
    mat x = inputs_of(p, c, segment);
    return c->r ? op_moe_down(p, x, *c->r, w) : op_matmul(p, x, w);
}

static bool in_one_launch(pass *p, const cut_product *c, const mat *part)
{
    const weight *w = c->w;
    return c->r ? op_moe_down_segments(p, part, c->x, *c->r, w->segment, w->n_segments)
                : op_matmul_segments(p, part, c->x, w->segment, w->n_segments, w->n_tiles);
}

/* Of the rank's segments, each alone, into part[i]. */
static void products_to(pass *p, const cut_product *c, const mat *part)
{
    if (in_one_launch(p, c, part))
        return;
    for (int32_t i = 0; i < c->w->n_segments; i++) {
        const size_t mark = pass_mark(p);
        const mat y = product(p, c, i);
        if (!pass_failed(p))
            op_copy(p, part[i], y);
        pass_release(p, mark);
    }
}

/* The same, wherever it lies. */
static void products(pass *p, const cut_product *c, mat *part)
{
    const int32_t n = c->w->n_segments;
    const size_t mark = pass_mark(p);
    for (int32_t i = 0; i < n; i++)
        part[i] = pass_mat(p, c->x.rows, 1, c->w->segment[i].n_out);
    if ((n > 1 || c->r) && in_one_launch(p, c, part))
        return;
    pass_release(p, mark);
    for (int32_t i = 0; i < n; i++)
        part[i] = product(p, c, i);
}

/* y = the sum of n, in order. Values of v may be gone. */
static void sum(pass *p, mat y, const mat *v, int32_t n)
{
    ordered_sum s = {.n_y = 1, .n_v = n, .y = {y}};
    memcpy(s.v, v, (size_t)n * sizeof *v);
    op_ordered_sum(p, &s);
}

/* The rows of a sum that rank `of` adds up and gives to all. So a rank is sent the sums of some
 * rows by all others, and the results of all other rows: with four ranks 1.5 times its size. Whole
 * sums of the others would be 3 times its size. */
static mat slice_of(const pass *p, mat y, int32_t of)
{
    const int32_t begin = (int32_t)((int64_t)y.rows * of / p->n_ranks),
                  end = (int32_t)((int64_t)y.rows * (of + 1) / p->n_ranks);
    return mat_rows(y, begin, end - begin);
}

/* Each rank's op reads and writes the others' memory. The parts of a rank's own slice need no sum
 * of their own. Of two ranks they come last: v0 + (v1 + v2) has the bits of (v1 + v2) + v0. */
static void sum_where_it_is(pass *p, mat y, const mat *part, int32_t n_parts)
{
    const int32_t first = p->n_ranks == 2 ? !p->rank : 0;
    rank_post post = {.waits = true, .mine = {part[0].at, y.at}};
    ordered_sum s = {.n_y = p->n_ranks};
    for (int32_t i = 0; i < p->n_ranks && n_parts > 1; i++) {
        const mat v[] = {slice_of(p, part[0], i), slice_of(p, part[1], i)};
        if (i != p->rank)
            sum(p, v[0], v, 2);
    }
    meet(p, &post);
    for (int32_t k = 0; k < p->n_ranks; k++) {
        const int32_t i = (first + k) % p->n_ranks;
        mat from = part[0], to = y;
        from.at = post.of[i][0];
        to.at = post.of[i][1];
        s.y[i] = slice_of(p, to, p->rank);
        if (i != p->rank)
            s.v[s.n_v++] = slice_of(p, from, p->rank);
        for (int32_t j = 0; j < n_parts && i == p->rank; j++)
            s.v[s.n_v++] = slice_of(p, part[j], i);
    }
    op_ordered_sum(p, &s);
    meet(p, &(rank_post){.waits = true});
}

/* room: of the other ranks' sums of this rank's slice. */
static void sum_by_copies(pass *p, mat y, const mat *part, int32_t n_parts, mat room)
{
    const mat mine = slice_of(p, y, p->rank);
    rank_post there = {.waits = true}, back = {.waits = true};
    mat v[RANKS_MAX];
    if (n_parts > 1)
        sum(p, part[0], part, n_parts);
    for (int32_t i = 0, n = 0; i < p->n_ranks; i++) {
        const mat given = slice_of(p, part[0], i), result = slice_of(p, y, i);
        v[i] = i == p->rank ? given : mat_rows(room, n++ * mine.rows, mine.rows);
        if (i == p->rank)
            continue;
        there.with[i] = (struct rank_copy){given.at, v[i].at, mat_bytes(mine)};
        back.with[i] = (struct rank_copy){mine.at, result.at, mat_bytes(result)};
    }
    meet(p, &there);
    sum(p, mine, v, p->n_ranks);
    meet(p, &back);
}

/* A second part has room for the other ranks' sums when it has been added to the first. */
static void sum_by_slices(pass *p, mat y, const mat *part, int32_t n_parts)
{
    const int32_t n = (p->n_ranks - 1) * slice_of(p, y, p->rank).rows;
    const mat room = n_parts > 1 ? part[1] : pass_mat(p, n, 1, y.cols);
    if (p->ranks && p->ranks->direct)
        sum_where_it_is(p, y, part, n_parts);
    else
        sum_by_copies(p, y, part, n_parts, room);
}

/* What comes to a rank: whole sums to inboxes, or slices and results. */
static size_t crossing_of(const pass *p, mat y)
{
    const size_t all = mat_bytes(y), mine = mat_bytes(slice_of(p, y, p->rank)),
                 others = (size_t)p->n_ranks - 1;
    return y.rows <= RANK_SUM_ROWS ? others * all : others * mine + all - mine;
}

_Static_assert(sizeof((pass *)NULL)->waiting.part / sizeof(mat) == RANKS_MAX, "a part of each");

static bool has_room(const pass *p, mat y)
{
    const ranks *r = p->ranks;
    return r && r->cols && y.rows <= RANK_SUM_ROWS && y.cols <= r->cols && y.cols % 2 == 0 &&
           p->n_sums < RANK_SUMS_MAX;
}

/* In a recording ranks on GPUs of their own send when they take: one kernel sends, waits for the
 * others' and adds. Without one, all sends are launched before the first take, because a launch may
 * wait for the kernels before it (the runtime loads a kernel at its first launch), and then the
 * others' would never come. Where ranks share a GPU, a kernel that waits may keep the one that it
 * waits for from running: there all have sent before anybody takes. */
static void sum_by_inboxes(pass *p, mat y, const mat *part, int32_t n_parts, mat more)
{
    const ranks *r = p->ranks;
    rank_sum s = {.n_ranks = p->n_ranks,
                  .rank = p->rank,
                  .n_parts = n_parts,
                  .more = more,
                  .cols = r->cols,
                  .index = p->n_sums++,
                  .sends = true,
                  .takes = r->apart && p->recording};
    memcpy(s.part, part, (size_t)n_parts * sizeof *part);
    memcpy(s.inbox, r->inbox, sizeof s.inbox);
    if (!pass_failed(p))
        p->dev->op->sum_ranks(p, y, &s);
    meet(p, &(rank_post){.waits = !r->apart});
    if (s.takes || pass_failed(p))
        return;
    s.sends = false;
    s.takes = true;
    p->dev->op->sum_ranks(p, y, &s);
}

/* The sum of all ranks' parts, in y or in part[0], and `more` where it has memory. */
static mat sum_of_all(pass *p, mat y, const mat *part, int32_t n_parts, mat more)
{
    const bool by_inboxes = p->n_ranks > 1 && has_room(p, y);
    if (p->n_ranks > 1)
        count_crossing(p, crossing_of(p, y));
    if (by_inboxes)
        sum_by_inboxes(p, y, part, n_parts, more);
    else if (p->n_ranks > 1)
        sum_by_slices(p, y, part, n_parts);
    else if (n_parts > 1)
        sum(p, y, part, n_parts);
    else
        y = part[0];
    if (more.at && !by_inboxes)
        sum(p, y, (mat[]){y, more}, 2);
    return y;
}

/* Two branches of a layer take one sum: the parts of the first have room for those of the second
 * beside them. A dry pass plans for it, because it takes more scratch than two sums. */
static bool may_wait(const pass *p, const cut_product *c)
{
    const mat both = {.rows = c->x.rows, .heads = 1, .cols = 2 * c->w->segment->n_out};
    return c->w->sum_waits && p->n_ranks > 1 && both.rows <= RANK_SUM_ROWS &&
           (p->dry || has_room(p, both));
}

/* The result is there after the next sum. */
static mat wait_for_next(pass *p, const cut_product *c)
{
    const int32_t n = c->w->n_segments, cols = c->w->segment->n_out;
    mat part[RANKS_MAX] = {{0}};
    p->waiting.y = pass_mat(p, c->x.rows, 1, 2 * cols);
    for (int32_t i = 0; i < n; i++) {
        p->waiting.part[i] = pass_mat(p, c->x.rows, 1, 2 * cols);
        part[i] = mat_columns(p->waiting.part[i], 0, cols);
    }
    const size_t mark = pass_mark(p);
    products_to(p, c, part);
    pass_release(p, mark);
    return mat_columns(p->waiting.y, 0, cols);
}

static mat sum_with_waiting(pass *p, const cut_product *c)
{
    const int32_t n = c->w->n_segments, cols = c->w->segment->n_out;
    const mat y = p->waiting.y;
    mat part[RANKS_MAX] = {{0}};
    if (!pass_shapes(p, "a sum of two branches", y.rows == c->x.rows && y.cols == 2 * cols))
        return (mat){0};
    for (int32_t i = 0; i < n; i++)
        part[i] = mat_columns(p->waiting.part[i], cols, cols);
    const size_t mark = pass_mark(p);
    products_to(p, c, part);
    sum_of_all(p, y, p->waiting.part, n, (mat){0});
    pass_release(p, mark);
    p->waiting.y.rows = 0;
    return mat_columns(y, cols, cols);
}

static mat sum_over_ranks(pass *p, const cut_product *c)
{
    if (may_wait(p, c))
        return wait_for_next(p, c);
    if (p->waiting.y.rows)
        return sum_with_waiting(p, c);
    const int32_t n = c->w->n_segments;
    mat y = pass_mat(p, c->x.rows, 1, c->w->segment->n_out), part[RANKS_MAX] = {{0}};
    const size_t mark = pass_mark(p);
    products(p, c, part);
    y = sum_of_all(p, y, part, n, (mat){0});
    if (p->n_ranks > 1 || n > 1) /* else y is part[0] */
        pass_release(p, mark);
    return y;
}

mat ranks_matmul(pass *p, mat x, const weight *w)
{
    bool fits = x.heads == 1 && x.cols == w->n_in && w->n_segments <= RANKS_MAX;
    if (!pass_shapes(p, "matmul", fits))
        return (mat){0};
    return sum_over_ranks(p, &(cut_product){x, w, NULL});
}

mat ranks_moe_down(pass *p, mat x, routing r, const weight *down)
{
    bool fits = x.heads == r.k && x.cols == down->n_in && x.rows == r.rows;
    if (!pass_shapes(p, "moe_down", fits && down->n_segments <= RANKS_MAX))
        return (mat){0};
    return sum_over_ranks(p, &(cut_product){x, down, &r});
}

bool ranks_mixture(pass *p, mat *y, mat x, const mixture *m)
{
    const int32_t n = m->down->n_segments, cols = m->down->segment->n_out;
    mat part[RANKS_MAX] = {{0}}, shared = {0};
    if (p->dry || !pass_shapes(p, "mixture", n <= RANKS_MAX))
        return false;
    *y = pass_mat(p, x.rows, 1, cols);
    const size_t mark = pass_mark(p);
    if (m->shared_gate)
        shared = pass_mat(p, x.rows, 1, cols);
    for (int32_t i = 0; i < n; i++)
        part[i] = pass_mat(p, x.rows, 1, cols);
    if (pass_failed(p) || !p->dev->op->mixture(p, shared, x, m, part))
        return pass_failed(p);
    const mat sum = sum_of_all(p, *y, part, n, shared);
    if (sum.at != y->at)
        *y = sum;
    else
        pass_release(p, mark);
    return true;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Some ranks are apart. Their kernels wait on the GPU, and those behind them hold room there. Two
 * models that do so on the same GPUs could wait for each other's room for ever. */
static atomic_flag some_apart = ATOMIC_FLAG_INIT;

static void close_inboxes(ranks *r)
{
    if (r->apart)
        atomic_flag_clear(&some_apart);
    r->apart = false;
    for (int32_t i = 0; i < r->n; i++)
        if (r->inbox[i])
            r->dev[i]->close_inbox(r->dev[i], r->inbox[i], rank_inbox_bytes(r->n, r->cols),
                                   r->reached);
    memset(r->inbox, 0, sizeof r->inbox);
    r->cols = 0;
}

status ranks_open(ranks **out, int32_t n, err *e)
{
    ranks *r = mem_calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return err_memory(e, "the ranks of a model", sizeof *r);
    r->n = n;
    pthread_mutex_init(&r->lock, NULL);
    for (int32_t i = 0; i < n; i++) {
        rank_thread *t = &r->at[i];
        *t = (rank_thread){.of = r, .rank = i};
        pthread_cond_init(&t->wake, NULL);
    }
    for (int32_t i = 1; i < n; i++) {
        rank_thread *t = &r->at[i];
        t->started = pthread_create(&t->thread, NULL, rank_main, t) == 0;
        if (!t->started) {
            ranks_close(r);
            return err_set(e, E_LIMIT, "no thread for rank %d of a model on %d devices", i, n);
        }
    }
    *out = r;
    return OK;
}

bool ranks_have_own_gpus(device *const *dev, int32_t n)
{
    bool own = true;
    for (int32_t i = 1; i < n; i++)
        for (int32_t k = 0; k < i; k++)
            own = own && dev[i]->number != dev[k]->number;
    return own;
}

status ranks_open_inboxes(ranks *r, device *const *dev, int32_t cols, err *e)
{
    const size_t n_bytes = rank_inbox_bytes(r->n, cols);
    if (r->n < 2 || !dev[0]->open_inbox)
        return OK;
    r->reached = ranks_read_each_other(dev, r->n);
    r->apart = ranks_have_own_gpus(dev, r->n) && !atomic_flag_test_and_set(&some_apart);
    for (int32_t i = 0; i < r->n; i++) {
        r->dev[i] = dev[i];
        if (!(r->inbox[i] = dev[i]->open_inbox(dev[i], n_bytes, r->reached))) {
            close_inboxes(r);
            return err_memory(e, "sums of the ranks of a model", n_bytes);
        }
        r->cols = cols; /* close_inboxes needs the size of the inboxes that are open */
    }
    return OK;
}

void ranks_close(ranks *r)
{
    if (!r)
        return;
    close_inboxes(r);
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    for (int32_t i = 0; i < r->n; i++)
        pthread_cond_signal(&r->at[i].wake);
    pthread_mutex_unlock(&r->lock);
    for (int32_t i = 0; i < r->n; i++) {
        if (r->at[i].started)
            pthread_join(r->at[i].thread, NULL);
        pthread_cond_destroy(&r->at[i].wake);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
