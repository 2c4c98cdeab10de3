/* tokenize.c - times the tokenizer: `make bench-tokenize`, then
 *
 *     build/bench_tokenize [-v VOCAB.json] [-n REPEATS] [TEXT]
 *
 * Without -v the vocabulary is made here: 262144 pieces of the Gemma kind (bytes, runs of spaces
 * and line feeds, words built of syllables with a space in front or not), with a merge for every
 * cut of a piece into two pieces. Without TEXT the text is prose of such words, about as repetitive
 * as English; one word in forty is not in the vocabulary. `tools/bpe_fixtures.py --large` trains a
 * real vocabulary. The same pieces as a vocabulary of bytes follow, with each pre-splitter, in the
 * same run. The hostile lines are worst cases of one megabyte. Times are processor times of
 * this thread, which a busy machine disturbs less; rates are the median and the best of REPEATS.
 */
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "text/vocab_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_PIECES = 262144, TEXT_BYTES = 8 << 20 };

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- A vocabulary ---- */

typedef struct pieces {
    str bytes;
    uint32_t at[N_PIECES + 1];
    uint8_t type[N_PIECES];
    int32_t n, first_word;
    int32_t slot[1 << 20]; /* id + 1 */
} pieces;

static int32_t *place(pieces *p, const char *s, size_t n)
{
    uint32_t i = (uint32_t)hash_bytes(s, n);
    for (;; i++) {
        int32_t *slot = &p->slot[i & ((1 << 20) - 1)];
        if (!*slot ||
            (p->at[*slot] - p->at[*slot - 1] == n && !memcmp(p->bytes.at + p->at[*slot - 1], s, n)))
            return slot;
    }
}

static bool add(pieces *p, const char *s, size_t n, int type)
{
    int32_t *slot = place(p, s, n);
    if (*slot || p->n == N_PIECES)
        return false;
    str_put(&p->bytes, s, n);
    p->type[p->n++] = (uint8_t)type;
    p->at[p->n] = (uint32_t)p->bytes.n;
    *slot = p->n;
    return true;
}

static void draw_syllable(uint64_t *rng, str *s)
{
    static const char *const onset[] = {"b",  "br", "c", "ch", "d", "f",  "g",  "gr", "h", "j",
                                        "l",  "m",  "n", "p",  "r", "s",  "sh", "st", "t", "th",
                                        "tr", "v",  "w", "y",  "",  "qu", "k",  "pl"};
    static const char *const vowel[] = {"a", "e", "i", "o", "u", "ea", "ou", "ai", "y", "ie"};
    static const char *const coda[] = {"", "", "", "n", "r", "s", "t", "l", "ng", "d", "m", "st"};
    str_puts(s, onset[rng_below(rng, 28)]);
    str_puts(s, vowel[rng_below(rng, 10)]);
    str_puts(s, coda[rng_below(rng, 12)]);
}

