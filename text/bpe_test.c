/* bpe_test.c - the encoder against its definition, over random vocabularies and texts.
 *
 * naive() is the definition of the Gemma 4 algorithm written as plainly as it can be: strings,
 * linear searches, one merge at a time. It shares nothing with bpe.c.
 */
#include "tests/test.h"
#include "tests/toy_vocab.h"
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"
#include "text/vocab_int.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <sys/resource.h>
#include <unistd.h>

/* ---- The definition ---- */

static void naive_word(const toy *t, const char *w, size_t n, id_list *out)
{
    /* Symbols are stretches [at[i], at[i + 1]) of w; they need not be pieces. */
    size_t at[4096], k = 0;
    bool lf = w[0] == '\n';
    if (lf && toy_find(t, w, n) >= 0) {
        id_list_put(out, toy_find(t, w, n), NULL);
        return;
    }
    for (size_t i = 0; i < n; k++) {
        uint32_t cp;
        bool ok;
        CHECK(k + 1 < 4096);
        at[k] = i;
        i += (size_t)utf8_decode(w + i, n - i, &cp, &ok);
    }
    at[k] = n;
    for (;;) {
        int32_t best_rank = INT32_MAX;
        size_t best = 0;
        for (size_t i = 0; i + 1 < k; i++) {
            int32_t l = toy_find(t, w + at[i], at[i + 1] - at[i]);
            int32_t r = toy_find(t, w + at[i + 1], at[i + 2] - at[i + 1]);
            for (int32_t m = 0; m < t->n_merges && m < best_rank && l >= 0 && r >= 0; m++)
                if (t->merge[m].left == l && t->merge[m].right == r) {
                    best_rank = m;
                    best = i;
                }
        }
        if (best_rank == INT32_MAX)
            break;
        memmove(&at[best + 1], &at[best + 2], (k - best - 1) * sizeof *at);
        k--;
    }
    for (size_t i = 0; i < k; i++) {
        int32_t id = toy_find(t, w + at[i], at[i + 1] - at[i]);
        if (id >= 0) {
            id_list_put(out, id, NULL);
            continue;
        }
        for (size_t j = at[i]; j < at[i + 1]; j++) {
            char piece[8];
            id_list_put(out, toy_find(t, byte_piece(w[j], piece), BYTE_PIECE_LEN), NULL);
        }
    }
}

static void naive_fragment(const toy *t, const char *s, size_t n, id_list *out)
{
    AUTO(str_free) str w = {0};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        i += (size_t)utf8_decode(s + i, n - i, &cp, &ok);
        char c[4];
        if (cp == ' ')
            cp = 0x2581;
        if (w.n && (w.at[w.n - 1] == '\n') != (cp == '\n')) {
            naive_word(t, w.at, w.n, out);
            str_cut(&w, 0);
        }
        str_put(&w, c, (size_t)utf8_encode(cp, c));
    }
    if (w.n)
        naive_word(t, w.at, w.n, out);
}

/* Cuts out the longest candidate everywhere, then the next longest in what is left. */
static void naive_split(const toy *t, const char *s, size_t n, special_mode mode,
                        const int32_t *order, int n_order, id_list *out)
{
    if (!n)
        return;
    if (!n_order) {
        naive_fragment(t, s, n, out);
        return;
    }
    const toy_piece *p = &t->piece[*order];
    bool control = p->type != TOKEN_USER_DEFINED;
    bool marker = p->n >= 4 && (!memcmp(p->at, "<|", 2) || !memcmp(p->at + p->n - 2, "|>", 2));
    bool skip = control ? mode != SPECIAL_ALL : marker && mode == SPECIAL_NONE;
    const char *hit = skip ? NULL : memmem(s, n, p->at, p->n);
    if (!hit) {
        naive_split(t, s, n, mode, order + 1, n_order - 1, out);
        return;
    }
    naive_split(t, s, (size_t)(hit - s), mode, order + 1, n_order - 1, out);
    id_list_put(out, *order, NULL);
    naive_split(t, hit + p->n, n - (size_t)(hit - s) - p->n, mode, order, n_order, out);
}

