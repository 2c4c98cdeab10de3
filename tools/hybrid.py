#!/usr/bin/env python3
"""Trains a tiny Qwen3.5 with a NextN layer to recall and to copy, for tests/data/hybrid.gguf.

    python3 tools/hybrid.py OUT [--seconds 900]
    carat convert OUT hybrid.gguf --type q8_0 --name "tiny hybrid"

Needs torch, transformers >= 5.17, safetensors and numpy, one CPU core and some minutes; never needed to
build or run carat. OUT becomes a directory of safetensors in the published form. The model has three
recurrent layers and one that attends, and a vocabulary of bytes. A text is

    q7 b2 x9 k4 m1 a8;x9b2a8q7m1k4\\n          pairs, then each letter again with its digit
    =hgtqwez=hgtqwez=hgtqw                    letters, then the same again and again

with other letters and digits each time. tests/hybrid_test.c asks such questions. Random models answer
nothing, so only a trained one shows that a state survives decoding, drafts that are taken back, and
snapshots.

tests/data/hybrid.gguf is from `--seconds 700`, ended after 650 steps (321 s), when all answers were right.

The NextN layer learns from the model's hidden states, and from its own, as in a chain of drafts. Its loss
does not reach the model's layers.
"""
import argparse
import functools
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import fidelity_qwen35 as qwen35

PAIRS, WORD, LENGTH, BATCH, RATE = 6, (6, 11), 80, 32, 4e-3
RECALL = 5 * PAIRS + 1  # bytes of the first line
CHAIN = 3  # steps that the NextN layer is trained for
PIECES = 257  # bytes, and two spaces: a vocabulary of this kind has merges
SPECIAL = ["<|im_start|>", "<|im_end|>"]
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
        put(k, 0)
        put(v, 0)
    put(ord(";"), 0.05)
    for i in rng.permutation(PAIRS):
        put(keys[i], 0)
        put(values[i], 1)
    put(ord("\n"), 0.1)
    word = rng.choice(LETTERS, rng.integers(*WORD), replace=False)
    n = 0
    while len(text) < LENGTH:
        put(ord("="), 0.2 if n else 0.1)
        for c in word:
            put(c, 0.5 if n else 0)
        n += 1
    return text[:LENGTH], weight[:LENGTH]


def batch(rng, n):
    pairs = [example(rng) for _ in range(n)]
    return (torch.tensor(np.array([p[0] for p in pairs], np.int64)),
            torch.tensor(np.array([p[1] for p in pairs], np.float32)))


def shifted(h):
    """The hidden state of the token before each."""
    return torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)


def shares(best, ids, weight):
    """Of digits and of copied letters that are right."""
    asked, right = weight[:, 1:] >= 0.5, best == ids[:, 1:]
    out = []
    for part in (slice(0, RECALL - 1), slice(RECALL - 1, None)):
        a = asked[:, part]
        out.append(((right[:, part] & a).sum() / a.sum()).item())
    return out


def accuracy(model, nextn, rng):
    ids, weight = batch(rng, 64)
    h = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    out = shares(model.lm_head(h).argmax(-1), ids, weight)
    for _ in range(CHAIN):
        h = nextn(model.model.embed_tokens(ids[:, :-1]), shifted(h))
        out += shares(model.lm_head(h).argmax(-1), ids, weight)[1:]
    return out


def config():
    from transformers import Qwen3_5TextConfig
    return Qwen3_5TextConfig(**{
        **qwen35.COMMON, "vocab_size": PIECES + len(SPECIAL), "hidden_size": 64, "num_hidden_layers": 4,
        "layer_types": [qwen35.LINEAR] * 3 + [qwen35.FULL], "intermediate_size": 128,
        "linear_num_value_heads": 4, "tie_word_embeddings": True})