static void make_pieces(pieces *p, uint64_t *rng)
{
    static const char *const markers[] = {"<pad>",   "<eos>",   "<bos>",      "<unk>",     "<mask>",
                                          "<|turn>", "<turn|>", "<|channel>", "<channel|>"};
    str s = {0};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        add(p, markers[i], strlen(markers[i]), TOKEN_CONTROL);
    for (int i = 0; i < 256; i++) {
        char piece[8];
        add(p, byte_piece(i, piece), BYTE_PIECE_LEN, TOKEN_BYTE);
    }
    for (int k = 0; k < 2; k++) {
        str_cut(&s, 0);
        for (int i = 0; i < 31; i++) {
            str_puts(&s, k ? SPACE_MARK : "\n");
            add(p, s.at, s.n, TOKEN_NORMAL);
        }
    }
    for (char c = '!'; c <= '~'; c++)
        add(p, &c, 1, TOKEN_NORMAL);
    p->first_word = p->n;
    while (p->n < N_PIECES) {
        /* A piece is an existing piece and more: letters in the first syllable, then another
         * piece. Each exists with and without the space in front. */
        char word[64];
        size_t n = 0, letters;
        if (p->n > 2000 && rng_below(rng, 4)) {
            double z = pow(rng_unit(rng), 3);
            int32_t id = p->first_word + (int32_t)(z * (p->n - p->first_word));
            n = p->at[id + 1] - p->at[id];
            if (n > 16)
                continue;
            memcpy(word, p->bytes.at + p->at[id], n);
        } else if (rng_below(rng, 2)) {
            memcpy(word, SPACE_MARK, n = 3);
        }
        str_cut(&s, 0);
        draw_syllable(rng, &s);
        if (n <= 3 && !rng_below(rng, 5))
            s.at[0] = (char)(s.at[0] & ~32);
        for (letters = 0; letters < s.n; letters++) {
            word[n++] = s.at[letters];
            add(p, word, n, TOKEN_NORMAL);
            add(p, word + n - letters - 1, letters + 1, TOKEN_NORMAL);
        }
    }
    str_free(&s);
}

/* The piece as a vocabulary of bytes spells it: spaces and bytes by their characters. */
static void respell(const char *s, size_t n, str *out)
{
    char c[4];
    str_cut(out, 0);
    for (size_t i = 0; i < n; i++) {
        bool space = n - i >= 3 && !memcmp(s + i, SPACE_MARK, 3);
        unsigned char byte = space ? ' ' : (unsigned char)s[i];
        str_put(out, c, vocab_spell_byte(byte, c));
        i += space ? 2 : 0;
    }
}

static void add_piece(vocab_builder *b, const pieces *p, int32_t id, bool bytes, str *work)
{
    const char *s = p->bytes.at + p->at[id];
    size_t n = p->at[id + 1] - p->at[id];
    int type = p->type[id];
    unsigned value;
    if (bytes && type == TOKEN_BYTE) {
        /* The bytes that have a piece of another type leave theirs unused. */
        bool twice = sscanf(s, "<0x%2X>", &value) == 1 &&
                     (value == '\n' || value == ' ' || (value > ' ' && value < 0x7F));
        char c = (char)value;
        type = twice ? TOKEN_UNUSED : TOKEN_NORMAL;
        if (!twice) {
            respell(&c, 1, work);
            s = work->at;
            n = work->n;
        }
    } else if (bytes && type == TOKEN_NORMAL) {
        respell(s, n, work);
        s = work->at;
        n = work->n;
    }
    vocab_add_token(b, s, n, type);
}

/* family NULL: Gemma's kind. */
static vocab *make_vocab(pieces *p, const text_family *family, const char *pre, double *load_ms,
                         int64_t *n_merges)
{
    str m = {0};
    uint32_t *at = NULL;
    size_t n = 0, cap = 0;
    for (int32_t id = p->first_word - 94 - 62; id < p->n; id++) {
        const char *s = p->bytes.at + p->at[id];
        size_t len = p->at[id + 1] - p->at[id];
        for (size_t cut = 1; cut < len; cut++) {
            if (!*place(p, s, cut) || !*place(p, s + cut, len - cut))
                continue;
            if (n + 1 >= cap)
                at = mem_realloc(at, cap = cap ? cap * 2 : 1 << 16, sizeof *at);
            at[n++] = (uint32_t)m.n;
            str_put(&m, s, cut);
            str_putc(&m, ' ');
            str_put(&m, s + cut, len - cut);
        }
    }
    at[n] = (uint32_t)m.n;
    vocab *v = NULL;
    vocab_builder *b;
    err e = {0};
    vocab_settings s = gemma_settings();
    str work = {0}, left = {0};
    if (family) {
        s.family = family;
        s.model = "gpt2";
        s.pre = pre;
    }
    double from = cpu_ms();
    if (!vocab_begin(&b, p->n, (int64_t)n, &e)) {
        for (int32_t id = 0; id < p->n; id++)
            add_piece(b, p, id, family, &work);
        for (size_t i = 0; i < n; i++) {
            const char *merge = m.at + at[i], *space = strchr(merge + 1, ' ');
            if (family) {
                respell(merge, (size_t)(space - merge), &left);
                respell(space + 1, at[i + 1] - at[i] - (size_t)(space + 1 - merge), &work);
                str_putc(&left, ' ');
                str_put(&left, work.at, work.n);
            }
            vocab_add_merge(b, family ? left.at : merge, family ? left.n : at[i + 1] - at[i]);
        }
        vocab_finish(b, &s, &v, &e);
    }
    *load_ms = cpu_ms() - from;
    *n_merges = (int64_t)n;
    if (!v)
        fprintf(stderr, "%s\n", e.text);
    str_free(&left);
    str_free(&work);
    str_free(&m);
    mem_free(at);
    return v;
}

