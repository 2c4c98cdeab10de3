"""The lines of bench_sparse_recall (bench/sparse_recall.c) as tables in Markdown.

    python3 tools/sparse_table.py FILE...

The first table: settings against lengths; means over the texts, `seconds` as the ratio of exact attention's to its own. The
second: right answers by depth of the needle, of how many.
"""
import collections
import json
import sys


def length(tokens):
    return min((4, 8, 16, 32), key=lambda k: abs(k - tokens / 1000))


def read(paths):
    """texts[setting, length]: (line, that of exact attention in the same run); asks[setting, length, depth]: right, right of
    exact attention, asked. A run begins with the line of a text that is computed exactly."""
    texts, asks = collections.defaultdict(list), collections.defaultdict(lambda: [0, 0, 0])
    for path in paths:
        with open(path) as f:
            exact, known, now = None, {}, collections.Counter()
            for line in f:
                if not line.endswith("}\n"):        # cut off
                    continue
                x = json.loads(line)
                if "right" not in x:
                    now.clear()
                    if x["sparse"] == "off":
                        exact, known = x, {}
                    texts[x["sparse"], length(x["tokens"])].append((x, exact))
                    continue
                now[x["depth"]] += 1                # the questions of a text come in one order
                at = x["depth"], now[x["depth"]]
                known.setdefault(at, x["right"])
                c = asks[x["sparse"], length(x["tokens"]), x["depth"]]
                c[0] += x["right"]
                c[1] += known[at]
                c[2] += 1
    return texts, asks


def order(setting):
    name, _, value = setting.partition(":")
    return ("off", "flash", "skip").index(name), float(value or 0)


def table(texts):
    out = ["| tokens, setting | texts | tiles read | speed | mass: mean, 5th percentile | divergence, nats | same best token |", "|" + " --- |" * 7]
    for setting, k in sorted(texts, key=lambda x: (x[1], order(x[0]))):
        runs = texts[setting, k]
        mean = lambda name: sum(x[name] for x, _ in runs) / len(runs)
        speed = sum(exact["seconds"] for _, exact in runs) / sum(x["seconds"] for x, _ in runs)
        if setting != "off":
            out.append(f"| {k}K, {setting} | {len(runs)} | {100 * mean('density'):.0f} % | {speed:.2f} | "
                       f"{mean('mass'):.3f}, {mean('mass_p5'):.3f} | {mean('kld'):.1e} | {100 * mean('same'):.1f} % |")
    return "\n".join(out)


def needles(asks):
    """Exact answers are counted where the setting was asked, so that both have the same cases."""
    depths = sorted({k[2] for k in asks})
    out = ["| tokens, setting | " + " | ".join(f"depth {d} %: right, exact, asked" for d in depths) + " |", "|" + " --- |" * (1 + len(depths))]
    for setting, k in sorted({x[:2] for x in asks}, key=lambda x: (x[1], order(x[0]))):
        if setting != "off":
            out.append(f"| {k}K, {setting} | " + " | ".join(", ".join(map(str, asks[setting, k, d])) for d in depths) + " |")
    return "\n".join(out)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    texts, asks = read(sys.argv[1:])
    print(table(texts), needles(asks), sep="\n\n")


if __name__ == "__main__":
    main()
