#!/usr/bin/env python3
"""Makes tests/data/fidelity/*.golden for the families beside Gemma 4: logits of transformers for tiny
models of random weights.

    python3 tools/fidelity_families.py [CASE ...]       rewrite the golden files
    python3 tools/fidelity_families.py --check          compute again and compare, write nothing
    python3 tools/fidelity_families.py --models DIR     write the models themselves, as GGUF

Needs torch, transformers >= 5.17 and numpy; never needed to build or run carat. The format, the
generator of weights and the bounds are those of fidelity_fixtures.py. A golden file of this script also
names its architecture (fidelity.arch) and has the keys of that architecture.

Everything that transformers starts at a neutral value is random: norms, routers, selection biases.
"""
import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import fidelity_fixtures as base
from fidelity_fixtures import ARR, BOOL, F32, F64, I32, STR, U32, U64

S, G = "sliding_attention", "full_attention"


# What every tiny model has, unless its family or its case says another.
TINY = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096)
NO_WORDS = dict(bos_token_id=None, eos_token_id=None)


def tiny(name, overrides, **own):
    """The class of a family's models, and a configuration."""
    model = getattr(transformers, name + "ForCausalLM")
    return model, model.config_class(**(TINY | own | overrides))


def qwen3(overrides):
    return tiny("Qwen3", overrides, rms_norm_eps=1e-6, use_sliding_window=False,
                tie_word_embeddings=True,
                rope_parameters=dict(rope_type="default", rope_theta=1e6))


def qwen3moe(overrides):
    return tiny("Qwen3Moe", overrides, rms_norm_eps=1e-6, use_sliding_window=False,
                tie_word_embeddings=False, num_experts=8, num_experts_per_tok=3,
                moe_intermediate_size=32, norm_topk_prob=True,
                rope_parameters=dict(rope_type="default", rope_theta=1e7))


def llama(overrides):
    return tiny("Llama", overrides, **NO_WORDS, rms_norm_eps=1e-5,
                tie_word_embeddings=True, rope_parameters=dict(
                    rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                    high_freq_factor=4.0, original_max_position_embeddings=64))


def mistral(overrides):
    return tiny("Mistral", overrides, **NO_WORDS, hidden_size=96, num_attention_heads=6,
                head_dim=None, rms_norm_eps=1e-5, sliding_window=16, tie_word_embeddings=False,
                rope_parameters=dict(rope_type="default", rope_theta=1e4))


def mixtral(overrides):
    return tiny("Mixtral", overrides, **NO_WORDS, intermediate_size=32, head_dim=None,
                rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False,
                num_local_experts=8, num_experts_per_tok=2,
                rope_parameters=dict(rope_type="default", rope_theta=1e6))


def ministral3(overrides):
    return tiny("Ministral3", overrides, **NO_WORDS, rms_norm_eps=1e-5,
                max_position_embeddings=512, tie_word_embeddings=True, rope_parameters=dict(
                    rope_type="yarn", type="yarn", rope_theta=1e6, factor=16.0, beta_fast=32.0,
                    beta_slow=1.0, original_max_position_embeddings=32, mscale=1.0,
                    mscale_all_dim=1.0, llama_4_scaling_beta=0.3))


def laguna(overrides):
    yarn = dict(rope_type="yarn", rope_theta=5e5, partial_rotary_factor=0.5, factor=32.0,
                original_max_position_embeddings=8192, beta_fast=64.0, beta_slow=1.0)
    return tiny("Laguna", overrides, num_attention_heads=6,
                num_attention_heads_per_layer=[6, 8, 8, 8], sliding_window=16, rms_norm_eps=1e-6,
                layer_types=[G, S, S, S], mlp_layer_types=["dense"] + ["sparse"] * 3,
                num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                shared_expert_intermediate_size=64, moe_routed_scaling_factor=2.5,
                gating="per-head", tie_word_embeddings=False,
                rope_parameters={G: yarn, S: dict(rope_type="default", rope_theta=1e4,
                                                  partial_rotary_factor=1.0)})


def gemma3(overrides):
    return tiny("Gemma3", overrides, num_hidden_layers=7, sliding_window=16,
                query_pre_attn_scalar=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
                rope_parameters={G: dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                 S: dict(rope_type="default", rope_theta=1e4)})


def gpt_oss(overrides):
    return tiny("GptOss", overrides, intermediate_size=32, num_attention_heads=8,
                rms_norm_eps=1e-5, sliding_window=16, max_position_embeddings=131072,
                tie_word_embeddings=False, num_local_experts=8, num_experts_per_tok=3,
                rope_parameters=dict(
                    rope_type="yarn", rope_theta=1.5e5, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                    truncate=False, original_max_position_embeddings=4096))


