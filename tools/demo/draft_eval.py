"""How many tokens of the drafters the target accepts, on held-out prompts.

The target answers greedily. A round of speculation at a place of the answer depends only on the text before it,
so the drafts of all places are computed at once; a walk over the answer then visits the places where rounds begin:
drafts up to the first wrong one are accepted, and the target adds one token. Everything is computed in f32, with
the drafters' weights rounded to Q8_0.
"""
import collections
import heapq
import json
import random
import time

import torch
from safetensors.torch import load_file, save_file

import corpus
import drafters
import gguf_weights
import model as M
import reading
import skills
import tokenizer

SHORT = ("facts", "refusal", "sums", "copy", "sort", "order", "count", "tools", "story")
READ = ("recall", "missing", "two_hop")
LONG = 96           # most tokens of an answer


def make_cases(path, n, out, lengths):
    """{name: [prompt ids]}, put into the queue `out`."""
    tok, r = tokenizer.Fast(path), random.Random("draft evaluation")
    reading.count = lambda text: len(tok.encode(text))
    cases = {}

    def add(name, doc, first=False):
        ids, learn = [], []
        for text, on in corpus.render(doc):
            t = tok.encode(text)
            ids += t
            learn += [on] * len(t)
        begins = [i for i in range(1, len(ids)) if learn[i] and not learn[i - 1]]
        at = begins[0 if first else -1]
        if at < 32000:
            cases.setdefault(name, []).append(ids[:at])

    for skill in SHORT:
        for _ in range(n):
            add(skill, corpus.draw(r, skill, 0))
        for _ in range(n // 3):
            add("thinking", corpus.draw(r, skill, 0, True))
    for _ in range(n):
        add("tool calls", corpus.draw(r, "tools", 0), first=True)
        add("long copies", skills.copy(r, False, long=True))
    for length in lengths:
        for skill in READ:
            for _ in range(n):
                add(f"{skill} {length}", corpus.draw(r, skill, length - 60))
    out.put(cases)


def answer(m, cases, dev, writer, say, end):
    """[(name, ids, length of the prompt)] with the target's greedy answers."""
    todo = sorted(((name, p) for name, c in cases.items() for p in c), key=lambda x: len(x[1]))
    out, i = [], 0
    while i < len(todo):
        longest = len(todo[min(i + 127, len(todo) - 1)][1])
        n = max(1, min(128, 200000 // longest)) if dev == "cuda" else 4
        part = todo[i:i + n]
        i += n
        got = writer(m, [p for _, p in part], LONG, dev).write([False] * len(part))
        out += [(name, p + a, len(p)) for (name, p), a in zip(part, got) if len(a) > 1]
        if time.time() > end:
            say(f"out of time: {i} of {len(todo)} prompts answered")
            break
    return out


def tree_depth(logp, ids, text, budget):
    """The depth that a walk reaches in the tree of `budget` nodes grown best-first from the slots' marginals (DDTree)."""
    n, ranks = len(logp), len(logp[0])
    children, heap, made = collections.defaultdict(dict), [(-logp[0][0], 0, 0, 0, 0)], 0
    while heap and made < budget:
        cost, _, parent, d, rank = heapq.heappop(heap)
        made += 1
        children[parent][ids[d][rank]] = made
        if rank + 1 < ranks:
            heapq.heappush(heap, (cost + logp[d][rank] - logp[d][rank + 1], len(heap) + made * 1000, parent, d, rank + 1))
        if d + 1 < n:
            heapq.heappush(heap, (cost - logp[d + 1][0], len(heap) + made * 1000 + 500, made, d + 1, 0))
    node, depth = 0, 0
    while depth < len(text) and text[depth] in children[node]:
        node = children[node][text[depth]]
        depth += 1
    return depth


class Count:
    """Rounds of one method over some answers. `full` rounds are those with room for all drafts before the answer's end."""

    def __init__(self, n):
        self.n, self.rounds, self.tokens, self.accepted = n, 0, 0, 0
        self.full, self.full_accepted, self.slot = 0, 0, [0] * n

    def walk(self, p, length, accepted_at):
        """accepted_at(c): drafts accepted in a round whose last emitted token is at c."""
        c = p
        while c < length - 1:
            left = length - 1 - c
            a = min(accepted_at(c), left)
            self.rounds += 1
            self.accepted += a
            self.tokens += min(a + 1, left)
            if left >= self.n:
                self.full += 1
                self.full_accepted += a
                for i in range(min(a, self.n)):
                    self.slot[i] += 1
            c += a + 1

    def add(self, o):
        for k in ("rounds", "tokens", "accepted", "full", "full_accepted"):
            setattr(self, k, getattr(self, k) + getattr(o, k))
        self.slot = [x + y for x, y in zip(self.slot, o.slot)]
        return self

    def result(self):
        r, f = max(1, self.rounds), max(1, self.full)
        return {"rounds": self.rounds, "accepted": round(self.accepted / r, 3), "tokens": round(self.tokens / r, 3), "full_rounds": self.full,
                "full_accepted": round(self.full_accepted / f, 3), "slots": [round(x / f, 3) for x in self.slot]}


def leading(hits):
    """Leading true values of each row [g, n]."""
    return hits.long().cumprod(1).sum(1).tolist()


@torch.no_grad()
def rounds(m, flash, mtp, ids, p, dev, budgets=(16, 32)):
    """{method: Count} for one answer."""
    x = torch.tensor([ids], device=dev)
    length, out = len(ids), {}
    seen = drafters.Seen(m, x, [length], drafters.DFLASH["target_layer_ids"])
    at = torch.arange(p, length - 1, device=dev)
    text = torch.cat((x[0], x.new_full((64,), -1)))

    def after(n):
        return text[at[:, None] + 1 + torch.arange(n, device=dev)]

    if flash:
        top, best = flash.logits(seen, at).float().log_softmax(-1).topk(8, -1)
        n = best.shape[1]
        for k in (n, 3):
            run = leading(best[:, :k, 0] == after(k))
            out[f"dflash {k}"] = Count(k)
            out[f"dflash {k}"].walk(p, length, lambda c: run[c - p])
        lp, ranked = top.tolist(), best.tolist()
        for budget in budgets:
            c = out[f"dflash tree {budget}"] = Count(n)
            c.walk(p, length, lambda c: tree_depth(lp[c - p], ranked[c - p], ids[c + 1:c + 1 + n], budget))
    if mtp:
        best = mtp.logits(seen, at, None, 4).argmax(-1)
        for k in (4, 2):
            run = leading(best[:, :k] == after(k))
            out[f"mtp {k}"] = Count(k)
            out[f"mtp {k}"].walk(p, length, lambda c: run[c - p])
    return out


def load(out, dev):
    """Both drafters from their checkpoints, matrices rounded to Q8_0."""
    models = []
    for name, x in (("dflash", drafters.DFlash()), ("mtp", drafters.Assistant())):
        state = load_file(f"{out}/{name}/model.safetensors")
        state = {k: torch.from_numpy(gguf_weights.round_q8_0(v.numpy())) if v.dim() > 1 else v for k, v in state.items()}
        x.load_state_dict(state)
        models.append(x.to(dev).requires_grad_(False))
    return models


def reference(m, flash, mtp, path, out, dev, say):
    """The numbers of one prompt, for tests: what the target computes, one block, one MTP round."""
    tok, r = tokenizer.Fast(path), random.Random("draft reference")
    reading.count = lambda text: len(tok.encode(text))
    doc = corpus.draw(r, "recall", 230)
    ids = [t for text, _ in corpus.render(doc) for t in tok.encode(text)][:-8]
    c = len(ids) - 1                                       # the last token is the one emitted last
    taps = drafters.DFLASH["target_layer_ids"]
    x = torch.tensor([ids], device=dev)
    seen = drafters.Seen(m, x, [len(ids)], taps)
    at = torch.tensor([c], device=dev)
    block = flash.plain(m, seen.features[:c], ids[c])
    steps = mtp.plain(m, {il: (k[:c], v[:c]) for il, (k, v) in seen.kv.items()}, seen.h[c - 1], ids[c])
    d1 = float((block[1:] - flash.logits(seen, at)[0]).abs().max())
    d2 = float((steps - mtp.logits(seen, at, None, 4)[0]).abs().max())
    say(f"reference: {len(ids)} tokens; the batched forms differ from the plain ones by {d1:.1e} (dflash), {d2:.1e} (mtp)")
    save = {"ids": torch.tensor(ids, dtype=torch.int32), "features": seen.features[c - 32:c], "hidden": seen.h[c - 4:c],
            "target_logits": m.logits(seen.h[c - 1:c]), "dflash_logits": block, "mtp_logits": steps}
    save_file({k: v.cpu().contiguous() for k, v in save.items()}, out + "/draft_reference.safetensors",
              metadata={"prompt": tok.decode(ids), "first_feature_row": str(c - 32)})
    return {"tokens": len(ids), "batched_dflash": d1, "batched_mtp": d2}


def everything(m, out, cases, path, dev, result, keep, say, end, writer):
    """Measures the checkpoints in `out` and puts the figures into `result`; keep() writes it."""
    M.exact = True
    flash, mtp = load(out, dev)
    result["reference"] = reference(m, flash, mtp, path, out, dev, say)
    keep()
    done = answer(m, cases.get(timeout=60), dev, writer, say, (time.time() + end) / 2)
    say(f"{len(done)} held-out prompts answered")
    random.Random(3).shuffle(done)
    count, all_of = collections.defaultdict(dict), {}

    def put(group, counts):
        for method, c in counts.items():
            count[group].setdefault(method, Count(c.n)).add(c)

    for i, (name, ids, p) in enumerate(done):
        if time.time() > end:
            say(f"out of time: {i} of {len(done)} answers measured")
            break
        got = rounds(m, flash, mtp, ids, p, dev)
        put(name, got)
        last = name.split()[-1]
        put("short" if not last.isdigit() else "read " + last, got)
        put("all", got)
        result["measured"] = i + 1
    result["acceptance"] = {g: {k: c.result() for k, c in v.items()} for g, v in sorted(count.items())}
    keep()
    for g, v in sorted(count.items()):
        say(f"{g:14} " + "; ".join(f"{k}: {c.result()['accepted']:.2f} accepted, full rounds {c.result()['full_accepted']:.2f}" for k, c in v.items()))
    for k, c in count["all"].items():
        say(f"{k}: {json.dumps(c.result())}")
