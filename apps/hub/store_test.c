/* store_test.c - names, the store, the cache of Python's client, and which model a word means. */
#include "apps/hub/listing.h"
#include "apps/hub/made.h"
#include "apps/hub/names.h"
#include "apps/hub/place.h"
#include "apps/hub/store.h"
#include "apps/hub/wire.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char commit[] = "0123456789abcdef0123456789abcdef01234567";

static void write_text(const char *path, const char *text)
{
    test_write(path, text, strlen(text));
}

static const char *joined(arena *mem, const char *a, const char *b)
{
    const char *s = path_join(mem, a, b);
    CHECK(s);
    return s;
}

/* A folder for the store and one for the cache, both empty; returns the store. */
static const char *begin(arena *mem)
{
    const char *data = test_temp("data"), *hf = test_temp("hf");
    err e = {0};
    CHECK_OK(make_dirs(data, &e), e);
    CHECK(!setenv("XDG_DATA_HOME", data, 1) && !setenv("HF_HOME", hf, 1));
    return joined(mem, data, "carat");
}

/* Puts a model with one file into the store; the content is `text`. */
static void put_model(const char *store, const char *repo, const char *quant, const char *file,
                      const char *text, int64_t when_s)
{
    AUTO(arena_free) arena mem = {0};
    store_lock lock;
    sha_stream h;
    err e = {0};
    const char *path;
    store_file f = {.path = file, .n_bytes = strlen(text)};
    manifest m = {.repo = repo, .quant = quant, .pulled_s = when_s, .file = &f, .n_files = 1};
    memcpy(m.commit, commit, sizeof commit);
    sha256_init(&h);
    sha_put(&h, text, strlen(text));
    sha_text(&h, f.sha256);
    CHECK_OK(make_dirs(joined(&mem, store, "blobs"), &e), e);
    write_text(blob_path(&mem, store, f.sha256, ""), text);
    CHECK_OK(store_lock_take(&lock, store, &e), e);
    CHECK_OK(store_enter(store, &m, &mem, &path, &e), e);
    store_lock_drop(&lock);
    AUTO_MEM char *back;
    size_t n;
    CHECK_OK(file_read_all(path, 1 << 20, &back, &n, &e), e);
    CHECK_STR(back, text);
}

/* A file of the cache: OWNER--NAME, path inside of the snapshot. */
static void put_cached(const char *folder, const char *file, const char *text)
{
    err e = {0};
    char path[1200], dir[600];
    snprintf(dir, sizeof dir, "%s/hub/models--%s/refs", getenv("HF_HOME"), folder);
    CHECK_OK(make_dirs(dir, &e), e);
    snprintf(path, sizeof path, "%s/main", dir);
    write_text(path, commit);
    snprintf(path, sizeof path, "%s/hub/models--%s/snapshots/%s/%s", getenv("HF_HOME"), folder,
             commit, file);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    CHECK_OK(make_dirs(dir, &e), e);
    write_text(path, text);
}

static void finds(const char *what, const char *name)
{
    AUTO(model_found_free) model_found f;
    err e = {0};
    CHECK_OK(model_find(what, &f, &e), e);
    CHECK_STR(f.name, name);
    CHECK(!access(f.path, R_OK));
}

static void finds_not(const char *what, const char *says)
{
    model_found f;
    err e = {0};
    CHECK_STATUS(model_find(what, &f, &e), E_ARG);
    CHECK_MSG(strstr(e.text, says), "'%s' should say '%s'", e.text, says);
}

/* ---- Names --------------------------------------------------------------------------------- */