static void naive(const toy *t, const char *s, size_t n, special_mode mode, id_list *out)
{
    int32_t order[TOY_MAX_PIECES];
    int k = 0;
    for (int32_t id = 0; id < t->n_pieces; id++) {
        int type = t->piece[id].type;
        if (type != TOKEN_CONTROL && type != TOKEN_UNKNOWN && type != TOKEN_USER_DEFINED)
            continue;
        int i = k++;
        for (; i > 0 && t->piece[order[i - 1]].n < t->piece[id].n; i--)
            order[i] = order[i - 1];
        order[i] = id;
    }
    naive_split(t, s, n, mode, order, k, out);
}

/* ---- Random vocabularies and texts ---- */

static void add_bytes(toy *t)
{
    for (int i = 0; i < 256; i++) {
        char piece[8];
        toy_add(t, byte_piece(i, piece), BYTE_PIECE_LEN, TOKEN_BYTE);
    }
}

static const char *const alphabets[][8] = {
    {"a", "b"},
    {"a", " ", "b"},
    {"a", "\n", " "},
    {"a", "b", "c", " ", "\n", "."},
    {"\xC3\xA9", "a", "\xF0\x9F\x98\x8A", " ", "\xE5\xAD\x97", "\t"},
    {"<", "|", "t", ">", " "},
    {"\xE2\x96\x81", " ", "x", "\xE2", "\x96", "\xFF"},
    {"1", "2", "3", " ", "\n", "\r", "e\xCC\x81"},
};

static int alphabet_size(int a)
{
    int n = 0;
    while (n < 8 && alphabets[a][n])
        n++;
    return n;
}

