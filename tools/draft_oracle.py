"""Compares the drafters of tools/demo with classes of transformers, on random weights, in f32.

    python3 tools/draft_oracle.py

- The MTP assistant with `Gemma4AssistantForCausalLM`: four steps of a round.
- The DFlash drafter with `MuseGlimmerAssistantModel`, the class of transformers with the same arithmetic. Its
  masks are imposed: in sliding layers ours are causal inside the block, and the window excludes its far end.
  Norm weights are far from 1, so that a norm too few or too many shows.

Exit status 0: both agree within 1e-3, or transformers is not installed (which is said).
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo"))
try:
    import torch
    import transformers
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, MuseGlimmerAssistantConfig
    from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(0)

import drafters
import model as M

PAST = 200


def shaken(x):
    """Norm weights and scalars away from 1."""
    g = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in x.parameters():
            if p.dim() == 1:
                p.mul_(torch.empty_like(p).uniform_(0.5, 1.5, generator=g))
    return x.eval().requires_grad_(False)


def differ(name, ours, theirs):
    d = float((ours - theirs).abs().max())
    print(f"{name}: largest difference {d:.1e}, deviation {float(theirs.std()):.2f}, transformers {transformers.__version__}")
    return d < 1e-3


def check_mtp(m):
    ours = shaken(drafters.Assistant())
    config = drafters.mtp_config()
    theirs = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(**{k: v for k, v in config.items() if k != "architectures"})).eval()
    missing, extra = theirs.load_state_dict(ours.fold(), strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    theirs.tie_weights()
    kv = {il: tuple(torch.randn(PAST, a.kv, a.hd) for _ in range(2)) for il in drafters.DONOR.values() for a in [m.model.layers[il].self_attn]}
    h, token = torch.randn(256), 77
    mine = ours.plain(m, kv, h, token)
    window = drafters.MTP["sliding_window"]
    far = PAST - torch.arange(PAST)
    masks = {"full_attention": torch.zeros(1, 1, 1, PAST),
             "sliding_attention": torch.zeros(1, 1, 1, PAST).masked_fill(far >= window, torch.finfo(torch.float32).min)}
    theirs.create_attention_masks = lambda *a, **k: masks
    shared = {kind: tuple(x.transpose(0, 1)[None] for x in kv[il]) for kind, il in drafters.DONOR.items()}
    out, h = [], h[None, None]
    with torch.no_grad():
        for _ in range(len(mine)):
            e = drafters.embed(m, torch.tensor([[token]]))
            o = theirs(inputs_embeds=torch.cat((e, h), -1), position_ids=torch.tensor([[PAST]]), shared_kv_states=shared)
            out.append(o.logits[0, 0])
            h, token = o.last_hidden_state, int(o.logits[0, 0].argmax())
    return differ("mtp, 4 steps", mine, torch.stack(out))


def check_dflash(m):
    ours = shaken(drafters.DFlash())
    c = drafters.DFLASH
    theirs = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(
        hidden_size=c["hidden_size"], intermediate_size=c["intermediate_size"], num_hidden_layers=len(c["layer_types"]),
        num_attention_heads=c["num_attention_heads"], num_key_value_heads=c["num_key_value_heads"], head_dim=c["head_dim"], rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]}, sliding_window=c["sliding_window"], layer_types=c["layer_types"],
        block_size=c["block_size"], mask_token_id=c["mask_token_id"], target_layer_ids=c["target_layer_ids"])).eval()
    state = {{"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}.get(k, k): v for k, v in ours.fold().items()}
    missing, extra = theirs.load_state_dict(state, strict=False)
    assert not extra and not missing, (missing, extra)
    features = torch.randn(PAST, len(c["target_layer_ids"]) * c["hidden_size"])
    mine = ours.plain(m, features, 77)
    n = c["block_size"]
    ids = torch.full((1, n), c["mask_token_id"])
    ids[0, 0] = 77
    at, key = PAST + torch.arange(n)[:, None], torch.arange(PAST + n)
    slides = (key <= at) & (at - key < c["sliding_window"])
    low = torch.finfo(torch.float32).min
    masks = {"full_attention": torch.zeros(1, 1, n, PAST + n), "sliding_attention": torch.zeros(1, 1, n, PAST + n).masked_fill(~slides, low)}
    with torch.no_grad():
        o = theirs(noise_embeds=drafters.embed(m, ids), context_hidden_states=features[None], position_ids=torch.arange(PAST + n)[None],
                   attention_mask=masks, past_key_values=None, use_cache=False)
        return differ("dflash, one block", mine, m.logits(o.last_hidden_state[0]))


def main():
    torch.manual_seed(1)
    M.exact = True
    m = M.Model().requires_grad_(False)
    return 0 if check_mtp(m) & check_dflash(m) else 1


if __name__ == "__main__":
    sys.exit(main())
