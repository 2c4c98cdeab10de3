/* llama.c - Llama 3's entry in the table of families, and its conversations.
 *
 *     <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\n ... <|eot_id|>
 *     <|start_header_id|>assistant<|end_header_id|>\n\n
 *
 * From Llama 3.1 on, the first turn is always the system's, and begins with two dates. The second
 * is the day of the template, as the templates print it where they have no clock: a prompt is the
 * same tomorrow. Requests with tools are refused.
 *
 * Differences from the template: the role developer is the role system; the texts of content parts
 * are joined; with continue_last, the turn of a last assistant message stays open, and white space
 * at its end is kept.
 *
 * Llama 2 and Mistral have other tokenizers and formats: mistral.c.
 */
#include "text/llama.h"
#include "text/chat_int.h"
#include "text/split.h"

#include <string.h>

#define HEADER "<|start_header_id|>"
#define HEADER_END "<|end_header_id|>\n\n"
#define TURN_END "<|eot_id|>"
#define DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static const tokenizer_name tokenizers[] = {{"gpt2", "llama-bpe", VOCAB_BYTES, split_llama3,
                                             split_llama3_steps, NEEDS_MERGES | WHOLE_WORDS},
                                            {0}};

/* The first special pieces, which are followed by reserved ones. */
static const special_piece special[] = {{"<|begin_of_text|>", TOKEN_CONTROL},
                                        {"<|end_of_text|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_0|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_1|>", TOKEN_CONTROL},
                                        {"<|finetune_right_pad_id|>", TOKEN_CONTROL},
                                        {"<|reserved_special_token_2|>", TOKEN_CONTROL},
                                        {"<|start_header_id|>", TOKEN_CONTROL},
                                        {"<|end_header_id|>", TOKEN_CONTROL},
                                        {"<|eom_id|>", TOKEN_CONTROL},
                                        {"<|eot_id|>", TOKEN_CONTROL},
                                        {"<|python_tag|>", TOKEN_CONTROL},
                                        {0}};
static const made_words made[] = {{"llama", "gpt2", "llama-bpe", special, 128000, NULL}, {0}};

enum { LLAMA_PLAIN, LLAMA_DATED }; /* revisions */

const chat_format llama3_format = {"llama3", &llama_text, LLAMA_PLAIN, NULL, false};
const chat_format llama31_format = {"llama3.1", &llama_text, LLAMA_DATED, NULL, false};

static bool holds(const char *t, size_t n, const char *word)
{
    return n && memmem(t, n, word, strlen(word));
}

/* Other templates with these headers (Functionary, FireFunction) write their turns in other ways:
 * the expression that ends a turn is the landmark. */
static const chat_format *recognise(const char *t, size_t n)
{
    if (!holds(t, n, HEADER) || !holds(t, n, "message['content'] | trim + '<|eot_id|>'"))
        return NULL;
    return holds(t, n, "\"Cutting Knowledge Date: December 2023") ? &llama31_format
                                                                  : &llama3_format;
}

static void open_turn(chat_writer *w, chat_role role)
{
    chat_lit(w, HEADER);
    chat_lit(w, chat_role_names[role == CHAT_DEVELOPER ? CHAT_SYSTEM : role]);
    chat_lit(w, HEADER_END);
}

static void render(chat_writer *w, const chat_format *f, const jtree *messages, const jtree *tools,
                   const carat_chat_options *opt)
{
    chat_message *m;
    size_t n;
    if (!chat_read_messages(w, messages, tools, &m, &n))
        return;
    if (jtree_truthy(tools))
        chat_fail(w, E_UNSUPPORTED,
                  "tools: carat has no tools in Llama's chat format; describe them, and the answer "
                  "that you expect, in a message");
    bool dated = f->revision == LLAMA_DATED;
    chat_lit(w, "<|begin_of_text|>");
    if (dated) {
        open_turn(w, CHAT_SYSTEM);
        chat_lit(w, DATES);
        if (m[0].role != CHAT_SYSTEM && m[0].role != CHAT_DEVELOPER)
            chat_lit(w, TURN_END);
    }
    for (size_t i = 0; i < n && !w->st; i++) {
        if (m[i].calls || m[i].responses || m[i].role == CHAT_TOOL) {
            chat_fail(w, E_UNSUPPORTED,
                      "messages[%zu]: carat has no calls and results in Llama's chat format", i);
            return;
        }
        if (i || !dated || (m[0].role != CHAT_SYSTEM && m[0].role != CHAT_DEVELOPER))
            open_turn(w, m[i].role);
        chat_text t = chat_text_of(w, &m[i], NULL), trimmed = chat_trimmed(t);
        if (opt->continue_last && i + 1 == n && m[i].role == CHAT_ASSISTANT) {
            chat_put(w, trimmed.s, trimmed.n ? (size_t)(t.s + t.n - trimmed.s) : 0);
            return;
        }
        chat_put(w, trimmed.s, trimmed.n);
        chat_lit(w, TURN_END);
    }
    if (!opt->no_generation_prompt)
        open_turn(w, CHAT_ASSISTANT);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

const text_family llama_text = {.archs = LIST("llama"),
                                .name = "Llama",
                                .model_types = LIST("llama", "mistral"),
                                .tokenizers = tokenizers,
                                .bos = "<|begin_of_text|>",
                                .eos = TURN_END,
                                .pad = "<|finetune_right_pad_id|>",
                                .bos_always = true, /* files do not state it */
                                .ends = LIST(TURN_END, "<|eom_id|>", "<|end_of_text|>"),
                                .ends_not = LIST(NULL),
                                .shown = LIST(NULL),
                                .media = LIST(NULL),
                                .made = made,
                                .turn_open = HEADER,
                                .turn_close = TURN_END,
                                .recognise = recognise,
                                .render = render};
