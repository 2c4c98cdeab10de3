/* prefetch.c - see prefetch.h: what the host does for experts that are fetched before they are
 * chosen. */
#include "backend/cuda/experts/prefetch.h"
#include "base/idle.h"
#include "base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

/* A product waits for as long as the bus takes for so many times the experts of a request. */
static const double PATIENCE = 4;
static const uint64_t LIMIT_MOST_NS = 2000000;
/* A wrong guess takes the bus from what is read over it (bench/journal/experts.md). So after every
 * JUDGED requested experts the guesses are judged, by their share in percent that is right:
 *
 *     PREFETCH_FAR layers ahead, below FAR_LEAST      from now on PREFETCH_NEAR layers ahead
 *     PREFETCH_NEAR, from FAR_AGAIN on                PREFETCH_FAR again, after PAUSE passes at the
 * earliest PREFETCH_NEAR, below LEAST                      nothing is copied for PAUSE passes */
enum { JUDGED = 512, PAUSE = 1024, FAR_LEAST = 65, FAR_AGAIN = 85, LEAST = 50 };

typedef struct prefetch_layer {
    int64_t from, end;    /* distances of its experts in the host's memory */
    const int64_t *where; /* device */
    const uint8_t *host;  /* of expert 0 */
    size_t bytes;         /* of an expert */
    float *guess; /* device, [n_out][n_in] of the router: for the rows of that `ahead` layers before */
    int64_t buffer; /* distance of the layer's first buffer */
    const expert_layer *list;
} prefetch_layer;

struct cuda_prefetch {
    cuda_device *c;
    prefetch_layer *layer;
    int32_t n, n_prefetched;
    int32_t ahead; /* layers between a guess and its use */
    uint8_t *buffers, *memory;
    size_t buffer_bytes, memory_bytes;
    prefetch_state *state;
    float *logits;
    int32_t *id;
    prefetch_post *post; /* page-locked */
    uint32_t
        *number; /* page-locked, [PREFETCH_POSTS]: of requests, which copies take to the device */
    cudaStream_t copies;
    pthread_t thread;
    bool started, told;
    uint32_t judged, judged_used; /* experts asked for and used, when they were judged last */
    uint32_t judge_after;
    int32_t pause, paused; /* passes; paused: that are left of it */
    int32_t n_aimed;       /* passes since `ahead` was set, at most `pause` */
    idle idle;
    atomic_bool hold, fails, failed;            /* hold, fails: for tests */
    atomic_uint_least64_t n_bytes;              /* that copies have taken to the device */
    uint64_t n_asked, n_used, n_waited, n_late; /* as last read */
    /* After a router: the layer to guess, 0: none; from its rows. */
    int32_t guessed, guessed_k;
    dev_mat guessed_rows;
    bool guessed_sigmoid;
};

enum {
    GUESS_ROWS = OFFLOAD_JOB_ROWS,
    ALIGN = 256 /* of arrays in device memory */
};

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t guess_bytes(const expert_layer *l)
{
    return aligned((size_t)l->router->n_out * (size_t)l->router->n_in * sizeof(float));
}

enum {
    LOGITS_BYTES = GUESS_ROWS * ROUTER_EXPERTS * 4,
    CHOICE_BYTES = GUESS_ROWS * ROUTER_MOST * 4 /* of ids */
};
_Static_assert(LOGITS_BYTES % ALIGN == 0 && CHOICE_BYTES % ALIGN == 0, "arrays follow each other");
_Static_assert((int)PREFETCH_MOST == EXPERTS_PREFETCH_MOST &&
                   (int)PREFETCH_FAR == EXPERTS_PREFETCH_AHEAD,
               "all plan alike");

/* Of the state, and of a guess's logits and ids. */
static size_t fixed_bytes(void)
{
    return aligned(sizeof(prefetch_state)) + LOGITS_BYTES + CHOICE_BYTES;
}

uint64_t cuda_prefetch_bytes(const expert_layer *l, int32_t n)
{
    uint64_t bytes = fixed_bytes();
    if (n <= PREFETCH_NEAR || !l[0].n_prefetched)
        return 0;
    for (int32_t i = PREFETCH_NEAR; i < n; i++)
        bytes += l[i].router ? guess_bytes(&l[i]) : 0;
    return bytes;
}

