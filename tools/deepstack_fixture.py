#!/usr/bin/env python3
"""Makes tests/data/images/deep.f32: logits that transformers' Qwen3-VL, dense and with experts, gives for a prompt with
two pictures, from their pixels on, for engine/media_deep_test.c.

    python3 tools/deepstack_fixture.py [--check]     needs transformers, gguf, Pillow; ./carat is built

Weights are those of `carat synth SIZE --type f32`; pictures are drawn as by tools/image_fixtures.py. The file has COLS
logits of every token, computed in f64.
"""
import sys
import tempfile

import numpy as np
import torch
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

import fidelity_fixtures as text
from image_fixtures import DATA
from vision_fixture import qwen_modules, read

SIZES, TOWER = ("tiny-qwen3-vl", "tiny-qwen3-vl-moe"), "tiny-mmproj-qwen3-vl"
PICTURES = ((3, 40, 30), (6, 90, 20))  # seed, width, height
BUDGET, IMAGE, COLS = 70, 7, 64  # IMAGE: an id that no prompt has
HEAD, BETWEEN, TAIL = 5, 3, 20

LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate"}


def words(n):
    """Ids of text, as the test has them."""
    return [10 + 37 * k % 400 for k in range(n)]


def text_state(tensors):
    state = {"embed_tokens.weight": tensors["token_embd.weight"], "norm.weight": tensors["output_norm.weight"]}
    for name, v in tensors.items():
        part = name.split(".")
        if part[0] != "blk":
            continue
        at = f"layers.{part[1]}."
        if part[2] in LAYER:
            state[at + LAYER[part[2]] + ".weight"] = v
        elif part[2] == "ffn_gate_exps":
            state[at + "mlp.experts.gate_up_proj"] = torch.cat([v, tensors[f"blk.{part[1]}.ffn_up_exps.weight"]], 1)
        elif part[2] == "ffn_down_exps":
            state[at + "mlp.experts.down_proj"] = v
    return state


def whole_model(size, directory, tower):
    tensors, key = read(size, directory, "qwen3vlmoe." if "moe" in size else "qwen3vl.")
    moe = "moe" in size
    config = dict(
        vocab_size=tensors["token_embd.weight"].shape[0], hidden_size=key("embedding_length"), num_hidden_layers=key("block_count"),
        intermediate_size=key("feed_forward_length"), num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"), head_dim=key("attention.key_length"), rms_norm_eps=1e-6,
        max_position_embeddings=8192, tie_word_embeddings="output.weight" not in tensors,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True})
    if moe:
        config |= dict(num_experts=key("expert_count"), num_experts_per_tok=key("expert_used_count"),
                       moe_intermediate_size=key("expert_feed_forward_length"), norm_topk_prob=True, decoder_sparse_step=1)
    make, of = (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration) if moe else (Qwen3VLConfig, Qwen3VLForConditionalGeneration)
    whole = make(text_config=config, vision_config=tower.config.to_dict(), image_token_id=IMAGE,
                 tie_word_embeddings=config["tie_word_embeddings"])
    whole._attn_implementation = whole.text_config._attn_implementation = whole.vision_config._attn_implementation = "eager"
    whole.text_config._experts_implementation = "eager"
    model = of(whole).eval().requires_grad_(False)
    missing, unexpected = model.model.language_model.load_state_dict(text_state(tensors), strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    model.model.visual.load_state_dict(tower.state_dict())
    model.lm_head.weight = torch.nn.Parameter(tensors.get("output.weight", tensors["token_embd.weight"]), requires_grad=False)
    return model


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    values = []
    with tempfile.TemporaryDirectory() as directory:
        tower, pixels = qwen_modules(*read(TOWER, directory), True)
        seen = [pixels(BUDGET, *p) for p in PICTURES]
        grid = torch.cat([g for _, g in seen])
        n_soft = [int(g[0, 1] * g[0, 2]) // 4 for _, g in seen]
        ids = np.array(words(HEAD + BETWEEN + TAIL))
        ids = np.concatenate([ids[:HEAD], [IMAGE] * n_soft[0], ids[HEAD:HEAD + BETWEEN], [IMAGE] * n_soft[1], ids[HEAD + BETWEEN:]])
        ids = torch.from_numpy(ids.astype(np.int64))[None]
        for size in SIZES:
            model = whole_model(size, directory, tower)
            rest = dict(input_ids=ids, image_grid_thw=grid, mm_token_type_ids=(ids == IMAGE).int(),
                        attention_mask=torch.ones_like(ids), use_cache=False)
            patches = torch.cat([p for p, _ in seen])
            rough = model(pixel_values=patches, **rest).logits[0]
            model.double()
            with text.everything_f64():
                logits = model(pixel_values=patches.double(), **rest).logits[0]
            print(f"{size}: {ids.shape[1]} tokens with {n_soft} of pictures, deviation of logits {logits.std():.2f}, "
                  f"f32 against f64: {(logits - rough).abs().max():.1e}")
            values.append(logits[:, :COLS].numpy().astype("<f4"))
    values = np.concatenate(values)
    if "--check" in sys.argv:
        worst = np.abs(np.fromfile(DATA / "deep.f32", "<f4").reshape(values.shape) - values).max()
        print(f"deep.f32: {worst:g} apart")
        sys.exit(bool(worst > 1e-4))
    (DATA / "deep.f32").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
