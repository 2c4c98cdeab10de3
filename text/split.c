/* split.c - see split.h.
 *
 * The published pre-splitters are the regular expressions below, whose alternatives are tried in
 * order at each place. They are matched by hand, over the classes of characters that
 * tools/class_table.py took from the reference's expression engine. qwen2 and qwen35 differ in what
 * they call a letter (W):
 *
 *     1  (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *     2  [^\r\n L N]? W+                   qwen2: W = L; qwen35: W = L and M
 *     3  N
 *     4  " "? [^\s W N]+ [\r\n]*
 *     5  \s* [\r\n]+
 *     6  \s+ (?!\S)
 *     7  \s+
 *
 * llama3 is qwen2 with up to three numbers in alternative 3.
 *
 * gpt4o has up to three numbers, too. A run of signs takes slashes behind it like line breaks. In
 * the place of alternatives 1 and 2 are two that end a word where lower case is followed by upper
 * case. U is letters of upper and title case, l is letters of lower case, B is letters without case
 * and marks:
 *
 *     1  [^\r\n L N]? [U B]* [l B]+ (?i:'s|'t|'re|'ve|'m|'ll|'d)?
 *     2  [^\r\n L N]? [U B]+ [l B]* (?i:'s|'t|'re|'ve|'m|'ll|'d)?
 *
 * tekken is gpt4o with one number, and without contractions.
 *
 * laguna cuts the text before each run of line breaks and applies qwen2 to the parts.
 *
 * No alternative looks back, so a word depends on the text after its start alone.
 */
#include "text/split.h"
#include "text/class_table_int.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

#define LETTERS(numbers)                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers                          \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2 LETTERS("\\p{N}")
#define QWEN35                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                    \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix, numbers)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER   \
    "*" suffix numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LINE_BREAKS "(?:\\r?\\n)+(?!\\r?\\n)"

const struct split_step split_qwen2_steps[] = {{QWEN2, "Isolated"}, {0}};
const struct split_step split_llama3_steps[] = {{LETTERS("\\p{N}{1,3}"), "Isolated"}, {0}};
const struct split_step split_qwen35_steps[] = {{QWEN35, "Isolated"}, {0}};
const struct split_step split_gpt4o_steps[] = {{CASED(SUFFIX, "\\p{N}{1,3}"), "Isolated"}, {0}};
const struct split_step split_tekken_steps[] = {{CASED("|", "\\p{N}"), "Isolated"}, {0}};
const struct split_step split_laguna_steps[] = {
    {LINE_BREAKS, "MergedWithNext"}, {QWEN2, "Isolated"}, {0}};

typedef enum char_class {
    CHAR_OTHER, /* the first four as in class_block */
    CHAR_LETTER,
    CHAR_MARK,
    CHAR_NUMBER,
    CHAR_SPACE,
    CHAR_BREAK, /* CR and LF */
    CHAR_END,   /* of the text or part */
    CHAR_UPPER, /* where cases matter, CHAR_LETTER has none */
    CHAR_LOWER
} char_class;

typedef struct splitter {
    const char *s;
    size_t n;
    bool marks;       /* marks are letters */
    bool cases;       /* letters have a case */
    bool breaks;      /* a run of line breaks after the first `head` bytes ends the part */
    size_t head;      /* length of the run of line breaks at s[0] */
    bool suffixes;    /* with cases: a contraction belongs to the word before it */
    int more_numbers; /* of a word, behind the first */
} splitter;

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

static bool is_in(const uint32_t (*range)[2], size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return false;
}

static char_class class_of(uint32_t c)
{
    if (c == ' ' || (c >= '\t' && c <= '\r'))
        return c == '\n' || c == '\r' ? CHAR_BREAK : CHAR_SPACE;
    if (c >= CLASS_TABLE_END)
        return is_in(late_marks, COUNT_OF(late_marks), c) ? CHAR_MARK : CHAR_OTHER;
    uint64_t word = class_block[class_index[c >> 8]][c >> 5 & 7];
    char_class found = (char_class)(word >> 2 * (c & 31) & 3);
    if (found == CHAR_OTHER && c > 127 && is_in(wide_spaces, COUNT_OF(wide_spaces), c))
        return CHAR_SPACE;
    return found;
}

static char_class letter_case(uint32_t c)
{
    static const char_class found[] = {CHAR_LETTER, CHAR_UPPER, CHAR_LOWER};
    return c < CASE_TABLE_END
               ? found[case_block[case_index[c >> 8]][c >> 5 & 7] >> 2 * (c & 31) & 3]
               : CHAR_LETTER;
}

static bool is_break(const splitter *p, size_t i)
{
    return p->s[i] == '\n' || (p->s[i] == '\r' && i + 1 < p->n && p->s[i + 1] == '\n');
}

/* The class of the character at byte i, and its length. */
static inline char_class class_at(const splitter *p, size_t i, size_t *len)
{
    uint32_t c;
    bool ok;
    *len = 0;
    if (i >= p->n || (p->breaks && i >= p->head && is_break(p, i)))
        return CHAR_END;
    *len = (size_t)utf8_decode(p->s + i, p->n - i, &c, &ok);
    char_class found = class_of(c);
    return p->cases && found == CHAR_LETTER ? letter_case(c) : found;
}