TEST(hub_names_in_parts)
{
    static const struct {
        const char *text, *owner, *repo, *quant, *file;
    } good[] = {{"a/b", "a", "b", "", ""},
                {"b", "", "b", "", ""},
                {"b:q4_0", "", "b", "q4_0", ""},
                {"own-er/na.me_x-GGUF:UD-Q4_K_XL", "own-er", "na.me_x-GGUF", "UD-Q4_K_XL", ""},
                {"a/b:latest", "a", "b", "", ""},
                {"hf.co/a/b:Q8_0", "a", "b", "Q8_0", ""},
                {"https://huggingface.co/a/b", "a", "b", "", ""},
                {"https://huggingface.co/a/b/tree/main", NULL, NULL, NULL, NULL},
                {"http://127.0.0.1:80/a/b", "a", "b", "", ""},
                {"https://huggingface.co/a/b/resolve/main/x/y.gguf?download=true", "a", "b", "",
                 "x/y.gguf"},
                {"https://huggingface.co/a/b/blob/main/y.gguf", "a", "b", "", "y.gguf"}};
    static const char *const bad[] = {"",
                                      "/",
                                      "a/",
                                      "/b",
                                      "a//b",
                                      "a/b/c",
                                      "../b",
                                      "a/..",
                                      "a/.b",
                                      "a b",
                                      "a/b:",
                                      "a--b",
                                      "a/b-",
                                      "a/b:../",
                                      "a/b:c d",
                                      "a/b:c/d",
                                      "a\033",
                                      "https://e.vil/a/b",
                                      "a/b/resolve/main/../x.gguf"};
    name_parts n;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        bool ok = name_parse(good[i].text, "http://127.0.0.1:80", &n);
        CHECK_MSG(ok == !!good[i].owner, "%s", good[i].text);
        if (!ok)
            continue;
        CHECK_STR(n.owner, good[i].owner);
        CHECK_STR(n.repo, good[i].repo);
        CHECK_STR(n.quant, good[i].quant);
        CHECK_STR(n.file, good[i].file);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        name_parts before;
        memset(&n, 0x5a, sizeof n);
        before = n;
        CHECK_MSG(!name_parse(bad[i], NULL, &n) && !memcmp(&n, &before, sizeof n), "%s", bad[i]);
    }
    CHECK(repo_valid("a/b") && !repo_valid("ab") && !repo_valid("a/b/c") && !repo_valid("a/b--c"));
    CHECK(file_valid("a/b.gguf") && !file_valid("/a") && !file_valid("a//b") &&
          !file_valid("a/../b"));
    CHECK(!file_valid("a\nb") && !file_valid("a\\b") && !file_valid(".a") && !file_valid("a/"));
    CHECK(!file_valid("\xff") && !file_valid(""));
    CHECK(revision_valid("refs/pr/1") && !revision_valid("a..b") && !revision_valid("") &&
          !revision_valid("a?b"));
}

TEST(hub_labels_of_files)
{
    static const char *const files[][2] = {{"gemma-3-1b-it-Q4_K_M.gguf", "Q4_K_M"},
                                           {"x.q8_0.gguf", "Q8_0"},
                                           {"sub/M-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"},
                                           {"M-BF16.gguf", "BF16"},
                                           {"M-mxfp4.gguf", "MXFP4"},
                                           {"M-IQ2_XXS.gguf", "IQ2_XXS"},
                                           {"Q4_K_M/model-00001-of-00002.gguf", "Q4_K_M"},
                                           {"a/UD-IQ1_S/m.gguf", "UD-IQ1_S"},
                                           {"UD-Q2_K_XL.gguf", "UD-Q2_K_XL"},
                                           {"Carnice-V2-27B-Q5_K_M-mtp.gguf", "Q5_K_M"},
                                           {"a/model.gguf", "model"},
                                           {"gemma-it.gguf", "gemma-it"},
                                           {"M-Q4_0-v2.gguf", "Q4_0"}};
    char out[QUANT_MAX];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        quant_of(files[i][0], out);
        CHECK_STR(out, files[i][1]);
    }
    static const char *const two[] = {"a-Q4_0.gguf", "b-Q4_0.gguf", "c-Q8_0.gguf"};
    quant_among("a-Q4_0.gguf", two, 3, out);
    CHECK_STR(out, "a-Q4_0");
    quant_among("c-Q8_0.gguf", two, 3, out);
    CHECK_STR(out, "Q8_0");
    static const char *const split[] = {"s-Q4_0-00001-of-00002.gguf", "s-Q4_0-00002-of-00002.gguf"};
    quant_among(split[0], split, 2, out);
    CHECK_STR(out, "Q4_0");
}

TEST(hub_the_right_file_of_a_repository)
{
    static const char *const all[] = {"README.md",
                                      "mmproj-M-f16.gguf",
                                      "M-imatrix.gguf",
                                      "M-BF16-00002-of-00002.gguf",
                                      "M-BF16-00001-of-00002.gguf",
                                      "M-Q4_K.gguf",
                                      "M-Q8_0.gguf",
                                      "M-Q4_K_M.gguf",
                                      "mtp-M-Q4_K_M.gguf",
                                      "M-UD-Q4_K_XL.gguf"};
    enum { N = sizeof all / sizeof *all };
    CHECK_EQ(choose_file(all, N, NULL), 7);
    CHECK_EQ(choose_file(all, 7, NULL), 6);
    CHECK_EQ(choose_file(all, 5, NULL), 4);
    CHECK_EQ(choose_file(all, 4, NULL), -1);
    CHECK_EQ(choose_file(all, N, "bf16"), 4);
    CHECK_EQ(choose_file(all, N, "Q4_K"), 5);
    CHECK_EQ(choose_file(all, N, "q4_k_xl"), 9);
    CHECK_EQ(choose_file(all, N, "UD-Q4_K_XL"), 9);
    CHECK_EQ(choose_file(all, N, "Q2_K"), -1);
    CHECK_EQ(choose_file(all, N, "."), -1);
}

