"""Trains the demo model from random weights on one GPU, for a given number of seconds.

    python3 train.py --tokenizer DIR/tokenizer.json --out OUT [--seconds 1100]
    python3 train.py --tokenizer DIR/tokenizer.json --resume DIR --tune --out OUT [--seconds 330] [--rate 1e-3]

Worker processes write documents and pack them into flat rows of `--tokens` tokens. What is drawn
changes with the share of the time that has passed: short documents first, then longer and longer
ones, up to 32 K tokens. The learning rate falls along a half cosine over the same time. `--tune`
goes on from trained weights: all lengths at once, with more of what is easy to mix up, and the
seconds count from the launch.
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import random
import threading
import time

import numpy as np
import torch

import corpus
import evaluate
import export
import model as M
import reading
import tokenizer
import words

# progress at which a stage ends; kinds of texts to search: share of the tokens, shortest, longest, maker
READ, HOPS, AHEAD = corpus.long_document, corpus.hops, corpus.ahead
STAGES = [(0.20, [(0.35, 60, 500, READ)]), (0.36, [(0.50, 100, 2200, READ)]), (0.58, [(0.55, 200, 9000, READ)]), (1.01, [(0.60, 300, 32300, READ)])]
TUNE = [(1.01, [(0.34, 500, 32300, READ), (0.24, 40, 2300, READ), (0.16, 30, 900, AHEAD), (0.03, 30, 900, HOPS)])]


def pack(r, tok, size, stages, progress, stash):
    """One flat row: ids, weights of the targets, lengths of the documents."""
    kinds = next(s[1] for s in stages if progress < s[0])
    ids, weights, lens, have, misses = [], [], [], [0] * len(kinds), 0
    while len(ids) < size:
        left = size - len(ids)
        if stash and len(stash[-1][0]) <= left:
            t, w = stash.pop()
        else:
            i = next((i for i, k in enumerate(kinds) if left > 2 * k[1] and have[i] < k[0] * (len(ids) + 1)), None)
            if i is None:
                t, w = corpus.tokens_of(tok, corpus.document(r, 500))
            else:
                _, lo, hi, make = kinds[i]
                n = int(math.exp(r.uniform(math.log(lo), math.log(min(hi, left - lo)))))
                t, w = corpus.tokens_of(tok, make(r, n))
                if len(t) > 32768:
                    continue
                if len(t) <= left:
                    have[i] += len(t)
        if len(t) > left:
            misses += 1
            if len(stash) < 40 and len(t) < 2500:
                stash.append((t, w))
            if left < 64 or misses > 60:        # nothing that is drawn may fit into what is left
                t, w = [tokenizer.PAD] * left, [0.0] * left
            else:
                continue
        ids += t
        weights += w[1:] + [0.0]
        lens.append(len(t))
    return np.array(ids, np.uint16), np.array(weights, np.float16), np.array(lens, np.int32)


def worker(i, path, size, seed, tune, progress, out):
    r, tok, stash = random.Random(f"train {seed} {i}"), tokenizer.Fast(path), []
    if tune:
        words.hard, reading.only = 0.3, 0.3
    reading.count = lambda text: len(tok.encode(text))
    while True:
        out.put(pack(r, tok, size, TUNE if tune else STAGES, progress.value, stash))


def to_device(row, dev):
    """Tensors of a row: ids, positions, targets, weights; and the document offsets."""
    ids, w, lens = row
    cu = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
    pos = np.arange(len(ids)) - np.repeat(cu[:-1], lens)
    t = torch.from_numpy(ids.astype(np.int64))
    up = [t, torch.from_numpy(pos), torch.roll(t, -1), torch.from_numpy(w.astype(np.float32)), torch.from_numpy(cu)]
    return [(x.pin_memory() if dev == "cuda" else x).to(dev, non_blocking=True) for x in up], int(lens.max())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=1100)
    p.add_argument("--tokens", type=int, default=65536)
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--evaluate", type=int, default=200, help="cases per skill at the end")
    p.add_argument("--lengths", type=int, nargs="*", default=evaluate.LENGTHS, help="lengths of the texts to search at the end")
    p.add_argument("--resume", help="folder with weights to start from")
    p.add_argument("--begin", type=float, default=0.0, help="progress to start from")
    p.add_argument("--tune", action="store_true", help="go on from trained weights (--resume)")
    p.add_argument("--plain", action="store_true", help="do not compile")
    a = p.parse_args()
    launch = time.time()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    room = 65536 if dev == "cuda" else 1024
    os.makedirs(a.out, exist_ok=True)
    log = open(a.out + "/train.log", "a")

    def say(*x):
        line = " ".join(str(y) for y in x)
        print(line, flush=True)
        print(line, file=log, flush=True)

    mp.set_start_method("fork", force=True)
    progress, rows = mp.Value("d", a.begin), mp.Queue(maxsize=24)
    for i in range(a.workers):
        mp.Process(target=worker, args=(i, a.tokenizer, a.tokens, a.seed, a.tune, progress, rows), daemon=True).start()
    cases = mp.Queue()
    mp.Process(target=evaluate.make_cases, args=(a.tokenizer, a.evaluate, cases, a.lengths), daemon=True).start()

    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    m = M.Model()
    if a.resume:
        m.load_state_dict(export.load_shards(a.resume))
    m.to(dev)
    mats, rest = [x for x in m.parameters() if x.dim() >= 2], [x for x in m.parameters() if x.dim() < 2]
    opt = torch.optim.AdamW([{"params": mats, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
                            lr=a.rate, betas=(0.9, 0.95), fused=dev == "cuda")
    loss_of = m.loss if a.plain else torch.compile(m.loss, dynamic=False)
    ready = queue.Queue(maxsize=4)

    def feed():
        while True:
            ready.put(to_device(rows.get(), dev))

    threading.Thread(target=feed, daemon=True).start()
    start, step, shown, tests, marks = None, 0, [], None, [x for x in ((0.5,) if a.tune else (0.2, 0.36, 0.58, 0.8)) if x > a.begin]
    while True:
        if step == 3:
            start = time.time()               # the clock starts after compilation
            seconds = a.seconds - (start - launch if a.tune else 0)
        at = a.begin + (0.0 if start is None else (time.time() - start) / seconds * (1 - a.begin))
        if at >= 1:
            break
        progress.value = at
        rate = a.rate * min(1.0, (step + 1) / 80) * ((0 if a.tune else 0.015) + 0.985 * 0.5 * (1 + math.cos(math.pi * at)))
        for g in opt.param_groups:
            g["lr"] = rate
        (ids, pos, target, w, cu), longest = ready.get()
        M.Batch.cu, M.Batch.max_len = cu, longest
        loss, answer, balance = loss_of(ids, pos, target, w)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        shown.append(torch.stack((loss.detach(), answer, balance, norm)))
        step += 1
        if step % 100 == 0 or step in (1, 3, 10, 30):
            x = torch.stack(shown).mean(0).tolist()
            shown = []
            took = time.time() - start if start else 0
            say(f"step {step} time {took:.0f} s, {max(0, step - 3) * a.tokens / max(took, 1e-9) / 1000:.0f} K tokens/s, rate {rate:.2e}, longest {longest}, "
                f"rows waiting {rows.qsize()}, loss {x[0]:.4f} answer {x[1]:.4f} balance {x[2]:.3f} norm {x[3]:.2f}")
        if step % 1000 == 0:
            export.save_shards(m.state_dict(), a.out)
        if marks and at >= marks[0]:
            marks.pop(0)
            if tests is None and not cases.empty():
                tests = cases.get()
            if tests:
                say(evaluate.table(evaluate.run(m, tests, dev, 50, room)))
    say(f"{step} steps, {step * a.tokens / 1e6:.0f} M tokens, {time.time() - start:.0f} s")
    export.save_shards(m.state_dict(), a.out)
    tests = tests or cases.get()
    result = evaluate.run(m, tests, dev, room=room)
    json.dump(result, open(a.out + "/results.json", "w"), indent=1)
    say(evaluate.table(result))
    say("finished")
    for c in mp.active_children():
        c.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
