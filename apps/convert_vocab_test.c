/* convert_vocab_test.c - the tokenizers of byte-level families: directories made from the recorded
 * vocabularies, converted, and compared with them.
 */
#include "tests/test.h"
#include "tests/vocab_json.h"
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/text_file.h"

#include <sys/stat.h>

/* What a made directory looks like. */
typedef struct made {
    const char *vocab;      /* tests/data/vocab/NAME.json */
    const char *model_type; /* of config.json */
    bool pairs;             /* merges as pairs */
    const char *model_add;  /* fields of the model */
    const char *normalizer; /* JSON; NULL: NFC */
    const char *regex;      /* instead of the family's last one, as JSON text */
    const char *behavior;   /* of the last Split; NULL: Isolated */
    const char *spelling;   /* the last step; NULL: as published */
    const char *tokenizer_config, *generation;
    const char *pre_tokenizer; /* JSON, instead of the recorded steps */
    const vocab *scored;       /* merges are all cuts of its pieces */
} made;

static void put_file(const char *dir, const char *name, const str *s)
{
    CHECK(!s->bad);
    test_write_in(dir, name, str_text(s), s->n);
}

static void put_text_file(const char *dir, const char *name, const char *text)
{
    AUTO(str_free) str s = {0};
    str_puts(&s, text);
    put_file(dir, name, &s);
}

static void put_json(str *s, const char *text, size_t n)
{
    str_putc(s, '"');
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"' || text[i] == '\\')
            str_putc(s, '\\');
        if ((unsigned char)text[i] < ' ')
            str_printf(s, "\\u%04x", text[i]);
        else
            str_putc(s, text[i]);
    }
    str_putc(s, '"');
}

