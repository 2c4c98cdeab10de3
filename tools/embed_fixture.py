#!/usr/bin/env python3
"""Makes tests/data/fidelity/NAME.golden for encoders: what sentence-transformers computes for tiny
EmbeddingGemma models of random weights.

    python3 tools/embed_fixture.py             rewrite the golden files
    python3 tools/embed_fixture.py --check     compute again and compare, write nothing

Needs torch, transformers >= 5.17, sentence-transformers and numpy; never needed to build or run carat. The
format and the generator of weights are those of fidelity_families.py. Instead of logits a file has `vectors`:
one for each text, which is the first fidelity.lengths[i] tokens, by Pooling and both Dense modules of
sentence-transformers, before the norm.
"""
import argparse
import sys

import numpy as np
import torch
import sentence_transformers
import transformers
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from transformers import Gemma3TextConfig, Gemma3TextModel

import fidelity_families as families
import fidelity_fixtures as base
from fidelity_families import G, S
from fidelity_fixtures import ARR, F32, F64, I32, STR, U32, U64

# One token, inside a window, at its edge on both sides, and past several windows.
LENGTHS = [1, 2, 5, 8, 9, 10, 17, 18, 40, 130]

# name: (seed, pooling mode, rows of the first dense layer, configuration)
CASES = {
    "encoder": (1600, "mean", 160, dict(sliding_window=16)),
    # An odd window, heads in pairs, a rotation that is scaled; no dense layers, and the last token.
    "encoder-plain": (1700, "lasttoken", 0, dict(
        sliding_window=13, num_attention_heads=4, num_key_value_heads=2, layer_types=[S, G, S],
        num_hidden_layers=3, rope_parameters={G: dict(rope_type="linear", rope_theta=1e6, factor=4.0),
                                              S: dict(rope_type="default", rope_theta=1e4)})),
}


def build(overrides):
    c = dict(vocab_size=128, hidden_size=96, intermediate_size=160, num_hidden_layers=7,
             num_attention_heads=3, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32,
             rms_norm_eps=1e-6, max_position_embeddings=2048, use_bidirectional_attention=True,
             rope_parameters={G: dict(rope_type="default", rope_theta=1e6),
                              S: dict(rope_type="default", rope_theta=1e4)})
    c.update(overrides)
    config = Gemma3TextConfig(**c)
    config._attn_implementation = "eager"
    return Gemma3TextModel(config).eval().to(torch.float32), config, c["sliding_window"]