TEST(hub_a_name_that_is_no_part_leaves_the_outputs_alone)
{
    static const char *const none[] = {"",
                                       ".gguf",
                                       "a.gguf",
                                       "big-model-31b-it-Q4_K_M.gguf",
                                       "Some-0.6B-Instruct-Q8_0.gguf",
                                       "00001-of-00003.gguf",
                                       "-00001-of-00003.gguf",
                                       "a-0001x-of-00003.gguf",
                                       "a-00001_of-00003.gguf",
                                       "a-00001-of-00003.bin",
                                       "a-1-of-3.gguf"};
    static const char *const broken[] = {"a-00000-of-00000.gguf", "a-00001-of-00000.gguf",
                                         "a-00000-of-00001.gguf", "a-00003-of-00002.gguf",
                                         "a-00001-of-10000.gguf", "a-99999-of-99999.gguf"};
    int no = 7, count = 8;
    size_t n_stem = 9;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_MSG(!split_name(none[i], &no, &count, &n_stem) && !split_broken(none[i]), "%s",
                  none[i]);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        CHECK_MSG(!split_name(broken[i], &no, &count, &n_stem) && split_broken(broken[i]) &&
                      !is_model_file(broken[i]),
                  "%s", broken[i]);
    CHECK(no == 7 && count == 8 && n_stem == 9);
    CHECK(split_name("a-09999-of-09999.gguf", &no, &count, &n_stem));
    CHECK(no == 9999 && count == PARTS_MAX && n_stem == 1);
    CHECK(split_name("a-00001-of-00001.GGUF", &no, &count, &n_stem) && no == 1 && count == 1);
}

TEST(hub_words_of_drafts_in_names)
{
    static const char *const models[] = {"Q-27B-MTP-Q8_0.gguf", "Hy3-IQ1_M-mtp.gguf",
                                         "Qwen3-4B-DFlash.gguf", "L3-8B-Stheno-v3.1-Q8_0-imat.gguf",
                                         "M-imatrix-Q4_K_M.gguf"};
    static const char *const none[] = {"mtp-M-Q4_0.gguf",     "MTP-Q4_K_M.gguf",
                                       "mmproj-F16.gguf",     "gemma-3-27b-it-mmproj-bf16.gguf",
                                       "imatrix-prev-0.gguf", "M.imatrix.gguf"};
    static const char *const mixed[] = {"G-31B-it-DFlash-Q4_K_M.gguf", "G-31B-it-MTP-BF16.gguf",
                                        "G-31B-it-Q8_0.gguf", "G-31B-it-assistant.Q4_K_M.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        CHECK_MSG(is_first_file(models[i]) && !choose_file(&models[i], 1, NULL), "%s", models[i]);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK_MSG(!is_model_file(none[i]) && choose_file(&none[i], 1, NULL) == -1, "%s", none[i]);
    CHECK_EQ(choose_file(mixed, 4, NULL), 2); /* the model, not a drafter of a preferred label */
    CHECK_EQ(choose_file(mixed, 4, "BF16"), 1);
    CHECK_EQ(choose_file(mixed, 4, "G-31B-it-assistant.Q4_K_M"), 3);
}

enum { PUBLISHED_MAX = 2048 };

/* The lines of tests/data/published-names.txt: files, then repositories. */
static size_t read_published(const char *names[PUBLISHED_MAX], char **text)
{
    size_t n = 0, size;
    err e = {0};
    CHECK_OK(file_read_all(test_path("tests/data/published-names.txt"), 1 << 20, text, &size, &e),
             e);
    for (char *line = strtok(*text, "\n"); line && n < PUBLISHED_MAX; line = strtok(NULL, "\n"))
        if (*line != '#')
            names[n++] = line;
    CHECK(n > 900);
    return n;
}

static bool is_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcmp(name + n - 5, ".gguf");
}

/* Every published name: its parts, its label, and that the label finds the same file again, alone
 * and among all. */
TEST(hub_published_names)
{
    static const char *names[PUBLISHED_MAX], *files[PUBLISHED_MAX];
    char *text, label[QUANT_MAX], typed[REPO_MAX + QUANT_MAX];
    size_t n = read_published(names, &text), n_files = 0, n_models = 0;
    name_parts parsed;
    for (size_t i = 0; i < n; i++)
        if (is_gguf(names[i]))
            files[n_files++] = names[i];
        else if (!strstr(names[i], "--")) /* folders of a cache, which some texts name */
            CHECK_MSG(repo_valid(names[i]) && name_parse(names[i], NULL, &parsed) &&
                          name_fits(&parsed, names[i], "Q4_0"),
                      "%s", names[i]);
    for (size_t i = 0; i < n_files; i++) {
        const char *file = files[i];
        int no = 1, count = 1;
        size_t n_stem = 0;
        bool split = split_name(file, &no, &count, &n_stem);
        CHECK_MSG(file_valid(file) && !split_broken(file), "%s", file);
        CHECK_MSG(split ? no >= 1 && no <= count : no == 1 && count == 1 && !n_stem, "%s", file);
        bool other = strcasestr(file, "mmproj") || !strncasecmp(file, "imatrix", 7) ||
                     !strncasecmp(file, "mtp-", 4);
        CHECK_MSG(is_model_file(file) == !other, "%s", file);
        CHECK_EQ(is_first_file(file), !other && no == 1);
        CHECK_EQ(choose_file(&file, 1, NULL), is_first_file(file) ? 0 : -1);
        if (!is_first_file(file))
            continue;
        n_models++;
        quant_of(file, label);
        snprintf(typed, sizeof typed, "org/Repo-GGUF:%s", label);
        CHECK_MSG(name_parse(typed, NULL, &parsed) && name_fits(&parsed, "org/Repo-GGUF", label),
                  "%s", typed);
        CHECK_MSG(!choose_file(&file, 1, label), "%s: %s", file, label);
        quant_among(file, files, n_files, label);
        int at = choose_file(files, n_files, label);
        CHECK_MSG(at >= 0 && !strncmp(files[at], file, split ? n_stem : strlen(file) - 5),
                  "%s: %s finds %s", file, label, at < 0 ? "nothing" : files[at]);
    }
    CHECK(n_models > 500);
    mem_free(text);
}