/* ---- The thread ------------------------------------------------------------------------------ */

static bool copy_expert(cuda_prefetch *x, const prefetch_layer *l, uint8_t *to, int32_t e,
                        uint32_t *arrived, const uint32_t *number)
{
    if (atomic_load_explicit(&x->fails, memory_order_relaxed) ||
        cudaMemcpyAsync(to, l->host + l->bytes * (size_t)e, l->bytes, cudaMemcpyHostToDevice,
                        x->copies) != cudaSuccess ||
        cudaMemcpyAsync(arrived, number, sizeof *number, cudaMemcpyHostToDevice, x->copies) !=
            cudaSuccess)
        return false;
    atomic_fetch_add_explicit(&x->n_bytes, l->bytes, memory_order_relaxed);
    return true;
}

static void answer(cuda_prefetch *x, uint32_t seq)
{
    const uint32_t at = seq % PREFETCH_POSTS;
    const uint32_t i = atomic_load_explicit(&x->post->ask[at].layer, memory_order_relaxed);
    const uint32_t n = atomic_load_explicit(&x->post->ask[at].n, memory_order_relaxed);
    bool ok = i < (uint32_t)x->n && n <= (uint32_t)x->n_prefetched;
    x->number[at] = seq;
    for (uint32_t m = 0; m < n && ok; m++) {
        const prefetch_layer *l = &x->layer[i];
        const uint32_t e = atomic_load_explicit(&x->post->ask[at].expert[m], memory_order_relaxed);
        const uint32_t set = i % PREFETCH_SETS;
        uint8_t *to = x->buffers + (set * (size_t)x->n_prefetched + m) * x->buffer_bytes;
        const uint32_t own = e - (uint32_t)l->list->part[0]->first_mat;
        ok = own < (uint32_t)l->list->n_experts &&
             copy_expert(x, l, to, (int32_t)own, &x->state->arrived[set][m], &x->number[at]);
    }
    if (!ok)
        atomic_store(&x->failed, true);
}

/* Of the thread: the last request that it has answered. */
typedef struct prefetch_thread {
    cuda_prefetch *x;
    uint32_t seen;
} prefetch_thread;

/* After a failure there is no more work. */
static bool has_request(void *user)
{
    const prefetch_thread *t = user;
    return !atomic_load_explicit(&t->x->failed, memory_order_relaxed) &&
           !atomic_load_explicit(&t->x->hold, memory_order_relaxed) &&
           atomic_load_explicit(&t->x->post->seq, memory_order_acquire) != t->seen;
}

static void *run(void *arg)
{
    cuda_prefetch *x = arg;
    prefetch_thread t = {.x = x};
    idler own;
    if (cudaSetDevice(x->c->gpu) != cudaSuccess)
        atomic_store(&x->failed, true);
    idler_begin(&own);
    while (!idle_stopped(&x->idle)) {
        bool works = has_request(&t);
        /* Each set of buffers has one open request. With more, entries could be overwritten. */
        if (works && atomic_load(&x->post->seq) - t.seen > PREFETCH_SETS)
            atomic_store(&x->failed, true);
        else if (works)
            answer(x, ++t.seen);
        idle_between(&x->idle, &own, works, has_request, &t);
    }
    return NULL;
}

static status start_thread(cuda_prefetch *x, err *e)
{
    sigset_t all, before;
    idle_open(&x->idle);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&x->thread, NULL, run, x);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    x->started = !failed;
    return failed
               ? err_set(e, E_MEMORY, "a thread for experts that come early: %s", strerror(failed))
               : OK;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static void decode_row(const weight *w, int64_t row, float *to)
{
    num_format_of(w->type)->decode(weight_row(w, 0, row), to, w->n_in);
}

