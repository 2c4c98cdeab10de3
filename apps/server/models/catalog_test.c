/* catalog_test.c - the models of a server when memory is short: each allocation of reading the
 * list, of looking at the disk again and of loading fails in turn. Nothing leaks, nothing of a list
 * is wrong, and the next try succeeds. */
#include "apps/hub/place.h"
#include "apps/server/models/catalog_int.h"
#include "apps/server/http/exchange.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct rig {
    serve_options o;
    server s;
    const char *dir;
} rig;

/* A server whose options name one file by a name, and a directory with three others. */
static void rig_open(rig *r)
{
    static const char *const files[] = {"one.gguf", "two-00001-of-00002.gguf",
                                        "two-00002-of-00002.gguf", "mmproj-x.gguf", "three.gguf"};
    static char word[1024];
    err e = {0};
    *r = (rig){.o = {.log = "off", .parallel = 1, .queue = 8, .n_ctx = 64, .threads = 1}};
    r->o.cache.checkpoint_mb = -1;
    r->dir = test_temp("models");
    CHECK_OK(make_dirs(r->dir, &e), e);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", r->dir, files[i]);
        test_write(path, "x", 1);
    }
    snprintf(word, sizeof word, "toy=%s", toy_model_write(NULL));
    r->o.model.at[r->o.model.n++] = word;
    r->s.o = &r->o;
    passes_init(&r->s.passes);
}

static void rig_free(rig *r)
{
    passes_free(&r->s.passes);
}

/* Each offer has a name and the file of that name; the bundled model is not among them. */
static void check_offers(const catalog *c)
{
    for (const offer *o = c->first; o; o = o->next) {
        CHECK(o->name && o->path);
        CHECK_MSG(!strcmp(o->name, "toy") || strstr(o->path, o->name), "%s: %s", o->name, o->path);
    }
}

/* Reads the list, looks at the disk again, finds and does not find. */
static status read_list(void *arg, err *e)
{
    rig *r = arg;
    catalog *c;
    problem p = {0};
    int32_t n;
    status st = catalog_open(&c, &r->s, e);
    if (st)
        return st;
    CHECK_EQ(c->n, 4);
    check_offers(c);
    c->looked_ms = -1e9;
    CHECK(offers_find(c, "THREE") && offers_find(c, "two:latest"));
    CHECK(!catalog_load(c, "thre", &p) && p.status == 404 && strstr(p.text, "did you mean"));
    c->looked_ms = -1e9;
    offer_view *list = catalog_list(c, &n);
    check_offers(c);
    CHECK(c->n == 4 && (!list || n == 4));
    st = list ? OK : err_memory(e, "the list", 1);
    mem_free(list);
    catalog_close(c);
    return st;
}

/* As large and as old as the one before, by a rename. */
TEST(a_replaced_file_has_another_mark)
{
    char path[1024], next[1024];
    file_mark a, b;
    offer o = {.path = path};
    struct stat sb;
    snprintf(path, sizeof path, "%s", test_temp("one.gguf"));
    snprintf(next, sizeof next, "%s", test_temp("next.gguf"));
    CHECK(!offer_file(&o, &a));
    test_write(path, "x", 1);
    test_write(next, "y", 1);
    CHECK(offer_file(&o, &a) && offer_file(&o, &b) && !memcmp(&a, &b, sizeof a));
    CHECK(!stat(path, &sb));
    CHECK(!utimensat(AT_FDCWD, next, (struct timespec[]){sb.st_atim, sb.st_mtim}, 0));
    CHECK(!rename(next, path) && offer_file(&o, &b));
    CHECK(a.size == b.size && !memcmp(&a.time, &b.time, sizeof a.time));
    CHECK(memcmp(&a, &b, sizeof a));
}