static toy *random_vocab(uint64_t *rng, int a)
{
    toy *t = toy_new();
    err e = {0};
    int32_t base[16];
    int n_base = 0;
    add_bytes(t);
    for (int i = 0; i < alphabet_size(a); i++) {
        const char *c = !strcmp(alphabets[a][i], " ") ? "\xE2\x96\x81" : alphabets[a][i];
        /* Leave a character out now and then: it must fall back to bytes. */
        if (utf8_valid(c, strlen(c)) && rng_below(rng, 8)) {
            uint32_t cp;
            bool ok;
            size_t n = (size_t)utf8_decode(c, strlen(c), &cp, &ok);
            base[n_base++] = toy_add(t, c, n, TOKEN_NORMAL);
        }
    }
    int first = n_base ? base[0] : t->n_pieces;
    int64_t want = (int64_t)rng_below(rng, 60);
    for (int64_t i = 0; i < 4 * want && t->n_merges < want && n_base > 0; i++) {
        int32_t l = first + (int32_t)rng_below(rng, (uint64_t)(t->n_pieces - first));
        int32_t r = first + (int32_t)rng_below(rng, (uint64_t)(t->n_pieces - first));
        if (t->piece[l].n + t->piece[r].n < 40)
            toy_merge_pieces(t, l, r, TOKEN_NORMAL);
    }
    int32_t q = toy_add(t, "q", 1, TOKEN_NORMAL); /* a file without any merge is refused */
    toy_merge_pieces(t, q, q, TOKEN_NORMAL);
    static const char *const special[] = {"<|t>", "<t|>", "<|",  "t>",  "<|t>t", "|t",
                                          "ab",   "aa",   "b a", "aba", "\n\n",  "a\n"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (!rng_below(rng, 4))
            toy_add(t, special[i], strlen(special[i]),
                    rng_below(rng, 2) ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    /* The definition above lets merges spell special pieces; the encoder must not (structure). */
    for (int32_t m = 0; m < t->n_merges; m++)
        t->piece[t->merge[m].merged].type = TOKEN_NORMAL;
    for (int i = 0; i < n_base; i++)
        t->piece[base[i]].type = TOKEN_NORMAL;
    CHECK_OK(toy_build(t, &e), e);
    return t;
}

/* Appends the first n bytes of s to it, by way of a copy: appending may move what s holds. */
static void repeat(str *s, size_t n)
{
    AUTO_MEM char *copy = mem_strndup(s->at, n);
    CHECK(copy);
    str_put(s, copy, n);
}

static void random_text(uint64_t *rng, int a, str *s)
{
    int n = (int)rng_below(rng, rng_below(rng, 8) ? 24 : 200);
    str_cut(s, 0);
    str_puts(s, "");
    for (int i = 0; i < n; i++) {
        uint64_t pick = rng_below(rng, 40);
        if (pick == 0)
            str_puts(s, "\n\n\n");
        else if (pick == 1)
            str_putc(s, (char)rng_below(rng, 256));
        else if (pick < 6 && s->n > 4) /* repeat some of it: the cache must see old parts again */
            repeat(s, rng_below(rng, s->n));
        else
            str_puts(s, alphabets[a][rng_below(rng, (uint64_t)alphabet_size(a))]);
        if (s->n > 400)
            break;
    }
}

static void check_same(const toy *t, const str *s, special_mode mode, int round)
{
    AUTO(id_list_free) id_list want = {0}, got = {0};
    err e = {0};
    naive(t, s->at, s->n, mode, &want);
    CHECK_OK(vocab_encode(t->v, s->at, s->n, mode, &got, &e), e);
    CHECK_MSG(got.n == want.n, "round %d, mode %d: %lld ids, the definition gives %lld", round,
              mode, (long long)got.n, (long long)want.n);
    for (int64_t i = 0; i < got.n; i++)
        CHECK_MSG(got.at[i] == want.at[i], "round %d: id %lld is %d, the definition gives %d",
                  round, (long long)i, got.at[i], want.at[i]);
}

PLAIN_TEST(bpe_agrees_with_its_definition)
{
    uint64_t rng = test_seed();
    AUTO(str_free) str s = {0};
    for (int round = 0; round < 400; round++) {
        int a = round % (int)(sizeof alphabets / sizeof *alphabets);
        AUTO_PTR(toy_free) toy *t = random_vocab(&rng, a);
        for (int k = 0; k < 12; k++) {
            random_text(&rng, rng_below(&rng, 6) ? a : (a + 1) % 8, &s);
            check_same(t, &s, (special_mode)rng_below(&rng, 3), round);
        }
    }
}

TEST(bpe_heap_and_scan_agree_on_long_parts)
{
    /* One character class that merges with itself: parts as long as the text. */
    uint64_t rng = test_seed();
    AUTO(str_free) str s = {0};
    for (int round = 0; round < 12; round++) {
        AUTO_PTR(toy_free) toy *t = random_vocab(&rng, 0);
        for (int n = 40; n < 60; n++) { /* around SMALL_SYMBOLS */
            str_cut(&s, 0);
            for (int i = 0; i < n; i++)
                str_putc(&s, rng_below(&rng, 2) ? 'a' : 'b');
            check_same(t, &s, SPECIAL_NONE, round);
        }
        str_cut(&s, 0);
        for (int i = 0; i < 300; i++)
            str_putc(&s, rng_below(&rng, 3) ? 'a' : 'b');
        check_same(t, &s, SPECIAL_NONE, round);
    }
}

/* ---- Against the tokenizers library ---- */

TEST(bpe_agrees_with_tokenizers_on_trained_merges)
{
    replay_vocab_cases(test_path("tests/data/vocab/trained.json"));
}

TEST(bpe_agrees_with_tokenizers_on_all_splits)
{
    replay_vocab_cases(test_path("tests/data/vocab/splits.json"));
}

/* ---- Special cases by name ---- */

static void expect(const vocab *v, const char *text, special_mode mode, const char *const *pieces)
{
    AUTO(id_list_free) id_list l = {0};
    err e = {0};
    int64_t i = 0;
    CHECK_OK(vocab_encode(v, text, strlen(text), mode, &l, &e), e);
    for (; pieces[i]; i++) {
        size_t n = 0;
        const char *p = i < l.n ? vocab_piece(v, l.at[i], &n) : NULL;
        CHECK_MSG(p && n == strlen(pieces[i]) && !memcmp(p, pieces[i], n),
                  "\"%s\": token %lld is \"%.*s\", expected \"%s\"", text, (long long)i, (int)n,
                  p ? p : "", pieces[i]);
    }
    CHECK_EQ(l.n, i);
}
#define EXPECT(v, text, mode, ...) expect(v, text, mode, (const char *const[]){__VA_ARGS__, NULL})

TEST(bpe_takes_a_run_of_line_feeds_whole)
{
    /* "\n\n\n" exists but no merge makes it: a word of LF is looked up before it is merged. */
    AUTO_PTR(toy_free) toy *t = toy_new();
    err e = {0};
    add_bytes(t);
    int32_t lf = toy_add(t, "\n", 1, TOKEN_NORMAL), a = toy_add(t, "a", 1, TOKEN_NORMAL);
    toy_add(t, "\n\n\n", 3, TOKEN_NORMAL);
    toy_merge_pieces(t, lf, lf, TOKEN_NORMAL);
    toy_merge_pieces(t, a, lf, TOKEN_NORMAL); /* crosses the edge of a run: never used */
    CHECK_OK(toy_build(t, &e), e);
    EXPECT(t->v, "a\na", SPECIAL_USER, "a", "\n", "a");
    EXPECT(t->v, "\n\n\n", SPECIAL_USER, "\n\n\n");
    EXPECT(t->v, "\n\n\n\n", SPECIAL_USER, "\n\n", "\n\n");
    EXPECT(t->v, "\n\n\n\n\n", SPECIAL_USER, "\n\n", "\n\n", "\n");
}

/* Leaves room for n_bytes more; not under sanitizers, which need terabytes of addresses. */
static void limit_memory(size_t n_bytes)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    CHECK(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + n_bytes;
    CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){most, most}));
