"""Records everything that the tables of families decide, and compares two records.

    python3 tools/family_oracle.py record CARAT OUT.json [synth] [logits] [files] [convert] [=WORD]
    python3 tools/family_oracle.py compare OLD.json NEW.json

Without names of parts all four are recorded; =WORD: of sizes and checkpoints whose names hold WORD.

- synth: every small size of every family and drafter, in several types and all dialects, and one layer of
  each published size: hashes of the files.
- logits: of every small model: a hash of their bits.
- files: `carat inspect` of every small file, and of the same file with each key left out, doubled, halved,
  negative, of another type, as a list; with tensors left out, one row shorter, or a tensor more.
- convert: checkpoints made here for each family, and the same with each field of config.json left out or
  with a wrong value: hashes of the new files, and the sentences of refusals.

Files and logits must be equal. A sentence that differs is printed with both texts, for a person to judge.
Exit status 1: something differs. Both records come from one machine: random weights depend on its libm.
"""
import copy
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

# ---- GGUF files ----

SIZE = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
CODE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


class Gguf:
    def __init__(self, data):
        self.at, self.data = 24, data
        n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
        self.keys = []
        for _ in range(n_keys):
            key = self.text()
            kind = self.number(U32)
            self.keys.append((key, kind, self.value(kind)))
        self.tensors = []
        for _ in range(n_tensors):
            name, n = self.text(), self.number(U32)
            dims = [self.number(10) for _ in range(n)]
            self.tensors.append((name, dims, self.number(U32), self.number(10)))
        self.body = data[(self.at + 31) // 32 * 32:]

    def number(self, kind):
        v, = struct.unpack_from("<" + CODE[kind], self.data, self.at)
        self.at += SIZE[kind]
        return v

    def text(self):
        n = self.number(10)
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(kind)
        item, n = self.number(U32), self.number(10)
        return item, [self.value(item) for _ in range(n)]


def packed_text(t):
    return struct.pack("<Q", len(t)) + t


def packed(kind, v):
    if kind == STRING:
        return packed_text(v)
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(packed(v[0], x) for x in v[1])
    return struct.pack("<" + CODE[kind], v)


def gguf_bytes(keys, tensors, body):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    out += b"".join(packed_text(k) + struct.pack("<I", t) + packed(t, v) for k, t, v in keys)
    for name, dims, kind, at in tensors:
        out += packed_text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, at)
    return out + b"\0" * (-len(out) % 32) + body


def other_values(kind, v, n_layers):
    if kind in (U32, I32):
        for x in (0, 1, 2, 3, v - 1, v + 1, 2 * v, 300, 600, 1 << 20, (1 << 31) - 1):
            yield I32, x
        yield U32, 0xffffffff
        yield F32, 2.5
        yield STRING, b"x"
        for n in (n_layers, n_layers + 1, 1, 0):
            yield ARRAY, (I32, [v] * n)
        yield ARRAY, (I32, [v] * (n_layers - 1) + [2 * v])
        yield ARRAY, (I32, [2 * v] + [v] * (n_layers - 1))
        yield ARRAY, (I32, [0] * n_layers)
        yield ARRAY, (F32, [1.5] * n_layers)
    elif kind == F32:
        for x in (0.0, -1.0, 1.0, 0.5, 2.0, 1e-9, 1e9, 1e20, float("nan"), float("inf")):
            yield F32, x
        yield I32, 3
        yield STRING, b"x"
    elif kind == BOOL:
        yield BOOL, not v
        yield I32, 7
        yield STRING, b"x"
    elif kind == STRING:
        yield STRING, b"linear"
        yield STRING, b"none"
        yield I32, 1
    elif kind == ARRAY and v[1] and v[0] != STRING:
        yield I32, 1
        yield I32, 2
        yield ARRAY, (v[0], v[1][:-1])
        yield ARRAY, (v[0], v[1] + v[1][:1])
        yield ARRAY, (v[0], v[1][1:] + v[1][:1])
        yield ARRAY, (I32, [int(x) + 1 for x in v[1]])
        yield ARRAY, (I32, [0] * len(v[1]))
        yield ARRAY, (I32, [1] * len(v[1]))
        yield STRING, b"x"


