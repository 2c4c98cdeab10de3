#!/usr/bin/env python3
"""Trains small byte-level vocabularies and records how `tokenizers` encodes many texts.

    tools/bytes_fixtures.py           writes tests/data/vocab/{qwen2,qwen35,laguna,llama-bpe,gpt-4o,tekken}.json
    tools/bytes_fixtures.py --all N   encodes N texts with each of them, in files for
                                      BPE_CASES=FILE build/carat_test bytes_agree_with_tokenizers,
                                      runs this, and says how many texts agree

The pre-tokenizers are those of the published tokenizer.json files. Texts are words in many scripts,
code, digits and emoji, and hostile mixtures of characters of all classes.
"""
import json
import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DATA = os.path.join(TOP, "tests", "data", "vocab")

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*",
                   r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
BREAKS = r"(?:\r?\n)+(?!\r?\n)"

QWEN_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
                "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
                "<|video_pad|>"]
QWEN_USER = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_pad|>", "<tool_response>",
             "</tool_response>", "<think>", "</think>"]
LLAMA_CONTROL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                 "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
GPT4O_CONTROL = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
                 "<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"]
TEKKEN_CONTROL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]",
                  "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"]
LAGUNA_CONTROL = ["<unk>", "\u3008|CODE_START|\u3009", "\u3008|EOS|\u3009",
                  "\u3008|CODE_END|\u3009"]
LAGUNA_USER = ["<think>", "</think>", "<assistant>", "</assistant>", "<tool_call>", "</tool_call>"]

# name: architecture, splits, normalizer, control pieces, added pieces
KINDS = {
    "qwen2": ("qwen3", [(QWEN2, "isolated")], None, QWEN_CONTROL, QWEN_USER),
    "qwen35": ("qwen35", [(QWEN35, "isolated")], None, QWEN_CONTROL, QWEN_USER),
    "llama-bpe": ("llama", [(LLAMA3, "isolated")], None, LLAMA_CONTROL, []),
    "gpt-4o": ("gpt-oss", [(GPT4O, "isolated")], None, GPT4O_CONTROL, []),
    "tekken": ("llama", [(TEKKEN, "isolated")], None, TEKKEN_CONTROL, []),
    "laguna": ("laguna", [(BREAKS, "merged_with_next"), (QWEN2, "isolated")], None, LAGUNA_CONTROL,
               LAGUNA_USER),
}

WORDS = """the of and to in is that it was for on with as at by an be this from or had his not are but
what all were when we there can said which do their if will each how them then many some so these
know engine model token window layer cache prompt answer thought channel system user weather city
function value number string object array return static const void char int size_t struct include
été déjà vu naïve Äpfel über straße niño año ça où 東京 日本語 テキスト です 中文 文字 的 是 了 我们
世界 你好 한국어 안녕 привет мир слово и в не ελληνικά γλώσσα مرحبا السلام שלום हिन्दी नमस्ते ไทย สวัสดี
தமிழ் ខ្មែរ 😊 🚀 👍🏽 🦙 👨‍👩‍👧 ½ € → … “quoted” ‘x’ — – Hello World I'm don't we've it's they'll I'd
123 4567 2026 3.14 100% a+b x=y foo() {bar} [1,2] <b> </td> #define //comment self.x += 1; if (a)
==> !== *** --- ... ); }); == 0x1F Việt Nam e\u0301te\u0301 a\u0300 ١٢٣ Ⅷ ² ꙮ""".split()
SPACES = [" ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", "\t\n",
          "\r\r\n", "\n\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\x0b", "\x0c", "\x1c"]
TAILS = ["'s", "'S", "'t", "'RE", "'ve", "'Ll", "'d", "'m", "'\u017f", "'", "''", "'x", "'r", "'l",
         "\u2019s"]


def chars_by_class():
    found = {}
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            found.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    return found


CLASSES = chars_by_class()
NAMES = sorted(CLASSES)


def corpus(rng, n):
    weights = [1.0 / (i % 60 + 3) for i in range(len(WORDS))]
    for _ in range(n):
        words = rng.choices(WORDS, weights, k=rng.randint(3, 30))
        line = rng.choice([" ", " ", " ", "  ", ", ", ""]).join(words)
        yield rng.choice(["", "", "    ", "\t"]) + line + rng.choice([".", "!", "", "\n", ";\n\n"])


def text(rng, marks, longest=14):
    """One text: words and spaces, characters of a class, runs of one character, or all of them."""
    kind = rng.randrange(6)
    if kind == 0:
        return next(corpus(rng, 1))
    if kind == 1:
        some = [rng.choice(CLASSES[rng.choice(NAMES)]) for _ in range(rng.randint(1, 4))]
        return "".join(rng.choice(some + [" ", "a", "\n"]) for _ in range(rng.randint(1, 20)))
    if kind == 2:
        run = rng.choice(SPACES + ["a", "1", "'", "e\u0301", "\u0301", "-", "字", "\U0001F468\u200d"])
        return rng.choice(["", "x", " "]) + run * rng.randint(1, 40) + rng.choice(["", "x", ".", "1"])
    out = []
    for _ in range(rng.randint(1, longest)):
        pick = rng.randrange(10)
        out.append(rng.choice(WORDS) if pick < 4 else rng.choice(SPACES) if pick < 7 else
                   rng.choice(TAILS) if pick == 7 else
                   rng.choice(CLASSES[rng.choice(NAMES)]) if pick == 8 else
                   rng.choice(marks if kind == 5 else WORDS))
    return "".join(out)


