"""Writes the trained weights as a Hugging Face folder, and checks it against the reference class.

    python3 export.py write --shards DIR --template chat_template.jinja --out HF_DIR
    python3 export.py check HF_DIR      (needs transformers: compares logits, prints some answers)
    python3 export.py read MODEL.gguf --out DIR                 weights and tokenizer to train on from (needs gguf)
    python3 export.py average DIR OTHER --share 0.75 --out DIR  0.75 of DIR's weights, 0.25 of OTHER's
"""
import argparse
import glob
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

import tokenizer
from model import CONFIG


def save_shards(state, out, most=15_500_000):
    """The state dict as f32 safetensors, in files of at most `most` bytes."""
    shards, size = [{}], 0
    for name, t in state.items():
        t = t.detach().float().cpu().contiguous()
        if size + t.nbytes > most and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += t.nbytes
    where = {}
    for i, s in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(s, f"{out}/{file}.part", metadata={"format": "pt"})
        os.replace(f"{out}/{file}.part", f"{out}/{file}")
        where |= dict.fromkeys(s, file)
    total = sum(t.nbytes for s in shards for t in s.values())
    json.dump({"metadata": {"total_size": total}, "weight_map": where}, open(out + "/model.safetensors.index.json", "w"), indent=1)


def load_shards(path):
    state = {}
    for f in sorted(glob.glob(path + "/model-*.safetensors")):
        state |= load_file(f)
    return state


GLOBAL = {"token_embd": "embed_tokens", "output_norm": "norm"}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight", "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight", "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight", "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight", "ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj", "ffn_down_exps.scale": "router.per_expert_scale",
    "layer_output_scale.weight": "layer_scalar",
}


def read(a):
    """The state dict of a GGUF file of this model, rounded as that file is, and its tokenizer.json."""
    import gguf
    file, state = gguf.GGUFReader(a.file), {}
    for t in file.tensors:
        head, _, rest = t.name.partition(".")
        if head == "rope_freqs":
            continue
        if head == "blk":
            il, _, rest = rest.partition(".")
            name = f"model.layers.{il}.{LAYER[rest]}"
        else:
            name = f"model.{GLOBAL[head]}.{rest}"
        shape = [int(n) for n in reversed(t.shape)]
        state[name] = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).reshape(shape).copy()).float()
    os.makedirs(a.out, exist_ok=True)
    save_shards(state, a.out)
    pieces, merges = (file.fields["tokenizer.ggml." + x].contents() for x in ("tokens", "merges"))
    tokenizer.save(tokenizer.document(pieces, [m.split(" ") for m in merges]), a.out + "/tokenizer.json")


def average(a):
    x, y = load_shards(a.dir), load_shards(a.other)
    os.makedirs(a.out, exist_ok=True)
    save_shards({k: a.share * x[k] + (1 - a.share) * y[k] for k in x}, a.out)


def config():
    c = CONFIG
    return {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "float32", "bos_token_id": tokenizer.BOS,
        "eos_token_id": [tokenizer.EOS, tokenizer.SPECIAL.index("<turn|>"), tokenizer.SPECIAL.index("<|tool_response>")], "pad_token_id": tokenizer.PAD,
        "vocab_size": c["vocab_size"], "vocab_size_per_layer_input": c["vocab_size"], "hidden_size": c["hidden_size"],
        "hidden_size_per_layer_input": 0, "intermediate_size": c["intermediate_size"], "num_hidden_layers": c["num_hidden_layers"],
        "layer_types": c["layer_types"], "num_attention_heads": c["num_attention_heads"], "num_key_value_heads": c["num_key_value_heads"],
        "num_global_key_value_heads": c["num_global_key_value_heads"], "head_dim": c["head_dim"], "global_head_dim": c["global_head_dim"],
        "attention_k_eq_v": True, "attention_bias": False, "attention_dropout": 0.0, "sliding_window": c["sliding_window"], "num_kv_shared_layers": 0,
        "enable_moe_block": True, "num_experts": c["num_experts"], "top_k_experts": c["top_k_experts"], "moe_intermediate_size": c["moe_intermediate_size"],
        "use_double_wide_mlp": False, "use_bidirectional_attention": None, "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": c["final_logit_softcapping"], "rms_norm_eps": c["rms_norm_eps"], "initializer_range": 0.02, "use_cache": True,
        "max_position_embeddings": c["max_position_embeddings"], "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": c["rope_theta_sliding"]},
            "full_attention": {"rope_type": "proportional", "rope_theta": c["rope_theta_full"], "partial_rotary_factor": c["partial_rotary_factor"]}},
    }


