#!/usr/bin/env python3
"""Mistakes at places drawn from the sources of a folder, and which suite sees them.

    python3 tools/mutate_places.py [FOLDER ...] [--n 35] [--seed 1] [--long]
    python3 tools/mutate_places.py --at server/api_chat.c:438 [--at ...]
    python3 tools/mutate_places.py --file kv/paging.c [--n 9] --tests 'kv/ tests/kv_'
    python3 tools/mutate_places.py --plain build/sanitize/carat_test.times

The folders are text, kv, hub, server and engine. A mistake is a small change of one line: a boundary
moved, a condition turned round, a call or an assignment left out. The draw depends on folder, number and
seed alone. --at: all mistakes of a line. --plain: no mistakes; lists the tests that sanitizers need not
run, because the lines that they go through are those of tests that take less time in that file. --file: n
mistakes of one file. --tests: no lines are noted; every mistake is shown to the tests of these words.

First every test runs once, alone, on a build that notes the lines it goes through (trace.json in the
copy; --dir keeps it). For each mistake one file is compiled, and the tests that go through its line run,
the shortest before the others, up to the first that fails. --long: what the short suite does not see is
shown to the same tests with the shapes of the long suite. Mistakes that no test sees change nothing, or
are a hole: they are listed with their lines.
"""
import argparse
import json
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

FOLDERS = {"text": ["text"], "kv": ["kv"], "hub": ["apps/hub"], "server": ["apps/server/http", "apps/server/dialects", "apps/server/answers", "apps/server/models"], "engine": ["engine"]}
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
    for d in FOLDERS[folder]:
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


