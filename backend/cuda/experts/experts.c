/* experts.c - experts of which only some have a place on the device (backend/experts.h): which are
 * where, from pass to pass. experts_int.h has the records.
 */
#include "backend/cuda/experts/experts_int.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum {
    STREAM_PAIRS = 2,  /* a prompt's pairs of row and expert per expert, from which on it streams */
    COUNTED_PASSES = 4 /* the host reads the counts after so many passes */
};

/* ---- Tables -------------------------------------------------------------------------------- */

static void put_entry(cuda_experts *x, const pool_layer *l, int32_t expert)
{
    const uint8_t *to =
        expert_slots_has(&l->map, expert) ? slot_at(l, l->map.slot[expert]) : host_at(l, expert);
    x->table_now[l->first + expert] = distance(l, to);
    x->table_changed = true;
}

/* The second table: the experts of a layer without slots in its stage, in ascending order. Those
 * that it has no room for are read from the host. */
static void put_stages(cuda_experts *x)
{
    int64_t *to = x->table_now + x->n_all;
    for (int32_t i = 0; i < x->n; i++) {
        const pool_layer *l = &x->layer[i];
        size_t at = 0;
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            bool staged = !expert_slots_has(&l->map, k) && at + l->bytes <= x->stage_bytes;
            to[l->first + k] =
                staged ? distance(l, x->stage[i & 1] + at) : x->table_now[l->first + k];
            at += staged ? l->bytes : 0;
        }
    }
    x->table_changed = true;
}

static bool send_tables(cuda_device *c, cuda_experts *x)
{
    size_t n_bytes = 2 * (size_t)x->n_all * sizeof(int64_t);
    int turn = x->table_turn++ % TABLE_BUFFERS;
    if (!cuda_await_event(c, NULL, x->table_sent[turn], "tables of experts"))
        return false;
    memcpy(x->table_host[turn], x->table_now, n_bytes);
    x->table_changed = false;
    return cuda_ok(c, NULL,
                   cudaMemcpyAsync(x->table, x->table_host[turn], n_bytes, cudaMemcpyHostToDevice,
                                   c->stream),
                   "tables of experts") &&
           cuda_ok(c, NULL, cudaEventRecord(x->table_sent[turn], c->stream), "tables of experts");
}

/* The commonest first; of equal ones the first. */
static int32_t hottest(const expert_slots *m)
{
    int32_t best = -1;
    for (int32_t i = 0; i < m->n_experts; i++)
        if (m->slot[i] < 0 && (best < 0 || m->heat[i] > m->heat[best]))
            best = i;
    return best;
}

static status pool_fill(device *d, err *e)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    double start_ms = clock_ms();
    uint64_t n_bytes = 0;
    for (int32_t i = 0; x && i < x->n; i++) {
        pool_layer *l = &x->layer[i];
        for (int32_t slot = 0; slot < l->want.n_slots; slot++) {
            int32_t expert = hottest(&l->map);
            expert_slots_begin(&l->map, slot, expert);
            expert_slots_end(&l->map, slot, true);
            n_bytes += l->bytes;
            cuda_ok(c, NULL,
                    cudaMemcpyAsync(slot_at(l, slot), host_at(l, expert), l->bytes,
                                    cudaMemcpyHostToDevice, c->stream),
                    "filling slots of experts");
        }
        for (int32_t k = 0; k < l->want.n_experts; k++)
            put_entry(x, l, k);
    }
    if (!x)
        return OK;
    send_tables(c, x);
    cuda_ok(c, NULL, cudaStreamSynchronize(c->stream), "filling slots of experts");
    double ms = clock_ms() - start_ms;
    x->use.bus_bytes_s = ms > 0 ? (double)n_bytes / ms * 1e3 : 0;
    x->filled = !c->broken;
    return c->broken ? err_set(e, c->broken_why.status, "%s", c->broken_why.text) : OK;
}

