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
BUDGETS = ((70, 0.4), (140, 0.2), (280, 0.2), (560, 0.2))
RATIOS = (0.5, 0.75, 1.0, 1.0, 1.35, 2.0)
HEAD = "<bos><|turn>user\n<|image>"
TEXT = 44                                          # tokens of a question and its answer at most


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

    def features(self, pixels):
        """[n, 3, h, w], 0 to 1, to [n, tokens, width]."""
        s, n = self.s, pixels.shape[0]
        h, w = (x // s["patch"] for x in pixels.shape[2:])
        p = s["patch"]
        x = (2 * pixels - 1).view(n, 3, h, p, w, p).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w, -1)
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
        return M.rms(x)

    def forward(self, pixels):
        """Rows of the model [n, tokens, n_out]."""
        return M.linear(self.features(pixels), self.out.weight).float()


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
        x = through(layer, x, n, rope, near if layer.self_attn.window else causal)
    return m.model.norm(x).view(n, t, -1)


def through(layer, x, n, rope, mask):
    a = layer.self_attn
    q, k, v = a.project(layer.input_layernorm(x), rope)
    half = torch.bfloat16 if x.is_cuda else torch.float32
    q, k, v = (z.view(n, x.shape[0] // n, -1, a.hd).transpose(1, 2).to(half) for z in (q, k, v))
    k, v = (z.repeat_interleave(a.h // a.kv, 1) for z in (k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return layer.rest(x, M.linear(o.transpose(1, 2).reshape(x.shape[0], -1), a.o_proj.weight))[0]


def sizes(r, budget, fixed):
    """Sides of a picture in its file, and in the tower, by the rule of the runtime; `fixed`: one of few shapes, of which each has its CUDA graph."""
    ratio = r.choice(RATIOS) if fixed else 1.0 if r.random() < 0.5 else math.exp(r.uniform(-0.7, 0.7))
    h = r.randrange(120, 520)
    w = max(60, round(h * ratio))
    f = math.sqrt(budget * 2304 / (ratio if fixed else w / h)) / 48
    rows, cols = max(1, int(f)), max(1, int(f * (ratio if fixed else w / h)))
    return (h, w), (rows * 48, cols * 48)


def batches(path, seed, kept, kinds, budgets, rows, fixed):
    """Endless: a budget's batch of at most `rows` tokens in all as numpy arrays: scenes, sides, ids [n, t], targets [n, t] (-100: not learned),
    what each cell shows. Pictures of one batch have one size; a text is the head, the picture's place, the question and the answer."""
    r, tok = random.Random(f"scenes {seed} {kept}"), tokenizer.Fast(path)
    head = tok.encode(HEAD)
    for budget in budgets:
        source, target = sizes(r, budget, fixed)
        n = max(1, rows // (target[0] * target[1] // 2304 + len(head) + TEXT))
        made = [scenes.draw(r, kept, kinds) for _ in range(n)]
        ids, want = np.zeros((n, len(head) + TEXT), np.int64), np.full((n, TEXT), -100, np.int64)
        for i, s in enumerate(made):
            q, a = (tok.encode(x) for x in ask(r, s))
            ids[i, :len(head) + len(q) + len(a)] = head + q + a
            want[i, len(q):len(q) + len(a)] = a
        arrays = scenes.arrays(made)
        yield arrays, source, target, ids, want, scenes.cells(arrays, target[0] // 48, target[1] // 48)


def ask(r, s):
    q, a = scenes.question(r, s)
    return f"<image|>{q}<turn|>\n<|turn>model\n{EMPTY}", a + "<turn|>"


def worker(out, *of):
    torch.set_num_threads(1)
    for b in batches(*of):
        out.put(b)


def answer_logits(rows, m, ids, begin):
    """Logits [n, TEXT, vocabulary] for the tokens behind the picture, whose rows stand behind `begin` tokens."""
    return m.logits(see(m, rows, begin, ids)[:, begin + rows.shape[1] - 1:-1])


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
def measure(tower, m, path, dev, n):
    """Share of kept scenes whose answer is right to the last token, for each budget. Greedy answers are then those."""
    faces, right = scenes.glyphs().to(dev), {}
    for budget, _ in BUDGETS:
        good = seen = 0
        for arrays, source, target, ids, want, _ in batches(path, budget, True, len(faces), itertools.repeat(budget), 16384 if dev == "cuda" else 2048, False):
            want = torch.from_numpy(want).to(dev)
            y = answer_logits(tower(scenes.pictures(arrays, source, target, faces)), m, torch.from_numpy(ids).to(dev), ids.shape[1] - TEXT).argmax(-1)
            good, seen = good + int(((y == want) | (want < 0)).all(1).sum()), seen + len(want)
            if seen >= n:
                break
        right[budget] = round(good / seen, 4)
    return right


class Step:
    """Forward and backward pass of batches of one shape. On a GPU they are one CUDA graph: thousands of launches would take longer than the work.

    Beside the answers, the features of each cell say what its picture shows there (`cells`, a layer that only the training has): without that,
    it takes long until the tower shows anything that the model can use.
    """

    def __init__(self, tower, cells, m, dev, like, pool):
        pixels, ids, want, what, colour = self.inputs = [x.clone() for x in like]
        self.share, self.graph = torch.zeros((), device=dev), None

        def run():
            x = tower.features(pixels)
            y = answer_logits(M.linear(x, tower.out.weight).float(), m, ids, ids.shape[1] - TEXT)
            self.loss = F.cross_entropy(y.float().flatten(0, 1), want.flatten())
            c = M.linear(x, cells.weight).float().flatten(0, 1)
            self.beside = F.cross_entropy(c[:, :14], what.flatten()) + F.cross_entropy(c[:, 14:], colour.flatten())
            (self.loss + self.share * self.beside).backward()
            known = want >= 0
            self.right = ((y.argmax(-1) == want) & known).sum() / known.sum()
        self.run = run
        if dev == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                run()

    def __call__(self, like, share):
        for a, b in zip(self.inputs, like):
            a.copy_(b, non_blocking=True)
        self.share.fill_(share)
        self.graph.replay() if self.graph else self.run()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(here, "../../models/demo.gguf"))
    p.add_argument("--out")
    p.add_argument("--measure")
    p.add_argument("--resume", help="a file of an earlier run to go on from")
    p.add_argument("--seconds", type=float, default=570, help="of the whole run")
    p.add_argument("--steps", type=int, help="stop after so many, however long they take")
    p.add_argument("--rate", type=float, default=1.5e-3)
    p.add_argument("--tokens", type=int, default=8192, help="of a step, pictures included")
    p.add_argument("--cases", type=int, default=1000, help="of a measurement, for each budget")
    p.add_argument("--workers", type=int, default=8, help="processes that make up questions")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if bool(a.out) == bool(a.measure):
        p.error("expected --out or --measure")
    begin, dev = time.time(), "cuda" if torch.cuda.is_available() else "cpu"
    where = a.out or os.path.dirname(os.path.abspath(a.measure))
    os.makedirs(where, exist_ok=True)
    words, faces = where + "/tokenizer.json", scenes.glyphs()
    build = draft.load_target(a.model, words)
    # Small pictures first: shapes and colours are learned soonest from few tokens. Processes are forked before a GPU is opened.
    small, full = ([mp.Queue(8) for _ in range(a.workers)] for _ in range(2))

    def of(seed, odds):
        r = random.Random(seed)
        return iter(lambda: r.choices([x[0] for x in BUDGETS], odds)[0], 0)
    for i in range(0 if a.measure else a.workers):
        for queue, odds in ((small[i], (1, 0, 0, 0)), (full[i], [x[1] for x in BUDGETS])):
            mp.Process(target=worker, args=(queue, words, f"{a.seed} {i} {odds}", False, len(faces), of(i, odds), a.tokens, True), daemon=True).start()
    m, faces = build(dev).eval(), faces.to(dev)
    for name, x in m.named_parameters():
        if dev == "cuda" and x.dim() == 2 and "_proj" in name and "router" not in name:
            x.data = x.data.bfloat16()      # as its products take it
    if a.measure:
        print(json.dumps(measure(read(a.measure).to(dev), m, words, dev, a.cases)))
        return
    torch.manual_seed(a.seed)
    tower = (read(a.resume) if a.resume else Tower(m.c["hidden_size"])).to(dev)
    cells = nn.Linear(tower.s["width"], 14 + len(scenes.COLOURS), bias=False).to(dev)
    if not a.resume:            # rows as large as those of text
        tower.out.weight.data *= m.model.embed_tokens.weight.float().pow(2).mean().sqrt() * m.c["hidden_size"] ** 0.5
    print(f"{sum(x.numel() for x in tower.parameters()):,} parameters on {dev}", flush=True)
    learned = [*tower.parameters(), *cells.parameters()]
    for x in learned:
        x.grad = torch.zeros_like(x)        # the graphs add to these
    opt = torch.optim.AdamW([{"params": [x for x in learned if x.dim() > 1], "weight_decay": 0.01},
                             {"params": [x for x in learned if x.dim() < 2], "weight_decay": 0.0}], lr=a.rate, betas=(0.9, 0.98), fused=dev == "cuda")
    left = a.seconds - 50 if a.seconds > 120 else a.seconds * 0.8     # the measurement at the end
    pool, steps = torch.cuda.graph_pool_handle() if dev == "cuda" else None, {}
    file, log, n, saved = where + "/demo-mmproj.gguf", [], 0, time.time()
    while (share := min(1.0, max((time.time() - begin) / left, n / a.steps if a.steps else 0))) < 1:
        for g in opt.param_groups:
            g["lr"] = a.rate * min(1, (n + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        arrays, source, target, *rest, shown = (small if share < 0.15 else full)[n % a.workers].get()
        like = [scenes.pictures(arrays, source, target, faces), *(torch.from_numpy(x).to(dev, non_blocking=True) for x in (*rest, *shown))]
        torch._foreach_zero_([x.grad for x in learned])
        if target not in steps:
            steps[target] = Step(tower, cells, m, dev, like, pool)
            torch._foreach_zero_([x.grad for x in learned])
        at = steps[target]
        at(like, 0.5 * max(0.0, 1 - share / 0.7))
        nn.utils.clip_grad_norm_(learned, 1.0)
        opt.step()
        n += 1
        if n % 200 == 0 or n == a.steps:
            log.append([n, round(time.time() - begin, 1), *(round(x.item(), 4) for x in (at.loss, at.beside, at.right))])
            print(*log[-1], f"{target[0] // 48} x {target[1] // 48}", flush=True)
        if time.time() - saved > 120:
            write(file, tower)
            saved = time.time()
    write(file, tower)
    right = measure(read(file).to(dev), m, words, dev, a.cases)
    json.dump({"right": right, "steps": n, "seconds": round(time.time() - begin), "bytes": os.path.getsize(file), "log": log}, open(where + "/tower.json", "w"))
    print(json.dumps({"right": right, "steps": n, "bytes": os.path.getsize(file)}))


if __name__ == "__main__":
    main()