# name: (family, seed, tokens, configuration)
CASES = {
    "qwen3": (qwen3, 700, 100, {}),
    "qwen3-yarn": (qwen3, 800, 100, dict(
        tie_word_embeddings=False, num_attention_heads=6,
        rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=4.0,
                             original_max_position_embeddings=1024))),
    "qwen3moe": (qwen3moe, 1100, 100, {}),
    "llama": (llama, 1200, 100, {}),
    "mistral": (mistral, 1300, 130, {}),
    "mixtral": (mixtral, 1800, 100, {}),
    "ministral3": (ministral3, 1900, 130, {}),
    "laguna": (laguna, 900, 130, {}),
    "laguna-element": (laguna, 1000, 100, dict(
        gating="per-element", layer_types=[G] * 4, num_attention_heads=4,
        num_attention_heads_per_layer=[4] * 4, mlp_layer_types=["dense"] * 2 + ["sparse"] * 2,
        moe_routed_scaling_factor=1.0)),
    "gemma3": (gemma3, 1400, 130, {}),
    # The 27B's scale is that of no head size; soft cap, a head and a pattern of its own.
    "gemma3-plain": (gemma3, 1500, 100, dict(
        num_hidden_layers=3, layer_types=[G] * 3, query_pre_attn_scalar=21, num_attention_heads=8,
        final_logit_softcapping=20.0, tie_word_embeddings=False,
        rope_parameters={G: dict(rope_type="default", rope_theta=5e5),
                         S: dict(rope_type="default", rope_theta=1e4)})),
    "gpt-oss": (gpt_oss, 1600, 130, {}),
    # Heads as published: 64 wide, eight to a KV head.
    "gpt-oss-wide": (gpt_oss, 1700, 100, dict(num_hidden_layers=2, num_key_value_heads=1,
                                              head_dim=64, sliding_window=8)),
}


# ---- Metadata ------------------------------------------------------------------------------

def rope_values(a, rope):
    if rope["rope_type"] != "yarn":
        return []
    return [(a + "rope.scaling.type", STR, "yarn"),
            (a + "rope.scaling.factor", F32, rope["factor"]),
            (a + "rope.scaling.original_context_length", U32,
             rope["original_max_position_embeddings"]),
            (a + "rope.scaling.yarn_beta_fast", F32, rope.get("beta_fast") or 32.0),
            (a + "rope.scaling.yarn_beta_slow", F32, rope.get("beta_slow") or 1.0)]


