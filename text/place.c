/* place.c - see place.h. */
#include "text/place.h"
#include "text/vocab.h"

#include <stdio.h>
#include <string.h>

/* The header of a message of the answer, behind its role. */
static void begin_head(answer_place *p)
{
    p->n_head = (size_t)snprintf(p->head, sizeof p->head, "%c%s", PLACE_START, p->a->heads->role);
}

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
    if (h)
        begin_head(p); /* the prompt's end */
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

static void add_mark_to_head(answer_place *p, char mark)
{
    add_to_head(p, &mark, 1);
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
    const char *word = p->a->heads->thought, *last = memrchr(p->head, PLACE_CHANNEL, p->n_head);
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
        if (id == p->start)
            add_mark_to_head(p, PLACE_START);
    } else if (id == p->channel) {
        p->heading = true;
        p->thinking = false;
        if (!p->n_head) /* the model left out the role */
            begin_head(p);
        add_mark_to_head(p, PLACE_CHANNEL);
    } else if (id == p->message) {
        p->heading = false;
        p->thinking = !p->calling && is_thought(p);
        p->answered = !p->thinking;
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

/* ---- Headers that may come ---- */

enum { OF_THOUGHT = 1, OF_COMMENT = 2, OF_TEXT = 4, OF_CALL = 8, OF_ALL = 15 };

bool place_in_header(const answer_place *p)
{
    return p->a && p->a->heads && (p->heading || (!p->begun && !p->thinking));
}

/* Whether a header of this form may begin with s[0..n). Any text may follow the beginning of a
 * call's. */
static bool form_begins(const place_form *f, const char *s, size_t n)
{
    size_t same = f->kind == OF_CALL && n > f->n ? f->n : n;
    return same <= f->n && !memcmp(f->text, s, same);
}

void place_rule_begin(place_rule *r, const answer_place *p, bool no_thoughts, bool no_calls)
{
    const answer_heads *h = p->a->heads;
    const struct {
        int kind;
        const char *channel, *name, *to, *space, *message;
    } form[] = {{OF_THOUGHT, "\2", h->thought, "", "", "\3"},
                {OF_COMMENT, "\2", h->commentary, "", "", "\3"},
                {OF_TEXT, "\2", h->text, "", "", "\3"},
                {OF_CALL, "\2", h->commentary, " to=", h->call_space, ""},
                {OF_CALL, "", "", " to=", h->call_space, ""}};
    int kinds = 0;
    *r = (place_rule){.p = p};
    r->may = OF_ALL & ~(no_thoughts ? OF_THOUGHT | OF_COMMENT : 0) & ~(no_calls ? OF_CALL : 0);
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        place_form *f = &r->form[r->n_forms];
        f->kind = form[i].kind;
        f->n = (size_t)snprintf(f->text, sizeof f->text, "%c%s%s%s%s%s%s", PLACE_START, h->role,
                                form[i].channel, form[i].name, form[i].to, form[i].space,
                                form[i].message);
        if (!form_begins(f, p->head, p->n_head))
            continue;
        size_t done = p->n_head < f->n ? p->n_head : f->n;
        f->n -= done;
        memmove(f->text, f->text + done, f->n);
        kinds |= f->kind;
        r->n_forms++;
    }
    r->any = !(kinds & r->may);
}

bool place_rule_allows(const place_rule *r, int32_t id)
{
    const answer_place *p = r->p;
    size_t n = 1;
    int kinds = 0;
    char mark = id == p->start     ? PLACE_START
                : id == p->channel ? PLACE_CHANNEL
                : id == p->message ? PLACE_MESSAGE
                                   : 0;
    if (r->any || (!p->n_head && p->answered && vocab_is_eog(p->v, id)))
        return true;
    const char *s = mark ? &mark : text_of(p, id, &n);
    if (!n || (!mark && *s > 0 && *s <= PLACE_MESSAGE))
        return false;
    for (int i = 0; i < r->n_forms; i++)
        if (form_begins(&r->form[i], s, n))
            kinds |= r->form[i].kind;
    return kinds & r->may || (!kinds && !p->begun);
}
