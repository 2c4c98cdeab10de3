#!/usr/bin/env python3
"""Compares two files of carat logits: tools/logits_distance.py A B BOUND

Prints the squared distance over the squared norm of A, and fails where it is above the bound or no
number. Files of --last: plain Python reads a vocabulary in a tenth of a second."""
import array
import sys


def main():
    floats = []
    for path in sys.argv[1:3]:
        row = array.array("f")
        with open(path, "rb") as f:
            row.frombytes(f.read())
        floats.append(row)
    a, b = floats
    if len(a) != len(b) or not a:
        sys.exit(f"{len(a)} and {len(b)} logits")
    distance = sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a)
    print(f"{distance:.2g}")
    return 0 if distance <= float(sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
