/* check_placements.c - mixtures whose experts lie in slots that the check chooses, against the same
 * model as a whole: logits bit for bit, the greedy text of the bundled model, and the bytes of
 * every slot after every pass.
 *
 *     all but one   minimum   even experts   odd experts   at random   changing before every pass
 *
 * Which experts begin in slots follows from the file of counts that the check writes beside the
 * model. What it takes to be true of a device is said in backend/experts.h.
 */
#include "tests/cuda/check_int.h"
#include "backend/expert_slots.h"
#include "backend/experts.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "engine/expert_file.h"
#include "tests/fidelity_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 96, PROMPT = 50, SHORT = 3, STEPS = 8, ANSWER = 16, WORDS = 32, KEY_AT = 18 };

typedef enum choice { ANY, EVEN, ODD, RANDOM } choice;
typedef struct placement {
    const char *name;
    double part; /* of all experts; 0: the fewest, 1: all but one */
    choice hot;
    bool restless;
} placement;

static const placement placements[] = {
    {"changing", 0.5, ANY, true},
    {"minimum", 0, ANY, false},
    {"even experts", 0.5, EVEN, false},
    {"odd experts", 0.5, ODD, false},
    {"all but one", 1, ANY, false},
    {"minimum, changing", 0, RANDOM, true},
    {"random", 0.4, RANDOM, false},
    {"random", 0.6, RANDOM, false},
    {"random, changing", 0.75, RANDOM, true},
};
enum { PLACEMENTS = sizeof placements / sizeof *placements };

typedef struct placed {
    rig *g;
    const char *what, *path; /* the model's file */
    char counts[300];        /* FILE.experts */
    uint64_t key;            /* of the model, in that file */
    carat_model *whole, *some;
    const int32_t *ids;
    size_t n_vocab;
    float *x, *y;
    double share; /* of the placement under way */
} placed;

static const carat_session_options session = {
    .n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = "f16"};

static const struct expert_ops *ops_of(const carat_model *m)
{
    return m->dev->experts;
}

static bool hot(choice c, int32_t expert, uint64_t *rng)
{
    return c == ANY ? false : c == RANDOM ? rng_next(rng) & 1 : (expert & 1) == (c == ODD);
}

/* Counts that say which experts are common. */
static status write_counts(const placed *p, const placement *to, err *e)
{
    const model *m = &p->whole->core;
    enum { LAYERS = 32 };
    static uint64_t count[LAYERS][EXPERTS_MAX];
    expert_counts l[LAYERS];
    if (m->n_expert_layers > LAYERS)
        return err_set(e, E_LIMIT, "a check of at most %d layers", LAYERS);
    for (int32_t i = 0; i < m->n_expert_layers; i++) {
        l[i] = (expert_counts){m->experts[i].il, m->experts[i].n_experts, count[i]};
        for (int32_t k = 0; k < m->experts[i].n_experts; k++)
            count[i][k] = hot(to->hot, k, &p->g->rng) ? 1000 : 1;
    }
    return expert_file_write(p->counts, p->key, l, m->n_expert_layers, e);
}

/* The model's own key, from the counts of a short run. */
static status learn_key(placed *p, err *e)
{
    carat_session *s = NULL;
    char *bytes = NULL;
    size_t n = 0;
    const carat_model_options o = {.device = "cuda", .experts_gpu = "0.5"};
    status st = carat_model_open(p->path, &o, &p->some, e);
    st = st ? st : carat_session_open(p->some, &session, &s, e);
    st = st ? st : carat_eval(s, p->ids, SHORT, p->y, NULL, e);
    st = st ? st : carat_append(s, p->ids, 1, false, p->y, e); /* reads the counts of the other */
    st = st ? st : carat_append(s, p->ids, 1, false, p->y, e);
    carat_session_close(s);
    carat_model_close(p->some);
    p->some = NULL;
    st = st ? st : file_read_all(p->counts, 1 << 20, &bytes, &n, e);
    for (int i = 7; i >= 0 && !st; i--)
        p->key = p->key << 8 | (unsigned char)bytes[KEY_AT + i];
    mem_free(bytes);
    return st;
}

