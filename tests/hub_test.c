/* hub_test.c - pulling from a hub that misbehaves (hub_rig.h), in this process and by `carat pull`.
 */
#include "apps/hub/alias.h"
#include "apps/hub/head.h"
#include "apps/hub/hub.h"
#include "apps/hub/names.h"
#include "apps/hub/net.h"
#include "apps/hub/part.h"
#include "apps/hub/place.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/hub_rig.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = PART_CHUNK };

typedef struct watcher {
    uint64_t stop_at; /* all_done from which on it cancels; 0: never */
    uint64_t last, total;
    bool backwards, sick, checked;
    bool slow; /* so that no report is left out because it follows another too soon */
    int reports;
    hub_phase phase;
    char note[256];
} watcher;

static bool watch(void *user, const hub_progress *p)
{
    watcher *w = user;
    w->reports++;
    w->checked |= p->phase == HUB_CHECKING;
    if (w->slow)
        usleep(61000);
    w->backwards = w->backwards || p->all_done < w->last;
    w->sick = w->sick || p->done > p->total || (p->all_total && p->all_done > p->all_total);
    w->last = p->all_done;
    w->total = p->all_total;
    w->phase = p->phase;
    if (*p->note)
        snprintf(w->note, sizeof w->note, "%s", p->note);
    return !w->stop_at || p->all_done < w->stop_at;
}

/* Waits of a second last a millisecond. */
static void begin(hub_rig *r)
{
    net_second_ms = 1;
    hub_rig_open(r, "own/Model-GGUF");
}

static status pull(const char *what, model_found *f, err *e)
{
    return hub_pull(&(hub_ask){.what = what}, f, e);
}

static void check_content(const char *path, const hub_rig_file *want)
{
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(path, 1 << 30, &bytes, &n, &e), e);
    CHECK_EQ(n, want->n);
    CHECK(!memcmp(bytes, want->bytes, n));
}

static void pulls(hub_rig *r, const char *what, int file)
{
    AUTO(model_found_free) model_found f;
    err e = {0};
    CHECK_OK(pull(what, &f, &e), e);
    check_content(f.path, &r->file[file]);
}

static void refuses(const char *what, status st, const char *says)
{
    model_found f;
    err e = {0};
    AUTO(model_list_free) model_list l;
    status got = pull(what, &f, &e);
    CHECK_MSG(got == st, "%s '%s', expected %s '%s'", carat_status_name(got), e.text,
              carat_status_name(st), says);
    CHECK_MSG(strstr(e.text, says), "'%s' should say '%s'", e.text, says);
    CHECK(!f.path && !f.name);
    err_clear(&e);
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 0);
}

/* The names of all files in the blobs folder, and how many there are. */
static int n_blobs(char *names, size_t cap)
{
    char path[600];
    int n = 0;
    struct dirent *f;
    snprintf(path, sizeof path, "%s/carat/blobs", getenv("XDG_DATA_HOME"));
    DIR *d = opendir(path);
    names[0] = 0;
    while (d && (f = readdir(d)))
        if (f->d_name[0] != '.') {
            snprintf(names + strlen(names), cap - strlen(names), "%s ", f->d_name);
            n++;
        }
    if (d)
        closedir(d);
    return n;
}

/* ---- As it should be ----------------------------------------------------------------------- */

TEST(hub_pull_brings_the_right_files_by_several_connections)
{
    static hub_rig r;
    begin(&r);
    char names[1000];
    hub_rig_add_bytes(&r, "README.md", "words", 5, true);
    hub_rig_add(&r, "Model-Q8_0.gguf", 100);
    hub_rig_add(&r, "sub/Model-Q4_K_M-00001-of-00002.gguf", 9 * CHUNK + 17);
    hub_rig_add(&r, "sub/Model-Q4_K_M-00002-of-00002.gguf", CHUNK);
    hub_rig_add(&r, "mmproj-Q4_K_M.gguf", 100);
    r.how.bytes_per_ms = 2000;
    setenv("HF_TOKEN", " hf_secret\n", 1);
    watcher w = {0};
    model_found f;
    err e = {0};
    CHECK_OK(
        hub_pull(&(hub_ask){.what = "hf.co/own/Model-GGUF", .progress = watch, .user = &w}, &f, &e),
        e);
    CHECK_STR(f.name, "own/Model-GGUF:Q4_K_M");
    CHECK_STR(base_name(f.path), "Model-Q4_K_M-00001-of-00002.gguf");
    check_content(f.path, &r.file[2]);
    char part2[1024];
    snprintf(part2, sizeof part2, "%s", f.path);
    memcpy(strstr(part2, "00001-of"), "00002-of", 8);
    check_content(part2, &r.file[3]);
    CHECK(!w.backwards && !w.sick && w.phase == HUB_DONE && w.last == w.total && w.reports > 4);
    CHECK_EQ(w.total, 10 * CHUNK + 17);
    CHECK_EQ(atomic_load(&r.tokens_at_storage), 0);
    CHECK(atomic_load(&r.tokens_at_hub) >= 4);
    CHECK(atomic_load(&r.most_at_once) > 1);
    CHECK_EQ(atomic_load(&r.n_sent), 10 * CHUNK + 17);
    CHECK_EQ(n_blobs(names, sizeof names), 2);
    CHECK(!strstr(names, ".part") && !strstr(names, ".map"));
    model_found_free(&f);
    /* Again: only the hub's words. Another name of the same file: no bytes either. */
    pulls(&r, "own/Model-GGUF:Q4_K_M", 2);
    CHECK_EQ(atomic_load(&r.n_sent), 10 * CHUNK + 17);
    pulls(&r, "own/Model-GGUF:q8_0", 1);
    hub_rig_close(&r);
}

