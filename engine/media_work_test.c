/* media_work_test.c - towers that run beside passes: others go on meanwhile, failures are told, and
 * sixteen clients with a picture each have the answers that they have alone.
 */
#include "apps/commands.h"
#include "base/clock.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "sound/sound_test_int.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>

enum { CTX = 1280, SAMPLES = 20000, CLIENTS = 16, ANSWER = 12, PATIENCE_MS = 20000 };

static void write_tower(const char *size)
{
    const char *make[] = {size, test_temp("tower.gguf"), "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
}

static carat_model *open_with(const char *text)
{
    const carat_model_options o = {
        .n_threads = 1, .exact_f32 = true, .mmproj = test_temp("tower.gguf")};
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(text, &o, &m, &e), e);
    return m;
}

/* What a client hears. Tokens are counted under a lock: the worker's hook waits for them. */
typedef struct client {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int32_t id[64], n;
    int n_done;
    status st;
    err e;
} client;

static void client_init(client *c)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->more);
}

static void client_free(client *c)
{
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->lock);
}

static bool hear(void *user, const carat_event *ev)
{
    client *c = user;
    if (ev->kind != CARAT_EV_TOKEN)
        return true;
    pthread_mutex_lock(&c->lock);
    if (c->n < 64)
        c->id[c->n++] = ev->id;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->lock);
    return true;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    client *c = user;
    (void)t;
    c->n_done++;
    c->st = st;
    if (e)
        c->e = *e;
}

static carat_generate_options answer_of(const carat_model *m, int32_t n)
{
    carat_generate_options o = {.max_tokens = n};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 0;
    o.sampling.ignore_eog = true;
    return o;
}

/* Some tokens, those of x, one more. */
static int64_t prompt_of(int32_t *ids, const carat_media *x, int32_t first)
{
    int64_t n = 0;
    ids[n++] = first;
    for (int32_t k = 0; k < carat_media_n(x); k++)
        ids[n++] = carat_media_id(x) - k;
    ids[n++] = first + 1;
    return n;
}

static void submit(carat_batch *b, carat_model *m, const int32_t *ids, int64_t n, int32_t n_answer,
                   client *c)
{
    const carat_generate_options o = answer_of(m, n_answer);
    const carat_job j = {.ids = ids, .n = n, .opt = &o, .fn = hear, .done = done, .user = c};
    err e = {0};
    CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
}

static carat_batch *open_batch(carat_model *m, int32_t n_slots)
{
    const carat_batch_options o = {.n_slots = n_slots,
                                   .session = {.n_ctx = CTX, .kv_k = "f32", .checkpoint_mb = -1}};
    carat_batch *b;
    err e = {0};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    return b;
}

static void alone(carat_model *m, const int32_t *ids, int64_t n, int32_t n_answer, client *c)
{
    const carat_session_options so = {.n_ctx = CTX, .kv_k = "f32", .checkpoint_mb = -1};
    const carat_generate_options o = answer_of(m, n_answer);
    AUTO_SESSION *s;
    err e = {0};
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    CHECK_OK(carat_generate(s, ids, n, &o, hear, c, NULL, &e), e);
}

static void check_same(const client *got, const client *want, int32_t n)
{
    CHECK_EQ(got->n_done, 1);
    CHECK_OK(got->st, got->e);
    CHECK_EQ(got->n, n);
    CHECK(want->n == n && !memcmp(got->id, want->id, (size_t)n * sizeof *got->id));
}

/* ---- Order of events ---- */

/* The tower's pass begins when `other` has heard some tokens of its answer. */
typedef struct hold {
    client *other;
    int32_t n;
    int calls;
    bool came;
} hold;

static void wait_for_other(void *user)
{
    hold *h = user;
    const struct timespec until = clock_after_ms(PATIENCE_MS);
    pthread_mutex_lock(&h->other->lock);
    while (h->other->n < h->n)
        if (pthread_cond_timedwait(&h->other->more, &h->other->lock, &until))
            break;
    h->came = h->other->n >= h->n;
    h->calls++;
    pthread_mutex_unlock(&h->other->lock);
}