static inline bool is_word(const splitter *p, char_class c)
{
    return c == CHAR_LETTER || (c == CHAR_MARK && p->marks);
}

/* Neither space, letter nor number: alternative 4. */
static inline bool is_sign(const splitter *p, char_class c)
{
    return c == CHAR_OTHER || (c == CHAR_MARK && !p->marks);
}

/* Alternative 1 at s[0]; 0: no match. U+017F, the long s, is an s in another case.
 */
static size_t contraction(const char *s, size_t n)
{
    char a = n > 1 ? s[1] | 32 : 0, b = n > 2 ? s[2] | 32 : 0;
    if (!n || *s != '\'')
        return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return n > 2 && s[1] == '\xC5' && s[2] == '\xBF' ? 3 : 0;
}

/* Alternatives 5 to 7 at a space or break. */
static size_t space_length(const splitter *p)
{
    size_t i = 0, len, last = 0, after_break = 0;
    char_class c;
    while ((c = class_at(p, i, &len)) == CHAR_SPACE || c == CHAR_BREAK) {
        last = i;
        i += len;
        if (c == CHAR_BREAK)
            after_break = i;
    }
    if (after_break)
        return after_break;
    return c == CHAR_END || !last ? i : last;
}

/* Alternatives 1 and 2; 0: no match. */
static inline size_t letters_length(const splitter *p)
{
    size_t i, len, next;
    char_class c;
    if ((i = contraction(p->s, p->n)))
        return i;
    c = class_at(p, 0, &len);
    i = len;
    if (!is_word(p, c) && c != CHAR_BREAK && c != CHAR_NUMBER) {
        c = class_at(p, i, &next); /* the optional character of alternative 2, if a word follows */
        i += next;
    }
    if (!is_word(p, c))
        return 0;
    while (is_word(p, class_at(p, i, &next)))
        i += next;
    return i;
}

/* The end of a cased word that ends at i without its contraction. */
static size_t with_suffix(const splitter *p, size_t i)
{
    return p->suffixes ? i + contraction(p->s + i, p->n - i) : i;
}

/* Of gpt4o: [U B]* [l B]+ at byte i, and the contraction behind it; 0: no match. The first run
 * gives back what the second one needs: all behind its last B. *upper: the end of the first run. */
static size_t lower_word(const splitter *p, size_t i, size_t *upper)
{
    size_t len, last = 0;
    char_class c;
    while ((c = class_at(p, i, &len)) == CHAR_UPPER || c == CHAR_LETTER || c == CHAR_MARK) {
        i += len;
        last = c == CHAR_UPPER ? last : i;
    }
    *upper = i;
    if (c != CHAR_LOWER)
        return last ? with_suffix(p, last) : 0;
    while (c == CHAR_LOWER || c == CHAR_LETTER || c == CHAR_MARK) {
        i += len;
        c = class_at(p, i, &len);
    }
    return with_suffix(p, i);
}

/* The same for gpt4o. A mark may be the optional character, or the first of its word. */
static size_t cased_length(const splitter *p)
{
    size_t len, end, upper, all;
    char_class c = class_at(p, 0, &len);
    size_t at = c == CHAR_OTHER || c == CHAR_SPACE || c == CHAR_MARK ? len : 0;
    if ((end = lower_word(p, at, &upper)) || (c == CHAR_MARK && (end = lower_word(p, 0, &all))))
        return end;
    return upper > at ? with_suffix(p, upper) : 0;
}

static inline size_t word_length(const splitter *p)
{
    size_t next, i = p->cases ? cased_length(p) : letters_length(p);
    char_class c;
    if (i)
        return i;
    i = *p->s == ' ';
    c = class_at(p, i, &next);
    if (c == CHAR_NUMBER && !i) {
        i = next;
        for (int k = 0; k < p->more_numbers && class_at(p, i, &next) == CHAR_NUMBER; k++)
            i += next;
        return i;
    }
    if (!is_sign(p, c))
        return space_length(p);
    do
        i += next;
    while (is_sign(p, c = class_at(p, i, &next)));
    for (; c == CHAR_BREAK || (p->cases && c == CHAR_OTHER && p->s[i] == '/');
         c = class_at(p, i, &next))
        i += next;
    return i;
}

size_t split_qwen2(const char *s, size_t n)
{
    return word_length(&(splitter){.s = s, .n = n});
}

size_t split_llama3(const char *s, size_t n)
{
    return word_length(&(splitter){.s = s, .n = n, .more_numbers = 2});
}

size_t split_gpt4o(const char *s, size_t n)
{
    return word_length(
        &(splitter){.s = s, .n = n, .cases = true, .suffixes = true, .more_numbers = 2});
}

size_t split_tekken(const char *s, size_t n)
{
    return word_length(&(splitter){.s = s, .n = n, .cases = true});
}

size_t split_qwen35(const char *s, size_t n)
{
    return word_length(&(splitter){.s = s, .n = n, .marks = true});
}

size_t split_laguna(const char *s, size_t n)
{
    splitter p = {.s = s, .n = n, .breaks = true};
    while (p.head < n && is_break(&p, p.head))
        p.head += s[p.head] == '\r' ? 2 : 1;
    return word_length(&p);
}
