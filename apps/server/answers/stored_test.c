/* stored_test.c - kept responses: chains, limits, owners, failing memory. */
#include "apps/server/answers/stored.h"
#include "tests/test.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

static void put(stored *s, int32_t owner, const char *id, const char *previous, const char *in,
                const char *out)
{
    AUTO(str_free) str object = {0}, input = {0}, output = {0}, before = {0};
    str_printf(&object, "{\"id\":\"%s\"}", id);
    str_puts(&input, in);
    str_puts(&output, out);
    str_puts(&before, "0");
    stored_put(s, &(stored_response){.id = id,
                                     .owner = owner,
                                     .previous = previous,
                                     .object = &object,
                                     .input = &input,
                                     .output = &output,
                                     .before = &before});
}

static void expect(stored *s, const char *id, bool output, const char *items)
{
    AUTO(str_free) str got = {0};
    CHECK(stored_items(s, 0, id, output, &got));
    CHECK_STR(str_text(&got), items);
}

TEST(stored_responses_are_chains)
{
    stored *s;
    err e = {0};
    AUTO(str_free) str got = {0};
    CHECK_OK(stored_open(&s, &(stored_limits){100, 1 << 20}, &e), e);
    put(s, 0, "a", NULL, "1", "2");
    put(s, 0, "b", "a", "3", "4");
    put(s, 0, "c", "b", "5,6", "");
    put(s, 0, "d", "b", "7", "8"); /* another branch */
    expect(s, "a", true, "1,2");
    expect(s, "c", true, "1,2,3,4,5,6");
    expect(s, "d", false, "1,2,3,4,7");
    CHECK(stored_remove(s, 0, "b") && !stored_remove(s, 0, "b"));
    CHECK(!stored_items(s, 0, "b", true, &got) && !got.n);
    expect(s, "d", true, "1,2,3,4,7,8"); /* later ones keep its texts */
    put(s, 0, "e", "b", "9", "");        /* it went while e was answered */
    expect(s, "e", true, "0,9");
    CHECK(!stored_get(s, 1, "a", &got) && !stored_remove(s, 1, "a")); /* another key */
    CHECK(stored_get(s, 0, "a", &got));
    CHECK_STR(got.at, "{\"id\":\"a\"}");
    stored_close(s);
}

TEST(stored_items_are_found_by_their_ids)
{
    stored *s;
    err e = {0};
    AUTO(str_free) str got = {0};
    const char *ids[] = {"gone", "m1", "m2", "x"};
    CHECK_OK(stored_open(&s, &(stored_limits){100, 1 << 20}, &e), e);
    put(s, 0, "a", NULL, "{\"id\":\"m1\",\"c\":{\"id\":\"x\"}}", "{\"id\":\"m2\"},{\"id\":\"m3\"}");
    put(s, 0, "b", NULL, "{\"id\":\"gone\"}", "");
    put(s, 1, "c", NULL, "{\"id\":\"x\"}", ""); /* another key's */
    CHECK(stored_remove(s, 0, "b"));
    str_puts(&got, "[");
    stored_find_items(s, 0, ids, 4, &got);
    CHECK_STR(got.at, "[{\"id\":\"m2\"},{\"id\":\"m1\",\"c\":{\"id\":\"x\"}}");
    stored_close(s);
}

