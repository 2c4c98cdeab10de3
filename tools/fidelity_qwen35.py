#!/usr/bin/env python3
"""Makes tests/data/fidelity/qwen35*.golden: logits of transformers for tiny models of Qwen3.5 and
Qwen3.5-MoE, of random weights.

    python3 tools/fidelity_qwen35.py [CASE ...]        options as fidelity_families.py

The weights are drawn as GGUF tensors and given to transformers by the transforms that conversion
makes, in reverse: norms less 1, the value heads of the delta rule from tiled to grouped order, A_log
from -exp(A_log). Everything that transformers starts at a neutral value is random.

Cases with a NextN layer also hold its drafts. Entry p of the layer joins the embedding of token p and
the model's hidden state of token p - 1 after its last norm (zeros before the first token):

    y = W_eh [ norm(embedding; enorm) ; norm(hidden; hnorm) ]

The block over y, the last norm and the head are a one-layer Qwen3.5 of transformers. A draft's own
state after the last norm is the hidden state of the next entry.
"""
import copy
import sys

import numpy as np
import torch

import fidelity_families as families
import fidelity_fixtures as base
from fidelity_fixtures import ARR, F32, I32, U32

FLOOR = 2.5e-4  # as base.FLOOR: states carry roundings further than attention does
LINEAR, FULL = "linear_attention", "full_attention"
COMMON = dict(
    vocab_size=128, hidden_size=64, num_hidden_layers=8, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=6,
    linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, rms_norm_eps=1e-6,
    max_position_embeddings=4096, layer_types=([LINEAR] * 3 + [FULL]) * 2,
    rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25,
                         mrope_section=[2, 1, 1], mrope_interleaved=True))


def dense(overrides):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    return Qwen3_5ForCausalLM, Qwen3_5TextConfig(**{
        **COMMON, "intermediate_size": 96, "tie_word_embeddings": False, **overrides})


def moe(overrides):
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
    return Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(**{
        **COMMON, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "tie_word_embeddings": True, **overrides})


# name: (architecture, class and configuration, seed, tokens, overrides)
CASES = {
    "qwen35": ("qwen35", dense, 1158, 130, {}),
    "qwen35-uneven": ("qwen35", dense, 1280, 100, dict(
        num_hidden_layers=5, layer_types=[FULL, LINEAR, LINEAR, FULL, LINEAR],
        linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=32,
        linear_value_head_dim=24, linear_conv_kernel_dim=3)),
    "qwen35moe": ("qwen35moe", moe, 1368, 130, {}),
    "qwen35-nextn": ("qwen35", dense, 1500, 60, {}),
    "qwen35moe-nextn": ("qwen35moe", moe, 1600, 60, {}),
}
NEXTN_NAMES = [("fc", "nextn.eh_proj.weight"), ("enorm", "nextn.enorm.weight"),
               ("hnorm", "nextn.hnorm.weight")]
DRAFTS, RANKS = 4, 8  # of each prompt
PROMPTS = [1, 2, 3, 17, 40, 59]  # tokens before the drafts
DRAFT_GAP = 1e-3  # between neighbours among the best, in logits


def model_values(arch, c):
    a, rope = arch + ".", c.rope_parameters
    n_nextn = getattr(c, "n_nextn", 0)
    v = [(a + "block_count", U32, c.num_hidden_layers + n_nextn),
         (a + "context_length", U32, c.max_position_embeddings),
         (a + "embedding_length", U32, c.hidden_size),
         (a + "attention.head_count", U32, c.num_attention_heads),
         (a + "attention.head_count_kv", U32, c.num_key_value_heads),
         (a + "attention.key_length", U32, c.head_dim),
         (a + "attention.value_length", U32, c.head_dim),
         (a + "attention.layer_norm_rms_epsilon", F32, c.rms_norm_eps),
         (a + "rope.freq_base", F32, rope["rope_theta"]),
         (a + "rope.dimension_count", U32, int(c.head_dim * rope["partial_rotary_factor"])),
         (a + "rope.dimension_sections", (ARR, I32), rope["mrope_section"] + [0]),
         (a + "ssm.conv_kernel", U32, c.linear_conv_kernel_dim),
         (a + "ssm.state_size", U32, c.linear_key_head_dim),
         (a + "ssm.group_count", U32, c.linear_num_key_heads),
         (a + "ssm.time_step_rank", U32, c.linear_num_value_heads),
         (a + "ssm.inner_size", U32, c.linear_num_value_heads * c.linear_value_head_dim)]
    if list(c.layer_types) == list(COMMON["layer_types"]):
        v += [(a + "full_attention_interval", U32, 4)]
    else:
        v += [(a + "attention.recurrent_layers", (ARR, base.BOOL),
               [t == LINEAR for t in c.layer_types])]
    if n_nextn:
        v += [(a + "nextn_predict_layers", U32, n_nextn)]
    if arch == "qwen35":
        return v + [(a + "feed_forward_length", U32, c.intermediate_size)]
    return v + [(a + "expert_count", U32, c.num_experts),
                (a + "expert_used_count", U32, c.num_experts_per_tok),
                (a + "expert_feed_forward_length", U32, c.moe_intermediate_size),
                (a + "expert_shared_feed_forward_length", U32, c.shared_expert_intermediate_size)]


