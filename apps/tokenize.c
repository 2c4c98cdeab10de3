/* tokenize.c - carat tokenize: the tokens of a text, or of a conversation in the model's chat
 * format.
 */
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/named.h"
#include "apps/term.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/show.h"
#include "base/utf8.h"

#include <string.h>

enum { TEXT_MAX = 256 << 20, JSON_FILE_MAX = 64 << 20 };

typedef struct tokenize_options {
    const char *model, *file, *tokens_file, *system, *messages, *tools, *out;
    bool no_bos, no_special, chat, think, no_think, no_generation, ids, count, json;
} tokenize_options;

static const option table[] = {
    OPT_STR(tokenize_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list); default: the bundled one"),
    OPT_STR(tokenize_options, file, "file", 'f', "FILE",
            "the text of a file; - is stdin (default without words)"),
    OPT_STR(tokenize_options, tokens_file, "tokens-file", 0, "FILE",
            "tokens instead: a file, int32 ids or numbers with commas between, or the numbers"),
    OPT_FLAG(tokenize_options, no_bos, "no-bos", 0,
             "no begin-of-sequence token, where the model has one"),
    OPT_FLAG(tokenize_options, no_special, "no-special", 0,
             "control tokens that the text spells out stay text"),
    OPT_FLAG(tokenize_options, chat, "chat", 0,
             "the text is a user's message in the model's chat format"),
    OPT_STR(tokenize_options, system, "system", 's', "TEXT", "of --chat: the system message"),
    OPT_STR(tokenize_options, messages, "messages", 0, "FILE",
            "a conversation instead of a text: JSON as OpenAI has it"),
    OPT_STR(tokenize_options, tools, "tools", 0, "FILE",
            "of a conversation: tool declarations, JSON as OpenAI has it"),
    OPT_FLAG(tokenize_options, think, "think", 0, "of a conversation: the model thinks first"),
    OPT_FLAG(tokenize_options, no_think, "no-think", 0, "of a conversation: it answers at once"),
    OPT_FLAG(tokenize_options, no_generation, "no-generation-prompt", 0,
             "of a conversation: the assistant's turn is not opened"),
    OPT_FLAG(tokenize_options, ids, "ids", 0, "print the ids alone, with commas between"),
    OPT_FLAG(tokenize_options, count, "count", 0, "print the number of tokens alone"),
    OPT_FLAG(tokenize_options, json, "json", 'j',
             "print JSON; a piece that is no UTF-8 is a list of bytes"),
    OPT_STR(tokenize_options, out, "output", 'o', "FILE",
            "write the ids to a file, int32 little-endian, as --tokens and --tokens-file read"),
    OPT_END};

/* The tokens of the input; ids: mem_free. */
typedef struct tokens {
    int32_t *ids;
    int64_t n;
} tokens;

/* ---- Input --------------------------------------------------------------------------------- */

/* The words of the command line, a file, or stdin. */
static status read_text(const tokenize_options *o, int n_words, char **words, str *text, err *e)
{
    status st;
    if (n_words && o->file)
        return err_set(e, E_ARG, "a text and --file: expected one of them");
    for (int i = 0; i < n_words; i++) {
        if (i)
            str_putc(text, ' ');
        str_puts(text, words[i]);
    }
    if (!n_words && o->file && strcmp(o->file, "-") != 0) {
        char *bytes;
        size_t n;
        if ((st = file_read_all(o->file, TEXT_MAX, &bytes, &n, e)))
            return st;
        str_put(text, bytes, n);
        mem_free(bytes);
    } else if (!n_words && (st = term_read_stdin(text, TEXT_MAX, true, e))) {
        return st;
    }
    if (o->chat && !n_words && text->n && text->at[text->n - 1] == '\n')
        str_cut(text, text->n - 1); /* as carat run does */
    return text->bad ? err_memory(e, "the text", text->n) : OK;
}

static status tokenize_text(const carat_model *m, const tokenize_options *o, const str *text,
                            tokens *t, err *e)
{
    int32_t flags = (o->no_bos ? 0 : CARAT_TOK_BOS) | (o->no_special ? 0 : CARAT_TOK_SPECIAL);
    int64_t n = carat_tokenize(m, str_text(text), text->n, flags, NULL, 0, e);
    if (n < 0)
        return e->status;
    if (!(t->ids = mem_calloc((size_t)n + 1, sizeof *t->ids)))
        return err_memory(e, "the tokens", (size_t)n * sizeof *t->ids);
    t->n = carat_tokenize(m, str_text(text), text->n, flags, t->ids, n, e);
    return t->n < 0 ? e->status : OK;
}

