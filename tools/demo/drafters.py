"""The drafters of the demo model in PyTorch: a DFlash block drafter and an MTP assistant.

Parameter names, shapes and arithmetic are those of `DFlashDraftModel` and `Gemma4AssistantForCausalLM`;
`tools/draft_oracle.py` compares them with classes of transformers. Both drafters see a batch of the target
(`Seen`): rows of whole documents, computed once. An anchor is a place in it where a round of speculation
begins: the token there is the last one emitted, and only what lies before it has features, keys and values.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import model as M
from model import CONFIG, Norm, linear, rms, rotate

DFLASH = dict(hidden_size=256, layer_types=["sliding_attention", "sliding_attention", "full_attention"], num_attention_heads=4,
              num_key_value_heads=2, head_dim=128, intermediate_size=512, sliding_window=96, rope_theta=1e6, block_size=8,
              target_layer_ids=[1, 2, 4, 6], mask_token_id=4)
MTP = dict(hidden_size=128, backbone_hidden_size=256, intermediate_size=256, num_attention_heads=4, head_dim=128, global_head_dim=256,
           layer_types=["sliding_attention"] * 3 + ["full_attention"], vocab_size=2048, sliding_window=128)
DONOR = {"sliding_attention": 6, "full_attention": 7}       # the target's last layer of each type
NEVER = -1e30


def attend(q, k, v, mask, scale):
    """softmax(scale q k) v. q [b, n, heads, size], k and v [b, m, kv heads, size], mask [b, n, m]: what is seen."""
    b, n, h, d = q.shape
    m, kv = k.shape[1], k.shape[2]
    g = h // kv
    q = q.to(k.dtype).reshape(b, n, kv, g, d).permute(0, 2, 3, 1, 4).reshape(b, kv, g * n, d)
    s = (q @ k.permute(0, 2, 3, 1)).float().reshape(b, kv, g, n, m) * scale
    p = s.masked_fill(~mask[:, None, None], NEVER).softmax(-1).to(v.dtype)
    o = p.reshape(b, kv, g * n, m) @ v.permute(0, 2, 1, 3)
    return o.reshape(b, kv, g, n, d).permute(0, 3, 1, 2, 4).reshape(b, n, h, d)


def rows_of(x):
    """Elements in the precision of products."""
    return x.to(torch.bfloat16) if x.is_cuda and not M.exact else x.float()


# ---- the target -----------------------------------------------------------------------------------

def target(m, ids, pos, see, taps=()):
    """A pass of the target over flat tokens: hidden states after the last norm, and the features of the layers `taps`.
    see(il, q, k, v) is attention: it gets queries, keys and values [n, heads, size] of layer il, and gives [n, heads, size]."""
    x = F.embedding(ids, m.model.embed_tokens.weight) * m.c["hidden_size"] ** 0.5
    rope = [(getattr(m, f"cos{i}")[pos], getattr(m, f"sin{i}")[pos]) for i in (0, 1)]
    features = []
    for il, layer in enumerate(m.model.layers):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), rope)
        o = see(il, q, k, v).reshape(len(ids), -1)
        x, _ = layer.rest(x, linear(o, layer.self_attn.o_proj.weight))
        if il in taps:
            features.append(x)
    return m.model.norm(x), features


class Seen:
    """A batch [b, t] of documents: ids, starts of the documents (as offsets into the flat batch), and what the target computed."""
    fast = True

    def __init__(self, m, ids, lens, taps):
        """lens: lengths of the documents; those of each row fill it."""
        self.m, self.dev = m, ids.device
        self.b, self.t = ids.shape
        self.ids = ids.reshape(-1)
        n = torch.as_tensor(lens, device=self.dev)
        cu = torch.cat((n.new_zeros(1), n.cumsum(0)))
        self.start = torch.repeat_interleave(cu[:-1], n, output_size=self.b * self.t)
        self.end = torch.repeat_interleave(cu[1:], n, output_size=self.b * self.t)
        self.pos = torch.arange(self.b * self.t, device=self.dev) - self.start
        M.Batch.cu, M.Batch.max_len = cu.to(torch.int32), int(max(lens))
        self.kv = {}

        def see(il, q, k, v):
            a = m.model.layers[il].self_attn
            if il in DONOR.values():
                self.kv[il] = (rows_of(k), rows_of(v))
            g = a.h // a.kv
            k, v = (x[:, :, None].expand(-1, a.kv, g, a.hd).reshape(-1, a.h, a.hd) for x in (k, v))
            if q.is_cuda and not M.exact and Seen.fast:
                try:
                    return M.attend(*(x.to(torch.bfloat16).contiguous() for x in (q, k, v)), a.window)[0]
                except (RuntimeError, TypeError) as e:
                    print(f"no flash attention: {e}", flush=True)
                    Seen.fast = False
            return M.attend_plain(q.float(), k.float(), v.float(), a.window)

        with torch.no_grad():
            self.h, f = target(m, self.ids, self.pos, see, taps)
            self.features = torch.cat(f, -1) if f else None

    def before(self, at, n):
        """Offsets [g, n] of the n tokens before each anchor, the nearest last, and whether each is in the anchor's document."""
        i = at[:, None] + torch.arange(-n, 0, device=self.dev)
        return i.clamp(min=0), i >= self.start[at][:, None]

    def whole(self, at):
        """[b, a, t]: the keys of its row that each anchor sees in a full layer."""
        i = torch.arange(self.b * self.t, device=self.dev).view(self.b, 1, self.t)
        at = at.view(self.b, -1, 1)
        return (i < at) & (i >= self.start[at])


