/* compress_chat.c - which texts of a conversation may be shortened, and the conversation with
 * shorter ones. compress.h has the rules. */
#include "text/compress.h"

#include <string.h>

typedef struct finder {
    const carat_talk *talk;
    int64_t *turn_of;        /* [talk->n]: the turn of each message, from 0; -1: before the first */
    const talk_turn **asked; /* [n_turns]: the last user message of each turn */
    talk_text *asks;         /* [n_turns]: its text, made when it is needed */
    int64_t n_turns;
    arena *mem;
    compress_texts *out;
    size_t least, cap;
    bool full; /* no memory */
} finder;

static bool is_text(const talk_part *part)
{
    return part->kind == TALK_TEXT && part->text.s;
}

static void read_turns(finder *f)
{
    bool before = false;
    for (size_t i = 0; i < f->talk->n; i++) {
        bool user = f->talk->turn[i].role == TALK_USER;
        f->n_turns += user && !before;
        if (user)
            f->asked[f->n_turns - 1] = &f->talk->turn[i];
        f->turn_of[i] = f->n_turns - 1;
        before = user;
    }
}

/* The texts of the message that asks in a turn, one after the other. */
static void find_question(finder *f, int64_t turn, compress_text *to)
{
    talk_text *q = &f->asks[turn];
    const talk_turn *m = f->asked[turn];
    str all = {0};
    if (!q->s && m->shape == TALK_WHOLE) {
        *q = m->part->text;
    } else if (!q->s) {
        for (size_t i = 0; i < m->n_parts; i++) {
            if (is_text(&m->part[i]) && all.n)
                str_putc(&all, '\n');
            if (is_text(&m->part[i]))
                str_put(&all, m->part[i].text.s, m->part[i].text.n);
        }
        *q = (talk_text){all.bad ? NULL : arena_strndup(f->mem, str_text(&all), all.n), all.n};
        f->full |= !q->s;
        str_free(&all);
    }
    to->query = q->s ? q->s : "";
    to->n_query = q->s ? q->n : 0;
}

static void add_text(finder *f, size_t message, int64_t part, talk_text text, bool asks)
{
    compress_texts *out = f->out;
    if (text.n < f->least || out->n == COMPRESS_TEXTS_MAX || f->full)
        return;
    if (out->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 16;
        compress_text *at = arena_array(f->mem, cap, sizeof *at);
        if (!at) {
            f->full = true;
            return;
        }
        if (out->n)
            memcpy(at, out->at, out->n * sizeof *at);
        out->at = at;
        f->cap = cap;
    }
    compress_text *t = &out->at[out->n];
    int64_t turn = f->turn_of[message] + COMPRESS_TURNS;
    *t = (compress_text){
        .message = message, .part = part, .text = text.s, .n = text.n, .asks = asks};
    find_question(f, turn < f->n_turns ? turn : f->n_turns - 1, t);
    out->n += !f->full;
}

/* The texts of one message that may be shortened. */
static void add_message(finder *f, size_t i)
{
    const talk_turn *m = &f->talk->turn[i];
    int64_t turn = f->turn_of[i];
    size_t last = SIZE_MAX; /* part that is a text: the question is in it */
    bool aged = turn + COMPRESS_TURNS < f->n_turns;
    bool answer = m->role == TALK_ASSISTANT && aged && !m->n_calls && !m->n_results;
    if (turn < 0 || (m->role != TALK_USER && !answer))
        return;
    for (size_t k = 0; k < m->n_parts && m == f->asked[turn]; k++)
        last = is_text(&m->part[k]) ? k : last;
    for (size_t k = 0; k < m->n_parts; k++)
        if (is_text(&m->part[k]))
            add_text(f, i, m->shape == TALK_WHOLE ? -1 : (int64_t)k, m->part[k].text, k == last);
}

status compress_find(const carat_talk *t, size_t least_bytes, arena *mem, compress_texts *out,
                     err *e)
{
    finder f = {.talk = t, .mem = mem, .out = out, .least = least_bytes};
    *out = (compress_texts){0};
    f.turn_of = arena_array(mem, t->n + 1, sizeof *f.turn_of);
    f.asked = arena_array(mem, t->n + 1, sizeof *f.asked);
    f.asks = arena_array(mem, t->n + 1, sizeof *f.asks);
    f.full = !f.turn_of || !f.asked || !f.asks;
    if (!f.full)
        read_turns(&f);
    for (size_t i = 0; i < t->n && f.n_turns && !f.full; i++)
        add_message(&f, i);
    return f.full ? err_memory(e, "the texts of a conversation", t->n * sizeof *f.asks) : OK;
}

void compress_put(const compress_texts *texts, const str *now, carat_talk *t)
{
    for (size_t i = 0, k; i < texts->n && !t->bad; i = k) {
        talk_turn *m = &t->turn[texts->at[i].message];
        talk_part *part = arena_array(t->mem, m->n_parts, sizeof *part);
        t->bad |= !part;
        if (part)
            memcpy(part, m->part, m->n_parts * sizeof *part);
        m->part = part ? part : m->part;
        for (k = i; k < texts->n && texts->at[k].message == texts->at[i].message; k++) {
            if (!now[k].at || !part)
                continue;
            talk_text text = {arena_strndup(t->mem, now[k].at, now[k].n), now[k].n};
            t->bad |= !text.s;
            part[texts->at[k].part < 0 ? 0 : texts->at[k].part].text = text;
        }
    }
}
