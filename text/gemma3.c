/* gemma3.c - Gemma 3's entry in the table of families, and its conversations.
 *
 *     <bos><start_of_turn>user\n [system text \n\n] ... <end_of_turn>\n
 *     <start_of_turn>model\n ... <end_of_turn>\n
 *     <start_of_turn>model\n
 *
 * There is no system role: the text of a first system message stands before the first turn's. There
 * is no published format of tools and calls, so requests with tools are refused.
 *
 * Differences from the template: the role developer is the role system; with continue_last, the
 * turn of a last assistant message stays open, and white space at its end is kept.
 */
#include "text/gemma3.h"
#include "text/gemma4.h"

#define TURN "<start_of_turn>"
#define TURN_END "<end_of_turn>"

/* Published files have the pieces of SentencePiece with scores. Those that carat converts have the
 * merges of tokenizer.json, under the name that other programs have for such a tokenizer. */
static const tokenizer_name tokenizers[] = {
    {"gemma4", NULL, VOCAB_CHARS, gemma_word_length, NULL, NEEDS_MERGES},
    {"llama", NULL, VOCAB_CHARS, gemma_word_length, NULL, BY_SCORE},
    {0}};

/* Gemma 2's template ends turns alike, and has no part for images. */
static const chat_format *recognise(const char *t, size_t n)
{
    return chat_says(t, n, TURN) ? &gemma3_format : NULL;
}

static void put_trimmed(chat_writer *w, const char *s, size_t n)
{
    text_trim(&s, &n);
    chat_put(w, s, n);
}

/* A text, or parts, each trimmed. last: the end of the text is kept. */
static void put_content(chat_writer *w, const talk_turn *m, bool last)
{
    if (last || m->shape != TALK_LIST) {
        talk_text t = chat_text_of(w, m, NULL), trimmed = chat_trimmed(t);
        chat_put(w, trimmed.s, last && trimmed.n ? (size_t)(t.s + t.n - trimmed.s) : trimmed.n);
        return;
    }
    chat_text_of(w, m, NULL); /* refuses parts that are no text */
    for (size_t i = 0; i < m->n_parts && !w->st; i++)
        put_trimmed(w, m->part[i].text.s, m->part[i].text.n);
}

static bool refuse_calls(chat_writer *w, const talk_turn *m)
{
    if (m->n_calls || m->n_results || m->role == TALK_TOOL)
        chat_fail_at(w, m, E_UNSUPPORTED,
                     ": Gemma 3 has no published format of calls and their results");
    return w->st != OK;
}

static void render(chat_writer *w, const chat_format *f, const carat_talk *t,
                   const carat_chat_options *opt)
{
    const talk_turn *m = t->turn;
    size_t n = t->n;
    (void)f;
    if (chat_tools(t))
        chat_fail(w, E_UNSUPPORTED,
                  "tools: Gemma 3 has no published format of tools; describe them, and the answer "
                  "that you expect, in a message");
    size_t first = talk_is_system(&m[0]);
    if (first == n)
        chat_fail(w, E_FORMAT, "messages: a system message needs a user message behind it");
    chat_lit(w, "<bos>");
    for (size_t i = first; i < n && !refuse_calls(w, &m[i]); i++) {
        bool model = (i - first) % 2, open = opt->continue_last && i + 1 == n && model;
        if (m[i].role != (model ? TALK_ASSISTANT : TALK_USER))
            chat_fail_at(
                w, &m[i], E_FORMAT,
                " has the role %s; Gemma 3 takes the roles user and assistant in turns, behind at "
                "most one system message",
                talk_role_names[m[i].role]);
        chat_lit(w, model ? TURN "model\n" : TURN "user\n");
        if (i == first && first) {
            talk_text system = chat_text_of(w, &m[0], NULL);
            chat_put(w, system.s, system.n);
            chat_lit(w, "\n\n");
        }
        put_content(w, &m[i], open);
        if (open)
            return;
        chat_lit(w, TURN_END "\n");
    }
    if (!opt->no_generation_prompt)
        chat_lit(w, TURN "model\n");
}

const chat_format gemma3_format = {"gemma3", &gemma3_text, 0, NULL, false};

const text_family gemma3_text = {
    .archs = STRINGS("gemma3", "gemma-embedding"),
    .name = "Gemma 3",
    .model_types = STRINGS("gemma3"),
    .tokenizers = tokenizers,
    .bos = "<bos>",
    .eos = "<eos>",
    .unk = "<unk>",
    .pad = "<pad>",
    .mask = "<mask>",
    .bos_always = true,
    .ends = STRINGS("<eos>", TURN_END),
    .ends_not = STRINGS("</s>"), /* an ordinary piece, an HTML tag: answers may contain it */
    .shown = STRINGS(NULL),
    .media = STRINGS("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    .turn_open = TURN,
    .turn_close = TURN_END,
    .recognise = recognise,
    .render = render};
