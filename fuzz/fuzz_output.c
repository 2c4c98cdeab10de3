/* fuzz_output.c - answers of a model, parsed whole and in pieces.
 *
 *     options | text       options: & 1 starts in a thought, & 2 cut off, (>> 2) % 17 size of the
 *                          pieces, (>> 2) / 17 format
 *
 * Both must give the same events: valid UTF-8, NUL-terminated, arguments that are a JSON object.
 */
#include "text/gemma4.h"
#include "text/laguna.h"
#include "text/gpt_oss.h"
#include "text/llama.h"
#include "text/mistral.h"
#include "text/qwen.h"
#include "fuzz/fuzz.h"
#include "text/chat.h"
#include "text/jtree.h"
#include "text/stream.h"
#include "base/utf8.h"

#include <string.h>

typedef struct heard {
    str text;
    int last;
} heard;

static bool take_event(void *user, const answer_event *ev)
{
    heard *h = user;
    fuzz_check(ev->n && !ev->text[ev->n] && utf8_valid(ev->text, ev->n), "bad text");
    if (ev->kind == ANSWER_TOOL_CALL) {
        arena mem = {0};
        const jtree *v;
        err e = {0};
        fuzz_check(ev->name && *ev->name, "no name");
        fuzz_check(!jtree_parse(ev->text, ev->n, "arguments", 200, &mem, &v, &e), e.text);
        fuzz_check(v->kind == JTREE_OBJECT, "no object");
        arena_free(&mem);
        str_printf(&h->text, "\n[call %s ", ev->name);
    } else if ((int)ev->kind != h->last) {
        str_printf(&h->text, "\n[%d ", (int)ev->kind);
    }
    h->last = ev->kind == ANSWER_TOOL_CALL ? -1 : (int)ev->kind;
    str_put(&h->text, ev->text, ev->n);
    return true;
}

static const chat_format *format_of(uint8_t flags)
{
    static const chat_format *const all[] = {&gemma4_formats[GEMMA4_JULY_LARGE],
                                             &qwen_formats[QWEN_3],
                                             &qwen_formats[QWEN_36],
                                             &laguna_formats[LAGUNA_COMPACT],
                                             &mistral_formats[MISTRAL_V3],
                                             &mistral_formats[MISTRAL_V11],
                                             &mistral_formats[MISTRAL_V13],
                                             &harmony_format,
                                             &llama_formats[LLAMA_31]};
    return all[(flags >> 2) % (sizeof all / sizeof *all)];
}

static void read_answer(const char *s, size_t n, size_t piece, uint8_t flags, str *out)
{
    static const char tools[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                                "\"s\":{\"type\":\"string\"},"
                                "\"n\":{\"type\":\"integer\"},\"o\":{\"anyOf\":[{\"type\":"
                                "\"object\"},{\"$ref\":\"#\"}]}}}}}]";
    heard h = {.last = -1};
    answer_parser *a;
    err e = {0};
    if (answer_open(&a, format_of(flags), flags & 1, take_event, &h, &e))
        return;
    fuzz_check(!answer_tools(a, tools, sizeof tools - 1, false, &e), e.text);
    for (size_t i = 0; i < n; i += piece)
        fuzz_check(!answer_put(a, s + i, piece < n - i ? piece : n - i, &e), e.text);
    fuzz_check(!answer_end(a, false, &e), e.text);
    answer_close(a);
    *out = h.text;
}

static bool take_text(void *user, const char *text, size_t n)
{
    fuzz_check(n && utf8_valid(text, n), "bad text");
    str_put(user, text, n);
    return true;
}

static void read_stream(const char *s, size_t n, size_t piece, str *out)
{
    static const char *const stop[] = {"<turn", "\n\n\n", "ab ab"};
    stream t;
    bool going = true;
    if (stream_init(&t, stop, 3, take_text, out, NULL))
        return;
    for (size_t i = 0; i < n && going; i += piece)
        going = stream_put(&t, s + i, piece < n - i ? piece : n - i);
    stream_end(&t);
    stream_free(&t);
}

static void check_equal(str *a, str *b)
{
    fuzz_check(a->n == b->n && (!a->n || !memcmp(a->at, b->at, a->n)), "depends on the cut");
    str_free(a);
    str_free(b);
}

static void try_answer(const uint8_t *data, size_t size)
{
    if (!size)
        return;
    uint8_t flags = *data;
    const char *s = (const char *)data + 1;
    size_t n = size - 1, piece = 1 + (flags >> 2) % 17;
    str whole = {0}, parts = {0};
    read_answer(s, n, n ? n : 1, flags, &whole);
    read_answer(s, n, piece, flags, &parts);
    check_equal(&whole, &parts);
    whole = parts = (str){0};
    read_stream(s, n, n ? n : 1, &whole);
    read_stream(s, n, piece, &parts);
    check_equal(&whole, &parts);
}

FUZZ(output)
{
    try_answer(data, n);
}
