/* vocab_json.c - see vocab_json.h. */
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"
#include "text/family.h"

#include <string.h>

static const char *text_of(const jtree *root, const char *key)
{
    const jtree *v = jtree_get(root, key);
    return jtree_is(v, JTREE_STRING) ? v->s : NULL;
}

status vocab_from_json(const jtree *root, vocab **v, err *e)
{
    const jtree *pieces = jtree_get(root, "pieces"), *types = jtree_get(root, "types");
    const jtree *merges = jtree_get(root, "merges");
    const char *arch = text_of(root, "arch");
    vocab_settings s = gemma_settings();
    vocab_builder *b;
    size_t i = 0;
    *v = NULL;
    if (!jtree_is(pieces, JTREE_ARRAY) || !jtree_is(merges, JTREE_ARRAY) ||
        !jtree_is(types, JTREE_STRING) || types->n != pieces->count)
        return err_set(e, E_FORMAT, "not a vocabulary of the scripts in tools/");
    if (arch) {
        s.family = text_family_of(arch, strlen(arch));
        s.model = text_of(root, "model");
        s.pre = text_of(root, "pre");
    }
    status st = vocab_begin(&b, (int64_t)pieces->count, (int64_t)merges->count, e);
    if (st)
        return st;
    for (const jtree *p = pieces->first; p; p = p->next)
        vocab_add_token(b, p->s, p->n, types->s[i++] - '0');
    for (const jtree *m = merges->first; m; m = m->next)
        vocab_add_merge(b, m->s, m->n);
    return vocab_finish(b, &s, v, e);
}
