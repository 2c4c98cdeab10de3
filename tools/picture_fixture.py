#!/usr/bin/env python3
"""Makes tests/data/images/prompt.txt and prompt.f32: logits that transformers gives for prompts with two files of
pictures, from the bytes of the files on, for tests/picture_logits_test.c.

    python3 tools/picture_fixture.py         needs transformers, gguf, Pillow; ./carat is built

Everything is the library's: its loader of files, its processor, and Gemma4ForConditionalGeneration, which puts soft
tokens into the prompt and makes the mask. Text models are cases of fidelity_fixtures.py: "e2b" has per-layer
embeddings and sees pictures from left to right, in "dense" the tokens of a picture see each other. Towers are those of
`carat synth SIZE --type f32`. A line of prompt.txt is a model: its name, its tower, the budget, two files below
fuzz/corpus and the numbers of their soft tokens. Ids are those of the golden file of the model, in order, PLACE in front
of each picture. prompt.f32 has every STEP-th row of logits, COLS of each.
"""
import sys
import tempfile

import gguf
import numpy as np
import torch
from transformers import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.image_utils import load_image
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

import fidelity_fixtures as text
from image_fixtures import DATA, ROOT
from vision_fixture import gemma_modules, read

MODELS = (("e2b", "tiny-mmproj-clamped", None), ("dense", "tiny-mmproj-standard", "vision"))
FILES = ("png/rgba8", "jpeg/exif-6")
BUDGET, PATCH, IMAGE = 70, 4, 7  # IMAGE: an id that no prompt has
TEXT = (5, 2, 9)  # ids before, between and behind the pictures
STEP, COLS = 3, 64


def whole_model(name, seed, see, tower, out, **ears):
    """ears: keys of its configuration for sound."""
    kind, _, overrides = text.CASES[name]
    plain, config = text.build(kind, overrides)
    for i, (tensor, slot, shape) in enumerate(text.tensor_list(plain, config)):
        if slot is not None:
            slot.copy_(torch.from_numpy(text.draw(seed, i, shape, *text.init_of(tensor, shape, config.num_hidden_layers))))
    config.use_bidirectional_attention = see
    whole = Gemma4Config(text_config=config, vision_config=tower.config, image_token_id=IMAGE, **ears)
    whole.vision_config._attn_implementation = whole._attn_implementation = "eager"
    model = Gemma4ForConditionalGeneration(whole).eval().requires_grad_(False)
    model.model.language_model = plain.model
    model.model.language_model.config.use_bidirectional_attention = see
    model.lm_head = plain.lm_head
    model.model.vision_tower, model.model.embed_vision = tower, out
    return model, config


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    processor = Gemma4ImageProcessorPil(patch_size=PATCH, max_soft_tokens=BUDGET, pooling_kernel_size=3)
    pictures = [load_image(str(ROOT / "fuzz" / "corpus" / f)) for f in FILES]
    seen = processor(pictures, return_tensors="pt")
    n_soft = [int(n) for n in seen["num_soft_tokens_per_image"]]
    lines, values = [], []
    for name, size, see in MODELS:
        seed = int(gguf.GGUFReader(text.OUT / f"{name}.golden").fields["fidelity.seed"].parts[-1][0])
        with tempfile.TemporaryDirectory() as directory:
            tensors, key = read(size, directory)
        model, config = whole_model(name, seed, see, *gemma_modules(tensors, key, "clamped" in size))
        words = np.split(text.draw_tokens(seed, text.N_TOKENS, config.vocab_size)[:sum(TEXT)], np.cumsum(TEXT)[:-1])
        assert IMAGE not in np.concatenate(words)
        ids = np.concatenate([words[0], [IMAGE] * n_soft[0], words[1], [IMAGE] * n_soft[1], words[2]]).astype(np.int64)
        ids = torch.from_numpy(ids)[None]
        rest = dict(input_ids=ids, image_position_ids=seen["image_position_ids"], mm_token_type_ids=(ids == IMAGE).long(),
                    attention_mask=torch.ones_like(ids), use_cache=False)
        rough = model(pixel_values=seen["pixel_values"].float(), **rest).logits[0].numpy()
        model.to(torch.float64)  # f32 has noise of its own in so long a prompt
        with text.everything_f64():
            logits = model(pixel_values=seen["pixel_values"].float().double(), **rest).logits[0].numpy()
        noise = logits - rough
        print(f"{name}: {ids.shape[1]} tokens, deviation of logits {logits.std():.2f}, f32 against f64: "
              f"max {np.abs(noise).max():.1e} rms {np.sqrt((noise * noise).mean()):.1e}")
        logits = logits.astype("<f4")
        lines.append(f"{name} {size} {BUDGET} {' '.join(FILES)} {' '.join(map(str, n_soft))}")
        values.append(np.ascontiguousarray(logits[::STEP, :COLS]))
    values = np.concatenate(values)
    if "--check" in sys.argv:
        worst = np.abs(np.fromfile(DATA / "prompt.f32", "<f4").reshape(values.shape) - values).max()
        print(f"prompt.f32: {worst:g} apart")
        sys.exit(bool(worst > 1e-4))
    (DATA / "prompt.txt").write_text("\n".join(lines) + "\n")
    (DATA / "prompt.f32").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
