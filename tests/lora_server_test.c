/* lora_server_test.c - adapters of a server: /lora-adapters, and requests that choose their own.
 */
#include "apps/hub/place.h"
#include "base/mem.h"
#include "tests/lora_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Posts, and checks the status and a part of the body. */
static void says(const served *s, const char *path, const char *body, int want, const char *text)
{
    AUTO(response_free) response r;
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == want && strstr(str_text(&r.body), text), "%s %s: %d %s, expected %d %s",
              path, body, r.status, str_text(&r.body), want, text);
}

/* The answer to a prompt, with more fields. */
static void answer(const served *s, const char *more, char text[128])
{
    AUTO(response_free) response r;
    char body[256];
    snprintf(body, sizeof body,
             "{\"prompt\":\"one two three\",\"temperature\":0,\"n_predict\":12%s}", more);
    http_post(&r, s, "/completion", body);
    const char *t = strstr(str_text(&r.body), "\"content\":");
    CHECK_MSG(r.status == 200 && t, "%s", str_text(&r.body));
    snprintf(text, 128, "%.*s", (int)strcspn(t + 11, "\"") + 11, t);
}

TEST(lora_of_a_server_by_request_and_by_its_own_scales)
{
    static const lora_recipe recipe = {.rank = 4, .alpha = 8, .seed = 5};
    served s;
    response r;
    AUTO_MEM char *base = mem_strdup(toy_model_write(NULL)),
                  *path = mem_strdup(test_temp("style.gguf"));
    char plain[128], with[128], again[128], none[128], half[128];
    lora_rig_adapter(base, path, &recipe);
    start_toy(&s, (const char *const[]){"--lora-scaled", path, "--lora-init-without-apply", NULL});
    http_call(&r, &s, "GET", "/lora-adapters", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "\"id\":0,\"name\":\"style\"") &&
          strstr(r.body.at, "\"scale\":0"));
    response_free(&r);
    answer(&s, "", plain);
    answer(&s, ",\"lora\":[{\"id\":0,\"scale\":1}]", with);
    answer(&s, ",\"lora\":[{\"name\":\"style\"}]", again);
    answer(&s, ",\"lora\":[{\"id\":0,\"scale\":0.25}]", half);
    CHECK(strcmp(plain, with) && strcmp(half, with));
    CHECK_STR(with, again);
    says(&s, "/lora-adapters", "[{\"id\":0,\"scale\":1}]", 200, "true");
    answer(&s, "", again);
    answer(&s, ",\"lora\":[]", none);
    CHECK_STR(with, again);
    CHECK_STR(plain, none);
    says(&s, "/lora-adapters", "[{\"id\":1,\"scale\":1}]", 400, "no adapter 1");
    says(&s, "/lora-adapters", "{\"id\":1}", 400, "is not a list");
    says(&s, "/lora-adapters", "[{\"id\":0,\"scale\":1e9}]", 400, "scale");
    says(&s, "/completion", "{\"prompt\":\"a\",\"lora\":[{\"name\":\"law\"}]}", 400,
         "no adapter 'law'");
    says(&s, "/v1/load_lora_adapter", "{}", 501, "--lora FILE");
    says(&s, "/lora-adapters", "[]", 200, "true");
    answer(&s, "", again);
    CHECK_STR(plain, again);
    stop(&s);
}

