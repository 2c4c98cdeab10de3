"""Held-out accuracy of the demo model, in PyTorch.

    python3 evaluate.py --dir DIR [--n 50] [--lengths 500 2000]

An answer counts only if every token that the model has to write has the highest score given the
right tokens before it. That is the same as greedy decoding producing exactly this answer, at the
price of one forward pass.
"""
import argparse
import collections
import random

import torch

import corpus
import model as M
import reading
import tokenizer

SHORT = ("facts", "refusal", "sums", "copy", "sort", "order", "count", "tools")
READ = ("recall", "recall_ahead", "missing", "two_hop", "two_hop_value")
LENGTHS = (500, 2000, 8000, 32000)


def make_cases(path, n, out=None, lengths=LENGTHS):
    """{name: [(ids, positions the model has to predict)]}; put into the queue `out` if given."""
    tok, r = tokenizer.Fast(path), random.Random("evaluation")
    reading.count = lambda text: len(tok.encode(text))
    cases = {}

    def add(name, doc):
        ids, learn = [], []
        for text, on in corpus.render(doc):
            t = tok.encode(text)
            ids += t
            learn += [on] * len(t)
        if len(ids) <= 32768:
            cases.setdefault(name, []).append((ids, [i for i, on in enumerate(learn) if on]))

    for skill in SHORT if n else ():
        for think in (False, True):
            for _ in range(n if not think else n // 2):
                add(skill + (" (thinking)" if think else ""), corpus.draw(r, skill, 0, think))
    for skill in READ:
        for length in lengths:
            few = n if length <= 2000 else n // 2 if length <= 8000 else n // 4
            for _ in range(max(few, 2)):
                add(f"{skill} {length}", corpus.draw(r, skill, length - 60))
    if out is not None:
        out.put(cases)
    return cases


@torch.no_grad()
def run(m, cases, dev, most=None, room=65536):
    """[(name, right, all, first wrong)] with documents packed into rows of at most `room` tokens."""
    todo = [(name, ids, at) for name, c in cases.items() for ids, at in c[:most]]
    right, total, wrong = collections.Counter(), collections.Counter(), {}
    i = 0
    while i < len(todo):
        row, used = [], 0
        while i < len(todo) and (not row or used + len(todo[i][1]) <= room):
            row.append(todo[i])
            used += len(todo[i][1])
            i += 1
        ids = torch.tensor([t for x in row for t in x[1]], device=dev)
        lens = [len(x[1]) for x in row]
        pos = torch.cat([torch.arange(n) for n in lens]).to(dev)
        offsets = torch.tensor([0] + lens).cumsum(0)
        M.Batch.cu, M.Batch.max_len = offsets.to(dev, torch.int32), max(lens)
        best = m.logits(m(ids, pos)[0]).argmax(-1).cpu()
        for (name, t, at), o in zip(row, offsets.tolist()):
            total[name] += 1
            bad = [p for p in at if int(best[o + p - 1]) != t[p]]
            if bad:
                wrong.setdefault(name, (t, bad[0], int(best[o + bad[0] - 1])))
            else:
                right[name] += 1
    return [(name, right[name], total[name], wrong.get(name)) for name in total]


def table(result):
    return "\n".join(f"  {name:24} {a:4}/{b:4}  {100 * a / b:5.1f} %" for name, a, b, _ in result)


def main():
    import export
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", required=True)
    p.add_argument("--n", type=int, default=50)
    p.add_argument("--lengths", type=int, nargs="*", default=[500, 2000])
    a = p.parse_args()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    m = M.Model().to(dev)
    m.load_state_dict(export.load_shards(a.dir))
    tok = tokenizer.Fast(a.dir + "/tokenizer.json")
    result = run(m, make_cases(a.dir + "/tokenizer.json", a.n, lengths=a.lengths), dev, room=65536 if dev == "cuda" else 2048)
    print(table(result))
    for name, _, _, wrong in result:
        if wrong:
            ids, at, got = wrong
            print(f"{name}: ...{tok.decode(ids[max(0, at - 60):at])!r} expected {tok.decode(ids[at:at + 12])!r}, got {tok.decode([got])!r}")


if __name__ == "__main__":
    main()
