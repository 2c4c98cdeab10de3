"""Makes tests/data/drafters/mtp-dense.f32 and mtp-clusters.f32: the logits of `Gemma4AssistantForCausalLM` of transformers, for
spec/mtp_reference_test.c.

    python3 tools/mtp_fixture.py

Sizes, weights, keys, values and hidden vectors follow from names, as in the test, so a fixture holds nothing but results: for each
context of CONTEXTS keys, the logits [4 steps][64 tokens] of one draft, as f32; -inf for tokens outside the chosen clusters. The token
of a step is the best one of the step before. The masks are carat's: a row at position c, whose own token has no key yet, sees keys
c - window + 1 .. c - 1 in sliding layers. The mask that the class makes itself sees two keys more.
"""
import os
import sys

import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

from dflash_fixture import draw

LAYERS, EMBD, TARGET, VOCAB, FF, HEADS, WINDOW = 4, 48, 64, 64, 80, 4, 12
DIM = {"sliding_attention": 128, "full_attention": 256}
HEADS_KV = {"sliding_attention": 2, "full_attention": 1}
CLUSTERS, TOP = 16, 2
CONTEXTS, STEPS, TOKEN = (1, 5, 12, 13, 40), 4, 9
KINDS = ["sliding_attention"] * (LAYERS - 1) + ["full_attention"]

OF_LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_norm": "attn_q_norm", "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm"}
OF_MODEL = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "pre_projection.weight": "nextn.pre_projection.weight", "post_projection.weight": "nextn.post_projection.weight",
            "masked_embedding.centroids.weight": "masked_embd_centroids.weight"}


def file_name(name):
    """The tensor's name in a GGUF file."""
    if name in OF_MODEL:
        return OF_MODEL[name]
    il, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{il}.layer_output_scale.weight" if part == "layer_scalar" else f"blk.{il}.{OF_LAYER[part.removesuffix('.weight')]}.weight"


def assistant(clusters):
    m = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(
        backbone_hidden_size=TARGET, use_ordered_embeddings=clusters, num_centroids=CLUSTERS, centroid_intermediate_top_k=TOP,
        tie_word_embeddings=True, text_config={
            "model_type": "gemma4_text", "vocab_size": VOCAB, "vocab_size_per_layer_input": 0, "hidden_size": EMBD, "hidden_size_per_layer_input": 0,
            "intermediate_size": FF, "num_hidden_layers": LAYERS, "layer_types": KINDS, "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS_KV["sliding_attention"], "num_global_key_value_heads": HEADS_KV["full_attention"],
            "head_dim": DIM["sliding_attention"], "global_head_dim": DIM["full_attention"], "attention_k_eq_v": True, "attention_bias": False,
            "sliding_window": WINDOW, "num_kv_shared_layers": LAYERS, "enable_moe_block": False, "use_double_wide_mlp": False,
            "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None, "rms_norm_eps": 1e-6, "max_position_embeddings": 640,
            "tie_word_embeddings": True, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}})).double().eval()
    state = {}
    for name, w in m.state_dict().items():
        if name == "masked_embedding.token_ordering":
            state[name] = torch.tensor([(37 * i + 11) % VOCAB for i in range(VOCAB)])
            continue
        n_in, n_out = (w.shape[1], w.shape[0]) if w.dim() == 2 else (w.shape[0], 1)
        state[name] = draw(file_name(name), n_in, n_out, norm=w.dim() == 1).reshape(w.shape)
    m.load_state_dict(state, strict=True)
    return m.requires_grad_(False)


def stored(kind, what, n):
    """Keys or values of the target's last layer of a kind: [1, heads, n, size]."""
    h, d = HEADS_KV[kind], DIM[kind]
    return draw(f"{what}.{kind}", d, max(CONTEXTS) * h).reshape(1, -1, h, d).transpose(1, 2)[:, :, :n]


def draft(m, c):
    embd, hidden, token = draw("target.embd", TARGET, VOCAB), draw("hidden", 1, TARGET).reshape(TARGET), TOKEN
    far, low = c - torch.arange(c), torch.finfo(torch.float64).min
    zero = torch.zeros(1, 1, 1, c, dtype=torch.float64)
    masks = {"full_attention": zero, "sliding_attention": zero.masked_fill(far >= WINDOW, low)}
    m.create_attention_masks = lambda *a, **k: masks
    shared = {kind: (stored(kind, "keys", c), stored(kind, "values", c)) for kind in DIM}
    out = []
    for _ in range(STEPS):
        x = torch.cat((TARGET**0.5 * embd[token], hidden))[None, None]
        o = m(inputs_embeds=x, position_ids=torch.tensor([[c]]), shared_kv_states=shared)
        z = o.logits[0, 0]
        if m.masked_embedding is not None:  # the class gives the others the least logit less 1
            z = z.masked_fill(z == z.min(), -torch.inf)
            assert int(z.isfinite().sum()) == TOP * VOCAB // CLUSTERS
        out.append(z)
        token, hidden = int(z.argmax()), o.last_hidden_state[0, 0]
    return torch.stack(out)


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "drafters")
    for name, clusters in (("mtp-dense", False), ("mtp-clusters", True)):
        m = assistant(clusters)
        z = torch.stack([draft(m, c) for c in CONTEXTS])
        z.float().numpy().astype("<f4").tofile(os.path.join(folder, name + ".f32"))
        print(f"{name}: {len(CONTEXTS)} drafts of {STEPS} tokens, deviation {float(z[z.isfinite()].std()):.2f}, tokens "
              + " ".join(str(int(t)) for t in z.argmax(-1).flatten()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
