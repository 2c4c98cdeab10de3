"""Trains a vision tower for the demo model, whose weights stay as they are, and writes it as an mmproj file.

    python3 train_tower.py --model ../../models/demo.gguf --out OUT [--seconds 570] [--seed 1]
    python3 train_tower.py --measure OUT/demo-mmproj.gguf     accuracy of a file

The tower is that of Gemma 4 in small: patches of 16, a token for 3 x 3 of them. The model answers questions about drawn
pictures (scenes.py); the loss of its answers trains the tower alone. Pictures have 64 to 529 tokens. OUT/demo-mmproj.gguf is
written every two minutes and at the end, OUT/tower.json has the accuracy on scenes that were kept from the training.
Needs PyTorch and numpy, Pillow for one more face of digits. Without a GPU it runs too, for a few steps.
"""
import argparse
import itertools
import json
import math
import multiprocessing as mp
import os
import random
import struct
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import draft
import gguf_weights
import model as M
import scenes
import tokenizer

SHAPE = dict(width=128, layers=6, heads=4, ff=320, positions=256, patch=16, merge=3)
EMPTY = "<|channel>thought\n<channel|>"            # the thought of an answer without one
BUDGETS = ((70, 0.45), (140, 0.25), (280, 0.2), (560, 0.1))


# ---- the tower -------------------------------------------------------------------------------------------

class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        d, f, self.h = s["width"], s["ff"], s["heads"]
        hd = d // self.h
        for name, i, o in (("attn_q", d, d), ("attn_k", d, d), ("attn_v", d, d), ("attn_out", d, d), ("ffn_gate", d, f), ("ffn_up", d, f), ("ffn_down", f, d)):
            setattr(self, name, nn.Linear(i, o, bias=False))
            nn.init.normal_(getattr(self, name).weight, std=0.8 * i ** -0.5)
        for name in ("ln1", "ln2"):
            setattr(self, name, M.Norm(d))
        for name in ("attn_post_norm", "ffn_post_norm"):
            setattr(self, name, M.Norm(d, 0.3))
        # Scores are not divided by the root of the head size.
        self.attn_q_norm, self.attn_k_norm = M.Norm(hd, hd ** -0.25), M.Norm(hd, hd ** -0.25)

    def forward(self, x, rope):
        n, t, d = x.shape
        a = self.ln1(x)
        q, k, v = (M.linear(a, getattr(self, "attn_" + c).weight).view(n, t, self.h, -1) for c in "qkv")
        q, k, v = turn(self.attn_q_norm(q), rope), turn(self.attn_k_norm(k), rope), M.rms(v)
        half = torch.bfloat16 if x.is_cuda else torch.float32
        o = F.scaled_dot_product_attention(*(z.transpose(1, 2).to(half) for z in (q, k, v)), scale=1.0)
        x = x + self.attn_post_norm(M.linear(o.transpose(1, 2).reshape(n, t, d), self.attn_out.weight))
        a = self.ln2(x)
        f = F.gelu(M.linear(a, self.ffn_gate.weight), approximate="tanh") * M.linear(a, self.ffn_up.weight)
        return x + self.ffn_post_norm(M.linear(f, self.ffn_down.weight))


def turn(x, rope):
    """The first half of a head by the column, the second by the row."""
    a, b = x.chunk(2, -1)
    return torch.cat((M.rotate(a, *rope[0]), M.rotate(b, *rope[1])), -1)