TEST(hub_pull_takes_pages_renames_and_files_without_storage)
{
    static hub_rig r;
    begin(&r);
    for (int i = 0; i < 5; i++)
        hub_rig_add_bytes(&r, "x.txt", "words", 5, true);
    hub_rig_add(&r, "a-Q4_0.gguf", 3 * CHUNK);
    hub_rig_add_bytes(&r, "b-Q8_0.gguf", "GGUF small", 10, true);
    r.how.page = 2;
    r.how.rename = true;
    pulls(&r, "own/Model-GGUF:Q4_0", 5);
    CHECK(atomic_load(&r.n_api) == 5);
    r.how.no_storage = true;
    r.how.token = "needed";
    setenv("HF_TOKEN", "abc", 1);
    pulls(&r, "own/Model-GGUF:Q8_0", 6); /* its hash is git's */
    hub_rig_add(&r, "c-BF16.gguf", 2 * CHUNK + 1);
    pulls(&r, "own/Model-GGUF:bf16", 7);
    model_found f;
    err e = {0};
    CHECK_OK(hub_pull(&(hub_ask){.what = "own/Model-GGUF", .file = "a-Q4_0.gguf"}, &f, &e), e);
    CHECK_STR(f.name, "own/Model-GGUF:Q4_0");
    model_found_free(&f);
    hub_rig_close(&r);
}

/* ---- Interrupted --------------------------------------------------------------------------- */

PLAIN_TEST(hub_pull_continues_where_it_was_stopped)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 40 * CHUNK + 5);
    r.how.bytes_per_ms = 2000;
    watcher w = {.stop_at = 10 * CHUNK};
    model_found f;
    err e = {0};
    CHECK_STATUS(
        hub_pull(&(hub_ask){.what = "own/Model-GGUF", .progress = watch, .user = &w}, &f, &e),
        E_CANCELLED);
    CHECK(!f.path);
    char names[1000];
    CHECK_EQ(n_blobs(names, sizeof names), 2);
    CHECK(strstr(names, ".part") && strstr(names, ".map"));
    long long before = atomic_load(&r.n_sent);
    CHECK(before >= 10 * CHUNK);
    r.how.bytes_per_ms = 0;
    pulls(&r, "own/Model-GGUF", 0);
    CHECK(atomic_load(&r.n_sent) - before <= 31 * CHUNK);
    CHECK_EQ(n_blobs(names, sizeof names), 1);
    hub_rig_close(&r);
}

/* Says once that ten chunks are kept. */
static bool tell(void *user, const hub_progress *p)
{
    int *fd = user;
    if (*fd >= 0 && p->all_done >= 10 * CHUNK) {
        CHECK_EQ(write(*fd, "x", 1), 1);
        *fd = -1;
    }
    return true;
}

PLAIN_TEST(hub_pull_of_a_killed_program_continues)
{
    static hub_rig r;
    int told[2];
    char byte;
    CHECK(!pipe(told));
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 40 * CHUNK);
    r.how.bytes_per_ms = 5000;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        model_found f;
        hub_pull(&(hub_ask){.what = "own/Model-GGUF", .progress = tell, .user = &told[1]}, &f,
                 NULL);
        _exit(0);
    }
    CHECK_EQ(read(told[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    long long before = atomic_load(&r.n_sent);
    r.how.bytes_per_ms = 0;
    pulls(&r, "own/Model-GGUF", 0);
    CHECK(atomic_load(&r.n_sent) - before <= 31 * CHUNK);
    close(told[0]);
    close(told[1]);
    hub_rig_close(&r);
}

TEST(hub_pull_notices_what_an_earlier_one_left_damaged)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 40 * CHUNK);
    r.how.bytes_per_ms = 2000;
    watcher w = {.stop_at = 10 * CHUNK};
    model_found f;
    err e = {0};
    CHECK_STATUS(
        hub_pull(&(hub_ask){.what = "own/Model-GGUF", .progress = watch, .user = &w}, &f, &e),
        E_CANCELLED);
    char path[800];
    snprintf(path, sizeof path, "%s/carat/blobs/sha256-%s.part", getenv("XDG_DATA_HOME"),
             r.file[0].oid);
    FILE *file = fopen(path, "r+b");
    CHECK(file);
    char zeros[4096] = {0};
    for (int i = 0; i < 40 * CHUNK / 4096; i++)
        CHECK(fwrite(zeros, sizeof zeros, 1, file) == 1);
    fclose(file);
    r.how.bytes_per_ms = 0;
    watcher again = {0};
    err_clear(&e);
    CHECK_OK(
        hub_pull(&(hub_ask){.what = "own/Model-GGUF", .progress = watch, .user = &again}, &f, &e),
        e);
    check_content(f.path, &r.file[0]);
    CHECK(strstr(again.note, "starting again"));
    model_found_free(&f);
    hub_rig_close(&r);
}

