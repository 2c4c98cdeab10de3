"""Cases for bench/recall.c: a line of JSON for each text, with questions about it and the sentences that answer them.

    python3 tools/demo/recall_cases.py [--kind mixed] [--tokens 8000] [--texts 3] [--asks 8] [--seed 31] > CASES.jsonl

Facts and answers are those of held-out cases, as in recall.py. Kinds:

    mixed         facts anywhere in the text; half of them are asked for
    one           one fact at each of the depths 10, 50 and 90 %, all asked for
    several       eight facts at each depth, all asked for
    paraphrased   as several, but stated in other words than asked for, and neither in the usual ones
    hops          six answers that need two facts at once: X has Y's locker, Y's locker has a code. They lie at different
                  depths; a question's depth is that of the first

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


def longest(r, sep, fill, stated, tokens, count, frame):
    """The longest text that fits, with the sentences [(depth, text)] at their depths; those of one depth within 3 % of it."""
    placed = {d: 0 for d, _ in stated}
    at = []
    for depth, says in stated:
        n = sum(d == depth for d, _ in stated)
        at.append((depth, depth / 100 + (placed[depth] - n / 2) * 0.004, says))
        placed[depth] += 1

    def text(n_fill):
        out = list(fill[:n_fill])
        for _, place, says in sorted(at, key=lambda x: -x[0]):
            out.insert(int(place * n_fill), says)
        return frame.replace("{t}", sep.join(out))
    low, high = 0, len(fill)
    while low < high:
        half = (low + high + 1) // 2
        if count(text(half)) <= tokens:
            low = half
        else:
            high = half - 1
    return text(low)


def at_depths(r, kind, tokens, count):
    n = EACH[kind]
    kept, _, _ = held_out(r, n * len(DEPTHS), lambda f: len(set(f.says)) > 1 and len(set(f.asks)) > 1)
    unit, sep = words.filler(r)
    fill = [unit() for _ in range(tokens // 4)]
    stated = [(DEPTHS[i // n], f, *worded(r, f, kind)) for i, f in enumerate(kept)]
    text = longest(r, sep, fill, [(depth, says) for depth, _, says, _ in stated], tokens, count, frame_of(r))
    asks = [{"q": q, "a": f.answer(), "s": says, "depth": depth} for depth, f, says, q in stated]
    return {"kind": kind, "frame": text, "asks": asks}


def hops(r, tokens, count):
    obj, attr, style = r.choice("locker desk room boat garage safe box".split()), r.choice(("code", "number", "pin")), r.randrange(2)
    pairs = [(a, b) for a in DEPTHS for b in DEPTHS if a != b]
    people, person = [], words.people(r)
    while len(people) < 2 * len(pairs):
        p = person(r)
        if p not in people:
            people.append(p)
    unit, sep = words.filler(r)
    fill, stated, asks = [unit() for _ in range(tokens // 4)], [], []
    for i, (a, b) in enumerate(pairs):
        x, y, v = people[2 * i], people[2 * i + 1], words.digits(r)
        says = [reading.hop_alias(r, obj, x, y), reading.hop_base(style, obj, attr, y, v)]
        stated += zip((a, b), says)
        asks.append({"q": reading.hop_asks(obj, attr, x)[0], "a": f"{reading.hop_lead(obj, attr, x, y)} {v}.", "s": says, "depth": a})
    return {"kind": "hops", "frame": longest(r, sep, fill, stated, tokens, count, frame_of(r)), "asks": asks}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=["mixed", *EACH, "hops"], default="mixed")
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
        case = (mixed(r, a.tokens, a.asks) if a.kind == "mixed" else hops(r, a.tokens, count) if a.kind == "hops"
                else at_depths(r, a.kind, a.tokens, count))
        print(json.dumps(case), flush=True)
    if server:
        server.close()


if __name__ == "__main__":
    main()