static void make_prose(const pieces *p, uint64_t *rng, str *text)
{
    int in_line = 0;
    while (text->n < TEXT_BYTES) {
        str w = {0};
        bool start = !in_line++;
        if (!rng_below(rng, 40)) {
            for (uint64_t k = 1 + rng_below(rng, 4); k > 0; k--)
                draw_syllable(rng, &w);
        } else {
            /* Frequency falls a little faster than 1/rank, so that as many words repeat as in
             * English prose (column `cached`: 0.83 there). */
            int32_t n_words = p->n - p->first_word;
            int32_t id = p->first_word + (int32_t)exp(pow(rng_unit(rng), 1.8) * log(n_words)) - 1;
            const char *s = p->bytes.at + p->at[id];
            size_t n = p->at[id + 1] - p->at[id], skip = n > 3 && !memcmp(s, SPACE_MARK, 3) ? 3 : 0;
            str_put(&w, s + skip, n - skip);
        }
        if (!start)
            str_putc(text, ' ');
        str_put(text, w.at, w.n);
        uint64_t mark = rng_below(rng, 24);
        if (mark < 3)
            str_putc(text, ",.;"[mark]);
        if (in_line > 90 && !rng_below(rng, 12)) {
            str_puts(text, ".\n\n");
            in_line = 0;
        }
        str_free(&w);
    }
}

/* ---- Timing ---- */

static int compare_rates(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void time_text(const vocab *v, const char *name, const char *text, size_t n, int repeats)
{
    double t[99];
    encode_work w = {0};
    id_list ids = {0};
    err e = {0};
    text_span all = {0, n};
    marked_text whole = {text, n, SPECIAL_ALL, &all, 1, BEFORE_NOTHING};
    for (int i = 0; i < repeats; i++) {
        ids.n = 0;
        double from = cpu_ms();
        if (encode_counted(v, &whole, &ids, &w, &e)) {
            fprintf(stderr, "%s: %s\n", name, e.text);
            return;
        }
        t[i] = cpu_ms() - from;
    }
    qsort(t, (size_t)repeats, sizeof *t, compare_rates);
    printf("%-18s %8zu %9lld   %8.1f %8.1f   %6.3f  %6.3f  %6.3f %7.3f\n", name, n,
           (long long)ids.n, (double)n / t[repeats / 2] / 1e3, (double)n / t[0] / 1e3,
           w.words ? (double)w.cache_hits / (double)w.words : 0,
           w.words ? (double)w.whole_hits / (double)w.words : 0, (double)w.pair_lookups / (double)n,
           (double)w.heap_moves / (double)n);
    id_list_free(&ids);
}

static void time_hostile(const vocab *v, int repeats)
{
    enum { N = 1 << 20 };
    static const struct {
        const char *name, *unit;
    } kinds[] = {{"one letter", "a"},
                 {"two letters", "at"},
                 {"spaces", " "},
                 {"line feeds", "\n"},
                 {"half markers", "<|turn"},
                 {"not UTF-8", "\xE2\x96"},
                 {"no spaces", "thequickbrownfoxjumpsoverthelazydog"},
                 {"digits", "0123456789"},
                 {"marks", "\xCC\x81"},
                 {"Han", "\xE5\xAD\x97\xE4\xB8\xAD\xE6\x96\x87"}};
    char *text = mem_alloc(N);
    for (size_t k = 0; text && k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t i = 0; i < N; i++)
            text[i] = kinds[k].unit[i % strlen(kinds[k].unit)];
        time_text(v, kinds[k].name, text, N, repeats);
    }
    mem_free(text);
}

