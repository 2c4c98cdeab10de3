#!/usr/bin/env python3
"""Makes tests/data/images/soft.txt and soft.f32: the soft tokens that transformers' vision towers give
for some pictures, for model/vision_run_test.c.

    python3 tools/vision_fixture.py          needs transformers, gguf, Pillow; ./carat is built

Weights are those of `carat synth SIZE --type f32`. A line of soft.txt is a case: size, budget, seed,
width and height of the picture (tools/image_fixtures.py draws it), number of tokens and their width.
soft.f32 has the tokens of all cases, one after the other.
"""
import os
import subprocess
import tempfile

import gguf
import numpy as np
import torch
from PIL import Image
from transformers import Gemma4TextConfig, Gemma4VisionConfig
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel

from image_fixtures import DATA, ROOT, picture

SIZES = {"tiny-mmproj-clamped": True, "tiny-mmproj-standard": False}
CASES = ((6, 3, 40, 30), (5, 4, 90, 20), (12, 6, 30, 70), (1, 1, 12, 12))

LAYER = {"ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
         "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PRODUCT = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
           "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def load(size, clamped, directory):
    path = os.path.join(directory, size + ".gguf")
    subprocess.run([ROOT / "carat", "synth", size, path, "--type", "f32"], check=True, capture_output=True)
    reader = gguf.GGUFReader(path)
    tensors = {t.name: np.array(t.data).reshape([int(n) for n in t.shape[::-1]]) for t in reader.tensors}

    def key(name):
        return int(reader.fields["clip.vision." + name].parts[-1][0])

    heads, width, patch = key("attention.head_count"), key("embedding_length"), key("patch_size")
    config = Gemma4VisionConfig(
        hidden_size=width, intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=width // heads, patch_size=patch,
        pooling_kernel_size=3, position_embedding_size=tensors["v.position_embd.weight"].shape[1],
        use_clipped_linears=clamped, standardize=not clamped)
    config._attn_implementation = "eager"
    tower = Gemma4VisionModel(config).eval()
    out = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(hidden_size=key("projection_dim"))).eval()
    state = {}
    for name, v in tensors.items():
        v = torch.from_numpy(np.ascontiguousarray(v))
        part = name.split(".")
        if name == "v.patch_embd.weight":  # channels first in files, last in transformers
            state["patch_embedder.input_proj.weight"] = v.permute(0, 2, 3, 1).reshape(width, -1)
        elif name == "v.position_embd.weight":
            state["patch_embedder.position_embedding_table"] = v
        elif name in ("v.std_bias", "v.std_scale"):
            state[name[2:]] = v
        elif part[1] == "blk":
            if part[3] in LAYER:
                state[f"encoder.layers.{part[2]}.{LAYER[part[3]]}.weight"] = v
            elif part[4] == "weight":
                state[f"encoder.layers.{part[2]}.{PRODUCT[part[3]]}.linear.weight"] = v
            else:
                state[f"encoder.layers.{part[2]}.{PRODUCT[part[3]]}.{part[4]}"] = v.reshape(())
    missing, unexpected = tower.load_state_dict(state, strict=False)
    assert not unexpected and all("rotary" in m or "v_norm" in m for m in missing), (missing, unexpected)
    out.load_state_dict({"embedding_projection.weight": torch.from_numpy(tensors["mm.input_projection.weight"])}, strict=False)
    return tower, out, patch


def soft_tokens(tower, out, patch, budget, seed, w, h):
    th, tw = get_aspect_ratio_preserving_size(h, w, patch, 9 * budget, 3)
    m = np.array(Image.fromarray(picture(seed, w, h)).resize((tw, th), Image.Resampling.BICUBIC))
    pixels = (m.astype(np.float64) * (1 / 255)).astype(np.float32)
    rows, cols = th // patch, tw // patch
    v = pixels.reshape(rows, patch, cols, patch, 3).transpose(0, 2, 1, 3, 4).reshape(1, rows * cols, -1)
    y, x = np.divmod(np.arange(rows * cols), cols)
    with torch.no_grad():
        state = tower(torch.from_numpy(v), torch.from_numpy(np.stack([x, y], axis=-1)[None]))
        return out(state.last_hidden_state).reshape(-1, out.text_hidden_size).numpy()


def main():
    lines, values = [], []
    with tempfile.TemporaryDirectory() as directory:
        for size, clamped in SIZES.items():
            model = load(size, clamped, directory)
            for case in CASES:
                rows = soft_tokens(*model, *case)
                lines.append(f"{size} {' '.join(map(str, case))} {rows.shape[0]} {rows.shape[1]}")
                values.append(rows.astype("<f4").tobytes())
                print(lines[-1], "std", float(rows.std()))
    (DATA / "soft.txt").write_text("\n".join(lines) + "\n")
    (DATA / "soft.f32").write_bytes(b"".join(values))


if __name__ == "__main__":
    main()
