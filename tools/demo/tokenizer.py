"""The tokenizer of the demo model: 2048 pieces, of the Gemma kind.

A space is written U+2581; merges are byte-pair merges over characters; a character without a piece
becomes <0xXX> byte pieces; digits are always single. No merge crosses the border between letters,
digits, other characters, and line feeds, and U+2581 only ever starts a piece. So a text can be cut
at these borders and each part encoded alone, which `Fast` does with a table of parts.

    python3 tokenizer.py train OUT_DIR      make tokenizer.json
    python3 tokenizer.py check DIR          compare `Fast` with the tokenizers library
"""
import json
import re
import string
import sys

SPACE = "\u2581"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
           "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>",
           "<|audio>", "<audio|>", "<|audio|>", "<|video|>"]
PAD, EOS, BOS, UNK, MASK = range(5)
SIZE = 2048
UNIT = SPACE + r"*[A-Za-z]+|" + SPACE + r"*[^A-Za-z0-9\n" + SPACE + r"]+|" + SPACE + r"+|[0-9]|\n+"
_SPECIAL = re.compile("(" + "|".join(re.escape(s) for s in SPECIAL) + ")")
_UNIT = re.compile(UNIT)


def base_pieces():
    """Pieces that exist before any training, in id order, and the merges that make the runs."""
    runs = ["\n" * i for i in range(1, 5)] + [SPACE * i for i in range(2, 5)]
    chars = [SPACE, "\t"] + [c for c in string.printable if 32 < ord(c) < 127]
    merges = []
    for c in ("\n", SPACE):
        merges += [(c, c), (c * 2, c * 2), (c * 2, c)]
    return SPECIAL + runs + [f"<0x{b:02X}>" for b in range(256)] + sorted(set(chars)), merges


def train(texts):
    """tokenizer.json as a dict, from an iterable of texts."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    pieces, merges = base_pieces()
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", SPACE)
    t.pre_tokenizer = pre_tokenizers.Split(Regex(UNIT), "isolated")
    alphabet = [c for c in pieces if len(c) == 1]
    room = SIZE - len(pieces)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=len(alphabet) + 4 * room, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
                                                     show_progress=False, max_token_length=16))
    ascii_piece = re.compile(r"[\t!-~" + SPACE + r"]+\Z")
    for a, b in json.loads(t.to_str())["model"]["merges"]:
        if len(pieces) == SIZE:
            break
        if a + b not in pieces and a in pieces and b in pieces and ascii_piece.match(a + b):
            merges.append((a, b))
            pieces.append(a + b)
    assert len(pieces) == SIZE and len(set(pieces)) == SIZE
    return document(pieces, merges)


def document(pieces, merges):
    """tokenizer.json as a dict, from the pieces in id order and the pairs in order of rank."""
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, s in enumerate(SPECIAL)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {p: i for i, p in enumerate(pieces)}, "merges": [list(m) for m in merges]},
    }


def save(doc, path):
    json.dump(doc, open(path, "w", encoding="utf-8"), ensure_ascii=False, indent=1)


class Fast:
    """Encoder with a table of parts already seen. Special tokens in the text are recognised."""

    def __init__(self, path):
        m = json.load(open(path, encoding="utf-8"))["model"]
        self.vocab = m["vocab"]
        self.pieces = sorted(self.vocab, key=self.vocab.get)
        self.rank = {tuple(x): i for i, x in enumerate(m["merges"])}
        self.table = {s: (i,) for i, s in enumerate(SPECIAL)}

    def _unit(self, u):
        s = list(u)
        while len(s) > 1:
            rank, i = min((self.rank.get((s[i], s[i + 1]), 1 << 30), i) for i in range(len(s) - 1))
            if rank == 1 << 30:
                break
            s[i:i + 2] = [s[i] + s[i + 1]]
        out = []
        for x in s:
            if x in self.vocab:
                out.append(self.vocab[x])
            else:
                out += [self.vocab[f"<0x{b:02X}>"] for b in x.encode()]
        return tuple(out)

    def encode(self, text):
        out, table = [], self.table
        text = text.replace(" ", SPACE)
        if "<" in text:
            units = [u for i, t in enumerate(_SPECIAL.split(text)) for u in ((t,) if i & 1 else _UNIT.findall(t))]
        else:
            units = _UNIT.findall(text)
        for u in units:
            t = table.get(u)
            if t is None:
                t = self._unit(u)
                if len(u) < 24 and len(table) < 400000:
                    table[u] = t
            out += t
        return out

    def decode(self, ids):
        raw = b"".join(bytes([int(p[3:5], 16)]) if re.fullmatch(r"<0x[0-9A-F]{2}>", p) else p.replace(SPACE, " ").encode()
                       for p in (self.pieces[i] for i in ids))
        return raw.decode("utf-8", "replace")


if __name__ == "__main__":
    import os
    import random
    import corpus
    out = sys.argv[2]
    if sys.argv[1] == "train":
        r = random.Random("tokenizer 1")
        texts = ("".join(t for t, _ in corpus.render(corpus.document(r, 400))) for _ in range(60000))
        os.makedirs(out, exist_ok=True)
        save(train(p for t in texts for p in _SPECIAL.split(t)[::2]), out + "/tokenizer.json")
    else:
        from tokenizers import Tokenizer
        slow, fast, r = Tokenizer.from_file(out + "/tokenizer.json"), Fast(out + "/tokenizer.json"), random.Random(5)
        n = 0
        for i in range(3000):
            text = "".join(t for t, _ in corpus.render(corpus.document(r, 500)))
            if i % 3 == 0:
                text = "".join(r.choice((" ", "  ", "\n", "\n\n\n", "\t", "a", "The ", "7", "é", "<|turn>", "sun", ".", "'s")) for _ in range(200))
            a, b = slow.encode(text, add_special_tokens=False).ids, fast.encode(text)
            assert a == b, (text, a, b)
            assert fast.decode(b) == text
            n += len(a)
        print("same ids on 3000 texts,", n, "tokens")
