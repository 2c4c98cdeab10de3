/* talk_test.c - conversations as values: filled, read from JSON, refused, without memory. */
#include "tests/test.h"

#include "base/mem.h"
#include "text/chat.h"

#include <string.h>

static const char whole[] =
    "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"Be "
    "\"},{\"text\":\"kind.\"}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":3},{\"type\":\"film\"},"
    "{\"type\":\"input_audio\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"\",\"thinking\":\"hm\",\"tool_"
    "calls\":"
    "[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":7},{\"function\":"
    "{\"name\":\"g\",\"arguments\":{\"x\":1}}}],\"tool_responses\":[{\"name\":\"f\",\"response\":"
    "null},"
    "{}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"name\":\"f\",\"content\":\"\"}]";

TEST(talk_has_what_its_json_says)
{
    AUTO(arena_free) arena mem = {0};
    carat_talk t = {.mem = &mem};
    char where[TALK_WHERE];
    err e = {0};
    CHECK_OK(chat_read(&t, whole, sizeof whole - 1, "[]", 2, &e), e);
    CHECK(t.n == 4 && jtree_is(t.tools, JTREE_ARRAY) && !t.bad);
    const talk_turn *m = t.turn;
    CHECK(talk_is_system(&m[0]) && m[0].shape == TALK_LIST && m[0].n_parts == 2);
    CHECK(m[0].part[1].kind == TALK_TEXT && !strcmp(m[0].part[1].text.s, "kind."));
    CHECK(m[1].n_parts == 3 && m[1].part[0].kind == TALK_IMAGE && m[1].part[0].number == 3);
    CHECK(m[1].part[1].kind == TALK_KINDS && !strcmp(m[1].part[1].name, "film"));
    CHECK(m[1].part[2].kind == TALK_AUDIO && m[1].part[2].number == -1);
    CHECK(m[2].shape == TALK_NOTHING && !talk_has_content(&m[2]) && m[2].n_calls == 3);
    CHECK(!m[2].thought[TALK_REASONING_CONTENT].s && !m[2].thought[TALK_REASONING].n &&
          m[2].thought[TALK_REASONING].s && m[2].thought[TALK_THINKING].n == 2);
    CHECK(m[2].call[0].id.n == 1 && m[2].call[1].id.n == 1 && !m[2].call[1].arguments);
    CHECK(!m[2].call[2].id.s);
    CHECK(jtree_is(m[2].call[2].arguments, JTREE_OBJECT));
    CHECK(m[2].n_results == 2 && m[2].result[0].given && !m[2].result[1].given);
    CHECK(m[3].shape == TALK_WHOLE && !talk_has_content(&m[3]) && m[3].call_id.n == 1);
    talk_where(&m[3], ".content", where);
    CHECK(!strcmp(where, "messages[3].content"));
    talk_where(&(talk_turn){.list = "system", .index = -1}, "", where);
    CHECK(!strcmp(where, "system"));
}

TEST(talk_grows_and_keeps_what_it_had)
{
    enum { TURNS = 100, PARTS = 37 };
    AUTO(arena_free) arena mem = {0};
    carat_talk t = {.mem = &mem};
    for (int i = 0; i < TURNS; i++) {
        talk_add(&t, TALK_USER, "messages", i);
        talk_set_text(&t, "all", 3);
        for (int k = 0; k < i % PARTS; k++) {
            talk_put_part(&t, (talk_part){.kind = TALK_IMAGE, .number = k});
            talk_put_call(&t, (talk_call){.id = {"x", (size_t)k}});
        }
    }
    CHECK(t.n == TURNS && !t.bad);
    for (int i = 0; i < TURNS; i++) {
        const talk_turn *m = &t.turn[i];
        size_t n = (size_t)(i % PARTS);
        CHECK(m->index == i && m->n_calls == n && m->n_parts == (n ? n : 1));
        CHECK(m->shape == (n ? TALK_LIST : TALK_WHOLE));
        for (size_t k = 0; k < n; k++)
            CHECK(m->part[k].number == (int32_t)k && m->call[k].id.n == k);
    }
}

TEST(talk_refuses_hostile_conversations_by_their_place)
{
    static const char *const bad[][2] = {
        {"[]", "messages is empty"},
        {"{}", "messages is an object"},
        {"[[]]", "messages[0] is an array"},
        {"[{\"role\":\"user\"},null]", "messages[1] is null"},
        {"[{\"role\":[]}]", "messages[0] is an object without a role"},
        {"[{\"role\":\"user\\u0000\"},{\"role\":\"User\"}]", "messages[1] has the role \"User\""},
        {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content is an object"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":99999}]}]",
         "messages[0].content: the number"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":1e3}]}]",
         "messages[0].content: the number"},
        {"[{\"role\":\"user\",\"tool_calls\":[{}]}]", "messages[0].tool_calls: only"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls is an object"},
        {"[{\"role\":\"assistant\",\"tool_responses\":[{\"name\":[]}]}]", "messages[0].name is an"},
        {"[{\"role\":\"assistant\",\"reasoning_content\":[]}]", "messages[0].reasoning_content is"},
        {"[{\"role\":\"user\"", "messages"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AUTO(arena_free) arena mem = {0};
        carat_talk t = {.mem = &mem};
        err e = {0};
        CHECK_STATUS(chat_read(&t, bad[i][0], strlen(bad[i][0]), NULL, 0, &e), E_FORMAT);
        CHECK_MSG(!strncmp(e.text, bad[i][1], strlen(bad[i][1])), "\"%s\" is not \"%s\"", e.text,
                  bad[i][1]);
    }
}

TEST(talk_without_memory_is_refused)
{
    int64_t n = 0;
    for (bool hit = true; hit; n++) {
        AUTO(arena_free) arena mem = {0};
        carat_talk t = {.mem = &mem};
        err e = {0};
        mem_fail_after(n);
        status st = chat_read(&t, whole, sizeof whole - 1, NULL, 0, &e);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        CHECK_MSG(hit ? st == E_MEMORY : st == OK, "%s", e.text);
    }
    /* One block of an arena holds all of it; a small arena fails in every place. */
    for (size_t bytes = 64, refused = 0;; bytes += 64) {
        arena mem = {.max_bytes = bytes};
        carat_talk t = {.mem = &mem};
        err e = {0};
        if (!chat_read(&t, whole, sizeof whole - 1, NULL, 0, &e)) {
            CHECK(refused > 10);
            arena_free(&mem);
            break;
        }
        refused++;
        arena_free(&mem);
    }
    arena tiny = {.max_bytes = 1 << 16};
    carat_talk t = {.mem = &tiny};
    for (int i = 0; i < 1000; i++) {
        talk_add(&t, TALK_USER, "messages", i);
        talk_put_part(&t, (talk_part){.kind = TALK_TEXT});
        talk_set_text(&t, "", 0);
        talk_put_call(&t, (talk_call){0});
    }
    CHECK(t.bad && t.n < 1000);
    arena_free(&tiny);
    AUTO(arena_free) arena full = {.max_bytes = 4096};
    carat_talk u = {.mem = &full};
    talk_add(&u, TALK_USER, "messages", 0);
    while (arena_alloc(&full, 16))
        continue;
    talk_set_text(&u, "x", 1);
    CHECK(u.bad && !talk_has_content(talk_last(&u)));
}