/* The steps that the package was given for the recorded ids. */
static void put_steps(str *t, const jtree *root, const made *m)
{
    str_puts(t, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (const jtree *step = jtree_get(root, "splits")->first; step; step = step->next) {
        const jtree *pattern = step->first, *behavior = pattern->next;
        bool other = !step->next && m->regex;
        str_puts(t, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_json(t, other ? m->regex : pattern->s, other ? strlen(m->regex) : pattern->n);
        str_printf(t, "},\"behavior\":\"%s\",\"invert\":false},",
                   !step->next && m->behavior ? m->behavior : behavior->s);
    }
    str_puts(t, m->spelling ? m->spelling
                            : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                              "\"trim_offsets\":false,\"use_regex\":false}");
    str_puts(t, "]}");
}

/* The merges of a piece, as transformers makes them of scores. */
static void put_cuts(str *t, const vocab *v, int32_t id, int32_t *any)
{
    size_t n;
    const char *p = vocab_piece(v, id, &n);
    for (size_t k = 1; k < n && vocab_type(v, id) == TOKEN_NORMAL; k++)
        if (vocab_find(v, p, k) >= 0 && vocab_find(v, p + k, n - k) >= 0) {
            str_puts(t, (*any)++ ? ",[" : "[");
            put_json(t, p, k);
            str_putc(t, ',');
            put_json(t, p + k, n - k);
            str_putc(t, ']');
        }
}

/* Special pieces in added_tokens, the others in the model's vocabulary. */
static void put_tokenizer(const char *dir, const jtree *root, const made *m)
{
    AUTO(str_free) str t = {0}, normal = {0}, added = {0};
    const char *types = jtree_get(root, "types")->s;
    int id = 0;
    for (const jtree *p = jtree_get(root, "pieces")->first; p; p = p->next, id++) {
        str *to = strchr("16", types[id]) ? &normal : &added;
        if (to->n)
            str_putc(to, ',');
        if (to == &normal) {
            put_json(to, p->s, p->n);
            str_printf(to, ":%d", id);
        } else {
            str_printf(to, "{\"id\":%d,\"content\":", id);
            put_json(to, p->s, p->n);
            str_printf(to, ",\"special\":%s}", types[id] == '3' ? "true" : "false");
        }
    }
    str_printf(&t, "{\"added_tokens\":[%s],\"normalizer\":%s,", str_text(&added),
               m->normalizer ? m->normalizer : "{\"type\":\"NFC\"}");
    if (m->pre_tokenizer)
        str_printf(&t, "\"pre_tokenizer\":%s", m->pre_tokenizer);
    else
        put_steps(&t, root, m);
    str_printf(&t, ",\"model\":{\"type\":\"BPE\",\"unk_token\":null,%s\"vocab\":{",
               m->model_add ? m->model_add : "\"byte_fallback\":false,\"dropout\":null,");
    str_put(&t, str_text(&normal), normal.n);
    str_puts(&t, "},\"merges\":[");
    for (int32_t i = 0, any = 0; m->scored && i < vocab_n(m->scored); i++)
        put_cuts(&t, m->scored, i, &any);
    str_puts(&t, m->scored ? "]}}" : "");
    for (const jtree *x = jtree_get(root, "merges")->first; x; x = x->next) {
        const char *space = memchr(x->s, ' ', x->n);
        if (m->pairs) {
            str_putc(&t, '[');
            put_json(&t, x->s, (size_t)(space - x->s));
            str_putc(&t, ',');
            put_json(&t, space + 1, x->n - (size_t)(space + 1 - x->s));
            str_putc(&t, ']');
        } else {
            put_json(&t, x->s, x->n);
        }
        str_puts(&t, x->next ? "," : "]}}");
    }
    put_file(dir, "tokenizer.json", &t);
}

typedef struct recorded {
    char *text;
    arena mem;
    const jtree *root;
    vocab *v;
} recorded;

static void open_recorded(recorded *r, const char *name)
{
    char path[256];
    size_t n;
    err e = {0};
    *r = (recorded){0};
    snprintf(path, sizeof path, "tests/data/vocab/%s.json", name);
    CHECK_OK(file_read_all(test_path(path), 4 << 20, &r->text, &n, &e), e);
    CHECK_OK(jtree_parse(r->text, n, path, 8, &r->mem, &r->root, &e), e);
    CHECK_OK(vocab_from_json(r->root, &r->v, &e), e);
}

static void close_recorded(recorded *r)
{
    vocab_close(r->v);
    arena_free(&r->mem);
    mem_free(r->text);
}

/* Converts the tokenizer of a made directory to a file without tensors. */
static status convert(const recorded *r, const made *m, const char *out, err *e)
{
    static int n_dirs;
    char name[32];
    AUTO(convert_vocab_free) convert_vocab v = {0};
    gguf_writer *w = NULL;
    snprintf(name, sizeof name, "words%d", n_dirs++);
    const char *dir = test_temp(name);
    mkdir(dir, 0755);
    str config = {0};
    str_printf(&config, "{\"model_type\":\"%s\"}", m->model_type);
    put_file(dir, "config.json", &config);
    str_free(&config);
    put_tokenizer(dir, r->root, m);
    put_text_file(dir, "tokenizer_config.json", m->tokenizer_config ? m->tokenizer_config : "{}");
    put_text_file(dir, "generation_config.json", m->generation ? m->generation : "{}");
    status st = convert_vocab_read(&v, dir, e);
    if (!st) {
        CHECK_OK(gguf_create(&w, out, e), *e);
        gguf_put_string(w, "general.architecture", v.family->archs[0], strlen(v.family->archs[0]));
        if (!(st = convert_vocab_fit(&v, v.n, e)))
            st = convert_vocab_put(&v, w, e);
        CHECK_OK(gguf_write_header(w, e), *e);
        CHECK_OK(gguf_commit(w, e), *e);
    }
    return st;
}

static void check_same(const vocab *a, const vocab *b, const char *text)
{
    AUTO(id_list_free) id_list x = {0}, y = {0};
    err e = {0};
    CHECK_OK(vocab_encode(a, text, strlen(text), SPECIAL_ALL, &x, &e), e);
    CHECK_OK(vocab_encode(b, text, strlen(text), SPECIAL_ALL, &y, &e), e);
    CHECK_EQ(x.n, y.n);
    CHECK(!memcmp(x.at, y.at, (size_t)x.n * sizeof *x.at));
}

TEST(convert_byte_level_tokenizers)
{
    static const struct {
        made m;
        const char *pre;
        const char *eos, *eot; /* pieces; NULL: the file has no such key */
        bool add_bos;
    } one[] = {
        {{"qwen2", "qwen3", false,
          .tokenizer_config = "{\"eos_token\":\"<|im_end|>\",\"model_max_length\":"
                              "1000000000000000019884624838656}",
          .generation = "{\"eos_token_id\":[2,1]}"},
         "qwen2",
         "<|im_end|>",
         NULL,
         false},
        {{"qwen35", "qwen3_5_moe", true,
          .tokenizer_config = "{\"eos_token\":\"<|endoftext|>\",\"add_bos_token\":true}"},
         "qwen35",
         "<|endoftext|>",
         NULL,
         false},
        {{"laguna", "laguna", true, .normalizer = "null",
          .tokenizer_config = "{\"add_bos_token\":true}", .generation = "{\"eos_token_id\":[2,7]}"},
         "laguna",
         "\xE3\x80\x88|EOS|\xE3\x80\x89",
         "</assistant>",
         true},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        recorded r;
        gguf g;
        vocab *v;
        const chat_format *chat;
        err e = {0};
        gguf_string s;
        bool bos;
        int64_t id;
        open_recorded(&r, one[i].m.vocab);
        const char *out = test_temp(one[i].pre);
        CHECK_OK(convert(&r, &one[i].m, out, &e), e);
        CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
        CHECK(gguf_get_string(&g, "tokenizer.ggml.model", &s) && s.n == 4);
        CHECK(gguf_get_string(&g, "tokenizer.ggml.pre", &s));
        CHECK(s.n == strlen(one[i].pre) && !memcmp(s.at, one[i].pre, (size_t)s.n));
        CHECK(!gguf_find(&g, "tokenizer.ggml.scores"));
        CHECK(gguf_get_bool(&g, "tokenizer.ggml.add_bos_token", &bos) && bos == one[i].add_bos);
        CHECK_OK(text_from_gguf(&g, vocab_n(r.v), &v, &chat, &e), e);
        CHECK_EQ(vocab_n(v), vocab_n(r.v));
        for (int32_t k = 0; k < vocab_n(r.v); k++) {
            size_t n, m;
            const char *p = vocab_piece(v, k, &n), *q = vocab_piece(r.v, k, &m);
            CHECK(n == m && !memcmp(p, q, n));
            CHECK_MSG(vocab_type(v, k) == vocab_type(r.v, k), "%.*s", (int)n, p);
            CHECK_EQ(vocab_is_eog(v, k), vocab_is_eog(r.v, k));
        }
        CHECK(gguf_get_i64(&g, "tokenizer.ggml.eos_token_id", &id));
        CHECK_EQ(id, vocab_mark(v, one[i].eos));
        CHECK_EQ(vocab_eos(v), id);
        CHECK_EQ(gguf_get_i64(&g, "tokenizer.ggml.eot_token_id", &id), one[i].eot != NULL);
        if (one[i].eot)
            CHECK_EQ(id, vocab_mark(v, one[i].eot));
        check_same(v, r.v,
                   "Hello <think>\r\n\xE4\xBD\xA0\xE5\xA5\xBD</think> it's 42\n\n  e\xCC\x81");
        vocab_close(v);
        gguf_close(&g);
        close_recorded(&r);
    }
}

TEST(convert_refuses_other_byte_level_tokenizers)
{
    static const struct {
        made m;
        const char *says;
    } one[] = {
        {{"qwen35", "qwen3_5", .regex = "\\p{N}{1,3}|\\S+"}, "\"\\p{N}{1,3}|\\S+\""},
        {{"qwen35", "qwen3_5", .behavior = "Removed"}, "the pre-tokenizer is Split"},
        {{"qwen35", "qwen3_5",
          .spelling = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"},
         "the pre-tokenizer is Split"},
        {{"qwen35", "qwen3_5",
          .spelling = "{\"type\":\"Digits\"},{\"type\":\"Digits\"},{\"type\":\"Digits\"},{\"type\":"
                      "\"Digits\"},{\"type\":\"Digits\"},{\"type\":\"Digits\"},{\"type\":\"Digits\""
                      "},{\"type\":\"Digits\"},{\"type\":\"Digits\"}"},
         "the pre-tokenizer is Split"},
        {{"qwen35", "qwen3_5", .normalizer = "{\"type\":\"Lowercase\"}"}, "Lowercase"},
        {{"qwen35", "qwen3_5", .model_add = "\"byte_fallback\":true,"}, "byte_fallback"},
        {{"qwen35", "qwen3_5", .model_add = "\"ignore_merges\":true,"}, "ignore_merges"},
        {{"qwen35", "qwen3_5", .model_add = "\"end_of_word_suffix\":\"</w>\","}, "</w>"},
        {{.vocab = "laguna", .model_type = "qwen3"},
         "MergedWithNext"}, /* the splitter of another family */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        recorded r;
        err e = {0};
        open_recorded(&r, one[i].m.vocab);
        CHECK_STATUS(convert(&r, &one[i].m, test_temp("out.gguf"), &e), E_UNSUPPORTED);
        if (strcmp(one[i].says, "MergedWithNext"))
            CHECK_MSG(strstr(e.text, one[i].says), "%s", e.text);
        CHECK_MSG(strstr(e.text, "Qwen"), "%s", e.text);
        close_recorded(&r);
    }
}

/* As mistralai/Mistral-Small-3.2-24B-Instruct-2506 is published. */
TEST(convert_refuses_a_directory_with_another_form_of_tokenizer)
{
    AUTO(convert_vocab_free) convert_vocab v = {0};
    err e = {0};
    const char *dir = test_temp("tekken");
    mkdir(dir, 0755);
    put_text_file(dir, "config.json", "{\"model_type\":\"mistral\"}");
    CHECK_OK(convert_vocab_read(&v, dir, &e), e);
    CHECK_EQ(v.n, 0);
    convert_vocab_free(&v);
    put_text_file(dir, "tekken.json", "{}");
    CHECK_STATUS(convert_vocab_read(&v, dir, &e), E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "has tekken.json and no tokenizer.json"), "%s", e.text);
}

#define GAP "\xE2\x96\x81"
#define PREPEND                                                                                    \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" GAP             \
    "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" GAP "\"}]}"
#define METASPACE(scheme)                                                                          \
    "{\"type\":\"Metaspace\",\"replacement\":\"" GAP "\",\"prepend_scheme\":\"" scheme             \
    "\",\"split\":false}"
#define FALLBACK "\"byte_fallback\":true,\"fuse_unk\":true,"

/* Both published forms; the ids are those that SentencePiece gave. */
TEST(convert_tokenizers_with_scores)
{
    static const made forms[] = {
        {"llama-spm", "llama", .model_add = FALLBACK, .normalizer = PREPEND,
         .pre_tokenizer = "null"},
        {"llama-spm", "mistral", .model_add = FALLBACK, .normalizer = "null",
         .pre_tokenizer = METASPACE("first")},
        {"llama-spm", "mixtral", .model_add = FALLBACK, .normalizer = "null",
         .pre_tokenizer = METASPACE("never")},
    };
    for (int i = 0; i < 3; i++) {
        recorded r;
        gguf g;
        vocab *v;
        const chat_format *chat;
        err e = {0};
        gguf_string s;
        bool space;
        made m = forms[i];
        open_recorded(&r, m.vocab);
        m.scored = r.v;
        const char *out = test_temp("scores.gguf");
        CHECK_OK(convert(&r, &m, out, &e), e);
        CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
        CHECK(gguf_get_string(&g, "tokenizer.ggml.model", &s) && s.n == 5 &&
              !memcmp(s.at, "llama", 5));
        CHECK(!gguf_find(&g, "tokenizer.ggml.merges"));
        CHECK(gguf_get_bool(&g, "tokenizer.ggml.add_space_prefix", &space) && space == (i < 2));
        CHECK_OK(text_from_gguf(&g, vocab_n(r.v), &v, &chat, &e), e);
        for (int32_t k = 0; k < vocab_n(v); k++)
            CHECK_EQ(vocab_type(v, k), vocab_type(r.v, k));
        for (const jtree *c = jtree_get(r.root, "cases")->first; c && i < 2; c = c->next)
            check_same(v, r.v, c->first->s);
        vocab_close(v);
        gguf_close(&g);
        close_recorded(&r);
    }
}

TEST(convert_of_llama_and_mistral_goes_by_the_tokenizer)
{
    static const struct {
        made m;
        const char *pre, *says;
    } one[] = {
        {{"tekken", "mistral", .normalizer = "null", .model_add = "\"ignore_merges\":true,"},
         "tekken",
         NULL},
        {{"llama-bpe", "llama", .normalizer = "null", .model_add = "\"ignore_merges\":true,"},
         "llama-bpe",
         NULL},
        {{"tekken", "llama", .normalizer = "null"}, NULL, "ignore_merges is false"},
        {{"qwen2", "mistral", .normalizer = "null"}, NULL, "the pre-tokenizer is Split"},
        {{"llama-spm", "llama", .model_add = FALLBACK, .normalizer = "{\"type\":\"NFKC\"}",
          .pre_tokenizer = "null"},
         NULL,
         "the normalizer is NFKC and the pre-tokenizer is none"},
    };
    for (int i = 0; i < 5; i++) {
        recorded r;
        gguf g;
        gguf_string s;
        err e = {0};
        open_recorded(&r, one[i].m.vocab);
        const char *out = test_temp("which.gguf");
        made m = one[i].m;
        m.scored = !strcmp(m.vocab, "llama-spm") ? r.v : NULL;
        status st = convert(&r, &m, out, &e);
        CHECK_MSG(!st == !one[i].says && (!st || strstr(e.text, one[i].says)), "%s", e.text);
        if (!st) {
            CHECK_OK(gguf_open(&g, out, false, NULL, NULL, &e), e);
            CHECK(gguf_get_string(&g, "tokenizer.ggml.pre", &s) && s.n == strlen(one[i].pre));
            gguf_close(&g);
        }
        close_recorded(&r);
    }
}
