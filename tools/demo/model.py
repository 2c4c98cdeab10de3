"""The demo model as a plain PyTorch module, built for fast training.

The parameter names, shapes and arithmetic are those of `Gemma4ForCausalLM` (transformers), so a
state dict saved here loads there unchanged; `export.py check` compares the logits of the two. What
differs is the layout of a batch: documents of any lengths lie one after the other in one flat row
of tokens, attention never crosses from one document into the next, and positions restart at 0.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = dict(
    vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=8,
    layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
    num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1,
    head_dim=128, global_head_dim=256, sliding_window=128,
    num_experts=8, top_k_experts=2, moe_intermediate_size=128,
    max_position_embeddings=32768, rms_norm_eps=1e-6, final_logit_softcapping=30.0,
    rope_theta_sliding=1e4, rope_theta_full=1e6, partial_rotary_factor=0.25,
)


class Batch:
    """What the attention kernels must know about the documents of the current batch."""
    cu = None          # int32 offsets of the documents in the flat row, on the device
    max_len = 0        # length of the longest document


# ---- attention over documents of different lengths -------------------------------------------

@torch.library.custom_op("demo::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention with scale 1. q, k, v are [tokens, heads, size]; window 0 means global."""
    left = window - 1 if window else -1
    out, lse, _, _, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, Batch.cu, Batch.cu, Batch.max_len, Batch.max_len, 0.0, not window, False,
        scale=1.0, window_size_left=left, window_size_right=0)
    return out, lse


@attend.register_fake
def _(q, k, v, window):
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("demo::attend_backward", mutates_args=())
def attend_backward(g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    lse: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    left = window - 1 if window else -1
    rng = torch.zeros(2, dtype=torch.uint64, device=q.device)
    unused = torch.empty(0, device=q.device)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        g.contiguous(), q, k, v, out, lse, Batch.cu, Batch.cu, Batch.max_len, Batch.max_len, 0.0, not window,
        rng, unused, scale=1.0, window_size_left=left, window_size_right=0)
    return dq, dk, dv


@attend_backward.register_fake
def _(g, q, k, v, out, lse, window):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx, inputs, output):
    q, k, v, window = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.window = window


def _backward(ctx, g, _):
    q, k, v, out, lse = ctx.saved_tensors
    return *attend_backward(g, q, k, v, out, lse, ctx.window), None


attend.register_autograd(_backward, setup_context=_setup)


def attend_plain(q, k, v, window):
    """The same for a machine without a GPU: one document after the other, windows in blocks."""
    cut, out = Batch.cu.tolist(), []
    for lo, hi in zip(cut, cut[1:]):
        a, b, c = (t[lo:hi].transpose(0, 1)[None] for t in (q, k, v))
        if not window:
            out.append(F.scaled_dot_product_attention(a, b, c, is_causal=True, scale=1.0)[0].transpose(0, 1))
            continue
        for i in range(0, hi - lo, 256):
            j, n = max(0, i - window + 1), min(i + 256, hi - lo)
            far = torch.arange(i, n, device=q.device)[:, None] - torch.arange(j, n, device=q.device)
            o = F.scaled_dot_product_attention(a[:, :, i:n], b[:, :, j:n], c[:, :, j:n], attn_mask=(far >= 0) & (far < window), scale=1.0)
            out.append(o[0].transpose(0, 1))
    return torch.cat(out)


# ---- the model ----------------------------------------------------------------------------------

class Norm(nn.Module):
    def __init__(self, n, start=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((n,), float(start)))

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, 1e-6)


def rms(x):
    return F.rms_norm(x.float(), x.shape[-1:], None, 1e-6)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


exact = False       # products in f32 on a GPU too


def linear(x, w):
    """Matrix product in bf16 (f32 on a CPU or if `exact`); the weights themselves stay f32."""
    t = torch.bfloat16 if x.is_cuda and not exact else torch.float32
    return F.linear(x.to(t), w.to(t))


class Attention(nn.Module):
    def __init__(self, c, il):
        super().__init__()
        full = c["layer_types"][il] == "full_attention"
        self.hd = hd = c["global_head_dim"] if full else c["head_dim"]
        self.h, self.kv = c["num_attention_heads"], c["num_global_key_value_heads" if full else "num_key_value_heads"]
        self.window = 0 if full else c["sliding_window"]
        d = c["hidden_size"]
        self.q_proj = nn.Linear(d, self.h * hd, bias=False)
        self.k_proj = nn.Linear(d, self.kv * hd, bias=False)
        self.v_proj = None if full else nn.Linear(d, self.kv * hd, bias=False)
        self.o_proj = nn.Linear(self.h * hd, d, bias=False)
        # The scale of Gemma 4 attention is 1: with norms that start at 1 the logits would start
        # with a deviation of sqrt(hd) and nothing would ever be learned.
        self.q_norm, self.k_norm = Norm(hd, hd ** -0.25), Norm(hd, hd ** -0.25)

    def project(self, x, rope):
        """Queries [n, h, hd], keys and values [n, kv, hd]."""
        n = x.shape[0]
        cos, sin = rope[self.window != 0]
        q = rotate(self.q_norm(linear(x, self.q_proj.weight).view(n, self.h, self.hd)), cos, sin)
        k = linear(x, self.k_proj.weight).view(n, self.kv, self.hd)
        v = rms(k if self.v_proj is None else linear(x, self.v_proj.weight).view(n, self.kv, self.hd))
        return q, rotate(self.k_norm(k), cos, sin), v

    def forward(self, x, rope):
        n = x.shape[0]
        q, k, v = self.project(x, rope)
        g = self.h // self.kv
        k, v = (t[:, :, None].expand(n, self.kv, g, self.hd).reshape(n, self.h, self.hd) for t in (k, v))
        if x.is_cuda:
            t = torch.bfloat16
            o, _ = attend(q.to(t).contiguous(), k.to(t).contiguous(), v.to(t).contiguous(), self.window)
        else:
            o = attend_plain(q, k, v, self.window)
        return linear(o.reshape(n, -1), self.o_proj.weight)


