/* fuzz_toml.c - settings: text to a tree, or one sentence. */
#include "fuzz/fuzz.h"
#include "apps/toml.h"
#include "base/utf8.h"

#include <string.h>

static void check(const toml *t, int depth)
{
    fuzz_check(depth < 80 && t->line > 0, "too deep");
    if (t->kind == TOML_STRING)
        fuzz_check(t->text && utf8_valid(t->text, strlen(t->text)), "a string that is no text");
    for (const toml *i = t->first; i; i = i->next) {
        fuzz_check((t->kind == TOML_TABLE) == (i->key != NULL), "a key");
        if (i->key)
            fuzz_check(toml_get(t, i->key) == i, "a key given twice");
        check(i, depth + 1);
    }
}

FUZZ(toml)
{
    arena mem = {.max_bytes = 64 << 20};
    const toml *root;
    err e = {0};
    if (toml_parse(&root, (const char *)data, n, "fuzz", &mem, &e))
        fuzz_check(*e.text, "refused without a reason");
    else
        check(root, 0);
    arena_free(&mem);
}
