/* parse_calls.c - the calls of an answer, while their text comes: parse.c says what is a call. */
#include "text/answer_int.h"
#include "text/jtree.h"

#include <string.h>

bool answer_declares(const answer_parser *a, const char *name, size_t len)
{
    for (const jtree *t = a->tools ? a->tools->first : NULL; t; t = t->next) {
        const jtree *n = jtree_get(jtree_get(t, "function"), "name");
        if (jtree_is(n, JTREE_STRING) && n->n == len && !memcmp(n->s, name, len))
            return true;
    }
    return false;
}

/* Whether the parts that were told are a beginning of the arguments in args. */
static bool fits_parts(const answer_parser *a)
{
    return !a->sent.n || (a->args.n >= a->sent.n && !memcmp(a->args.at, a->sent.at, a->sent.n));
}

/* Tells a complete call; its arguments are in args, and begin with the parts that were told. */
static void tell_whole_call(answer_parser *a)
{
    size_t n = a->sent.n;
    answer_change_kind(a, ANSWER_CONTENT);
    a->called = a->said = true;
    a->n_calls++;
    if (n && n < a->args.n)
        answer_tell(a,
                    &(answer_event){ANSWER_CALL_PART, a->args.at + n, a->args.n - n, a->name.at});
    str_cut(&a->sent, 0);
    if (!a->no_memory)
        answer_tell(a, &(answer_event){ANSWER_TOOL_CALL, a->args.at, a->args.n, a->name.at});
}

/* Tells the calls in s[0..n), text between marks. Returns the bytes that they have. */
static size_t tell_calls(answer_parser *a, const char *s, size_t n, bool lenient)
{
    size_t at = 0, n_read = 0;
    while (at < n && !a->cancelled && !a->no_memory) {
        const call_text text = {s + at, n - at, lenient, a->tools};
        bool ok = a->n_calls < ANSWER_MAX_CALLS &&
                  a->syntax->read_call(&text, &a->name, &a->args, &n_read) &&
                  answer_declares(a, str_text(&a->name), a->name.n) && fits_parts(a);
        a->no_memory |= a->name.bad || a->args.bad;
        if (ok && !a->no_memory)
            tell_whole_call(a);
        str_cut(&a->args, 0);
        if (!ok)
            break;
        at += n_read;
    }
    return at;
}

/* The token limit cuts the text at held[at], which begins a call. Without a mark that is so only
 * with the name of a tool; follow_head has looked whether it is one. */
static bool is_cut_call(const answer_parser *a, bool last)
{
    return last && a->cut &&
           (!a->bare || a->syntax->read_head(a->held.at + a->at, a->held.n - a->at).name);
}

static void forget_parts(answer_parser *a)
{
    str_cut(&a->sent, 0);
    str_cut(&a->piece, 0);
}

/* The text at held[at] is no call: its mark is content, and the text behind it is parsed anew. If
 * the end of the answer cuts a call that was told in parts, the parts stand for its text. One that
 * the token limit cuts (cut) has no text. */
static void fail_call(answer_parser *a, size_t n_seen, bool cut)
{
    const mark_text *m = &a->mark[a->bare ? MARK_BARE : MARK_CALL];
    bool told = cut || (a->ending && a->sent.n);
    a->again_bytes += n_seen;
    forget_parts(a);
    a->state = TEXT;
    if (told) {
        a->at = a->held.n;
        str_cut(&a->space, 0);
        return;
    }
    if (a->syntax->heads) {
        answer_text(a, str_text(&a->head), a->head.n);
        answer_text(a, a->held.at + a->at, a->n_head);
        a->at += a->n_head;
        return;
    }
    answer_text(a, m->s, m->n);
    if (a->bare)
        a->at += m->n;
}

/* Ends a call with the text held[at .. at + n). A mark of n_mark bytes follows it (0: none). last:
 * the answer ends there. */