static void time_vocab(const vocab *v, const char *kind, const str *text, const char *name,
                       int64_t n_merges, double load_ms, int repeats)
{
    printf("%s: %d pieces, %lld merges, loaded in %.1f ms\n\n", kind, vocab_n(v),
           (long long)n_merges, load_ms);
    printf("text                  bytes    tokens     MB/s     best   cached   whole  look/B  "
           "move/B\n");
    time_text(v, name, text->at, text->n, repeats);
    time_text(v, "first 2000 bytes", text->at, text->n < 2000 ? text->n : 2000, repeats);
    time_hostile(v, repeats);
    putchar('\n');
}

static const struct {
    const text_family *family;
    const char *pre;
} byte_kinds[] = {{&qwen_text, "qwen2"}, {&qwen_text, "qwen35"}, {&laguna_text, "laguna"}};

int main(int argc, char **argv)
{
    const char *vocab_path = NULL;
    int repeats = 9, i = 1;
    uint64_t rng = 1;
    vocab *v = NULL;
    err e = {0};
    str text = {0};
    double load_ms = 0;
    int64_t n_merges = 0;

    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (argv[i][1] == 'v')
            vocab_path = argv[i + 1];
        if (argv[i][1] == 'n')
            repeats = atoi(argv[i + 1]);
    }
    repeats = repeats < 1 ? 1 : repeats > 99 ? 99 : repeats;
    pieces *p = mem_calloc(1, sizeof *p);
    if (!p)
        return 1;
    make_pieces(p, &rng);
    if (vocab_path) {
        char *json = NULL;
        size_t n = 0;
        arena mem = {0};
        const jtree *root = NULL;
        if (!file_read_all(vocab_path, 1 << 30, &json, &n, &e) &&
            !jtree_parse(json, n, vocab_path, 8, &mem, &root, &e)) {
            const jtree *merges = jtree_get(root, "merges");
            n_merges = merges ? (int64_t)merges->count : 0;
            double from = cpu_ms();
            vocab_from_json(root, &v, &e);
            load_ms = cpu_ms() - from;
        }
        arena_free(&mem);
        mem_free(json);
    } else {
        for (int k = 0; k < 3; k++) {
            vocab_close(v);
            v = make_vocab(p, NULL, NULL, &load_ms, &n_merges);
        }
    }
    if (!v) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (i < argc) {
        char *bytes = NULL;
        size_t n = 0;
        if (file_read_all(argv[i], 1 << 30, &bytes, &n, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        str_put(&text, bytes, n);
        mem_free(bytes);
    } else {
        make_prose(p, &rng, &text);
    }
    const char *name = i < argc ? "file" : "prose";
    time_vocab(v, vocab_path ? vocab_path : "gemma", &text, name, n_merges, load_ms, repeats);
    for (size_t k = 0; !vocab_path && k < sizeof byte_kinds / sizeof *byte_kinds; k++) {
        vocab_close(v);
        v = make_vocab(p, byte_kinds[k].family, byte_kinds[k].pre, &load_ms, &n_merges);
        if (!v)
            return 1;
        time_vocab(v, byte_kinds[k].pre, &text, name, n_merges, load_ms, repeats);
    }
    str_free(&text);
    vocab_close(v);
    str_free(&p->bytes);
    mem_free(p);
    return 0;
}