/* Layer l's router, as it reads what an earlier layer's router reads. */
static status send_guess(cuda_device *c, const expert_layer *l, const expert_layer *before,
                         float *to, err *e)
{
    const int32_t n_in = l->router->n_in;
    size_t n = (size_t)l->router->n_out * (size_t)n_in;
    float *w = mem_calloc(n + 2 * (size_t)n_in, sizeof *w), *own = w + n, *other = own + n_in;
    if (!w)
        return err_memory(e, "experts that come early", n * sizeof *w);
    decode_row(l->router_in, 0, own);
    decode_row(before->router_in, 0, other);
    for (int32_t k = 0; k < l->router->n_out; k++) {
        float *row = w + (size_t)k * (size_t)n_in;
        decode_row(l->router, k, row);
        for (int32_t i = 0; i < n_in; i++)
            row[i] = other[i] != 0 ? row[i] * (own[i] / other[i]) : 0;
    }
    c->dev.upload(&c->dev, to, w, n * sizeof *w);
    mem_free(w);
    return OK;
}

static bool can_guess(const expert_layer *l, const expert_layer *first)
{
    return l->router && l->router_in && l->router->packed_kind == PACK_F32 &&
           l->router->n_in == first->router->n_in && l->router->n_out == first->router->n_out &&
           l->router_in->n_in == l->router->n_in && l->router->n_out <= ROUTER_EXPERTS &&
           l->n_used <= ROUTER_MOST && (!l->router_bias || l->router_bias->packed);
}

static int32_t farthest(const cuda_prefetch *x)
{
    return x->n > PREFETCH_FAR ? PREFETCH_FAR : PREFETCH_NEAR;
}

/* Guesses are so many layers ahead from now on. After an error some of them are of the distance
 * before. */
static status aim(cuda_prefetch *x, int32_t ahead, err *e)
{
    status st = OK;
    x->ahead = ahead;
    x->n_aimed = 0;
    for (int32_t i = ahead; i < x->n && !st; i++)
        st = send_guess(x->c, x->layer[i].list, x->layer[i - ahead].list, x->layer[i].guess, e);
    return st;
}

static status open_layers(cuda_prefetch *x, const offload_home *home, uint8_t *at, err *e)
{
    for (int32_t i = 0; i < x->n; i++) {
        const expert_layer *l = home[i].list;
        const weight *gate = l->part[0];
        if (!can_guess(l, home[0].list))
            return err_set(e, E_UNSUPPORTED,
                           "experts cannot be fetched early: layer %d of the mixture (%s) has a "
                           "router that is not of floats, or of another shape",
                           i, gate->name);
        uint8_t *buffer =
            x->buffers + (size_t)(i % PREFETCH_SETS) * (size_t)x->n_prefetched * x->buffer_bytes;
        x->layer[i] = (prefetch_layer){
            .from = home[i].from,
            .end = home[i].from + (int64_t)(home[i].expert_bytes * (size_t)l->n_experts),
            .where = cuda_offload_where(l),
            .host = gate->home->host,
            .bytes = home[i].expert_bytes,
            .buffer = (int64_t)((uintptr_t)buffer - (uintptr_t)gate->home->from),
            .list = l};
        if (i < PREFETCH_NEAR)
            continue;
        x->layer[i].guess = (float *)at;
        at += guess_bytes(l);
    }
    return aim(x, farthest(x), e);
}

static status take_memory(cuda_prefetch *x, err *e)
{
    void *p = NULL;
    x->memory = x->c->dev.alloc(&x->c->dev, x->memory_bytes);
    if (!x->memory)
        return err_memory(e, "experts that come early", x->memory_bytes);
    if (cudaMallocHost(&p, sizeof *x->post + PREFETCH_POSTS * sizeof *x->number) != cudaSuccess ||
        cudaStreamCreateWithFlags(&x->copies, cudaStreamNonBlocking) != cudaSuccess) {
        cudaGetLastError();
        x->post = p;
        return err_memory(e, "requests for experts", sizeof *x->post);
    }
    memset(p, 0, sizeof *x->post + PREFETCH_POSTS * sizeof *x->number);
    x->post = p;
    x->number = (uint32_t *)(x->post + 1);
    return OK;
}