class Tower(nn.Module):
    def __init__(self, n_out, s=SHAPE):
        super().__init__()
        self.s, d = s, s["width"]
        self.patch = nn.Parameter(torch.randn(d, 3, s["patch"], s["patch"]) * (3 * s["patch"] ** 2) ** -0.5)
        self.places = nn.Parameter(torch.randn(2, s["positions"], d) * 0.3)
        self.blk = nn.ModuleList(Block(s) for _ in range(s["layers"]))
        self.out = nn.Linear(d, n_out, bias=False)
        nn.init.normal_(self.out.weight, std=d ** -0.5)

    def forward(self, pixels):
        """[n, 3, h, w], 0 to 1, to [n, tokens, n_out]."""
        s, n = self.s, pixels.shape[0]
        h, w = (x // s["patch"] for x in pixels.shape[2:])
        x = F.unfold(2 * pixels - 1, s["patch"], stride=s["patch"]).transpose(1, 2)
        x = M.linear(x, self.patch.flatten(1)).float()
        row, col = torch.arange(h * w, device=x.device) // w, torch.arange(h * w, device=x.device) % w
        x = x + self.places[0, col] + self.places[1, row]
        half = s["width"] // s["heads"] // 2
        inv = 100 ** (-torch.arange(0, half, 2, device=x.device) / half)
        rope = []
        for at in (col, row):
            a = (at[:, None] * inv).repeat(1, 2)[:, None]
            rope.append((a.cos(), a.sin()))
        for b in self.blk:
            x = b(x, rope)
        k = s["merge"]
        x = x.view(n, h // k, k, w // k, k, -1).mean((2, 4)).flatten(1, 2) * s["width"] ** 0.5
        return M.linear(M.rms(x), self.out.weight).float()


# ---- the model over a text with a picture ----------------------------------------------------------------

def see(m, rows, begin, ids):
    """Hidden states [n, tokens, d] of prompts that are equally long: text up to `begin`, the picture's rows, text again."""
    n, p = rows.shape[:2]
    x = F.embedding(ids, m.model.embed_tokens.weight) * m.c["hidden_size"] ** 0.5
    x = torch.cat((x[:, :begin], rows, x[:, begin:]), 1)          # rows are not scaled
    t = x.shape[1]
    at = torch.arange(t, device=x.device)
    inside = (at >= begin) & (at < begin + p)
    causal = at[:, None] >= at
    near = (at[:, None] - at < m.c["sliding_window"]) & (causal | (inside[:, None] & inside))
    rope = [(getattr(m, f"cos{i}")[:t].repeat(n, 1, 1), getattr(m, f"sin{i}")[:t].repeat(n, 1, 1)) for i in (0, 1)]
    x = x.flatten(0, 1)
    for layer in m.model.layers:
        a = layer.self_attn
        q, k, v = a.project(layer.input_layernorm(x), rope)
        half = torch.bfloat16 if x.is_cuda else torch.float32
        q, k, v = (z.view(n, t, -1, a.hd).transpose(1, 2).to(half) for z in (q, k, v))
        k, v = (z.repeat_interleave(a.h // a.kv, 1) for z in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=near if a.window else causal, scale=1.0)
        x, _ = layer.rest(x, M.linear(o.transpose(1, 2).reshape(n * t, -1), a.o_proj.weight))
    return m.model.norm(x).view(n, t, -1)


def sizes(r, budget):
    """Sides of a picture in its file, and in the tower, by the rule of the runtime."""
    ratio = 1.0 if r.random() < 0.5 else math.exp(r.uniform(-0.7, 0.7))
    h = r.randrange(120, 520)
    w = max(60, round(h * ratio))
    f = math.sqrt(budget * 2304 / (h * w))
    return (h, w), (max(1, int(f * h / 48)) * 48, max(1, int(f * w / 48)) * 48)


def samples(path, seed, kept, kinds):
    """Endless: a scene, the ids of a question, those of its answer."""
    r, tok = random.Random(f"scenes {seed} {kept}"), tokenizer.Fast(path)
    while True:
        s = scenes.draw(r, kept, kinds)
        q, a = scenes.question(r, s)
        yield s, tok.encode(f"<image|>{q}<turn|>\n<|turn>model\n{EMPTY}"), tok.encode(a + "<turn|>")


def worker(path, seed, kinds, out):
    of = samples(path, seed, False, kinds)
    while True:
        out.put([next(of) for _ in range(64)])


def workers(n, path, seed, kinds):
    """Endless samples of the training, made by n processes, which are forked before a GPU is opened."""
    out = mp.Queue(64)
    for i in range(n):
        mp.Process(target=worker, args=(path, f"{seed} {i}", kinds, out), daemon=True).start()
    while True:
        yield from out.get()


class Samples:
    """Batches: pixels, ids, targets. Prompts of one batch have pictures of one size."""

    def __init__(self, tok, seed, dev, of, faces):
        self.r, self.dev, self.of, self.faces = random.Random(f"sizes {seed}"), dev, of, faces.to(dev)
        self.head = tok.encode("<bos><|turn>user\n<|image>")

    def batch(self, budget, rows):
        """Of at most `rows` tokens in all, pictures included."""
        source, target = sizes(self.r, budget)
        n = max(1, rows // (target[0] * target[1] // 2304 + 60))
        made, *text = zip(*(next(self.of) for _ in range(n)))
        text = list(zip(*text))
        longest = max(len(q) + len(a) for q, a in text)
        ids = torch.zeros((n, len(self.head) + longest), dtype=torch.long)
        learn = torch.zeros_like(ids, dtype=torch.bool)
        for i, (q, a) in enumerate(text):
            row = self.head + q + a
            ids[i, :len(row)] = torch.tensor(row)
            learn[i, len(self.head) + len(q):len(row)] = True
        return scenes.pictures(made, source, target, self.faces), ids.to(self.dev), learn.to(self.dev), len(self.head)


def answer_logits(tower, m, pixels, ids, learn, begin):
    """Logits for the tokens of the answers, and these tokens."""
    rows = tower(pixels)
    x = see(m, rows, begin, ids)[:, begin + rows.shape[1] - 1:-1]  # the states before ids[begin:]
    want = learn[:, begin:]
    return m.logits(x[want]), ids[:, begin:][want], want


# ---- the file --------------------------------------------------------------------------------------------

Q8_0, F32 = 8, 0


def tensors(t):
    """(name, array in row-major order, type)"""
    out = [("v.patch_embd.weight", t.patch, F32), ("v.position_embd.weight", t.places, F32), ("mm.input_projection.weight", t.out.weight, Q8_0)]
    for i, b in enumerate(t.blk):
        out += [(f"v.blk.{i}.{name}", p, Q8_0 if p.dim() > 1 else F32) for name, p in b.named_parameters()]
    return [(name, p.detach().float().cpu().numpy(), kind) for name, p, kind in out]


def block_bytes(x):
    """As Q8_0 stores it."""
    b = x.astype(np.float32).reshape(-1, 32)
    d = np.abs(b).max(1, keepdims=True) / 127
    q = np.where(d > 0, np.round(b / np.where(d > 0, d, 1)), 0).astype(np.int8)
    raw = np.zeros(len(b), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    raw["d"], raw["q"] = d[:, 0].astype(np.float16), q
    return raw.tobytes()


def write(path, t):
    s, n_out = t.s, t.out.weight.shape[0]

    def text(x):
        return struct.pack("<Q", len(x.encode())) + x.encode()

    def key(name, kind, raw):
        return text(name) + struct.pack("<I", kind) + raw

    def number(name, x):
        return key(name, 4, struct.pack("<I", x))

    def three(name, x):
        return key(name, 9, struct.pack("<IQ3f", 6, 3, x, x, x))

    keys = [key("general.architecture", 8, text("clip")), key("general.type", 8, text("mmproj")), key("general.name", 8, text("carat demo tower")),
            number("general.file_type", 7), key("clip.has_vision_encoder", 7, b"\1"), key("clip.vision.projector_type", 8, text("gemma4v")),
            number("clip.vision.projection_dim", n_out), number("clip.vision.embedding_length", s["width"]), number("clip.vision.feed_forward_length", s["ff"]),
            number("clip.vision.block_count", s["layers"]), number("clip.vision.attention.head_count", s["heads"]), number("clip.vision.patch_size", s["patch"]),
            number("clip.vision.image_size", 224), key("clip.vision.attention.layer_norm_epsilon", 6, struct.pack("<f", 1e-6)),
            three("clip.vision.image_mean", 0.0), three("clip.vision.image_std", 1.0)]
    all_of, infos, data = tensors(t), b"", b""
    for name, x, kind in all_of:
        infos += text(name) + struct.pack("<I", x.ndim) + struct.pack(f"<{x.ndim}Q", *x.shape[::-1]) + struct.pack("<IQ", kind, len(data))
        data += block_bytes(x) if kind == Q8_0 else x.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_of), len(keys)) + b"".join(keys) + infos
    with open(path + ".part", "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)
    os.replace(path + ".part", path)


def read(path):
    """The tower of a file, its weights as the file rounds them."""
    keys, of = gguf_weights.read(path)
    k = {name.removeprefix("clip.vision."): x for name, x in keys.items()}
    t = Tower(k["projection_dim"], dict(width=k["embedding_length"], layers=k["block_count"], heads=k["attention.head_count"], ff=k["feed_forward_length"],
                                        positions=of["v.position_embd.weight"].shape[1], patch=k["patch_size"], merge=3))
    names = {"patch": "v.patch_embd.weight", "places": "v.position_embd.weight", "out.weight": "mm.input_projection.weight"}
    t.load_state_dict({name: torch.from_numpy(of[names.get(name, "v." + name)]) for name in t.state_dict()})
    return t


# ---- training --------------------------------------------------------------------------------------------

@torch.no_grad()
def measure(tower, m, path, dev, n, budgets):
    """Share of kept scenes whose answer is right to the last token, for each budget. Greedy answers are then those."""
    faces, tok, right = scenes.glyphs(), tokenizer.Fast(path), {}
    for budget, _ in budgets:
        s, good, seen = Samples(tok, budget, dev, samples(path, budget, True, len(faces)), faces), 0, 0
        while seen < n:
            b = s.batch(budget, 16384 if dev == "cuda" else 2048)
            y, want, where = answer_logits(tower, m, *b)
            wrong = torch.zeros_like(where, dtype=torch.long)
            wrong[where] = (y.argmax(-1) != want).long()
            good += int((wrong.sum(1) == 0).sum())
            seen += len(wrong)
        right[budget] = round(good / seen, 4)
    return right


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(here, "../../models/demo.gguf"))
    p.add_argument("--out")
    p.add_argument("--measure")
    p.add_argument("--resume", help="a file of an earlier run to go on from")
    p.add_argument("--seconds", type=float, default=570, help="of the whole run")
    p.add_argument("--steps", type=int, help="stop after so many, however long they take")
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--tokens", type=int, default=16384, help="of a step, pictures included")
    p.add_argument("--cases", type=int, default=1000, help="of a measurement, for each budget")
    p.add_argument("--workers", type=int, default=6, help="processes that make up questions; 0: none")
    p.add_argument("--most", type=int, default=560, help="tokens of a picture; less is for a try without a GPU")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if bool(a.out) == bool(a.measure):
        p.error("expected --out or --measure")
    budgets = [b for b in BUDGETS if b[0] <= a.most]
    begin, dev = time.time(), "cuda" if torch.cuda.is_available() else "cpu"
    where = a.out or os.path.dirname(os.path.abspath(a.measure))
    os.makedirs(where, exist_ok=True)
    words, faces = where + "/tokenizer.json", scenes.glyphs()
    build = draft.load_target(a.model, words)
    of = samples(words, a.seed, False, len(faces)) if a.workers < 1 else workers(a.workers, words, a.seed, len(faces))
    first = None if a.measure else next(of)         # forks
    m = build(dev).eval()
    if a.measure:
        print(json.dumps(measure(read(a.measure).to(dev), m, words, dev, a.cases, budgets)))
        return
    torch.manual_seed(a.seed)
    tower = (read(a.resume) if a.resume else Tower(m.c["hidden_size"])).to(dev)
    text = m.model.embed_tokens.weight.float().pow(2).mean().sqrt() * m.c["hidden_size"] ** 0.5
    if not a.resume:
        tower.out.weight.data *= text               # rows as large as those of text
    print(f"{sum(x.numel() for x in tower.parameters()):,} parameters on {dev}", flush=True)
    opt = torch.optim.AdamW([{"params": [x for x in tower.parameters() if x.dim() > 1], "weight_decay": 0.01},
                             {"params": [x for x in tower.parameters() if x.dim() < 2], "weight_decay": 0.0}], lr=a.rate, betas=(0.9, 0.98))
    s = Samples(tokenizer.Fast(words), a.seed, dev, itertools.chain([first], of), faces)
    left = a.seconds - 45 if a.seconds > 120 else a.seconds * 0.8     # the measurement at the end
    file, log, step, saved, loss_sum, hits = where + "/demo-mmproj.gguf", [], 0, time.time(), 0.0, 0.0
    while (share := min(1.0, max((time.time() - begin) / left, step / a.steps if a.steps else 0))) < 1:
        for g in opt.param_groups:
            g["lr"] = a.rate * min(1, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        # Small pictures first: shapes and colours are learned soonest from few tokens.
        odds = [w if b == 70 or share > 0.15 * i else 0 for i, (b, w) in enumerate(budgets)]
        b = s.batch(s.r.choices([x[0] for x in budgets], odds)[0], a.tokens)
        y, want, _ = answer_logits(tower, m, *b)
        loss = F.cross_entropy(y.float(), want)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 50 == 0 or step == a.steps:
            log.append([step, round(time.time() - begin, 1), round(float(loss), 4), round(float((y.argmax(-1) == want).float().mean()), 4)])
            print(*log[-1], f"budget {b[0].shape[2] * b[0].shape[3] // 2304}", flush=True)
        if time.time() - saved > 120:
            write(file, tower)
            saved = time.time()
    write(file, tower)
    right = measure(read(file).to(dev), m, words, dev, a.cases, budgets)
    json.dump({"right": right, "steps": step, "seconds": round(time.time() - begin), "bytes": os.path.getsize(file), "log": log}, open(where + "/tower.json", "w"))
    print(json.dumps({"right": right, "steps": step, "bytes": os.path.getsize(file)}))


if __name__ == "__main__":
    main()
