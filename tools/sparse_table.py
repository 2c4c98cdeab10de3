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
    texts, asks = collections.defaultdict(dict), collections.defaultdict(lambda: [0, 0])
    for path in paths:
        with open(path) as f:
            for line in f:
                if not line.endswith("}\n"):        # cut off
                    continue
                x = json.loads(line)
                if "right" in x:
                    c = asks[x["sparse"], length(x["tokens"]), x["depth"], path]
                    c[0] += x["right"]
                    c[1] += 1
                else:
                    texts[x["sparse"], length(x["tokens"])][path, x["tokens"]] = x
    return texts, asks


def order(setting):
    name, _, value = setting.partition(":")
    return ("off", "flash", "skip").index(name), float(value or 0)


def table(texts):
    out = ["| setting, tokens | texts | tiles read | speed | mass: mean, 5th percentile | divergence, nats | same best token |", "|" + " --- |" * 7]
    for setting, k in sorted(texts, key=lambda x: (x[1], order(x[0]))):
        runs, exact = texts[setting, k], texts["off", k]
        mean = lambda name: sum(x[name] for x in runs.values()) / len(runs)
        speed = [exact[at]["seconds"] / x["seconds"] for at, x in runs.items() if at in exact]
        out.append(f"| {setting}, {k}K | {len(runs)} | {100 * mean('density'):.0f} % | {sum(speed) / max(len(speed), 1):.2f} | "
                   f"{mean('mass'):.3f}, {mean('mass_p5'):.3f} | {max(mean('kld'), 0):.1e} | {100 * mean('same'):.1f} % |")
    return "\n".join(out)


def needles(asks):
    """Exact answers are counted where the setting was asked, so that both have the same cases."""
    depths = sorted({k[2] for k in asks})
    out = ["| setting, tokens | " + " | ".join(f"depth {d} %: right, exact, asked" for d in depths) + " |", "|" + " --- |" * (1 + len(depths))]
    for setting, k in sorted({x[:2] for x in asks}, key=lambda x: (x[1], order(x[0]))):
        cells = []
        for d in depths:
            own = {x[3]: c for x, c in asks.items() if x[:3] == (setting, k, d)}
            exact = [asks["off", k, d, path][0] for path in own if ("off", k, d, path) in asks]
            cells.append(f"{sum(c[0] for c in own.values())}, {sum(exact)}, {sum(c[1] for c in own.values())}")
        out.append(f"| {setting}, {k}K | " + " | ".join(cells) + " |")
    return "\n".join(out)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    texts, asks = read(sys.argv[1:])
    print(table(texts), needles(asks), sep="\n\n")


if __name__ == "__main__":
    main()
