/* run_full.c - a conversation that has outgrown its context: /drop and /summary.
 *
 * The question that found no room waits in chat.waiting. Both commands make room and ask it again.
 * The kept file of the conversation so far stays as it is: what follows gets a file of its own.
 */
#include "apps/run_int.h"

#include <string.h>

enum { ROOM_SHARE = 4 }; /* one part in so many of the context is kept free for the answer */

static const char ask_summary[] =
    "Summarise our conversation so far, so that it can go on from your summary alone: facts, "
    "names, "
    "numbers, decisions, and what is still open. Write only the summary.";
static const char after_summary[] = "Understood. Let us go on from there.";
static const char begin_summary[] = "This is a summary of our conversation so far:\n\n";

static bool is_user(const chat *c, size_t i)
{
    return c->messages.turn[i].role == TALK_USER;
}

/* Removes the oldest turn: up to the next question that follows an answer. False: there is only one
 * turn. */
static bool drop_turn(chat *c)
{
    size_t n = c->messages.n, i = 0;
    while (i < n && is_user(c, i))
        i++;
    while (i < n && !is_user(c, i))
        i++;
    if (i >= n)
        return false;
    talk_remove(&c->messages, 0, i);
    return true;
}

static int count_turns(const chat *c)
{
    int n = 0;
    for (size_t i = 0; i < c->messages.n; i++)
        n += !i || (is_user(c, i) && !is_user(c, i - 1));
    return n;
}

/* Drops turns until the prompt leaves room for an answer, or `stay` turns are left and fit. *n: how
 * many it dropped. */
static status drop_until_fits(chat *c, int stay, int *n, err *e)
{
    int64_t n_ctx = carat_session_n_ctx(c->s), tokens;
    int dropped = 0;
    for (;; dropped++) {
        bool last = count_turns(c) <= stay;
        status st = chat_count(c, &tokens, e);
        if (st)
            return st;
        if (tokens <= n_ctx - n_ctx / ROOM_SHARE || (last && tokens < n_ctx))
            break;
        if (last || !drop_turn(c))
            return err_set(e, E_LIMIT,
                           "without the older turns the prompt still has %lld tokens, and the "
                           "context %lld: carat run -c N makes it longer",
                           (long long)tokens, (long long)n_ctx);
    }
    *n = dropped;
    return OK;
}

/* What a change of the conversation may undo: its messages, and the pictures of the next one. */
typedef struct undo {
    carat_talk messages;
    int32_t next[PICTURES_MAX], n_next;
} undo;

static status undo_begin(undo *u, const chat *c, err *e)
{
    u->messages = (carat_talk){.mem = c->messages.mem};
    talk_copy(&c->messages, &u->messages);
    u->n_next = c->n_next;
    memcpy(u->next, c->next, sizeof u->next);
    return talk_check(&u->messages, e);
}

static void give_next(const undo *u, chat *c)
{
    c->n_next = u->n_next;
    memcpy(c->next, u->next, sizeof u->next);
}

/* Ends a change: one that failed is undone. */
static status undo_end(undo *u, chat *c, status st)
{
    if (st && !u->messages.bad) {
        c->messages = u->messages;
        give_next(u, c);
    }
    return st;
}

/* The question that waits becomes the last message. */
static status take_waiting(chat *c, err *e)
{
    return c->waiting.n ? chat_add_user(c, str_text(&c->waiting), c->waiting.n, e) : OK;
}

/* After the messages have become others: the old conversation stays in its file. */
static void go_on(chat *c, slash_result *r)
{
    c->talk = (talk_place){0};
    r->speak_now = c->waiting.n > 0;
    str_cut(&c->waiting, 0);
}

status chat_drop_turns(chat *c, int64_t wanted, slash_result *r, err *e)
{
    undo before;
    int n = 0;
    status st = undo_begin(&before, c, e);
    st = st ? st : take_waiting(c, e);
    if (!st && !c->messages.n)
        st = err_set(e, E_ARG, "there is nothing to drop");
    while (!st && n < wanted && drop_turn(c))
        n++;
    if (!st && !wanted)
        st = drop_until_fits(c, 1, &n, e);
    if (!st && !n)
        st = err_set(e, E_ARG, "there is room: /drop N drops the oldest N turns all the same");
    if ((st = undo_end(&before, c, st)))
        return st;
    term_note("%d of the oldest %s dropped; carat history has the whole conversation", n,
              n == 1 ? "turns is" : "turns are");
    chat_count_anew(c);
    go_on(c, r);
    return OK;
}

status chat_summarise(chat *c, slash_result *r, err *e)
{
    undo before;
    str text = {0};
    bool keeps = c->keep;
    int n = 0;
    status st = undo_begin(&before, c, e);
    if (!st && !c->messages.n)
        st = err_set(e, E_ARG, "there is nothing to summarise");
    c->keep = false; /* the request for a summary is no part of the conversation, */
    c->n_next = 0;   /* and has no pictures of the message that waits */
    st = st ? st : chat_add_user(c, ask_summary, sizeof ask_summary - 1, e);
    st = st ? st : drop_until_fits(c, 2, &n, e); /* a turn, and the request for its summary */
    if (!st && n)
        term_note("the oldest %d %s not in the summary: there is no room", n,
                  n == 1 ? "turn is" : "turns are");
    st = st ? st : chat_answer(c, e);
    if (!st && (c->out.finish == CARAT_FINISH_CANCELLED || !c->out.content.n))
        st = err_set(e, E_CANCELLED, "there is no summary: the conversation stays as it was");
    c->keep = keeps;
    str_puts(&text, begin_summary);
    str_put(&text, str_text(&c->out.content), c->out.content.n);
    if (!st && text.bad)
        st = err_memory(e, "a summary", text.n);
    if (!st) {
        c->messages.n = 0;
        st = chat_add_user(c, str_text(&text), text.n, e);
        size_t n_before = c->messages.n;
        talk_add(&c->messages, TALK_ASSISTANT, "messages", (int32_t)n_before);
        talk_set_text(&c->messages, after_summary, sizeof after_summary - 1);
        status put = chat_put_turns(c, n_before, e);
        st = st ? st : put;
        give_next(&before, c);
        st = st ? st : take_waiting(c, e);
    }
    str_free(&text);
    if ((st = undo_end(&before, c, st)))
        return st;
    term_note("the conversation begins anew with this summary; /show and carat history have both");
    chat_count_anew(c);
    go_on(c, r);
    return OK;
}

void chat_tell_full(chat *c, const char *question)
{
    str_cut(&c->waiting, 0);
    str_puts(&c->waiting, question);
    term_note("the context is full. /drop drops the oldest turns, /summary begins anew with a "
              "summary that you see; either then answers your question");
}