# Keys that synth does not write and that files have.
MORE = [("attention.sliding_window", U32, 0), ("attention.sliding_window", U32, 16), ("rope.dimension_count", U32, 8),
        ("rope.dimension_count", U32, 7), ("rope.scaling.type", STRING, b"linear"), ("rope.scaling.type", STRING, b"ntk"),
        ("rope.scaling.factor", F32, 4.0), ("rope.scaling.factor", F32, 0.0), ("rope.scaling.beta_fast", F32, 0.0),
        ("rope.scaling.attn_factor", F32, 0.0), ("expert_gating_func", U32, 2), ("expert_gating_func", U32, 1),
        ("expert_weights_norm", BOOL, False), ("expert_weights_scale", F32, 2.0), ("expert_shared_count", U32, 0),
        ("decoder_sparse_step", U32, 2), ("dense_layers", U32, 1), ("attention.layer_types", ARRAY, (I32, [1, 0, 0, 0])),
        ("rope.swa.dimension_count", U32, 16), ("rope.swa.freq_base", F32, 5e3), ("nextn_predict_layers", U32, 1),
        ("attention.recurrent_layers", ARRAY, (BOOL, [True] * 8)), ("full_attention_interval", U32, 2)]


def variants(data):
    g = Gguf(data)
    arch = dict((k, v) for k, _, v in g.keys)[b"general.architecture"]
    n = dict((k, v) for k, _, v in g.keys)[arch + b".block_count"]
    yield "as it is", data
    for i, (k, kind, v) in enumerate(g.keys):
        if k.startswith(b"general.") or (k.startswith(b"tokenizer.") and b"mask" not in k):
            continue
        yield f"without {k.decode()}", gguf_bytes(g.keys[:i] + g.keys[i + 1:], g.tensors, g.body)
        for t, x in other_values(kind, v, n):
            try:
                keys = g.keys[:i] + [(k, t, x)] + g.keys[i + 1:]
                yield f"{k.decode()} = {t}:{x}"[:150], gguf_bytes(keys, g.tensors, g.body)
            except struct.error:
                pass
    have = {k for k, _, _ in g.keys}
    for tail, t, x in MORE:
        k = arch + b"." + tail.encode()
        if k not in have:
            yield f"with {k.decode()} = {x}", gguf_bytes(g.keys + [(k, t, x)], g.tensors, g.body)
    for i, (name, dims, kind, at) in enumerate(g.tensors):
        layer = re.match(rb"blk\.(\d+)\.", name)
        if layer and 0 < int(layer[1]) < n - 1:
            continue
        before, after = g.tensors[:i], g.tensors[i + 1:]
        yield f"without {name.decode()}", gguf_bytes(g.keys, before + after, g.body)
        if dims[-1] > 1:
            short = dims[:-1] + [dims[-1] - 1]
            yield f"short {name.decode()}", gguf_bytes(g.keys, before + [(name, short, kind, at)] + after, g.body)
    for name in (b"blk.0.stranger.weight", b"blk.0.attn_q.bias", b"rope_freqs.weight", b"blk.1.attn_k.weight",
                 b"blk.1.ffn_gate_inp.weight", b"blk.99.attn_norm.weight", b"output.weight", b"hc_x.weight"):
        if name not in [t[0] for t in g.tensors]:
            more = g.tensors + [(name, [8], 0, g.tensors[0][3])]
            yield f"with {name.decode()}", gguf_bytes(g.keys, more, g.body)


# ---- Checkpoints ----

QWEN = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_key_value_heads=2, head_dim=32,
            rms_norm_eps=1e-6, max_position_embeddings=4096, hidden_act="silu", attention_bias=False)
QWEN35 = QWEN | dict(num_hidden_layers=8, num_attention_heads=4, linear_num_key_heads=2, linear_num_value_heads=6,
                     linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, attn_output_gate=True,
                     mamba_ssm_dtype="float32", rope_parameters=dict(
                         rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[2, 1, 1],
                         mrope_interleaved=True))
SWA, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
LAGUNA = QWEN | dict(
    model_type="laguna", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=64, sliding_window=16, tie_word_embeddings=False, moe_routed_scaling_factor=2.5,
    rope_parameters={FULL: dict(rope_type="yarn", rope_theta=5e5, partial_rotary_factor=0.5, factor=32.0,
                                original_max_position_embeddings=8192, beta_fast=64.0, beta_slow=1.0),
                     SWA: dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)})
GEMMA = dict(
    model_type="gemma4_text", vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=6,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=4096,
    global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, use_double_wide_mlp=True,
    hidden_size_per_layer_input=8, num_kv_shared_layers=3, sliding_window=8, final_logit_softcapping=30.0,
    hidden_activation="gelu_pytorch_tanh", layer_types=[SWA, SWA, FULL] * 2, enable_moe_block=True, num_experts=4,
    top_k_experts=2, moe_intermediate_size=24,
    rope_parameters={FULL: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
                     SWA: dict(rope_type="default", rope_theta=1e4)})
