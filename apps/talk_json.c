/* talk_json.c - see talk_json.h. */
#include "apps/talk_json.h"

void talk_put_text_json(str *o, const char *key, talk_text t)
{
    if (t.s)
        json_text_n(o, key, t.s, t.n);
}

static void put_part(str *o, const talk_part *it)
{
    static const char *const kinds[] = {"text", "image", "audio", "video"};
    if (it->from && it->kind != TALK_TEXT && it->number < 0) { /* nothing here knows more of it */
        json_tree(o, NULL, it->from);
        return;
    }
    json_open(o, NULL, '{');
    json_text(o, "type", it->kind == TALK_KINDS ? it->name : kinds[it->kind]);
    talk_put_text_json(o, it->kind == TALK_TEXT ? "text" : "name", it->text);
    if (it->number >= 0)
        json_int(o, "number", it->number);
    json_close(o, "}");
}

static void put_calls(str *o, const talk_turn *m)
{
    if (!m->n_calls)
        return;
    json_open(o, "tool_calls", '[');
    for (size_t i = 0; i < m->n_calls; i++) {
        json_open(o, NULL, '{');
        talk_put_text_json(o, "id", m->call[i].id);
        json_text(o, "type", "function");
        json_open(o, "function", '{');
        talk_put_text_json(o, "name", m->call[i].name);
        if (m->call[i].arguments)
            json_tree(o, "arguments", m->call[i].arguments);
        json_close(o, "}}");
    }
    json_close(o, "]");
}

static void put_results(str *o, const talk_turn *m)
{
    if (!m->n_results)
        return;
    json_open(o, "tool_responses", '[');
    for (size_t i = 0; i < m->n_results; i++) {
        json_open(o, NULL, '{');
        talk_put_text_json(o, "name", m->result[i].name);
        if (m->result[i].given)
            json_tree(o, "response", m->result[i].value);
        json_close(o, "}");
    }
    json_close(o, "]");
}

static void put_turn(str *o, const talk_turn *m, talk_part_writer *put, void *user)
{
    static const char *const thoughts[TALK_THOUGHTS] = {"reasoning_content", "reasoning",
                                                        "thinking"};
    json_open(o, NULL, '{');
    json_text(o, "role", talk_role_names[m->role]);
    for (int i = 0; i < TALK_THOUGHTS; i++)
        talk_put_text_json(o, thoughts[i], m->thought[i]);
    talk_put_text_json(o, "tool_call_id", m->call_id);
    talk_put_text_json(o, "name", m->name);
    if (m->shape == TALK_WHOLE) {
        talk_put_text_json(o, "content", m->part->text);
    } else if (m->shape == TALK_NOTHING) {
        json_nothing(o, "content");
    } else {
        json_open(o, "content", '[');
        for (size_t i = 0; i < m->n_parts; i++)
            if (!put || !put(user, &m->part[i], o))
                put_part(o, &m->part[i]);
        json_close(o, "]");
    }
    put_calls(o, m);
    put_results(o, m);
    json_close(o, "}");
}

void talk_put_json(str *o, const char *key, const carat_talk *t, talk_part_writer *put, void *user)
{
    json_open(o, key, '[');
    for (size_t i = 0; i < t->n; i++)
        put_turn(o, &t->turn[i], put, user);
    json_close(o, "]");
}