def embed(m, ids):
    return F.embedding(ids, m.model.embed_tokens.weight) * m.c["hidden_size"] ** 0.5


# ---- DFlash ---------------------------------------------------------------------------------------

class Part(nn.Module):
    """Named parts of a layer, as in the checkpoints."""


def product(out, inp, gain=1.0):
    w = nn.Linear(inp, out, bias=False)
    nn.init.normal_(w.weight, std=gain * inp ** -0.5)
    return w


def uneven(n):
    """A norm whose weights start between 0.6 and 1.6. A norm applied once too often or not at all then shows in the acceptance."""
    x = Norm(n)
    with torch.no_grad():
        x.weight.copy_(torch.exp(torch.empty(n).uniform_(math.log(0.6), math.log(1.6))))
    return x


class BlockLayer(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        d, hd, ff = c["hidden_size"], c["head_dim"], c["intermediate_size"]
        self.h, self.kv, self.hd, self.full = c["num_attention_heads"], c["num_key_value_heads"], hd, full
        self.self_attn, self.mlp = Part(), Part()
        a = self.self_attn
        a.q_proj, a.k_proj, a.v_proj = product(self.h * hd, d), product(self.kv * hd, d), product(self.kv * hd, d)
        a.o_proj, a.q_norm, a.k_norm = product(d, self.h * hd, 0.5), Norm(hd), Norm(hd)
        self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = product(ff, d), product(ff, d), product(d, ff, 0.5)
        self.input_layernorm, self.post_attention_layernorm = uneven(d), uneven(d)

    def queries(self, y, rope):
        n = y.shape[:-1]
        return rotate(self.self_attn.q_norm(linear(y, self.self_attn.q_proj.weight).view(*n, self.h, self.hd)), *rope)

    def keys(self, y, rope):
        n = y.shape[:-1]
        k = rotate(self.self_attn.k_norm(linear(y, self.self_attn.k_proj.weight).view(*n, self.kv, self.hd)), *rope)
        return rows_of(k), rows_of(linear(y, self.self_attn.v_proj.weight).view(*n, self.kv, self.hd))

    def rest(self, x, o):
        x = x + linear(o.flatten(-2), self.self_attn.o_proj.weight)
        y = self.post_attention_layernorm(x)
        a = F.silu(linear(y, self.mlp.gate_proj.weight)) * linear(y, self.mlp.up_proj.weight)
        return x + linear(a, self.mlp.down_proj.weight)


class DFlash(nn.Module):
    """fc is trained on features divided by their mean size (`size`, one number per tap); `fold` multiplies that in."""

    def __init__(self, c=DFLASH):
        super().__init__()
        self.c = c
        d, f = c["hidden_size"], len(c["target_layer_ids"])
        self.layers = nn.ModuleList(BlockLayer(c, t == "full_attention") for t in c["layer_types"])
        self.fc, self.hidden_norm, self.norm = product(d, f * d), uneven(d), uneven(d)
        self.register_buffer("size", torch.ones(f * d), persistent=False)
        hd = c["head_dim"]
        inv = c["rope_theta"] ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
        a = (torch.arange(CONFIG["max_position_embeddings"] + c["block_size"], dtype=torch.float64)[:, None] * inv).repeat(1, 2)
        self.register_buffer("cos", a.cos().float()[:, None], persistent=False)
        self.register_buffer("sin", a.sin().float()[:, None], persistent=False)

    def start_from(self, m, features):
        """Sizes of the features; the final norm starts like the target's, since the head is the target's, but with small logits."""
        with torch.no_grad():
            f = features.float().view(len(features), len(self.c["target_layer_ids"]), -1)
            self.size.copy_(f.pow(2).mean((0, 2)).rsqrt().repeat_interleave(f.shape[2]))
            self.norm.weight.mul_(0.25 * m.model.norm.weight)

    @torch.no_grad()
    def fold(self):
        """The state dict of a checkpoint: fc takes the features as they are."""
        state = {k: v.detach().float().clone() for k, v in self.state_dict().items()}
        state["fc.weight"] *= self.size
        return state

    def context(self, features):
        return self.hidden_norm(linear(features * self.size, self.fc.weight))

    def rope(self, pos):
        return self.cos[pos], self.sin[pos]

    def hidden(self, seen, at):
        """Hidden states [g, slots, d] of blocks at the anchors `at` [b * a], the same number a in every row."""
        c, n, w = self.c, self.c["block_size"], self.c["sliding_window"]
        g, b, t = len(at), seen.b, seen.t
        dev = at.device
        slot = torch.arange(n, device=dev)
        ids = torch.full((g, n), c["mask_token_id"], device=dev)
        ids[:, 0] = seen.ids[at]
        x = embed(seen.m, ids)
        rope = self.rope(seen.pos[at][:, None] + slot)
        ctx = self.context(seen.features)
        ctx_rope = self.rope(seen.pos)
        near, inside = seen.before(at, w - 1)
        far = slot[:, None] + torch.arange(w - 1, 0, -1, device=dev)            # distance of a query slot to each near key
        slides = torch.cat((inside[:, None] & (far < w), (slot[:, None] >= slot).expand(g, n, n)), -1)
        a = g // b
        block = torch.arange(a * n, device=dev) // n
        whole = torch.cat((seen.whole(at).repeat_interleave(n, 1), (block[:, None] == block).expand(b, -1, -1)), -1)
        for layer in self.layers:
            y = layer.input_layernorm(x)
            q = layer.queries(y, rope)
            kb, vb = layer.keys(y, rope)
            kc, vc = layer.keys(ctx, ctx_rope)
            if layer.full:
                kv = layer.kv, layer.hd
                k, v = (torch.cat((i.reshape(b, t, *kv), j.reshape(b, a * n, *kv)), 1) for i, j in ((kc, kb), (vc, vb)))
                o = attend(q.reshape(b, a * n, layer.h, layer.hd), k, v, whole, layer.hd ** -0.5).reshape(g, n, layer.h, layer.hd)
            else:
                o = attend(q, torch.cat((kc[near], kb), 1), torch.cat((vc[near], vb), 1), slides, layer.hd ** -0.5)
            x = layer.rest(x, o)
        return self.norm(x)

    def logits(self, seen, at):
        """Logits [g, slots - 1, vocabulary] of the drafted slots."""
        return seen.m.logits(self.hidden(seen, at)[:, 1:])

    @torch.no_grad()
    def plain(self, m, features, token):
        """One block after the given features, written without batches: logits [slots, vocabulary]. The definition."""
        c, n, past = self.c, self.c["block_size"], len(features)
        ids = torch.full((n,), c["mask_token_id"], device=features.device)
        ids[0] = token
        x, ctx = embed(m, ids), self.context(features)
        here, there = self.rope(torch.arange(past, past + n)), self.rope(torch.arange(past))
        for layer in self.layers:
            y = layer.input_layernorm(x)
            q, (kb, vb), (kc, vc) = layer.queries(y, here), layer.keys(y, here), layer.keys(ctx, there)
            k, v, out = torch.cat((kc, kb)), torch.cat((vc, vb)), []
            for i in range(n):
                p = torch.arange(past + n, device=features.device)
                seen = torch.ones_like(p, dtype=torch.bool) if layer.full else (p <= past + i) & (past + i - p < c["sliding_window"])
                for h in range(layer.h):
                    kh = h // (layer.h // layer.kv)
                    s = (k[seen, kh].float() @ q[i, h].float()) / math.sqrt(layer.hd)
                    out.append(s.softmax(0) @ v[seen, kh].float())
            x = layer.rest(x, torch.stack(out).view(n, layer.h, layer.hd))
        return m.logits(self.norm(x))


# ---- MTP --------------------------------------------------------------------------------------------

class AssistantLayer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        d, ff, self.kind, self.h = c["hidden_size"], c["intermediate_size"], kind, c["num_attention_heads"]
        self.hd = hd = c["global_head_dim" if kind == "full_attention" else "head_dim"]
        self.self_attn, self.mlp = Part(), Part()
        # The scale of the attention is 1, as in the target: the norm starts small.
        self.self_attn.q_proj, self.self_attn.o_proj = product(self.h * hd, d), product(d, self.h * hd)
        self.self_attn.q_norm = Norm(hd, hd ** -0.25)
        self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = product(ff, d), product(ff, d), product(d, ff)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            setattr(self, name, uneven(d))
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x, rope, see):
        n = x.shape[:-1]
        q = linear(self.input_layernorm(x), self.self_attn.q_proj.weight).view(*n, self.h, self.hd)
        o = see(self.kind, rotate(self.self_attn.q_norm(q), *rope[self.kind]))
        x = x + self.post_attention_layernorm(linear(o.flatten(-2), self.self_attn.o_proj.weight))
        y = self.pre_feedforward_layernorm(x)
        a = F.gelu(linear(y, self.mlp.gate_proj.weight), approximate="tanh") * linear(y, self.mlp.up_proj.weight)
        return (x + self.post_feedforward_layernorm(linear(a, self.mlp.down_proj.weight))) * self.layer_scalar