/* The same names as files in the cache of Python's client, each in a repository of its own. */
TEST(hub_cache_lists_published_names)
{
    static const char *names[PUBLISHED_MAX];
    char *text, folder[64];
    size_t n = read_published(names, &text), n_want = 0, n_split = 0;
    model_list l;
    AUTO(arena_free) arena mem = {0};
    err e = {0};
    begin(&mem);
    for (size_t i = 0; i < n; i++) {
        int no, count;
        size_t n_stem;
        if (!is_gguf(names[i]))
            continue;
        snprintf(folder, sizeof folder, "own--R%zu", i);
        put_cached(folder, names[i], "bytes");
        bool split = split_name(names[i], &no, &count, &n_stem);
        n_split += split; /* its other parts are not there */
        n_want += is_first_file(names[i]) && !split;
    }
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK(n_split > 100 && n_want > 300);
    CHECK_EQ(l.n, n_want);
    for (size_t i = 0; i < l.n; i++) {
        CHECK_MSG(l.at[i].n_bytes == 5 && l.at[i].n_files == 1, "%s", l.at[i].name);
        CHECK_MSG(llabs((long long)(l.at[i].when_s - (int64_t)time(NULL))) < 86400, "%s",
                  l.at[i].name);
    }
    model_list_free(&l);
    mem_free(text);
}

/* refs/main with and without an end of line, and with a digit too few. */
TEST(hub_cache_reads_the_commit_of_refs)
{
    static const struct {
        const char *end;
        size_t n;
        bool takes;
    } refs[] = {
        {"", 40, true}, {"\n", 40, true}, {"\r\n", 40, true}, {"", 39, false}, {"0", 40, false}};
    AUTO(arena_free) arena mem = {0};
    char path[1300], other[1200], text[64];
    model_list l;
    err e = {0};
    begin(&mem);
    put_cached("own--Ref", "Ref-Q4_0.gguf", "old");
    /* A newer snapshot: it counts only if refs/main names none. */
    snprintf(other, sizeof other, "%s/hub/models--own--Ref/snapshots/%040d", getenv("HF_HOME"), 7);
    CHECK_OK(make_dirs(other, &e), e);
    snprintf(path, sizeof path, "%s/New-Q8_0.gguf", other);
    write_text(path, "new");
    struct timespec later[2] = {{.tv_sec = time(NULL) + 100}, {.tv_sec = time(NULL) + 100}};
    CHECK(!utimensat(AT_FDCWD, other, later, 0));
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        snprintf(path, sizeof path, "%s/hub/models--own--Ref/refs/main", getenv("HF_HOME"));
        snprintf(text, sizeof text, "%.*s%s", (int)refs[i].n, commit, refs[i].end);
        write_text(path, text);
        finds("ref", refs[i].takes ? "own/Ref:Q4_0" : "own/Ref:Q8_0");
        CHECK_OK(model_list_read(&l, &e), e);
        CHECK_EQ(l.n, 1); /* of one snapshot */
        model_list_free(&l);
    }
}

/* Folders of a snapshot that are links to folders: followed, twenty of them make 20^8 ways. */
TEST(hub_cache_with_links_in_circles_lists_a_model_once)
{
    AUTO(arena_free) arena mem = {0};
    AUTO(model_list_free) model_list l;
    err e = {0};
    char path[1200];
    begin(&mem);
    put_cached("own--Round", "sub/Round-Q4_0.gguf", "bytes");
    for (int i = 0; i < 20; i++) {
        snprintf(path, sizeof path, "%s/hub/models--own--Round/snapshots/%s/%s%d",
                 getenv("HF_HOME"), commit, i % 2 ? "sub/" : "", i);
        CHECK(!symlink(i % 2 ? ".." : ".", path));
    }
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 1);
    CHECK_STR(l.at[0].name, "own/Round:Q4_0");
}

/* ---- The store ----------------------------------------------------------------------------- */

