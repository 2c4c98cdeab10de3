/* run_keep.c - conversations kept between runs: --resume, and a file written after each answer.
 *
 * A kept conversation is a convenience: if it cannot be written, the user is told once and the
 * conversation goes on.
 */
#include "apps/jsonw.h"
#include "apps/run_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

status chat_find_talk(const char *which, run_options *o, kept_talk *kept, talk_place *place, err *e)
{
    int64_t number;
    status st = conversations_find(which, &number, e);
    if (st || (st = conversations_read(number, kept, place, e)))
        return st;
    if (!o->model) /* the string belongs to it */
        o->model = kept->open;
    return OK;
}

status chat_resume(chat *c, const kept_talk *kept, const talk_place *place, err *e)
{
    char *system = c->o.system ? c->system : NULL; /* --system wins over the kept message */
    if (c->raw)
        return err_set(e, E_ARG, "--raw and --resume exclude each other");
    if (system && !(system = mem_strdup(system)))
        return err_memory(e, "the conversation", 256);
    status st = chat_take_messages(c, &kept->talk, "the kept conversation", e);
    if (!st && system)
        st = chat_set_system(c, system, e);
    mem_free(system);
    if (!st && kept->tools && !c->tools && !(c->tools = mem_strdup(kept->tools)))
        st = err_memory(e, "the conversation", 256);
    if (!st)
        st = chat_offer_tools(c, e);
    if (!st && kept->title) {
        c->title = chat_keep_text(c, kept->title);
        c->named = true;
    }
    c->talk = *place;
    c->keep = !c->o.no_history && !conversations_off();
    if (!st)
        term_note("conversation %" PRId64 ", %zu messages: %s", place->number, c->messages.n,
                  kept->title ? kept->title : "");
    return st;
}

/* Prints the last question and answer, where a reader left off. */
void chat_show_last(const chat *c)
{
    size_t n = c->messages.n, from = n > 2 ? n - 2 : 0;
    for (size_t i = from; i < n; i++) {
        const talk_turn *m = &c->messages.turn[i];
        str text = {0};
        conversations_put_text(&text, m, true);
        if (!text.n) {
            str_free(&text);
            continue;
        }
        bool user = m->role == TALK_USER;
        word_wrap w = {0};
        term_set(stderr, TERM_DIM);
        if (user)
            term_put_words(stderr, &w, ">>> ", 4);
        term_put_words(stderr, &w, text.at, text.n);
        str_free(&text);
        term_end_words(stderr, &w);
        term_set(stderr, TERM_PLAIN);
        fputs("\n", stderr);
    }
}

void chat_name(chat *c, const char *text)
{
    size_t n = strcspn(text, "\n"), at = 0;
    for (int k = 0; at < n && k < TALK_TITLE; k++) {
        uint32_t cp;
        bool ok;
        at += (size_t)utf8_decode(text + at, n - at, &cp, &ok);
    }
    char title[4 * TALK_TITLE + 8];
    snprintf(title, sizeof title, "%.*s%s", (int)at, text, at < n ? "..." : "");
    c->title = chat_keep_text(c, title);
}

static void put_text(str *o, const char *key, const char *text)
{
    if (text && utf8_valid(text, strlen(text))) /* names of files may be any bytes */
        json_text(o, key, text);
}

/* What -m was given; of an existing file its absolute path. */
static void put_model_to_open(const chat *c, str *o)
{
    char path[PATH_MAX];
    bool file = c->o.model && !access(c->o.model, F_OK) && realpath(c->o.model, path);
    put_text(o, "open", file ? path : c->o.model);
}

/* The conversation is deleted, so its file goes. */
static void forget(chat *c)
{
    err e = {0};
    bool other = false;
    int64_t number = c->talk.number;
    if (conversations_forget(&c->talk, &other, &e))
        term_note("the kept conversation stays: %s", e.text);
    else if (other)
        term_note("another program has changed conversation %" PRId64 ", which stays", number);
}

void chat_keep(chat *c)
{
    err e = {0};
    bool moved = false;
    if (c->talk.number && !c->messages.n) {
        forget(c);
        return;
    }
    if (!c->keep || c->raw || !c->messages.n)
        return;
    str kept = {0};
    json_open(&kept, NULL, '{');
    json_int(&kept, "version", 1);
    put_text(&kept, "title", c->title ? c->title : "");
    put_text(&kept, "model", c->info.name);
    put_model_to_open(c, &kept);
    put_text(&kept, "tools", c->tools);
    chat_put_saved(c, &kept, "messages");
    json_close(&kept, "}\n");
    status st = conversations_write(&c->talk, &kept, &moved, &e);
    str_free(&kept);
    if (st) {
        c->keep = false;
        term_note("the conversation is not kept: %s", e.text);
    } else if (moved) {
        term_note("another program has changed this conversation: it goes on as number %" PRId64,
                  c->talk.number);
    }
}