/* As clients of vLLM choose one. */
TEST(lora_is_chosen_by_the_name_of_a_model)
{
    static const lora_recipe recipe[] = {{.rank = 4, .alpha = 8, .seed = 5},
                                         {.rank = 4, .alpha = 8, .seed = 6}};
    served s;
    response r;
    AUTO_MEM char *base = mem_strdup(toy_model_write(NULL)),
                  *path = mem_strdup(test_temp("style.gguf")),
                  *law = mem_strdup(test_temp("law.gguf")), *named = NULL;
    char plain[128], with[128], again[128], other[128];
    str name = {0};
    lora_rig_adapter(base, path, &recipe[0]);
    lora_rig_adapter(base, law, &recipe[1]);
    start_toy(&s, ARGS("--lora", path, "--lora", law, "--lora-init-without-apply"));
    answer(&s, "", plain);
    answer(&s, ",\"lora\":[{\"id\":0,\"scale\":1}]", with);
    answer(&s, ",\"model\":\"style\"", again);
    answer(&s, ",\"model\":\"law\"", other);
    CHECK_STR(again, with);
    CHECK(strcmp(plain, with) && strcmp(other, with) && strcmp(other, plain));
    answer(&s, ",\"model\":\"style\",\"lora\":[]", again); /* the request says more */
    CHECK_STR(again, plain);
    says(&s, "/lora-adapters", "[{\"id\":1,\"scale\":1}]", 200, "true");
    answer(&s, ",\"model\":\"style\"", again);
    CHECK_STR(again, with); /* and not both */
    http_call(&r, &s, "GET", "/v1/models", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "\"id\":\"style\",\"object\":\"model\"") &&
          strstr(r.body.at, "\"parent\":") && strstr(r.body.at, "\"id\":\"law\""));
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models/law", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "\"parent\":"));
    response_free(&r);
    says(&s, "/v1/embeddings", "{\"model\":\"style\",\"input\":\"a\"}", 400, "has an adapter");
    stop(&s);
    /* Of several models, none of which is called so. */
    str_printf(&name, "a=%s", base);
    named = str_take(&name);
    const char *second = test_temp("second.gguf");
    CHECK(!symlink(base, second));
    served_start(&s, ARGS("-t", "1", "--ctx", "512", "--lora", path, "--lora-init-without-apply",
                          named, second));
    says(&s, "/completion", "{\"prompt\":\"a\",\"model\":\"style\"}", 404, "there is no model");
    says(&s, "/completion", "{\"prompt\":\"a\",\"model\":\"a\",\"n_predict\":1}", 200, "content");
    answer(&s, ",\"model\":\"style\"", again);
    CHECK_STR(again, with);
    answer(&s, ",\"model\":\"a\"", again);
    CHECK_STR(again, plain);
    stop(&s);
}

static void write_modelfile(const char *path, const char *base, const char *adapter)
{
    AUTO(str_free) str text = {0};
    str_printf(&text, "FROM %s\nADAPTER %s\nPARAMETER temperature 0\n", base, adapter);
    test_write(path, text.at, text.n);
}

/* Modelfiles with ADAPTER: refused for another model, answered in run and in a server, also when it
 * is made while the server has the model loaded, or when its file is gone. */