status cuda_prefetch_open(cuda_device *c, const offload_homes *homes, cuda_prefetch **to, err *e)
{
    const offload_home *home = homes->at;
    const int32_t n = homes->n;
    *to = NULL;
    if (!home[0].list->n_prefetched || n <= PREFETCH_NEAR)
        return OK;
    cuda_prefetch *x = mem_calloc(1, sizeof *x);
    if (!x || !(x->layer = mem_calloc((size_t)n, sizeof *x->layer))) {
        mem_free(x);
        return err_memory(e, "experts that come early", (size_t)n * sizeof *x->layer);
    }
    x->c = c;
    x->n = n;
    x->n_prefetched = home[0].list->n_prefetched;
    x->judge_after = JUDGED;
    x->pause = PAUSE;
    x->buffers = homes->buffers;
    x->buffer_bytes = homes->buffer_bytes;
    x->memory_bytes = fixed_bytes();
    for (int32_t i = PREFETCH_NEAR; i < n; i++)
        x->memory_bytes += home[i].list->router ? guess_bytes(home[i].list) : 0;
    status st = take_memory(x, e);
    if (!st) {
        const double all_bytes = x->n_prefetched * (double)x->buffer_bytes;
        double ns = homes->bus_bytes_s > 0 ? PATIENCE * all_bytes / homes->bus_bytes_s * 1e9
                                           : (double)LIMIT_MOST_NS;
        prefetch_state s = {.limit_ns = ns < (double)LIMIT_MOST_NS ? (uint64_t)ns : LIMIT_MOST_NS};
        x->state = (prefetch_state *)x->memory;
        x->logits = (float *)(x->memory + aligned(sizeof *x->state));
        x->id = (int32_t *)(x->logits + LOGITS_BYTES / 4);
        c->dev.upload(&c->dev, x->state, &s, sizeof s);
        st = open_layers(x, home, x->memory + fixed_bytes(), e);
    }
    st = st ? st : start_thread(x, e);
    if (st)
        cuda_prefetch_close(c, x);
    else
        *to = x;
    return st;
}

void cuda_prefetch_close(cuda_device *c, cuda_prefetch *x)
{
    if (!x)
        return;
    idle_stop(&x->idle);
    if (x->started)
        pthread_join(x->thread, NULL);
    idle_close(&x->idle);
    if (x->copies) {
        if (cudaStreamSynchronize(x->copies) != cudaSuccess)
            cudaGetLastError();
        cudaStreamDestroy(x->copies);
    }
    if (x->memory)
        c->dev.release(&c->dev, x->memory, x->memory_bytes);
    if (x->post)
        cudaFreeHost(x->post);
    mem_free(x->layer);
    mem_free(x);
}