def model_values(arch, c):
    a = arch + "."
    if arch in ("llama", "mistral3"):
        v = [(a + "block_count", U32, c.num_hidden_layers),
             (a + "context_length", U32, c.max_position_embeddings),
             (a + "embedding_length", U32, c.hidden_size),
             (a + "feed_forward_length", U32, c.intermediate_size),
             (a + "attention.head_count", U32, c.num_attention_heads),
             (a + "attention.head_count_kv", U32, c.num_key_value_heads),
             (a + "attention.layer_norm_rms_epsilon", F32, c.rms_norm_eps),
             (a + "rope.freq_base", F32, c.rope_parameters["rope_theta"])]
        if c.head_dim and c.head_dim != c.hidden_size // c.num_attention_heads:
            v += [(a + "attention.key_length", U32, c.head_dim),
                  (a + "attention.value_length", U32, c.head_dim)]
        if c.model_type == "mixtral":
            v += [(a + "expert_count", U32, c.num_local_experts),
                  (a + "expert_used_count", U32, c.num_experts_per_tok)]
        if arch == "mistral3":
            rope = c.rope_parameters
            v += [(a + "attention.temperature_scale", F32, rope["llama_4_scaling_beta"]),
                  (a + "rope.scaling.yarn_log_multiplier", F32, rope["mscale_all_dim"]),
                  ] + rope_values(a, rope)
        window = getattr(c, "sliding_window", None)
        return v + ([(a + "attention.sliding_window", U32, window)] if window else [])
    v = [(a + "block_count", U32, c.num_hidden_layers),
         (a + "context_length", U32, c.max_position_embeddings),
         (a + "embedding_length", U32, c.hidden_size),
         (a + "feed_forward_length", U32, c.intermediate_size),
         (a + "attention.head_count_kv", U32, c.num_key_value_heads),
         (a + "attention.key_length", U32, c.head_dim),
         (a + "attention.value_length", U32, c.head_dim),
         (a + "attention.layer_norm_rms_epsilon", F32, c.rms_norm_eps)]
    if arch == "gpt-oss":
        return v + [(a + "attention.head_count", U32, c.num_attention_heads),
                    (a + "attention.sliding_window", U32, c.sliding_window),
                    (a + "expert_count", U32, c.num_local_experts),
                    (a + "expert_used_count", U32, c.num_experts_per_tok),
                    (a + "expert_feed_forward_length", U32, c.intermediate_size),
                    (a + "rope.freq_base", F32, c.rope_parameters["rope_theta"]),
                    ] + rope_values(a, c.rope_parameters)
    if arch in ("qwen3", "qwen3moe"):
        rope = c.rope_parameters
        v += [(a + "attention.head_count", U32, c.num_attention_heads),
              (a + "rope.freq_base", F32, rope["rope_theta"])] + rope_values(a, rope)
        return v if arch == "qwen3" else v + [
            (a + "expert_count", U32, c.num_experts),
            (a + "expert_used_count", U32, c.num_experts_per_tok),
            (a + "expert_feed_forward_length", U32, c.moe_intermediate_size)]
    full, swa = c.rope_parameters[G], c.rope_parameters[S]
    windows = S in c.layer_types
    if arch == "gemma3":
        v += [(a + "attention.head_count", U32, c.num_attention_heads),
              (a + "rope.freq_base", F32, full["rope_theta"]),
              (a + "rope.freq_base_swa", F32, swa["rope_theta"])]
        if windows:
            v += [(a + "attention.sliding_window", U32, c.sliding_window)]
        if c.query_pre_attn_scalar != c.head_dim:
            v += [(a + "attention.scale", F32, c.query_pre_attn_scalar ** -0.5)]
        if c.final_logit_softcapping:
            v += [(a + "final_logit_softcapping", F32, c.final_logit_softcapping)]
        if full["rope_type"] == "linear":
            v += [(a + "rope.scaling.type", STR, "linear"),
                  (a + "rope.scaling.factor", F32, full["factor"])]
        return v
    v += [(a + "attention.head_count", (ARR, I32), c.num_attention_heads_per_layer),
          (a + "attention.sliding_window", U32, c.sliding_window if windows else 0),
          (a + "rope.dimension_count", U32, int(c.head_dim * full["partial_rotary_factor"])),
          (a + "rope.dimension_count_swa", U32, int(c.head_dim * swa["partial_rotary_factor"])),
          (a + "rope.freq_base", F32, full["rope_theta"]),
          (a + "rope.freq_base_swa", F32, swa["rope_theta"]),
          (a + "expert_count", U32, c.num_experts),
          (a + "expert_used_count", U32, c.num_experts_per_tok),
          (a + "expert_feed_forward_length", U32, c.moe_intermediate_size),
          (a + "expert_shared_feed_forward_length", U32, c.shared_expert_intermediate_size),
          (a + "expert_gating_func", U32, 2),
          (a + "expert_weights_norm", BOOL, True),
          (a + "expert_weights_scale", F32, c.moe_routed_scaling_factor),
          (a + "leading_dense_block_count", U32, c.mlp_layer_types.index("sparse"))]
    if windows:
        v += [(a + "attention.sliding_window_pattern", (ARR, BOOL),
               [t == S for t in c.layer_types])]
    return v + rope_values(a, full)


# ---- Tensors -------------------------------------------------------------------------------

LAYER_NAMES = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.g_proj.weight", "attn_gate.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
]
# Gemma's post norms take names that are the next norm's in other families.
GEMMA_NAMES = {"post_attention_layernorm.weight": "post_attention_norm.weight",
               "pre_feedforward_layernorm.weight": "ffn_norm.weight",
               "post_feedforward_layernorm.weight": "post_ffw_norm.weight"}
GPT_OSS_NAMES = {"self_attn.q_proj.bias": "attn_q.bias",
                 "self_attn.k_proj.bias": "attn_k.bias",
                 "self_attn.v_proj.bias": "attn_v.bias",
                 "self_attn.o_proj.bias": "attn_output.bias",
                 "self_attn.sinks": "attn_sinks.weight",
                 "post_attention_layernorm.weight": "post_attention_norm.weight",
                 "mlp.router.weight": "ffn_gate_inp.weight",
                 "mlp.router.bias": "ffn_gate_inp.bias"}
