#!/usr/bin/env python3
"""Compares two files of carat logits --all: tools/logits_distance.py A B BOUND ROWS

Prints the squared distance over the squared norm of A: the median of every tenth row, and the last row's.
Fails where the median is above the bound or no number. A wrong head or row of a kernel is in most rows;
a router's tie that rounding turns is in a few."""
import array
import sys


def main():
    a, b = (array.array("f") for _ in range(2))
    for row, path in zip((a, b), sys.argv[1:3]):
        with open(path, "rb") as f:
            row.frombytes(f.read())
    rows = int(sys.argv[4])
    width = len(a) // rows
    if len(a) != len(b) or not width or len(a) != rows * width:
        sys.exit(f"{len(a)} and {len(b)} logits in {rows} rows")
    distances = []
    for r in range(rows - 1, -1, -10):
        x, y = a[r * width : (r + 1) * width], b[r * width : (r + 1) * width]
        distances.append(sum((p - q) ** 2 for p, q in zip(x, y)) / sum(p * p for p in x))
    last, median = distances[0], sorted(distances, key=lambda d: (d != d, d))[len(distances) // 2]
    print(f"{median:.2g} (last {last:.2g})")
    return 0 if median <= float(sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
