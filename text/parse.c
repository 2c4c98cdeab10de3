/* parse.c - an answer, piece by piece, to reasoning, content and calls.
 *
 *     answer  = [ opening ] { thought | text | call }
 *     thought = thought_open label body thought_close
 *     call    = call_open text call_close
 *
 * The marks, and the reader of a call's text, are the family's (answer_syntax in family.h).
 *
 * The text passes through `held`. Decided text leaves it as events. Undecided text waits: a
 * possible beginning of a mark, white space that a following mark would trim, and an incomplete
 * call. Decisions depend on the text alone, so any division into pieces gives the same events, but
 * for the pieces of ANSWER_CALL_PART.
 *
 * Where the syntax has heads, an answer is messages instead, each with a header (heads.c):
 *
 *     answer = message { end start role message }
 *
 * A message is a thought, text, or a call of a declared function. Messages of one kind are told
 * apart by an empty line. What is no header is text of the message before it. A header that the
 * end of the answer cuts is dropped.
 *
 * Text is a call if its form is complete and the conversation declares its name. All other text is
 * content, byte for byte, its marks too:
 *   - A mark of calls in a thought is thought. Only thought_close ends a thought.
 *   - Text after call_open that cannot become a call is content at once, and parsed again behind
 *     the mark. READ_AGAIN_BYTES bounds the sum of such text, so time stays linear; beyond it marks
 *     are text.
 *   - Between a call_open and its call_close may be several calls. Text behind them is content.
 *   - A call that the token limit cuts is left out: its marks and half of its arguments are no
 *     answer. Complete ones before it are calls.
 *   - The mistakes of models are repaired in front of a call_close alone.
 *   - A string argument may spell call_close, so inside a string the mark is only noted. If the
 *     call proves unreadable, the string was not closed: the call ends at the noted place.
 *
 * Dropped are: white space next to thoughts and calls, marks of families with labelled thoughts
 * that open or close none, a thought_close at the beginning, and strays directly behind a call.
 */
#include "text/answer_int.h"
#include "text/jtree.h"
#include "base/mem.h"

#include <string.h>

enum { FIRST_HELD_BYTES = 64 * 1024 /* allocated at open: enough for ordinary answers */ };

/* ---- Markers ---- */

static void add_answer_mark(answer_parser *a, const char *s)
{
    mark_text *m = &a->mark[a->n_marks++];
    if (!s)
        return;
    *m = (mark_text){s, strlen(s)};
    a->first = *s;
    a->longest = m->n > a->longest ? m->n : a->longest;
}

static void add_heads(answer_parser *a, const answer_heads *x)
{
    a->n_marks = MARK_CALL;
    add_answer_mark(a, x->start);
    a->n_marks = MARK_STRAY;
    add_answer_mark(a, x->channel);
    for (const char *const *end = x->ends; *end && a->n_marks < MARKS_MAX; end++)
        add_answer_mark(a, *end);
}

static void add_marks(answer_parser *a, const answer_syntax *x)
{
    if (x->heads) {
        add_heads(a, x->heads);
        return;
    }
    add_answer_mark(a, x->thought_open);
    add_answer_mark(a, x->thought_close);
    add_answer_mark(a, x->call_open);
    add_answer_mark(a, x->call_close);
    add_answer_mark(a, x->quote);
    add_answer_mark(a, x->value_open);
    add_answer_mark(a, x->value_close);
    add_answer_mark(a, x->bare_open);
    add_answer_mark(a, x->bare_close);
    for (const char *const *stray = x->stray; *stray && a->n_marks < MARKS_MAX; stray++)
        add_answer_mark(a, *stray);
}

mark answer_find_mark(const answer_parser *a, const char *s, size_t from, size_t n, size_t *where)
{
    while (from < n) {
        const char *at = memchr(s + from, a->first, n - from);
        if (!at)
            break;
        *where = (size_t)(at - s);
        size_t left = n - *where;
        for (int m = 0; m < a->n_marks; m++) {
            size_t len = a->mark[m].n;
            if (len && !memcmp(at, a->mark[m].s, left < len ? left : len))
                return left < len ? MARK_NONE : (mark)m;
        }
        from = *where + 1;
    }
    *where = n;
    return MARK_NONE;
}

/* ---- Events ---- */

