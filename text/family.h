/* family.h - what a family of models says differently from the others, in text: one entry each.
 *
 * vocab.c, bpe.c, chat.c, parse.c and the grammars are general. What they need to know of a family
 * they read from its entry, and nothing outside of the entry and its files knows the family's name.
 * The architecture that a model file names (general.architecture) finds the entry here, and its
 * forward pass in model/model.c: a new family is one line in each of the two tables.
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
struct jtree;

typedef struct text_family text_family;

/* One tokenizer that files of the family name. */
typedef struct tokenizer_name {
    const char *model, *pre; /* tokenizer.ggml.model, .pre; pre NULL: any, or none */
    bool needs_merges;       /* without merges it is another tokenizer of the same name */
    vocab_kind kind;
    /* The pre-splitter: bytes of the word that begins at s[0], n > 0. No merge crosses its end. */
    size_t (*word_length)(const char *s, size_t n);
} tokenizer_name;

/* One revision of a chat template. */
typedef struct chat_format {
    const char *name; /* "gemma4 july large" */
    const text_family *family;
    int32_t revision; /* for the family's own files */
} chat_format;

/* How answers are marked up. The marks are pieces of the vocabulary. */
typedef struct answer_syntax {
    const char *opening; /* the end of the prompt, which some models repeat first; "": none do */
    const char *thought_open, *thought_label, *thought_close; /* label: "" if there is none */
    const char *call_open, *call_close;
    const char *quote;              /* stands around strings in calls; NULL: calls are JSON */
    const char *const *stray;       /* marks without meaning in an answer: dropped */
    const char *const *thought_not; /* what a thought cannot spell, as it would end there */
    const char *const *content_not; /* the same for content beside calls */
    const char *name_not;           /* characters that the name in a call cannot have */
    /* s[0..n) stands between call_open and call_close. False if it is no call. Overwrites name and
     * arguments (JSON) in any case; they are `bad` when out of memory. lenient: repairs. */
    bool (*read_call)(const char *s, size_t n, bool lenient, str *name, str *arguments);
    /* The grammar of what read_call reads; arguments: of the object, in the family's spelling. */
    struct gx *(*call_grammar)(struct gx_builder *b, const char *name, struct gx *arguments);
} answer_syntax;

struct text_family {
    const char *const *archs; /* general.architecture */
    const char *name;         /* "Gemma 4" */
    const char *model_type;   /* of config.json: what it begins with */

    /* ---- Vocabulary ---- */
    const tokenizer_name *tokenizers; /* ends in a row without model */
    /* Pieces, used where the file gives no id. NULL: the family has none. */
    const char *bos, *eos, *unk, *pad, *mask;
    bool bos_always;             /* raw prompts begin with BOS, whatever the file says */
    const char *const *ends;     /* pieces that end a generation */
    const char *const *ends_not; /* pieces that never do, even if the file says so */
    const char *const *shown;    /* marks that an answer is parsed by: they print as spelled */
    const char *const *media;    /* place holders, which are never sampled */

    /* ---- Conversations ---- */
    const char *turn_open;  /* begins a turn; a checkpoint is worth taking before the last one */
    const char *turn_close; /* ends one */
    const chat_format *(*recognise)(const char *template_text, size_t n);
    void (*render)(struct chat_writer *w, const chat_format *f, const struct jtree *messages,
                   const struct jtree *tools, const carat_chat_options *opt);
    const answer_syntax *answer;
};

/* NULL: no family has an architecture of this name. */
const text_family *text_family_of(const char *arch, size_t n);
/* All entries, ended by NULL. */
extern const text_family *const text_families[];

/* Is s[0..n) one of the list? list NULL: no. */
bool text_is_one_of(const char *const *list, const char *s, size_t n);

#endif
