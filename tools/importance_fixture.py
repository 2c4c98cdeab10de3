#!/usr/bin/env python3
"""Makes tests/data/fidelity/importance.golden: which tokens the end of a text attends to before the
rotation, from the queries and keys of transformers' Qwen3, in f64.

    python3 tools/importance_fixture.py            write the file
    python3 tools/importance_fixture.py --check    compare with it instead

For the models of fidelity_families.py that are Qwen3: the values of the first 9, 40 and 200 tokens of a
text, as include/carat.h defines them, and the means of chunks of 64.
"""
import sys

import numpy as np
import torch

import fidelity_families as families
import fidelity_fixtures as base
from fidelity_fixtures import ARR, I32, STR

TAIL, SMOOTH, CHUNK, LENGTHS = 8, 13, 64, (9, 40, 200)


def values(model, config, ids):
    kept = {"q_norm": [], "k_norm": []}
    handles = [m.register_forward_hook(lambda _, __, out, kind=kind: kept[kind].append(out[0].double()))
               for name, m in model.named_modules() for kind in kept if name.endswith(kind)]
    model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    for h in handles:
        h.remove()
    n, group = len(ids), config.num_attention_heads // config.num_key_value_heads
    top = torch.zeros(TAIL, n, dtype=torch.float64)
    seen = torch.arange(n)[None] <= torch.arange(n - TAIL, n)[:, None]
    for q, k in zip(kept["q_norm"], kept["k_norm"]):  # [n, heads, head_dim] of each layer
        for h in range(q.shape[1]):
            s = q[-TAIL:, h] @ k[:, h // group].T / np.sqrt(config.head_dim)
            top = torch.maximum(top, s.masked_fill(~seen, -torch.inf).softmax(-1))
    mean, half = top.mean(0).numpy(), SMOOTH // 2
    return np.array([mean[max(0, j - half):j + half + 1].mean() for j in range(n)])


def main():
    torch.set_grad_enabled(False)
    np.seterr(over="ignore")
    meta, tensors = [("general.architecture", STR, "importance")], []
    for name in ("qwen3", "qwen3-yarn"):
        r = families.run_case(name)
        family, _, _, overrides = families.CASES[name]
        cls, config = family(overrides)
        config._attn_implementation = "eager"
        model = cls(config).eval().to(torch.float64)
        for (_, slot), a in zip(families.tensor_list(model, config), r["arrays"]):
            slot.data.copy_(torch.from_numpy(a))
        ids = base.draw_tokens(r["seed"], max(LENGTHS), config.vocab_size)
        meta.append((f"{name}.tokens", (ARR, I32), ids.tolist()))
        with families.everything_f64(model):
            for n in LENGTHS:
                v = values(model, config, ids[:n])
                chunks = np.array([v[i:i + CHUNK].mean() for i in range(0, n, CHUNK)])
                print(f"{name}, {n} tokens: {v.min():.4f} to {v.max():.4f}")
                tensors += [(f"{name}.{n}", v), (f"{name}.{n}.chunks", chunks)]
    path = base.OUT / "importance.golden"
    new = base.gguf_bytes(meta, tensors)
    if "--check" in sys.argv[1:]:
        old = path.read_bytes()
        ok = len(old) == len(new) and old[:4096] == new[:4096]
        print("as in the file" if ok else "not as in the file")
        return 0 if ok else 1
    path.write_bytes(new)
    print(f"{path.name}: {len(new)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
