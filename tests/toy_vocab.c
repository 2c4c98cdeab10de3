/* toy_vocab.c - see toy_vocab.h. */
#include "tests/toy_vocab.h"
#include "tests/test.h"
#include "tests/vocab_parts.h"
#include "base/mem.h"

toy *toy_new(void)
{
    toy *t = mem_calloc(1, sizeof *t);
    CHECK(t);
    return t;
}

void toy_free(toy *t)
{
    if (!t)
        return;
    for (int32_t i = 0; i < t->n_pieces; i++)
        mem_free(t->piece[i].at);
    vocab_close(t->v);
    mem_free(t);
}

int32_t toy_find(const toy *t, const char *piece, size_t n)
{
    for (int32_t i = 0; i < t->n_pieces; i++)
        if (t->piece[i].n == n && !memcmp(t->piece[i].at, piece, n))
            return i;
    return -1;
}

int32_t toy_add(toy *t, const char *piece, size_t n, int type)
{
    int32_t id = toy_find(t, piece, n);
    if (id >= 0)
        return id;
    CHECK(t->n_pieces < TOY_MAX_PIECES);
    t->piece[t->n_pieces] = (toy_piece){mem_strndup(piece, n), n, type};
    CHECK(t->piece[t->n_pieces].at);
    return t->n_pieces++;
}

bool toy_merge_pieces(toy *t, int32_t left, int32_t right, int type)
{
    if (t->n_merges == TOY_MAX_MERGES)
        return false;
    for (int32_t i = 0; i < t->n_merges; i++)
        if (t->merge[i].left == left && t->merge[i].right == right)
            return false;
    str s = {0};
    str_put(&s, t->piece[left].at, t->piece[left].n);
    str_put(&s, t->piece[right].at, t->piece[right].n);
    if (toy_find(t, s.at, s.n) < 0 && t->n_pieces == TOY_MAX_PIECES) {
        str_free(&s);
        return false;
    }
    int32_t merged = toy_add(t, s.at, s.n, type);
    t->merge[t->n_merges++] = (toy_merge){left, right, merged};
    str_free(&s);
    return true;
}

status toy_build(toy *t, err *e)
{
    vocab_builder *b;
    vocab_settings s = gemma_settings();
    status st = vocab_begin(&b, t->n_pieces, t->n_merges, e);
    if (st)
        return st;
    for (int32_t i = 0; i < t->n_pieces; i++)
        vocab_add_token(b, t->piece[i].at, t->piece[i].n, t->piece[i].type);
    for (int32_t i = 0; i < t->n_merges; i++) {
        const toy_piece *l = &t->piece[t->merge[i].left], *r = &t->piece[t->merge[i].right];
        char text[512];
        CHECK(l->n + r->n + 1 < sizeof text);
        memcpy(text, l->at, l->n);
        text[l->n] = ' ';
        memcpy(text + l->n + 1, r->at, r->n);
        vocab_add_merge(b, text, l->n + r->n + 1);
    }
    return vocab_finish(b, &s, &t->v, e);
}

toy *toy_gemma(void)
{
    static const char *const control[] = {
        "<pad>",     "<eos>",     "<bos>",    "<unk>",    "<mask>",    "<|tool>",
        "<tool|>",   "<|think|>", "<|turn>",  "<turn|>",  "<|image|>", "<|audio|>",
        "<|video|>", "<|image>",  "<image|>", "<|audio>", "<audio|>"};
    static const char *const user[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                       "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                       "<|\"|>"};
    static const char *const words[] = {"model", "user", "system", "thought", "call", "the", "he"};
    toy *t = toy_new();
    err e = {0};
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        toy_add(t, control[i], strlen(control[i]),
                !strcmp(control[i], "<unk>") ? TOKEN_UNKNOWN : TOKEN_CONTROL);
    for (size_t i = 0; i < sizeof user / sizeof *user; i++)
        toy_add(t, user[i], strlen(user[i]), TOKEN_USER_DEFINED);
    for (int i = 0; i < 256; i++) {
        char piece[8];
        toy_add(t, byte_piece(i, piece), BYTE_PIECE_LEN, TOKEN_BYTE);
    }
    int32_t mark = toy_add(t, "\xE2\x96\x81", 3, TOKEN_NORMAL);
    for (char c = '!'; c <= '~'; c++)
        toy_add(t, &c, 1, TOKEN_NORMAL);
    int32_t lf = toy_add(t, "\n", 1, TOKEN_NORMAL);
    toy_merge_pieces(t, lf, lf, TOKEN_NORMAL);
    toy_merge_pieces(t, mark, mark, TOKEN_NORMAL);
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        int32_t left = toy_find(t, words[w], 1);
        for (size_t i = 1; words[w][i]; i++) {
            toy_merge_pieces(t, left, toy_find(t, words[w] + i, 1), TOKEN_NORMAL);
            left = toy_find(t, words[w], i + 1);
        }
        toy_merge_pieces(t, mark, left, TOKEN_NORMAL);
    }
    CHECK_OK(toy_build(t, &e), e);
    return t;
}