/* Variables inside of a variable: known ones are replaced, others stay as they are. */
TEST(hub_folders_have_variables)
{
    static const struct {
        const char *value, *cache;
    } cases[] = {
        {"/x/$CARAT_TEST_A/b", "/x/one/b"},
        {"/x/${CARAT_TEST_A}b", "/x/oneb"},
        {"/x/${CARAT_TEST_NONE}/b", "/x/${CARAT_TEST_NONE}/b"},
        {"/x/$CARAT_TEST_NONE/b", "/x/$CARAT_TEST_NONE/b"},
        {"/x/${CARAT_TEST_A/b", "/x/${CARAT_TEST_A/b"},
        {"/x/$", "/x/$"},
        {"~/b", "/home/of/b"},
        {"~b", "~b"},
    };
    CHECK(!setenv("CARAT_TEST_A", "one", 1) && !setenv("HOME", "/home/of", 1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(place_free) place p;
        err e = {0};
        CHECK(!setenv("HF_HUB_CACHE", cases[i].value, 1));
        CHECK_OK(place_read(&p, false, &e), e);
        CHECK_STR(p.hf_cache, cases[i].cache);
    }
}

static status read_place(void *arg, err *e)
{
    AUTO(place_free) place p;
    (void)arg;
    status st = place_read(&p, false, e);
    CHECK(!st || (!p.store && !p.hf_cache));
    if (!st) {
        CHECK_STR(p.store, "/home/of/.local/share/carat");
        CHECK_STR(p.hf_cache, "/home/of/.cache/huggingface/hub");
    }
    return st;
}

TEST(hub_folders_without_memory)
{
    CHECK(!unsetenv("XDG_DATA_HOME") && !unsetenv("XDG_CACHE_HOME") && !unsetenv("HF_HOME"));
    CHECK(!setenv("HOME", "/home/of", 1));
    test_every_allocation(read_place, NULL);
}

/* A name that ends two labels means the newest; one that is a label means that. */
TEST(hub_a_label_by_its_end)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    put_model(store, "a/One", "UD-Q4_0", "One-UD-Q4_0.gguf", "x", 10);
    put_model(store, "a/One", "XL-Q4_0", "One-XL-Q4_0.gguf", "y", 20);
    put_model(store, "a/One", "UE-Q4_0", "One-UE-Q4_0.gguf", "z", 5);
    finds("one:q4_0", "a/One:XL-Q4_0");
    put_model(store, "a/One", "Q4_0", "One-Q4_0.gguf", "w", 7);
    finds("one:q4_0", "a/One:Q4_0");
}

TEST(hub_store_leaves_out_a_label_that_is_too_long)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    char label[QUANT_MAX + 1], text[1024];
    model_list l;
    err e = {0};
    for (int more = 0; more < 2; more++) {
        memset(label, 'Q', sizeof label);
        label[QUANT_MAX - 1 + more] = 0;
        const char *dir = joined(&mem, joined(&mem, store, "models/a/One"), label);
        CHECK_OK(make_dirs(dir, &e), e);
        snprintf(text, sizeof text,
                 "{\"format\":1,\"repo\":\"a/One\",\"quant\":\"%s\",\"commit\":\"%s\","
                 "\"files\":[{\"path\":\"One.gguf\",\"size\":1,\"sha256\":\"%s%.24s\"}]}",
                 label, commit, commit, commit);
        write_text(joined(&mem, dir, "manifest.json"), text);
        CHECK_OK(model_list_read(&l, &e), e);
        CHECK_EQ(l.n, 1);
        CHECK_EQ(strlen(l.at[0].quant), QUANT_MAX - 1);
        model_list_free(&l);
    }
}

TEST(hub_store_shares_files_and_removes_what_nothing_needs)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    model_list l;
    err e = {0};
    uint64_t freed;
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 0);
    model_list_free(&l);
    put_model(store, "a/One-GGUF", "Q4_0", "One-Q4_0.gguf", "the same", 10);
    put_model(store, "b/Two", "Q4_0", "sub/Two-Q4_0.gguf", "the same", 20);
    put_model(store, "a/One-GGUF", "Q8_0", "One-Q8_0.gguf", "another", 30);
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 3);
    CHECK_STR(l.at[0].name, "a/One-GGUF:Q8_0");
    CHECK_STR(l.at[2].name, "a/One-GGUF:Q4_0");
    CHECK_STR(l.at[1].digest, l.at[2].digest);
    CHECK_EQ(l.at[0].n_bytes, 7);
    const char *blob = blob_path(&mem, store, l.at[1].digest, "");
    char digest[65];
    memcpy(digest, l.at[0].digest, sizeof digest);
    model_list_free(&l);
    finds("one", "a/One-GGUF:Q8_0");
    finds("A/one-gguf:q4_0", "a/One-GGUF:Q4_0");
    CHECK_STATUS(model_remove("one", &freed, &e), E_ARG); /* which of the two? */
    CHECK(strstr(e.text, "name the one"));
    err_clear(&e);
    CHECK_OK(model_remove("one:q4_0", &freed, &e), e);
    CHECK_EQ(freed, 0);
    CHECK(!access(blob, R_OK));
    CHECK_OK(model_remove("two", &freed, &e), e);
    CHECK_EQ(freed, 8);
    CHECK(access(blob, R_OK));
    CHECK(access(joined(&mem, store, "models/b"), F_OK));
    /* A newer version of a model takes the place of the old one, whose file goes. */
    put_model(store, "a/One-GGUF", "Q8_0", "One-v2-Q8_0.gguf", "newer", 40);
    finds("One", "a/One-GGUF:Q8_0");
    CHECK(access(blob_path(&mem, store, digest, ""), R_OK));
    freed = 77;
    CHECK_STATUS(model_remove("nothing", &freed, &e), E_ARG);
    CHECK_EQ(freed, 77);
}