static status pool_help(device *d, const expert_help *how, err *e)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    if (!x)
        return OK;
    if (!how) {
        cuda_offload_close(c, x->offload);
        x->offload = NULL;
        return OK;
    }
    offload_home *home = mem_calloc((size_t)x->n, sizeof *home);
    if (!home)
        return err_memory(e, "experts on the CPU", (size_t)x->n * sizeof *home);
    for (int32_t i = 0; i < x->n; i++) {
        const pool_layer *l = &x->layer[i];
        home[i] = (offload_home){&l->want, l->bytes, distance(l, l->host)};
    }
    const cuda_experts *other =
        how->beside ? ((const cuda_device *)how->beside->self)->experts : NULL;
    const offload_homes homes = {home, x->n, x->prefetch, x->prefetch_bytes, x->use.bus_bytes_s};
    status st = cuda_offload_open(c, &homes, how, other ? other->offload : NULL, &x->offload, e);
    mem_free(home);
    return st;
}

cuda_offload *cuda_offload_of(cuda_device *c, const weight *w)
{
    return c->experts && w->home ? cuda_offload_shared(c->experts->offload) : NULL;
}

cuda_offload *cuda_offload_any(cuda_device *c)
{
    return c->experts ? cuda_offload_shared(c->experts->offload) : NULL;
}

status cuda_experts_failed(const cuda_device *c, err *e)
{
    return c->experts && c->experts->offload ? cuda_offload_failed(c->experts->offload, c->name, e)
                                             : OK;
}

/* ---- Slots that change hands --------------------------------------------------------------- */

/* Experts whose copies have ended get their places. wait: all of them do. */
static void end_swaps(cuda_device *c, cuda_experts *x, bool wait)
{
    for (int i = 0; i < SWAPS; i++) {
        swap *s = &x->swap[i];
        if (!s->used)
            continue;
        cudaError_t r = cudaEventQuery(s->copied);
        bool ok = fine(r);
        if (r == cudaErrorNotReady && !wait)
            continue;
        if (r == cudaErrorNotReady)
            ok = cuda_await_event(c, NULL, s->copied, "experts on their way");
        pool_layer *l = &x->layer[s->layer];
        int32_t expert = l->map.expert[s->slot];
        expert_slots_end(&l->map, s->slot, ok);
        put_entry(x, l, expert);
        s->used = false;
        x->use.n_swaps += ok;
        x->use.n_failed += !ok;
        x->use.swap_bytes += ok ? l->bytes : 0;
    }
}

static swap *free_swap(cuda_experts *x)
{
    for (int i = 0; i < SWAPS; i++)
        if (!x->swap[i].used)
            return &x->swap[i];
    return NULL;
}

static void ask_counts(cuda_device *c, cuda_experts *x)
{
    if (!fine(cudaMemcpyAsync(x->count_host, x->count, (size_t)x->n_all * sizeof *x->count_host,
                              cudaMemcpyDeviceToHost, c->stream)))
        return;
    x->counting = fine(cudaEventRecord(x->counted, c->stream));
    x->n_covered = x->n_passes;
    x->n_passes = x->n_uncounted = 0;
}

/* Takes the counts of earlier passes, if they have come. */
static bool take_counts(cuda_experts *x)
{
    if (!x->counting || !fine(cudaEventQuery(x->counted)))
        return false;
    x->counting = false;
    uint64_t n_read = 0;
    for (int32_t i = 0; i < x->n; i++) {
        pool_layer *l = &x->layer[i];
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            int32_t at = l->first + k;
            uint32_t n = x->count_host[at] - x->count_seen[at];
            if (!n)
                continue;
            x->count_seen[at] += n;
            x->count_all[at] += n;
            if (expert_slots_has(&l->map, k)) {
                x->use.n_hits += n;
            } else {
                uint32_t passes = (uint32_t)x->n_covered;
                x->use.n_misses += n;
                n_read += l->bytes * (n < passes ? n : passes);
            }
            expert_slots_use(&l->map, k, n);
        }
    }
    /* What the host computed was not read, nor what had come early; their accounts may be a pass
     * ahead. All layers' experts are taken to be as large as the first one's. */
    if (x->offload)
        cuda_offload_use(x->offload, &x->use);
    uint64_t less =
        x->use.cpu_bytes + x->use.n_prefetched_used * x->layer[0].bytes - x->offload_bytes;
    less = less < n_read ? less : n_read;
    x->offload_bytes += less;
    x->use.read_bytes += n_read - less;
    return true;
}