/* Does not wait for the thread of x: the thread may be waiting in the driver. */
void cuda_prefetch_abandon(cuda_prefetch *x)
{
    if (!x)
        return;
    idle_stop(&x->idle);
    if (x->started)
        pthread_detach(x->thread);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static void switch_off(cuda_device *c, cuda_prefetch *x, bool off)
{
    cuda_ok(c, NULL, cudaMemsetAsync(&x->state->off, off, sizeof x->state->off, c->stream),
            "experts that come early");
}

/* Recorded passes have the distance in their launches. If a guess cannot be sent, nothing is asked
 * for any more. */
static void aim_again(cuda_device *c, cuda_prefetch *x, int32_t ahead)
{
    err e = {0};
    if (aim(x, ahead, &e))
        atomic_store(&x->failed, true);
    cuda_graphs_drop(c);
}

/* Are the guesses worth their copies? */
static void judge(cuda_device *c, cuda_prefetch *x)
{
    uint32_t asked = atomic_load_explicit(&x->post->n_asked, memory_order_relaxed);
    uint32_t used = atomic_load_explicit(&x->post->n_used, memory_order_relaxed);
    uint64_t n = (uint32_t)(asked - x->judged), right = (uint32_t)(used - x->judged_used);
    bool resumes = x->paused == 1, rests = x->paused > 1;
    x->n_aimed += x->n_aimed < x->pause;
    x->paused -= x->paused > 0;
    if (rests || (!resumes && n < x->judge_after))
        return;
    x->judged = asked;
    x->judged_used = used;
    if (resumes) {
        switch_off(c, x, false);
    } else if (x->ahead == PREFETCH_FAR) {
        if (100 * right < FAR_LEAST * n)
            aim_again(c, x, PREFETCH_NEAR);
    } else if (100 * right < LEAST * n) {
        x->paused = x->pause;
        switch_off(c, x, true);
    } else if (x->ahead < farthest(x) && x->n_aimed == x->pause && 100 * right >= FAR_AGAIN * n) {
        aim_again(c, x, farthest(x));
    }
}

void cuda_prefetch_begin(cuda_device *c, cuda_prefetch *x)
{
    if (!atomic_load(&x->failed)) {
        judge(c, x);
    } else if (!x->told) {
        x->told = true; /* nothing is asked for any more */
        switch_off(c, x, true);
    }
    if (!x->paused && !x->told) /* else its thread has nothing to wait for */
        idle_wake(&x->idle);
}

/* The number of the layer that is guessed beside this router's layer; 0: there is none. */
static int32_t guessed_by(const cuda_prefetch *x, const weight *router)
{
    for (int32_t i = x->ahead; i < x->n; i++)
        if (x->layer[i - x->ahead].list->router == router)
            return i;
    return 0;
}

void cuda_prefetch_guess(cuda_prefetch *x, const weight *router, dev_mat rows, int32_t k,
                         bool sigmoid)
{
    x->guessed = guessed_by(x, router);
    x->guessed_rows = rows;
    x->guessed_k = k;
    x->guessed_sigmoid = sigmoid;
}

prefetch_ask cuda_prefetch_ask(cuda_prefetch *x, int32_t layer, int32_t rows)
{
    bool guessed = x->guessed == layer + x->ahead && x->guessed_rows.rows == rows &&
                   rows <= GUESS_ROWS && x->guessed_k <= ROUTER_MOST;
    x->guessed = 0;
    if (!guessed)
        return (prefetch_ask){0};
    const prefetch_layer *l = &x->layer[layer + x->ahead];
    const weight *bias = l->list->router_bias;
    return (prefetch_ask){.x = x->guessed_rows,
                          .router = l->guess,
                          .bias = bias ? (const float *)bias->packed : NULL,
                          .logits = x->logits,
                          .id = x->id,
                          .k = x->guessed_k,
                          .sigmoid = x->guessed_sigmoid,
                          .post = x->post,
                          .where = l->where,
                          .host_from = l->from,
                          .host_end = l->end,
                          .layer = layer + x->ahead,
                          .n_expert = l->list->router->n_out,
                          .most = x->n_prefetched};
}

prefetch_view cuda_prefetch_view(const cuda_prefetch *x, int32_t layer)
{
    return (prefetch_view){x->state, x->layer[layer].buffer, (int64_t)x->buffer_bytes, layer};
}

/* The device's accounts have 32 bits. */
static uint64_t grown(uint64_t sum, const offload_word *word)
{
    uint32_t now = atomic_load_explicit(word, memory_order_relaxed);
    return sum + (uint32_t)(now - (uint32_t)sum);
}

void cuda_prefetch_use(cuda_prefetch *x, expert_use *to)
{
    const prefetch_post *p = x->post;
    x->n_asked = grown(x->n_asked, &p->n_asked);
    x->n_used = grown(x->n_used, &p->n_used);
    x->n_waited = grown(x->n_waited, &p->n_waited);
    x->n_late = grown(x->n_late, &p->n_late);
    to->prefetch_bytes = atomic_load_explicit(&x->n_bytes, memory_order_relaxed);
    to->n_prefetched = x->n_asked;
    to->n_prefetched_used = x->n_used;
    to->n_prefetched_waited = x->n_waited;
    to->n_prefetched_late = x->n_late;
    to->n_prefetched_failed = atomic_load(&x->failed);
    to->prefetch_ahead = x->ahead;
}

void cuda_prefetch_test(cuda_prefetch *x, prefetch_fate fate, uint64_t limit_ns, cuda_device *c)
{
    atomic_store(&x->hold, fate == PREFETCH_NEVER_COMES);
    atomic_store(&x->fails, fate == PREFETCH_FAILS);
    cudaMemcpyAsync(&x->state->limit_ns, &limit_ns, sizeof limit_ns, cudaMemcpyHostToDevice,
                    c->stream);
    cudaStreamSynchronize(c->stream);
}

void cuda_prefetch_judge(cuda_prefetch *x, int32_t after, int32_t pause)
{
    x->judge_after = (uint32_t)after;
    x->pause = pause;
}
