"""The lines of bench_recall (bench/recall.c) as a table in Markdown, and as a plot.

    python3 tools/recall_table.py FILE... [--svg PLOT.svg]

A cell is the number of right answers in percent; the first column says of how many.
"""
import argparse
import collections
import json

CHOICES = ("full", "oracle", "scored", "snapkv", "drafter", "lru", "bounds", "bounds of old")
NAMES = {"full": "whole context", "one": "one needle per depth", "several": "eight needles per depth", "paraphrased": "eight, paraphrased", "hops": "two facts in one answer"}
COLORS = {"full": "#777777", "oracle": "#c07000", "scored": "#1060c0", "snapkv": "#208040", "drafter": "#8040a0", "lru": "#b02020", "bounds": "#00a0a0",
          "bounds of old": "#a0a000"}


def read(paths):
    cells = collections.defaultdict(lambda: [0, 0])
    for path in paths:
        with open(path) as f:
            for line in f:
                if not line.endswith("}\n"):        # cut off
                    continue
                x = json.loads(line)
                length = min((8, 16, 32), key=lambda k: abs(k - x["tokens"] / 1000))
                c = cells[x["kind"], length, x["depth"], round(100 * x["share"]), x["choice"]]
                c[0] += x["right"]
                c[1] += 1
    return cells


def percent(c):
    return 100 * c[0] / c[1]


def keys(cells, i):
    return sorted({k[i] for k in cells}, reverse=i == 3)


def rows_of(cells):
    order = {"one": 0, "several": 1, "paraphrased": 2, "hops": 3}
    return sorted({k[:3] for k in cells}, key=lambda k: (order.get(k[0], 4), k[1], k[2]))


def asked_for(cells):
    return [c for c in CHOICES if c in keys(cells, 4)]


def table(cells):
    shares, choices = keys(cells, 3), asked_for(cells)[1:]
    out = ["| needles, tokens, depth | asked | whole | " + " | ".join(f"{s} %: " + ", ".join(choices) for s in shares) + " |",
           "| --- | --- | --- |" + " --- |" * len(shares)]
    for kind, length, depth in rows_of(cells):
        full = cells.get((kind, length, depth, shares[0], "full"), [0, 0])
        if not full[1]:
            continue
        line = []
        for s in shares:
            some = [cells.get((kind, length, depth, s, c), [0, 0]) for c in choices]
            line.append(", ".join(f"{percent(c):.0f}" if c[1] else "-" for c in some))
        out.append(f"| {kind}, {length}K, {depth} % | {full[1]} | {percent(full):.0f} | " + " | ".join(line) + " |")
    return "\n".join(out)


def plot(cells):
    """A panel for each kind and length; in it, over the share of pages, the mean of the depths."""
    kinds, lengths = [k for k in ("one", "several", "paraphrased") if k in keys(cells, 0)], keys(cells, 1)
    shares = keys(cells, 3)
    wide, high, gap, left, top = 190, 120, 50, 60, 40
    size = (left + len(lengths) * (wide + gap), top + len(kinds) * (high + gap) + 20)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" font-family="sans-serif" font-size="11">',
           f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>']
    for i, c in enumerate(asked_for(cells)):
        out.append(f'<line x1="{left + 110 * i}" y1="14" x2="{left + 110 * i + 18}" y2="14" stroke="{COLORS[c]}" stroke-width="2"/>'
                   f'<text x="{left + 110 * i + 22}" y="18">{NAMES.get(c, c)}</text>')
    for row, kind in enumerate(kinds):
        for column, length in enumerate(lengths):
            x0, y0 = left + column * (wide + gap), top + row * (high + gap)
            out.append(f'<text x="{x0}" y="{y0 - 5}">{NAMES[kind]}, {length}K tokens</text>')
            for y in (0, 50, 100):
                at = y0 + high * (1 - y / 100)
                out.append(f'<line x1="{x0}" y1="{at}" x2="{x0 + wide}" y2="{at}" stroke="#dddddd"/>'
                           f'<text x="{x0 - 6}" y="{at + 4}" text-anchor="end">{y} %</text>')
            for i, s in enumerate(shares):
                out.append(f'<text x="{x0 + wide * (i + 0.5) / len(shares)}" y="{y0 + high + 14}" text-anchor="middle">{s} % of pages</text>')
            for c in asked_for(cells):
                points = []
                for i, s in enumerate(shares):
                    of = [v for k, v in cells.items() if k[0] == kind and k[1] == length and k[3] == s and k[4] == c]
                    n = sum(v[1] for v in of)
                    if n:
                        points.append((x0 + wide * (i + 0.5) / len(shares), y0 + high * (1 - sum(v[0] for v in of) / n)))
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                out.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[c]}" stroke-width="2"/>')
                out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLORS[c]}"/>' for x, y in points]
    return "\n".join(out + ["</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", nargs="+")
    p.add_argument("--svg")
    a = p.parse_args()
    cells = read(a.file)
    print(table(cells))
    if a.svg:
        with open(a.svg, "w") as f:
            f.write(plot(cells))


if __name__ == "__main__":
    main()
