#!/usr/bin/env python3
"""Makes tests/data/images/soft.txt and soft.f32: the soft tokens that transformers' vision towers give
for some pictures, for model/vision_run_test.c.

    python3 tools/vision_fixture.py          needs transformers, gguf, Pillow; ./carat is built

Weights are those of `carat synth SIZE --type f32`. A line of soft.txt is a case: size, budget, seed,
width and height of the picture (tools/image_fixtures.py draws it), number of tokens and their width.
soft.f32 has the tokens of all cases, one after the other; with deepstack those for each of its layers
follow the tokens of a case, and the width is that of all. budgets.txt and budgets.f32 are the same for the budgets of
Gemma 4 and its towers, for engine/media_budgets_test.c, with every STEP-th token.
"""
import os
import subprocess
import tempfile

import gguf
import numpy as np
import torch
from PIL import Image
from transformers import Gemma4TextConfig, Gemma4UnifiedTextConfig, Gemma4UnifiedVisionConfig, Gemma4VisionConfig
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedVisionEmbedder
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from image_fixtures import DATA, ROOT, picture

BUDGETS, STEP = ((70, 3, 37, 23), (140, 4, 90, 61), (280, 5, 200, 37), (560, 6, 61, 100), (1120, 7, 171, 128)), 97
CASES = ((6, 3, 40, 30), (5, 4, 90, 20), (12, 6, 30, 70), (1, 1, 12, 12))

LAYER = {"ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
         "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PRODUCT = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
           "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def read(size, directory, prefix="clip.vision."):
    """Its tensors, and a function that gives a key."""
    path = os.path.join(directory, size + ".gguf")
    subprocess.run([ROOT / "carat", "synth", size, path, "--type", "f32"], check=True, capture_output=True)
    reader = gguf.GGUFReader(path)
    tensors = {t.name: np.array(t.data).reshape([int(n) for n in t.shape[::-1]]) for t in reader.tensors}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}
    return tensors, lambda name: int(reader.fields[prefix + name].parts[-1][0])


def resized(seed, w, h, tw, th):
    m = np.array(Image.fromarray(picture(seed, w, h)).resize((tw, th), Image.Resampling.BICUBIC))
    return (m.astype(np.float64) * (1 / 255)).astype(np.float32)


def blocks(m, side):
    """[rows, columns] of squares, each [side, side, 3]."""
    h, w, _ = m.shape
    return m.reshape(h // side, side, w // side, side, 3).transpose(0, 2, 1, 3, 4)


def gemma_modules(tensors, key, clamped):
    """The tower, and what makes its rows as wide as the text model's."""
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
    out.load_state_dict({"embedding_projection.weight": tensors["mm.input_projection.weight"]}, strict=False)
    return tower, out


def gemma_tower(tensors, key, clamped):
    tower, out = gemma_modules(tensors, key, clamped)
    patch = key("patch_size")

    def run(budget, seed, w, h):
        th, tw = get_aspect_ratio_preserving_size(h, w, patch, 9 * budget, 3)
        m = blocks(resized(seed, w, h, tw, th), patch)
        rows, cols = m.shape[:2]
        y, x = np.divmod(np.arange(rows * cols), cols)
        at = torch.from_numpy(np.stack([x, y], axis=-1)[None])
        v = torch.from_numpy(m.reshape(1, rows * cols, -1))
        rest = 9 * budget - rows * cols  # the processor's padding
        padded = torch.nn.functional.pad(v, (0, 0, 0, rest)), torch.nn.functional.pad(at, (0, 0, 0, rest), value=-1)
        soft = [out(tower(*of).last_hidden_state).reshape(-1, out.text_hidden_size) for of in ((v, at), padded)]
        assert soft[0].shape == soft[1].shape and (soft[0] - soft[1]).abs().max() < 1e-5
        return soft[0]

    return run


def gemma_flat(tensors, key):
    """12B's front without a tower."""
    width, side = key("embedding_length"), 3 * key("patch_size")
    config = Gemma4UnifiedVisionConfig(
        patch_size=key("patch_size"), pooling_kernel_size=3, model_patch_size=side, mm_embed_dim=width,
        mm_posemb_size=tensors["v.position_embd.weight"].shape[1], output_proj_dims=width)
    front = Gemma4UnifiedVisionEmbedder(config, Gemma4UnifiedTextConfig(hidden_size=key("projection_dim"))).eval()

    def channels_last(v):
        return v.reshape(-1, 3, side, side).permute(0, 2, 3, 1).reshape(v.shape)

    state = {"pos_embedding": tensors["v.position_embd.weight"].permute(1, 0, 2),
             "multimodal_embedder.embedding_projection.weight": tensors["mm.input_projection.weight"],
             "patch_dense.weight": channels_last(tensors["v.patch_embd.weight"]), "patch_dense.bias": tensors["v.patch_embd.bias"]}
    for norm, name in (("1", "patch_ln1"), ("2", "patch_ln2"), ("3", "pos_norm")):
        for kind in ("weight", "bias"):
            v = tensors[f"v.patch_norm.{norm}.{kind}"]
            state[f"{name}.{kind}"] = channels_last(v) if norm == "1" else v
    front.load_state_dict(state)

    def run(budget, seed, w, h):
        th, tw = get_aspect_ratio_preserving_size(h, w, key("patch_size"), 9 * budget, 3)
        m = blocks(resized(seed, w, h, tw, th), side)
        y, x = np.divmod(np.arange(m.shape[0] * m.shape[1]), m.shape[1])
        at = torch.from_numpy(np.stack([x, y], axis=-1)[None])
        return front(torch.from_numpy(m.reshape(1, len(x), -1)), at).pooler_output[0]

    return run


QWEN = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1",
        "ffn_down": "mlp.linear_fc2"}
