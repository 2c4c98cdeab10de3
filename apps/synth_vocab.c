/* synth_vocab.c - see synth_vocab.h.
 *
 * A model with random weights answers with noise, but its prompts are read as those of the real
 * one: chat templates, calls and grammars work on it.
 */
#include "apps/synth_vocab.h"
#include "base/arena.h"
#include "base/mem.h"
#include "text/family.h"

#include <stdio.h>
#include <string.h>

/* Each gives merges from the left, and one more for a space before it. */
static const char *const words[] = {
    "the",    "of",        "and",   "to",     "in",     "is",     "that",   "it",        "was",
    "for",    "on",        "with",  "as",     "at",     "by",     "an",     "be",        "this",
    "from",   "or",        "had",   "not",    "are",    "but",    "what",   "all",       "were",
    "when",   "we",        "there", "can",    "said",   "which",  "do",     "their",     "if",
    "will",   "each",      "how",   "them",   "then",   "many",   "some",   "so",        "would",
    "other",  "into",      "has",   "more",   "two",    "like",   "see",    "time",      "could",
    "make",   "than",      "first", "been",   "who",    "now",    "people", "my",        "over",
    "only",   "way",       "find",  "use",    "may",    "long",   "little", "very",      "after",
    "just",   "where",     "most",  "know",   "user",   "system", "model",  "assistant", "weather",
    "city",   "name",      "type",  "string", "object", "value",  "number", "function",  "return",
    "answer", "arguments", "true",  "false",  "null",   "Hello",  "world",  "The",       "You"};

typedef struct maker {
    gguf_string *piece, *merge;
    int32_t *type;
    int32_t n, at; /* pieces; the next free id */
    uint64_t n_merges, merge_cap;
    const special_piece *special;
    int32_t first, n_special;
    arena mem;
    bool failed;
} maker;

/* The next id that is no special piece's; -1: none is left. */
static int32_t free_id(maker *m)
{
    if (m->at == m->first)
        m->at += m->n_special;
    return m->at < m->n ? m->at++ : -1;
}

static gguf_string keep(maker *m, const char *text, size_t n)
{
    char *p = arena_strndup(&m->mem, text, n);
    m->failed |= !p;
    return (gguf_string){p ? p : "", p ? n : 0};
}

static bool is_there(const maker *m, const char *text, size_t n)
{
    for (int32_t i = 0; i < m->at; i++)
        if (m->piece[i].n == n && !memcmp(m->piece[i].at, text, n))
            return true;
    return false;
}

/* Adds the pieces and merges of a word from its first `head` bytes on, one character at a time. */
static void add_word(maker *m, const char *word, size_t head)
{
    char merge[64];
    for (size_t n = head + 1; n <= strlen(word) && m->n_merges < m->merge_cap; n++) {
        if (is_there(m, word, n))
            continue;
        int32_t id = free_id(m);
        if (id < 0)
            return;
        m->piece[id] = keep(m, word, n);
        int len = snprintf(merge, sizeof merge, "%.*s %c", (int)(n - 1), word, word[n - 1]);
        m->merge[m->n_merges++] = keep(m, merge, (size_t)len);
    }
}

/* The same with a space before it: pieces spell it as U+0120. */
static void add_spaced(maker *m, const char *word)
{
    char text[64];
    int n = snprintf(text, sizeof text, "\xC4\xA0%s", word);
    int32_t id;
    if (m->n_merges == m->merge_cap || is_there(m, text, (size_t)n) || (id = free_id(m)) < 0)
        return;
    m->piece[id] = keep(m, text, (size_t)n);
    n = snprintf(text, sizeof text, "\xC4\xA0 %s", word);
    m->merge[m->n_merges++] = keep(m, text, (size_t)n);
}

static void make(maker *m)
{
    enum { WORDS = sizeof words / sizeof *words, TEXT_BYTES = 16 };
    char text[TEXT_BYTES];
    for (int32_t i = 0; i < m->n_special; i++) {
        m->piece[m->first + i] = keep(m, m->special[i].piece, strlen(m->special[i].piece));
        m->type[m->first + i] = (int32_t)m->special[i].type;
    }
    /* The published order: first the bytes that print as themselves. */
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            char c[4];
            size_t n = vocab_spell_byte((unsigned char)b, c);
            bool prints = (unsigned char)*c < 0xC4; /* below U+0100 */
            if (prints == !pass)
                m->piece[free_id(m)] = keep(m, c, n);
        }
    for (size_t i = 0; i < WORDS; i++) {
        add_word(m, words[i], 1);
        add_spaced(m, words[i]);
    }
    for (int32_t id; (id = free_id(m)) >= 0;) {
        bool pad = m->first && id > m->first;
        int n = snprintf(text, sizeof text, pad ? "[PAD%d]" : "\xC4\xA0w%d", id);
        m->piece[id] = keep(m, text, (size_t)n);
        if (pad)
            m->type[id] = TOKEN_UNUSED;
    }
}