#else
    (void)n_bytes;
#endif
}

TEST(special_pieces_inside_each_other_cost_no_memory_each)
{
    enum { DEPTH = 31, N = 1 << 20 }; /* as the line feeds of Gemma 4 */
    AUTO_PTR(toy_free) toy *t = toy_new();
    err e = {0};
    char piece[DEPTH];
    memset(piece, '\n', sizeof piece);
    add_bytes(t);
    for (size_t n = 1; n <= DEPTH; n++)
        toy_add(t, piece, n, TOKEN_USER_DEFINED);
    int32_t a = toy_add(t, "a", 1, TOKEN_NORMAL);
    toy_merge_pieces(t, a, a, TOKEN_NORMAL);
    CHECK_OK(toy_build(t, &e), e);
    AUTO_MEM char *text = mem_alloc(N);
    memset(text, '\n', N);
    limit_memory(100 << 20); /* a hit for every piece at every byte would be 500 MB */
    AUTO(id_list_free) id_list l = {0};
    CHECK_OK(vocab_encode(t->v, text, N, SPECIAL_USER, &l, &e), e);
    CHECK_EQ(l.n, (N + DEPTH - 1) / DEPTH);
}

TEST(bpe_falls_back_to_bytes)
{
    AUTO_PTR(toy_free) toy *t = toy_gemma();
    EXPECT(t->v, "\xC3\x84", SPECIAL_USER, "<0xC3>", "<0x84>");
    EXPECT(t->v, "\xFF", SPECIAL_USER, "<0xEF>", "<0xBF>", "<0xBD>"); /* U+FFFD */
    EXPECT(t->v, "\xE2\x96", SPECIAL_USER, "<0xEF>", "<0xBF>", "<0xBD>", "<0xEF>", "<0xBF>",
           "<0xBD>");
    EXPECT(t->v, "a\tb", SPECIAL_USER, "a", "<0x09>", "b");
    EXPECT(t->v, " the", SPECIAL_USER, "\xE2\x96\x81the");
    EXPECT(t->v, "<0x41>", SPECIAL_ALL, "<", "0", "x", "4", "1", ">");
}

TEST(special_pieces_by_mode)
{
    AUTO_PTR(toy_free) toy *t = toy_gemma();
    EXPECT(t->v, "<|turn>the<|\"|>", SPECIAL_ALL, "<|turn>", "the", "<|\"|>");
    EXPECT(t->v, "<eos><|\"|>", SPECIAL_USER, "<", "e", "o", "s", ">", "<|\"|>");
    EXPECT(t->v, "<eos><|\"|>", SPECIAL_NONE, "<", "e", "o", "s", ">", "<", "|", "\"", "|", ">");
    EXPECT(t->v, "<<|turn>>", SPECIAL_ALL, "<", "<|turn>", ">");
}