/* A conversation as JSON text (mem_free): that of a file, or one message after the system's. */
static status write_messages(const tokenize_options *o, const str *text, char **out, err *e)
{
    json_t *list = NULL;
    if (o->messages)
        return file_read_all(o->messages, JSON_FILE_MAX, out, &(size_t){0}, e);
    if (!utf8_valid(str_text(text), text->n))
        return err_set(e, E_FORMAT, "the text of --chat is not UTF-8");
    json_init();
    list = o->system ? json_pack("[{s:s, s:s}]", "role", "system", "content", o->system)
                     : json_array();
    json_array_append_new(
        list, json_pack("{s:s, s:s%}", "role", "user", "content", str_text(text), text->n));
    char *made = json_dumps(list, 0);
    json_decref(list);
    if (json_was_short() || !made) {
        mem_free(made);
        return err_memory(e, "the conversation", text->n);
    }
    *out = made;
    return OK;
}

static status tokenize_chat(const carat_model *m, const tokenize_options *o, const str *text,
                            tokens *t, err *e)
{
    carat_model_info info;
    carat_chat chat = {0};
    char *messages = NULL, *tools = NULL;
    size_t n;
    status st;
    carat_model_get_info(m, &info);
    const carat_chat_options how = {
        .thinking = o->think || (!o->no_think && info.thinks),
        .no_generation_prompt = o->no_generation,
    };
    if ((st = write_messages(o, text, &messages, e)) ||
        (o->tools && (st = file_read_all(o->tools, JSON_FILE_MAX, &tools, &n, e))) ||
        (st = carat_chat_render(m, messages, tools, &how, &chat, e)))
        goto out;
    if (!(t->ids = mem_calloc((size_t)chat.n_ids + 1, sizeof *t->ids))) {
        st = err_memory(e, "the tokens", (size_t)chat.n_ids * sizeof *t->ids);
        goto out;
    }
    t->n = chat.n_ids;
    memcpy(t->ids, chat.ids, (size_t)t->n * sizeof *t->ids);
out:
    carat_chat_free(&chat);
    mem_free(tools);
    mem_free(messages);
    return st;
}

/* Options that say nothing in this combination are wrong use. */
static status check_use(const tokenize_options *o, int n_words, err *e)
{
    bool conversation = o->chat || o->messages;
    if (o->think && o->no_think)
        return err_set(e, E_ARG, "--think and --no-think exclude each other");
    if (o->ids + o->count + o->json > 1)
        return err_set(e, E_ARG, "--ids, --count and --json exclude each other");
    if (o->tokens_file && (n_words || o->file || conversation || o->no_bos || o->no_special))
        return err_set(e, E_ARG,
                       "--tokens-file has tokens already: no text or --chat goes with it");
    if (o->messages && (n_words || o->file || o->chat || o->system))
        return err_set(e, E_ARG,
                       "--messages is a whole conversation: no text, --chat or --system "
                       "goes with it");
    if (conversation && (o->no_bos || o->no_special))
        return err_set(e, E_ARG,
                       "--no-bos and --no-special are for texts: the chat format decides");
    if (!o->chat && o->system)
        return err_set(e, E_ARG, "--system needs --chat");
    if (!conversation && (o->tools || o->think || o->no_think || o->no_generation))
        return err_set(e, E_ARG, "%s needs --chat or --messages",
                       o->tools           ? "--tools"
                       : o->no_generation ? "--no-generation-prompt"
                       : o->think         ? "--think"
                                          : "--no-think");
    return OK;
}

static status read_tokens(const carat_model *m, const tokenize_options *o, int n_words,
                          char **words, tokens *t, err *e)
{
    str text = {0};
    status st = OK;
    if (o->tokens_file) {
        carat_model_info info;
        carat_model_get_info(m, &info);
        st = ids_read(o->tokens_file, &t->ids, &t->n, e);
        for (int64_t i = 0; !st && i < t->n; i++)
            if (t->ids[i] < 0 || t->ids[i] >= info.n_vocab)
                st = err_set(e, E_ARG, "%s: token %lld is %d, which the model does not have",
                             o->tokens_file, (long long)i, t->ids[i]);
        return st;
    }
    if (!o->messages)
        st = read_text(o, n_words, words, &text, e);
    if (!st)
        st = o->chat || o->messages ? tokenize_chat(m, o, &text, t, e)
                                    : tokenize_text(m, o, &text, t, e);
    str_free(&text);
    return st;
}

