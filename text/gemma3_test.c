/* gemma3_test.c - pieces that join by scores, against SentencePiece's rule written out plainly; and
 * what its conversations refuse. Prompts are compared in chat_others_test.c.
 */
#include "text/gemma3.h"
#include "base/rng.h"
#include "tests/test.h"
#include "tests/vocab_parts.h"
#include "text/vocab_int.h"

RELEASED_AT(vocab_close, vocab)

enum { N_WORDS = 60, N_TEXT = 40 };

typedef struct pieces {
    char piece[N_WORDS][16];
    float score[N_WORDS + 256];
    int n;
} pieces;

/* Random pieces of "a", "b", "é" and the space, some with equal scores. */
static void make_pieces(pieces *p, uint64_t *rng)
{
    static const char *const letters[] = {"a", "b", "\xC3\xA9", "\xE2\x96\x81"};
    *p = (pieces){.n = 0};
    for (int i = 0; i < 4; i++)
        snprintf(p->piece[p->n++], 16, "%s", letters[i]);
    for (int tries = 0; tries < 400 && p->n < N_WORDS; tries++) {
        char *to = p->piece[p->n];
        int len = 2 + (int)(rng_next(rng) % 3), at = 0;
        for (int k = 0; k < len; k++)
            at += snprintf(to + at, (size_t)(16 - at), "%s", letters[rng_next(rng) % 4]);
        bool twice = false;
        for (int i = 0; i < p->n; i++)
            twice |= !strcmp(p->piece[i], to);
        p->n += !twice;
    }
    for (int i = 0; i < p->n; i++)
        p->score[i] = -(float)(rng_next(rng) % 20);
}

static vocab *build(const pieces *p, err *e)
{
    vocab_builder *b;
    vocab *v = NULL;
    vocab_settings set = gemma_settings();
    set.family = &gemma3_text;
    set.model = "llama";
    set.score = p->score;
    CHECK_OK(vocab_begin(&b, p->n + 256, 0, e), *e);
    for (int i = 0; i < p->n; i++)
        vocab_add_token(b, p->piece[i], strlen(p->piece[i]), TOKEN_NORMAL);
    add_byte_pieces(b);
    CHECK_OK(vocab_finish(b, &set, &v, e), *e);
    return v;
}

/* The definition: join the neighbours whose joined piece has the highest score, leftmost first; of
 * equal scores the piece of the lower id. */
static int plain(const vocab *v, const pieces *p, const char *text, int32_t *id)
{
    int n = 0;
    for (size_t i = 0, len; text[i]; i += len) {
        len = (unsigned char)text[i] < 0x80 ? 1 : (unsigned char)text[i] < 0xE0 ? 2 : 3;
        id[n++] = vocab_find(v, text + i, len);
    }
    for (;;) {
        int best = -1;
        int32_t joined = -1;
        for (int i = 0; i + 1 < n; i++) {
            char both[40];
            snprintf(both, sizeof both, "%s%s", p->piece[id[i]], p->piece[id[i + 1]]);
            int32_t to = vocab_find(v, both, strlen(both));
            if (to >= 0 && (best < 0 || p->score[to] > p->score[joined] ||
                            (p->score[to] == p->score[joined] && to < joined))) {
                best = i;
                joined = to;
            }
        }
        if (best < 0)
            return n;
        id[best] = joined;
        n--;
        memmove(id + best + 1, id + best + 2, (size_t)(n - best - 1) * sizeof *id);
    }
}

TEST(pieces_join_by_scores)
{
    uint64_t rng = test_seed();
    for (int round = 0; round < 40; round++) {
        pieces p;
        err e = {0};
        make_pieces(&p, &rng);
        AUTO_PTR(vocab_close) vocab *v = build(&p, &e);
        for (int k = 0; k < 20; k++) {
            char spelled[4 * N_TEXT] = "", text[4 * N_TEXT];
            int32_t want[N_TEXT];
            AUTO(id_list_free) id_list got = {0};
            for (int i = 0; i < N_TEXT; i++)
                strcat(spelled, p.piece[rng_next(&rng) % 4]);
            size_t at = 0;
            for (const char *s = spelled; *s; s += strncmp(s, SPACE_MARK, 3) ? 1 : 3)
                text[at++] = strncmp(s, SPACE_MARK, 3) ? *s : ' ';
            int n = plain(v, &p, spelled, want);
            CHECK_OK(vocab_encode(v, text, at, SPECIAL_NONE, &got, &e), e);
            CHECK_EQ(got.n, n);
            CHECK_MSG(!memcmp(got.at, want, (size_t)n * sizeof *want), "%s", spelled);
        }
    }
}

static status render(const char *messages, const char *tools, const carat_chat_options *opt,
                     chat_prompt *p, err *e)
{
    return chat_render(&gemma3_format, messages, strlen(messages), tools, tools ? strlen(tools) : 0,
                       opt, p, e);
}

TEST(gemma3_refuses_what_it_has_no_format_for)
{
    static const struct {
        const char *messages, *tools, *word;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"a\"}]",
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "no published format of tools"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]", NULL,
         "in turns"},
        {"[{\"role\":\"system\",\"content\":\"a\"}]", NULL, "needs a user message"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]", NULL,
         "no published format of calls"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", NULL,
         "image"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_prompt p = {0};
        err e = {0};
        CHECK(render(cases[i].messages, cases[i].tools, &(carat_chat_options){0}, &p, &e) != OK);
        CHECK_MSG(strstr(e.text, cases[i].word), "%s", e.text);
        CHECK(!p.text.n);
    }
}
