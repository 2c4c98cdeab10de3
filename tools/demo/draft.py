"""Trains the drafters of the demo model, a DFlash drafter and an MTP assistant, in one run on one GPU.

    python3 draft.py all --model ../../models/demo.gguf --out OUT [--seconds 400] [--smoke]

The run reads the weights that the model really has (Q8_0), lets the model answer prompts of the corpus, greedily
and at temperature 1, trains both drafters on the same batches, measures on held-out prompts how many of their
tokens are accepted, and writes

    OUT/dflash/, OUT/mtp/      config.json and model.safetensors
    OUT/draft.json             acceptance by skill, length and slot; what was trained
    OUT/draft_reference.safetensors    features, logits of one block, logits of one MTP round
    OUT/draft.log

The weights are written several times in the course of the training, so that a run that is cut off leaves the best
it had. `--smoke` does all of it in small.
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import random
import tempfile
import threading
import time
import traceback

import numpy as np
import torch
from safetensors.torch import save_file

import corpus
import draft_eval
import drafters
import export
import gguf_weights
import model as M
import reading
import tokenizer

ROOM = 512                                     # rows of short documents
STOP = (tokenizer.EOS, tokenizer.SPECIAL.index("<turn|>"), tokenizer.SPECIAL.index("<|tool_response>"))
# tokens of a row, rows, anchors of a row, share of the steps
KINDS = [(512, 64, 16, 0.48), (2048, 16, 64, 0.22), (8192, 4, 192, 0.20), (32768, 1, 256, 0.10)]
SMALL = [(512, 4, 8, 0.6), (2048, 1, 16, 0.4)]


# ---- documents ----------------------------------------------------------------------------------------

def flags_of(tok, doc):
    ids, learn = [], []
    for text, on in corpus.render(doc):
        t = tok.encode(text)
        ids += t
        learn += [on] * len(t)
    return ids, learn


def fill(r, tok, size):
    """One row of whole documents: ids, whether the model writes the token, lengths."""
    ids, learn, lens, misses = [], [], [], 0
    while len(ids) < size:
        left = size - len(ids)
        if left > 200 and misses < 4:
            if size > 1000 and r.random() < (0.9 if not ids else 0.5):
                lo, hi = (size // 4 if not ids else 60), left - 60
                n = int(math.exp(r.uniform(math.log(min(lo, hi - 1)), math.log(hi))))
                t, on = flags_of(tok, corpus.long_document(r, n))
            else:
                t, on = flags_of(tok, corpus.document(r, min(500, left)))
            if len(t) > left:
                misses += 1
                continue
        else:
            t, on = [tokenizer.PAD] * left, [False] * left
        ids += t
        learn += on
        lens.append(len(t))
    return np.array(ids, np.int32), np.array(learn, bool), lens


def prompt(r, tok):
    """A conversation cut before one of the model's turns: ids and flags."""
    while True:
        ids, learn = flags_of(tok, corpus.document(r, 300))
        begins = [i for i in range(1, len(ids)) if learn[i] and not learn[i - 1]]
        at = r.choice(begins)
        if at < ROOM - 130:
            return ids[:at], learn[:at]


def worker(i, path, seed, kinds, rows, prompts):
    """Writes rows of every kind but the shortest, and prompts while they are wanted."""
    torch.set_num_threads(1)
    r, tok = random.Random(f"draft {seed} {i}"), tokenizer.Fast(path)
    reading.count = lambda text: len(tok.encode(text))
    pending = None
    while True:
        if pending is None:
            kind = r.choices(range(len(kinds)), [k[3] for k in kinds])[0]
            made = [fill(r, tok, kinds[kind][0]) for _ in range(kinds[kind][1])]
            pending = kind, np.stack([x[0] for x in made]), np.stack([x[1] for x in made]), [n for x in made for n in x[2]]
        if put(rows, pending):
            pending = None
        if not prompts.full():
            put(prompts, [prompt(r, tok) for _ in range(32)])
        elif pending:
            time.sleep(0.005)


def put(q, x):
    try:
        q.put_nowait(x)
    except queue.Full:
        return False
    return True


# ---- answers of the model ------------------------------------------------------------------------------

