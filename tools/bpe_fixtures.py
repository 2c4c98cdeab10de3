#!/usr/bin/env python3
"""Trains small vocabularies of the Gemma kind and records how `tokenizers` encodes many texts.

    tools/bpe_fixtures.py                    writes tests/data/vocab/*.json (replayed by bpe_test.c)
    tools/bpe_fixtures.py --large OUT FILES  a 262144-piece vocabulary trained on FILES, no cases,
                                             for bench/tokenize.c

A vocabulary here is what Gemma 4's tokenizer.json holds: normalizer Replace(" " to U+2581), BPE
with byte fallback and merged unknowns, markers as added tokens. Two kinds of merge list:

    trained  the merges as training found them, free to join words across spaces
    splits   words end at spaces, and every piece has a merge for each cut into two pieces, ranked
             by piece: the real list is made like this

`tokenizers` has no rule for a whole run of line feeds. So training keeps line feeds apart from other
text, and runs get merges under which both kinds agree; the script checks that.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "vocab")
MARK = "\u2581"
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|think|>",
           "<|turn>", "<turn|>", "<|image|>", "<|audio|>", "<|video|>"]
USER = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
        "<tool_response|>", "<|\"|>"]
WORDS = """the of and to in is that it was for on with as at by an be this from or had his not are but
what all were when we there can said which do their if will each how them then many some so these
would other into has more two like him see time could no make than first been its who now people my
made over did down only way find use may water long little very after words called just where most
know engine model token window layer cache prompt answer thought channel system user weather city
function value number string object array return static const void char int size_t struct include
été déjà vu naïve Äpfel über straße niño año ça où 東京 日本語 テキスト 中文 文字 한국어 привет мир слово
ελληνικά γλώσσα مرحبا שלום हिन्दी ไทย 😊 🚀 👍🏽 🦙 ½ € → … “quoted” ‘x’ — – Hello World I'm don't
we've it's 123 4567 2026 3.14 100% a+b x=y foo() {bar} [1,2] <b> </td> #define //comment \\n \t""".split()


def corpus(rng, n):
    weights = [1.0 / (i + 3) for i in range(len(WORDS))]
    for _ in range(n):
        words = rng.choices(WORDS, weights, k=rng.randint(3, 30))
        line = rng.choice([" ", " ", " ", "  ", ", "]).join(words)
        line = line.replace(" the", rng.choice([" the", ". The", "\n\nthe", "\tthe"]))
        yield rng.choice(["", "", "    ", "\t"]) + line + rng.choice([".", "!", "", "\n", "\n\n"])


def trained(texts, size, split_words):
    t = Tokenizer(BPE())
    t.normalizer = normalizers.Replace(" ", MARK)
    cuts = [pre_tokenizers.Split(Regex("\n+"), "isolated")]
    if split_words:
        cuts.append(pre_tokenizers.Split(Regex(MARK + "+"), "merged_with_next"))
        cuts.append(pre_tokenizers.Digits(individual_digits=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    t.train_from_iterator(texts, BpeTrainer(vocab_size=size, show_progress=False,
                                            special_tokens=[], max_token_length=24))
    model = json.loads(t.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    return pieces, [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]


def all_splits(pieces):
    known, out = set(pieces), []
    for p in pieces:
        out += [(p[:i], p[i:]) for i in range(1, len(p)) if p[:i] in known and p[i:] in known]
    return out


def build(texts, size, kind):
    found, merges = trained(texts, size, kind == "splits")
    runs = ["\n" * i for i in range(1, 9 if kind == "splits" else 3)]
    spaces = [MARK * i for i in range(1, 9)]
    base = CONTROL + USER + ["<0x%02X>" % i for i in range(256)]
    if kind == "splits":
        pieces = base + runs + spaces + [p for p in found if p not in runs + spaces]
        merges = all_splits(runs + spaces + [p for p in found if p not in runs + spaces])
    else:
        found = [p for p in found if "\n" not in p or len(p) < 3]
        known = set(found)
        merges = [m for m in merges if m[0] in known and m[1] in known and m[0] + m[1] in known]
        pieces = base + found
    return pieces, merges


def tokenizer(pieces, merges):
    t = Tokenizer(BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges,
                      unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=False))
    t.normalizer = normalizers.Replace(" ", MARK)
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(),
                                   decoders.Fuse()])
    t.add_special_tokens([AddedToken(p, special=True, normalized=False) for p in CONTROL + USER])
    return t


def cases(rng):
    with open(os.path.join(HERE, "ggml-vocab-gemma-4.gguf.inp"), encoding="utf-8", newline="") as f:
        out = f.read().split("\n__ggml_vocab_test__\n")
    out += ["\n" * i for i in range(1, 12)] + [" " * i for i in range(1, 20)]
    out += list(corpus(rng, 60))
    for _ in range(120):
        n = rng.randint(1, 14)
        out.append("".join(rng.choice(WORDS + [" ", " ", "  ", "\n", "\n\n", "\t", "\r\n", MARK,
                                               "\u00a0", "e\u0301", "\ufffd", "\U0001F468\u200D"]
                                      + CONTROL + USER) for _ in range(n)))
    return [c for c in out if c]


def check_runs(t, pieces):
    known = set(pieces)
    for i in range(1, 40):
        if "\n" * i in known:
            assert len(t.encode("\n" * i, add_special_tokens=False).ids) == 1, i


def types(pieces):
    return "".join("2" if p == "<unk>" else "3" if p in CONTROL else "4" if p in USER else
                   "6" if len(p) == 6 and p.startswith("<0x") else "1" for p in pieces)


def main():
    if sys.argv[1:2] == ["--large"]:
        texts = []
        for path in sys.argv[3:]:
            with open(path, encoding="utf-8", errors="ignore") as f:
                texts += f.read().split("\n\n")
        pieces, merges = build(texts, 262144 - 300, "splits")
        fill = ["<unused%d>" % i for i in range(262144 - len(pieces))]
        pieces += fill
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            json.dump({"pieces": pieces, "types": types(pieces),
                       "merges": [" ".join(m) for m in merges]}, f, ensure_ascii=False)
        print(len(pieces), "pieces,", len(merges), "merges")
        return
    for name, size, kind in [("trained", 900, "trained"), ("splits", 1500, "splits")]:
        rng = random.Random(20261120)
        pieces, merges = build(list(corpus(rng, 4000)), size, kind)
        t = tokenizer(pieces, merges)
        check_runs(t, pieces)
        texts = cases(rng)
        with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
            json.dump({"pieces": pieces, "types": types(pieces),
                       "merges": [" ".join(m) for m in merges],
                       "cases": [[c, t.encode(c, add_special_tokens=False).ids] for c in texts]},
                      f, ensure_ascii=False, separators=(",", ":"))
        print(name, len(pieces), "pieces,", len(merges), "merges,", len(texts), "cases")


if __name__ == "__main__":
    main()