def plain(a, c):
    return a


def less_one(a, c):
    return a - np.float32(1)


def grouped(a, c, axis=0):
    """Value heads along an axis from GGUF's tiled order (head j reads key head j mod n_k) to
    transformers' grouped one (head i reads key head i / R)."""
    n_k, n_v = c.linear_num_key_heads, c.linear_num_value_heads
    a = np.moveaxis(a, axis, 0)
    heads = a.reshape(n_v, -1, *a.shape[1:])
    order = [r * n_k + g for g in range(n_k) for r in range(n_v // n_k)]
    return np.ascontiguousarray(np.moveaxis(heads[order].reshape(a.shape), 0, axis))


def grouped_values(a, c):
    """The same of the values' rows behind those of queries and keys."""
    n = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    return np.concatenate([a[:n], grouped(a[n:], c)])


LAYER_NAMES = [
    ("input_layernorm.weight", "attn_norm.weight", less_one),
    ("self_attn.q_proj.weight", "attn_q.weight", plain),
    ("self_attn.k_proj.weight", "attn_k.weight", plain),
    ("self_attn.v_proj.weight", "attn_v.weight", plain),
    ("self_attn.o_proj.weight", "attn_output.weight", plain),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", less_one),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", less_one),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", grouped_values),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight", grouped),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight",
     lambda a, c: grouped_values(a, c)[:, None, :]),
    ("linear_attn.dt_bias", "ssm_dt.bias", grouped),
    ("linear_attn.A_log", "ssm_a", lambda a, c: np.log(-grouped(a, c))),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight", grouped),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight", grouped),
    ("linear_attn.norm.weight", "ssm_norm.weight", plain),
    ("linear_attn.out_proj.weight", "ssm_out.weight", lambda a, c: grouped(a, c, 1)),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", less_one),
    ("mlp.gate_proj.weight", "ffn_gate.weight", plain),
    ("mlp.up_proj.weight", "ffn_up.weight", plain),
    ("mlp.down_proj.weight", "ffn_down.weight", plain),
    ("mlp.gate.weight", "ffn_gate_inp.weight", plain),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", plain),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", plain),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", lambda a, c: a[None]),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", plain),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", plain),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", plain),
]
GLOBAL_NAMES = [
    ("model.embed_tokens.weight", "token_embd.weight", plain),
    ("model.norm.weight", "output_norm.weight", less_one),
    ("lm_head.weight", "output.weight", plain),
]


def init_of(name, shape):
    if name.endswith("ssm_a"):
        return -1.5, 0.4  # at most 3.5 deviations: negative
    if name.endswith("ssm_dt.bias"):
        return -0.5, 0.8
    if name.endswith(("ssm_alpha.weight", "ssm_beta.weight", "ffn_gate_inp_shexp.weight")):
        return 0.0, float(1.5 / np.sqrt(np.float64(shape[-1])))
    if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight", "enorm.weight", "hnorm.weight")):
        return 1.0, 0.3
    if name.endswith("ssm_conv1d.weight"):
        return 0.2, 0.6
    return families.init_of(name, shape)


def tensor_list(model, config):
    """[(gguf name, parameter, transform)] in file order; every parameter once."""
    slots = dict(model.named_parameters())
    out = [(name, slots.pop(hf), how) for hf, name, how in GLOBAL_NAMES if hf in slots]
    for i in range(config.num_hidden_layers):
        for hf, name, how in LAYER_NAMES:
            key = f"model.layers.{i}.{hf}"
            if key in slots:
                out.append((f"blk.{i}.{name}", slots.pop(key), how))
    assert not slots, sorted(slots)
    return out


class NextN(torch.nn.Module):
    """The NextN layer beside a model of transformers."""
    def __init__(self, cls, config):
        super().__init__()
        one = copy.deepcopy(config)
        one.num_hidden_layers, one.layer_types = 1, [FULL]
        self.body = cls(one).model
        d = config.hidden_size
        self.fc = torch.nn.Parameter(torch.zeros(d, 2 * d))
        self.enorm, self.hnorm = (torch.nn.Parameter(torch.zeros(d)) for _ in range(2))
        self.eps = config.rms_norm_eps

    def norm(self, x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + w)

    def forward(self, embedded, hidden):
        both = torch.cat([self.norm(embedded, self.enorm), self.norm(hidden, self.hnorm)], -1)
        return self.body(inputs_embeds=both @ self.fc.T, use_cache=False).last_hidden_state

    def slots(self, layer):
        """[(gguf name, parameter, transform)]"""
        at = f"blk.{layer}."
        own = dict(self.body.named_parameters())
        out = [(at + name, own[f"layers.0.{hf}"], how) for hf, name, how in LAYER_NAMES
               if f"layers.0.{hf}" in own]
        out += [(at + name, getattr(self, hf), plain if hf == "fc" else less_one)
                for hf, name in NEXTN_NAMES]
        return out + [(at + "nextn.shared_head_norm.weight", own["norm.weight"], less_one)]