class Writer:
    """The target continues many prompts at once. Rows end together: the shorter prompts have blanks before them."""

    def __init__(self, m, prompts, most, dev):
        self.m, self.dev, self.n = m, dev, len(prompts)
        self.long = max(map(len, prompts))
        ids = torch.zeros((self.n, self.long), dtype=torch.long)
        for i, p in enumerate(prompts):
            ids[i, self.long - len(p):] = torch.tensor(p)
        self.ids, self.most = ids.to(dev), most
        self.first = torch.tensor([self.long - len(p) for p in prompts], device=dev)
        self.kv, self.have = {}, 0

    def run(self, ids):
        """Logits of the last column."""
        n, t = ids.shape
        at = self.have + torch.arange(t, device=self.dev)
        end = self.have + t
        pos = (at - self.first[:, None]).clamp(min=0)

        def see(il, q, k, v):
            a = self.m.model.layers[il].self_attn
            if il not in self.kv:
                self.kv[il] = [drafters.rows_of(torch.zeros((n, self.long + self.most, a.kv, a.hd), device=self.dev)) for _ in range(2)]
            for cache, new in zip(self.kv[il], (k, v)):
                cache[:, self.have:end] = new.view(n, t, a.kv, a.hd).to(cache.dtype)
            lo = max(0, self.have - a.window + 1) if a.window else 0
            key = torch.arange(lo, end, device=self.dev)
            out = []
            for i in range(0, t, 1024):                             # a part of the queries at a time bounds the memory
                far = at[i:i + 1024, None] - key
                near = (far >= 0) & ((far < a.window) if a.window else True)
                mask = (near & (key >= self.first[:, None, None])) | (far == 0)
                out.append(drafters.attend(q.view(n, t, a.h, a.hd)[:, i:i + 1024], self.kv[il][0][:, lo:end], self.kv[il][1][:, lo:end], mask, 1.0))
            return torch.cat(out, 1).reshape(n * t, a.h, a.hd)

        h, _ = drafters.target(self.m, ids.reshape(-1), pos.reshape(-1), see)
        self.have = end
        return self.m.logits(h.view(n, t, -1)[:, -1])

    @torch.no_grad()
    def write(self, sampled):
        """Answers as lists of tokens, the stop token included. sampled [n]: drawn at temperature 1 instead of the best."""
        sampled = torch.as_tensor(sampled, device=self.dev)
        stop = torch.tensor(STOP, device=self.dev)
        z, out, done = self.run(self.ids), [], torch.zeros(self.n, dtype=torch.bool, device=self.dev)
        for step in range(self.most):
            best = z.argmax(-1)
            drawn = torch.multinomial(z.float().softmax(-1), 1)[:, 0] if sampled.any() else best
            token = torch.where(sampled, drawn, best)
            out.append(token)
            done |= (token[:, None] == stop).any(-1)
            if step + 1 == self.most or (step % 8 == 7 and bool(done.all())):
                break
            z = self.run(token[:, None])
        answers = []
        for row in torch.stack(out, 1).cpu().tolist():
            end = next((i for i, t in enumerate(row) if t in STOP), None)
            answers.append(row[:end + 1] if end is not None else row)
        return answers


def halving(n, run, say):
    """run(n); half of n again after the device ran out of memory. Returns (n, result)."""
    while True:
        try:
            return n, run(n)
        except torch.OutOfMemoryError:
            if n <= 1:
                raise
            n //= 2
            torch.cuda.empty_cache()
            say(f"out of memory: {n} instead")


def pack_rows(docs, size):
    """Rows of `size` tokens, filled with whole documents."""
    rows, room = [], []
    for d in docs:
        i = next((i for i in range(len(rows) - 1, max(-1, len(rows) - 30), -1) if room[i] >= len(d[0])), None)
        if i is None:
            rows.append([])
            room.append(size)
            i = len(rows) - 1
        rows[i].append(d)
        room[i] -= len(d[0])
    out = []
    for row, left in zip(rows, room):
        ids, learn, lens = [t for d in row for t in d[0]], [x for d in row for x in d[1]], [len(d[0]) for d in row]
        if left:
            ids, learn, lens = ids + [tokenizer.PAD] * left, learn + [False] * left, lens + [left]
        out.append((np.array(ids, np.int32), np.array(learn, bool), lens))
    return out


