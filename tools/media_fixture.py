"""What transformers computes for prompts with pictures whose tokens see each other both ways, by a tiny Gemma 4 without
per-layer embeddings: tests/data/fidelity/blocks.f32.

The weights are those of the case "dense" of fidelity_fixtures.py. The rows of two pictures are drawn, so no tower is
needed. Sliding layers see blocks both ways, full layers see none (transformers: use_bidirectional_attention "vision").
python tools/media_fixture.py [--check]"""

import sys

import numpy as np
import torch

from fidelity_fixtures import CASES, N_TOKENS, S, G, build, draw, draw_tokens, init_of, tensor_list

PATH = "tests/data/fidelity/blocks.f32"
WEIGHTS, SEED, HEAD, SOFT, BETWEEN, TAIL, COLS = 402, 9000, 5, 63, 2, 9, 64  # WEIGHTS: fidelity.seed of dense.golden


def main():
    kind, _, overrides = CASES["dense"]
    model, config = build(kind, overrides)
    for i, (name, slot, shape) in enumerate(tensor_list(model, config)):
        if slot is not None:
            slot.copy_(torch.from_numpy(draw(WEIGHTS, i, shape, *init_of(name, shape, config.num_hidden_layers))))
    n = HEAD + SOFT + BETWEEN + SOFT + TAIL
    drawn = draw_tokens(WEIGHTS, N_TOKENS, config.vocab_size).astype(np.int64)
    ids = torch.from_numpy(drawn[np.arange(n) % N_TOKENS])[None]
    rows = model.model.embed_tokens(ids)
    block = torch.full((n,), -1)
    for k, first in enumerate((HEAD, HEAD + SOFT + BETWEEN)):
        soft = draw(SEED, k, (SOFT, config.hidden_size), 0.0, 2.0)
        rows[0, first:first + SOFT] = torch.from_numpy(soft)
        block[first:first + SOFT] = k
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    both = (block[:, None] == block[None]) & (block[:, None] >= 0)
    see = {G: j <= i, S: ((j <= i) | both) & (j > i - config.sliding_window)}
    mask = {k: torch.where(v, 0.0, torch.finfo(torch.float32).min)[None, None] for k, v in see.items()}
    x = model.model(inputs_embeds=rows, attention_mask=mask, use_cache=False).last_hidden_state
    logits = model.lm_head(x)
    cap = config.final_logit_softcapping
    logits = (torch.tanh(logits / cap) * cap)[0, :, :COLS].contiguous().numpy().astype("<f4")
    if "--check" in sys.argv:
        was = np.fromfile(PATH, "<f4").reshape(logits.shape)
        worst = float(np.abs(was - logits).max())
        print(f"{PATH}: {worst:g} apart")
        sys.exit(worst > 1e-4)
    logits.tofile(PATH)


if __name__ == "__main__":
    main()