void answer_tell(answer_parser *a, const answer_event *ev)
{
    if (!a->cancelled && !a->no_memory && !a->fn(a->user, ev))
        a->cancelled = true;
}

static void tell_text(answer_parser *a, answer_kind kind)
{
    if (a->out.bad)
        a->no_memory = true;
    if (a->out.n)
        answer_tell(a, &(answer_event){.kind = kind, .text = a->out.at, .n = a->out.n});
    str_cut(&a->out, 0);
}

static bool met(const answer_parser *a)
{
    return a->n_stops && a->stops.met >= 0;
}

/* Puts text of the current kind. The white space at its end waits. */
static bool put_text(void *user, const char *s, size_t n)
{
    answer_parser *a = user;
    size_t end = n;
    while (end && call_is_space(s[end - 1]))
        end--;
    if (end) {
        str_put(&a->out, str_text(&a->space), a->space.n);
        str_put(&a->out, s, end);
        str_cut(&a->space, 0);
        a->spilled = false;
        a->told[a->kind] = true;
    }
    str_put(&a->space, s + end, n - end);
    if (a->space.n > SPACE_HELD_BYTES || a->spilled) {
        str_put(&a->out, str_text(&a->space), a->space.n);
        str_cut(&a->space, 0);
        a->spilled = true;
    }
    tell_text(a, a->kind);
    if (a->space.bad)
        a->no_memory = true;
    return true;
}

/* The same, but content ends at a stop string. */
void answer_text(answer_parser *a, const char *s, size_t n)
{
    while (a->fresh && n && call_is_space(*s)) {
        s++;
        n--;
    }
    if (!n)
        return;
    a->fresh = a->called = false;
    a->said = true;
    if (a->n_stops && a->kind == ANSWER_CONTENT)
        stream_put(&a->stops, s, n);
    else
        put_text(a, s, n);
}

void answer_change_kind(answer_parser *a, answer_kind kind)
{
    if (a->n_stops)
        stream_flush(&a->stops); /* no stop string reaches over the border */
    str_cut(&a->space, 0);
    a->kind = kind;
    a->fresh = true;
    a->spilled = false;
    a->state = TEXT;
}

/* ---- Steps ---- */

static bool has_label(const answer_parser *a)
{
    return *a->syntax->thought_label != 0;
}

/* A mark of thoughts, which held[at] follows. False: it is text. */
static bool take_thought_mark(answer_parser *a, mark m)
{
    bool thought = a->kind == ANSWER_REASONING, apart = !a->said || a->called;
    if (m == MARK_THOUGHT_END && thought) {
        answer_change_kind(a, ANSWER_CONTENT);
        return true;
    }
    if (m == MARK_THOUGHT_END && apart) {
        a->fresh = true; /* a thought that the prompt or nobody opened */
        return true;
    }
    if (m == MARK_THOUGHT && (has_label(a) || (thought ? a->fresh : apart))) {
        a->state = LABEL;
        return true;
    }
    return has_label(a);
}

/* A mark outside of calls. False: it is text. */
static bool take_mark(answer_parser *a, mark m)
{
    bool calls = a->tools && a->kind == ANSWER_CONTENT && a->again_bytes < READ_AGAIN_BYTES;
    if (m == MARK_THOUGHT || m == MARK_THOUGHT_END)
        return take_thought_mark(a, m);
    if (m == MARK_CALL && calls)
        answer_begin_call(a);
    else if (m == MARK_BARE && calls)
        answer_begin_bare_call(a);
    else
        return a->called && (m == MARK_CALL_END || m >= MARK_STRAY);
    return true;
}

/* A message begins at held[at], with its header. */
static void begin_message(answer_parser *a, const answer_head *h)
{
    const answer_kind kind = h->kind == HEAD_THOUGHT ? ANSWER_REASONING : ANSWER_CONTENT;
    const char *s = a->held.at + a->at;
    answer_change_kind(a, kind);
    if (a->told[kind])
        str_puts(&a->space, "\n\n"); /* in front of the message's first text */
    if (h->kind != HEAD_CALL) {
        a->at += h->n;
        return;
    }
    str_cut(&a->head, 0);
    str_put(&a->head, s + h->at, h->name - h->at);
    a->no_memory |= a->head.bad;
    answer_begin_call(a);
    a->n_head = a->scanned = h->n - h->name;
    a->at += h->name;
}

