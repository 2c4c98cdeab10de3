"""Cases for bench/recall.c: a line of JSON for each text, with questions about it and the sentences that answer them.

    python3 tools/demo/recall_cases.py [--kind mixed] [--tokens 8000] [--texts 3] [--asks 8] [--seed 31] > CASES.jsonl

Facts and answers are those of held-out cases, as in recall.py. Kinds:

    mixed         facts anywhere in the text; half of them are asked for
    one           one fact at each of the depths 10, 50 and 90 %, all asked for
    several       eight facts at each depth, all asked for
    paraphrased   as several, but stated in other words than asked for, and neither in the usual ones

--carat PROGRAM counts tokens with that program and the bundled model; without it a token is four characters.
"""
import argparse
import json
import random
import zlib

import reading
import recall
import words

DEPTHS = (10, 50, 90)
EACH = {"one": 1, "several": 8, "paraphrased": 8}


def held_out(r, n, usable):
    while True:
        found, _, lines = reading.facts(r, 1200)
        kept = [f for f in found if zlib.crc32(f.answer().encode()) % 41 == 7 and usable(f)][:n]
        if len(kept) == n:
            return kept, [f for f in found if f not in kept], lines


def frame_of(r):
    return r.choice([f for f in reading._FRAMES if f not in reading.AHEAD])


def mixed(r, tokens, n):
    kept, others, lines = held_out(r, n, lambda f: True)
    stated = kept + others[:n]
    r.shuffle(stated)
    says = [reading.state(r, f) for f in stated]
    text = reading.passage(r, says, tokens, lines)
    frame = frame_of(r)
    asks = []
    for f in kept:
        q, m = reading.ask(r, f, True, False, 0)
        asks.append({"q": q, "a": m["content"], "s": says[stated.index(f)]})
    return {"kind": "mixed", "frame": frame.replace("{t}", text), "asks": asks}


def other_words(r, list):
    return r.choice([x for x in list if x != list[0]])


def worded(r, f, kind):
    """(statement, question)"""
    if kind != "paraphrased":
        return f.says[0], f.asks[0]
    return other_words(r, f.says), other_words(r, f.asks)


def at_depths(r, kind, tokens, count):
    n = EACH[kind]
    kept, _, _ = held_out(r, n * len(DEPTHS), lambda f: len(set(f.says)) > 1 and len(set(f.asks)) > 1)
    unit, sep = words.filler(r)
    fill, stated = [unit() for _ in range(tokens // 4)], []
    for i, f in enumerate(kept):
        stated.append((DEPTHS[i // n], f, *worded(r, f, kind)))
    frame = frame_of(r)

    def text(n_fill):
        out = list(fill[:n_fill])
        for i, (depth, _, says, _) in sorted(enumerate(stated), key=lambda x: -x[1][0]):
            spread = (i % n - n / 2) * 0.004        # facts of one depth are within 3 % of the text
            out.insert(int((depth / 100 + spread) * n_fill), says)
        return frame.replace("{t}", sep.join(out))
    low, high = 0, len(fill)                        # the longest text that fits
    while low < high:
        half = (low + high + 1) // 2
        if count(text(half)) <= tokens:
            low = half
        else:
            high = half - 1
    asks = [{"q": q, "a": f.answer(), "s": says, "depth": depth} for depth, f, says, q in stated]
    return {"kind": kind, "frame": text(low), "asks": asks}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=["mixed", *EACH], default="mixed")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--texts", type=int, default=3)
    p.add_argument("--first", type=int, default=0, help="number of the first text")
    p.add_argument("--asks", type=int, default=8)
    p.add_argument("--seed", type=int, default=31)
    p.add_argument("--carat")
    a = p.parse_args()
    server = recall.Server(argparse.Namespace(carat=a.carat, ctx=1024, serve=[]), "f16") if a.carat else None
    count = server.count if server else reading.count
    for i in range(a.first, a.first + a.texts):
        r = random.Random(f"recall {a.tokens} {a.seed} {i}" if a.kind == "mixed" else f"recall {a.kind} {a.tokens} {a.seed} {i}")
        print(json.dumps(mixed(r, a.tokens, a.asks) if a.kind == "mixed" else at_depths(r, a.kind, a.tokens, count)), flush=True)
    if server:
        server.close()


if __name__ == "__main__":
    main()
