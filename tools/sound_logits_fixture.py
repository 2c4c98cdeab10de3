#!/usr/bin/env python3
"""Makes tests/data/sounds/prompt.txt and prompt.f32: logits that transformers gives for prompts with a sound, a picture
and another sound, for tests/picture_logits_test.c.

    python3 tools/sound_logits_fixture.py [--check]         needs transformers, gguf, Pillow; ./carat is built

As tools/picture_fixture.py, with both towers of TOWER. Sounds are those that tools/sound_fixture.py draws; the library
gets both as one padded batch. A line of prompt.txt is a model: its name, its tower, the budget of the picture, seeds and
samples of the sounds, the picture's file, and the numbers of soft tokens in the order of the prompt.
"""
import sys
import tempfile

import gguf
import numpy as np
import torch
from transformers.image_utils import load_image
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

import audio_fixture
import fidelity_fixtures as text
import picture_fixture
from picture_fixture import BUDGET, COLS, IMAGE, PATCH, STEP
from sound_fixture import DATA, ROOT, noise
from vision_fixture import gemma_modules, read

MODELS = (("e2b", None), ("dense", "vision"))
TOWER, FILE, SOUNDS = "tiny-mmproj-hears", "png/rgba8", ((5, 9000), (6, 16000))
TEXT = (5, 2, 1, 9)  # ids before, between and behind
AUDIO = 11  # an id that no prompt has


def main():
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    processor = Gemma4ImageProcessorPil(patch_size=PATCH, max_soft_tokens=BUDGET, pooling_kernel_size=3)
    seen = processor([load_image(str(ROOT / "fuzz" / "corpus" / FILE))], return_tensors="pt")
    rows = [audio_fixture.features(noise(*s)) for s in SOUNDS]
    heard = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.stack([torch.arange(heard.shape[1]) < len(r) for r in rows])
    lines, values = [], []
    for name, see in MODELS:
        seed = int(gguf.GGUFReader(text.OUT / f"{name}.golden").fields["fidelity.seed"].parts[-1][0])
        with tempfile.TemporaryDirectory() as directory:
            eye, eye_key = read(TOWER, directory)
            ear, ear_key = audio_fixture.read(TOWER, directory)
        eye = {k: v for k, v in eye.items() if k not in ear}
        tower, out = audio_fixture.conformer_modules(ear, ear_key)
        model, config = picture_fixture.whole_model(name, seed, see, *gemma_modules(eye, eye_key, True),
                                                    audio_config=tower.config, audio_token_id=AUDIO)
        tower.config._attn_implementation = "sdpa"
        model.model.audio_tower, model.model.embed_audio = tower, out
        n_heard = tower(heard, mask).attention_mask.sum(dim=1).tolist()
        n_soft = [n_heard[0], int(seen["num_soft_tokens_per_image"][0]), n_heard[1]]
        words = np.split(text.draw_tokens(seed, text.N_TOKENS, config.vocab_size)[:sum(TEXT)], np.cumsum(TEXT)[:-1])
        assert not {IMAGE, AUDIO} & set(np.concatenate(words).tolist())
        ids = np.concatenate([words[0], [AUDIO] * n_soft[0], words[1], [IMAGE] * n_soft[1], words[2],
                              [AUDIO] * n_soft[2], words[3]]).astype(np.int64)
        ids = torch.from_numpy(ids)[None]
        rest = dict(input_ids=ids, image_position_ids=seen["image_position_ids"], input_features_mask=mask,
                    mm_token_type_ids=(ids == IMAGE).long() + 3 * (ids == AUDIO).long(),
                    attention_mask=torch.ones_like(ids), use_cache=False)
        pixels = seen["pixel_values"].float()
        rough = model(pixel_values=pixels, input_features=heard, **rest).logits[0].numpy()
        model.to(torch.float64)  # f32 has noise of its own in so long a prompt
        with text.everything_f64():
            logits = model(pixel_values=pixels.double(), input_features=heard.double(), **rest).logits[0].numpy()
        noisy = logits - rough
        print(f"{name}: {ids.shape[1]} tokens, deviation of logits {logits.std():.2f}, f32 against f64: "
              f"max {np.abs(noisy).max():.1e} rms {np.sqrt((noisy * noisy).mean()):.1e}")
        sounds = " ".join(f"{s} {n}" for s, n in SOUNDS)
        lines.append(f"{name} {TOWER} {BUDGET} {sounds} {FILE} {' '.join(map(str, n_soft))}")
        values.append(np.ascontiguousarray(logits.astype("<f4")[::STEP, :COLS]))
    values = np.concatenate(values)
    if "--check" in sys.argv:
        worst = np.abs(np.fromfile(DATA / "prompt.f32", "<f4").reshape(values.shape) - values).max()
        print(f"prompt.f32: {worst:g} apart")
        sys.exit(bool(worst > 1e-4))
    (DATA / "prompt.txt").write_text("\n".join(lines) + "\n")
    (DATA / "prompt.f32").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