TEST(lora_of_a_model_that_is_made)
{
    static const lora_recipe recipe[] = {{.rank = 4, .alpha = 8, .seed = 5},
                                         {.rank = 4, .alpha = 8, .seed = 6}};
    served s;
    char dir[600], base[700], adapter[700], second[700], file[700], wide[700];
    char plain[128], with[128], late[128], again[128];
    err e = {0};
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(base, sizeof base, "%s", toy_model_write(NULL));
    snprintf(wide, sizeof wide, "%s", toy_model_write(&(toy_model_file){.wide_heads = true}));
    snprintf(dir, sizeof dir, "%s", test_temp("of:mine"));
    CHECK_OK(make_dirs(dir, &e), e);
    snprintf(adapter, sizeof adapter, "%s/style.gguf", dir);
    snprintf(second, sizeof second, "%s/law.gguf", dir);
    snprintf(file, sizeof file, "%s/Modelfile", dir);
    lora_rig_adapter(base, adapter, &recipe[0]);
    lora_rig_adapter(base, second, &recipe[1]);
    /* Beside the Modelfile; of another model; not there; nothing named. */
    write_modelfile(file, wide, "style.gguf");
    spawn_check(2, NULL, "style.gguf", ARGS("create", "bad", "-f", file));
    write_modelfile(file, base, "none.gguf");
    spawn_check(1, NULL, "none.gguf", ARGS("create", "bad", "-f", file));
    write_modelfile(file, base, base);
    spawn_check(2, NULL, "adapter", ARGS("create", "bad", "-f", file));
    write_modelfile(file, base, "");
    spawn_check(2, NULL, "expected ADAPTER FILE", ARGS("create", "bad", "-f", file));
    write_modelfile(file, base, "style.gguf");
    spawn_check(0, NULL, "style is made of", ARGS("create", "style", "-f", file));
    spawn_check(0, "style.gguf", NULL, ARGS("show", "style"));
    /* A server. The base is served without. */
    served_start(&s, ARGS("-t", "1", "--ctx", "512", base));
    answer(&s, ",\"model\":\"x\"", plain);
    answer(&s, ",\"model\":\"style\"", with);
    answer(&s, ",\"model\":\"x\"", again);
    CHECK(strcmp(plain, with));
    CHECK_STR(plain, again);
    answer(&s, ",\"model\":\"style\",\"lora\":[]", again);
    CHECK_STR(plain, again);
    /* Another is made meanwhile, of the first: both count. */
    write_modelfile(file, "style", adapter);
    spawn_check(2, NULL, "twice", ARGS("create", "bad", "-f", file));
    write_modelfile(file, "style", second);
    spawn_check(0, NULL, "late is made of", ARGS("create", "late", "-f", file));
    answer(&s, ",\"model\":\"late\"", late);
    CHECK(strcmp(late, with) && strcmp(late, plain));
    answer(&s, ",\"model\":\"style\"", again);
    CHECK_STR(with, again);
    answer(&s, ",\"model\":\"x\"", again);
    CHECK_STR(plain, again);
    says(&s, "/api/show", "{\"model\":\"late\"}", 200, "ADAPTER ");
    says(&s, "/api/create", "{\"model\":\"b\",\"from\":\"late\",\"adapters\":{\"a\":\"sha256:0\"}}",
         400, "carat create");
    says(&s, "/api/create", "{\"model\":\"copy\",\"from\":\"late\",\"stream\":false}", 200,
         "success");
    answer(&s, ",\"model\":\"copy\"", again);
    CHECK_STR(late, again);
    says(&s, "/v1/embeddings", "{\"model\":\"late\",\"input\":\"a\"}", 400, "has an adapter");
    /* A file that has gone or is another one: a sentence, and the others answer. */
    write_modelfile(file, base, second);
    spawn_check(0, NULL, "gone is made of", ARGS("create", "gone", "-f", file));
    stop(&s);
    lora_rig_adapter(wide, second, &recipe[1]);
    served_start(&s, ARGS("-t", "1", "--ctx", "512", base));
    says(&s, "/completion", "{\"model\":\"gone\",\"prompt\":\"a\",\"n_predict\":1}", 500,
         "law.gguf");
    answer(&s, ",\"model\":\"style\"", again);
    CHECK_STR(with, again);
    CHECK(!unlink(second));
    says(&s, "/completion", "{\"model\":\"gone\",\"prompt\":\"a\",\"n_predict\":1}", 500,
         "law.gguf");
    answer(&s, ",\"model\":\"x\"", again);
    CHECK_STR(plain, again);
    stop(&s);
    spawn_check(1, NULL, "law.gguf", ARGS("run", "gone", "hi"));
    /* A name that ends as a scale does, when the file without that end is there. */
    snprintf(second, sizeof second, "%s/style.gguf:0.5", dir);
    lora_rig_adapter(base, second, &recipe[1]);
    write_modelfile(file, base, second);
    spawn_check(0, NULL, "gone is made of", ARGS("create", "gone", "-f", file));
    CHECK(!unlink(second));
    spawn_check(1, NULL, "style.gguf:0.5", ARGS("run", "gone", "hi"));
    /* Scales that were set stay when the model is loaded again. */
    snprintf(second, sizeof second, "%s/later.gguf", dir);
    lora_rig_adapter(base, second, &recipe[1]);
    served_start(&s, ARGS("-t", "1", "--ctx", "512", "--lora", adapter, base));
    says(&s, "/lora-adapters", "[{\"id\":0,\"scale\":0.25}]", 200, "true");
    write_modelfile(file, base, second);
    spawn_check(0, NULL, "later is made of", ARGS("create", "later", "-f", file));
    answer(&s, ",\"model\":\"later\"", again);
    response r;
    http_call(&r, &s, "GET", "/lora-adapters", NULL, NULL);
    CHECK_MSG(strstr(r.body.at, "later.gguf") && strstr(r.body.at, "\"scale\":0.25"), "%s",
              r.body.at);
    response_free(&r);
    stop(&s);
    spawn_check(0, NULL, "", ARGS("run", "style", "-n", "2", "-q", "hi"));
}