/* The slot's expert leaves, and expert k is on its way. */
static void begin_swap(cuda_experts *x, swap *s, int32_t i, int32_t slot, int32_t k)
{
    pool_layer *l = &x->layer[i];
    int32_t leaves = l->map.expert[slot];
    expert_slots_begin(&l->map, slot, k);
    if (leaves >= 0)
        put_entry(x, l, leaves);
    s->layer = i;
    s->slot = slot;
    s->used = true;
}

/* Offers slots to experts without one that the last passes used. Their copies begin in copy_swaps,
 * after the table that lacks their predecessors is on its way. Each time another layer is first. */
static void choose_swaps(cuda_experts *x, const uint32_t *seen_before, bool *chosen)
{
    for (int32_t j = 0; j < x->n; j++) {
        int32_t i = (x->turn + j) % x->n;
        pool_layer *l = &x->layer[i];
        for (int32_t k = 0; k < l->want.n_experts; k++) {
            swap *s;
            int32_t slot;
            if (x->count_seen[l->first + k] == seen_before[l->first + k] ||
                (slot = expert_slots_offer(&l->map, k)) < 0)
                continue;
            if (!(s = free_swap(x))) {
                x->turn = i;
                return;
            }
            begin_swap(x, s, i, slot, k);
            chosen[s - x->swap] = true;
        }
    }
}

/* As many slots as may change hands at once do, layer after layer: the oldest goes to the next
 * expert without one. */
static void stir(cuda_experts *x, bool *chosen)
{
    for (int n = 0; n < SWAPS; n++) {
        swap *s = free_swap(x);
        const expert_slots *m = &x->layer[x->turn].map;
        int32_t slot = expert_slots_oldest(m), k = slot < 0 ? -1 : m->expert[slot];
        for (int32_t i = 0; slot >= 0 && m->slot[k] >= 0 && i < m->n_experts; i++)
            k = (k + 1) % m->n_experts;
        if (s && slot >= 0 && m->slot[k] < 0) {
            begin_swap(x, s, x->turn, slot, k);
            chosen[s - x->swap] = true;
        }
        x->turn = (x->turn + 1) % x->n;
    }
}

/* A copy that cannot begin leaves its slot empty; the next use of an expert offers it again. */
static void copy_swaps(cuda_device *c, cuda_experts *x, const bool *chosen)
{
    bool any = false;
    for (int i = 0; i < SWAPS; i++)
        any |= chosen[i];
    if (!any)
        return;
    bool ordered = fine(cudaEventRecord(x->table_old, c->stream)) &&
                   fine(cudaStreamWaitEvent(x->copies, x->table_old, 0));
    for (int i = 0; i < SWAPS; i++) {
        swap *s = &x->swap[i];
        if (!chosen[i])
            continue;
        pool_layer *l = &x->layer[s->layer];
        int32_t expert = l->map.expert[s->slot];
        if (ordered &&
            fine(cudaMemcpyAsync(slot_at(l, s->slot), host_at(l, expert), l->bytes,
                                 cudaMemcpyHostToDevice, x->copies)) &&
            fine(cudaEventRecord(s->copied, x->copies)))
            continue;
        expert_slots_end(&l->map, s->slot, false);
        s->used = false;
        x->use.n_failed++;
    }
}

/* ---- Prompts ------------------------------------------------------------------------------- */

static bool wants_stream(const cuda_experts *x, const step *st)
{
    const expert_layer *l = &x->layer[0].want;
    return st->prompt && x->stage_bytes &&
           (int64_t)st->all.n * l->n_used >= (int64_t)STREAM_PAIRS * l->n_experts;
}

/* Begins to copy the layer's experts without slots to its stage. */
static bool fill_stage(cuda_experts *x, int32_t i)
{
    const pool_layer *l = &x->layer[i];
    int b = i & 1;
    size_t at = 0;
    if (!fine(cudaStreamWaitEvent(x->copies, x->stage_free[b], 0)))
        return false;
    for (int32_t k = 0, end; k < l->want.n_experts; k = end) {
        size_t n_bytes = 0;
        for (end = k; end < l->want.n_experts && !expert_slots_has(&l->map, end) &&
                      at + n_bytes + l->bytes <= x->stage_bytes;
             end++)
            n_bytes += l->bytes;
        if (n_bytes && !fine(cudaMemcpyAsync(x->stage[b] + at, host_at(l, k), n_bytes,
                                             cudaMemcpyHostToDevice, x->copies)))
            return false;
        at += n_bytes;
        x->use.stream_bytes += n_bytes;
        end += end == k;
    }
    x->staged[b] = i;
    return fine(cudaEventRecord(x->stage_full[b], x->copies));
}

