/* fit_cli_test.c - `carat fit`, and what `carat pull` chooses by memory, from a hub on this
 * machine: heads of models that no machine holds, and hubs that lie about them.
 */
#include "apps/hub/head.h"
#include "apps/hub/hub.h"
#include "apps/hub/net.h"
#include "base/map.h"
#include "tests/hub_rig.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RUN(code, out, says, ...)                                                                  \
    spawn_check(code, out, says, (const char *const[]){__VA_ARGS__, NULL})

/* Folders that looks have left behind. */
static int n_left(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    CHECK(d);
    for (struct dirent *f; (f = readdir(d));)
        n += !strncmp(f->d_name, "carat-", 6);
    closedir(d);
    return n;
}

static void use_own_folder(void)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", test_temp("x"));
    *strrchr(dir, '/') = 0;
    setenv("TMPDIR", dir, 1);
}

static void add_toy(hub_rig *r, const char *path)
{
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    CHECK_OK(file_read_all(toy, 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(r, path, bytes, n, false);
}

static bool stop_at_note(void *user, const hub_progress *p)
{
    snprintf(user, 1024, "%s", p->note);
    return !*p->note;
}

/* 940 GB of weights that are not there. */
PLAIN_TEST(fit_and_pull_choose_what_the_memory_holds)
{
    static hub_rig r;
    char huge[1024], note[1024] = "";
    model_found found;
    err e = {0};
    net_second_ms = 1;
    hub_rig_open(&r, "unsloth/Qwen3-235B-A22B-GGUF");
    snprintf(huge, sizeof huge, "%s", test_temp("huge.gguf"));
    RUN(0, NULL, NULL, "synth", "--hollow", "--vocab", "none", "-t", "f32", "qwen3-235b-a22b",
        huge);
    hub_rig_add_file(&r, "M-Q4_K_M.gguf", huge);
    use_own_folder();
    RUN(1, "Does not run here: ", NULL, "fit", "qwen3:235b");
    RUN(1, "\"runs\": false", NULL, "fit", "--json", "qwen3:235b");
    add_toy(&r, "M-Q2_K.gguf");
    add_toy(&r, "M-Q8_0-MTP.gguf");
    long long sent = atomic_load(&r.n_sent);
    RUN(0, "Q2_K", "Q4_K_M needs more memory than is here; Q2_K is taken", "fit", "qwen3:235b");
    CHECK(atomic_load(&r.n_sent) - sent < 16 << 20); /* heads, of so many GB */
    /* What is asked for by name is no choice. */
    RUN(1, "Q2_K", NULL, "fit", "qwen3:235b-q4_k_m");
    RUN(1, "too large", NULL, "fit", "unsloth/Qwen3-235B-A22B-GGUF");
    RUN(0, "Runs on", NULL, "fit", "unsloth/Qwen3-235B-A22B-GGUF:Q2_K");
    RUN(2, NULL, "has no Q3_K_S", "fit", "qwen3:235b-q3_k_s");
    RUN(0, "GGUF:Q2_K\n", "Q2_K is taken", "pull", "qwen3:235b");
    RUN(0, "GGUF:Q2_K", NULL, "fit", "qwen3:235b"); /* it is here */
    CHECK_EQ(hub_pull(&(hub_ask){.what = "unsloth/Qwen3-235B-A22B-GGUF:Q4_K_M",
                                 .progress = stop_at_note,
                                 .user = note},
                      &found, &e),
             E_CANCELLED);
    CHECK_MSG(strstr(note, "this model would not run here: "), "%s", note);
    CHECK_EQ(n_left(getenv("TMPDIR")), 0);
    unsetenv("TMPDIR");
    hub_rig_close(&r);
}

TEST(fit_of_a_file_that_is_here)
{
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    RUN(0, "a context of 4096 of 4096 tokens", NULL, "fit", toy);
    RUN(0, "tokens_per_second_at_most", NULL, "fit", "--json", "-c", "128", toy);
    /* Names of files are bytes. */
    const char *odd = test_temp("b\xff.gguf");
    test_write(odd, "GGUF", 4);
    RUN(1, "/b\xef\xbf\xbd.gguf\",\n \"here\": true", NULL, "fit", "--json", odd);
    test_write(test_temp("s-00002-of-00002.gguf"), "0123456789", 10);
    const char *split = test_temp("s-00001-of-00002.gguf");
    test_write(split, "GGUF", 4);
    RUN(1, "\"bytes\": 14,", NULL, "fit", "--json", split);
    RUN(2, NULL, "did you mean gemma4:e4b?", "fit", "gema4:e4b");
    RUN(2, NULL, "no name of a model", "fit", "../no-such-file-of-carat");
    RUN(2, NULL, "no name of a model", "fit", "a/b/c/d");
}

TEST(fit_removes_folders_of_looks_that_were_killed)
{
    static hub_rig r;
    char old[1024], fresh[1024], file[1100];
    struct timespec hours_ago[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    net_second_ms = 1;
    hub_rig_open(&r, "own/Model-GGUF");
    use_own_folder();
    add_toy(&r, "M-Q4_K_M.gguf");
    snprintf(old, sizeof old, "%s", test_temp("carat-heads-old"));
    snprintf(fresh, sizeof fresh, "%s", test_temp("carat-heads-fresh"));
    CHECK(!mkdir(old, 0700) && !mkdir(fresh, 0700));
    snprintf(file, sizeof file, "%s/a.gguf", old);
    test_write(file, "GGUF", 4);
    CHECK(!utimensat(AT_FDCWD, old, hours_ago, 0));
    RUN(0, "Runs on", NULL, "fit", "own/Model-GGUF");
    CHECK(access(old, F_OK) && !access(fresh, F_OK));
    hub_rig_close(&r);
}

TEST(fit_counts_the_vision_tower)
{
    static hub_rig r;
    char model[1024], tower[1024];
    snprintf(model, sizeof model, "%s", test_temp("m.gguf"));
    snprintf(tower, sizeof tower, "%s", test_temp("tower"));
    RUN(0, NULL, NULL, "synth", "tiny-dense", model);
    RUN(0, NULL, NULL, "synth", "tiny-mmproj-clamped", tower);
    net_second_ms = 1;
    hub_rig_open(&r, "own/Model-GGUF");
    hub_rig_add_file(&r, "M-Q4_K_M.gguf", model);
    hub_rig_add_file(&r, "mmproj-F32.gguf", tower);
    RUN(0, "the vision tower: ", NULL, "fit", "own/Model-GGUF");
    hub_rig_clear(&r);
    hub_rig_add_file(&r, "M-Q4_K_M.gguf", model);
    hub_rig_add(&r, "mmproj-F32.gguf", 1000); /* it begins as GGUF files do, and is none */
    RUN(0, "without the vision tower", NULL, "fit", "own/Model-GGUF");
    hub_rig_close(&r);
}

static void refuses(const char *says)
{
    hub_view v;
    err e = {0};
    status st = hub_preview(&(hub_ask){.what = "own/Model-GGUF"}, &v, &e);
    CHECK_MSG(st && strstr(e.text, says), "%s: '%s' should say '%s'", carat_status_name(st), e.text,
              says);
    CHECK(!v.path && !v.dir);
}

/* Keys without an end: as many empty strings as the file has bytes for. */
static void write_endless(const char *path, off_t n)
{
    static const unsigned char head[] = {
        'G', 'G', 'U', 'F', 3, 0, 0, 0,   1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1,
        0,   0,   0,   0,   0, 0, 0, 'k', 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0};
    test_write(path, (const char *)head, sizeof head);
    CHECK(!truncate(path, n));
}

TEST(looking_at_a_hub_that_lies)
{
    static hub_rig r;
    hub_view v;
    err e = {0};
    char path[1024];
    net_second_ms = 1;
    hub_rig_open(&r, "own/Model-GGUF");
    use_own_folder();
    add_toy(&r, "M-Q4_K_M.gguf");
    hub_rig_file *f = &r.file[0];
    const hub_rig_how well = r.how;
    r.how.no_ranges = true;
    refuses("sends whole files and no parts of them");
    r.how = well;
    r.how.gzip = true;
    CHECK(hub_preview(&(hub_ask){.what = "own/Model-GGUF"}, &v, &e) || v.path);
    hub_view_free(&v);
    err_clear(&e);
    r.how = well;
    r.how.endless = true;
    r.how.endless_status = 206;
    refuses("sends other bytes than those asked for");
    r.how = well;
    r.how.expire_times = 1000;
    refuses("refuses access to own/Model-GGUF");
    r.how = well;
    r.how.one_byte = true;
    refuses("sends fewer bytes than those asked for");
    r.how = well;
    f->size += 1000;
    refuses("the hub lists");
    f->size -= 1000;
    r.how.cut_times = 1;
    r.how.cut_at = 100;
    CHECK_OK(hub_preview(&(hub_ask){.what = "own/Model-GGUF"}, &v, &e), e);
    CHECK(v.n_files == 1 && v.n_bytes == f->n && !strcmp(v.name, "own/Model-GGUF:Q4_K_M"));
    hub_view_free(&v);
    r.how = well;
    f->bytes[4] = 9;
    refuses("no GGUF file of version 2 or 3");
    f->bytes[4] = 3;
    /* A key is missing. Users have not heard of the file that carat makes of the head. */
    unsigned char *key = memmem(f->bytes, f->n, "embedding_length", 16);
    CHECK(key);
    *key = 'x';
    spawned gpus;
    spawn_carat(&gpus, NULL,
                (const char *const[]){"fit", "--gpu", "8GB,9GB", "own/Model-GGUF", NULL});
    CHECK_MSG(gpus.code == 1 && !gpus.out.n && !spawned_says(&gpus.err, "carat-"), "%d %s%s",
              gpus.code, str_text(&gpus.out), str_text(&gpus.err));
    spawned_free(&gpus);
    hub_rig_clear(&r);
    snprintf(path, sizeof path, "%s", test_temp("endless.gguf"));
    write_endless(path, 70 << 20);
    hub_rig_add_file(&r, "M-Q4_K_M.gguf", path);
    refuses("its head is longer than 64 MiB");
    hub_rig_clear(&r);
    write_endless(path, 3 << 20);
    hub_rig_add_file(&r, "M-Q4_K_M.gguf", path);
    refuses("its head goes on past the end of the file");
    CHECK_EQ(n_left(getenv("TMPDIR")), 0);
    unsetenv("TMPDIR");
    hub_rig_close(&r);
}

static void count(void *user, const head_tensor *t)
{
    int *n = user;
    CHECK(t->n_name && t->n);
    ++*n;
}

/* A head that is cut anywhere is not whole; with any byte changed it is read or refused. */
TEST(heads_end_where_they_end)
{
    AUTO_MEM char *bytes;
    size_t n, end = 0, other;
    int n_tensors = 0, n_seen = 0;
    err e = {0};
    CHECK_OK(file_read_all(toy_model_write(NULL), 1 << 30, &bytes, &n, &e), e);
    CHECK_OK(head_measure(bytes, n, "toy", &end, count, &n_tensors, &e), e);
    CHECK(n_tensors > 10 && end > 1000 && end < n);
    CHECK_OK(head_measure(bytes, end, "toy", &other, count, &n_seen, &e), e);
    CHECK(other == end && n_seen == n_tensors);
    for (size_t k = 0; k < end; k += 1 + k / 50) {
        err why = {0};
        CHECK_STATUS(head_measure(bytes, k, "toy", &other, count, &n_seen, &why), E_LIMIT);
    }
    for (size_t k = 0; k < end; k += 1 + k / 50) {
        err why = {0};
        char was = bytes[k];
        bytes[k] = (char)(was ^ 0x80);
        head_measure(bytes, end, "toy", &other, count, &n_seen, &why);
        bytes[k] = was;
    }
}
