/* fuzz_conversations.c - any bytes as a saved conversation.
 *
 * The file is refused with a sentence, or what carat would write of it is read again as the same
 * conversation. Its messages become a prompt, or are refused with a sentence.
 */
#include "fuzz/fuzz.h"
#include "apps/conversations.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/gemma4.h"

#include <string.h>

static void render(const json_t *messages)
{
    char *text = json_dumps(messages, JSON_COMPACT);
    const carat_chat_options options = {0};
    chat_prompt p;
    err e = {0};
    fuzz_check(text != NULL, "messages that cannot be written");
    status st = chat_render(&gemma4_formats[0], text, strlen(text), NULL, 0, &options, &p, &e);
    fuzz_check(!st == !e.status && (!st || e.text[0]), "refused without a sentence");
    chat_prompt_free(&p);
    free(text);
}

FUZZ(conversations)
{
    json_t *object, *again;
    err e = {0};
    status st = conversations_parse(&object, (const char *)data, n, "fuzz", &e);
    fuzz_check(!st == !!object && (!st || e.text[0]), "a failure without a sentence");
    if (st)
        return;
    char *text = json_dumps(object, JSON_INDENT(1));
    fuzz_check(text != NULL, "a conversation that cannot be written");
    fuzz_check(!conversations_parse(&again, text, strlen(text), "fuzz", &e), e.text);
    fuzz_check(json_equal(object, again), "another conversation");
    render(json_object_get(object, "messages"));
    json_decref(again);
    json_decref(object);
    free(text);
}
