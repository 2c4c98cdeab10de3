#!/usr/bin/env python3
"""Writes text/lower_table_int.h and tests/data/unicode/lower.txt from Python's own str.lower().

    tools/lower_table.py

The reference templates sort keys by Python's str.lower(), so its answers are the definition. The
header has the answers as ranges; the text file has them one by one, and strings that try the rule
for the final sigma. text/lower_test.c compares the two.
"""
import os
import random
import unicodedata

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
SIGMA, FINAL = "\u03a3", "\u03c2"


def lower(c):
    return ord(chr(c).lower())


def case_ranges():
    """(first, last, step, distance): every step-th character from first to last."""
    rows, i = [], 0
    while i < len(single):
        first, d = single[i], lower(single[i]) - single[i]
        best = (first, first, 1, d)
        for step in (1, 2):
            last = first
            while last + step in set_single and lower(last + step) - (last + step) == d:
                last += step
            # A range of step 2 must not pass over a character that changes as well.
            if step == 2 and any(c in set_single for c in range(first + 1, last, 2)):
                continue
            if last - first > best[1] - best[0]:
                best = (first, last, step, d)
        first, last, step, d = best
        rows.append(best)
        done = set(range(first, last + 1, step))
        i += 1
        while i < len(single) and single[i] in done:
            i += 1
    return rows


def ranges(chars):
    rows = []
    for c in sorted(chars):
        if rows and c == rows[-1][1] + 1:
            rows[-1][1] = c
        else:
            rows.append([c, c])
    return rows


def write_rows(f, rows, text):
    line = "   "
    for row in rows:
        item = " " + text(row) + ","
        if len(line) + len(item) > 98:
            f.write(line + "\n")
            line = "   "
        line += item
    f.write(line + "\n};\n")


if __name__ == "__main__":
    # A capital sigma is final behind a cased character, with ignorable ones in between.
    after = {c for c in ALL if (chr(c) + SIGMA).lower()[-1] == FINAL}
    after_a = {c for c in ALL if ("a" + chr(c) + SIGMA).lower()[-1] == FINAL}
    cased, ignorable = after, after_a - after
    changed = [c for c in ALL if chr(c).lower() != chr(c)]
    single = [c for c in changed if len(chr(c).lower()) == 1]
    several = [c for c in changed if len(chr(c).lower()) > 1]
    assert several == [0x130], several

    set_single = set(single)
    with open(os.path.join(TOP, "text", "lower_table_int.h"), "w", encoding="ascii") as f:
        f.write(f"""/* lower_table_int.h - lower case as data, for lower.c. Written by tools/lower_table.py from Unicode
 * {unicodedata.unidata_version}; do not edit. */
#ifndef TEXT_LOWER_TABLE_INT_H
#define TEXT_LOWER_TABLE_INT_H

#include <stdint.h>

/* clang-format off */

/* Every step-th character from first to last: its lower case is `distance` away. */
static const struct lower_range {{
    uint32_t first, last;
    int32_t step, distance;
}} lower_ranges[] = {{
""")
        write_rows(f, case_ranges(), lambda r: f"{{0x{r[0]:X}, 0x{r[1]:X}, {r[2]}, {r[3]}}}")
        for name, chars, what in (
            ("cased_ranges", cased, "Characters that have a case and are not ignorable."),
            ("ignorable_ranges", ignorable, "Characters that the rule for the final sigma looks past."),
        ):
            f.write(f"\n/* {what} */\nstatic const uint32_t {name}[][2] = {{\n")
            write_rows(f, ranges(chars), lambda r: f"{{0x{r[0]:X}, 0x{r[1]:X}}}")
        f.write("\n/* clang-format on */\n\n#endif\n")

    rng = random.Random(20261122)
    with open(os.path.join(TOP, "tests", "data", "unicode", "lower.txt"), "w", encoding="ascii") as f:
        f.write(f"# Lower case by Python {unicodedata.unidata_version}: tools/lower_table.py\n")
        f.write("# c: a character and its lower case; all others are their own\n")
        for c in changed:
            f.write(f"c {c:x} " + " ".join(f"{ord(x):x}" for x in chr(c).lower()) + "\n")
        f.write("# s: a string and its lower case\n")
        some = [sorted(x) for x in (cased, ignorable, set(changed), set(ALL))]
        for _ in range(400):
            s = "".join(rng.choice((SIGMA, "a", "'", " ", chr(rng.choice(rng.choice(some)))))
                        for _ in range(rng.randrange(1, 8)))
            f.write("s " + ".".join(f"{ord(x):x}" for x in s) + " "
                    + ".".join(f"{ord(x):x}" for x in s.lower()) + "\n")
        f.write("# k: characters whose class the rule for the final sigma depends on, as ranges\n")
        for name, chars in (("cased", cased), ("ignorable", ignorable)):
            for a, b in ranges(chars):
                f.write(f"k {name} {a:x} {b:x}\n")