static status open_placed(placed *p, const placement *to, const carat_session_options *so, err *e)
{
    const model *m = &p->whole->core;
    double n_all = 0, n_least = 0;
    for (int32_t i = 0; i < m->n_expert_layers; i++) {
        n_all += m->experts[i].n_experts;
        n_least += m->experts[i].n_used;
    }
    double least = n_least / n_all, most = (n_all - 0.5) / n_all;
    p->share = to->part < least ? least : to->part > most ? most : to->part;
    char part[64];
    snprintf(part, sizeof part, "%.9f", p->share + 1e-9);
    const carat_model_options o = {.device = "cuda", .experts_gpu = part, .session = so};
    status st = write_counts(p, to, e);
    st = st ? st : carat_model_open(p->path, &o, &p->some, e);
    if (!st && to->restless)
        ops_of(p->some)->set_restless(p->some->dev, true);
    return st;
}

/* Slots of a placement whose expert should not have one. */
static int32_t misplaced(const placed *p, const placement *to)
{
    int32_t n = 0, n_slots = 0, n_all = 0;
    for (int32_t i = 0; i < p->some->core.n_expert_layers; i++) {
        const expert_slots *s = ops_of(p->some)->slots(p->some->dev, i);
        n_slots += s->n_slots;
        n_all += s->n_experts;
        for (int32_t k = 0; k < s->n_experts && (to->hot == EVEN || to->hot == ODD); k++)
            n += expert_slots_has(s, k) != hot(to->hot, k, NULL);
    }
    return n + (n_slots == n_all || (to->part > 0.9 && n_slots != n_all - 1));
}

static void say(const placed *p, const placement *to, const char *what, double n)
{
    verdict(p->g, "placements",
            text("%s, %s, %.0f %%: %s", p->what, to->name, 100 * p->share, what), n, 0);
}

/* A long prompt, steps, a short prompt, steps. */
static status check_logits(placed *p, const placement *to, err *e)
{
    carat_session *a = NULL, *b = NULL;
    double differ = 0, wrong = 0;
    carat_expert_info info;
    status st = open_placed(p, to, &session, e);
    if (st)
        return st;
    say(p, to, "misplaced at first", misplaced(p, to));
    wrong += ops_of(p->some)->n_wrong(p->some->dev);
    st = carat_session_open(p->whole, &session, &a, e);
    st = st ? st : carat_session_open(p->some, &session, &b, e);
    for (int i = 0; i < 2 * (1 + STEPS) && !st; i++) {
        bool prompt = i % (1 + STEPS) == 0;
        int32_t n = !prompt ? 1 : i ? SHORT : PROMPT;
        const int32_t *ids = p->ids + (prompt ? i : PROMPT + 3 * i);
        st =
            prompt ? carat_eval(a, ids, n, p->x, NULL, e) : carat_append(a, ids, n, false, p->x, e);
        st = st       ? st
             : prompt ? carat_eval(b, ids, n, p->y, NULL, e)
                      : carat_append(b, ids, n, false, p->y, e);
        differ += !st && memcmp(p->x, p->y, p->n_vocab * sizeof *p->x);
        wrong += st ? 0 : ops_of(p->some)->n_wrong(p->some->dev);
    }
    if (!st) {
        carat_experts(p->some, &info);
        say(p, to, "passes that differ", differ);
        say(p, to, "slots whose bytes are not the host's", wrong);
        say(p, to, "changed hands too seldom", to->restless && info.n_swaps < 2 * STEPS);
    }
    carat_session_close(b);
    carat_session_close(a);
    carat_model_close(p->some);
    p->some = NULL;
    return st;
}

static void open_placed_file(placed *p, err *e, status *st)
{
    carat_model_info info;
    snprintf(p->counts, sizeof p->counts, "%s.experts", p->path);
    if ((*st = carat_model_open(p->path, &(carat_model_options){.device = "cuda"}, &p->whole, e)))
        return;
    carat_model_get_info(p->whole, &info);
    p->n_vocab = (size_t)info.n_vocab;
    p->x = mem_calloc(2 * p->n_vocab, sizeof *p->x);
    p->y = p->x + p->n_vocab;
    *st = p->x ? learn_key(p, e) : err_memory(e, "a check", p->n_vocab * 8);
}

