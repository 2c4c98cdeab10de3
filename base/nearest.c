/* nearest.c - see nearest.h. Distances are those of Damerau and Levenshtein, restricted: an
 * exchanged pair is not edited again. */
#include "base/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { WORD_MAX = 64, DISTANCE_MAX = 2, PREFIX_MIN = 3 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

static bool same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Rows i-2, i-1 and i of the table of distances between the first i bytes of a and j of b. */
static int distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int *row = rows[i % 3];
        const int *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

const char *nearest_word(const char *word, const char *const *words, size_t n)
{
    size_t n_word = strlen(word), n_best_prefix = 0;
    const char *best = NULL, *longer = NULL, *prefix = NULL;
    int best_distance = DISTANCE_MAX + 1;
    size_t n_longer = 0;
    if (!n_word || n_word > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(words[i]);
        if (!len || len > WORD_MAX)
            continue;
        size_t apart = len > n_word ? len - n_word : n_word - len;
        int d = apart > DISTANCE_MAX ? DISTANCE_MAX + 1 : distance(word, n_word, words[i], len);
        if (d < best_distance && 2 * (size_t)d < len) {
            best = words[i];
            best_distance = d;
        }
        if (len > n_word && n_word >= PREFIX_MIN && !strncasecmp(words[i], word, n_word)) {
            longer = words[i];
            n_longer++;
        }
        if (n_word > len && len >= PREFIX_MIN && len > n_best_prefix &&
            !strncasecmp(words[i], word, len)) {
            prefix = words[i];
            n_best_prefix = len;
        }
    }
    return best ? best : n_longer == 1 ? longer : prefix;
}
