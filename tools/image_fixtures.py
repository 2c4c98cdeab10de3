#!/usr/bin/env python3
"""Writes what the tests of image/ compare with: small files of pictures in fuzz/corpus/{png,jpeg,webp},
what Pillow reads from them (tests/data/images/decode.txt), and what it makes of 200 pictures at other
sizes (tests/data/images/resize.txt). With transformers also the sizes that its processors choose
(sizes.txt) and the patches that they give (patches.txt).

    python3 tools/image_fixtures.py          needs Pillow 13 (older ones resize tall pictures in
                                             another order), numpy and, for processors,
                                             transformers

A line has a hash of the pixels: the first 16 digits of the SHA-256 of their RGB bytes. Where carat
differs from Pillow on purpose, the line is what carat promises: of 16-bit grey the upper 8 bits.
"""
import hashlib
import io
import pathlib
import random
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz/corpus"
DATA = ROOT / "tests/data/images"


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def picture(seed, w, h):
    """Noise, a smooth pattern or hard edges, as image/image_test_int.h draws them."""
    y, x, c = np.meshgrid(np.arange(h), np.arange(w), np.arange(3), indexing="ij")
    if seed % 3 == 0:
        at = ((y * w + x) * 3 + c).astype(np.uint64) + np.uint64(seed) * np.uint64(1 << 32)
        return (mix(at) & np.uint64(255)).astype(np.uint8)
    if seed % 3 == 1:
        return (((3 * x * x + 5 * y * y + 85 * c + seed) >> 4) & 255).astype(np.uint8)
    return ((x // 3 + y // 2 + c) % 2 * 255).astype(np.uint8)


def digest(rgb):
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()[:16]


# ---- Files ----

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(samples, depth, colour, interlace=False, before=(), after=()):
    """A PNG file of samples [h, w, channels]; chunks before and after the pixels."""
    h, w, _ = samples.shape

    def rows(part):
        out = b""
        for row in part:
            bits = "".join(format(int(v), f"0{depth}b") for v in row.reshape(-1))
            bits += "0" * (-len(bits) % 8)
            out += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
        return out

    if interlace:
        parts = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7]
        raw = b"".join(rows(p) for p in parts if p.size)
    else:
        raw = rows(samples)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, int(interlace))
    all_chunks = [(b"IHDR", head), *before, (b"IDAT", zlib.compress(raw, 9)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in all_chunks)


def exif(orientation, big=False):
    order = ">" if big else "<"
    return (b"MM\0*" if big else b"II*\0") + struct.pack(order + "IHHHI", 8, 2, 0x010F, 2, 4) + b"abc\0" + \
        struct.pack(order + "HHIHHI", 0x0112, 3, 1, orientation, 0, 0)


def png_files():
    rng = np.random.default_rng(7)
    palette = (b"PLTE", bytes(rng.integers(0, 256, 48, dtype=np.uint8)))
    for colour, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4)), (4, (8, 16)), (6, (8, 16))):
        for depth in depths:
            for interlace in (False, True):
                w, h = (11, 7) if interlace else (13, 5)
                top = 1 << depth
                samples = rng.integers(0, top, (h, w, CHANNELS[colour]))
                name = f"{ {0: 'grey', 2: 'rgb', 3: 'palette', 4: 'grey-alpha', 6: 'rgba'}[colour]}{depth}"
                before = [(b"PLTE", palette[1][: 3 * min(top, 16)])] if colour == 3 else []
                yield name + ("-interlaced" if interlace else ""), png(samples, depth, colour, interlace, before)
    small = rng.integers(0, 16, (4, 9, 1))
    yield "palette8-transparent-entry", png(small, 8, 3, before=[palette, (b"tRNS", b"\xff\xff\0")])
    yield "palette4-alpha", png(small, 4, 3, before=[palette, (b"tRNS", bytes(range(16)))])
    rgb = rng.integers(0, 256, (4, 9, 3))
    yield "rgb8-transparent-colour", png(rgb, 8, 2, before=[(b"tRNS", struct.pack(">HHH", *rgb[1, 1]))])
    yield "grey8-transparent-level", png(small, 8, 0, before=[(b"tRNS", b"\0\3")])
    yield "exif-6", png(rgb, 8, 2, before=[(b"eXIf", exif(6))])
    yield "exif-3-behind", png(rgb, 8, 2, after=[(b"eXIf", exif(3, True))])
    yield "text", png(rgb, 8, 2, before=[(b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"Title\0a picture"),
                                         (b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * 100))])
    yield "one-pixel", png(rgb[:1, :1], 8, 2)
    for name, how in (("animated", {}), ("animated-behind-a-still", {"default_image": True})):  # the first one is seen
        frames = [Image.fromarray(picture(k, 9, 6)) for k in (1, 4, 7)]
        out = io.BytesIO()
        frames[0].save(out, "PNG", save_all=True, append_images=frames[1:], **how)
        yield name, out.getvalue()