static const made_words *find_made(const char *arch)
{
    const text_family *f = text_family_of(arch, strlen(arch));
    for (const made_words *k = f ? f->made : NULL; k && k->arch; k++)
        if (!strcmp(k->arch, arch))
            return k;
    return NULL;
}

static void put(gguf_writer *w, const maker *m, const made_words *k)
{
    const text_family *f = text_family_of(k->arch, strlen(k->arch));
    gguf_put_string(w, "tokenizer.ggml.model", k->model, strlen(k->model));
    gguf_put_string(w, "tokenizer.ggml.pre", k->pre, strlen(k->pre));
    gguf_put_strings(w, "tokenizer.ggml.tokens", m->piece, (uint64_t)m->n);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", m->type, (uint64_t)m->n);
    gguf_put_strings(w, "tokenizer.ggml.merges", m->merge, m->n_merges);
    const struct {
        const char *key, *piece;
    } id[] = {{"tokenizer.ggml.bos_token_id", f->bos},
              {"tokenizer.ggml.eos_token_id", f->eos},
              {"tokenizer.ggml.eot_token_id", f->turn_close},
              {"tokenizer.ggml.padding_token_id", f->pad}};
    for (size_t i = 0; i < sizeof id / sizeof *id; i++)
        for (int32_t s = 0; id[i].piece && s < m->n_special; s++)
            if (!strcmp(m->special[s].piece, id[i].piece))
                gguf_put_u32(w, id[i].key, (uint32_t)(m->first + s));
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", f->bos_always);
    if (k->template)
        gguf_put_string(w, "tokenizer.chat_template", k->template, strlen(k->template));
}

status synth_vocab_check(const gguf *file, const char *arch, err *e)
{
    gguf_string kind = {"", 0}, pre = {"", 0};
    char model[64], split[64];
    if (!gguf_get_string(file, "tokenizer.ggml.model", &kind))
        return OK; /* the model has none either */
    bool has_pre = gguf_get_string(file, "tokenizer.ggml.pre", &pre);
    snprintf(model, sizeof model, "%.*s", (int)(kind.n < 63 ? kind.n : 63), kind.at);
    snprintf(split, sizeof split, "%.*s", (int)(pre.n < 63 ? pre.n : 63), pre.at);
    const text_family *f = text_family_for(arch, strlen(arch), model, has_pre ? split : NULL);
    for (const tokenizer_name *t = f ? f->tokenizers : NULL; t && t->model; t++)
        if (text_is_tokenizer(t, model, has_pre ? split : NULL))
            return OK;
    if (!strcmp(model, "no_vocab"))
        return OK;
    return err_set(e, E_ARG,
                   "%s: its tokenizer is \"%s\"%s%s%s, which models of the architecture %s do not "
                   "have (--vocab)",
                   file->path, model, has_pre ? " (pre \"" : "", split, has_pre ? "\")" : "", arch);
}

static bool same_words(const char *a, const char *b)
{
    return text_family_of(a, strlen(a)) == text_family_of(b, strlen(b));
}

status synth_vocab_put(gguf_writer *w, const char *arch, const char *written, int32_t n, err *e)
{
    enum { MERGES_MAX = 1024, MERGES_MIN = 8 };
    const made_words *k = same_words(arch, written) ? find_made(arch) : NULL;
    maker m = {.n = n, .merge_cap = MERGES_MAX};
    status st = OK;
    while (k && k->special[m.n_special].piece)
        m.n_special++;
    if (!k || n < m.n_special + 256 + MERGES_MIN) {
        gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
        return OK;
    }
    m.special = k->special;
    m.first = k->first <= n - m.n_special ? k->first : n - m.n_special;
    m.piece = mem_calloc((size_t)n, sizeof *m.piece);
    m.type = mem_alloc((size_t)n * sizeof *m.type);
    m.merge = mem_calloc(MERGES_MAX, sizeof *m.merge);
    if (!m.piece || !m.type || !m.merge) {
        st = err_memory(e, "a vocabulary", (size_t)n * sizeof *m.piece);
        goto out;
    }
    for (int32_t i = 0; i < n; i++)
        m.type[i] = TOKEN_NORMAL;
    make(&m);
    if (m.failed)
        st = err_memory(e, "a vocabulary", (size_t)n * sizeof *m.piece);
    else
        put(w, &m, k);
out:
    arena_free(&m.mem);
    mem_free(m.merge);
    mem_free(m.type);
    mem_free(m.piece);
    return st;
}
