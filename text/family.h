/* family.h - the text side of each model family: one entry per family.
 *
 * vocab.c, bpe.c, chat.c, parse.c and the grammars are general. They read a family's properties
 * from its entry; no code outside the entry and its files knows the family's name. The architecture
 * of a model file (general.architecture) selects the entry here and the forward pass in
 * model/model.c. A new family is one line in each of the two tables.
 *
 *     entry      gemma4.c        pieces, marks, tables
 *     prompts    chat_gemma.c    messages to a prompt; tools_gemma.c: declarations of tools
 *     answers    call_gemma.c    the text of a call to JSON
 *
 * Entries are constant and live as long as the program. Lists of strings end in NULL.
 */
#ifndef TEXT_FAMILY_H
#define TEXT_FAMILY_H

#include "base/str.h"
#include "text/vocab.h"

struct chat_writer; /* chat_int.h */
struct gx;          /* grammar_int.h */
struct gx_builder;
struct carat_talk; /* talk.h */
struct jtree;

/* A list of strings. */
#define STRINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef struct text_family text_family;

/* A tokenizer name that occurs in files of the family. */
typedef struct tokenizer_name {
    const char *model, *pre; /* tokenizer.ggml.model, .pre; pre NULL: any, or none */
    vocab_kind kind;
    /* The pre-splitter: length of the word that begins at s[0], n > 0. No merge crosses a word's
     * end. NULL: the text between special pieces is one word. */
    size_t (*word_length)(const char *s, size_t n);
    /* The steps of tokenizer.json that this pre-splitter stands for; the last has no pattern. NULL:
     * files of this name are not looked at for it. */
    const struct split_step {
        const char *pattern, *behavior; /* the regular expression; "Isolated" */
    } * steps;
    int how; /* NEEDS_MERGES and the like */
} tokenizer_name;

enum {
    NEEDS_MERGES = 1, /* without merges, the name means another tokenizer */
    WHOLE_WORDS = 2,  /* a word that is a piece is that piece, whatever the merges give */
    BY_SCORE = 4,     /* pieces join by their scores, if the file has scores (spm.c) */
    SPACE_FIRST = 8   /* texts begin with a space, unless the file says no (add_space_prefix) */
};

/* A vocabulary for files with random weights (carat synth): the special pieces at their published
 * ids; the other pieces are made up. */
typedef struct special_piece {
    const char *piece;
    token_type type;
} special_piece;

typedef struct made_words {
    const char *arch; /* general.architecture */
    const char *model, *pre;
    const special_piece *special; /* in the order of ids; the last row has no piece */
    int32_t first;                /* id of special[0] */
    const char
        *template; /* the landmarks of a chat template, which is otherwise empty; NULL: none */
} made_words;

/* One revision of a chat template. */
typedef struct chat_format {
    const char *name; /* "gemma4 july large" */
    const text_family *family;
    int32_t revision;                   /* for the family's own files */
    const struct answer_syntax *answer; /* NULL: the family's */
    bool thinks;                        /* asks for a thought unless told otherwise */
} chat_format;

/* The text of a call, between its marks. */
typedef struct call_text {
    const char *s;
    size_t n;
    bool lenient;              /* repair mistakes */
    const struct jtree *tools; /* the declared tools, whose schemas type plain text; or NULL */
} call_text;

/* The beginning of a call's text, as far as it is known. */
typedef struct call_head {
    bool possible;    /* the text can become a call */
    const char *name; /* [n_name] not checked; NULL: not complete yet */
    size_t n_name;
    size_t arguments; /* their offset: behind the brace, or at the first pair; 0: not known yet */
} call_head;

/* Arguments as pairs of plain text: key_open KEY value_open VALUE value_close, for each one. end:
 * the mark in value_close, which no value contains. key_close and value_mark are the marks in
 * value_open; without a value_mark, one line feed at each end of a value belongs to the syntax. */
typedef struct call_pairs {
    const char *key_open, *value_open, *value_close, *end, *key_close, *value_mark;
} call_pairs;

/* Answers made of messages: a header of marks and words, a text, an end. The header names the
 * channel of the text, and of a call its function; heads.c has the grammar. */
typedef struct answer_heads {
    const char *start, *role;      /* begin a message; those of the first end the prompt */
    const char *channel, *message; /* before the channel's name; before the text */
    const char *constrain;         /* before the type of a text */
    const char *const *ends;
    const char *thought, *commentary, *text; /* channels: thoughts, calls and texts, answers */
    const char *call_space;                  /* in front of a function's name */
} answer_heads;