class Mlp(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        a = F.gelu(linear(x, self.gate_proj.weight), approximate="tanh") * linear(x, self.up_proj.weight)
        return linear(a, self.down_proj.weight)


class Router(nn.Module):
    def __init__(self, d, e, top):
        super().__init__()
        self.proj = nn.Linear(d, e, bias=False)
        self.scale, self.per_expert_scale = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(e))
        self.top, self.root = top, d ** -0.5

    def forward(self, x):
        """Weight of every expert for every token [n, e], zero outside the chosen ones; balance loss."""
        p = F.linear(rms(x) * self.scale * self.root, self.proj.weight).softmax(-1)
        kept = p >= p.topk(self.top, -1).values[:, -1:]
        w = torch.where(kept, p, 0.0)
        w = w / w.sum(-1, keepdim=True)
        balance = (kept.float().mean(0) * p.mean(0)).sum() * p.shape[1] / self.top
        return w * self.per_expert_scale, balance


class Experts(nn.Module):
    """All experts run on all tokens and a zero weight silences the rest: at this size that is faster."""

    def __init__(self, d, e, f):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Parameter(torch.empty(e, 2 * f, d)), nn.Parameter(torch.empty(e, d, f))

    def forward(self, x, w):
        e, f2, d = self.gate_up_proj.shape
        g, u = linear(x, self.gate_up_proj.reshape(e * f2, d)).view(-1, e, 2, f2 // 2).unbind(2)
        a = F.gelu(g, approximate="tanh") * u * w[:, :, None].to(g.dtype)
        return linear(a.reshape(-1, e * f2 // 2), self.down_proj.permute(1, 0, 2).reshape(d, e * f2 // 2))


class Layer(nn.Module):
    def __init__(self, c, il):
        super().__init__()
        d = c["hidden_size"]
        self.self_attn = Attention(c, il)
        self.mlp = Mlp(d, c["intermediate_size"])
        self.router = Router(d, c["num_experts"], c["top_k_experts"])
        self.experts = Experts(d, c["num_experts"], c["moe_intermediate_size"])
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm", "post_feedforward_layernorm_1",
                     "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
            setattr(self, name, Norm(d))
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x, rope):
        return self.rest(x, self.self_attn(self.input_layernorm(x), rope))

    def rest(self, x, o):
        """What follows the attention, whose output is o: the new x, and the balance loss."""
        x = x + self.post_attention_layernorm(o)
        dense = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x)))
        w, balance = self.router(x)
        moe = self.post_feedforward_layernorm_2(self.experts(self.pre_feedforward_layernorm_2(x), w))
        x = x + self.post_feedforward_layernorm(dense + moe)
        return x * self.layer_scalar, balance


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])


def rope_table(c, full, n):
    """cos and sin [n, 1, head size] for positions 0..n-1; global layers rotate the first pairs only."""
    hd = c["global_head_dim"] if full else c["head_dim"]
    theta = c["rope_theta_full"] if full else c["rope_theta_sliding"]
    inv = theta ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
    if full:
        inv[int(hd // 2 * c["partial_rotary_factor"]):] = 0
    a = (torch.arange(n, dtype=torch.float64)[:, None] * inv).repeat(1, 2)
    return a.cos().float()[:, None], a.sin().float()[:, None]


class Model(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.c = c
        self.model = Body(c)
        for i, full in enumerate((True, False)):
            cos, sin = rope_table(c, full, c["max_position_embeddings"])
            self.register_buffer(f"cos{i}", cos, persistent=False)
            self.register_buffer(f"sin{i}", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.05 if "embed" in name else 0.8 * p.shape[-1] ** -0.5)

    def forward(self, ids, pos):
        """Hidden states [n, d] after the last norm, and the mean balance loss of the routers."""
        m = self.model
        x = F.embedding(ids, m.embed_tokens.weight) * self.c["hidden_size"] ** 0.5
        rope = [(getattr(self, f"cos{i}")[pos], getattr(self, f"sin{i}")[pos]) for i in (0, 1)]
        balance = 0.0
        for layer in m.layers:
            x, b = layer(x, rope)
            balance = balance + b
        return m.norm(x), balance / len(m.layers)

    def logits(self, x):
        cap = self.c["final_logit_softcapping"]
        return cap * torch.tanh(linear(x, self.model.embed_tokens.weight).float() / cap)

    def loss(self, ids, pos, target, weight):
        x, balance = self(ids, pos)
        ce = F.cross_entropy(self.logits(x), target, reduction="none")
        answer = weight > 0.5
        shown = (ce * answer).sum().detach() / answer.sum().clamp(min=1)
        return (ce * weight).sum() / weight.sum() + 0.003 * balance, shown, balance.detach()
