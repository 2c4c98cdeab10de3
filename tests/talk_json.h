/* talk_json.h - a conversation as JSON in OpenAI's form, for tests that compare it as text. */
#ifndef TESTS_TALK_JSON_H
#define TESTS_TALK_JSON_H

#include "apps/jsonw.h"
#include "text/talk.h"

static inline void talk_json_text(str *o, const char *key, talk_text t)
{
    if (t.s)
        json_text_n(o, key, t.s, t.n);
}

static inline void talk_json_part(str *o, const talk_part *it)
{
    static const char *const kinds[] = {"text", "image", "audio", "video"};
    json_open(o, NULL, '{');
    json_text(o, "type", it->kind == TALK_KINDS ? it->name : kinds[it->kind]);
    talk_json_text(o, "text", it->text);
    if (it->number >= 0)
        json_int(o, "number", it->number);
    json_close(o, "}");
}

static inline void talk_json_turn(str *o, const talk_turn *m)
{
    static const char *const thoughts[] = {"reasoning_content", "reasoning", "thinking"};
    json_open(o, NULL, '{');
    json_text(o, "role", talk_role_names[m->role]);
    for (int i = 0; i < TALK_THOUGHTS; i++)
        talk_json_text(o, thoughts[i], m->thought[i]);
    talk_json_text(o, "tool_call_id", m->call_id);
    talk_json_text(o, "name", m->name);
    if (m->shape == TALK_WHOLE)
        talk_json_text(o, "content", m->part->text);
    else if (m->shape == TALK_NOTHING)
        json_nothing(o, "content");
    else {
        json_open(o, "content", '[');
        for (size_t i = 0; i < m->n_parts; i++)
            talk_json_part(o, &m->part[i]);
        json_close(o, "]");
    }
    if (m->n_calls)
        json_open(o, "tool_calls", '[');
    for (size_t i = 0; i < m->n_calls; i++) {
        json_open(o, NULL, '{');
        talk_json_text(o, "id", m->call[i].id);
        json_text(o, "type", "function");
        json_open(o, "function", '{');
        talk_json_text(o, "name", m->call[i].name);
        if (m->call[i].arguments)
            json_tree(o, "arguments", m->call[i].arguments);
        str_puts(o, "}}");
    }
    if (m->n_calls)
        json_close(o, "]");
    json_close(o, "}");
}

static inline void talk_json(str *o, const carat_talk *t)
{
    json_open(o, NULL, '[');
    for (size_t i = 0; i < t->n; i++)
        talk_json_turn(o, &t->turn[i]);
    json_close(o, "]");
}

/* The conversation as JSON is this text; has it in it. */
#define CHECK_TALK(talk, want)                                                                     \
    do {                                                                                           \
        str is_ = {0};                                                                             \
        talk_json(&is_, talk);                                                                     \
        CHECK_STR(str_text(&is_), want);                                                           \
        str_free(&is_);                                                                            \
    } while (0)
#define CHECK_TALK_HAS(talk, want)                                                                 \
    do {                                                                                           \
        str is_ = {0};                                                                             \
        talk_json(&is_, talk);                                                                     \
        CHECK_MSG(strstr(str_text(&is_), want), "%s", str_text(&is_));                             \
        str_free(&is_);                                                                            \
    } while (0)

#endif
