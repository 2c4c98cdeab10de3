/* vocab_json.c - see vocab_json.h. */
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"
#include "text/family.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *text_of(const jtree *root, const char *key)
{
    const jtree *v = jtree_get(root, key);
    return jtree_is(v, JTREE_STRING) ? v->s : NULL;
}

status vocab_from_json(const jtree *root, vocab **v, err *e)
{
    const jtree *pieces = jtree_get(root, "pieces"), *types = jtree_get(root, "types");
    const jtree *merges = jtree_get(root, "merges"), *scores = jtree_get(root, "scores");
    const char *arch = text_of(root, "arch");
    vocab_settings s = gemma_settings();
    vocab_builder *b;
    size_t i = 0;
    *v = NULL;
    if (!jtree_is(pieces, JTREE_ARRAY) || !jtree_is(merges, JTREE_ARRAY) ||
        !jtree_is(types, JTREE_STRING) || types->n != pieces->count)
        return err_set(e, E_FORMAT, "not a vocabulary of the scripts in tools/");
    if (arch) {
        s.model = text_of(root, "model");
        s.pre = text_of(root, "pre");
        s.family = text_family_for(arch, strlen(arch), s.model, s.pre);
    }
    float *score = mem_calloc(pieces->count + 1, sizeof *score);
    if (!score)
        return err_memory(e, "scores", pieces->count * sizeof *score);
    for (const jtree *x = scores ? scores->first : NULL; x && i < pieces->count; x = x->next)
        score[i++] = strtof(x->s, NULL);
    s.score = i ? score : NULL;
    i = 0;
    status st = vocab_begin(&b, (int64_t)pieces->count, (int64_t)merges->count, e);
    for (const jtree *p = st ? NULL : pieces->first; p; p = p->next)
        vocab_add_token(b, p->s, p->n, types->s[i++] - '0');
    for (const jtree *m = st ? NULL : merges->first; m; m = m->next)
        vocab_add_merge(b, m->s, m->n);
    st = st ? st : vocab_finish(b, &s, v, e);
    mem_free(score);
    return st;
}