/* Adds up the waits of the pass that last had this set. !finish: if it has ended. */
static void take_waits(cuda_device *c, cuda_experts *x, int set, bool finish)
{
    int32_t n = x->n_waits[set];
    cudaEvent_t *e = x->wait[set] + 2 * x->wait_first[set];
    if (!n || (!finish && !fine(cudaEventQuery(e[2 * n - 1]))))
        return;
    x->n_waits[set] = 0;
    if (finish && !cuda_await_event(c, NULL, e[2 * n - 1], "experts of prompts"))
        return;
    for (int32_t i = 0; i < n; i++) {
        float ms = 0;
        if (fine(cudaEventElapsedTime(&ms, e[2 * i], e[2 * i + 1])))
            x->use.stage_ms += ms;
    }
}

/* Of the passes that have ended. */
static void take_ended_waits(cuda_device *c, cuda_experts *x)
{
    for (int set = 0; set < WAIT_SETS; set++)
        take_waits(c, x, set, false);
}

/* Has passes wait for the layer's stage from here on. */
static bool wait_for_stage(cuda_device *c, cuda_experts *x, int32_t i)
{
    int set = x->wait_turn;
    if (!x->n_waits[set])
        x->wait_first[set] = i;
    bool timed = x->wait_first[set] + x->n_waits[set] == i &&
                 fine(cudaEventRecord(x->wait[set][2 * i], c->stream));
    bool ok = fine(cudaStreamWaitEvent(c->stream, x->stage_full[i & 1], 0));
    x->n_waits[set] += timed && ok && fine(cudaEventRecord(x->wait[set][2 * i + 1], c->stream));
    return ok;
}

void cuda_experts_arrive(pass *p, const weight *gate)
{
    cuda_device *c = cuda_of(p);
    cuda_experts *x = c->experts;
    if (!x || !x->streams || !gate->home || p->dry || pass_failed(p))
        return;
    int32_t i = gate->home->layer;
    cuda_select(&c->dev);
    bool ok = (x->staged[i & 1] == i || fill_stage(x, i)) && wait_for_stage(c, x, i);
    x->stage_read[i & 1] = true;
    if (ok && i + 1 < x->n && x->staged[(i + 1) & 1] != i + 1 && !x->stage_read[(i + 1) & 1])
        ok = fill_stage(x, i + 1);
    if (ok)
        return;
    x->staged[0] = x->staged[1] = -1;
    err_set(&p->e, E_IO, "%s: copying experts of layer %d to the GPU failed", c->name, p->il);
}

void cuda_experts_leave(pass *p, const weight *down)
{
    cuda_device *c = cuda_of(p);
    cuda_experts *x = c->experts;
    if (!x || !x->streams || !down->home || p->dry || pass_failed(p))
        return;
    int b = down->home->layer & 1;
    cuda_select(&c->dev);
    if (cuda_ok(c, p, cudaEventRecord(x->stage_free[b], c->stream), "experts of prompts"))
        x->stage_read[b] = false;
}

static void begin_stream(cuda_device *c, cuda_experts *x, pass *p)
{
    x->use.n_streamed++;
    x->wait_turn = (x->wait_turn + 1) % WAIT_SETS;
    take_waits(c, x, x->wait_turn, true);
    put_stages(x);
    for (int b = 0; b < 2; b++) {
        x->staged[b] = -1;
        if (x->stage_read[b]) /* a pass has failed between */
            cuda_ok(c, p, cudaEventRecord(x->stage_free[b], c->stream), "experts of prompts");
        x->stage_read[b] = false;
    }
}

/* ---- Passes -------------------------------------------------------------------------------- */

