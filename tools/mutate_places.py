#!/usr/bin/env python3
"""Mistakes at places drawn from the sources of a folder, and which suite sees them.

    python3 tools/mutate_places.py [FOLDER ...] [--n 35] [--seed 1] [--long]

The folders are text, kv, hub, server and engine. A mistake is a small change of one line: a boundary
moved, a condition turned round, a call or an assignment left out. The draw depends on folder, number and
seed alone. One file is compiled for each, and the tests of the folder run first, the shortest before
the others, up to the first that fails; those of whole programs run for what is left. --long: what the
short suite does not see is shown to the tests that the long suite runs with more shapes, and to its
own. Mistakes that no test sees change nothing, or are a hole: they are listed with their lines.
"""
import argparse
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from mutate import ROOT, copy_tree

# What each folder's mistakes are looked for with: first the tests beside the code, then those of
# whole programs that go through it.
FOLDERS = {
    "text": (["text"], [["text/"], ["fuzz_corpus", "engine/compress", "compress_", "bytes_server"]]),
    "kv": (["kv"], [["kv/"], ["tests/kv_", "engine/paging", "engine/checkpoint", "engine/disk"]]),
    "hub": (["apps/hub"], [["apps/hub/"], ["tests/hub_test", "fuzz_corpus_hub", "fuzz_corpus_cache", "models_server"]]),
    "server": (["apps/server"], [["apps/server/", "fuzz_corpus_request", "fuzz_corpus_headers"],
                                 ["server_test"]]),
    "engine": (["engine"], [["engine/"], ["tests/fidelity_test", "tests/demo_test", "tests/pool_"]]),
}

# (name, pattern, text in its place). A pattern matches inside one line of code.
KINDS = [
    ("boundary moved", r"(?<=[\w)\]]) < (?=[\w(\-&*])", " <= "),
    ("boundary moved", r"(?<=[\w)\]]) > (?=[\w(\-&*])", " >= "),
    ("boundary moved", r"(?<=[\w)\]]) <= (?=[\w(\-&*])", " < "),
    ("boundary moved", r"(?<=[\w)\]]) >= (?=[\w(\-&*])", " > "),
    ("equal for unequal", r" == ", " != "),
    ("unequal for equal", r" != ", " == "),
    ("and for or", r" \|\| ", " && "),
    ("or for and", r" && ", " || "),
    ("one less", r" \+ 1(?=[;,)\]])", ""),
    ("one more", r" - 1(?=[;,)\]])", ""),
    ("the other sign", r"(?<=[\w)\]]) \+ (?=[\w(])", " - "),
    ("condition turned round", r"(?<=if \()!(?=\w)", ""),
    ("condition turned round", r"(?<=if \()(?=\w+\))", "!"),
    ("the other truth", r"= true;", "= false;"),
    ("the other truth", r"= false;", "= true;"),
    ("the other answer", r"return true;", "return false;"),
    ("the other answer", r"return false;", "return true;"),
    ("added once", r" \+= ", " = "),
    ("call left out", r"^    +(?!return|mem_free|free|str_free|goto|break|case|default)[a-z]\w*\([^;{}=]*\);$",
     "    ;"),
    ("assignment left out", r"^    +(?:[a-z]\w*(?:->|\.))[\w.\->\[\]]+ = [^;{}=]*;$", "    ;"),
]
PER_LINE = 1  # mistakes of one line, at most


class Place(NamedTuple):
    folder: str
    file: str
    line: int  # from 1
    kind: str
    old: str
    new: str

    @property
    def name(self):
        return f"{self.file}:{self.line}: {self.kind}"


def is_code(line):
    s = line.strip()
    return bool(s) and not s.startswith(("*", "/*", "//", "#", "\"", "static const", "enum")) \
        and "printf" not in s and "assert" not in s


def places_of(root, folder):
    out = []
    for d in FOLDERS[folder][0]:
        for path in sorted((root / d).glob("*.c")):
            if path.name.endswith("_test.c"):
                continue
            inside = False  # of a comment of several lines
            for n, line in enumerate(path.read_text().splitlines(), 1):
                begins = "/*" in line and "*/" not in line
                if not inside and is_code(line):
                    code = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: "\0" * len(m.group()), line)
                    code = re.sub(r"/\*.*", lambda m: "\0" * len(m.group()), code)
                    for kind, pattern, new in KINDS:
                        for m in re.finditer(pattern, code):
                            changed = line[:m.start()] + new + line[m.end():]
                            out.append(Place(folder, str(path.relative_to(root)), n, kind, line,
                                             changed))
                inside = begins or (inside and "*/" not in line)
    return out


def draw(root, folder, n, seed):
    """n places of a folder, at most PER_LINE of a line, spread over its files by their size."""
    rng = random.Random(f"{folder} {seed}")
    all_ = places_of(Path(root), folder)
    rng.shuffle(all_)
    seen, out = {}, []
    for p in all_:
        key = (p.file, p.line)
        if seen.get(key, 0) < PER_LINE and len(out) < n:
            seen[key] = seen.get(key, 0) + 1
            out.append(p)
    return out


