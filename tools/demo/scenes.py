"""Pictures for the tower of the demo model, and questions about them: shapes or a number on a plain ground.

Pictures are drawn in batches, on a GPU if there is one, from a list of scenes; everything that is drawn is chosen by
`random.Random`, so a seed gives the same scenes on every machine.
"""
import random
import zlib

import numpy as np
import torch
import torch.nn.functional as F

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 70, 220), "yellow": (240, 210, 40), "orange": (245, 140, 30),
           "purple": (140, 50, 170), "black": (15, 15, 15), "white": (245, 245, 245), "grey": (130, 130, 130)}
SHAPES = ("circle", "square", "triangle")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
# 5 x 7 dots, a row in each number
DIGITS = ((14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31), (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2),
          (31, 16, 30, 1, 1, 17, 14), (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14), (14, 17, 17, 15, 1, 2, 12))
MOST = 6                # things in a picture


def glyphs():
    """[kinds, 10, 64, 48]: digits as dots, as dots whose edges are soft, and in Pillow's own font where it is there."""
    dots = torch.zeros(10, 7, 5)
    for d, rows in enumerate(DIGITS):
        for y, bits in enumerate(rows):
            for x in range(5):
                dots[d, y, x] = bits >> (4 - x) & 1
    hard = F.interpolate(dots[None], (64, 48), mode="nearest")[0]
    soft = ((F.interpolate(dots[None], (64, 48), mode="bilinear")[0] - 0.42) * 6).clamp(0, 1)
    kinds = [hard, soft]
    try:
        from PIL import Image, ImageDraw, ImageFont
        font, face = ImageFont.load_default(80), torch.zeros(10, 64, 48)
        for d in range(10):
            page = Image.new("L", (120, 120))
            ImageDraw.Draw(page).text((30, 10), str(d), 255, font)
            cut = page.crop(page.getbbox()).resize((48, 64) if d != 1 else (24, 64), Image.BICUBIC)
            at = (48 - cut.width) // 2
            face[d, :, at:at + cut.width] = torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8).view(64, cut.width) / 255
        kinds.append(face)
    except (ImportError, AttributeError, OSError, TypeError):
        pass
    return torch.stack(kinds)


# ---- scenes ----------------------------------------------------------------------------------------------

def scene(r, n_kinds):
    """A picture as a dict: its ground, and either shapes (kind, colour, x, y, size) or digits."""
    ground = r.choice(list(COLOURS))
    inks = [c for c in COLOURS if c != ground and {c, ground} not in ({"white", "grey"}, {"black", "purple"}, {"orange", "yellow"})]
    # Shades differ from picture to picture.
    s = {"ground": ground, "shade": [r.uniform(-18, 18) for _ in range(3 * (MOST + 1))], "things": []}
    if r.random() < 0.35:
        n = r.choice((1, 1, 2, 2, 3, 4))
        h = r.uniform(0.22, min(0.75, 0.95 / n / 0.75))
        w, gap = h * 0.62, h * 0.16
        x = r.uniform(0.03, max(0.031, 0.97 - n * (w + gap)))
        y, ink, kind = r.uniform(0.03, 0.97 - h), r.choice(inks), r.randrange(n_kinds)
        s["number"] = "".join(r.choice("0123456789") for _ in range(n))
        s["ink"] = ink
        for i, d in enumerate(s["number"]):
            s["things"].append((3 + kind * 10 + int(d), ink, x + i * (w + gap) + w / 2, y + h / 2, w / 2, h / 2))
        return s
    n = r.choice((1, 1, 1, 2, 2, 3, 4, 5, 6))
    same = r.random() < 0.4                     # of one kind and colour, to be counted
    kind, ink = r.randrange(3), r.choice(inks)
    for _ in range(80):
        if len(s["things"]) == n:
            break
        size = r.uniform(0.07, (0.4, 0.24, 0.2, 0.17, 0.15, 0.14)[n - 1])
        x, y = r.uniform(size + 0.02, 0.98 - size), r.uniform(size + 0.02, 0.98 - size)
        if all((x - t[2]) ** 2 + (y - t[3]) ** 2 > (1.5 * (size + t[4])) ** 2 for t in s["things"]):
            s["things"].append((kind if same else r.randrange(3), ink if same else r.choice(inks), x, y, size, size))
    return s


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def counted(n, what):
    return f"{NUMBERS[n]} {what}{'' if n == 1 else 's'}"


