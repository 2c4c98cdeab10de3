#!/usr/bin/env python3
"""Makes tests/data/fidelity/*.golden: logits of transformers for tiny Gemma 4 models.

    python3 tools/fidelity_fixtures.py                  rewrite the golden files
    python3 tools/fidelity_fixtures.py --check          compute again and compare, write nothing
    python3 tools/fidelity_fixtures.py --models DIR     write the models themselves, as GGUF
    python3 tools/fidelity_fixtures.py --hidden all     print the residual stream layer by layer

Needs torch, transformers >= 5.5 and numpy; never needed to build or run carat.

A golden file is a GGUF container (architecture "fidelity") with the recipe of a model and its logits,
without weights: every gemma4.* key exactly as in a model file; the list of tensors, each with shape,
mean and deviation; a seed; the prompt; and the f32 logits at every position. The weights are drawn from SplitMix64 by integer arithmetic and one rounding, so that
tests/fidelity_model.c makes the same bits without this script:

    state of tensor i  = mix(seed + i)                   (mix, next: base/rng.h)
    element            = float32(mean + sigma * ((s - 131070) * Z)),  s = sum of the four 16-bit
                         fields of next(state);          Z makes the deviation of s one

The random values are chosen so that every feature shows in the logits: norms, router scales and layer scales away
from 1, embeddings and matrices large enough that logits have a deviation of about 5.
"""
import argparse
import contextlib
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers import Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "fidelity"
Z = 1.0 / 37837.22772  # deviation of the sum of four uniform 16-bit integers, inverted
N_TOKENS = 100
MARGIN = 0.02  # smallest distance of the two best logits at any position: keeps argmax meaningful
FLOOR = 1.5e-4  # largest distance of f32 and f64 logits: leaves the tests' bound of 1e-3 some room
ROUTER_GAP = 5e-5  # smallest distance of the last expert chosen and the first one not

S, G = "sliding_attention", "full_attention"
COMMON = dict(
    vocab_size=320, hidden_size=96, intermediate_size=160, num_attention_heads=4,
    num_key_value_heads=2, num_global_key_value_heads=1, head_dim=32, global_head_dim=64,
    sliding_window=8, final_logit_softcapping=30.0, max_position_embeddings=4096,
    rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=0, bos_token_id=2, eos_token_id=1,
)
PLE = dict(hidden_size_per_layer_input=16, vocab_size_per_layer_input=320)
NO_PLE = dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=320)
MOE = dict(enable_moe_block=True, num_experts=8, top_k_experts=3, moe_intermediate_size=48)

# name: (class, seed, configuration). Only "all" has everything on; the others follow one published
# size each, "wide" with head sizes that are multiples of 64 and a window that is no power of two.
CASES = {
    "all": ("gemma4", 100, dict(
        layer_types=[S, S, G] * 3, num_kv_shared_layers=3, use_double_wide_mlp=True,
        attention_k_eq_v=True, **PLE, **MOE)),
    "e2b": ("gemma4", 200, dict(
        layer_types=[S, S, S, S, G] * 2, num_kv_shared_layers=5, use_double_wide_mlp=True,
        num_key_value_heads=1, num_global_key_value_heads=None, **PLE)),
    "moe": ("gemma4", 300, dict(
        layer_types=[S, S, G] * 2, attention_k_eq_v=True, **NO_PLE, **MOE)),
    "dense": ("gemma4", 400, dict(
        layer_types=[S, S, G] * 2, attention_k_eq_v=True, num_attention_heads=8,
        num_key_value_heads=4, num_global_key_value_heads=2, **NO_PLE)),
    "unified": ("unified", 500, dict(
        layer_types=[S, S, G] * 2, attention_k_eq_v=True, num_key_value_heads=4)),
    "wide": ("gemma4", 600, dict(
        layer_types=[S, S, G] * 2, num_kv_shared_layers=3, hidden_size=128, head_dim=64,
        global_head_dim=128, num_global_key_value_heads=None, sliding_window=11, **PLE)),
}


# ---- The generator -------------------------------------------------------------------------

GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix(z):
    z = np.asarray(z, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw(seed, i, shape, mean, sigma):
    n = int(np.prod(shape))
    state = mix(np.uint64(seed + i))
    u = mix(state + GAMMA * np.arange(1, n + 1, dtype=np.uint64))
    s = sum(((u >> np.uint64(16 * k)) & np.uint64(0xFFFF)).astype(np.int64) for k in range(4))
    return (mean + sigma * ((s - 131070).astype(np.float64) * Z)).astype(np.float32).reshape(shape)


def draw_tokens(seed, n, n_vocab):
    """BOS, then anything but the first 8 ids."""
    u = mix(mix(np.uint64(seed + 1000003)) + GAMMA * np.arange(1, n + 1, dtype=np.uint64))
    ids = (u % np.uint64(n_vocab - 8)).astype(np.int32) + 8
    ids[0] = 2
    return ids


def fingerprint(arrays):
    """Order matters; the C side computes the same while it writes."""
    h = np.uint64(0)
    for a in arrays:
        bits = np.ascontiguousarray(a).view(np.uint32).ravel().astype(np.uint64)
        index = np.arange(bits.size, dtype=np.uint64) << np.uint64(32)
        h = mix(h + np.sum(mix(bits | index), dtype=np.uint64))
    return int(h)


# ---- GGUF ----------------------------------------------------------------------------------

U32, I32, F32, BOOL, STR, ARR, U64, F64 = 4, 5, 6, 7, 8, 9, 10, 12
PACK = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", F64: "<d"}


def gguf_bytes(values, tensors):
    """values: [(key, kind, value)] or [(key, (ARR, kind), list)]; tensors: [(name, f32 array)]."""
    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    def item(kind, v):
        return text(v) if kind == STR else struct.pack(PACK[kind], v)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, kind, v in values:
        if isinstance(kind, tuple):
            head += text(key) + struct.pack("<IIQ", ARR, kind[1], len(v))
            head += b"".join(item(kind[1], x) for x in v)
        else:
            head += text(key) + struct.pack("<I", kind) + item(kind, v)
    data = b""
    for name, a in tensors:
        data += b"\0" * (-len(data) % 32)
        ne = a.shape[::-1]
        head += text(name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne)
        head += struct.pack("<IQ", 0, len(data))
        data += np.ascontiguousarray(a, "<f4").tobytes()
    head += b"\0" * (-len(head) % 32)
    return head + data


def model_values(c, per_layer):
    """The gemma4.* keys of a model file, as published files carry them."""
    n = c.num_hidden_layers
    ple = getattr(c, "hidden_size_per_layer_input", 0) or 0
    moe = getattr(c, "enable_moe_block", False)
    kv = [p.num_key_value_heads for p in per_layer]
    first = n - c.num_kv_shared_layers
    ff = [c.intermediate_size * (2 if c.use_double_wide_mlp and i >= first else 1)
          for i in range(n)]
    hd, hd_swa = c.per_layer_config[G].head_dim, c.per_layer_config[S].head_dim
    a = "gemma4."
    v = [
        (a + "block_count", U32, n),
        (a + "context_length", U32, c.max_position_embeddings),
        (a + "embedding_length", U32, c.hidden_size),
        (a + "feed_forward_length", *((U32, ff[0]) if len(set(ff)) == 1 else ((ARR, I32), ff))),
        (a + "attention.head_count", U32, c.num_attention_heads),
        (a + "attention.head_count_kv", *((U32, kv[0]) if len(set(kv)) == 1 else ((ARR, I32), kv))),
        (a + "rope.freq_base", F32, 1e6),
        (a + "rope.freq_base_swa", F32, 1e4),
        (a + "attention.layer_norm_rms_epsilon", F32, c.rms_norm_eps),
        (a + "attention.key_length", U32, hd),
        (a + "attention.value_length", U32, hd),
        (a + "attention.key_length_swa", U32, hd_swa),
        (a + "attention.value_length_swa", U32, hd_swa),
        (a + "rope.dimension_count", U32, hd),
        (a + "rope.dimension_count_swa", U32, hd_swa),
        (a + "final_logit_softcapping", F32, c.final_logit_softcapping),
        (a + "attention.sliding_window", U32, c.sliding_window),
        (a + "attention.shared_kv_layers", U32, c.num_kv_shared_layers),
        (a + "embedding_length_per_layer_input", U32, ple),
        (a + "attention.sliding_window_pattern", (ARR, BOOL), [t == S for t in c.layer_types]),
        (a + "vocab_size", U32, c.vocab_size),
    ]
    if moe:
        v += [(a + "expert_count", U32, c.num_experts),
              (a + "expert_used_count", U32, c.top_k_experts),
              (a + "expert_feed_forward_length", U32, c.moe_intermediate_size)]
    return v


LAYER_NAMES = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
]
GLOBAL_NAMES = [
    ("embed_tokens.weight", "token_embd.weight"),
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ("norm.weight", "output_norm.weight"),
]


def init_of(name, shape, n_layer):
    """Mean and deviation by the GGUF name."""
    if name.endswith("layer_output_scale.weight"):
        return 0.9, 0.1
    if name.endswith("ffn_gate_inp.scale"):
        return 8.0, 2.4  # near sqrt(d), as trained models have it: the router then decides
    if name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")) and n_layer < 9:
        return 1.8, 0.5  # else the prompt's own embedding outshouts few layers in the argmax
    if name.endswith(("_exps.scale", "norm.weight", "norm_1.weight", "norm_2.weight")):
        return 1.0, 0.3
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return 0.0, 0.5
    return 0.0, float(1.2 / np.sqrt(np.float64(shape[-1])))