typedef struct racer {
    status st;
    err e;
    model_found f;
} racer;

static void *race(void *arg)
{
    racer *c = arg;
    c->st = pull("own/Model-GGUF", &c->f, &c->e);
    return NULL;
}

TEST(hub_pulls_at_once_share_the_work)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 20 * CHUNK + 1);
    r.how.bytes_per_ms = 2000;
    pthread_t t[3];
    racer c[3] = {0};
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&t[i], NULL, race, &c[i]));
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        CHECK_OK(c[i].st, c[i].e);
        check_content(c[i].f.path, &r.file[0]);
        model_found_free(&c[i].f);
    }
    CHECK_EQ(atomic_load(&r.n_sent), 20 * CHUNK + 1);
    hub_rig_close(&r);
}

/* ---- Servers that misbehave ---------------------------------------------------------------- */

TEST(hub_pull_survives_cuts_errors_limits_and_expired_addresses)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 12 * CHUNK + 3);
    r.how.cut_times = 6;
    r.how.cut_at = CHUNK + 1000;
    pulls(&r, "own/Model-GGUF", 0);
    CHECK(atomic_load(&r.n_cut) >= 2);
    r.how.busy_times = 3;
    r.how.busy_after = 1;
    hub_rig_add(&r, "b-Q8_0.gguf", 3 * CHUNK);
    pulls(&r, "own/Model-GGUF:Q8_0", 1);
    CHECK_EQ(atomic_load(&r.n_busy), 3);
    r.how.busy_times = 5;
    r.how.busy_after = -1;
    r.how.expire_times = 3;
    r.how.error_times = 2;
    hub_rig_add(&r, "c-BF16.gguf", 9 * CHUNK);
    int heads = atomic_load(&r.n_head);
    pulls(&r, "own/Model-GGUF:BF16", 2);
    CHECK_EQ(atomic_load(&r.n_expired), 3);
    CHECK_EQ(atomic_load(&r.n_errors), 2);
    CHECK(atomic_load(&r.n_head) > heads + 1); /* the hub was asked for a new address */
    hub_rig_close(&r);
}

/* Each answer brings one chunk and ends: as long as chunks come the pull goes on. */
TEST(hub_pull_goes_on_while_answers_bring_something)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 24 * CHUNK);
    r.how.cut_times = 1000;
    r.how.cut_at = CHUNK + 1000;
    pulls(&r, "own/Model-GGUF", 0);
    CHECK_MSG(atomic_load(&r.n_cut) > 12, "%d cut", atomic_load(&r.n_cut));
    hub_rig_close(&r);
}

TEST(hub_pull_waits_after_an_error)
{
    static hub_rig r;
    begin(&r);
    net_second_ms = 200;
    hub_rig_add(&r, "a-Q4_0.gguf", CHUNK);
    r.how.error_times = 1;
    double begun = clock_ms();
    pulls(&r, "own/Model-GGUF", 0);
    CHECK_MSG(clock_ms() - begun >= 200, "%.0f ms", clock_ms() - begun);
    CHECK_EQ(atomic_load(&r.n_errors), 1);
    hub_rig_close(&r);
}

TEST(hub_pull_says_that_it_checks)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", CHUNK);
    watcher w = {.slow = true};
    model_found f;
    err e = {0};
    CHECK_OK(hub_pull(&(hub_ask){.what = "own/Model-GGUF", .progress = watch, .user = &w}, &f, &e),
             e);
    CHECK(w.checked && !w.backwards && !w.sick && w.phase == HUB_DONE);
    model_found_free(&f);
    hub_rig_close(&r);
}

TEST(hub_pull_without_ranges_comes_in_one_piece)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 9 * CHUNK + 3);
    r.how.no_ranges = true;
    pulls(&r, "own/Model-GGUF", 0);
    r.how.cut_times = 1;
    r.how.cut_at = 4 * CHUNK;
    hub_rig_add(&r, "b-Q8_0.gguf", 6 * CHUNK);
    pulls(&r, "own/Model-GGUF:Q8_0", 1);
    hub_rig_close(&r);
}