class Assistant(nn.Module):
    """The two projections are trained on vectors divided by their mean size (`size`); `fold` multiplies that in."""

    def __init__(self, c=MTP):
        super().__init__()
        self.c = c
        d, hb = c["hidden_size"], c["backbone_hidden_size"]
        self.pre_projection, self.post_projection = product(d, 2 * hb), product(hb, d)
        self.model = Part()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], d)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.05)
        self.model.layers = nn.ModuleList(AssistantLayer(c, t) for t in c["layer_types"])
        self.model.norm = uneven(d)
        self.register_buffer("size", torch.ones(2), persistent=False)           # 1 / size of embeddings, 1 / size of hidden states

    def start_from(self, m, h):
        with torch.no_grad():
            self.size[0] = embed(m, torch.arange(CONFIG["vocab_size"], device=h.device)).float().pow(2).mean().rsqrt()
            self.size[1] = h.float().pow(2).mean().rsqrt()

    @torch.no_grad()
    def fold(self):
        state = {k: v.detach().float().clone() for k, v in self.state_dict().items()}
        hb = self.c["backbone_hidden_size"]
        state["pre_projection.weight"][:, :hb] *= self.size[0]
        state["pre_projection.weight"][:, hb:] *= self.size[1]
        state["post_projection.weight"] /= self.size[1]
        return state

    def step(self, m, token, h, rope, see):
        """One step: logits, and the vector for the next step."""
        x = torch.cat((embed(m, token) * self.size[0], h.float() * self.size[1]), -1)
        x = linear(x, self.pre_projection.weight).float()
        for layer in self.model.layers:
            x = layer(x, rope, see)
        x = self.model.norm(x)
        return linear(x, self.model.embed_tokens.weight).float(), linear(x, self.post_projection.weight).float() / self.size[1]

    def rope(self, m, pos):
        return {"full_attention": (m.cos0[pos], m.sin0[pos]), "sliding_attention": (m.cos1[pos], m.sin1[pos])}

    def logits(self, seen, at, tokens=None, steps=4):
        """Logits [g, steps, vocabulary] of rounds at the anchors. tokens [g, steps - 1] are the inputs of the later steps; None: the
        best of the step before."""
        m, b, g = seen.m, seen.b, len(at)
        near, inside = seen.before(at, self.c["sliding_window"] - 1)
        ks, vs = (x[near] for x in seen.kv[DONOR["sliding_attention"]])
        kf, vf = (x.reshape(b, seen.t, *x.shape[1:]) for x in seen.kv[DONOR["full_attention"]])
        whole, near_mask = seen.whole(at), inside[:, None]
        rope = self.rope(m, seen.pos[at])

        def see(kind, q):
            if kind == "full_attention":
                return attend(q.reshape(b, g // b, *q.shape[1:]), kf, vf, whole, 1.0).reshape(q.shape)
            return attend(q[:, None], ks, vs, near_mask, 1.0)[:, 0]

        token, h, out = seen.ids[at], seen.h[at - 1], []
        for k in range(steps):
            z, h = self.step(m, token, h, rope, see)
            out.append(z)
            if k + 1 < steps:
                token = z.argmax(-1) if tokens is None else tokens[:, k]
        return torch.stack(out, 1)

    @torch.no_grad()
    def plain(self, m, kv, h, token, steps=4):
        """A round after the cached keys and values kv {layer: (k, v)} of the target, written without batches: logits [steps, vocabulary]."""
        past, out = len(kv[DONOR["full_attention"]][0]), []
        rope = {kind: tuple(x[None] for x in r) for kind, r in self.rope(m, torch.tensor(past)).items()}

        def see(kind, q):
            k, v = kv[DONOR[kind]]
            first = max(0, past - self.c["sliding_window"] + 1) if kind == "sliding_attention" else 0
            heads = []
            for i in range(q.shape[1]):
                j = i // (q.shape[1] // k.shape[1])
                s = k[first:, j].float() @ q[0, i].float()
                heads.append(s.softmax(0) @ v[first:, j].float())
            return torch.stack(heads)[None]

        h, token = h[None], torch.tensor([int(token)], device=h.device)
        for _ in range(steps):
            z, h = self.step(m, token, h, rope, see)
            out.append(z[0])
            token = z.argmax(-1)
        return torch.stack(out)


# ---- checkpoints ------------------------------------------------------------------------------------

def dflash_config(c=DFLASH):
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "float32", "hidden_size": c["hidden_size"],
        "num_hidden_layers": len(c["layer_types"]), "num_attention_heads": c["num_attention_heads"],
        "num_key_value_heads": c["num_key_value_heads"], "head_dim": c["head_dim"], "intermediate_size": c["intermediate_size"],
        "hidden_act": "silu", "vocab_size": CONFIG["vocab_size"], "rms_norm_eps": 1e-6, "rope_theta": c["rope_theta"], "rope_scaling": None,
        "max_position_embeddings": CONFIG["max_position_embeddings"], "attention_bias": False, "block_size": c["block_size"],
        "num_target_layers": CONFIG["num_hidden_layers"], "layer_types": c["layer_types"], "sliding_window": c["sliding_window"],
        "use_sliding_window": True, "max_window_layers": len(c["layer_types"]), "final_logit_softcapping": CONFIG["final_logit_softcapping"],
        "tie_word_embeddings": True, "dflash_config": {"target_layer_ids": c["target_layer_ids"], "mask_token_id": c["mask_token_id"]},
    }


def mtp_config(c=MTP):
    return {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "dtype": "float32",
        "backbone_hidden_size": c["backbone_hidden_size"], "use_ordered_embeddings": False, "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma4_text", "vocab_size": c["vocab_size"], "vocab_size_per_layer_input": 0, "hidden_size": c["hidden_size"],
            "hidden_size_per_layer_input": 0, "intermediate_size": c["intermediate_size"], "num_hidden_layers": len(c["layer_types"]),
            "layer_types": c["layer_types"], "num_attention_heads": c["num_attention_heads"],
            "num_key_value_heads": CONFIG["num_key_value_heads"], "num_global_key_value_heads": CONFIG["num_global_key_value_heads"],
            "head_dim": c["head_dim"], "global_head_dim": c["global_head_dim"], "attention_k_eq_v": True, "attention_bias": False,
            "sliding_window": c["sliding_window"], "num_kv_shared_layers": len(c["layer_types"]), "enable_moe_block": False,
            "use_double_wide_mlp": False, "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None, "rms_norm_eps": 1e-6,
            "max_position_embeddings": CONFIG["max_position_embeddings"], "tie_word_embeddings": True, "bos_token_id": 2,
            "eos_token_id": 1, "pad_token_id": 0,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": CONFIG["rope_theta_sliding"]},
                "full_attention": {"rope_type": "proportional", "rope_theta": CONFIG["rope_theta_full"],
                                   "partial_rotary_factor": CONFIG["partial_rotary_factor"]}}},
    }