static carat_media *sound_of(carat_model *m, uint64_t seed)
{
    float x[SAMPLES];
    carat_media *s;
    err e = {0};
    test_sound(x, seed, SAMPLES);
    CHECK_OK(carat_sound_new(m, x, SAMPLES, &s, &e), e);
    return s;
}

TEST(others_are_answered_while_a_tower_is_at_work)
{
    client c[2], want;
    hold h = {.other = &c[1], .n = ANSWER};
    int32_t ids[CTX];
    const int32_t text[] = {5, 6, 7};
    write_tower("tiny-mmproj-hears");
    AUTO_MODEL *m = open_with(toy_model_write(&(toy_model_file){.base = "e2b"}));
    AUTO_PTR(carat_media_free) carat_media *s = sound_of(m, 1);
    int64_t n = prompt_of(ids, s, 11);
    client_init(&c[0]);
    client_init(&c[1]);
    client_init(&want);
    media_before_work(m, wait_for_other, &h);
    carat_batch *b = open_batch(m, 2);
    submit(b, m, ids, n, ANSWER, &c[0]);
    submit(b, m, text, 3, 2 * ANSWER, &c[1]);
    while (carat_batch_step(b))
        ;
    CHECK_EQ(h.calls, 1);
    CHECK_MSG(h.came, "no token of the other answer came before the tower's pass");
    carat_batch_close(b);
    alone(m, ids, n, ANSWER, &want);
    check_same(&c[0], &want, ANSWER);
    CHECK_EQ(h.calls, 1); /* its rows are still there */
    CHECK(c[1].n_done == 1 && !c[1].st && c[1].n == 2 * ANSWER);
    for (int i = 0; i < 2; i++)
        client_free(&c[i]);
    client_free(&want);
}

static void park(void *user)
{
    carat_model_park(user);
}

/* Both that asked for it are told, and the next attempt is a new one. */
TEST(a_tower_that_fails_ends_the_answers_that_need_it)
{
    client c[3];
    int32_t ids[CTX];
    err e = {0};
    write_tower("tiny-mmproj-hears");
    AUTO_MODEL *m = open_with(toy_model_write(&(toy_model_file){.base = "e2b"}));
    AUTO_PTR(carat_media_free) carat_media *s = sound_of(m, 1);
    int64_t n = prompt_of(ids, s, 11);
    carat_batch *b = open_batch(m, 2);
    media_before_work(m, park, m);
    for (int i = 0; i < 3; i++)
        client_init(&c[i]);
    submit(b, m, ids, n, ANSWER, &c[0]);
    submit(b, m, ids, n, ANSWER, &c[1]);
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(c[i].n_done, 1);
        CHECK_STATUS(c[i].st, E_ARG);
        CHECK_MSG(strstr(c[i].e.text, "parked"), "%s", c[i].e.text);
    }
    media_before_work(m, NULL, NULL);
    CHECK_OK(carat_model_unpark(m, &e), e);
    submit(b, m, ids, n, ANSWER, &c[2]);
    while (carat_batch_step(b))
        ;
    CHECK_EQ(c[2].n_done, 1);
    CHECK_OK(c[2].st, c[2].e);
    carat_batch_close(b);
    for (int i = 0; i < 3; i++)
        client_free(&c[i]);
}

/* The tower's pass begins when the session that asked for it is cancelled and closed. */
typedef struct outlived {
    carat_session *s;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool closed, began_later;
} outlived;

static void cancel_and_wait(void *user)
{
    outlived *o = user;
    const struct timespec until = clock_after_ms(PATIENCE_MS);
    carat_session_cancel(o->s);
    pthread_mutex_lock(&o->lock);
    while (!o->closed)
        if (pthread_cond_timedwait(&o->more, &o->lock, &until))
            break;
    o->began_later = o->closed;
    pthread_mutex_unlock(&o->lock);
}