TEST(hub_pull_gives_up_with_a_sentence)
{
    static hub_rig r;
    begin(&r);
    hub_rig_file *f = hub_rig_add(&r, "a-Q4_0.gguf", 5 * CHUNK);
    const hub_rig_how well = r.how;
    r.how.cut_times = 1000;
    r.how.cut_at = 100;
    refuses("own/Model-GGUF", E_IO, "the same command continues");
    r.how = well;
    r.how.expire_times = 1000;
    refuses("own/Model-GGUF", E_IO, "403");
    r.how = well;
    r.how.always_416 = true;
    refuses("own/Model-GGUF", E_IO, "416");
    r.how = well;
    r.how.other_range = true;
    refuses("own/Model-GGUF", E_IO, "other bytes than those asked for");
    r.how = well;
    r.how.gzip = true;
    refuses("own/Model-GGUF", E_IO, "other bytes than those asked for");
    r.how = well;
    r.how.loop = true;
    refuses("own/Model-GGUF", E_IO, "redirected");
    r.how = well;
    r.how.busy_times = 1000;
    refuses("own/Model-GGUF", E_IO, "too many requests");
    r.how.busy_after = 100000; /* seconds: not worth waiting for */
    refuses("own/Model-GGUF", E_IO, "too many requests");
    r.how = well;
    f->size++;
    refuses("own/Model-GGUF", E_FORMAT, "lists");
    f->size--;
    char right[65];
    memcpy(right, f->oid, sizeof right);
    f->bytes[CHUNK] ^= 1; /* the listing and the storage no longer agree */
    refuses("own/Model-GGUF", E_FORMAT, "its SHA-256 is");
    char names[1000];
    CHECK_EQ(n_blobs(names, sizeof names), 0);
    f->bytes[CHUNK] ^= 1;
    r.how.other_bytes = true;
    refuses("own/Model-GGUF", E_FORMAT, "its SHA-256 is");
    r.how = well;
    f->bytes[0] = 'X';
    hub_rig_add_bytes(&r, "pointer-Q8_0.gguf", "version https://git-lfs.github.com/spec/v1\n", 43,
                      true);
    refuses("own/Model-GGUF:Q8_0", E_FORMAT, "pointer of Git LFS");
    hub_rig_close(&r);
}

/* A storage that ignores ranges, names no length and never ends; and refusals of that kind. The
 * pull takes no more than some copies of the file. */
TEST(hub_pull_ends_when_the_storage_does_not)
{
    static const size_t sizes[] = {5 * CHUNK, 5 * CHUNK + 7, 100, 1};
    static const int codes[] = {403, 404, 503};
    static hub_rig r;
    begin(&r);
    hub_rig_file *f = hub_rig_add(&r, "a-Q4_0.gguf", 5 * CHUNK);
    r.how.endless = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        f->size = (int64_t)(f->n = sizes[i]);
        refuses("own/Model-GGUF", E_FORMAT, "another number");
    }
    f->size = (int64_t)(f->n = 5 * CHUNK);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        r.how.endless_status = codes[i];
        refuses("own/Model-GGUF", E_IO, "does not end");
    }
    CHECK(atomic_load(&r.n_sent) < 256 << 20);
    r.how = (hub_rig_how){.no_ranges = true, .more_bytes = true};
    refuses("own/Model-GGUF", E_FORMAT, "another number");
    r.how = (hub_rig_how){0};
    pulls(&r, "own/Model-GGUF", 0);
    hub_rig_close(&r);
}

TEST(hub_pull_takes_names_as_people_publish_them)
{
    static const char *const names[] = {
        "big-model-31b-it-Q4_K_M.gguf", "Some-0.6B-Instruct-Q8_0.gguf", "Q-27B-MTP-Q8_0.gguf",
        "Qwen3.6-35B-A3B-...Q3_K_M.gguf", "Q4_K_M/model-00001-of-00001.gguf"};
    static const char *const broken[] = {"m-Q4_K_M-00000-of-00000.gguf",
                                         "m-Q4_K_M-00001-of-00000.gguf",
                                         "m-Q4_K_M-00003-of-00002.gguf", "m-99999-of-99999.gguf"};
    static hub_rig r;
    err e = {0};
    model_found f;
    begin(&r);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        hub_rig_clear(&r);
        hub_rig_add(&r, broken[i], 1000);
        refuses("own/Model-GGUF", E_FORMAT, "a set that cannot be");
        CHECK_STATUS(hub_pull(&(hub_ask){.what = "own/Model-GGUF", .file = broken[i]}, &f, &e),
                     E_FORMAT);
    }
    hub_rig_clear(&r);
    hub_rig_add(&r, "m-Q4_0-00001-of-00003.gguf", 1000);
    hub_rig_add(&r, "m-Q4_0-00002-of-00003.gguf", 1000);
    refuses("own/Model-GGUF", E_FORMAT, "does not list m-Q4_0-00003-of-00003.gguf");
    hub_rig_clear(&r);
    hub_rig_add(&r, "m-Q4_0-00002-of-00003.gguf", 1000);
    refuses("own/Model-GGUF", E_ARG, "--file PATH");
    hub_rig_clear(&r);
    hub_rig_add(&r, "mmproj-F16.gguf", 1000);
    refuses("own/Model-GGUF", E_ARG, "mmproj-F16.gguf");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hub_rig_clear(&r);
        hub_rig_add(&r, names[i], 1000 + i);
        pulls(&r, "own/Model-GGUF", 0);
    }
    hub_rig_clear(&r);
    hub_rig_add(&r, "mmproj-F16.gguf", 1000);
    CHECK_OK(hub_pull(&(hub_ask){.what = "own/Model-GGUF", .file = "mmproj-F16.gguf"}, &f, &e), e);
    model_found_free(&f);
    hub_rig_close(&r);
}

