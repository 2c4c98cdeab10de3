#!/usr/bin/env python3
"""Writes text/class_table_int.h and tests/data/unicode/classes.txt: letters, marks, numbers, spaces,
and the case of letters.

    tools/class_table.py

The definition is the regular expression engine of the tokenizers package, which the pre-splitters
of byte-level vocabularies were written for: \\p{L}, \\p{M}, \\p{N}, \\s, and \\p{Lu}, \\p{Lt} and \\p{Ll}
as it answers them. The package does not name its Unicode version, so the script finds it by characters that a version
added. The header has two bits for each character; the text file has the same answers as ranges,
for text/split_test.c.
"""
import os

import tokenizers
from tokenizers import Regex, normalizers

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCK = 256


def members(pattern):
    erase, found = normalizers.Replace(Regex(pattern), ""), set()
    for i in range(0, len(ALL), 4096):
        part = "".join(map(chr, ALL[i:i + 4096]))
        left = set(erase.normalize_str(part))
        found.update(ord(c) for c in part if c not in left)
    return found


def block(code, first):
    words = []
    for at in range(first, first + BLOCK, 32):
        words.append(sum(code.get(at + i, 0) << 2 * i for i in range(32)))
    return tuple(words)


def table(code, end):
    blocks, index = {}, []
    for first in range(0, end, BLOCK):
        index.append(blocks.setdefault(block(code, first), len(blocks)))
    assert len(blocks) <= 256
    return blocks, index


def write_blocks(f, name, what, blocks):
    f.write(f"""
/* Two bits a character: {what}. */
static const uint64_t {name}[][8] = {{
""")
    for words in blocks:
        f.write("    {" + ", ".join(f"0x{w:X}" for w in words[:4]) + ",\n     "
                + ", ".join(f"0x{w:X}" for w in words[4:]) + "},\n")
    f.write("};\n")


def ranges(chars):
    rows = []
    for c in sorted(chars):
        if rows and c == rows[-1][1] + 1:
            rows[-1][1] = c
        else:
            rows.append([c, c])
    return rows


def write_rows(f, items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 98:
            f.write(line + "\n")
            line = "   "
        line += " " + item + ","
    f.write(line + "\n};\n")


if __name__ == "__main__":
    classes = {name: members(p) for name, p in
               (("letter", r"\p{L}"), ("mark", r"\p{M}"), ("number", r"\p{N}"))}
    spaces = members(r"\s")
    assert not any(spaces & chars for chars in classes.values())
    # A letter that each version was the first to have.
    versions = (("14.0", 0x10570), ("15.0", 0x11F04), ("15.1", 0x2EBF0), ("16.0", 0x105C0),
                ("17.0", 0x323B0))
    version = [name for name, c in versions if c in classes["letter"]][-1]
    source = f"tokenizers {tokenizers.__version__} (Unicode {version})"

    code = {}
    for number, name in enumerate(classes, 1):
        code.update(dict.fromkeys(classes[name], number))

    # The last planes have almost nothing: the table ends before them.
    end = max(c for c in code if c < 0x40000) // BLOCK * BLOCK + BLOCK
    tail = {c for c in code if c >= end}
    assert tail <= classes["mark"]
    blocks, index = table(code, end)

    cases = {"upper": members(r"[\p{Lu}\p{Lt}]"), "lower": members(r"\p{Ll}")}
    assert all(chars <= classes["letter"] for chars in cases.values())
    case = {c: number for number, chars in enumerate(cases.values(), 1) for c in chars}
    case_end = max(case) // BLOCK * BLOCK + BLOCK
    case_blocks, case_index = table(case, case_end)

    with open(os.path.join(TOP, "text", "class_table_int.h"), "w", encoding="ascii") as f:
        f.write(f"""/* class_table_int.h - the Unicode classes of characters as data, for split.c. Written by
 * tools/class_table.py from {source}; do not edit. */
#ifndef TEXT_CLASS_TABLE_INT_H
#define TEXT_CLASS_TABLE_INT_H

#include <stdint.h>

/* clang-format off */

enum {{ CLASS_TABLE_END = 0x{end:X} }}; /* characters from here on: late_marks */

/* The block of each {BLOCK} characters. */
static const uint8_t class_index[] = {{
""")
        write_rows(f, map(str, index))
        write_blocks(f, "class_block", "0 other, 1 letter, 2 mark, 3 number", blocks)
        f.write(f"""
enum {{ CASE_TABLE_END = 0x{case_end:X} }}; /* characters from here on have no case */

/* The same for the case of letters. */
static const uint8_t case_index[] = {{
""")
        write_rows(f, map(str, case_index))
        write_blocks(f, "case_block", "0 none, 1 upper or title case, 2 lower case", case_blocks)
        f.write("\n/* Marks beyond the table, as ranges. */\nstatic const uint32_t late_marks[][2] = {\n")
        write_rows(f, (f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(tail)))
        f.write("\n/* White space outside ASCII, as ranges. */\n"
                "static const uint32_t wide_spaces[][2] = {\n")
        write_rows(f, (f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(c for c in spaces if c > 127)))
        f.write("\n/* clang-format on */\n\n#endif\n")

    with open(os.path.join(TOP, "tests", "data", "unicode", "classes.txt"), "w", encoding="ascii") as f:
        f.write(f"# Classes by {source}: tools/class_table.py\n")
        for name, chars in [*classes.items(), ("space", spaces), *cases.items()]:
            for a, b in ranges(chars):
                f.write(f"{name} {a:x} {b:x}\n")
