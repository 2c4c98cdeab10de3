#!/usr/bin/env python3
"""Writes what the tests of sound/ compare with: small files in fuzz/corpus/sound; what libsndfile's own
readers, a formula of resampling and transformers' feature extractor make of them, in tests/data/sounds.

    python3 tools/sound_fixture.py           needs numpy, soundfile, transformers

decode.txt has a line for each file: name, samples at 16 kHz, or the word "refused". samples.f32 has
the samples of the files that are read, one file after the other; mel.f32 the rows of the first
file of each kind, and of sounds of awkward lengths that sound/sound_test_int.h makes. The extractor gets
samples in f64: its transform is then in f64 too. In f32 it differs by up to 1e-3 in quiet bands
beside a loud one, which is noise of its own.
"""
import io
import pathlib
import struct
import warnings

import numpy as np
import soundfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz/corpus/sound"
DATA = ROOT / "tests/data/sounds"
RATE = 16000
ROLL, BETA, ZEROS = 0.9475937167399596, 14.769656459379492, 64
LENGTHS = (160, 161, 320, 321, 480, 481, 1000, 4801)  # samples; of 160 and fewer come no rows


def noise(seed, n):
    """-1 to 1, as sound/sound_test_int.h draws it, louder and quieter by turns."""
    at = np.arange(n, dtype=np.uint64) + np.uint64(seed) * np.uint64(1 << 32)
    z = (at ^ (at >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    x = (z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1
    return (x / (1 << (np.arange(n) // 300 % 8))).astype(np.float32)


def tones(rate, n, *hz):
    t = np.arange(n) / rate
    return sum(np.sin(2 * np.pi * f * t) for f in hz) / len(hz)


def chunk(name, body):
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) & 1)


def wav(body, code, channels, rate, bits, extensible=None, extra=b"", size=None):
    align = channels * bits // 8
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else code, channels, rate, rate * align, align, bits)
    if extensible:
        head += struct.pack("<HHIH", 22, bits, (1 << channels) - 1, code) + bytes.fromhex("0000000010008000" "00aa00389b71")
    data = b"data" + struct.pack("<I", len(body) if size is None else size) + body
    rest = b"WAVE" + chunk(b"fmt ", head) + extra + data
    return b"RIFF" + struct.pack("<I", len(rest) if size is None else 0xFFFFFFFF) + rest


def ints(x, bits):
    v = np.clip(np.rint(x * (1 << (bits - 1))), -(1 << (bits - 1)), (1 << (bits - 1)) - 1).astype(np.int64)
    if bits == 8:
        return (v + 128).astype(np.uint8).tobytes()
    return b"".join(int(s).to_bytes(bits // 8, "little", signed=True) for s in v.reshape(-1))


def encoded(x, rate, kind, subtype):
    f = io.BytesIO()
    soundfile.write(f, x, rate, format=kind, subtype=subtype)
    return f.getvalue()


def files():
    """Names and bytes of files that are read; those of no other reader's opinion first."""
    x = noise(1, 700).astype(np.float64)
    two = np.stack([noise(2, 500), noise(3, 500)], axis=1).astype(np.float64)
    yield "pcm8", wav(ints(x, 8), 1, 1, RATE, 8)
    yield "pcm16", wav(ints(x, 16), 1, 1, RATE, 16, extra=chunk(b"LIST", b"INFOISFT\x04\0\0\0abc\0"))
    yield "pcm24-stereo", wav(ints(two, 24), 1, 2, RATE, 24)
    yield "pcm32", wav(ints(x, 32), 1, 1, RATE, 32)
    yield "float32", wav(x.astype("<f4").tobytes(), 3, 1, RATE, 32)
    yield "float64", wav(x.astype("<f8").tobytes(), 3, 1, RATE, 64)
    yield "extensible-pcm24-six", wav(ints(np.stack([noise(c, 200) for c in range(6)], 1).astype(np.float64), 24), 1, 6, RATE, 24, True)
    yield "extensible-float", wav(two.astype("<f4").tobytes(), 3, 2, RATE, 32, True)
    yield "pipe", wav(ints(x, 16), 1, 1, RATE, 16, size=0xFFFFFFFF)
    yield "ulaw-8k", encoded(x[:300], 8000, "WAV", "ULAW")
    for rate in (8000, 11025, 22050, 24000, 44100, 48000, 96000):
        yield f"rate-{rate}", wav(ints(0.7 * tones(rate, rate // 40, 300, 5000, 0.45 * rate) + 0.1 * noise(4, rate // 40), 16), 1, 1, rate, 16)
    yield "flac16", encoded(ints16(x), RATE, "FLAC", "PCM_16")
    yield "flac24-44k-stereo", encoded(tones(44100, 1500, 440, 3000)[:, None] * [0.5, 0.25], 44100, "FLAC", "PCM_24")
    yield "vorbis", encoded(tones(RATE, 1600, 440), RATE, "OGG", "VORBIS")
    yield "opus", encoded(tones(48000, 4800, 440), 48000, "OGG", "OPUS")
    yield "mp3", encoded(tones(RATE, 1600, 440), RATE, "MP3", "MPEG_LAYER_III")


def ints16(x):
    return np.clip(np.rint(x * 32768), -32768, 32767).astype(np.int16)


def refused():
    x = noise(1, 700).astype(np.float64)
    good = wav(ints(x, 16), 1, 1, RATE, 16)
    flac = encoded(ints16(x), RATE, "FLAC", "PCM_16")
    bad = x.astype("<f4").copy()
    bad[77] = np.nan
    yield "bad-cut", good[:-9]
    yield "bad-head", good[:30]
    yield "bad-empty", wav(b"", 1, 1, RATE, 16)
    yield "bad-nan", wav(bad.tobytes(), 3, 1, RATE, 32)
    bad[77] = 1e30
    yield "bad-large", wav(bad.tobytes(), 3, 1, RATE, 32)
    yield "bad-channels", wav(ints(np.zeros((9, 9)), 16), 1, 9, RATE, 16)
    yield "bad-no-channels", wav(ints(x, 16), 1, 0, RATE, 16)
    yield "bad-rate", wav(ints(x, 16), 1, 1, 2000000000, 16)
    yield "bad-no-rate", wav(ints(x, 16), 1, 1, 0, 16)
    yield "bad-prime-rate", wav(ints(x, 16), 1, 1, 191999, 16)
    yield "bad-coding", wav(ints(x, 16), 0x161, 1, RATE, 16)  # Windows Media
    yield "bad-flac-cut", flac[:len(flac) // 2]
    # STREAMINFO: an hour and a half of silence
    yield "bad-flac-long", flac[:21] + bytes([flac[21] & 0xF0]) + struct.pack(">I", 5400 * RATE) + flac[26:]
    yield "bad-ogg-cut", encoded(tones(RATE, 1600, 440), RATE, "OGG", "VORBIS")[:60]
    yield "bad-webm", b"\x1a\x45\xdf\xa3" + bytes(40)
    yield "bad-aiff", encoded(x, RATE, "AIFF", "PCM_16")
    yield "bad-text", b"This is no sound.\n"


def resampled(x, rate):
    """The weights of every sample, each from the formula, in f64."""
    if rate == RATE:
        return x
    n = -(-len(x) * RATE // rate)
    zero = min(1.0, RATE / rate) * ROLL
    t = (np.arange(len(x))[None] - (np.arange(n) * rate / RATE)[:, None]) * zero
    w = np.sinc(t) * np.i0(BETA * np.sqrt(np.clip(1 - (t / ZEROS) ** 2, 0, None))) / np.i0(BETA) * (np.abs(t) < ZEROS)
    return (w * zero) @ x


def main():
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    mel = Gemma4AudioFeatureExtractor()

    def rows(x):
        # As __call__ does it, with all of the sound inside one batch and nothing padded behind it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out, mask = mel._extract_spectrogram(x.astype(np.float64), np.ones(len(x), dtype=np.int64))
        assert mask.all()
        return out.astype("<f4")

    CORPUS.mkdir(parents=True, exist_ok=True)
    DATA.mkdir(parents=True, exist_ok=True)
    lines, samples, spectra = [], [], []
    for name, body in files():
        (CORPUS / name).write_bytes(body)
        x, rate = soundfile.read(io.BytesIO(body), dtype="float32", always_2d=True)
        x = resampled(x.astype(np.float64).mean(axis=1).astype(np.float32).astype(np.float64), rate).astype("<f4")
        lines.append(f"{name} {len(x)}")
        samples.append(x.tobytes())
        spectra.append(rows(x).tobytes())
    for name, body in refused():
        (CORPUS / name).write_bytes(body)
        lines.append(f"{name} refused")
    for n in LENGTHS:
        x = noise(9, n)
        out = rows(x) if n > 160 else np.zeros((0, 128), "<f4")
        full = mel([x], sampling_rate=RATE)  # with its padding to 128 samples, in f32
        got = full["input_features"][0][full["input_features_mask"][0]]
        assert got.shape == out.shape and (n <= 160 or np.abs(got - out).max() < 1e-4), (n, got.shape, out.shape)
        spectra.append(out.tobytes())
    (DATA / "decode.txt").write_text("\n".join(lines) + "\n")
    (DATA / "samples.f32").write_bytes(b"".join(samples))
    (DATA / "mel.f32").write_bytes(b"".join(spectra))


if __name__ == "__main__":
    main()