TEST(hub_store_that_lacks_a_model_leaves_the_path_alone)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem), *path = "before";
    err e = {0};
    store_file f = {.path = "One-Q4_0.gguf", .n_bytes = 3};
    manifest m = {.repo = "a/One", .quant = "Q4_0", .file = &f, .n_files = 1};
    memset(f.sha256, 'a', 64);
    CHECK(!store_has(store, &m, &mem, &path));
    CHECK_STR(path, "before");
    CHECK_STATUS(store_enter(store, &m, &mem, &path, &e), E_IO);
    CHECK_STR(path, "before");
}

TEST(hub_store_leaves_out_what_is_damaged)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    AUTO(model_list_free) model_list l;
    err e = {0};
    put_model(store, "a/b", "Q4_0", "b-Q4_0.gguf", "x", 10);
    const char *dir = joined(&mem, store, "models/c/d/Q4_0");
    CHECK_OK(make_dirs(dir, &e), e);
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"format\":1,\"repo\":\"../x\",\"quant\":\"Q4_0\",\"files\":[]}",
        "{\"format\":1,\"repo\":\"c/d\",\"quant\":\"Q4_0\",\"commit\":\"x\",\"files\":[]}",
        "{\"format\":1,\"repo\":\"c/d\",\"quant\":\"Q4_0\",\"commit\":"
        "\"0123456789abcdef0123456789abcdef01234567\",\"files\":[{\"path\":\"../../../etc/passwd\","
        "\"size\":1,\"sha256\":\"x\"}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(joined(&mem, dir, "manifest.json"), bad[i]);
        CHECK_OK(model_list_read(&l, &e), e);
        CHECK_EQ(l.n, 1);
        model_list_free(&l);
    }
    /* A folder that says it is another model. */
    const char *copy = joined(&mem, store, "models/a/z/Q4_0");
    CHECK_OK(make_dirs(copy, &e), e);
    char *text;
    size_t n;
    CHECK_OK(
        file_read_all(joined(&mem, store, "models/a/b/Q4_0/manifest.json"), 1 << 20, &text, &n, &e),
        e);
    write_text(joined(&mem, copy, "manifest.json"), text);
    mem_free(text);
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 1);
}

TEST(hub_cache_of_python_is_read)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    AUTO(model_list_free) model_list l;
    err e = {0};
    uint64_t freed;
    put_cached("own--Cached-GGUF", "Cached-Q4_K_M.gguf", "abc");
    put_cached("own--Cached-GGUF", "sub/Cached-Q8_0-00001-of-00002.gguf", "de");
    put_cached("own--Cached-GGUF", "mmproj-x.gguf", "no");
    put_cached("own--Cached-GGUF", "config.json", "no");
    put_cached("own--Safe", "model.safetensors", "no");
    put_cached("nothing", "x-Q4_0.gguf", "no");
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 1); /* of the split set a part is missing */
    model_list_free(&l);
    put_cached("own--Cached-GGUF", "sub/Cached-Q8_0-00002-of-00002.gguf", "fgh");
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 2);
    model_list_free(&l);
    finds("cached", "own/Cached-GGUF:Q4_K_M");
    finds("cached:q8_0", "own/Cached-GGUF:Q8_0");
    CHECK_STATUS(model_remove("cached:q8_0", &freed, &e), E_ARG);
    CHECK(strstr(e.text, "does not change"));
    put_model(store, "own/Cached-GGUF", "Q8_0", "Cached-Q8_0.gguf", "own", 5);
    CHECK_OK(model_list_read(&l, &e), e);
    CHECK_EQ(l.n, 2); /* the store's hides the cache's */
}