TEST(special_pieces_longest_of_the_vocabulary_first)
{
    /* In "abcd" the longer "bcd" is cut out first although "ab" begins further left. */
    AUTO_PTR(toy_free) toy *t = toy_new();
    err e = {0};
    add_bytes(t);
    for (const char *c = "abcd"; *c; c++)
        toy_add(t, c, 1, TOKEN_NORMAL);
    toy_add(t, "ab", 2, TOKEN_USER_DEFINED);
    toy_add(t, "bcd", 3, TOKEN_USER_DEFINED);
    toy_add(t, "aa", 2, TOKEN_CONTROL);
    toy_merge_pieces(t, toy_find(t, "c", 1), toy_find(t, "d", 1), TOKEN_NORMAL);
    CHECK_OK(toy_build(t, &e), e);
    EXPECT(t->v, "abcd", SPECIAL_USER, "a", "bcd");
    EXPECT(t->v, "abc", SPECIAL_USER, "ab", "c");
    EXPECT(t->v, "abcdab", SPECIAL_USER, "a", "bcd", "ab");
    EXPECT(t->v, "aaab", SPECIAL_ALL, "aa", "ab");
    EXPECT(t->v, "aaaab", SPECIAL_ALL, "aa", "a", "ab");
}

TEST(spans_limit_where_specials_match)
{
    AUTO_PTR(toy_free) toy *t = toy_gemma();
    const char *text = "<|turn>a<|turn>\n<turn|>";
    text_span span[] = {{0, 7}, {15, 8}};
    const marked_text marked = {text, strlen(text), SPECIAL_ALL, span, 2, BEFORE_NOTHING};
    const marked_text half = {"<|turn>", 7, SPECIAL_ALL, span, 1, BEFORE_NOTHING};
    AUTO(id_list_free) id_list l = {0};
    err e = {0};
    CHECK_OK(vocab_encode_spans(t->v, &marked, &l, &e), e);
    CHECK_EQ(l.at[0], vocab_find(t->v, "<|turn>", 7));
    CHECK_EQ(l.at[l.n - 1], vocab_find(t->v, "<turn|>", 7));
    CHECK_EQ(l.n, 1 + 1 + 7 + 1 + 1);
    /* A marker half inside a span is no marker. */
    l.n = 0;
    span[0] = (text_span){0, 3};
    CHECK_OK(vocab_encode_spans(t->v, &half, &l, &e), e);
    CHECK_EQ(l.n, 7);
}

TEST(hostile_texts_take_linear_work)
{
    enum { N = 1 << 20 };
    uint64_t rng = test_seed();
    AUTO_PTR(toy_free) toy *t = toy_new();
    err e = {0};
    add_bytes(t);
    /* a, aa, aaaa ... and b likewise, and both mixed: every place can join. */
    int32_t a = toy_add(t, "a", 1, TOKEN_NORMAL), b = toy_add(t, "b", 1, TOKEN_NORMAL);
    for (int i = 0, x = a, y = b; i < 7; i++) {
        toy_merge_pieces(t, x, x, TOKEN_NORMAL);
        toy_merge_pieces(t, y, y, TOKEN_NORMAL);
        toy_merge_pieces(t, x, y, TOKEN_NORMAL);
        toy_merge_pieces(t, y, x, TOKEN_NORMAL);
        x = toy_find(t, t->piece[t->merge[t->n_merges - 4].merged].at,
                     t->piece[t->merge[t->n_merges - 4].merged].n);
        y = t->merge[t->n_merges - 3].merged;
    }
    toy_add(t, "<x>", 3, TOKEN_CONTROL);
    toy_add(t, "<<", 2, TOKEN_USER_DEFINED);
    toy_add(t, "<<<", 3, TOKEN_USER_DEFINED);
    CHECK_OK(toy_build(t, &e), e);
    AUTO_MEM char *text = mem_alloc(N);
    CHECK(text);
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < N; i++)
            text[i] = kind == 0   ? 'a'
                      : kind == 1 ? "ab"[i & 1]
                      : kind == 2 ? "ab"[rng_below(&rng, 2)]
                      : kind == 3 ? '<'
                                  : '\n';
        encode_work w;
        AUTO(id_list_free) id_list l = {0};
        text_span all = {0, N};
        marked_text whole = {text, N, SPECIAL_ALL, &all, 1, BEFORE_NOTHING};
        CHECK_OK(encode_counted(t->v, &whole, &l, &w, &e), e);
        CHECK_MSG(w.pair_lookups <= 3 * (uint64_t)N, "text %d: %llu pair look-ups", kind,
                  (unsigned long long)w.pair_lookups);
        /* Each of at most 2 N candidates moves at most log4(2 N) < 11 levels, twice. */
        CHECK_MSG(w.heap_moves <= 44 * (uint64_t)N, "text %d: %llu heap moves", kind,
                  (unsigned long long)w.heap_moves);
    }
}
