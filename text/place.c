/* place.c - see place.h. */
#include "text/place.h"
#include "text/vocab.h"

#include <string.h>

void place_begin(answer_place *p, const vocab *v, const chat_format *f, bool starts_thinking)
{
    const answer_syntax *a = v && f ? text_answer_syntax(f, f->family) : NULL;
    const answer_heads *h = a ? a->heads : NULL;
    *p = (answer_place){.v = v, .a = a, .thinking = starts_thinking};
    p->thought_open = a ? vocab_mark(v, a->thought_open) : -1;
    p->thought_close = a ? vocab_mark(v, a->thought_close) : -1;
    p->call_open = a ? vocab_mark(v, a->call_open) : -1;
    p->call_close = a ? vocab_mark(v, a->call_close) : -1;
    p->start = h ? vocab_mark(v, h->start) : -1;
    p->channel = h ? vocab_mark(v, h->channel) : -1;
    p->message = h ? vocab_mark(v, h->message) : -1;
}

static const char *text_of(const answer_place *p, int32_t id, size_t *n)
{
    *n = 0;
    const char *s = vocab_text(p->v, id, true, n);
    return s ? s : "";
}

static bool is_blank(const answer_place *p, int32_t id)
{
    size_t n;
    const char *s = text_of(p, id, &n);
    for (size_t i = 0; i < n; i++)
        if (!s[i] || !strchr(" \t\r\n", s[i]))
            return false;
    return true;
}

static bool says(const answer_place *p, const char *word)
{
    return memmem(p->head, p->n_head, word, strlen(word)) != NULL;
}

static void add_to_head(answer_place *p, const char *s, size_t n)
{
    size_t left = sizeof p->head - p->n_head;
    memcpy(p->head + p->n_head, s, n < left ? n : left);
    p->n_head += n < left ? n : left;
}

static bool is_end(const answer_place *p, int32_t id)
{
    for (const char *const *end = p->a->heads->ends; *end; end++)
        if (vocab_mark(p->v, *end) == id)
            return true;
    return false;
}

/* The channel of the header is the last one that it names. */
static bool is_thought(const answer_place *p)
{
    const char *word = p->a->heads->thought, *last = memrchr(p->head, '\n', p->n_head);
    size_t n = strlen(word), at = last ? (size_t)(last - p->head) + 1 : p->n_head;
    return p->n_head - at >= n && !memcmp(p->head + at, word, n);
}

static void next_in_message(answer_place *p, int32_t id)
{
    size_t n;
    const char *s = text_of(p, id, &n);
    if (id == p->start || is_end(p, id)) {
        p->heading = true;
        p->thinking = p->calling = false;
        p->n_head = 0;
    } else if (id == p->channel) {
        p->heading = true;
        p->thinking = false;
        add_to_head(p, "\n", 1);
    } else if (id == p->message) {
        p->heading = false;
        p->thinking = !p->calling && is_thought(p);
        p->n_head = 0;
    } else if (p->heading || (!p->begun && n >= 3 && !memcmp(s, " to", 3))) {
        p->heading = true;
        add_to_head(p, s, n);
        p->calling |= says(p, " to=") && says(p, p->a->heads->call_space);
    }
    p->marking = p->heading || id == p->message;
    p->begun = true;
}

void place_next(answer_place *p, int32_t id)
{
    if (!p->a)
        return;
    if (p->a->heads) {
        next_in_message(p, id);
        return;
    }
    if (id == p->call_open || (id == p->call_close && id >= 0)) {
        p->marked = id == p->call_open && !p->thinking;
        p->calling = false;
    } else {
        p->calling |= p->marked && !is_blank(p, id);
    }
    p->marking = id >= 0 && (id == p->thought_open || id == p->thought_close);
    if (p->marking)
        p->thinking = id == p->thought_open;
}
