#!/usr/bin/env python3
"""Trains a tiny Qwen3.5 to recall and to copy, and writes it as tests/data/hybrid.gguf.

    python3 tools/hybrid.py [--seconds 900] [--out FILE] [--log FILE]

Needs torch, transformers >= 5.17 and numpy, one CPU core and some minutes; never needed to build or run
carat. The model has three recurrent layers and one that attends, and a vocabulary of bytes. A text is

    q7 b2 x9 k4 m1 a8;x9b2a8q7m1k4\\n          pairs, then each letter again with its digit
    =hgtqwezl=hgtqwezl\\n                      letters, then the same again

with other letters and digits each time. tests/hybrid_test.c asks such questions. Random models answer
nothing, so only a trained one shows that a state survives decoding, drafts that are taken back, and
snapshots.
"""
import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import fidelity_fixtures as base
import fidelity_qwen35 as qwen35
from fidelity_fixtures import ARR, BOOL, I32, STR, U32

PAIRS, COPY, BATCH, RATE = 6, 8, 32, 4e-3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
DIGITS = np.frombuffer(b"0123456789", np.uint8)


def example(rng):
    """Bytes of a text, and how much each of them counts as an answer."""
    keys = rng.choice(LETTERS, PAIRS, replace=False)
    values = rng.choice(DIGITS, PAIRS)
    text, weight = [], []

    def put(b, w):
        text.append(b)
        weight.append(w)
    for i, (k, v) in enumerate(zip(keys, values)):
        if i:
            put(ord(" "), 0.05)
        put(k, 0.01)
        put(v, 0.01)
    put(ord(";"), 0.05)
    for i in rng.permutation(PAIRS):
        put(keys[i], 0.01)
        put(values[i], 1)
    put(ord("\n"), 0.1)
    word = rng.choice(LETTERS, COPY)
    put(ord("="), 0.1)
    for c in word:
        put(c, 0.01)
    put(ord("="), 0.1)
    for c in word:
        put(c, 1)
    put(ord("\n"), 0.1)
    return text, weight


def batch(rng, n):
    pairs = [example(rng) for _ in range(n)]
    return (torch.tensor(np.array([p[0] for p in pairs], np.int64)),
            torch.tensor(np.array([p[1] for p in pairs], np.float32)))


def accuracy(model, rng):
    ids, weight = batch(rng, 64)
    best = model(ids[:, :-1], use_cache=False).logits.argmax(-1)
    asked = weight[:, 1:] == 1
    right = (best == ids[:, 1:]) & asked
    n = PAIRS * 64
    recall = right[:, :-COPY - 2].sum().item() / n
    return recall, right[:, -COPY - 2:].sum().item() / (COPY * 64)


def config():
    from transformers import Qwen3_5TextConfig
    return Qwen3_5TextConfig(**{
        **qwen35.COMMON, "vocab_size": 256 + len(SPECIAL), "hidden_size": 64, "num_hidden_layers": 4,
        "layer_types": [qwen35.LINEAR] * 3 + [qwen35.FULL], "intermediate_size": 128,
        "linear_num_value_heads": 4, "tie_word_embeddings": True})


def byte_pieces():
    """The characters that stand for bytes in vocabularies of this kind."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = [], 0
    for b in range(256):
        out.append(chr(b) if b in plain else chr(256 + n))
        n += b not in plain
    return out


def to_file(name, how, a, c):
    """The inverse of fidelity_qwen35's transforms: from transformers' form to the file's."""
    if how is qwen35.less_one:
        return a + 1
    n = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    order = np.argsort([r * c.linear_num_key_heads + g for g in range(c.linear_num_key_heads)
                        for r in range(c.linear_num_value_heads // c.linear_num_key_heads)])

    def tiled(x, axis=0):
        x = np.moveaxis(x, axis, 0)
        y = x.reshape(c.linear_num_value_heads, -1, *x.shape[1:])[order].reshape(x.shape)
        return np.ascontiguousarray(np.moveaxis(y, 0, axis))
    leaf = name.split(".", 2)[2] if name.startswith("blk.") else name
    if leaf == "attn_qkv.weight" or leaf == "ssm_conv1d.weight":
        a = a[:, 0] if a.ndim == 3 else a
        return np.concatenate([a[:n], tiled(a[n:])])
    if leaf == "ssm_a":
        return tiled(-np.exp(a))
    if leaf in ("attn_gate.weight", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return tiled(a)
    return tiled(a, 1) if leaf == "ssm_out.weight" else a


def write(model, c, path):
    t = "tokenizer.ggml."
    values = [("general.architecture", STR, "qwen35"), ("general.name", STR, "tiny hybrid"),
              ("general.file_type", U32, 0)] + qwen35.model_values("qwen35", c)
    if c.layer_types[:3] == [qwen35.LINEAR] * 3:
        values = [v for v in values if "recurrent_layers" not in v[0]]
        values += [("qwen35.full_attention_interval", U32, 4)]
    values += [(t + "model", STR, "gpt2"), (t + "pre", STR, "qwen35"),
               (t + "tokens", (ARR, STR), byte_pieces() + SPECIAL),
               (t + "token_type", (ARR, I32), [1] * 256 + [3] * len(SPECIAL)),
               (t + "merges", (ARR, STR), []),
               (t + "eos_token_id", U32, 256 + 2), (t + "padding_token_id", U32, 256),
               (t + "add_bos_token", BOOL, False)]
    tensors = [(name, to_file(name, how, slot.detach().numpy().astype(np.float32), c))
               for name, slot, how in qwen35.tensor_list(model, c)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base.gguf_bytes(values, tensors))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--seconds", type=float, default=900)
    ap.add_argument("--out", default=str(base.OUT.parent / "hybrid.gguf"))
    ap.add_argument("--log")
    o = ap.parse_args()
    from transformers import Qwen3_5ForCausalLM
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng, check = np.random.default_rng(1), np.random.default_rng(2)
    c = config()
    c._attn_implementation = "eager"
    model = Qwen3_5ForCausalLM(c)
    with torch.no_grad():  # the library starts at 0.02, which is little for so narrow a model
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, p.shape[1] ** -0.5)
        model.model.embed_tokens.weight.normal_(0, 0.3)
    opt = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    start, used0, step, best = time.time(), time.process_time(), 0, 0.0
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    while True:
        used = time.process_time() - used0
        share = used / o.seconds
        if share >= 1:
            break
        for g in opt.param_groups:
            g["lr"] = RATE * min(1, (step + 1) / 50) * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * share)))
        ids, weight = batch(rng, BATCH)
        logits = model(ids[:, :-1], use_cache=False).logits
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        w = weight[:, 1:].flatten()
        loss = (each * w).sum() / w.sum()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        opt.step()
        step += 1
        if step % 50 == 0:
            with torch.no_grad():
                recall, copied = accuracy(model, check)
            line = (f"step {step}, {used:.0f} s of this core, {time.time() - start:.0f} s: "
                    f"loss {loss.item():.3f}, recall {recall:.3f}, copied {copied:.3f}")
            print(line, flush=True)
            if min(recall, copied) > best:
                best = min(recall, copied)
                write(model, c, Path(o.out))
            if best >= 0.999 and share > 0.9:
                break
    print(f"best {best:.3f}: {o.out}, {Path(o.out).stat().st_size if best else 0} bytes")


if __name__ == "__main__":
    main()