def saved(rgb, kind, mode="RGB", **how):
    out = io.BytesIO()
    Image.fromarray(rgb).convert(mode).save(out, kind, **how)
    return out.getvalue()


def jpeg_files():
    rgb = picture(1, 37, 22)
    for name, how in (("420", {"subsampling": 2}), ("422", {"subsampling": 1}), ("444", {"subsampling": 0}),
                      ("420-progressive", {"subsampling": 2, "progressive": True}),
                      ("444-progressive", {"subsampling": 0, "progressive": True}),
                      ("restart", {"subsampling": 2, "restart_marker_blocks": 1}),
                      ("optimised", {"optimize": True}), ("poor", {"quality": 3}),
                      ("rgb", {"keep_rgb": True, "subsampling": 0})):
        yield name, saved(rgb, "JPEG", **({"quality": 85} | how))
    yield "grey", saved(rgb, "JPEG", "L")
    yield "grey-progressive", saved(rgb, "JPEG", "L", progressive=True)
    yield "noise", saved(picture(3, 17, 9), "JPEG", quality=95)
    yield "one-pixel", saved(rgb[:1, :1], "JPEG")
    yield "cmyk", saved(rgb[:8, :8], "JPEG", "CMYK")
    for o in range(1, 10):
        yield f"exif-{o}", saved(rgb[:9, :14], "JPEG", quality=60, exif=b"Exif\0\0" + exif(o, o % 2 == 0))


def webp_files():
    rgb = picture(1, 37, 22)
    alpha = Image.fromarray(np.dstack([rgb, picture(0, 37, 22)[:, :, :1]]))
    yield "lossy", saved(rgb, "WEBP", quality=80)
    yield "lossless", saved(picture(3, 9, 6), "WEBP", lossless=True)
    yield "one-pixel", saved(rgb[:1, :1], "WEBP")
    for name, how in (("alpha", {"quality": 60}), ("alpha-lossless", {"lossless": True, "exact": True})):
        out = io.BytesIO()
        alpha.crop((0, 0, 11, 8)).save(out, "WEBP", **how)
        yield name, out.getvalue()
    yield "exif-8", saved(rgb[:9, :14], "WEBP", quality=60, exif=exif(8))
    yield "exif-5-as-in-jpeg", saved(rgb[:9, :14], "WEBP", lossless=True, exif=b"Exif\0\0" + exif(5))
    out = io.BytesIO()
    Image.fromarray(rgb[:8, :8]).save(out, "WEBP", save_all=True, lossless=True,
                                      append_images=[Image.fromarray(rgb[8:16, :8])])
    yield "animated", out.getvalue()
    yield "animated-part", animation(20, 14, 6, 4, saved(rgb[:9, :11], "WEBP", lossless=True))
    yield "animated-lossy", animation(11, 9, 0, 0, saved(rgb[:9, :11], "WEBP", quality=70))