def listed(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def question(r, s):
    """A question about the picture, and its answer."""
    ask = []
    if "number" in s:
        n = s["number"]
        ask += [(r.choice(("What number is in the picture?", "Which number do you see?", "Read the number.")), f"The number is {n}.")] * 4
        ask.append(("How many digits are there?", f"There {'is' if len(n) == 1 else 'are'} {counted(len(n), 'digit')}."))
        ask.append(("What colour is the number?", f"The number is {s['ink']}."))
        ask.append((r.choice(("What is in the picture?", "What do you see?")), f"I see the number {n} in {s['ink']}."))
    else:
        things = [(SHAPES[k], c) for k, c, *_ in s["things"]]
        kinds = sorted(set(things), key=things.index)
        by_shape = {k: sum(t[0] == k for t in things) for k in SHAPES}
        told = listed([article(f"{c} {k}") if things.count((k, c)) == 1 else counted(things.count((k, c)), f"{c} {k}") for k, c in kinds])
        if len(kinds) <= 3:
            ask += [(r.choice(("What is in the picture?", "What do you see?")), f"I see {told}.")] * 3
        ask += [("How many shapes are there?", f"There {'is' if len(things) == 1 else 'are'} {counted(len(things), 'shape')}.")] * 2
        k = r.choice(SHAPES)
        ask += [(f"How many {k}s are there?", f"There {'is' if by_shape[k] == 1 else 'are'} {counted(by_shape[k], k)}.")] * 2
        k, c = r.choice(things) if r.random() < 0.5 else (r.choice(SHAPES), r.choice(list(COLOURS)))
        ask += [(f"Is there {article(f'{c} {k}')}?", f"{'Yes, there is' if (k, c) in things else 'No, there is not'} {article(f'{c} {k}')}.")] * 2
        lone = [t for t in things if by_shape[t[0]] == 1]
        if lone:
            k, c = r.choice(lone)
            ask += [(f"What colour is the {k}?", f"The {k} is {c}.")] * 3
        if len(things) == 1:
            ask.append(("What shape is it?", f"It is {article(things[0][0])}."))
    ask.append((r.choice(("What colour is the ground?", "What colour is the background?")), f"The ground is {s['ground']}."))
    return r.choice(ask)


def held_out(s):
    """One scene in 16 is kept for the measurement."""
    things = sorted((t[0] if t[0] < 3 else 3 + (t[0] - 3) % 10, t[1]) for t in s["things"])
    return zlib.crc32(repr((s["ground"], s.get("number"), things)).encode()) % 16 == 0


def draw(r, kept, n_kinds):
    while True:
        s = scene(r, n_kinds)
        if held_out(s) == kept:
            return s


# ---- pixels ----------------------------------------------------------------------------------------------

INKS = {c: i for i, c in enumerate(COLOURS)}


def arrays(made):
    """Scenes as numpy arrays: kinds [n, MOST] (-1: no thing), their colours, places [n, MOST, 4], shades [n, MOST + 1, 3], grounds [n]."""
    n = len(made)
    kind, ink, place = np.full((n, MOST), -1, np.int64), np.zeros((n, MOST), np.int64), np.ones((n, MOST, 4), np.float32)
    for i, s in enumerate(made):
        for k, (what, c, *at) in enumerate(s["things"]):
            kind[i, k], ink[i, k], place[i, k] = what, INKS[c], at
    return kind, ink, place, np.array([s["shade"] for s in made], np.float32).reshape(n, MOST + 1, 3), np.array([INKS[s["ground"]] for s in made])


def cells(scene_arrays, rows, cols):
    """What is drawn at the centre of each of rows x cols cells: kinds [n, rows * cols] (0: nothing, 1 to 3: shapes, 4 to 13: digits), colours."""
    kind, ink, place, _, ground = scene_arrays
    side = min(rows, cols)
    y, x = ((np.arange(k) + 0.5) / side for k in (rows, cols))
    what, colour = np.zeros((len(kind), rows, cols), np.int64), np.broadcast_to(ground[:, None, None], (len(kind), rows, cols)).copy()
    for k in range(MOST):
        cx, cy, rx, ry = (place[:, k, j] for j in range(4))
        v = np.abs(y[None] - (cy * rows / side)[:, None]) < ry[:, None]
        u = np.abs(x[None] - (cx * cols / side)[:, None]) < rx[:, None]
        at = v[:, :, None] & u[:, None] & (kind[:, k] >= 0)[:, None, None]
        of = np.where(kind[:, k] < 3, kind[:, k] + 1, 4 + (kind[:, k] - 3) % 10)
        what = np.where(at, of[:, None, None], what)
        colour = np.where(at, ink[:, k][:, None, None], colour)
    return what.reshape(len(kind), -1), colour.reshape(len(kind), -1)


def paint(scene_arrays, h, w, faces):
    """[n, 3, h, w], 0 to 255, not rounded. Sizes of things are shares of the shorter side. Nothing waits for the GPU."""
    dev, n = faces.device, len(scene_arrays[0])
    kind, ink, place, shade, ground = (torch.from_numpy(a) for a in scene_arrays)
    table = torch.tensor(list(COLOURS.values()), dtype=torch.float32)
    inks = (table[ink] + shade[:, :MOST]).clamp(0, 255).to(dev, non_blocking=True)
    ground = (table[ground] + shade[:, MOST]).clamp(0, 255).to(dev, non_blocking=True)
    on, place = kind.to(dev, non_blocking=True), place.to(dev, non_blocking=True)
    side = min(h, w)
    y = ((torch.arange(h, device=dev) + 0.5) / side)[None, :, None]
    x = ((torch.arange(w, device=dev) + 0.5) / side)[None, None, :]
    out = ground[:, :, None, None].expand(n, 3, h, w).clone()
    flat = faces.reshape(-1, 64, 48)
    for k in range(int((kind >= 0).sum(1).max())):
        what = on[:, k, None, None]
        cx, cy, rx, ry = (place[:, k, j, None, None] * (1 if j > 1 else (w, h)[j] / side) for j in range(4))
        u, v = (x - cx) / rx, (y - cy) / ry                     # -1 to 1 inside
        beyond = torch.where(what == 0, (u * u + v * v).sqrt() - 1, torch.maximum(u.abs(), v.abs()) - 1)
        beyond = torch.where(what == 2, torch.maximum(v - 0.8, (2 * u.abs() - v - 1) / 2.236), beyond)
        cover = (0.5 - beyond * rx * side).clamp(0, 1)
        digits = (kind[:, k] >= 3).nonzero()[:, 0]
        if len(digits):
            i, face = digits.to(dev, non_blocking=True), (kind[digits, k] - 3).to(dev, non_blocking=True)
            grid = torch.stack((u[i].expand(-1, h, w), v[i].expand(-1, h, w)), -1)
            cover[i] = F.grid_sample(flat[face][:, None], grid, mode="bilinear", padding_mode="zeros", align_corners=False)[:, 0]
        cover = torch.where(what >= 0, cover, torch.zeros_like(cover))[:, None]
        out = out + cover * (inks[:, k, :, None, None] - out)
    return out


def pictures(scene_arrays, source, target, faces):
    """Patches' pixels [n, 3, H, W], 0 to 1: drawn at `source`, rounded to bytes, resized as the runtime resizes, rounded again."""
    x = paint(scene_arrays, *source, faces).round().clamp(0, 255)
    if source != target:
        x = F.interpolate(x, target, mode="bicubic", antialias=True, align_corners=False).round().clamp(0, 255)
    return x / 255