# Linked into the traced programs: each basic block of a traced file calls here. A byte for each place is in
# a file of TRACE_DIR for each program, which all its processes share, so that killed ones count too.
TRACER = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
extern const char __executable_start[];
enum { PLACES = 64 << 20 };
static unsigned char *seen;
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t at = (uintptr_t)__builtin_return_address(0) - (uintptr_t)__executable_start;
    if (seen && at < PLACES)
        seen[at] = 1;
}
__attribute__((constructor)) static void open_seen(void)
{
    char path[512];
    const char *dir = getenv("TRACE_DIR");
    int fd = -1;
    if (!dir || snprintf(path, sizeof path, "%s/%s", dir, program_invocation_short_name) >= (int)sizeof path)
        return;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && !ftruncate(fd, PLACES)) {
        void *p = mmap(NULL, PLACES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        seen = p == MAP_FAILED ? NULL : p;
    }
    if (fd >= 0)
        close(fd);
}
"""


def places_in(path):
    """Where a sparse file has bytes."""
    fd, found, at = os.open(path, os.O_RDONLY), [], 0
    try:
        while True:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, at, os.SEEK_HOLE)
            found += [at + m.start() for m in re.finditer(b"\1", os.pread(fd, end - at, at))]
            at = end
    except OSError: # no more
        return found
    finally:
        os.close(fd)


NEAR = 3  # lines: a statement of several has its code at one of them


class Tree:
    """A copy of the sources with its objects."""

    def __init__(self, where, make):
        self.root = Path(where)
        copy_tree(self.root)
        make = shlex.split(make)
        programs = ["build/carat", "build/carat_test"]
        subprocess.run(make + programs, cwd=self.root, check=True, stdout=subprocess.DEVNULL)
        commands = subprocess.run(make + ["-n", "-B", "V=1"] + programs, cwd=self.root, check=True,
                                  capture_output=True, text=True).stdout
        commands = [[w for w in shlex.split(c) if w != "ccache"] for c in commands.splitlines()
                    if " -o build/" in c]
        self.command = {c[c.index("-o") + 1]: c for c in commands}  # by what it makes
        self.lines = self.seconds = None

    def compile(self, file, object_, flags=("-O1", "-g0")):
        """None, or what the compiler says."""
        (self.root / object_).parent.mkdir(parents=True, exist_ok=True)
        cc = [w for w in self.command[f"build/{file[:-2]}.o"] if w not in ("-MMD", "-MP", "-Werror")]
        cc[cc.index("-o") + 1] = object_
        p = subprocess.run(cc + ["-w"] + list(flags), cwd=self.root, capture_output=True, text=True)
        return p.stderr.strip().splitlines()[:1] if p.returncode else None

    def link(self, swapped, more=()):
        for out in "build/carat_test", "build/carat":
            c = [swapped.get(w, w) for w in self.command[out]] + list(more)
            subprocess.run(c + (["-fuse-ld=lld"] if shutil.which("ld.lld") else []), cwd=self.root, check=True)

    def trace(self):
        """Which tests go through which line, and how long each takes. Kept in trace.json."""
        kept = self.root / "trace.json"
        if not kept.exists():
            kept.write_text(json.dumps(self.traced()))
        known = json.loads(kept.read_text())
        self.lines, self.seconds = known["lines"], known["seconds"]

    def traced(self, tests=None):
        (self.root / "build/trace").mkdir(exist_ok=True)
        (self.root / "build/trace/tracer.c").write_text(TRACER)
        subprocess.run(["cc", "-O2", "-c", "-o", "build/trace/tracer.o", "build/trace/tracer.c"],
                       cwd=self.root, check=True)
        swapped = {}
        for made in self.command["build/carat"]:
            file = made[len("build/"):-1] + "c"
            if not made.endswith(".o") or "_avx" in made: # kernels: the portable ones are traced
                continue
            object_ = f"build/trace/{file[:-2]}.o"
            flags = ["-O1", "-g1", "-fsanitize-coverage=trace-pc"]
            if not self.compile(file, object_, flags):
                swapped[made] = object_
        self.link(swapped, more=["build/trace/tracer.o"])
        places, seconds = {"carat": {}, "carat_test": {}}, {}
        with tempfile.TemporaryDirectory(dir="/dev/shm") as dir_:
            for name in tests or self.names():
                start = time.monotonic()
                env = dict(os.environ, CARAT_ROOT=str(self.root), TRACE_DIR=dir_)
                subprocess.run(["build/carat_test", "=" + name], cwd=self.root, env=env,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                seconds[name] = time.monotonic() - start
                for f in Path(dir_).iterdir():
                    for at in places_in(f) if f.name in places else ():
                        places[f.name].setdefault(at, set()).add(name)
                    f.unlink()
        lines = {}
        for program, found in places.items():
            for at, line in self.lines_of(f"build/{program}", sorted(found)).items():
                lines.setdefault(line, set()).update(found[at])
        return {"lines": {k: sorted(v) for k, v in lines.items()}, "seconds": seconds}

    def names(self):
        out = subprocess.run(["build/carat_test", "-l"], cwd=self.root, check=True,
                             capture_output=True, text=True).stdout
        return out.split()

    def lines_of(self, program, places):
        out = subprocess.run(["addr2line", "-e", program], cwd=self.root, check=True, text=True,
                             capture_output=True, input="".join(f"{at - 1:#x}\n" for at in places)).stdout
        lines = {}
        for at, line in zip(places, out.splitlines()):
            file, _, n = line.partition(" ")[0].rpartition(":")
            if n.isdigit():
                lines[at] = f"{os.path.relpath(file, self.root)}:{n}"
        return lines

    def tests_of(self, p, most):
        """The tests that go through the line of a place, or near it, the shortest first; those that take
        more than `most` seconds together are left out."""
        found = set()
        for n in range(p.line - NEAR, p.line + NEAR + 1):
            found.update(self.lines.get(f"{p.file}:{n}", ()))
        tests, total = sorted(found, key=self.seconds.get), 0
        for i, t in enumerate(tests):
            total += self.seconds[t]
            if total > most:
                return tests[:i]
        return tests

    def failing(self, tests, seconds, long=False):
        """The first test that fails, "hangs", or None; and the seconds that it took."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        start = time.monotonic()
        env = dict(os.environ, CARAT_ROOT=str(self.root), TEST_LONG="1" if long else "")
        p = subprocess.Popen(["build/carat_test", "-f"] + tests, cwd=self.root, env=env,
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


def plain_tests(tree, times, cheap=0.5, worth=1.5):
    """(seconds, test) of those without lines of their own. cheap: seconds of tests that stay in any case;
    worth: the most that one line may cost."""
    seconds = {n: float(s) for s, n in (line.split() for line in Path(times).read_text().splitlines())}
    lines = {}
    for line, tests in tree.lines.items():
        for t in tests:
            lines.setdefault(t, set()).add(line)
    left = {t for t in lines if seconds.get(t, 0) > cheap}
    seen = set().union(*(lines[t] for t in lines if t not in left))
    while left:
        best = max(left, key=lambda t: len(lines[t] - seen) / seconds[t])
        if len(lines[best] - seen) * worth < seconds[best]:
            break
        seen |= lines[best]
        left.remove(best)
    return sorted(((seconds[t], t) for t in left), reverse=True)


def judge(tree, p, o):
    """(which suite sees it, by which test)"""
    path = tree.root / p.file
    text = path.read_text()
    lines = text.split("\n")
    assert lines[p.line - 1] == p.old
    lines[p.line - 1] = p.new
    tests = o.tests.split() if o.tests else ["=" + t for t in tree.tests_of(p, o.most)]
    path.write_text("\n".join(lines))
    object_ = f"build/mistake/{p.file[:-2]}.o"
    try:
        if tree.compile(p.file, object_):
            return "does not build", ""
    finally:
        path.write_text(text)
    if not tests:
        return "none", "no test goes there"
    tree.link({f"build/{p.file[:-2]}.o": object_})
    usual = o.usual if o.tests else sum(tree.seconds[t[1:]] for t in tests)
    found, _ = tree.failing(tests, o.seconds + 2 * usual)
    if found:
        return "short", found
    if o.long:
        found, _ = tree.failing(tests, 3 * o.seconds + 20 * usual, long=True)
        if found:
            return "long", found
    return "none", f"{len(tests)} tests"


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folders", nargs="*", default=list(FOLDERS))
    ap.add_argument("--n", type=int, default=35, help="mistakes of each folder")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--most", type=float, default=float("inf"), help="seconds of tests for each mistake")
    ap.add_argument("--skip", type=int, default=0, help="leave out the first of each folder")
    ap.add_argument("--long", action="store_true")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--at", action="append", help="FILE:LINE: all mistakes there")
    ap.add_argument("--file", help="the mistakes of this file alone")
    ap.add_argument("--tests", metavar="WORDS", help="the tests that are shown each mistake")
    ap.add_argument("--plain", metavar="TIMES")
    ap.add_argument("--seconds", type=float, default=60, help="what the tests may take beyond their usual time")
    ap.add_argument("--dir", help="where the copy is; kept, and used again")
    ap.add_argument("--make", default="make -j2", help="how to build")
    o = ap.parse_args()
    if o.at:
        todo = [p for f in FOLDERS for p in places_of(Path(ROOT), f)
                if any(f"{p.file}:{p.line}".endswith(at) for at in o.at)]
    elif o.file:
        folder = next(f for f, dirs in FOLDERS.items() if os.path.dirname(o.file) in dirs)
        todo = [p for p in draw(ROOT, folder, sys.maxsize, o.seed) if p.file == o.file][o.skip:o.n]
    else:
        todo = [p for f in o.folders for p in draw(ROOT, f, o.n, o.seed)[o.skip:]]
    if o.list:
        print(*(f"{p.name}\n    {p.old.strip()}\n    {p.new.strip()}" for p in todo), sep="\n")
        return 0
    tree = Tree(o.dir or tempfile.mkdtemp(prefix="carat-mutate-"), o.make)
    if not o.tests:
        tree.trace()
    else:
        tree.link({})
        found, o.usual = tree.failing(o.tests.split(), 3600)
        if found:
            print(f"without a mistake: {found}")
            return 1
    if o.plain:
        print(*(f"{s:6.1f} s {t}" for s, t in plain_tests(tree, o.plain)), sep="\n")
        return 0
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