/* A GGUF head of one string. */
static void put_head(hub_rig_file *f, const char *arch)
{
    static const char key[] = "general.architecture";
    unsigned char *at = f->bytes;
    uint32_t version = 3, kind = 8;
    uint64_t n_tensors = 0, n_values = 1, n_key = sizeof key - 1, n_arch = strlen(arch);
    memcpy(at + 4, &version, 4);
    memcpy(at + 8, &n_tensors, 8);
    memcpy(at + 16, &n_values, 8);
    memcpy(at + 24, &n_key, 8);
    memcpy(at + 32, key, n_key);
    memcpy(at + 52, &kind, 4);
    memcpy(at + 56, &n_arch, 8);
    memcpy(at + 64, arch, n_arch);
}

/* A model that carat cannot run is refused after its first chunk, and nothing of it stays. */
TEST(hub_pull_reads_the_head_first)
{
    static hub_rig r;
    char names[1000];
    begin(&r);
    put_head(hub_rig_add(&r, "gemma-3n-E2B-it-Q4_K_M.gguf", 40 * CHUNK), "gemma3n");
    refuses("own/Model-GGUF", E_UNSUPPORTED, "architecture gemma3n is not supported: Gemma 3n");
    CHECK(atomic_load(&r.n_sent) <= CHUNK);
    CHECK_EQ(n_blobs(names, sizeof names), 0);
    r.how.no_ranges = true; /* and where a storage knows no ranges */
    refuses("own/Model-GGUF", E_UNSUPPORTED, "gemma3n");
    r.how.no_ranges = false;
    static const char *const runs[] = {"gemma4", "gemma3",    "qwen3",  "laguna",
                                       "qwen35", "qwen35moe", "dflash", "gemma4-assistant"};
    unsigned char *bytes = mem_calloc(1, CHUNK);
    CHECK(bytes);
    memcpy(bytes, "GGUF", 4);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        hub_rig_file f = {.bytes = bytes};
        put_head(&f, runs[i]);
        err e = {0};
        CHECK_OK(model_head_check(bytes, CHUNK, "m.gguf", &e), e);
        for (size_t n = 0; n < 100; n++) /* cut anywhere: nothing is known */
            CHECK(!model_head_check(bytes, n, "m.gguf", &e));
    }
    mem_free(bytes);
    hub_rig_add(&r, "unknown-Q8_0.gguf", 3 * CHUNK); /* no head that can be read */
    pulls(&r, "own/Model-GGUF:Q8_0", 1);
    hub_rig_close(&r);
}

TEST(hub_refusals_are_explained)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 100);
    r.how = (hub_rig_how){.refuse_status = 401, .refuse_code = "GatedRepo"};
    refuses("own/Model-GGUF", E_ARG, "accept its licence");
    r.how = (hub_rig_how){.refuse_status = 401};
    refuses("own/Model-GGUF", E_ARG, "or it is private");
    r.how = (hub_rig_how){.refuse_status = 404, .refuse_code = "RevisionNotFound"};
    refuses("own/Model-GGUF", E_ARG, "no such branch");
    r.how = (hub_rig_how){.refuse_status = 403,
                          .refuse_message = "Access to this resource is disabled."};
    refuses("own/Model-GGUF", E_ARG, "taken down");
    r.how = (hub_rig_how){.refuse_status = 403, .refuse_message = "no\033[2J"};
    refuses("own/Model-GGUF", E_ARG, "refuses access");
    r.how = (hub_rig_how){.refuse_status = 418};
    refuses("own/Model-GGUF", E_IO, "418");
    setenv("HF_TOKEN", "hf_x", 1);
    r.how = (hub_rig_how){.refuse_status = 401,
                          .refuse_message = "Invalid credentials in Authorization header"};
    refuses("own/Model-GGUF", E_ARG, "does not accept the token from HF_TOKEN");
    setenv("HF_TOKEN", "two words", 1);
    refuses("own/Model-GGUF", E_FORMAT, "HF_TOKEN holds no token");
    unsetenv("HF_TOKEN");
    r.how = (hub_rig_how){.token = "needed"};
    refuses("own/Model-GGUF", E_ARG, "HF_TOKEN");
    r.how = (hub_rig_how){.portal = true};
    refuses("own/Model-GGUF", E_IO, "wants a login first");
    r.how = (hub_rig_how){.portal_to = "http://portal.example/login"};
    refuses("own/Model-GGUF", E_IO, "portal.example");
    r.how = (hub_rig_how){.no_commit = true};
    refuses("own/Model-GGUF", E_IO, "does not answer as a hub");
    r.how = (hub_rig_how){.portal_to = "file:///etc/passwd"};
    refuses("own/Model-GGUF", E_IO, "no valid address");
    r.how = (hub_rig_how){0};
    refuses("own/Model-GGUF:Q8_0", E_ARG, "has no Q8_0; it has: Q4_0");
    refuses("own", E_ARG, "OWNER/own");
    refuses("../x", E_ARG, "no name of a model");
    setenv("HF_HUB_OFFLINE", "Yes", 1);
    refuses("own/Model-GGUF", E_IO, "HF_HUB_OFFLINE");
    unsetenv("HF_HUB_OFFLINE");
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    refuses("own/Model-GGUF", E_IO, "cannot reach 127.0.0.1:1");
    setenv("HF_ENDPOINT", "file:///etc", 1);
    refuses("own/Model-GGUF", E_ARG, "HF_ENDPOINT");
    hub_rig_close(&r);
}