/* At a mark of a message's begin or end, or at the begin of the answer. */
static bool step_head(answer_parser *a, bool last)
{
    size_t where, n = a->held.n - a->at;
    const char *s = str_text(&a->held) + a->at;
    answer_head h;
    const head_found found = head_read(a->syntax->heads, s, n, &h);
    const mark m = answer_find_mark(a, s, 0, n, &where);
    const bool marked = m != MARK_NONE && !where;
    if (found == HEAD_OPEN && (!last || marked)) {
        a->at += last ? n : 0;
        return false;
    }
    a->state = TEXT;
    if (found == HEAD_WHOLE &&
        (h.kind != HEAD_CALL ||
         (a->again_bytes < READ_AGAIN_BYTES && answer_declares(a, s + h.name, h.n_name)))) {
        begin_message(a, &h);
    } else if (marked) {
        answer_text(a, a->mark[m].s, a->mark[m].n);
        a->at += a->mark[m].n;
    }
    return true;
}

/* One step through held. False: more text is needed. last: no more text will come. */
static bool step_text(answer_parser *a, bool last)
{
    size_t where, n = a->held.n - a->at;
    const char *s = a->held.at + a->at;
    mark m = answer_find_mark(a, s, 0, n, &where);
    if (m == MARK_NONE && last)
        where = n;
    answer_text(a, s, where);
    a->at += where;
    if (m == MARK_NONE)
        return false;
    if (a->syntax->heads) {
        a->state = HEAD;
        return true;
    }
    a->at += a->mark[m].n;
    if (!met(a) && !take_mark(a, m))
        answer_text(a, a->mark[m].s, a->mark[m].n);
    return true;
}

static bool step_label(answer_parser *a, bool last)
{
    const char *label = a->syntax->thought_label;
    size_t len = strlen(label), n = a->held.n - a->at;
    if (n < len && !memcmp(a->held.at + a->at, label, n)) {
        if (last)
            a->at = a->held.n;
        return false;
    }
    if (memcmp(a->held.at + a->at, label, len)) {
        a->state = TEXT;
    } else if (a->kind == ANSWER_REASONING) {
        a->state = TEXT; /* a second opening inside a thought: still one thought */
        a->at += len;
    } else {
        answer_change_kind(a, ANSWER_REASONING);
        a->at += len;
    }
    return true;
}

/* The answer may be a call from its first character on, but for white space. */
static bool step_first(answer_parser *a, bool last)
{
    const char *s = str_text(&a->held) + a->at;
    size_t n = a->held.n - a->at, at = 0;
    while (at < n && call_is_space(s[at]))
        at++;
    if (at == n && !last && n < SPACE_HELD_BYTES) {
        a->state = START;
        return false;
    }
    if (at < n && s[at] && strchr(a->syntax->begins_calls, s[at])) {
        answer_begin_call(a);
        a->bare = true; /* its mark is empty */
    }
    return true;
}

static bool step_start(answer_parser *a, bool last)
{
    const char *opening = a->syntax->opening;
    size_t len = strlen(opening), n = a->held.n - a->at;
    if (n < len && !memcmp(str_text(&a->held) + a->at, opening, n) && !last)
        return false;
    if (n >= len && !memcmp(a->held.at + a->at, opening, len))
        a->at += len;
    a->state = a->syntax->heads ? HEAD : TEXT;
    if (a->syntax->begins_calls && a->tools)
        return step_first(a, last);
    return true;
}

static void run(answer_parser *a, bool last)
{
    bool more = true;
    while (more && !a->cancelled && !a->no_memory && !met(a) && (a->at < a->held.n || last)) {
        switch (a->state) {
        case START:
            more = step_start(a, last);
            break;
        case TEXT:
            more = step_text(a, last);
            break;
        case LABEL:
            more = step_label(a, last);
            break;
        case CALL:
            more = answer_step_call(a, last);
            break;
        case HEAD:
            more = step_head(a, last);
            break;
        }
    }
    str_drop(&a->held, a->at);
    a->at = 0;
}

/* ---- The calls of chat.h ---- */

static bool take_chars(void *user, const char *text, size_t n)
{
    answer_parser *a = user;
    if (!a->syntax) {
        answer_text(a, text, n);
        return !a->cancelled && !a->no_memory;
    }
    str_put(&a->held, text, n);
    a->no_memory |= a->held.bad;
    run(a, false);
    return !a->cancelled && !a->no_memory;
}

