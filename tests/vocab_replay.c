/* vocab_replay.c - see vocab_json.h. Apart from vocab_json.c, which benches use without the test
 * runner. */
#include "tests/test.h"
#include "tests/vocab_json.h"
#include "text/vocab_int.h"
#include "base/map.h"

RELEASED_AT(vocab_close, vocab)

void replay_vocab_cases(const char *path)
{
    AUTO_MEM char *text;
    size_t n;
    err e = {0};
    AUTO(arena_free) arena mem = {0};
    const jtree *root;
    AUTO_PTR(vocab_close) vocab *v;
    AUTO(id_list_free) id_list ids = {0};
    AUTO(str_free) str back = {0};
    int n_cases = 0;
    CHECK_OK(file_read_all(path, 64 << 20, &text, &n, &e), e);
    CHECK_OK(jtree_parse(text, n, path, 8, &mem, &root, &e), e);
    CHECK_OK(vocab_from_json(root, &v, &e), e);
    for (const jtree *c = jtree_get(root, "cases")->first; c; c = c->next, n_cases++) {
        const jtree *s = c->first, *want = s->next, *id = want->first;
        ids.n = 0;
        CHECK_OK(vocab_encode(v, s->s, s->n, SPECIAL_ALL, &ids, &e), e);
        for (int64_t i = 0; i < ids.n && id; i++, id = id->next)
            CHECK_MSG(ids.at[i] == atoi(id->s), "%s, \"%s\": id %lld is %d, expected %s", path,
                      s->s, (long long)i, ids.at[i], id->s);
        CHECK_EQ(ids.n, want->count);
        /* And back again. In VOCAB_CHARS a text may spell U+2581 itself, which comes back as a
         * space. */
        str_cut(&back, 0);
        for (int64_t i = 0; i < ids.n; i++) {
            size_t n_piece;
            const char *piece = vocab_text(v, ids.at[i], true, &n_piece);
            str_put(&back, piece, n_piece);
        }
        if (vocab_kind_of(v) == VOCAB_BYTES || !strstr(s->s, SPACE_MARK))
            CHECK(back.n == s->n + v->space_first &&
                  !memcmp(str_text(&back) + v->space_first, s->s, s->n));
    }
    CHECK(n_cases > 200);
}