TEST(hub_names_of_files_stay_inside)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "../../evil-Q4_K_M.gguf", 100);
    hub_rig_add(&r, "/etc/evil-Q4_K_M.gguf", 100);
    hub_rig_add(&r, "a/../evil-Q4_K_M.gguf", 100);
    hub_rig_add(&r, "e\\u001b[2Jvil-Q4_K_M.gguf", 100);
    hub_rig_add(&r, "folder-Q4_K_M.gguf", 100)->type = "directory";
    hub_rig_add(&r, "minus-Q4_K_M.gguf", 100)->size = -1;
    memcpy(hub_rig_add(&r, "oid-Q4_K_M.gguf", 100)->oid, "../", 3);
    hub_rig_add(&r, "s-Q4_K_M-00001-of-00003.gguf", 100);
    hub_rig_add(&r, "s-Q4_K_M-00003-of-00003.gguf", 100);
    refuses("own/Model-GGUF", E_FORMAT, "the hub does not list s-Q4_K_M-00002-of-00003.gguf");
    r.n_files -= 2;
    refuses("own/Model-GGUF", E_ARG, "holds no GGUF files");
    r.how.page = 1;
    r.how.next = "http://elsewhere.example";
    refuses("own/Model-GGUF", E_FORMAT, "on another host");
    r.n_files += 2;
    hub_rig_close(&r);
}

TEST(hub_pull_takes_files_of_the_cache)
{
    static hub_rig r;
    begin(&r);
    const hub_rig_file *f = hub_rig_add(&r, "a-Q4_0.gguf", 3 * CHUNK);
    char dir[600], path[800];
    err e = {0};
    snprintf(dir, sizeof dir, "%s/hub/models--own--Model-GGUF/blobs", getenv("HF_HOME"));
    CHECK_OK(make_dirs(dir, &e), e);
    snprintf(path, sizeof path, "%s/%s", dir, f->oid);
    test_write(path, f->bytes, f->n);
    pulls(&r, "own/Model-GGUF", 0);
    CHECK_EQ(atomic_load(&r.n_sent), 0);
    /* One of that size with other bytes is no such file. */
    hub_rig_add(&r, "b-Q8_0.gguf", CHUNK);
    snprintf(path, sizeof path, "%s/%s", dir, r.file[1].oid);
    test_write(path, r.file[0].bytes, CHUNK);
    pulls(&r, "own/Model-GGUF:Q8_0", 1);
    CHECK_EQ(atomic_load(&r.n_sent), CHUNK);
    hub_rig_close(&r);
}

TEST(hub_pull_says_when_the_disk_has_no_room)
{
    static hub_rig r;
    begin(&r);
    hub_rig_add(&r, "a-Q4_0.gguf", 9 * CHUNK);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {4 * CHUNK, RLIM_INFINITY};
    CHECK(!getrlimit(RLIMIT_FSIZE, &old) && !setrlimit(RLIMIT_FSIZE, &small));
    refuses("own/Model-GGUF", E_IO, "reserve room");
    char names[1000];
    CHECK_EQ(n_blobs(names, sizeof names), 0);
    CHECK(!setrlimit(RLIMIT_FSIZE, &old));
    pulls(&r, "own/Model-GGUF", 0);
    setenv("XDG_DATA_HOME", "/proc/nothing", 1);
    model_found f;
    err e = {0};
    CHECK_STATUS(pull("own/Model-GGUF", &f, &e), E_IO);
    CHECK(strstr(e.text, "/proc/nothing: cannot create"));
    hub_rig_close(&r);
}

/* ---- The program --------------------------------------------------------------------------- */

static void run_and_check(int code, const char *out, const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned s;
    spawn_carat(&s, NULL, args);
    CHECK_MSG(s.code == code, "exit status %d, expected %d; stderr: %s", s.code, code,
              str_text(&s.err));
    CHECK_MSG(!out || spawned_says(&s.out, out), "'%s' should hold '%s'", str_text(&s.out), out);
    CHECK_MSG(!says || spawned_says(&s.err, says), "'%s' should hold '%s'", str_text(&s.err), says);
}

