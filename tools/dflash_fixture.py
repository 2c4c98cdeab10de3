"""Makes tests/data/drafters/dflash.f32: what `MuseGlimmerAssistantModel` of transformers drafts, for model/dflash_test.c.

    python3 tools/dflash_fixture.py

The class has the arithmetic of a DFlash drafter (oracle: see tools/draft_oracle.py). Sizes, weights and features follow
from names, as in tests/dflash_file.c, so the fixture holds nothing but results: for each context of CONTEXTS rows, the
log probabilities [7 slots][64 tokens] of one block, as f32. Masks are ours: in sliding layers causal inside the block,
with a window of 12; in the full layer all slots see each other.
"""
import math
import os
import sys

import numpy as np
import torch
from transformers import MuseGlimmerAssistantConfig
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel

LAYERS, EMBD, VOCAB, HEADS, HEADS_KV, DIM, FF, FEATURES, WINDOW, BLOCK, MASK = 3, 64, 64, 4, 2, 32, 96, 3, 12, 8, 5
CONTEXTS, TOKEN, SCALE, CAP = (1, 5, 12, 13, 40), 9, 8.0, 30.0
M64 = (1 << 64) - 1


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


class Stream:
    """base/rng.h"""

    def __init__(self, name):
        self.s = 77
        for c in name.encode():
            self.s = mix(self.s ^ c)

    def unit(self):
        self.s = self.s + 0x9E3779B97F4A7C15 & M64
        return (mix(self.s) >> 11) * 2.0**-53

    def normal(self):
        u = 1.0 - self.unit()
        return math.sqrt(-2.0 * math.log(u)) * math.cos(6.283185307179586 * self.unit())


def draw(name, n_in, n_out, norm=False):
    s, out = Stream(name), np.empty(n_in * n_out, np.float32)
    for i in range(len(out)):
        r = s.normal()
        out[i] = 0.4 + 1.2 * s.unit() if norm else r / math.sqrt(n_in)
    return torch.from_numpy(out.reshape(n_out, n_in)).double()


def weights():
    w = {"encoder.fc.weight": draw("fc", FEATURES * EMBD, EMBD),
         "encoder.output_norm_enc.weight": draw("hidden_norm", EMBD, 1, True)[0],
         "norm.weight": draw("out_norm", EMBD, 1, True)[0]}
    for il in range(LAYERS):
        for theirs, ours, n_in, n_out in (("self_attn.q_proj", "q", EMBD, HEADS * DIM), ("self_attn.k_proj", "k", EMBD, HEADS_KV * DIM),
                                          ("self_attn.v_proj", "v", EMBD, HEADS_KV * DIM), ("self_attn.o_proj", "o", HEADS * DIM, EMBD),
                                          ("mlp.gate_proj", "gate", EMBD, FF), ("mlp.up_proj", "up", EMBD, FF), ("mlp.down_proj", "down", FF, EMBD)):
            w[f"layers.{il}.{theirs}.weight"] = draw(f"{il}.{ours}", n_in, n_out)
        for theirs, ours, n in (("input_layernorm", "attn_norm", EMBD), ("post_attention_layernorm", "ffn_norm", EMBD),
                                ("self_attn.q_norm", "q_norm", DIM), ("self_attn.k_norm", "k_norm", DIM)):
            w[f"layers.{il}.{theirs}.weight"] = draw(f"{il}.{ours}", n, 1, True)[0]
    return w


def main():
    kinds = ["sliding_attention"] * (LAYERS - 1) + ["full_attention"]
    m = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(
        hidden_size=EMBD, intermediate_size=FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS_KV, head_dim=DIM,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, sliding_window=WINDOW, layer_types=kinds, block_size=BLOCK,
        mask_token_id=MASK, target_layer_ids=list(range(FEATURES)))).double().eval()
    m.load_state_dict(weights(), strict=True)
    embd, head = draw("target.embd", EMBD, VOCAB), draw("target.head", EMBD, VOCAB)
    ids = torch.full((1, BLOCK), MASK)
    ids[0, 0] = TOKEN
    low, out = torch.finfo(torch.float64).min, []
    for c in CONTEXTS:
        features = draw("features", 1, c * FEATURES * EMBD).reshape(1, c, FEATURES * EMBD)
        at, key = c + torch.arange(BLOCK)[:, None], torch.arange(c + BLOCK)
        slides = (key <= at) & (at - key < WINDOW)
        zero = torch.zeros(1, 1, BLOCK, c + BLOCK, dtype=torch.float64)
        masks = {"full_attention": zero, "sliding_attention": zero.masked_fill(~slides, low)}
        with torch.no_grad():
            h = m(noise_embeds=SCALE * embd[ids], context_hidden_states=features, position_ids=torch.arange(c + BLOCK)[None],
                  attention_mask=masks, past_key_values=None, use_cache=False).last_hidden_state[0, 1:]
        z = CAP * torch.tanh(h @ head.T / CAP)
        out.append(torch.log_softmax(z, -1))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "drafters", "dflash.f32")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.stack(out).float().numpy().astype("<f4").tofile(path)
    print(f"{path}: {len(CONTEXTS)} blocks, deviation {float(torch.stack(out).std()):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
