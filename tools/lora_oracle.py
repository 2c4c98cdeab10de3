"""Compares adapters of PEFT, converted by `carat convert` and applied by --lora, with transformers' merged weights, on tiny
random models in f32.

    python3 tools/lora_oracle.py [CARAT]      default: ./carat

Each case is a model saved by transformers, and an adapter saved by PEFT with a list of target modules as people publish
them. Model and adapter are converted; the adapter once beside the model's directory and once beside its GGUF file, which
must give the same bytes. The logits must be those of merge_and_unload within 1e-3 (rms 1e-4).

Exit status 0: all agree, or a package is not installed (which is said).
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import numpy as np
    import torch
    from peft import LoraConfig, get_peft_model
    import fidelity_families as families
    import fidelity_fixtures as base
    import fidelity_qwen35 as qwen35
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(0)

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]  # Unsloth's and axolotl's lists
# name: family, overrides, LoraConfig
CASES = {
    "llama, q and v": (families.llama, {}, dict(target_modules=["q_proj", "v_proj"])),  # PEFT's own for Llama
    "llama, all": (families.llama, {}, dict(target_modules=ALL, r=16, lora_alpha=32)),
    "mistral, all-linear, rslora": (families.mistral, {}, dict(target_modules="all-linear", use_rslora=True)),
    "mistral, head and table": (families.mistral, {}, dict(target_modules=["q_proj", "embed_tokens", "lm_head"])),
    "qwen3, all": (families.qwen3, {}, dict(target_modules=ALL)),
    "qwen3, ranks by module": (families.qwen3, {}, dict(target_modules=ALL, rank_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 8},
                                                        alpha_pattern={"v_proj": 5})),
    "qwen3moe, attention": (families.qwen3moe, {}, dict(target_modules=ATTENTION)),
    "gemma3, all": (families.gemma3, {}, dict(target_modules=ALL)),
    "gemma3, table": (families.gemma3, dict(tie_word_embeddings=False), dict(target_modules=["embed_tokens", "o_proj"])),
    "gpt-oss, attention": (families.gpt_oss, {}, dict(target_modules=ATTENTION)),
    "laguna, attention": (families.laguna, {}, dict(target_modules=ATTENTION)),
    "qwen35, all-linear": (qwen35.dense, {}, dict(target_modules="all-linear")),
    "qwen35, uneven heads": (qwen35.dense, qwen35.CASES["qwen35-uneven"][4], dict(
        target_modules=ALL + ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"])),
    "qwen35moe, attention": (qwen35.moe, {}, dict(target_modules=ATTENTION + ["in_proj_qkv", "in_proj_z", "out_proj"])),
}


def check(carat, name, family, overrides, lora, d):
    torch.manual_seed(11)
    cls, config = family(overrides)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cls(config).eval().to(torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 1.2 / p.shape[-1] ** 0.5)
    model.save_pretrained(d / "model")
    adapted = get_peft_model(model, LoraConfig(**(dict(r=4, lora_alpha=8) | lora)))
    with torch.no_grad():
        for k, p in adapted.named_parameters():
            if ".lora_" in k:
                p.normal_(0, 0.3 if "embedding" in k or "lora_B" in k else 1 / p.shape[-1] ** 0.5)
    adapted.save_pretrained(d / "adapter")
    ids = base.draw_tokens(77, 100, config.vocab_size)
    ids.astype("<i4").tofile(d / "ids.bin")
    with torch.no_grad():
        plain = adapted.get_base_model()
        want = adapted.merge_and_unload()(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()
    out = {}
    for what, args in {"model.gguf": [d / "model", d / "model.gguf", "-t", "f32"],
                       "a.gguf": [d / "adapter", d / "a.gguf", "--target", d / "model"],
                       "b.gguf": [d / "adapter", d / "b.gguf", "--target", d / "model.gguf"]}.items():
        run = subprocess.run([carat, "convert", *args], capture_output=True, text=True)
        if run.returncode:
            print(f"{name}: {what}: {run.stderr.strip()}")
            return False
    run = lambda *more: subprocess.run([carat, "logits", "-m", d / "model.gguf", "--tokens", d / "ids.bin", "-o", d / "y.bin",
                                        "--kv-type", "f32", "--exact", *more], capture_output=True, text=True)
    moved = run()
    y0 = np.fromfile(d / "y.bin", "<f4").reshape(len(ids), -1)
    r = run("--lora", d / "a.gguf")
    if r.returncode:
        print(f"{name}: {r.stderr.strip()}")
        return False
    y = np.fromfile(d / "y.bin", "<f4").reshape(len(ids), -1)
    far, rms = float(np.abs(y - want).max()), float(np.sqrt(np.mean((y - want) ** 2)))
    same = (d / "a.gguf").read_bytes() == (d / "b.gguf").read_bytes()
    good = far < 1e-3 and rms < 1e-4 and same and float(np.abs(y - y0).max()) > 0.1
    print(f"{name}: logits within {far:.1e}, rms {rms:.1e}; {np.abs(y - y0).max():.1f} from the model without"
          f"{'' if same else '; the two targets give other bytes'}{'' if good else '  FAILED'}")
    return good


def main():
    carat = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "carat")
    good = True
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as d:
            good &= check(carat, name, *case, Path(d))
    sys.exit(not good)


if __name__ == "__main__":
    main()
