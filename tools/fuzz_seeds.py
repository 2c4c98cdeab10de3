#!/usr/bin/env python3
"""Writes the first files of fuzz/corpus/gguf and fuzz/corpus/safetensors: small and valid, with
every kind of value, several types and both versions. No packages needed."""
import json
import os
import struct
import sys

KINDS = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"),
         "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<B"), "u64": (10, "<Q"),
         "i64": (11, "<q"), "f64": (12, "<d")}


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def value(key, kind, v):
    if kind == "str":
        return text(key) + struct.pack("<I", 8) + text(v)
    n, fmt = KINDS[kind]
    return text(key) + struct.pack("<I", n) + struct.pack(fmt, v)


def array(key, kind, items):
    if kind == "str":
        return text(key) + struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(text, items))
    n, fmt = KINDS[kind]
    return text(key) + struct.pack("<IIQ", 9, n, len(items)) + b"".join(
        struct.pack(fmt, i) for i in items)


def nested(key):
    inner = struct.pack("<IQ", 5, 2) + struct.pack("<ii", 1, -1)
    return text(key) + struct.pack("<IIQ", 9, 9, 2) + inner + inner


def tensor(name, ne, kind, offset):
    return text(name) + struct.pack("<I", len(ne)) + b"".join(
        struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", kind, offset)


def gguf(version, values, tensors, data, align=32):
    b = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    b += b"".join(values) + b"".join(tensors)
    b += b"\0" * (-len(b) % align)
    return b + data


def put(name, data):
    with open(os.path.join(root, name), "wb") as f:
        f.write(data)


def safetensors(head, data):
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    return struct.pack("<Q", len(h)) + h + data


def tokenizer(flags, pieces, merges, body):
    b = bytes([flags, len(pieces)])
    for kind, piece in pieces:
        b += bytes([kind, len(piece)]) + piece
    b += bytes([len(merges)])
    for merge in merges:
        b += bytes([len(merge)]) + merge
    return b + body


if __name__ == "__main__":
    root = sys.argv[1] if len(sys.argv) > 1 else "fuzz/corpus"

    scalars = [value(k, k, 1) for k in KINDS] + [value("general.architecture", "str", "gemma4")]
    arrays = [array(k + "s", k, [1, 0, 1]) for k in KINDS] + [array("strs", "str", ["a", "", "b c"])]
    put("gguf/empty", gguf(3, [], [], b""))
    put("gguf/scalars", gguf(3, scalars, [], b""))
    put("gguf/arrays", gguf(2, arrays + [nested("deep")], [], b""))
    put("gguf/tensors", gguf(3, [], [tensor("a", [4], 0, 0), tensor("b", [32, 2], 8, 32),
                                     tensor("c", [256, 1, 1], 12, 128), tensor("d", [2, 2, 2, 2], 1, 288)],
                             bytes(range(256)) + bytes(64)))
    put("gguf/aligned", gguf(3, [value("general.alignment", "u32", 8)],
                             [tensor("a", [1], 0, 0), tensor("b", [1], 0, 8)], bytes(16), 8))
    put("gguf/split", gguf(3, [value("split.no", "u16", 0), value("split.count", "u16", 1),
                               value("split.tensors.count", "i32", 1)],
                           [tensor("a", [8], 30, 0)], bytes(16)))
    put("gguf/kinds", gguf(3, [], [tensor("t%d" % k, [256], k, 1024 * i) for i, k in enumerate(
        [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39])], bytes(16 * 1024)))

    adapter = [value("general.type", "str", "adapter"), value("general.architecture", "str", "qwen3moe"),
               value("adapter.type", "str", "lora"), value("adapter.lora.alpha", "f32", 2.0)]
    half = lambda n: struct.pack(f"<{n}f", *([0.5] * n)) + b"\0" * (-4 * n % 32)
    put("lora/norm", gguf(3, adapter, [tensor("blk.0.attn_norm.weight", [8], 0, 0)], half(8)))
    put("lora/attn", gguf(3, adapter, [tensor("blk.0.attn_q.weight.lora_a", [64, 1], 0, 0),
                                       tensor("blk.0.attn_q.weight.lora_b", [1, 128], 0, 256)], half(64) + half(128)))
    put("lora/experts", gguf(3, adapter, [tensor("blk.1.ffn_up_exps.weight.lora_a", [64, 1, 8], 0, 0),
                                          tensor("blk.1.ffn_up_exps.weight.lora_b", [1, 32, 8], 0, 2048)],
                             half(512) + half(256)))
    put("safetensors/empty", safetensors({}, b""))
    put("safetensors/metadata", safetensors({"__metadata__": {"format": "pt"}}, b""))
    put("safetensors/two", safetensors(
        {"a.weight": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]},
         "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}}, bytes(16)))
    put("safetensors/dims", safetensors(
        {"x": {"dtype": "U8", "shape": [1, 2, 1, 2, 1, 2], "data_offsets": [0, 8]}}, bytes(8)))
    put("safetensors/kinds", safetensors(
        {d: {"dtype": d, "shape": [1], "data_offsets": [8 * i, 8 * i + n]} for i, (d, n) in enumerate(
            [("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8), ("U32", 4), ("I16", 2),
             ("I8", 1), ("BOOL", 1)])}, bytes(72)))

    # Vocabularies of bytes (flag 8), one for each pre-splitter.
    words = [(1, p.encode()) for p in ("he", "hel", "lo", "Ġhe", "ĊĊ", "å­", "Ì")] + [(4, b"<think>"), (3, b"<end>")]
    joins = [m.encode() for m in ("h e", "he l", "l o", "Ġ he", "Ċ Ċ", "å ­")]
    for kind, name in enumerate(("qwen2", "qwen35", "laguna")):
        put("tokenizer/bytes-" + name, tokenizer(
            1 | 2 | 8 | kind << 4, words[:6] + words[7:], joins,
            "hello he'LL<think>\r\n\r\n  字e\u0301<turn|> 12 \n\t'\u017f\u3000".encode() + b"\xff\xe5"))