def nextn_drafts(model, nextn, ids, n):
    """The RANKS best tokens of DRAFTS slots after ids[:n], the last of which is not computed by the
    model, and the logarithms of their probabilities; the smallest gap among the best logits."""
    best, logp, gap = [], [], float("inf")
    hidden = model.model(ids[:, :n], use_cache=False).last_hidden_state
    hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :n - 1]], 1)
    tokens = ids[:, :n]
    for _ in range(DRAFTS):
        h = nextn(model.model.embed_tokens(tokens), hidden)[:, -1:]
        logits = model.lm_head(h)[0, 0]
        top = logits.sort(descending=True)
        gap = min(gap, float((top.values[:RANKS] - top.values[1:RANKS + 1]).min()))
        best.append(top.indices[:RANKS].tolist())
        logp.append(logits.log_softmax(-1)[best[-1]].tolist())
        hidden = torch.cat([hidden, h], 1)
        tokens = torch.cat([tokens, top.indices[None, :1]], 1)
    return best, logp, gap


def router_gap(model, ids):
    """Smallest distance between the last expert chosen and the first one left out."""
    gap = [float("inf")]

    def hook(m, _, out):
        p = out[0].float().softmax(-1).sort(-1, descending=True).values
        k = out[1].shape[-1]
        gap[0] = min(gap[0], float((p[:, k - 1] - p[:, k]).min()))
    handles = [m.register_forward_hook(hook) for m in model.modules()
               if type(m).__name__ == "Qwen3_5MoeTopKRouter"]
    model(ids, use_cache=False)
    for h in handles:
        h.remove()
    return gap[0]


def run_case(name):
    arch, family, seed, n_tokens, overrides = CASES[name]
    cls, config = family(overrides)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval().to(torch.float32)
    model.requires_grad_(False)
    slots, nextn, drafts = tensor_list(model, config), None, []
    if name.endswith("-nextn"):
        config.n_nextn = 1
        nextn = NextN(cls, config).eval().to(torch.float32).requires_grad_(False)
        slots += nextn.slots(config.num_hidden_layers)
    while True:
        arrays, recipe = [], []
        for i, (tname, slot, how) in enumerate(slots):
            shape = tuple(n for n in slot.shape if n > 1)
            mean, sigma = init_of(tname, shape)
            a = base.draw(seed, i, shape, mean, sigma)
            slot.copy_(torch.from_numpy(np.ascontiguousarray(how(a, config))))
            arrays.append(a)
            recipe.append((tname, shape, mean, sigma))
        ids = base.draw_tokens(seed, n_tokens, config.vocab_size)
        t = torch.from_numpy(ids.astype(np.int64))[None]
        logits = model(t, use_cache=False).logits[0].numpy()
        best = np.sort(logits, axis=-1)
        margin = float((best[:, -1] - best[:, -2]).min())
        gap = router_gap(model, t)
        d = logits - families.run_f64(model, t)
        floor_max, floor_rms = float(np.abs(d).max()), float(np.sqrt(np.mean(d * d)))
        drafts = [nextn_drafts(model, nextn, t, n) for n in PROMPTS] if nextn else []
        near = min([d[2] for d in drafts], default=1)
        if margin > base.MARGIN and gap > base.ROUTER_GAP and floor_max < FLOOR and near > DRAFT_GAP:
            break
        seed += 1
    print(f"{name}: seed {seed}, {len(arrays)} tensors, logit deviation {logits.std():.2f}, "
          f"margin {margin:.3f}, router gap {gap:.1e}, f32 against f64: max {floor_max:.1e} "
          f"rms {floor_rms:.1e}")
    values = model_values(arch, config)
    if nextn:
        f = "fidelity.nextn."
        values += [(f + "prompts", (ARR, I32), PROMPTS), (f + "drafts", U32, DRAFTS),
                   (f + "ranks", U32, RANKS),
                   (f + "id", (ARR, I32), [i for d in drafts for s in d[0] for i in s]),
                   (f + "logp", (ARR, F32), [x for d in drafts for s in d[1] for x in s])]
    return dict(arch=arch, seed=seed, values=values, recipe=recipe,
                arrays=arrays, ids=ids, logits=logits, floor=(floor_max, floor_rms),
                print=base.fingerprint(arrays))


if __name__ == "__main__":
    families.CASES, families.run_case = CASES, run_case
    sys.exit(families.main())