TEST(hub_a_word_that_fits_nothing_is_answered_with_what_is_there)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    finds_not("gemma4", "none was pulled yet");
    finds_not("nothing4", "carat pull OWNER/REPO");
    finds_not("gemma4", "; carat pull gemma4 fetches it (ggml-org/gemma-4-E4B-it-GGUF)");
    put_model(store, "ggml-org/gemma-4-E2B-it-GGUF", "Q4_K_M", "gemma-4-E2B-it-Q4_K_M.gguf", "x",
              9);
    put_model(store, "own/Qwen3-8B-GGUF", "Q4_K_M", "Qwen3-8B-Q4_K_M.gguf", "y", 8);
    finds_not("gemma4", "did you mean ggml-org/gemma-4-E2B-it-GGUF:Q4_K_M?");
    finds_not("qwen3-8c", "did you mean own/Qwen3-8B-GGUF:Q4_K_M?");
    finds_not("llama", "there are: ggml-org/gemma-4-E2B-it-GGUF:Q4_K_M, own/Qwen3-8B-GGUF:Q4_K_M");
    finds_not("some/Model:Q8_0", "carat pull some/Model:Q8_0 fetches it");
    finds_not("a b", "no such file");
    finds_not("", "empty");
    finds_not("apps", "The directory of that name is no model");
    finds_not("/tmp", "a directory, not a file");
    put_model(store, "other/Qwen3-8B-GGUF", "Q4_K_M", "Qwen3-8B-Q4_K_M.gguf", "z", 7);
    finds_not("qwen3-8b", "name the owner");
    finds("own/qwen3-8b", "own/Qwen3-8B-GGUF:Q4_K_M");
    CHECK(model_known("gemma-4-E2B-it") && !model_known("gemma4") && !model_known("/bin/sh"));
    AUTO(model_found_free) model_found f;
    err e = {0};
    CHECK_OK(model_find("./nothing.gguf", &f, &e), e); /* a path: opening it says what is wrong */
    CHECK_STR(f.path, "./nothing.gguf");
}

static status read_all(void *arg, err *e)
{
    model_list l;
    (void)arg;
    status st = model_list_read(&l, e);
    AUTO(model_found_free) model_found f = {0};
    model_list_free(&l);
    if (!st)
        st = model_find("cached", &f, e);
    return st;
}

static status read_answers(void *arg, err *e)
{
    static const char rev[] =
        "{\"sha\":\"0123456789abcdef0123456789abcdef01234567\",\"gated\":\"auto\"}";
    static const char tree[] = "[{\"type\":\"file\",\"path\":\"a-Q4_0.gguf\",\"size\":5,\"oid\":"
                               "\"0123456789abcdef0123456789abcdef01234567\"},"
                               "{\"type\":\"file\",\"path\":\"../a-Q8_0.gguf\",\"size\":5,\"oid\":"
                               "\"0123456789abcdef0123456789abcdef01234567\"}]";
    AUTO(listing_free) listing l = {0};
    (void)arg;
    status st = listing_take_revision(&l, rev, strlen(rev), "t", e);
    if (!st)
        st = listing_take_tree(&l, tree, strlen(tree), "t", e);
    if (!st)
        CHECK(l.gated && l.n == 1 && l.file[0].n_bytes == 5);
    return st;
}

TEST(hub_listing_without_memory)
{
    test_every_allocation(read_answers, NULL);
}

TEST(hub_heads_and_addresses)
{
    static reply r;
    static char out[URL_MAX];
    static const char *const lines[] = {
        "HTTP/1.1 206 Partial Content\r\n",
        "Content-Range: bytes 5-9/10\r\n",
        "ETag: W/\"abc\"\r\n",
        "x-linked-etag: \"def\"\r\n",
        "X-Linked-Size: 10\r\n",
        "RateLimit: \"api\";r=0;t=55\r\n",
        "Link: <https://h/x>; rel=\"xet-auth\", <https://h/y?z>; rel=\"next\"\r\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        reply_take(&r, lines[i], strlen(lines[i]));
    CHECK(r.code == 206 && r.range_from == 5 && r.range_to == 9 && r.range_total == 10);
    CHECK_STR(r.etag, "abc");
    CHECK_STR(r.linked_etag, "def");
    CHECK_STR(r.next, "https://h/y?z");
    char tag[8 + sizeof r.etag] = "etag: ";
    for (size_t n = sizeof r.etag - 1; n <= sizeof r.etag; n++) {
        memset(tag + 6, 'x', n);
        reply_take(&r, tag, 6 + n);
        CHECK_EQ(strlen(r.etag), n < sizeof r.etag ? n : 0);
    }
    reply_take(&r, lines[2], strlen(lines[2]));
    CHECK(r.linked_size == 10 && r.limit_left == 0 && r.limit_reset_s == 55 && r.length == -1);
    static const char *const ranges[] = {"bytes 9-5/10", "bytes 5-10/10",
                                         "bytes 5-",     "bytes x-9/10",
                                         "items 5-9/10", "bytes 5-9/99999999999999999999"};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char line[128];
        reply_clear(&r);
        snprintf(line, sizeof line, "content-range: %s", ranges[i]);
        reply_take(&r, line, strlen(line));
        CHECK_MSG(r.range_from == -1 && r.range_total == -1, "%s", ranges[i]);
    }
    reply_take(&r, "Content-Range: bytes */7", 24);
    CHECK(r.range_from == -1 && r.range_total == 7);
    r.code = 429;
    r.limit_left = 0;
    r.limit_reset_s = 55;
    CHECK_NEAR(wait_s(&r, 1), 56, 0);
    r.limit_left = -1;
    r.retry_after_s = WAIT_MAX_S + 1;
    CHECK(wait_s(&r, 1) < 0);
    CHECK(wait_s(NULL, 1) == 1 && wait_s(NULL, 4) == 8 && wait_s(NULL, 50) == 8);
    static const char *const refs[][2] = {{"/x?y", "https://h:1/x?y"},
                                          {"x", "https://h:1/a/x"},
                                          {"//o/x#f", "https://o/x"},
                                          {"http://o", "http://o"},
                                          {"?q", "https://h:1/a/b?q"},
                                          {"", NULL},
                                          {"file:///x", NULL},
                                          {"https://u@o/", NULL},
                                          {"https://o:0/", NULL},
                                          {"https:///", NULL},
                                          {"/a b", NULL},
                                          {"https://o:70000/", NULL}};
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        bool ok = url_resolve("https://h:1/a/b?c/d", refs[i][0], out);
        CHECK_MSG(ok == (refs[i][1] != NULL) && (!ok || !strcmp(out, refs[i][1])), "%s gives %s",
                  refs[i][0], ok ? out : "nothing");
    }
    CHECK(url_same_origin("https://h/a", "HTTPS://H:443/b") &&
          !url_same_origin("https://h", "http://h"));
    CHECK(!url_same_origin("https://h", "https://h.evil") &&
          !url_same_origin("http://h", "http://h:81"));
    CHECK(url_is_loopback("http://127.0.0.1:9/x") && url_is_loopback("http://[::1]/") &&
          url_is_loopback("http://localhost") && !url_is_loopback("http://127.0.0.1.evil/"));
}

