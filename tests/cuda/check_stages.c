/* check_stages.c - models whose layers several devices on one GPU share, against one device: logits
 * bit for bit, of prompts in chunks, and of answers whose passes are run plainly, recorded
 * and replayed.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/plan_only.h"
#include "base/mem.h"
#include "carat.h"
#include "tests/fidelity_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 64, STEPS = 8 };

static const char *const gpus[] = {"0,0", "0,0,0", "0,0,0,0"};

/* Another token at each step, so that every pass has a new step block. */
static status compare(carat_model *whole, carat_model *parts, const fidelity *f, double *differ,
                      err *e)
{
    const carat_session_options so = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = -1};
    size_t n_bytes = (size_t)f->n_vocab * sizeof(float);
    float *x = mem_alloc(2 * n_bytes), *y = x + f->n_vocab;
    carat_session *a = NULL, *b = NULL;
    int32_t n = (f->n_tokens < CTX ? f->n_tokens : CTX) - STEPS;
    status st = x ? OK : err_memory(e, "a check", 2 * n_bytes);
    st = st ? st : carat_session_open(whole, &so, &a, e);
    st = st ? st : carat_session_open(parts, &so, &b, e);
    for (int32_t i = 0; i <= STEPS && !st; i++) {
        st = i ? carat_append(a, f->tokens + n + i - 1, 1, false, x, e)
               : carat_eval(a, f->tokens, n, x, NULL, e);
        st = st  ? st
             : i ? carat_append(b, f->tokens + n + i - 1, 1, false, y, e)
                 : carat_eval(b, f->tokens, n, y, NULL, e);
        *differ += !st && memcmp(x, y, n_bytes);
    }
    carat_session_close(b);
    carat_session_close(a);
    mem_free(x);
    return st;
}

static void check_model(rig *g, const char *name)
{
    fidelity f;
    carat_model *whole = NULL;
    err e = {0};
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    status st = carat_model_open(path, &(carat_model_options){.device = "cuda"}, &whole, &e);
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus && !st; i++) {
        carat_model *parts;
        double differ = 0;
        if (carat_model_open(path, &(carat_model_options){.gpus = gpus[i]}, &parts, &e)) {
            st = e.status == E_ARG ? OK : e.status; /* too few layers for so many */
            e = (err){0};
            continue;
        }
        st = compare(whole, parts, &f, &differ, &e);
        carat_model_close(parts);
        if (!st)
            verdict(g, "stages", text("%s on %s: passes that differ", name, gpus[i]), differ, 0);
    }
    if (st)
        failed(g, "stages", e.text);
    carat_model_close(whole);
    unlink(path);
    fidelity_close(&f);
}

/* --split auto over two GPUs measures their links, and over one opened twice says that there are
 * none. What it chooses depends on time, so that is not checked. Tensors on GPUs of two kinds are
 * found to be impossible after they were chosen. */
static void check_auto(rig *g)
{
    static const struct {
        const char *gpus, *says, *or_says;
    } c[] = {{"0,1", "a copy between GPUs takes", "compute by different kernels"},
             {"0,0", "a GPU of its own", "a GPU of its own"}};
    fidelity f;
    err e = {0};
    fidelity_open(&f, "dense");
    const char *path = fidelity_write(&f, NULL);
    setenv("CARAT_PROMPTS", "bf16", 1); /* emulated, measuring for it takes minutes */
    for (int i = device_count_cuda() < 2; i < 2; i++) {
        const carat_model_options o = {.gpus = c[i].gpus, .split = "auto", .overcommit = true};
        carat_model *m = NULL;
        carat_model_info about = {0};
        if (carat_model_open(path, &o, &m, &e)) {
            failed(g, "stages", e.text);
            break;
        }
        carat_model_get_info(m, &about);
        const bool told =
            strstr(about.device_why, c[i].says) || strstr(about.device_why, c[i].or_says);
        verdict(g, "stages", text("auto on %s: says nothing of its links", c[i].gpus), !told, 0);
        carat_model_close(m);
    }
    unsetenv("CARAT_PROMPTS");
    unlink(path);
    fidelity_close(&f);
}

void check_stages(rig *g)
{
    if (my_turn(g, "stages"))
        check_auto(g);
    for (const char *const *name = fidelity_names; *name; name++)
        if (my_turn(g, "stages"))
            check_model(g, *name);
}
