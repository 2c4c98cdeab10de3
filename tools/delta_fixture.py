#!/usr/bin/env python3
"""Makes tests/data/fidelity/delta.golden: recurrent layers as transformers computes them in f64, by its
chunked form.

    python3 tools/delta_fixture.py            write the file
    python3 tools/delta_fixture.py --check    compare with it instead

Cases: `plain`, and `small`, whose keys and outputs are so short that each eps shows. Both have a state to
begin with, decays from none to e^-20 and beyond, shares near 0 and 1, and a run of equal keys. Inputs are
drawn as weights of fidelity_fixtures.py are (backend/cpu/recur_exact_test.c draws the same); value heads are
tiled, as in files.
"""
import sys

import numpy as np
import torch
import torch.nn.functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

import fidelity_fixtures as base
from fidelity_families import everything_f64
from fidelity_fixtures import STR

ROWS, N_K, N_V, DK, DV, TAPS, EQUAL = 100, 2, 6, 16, 8, 4, (20, 32)
CHANNELS, WIDTH = 2 * N_K * DK + N_V * DV, N_V * DV
GROUPED = [r * N_K + g for g in range(N_K) for r in range(N_V // N_K)]  # tiled head of each of theirs
TILED = np.argsort(GROUPED)
CASES = {"plain": (3000, 1.0, 0.3), "small": (4000, 2e-3, 1e-3)}


def inputs(seed, x_sigma, state_sigma):
    shapes = [("x", (ROWS, CHANNELS), 0, x_sigma), ("taps", (CHANNELS, TAPS), 0.2, 0.6),
              ("z", (ROWS, WIDTH), 0, 1.5), ("a", (ROWS, N_V), 0, 5.0), ("b", (ROWS, N_V), 0, 6.0),
              ("ssm_a", (N_V,), -1.5, 0.4), ("dt", (N_V,), -0.5, 0.8), ("norm", (DV,), 1, 0.3),
              ("state", (N_V, DV, DK), 0, state_sigma)]
    t = {name: base.draw(seed, i, shape, mean, sigma)
         for i, (name, shape, mean, sigma) in enumerate(shapes)}
    t["x"][EQUAL[0]:EQUAL[1]] = t["x"][EQUAL[0]]
    return {k: torch.from_numpy(v.astype(np.float64)) for k, v in t.items()}


def compute(t, chunked):
    c = F.conv1d(F.pad(t["x"].T[None], (TAPS - 1, 0)), t["taps"][:, None], groups=CHANNELS)
    c = F.silu(c)[0].T
    n = N_K * DK
    q, k = c[:, :n].view(1, ROWS, N_K, DK), c[:, n:2 * n].view(1, ROWS, N_K, DK)
    v = c[:, 2 * n:].view(1, ROWS, N_V, DV)[:, :, GROUPED]
    g = (t["ssm_a"] * F.softplus(t["a"] + t["dt"]))[None, :, GROUPED]
    beta = torch.sigmoid(t["b"])[None, :, GROUPED]
    state = t["state"].transpose(1, 2)[None, GROUPED]
    rule = hf.torch_chunk_gated_delta_rule if chunked else hf.torch_recurrent_gated_delta_rule
    o, end = rule(q, k, v, g, beta, initial_state=state, output_final_state=True,
                  use_qk_l2norm_in_kernel=True)
    o, end = o[0][:, TILED], end[0][TILED].transpose(1, 2)
    norm = hf.Qwen3_5RMSNormGated(DV, eps=1e-6)
    norm.weight.data = t["norm"]
    y = norm(o.reshape(-1, DV), t["z"].reshape(-1, DV)).reshape(ROWS, WIDTH)
    assert o.dtype == end.dtype == y.dtype == torch.float64
    return [x.reshape(-1).numpy() for x in (o, y, end)]


def main():
    torch.set_grad_enabled(False)
    np.seterr(over="ignore")
    tensors = []
    with everything_f64(None):
        for name, case in CASES.items():
            t = inputs(*case)
            chunked, plain = compute(t, True), compute(t, False)
            for part, x, y in zip(("delta", "unit", "state"), chunked, plain):
                worst = np.abs(x - y).max() / np.abs(y).max()
                print(f"{name}.{part}: largest {np.abs(x).max():.2e}, forms differ by {worst:.1e}")
                tensors.append((f"{name}.{part}", x.astype("<f4")))
    path = base.OUT / "delta.golden"
    new = base.gguf_bytes([("general.architecture", STR, "delta")], tensors)
    if "--check" in sys.argv[1:]:
        old = path.read_bytes()
        ok = len(old) == len(new) and np.allclose(
            *(np.frombuffer(b[-len(b) // 2 // 4 * 4:], "<f4") for b in (old, new)), rtol=1e-5)
        print("as in the file" if ok else "not as in the file")
        return 0 if ok else 1
    path.write_bytes(new)
    print(f"{path.name}: {len(new)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