def run_case(name):
    seed, mode, n_dense, overrides = CASES[name]
    model, config, window = build(overrides)
    model.requires_grad_(False)
    n = config.hidden_size
    dense = [Dense(n, n_dense, bias=False, activation_function=torch.nn.Identity()),
             Dense(n_dense, n, bias=False, activation_function=torch.nn.Identity())] if n_dense else []
    pooling = Pooling(n, pooling_mode=mode)

    class Root(torch.nn.Module):  # the names that fidelity_families.tensor_list expects
        def __init__(self):
            super().__init__()
            self.model = model
    tensors = families.tensor_list(Root(), config)
    tensors += [(f"dense_{k}.weight", d.linear.weight) for k, d in zip((2, 3), dense)]
    arrays, recipe = [], []
    for i, (tname, slot) in enumerate(tensors):
        shape = tuple(slot.shape)
        mean, sigma = families.init_of(tname, shape)
        a = base.draw(seed, i, shape, mean, sigma)
        w = torch.from_numpy(np.ascontiguousarray(a))
        with torch.no_grad():
            slot.copy_(w - 1 if len(shape) == 1 else w)  # a file's norms are 1 + w
        arrays.append(a)
        recipe.append((tname, shape, mean, sigma))
    ids = base.draw_tokens(seed, max(LENGTHS), config.vocab_size)

    def vectors(model, kind):
        out = []
        for k in LENGTHS:
            t = torch.from_numpy(ids[:k].astype(np.int64))[None]
            mask = torch.ones_like(t)
            f = dict(token_embeddings=model(t, attention_mask=mask, use_cache=False).last_hidden_state,
                     attention_mask=mask)
            for m in [pooling] + dense:
                f = m.to(kind)(f)
            out.append(f["sentence_embedding"][0].detach().numpy())
        return np.stack(out)
    v = vectors(model, torch.float32)
    model.to(torch.float64)
    with families.everything_f64(model):
        exact = vectors(model, torch.float64)
    d = v - exact
    floor_max, floor_rms = float(np.abs(d).max()), float(np.sqrt(np.mean(d * d)))
    print(f"{name}: {len(arrays)} tensors, deviation {v.std():.2f}, f32 against f64: max {floor_max:.1e} "
          f"rms {floor_rms:.1e}")
    a = "gemma-embedding."
    full, swa = config.rope_parameters[G], config.rope_parameters[S]
    values = [(a + "context_length", U32, config.max_position_embeddings),
              (a + "embedding_length", U32, n),
              (a + "block_count", U32, config.num_hidden_layers),
              (a + "feed_forward_length", U32, config.intermediate_size),
              (a + "attention.head_count", U32, config.num_attention_heads),
              (a + "attention.head_count_kv", U32, config.num_key_value_heads),
              (a + "attention.key_length", U32, config.head_dim),
              (a + "attention.value_length", U32, config.head_dim),
              (a + "attention.layer_norm_rms_epsilon", F32, config.rms_norm_eps),
              (a + "rope.freq_base", F32, full["rope_theta"]),
              (a + "rope.freq_base_swa", F32, swa["rope_theta"]),
              (a + "attention.sliding_window", U32, window),
              (a + "pooling_type", U32, 1 if mode == "mean" else 3)]
    if full["rope_type"] == "linear":
        values += [(a + "rope.scaling.type", STR, "linear"), (a + "rope.scaling.factor", F32, full["factor"])]
    if "layer_types" in overrides:
        values += [(a + "attention.sliding_window_pattern", (ARR, base.BOOL),
                    [t == S for t in config.layer_types])]
    if n_dense:
        values += [(a + "dense_2_feat_in", U32, n), (a + "dense_2_feat_out", U32, n_dense),
                   (a + "dense_3_feat_in", U32, n_dense), (a + "dense_3_feat_out", U32, n)]
    return dict(seed=seed, values=values, recipe=recipe, ids=ids, vectors=v.astype(np.float32),
                floor=(floor_max, floor_rms), print=base.fingerprint(arrays))


def golden_bytes(name, r):
    f = "fidelity."
    dims = [list(s[::-1]) + [1] * (4 - len(s)) for _, s, _, _ in r["recipe"]]
    values = [
        ("general.architecture", STR, "fidelity"),
        ("general.name", STR, "tiny " + name),
        (f + "made_by", STR, f"sentence-transformers {sentence_transformers.__version__}, "
                             f"transformers {transformers.__version__}, "
                             f"torch {torch.__version__.split('+')[0]}"),
        (f + "arch", STR, "gemma-embedding"),
        (f + "seed", U64, r["seed"]),
        (f + "fingerprint", U64, r["print"]),
        (f + "floor_max", F64, r["floor"][0]),
        (f + "floor_rms", F64, r["floor"][1]),
        (f + "tokens", (ARR, I32), r["ids"].tolist()),
        (f + "lengths", (ARR, I32), LENGTHS),
        (f + "tensor.name", (ARR, STR), [x[0] for x in r["recipe"]]),
        (f + "tensor.ne", (ARR, I32), sum(dims, [])),
        (f + "tensor.mean", (ARR, F64), [x[2] for x in r["recipe"]]),
        (f + "tensor.sigma", (ARR, F64), [x[3] for x in r["recipe"]]),
    ] + r["values"]
    return base.gguf_bytes(values, [("vectors", r["vectors"])])


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("cases", nargs="*", default=list(CASES))
    ap.add_argument("--check", action="store_true")
    o = ap.parse_args()
    torch.set_num_threads(1)
    np.seterr(over="ignore")
    bad = 0
    for name in o.cases:
        r = run_case(name)
        bad += base.write_or_check(name, golden_bytes(name, r), r["vectors"], o.check)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