/* The adapters of a server by their ids, as "style.gguf law.gguf ". */
static const char *adapters(const served *s, char *out, size_t cap)
{
    response r;
    size_t n = 0;
    http_call(&r, s, "GET", "/lora-adapters", NULL, NULL);
    *out = 0;
    for (const char *at = str_text(&r.body); (at = strstr(at, "\"path\":\"")); at++) {
        const char *end = strchr(at + 8, '"'), *name = end;
        while (name[-1] != '/')
            name--;
        n += (size_t)snprintf(out + n, cap - n, "%.*s ", (int)(end - name), name);
    }
    response_free(&r);
    return out;
}

/* A model is loaded again for an adapter that was made meanwhile: ids stay, and where both do not
 * fit into the memory the model goes on without it. */
TEST(lora_reloads_lose_nothing)
{
    static const lora_recipe recipe[] = {{.rank = 4, .alpha = 8, .seed = 5},
                                         {.rank = 4, .alpha = 8, .seed = 6},
                                         {.rank = 1024, .alpha = 8, .seed = 7}};
    static const char *const names[] = {"style", "law", "large"}, *const made[] = {"m", "a", "b"};
    served s;
    response r;
    arena mem = {0};
    char dir[600], base[700], adapter[3][700], file[700], room[32], seen[200];
    char plain[128], with[128], again[128];
    err e = {0};
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(base, sizeof base, "%s", toy_model_write(NULL));
    snprintf(dir, sizeof dir, "%s", test_temp("adapters"));
    CHECK_OK(make_dirs(dir, &e), e);
    snprintf(file, sizeof file, "%s/Modelfile", dir);
    for (int i = 0; i < 3; i++) {
        snprintf(adapter[i], sizeof adapter[i], "%s/%s.gguf", dir, names[i]);
        lora_rig_adapter(base, adapter[i], &recipe[i]);
    }
    write_modelfile(file, base, adapter[0]);
    spawn_check(0, NULL, "m is made of", ARGS("create", made[0], "-f", file));
    served_start(&s, ARGS("-t", "1", "--ctx", "512", base));
    http_call(&r, &s, "GET", "/api/ps", NULL, NULL);
    long long one = atoll(json_at(json_parsed(&mem, r.body.at, r.body.n), "models.0.size")->s);
    response_free(&r);
    stop(&s);
    snprintf(room, sizeof room, "%lld", (one >> 20) + 2);
    served_start(&s, ARGS("-t", "1", "--ctx", "512", "--memory", room, base));
    answer(&s, ",\"model\":\"x\"", plain);
    answer(&s, ",\"model\":\"m\"", with);
    CHECK(strcmp(plain, with));
    CHECK_STR(adapters(&s, seen, sizeof seen), "style.gguf ");
    /* By its name it would be first. */
    write_modelfile(file, base, adapter[1]);
    spawn_check(0, NULL, "a is made of", ARGS("create", made[1], "-f", file));
    answer(&s, ",\"model\":\"a\"", again);
    CHECK(strcmp(plain, again) && strcmp(with, again));
    CHECK_STR(adapters(&s, seen, sizeof seen), "style.gguf law.gguf ");
    /* No room for this one: a sentence, and the others answer as before. */
    write_modelfile(file, base, adapter[2]);
    spawn_check(0, NULL, "b is made of", ARGS("create", made[2], "-f", file));
    says(&s, "/completion", "{\"model\":\"b\",\"prompt\":\"a\",\"n_predict\":1}", 503,
         "large.gguf");
    answer(&s, ",\"model\":\"x\"", again);
    CHECK_STR(plain, again);
    answer(&s, ",\"model\":\"m\"", again);
    CHECK_STR(with, again);
    CHECK_STR(adapters(&s, seen, sizeof seen), "style.gguf law.gguf ");
    stop(&s);
    /* A server that starts with it too. Names are those of any case. */
    served_start(&s, ARGS("-t", "1", "--ctx", "512", "--memory", room, "--lora", adapter[0], base));
    answer(&s, ",\"model\":\"STYLE\",\"lora\":[{\"name\":\"Style\",\"scale\":1}]", again);
    CHECK_STR(with, again);
    stop(&s);
    arena_free(&mem);
}
