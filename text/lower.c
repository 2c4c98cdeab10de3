/* lower.c - see lower.h. The tables come from a script (tools/lower_table.py) and not from a
 * library: the order of keys in a prompt must not depend on the Unicode version of the machine.
 */
#include "text/lower.h"
#include "text/lower_table_int.h"
#include "base/utf8.h"

enum { I_WITH_DOT = 0x130, DOT_ABOVE = 0x307, SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2, SMALL_SIGMA };

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

static uint32_t simple(uint32_t c)
{
    size_t lo = 0, hi = COUNT_OF(lower_ranges);
    while (lo < hi) { /* finds the first range that ends at c or later */
        size_t mid = lo + (hi - lo) / 2;
        if (lower_ranges[mid].last < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == COUNT_OF(lower_ranges) || c < lower_ranges[lo].first)
        return c;
    const struct lower_range *r = &lower_ranges[lo];
    bool hit = (c - r->first) % (uint32_t)r->step == 0;
    return hit ? (uint32_t)((int32_t)c + r->distance) : c;
}

static bool is_in(const uint32_t (*range)[2], size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (range[mid][1] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= range[lo][0];
}

static bool is_cased(uint32_t c)
{
    return is_in(cased_ranges, COUNT_OF(cased_ranges), c);
}

static bool is_ignorable(uint32_t c)
{
    return is_in(ignorable_ranges, COUNT_OF(ignorable_ranges), c);
}

/* Whether the next non-ignorable character has a case. */
static bool cased_follows(const lower_reader *r)
{
    uint32_t c;
    bool ok;
    for (size_t at = r->at; at < r->n;) {
        at += (size_t)utf8_decode(r->s + at, r->n - at, &c, &ok);
        if (!is_ignorable(c))
            return is_cased(c);
    }
    return false;
}

bool lower_next(lower_reader *r, uint32_t *cp)
{
    uint32_t c;
    bool ok, cased = r->cased;
    if (r->next) {
        *cp = r->next;
        r->next = 0;
        return true;
    }
    if (r->at >= r->n)
        return false;
    r->at += (size_t)utf8_decode(r->s + r->at, r->n - r->at, &c, &ok);
    if ((c | 32) >= 'a' && (c | 32) <= 'z') { /* a fast path: most keys are ASCII letters */
        r->cased = true;
        *cp = c | 32;
        return true;
    }
    if (!is_ignorable(c))
        r->cased = is_cased(c);
    if (c == SIGMA) {
        *cp = cased && !cased_follows(r) ? FINAL_SIGMA : SMALL_SIGMA;
    } else if (c == I_WITH_DOT) {
        *cp = 'i';
        r->next = DOT_ABOVE;
    } else {
        *cp = simple(c);
    }
    return true;
}
