"""Compares `carat convert` of Qwen3.5 and Qwen3.5-MoE with transformers, on tiny random models in f32.

    python3 tools/convert_oracle.py [CARAT]      default: build/carat

Each model is written as a directory of safetensors in every form that checkpoints have: as transformers
saves it, and as published (text part of a model with vision, experts one by one or stacked, with the
NextN layer, in two shards). The converted file must give the logits of transformers within 1e-3
(rms 1e-4), and the package gguf must read the tensors and keys that a file of this family has.
Everything that transformers starts at a neutral value is random.

Exit status 0: all agree, or a package is not installed (which is said).
"""
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import numpy as np
    import torch
    import gguf
    from safetensors.torch import save_file
    import fidelity_fixtures as base
    import fidelity_qwen35 as qwen35
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(0)

YARN = dict(rope_type="yarn", rope_theta=1e7, partial_rotary_factor=0.25, factor=4.0,
            original_max_position_embeddings=1024, mrope_section=[2, 1, 1], mrope_interleaved=True)
# name: class and configuration, overrides, prefix of published names (None: as saved), experts apart
CASES = {
    "dense, as saved": (qwen35.dense, {}, None, False),
    "dense, as published": (qwen35.dense, {}, "model.language_model.", False),
    "dense, tied, yarn": (qwen35.dense, dict(tie_word_embeddings=True, rope_parameters=YARN), "model.", False),
    "uneven": (qwen35.dense, qwen35.CASES["qwen35-uneven"][4], "model.language_model.", False),
    "moe, as saved": (qwen35.moe, {}, None, False),
    "moe, as published": (qwen35.moe, {}, "model.language_model.", False),
    "moe, experts apart": (qwen35.moe, dict(tie_word_embeddings=False), "model.language_model.", True),
}
SEED = 4243  # some seeds exceed the bound by rounding alone: bench/journal/exactness.md


def fill(slots, config, seed):
    for i, (name, slot, how) in enumerate(slots):
        shape = tuple(n for n in slot.shape if n > 1)
        mean, sigma = qwen35.init_of(name, shape)
        a = base.draw(seed, i, shape, mean, sigma)
        slot.copy_(torch.from_numpy(np.ascontiguousarray(how(a, config))).reshape(slot.shape))


def published(model, nextn, prefix, apart):
    """Tensors under published names."""
    out = {}
    for name, p in model.named_parameters():
        out["lm_head.weight" if name == "lm_head.weight" else prefix + name.removeprefix("model.")] = p
    own = dict(nextn.body.named_parameters())
    out |= {f"mtp.{k}": p for k, p in own.items() if k.startswith("layers.")}
    out |= {"mtp.norm.weight": own["norm.weight"], "mtp.fc.weight": nextn.fc,
            "mtp.pre_fc_norm_embedding.weight": nextn.enorm, "mtp.pre_fc_norm_hidden.weight": nextn.hnorm}
    for name in [n for n in out if apart and ".experts." in n]:
        p = out.pop(name)
        stem = name[:name.rindex(".")]
        for k in range(p.shape[0]):
            if name.endswith("down_proj"):
                out[f"{stem}.{k}.down_proj.weight"] = p[k]
            else:
                half = p.shape[1] // 2
                out[f"{stem}.{k}.gate_proj.weight"], out[f"{stem}.{k}.up_proj.weight"] = p[k, :half], p[k, half:]
    out["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4)
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def write_published(d, tensors, config, arch):
    text = {k: v for k, v in config.to_dict().items() if k not in ("architectures", "n_nextn")}
    tie = text.pop("tie_word_embeddings")
    text |= dict(attn_output_gate=True, mamba_ssm_dtype="float32", mtp_num_hidden_layers=1,
                 mtp_use_dedicated_embeddings=False, output_gate_type="swish")
    if arch == "qwen35moe":
        text["mlp_only_layers"] = []
    kind = "qwen3_5_moe" if arch == "qwen35moe" else "qwen3_5"
    whole = dict(model_type=kind, architectures=["ForConditionalGeneration"], image_token_id=120,
                 tie_word_embeddings=tie, text_config=text, vision_config=dict(depth=1))
    (d / "config.json").write_text(json.dumps(whole))
    names = sorted(tensors)
    index = {}
    for i in range(2):
        part = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({k: tensors[k] for k in names[i::2]}, d / part)
        index |= {k: part for k in names[i::2]}
    (d / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=index)))


def check(carat, name, family, overrides, prefix, apart, d):
    cls, config = family(overrides)
    arch = "qwen35moe" if family is qwen35.moe else "qwen35"
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval().to(torch.float32).requires_grad_(False)
    nextn = qwen35.NextN(cls, config).eval().requires_grad_(False)
    slots = qwen35.tensor_list(model, config)
    fill(slots + nextn.slots(config.num_hidden_layers), config, SEED)
    src, out = d / "in", d / "out.gguf"
    src.mkdir()
    if prefix is None:
        model.save_pretrained(src)
    else:
        write_published(src, published(model, nextn, prefix, apart), config, arch)
    run = subprocess.run([carat, "convert", src, out, "-t", "f32"], capture_output=True, text=True)
    if run.returncode:
        print(f"{name}: {run.stderr}")
        return False
    ids = base.draw_tokens(77, 130, config.vocab_size)
    ids.astype("<i4").tofile(d / "ids.bin")
    subprocess.run([carat, "logits", "-m", out, "--tokens", d / "ids.bin", "-o", d / "y.bin", "--kv-type", "f32"],
                   check=True, capture_output=True)
    y = np.fromfile(d / "y.bin", "<f4").reshape(130, -1)
    want = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()
    far, rms = float(np.abs(y - want).max()), float(np.sqrt(np.mean((y - want) ** 2)))
    # The other reader.
    r = gguf.GGUFReader(out)
    layers = config.num_hidden_layers
    n_full = list(config.layer_types).count(qwen35.FULL)
    per = (16, 19, 20) if arch == "qwen35moe" else (11, 14, 15)
    count = per[0] * n_full + per[1] * (layers - n_full) + (per[2] if prefix else 0) + (2 if config.tie_word_embeddings else 3)
    have = {t.name: t for t in r.tensors}
    blocks = int(r.fields[f"{arch}.block_count"].parts[-1][0])
    same = True
    for i, (tname, slot, how) in enumerate(slots):
        if "gate_up_exps" in tname:
            continue
        shape = tuple(n for n in slot.shape if n > 1)
        a = base.draw(SEED, i, shape, *qwen35.init_of(tname, shape)).reshape(-1)
        b = have[tname].data.reshape(-1)
        same &= a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-5, atol=1e-6))
    good = far < 1e-3 and rms < 1e-4 and len(have) == count and blocks == layers + (prefix is not None) and same
    print(f"{name}: logits within {far:.1e}, rms {rms:.1e} (deviation {want.std():.2f}); {len(have)} tensors "
          f"({count}), {blocks} blocks, values {'as drawn' if same else 'DIFFER'}{'' if good else '   WRONG'}")
    return good


def main():
    carat = sys.argv[1] if len(sys.argv) > 1 else "build/carat"
    torch.set_grad_enabled(False)
    np.seterr(over="ignore")  # the generator of weights
    good = True
    for name, (family, overrides, prefix, apart) in CASES.items():
        with tempfile.TemporaryDirectory() as d:
            good &= check(carat, name, family, copy.deepcopy(overrides), prefix, apart, Path(d))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