static void end_call(answer_parser *a, size_t n, size_t n_mark, bool last)
{
    const char *s = a->held.at + a->at;
    const size_t n_all = n;
    size_t done = tell_calls(a, s, n, false);
    bool closed = n_mark > 0;
    if (done <= a->noted && a->noted < n) {
        n = a->noted;
        n_mark = a->mark[MARK_CALL_END].n;
        closed = true;
    }
    if (closed && !a->bare && done < n)
        done += tell_calls(a, s + done, n - done, true);
    if (!done) {
        fail_call(a, n_all, is_cut_call(a, last));
        return;
    }
    a->state = TEXT;
    a->again_bytes += n_all - n;
    forget_parts(a);
    while (done < n && call_is_space(s[done]))
        done++;
    if (done < n && (closed || !is_cut_call(a, last))) /* behind the calls, and before the mark */
        answer_text(a, s + done, n - done);
    a->at += n + n_mark;
}

void answer_begin_call(answer_parser *a)
{
    a->state = CALL;
    a->scanned = 0;
    a->in_string = a->escaped = a->bare = a->known = false;
    a->noted = SIZE_MAX;
}

/* Looks at the beginning of the call. False: it is none. */
static bool follow_head(answer_parser *a, const char *s, size_t n)
{
    if (a->known)
        return true;
    const call_head h = a->syntax->read_head(s, n);
    if (!h.possible)
        return false;
    if (!h.name)
        return true;
    if (!answer_declares(a, h.name, h.n_name))
        return false;
    if (!h.arguments)
        return true;
    a->known = true;
    str_cut(&a->name, 0);
    str_put(&a->name, h.name, h.n_name);
    a->no_memory |= a->name.bad;
    call_parts_begin(&a->parts, a->syntax, call_parameters(a->tools, str_text(&a->name)),
                     h.arguments);
    return true;
}

/* Tells the arguments in s[0..n), the call's text so far. */
static void tell_parts(answer_parser *a, const char *s, size_t n)
{
    if (!a->tells_parts || !a->known || a->n_calls == ANSWER_MAX_CALLS)
        return;
    call_parts_put(&a->parts, s, n, &a->piece);
    a->no_memory |= a->piece.bad || a->parts.key.bad;
    if (a->piece.n <= (a->sent.n ? 0 : 1) || a->no_memory)
        return; /* a brace alone may be prose */
    if (!a->sent.n && a->n_stops)
        stream_flush(&a->stops);
    str_put(&a->sent, a->piece.at, a->piece.n);
    a->no_memory |= a->sent.bad;
    answer_tell(a, &(answer_event){ANSWER_CALL_PART, a->piece.at, a->piece.n, a->name.at});
    str_cut(&a->piece, 0);
}

/* Follows the strings of JSON through s[0..n). */
static void follow_json(answer_parser *a, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a->escaped)
            a->escaped = false;
        else if (s[i] == '"')
            a->in_string = !a->in_string;
        else
            a->escaped = a->in_string && s[i] == '\\';
    }
}

void answer_begin_bare_call(answer_parser *a)
{
    answer_begin_call(a);
    a->bare = true;
    a->at -= a->mark[MARK_BARE].n;
    a->scanned = a->mark[MARK_BARE].n;
}

bool answer_step_call(answer_parser *a, bool last)
{
    size_t where, n = a->held.n - a->at;
    const char *s = a->held.at + a->at;
    mark m = answer_find_mark(a, s, a->scanned, n, &where);
    if (where > ANSWER_MAX_CALL_BYTES || !follow_head(a, s, where)) {
        fail_call(a, where, false);
        return true;
    }
    if (a->syntax->json_calls)
        follow_json(a, s + a->scanned, where - a->scanned);
    if (m == MARK_NONE) {
        a->scanned = where;
        tell_parts(a, s, where);
        if (last)
            end_call(a, n, 0, true);
        return last;
    }
    a->scanned = where + a->mark[m].n;
    if (m == MARK_VALUE) {
        a->in_string = true;
    } else if (m == MARK_VALUE_END) {
        a->in_string = false;
    } else if (m == MARK_BARE_END && a->bare && !a->in_string) {
        end_call(a, a->scanned, 0, false);
    } else if (m == MARK_QUOTE) {
        a->in_string = !a->in_string;
    } else if (m == MARK_CALL_END && a->in_string && a->again_bytes < READ_AGAIN_BYTES) {
        if (a->noted == SIZE_MAX)
            a->noted = where;
    } else if (m == MARK_CALL_END) {
        end_call(a, where, a->mark[m].n, false);
    } else if ((m == MARK_CALL || a->syntax->heads) && !a->in_string) {
        end_call(a, where, 0, false); /* a new call begins: the old one was not closed */
    }
    return true;
}