def byte_pieces():
    """The characters that stand for bytes in vocabularies of this kind."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = [], 0
    for b in range(256):
        out.append(chr(b) if b in plain else chr(256 + n))
        n += b not in plain
    return out + [2 * out[32]]


def write(model, nextn, c, d):
    d.mkdir(parents=True, exist_ok=True)
    own = dict(nextn.body.named_parameters())
    out = {k: v for k, v in model.named_parameters() if k != "lm_head.weight"}
    out |= {f"mtp.{k}": v for k, v in own.items() if k.startswith("layers.")}
    out |= {"mtp.norm.weight": own["norm.weight"], "mtp.fc.weight": nextn.fc,
            "mtp.pre_fc_norm_embedding.weight": nextn.enorm, "mtp.pre_fc_norm_hidden.weight": nextn.hnorm}
    save_file({k: v.detach().clone().contiguous() for k, v in out.items()}, d / "model.safetensors")
    values = {k: v for k, v in c.to_dict().items() if k != "architectures"}
    (d / "config.json").write_text(json.dumps(values | dict(
        mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, attn_output_gate=True)))
    write_vocabulary(d)


def write_vocabulary(d):
    pieces = byte_pieces()
    words = [dict(id=PIECES + i, content=t, special=True, single_word=False, lstrip=False, rstrip=False,
                  normalized=False) for i, t in enumerate(SPECIAL)]
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    (d / "tokenizer.json").write_text(json.dumps(dict(
        version="1.0", truncation=None, padding=None, added_tokens=words, normalizer=dict(type="NFC"),
        pre_tokenizer=dict(type="Sequence", pretokenizers=[
            dict(type="Split", pattern=dict(Regex=split), behavior="Isolated", invert=False),
            dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)]),
        post_processor=None, decoder=dict(type="ByteLevel"),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="",
                   end_of_word_suffix="", fuse_unk=False, byte_fallback=False,
                   vocab={p: i for i, p in enumerate(pieces)}, merges=[[pieces[32], pieces[32]]]))))
    (d / "tokenizer_config.json").write_text(json.dumps(dict(
        eos_token=SPECIAL[1], pad_token=SPECIAL[1], add_bos_token=False)))


def loss_of(logits, ids, weight):
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    w = weight[:, 1:].flatten()
    return (each * w).sum() / w.sum()


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=900, help="of this core")
    o = ap.parse_args()
    import transformers.models.qwen3_5.modeling_qwen3_5 as source
    from transformers import Qwen3_5ForCausalLM
    # Chunks of 16 rows take less time here than the library's 64.
    source.torch_chunk_gated_delta_rule = functools.partial(source.torch_chunk_gated_delta_rule, chunk_size=16)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    c = config()
    c._attn_implementation = "eager"
    model, nextn = Qwen3_5ForCausalLM(c), qwen35.NextN(Qwen3_5ForCausalLM, c)
    params = [*model.parameters(), *(p for n, p in nextn.named_parameters() if "embed_tokens" not in n)]
    with torch.no_grad():  # the library starts at 0.02, which is little for so narrow a model
        for p in params:
            if p.dim() == 2:
                p.normal_(0, p.shape[1] ** -0.5)
        model.model.embed_tokens.weight.normal_(0, 0.3)
    opt = torch.optim.AdamW(params, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    used0, step, best = time.process_time(), 0, 0.0
    print(sum(p.numel() for p in params), "parameters", flush=True)
    while (share := (time.process_time() - used0) / o.seconds) < 1:
        for g in opt.param_groups:
            g["lr"] = RATE * min(1, (step + 1) / 50) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * share)))
        ids, weight = batch(rng, BATCH)
        h = model.model(ids[:, :-1], use_cache=False).last_hidden_state
        loss = first = loss_of(model.lm_head(h), ids, weight)
        h = h.detach()
        for i in range(CHAIN):
            h = nextn(model.model.embed_tokens(ids[:, :-1]).detach(), shifted(h))
            loss = loss + 0.5 ** i * loss_of(F.linear(h, model.lm_head.weight.detach()), ids, weight)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1)
        opt.step()
        step += 1
        if step % 50 == 0:
            with torch.no_grad():
                recall, copied, *drafted = accuracy(model, nextn, np.random.default_rng(2))
            print(f"step {step}, {time.process_time() - used0:.0f} s of this core: loss {first.item():.3f}, "
                  f"recall {recall:.3f}, copied {copied:.3f}, drafted " +
                  " ".join(f"{x:.3f}" for x in drafted), flush=True)
            if min(recall, copied) >= best:
                best = min(recall, copied)
                write(model, nextn, c, o.out)
    print(f"best {best:.3f}: {o.out}")


if __name__ == "__main__":
    main()
