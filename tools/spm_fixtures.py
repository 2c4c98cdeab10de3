#!/usr/bin/env python3
"""Trains a small vocabulary with scores and records how SentencePiece encodes many texts.

    tools/spm_fixtures.py                writes tests/data/vocab/llama-spm.json
    tools/spm_fixtures.py --all N FILE   encodes N texts with the pieces of a GGUF file's vocabulary
                                         (tokenizer.ggml.model = llama) or of a tokenizer.model, in files for
                                         BPE_CASES=FILE build/carat_test pieces_with_scores_agree_with_sentencepiece,
                                         runs this, and says how many texts agree

The options of training are those that Llama 2's tokenizer.model states: BPE, byte fallback, digits apart,
no normalisation, a space before the text.
"""
import io
import json
import os
import random
import subprocess
import sys

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

from bytes_fixtures import DATA, TOP, corpus, published, text


def train(rng):
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(list(corpus(rng, 6000))), model_writer=out, model_type="bpe", vocab_size=1500,
        byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False, normalization_rule_name="identity", add_dummy_prefix=True,
        character_coverage=0.997, max_sentence_length=1 << 20, num_threads=1, minloglevel=2)
    model = pb.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def of_file(path):
    if not path.endswith(".gguf"):
        model = pb.ModelProto()
        with open(path, "rb") as f:
            model.ParseFromString(f.read())
        return model
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    model = pb.ModelProto()
    model.trainer_spec.model_type = pb.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    tokens, scores, types = (fields["tokenizer.ggml." + k] for k in ("tokens", "scores", "token_type"))
    for t, s, k in zip(tokens.data, scores.data, types.data):
        model.pieces.add(piece=bytes(tokens.parts[t]).decode(), score=float(scores.parts[s][0]),
                         type=int(types.parts[k][0]))
    return model


def write(path, model, texts):
    t = spm.SentencePieceProcessor(model_proto=model.SerializeToString())
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"arch": "llama", "model": "llama", "pieces": [p.piece for p in model.pieces],
                   "types": "".join(str(p.type) for p in model.pieces),
                   "scores": [p.score for p in model.pieces], "merges": [],
                   "cases": [[c, t.encode(c)] for c in texts]},
                  f, ensure_ascii=False, separators=(",", ":"))


def main():
    rng = random.Random(20261129)
    if sys.argv[1:2] != ["--all"]:
        model = train(rng)
        texts = published() + [text(rng, [" "], 8) for _ in range(900)]
        texts = [c for c in texts if len(c) < 90 or c in published()]
        write(os.path.join(DATA, "llama-spm.json"), model, texts)
        print(len(model.pieces), "pieces,", len(texts), "texts")
        return
    model, path, left = of_file(sys.argv[3]), f"/tmp/spm_cases_{os.getpid()}.json", int(sys.argv[2])
    while left > 0:
        write(path, model, [text(rng, [" "]) for _ in range(min(10000, left))])
        run = subprocess.run([os.environ.get("CARAT_TEST", os.path.join(TOP, "build", "carat_test")), "pieces_with_scores_agree_with_sentencepiece"],
                             env={**os.environ, "BPE_CASES": path}, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"kept {path}:\n{run.stdout}{run.stderr}")
        left -= 10000
    os.unlink(path)
    print(len(model.pieces), "pieces,", sys.argv[2], "texts: the same ids")


if __name__ == "__main__":
    main()