def answered(m, prompts, batch, seconds, dev, say):
    """Documents whose answers the target wrote itself, for `seconds`."""
    docs, begin, told = [], time.time(), 0
    while time.time() - begin < seconds or not docs:
        got = []
        while len(got) < batch:
            got += prompts.get()
        got.sort(key=lambda d: len(d[0]))

        def run(n):
            for i in range(0, len(got), n):
                part = got[i:i + n]
                answers = Writer(m, [p for p, _ in part], 96 if dev == "cuda" else 24, dev).write([j % 2 == 1 for j in range(len(part))])
                yield from ((p + a, on + [True] * len(a)) for (p, on), a in zip(part, answers))

        batch, made = halving(batch, lambda n: list(run(n)), say)
        docs += [d for d in made if len(d[0]) <= ROOM]
        if time.time() - told > 10:
            told = time.time()
            say(f"{len(docs)} prompts answered, {sum(len(d[0]) for d in docs) / 1e6:.2f} M tokens, {told - begin:.0f} s")
    return docs


# ---- training ------------------------------------------------------------------------------------------

def choose(learn, seen, a, slots):
    """a anchors of every row: places in answers first, then any; [b * a]. Their slots that count [b * a, slots], and their weights."""
    b, t = seen.b, seen.t
    flat = torch.arange(b * t, device=seen.dev)
    after = flat[:, None] + 1 + torch.arange(slots, device=seen.dev)
    inside = after < seen.end[:, None]
    after = after.clamp(max=b * t - 1)
    answer = (learn[after] & inside).cumprod(1).bool()                # the slots up to the end of the turn
    some = seen.pos > 0
    in_answer = answer[:, 0] & some
    elsewhere = inside[:, 1] & some & (seen.ids != tokenizer.PAD)
    rank = torch.rand(b * t, device=seen.dev) + elsewhere + 2.0 * (in_answer & (torch.rand(b * t, device=seen.dev) < 0.9))
    at = rank.view(b, t).topk(a, -1).indices + torch.arange(b, device=seen.dev)[:, None] * t
    at = at.reshape(-1)
    is_answer = in_answer[at]
    valid = torch.where(is_answer[:, None], answer[at], inside[at])
    weight = torch.where(is_answer, 1.0, torch.where(elsewhere[at], 0.1, 0.0))
    return at, valid, weight, is_answer