# ---- Cases ---------------------------------------------------------------------------------

def build(kind, overrides):
    c = {**COMMON, **overrides}
    c["num_hidden_layers"] = len(c["layer_types"])
    cls, cfg = ((Gemma4ForCausalLM, Gemma4TextConfig) if kind == "gemma4" else
                (Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig))
    config = cfg(**c)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = cls(config).eval().to(torch.float32)
    model.requires_grad_(False)
    return model, config


def tensor_list(model, config):
    """[(gguf name, where the data goes or None, shape)] in file order. The keys and values that
    older files carry in shared layers, where nothing reads them, are listed with None."""
    slots = dict(model.model.named_parameters())
    slots.update((k, v) for k, v in model.model.named_buffers() if k.endswith("layer_scalar"))
    out, used = [], set()
    for hf, name in GLOBAL_NAMES:
        if hf in slots:
            out.append((name, slots[hf], tuple(slots[hf].shape)))
            used.add(hf)
    first = config.num_hidden_layers - config.num_kv_shared_layers
    for i in range(config.num_hidden_layers):
        p = config.per_layer_config[i]
        for hf, name in LAYER_NAMES:
            key = f"layers.{i}.{hf}"
            if key in slots:
                out.append((f"blk.{i}.{name}", slots[key], tuple(slots[key].shape)))
                used.add(key)
            elif i >= first and name.startswith(("attn_k", "attn_v")):
                if name == "attn_v.weight" and config.attention_k_eq_v and \
                        config.layer_types[i] == G:
                    continue
                rows = p.num_key_value_heads * p.head_dim
                shape = (p.head_dim,) if name == "attn_k_norm.weight" else \
                    (rows, config.hidden_size)
                out.append((f"blk.{i}.{name}", None, shape))
    missed = set(slots) - used
    assert not missed, missed
    return out


@contextlib.contextmanager
def everything_f64():
    """transformers computes norms and softmax in f32 whatever the model's type; not for the floor."""
    old_float, old_softmax = torch.Tensor.float, torch.nn.functional.softmax
    torch.Tensor.float = torch.Tensor.double
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None: old_softmax(x.double(), dim=dim)
    old_rope = {}
    for m in (transformers.models.gemma4.modeling_gemma4,
              transformers.models.gemma4_unified.modeling_gemma4_unified):
        cls = [v for k, v in vars(m).items() if k.endswith("TextRotaryEmbedding")][0]
        old_rope[cls] = cls.forward

        def forward(self, x, position_ids, layer_type):
            inv = getattr(self, f"{layer_type}_inv_freq").double()
            a = position_ids[..., None].double() * inv
            a = torch.cat((a, a), dim=-1)
            return a.cos(), a.sin()
        cls.forward = forward
    try:
        yield
    finally:
        torch.Tensor.float, torch.nn.functional.softmax = old_float, old_softmax
        for cls, f in old_rope.items():
            cls.forward = f


def run_f64(model, ids):
    model.to(torch.float64)
    with everything_f64():
        logits = model(ids, use_cache=False).logits[0].numpy()
    model.to(torch.float32)
    return logits


def router_gap(model, ids):
    """Smallest distance between the last expert chosen and the first one left out."""
    gap = [float("inf")]

    def hook(_, __, out):
        p = out[0].sort(dim=-1, descending=True).values
        k = out[1].shape[-1]
        gap[0] = min(gap[0], float((p[:, k - 1] - p[:, k]).min()))
    handles = [m.register_forward_hook(hook) for m in model.modules()
               if type(m).__name__ == "Gemma4TextRouter"]
    model(ids, use_cache=False)
    for h in handles:
        h.remove()
    return gap[0]


