#!/usr/bin/env python3
"""Writes tests/data/num.bin: random blocks and their values by the reference dequantisers, random rows
and their blocks by the reference quantisers. Needs the package `gguf`.

Record: u32 type, u32 is_encode, u32 n, u32 n_bytes, n_bytes of blocks, n of f32. Little-endian.
"""
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

DECODE = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K,
          T.Q6_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4, T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S,
          T.IQ3_XXS, T.IQ3_S, T.TQ1_0, T.TQ2_0, T.NVFP4]
ENCODE = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]

rng = np.random.default_rng(4)


def record(t, is_encode, raw, x):
    x = np.ascontiguousarray(x, np.float32).ravel()
    out.write(struct.pack("<4I", t.value, is_encode, x.size, raw.size) + raw.tobytes() + x.tobytes())


if __name__ == "__main__":
    out = open(sys.argv[1], "wb")

    for t in DECODE:
        size, n_bytes = GGML_QUANT_SIZES[t]
        rows = max(1, 64 // size)
        kept = 0
        while kept < (4 if size < 256 else 3):
            raw = rng.integers(0, 256, (rows, n_bytes), dtype=np.uint8)
            with np.errstate(all="ignore"):
                if t in (T.F16, T.BF16):
                    x = raw.view(np.float16).astype(np.float32) if t == T.F16 else dequantize(raw, t)
                else:
                    x = dequantize(raw, t)
            if np.isfinite(x).all():
                record(t, 0, raw, x)
                kept += 1

    for t in ENCODE:
        for i in range(3):
            x = (rng.standard_normal((1, 256)) * 10.0 ** (i - 2)).astype(np.float32)
            x[0, 32:64] = 0
            x[0, 64] *= 40
            raw = quantize(x, t)
            record(t, 1, np.ascontiguousarray(raw).view(np.uint8), x)