static void close_placed_file(placed *p)
{
    mem_free(p->x);
    carat_model_close(p->some);
    carat_model_close(p->whole);
    unlink(p->counts);
    unlink(p->path);
}

static void check_fidelity(rig *g, const char *name, num_type type, int every)
{
    fidelity f;
    err e = {0};
    status st;
    fidelity_open(&f, name);
    placed p = {.g = g, .what = text("%s %s", name, num_name(type)), .ids = f.tokens};
    char what[64];
    snprintf(what, sizeof what, "%s", p.what);
    p.what = what;
    p.path = fidelity_write(&f, &(fidelity_file){.type = type == NUM_F32 ? 0 : type});
    open_placed_file(&p, &e, &st);
    for (int i = 0; i < PLACEMENTS && !st; i += every)
        st = check_logits(&p, &placements[i], &e);
    if (st)
        failed(g, "placements", text("%s: %s", what, e.text));
    close_placed_file(&p);
    fidelity_close(&f);
}

/* ---- The bundled model ---------------------------------------------------------------------- */

typedef struct said {
    placed *p;
    int32_t id[ANSWER], n, n_wrong;
} said;

static bool keep_token(void *user, const carat_event *ev)
{
    said *s = user;
    const carat_model *m = s->p->some;
    if (ev->kind == CARAT_EV_TOKEN && s->n < ANSWER)
        s->id[s->n++] = ev->id;
    if (ev->kind == CARAT_EV_TOKEN && m)
        s->n_wrong += ops_of(m)->n_wrong(m->dev);
    return true;
}

static status answer(carat_model *m, const carat_session_options *so, said *to, err *e)
{
    static const char words[] = "What is the capital of France?";
    int32_t id[WORDS];
    carat_generate_options o = {.max_tokens = ANSWER};
    carat_session *s = NULL;
    status st = carat_session_open(m, so, &s, e);
    if (st)
        return st;
    int64_t n = carat_tokenize(m, words, sizeof words - 1, 0, id, WORDS, e);
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 0;
    o.sampling.ignore_eog = true;
    st = carat_generate(s, id, n, &o, keep_token, to, NULL, e);
    carat_session_close(s);
    return st;
}

static void check_text(rig *g, const placement *to)
{
    const carat_session_options so = {.n_ctx = 128, .checkpoint_mb = -1};
    static const int32_t first_ids[SHORT] = {2, 20, 30};
    char path[64] = "/tmp/carat-placed-XXXXXX", *bytes = NULL;
    placed p = {.g = g, .what = "bundled model", .path = path, .ids = first_ids};
    said whole = {.p = &p}, some = {.p = &p};
    size_t n = 0;
    err e = {0};
    file_out f;
    status st = file_read_all("models/demo.gguf", 64 << 20, &bytes, &n, &e);
    int fd = mkstemp(path);
    if (fd >= 0)
        close(fd);
    st = st ? st : file_out_open(&f, path, &e);
    st = st ? st : file_out_write(&f, bytes, n, &e);
    st = st ? st : file_out_commit(&f, &e);
    mem_free(bytes);
    if (!st)
        open_placed_file(&p, &e, &st);
    st = st ? st : answer(p.whole, &so, &whole, &e);
    st = st ? st : open_placed(&p, to, &so, &e);
    st = st ? st : answer(p.some, &so, &some, &e);
    if (st) {
        failed(g, "placements", text("bundled model: %s", e.text));
    } else {
        say(&p, to, "greedy text differs",
            some.n != ANSWER || memcmp(some.id, whole.id, sizeof some.id) != 0);
        say(&p, to, "slots whose bytes are not the host's", some.n_wrong);
    }
    close_placed_file(&p);
}

void check_placements(rig *g)
{
    static const char *const names[] = {"moe", "laguna", "qwen35moe", "qwen3moe"};
    static const num_type types[] = {NUM_F32, NUM_Q8_0};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++)
            if (my_turn(g, "placements") && !(g->quick && i && k))
                check_fidelity(g, names[i], types[k], g->quick && i ? 3 : 1);
    for (int i = 0; i < PLACEMENTS; i++)
        if (my_turn(g, "placements") && !(g->quick && i % 3))
            check_text(g, &placements[i]);
}