def run_case(name, show_hidden=False):
    kind, seed, overrides = CASES[name]
    model, config = build(kind, overrides)
    while True:
        tensors = tensor_list(model, config)  # anew: Module.to, in run_f64, replaces buffers
        arrays, recipe = [], []
        for i, (tname, slot, shape) in enumerate(tensors):
            mean, sigma = init_of(tname, shape, len(config.layer_types))
            a = draw(seed, i, shape, mean, sigma)
            if slot is not None:
                slot.copy_(torch.from_numpy(a))
            arrays.append(a)
            recipe.append((tname, shape, mean, sigma))
        ids = draw_tokens(seed, N_TOKENS, config.vocab_size)
        t = torch.from_numpy(ids.astype(np.int64))[None]
        out = model(t, use_cache=False, output_hidden_states=show_hidden)
        logits = out.logits[0].numpy()
        best = np.sort(logits, axis=-1)
        margin = float((best[:, -1] - best[:, -2]).min())
        gap = router_gap(model, t)
        if margin > MARGIN and gap > ROUTER_GAP:
            exact = run_f64(model, t)
            d = logits - exact
            floor_max, floor_rms = float(np.abs(d).max()), float(np.sqrt(np.mean(d * d)))
            if floor_max < FLOOR:
                break
        seed += 1
    if show_hidden:
        for i, h in enumerate(out.hidden_states):
            print(f"{name} stream {i:2} rms by token:",
                  " ".join(f"{float(x):.6g}" for x in h[0].pow(2).mean(-1).sqrt()[:8]))

    hd = config.per_layer_config[G].head_dim
    rope = np.full(hd // 2, 1e30, np.float32)
    rope[: int(0.25 * hd / 2)] = 1.0
    values = model_values(config, [config.per_layer_config[i] for i in
                                   range(config.num_hidden_layers)])
    echo = int((logits.argmax(-1) == ids).sum())
    n_weights = sum(a.size for a in arrays)
    print(f"{name}: seed {seed}, {config.num_hidden_layers} layers, {len(arrays)} tensors, "
          f"{n_weights / 1e6:.2f} M weights, logit deviation {logits.std():.2f}, "
          f"argmax repeats the token at {echo} of {N_TOKENS}, margin {margin:.3f}, "
          f"router gap {gap:.1e}, f32 against f64: max {floor_max:.1e} rms {floor_rms:.1e}")
    return dict(seed=seed, values=values, recipe=recipe, arrays=arrays, rope=rope, ids=ids,
                logits=logits, floor=(floor_max, floor_rms), print=fingerprint(arrays))


def golden_bytes(name, r):
    f = "fidelity."
    dims = [list(s[::-1]) + [1] * (4 - len(s)) for _, s, _, _ in r["recipe"]]
    values = [
        ("general.architecture", STR, "fidelity"),
        ("general.name", STR, "tiny Gemma 4, " + name),
        (f + "made_by", STR, f"transformers {transformers.__version__}, "
                             f"torch {torch.__version__.split('+')[0]}"),
        (f + "seed", U64, r["seed"]),
        (f + "fingerprint", U64, r["print"]),
        (f + "floor_max", F64, r["floor"][0]),
        (f + "floor_rms", F64, r["floor"][1]),
        (f + "tokens", (ARR, I32), r["ids"].tolist()),
        (f + "tensor.name", (ARR, STR), [x[0] for x in r["recipe"]]),
        (f + "tensor.ne", (ARR, I32), sum(dims, [])),
        (f + "tensor.mean", (ARR, F64), [x[2] for x in r["recipe"]]),
        (f + "tensor.sigma", (ARR, F64), [x[3] for x in r["recipe"]]),
    ] + r["values"]
    return gguf_bytes(values, [("rope_freqs.weight", r["rope"]), ("logits", r["logits"])])


def model_bytes(name, r):
    values = [("general.architecture", STR, "gemma4"),
              ("general.name", STR, "tiny Gemma 4, " + name),
              ("general.file_type", U32, 0)] + r["values"]
    values += [("tokenizer.ggml.model", STR, "no_vocab")]
    tensors = [(x[0], a) for x, a in zip(r["recipe"], r["arrays"])]
    return gguf_bytes(values, tensors + [("rope_freqs.weight", r["rope"])])


def write_or_check(name, new, results, check):
    """Writes the golden file, which ends with the results; check: whether the written one differs."""
    path = OUT / f"{name}.golden"
    if not check:
        OUT.mkdir(parents=True, exist_ok=True)
        path.write_bytes(new)
        print(f"  {path.name}: {len(new)} bytes")
        return False
    # Another torch may round otherwise: compare the recipe exactly, results by the floor.
    old = path.read_bytes()
    d = np.abs(np.frombuffer(old[-results.nbytes:], "<f4") - results.ravel()).max()
    print(f"  {path.name}: results within {d:.1e} of the file's")
    return d > 1e-3 or len(old) != len(new)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("cases", nargs="*", default=list(CASES))
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--models", metavar="DIR")
    ap.add_argument("--hidden", metavar="CASE")
    o = ap.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    np.seterr(over="ignore")
    if o.hidden:
        run_case(o.hidden, show_hidden=True)
        return 0
    bad = 0
    for name in o.cases:
        r = run_case(name)
        if o.models:
            d = Path(o.models)
            d.mkdir(parents=True, exist_ok=True)
            (d / f"{name}.gguf").write_bytes(model_bytes(name, r))
            r["ids"].astype("<i4").tofile(d / f"{name}.ids.bin")
            r["logits"].astype("<f4").tofile(d / f"{name}.logits.f32")
            continue
        bad += write_or_check(name, golden_bytes(name, r), r["logits"], o.check)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
