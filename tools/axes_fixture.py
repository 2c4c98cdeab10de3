"""What transformers computes for prompts with pictures by a tiny Qwen3.5, whose positions are on three axes:
tests/data/fidelity/axes.f32, and behind the logits what its NextN layer drafts: ids, then logarithms.

The weights are those of the cases "qwen35" and "qwen35-nextn" of fidelity_qwen35.py, without its search for a seed. The
rows of two pictures are drawn, so no tower is needed; positions are those of transformers' get_rope_index. An entry of
the NextN layer is at its token's place; drafts go on as text does.
python tools/axes_fixture.py [--check]"""

import sys
from types import SimpleNamespace

import numpy as np
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from fidelity_fixtures import draw, draw_tokens
from fidelity_qwen35 import CASES, DRAFTS, RANKS, NextN, init_of, tensor_list

PATH = "tests/data/fidelity/axes.f32"
GOLDEN_SEED = {"qwen35": 1158, "qwen35-nextn": 1504}  # fidelity.seed of their .golden
SEED, HEAD, BETWEEN, TAIL, COLS = 9100, 5, 3, 20, 64
N_TOKENS = {name: CASES[name][3] for name in GOLDEN_SEED}
GRIDS = ((4, 5), (2, 11))  # rows and columns of tokens


def positions(types, grids):
    """[3, n] of transformers. Of a model it reads the tower's merge alone."""
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    model = SimpleNamespace(config=config, get_vision_position_ids=lambda *a, **k: Qwen3_5Model.get_vision_position_ids(
        SimpleNamespace(config=config), *a, **k))
    ids = torch.zeros_like(types)
    thw = torch.tensor([(1, 2 * r, 2 * c) for r, c in grids])
    return Qwen3_5Model.get_rope_index(model, ids, types, image_grid_thw=thw)[0]


def make(name):
    _, family, _, _, overrides = CASES[name]
    cls, config = family(overrides)
    config._attn_implementation = "eager"
    model = cls(config).eval().to(torch.float32).requires_grad_(False)
    slots, nextn = tensor_list(model, config), None
    if name.endswith("-nextn"):
        nextn = NextN(cls, config).eval().to(torch.float32).requires_grad_(False)
        slots += nextn.slots(config.num_hidden_layers)
    for i, (tensor, slot, how) in enumerate(slots):
        shape = tuple(n for n in slot.shape if n > 1)
        a = draw(GOLDEN_SEED[name], i, shape, *init_of(tensor, shape))
        slot.copy_(torch.from_numpy(np.ascontiguousarray(how(a, config))))
    return model, nextn


def prompt(name, model):
    """Embeddings, and their places."""
    n_soft = [r * c for r, c in GRIDS]
    n = HEAD + n_soft[0] + BETWEEN + n_soft[1] + TAIL
    drawn = draw_tokens(GOLDEN_SEED[name], 130, model.config.vocab_size).astype(np.int64)
    ids = torch.from_numpy(drawn[np.arange(n) % N_TOKENS[name]])[None]
    rows, types = model.model.embed_tokens(ids), torch.zeros_like(ids, dtype=torch.int)
    for k, first in enumerate((HEAD, HEAD + n_soft[0] + BETWEEN)):
        rows[0, first:first + n_soft[k]] = torch.from_numpy(
            draw(SEED, k, (n_soft[k], model.config.hidden_size), 0.0, 1.0))
        types[0, first:first + n_soft[k]] = 1
    return rows, positions(types, GRIDS)


def hidden_of(model, rows, at):
    return model.model(inputs_embeds=rows, position_ids=at, use_cache=False).last_hidden_state


def drafts(model, nextn, rows, at):
    """After all tokens, the last of which the model has not computed."""
    best, logp = [], []
    hidden = hidden_of(model, rows, at)
    hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
    nextn_body = nextn.body.forward
    for _ in range(DRAFTS):
        nextn.body.forward = lambda *a, **k: nextn_body(*a, **k, position_ids=at)
        h = nextn(rows, hidden)[:, -1:]
        logits = model.lm_head(h)[0, 0]
        top = logits.sort(descending=True)
        best.append(top.indices[:RANKS].tolist())
        logp.append(logits.log_softmax(-1)[best[-1]].tolist())
        hidden = torch.cat([hidden, h], 1)
        rows = torch.cat([rows, model.model.embed_tokens(top.indices[None, :1])], 1)
        at = torch.cat([at, at[:, :, -1:] + 1], 2)
    return np.array(best), np.array(logp)


def main():
    model, _ = make("qwen35")
    rows, at = prompt("qwen35", model)
    logits = model.lm_head(hidden_of(model, rows, at))[0]
    model.double()
    wide = model.lm_head(hidden_of(model, rows.double(), at))[0]
    print(f"f32 against f64: {float((logits - wide).abs().max()):.1e}; text's places end at {at[:, 0, -1].tolist()}")
    model, nextn = make("qwen35-nextn")
    best, logp = drafts(model, nextn, *prompt("qwen35-nextn", model))
    print(f"drafts: {best[:, 0].tolist()}, gaps {[round(float(x), 4) for x in (logp[:, :-1] - logp[:, 1:]).min(1)]}")
    out = np.concatenate([logits[:, :COLS].numpy().ravel(), best.ravel(), logp.ravel()]).astype("<f4")
    if "--check" in sys.argv:
        worst = float(np.abs(np.fromfile(PATH, "<f4") - out).max())
        print(f"{PATH}: {worst:g} apart")
        sys.exit(worst > 1e-4)
    out.tofile(PATH)


if __name__ == "__main__":
    main()
