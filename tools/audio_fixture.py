#!/usr/bin/env python3
"""Makes tests/data/sounds/soft.txt and soft.f32: the soft tokens that transformers' audio towers give
for some sounds, for model/audio_test.c.

    python3 tools/audio_fixture.py           needs transformers, gguf; ./carat is built

Weights are those of `carat synth SIZE --type f32`. A line of soft.txt is a case: size, seed and samples
of the sound (tools/sound_fixture.py draws it), number of tokens and their width. soft.f32 has the tokens
of all cases, one after the other. The tower gets features in f32 of a transform in f64. It runs with
attention by SDPA: eager attention of transformers 5.17 inverts its mask.
"""
import os
import subprocess
import tempfile
import warnings

import gguf
import numpy as np
import torch
from transformers import Gemma4AudioConfig, Gemma4TextConfig
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel, Gemma4MultimodalEmbedder

from sound_fixture import DATA, ROOT, noise

# One row of features, a few, more tokens than attention sees, two of the convolutions' bands of 64 and three of them.
CASES = ((1, 161), (2, 1000), (3, 8123), (4, 20000), (5, 45000))

LAYER = {"attn_pre_norm": "norm_pre_attn", "attn_post_norm": "norm_post_attn", "ln2": "norm_out",
         "attn_k_rel": "self_attn.relative_k_proj", "conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm",
         "conv_dw": "lconv1d.depthwise_conv1d"}
PRODUCT = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.post",
           "conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end"}
for end, part in (("", "feed_forward1"), ("_1", "feed_forward2")):
    LAYER |= {"ffn_norm" + end: part + ".pre_layer_norm", "ffn_post_norm" + end: part + ".post_layer_norm"}
    PRODUCT |= {"ffn_up" + end: part + ".ffw_layer_1", "ffn_down" + end: part + ".ffw_layer_2"}


def read(size, directory):
    """Its tensors, and a function that gives a key."""
    path = os.path.join(directory, size + ".gguf")
    subprocess.run([ROOT / "carat", "synth", size, path, "--type", "f32"], check=True, capture_output=True)
    reader = gguf.GGUFReader(path)
    tensors = {t.name: np.array(t.data).reshape([int(n) for n in t.shape[::-1]]) for t in reader.tensors
               if t.name.startswith(("a.", "mm.a."))}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}
    return tensors, lambda name: int(reader.fields["clip.audio." + name].parts[-1][0])


def conformer_state(tensors):
    state = {}
    for name, v in tensors.items():
        part = name.split(".")
        if part[0] == "mm":
            continue
        if part[1] == "blk":
            layer = f"layers.{part[2]}."
            if part[3] == "per_dim_scale":  # the file's is after softplus
                state[layer + "self_attn.per_dim_scale"] = torch.log(torch.expm1(v.double())).float()
            elif part[3] == "conv_dw":
                state[layer + LAYER[part[3]] + ".weight"] = v.unsqueeze(1)
            elif part[3] in LAYER:
                state[layer + LAYER[part[3]] + ".weight"] = v
            elif part[4] == "weight":
                state[f"{layer}{PRODUCT[part[3]]}.linear.weight"] = v
            else:
                state[f"{layer}{PRODUCT[part[3]]}.{part[4]}"] = v.reshape(())
        elif part[1] == "conv1d":
            state[f"subsample_conv_projection.layer{part[2]}.{'norm' if part[3] == 'norm' else 'conv'}.weight"] = v
        elif part[1] == "input_projection":
            state["subsample_conv_projection.input_proj_linear.weight"] = v
        elif part[1] == "pre_encode":
            state["output_proj." + part[3]] = v
    return state


def features(x):
    mel = Gemma4AudioFeatureExtractor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out, mask = mel._extract_spectrogram(x.astype(np.float64), np.ones(len(x), dtype=np.int64))
    assert mask.all()
    return torch.from_numpy(out.astype(np.float32))


def conformer_config(tensors, key):
    return Gemma4AudioConfig(
        hidden_size=key("embedding_length"), num_hidden_layers=key("block_count"), num_attention_heads=key("attention.head_count"),
        subsampling_conv_channels=[tensors["a.conv1d.0.weight"].shape[0], tensors["a.conv1d.1.weight"].shape[0]],
        output_proj_dims=tensors["a.pre_encode.out.weight"].shape[0])


def conformer_modules(tensors, key):
    """The tower, and what makes its rows as wide as the text model's."""
    config = conformer_config(tensors, key)
    config._attn_implementation = "sdpa"
    tower = Gemma4AudioModel(config).eval()
    out = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(hidden_size=key("projection_dim"))).eval()
    missing, unexpected = tower.load_state_dict(conformer_state(tensors), strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    out.load_state_dict({"embedding_projection.weight": tensors["mm.a.input_projection.weight"]}, strict=False)
    return tower, out


def conformer(tensors, key):
    tower, out = conformer_modules(tensors, key)

    def run(x):
        rows = features(x)
        soft = out(tower(rows[None], torch.ones(1, len(rows), dtype=torch.bool)).last_hidden_state)[0]
        # The processor's padding changes nothing.
        padded = torch.nn.functional.pad(rows, (0, 0, 0, 37))
        got = tower(padded[None], (torch.arange(len(padded)) < len(rows))[None])
        again = out(got.last_hidden_state)[0][got.attention_mask[0]]
        assert soft.shape == again.shape and (soft - again).abs().max() < 1e-4, (soft - again).abs().max()
        return soft

    return run


def flat(tensors, key):
    config = Gemma4AudioConfig(output_proj_dims=640)
    out = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(hidden_size=key("projection_dim"))).eval()
    out.load_state_dict({"embedding_projection.weight": tensors["mm.a.input_projection.weight"]}, strict=False)

    def run(x):
        x = np.concatenate([x, np.zeros(-len(x) % 640, np.float32)])
        return out(torch.from_numpy(x.reshape(1, -1, 640)))[0]

    return run


SIZES = {"tiny-mmproj-hears": (conformer, CASES), "tiny-mmproj-flat-hears": (flat, CASES[:4])}


def main():
    lines, values = [], []
    with tempfile.TemporaryDirectory() as directory:
        for size, (make, cases) in SIZES.items():
            run = make(*read(size, directory))
            for seed, n in cases:
                with torch.no_grad():
                    rows = run(noise(seed, n)).numpy()
                lines.append(f"{size} {seed} {n} {rows.shape[0]} {rows.shape[1]}")
                values.append(rows.astype("<f4").tobytes())
                print(lines[-1], "std", float(rows.std()))
    (DATA / "soft.txt").write_text("\n".join(lines) + "\n")
    (DATA / "soft.f32").write_bytes(b"".join(values))


if __name__ == "__main__":
    main()