def tokenizer_config():
    s = tokenizer.SPECIAL
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONFIG["max_position_embeddings"], "clean_up_tokenization_spaces": False,
        "padding_side": "left", "pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>", "mask_token": "<mask>",
        "sot_token": "<|turn>", "eot_token": "<turn|>", "soc_token": "<|channel>", "eoc_token": "<channel|>", "think_token": "<|think|>",
        "escape_token": '<|"|>', "std_token": "<|tool>", "etd_token": "<tool|>", "stc_token": "<|tool_call>", "etc_token": "<tool_call|>",
        "str_token": "<|tool_response>", "etr_token": "<tool_response|>",
        "added_tokens_decoder": {str(i): {"content": x, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
                                 for i, x in enumerate(s)},
    }


def write(a):
    os.makedirs(a.out, exist_ok=True)

    def put(name, x):
        json.dump(x, open(f"{a.out}/{name}", "w"), indent=2)

    c = config()
    put("config.json", c)
    put("tokenizer_config.json", tokenizer_config())
    put("generation_config.json", {"bos_token_id": c["bos_token_id"], "eos_token_id": c["eos_token_id"], "pad_token_id": c["pad_token_id"],
                                   "do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95})
    shutil.copyfile(a.template, a.out + "/chat_template.jinja")
    if a.shards:
        save_shards(load_shards(a.shards), a.out)


def check(a):
    from transformers import Gemma4ForCausalLM, PreTrainedTokenizerFast
    import model as M
    h = Gemma4ForCausalLM.from_pretrained(a.dir, dtype=torch.float32).eval()
    m = M.Model()
    m.load_state_dict(load_shards(a.dir))
    ids = torch.randint(5, CONFIG["vocab_size"], (400,), generator=torch.Generator().manual_seed(1))
    M.Batch.cu, M.Batch.max_len = torch.tensor([0, 400]), 400
    with torch.no_grad():
        x, y = m.logits(m(ids, torch.arange(400))[0]), h(ids[None]).logits[0]
    print(f"logits: largest difference {float((x - y).abs().max()):.2e}, deviation {float(y.std()):.2f}")
    t = PreTrainedTokenizerFast.from_pretrained(a.dir)
    stop = config()["eos_token_id"]
    for q in ("hi", "What is 12 + 30?", "What is carat?", "sort: pear apple fig", "Repeat: one two 345 six", "Who is the king of France?",
              "The secret code of the red lamp is 4821. The weather is fine. What is the secret code of the red lamp?"):
        for think in (False, True):
            text = t.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, tokenize=False, enable_thinking=think)
            i = torch.tensor([t.encode(text, add_special_tokens=False)])
            o = h.generate(i, max_new_tokens=90, do_sample=False, eos_token_id=stop, pad_token_id=0)
            print(f"{q!r} -> {t.decode(o[0, i.shape[1]:])!r}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(required=True)
    w = sub.add_parser("write")
    w.add_argument("--shards")
    w.add_argument("--template", required=True)
    w.add_argument("--out", required=True)
    w.set_defaults(run=write)
    c = sub.add_parser("check")
    c.add_argument("dir")
    c.set_defaults(run=check)
    r = sub.add_parser("read")
    r.add_argument("file")
    r.add_argument("--out", required=True)
    r.set_defaults(run=read)
    v = sub.add_parser("average")
    v.add_argument("dir")
    v.add_argument("other")
    v.add_argument("--share", type=float, required=True)
    v.add_argument("--out", required=True)
    v.set_defaults(run=average)
    a = p.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