TEST(stored_responses_are_bounded)
{
    stored *s;
    err e = {0};
    char id[16], last[16] = "", text[512];
    int64_t count;
    uint64_t bytes, rng = test_seed();
    AUTO(str_free) str got = {0};
    memset(text, '1', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK_OK(stored_open(&s, &(stored_limits){10, 16 << 10}, &e), e);
    for (int i = 0; i < 400; i++) {
        snprintf(id, sizeof id, "r%d", i);
        const char *previous = rng_below(&rng, 3) ? last : NULL;
        put(s, 0, id, previous && *previous ? previous : NULL, text,
            rng_below(&rng, 2) ? text : "2");
        stored_count(s, &count, &bytes);
        CHECK_MSG(count <= 10 && bytes <= 16 << 10, "%lld, %llu", (long long)count,
                  (unsigned long long)bytes);
        bool kept = stored_get(s, 0, id, &got);
        CHECK(kept || !count); /* a conversation beyond the limit is not kept, nor is any other */
        if (kept && !rng_below(&rng, 4))
            CHECK(stored_remove(s, 0, id));
        else
            memcpy(last, id, sizeof id);
    }
    stored_close(s);
    CHECK_OK(stored_open(&s, &(stored_limits){10, 200}, &e), e);
    put(s, 0, "large", NULL, text, text); /* alone beyond the limit */
    stored_count(s, &count, &bytes);
    CHECK(!count && !bytes);
    stored_close(s);
}

static void put_running(stored *s, const char *id, const char *state, const char *previous,
                        bool again)
{
    str object = {0}, input = {0}, none = {0};
    str_printf(&object, "{\"id\":\"%s\",\"status\":\"%s\",\"text\":\"\\\"status\\\":\"}", id,
               state);
    str_puts(&input, "7");
    stored_put(s, &(stored_response){.id = id,
                                     .previous = previous,
                                     .object = &object,
                                     .input = &input,
                                     .output = &none,
                                     .before = &none,
                                     .background = true,
                                     .running = !!strcmp(state, "completed"),
                                     .again = again});
    str_free(&object);
    str_free(&input);
}

static bool has(stored *s, const char *id, const char *text)
{
    AUTO(str_free) str o = {0};
    bool found = stored_get(s, 0, id, &o) && strstr(o.at, text);
    return found;
}

TEST(stored_responses_that_run_are_replaced)
{
    stored *s;
    err e = {0};
    AUTO(str_free) str o = {0};
    int64_t count;
    uint64_t bytes;
    CHECK_OK(stored_open(&s, &(stored_limits){2, 1 << 20}, &e), e);
    put_running(s, "r", "queued", NULL, false);
    for (int i = 0; i < 5; i++) { /* no limit removes it */
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        put(s, 0, id, NULL, "1", "2");
    }
    CHECK(has(s, "r", "queued") && stored_runs(s, 0, "r") && !stored_runs(s, 1, "r"));
    CHECK(!stored_items(s, 0, "r", true, &o) && !o.n);
    expect(s, "r", false, "7");
    CHECK_EQ(stored_cancel(s, 1, "r", &o), STORED_NONE);
    CHECK_EQ(stored_cancel(s, 0, "4", &o), STORED_NO_BACKGROUND);
    put_running(s, "r", "in_progress", NULL, true);
    CHECK(has(s, "r", "in_progress"));
    put_running(s, "r", "completed", NULL, true);
    CHECK(has(s, "r", "completed") && !stored_runs(s, 0, "r"));
    expect(s, "r", true, "7");
    CHECK_EQ(stored_cancel(s, 0, "r", &o), STORED_OVER);
    CHECK(strstr(o.at, "completed"));
    str_cut(&o, 0);
    /* What was cancelled or removed stays so. */
    put_running(s, "c", "queued", "4", false);
    CHECK_EQ(stored_cancel(s, 0, "c", &o), STORED_CANCELLED);
    CHECK_STR(o.at, "{\"id\":\"c\",\"status\":\"cancelled\",\"text\":\"\\\"status\\\":\"}");
    put_running(s, "c", "completed", "4", true);
    CHECK(has(s, "c", "cancelled"));
    expect(s, "c", true, "1,2,7");
    put_running(s, "d", "queued", NULL, false);
    CHECK(stored_remove(s, 0, "d"));
    put_running(s, "d", "completed", NULL, true);
    CHECK(!has(s, "d", ""));
    stored_count(s, &count, &bytes);
    CHECK_EQ(count, 1); /* "c": the others made room for "d" */
    stored_close(s);
}
