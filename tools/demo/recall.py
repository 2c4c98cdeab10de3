"""Recall of the bundled model in every format of keys and values, through `carat serve`.

    python3 tools/demo/recall.py [--carat ./carat] [--types f16,q8_0,...] [--tokens 1000,4000,8000,16000]
                                 [--texts 5] [--asks 12] [--seed 31] [--show] [--serve=--OPTION]

Many questions about one text: the server computes the text once and goes back to its end for each of
them, so that a case costs its question and answer. Texts, facts and answers are those of held-out
cases (corpus.py). Greedy; a case counts if the whole answer is right. Prints a line for each type and length.
"""
import argparse
import json
import random
import subprocess
import sys
import urllib.request
import zlib

import corpus
import reading

TYPES = "f32,f16,bf16,q8_0,q8_0+rot,q5_1,q5_1+rot,q5_0,q5_0+rot,q4_1,q4_1+rot,q4_0,q4_0+rot,iq4_nl,iq4_nl+rot,tq3_0"


def text_with_asks(r, tokens, n):
    """(frame with the text in it, [(question, answer)]): n held-out facts among twice as many, the question last."""
    while True:
        found, _, lines = reading.facts(r, 1200)
        kept = [f for f in found if zlib.crc32(f.answer().encode()) % 41 == 7][:n]
        if len(kept) == n:
            break
    others = [f for f in found if f not in kept][:n]
    stated = kept + others
    r.shuffle(stated)
    text = reading.passage(r, [reading.state(r, f) for f in stated], tokens, lines)
    frame = r.choice([f for f in reading._FRAMES if f not in reading.AHEAD])
    asks = []
    for f in kept:
        q, m = reading.ask(r, f, True, False, 0)
        assert corpus.held_out({"skill": "recall", "messages": [{"role": "user", "content": q}, m]})
        asks.append((q, m["content"]))
    return frame.replace("{t}", text), asks


def text_of_length(server, name, tokens, n):
    """The same, of `tokens` tokens less at most a tenth; the server counts them."""
    aim = tokens
    for i in range(50):
        frame, asks = text_with_asks(random.Random(f"{name} {i}"), int(aim), n)
        has = server.count(frame)
        if 0.9 * tokens <= has <= tokens:
            return frame, asks
        aim = min(max(aim * 0.95 * tokens / has, tokens / 4), 4 * tokens)
    sys.exit(f"no text of {tokens} tokens was found")


class Server:
    def __init__(self, a, kind):
        cmd = [a.carat, "serve", "-p", "0", "--parallel", "1", "--log", "off", "--ctx", str(a.ctx), "--kv-type", kind] + a.serve
        self.process = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "http" not in line:
            sys.exit(f"{' '.join(cmd)}: {line!r}")
        self.url = line[line.index("http"):].split()[0].rstrip("/")

    def ask(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as f:
            return json.load(f)

    def count(self, text):
        return len(self.ask("/tokenize", {"content": text})["tokens"])

    def answer(self, content):
        """(text, prompt tokens, tokens of it that were computed before)"""
        r = self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 120})
        u = r["usage"]
        return r["choices"][0]["message"]["content"], u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]

    def close(self):
        self.process.terminate()
        self.process.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--carat", default="./carat")
    p.add_argument("--types", default=TYPES)
    p.add_argument("--tokens", default="1000,4000,8000,16000")
    p.add_argument("--texts", type=int, default=5)
    p.add_argument("--asks", type=int, default=12)
    p.add_argument("--seed", type=int, default=31)
    p.add_argument("--ctx", type=int, default=32768)
    p.add_argument("--serve", action="append", default=[], help="an argument for `carat serve`: --serve=--kv-single=off")
    p.add_argument("--show", action="store_true", help="print the wrong answers")
    a = p.parse_args()
    for kind in a.types.split(","):
        for tokens in map(int, a.tokens.split(",")):
            server = Server(a, kind)
            right = total = computed = asked = longest = 0
            for i in range(a.texts):
                frame, asks = text_of_length(server, f"recall {tokens} {a.seed} {i}", tokens, a.asks)
                for q, expect in asks:
                    got, n, cached = server.answer(frame.replace("{q}", q))
                    total += 1
                    right += got == expect
                    computed, asked, longest = computed + n - cached, asked + n, max(longest, n)
                    if a.show and got != expect:
                        print(f"    {q!r}\n    expected {expect!r}\n    got      {got!r}")
            server.close()
            print(f"{kind:12} {tokens:6}  {right:3}/{total:3}   prompts up to {longest} tokens, {computed} of {asked} computed", flush=True)


if __name__ == "__main__":
    main()