TEST(a_tower_may_outlive_the_session_that_asked)
{
    outlived o = {.s = NULL};
    client c;
    int32_t ids[CTX];
    carat_timings t;
    err e = {0};
    pthread_mutex_init(&o.lock, NULL);
    clock_cond_init(&o.more);
    write_tower("tiny-mmproj-hears");
    carat_model *m = open_with(toy_model_write(&(toy_model_file){.base = "e2b"}));
    carat_media *x = sound_of(m, 1);
    int64_t n = prompt_of(ids, x, 11);
    const carat_generate_options g = answer_of(m, ANSWER);
    client_init(&c);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &o.s, &e), e);
    media_before_work(m, cancel_and_wait, &o);
    CHECK_OK(carat_generate(o.s, ids, n, &g, hear, &c, &t, &e), e);
    CHECK(t.finish == CARAT_FINISH_CANCELLED && !c.n);
    carat_session_close(o.s);
    carat_media_free(x);
    pthread_mutex_lock(&o.lock);
    o.closed = true;
    pthread_cond_signal(&o.more);
    pthread_mutex_unlock(&o.lock);
    carat_model_close(m);
    CHECK_MSG(o.began_later, "the session waited for the tower");
    client_free(&c);
    pthread_cond_destroy(&o.more);
    pthread_mutex_destroy(&o.lock);
}

/* ---- Sixteen clients ---- */

static carat_media *picture_of(carat_model *m, int i)
{
    const carat_image_options io = {.n_tokens = 70};
    int32_t w = 20 + i % 5 * 9, h = 50 - i * 2;
    carat_media *x;
    AUTO(image_free) image picture;
    err e = {0};
    test_picture(&picture, 100 + i, w, h);
    CHECK_OK(carat_image_new(m, picture.rgb, w, h, &io, &x, &e), e);
    return x;
}

/* other: the same model opened again, so its tower runs anew, on the session's thread. */
static void check_clients(carat_model *m, carat_model *other)
{
    carat_media *x[CLIENTS];
    client got[CLIENTS], want[CLIENTS];
    int32_t ids[CLIENTS][CTX];
    int64_t n[CLIENTS];
    int32_t n_distinct = 0;
    carat_batch *b = open_batch(m, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        x[i] = picture_of(m, i);
        n[i] = prompt_of(ids[i], x[i], 11); /* texts are equal: pictures decide */
        client_init(&got[i]);
        client_init(&want[i]);
        submit(b, m, ids[i], n[i], ANSWER, &got[i]);
        for (int k = 0; k < i % 3; k++) /* they come while others are at work */
            carat_batch_step(b);
    }
    while (carat_batch_step(b))
        ;
    carat_batch_close(b);
    for (int i = 0; i < CLIENTS; i++) {
        carat_media_free(x[i]);
        x[i] = picture_of(other, i);
        alone(other, ids[i], prompt_of(ids[i], x[i], 11), ANSWER, &want[i]);
        check_same(&got[i], &want[i], ANSWER);
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen |= !memcmp(want[k].id, want[i].id, ANSWER * sizeof *want[i].id);
        n_distinct += !seen;
        client_free(&got[i]);
    }
    CHECK_MSG(n_distinct >= CLIENTS / 4, "only %d different answers: pictures decide too little",
              n_distinct);
    for (int i = 0; i < CLIENTS; i++) {
        client_free(&want[i]);
        carat_media_free(x[i]);
    }
}

/* In E-sizes pictures are causal, in others their tokens see each other. */
TEST(sixteen_clients_with_a_picture_each)
{
    write_tower("tiny-mmproj-clamped");
    const char *text = toy_model_write(&(toy_model_file){.base = "e2b"});
    carat_model *m = open_with(text), *other = open_with(text);
    check_clients(m, other);
    carat_model_close(m);
    carat_model_close(other);
}

TEST(sixteen_clients_with_a_two_way_picture_each)
{
    AUTO(fidelity_close) fidelity f;
    write_tower("tiny-mmproj-clamped");
    fidelity_open(&f, "dense");
    const char *text = fidelity_write(&f, NULL);
    carat_model *m = open_with(text), *other = open_with(text);
    CHECK(media_two_way(m));
    check_clients(m, other);
    carat_model_close(m);
    carat_model_close(other);
}

/* ---- Towers in passes ---- */

static void count_work(void *user)
{
    ++*(int *)user;
}

/* A wrapped device computes its towers itself, as a GPU does. While nobody answers, a pass takes
 * all pictures. */