TEST(each_allocation_of_a_list_of_models_may_fail)
{
    AUTO(rig_free) rig r;
    rig_open(&r);
    r.o.models.at[r.o.models.n++] = r.dir;
    for (int64_t n = 0;; n++) {
        err e = {0};
        mem_fail_after(n);
        status st = read_list(&r, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        /* A look at the disk and a sentence may lack memory, and the call goes on. */
        CHECK_MSG(!st || (hit && st == E_MEMORY), "allocation %lld: %s", (long long)n, e.text);
        if (!hit)
            break;
    }
}

/* Loads the model on the loader's thread, and closes all. */
static status load_one(rig *r, err *e)
{
    catalog *c;
    status st = catalog_open(&c, &r->s, e);
    if (st)
        return st;
    c->looked_ms = INFINITY; /* a look at the disk may lack memory, and the call goes on */
    if (!(st = catalog_start(c, e)) && !(st = catalog_load_first(c, e)))
        CHECK(c->first->state == OFFER_LOADED && c->first->m);
    else
        CHECK(c->first->state == OFFER_UNLOADED && !c->first->m && *e->text);
    catalog_close(c);
    r->s.passes.n = 0; /* no loop runs: the model would be forgotten there */
    return st;
}

TEST(each_allocation_of_loading_may_fail)
{
    AUTO(rig_free) rig r;
    int forgiven = 0;
    rig_open(&r);
    for (int64_t n = 0;; n += test_brief() ? 7 : 1) {
        err e = {0};
        mem_fail_after(n);
        status st = load_one(&r, &e);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        /* The text of an event may lack memory, and the load goes on. There are two: loading,
         * loaded. */
        forgiven += hit && !st;
        CHECK_MSG(hit ? st == E_MEMORY || forgiven <= 2 : !st, "allocation %lld gave %s: %s",
                  (long long)n, carat_status_name(st), e.text);
        if (!hit)
            break;
    }
}

/* Waiting requests get a 503 with Retry-After when memory was short, and later ones the model. */
TEST(a_load_without_memory_is_tried_again)
{
    AUTO(rig_free) rig r;
    catalog *c;
    err e = {0};
    exchange x = {.fd = -1, .keep_ms = KEEP_DEFAULT};
    rig_open(&r);
    r.o.models.at[r.o.models.n++] = r.dir;
    CHECK_OK(catalog_open(&c, &r.s, &e), e);
    x.s = &r.s;
    problem p = {0};
    CHECK_EQ(catalog_pick(c, "toy", &x, &p), PICK_WAITS);
    mem_fail_after(20);
    CHECK_OK(catalog_start(c, &e), e);
    CHECK_EQ(catalog_wait(c, &x, -1, &p), PICK_FAILED);
    CHECK(mem_fail_hit());
    mem_fail_after(-1);
    CHECK(p.status == 503 && p.retry_s > 0 && strstr(p.text, "toy"));
    catalog_release(c, &x);
    p = (problem){0};
    offers_find(c, "toy")->failed_ms = clock_ms() + 1e6; /* the same sentence for a second */
    CHECK_EQ(catalog_pick(c, "toy", &x, &p), PICK_FAILED);
    CHECK_EQ(p.status, 503);
    catalog_release(c, &x);
    offers_find(c, "toy")->failed_ms = -1e9;
    p = (problem){0};
    CHECK_EQ(catalog_pick(c, "toy", &x, &p), PICK_WAITS);
    CHECK_MSG(catalog_wait(c, &x, -1, &p) == PICK_DONE, "%s", p.text);
    CHECK(x.m && x.m->n_slots == 1);
    catalog_release(c, &x);
    catalog_close(c);
    r.s.passes.n = 0;
}

/* Names of the store's models: clients of ollama ask for "gemma4:e4b". */
TEST(short_names_find_offers)
{
    AUTO(rig_free) rig r;
    catalog *c;
    err e = {0};
    static char words[3][1100];
    static const char *const names[] = {"ggml-org/gemma-4-E4B-it-GGUF:Q8_0",
                                        "ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M", "gemma4"};
    rig_open(&r);
    for (int i = 0; i < 3; i++) {
        snprintf(words[i], sizeof words[i], "%s=%s/%s", names[i], r.dir,
                 i ? "one.gguf" : "three.gguf");
        r.o.model.at[r.o.model.n++] = words[i];
    }
    CHECK_OK(catalog_open(&c, &r.s, &e), e);
    const offer *best = offers_find(c, "gemma4:e4b"), *asked = offers_find(c, "gemma4:e4b-q8_0");
    CHECK(best && !strcmp(best->name, names[1]));
    CHECK(asked && !strcmp(asked->name, names[0]));
    CHECK(!strcmp(offers_find(c, "gemma4")->name, "gemma4")); /* a model's own name comes first */
    CHECK(!offers_find(c, "gemma4:e4b-q6_k") && !offers_find(c, "gemma4:e2b"));
    catalog_close(c);
}
