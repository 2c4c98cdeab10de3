#!/usr/bin/env python3
"""The divergence of quantised model files from their original.

    tools/weights_kl.py REFERENCE.gguf TOKENS.bin FILE.gguf ...

Runs `carat logits --exact` (f32 activations, so that only the weights differ) over the same token
ids (int32, little-endian) and prints for each file the mean Kullback-Leibler divergence of its next
token from the reference's, in nats, its 99th percentile, and how often the likeliest token is the
same. CARAT names the program, ./carat otherwise. Needs numpy.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

CARAT = os.environ.get("CARAT", "./carat")


def log_probs(model, tokens, n):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([CARAT, "logits", "-m", model, "--tokens", tokens, "-o", out.name, "--exact",
                        "--kv-k", "f32"], check=True)
        x = np.fromfile(out.name, dtype="<f4").reshape(n, -1).astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    reference, tokens, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    n = os.path.getsize(tokens) // 4
    p = log_probs(reference, tokens, n)
    print(f"{'file':<40} {'MB':>8} {'KL mean':>10} {'KL 99 %':>10} {'same best':>10}")
    for name in files:
        q = log_probs(name, tokens, n)
        # A banned token is -inf in both: it has no probability and adds nothing.
        with np.errstate(invalid="ignore"):
            kl = np.where(np.isfinite(p), np.exp(p) * (p - q), 0).sum(axis=1)
        same = (p.argmax(axis=1) == q.argmax(axis=1)).mean()
        print(f"{name:<40} {os.path.getsize(name) / 1e6:8.2f} {kl.mean():10.6f} "
              f"{np.quantile(kl, 0.99):10.6f} {100 * same:8.2f} %")


if __name__ == "__main__":
    main()