class Trainer:
    def __init__(self, m, a, dev, say):
        self.m, self.dev, self.say, self.a = m, dev, say, a
        self.flash, self.mtp = drafters.DFlash().to(dev), drafters.Assistant().to(dev)
        self.slots, self.steps = drafters.DFLASH["block_size"] - 1, 4
        self.gamma = torch.exp(-torch.arange(self.slots, device=dev) / 4.0)
        self.fade = 0.8 ** torch.arange(self.steps, device=dev)
        self.opt = [self.optimiser(x) for x in (self.flash, self.mtp)]
        self.shown, self.step, self.anchors, self.tokens = [], 0, 0, 0

    def optimiser(self, x):
        mats, rest = [p for p in x.parameters() if p.dim() >= 2], [p for p in x.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": mats, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
                                 lr=self.a.rate, betas=(0.9, 0.95), fused=self.dev == "cuda")

    def one(self, ids, learn, lens, anchors, rate):
        """A step of both drafters on one batch."""
        m = self.m
        seen = drafters.Seen(m, ids, lens, drafters.DFLASH["target_layer_ids"])
        if self.step == 0:
            self.flash.start_from(m, seen.features)
            self.mtp.start_from(m, seen.h)
        with torch.no_grad():
            at, valid, weight, is_answer = choose(learn.reshape(-1), seen, anchors, self.slots)
            here = (at[:, None] + torch.arange(self.slots, device=self.dev)).clamp(max=len(seen.ids) - 1)
            want = m.logits(seen.h[here]).softmax(-1)                  # slot i: the distribution after the anchor and i tokens
            best = want.argmax(-1)
            w = weight[:, None] * valid
        result = []
        for x, opt, logits, fade in (
                (self.flash, self.opt[0], lambda: self.flash.logits(seen, at), self.gamma),
                (self.mtp, self.opt[1], lambda: self.mtp.logits(seen, at, seen.ids[here[:, 1:self.steps]], self.steps), self.fade)):
            z, n = logits().float(), len(fade)
            ce = -(want[:, :n] * z.log_softmax(-1)).sum(-1)
            ww = w[:, :n] * fade
            loss = (ce * ww).sum() / ww.sum().clamp(min=1e-6)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(x.parameters(), 1.0)
            for g in opt.param_groups:
                g["lr"] = rate
            opt.step()
            opt.zero_grad(set_to_none=True)
            with torch.no_grad():
                hit = (z.argmax(-1) == best[:, :n]) & valid[:, :n]
                full = valid[:, n - 1] & is_answer
                run = (hit.cumprod(1) * full[:, None]).sum() / full.sum().clamp(min=1)
                result += [loss.detach(), norm, run.float()]
        self.shown.append(torch.stack(result))
        self.step += 1
        self.tokens += ids.numel()
        self.anchors += len(at)

    def report(self, at, took, waiting):
        x = torch.stack(self.shown).mean(0).tolist()
        self.shown = []
        self.say(f"step {self.step} at {at:.2f}, {took:.0f} s, {self.tokens / 1e6:.1f} M tokens, {self.anchors / 1e6:.2f} M anchors, rows waiting {waiting}; "
                 f"dflash loss {x[0]:.3f} norm {x[1]:.2f} run {x[2]:.2f} of {self.slots}; mtp loss {x[3]:.3f} norm {x[4]:.2f} run {x[5]:.2f} of {self.steps}")

    def save(self, out):
        for name, x, config in (("dflash", self.flash, drafters.dflash_config()), ("mtp", self.mtp, drafters.mtp_config())):
            os.makedirs(f"{out}/{name}", exist_ok=True)
            json.dump(config, open(f"{out}/{name}/config.json", "w"), indent=2)
            save_file({k: v.cpu().contiguous() for k, v in x.fold().items()}, f"{out}/{name}/model.safetensors.part", metadata={"format": "pt"})
            os.replace(f"{out}/{name}/model.safetensors.part", f"{out}/{name}/model.safetensors")