/* Room for n bytes in an empty string, by one allocation. */
static bool reserve(str *s, size_t n)
{
    s->at = mem_alloc(n + 1);
    if (!s->at)
        return false;
    s->at[0] = 0;
    s->cap = n + 1;
    return true;
}

status answer_open(answer_parser **out, const chat_format *f, bool starts_thinking, answer_fn fn,
                   void *user, err *e)
{
    answer_parser *a = mem_calloc(1, sizeof *a);
    status st;
    *out = NULL;
    if (!a)
        return err_memory(e, "an answer", sizeof *a);
    a->syntax = f ? text_answer_syntax(f, f->family) : NULL;
    if (a->syntax)
        add_marks(a, a->syntax);
    a->fn = fn;
    a->user = user;
    a->kind = starts_thinking ? ANSWER_REASONING : ANSWER_CONTENT;
    a->fresh = starts_thinking;
    if ((st = stream_init(&a->bytes, NULL, 0, take_chars, a, e)))
        goto out;
    if (!reserve(&a->held, FIRST_HELD_BYTES) || !reserve(&a->out, FIRST_HELD_BYTES) ||
        !reserve(&a->args, FIRST_HELD_BYTES) || !reserve(&a->space, SPACE_HELD_BYTES * 2) ||
        !reserve(&a->name, CALL_MAX_NAME_BYTES))
        st = err_memory(e, "an answer", FIRST_HELD_BYTES);
out:
    if (st)
        answer_close(a);
    else
        *out = a;
    return st;
}

void answer_close(answer_parser *a)
{
    if (!a)
        return;
    stream_free(&a->bytes);
    str_free(&a->held);
    str_free(&a->space);
    str_free(&a->out);
    str_free(&a->args);
    str_free(&a->name);
    str_free(&a->head);
    str_free(&a->sent);
    str_free(&a->piece);
    call_parts_free(&a->parts);
    if (a->n_stops)
        stream_free(&a->stops);
    arena_free(&a->mem);
    mem_free(a);
}

status answer_tools(answer_parser *a, const char *tools, size_t n, bool parts, err *e)
{
    const jtree *t = NULL;
    a->tells_parts = parts;
    a->mem.max_bytes = arena_limit_for(n);
    status st = n ? jtree_parse(tools, n, "tools", CHAT_MAX_DEPTH, &a->mem, &t, NULL) : OK;
    if (st == E_MEMORY)
        return err_memory(e, "the tools of an answer", n);
    a->tools = jtree_is(t, JTREE_ARRAY) && t->count ? t : NULL;
    return OK;
}

status answer_stops(answer_parser *a, const char *const *stop, int32_t n, err *e)
{
    status st = n ? stream_init(&a->stops, stop, n, put_text, a, e) : OK;
    a->n_stops = st ? 0 : n;
    return st;
}

int32_t answer_met(const answer_parser *a)
{
    return met(a) ? a->stops.met : -1;
}

static status how_it_went(const answer_parser *a, err *e)
{
    if (a->no_memory)
        return err_memory(e, "an answer", a->held.n);
    return a->cancelled ? err_set(e, E_CANCELLED, "the answer was cancelled") : OK;
}

status answer_put(answer_parser *a, const char *bytes, size_t n, err *e)
{
    if (!a->cancelled && !a->no_memory)
        stream_put(&a->bytes, bytes, n);
    return how_it_went(a, e);
}

status answer_end(answer_parser *a, bool cut, err *e)
{
    if (!a->cancelled && !a->no_memory) {
        stream_end(&a->bytes);
        a->ending = true;
        a->cut = cut;
        if (a->syntax)
            run(a, true);
        if (a->n_stops)
            stream_end(&a->stops);
        /* White space at the very end belongs to an answer, not to a thought. */
        if (a->kind == ANSWER_CONTENT && a->space.n && !a->fresh) {
            str_put(&a->out, a->space.at, a->space.n);
            tell_text(a, ANSWER_CONTENT);
        }
        str_cut(&a->space, 0);
    }
    return how_it_went(a, e);
}

int32_t answer_n_calls(const answer_parser *a)
{
    return a->n_calls;
}