/* ---- Output -------------------------------------------------------------------------------- */

/* A piece between quotes, on one line: what a terminal would obey or not show is escaped. */
static void print_piece(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        char safe[SHOW_CHAR_MAX];
        size_t len;
        uint32_t cp;
        bool ok;
        int step = utf8_decode(p + i, n - i, &cp, &ok);
        if (p[i] == '\n' || p[i] == '\t' || p[i] == '\r')
            printf("\\%c", p[i] == '\n' ? 'n' : p[i] == '\t' ? 't' : 'r');
        else if (!ok || (unsigned char)p[i] < ' ' || p[i] == 0x7F)
            for (int k = 0; k < step; k++)
                printf("\\x%02X", (unsigned)(unsigned char)p[i + (size_t)k]);
        else {
            show_one(p + i, n - i, SHOW_NAME, safe, &len);
            fwrite(safe, 1, len, stdout);
        }
        i += (size_t)step;
    }
}

static void print_list(const carat_model *m, const tokens *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        const char *bytes = "";
        int32_t n = carat_token_bytes(m, t->ids[i], true, &bytes);
        printf("%7d  '", t->ids[i]);
        print_piece(bytes, n < 0 ? 0 : (size_t)n);
        printf("'\n");
    }
}

/* {"id": 5, "piece": "text" or [bytes]} */
static json_t *token_json(const carat_model *m, int32_t id)
{
    const char *bytes = "";
    int32_t n = carat_token_bytes(m, id, true, &bytes);
    json_t *piece;
    n = n < 0 ? 0 : n; /* rows of the embedding beyond the vocabulary have no piece */
    if (utf8_valid(bytes, (size_t)n))
        return json_pack("{s:i, s:s%}", "id", id, "piece", bytes, (size_t)n);
    piece = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(piece, json_integer((unsigned char)bytes[i]));
    return json_pack("{s:i, s:o}", "id", id, "piece", piece);
}

static status print_json(const carat_model *m, const tokens *t, err *e)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->n; i++) {
        json_array_append_new(list, token_json(m, t->ids[i]));
    }
    json_t *all = json_pack("{s:I, s:o}", "count", (json_int_t)t->n, "tokens", list);
    bool lost = json_was_short() || !all;
    if (!lost)
        json_write(stdout, all, JSON_COMPACT);
    json_decref(all);
    return lost ? err_memory(e, "the JSON", (size_t)t->n * 64) : OK;
}

static status print_tokens(const carat_model *m, const tokenize_options *o, const tokens *t, err *e)
{
    if (o->out)
        return ids_write(o->out, t->ids, t->n, e);
    if (o->json)
        return print_json(m, t, e);
    if (o->count)
        return printf("%lld\n", (long long)t->n), OK;
    if (!o->ids)
        return print_list(m, t), OK;
    for (int64_t i = 0; i < t->n; i++)
        printf("%s%d", i ? "," : "", t->ids[i]);
    putchar('\n');
    return OK;
}

/* -------------------------------------------------------------------------------------------- */

static int run_tokenize(const command *c, int argc, char **argv)
{
    tokenize_options o = {0};
    int n_words, bad = options_parse(c, argc, argv, &o, &n_words);
    carat_model *m = NULL;
    tokens t = {0};
    err e = {0};
    if (bad)
        return bad - 1;
    status st = check_use(&o, n_words, &e);
    if (st) {
        fprintf(stderr, "carat tokenize: %s\nTry 'carat tokenize --help'.\n", e.text);
        return 2;
    }
    if (!(st = named_open(
              o.model,
              &(carat_model_options){.vocab_only = true, .overcommit = true, .device = "cpu"}, &m,
              &e)) &&
        !(st = read_tokens(m, &o, n_words, argv, &t, &e)))
        st = print_tokens(m, &o, &t, &e);
    mem_free(t.ids);
    carat_model_close(m);
    if (st)
        term_error(&e);
    return st ? 1 : options_printed();
}

const command command_tokenize = {
    .name = "tokenize",
    .operands = "[TEXT...]",
    .summary = "Show the tokens of a text, or of a conversation in a model's chat format",
    .about =
        "Reads the words of the command line, a file or stdin, and prints a line for each token:\n"
        "its id and its piece. No weights are loaded. Control tokens that the text spells out\n"
        "(<|im_end|>) count as such. With --chat the text is a user's message, and the tokens are\n"
        "those of the prompt that carat run would send.",
    .options = table,
    .n_operands_min = 0,
    .n_operands_max = -1,
    .run = run_tokenize};
