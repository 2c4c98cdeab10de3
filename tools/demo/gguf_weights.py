"""Weights and vocabulary of a GGUF file, read with numpy alone (F32, F16 and Q8_0 tensors)."""
import struct

import numpy as np

_FORM = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
F32, F16, Q8_0 = 0, 1, 8


class _Cursor:
    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def one(self, form):
        x = struct.unpack_from("<" + form, self.raw, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return x

    def text(self):
        n = self.one("Q")
        self.at += n
        return self.raw[self.at - n:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.one(_FORM[kind])
        kind, n = self.one("I"), self.one("Q")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(n)]
        x = struct.unpack_from(f"<{n}{_FORM[kind]}", self.raw, self.at)
        self.at += struct.calcsize(f"<{n}{_FORM[kind]}")
        return list(x)


def read(path):
    """({key: value}, {tensor name: f32 array in row-major order})"""
    c = _Cursor(open(path, "rb").read())
    assert c.raw[:4] == b"GGUF", path
    c.at = 4
    version, n_tensors, n_keys = c.one("I"), c.one("Q"), c.one("Q")
    assert version in (2, 3), version
    keys = {}
    for _ in range(n_keys):
        name = c.text()
        keys[name] = c.value(c.one("I"))
    infos = []
    for _ in range(n_tensors):
        name = c.text()
        shape = [c.one("Q") for _ in range(c.one("I"))][::-1]
        infos.append((name, shape, c.one("I"), c.one("Q")))
    align = keys.get("general.alignment", 32)
    base = (c.at + align - 1) // align * align
    return keys, {name: _tensor(c.raw, base + at, shape, kind) for name, shape, kind, at in infos}


def _tensor(raw, at, shape, kind):
    n = int(np.prod(shape))
    if kind == F32:
        return np.frombuffer(raw, np.float32, n, at).reshape(shape).copy()
    if kind == F16:
        return np.frombuffer(raw, np.float16, n, at).reshape(shape).astype(np.float32)
    assert kind == Q8_0, kind
    blocks = np.frombuffer(raw, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, at)
    return (blocks["d"].astype(np.float32)[:, None] * blocks["q"].astype(np.float32)).reshape(shape)


def round_q8_0(x):
    """x as Q8_0 stores it: blocks of 32 along the last axis, an f16 scale each."""
    b = x.astype(np.float32).reshape(-1, 32)
    d = np.abs(b).max(1, keepdims=True) / 127
    q = np.where(d > 0, np.round(b / np.where(d > 0, d, 1)), 0)
    return (q * d.astype(np.float16).astype(np.float32)).reshape(x.shape)