def load_target(path, out):
    """A maker of the model of a GGUF file, its weights as the file rounds them; writes the file's tokenizer to `out`."""
    keys, tensors = gguf_weights.read(path)
    state = {}
    for name, x in tensors.items():
        head, _, rest = name.partition(".")
        if head == "rope_freqs":
            continue
        il, _, part = rest.partition(".")
        state[f"model.layers.{il}.{export.LAYER[part]}" if head == "blk" else f"model.{export.GLOBAL[head]}.{rest}"] = torch.from_numpy(x)
    pieces, merges = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.merges"]
    tokenizer.save(tokenizer.document(pieces, [x.split(" ") for x in merges]), out)

    def build(dev):         # called after the workers were forked: they must not inherit an open GPU
        m = M.Model()
        own = m.state_dict()
        m.load_state_dict({k: v.reshape(own[k].shape) for k, v in state.items()})
        return m.to(dev).requires_grad_(False)
    return build


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("all",))
    p.add_argument("--model", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/demo.gguf"))
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=400, help="of the whole run")
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--workers", type=int, default=max(2, min(12, (os.cpu_count() or 2) - 3)))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--smoke", action="store_true", help="everything in small")
    a = p.parse_args()
    launch = time.time()
    os.makedirs(a.out, exist_ok=True)
    log = open(a.out + "/draft.log", "a")

    def say(*x):
        line = f"[{time.time() - launch:5.0f} s] " + " ".join(str(y) for y in x)
        print(line, flush=True)
        print(line, file=log, flush=True)

    small = a.smoke
    if small:
        a.seconds, a.workers = min(a.seconds, 20), min(a.workers, 4)
    kinds = SMALL if small else KINDS
    mp.set_start_method("fork", force=True)
    path = tempfile.mkdtemp() + "/tokenizer.json"
    build = load_target(a.model, path)
    rows, prompts, cases = mp.Queue(maxsize=12), mp.Queue(maxsize=24), mp.Queue()
    for i in range(a.workers):
        mp.Process(target=worker, args=(i, path, a.seed, kinds, rows, prompts), daemon=True).start()
    mp.Process(target=draft_eval.make_cases, args=(path, 2 if small else 30, cases, (1000,) if small else (1000, 8000)), daemon=True).start()

    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    m = build(dev)
    say(f"{dev}, {sum(x.numel() for x in m.parameters()) / 1e6:.2f} M parameters in the target")
    docs = answered(m, prompts, 16 if small else 1024, 2 if small else 0.1 * a.seconds, dev, say)
    random.Random(a.seed).shuffle(docs)
    pool = pack_rows(docs, ROOM)
    say(f"{len(docs)} answers of the target, {len(pool)} rows of {ROOM}")

    t = Trainer(m, a, dev, say)
    sizes = [sum(x.numel() for x in d.parameters()) / 1e6 for d in (t.flash, t.mtp)]
    say(f"dflash {sizes[0]:.2f} M parameters, mtp {sizes[1]:.2f} M")
    ready, r = queue.Queue(maxsize=3), random.Random(a.seed)

    def feed():
        while True:
            kind, ids, learn, lens = rows.get()
            if kind == 0 and r.random() < 0.8:                    # short rows: mostly the target's own answers
                some = r.sample(pool, min(len(ids), len(pool)))
                ids, learn, lens = np.stack([x[0] for x in some]), np.stack([x[1] for x in some]), [n for x in some for n in x[2]]
            up = [torch.from_numpy(x).to(dev) for x in (ids.astype(np.int64), learn)]
            ready.put((kind, *up, lens))

    threading.Thread(target=feed, daemon=True).start()
    begin = time.time()
    budget = max(3.0, launch + a.seconds * (0.5 if small else 0.8) - begin)       # the rest is for the measurements
    marks, told, failed = [0.25, 0.5, 0.75], 0, [0] * len(kinds)
    while (at := (time.time() - begin) / budget) < 1:
        kind, ids, learn, lens = ready.get()
        if min(failed) >= 3:
            break
        if failed[kind] >= 3:
            continue
        rate = a.rate * min(1.0, (t.step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * at)))
        try:
            t.one(ids, learn, lens, kinds[kind][2], rate)
        except torch.OutOfMemoryError:
            kinds[kind] = (*kinds[kind][:2], max(1, kinds[kind][2] // 2), kinds[kind][3])
            for opt in t.opt:
                opt.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            say(f"out of memory: {kinds[kind][2]} anchors for rows of {kinds[kind][0]}")
            continue
        except RuntimeError:                    # the other kinds of rows may still work
            failed[kind] += 1
            say(f"rows of {kinds[kind][0]} failed:\n" + traceback.format_exc())
            continue
        if t.step in (1, 10, 50) or time.time() - told > (4 if small else 10):
            told = time.time()
            t.report(at, told - begin, rows.qsize())
        if marks and at >= marks[0]:
            marks.pop(0)
            t.save(a.out)
    t.save(a.out)
    say(f"trained: {t.step} steps, {t.tokens / 1e6:.1f} M tokens, {t.anchors / 1e6:.2f} M anchors, {time.time() - begin:.0f} s")
    if dev == "cuda":
        say(f"largest GPU memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    result = {"steps": t.step, "tokens": t.tokens, "anchors": t.anchors, "answers": len(docs), "seconds": time.time() - begin,
              "parameters": {"dflash": sizes[0], "mtp": sizes[1]}}

    def keep():
        json.dump(result, open(a.out + "/draft.json", "w"), indent=1)

    keep()
    try:
        end = launch + a.seconds + (30 if small else 60)
        draft_eval.everything(m, a.out, cases, path, dev, result, keep, say, end, Writer)
    except Exception:
        say("the measurement failed:\n" + traceback.format_exc())
    keep()
    say("finished")
    log.close()
    for c in mp.active_children():
        c.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
