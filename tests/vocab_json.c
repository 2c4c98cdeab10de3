/* vocab_json.c - see vocab_json.h. */
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"

status vocab_from_json(const jtree *root, vocab **v, err *e)
{
    const jtree *pieces = jtree_get(root, "pieces"), *types = jtree_get(root, "types");
    const jtree *merges = jtree_get(root, "merges");
    vocab_settings s = gemma_settings();
    vocab_builder *b;
    size_t i = 0;
    *v = NULL;
    if (!jtree_is(pieces, JTREE_ARRAY) || !jtree_is(merges, JTREE_ARRAY) ||
        !jtree_is(types, JTREE_STRING) || types->n != pieces->count)
        return err_set(e, E_FORMAT, "not a vocabulary of tools/bpe_fixtures.py");
    status st = vocab_begin(&b, (int64_t)pieces->count, (int64_t)merges->count, e);
    if (st)
        return st;
    for (const jtree *p = pieces->first; p; p = p->next)
        vocab_add_token(b, p->s, p->n, types->s[i++] - '0');
    for (const jtree *m = merges->first; m; m = m->next)
        vocab_add_merge(b, m->s, m->n);
    return vocab_finish(b, &s, v, e);
}