class Tree:
    """A copy of the sources with its objects."""

    def __init__(self, where, make):
        self.root = Path(where)
        copy_tree(self.root)
        make = shlex.split(make)
        subprocess.run(make + ["carat", "build/carat_test"], cwd=self.root, check=True,
                       stdout=subprocess.DEVNULL)
        shown = subprocess.run(make + ["-s", "--eval",
                               "show:;@echo '$(CC) $(CFLAGS_ALL)'; echo '$(LDFLAGS) $(LIBS) $(APP_LIBS)'; "
                               "echo '$(LIB_OBJ) $(APP_OBJ)'; echo '$(TEST_OBJ)'", "show"],
                               cwd=self.root, check=True, capture_output=True, text=True).stdout
        compile_, libs, objects, tests = shown.splitlines()[-4:]
        self.cc = [w for w in shlex.split(compile_) if w not in ("-g", "-O3", "ccache")] + ["-w", "-O1"]
        fast = ["-fuse-ld=lld"] if shutil.which("ld.lld") else []
        self.link = self.cc[:1] + fast
        self.libs, self.objects, self.tests = libs.split(), objects.split(), tests.split()

    def build(self, file, program_too):
        """None, or what the compiler says."""
        object_ = f"build/{file[:-2]}.o"
        p = subprocess.run(self.cc + ["-c", "-o", object_, file], cwd=self.root, capture_output=True,
                           text=True)
        if p.returncode:
            return p.stderr.strip().splitlines()[:1]
        without_main = [o for o in self.objects if o != "build/apps/main.o"]
        for out, objects in (("build/carat_test", without_main + self.tests),
                             ("build/carat", self.objects))[:2 if program_too else 1]:
            subprocess.run(self.link + ["-o", out] + objects + self.libs, cwd=self.root, check=True)
        return None

    def failing(self, tests, seconds, long=False):
        """The first test that fails, "hangs", or None; and the seconds that it took."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        start = time.monotonic()
        env = dict(os.environ, CARAT_ROOT=str(self.root), TEST_LONG="1" if long else "")
        p = subprocess.Popen(["build/carat_test", "-f", "-j", "2"] + tests, cwd=self.root, env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             start_new_session=True, preexec_fn=limit)
        try:
            out, _ = p.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
            return "hangs", time.monotonic() - start
        names = re.findall(r"^FAIL (\S+)", out, re.M)
        found = names[0] if names else None if p.returncode == 0 else "the runner ends"
        return found, time.monotonic() - start


def varied(root, tests):
    """Those files of tests that show themselves less in the short suite."""
    out = []
    for path in sorted(list(root.glob("*/*_test.c")) + list(root.glob("*/*/*_test.c"))):
        name = str(path.relative_to(root))
        if any(t in name for t in tests) and re.search(r"test_brief|test_trials|LONG_TEST",
                                                       path.read_text()):
            out.append(name)
    return out


def judge(tree, p, o):
    path = tree.root / p.file
    text = path.read_text()
    lines = text.split("\n")
    assert lines[p.line - 1] == p.old
    object_ = tree.root / f"build/{p.file[:-2]}.o"
    compiled = object_.read_bytes()
    lines[p.line - 1] = p.new
    path.write_text("\n".join(lines))
    try:
        if tree.build(p.file, p.folder in ("server", "hub")):
            return "does not build", ""
        stages = FOLDERS[p.folder][1]
        for tests in stages:
            found, _ = tree.failing(tests, o.seconds)
            if found:
                return "short", found
        if o.long:
            found, _ = tree.failing(varied(tree.root, sum(stages, [])), 3 * o.seconds, long=True)
            if found:
                return "long", found
        return "none", ""
    finally:
        path.write_text(text)
        object_.write_bytes(compiled)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folders", nargs="*", default=list(FOLDERS))
    ap.add_argument("--n", type=int, default=35, help="mistakes of each folder")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--skip", type=int, default=0, help="leave out the first of each folder")
    ap.add_argument("--long", action="store_true")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--seconds", type=float, default=300, help="longest run of a stage")
    ap.add_argument("--dir", help="where the copy is; kept, and used again")
    ap.add_argument("--make", default="make -j2", help="how to build")
    o = ap.parse_args()
    todo = [p for f in o.folders for p in draw(ROOT, f, o.n, o.seed)[o.skip:]]
    if o.list:
        print(*(f"{p.name}\n    {p.old.strip()}\n    {p.new.strip()}" for p in todo), sep="\n")
        return 0
    tree = Tree(o.dir or tempfile.mkdtemp(prefix="carat-mutate-"), o.make)
    count = {}
    for p in todo:
        seen, test = judge(tree, p, o)
        count.setdefault(p.folder, {}).setdefault(seen, []).append(p)
        print(f"{seen}: {p.name}: {test}", flush=True)
        if seen in ("long", "none"):
            print(f"    {p.old.strip()}\n    {p.new.strip()}", flush=True)
    print("\n| folder | mistakes | seen by the short suite | by the long one alone | by none |\n"
          "| --- | --- | --- | --- | --- |")
    for folder, c in count.items():
        n = {k: len(v) for k, v in c.items()}
        built = sum(n.values()) - n.get("does not build", 0)
        print(f"| {folder} | {built} | {n.get('short', 0)} | {n.get('long', 0)} | {n.get('none', 0)} |")
    if not o.dir:
        shutil.rmtree(tree.root)
    return 1 if any(c.get("long") for c in count.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