TEST(hub_store_without_memory)
{
    AUTO(arena_free) arena mem = {0};
    const char *store = begin(&mem);
    put_model(store, "a/b", "Q4_0", "b-Q4_0.gguf", "x", 10);
    put_cached("own--Cached-GGUF", "Cached-Q4_K_M.gguf", "abc");
    test_every_allocation(read_all, NULL);
}

/* ---- Models made of others ---- */

static const char made_text[] = "{\"from\":\"m\"}";

static status make_and_find(void *arg, err *e)
{
    static const made_model before;
    AUTO(arena_free) arena mem = {0};
    const made_model *found = &before, *list = &before;
    size_t n = 77;
    bool was = false;
    (void)arg;
    status st = made_write("own/Second:v1", made_text, sizeof made_text - 1, e);
    if (!st)
        st = made_find("OWN/second:V1", &mem, &found, e);
    CHECK(!st || found == &before);
    if (!st) {
        CHECK(found && found->when_s);
        CHECK_STR(found->name, "own/Second:v1");
        CHECK_STR(found->text, made_text);
        st = made_list(&mem, &list, &n, e);
        CHECK(!st || (list == &before && n == 77));
    }
    if (!st) {
        CHECK_EQ(n, 1);
        CHECK_STR(list[0].name, found->name);
        st = made_remove("own/second:v1", &was, e);
    }
    CHECK(st || was);
    return st;
}

TEST(models_made_of_others_come_and_go)
{
    static const char *const bad[] = {"",     "a b", "../x", "a/../b", "/a",   "a/",
                                      "a//b", ".a",  "-a",   "a%b",    "a\nb", "\xc3\xa9"};
    AUTO(arena_free) arena mem = {0};
    const made_model *found;
    size_t n;
    bool was = true;
    char path[700], longer[300];
    err e = {0};
    const char *store = begin(&mem);
    CHECK_OK(made_find("x", &mem, &found, &e), e);
    CHECK(!found);
    CHECK_OK(made_list(&mem, &found, &n, &e), e);
    CHECK_EQ(n, 0);
    CHECK_OK(made_remove("x", &was, &e), e);
    CHECK(!was);
    test_every_allocation(make_and_find, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (err){0};
        CHECK_MSG(!made_name_valid(bad[i]) && made_write(bad[i], "{}", 2, &e) == E_ARG, "%s",
                  bad[i]);
    }
    memset(longer, 'a', sizeof longer);
    longer[200] = 0;
    CHECK(made_name_valid(longer));
    longer[200] = 'a', longer[201] = 0;
    CHECK(!made_name_valid(longer));
    /* What lies there and is no model is left out. A second writing replaces the first. */
    snprintf(path, sizeof path, "%s/made/%%..%%x.json", store);
    write_text(path, "{}");
    snprintf(path, sizeof path, "%s/made/notes.txt", store);
    write_text(path, "{}");
    e = (err){0};
    CHECK_OK(made_write("One", "1", 1, &e), e);
    CHECK_OK(made_write("one", "22", 2, &e), e);
    CHECK_OK(made_list(&mem, &found, &n, &e), e);
    CHECK_EQ(n, 1);
    CHECK_STR(found[0].name, "One");
    CHECK_STR(found[0].text, "22");
}
