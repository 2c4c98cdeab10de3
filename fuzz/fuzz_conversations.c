/* fuzz_conversations.c - any bytes as a saved conversation.
 *
 * The file is refused with a sentence, or what carat would write of it is read again as the same
 * conversation. Its messages become a prompt, or are refused with a sentence.
 */
#include "fuzz/fuzz.h"
#include "apps/conversations.h"
#include "apps/talk_json.h"
#include "text/chat.h"
#include "text/gemma4.h"

#include <string.h>

static void render(const carat_talk *t)
{
    const carat_chat_options options = {0};
    chat_prompt p;
    err e = {0};
    status st = chat_render_talk(&gemma4_formats[0], t, &options, &p, &e);
    fuzz_check(!st == !e.status && (!st || e.text[0]), "refused without a sentence");
    chat_prompt_free(&p);
}

static void write_it(str *o, const kept_talk *k)
{
    json_open(o, NULL, '{');
    json_text(o, "title", k->title);
    talk_put_json(o, "messages", &k->talk, NULL, NULL);
    json_close(o, "}");
    fuzz_check(!o->bad, "a conversation that cannot be written");
}

FUZZ(conversations)
{
    kept_talk k, again;
    str text = {0}, more = {0};
    err e = {0};
    status st = conversations_parse(&k, (const char *)data, n, "fuzz", false, &e);
    fuzz_check(!st == !!k.all && (!st || e.text[0]), "a failure without a sentence");
    if (st)
        return;
    write_it(&text, &k);
    fuzz_check(!conversations_parse(&again, text.at, text.n, "fuzz", false, &e), e.text);
    write_it(&more, &again);
    fuzz_check(!strcmp(text.at, more.at), "another conversation");
    render(&k.talk);
    kept_free(&again);
    kept_free(&k);
    str_free(&text);
    str_free(&more);
}