void cuda_experts_begin(cuda_device *c, pass *p)
{
    cuda_experts *x = c->experts;
    bool chosen[SWAPS] = {false};
    if (!x || !x->filled || pass_failed(p))
        return;
    x->streams = wants_stream(x, p->st);
    if (x->offload)
        cuda_offload_begin(c, x->offload, !p->st->prompt);
    take_ended_waits(c, x);
    end_swaps(c, x, x->streams);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < x->layer[i].want.n_parts; k++)
            x->layer[i].home[k].where = x->table + (x->streams ? x->n_all : 0) +
                                        x->layer[i].first + x->layer[i].home[k].first;
    bool counted = take_counts(x) || x->taken;
    if (x->restless && !x->streams)
        stir(x, chosen);
    else if (counted && !x->streams)
        choose_swaps(x, x->count_before, chosen);
    if (counted)
        memcpy(x->count_before, x->count_seen, (size_t)x->n_all * sizeof *x->count_seen);
    x->taken = false;
    if (x->streams)
        begin_stream(c, x, p);
    if (x->table_changed && !send_tables(c, x))
        return;
    copy_swaps(c, x, chosen);
    if (x->streams && !fill_stage(x, 0))
        x->staged[0] = -1; /* its arrival tries again, and says so */
    if (!x->counting && x->n_uncounted >= COUNTED_PASSES)
        ask_counts(c, x);
    x->n_uncounted++;
    x->n_passes += !x->streams; /* its misses lie in stages */
}

/* Waits for the counts of all passes so far. */
static void take_all_counts(cuda_device *c, cuda_experts *x)
{
    for (int i = 0; i < 2 && !c->broken; i++) { /* those asked for before may lack some passes */
        if (!x->counting && x->n_uncounted)
            ask_counts(c, x);
        if (x->counting && cuda_await_event(c, NULL, x->counted, "counts of experts"))
            x->taken |= take_counts(x);
    }
}

static void pool_use(const device *d, expert_use *to)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    *to = (expert_use){0};
    if (!x)
        return;
    take_all_counts(c, x);
    take_ended_waits(c, x);
    *to = x->use;
    if (x->offload)
        cuda_offload_use(x->offload, to);
}

static void pool_counts(const device *d, int32_t i, uint64_t *to)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    const pool_layer *l = &x->layer[i];
    take_all_counts(c, x);
    memcpy(to, x->count_all + l->first, (size_t)l->want.n_experts * sizeof *to);
}

/* ---- For tests ----------------------------------------------------------------------------- */

static const expert_slots *pool_slots(const device *d, int32_t i)
{
    return &((const cuda_device *)d->self)->experts->layer[i].map;
}

static void pool_set_restless(device *d, bool on)
{
    ((cuda_device *)d->self)->experts->restless = on;
}

static int32_t wrong_of_layer(device *d, cuda_experts *x, const pool_layer *l, uint8_t *room)
{
    int32_t n = 0;
    for (int32_t k = 0; k < l->want.n_experts; k++) {
        bool has = expert_slots_has(&l->map, k);
        const uint8_t *slot = has ? slot_at(l, l->map.slot[k]) : NULL;
        n += x->table_now[l->first + k] != distance(l, has ? slot : host_at(l, k));
        if (!has)
            continue;
        d->download(d, room, slot, l->bytes);
        n += memcmp(room, host_at(l, k), l->bytes) != 0;
    }
    return n;
}

static int32_t pool_n_wrong(device *d)
{
    cuda_device *c = cuda_select(d);
    cuda_experts *x = c->experts;
    int32_t n = !fine(cudaStreamSynchronize(x->copies));
    for (int32_t i = 0; i < x->n; i++) {
        uint8_t *room = mem_alloc(x->layer[i].bytes);
        n += room ? wrong_of_layer(d, x, &x->layer[i], room) : 1;
        mem_free(room);
    }
    return n;
}

const struct expert_ops cuda_expert_ops = {
    .bytes = cuda_experts_bytes,
    .host_bytes = cuda_experts_host_bytes,
    .expert_bytes = cuda_experts_one_bytes,
    .open = cuda_experts_open,
    .fill = pool_fill,
    .help = pool_help,
    .close = cuda_experts_close,
    .use = pool_use,
    .counts = pool_counts,
    .slots = pool_slots,
    .set_restless = pool_set_restless,
    .n_wrong = pool_n_wrong,
};
