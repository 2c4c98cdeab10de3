#!/usr/bin/env python3
"""How unevenly experts are used: the exponent of the Zipf law under which the commoner half of a layer's
experts has the part of all uses that it has in MODEL.gguf.experts (engine/expert_file.c).

    tools/expert_use.py MODEL.gguf.experts
"""
import struct
import sys


def exponent(counts):
    counts = sorted(counts, reverse=True)
    n, half, low, high = len(counts), sum(counts[:len(counts) // 2]) / sum(counts), 0.0, 4.0
    for _ in range(50):
        s = (low + high) / 2
        p = [r ** -s for r in range(1, n + 1)]
        low, high = (s, high) if sum(p[:n // 2]) / sum(p) < half else (low, s)
    return low, half


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = open(sys.argv[1], "rb").read()
    magic = b"carat experts\n"
    if not data.startswith(magic):
        sys.exit(f"{sys.argv[1]}: not a file of counts")
    at = len(magic) + 12  # version, key of the model
    (n_layers,) = struct.unpack_from("<I", data, at)
    at += 4
    found = []
    for _ in range(n_layers):
        layer, n = struct.unpack_from("<II", data, at)
        counts = struct.unpack_from(f"<{n}Q", data, at + 8)
        at += 8 + 8 * n
        if sum(counts):
            found.append(exponent(counts) + (sum(counts),))
    if not found:
        sys.exit(f"{sys.argv[1]}: nothing was counted")
    s = sorted(f[0] for f in found)
    print(f"{len(found)} layers, {found[0][2]} uses in the first: exponent {s[0]:.2f} to {s[-1]:.2f}, median "
          f"{s[len(s) // 2]:.2f}; the commoner half has {sum(f[1] for f in found) / len(found):.3f} of all uses")


if __name__ == "__main__":
    main()
