/* mistral_test.c - Llama 2's and Mistral's vocabularies: against SentencePiece, and where a space
 * stands before a text.
 */
#include "text/mistral.h"
#include "tests/chat_replay.h"
#include "tests/test.h"
#include "tests/vocab_json.h"
#include "tests/vocab_parts.h"

RELEASED_AT(vocab_close, vocab)

#define GAP_MARK "\xE2\x96\x81"

TEST(pieces_with_scores_agree_with_sentencepiece)
{
    const char *other = getenv("BPE_CASES"); /* of tools/spm_fixtures.py --all */
    replay_vocab_cases(other ? other : test_path("tests/data/vocab/llama-spm.json"));
}

/* <s>, </s>, all bytes, a space, "a", "b", "_a", "__", as a file with scores has them. */
static vocab *make(bool no_space, bool merges, err *e)
{
    static const char *const piece[] = {"<unk>", "<s>", "</s>",       GAP_MARK,
                                        "a",     "b",   GAP_MARK "a", GAP_MARK GAP_MARK};
    enum { PIECES = sizeof piece / sizeof *piece };
    float score[PIECES + 256] = {0, 0, 0, -9, -8, -7, -1, -2};
    vocab_builder *b;
    vocab *v = NULL;
    vocab_settings set = gemma_settings();
    set.family = text_family_for("llama", 5, "llama", "default");
    set.model = "llama";
    set.score = score;
    set.no_space_first = no_space;
    CHECK(set.family == &mistral_text);
    CHECK_OK(vocab_begin(&b, PIECES + 256, merges, e), *e);
    for (int i = 0; i < PIECES; i++)
        vocab_add_token(b, piece[i], strlen(piece[i]),
                        i ? i < 3 ? TOKEN_CONTROL : TOKEN_NORMAL : TOKEN_UNKNOWN);
    add_byte_pieces(b);
    if (merges) /* files with scores may have merges too */
        vocab_add_merge(b, GAP_MARK " a", strlen(GAP_MARK " a"));
    CHECK_OK(vocab_finish(b, &set, &v, e), *e);
    return v;
}

enum { BOS = 1, EOS, GAP, A, B, GAP_A, GAPS };

TEST(a_space_stands_before_texts_and_behind_special_pieces)
{
    static const struct {
        const char *text;
        bool no_space;
        text_before before;
        int32_t id[8];
    } cases[] = {
        {"a", false, BEFORE_NOTHING, {GAP_A}},
        {" a", false, BEFORE_NOTHING, {GAP, GAP_A}}, /* SentencePiece keeps both */
        {"", false, BEFORE_NOTHING, {0}},
        {"a", false, BEFORE_TEXT, {A}},
        {"a", false, BEFORE_SPECIAL, {GAP_A}},
        {" a", false, BEFORE_SPECIAL, {GAP_A}}, /* the template wrote the space */
        {"b</s>a<s> a", false, BEFORE_NOTHING, {GAP, B, EOS, GAP_A, BOS, GAP_A}},
        {"a</s>a", true, BEFORE_NOTHING, {A, EOS, A}},
    };
    err e = {0};
    for (int merges = 0; merges < 2; merges++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            AUTO_PTR(vocab_close) vocab *v = make(cases[i].no_space, merges, &e);
            AUTO(id_list_free) id_list ids = {0};
            size_t n = strlen(cases[i].text);
            const text_span all = {0, n};
            const marked_text t = {cases[i].text, n, SPECIAL_ALL, &all, 1, cases[i].before};
            CHECK_OK(vocab_encode_spans(v, &t, &ids, &e), e);
            int64_t want = 0;
            while (cases[i].id[want])
                want++;
            CHECK_EQ(ids.n, want);
            CHECK_MSG(!want || !memcmp(ids.at, cases[i].id, (size_t)want * sizeof *ids.at), "%s",
                      cases[i].text);
            CHECK_EQ(vocab_bos(v), BOS); /* though the file does not ask for it */
            CHECK(vocab_is_eog(v, EOS));
        }
}

TEST(files_of_the_architecture_llama_are_told_apart_by_the_tokenizer)
{
    CHECK_STR(text_family_for("llama", 5, "gpt2", "llama-bpe")->name, "Llama");
    CHECK(text_family_for("llama", 5, "gpt2", "tekken") == &mistral_text);
    CHECK(text_family_for("llama", 5, "llama", NULL) == &mistral_text);
    CHECK_STR(text_family_for("llama", 5, "gpt2", "smaug-bpe")->name, "Llama");
    CHECK(!text_family_for("lama", 4, "llama", NULL));
}

TEST(a_refused_tokenizer_is_not_among_those_that_are_known)
{
    static const struct {
        const char *arch, *pre, *knows;
    } cases[] = {
        {"mistral3", "llama-bpe", "it knows \"llama\", \"gpt2\" (pre \"tekken\")"},
        {"llama", "smaug-bpe",
         "it knows \"gpt2\" (pre \"llama-bpe\"), \"llama\", \"gpt2\" (pre \"tekken\")"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vocab_settings set = gemma_settings();
        vocab_builder *b;
        vocab *v = NULL;
        err e = {0};
        set.family = text_family_for(cases[i].arch, strlen(cases[i].arch), "gpt2", cases[i].pre);
        set.model = "gpt2";
        set.pre = cases[i].pre;
        CHECK_OK(vocab_begin(&b, 1, 0, &e), e);
        vocab_add_token(b, "a", 1, TOKEN_NORMAL);
        CHECK_EQ(vocab_finish(b, &set, &v, &e), E_UNSUPPORTED);
        CHECK_MSG(strstr(e.text, cases[i].knows) != NULL, "%s", e.text);
    }
}

/* ---- Prompts ---- */

static const replay_template templates[] = {
    {"llama2.jinja", &mistral_formats[LLAMA2]},
    {"mistral-v0.1.jinja", &mistral_formats[MISTRAL_V0]},
    {"mistral-v0.2.jinja", &mistral_formats[MISTRAL_V0_TIGHT]},
    {"mistral-v1.jinja", &mistral_formats[MISTRAL_V1]},
    {"mistral-v3.jinja", &mistral_formats[MISTRAL_V3]},
    {"mistral-v3-tekken.jinja", &mistral_formats[MISTRAL_V3_TEKKEN]},
    {"mistral-v7.jinja", &mistral_formats[MISTRAL_V7]},
    {"mistral-v7-tekken.jinja", &mistral_formats[MISTRAL_V7_TEKKEN]},
    {"mistral-v11.jinja", &mistral_formats[MISTRAL_V11]},
    {"mistral-v13.jinja", &mistral_formats[MISTRAL_V13]},
};

TEST(templates_of_mistral_are_recognised)
{
    chat_recognised(templates, N_MISTRAL_FORMATS);
    /* A system message of the template's own, which carat does not write. */
    static const char other[] =
        "{% set system_message = 'You are a helpful, respectful assistant' %}"
        "{% set system_message = false %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' "
        "}}";
    CHECK(!chat_format_of(&mistral_text, other, sizeof other - 1));
    CHECK(!chat_format_of(&mistral_text, "[INST]", 6) && !chat_format_of(&mistral_text, "", 0));
}

TEST(prompts_of_mistral_are_what_jinja_renders)
{
    chat_replay("tests/data/chat/mistral.jsonl", templates, N_MISTRAL_FORMATS, 25, NULL);
}