def pre_tokenizer(splits):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), behaviour) for p, behaviour in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(name, n_merges, rng):
    arch, splits, normalizer, control, user = KINDS[name]
    t = Tokenizer(BPE())
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizer(splits)
    first = control + user if name in ("laguna", "tekken") else []
    t.train_from_iterator(corpus(rng, 6000), BpeTrainer(
        vocab_size=len(first) + 256 + n_merges, show_progress=False, special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=24))
    model = json.loads(t.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    pieces += [p for p in control + user if p not in pieces]
    return pieces, merges


def tokenizer(name, pieces, merges):
    _, splits, normalizer, control, user = KINDS[name]
    t = Tokenizer(BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, fuse_unk=False,
                      byte_fallback=False, ignore_merges=name in ("llama-bpe", "gpt-4o", "tekken")))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizer(splits)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(p, special=True, normalized=False) for p in control])
    t.add_tokens([AddedToken(p, special=False, normalized=False) for p in user])
    return t


def check_tiktoken(pieces, merges, texts, t):
    """gpt-4o: the package that the models were trained with agrees, too."""
    import tiktoken
    byte = {c: b for b, c in enumerate(bytes_to_chars())}
    ranks = [c for c in bytes_to_chars()] + [a + b for a, b in merges]
    of = {bytes(byte[c] for c in p): i for i, p in enumerate(ranks)}
    e = tiktoken.Encoding("small", pat_str=GPT4O, mergeable_ranks=of,
                          special_tokens={p: len(of) + i for i, p in enumerate(GPT4O_CONTROL)})
    for c in texts:
        want = [pieces[i] for i in t.encode(c, add_special_tokens=False).ids]
        got = ["".join(bytes_to_chars()[b] for b in e.decode_single_token_bytes(i))
               if i < len(of) else GPT4O_CONTROL[i - len(of)]
               for i in e.encode(c, allowed_special="all")]
        assert got == want, (c, got, want)


def bytes_to_chars():
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(other)) for b in range(256)]


def published():
    out = []
    for name in ("gemma-4", "qwen2", "qwen35"):
        path = os.path.join(DATA, f"ggml-vocab-{name}.gguf.inp")
        if os.path.exists(path):
            with open(path, encoding="utf-8", newline="") as f:
                out += f.read().split("\n__ggml_vocab_test__\n")
    return list(dict.fromkeys(c for c in out if c))


def write(path, name, pieces, merges, texts, t):
    arch, splits, _, control, user = KINDS[name]
    types = "".join("3" if p in control else "4" if p in user else "1" for p in pieces)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"arch": arch, "model": "gpt2", "pre": name, "pieces": pieces, "types": types,
                   "merges": [" ".join(m) for m in merges],
                   "splits": [[p, "".join(w.title() for w in b.split("_"))] for p, b in splits],
                   "cases": [[c, t.encode(c, add_special_tokens=False).ids] for c in texts]},
                  f, ensure_ascii=False, separators=(",", ":"))


def main():
    all_of = int(sys.argv[2]) if sys.argv[1:2] == ["--all"] else 0
    for name in KINDS:
        number = ["qwen2", "qwen35", "laguna", "llama-bpe", "gpt-4o", "tekken"].index(name)
        rng = random.Random(20261122 + number)
        pieces, merges = train(name, 8000 if all_of else 1500, rng)
        t, marks = tokenizer(name, pieces, merges), KINDS[name][3] + KINDS[name][4]
        if not all_of:
            texts = published() + [text(rng, marks, 8) for _ in range(900)]
            texts = [c for c in texts if len(c) < 90 or c in published()]
            if name == "gpt-4o":
                check_tiktoken(pieces, merges, texts, t)
            write(os.path.join(DATA, name + ".json"), name, pieces, merges, texts, t)
            print(name, len(pieces), "pieces,", len(merges), "merges,", len(texts), "texts")
            continue
        done = 0
        while done < all_of:
            n = min(10000, all_of - done)
            path = f"/tmp/bytes_cases_{os.getpid()}.json"
            write(path, name, pieces, merges, [text(rng, marks) for _ in range(n)], t)
            run = subprocess.run([os.environ.get("CARAT_TEST", os.path.join(TOP, "build", "carat_test")),
                                  "bytes_agree_with_tokenizers"],
                                 env={**os.environ, "BPE_CASES": path}, capture_output=True,
                                 text=True)
            if run.returncode:
                sys.exit(f"{name}, kept {path}:\n{run.stdout}{run.stderr}")
            os.unlink(path)
            done += n
        print(name, len(merges), "merges,", done, "texts: the same ids")


if __name__ == "__main__":
    main()