# Parts of a parameter: gates and ups in turns, inputs before outputs.
GPT_OSS_EXPERTS = [
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", lambda p: p.transpose(1, 2)[:, 0::2]),
    ("mlp.experts.gate_up_proj", "ffn_up_exps.weight", lambda p: p.transpose(1, 2)[:, 1::2]),
    ("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", lambda p: p[:, 0::2]),
    ("mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", lambda p: p[:, 1::2]),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", lambda p: p.transpose(1, 2)),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias", lambda p: p),
]
# Gates, then ups.
MIXTRAL_EXPERTS = [
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", lambda p: p[:, :p.shape[1] // 2]),
    ("mlp.experts.gate_up_proj", "ffn_up_exps.weight", lambda p: p[:, p.shape[1] // 2:]),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", lambda p: p),
]
GLOBAL_NAMES = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
]


def init_of(name, shape):
    """Mean and deviation by the GGUF name."""
    if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
        return 1.3, 0.4
    if name.endswith("norm.weight"):
        return 1.0, 0.3
    if name.endswith("exp_probs_b.bias"):
        return 0.0, 0.3
    if name.endswith("attn_sinks.weight"):
        return 0.5, 1.0
    if name.endswith(".bias"):
        return 0.0, 0.3
    if name.endswith(("ffn_gate_exps.weight", "ffn_up_exps.weight")):  # the cut at 7 is reached
        return 0.0, float(4 / np.sqrt(np.float64(shape[-1])))
    if name == "token_embd.weight":
        return 0.0, 0.5
    if name == "output.weight":
        return 0.0, 0.6
    return 0.0, float(1.2 / np.sqrt(np.float64(shape[-1])))


def checkpoint_rows(name, a, config):
    """Rows of queries and keys as a checkpoint has them: files of llama interleave a head's halves."""
    if config.model_type not in ("llama", "mistral", "mixtral", "ministral3") or not name.endswith(
            ("attn_q.weight", "attn_k.weight")):
        return a
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return a.reshape(-1, d // 2, 2, a.shape[1]).swapaxes(1, 2).reshape(a.shape)


def rope_factors(model):
    """[("rope_freqs.weight", divisors)] of a model that scales frequencies by pair."""
    c = model.config
    if (getattr(c, "rope_parameters", None) or {}).get("rope_type") != "llama3":
        return []
    with everything_f64(model):
        scaled = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](c)[0].numpy()
    assert scaled.dtype == np.float64
    plain = c.rope_parameters["rope_theta"] ** (-np.arange(0, c.head_dim, 2) / c.head_dim)
    return [("rope_freqs.weight", (plain / scaled).astype(np.float32))]


def tensor_list(model, config):
    """[(gguf name, parameter)] in file order; every parameter once."""
    slots = dict(model.named_parameters())
    out = [(name, slots.pop(hf)) for hf, name in GLOBAL_NAMES if hf in slots]
    for i in range(config.num_hidden_layers):
        names = dict(LAYER_NAMES)
        if config.model_type == "gemma3_text":
            names.update(GEMMA_NAMES)
        experts = {"gpt_oss": GPT_OSS_EXPERTS, "mixtral": MIXTRAL_EXPERTS}.get(config.model_type)
        if config.model_type == "gpt_oss":
            names.update(GPT_OSS_NAMES)
        if experts:
            parts = [(f"model.layers.{i}.{hf}", f"blk.{i}.{name}", part)
                     for hf, name, part in experts]
            names = {hf: n for hf, n in names.items() if not hf.startswith("mlp.experts.")}
            out += [(name, part(slots[key])) for key, name, part in parts]
            for key in {key for key, _, _ in parts}:
                slots.pop(key)
        for hf, name in names.items():
            key = f"model.layers.{i}.{hf}"
            if key in slots:
                out.append((f"blk.{i}.{name}", slots.pop(key)))
    assert not slots, sorted(slots)
    return out


# ---- Cases ---------------------------------------------------------------------------------

@contextlib.contextmanager
def everything_f64(model):
    """transformers computes norms, routers, angles and softmax in f32 whatever the model's type."""
    old = torch.Tensor.float, torch.nn.functional.softmax, torch.float
    torch.Tensor.float = torch.Tensor.double
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None: old[1](x.double(), dim=dim)
    torch.float = torch.float64  # .to(dtype=torch.float)
    old_to = torch.Tensor.to

    def to(self, *args, **kw):
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        return old_to(self, *args, **kw)
    torch.Tensor.to = to
    try:
        yield
    finally:
        torch.Tensor.float, torch.nn.functional.softmax, torch.float = old
        torch.Tensor.to = old_to


def run_f64(model, ids):
    model.to(torch.float64)
    with everything_f64(model):
        logits = model(ids, use_cache=False).logits[0].numpy()
    model.to(torch.float32)
    assert logits.dtype == np.float64
    return logits


def router_gap(model, ids):
    """Smallest distance between the last expert chosen and the first one left out."""
    sigmoid = model.config.model_type == "laguna"
    gap = [float("inf")]

    def hook(m, _, out):
        p = (torch.sigmoid(out[0]) + m.e_score_correction_bias if sigmoid else
             torch.softmax(out[0], -1))
        p = p.sort(-1, descending=True).values
        k = out[1].shape[-1]
        gap[0] = min(gap[0], float((p[:, k - 1] - p[:, k]).min()))
    handles = [m.register_forward_hook(hook) for m in model.modules()
               if type(m).__name__ in ("LagunaTopKRouter", "Qwen3MoeTopKRouter", "GptOssTopKRouter",
                                  "MixtralTopKRouter")]
    model(ids, use_cache=False)
    for h in handles:
        h.remove()
    return gap[0]


def run_case(name):
    family, seed, n_tokens, overrides = CASES[name]
    cls, config = family(overrides)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval().to(torch.float32)
    model.requires_grad_(False)
    while True:
        arrays, recipe = [], []
        for i, (tname, slot) in enumerate(tensor_list(model, config)):
            shape = tuple(slot.shape)
            mean, sigma = init_of(tname, shape)
            if family is gpt_oss and tname.endswith("ffn_down_exps.weight"):
                sigma /= 4  # cut units are large; other experts should not change everything
            a = base.draw(seed, i, shape, mean, sigma)
            w = torch.from_numpy(np.ascontiguousarray(checkpoint_rows(tname, a, config)))
            if cls.__name__ == "Gemma3ForCausalLM" and len(shape) == 1:
                w = w - 1  # a file's norms are 1 + w
            slot.copy_(w)
            arrays.append(a)
            recipe.append((tname, shape, mean, sigma))
        ids = base.draw_tokens(seed, n_tokens, config.vocab_size)
        t = torch.from_numpy(ids.astype(np.int64))[None]
        logits = model(t, use_cache=False).logits[0].numpy()
        best = np.sort(logits, axis=-1)
        margin = float((best[:, -1] - best[:, -2]).min())
        gap = router_gap(model, t)
        d = logits - run_f64(model, t)
        floor_max, floor_rms = float(np.abs(d).max()), float(np.sqrt(np.mean(d * d)))
        if margin > base.MARGIN and gap > base.ROUTER_GAP and floor_max < base.FLOOR:
            break
        seed += 1
    print(f"{name}: seed {seed}, {len(arrays)} tensors, logit deviation {logits.std():.2f}, "
          f"margin {margin:.3f}, router gap {gap:.1e}, f32 against f64: max {floor_max:.1e} "
          f"rms {floor_rms:.1e}")
    arch = {mistral: "llama", mixtral: "llama", ministral3: "mistral3"}.get(
        family, family.__name__.replace("_", "-"))
    return dict(arch=arch, rope=rope_factors(model), seed=seed, values=model_values(arch, config), recipe=recipe,
                arrays=arrays, ids=ids, logits=logits, floor=(floor_max, floor_rms),
                print=base.fingerprint(arrays))


def golden_bytes(name, r):
    f = "fidelity."
    dims = [list(s[::-1]) + [1] * (4 - len(s)) for _, s, _, _ in r["recipe"]]
    values = [
        ("general.architecture", STR, "fidelity"),
        ("general.name", STR, "tiny " + name),
        (f + "made_by", STR, f"transformers {transformers.__version__}, "
                             f"torch {torch.__version__.split('+')[0]}"),
        (f + "arch", STR, r["arch"]),
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
    return base.gguf_bytes(values, r["rope"] + [("logits", r["logits"])])


def model_bytes(name, r):
    values = [("general.architecture", STR, r["arch"]), ("general.name", STR, "tiny " + name),
              ("general.file_type", U32, 0)] + r["values"]
    values += [("tokenizer.ggml.model", STR, "no_vocab")]
    return base.gguf_bytes(values, [(x[0], a) for x, a in zip(r["recipe"], r["arrays"])] +
                           r["rope"])


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("cases", nargs="*", default=list(CASES))
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--models", metavar="DIR")
    o = ap.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    np.seterr(over="ignore")
    bad = 0
    for name in o.cases:
        r = run_case(name)
        if o.models:
            d = Path(o.models)
            d.mkdir(parents=True, exist_ok=True)
            (d / f"{name}.gguf").write_bytes(model_bytes(name, r))
            r["ids"].astype("<i4").tofile(d / f"{name}.ids.bin")
            continue
        bad += base.write_or_check(name, golden_bytes(name, r), r["logits"], o.check)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