MERGER = {"v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2",
          "v.position_embd": "pos_embed"}
DEEP = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}


def qwen_modules(tensors, key, deep):
    """The tower, and what makes its patches and their grid. deep: Qwen3-VL's, which has deepstack."""
    at = sorted({int(name.split(".")[2]) for name in tensors if name.startswith("v.deepstack.")})
    assert deep == bool(at)
    patch, merge = key("patch_size"), key("spatial_merge_size")
    config = (Qwen3VLVisionConfig if deep else Qwen3_5VisionConfig)(
        depth=key("block_count"), hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
        num_heads=key("attention.head_count"), patch_size=patch, spatial_merge_size=merge, out_hidden_size=key("projection_dim"),
        num_position_embeddings=tensors["v.position_embd.weight"].shape[0], **({"deepstack_visual_indexes": at} if deep else {}))
    config._attn_implementation = "eager"
    tower = (Qwen3VLVisionModel if deep else Qwen3_5VisionModel)(config).eval()
    state = {"patch_embed.proj.bias": tensors["v.patch_embd.bias"],
             "patch_embed.proj.weight": torch.stack([tensors["v.patch_embd.weight"], tensors["v.patch_embd.weight.1"]], dim=2)}
    for name, v in tensors.items():
        part = name.split(".")
        base, kind = name.rsplit(".", 1)
        if part[1] == "blk":
            state[f"blocks.{part[2]}.{QWEN[part[3]]}.{kind}"] = v
        elif part[1] == "deepstack":
            state[f"deepstack_merger_list.{at.index(int(part[2]))}.{DEEP[part[3]]}.{kind}"] = v
        elif base in MERGER:
            state[f"{MERGER[base]}.{kind}"] = v
    missing, unexpected = tower.load_state_dict(state, strict=False)
    assert not unexpected and not missing, (missing, unexpected)

    def pixels(budget, seed, w, h):
        most = budget * (patch * merge) ** 2
        th, tw = smart_resize(h, w, patch * merge, min(65536, most // 4), most)
        m = blocks((resized(seed, w, h, tw, th) - np.float32(0.5)) / np.float32(0.5), patch)  # two frames, a token's patches together
        rows, cols = m.shape[:2]
        m = m.reshape(rows // merge, merge, cols // merge, merge, patch, patch, 3).transpose(0, 2, 1, 3, 6, 4, 5)
        m = np.stack([m, m], axis=5).reshape(rows * cols, -1)
        return torch.from_numpy(np.ascontiguousarray(m)), torch.tensor([[1, rows, cols]])

    return tower, pixels


def qwen_tower(tensors, key, deep=False):
    tower, pixels = qwen_modules(tensors, key, deep)

    def run(*case):
        made = tower(*pixels(*case))
        parts = [made.pooler_output] + (made.deepstack_features if deep else [])
        return torch.stack(parts)

    return run


SIZES = {"tiny-mmproj-clamped": lambda t, key: gemma_tower(t, key, True),
         "tiny-mmproj-standard": lambda t, key: gemma_tower(t, key, False),
         "tiny-mmproj-flat": gemma_flat, "tiny-mmproj-qwen": qwen_tower,
         "tiny-mmproj-qwen3-vl": lambda t, key: qwen_tower(t, key, True)}


def main():
    write("soft", SIZES, CASES, 1)
    write("budgets", [size for size in SIZES if "qwen" not in size], BUDGETS, STEP)


def write(name, sizes, cases, step):
    lines, values = [], []
    with tempfile.TemporaryDirectory() as directory:
        for size in sizes:
            run = SIZES[size](*read(size, directory))
            for case in cases:
                with torch.no_grad():
                    rows = run(*case).numpy()
                n = rows.shape[-2]
                lines.append(f"{size} {' '.join(map(str, case))} {n} {rows.size // n}")
                values.append((rows if rows.ndim == 3 else rows[::step]).astype("<f4").tobytes())
                print(lines[-1], "std", float(rows.std()))
    (DATA / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (DATA / f"{name}.f32").write_bytes(b"".join(values))


if __name__ == "__main__":
    main()