def animation(width, height, x, y, still):
    """A WebP animation of one frame, the picture of a still file, at x and y of its canvas."""
    part = Image.open(io.BytesIO(still))

    def chunk(name, data):
        return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)

    def three(*numbers):
        return b"".join(struct.pack("<I", n)[:3] for n in numbers)

    frame = three(x // 2, y // 2, part.width - 1, part.height - 1, 100) + b"\0" + still[12:]
    body = chunk(b"VP8X", b"\2\0\0\0" + three(width - 1, height - 1)) + chunk(b"ANIM", bytes(6)) + chunk(b"ANMF", frame)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


REFUSED = {"jpeg/cmyk"}


def expected(name, data):
    m = Image.open(io.BytesIO(data))
    if name in REFUSED:
        return "refused 0 0 -"
    if m.mode.startswith("I"):
        grey = (np.array(m) >> 8).astype(np.uint8)
        rgb = np.repeat(grey[:, :, None], 3, axis=2)
    else:
        rgb = np.array(ImageOps.exif_transpose(m).convert("RGB"))
    return f"read {rgb.shape[1]} {rgb.shape[0]} {digest(rgb)}"


def write_files():
    lines = []
    for folder, files in (("png", png_files()), ("jpeg", jpeg_files()), ("webp", webp_files())):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files:
            (CORPUS / folder / name).write_bytes(data)
            lines.append(f"{folder}/{name} {expected(f'{folder}/{name}', data)}")
    (DATA / "decode.txt").write_text("\n".join(lines) + "\n")


# ---- Sizes ----

def write_resizes():
    rng = random.Random(11)
    lines = []
    for seed in range(200):
        # Sides at random on a scale of ratios, so that some grow or shrink much; some stay.
        w, h, tw, th = (int(2 ** rng.uniform(0, 7.5)) for _ in range(4))
        if seed % 10 == 7:
            tw = w
        if seed % 10 == 8:
            th = h
        kind = "bilinear" if seed % 4 == 3 else "bicubic"
        m = Image.fromarray(picture(seed, w, h)).resize((tw, th), getattr(Image.Resampling, kind.upper()))
        lines.append(f"{seed} {w} {h} {tw} {th} {kind} {digest(np.array(m))}")
    (DATA / "resize.txt").write_text("\n".join(lines) + "\n")


# ---- Processors ----

BUDGETS = (70, 140, 280, 560, 1120)
QWEN = (65536, 16777216)


def write_sizes():
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = random.Random(13)
    shapes = [(1, 1), (1920, 1080), (512, 512), (1500, 1000), (900, 3), (3, 900), (1, 71), (71, 1), (1, 16384),
              (48, 48), (768, 768), (16383, 4096), (1080, 2400), (200, 1), (201, 1), (16, 16), (80, 48), (15, 17)]
    shapes += [tuple(int(2 ** rng.uniform(0, 13)) for _ in "wh") for _ in range(82)]
    lines = []
    for w, h in shapes:
        for b in BUDGETS:
            for patch, merge in ((16, 3), (48, 1)) if b == 280 else ((16, 3),):
                th, tw = get_aspect_ratio_preserving_size(h, w, patch, b * merge**2, merge)
                lines.append(f"budget {patch} {merge} {b} {w} {h} {tw} {th}")
        for patch, merge, least, most in ((16, 2, *QWEN), (14, 2, 3136, 1003520), (16, 3, 70 * 2304, 1120 * 2304)):
            try:
                th, tw = smart_resize(h, w, patch * merge, least, most)
            except ValueError:
                th = tw = 0
            lines.append(f"pixels {patch} {merge} {least} {most} {w} {h} {tw} {th}")
    (DATA / "sizes.txt").write_text("\n".join(lines) + "\n")


def write_patches():
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    lines = []
    cases = [(3, 40, 30), (1, 97, 200), (2, 33, 5), (4, 300, 200), (6, 60, 150)]
    for seed, w, h in cases:
        rgb = Image.fromarray(picture(seed, w, h))
        # The tower's own first step, 2 (x - 1/2), is in our patches; 12B has patches of 48 and no such step.
        for patch, merge, half in ((16, 3, True), (48, 1, False)):
            out = Gemma4ImageProcessorPil(patch_size=patch, pooling_kernel_size=merge, max_soft_tokens=70)(rgb)
            n = out["num_soft_tokens_per_image"][0] * merge**2
            v = np.asarray(out["pixel_values"][0], np.float32)[:n]
            v = v.reshape(n, patch, patch, 3).transpose(0, 3, 1, 2)
            if half:
                v = np.float32(2) * (v - np.float32(0.5))
            at = np.asarray(out["image_position_ids"][0])[:n].max(axis=0) + 1
            mean = "0.5 0.5 " * 3 if half else "0 1 " * 3
            lines.append(f"budget {patch} {merge} 70 {mean}{seed} {w} {h} {at[0] * patch} {at[1] * patch} {digest(v)}")
        for least, most, means, stds in ((4096, 65536, [0.5] * 3, [0.5] * 3),
                                         (256, 4096, [0.48145466, 0.4578275, 0.40821073],
                                          [0.26862954, 0.26130258, 0.27577711])):
            out = Qwen2VLImageProcessorPil(patch_size=16, min_pixels=least, max_pixels=most, image_mean=means,
                                           image_std=stds)(rgb)
            grid = out["image_grid_thw"][0]
            v = np.asarray(out["pixel_values"], np.float32).reshape(-1, 3, 2, 16, 16)
            assert (v[:, :, 0] == v[:, :, 1]).all()  # a still picture, twice
            stats = " ".join(f"{m} {s}" for m, s in zip(means, stds))
            lines.append(f"pixels 16 2 {least} {most} {stats} {seed} {w} {h} {grid[2] * 16} {grid[1] * 16} "
                         f"{digest(v[:, :, 0])}")
    (DATA / "patches.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    write_files()
    write_resizes()
    write_sizes()
    write_patches()