TEST(one_tower_in_a_pass_while_others_are_answered)
{
    carat_media *x[4];
    client got[5], want;
    int32_t ids[4][CTX];
    const int32_t text[] = {5, 6, 7};
    err e = {0};
    write_tower("tiny-mmproj-clamped");
    const char *file = toy_model_write(&(toy_model_file){.base = "e2b"});
    const carat_model_options o = {
        .n_threads = 1, .exact_f32 = true, .mmproj = test_temp("tower.gguf"), .wrap = "time"};
    for (int answers = 0; answers < 2; answers++) {
        int n_work = 0, most = 0;
        AUTO_MODEL *m;
        CHECK_OK(carat_model_open(file, &o, &m, &e), e);
        media_before_work(m, count_work, &n_work);
        carat_batch *b = open_batch(m, 5);
        for (int i = 0; i < 5; i++)
            client_init(&got[i]);
        if (answers)
            submit(b, m, text, 3, 2 * ANSWER, &got[4]);
        while (answers && !got[4].n)
            carat_batch_step(b);
        for (int i = 0; i < 4; i++) {
            x[i] = picture_of(m, i);
            submit(b, m, ids[i], prompt_of(ids[i], x[i], 11), ANSWER, &got[i]);
        }
        for (int was = 0; carat_batch_step(b); was = n_work)
            most = n_work - was > most ? n_work - was : most;
        CHECK_EQ(n_work, 4);
        CHECK_MSG(answers ? most == 1 : most > 1, "a pass with %d towers", most);
        carat_batch_close(b);
        for (int i = 0; i < 4; i++) {
            client_init(&want);
            alone(m, ids[i], prompt_of(ids[i], x[i], 11), ANSWER, &want);
            check_same(&got[i], &want, ANSWER);
            client_free(&want);
            carat_media_free(x[i]);
        }
        for (int i = 0; i < 5; i++)
            client_free(&got[i]);
    }
}

/* Three pictures and two pieces of a sound in one prompt: a part between two tokens of somebody
 * else's answer. */
TEST(one_part_of_a_tower_between_two_tokens)
{
    enum { PICTURES = 3, PIECE = 480000, PARTS = PICTURES + 2 };
    static float samples[PIECE + 1000];
    static int32_t ids[CTX];
    carat_media *x[PICTURES + 1];
    client got[2], want;
    const int32_t text[] = {5, 6, 7};
    int64_t n = 0;
    int n_work = 0;
    AUTO_MODEL *m;
    err e = {0};
    write_tower("tiny-mmproj-hears");
    const char *file = toy_model_write(&(toy_model_file){.base = "e2b"});
    const carat_model_options o = {
        .n_threads = 1, .exact_f32 = true, .mmproj = test_temp("tower.gguf"), .wrap = "time"};
    CHECK_OK(carat_model_open(file, &o, &m, &e), e);
    media_before_work(m, count_work, &n_work);
    carat_batch *b = open_batch(m, 2);
    for (int i = 0; i < 2; i++)
        client_init(&got[i]);
    submit(b, m, text, 3, 3 * ANSWER, &got[1]);
    while (!got[1].n)
        carat_batch_step(b);
    for (int i = 0; i < PICTURES; i++)
        x[i] = picture_of(m, i);
    test_sound(samples, 1, PIECE + 1000);
    CHECK_OK(carat_sound_new(m, samples, PIECE + 1000, &x[PICTURES], &e), e);
    for (int i = 0; i <= PICTURES; i++)
        n += prompt_of(ids + n, x[i], 11 + 2 * i);
    submit(b, m, ids, n, ANSWER, &got[0]);
    for (int was = 0, tokens = got[1].n; carat_batch_step(b); was = n_work, tokens = got[1].n)
        CHECK_MSG(n_work - was <= 1, "%d parts after token %d", n_work - was, tokens);
    CHECK_EQ(n_work, PARTS);
    CHECK(got[0].n == ANSWER && got[1].n == 3 * ANSWER);
    carat_batch_close(b);
    client_init(&want);
    alone(m, ids, n, ANSWER, &want);
    check_same(&got[0], &want, ANSWER);
    client_free(&want);
    for (int i = 0; i <= PICTURES; i++)
        carat_media_free(x[i]);
    for (int i = 0; i < 2; i++)
        client_free(&got[i]);
}