/* The marks of an answer. Each is a piece of the vocabulary. */
typedef struct answer_syntax {
    /* Answers are messages with headers. The marks of thoughts are then one of the marks that
     * begin and end one, and calls have no marks. NULL: they are not. */
    const answer_heads *heads;
    const char *opening; /* the end of the prompt, if models may repeat it first; "": none */
    const char *thought_open, *thought_label, *thought_close; /* label: "" for none */
    const char *call_open, *call_close; /* call_close NULL: the next call or the end ends one */
    const char *quote; /* encloses strings in calls; NULL: they are JSON or plain text */
    /* Marks around plain text in a call; NULL: none. Between them call_close is text. */
    const char *value_open, *value_close;
    const call_pairs *pairs; /* for grammars: arguments are pairs; NULL: an object */
    int32_t n_gap;           /* line feeds that may follow a thought or a call */
    bool json_calls;         /* calls are JSON: inside its strings call_close is text */
    /* An answer whose first character is one of these may be a call without call_open, to its end.
     * NULL: it may not. */
    const char *begins_calls;
    /* A call without call_open, from bare_open to bare_close; NULL: none. It counts as a call if it
     * names a declared tool. */
    const char *bare_open, *bare_close;
    const char *const *stray;       /* marks without meaning: dropped directly behind a call */
    const char *const *thought_not; /* a thought cannot contain these: they end it */
    const char *const *content_not; /* the same for content beside calls */
    const char *name_not;           /* characters not allowed in a call's name */
    /* Reads the call at the beginning of the text between call_open and call_close; *n_read: its
     * bytes. False if there is none. Always overwrites name and arguments (JSON); out of memory
     * makes them `bad`. */
    bool (*read_call)(const call_text *c, str *name, str *arguments, size_t *n_read);
    /* Looks at text of which more may come. */
    call_head (*read_head)(const char *s, size_t n);
    /* For grammars: what stands before, between and behind the calls of one mark. NULL: nothing. */
    const char *list_open, *list_next, *list_close;
    /* White space around the text of a call. Several calls may stand between two marks. NULL: one
     * call alone, without white space. */
    const char *call_space;
    /* The grammar of the text that read_call accepts. arguments: the grammar of the arguments
     * object, in the family's spelling. */
    struct gx *(*call_grammar)(struct gx_builder *b, const char *name, struct gx *arguments);
} answer_syntax;

struct text_family {
    const char *const *archs;       /* general.architecture */
    const char *name;               /* "Gemma 4" */
    const char *const *model_types; /* prefixes of config.json's model_type */

    /* ---- Vocabulary ---- */
    const tokenizer_name *tokenizers; /* the last row has no model */
    /* Pieces, for ids that the file does not give. NULL: the family has none. */
    const char *bos, *eos, *unk, *pad, *mask;
    bool bos_always;         /* raw prompts begin with BOS, even if the file says no */
    bool bos_never;          /* they never do, even if the file says so */
    const char *const *ends; /* pieces that end a generation */
    /* Texts that end an answer, of ends that models sometimes spell in several tokens. NULL: none.
     */
    const char *const *end_texts;
    const char *const *ends_not; /* pieces that never end one, even if the file says so */
    const char *const *shown;    /* marks for the output parser: always spelled out */
    const char *const *media;    /* placeholders, which are never sampled */
    const made_words *made;      /* the last row has no arch; NULL: none */

    /* ---- Conversations: all NULL in a family without a chat format ---- */
    const char *turn_open;  /* begins a turn; a checkpoint is worth taking before the last one */
    const char *turn_close; /* ends one */
    const chat_format *(*recognise)(const char *template_text, size_t n);
    void (*render)(struct chat_writer *w, const chat_format *f, const struct carat_talk *t,
                   const carat_chat_options *opt);
    const answer_syntax *answer; /* without a known template too; NULL: the templates differ */
};

/* The family with this architecture, or NULL. Of several families with one architecture: the one
 * that knows the tokenizer, else the first. model: tokenizer.ggml.model; NULL: any. */
const text_family *text_family_of(const char *arch, size_t n);
const text_family *text_family_for(const char *arch, size_t n, const char *model, const char *pre);
/* Whether the row has this name. */
bool text_is_tokenizer(const tokenizer_name *t, const char *model, const char *pre);
/* All entries. The last element is NULL. */
extern const text_family *const text_families[];

/* The syntax of answers to prompts in this format. Without a format: the family's, which may be
 * NULL. */
const answer_syntax *text_answer_syntax(const chat_format *f, const text_family *family);

/* Whether the list contains s[0..n). list NULL: false. */
bool text_is_one_of(const char *const *list, const char *s, size_t n);

#endif