DFLASH = QWEN | dict(architectures=["DFlashDraftModel"], model_type="qwen3", num_attention_heads=4, num_hidden_layers=3,
                     sliding_window=16, rope_theta=1e6, layer_types=[SWA, SWA, FULL], block_size=8, num_target_layers=8,
                     dflash_config=dict(target_layer_ids=[1, 3, 6], mask_token_id=4))
MTP_TEXT = dict(
    model_type="gemma4_text", hidden_size=64, intermediate_size=96, num_hidden_layers=4, vocab_size=128,
    num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=16, global_head_dim=32,
    sliding_window=8, max_position_embeddings=4096, rms_norm_eps=1e-6, layer_types=[SWA, SWA, SWA, FULL],
    num_kv_shared_layers=4, rope_parameters=GEMMA["rope_parameters"])
CHECKPOINTS = {
    "qwen3": QWEN | dict(model_type="qwen3", num_attention_heads=4, rope_theta=1000000, rope_scaling=None,
                         use_sliding_window=False, tie_word_embeddings=True),
    "qwen3-yarn": QWEN | dict(model_type="qwen3", num_attention_heads=6, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=1024, attention_factor=1.25)),
    "laguna": LAGUNA | dict(gating=True, num_attention_heads=6, num_attention_heads_per_layer=[6, 8, 8, 8],
                            layer_types=[FULL, SWA, SWA, SWA]),
    "laguna-element": LAGUNA | dict(gating_types=["per-element"] * 4, num_attention_heads=4, layer_types=[FULL] * 4,
                                    mlp_layer_types=["dense", "dense", "sparse", "sparse"]),
    "qwen35": dict(model_type="qwen3_5", tie_word_embeddings=False, text_config=QWEN35 | dict(
        model_type="qwen3_5_text", full_attention_interval=4)),
    "qwen35-nextn": dict(model_type="qwen3_5", tie_word_embeddings=False, text_config=QWEN35 | dict(
        model_type="qwen3_5_text", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)),
    "qwen35-uneven": QWEN35 | dict(model_type="qwen3_5_text", num_hidden_layers=3, tie_word_embeddings=False,
                                   output_gate_type="swish", layer_types=[FULL, LINEAR, FULL]),
    "qwen35moe": QWEN35 | dict(model_type="qwen3_5_moe_text", tie_word_embeddings=True, num_experts=4,
                               num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48),
    "gemma4": GEMMA,
    "gemma4-dense": dict(model_type="gemma4", text_config={k: v for k, v in GEMMA.items() if k not in (
        "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size")} | dict(
            hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False)),
    "dflash": DFLASH,
    "dflash-laguna": DFLASH | dict(architectures=["DFlashLagunaForCausalLM"], model_type="laguna", gating="per-head",
                                   dflash_config=dict(target_layer_ids=[1, 3, 6], mask_token_id=4, causal=True)),
    "dspark": DFLASH | dict(architectures=["Qwen3DSparkModel"], markov_rank=32),
    "mtp": dict(architectures=["Gemma4AssistantForCausalLM"], model_type="gemma4_assistant", backbone_hidden_size=96,
                use_ordered_embeddings=False, text_config=MTP_TEXT),
}
WRONG = (None, 0, 1, 3, -1, 2.5, 600, 1 << 21, 1 << 40, True, False, "x", [1, 2], {})


def tensor_bytes(name, shape):
    n = 1
    for d in shape:
        n *= d
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    out = bytearray()
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) & 0x7fffffff
        out += struct.pack("<f", ((seed >> 8) % 2001 - 1000) / 4096)
    return bytes(out)