TEST(hub_cli_pulls_lists_shows_runs_and_removes)
{
    /* The head of a tower that does not say its width. */
    static const char tower[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0"
                                "general.architecture\10\0\0\0\4\0\0\0\0\0\0\0clip";
    static hub_rig r;
    begin(&r);
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(toy, 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(&r, "Toy-4-it-F32.gguf", bytes, n, false);
    mem_free(bytes);
    hub_rig_add_bytes(&r, "mmproj-Q8_0.gguf", "old", 3, false);
    hub_rig_add_bytes(&r, "mmproj-BF16.gguf", tower, sizeof tower - 1, false);
    run_and_check(2, NULL, "has no Q4_0; it has: F32", ARGS("pull", "own/Model-GGUF:Q4_0"));
    run_and_check(0, "own/Model-GGUF:F32\n", "; sees images", ARGS("pull", "own/Model-GGUF"));
    run_and_check(0, "own/Model-GGUF:F32", NULL, ARGS("list"));
    run_and_check(0, "\"where\": \"store\"", NULL, ARGS("list", "--json"));
    run_and_check(0, "/own/Model-GGUF/F32/mmproj-BF16.gguf\"", NULL, ARGS("list", "--json"));
    run_and_check(0, "sees images", NULL, ARGS("list"));
    run_and_check(0, "mmproj-BF16.gguf", NULL, ARGS("show", "model"));
    run_and_check(0, NULL, NULL, ARGS("pull", "--no-mmproj", "own/Model-GGUF"));
    run_and_check(0, "\"mmproj\": null", NULL, ARGS("list", "--json"));
    run_and_check(0, NULL, NULL, ARGS("pull", "own/Model-GGUF"));
    run_and_check(0, "sees images", NULL, ARGS("list"));
    run_and_check(0, "architecture", NULL, ARGS("show", "model"));
    run_and_check(0, NULL, NULL, ARGS("run", "-q", "-n", "2", "--greedy", "Model:f32", "hi"));
    run_and_check(2, NULL, "did you mean own/Model-GGUF:F32?", ARGS("run", "own/Modle-GGUF", "hi"));
    int api = atomic_load(&r.n_api);
    run_and_check(0, NULL, NULL,
                  ARGS("run", "-q", "-n", "2", "--greedy", "-hf", "own/Model-GGUF", "hi"));
    CHECK_EQ(atomic_load(&r.n_api), api);
    run_and_check(0, "Toy-4-it-F32.gguf", NULL, ARGS("inspect", "own/model"));
    run_and_check(0, NULL, "removed", ARGS("rm", "model"));
    run_and_check(2, NULL, "none was pulled yet", ARGS("show", "model"));
    run_and_check(0, NULL, "pulled",
                  ARGS("run", "-q", "-n", "2", "--greedy", "-hf", "own/Model-GGUF:F32", "hi"));
    CHECK(atomic_load(&r.n_api) > api);
    run_and_check(2, NULL, "both name a model",
                  ARGS("run", "-hf", "own/Model-GGUF", "-m", "x", "hi"));
    hub_rig_close(&r);
}

/* ---- Short names --------------------------------------------------------------------------- */

static status own_names(const void *user, const char *name, char out[ALIAS_MAX], err *e)
{
    static const char *const names[][2] = {{"big", "gpt-oss:120b"},
                                           {"mine", "own/Model:Q8_0"},
                                           {"gemma4:e4b", "own/Gemma"},
                                           {"one", "two"},
                                           {"two", "one"},
                                           {"lost", "nothing:here"}};
    (void)user;
    (void)e;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(names[i][0], name))
            strcpy(out, names[i][1]);
    return OK;
}

TEST(short_names_stand_for_repositories)
{
    static const struct {
        const char *what, *repo;
    } cases[] = {{"gemma4", "ggml-org/gemma-4-E4B-it-GGUF"},
                 {"Gemma4:latest", "ggml-org/gemma-4-E4B-it-GGUF"},
                 {"gemma4:E4B-it-q4_K_M", "ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M"},
                 {"gemma4:26b-a4b", "ggml-org/gemma-4-26B-A4B-it-GGUF"},
                 {"gemma4:26b-a4b-q8_0", "ggml-org/gemma-4-26B-A4B-it-GGUF:Q8_0"},
                 {"gemma4:26b-mxfp4", "ggml-org/gemma-4-26B-A4B-it-GGUF:MXFP4"},
                 {"llama3.2:1b-instruct-q8_0", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"},
                 {"gemma4:e4", ""},
                 {"gemma4:e4bb", ""},
                 {"gemma4:e4b-it-qat", ""},
                 {"gemma4:", "ggml-org/gemma-4-E4B-it-GGUF"},
                 {":e4b", ""},
                 {"", ""},
                 {"own/gemma4:e4b", ""},
                 {"gemma4 :e4b", ""},
                 {"gemma4/", ""}};
    char out[ALIAS_MAX], name[ALIAS_MAX], other[ALIAS_MAX], long_name[2000];
    const char *repo, *more;
    bool own;
    err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(alias_follow(cases[i].what, NULL, NULL, out, &own, &e), e);
        CHECK_MSG(!strcmp(out, cases[i].repo) && !own, "%s: %s", cases[i].what, out);
    }
    for (size_t i = 0; alias_row(i, name, &repo); i++) {
        CHECK_MSG(repo_valid(repo), "%s", repo);
        CHECK_OK(alias_follow(name, NULL, NULL, out, &own, &e), e);
        CHECK_MSG(!strcmp(out, repo), "%s: %s", name, out);
        for (size_t k = 0; k < i; k++)
            CHECK(alias_row(k, other, &more) && strcasecmp(name, other));
    }
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    CHECK_OK(alias_follow(long_name, own_names, NULL, out, &own, &e), e);
    CHECK(!*out && !alias_near(long_name, name));
    CHECK(alias_near("gema4:e4b", name) && !strcmp(name, "gemma4:e4b"));
    CHECK(alias_near("gema4", name) && !strcmp(name, "gemma4"));
    CHECK(alias_near("gpt-os", name) && !strcmp(name, "gpt-oss"));
    CHECK_OK(alias_follow("BIG", own_names, NULL, out, &own, &e), e);
    CHECK(own && !strcmp(out, "ggml-org/gpt-oss-120b-GGUF"));
    CHECK_OK(alias_follow("gemma4:e4b", own_names, NULL, out, &own, &e), e);
    CHECK(own && !strcmp(out, "own/Gemma"));
    CHECK_EQ(alias_follow("one", own_names, NULL, out, &own, &e), E_ARG);
    CHECK(strstr(e.text, "circle"));
    err_clear(&e);
    CHECK_EQ(alias_follow("lost", own_names, NULL, out, &own, &e), E_ARG);
    CHECK(strstr(e.text, "'lost' stands for 'nothing:here'"));
}

TEST(hub_cli_takes_short_names)
{
    static hub_rig r;
    static const char names[] =
        "[names]\nbest = \"gemma4:e4b-q8_0\"\na = \"b\"\nb = \"a\"\nfive = 5\n";
    char config[1024], *bytes;
    size_t n;
    err e = {0};
    net_second_ms = 1;
    hub_rig_open(&r, "ggml-org/gemma-4-E4B-it-GGUF");
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    CHECK_OK(file_read_all(toy, 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(&r, "Toy-Q4_K_M.gguf", bytes, n, false);
    hub_rig_add_bytes(&r, "Toy-Q8_0.gguf", bytes, n, false);
    mem_free(bytes);
    run_and_check(0, "gpt-oss:20b", NULL, ARGS("pull", "--names"));
    run_and_check(2, NULL, "pull needs the name of a model", ARGS("pull"));
    run_and_check(2, NULL, "--names pulls no model", ARGS("pull", "--names", "gemma4"));
    run_and_check(2, NULL, "did you mean gemma4:e4b?", ARGS("pull", "gema4:e4b"));
    run_and_check(1, NULL, "carat pull gemma4:e4b fetches it (ggml-org/gemma-4-E4B-it-GGUF)",
                  ARGS("inspect", "gemma4:e4b"));
    run_and_check(1, NULL, "did you mean gemma4:e4b? carat pull gemma4:e4b fetches it",
                  ARGS("inspect", "gema4:e4b"));
    run_and_check(0, NULL, "pulled ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M",
                  ARGS("run", "-q", "-n", "2", "--greedy", "gemma4:e4b", "hi"));
    int api = atomic_load(&r.n_api);
    run_and_check(0, NULL, NULL, ARGS("run", "-q", "-n", "2", "--greedy", "gemma4", "hi"));
    run_and_check(0, NULL, NULL, ARGS("run", "-q", "-n", "2", "-hf", "gemma4:e4b", "hi"));
    run_and_check(0, "Toy-Q4_K_M.gguf", NULL, ARGS("inspect", "gemma4:e4b-it-q4_k_m"));
    CHECK_EQ(atomic_load(&r.n_api), api);
    run_and_check(2, NULL, "has no Q3_K_M; it has: Q4_K_M, Q8_0",
                  ARGS("pull", "gemma4:e4b-q3_k_m"));
    run_and_check(0, "GGUF:Q8_0\n", NULL, ARGS("pull", "gemma4:e4b-q8_0"));
    snprintf(config, sizeof config, "%s", test_temp("names.toml"));
    test_write(config, names, strlen(names));
    setenv("CARAT_CONFIG", config, 1);
    run_and_check(0, "Toy-Q8_0.gguf", NULL, ARGS("inspect", "best"));
    run_and_check(1, NULL, "lead in a circle", ARGS("inspect", "a"));
    run_and_check(1, NULL, "'five' in [names]: expected a string", ARGS("inspect", "five"));
    test_write(config, names, (size_t)(strchr(names + 8, '\n') + 1 - names));
    /* A name of the user is a model where one may stand, also before it is here. */
    run_and_check(0, NULL, NULL, ARGS("rm", "ggml-org/gemma-4-E4B-it-GGUF:Q8_0"));
    run_and_check(0, NULL, "Toy-Q8_0.gguf", ARGS("run", "-q", "-n", "2", "--greedy", "best", "hi"));
    run_and_check(0, NULL, NULL, ARGS("run", "-q", "-n", "2", "--greedy", "--", "best", "hi"));
    test_write(config, "names = [\"a\"]", 13);
    run_and_check(1, NULL, "expected [names]", ARGS("inspect", "best"));
    unsetenv("CARAT_CONFIG");
    run_and_check(1, NULL, "no model 'best'", ARGS("inspect", "best"));
    hub_rig_close(&r);
}
