"""Cases for bench/recall.c: a line of JSON for each text, with questions about it and the sentences that answer them.

    python3 tools/demo/recall_cases.py [--tokens 8000] [--texts 3] [--asks 8] [--seed 31] > CASES.jsonl

Facts and answers are those of held-out cases, as in recall.py; half of a text's facts are asked for.
"""
import argparse
import json
import random
import zlib

import reading


def case(r, tokens, n):
    while True:
        found, _, lines = reading.facts(r, 1200)
        kept = [f for f in found if zlib.crc32(f.answer().encode()) % 41 == 7][:n]
        if len(kept) == n:
            break
    stated = kept + [f for f in found if f not in kept][:n]
    r.shuffle(stated)
    says = [reading.state(r, f) for f in stated]
    text = reading.passage(r, says, tokens, lines)
    frame = r.choice([f for f in reading._FRAMES if f not in reading.AHEAD])
    asks = []
    for f in kept:
        q, m = reading.ask(r, f, True, False, 0)
        asks.append({"q": q, "a": m["content"], "s": says[stated.index(f)]})
    return {"frame": frame.replace("{t}", text), "asks": asks}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--texts", type=int, default=3)
    p.add_argument("--asks", type=int, default=8)
    p.add_argument("--seed", type=int, default=31)
    a = p.parse_args()
    for i in range(a.texts):
        print(json.dumps(case(random.Random(f"recall {a.tokens} {a.seed} {i}"), a.tokens, a.asks)))


if __name__ == "__main__":
    main()