def write_checkpoint(d, config, tensors):
    os.makedirs(d, exist_ok=True)
    with open(d + "/config.json", "w") as f:
        json.dump(config, f)
    head, at = {}, 0
    for name, (shape, data) in tensors.items():
        head[name] = dict(dtype="F32", shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(head).encode()
    with open(d + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def complete(run, d, config):
    """The tensors that a conversion asks for, one after the other."""
    tensors = {"model.embed_tokens.weight": ([1, 1], b"\0" * 4)} if "qwen3_5" not in str(config) else {
        "model.embed_tokens.weight": ([1, 1], b"\0" * 4), "mtp.fc.weight": ([1, 1], b"\0" * 4)}
    for _ in range(600):
        write_checkpoint(d, config, tensors)
        code, text = run("convert", d, d + ".gguf", "-t", "f32")
        if not code:
            return tensors
        if found := re.search(r"tensor (\S+) is missing", text):
            name, shape = re.sub(r".*(?=mtp\.)", "", found[1]), [1, 1]
        elif found := re.search(r"tensor (\S+) is \{.*?\}, the configuration makes it \{(.*?)\}", text):
            name = found[1]
            shape = [int(x) for x in found[2].split(",")][::-1]
            if name.endswith("conv1d.weight"):
                shape = [shape[0], 1, shape[1]]
        elif "there are no tensors layers" in text:  # of a drafter
            tensors = {f"{'model.' if 'assistant' in str(config) else ''}layers.{i}.input_layernorm.weight": ([1], b"\0" * 4)
                       for i in range(config.get("text_config", config)["num_hidden_layers"])}
            continue
        elif "there is no lm_head.weight" in text:
            name, shape = "lm_head.weight", [1, 1]
        elif found := re.search(r"tensors? ha\S+ no place in .*?: (\S+?)[,:]?(\s|$)", text):
            del tensors[found[1]]
            continue
        else:
            raise SystemExit(f"{d}: {text}")
        tensors[name] = (shape, tensor_bytes(name, shape))
    raise SystemExit(f"{d}: no end of tensors")


def wrong_configs(config):
    """(what, configuration) with one field left out or of another value."""
    inner = [k for k in ("text_config", "dflash_config") if k in config]
    for path in [[]] + [[k] for k in inner]:
        at = config
        for k in path:
            at = at[k]
        for key in list(at) + ["stranger", "sliding_window", "num_experts", "rope_theta", "rope_scaling", "layer_types",
                               "head_dim", "mlp_only_layers", "decoder_sparse_step", "norm_topk_prob",
                               "quantization_config", "attention_bias", "mlp_bias", "per_layer_config",
                               "partial_rotary_factor", "use_sliding_window", "mlp_layer_types"]:
            if key in inner:
                continue
            for v in ("left out",) + WRONG:
                c = copy.deepcopy(config)
                to = c
                for k in path:
                    to = to[k]
                to.pop(key, None)
                if v != "left out":
                    to[key] = v
                yield ".".join(path + [key]) + f" = {v}", c
    text = json.dumps(config)
    for a, b in ((SWA, FULL), (FULL, SWA), ("default", "yarn"), ("yarn", "linear"), ("proportional", "default"),
                 ('"rope_theta"', '"stranger"'), ('"factor"', '"stranger"'), ("partial_rotary_factor", "stranger"),
                 ('"rope_theta": 1', '"rope_theta": -1'), ("per-element", "per-head"), ("dense", "sparse")):
        if a in text:
            yield f"{a} -> {b}", json.loads(text.replace(a, b, 1))


# ---- Recording ----

class Record:
    def __init__(self, program, d):
        self.program, self.d, self.seen = os.path.abspath(program), d, {}

    def path(self, name):
        return os.path.join(self.d, name)

    def run(self, *args):
        r = subprocess.run([self.program, *args], cwd=self.d, capture_output=True, text=True, errors="replace", timeout=600)
        # Without times and what the machine has free.
        text = re.sub(r"(?m)^.*(available| in [0-9.]+ s).*\n?", "", r.stdout + r.stderr)
        return r.returncode, re.sub(r"(?m)^ +\d+ layers .*\n", "", text).replace(self.d + "/", "")

    def add(self, what, args, out=None):
        if out and os.path.exists(self.path(out)):
            os.remove(self.path(out))
        code, text = self.run(*args)
        digest = ""
        if out and os.path.exists(self.path(out)):
            with open(self.path(out), "rb") as f:
                digest = hashlib.file_digest(f, "sha256").hexdigest()
        self.seen[what] = [code, text, digest]
        return code


def compare(old, new):
    bad = 0
    for what in {**old, **new}:
        a, b = old.get(what), new.get(what)
        if a == b:
            continue
        if not a or not b:
            continue  # recorded in part
        bad += 1
        print(f"{what}:")
        for mark, x, y in (("-", a, b), ("+", b, a)):
            lines = y[1].splitlines()
            for line in [line for line in x[1].splitlines() if line not in lines][:4]:
                print(" ", mark, line[:400])
        if a[0] != b[0]:
            print(f"  exit status {a[0]}, now {b[0]}")
        if a[2] != b[2]:
            print(f"  ANOTHER FILE: {a[2][:12] or 'none'}, now {b[2][:12] or 'none'}")
    print(f"{len(set(old) & set(new))} results in both, {bad} differ")
    return bad > 0


def all_sizes(c):
    """The words of synth's help that it makes a file of, without towers."""
    help_text = c.run("synth", "--help")[1].split("SIZE is")[1].split("with the --dialect")[0]
    words = dict.fromkeys(re.findall(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", help_text))
    return [w for w in words if "mmproj" not in w and not c.run("synth", w, "x.gguf", "--layers", "1", "--hollow", "--vocab", "none")[0]]


def record_synth(c, sizes):
    dialects = {"dflash": ["llama.cpp", "lucebox", "ik"], "mtp": ["llama.cpp", "old"]}
    c.run("synth", "tiny-qwen3", "words.gguf")
    for size in sizes:
        kind = size.split("-")[0]
        small = "tiny" in size
        for t in ("f32", "q4_k_m", "mxfp4") if small else ("q2_k",):
            for dialect in dialects.get(kind, [None]):
                for more in ([], ["--nextn"], ["--layers", "2"], ["--attention-density", "0.1"], ["--expert-skew", "0.8"]) \
                        if small and t == "f32" else ([],):
                    args = ["synth", size, "s.gguf", "--threads", "2", "-t", t, *more]
                    args += ["--dialect", dialect] if dialect else []
                    args += [] if small else ["--layers", "1", "--vocab", "words.gguf"]
                    c.add(" ".join(args), args, "s.gguf")


def small_files(c, sizes):
    for size in sizes:
        if "tiny" in size and size not in ("tiny-wide", "tiny-many", "dflash-tiny-wide", "mtp-tiny-wide"):
            for dialect in ("llama.cpp", "lucebox") if size.startswith("dflash") else (None,):
                more = ["--dialect", dialect] if dialect else []
                more += ["--nextn"] if "qwen35" in size and not dialect else []
                assert not c.run("synth", size, "f.gguf", "-t", "f32", *more)[0]
                with open(c.path("f.gguf"), "rb") as f:
                    yield size + (f" {dialect}" if dialect else ""), f.read()


def record_logits(c, sizes):
    for size, data in small_files(c, sizes):
        if size.startswith("tiny"):
            ids = ",".join(str(3 + i * 7 % 300) for i in range(60))
            c.add(f"logits {size}", ["logits", "-m", "f.gguf", "--tokens", ids, "-o", "l.bin"], "l.bin")


def record_files(c, sizes):
    for size, data in small_files(c, sizes):
        for what, changed in variants(data):
            with open(c.path("v.gguf"), "wb") as f:
                f.write(changed)
            c.add(f"{size}: {what}", ["inspect", "v.gguf"])


def record_convert(c, word):
    for name, config in [x for x in CHECKPOINTS.items() if word in x[0]]:
        tensors = complete(c.run, c.path(name), config)
        for dialect in ("llama.cpp", "lucebox", "ik") if name[0] == "d" else (None,):
            more = ["--dialect", dialect] if dialect else []
            assert not c.add(f"convert {name} {dialect or ''}", ["convert", name, "c.gguf", "-t", "f32", *more], "c.gguf")
        write_checkpoint(c.path("wrong"), config, tensors)
        for what, wrong in wrong_configs(config):
            with open(c.path("wrong/config.json"), "w") as f:
                json.dump(wrong, f)
            c.add(f"convert {name}, {what}", ["convert", "wrong", "c.gguf", "-t", "f32"], "c.gguf")


def main():
    what, first, second, *parts = sys.argv[1:]
    if what == "compare":
        with open(first) as a, open(second) as b:
            return compare(json.load(a), json.load(b))
    with tempfile.TemporaryDirectory() as d:
        c = Record(first, d)
        word = "".join(p[1:] for p in parts if p[0] == "=")
        parts = [p for p in parts if p[0] != "="]
        sizes = [size for size in all_sizes(c) if word in size]
        for part, f in (("synth", record_synth), ("logits", record_logits), ("files", record_files)):
            if not parts or part in parts:
                f(c, sizes)
        try:
            if not parts or "convert" in parts:
                record_convert(c, word)
        finally:
            with open(second, "w") as f:
                json.dump(c.seen, f, indent=0)
    print(f"{len(c.seen)} results in {second}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
