/* fuzz_grammar.c - grammars from outside.
 *
 *     kind | source | 0 | text
 *
 * kind 0: GBNF, 1: a JSON schema, 2: tools; & 128: calls are pairs of plain text. A source is
 * refused with a sentence or compiled; then the text is followed as far as it goes, and at every
 * step the mask agrees with what is accepted.
 */
#include "fuzz/fuzz.h"
#include "text/gemma4.h"
#include "text/qwen.h"
#include "text/grammar_int.h"

#include <string.h>

static const token_tree *small_tree(void)
{
    static token_tree *t;
    static char byte[256];
    static const char *const words[] = {"\"a",      "\": ", "{\"",   "[1",
                                        "\xC3\xA9", "tru",  "\",\"", "  "};
    tree_token tok[256 + 9];
    err e = {0};
    if (t)
        return t;
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        tok[i] = (tree_token){&byte[i], 1, false};
    }
    for (int i = 0; i < 8; i++)
        tok[256 + i] = (tree_token){words[i], strlen(words[i]), false};
    tok[264] = (tree_token){NULL, 0, true};
    fuzz_check(!token_tree_build(&t, tok, 265, &e), e.text);
    return t;
}

static void follow_masks(const grammar *g, const uint8_t *text, size_t n)
{
    matcher *m;
    grammar_run r;
    err e = {0};
    bool ok = true;
    if (matcher_open(&m, g, small_tree(), &e)) { /* the bytes have no markers */
        fuzz_check(*e.text, "refused without a sentence");
        return;
    }
    if (grammar_begin(&r, m, &e)) {
        fuzz_check(*e.text, "refused without a sentence");
        matcher_close(m);
        return;
    }
    for (size_t i = 0; i < n && i < 64 && ok; i++) {
        const uint64_t *bits;
        int32_t n_allowed;
        if (grammar_mask(&r, &bits, &n_allowed, &e))
            break;
        bool allowed = bits[text[i] >> 6] >> (text[i] & 63) & 1;
        bool end = bits[264 >> 6] >> (264 & 63) & 1;
        fuzz_check(end == grammar_may_end(&r), "the end is not where it is");
        if (grammar_accept(&r, text[i], &ok, &e))
            break;
        fuzz_check(ok == allowed, "the mask is not what is accepted");
    }
    grammar_end(&r);
    matcher_close(m);
}

FUZZ(grammar)
{
    if (!n)
        return;
    uint8_t kind = *data++;
    const char *s = (const char *)data, *cut = memchr(data, 0, --n);
    size_t len = cut ? (size_t)(cut - s) : n;
    grammar *g = NULL;
    err e = {0};
    status st;
    if (len > 4096)
        return;
    const grammar_setting how = {.answer =
                                     kind & 128 ? qwen_formats[QWEN_36].answer : gemma4_text.answer,
                                 .thought = (grammar_thought)(kind / 3 % 3)};
    grammar_tools tools = {.tools = s, .n_tools = len, .json = kind & 32, .strict_all = kind & 64};
    st = kind % 3 == 0   ? grammar_from_gbnf(&g, s, len, &how, &e)
         : kind % 3 == 1 ? grammar_from_schema(&g, s, len, &how, &e)
                         : grammar_from_tools(&g, &tools, &how, &e);
    fuzz_check(!st == !!g && (!st || *e.text), "refused without a sentence");
    if (g && cut)
        follow_masks(g, (const uint8_t *)cut + 1, n - len - 1);
    grammar_close(g);
}
