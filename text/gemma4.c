/* gemma4.c - Gemma 4's entry in the table of families: pieces, marks, landmarks of the templates,
 * form of the calls.
 */
#include "text/gemma4.h"
#include "text/grammar_int.h"

#include <string.h>

/* A word is a run of line feeds, or a run of other characters: usually a whole paragraph. */
size_t gemma_word_length(const char *s, size_t n)
{
    size_t i = 1;
    if (*s != '\n') {
        const char *end = memchr(s, '\n', n);
        return end ? (size_t)(end - s) : n;
    }
    while (i < n && s[i] == '\n')
        i++;
    return i;
}

/* Some converters write the model "llama", and may omit the pre-splitter's name. */
static const tokenizer_name tokenizers[] = {
    {"gemma4", NULL, VOCAB_CHARS, gemma_word_length, NULL, 0},
    {"llama", "gemma4", VOCAB_CHARS, gemma_word_length, NULL, 0},
    {"llama", NULL, VOCAB_CHARS, gemma_word_length, NULL, NEEDS_MERGES},
    {0}};

static bool has_piece(const char *text, size_t n, const char *what)
{
    return n && memmem(text, n, what, strlen(what));
}

const chat_format gemma4_formats[N_GEMMA4_FORMATS] = {
    {"gemma4 first april", &gemma4_text, GEMMA4_APRIL_FIRST, NULL, false},
    {"gemma4 late april", &gemma4_text, GEMMA4_APRIL_LATE, NULL, false},
    {"gemma4 july small", &gemma4_text, GEMMA4_JULY_SMALL, NULL, false},
    {"gemma4 july large", &gemma4_text, GEMMA4_JULY_LARGE, NULL, false}};

static const chat_format *recognise(const char *t, size_t n)
{
    if (!has_piece(t, n, "<|turn>"))
        return NULL;
    /* The text is Jinja source, so a line feed inside a literal is spelled \n. */
    bool empty_thought = has_piece(t, n, "<|channel>thought\\n<channel|>") ||
                         has_piece(t, n, "<|channel>thought\n<channel|>");
    bool july = has_piece(t, n, "preserve_thinking");
    if (!july && has_piece(t, n, "ns_tool_scan"))
        return &gemma4_formats[GEMMA4_APRIL_LATE];
    if (!july && has_piece(t, n, "tool_responses"))
        return &gemma4_formats[GEMMA4_APRIL_FIRST];
    return &gemma4_formats[empty_thought ? GEMMA4_JULY_LARGE : GEMMA4_JULY_SMALL];
}

static gx *call_grammar(gx_builder *b, const char *name, gx *arguments)
{
    return gx_seq3(b, gx_text(b, "call:"), gx_text(b, name), arguments);
}

static const answer_syntax answer = {
    .opening = "<|turn>model\n",
    .thought_open = "<|channel>",
    .thought_label = "thought",
    .thought_close = "<channel|>",
    .call_open = "<|tool_call>",
    .call_close = "<tool_call|>",
    .quote = GEMMA_QUOTE,
    .stray = STRINGS("<|tool_response>", "<tool_response|>", "<|turn>", "<turn|>"),
    .thought_not = STRINGS("<channel|>", "<|channel>", "<turn|>"),
    .content_not = STRINGS("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                           "<|tool_response>", "<tool_response|>", "<|turn>", "<turn|>"),
    .name_not = "{}<>:,\"\n\r\t ",
    .read_call = gemma_read_call,
    .read_head = gemma_read_head,
    .call_space = "",
    .call_grammar = call_grammar};

const text_family gemma4_text = {
    .archs = STRINGS("gemma4"),
    .name = "Gemma 4",
    .model_types = STRINGS("gemma4"),
    .tokenizers = tokenizers,
    .bos = "<bos>",
    .eos = "<eos>",
    .unk = "<unk>",
    .pad = "<pad>",
    .mask = "<mask>",
    .bos_always = true,
    /* After a call the model ends its output with <|tool_response>. */
    .ends = STRINGS("<eos>", "<turn|>", "<|tool_response>"),
    .ends_not = STRINGS("</s>"), /* an ordinary piece, an HTML tag: answers may contain it */
    .shown = STRINGS("<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                     "<|tool_response>", "<tool_response|>", GEMMA_QUOTE),
    .media = STRINGS("<|image>", "<image|>", "<|audio>", "<audio|>", "<|image|>", "<|audio|>",
                     "<|video|>"),
    .turn_open = "<|turn>",
    .turn_close = "<turn|>",
    .recognise = recognise,
    .render = gemma_render,
    .answer = &answer};
