#!/usr/bin/env python3
"""Builds mistakes into a copy of carat, one at a time, and says which test sees each.

    python3 tools/mutate.py [SET ...]          all mistakes, or those of some sets (qwen3, qwen35, ...)
    python3 tools/mutate.py --only WORD        those whose name holds WORD
    python3 tools/mutate.py --list             also says whose text is not in the sources

The mistakes are in mutations.py. A mistake is a text of a source file and another in its place; runs of
white space are equal, so formatting does not matter. The copy is made from the working tree and its
build directory, so only changed files are compiled. The table at the end is Markdown. Exit status 1: a
mistake was seen by no test, a text was not found, or a test fails without a mistake.

Each set names its tests (mutations.TESTS). A mistake counts as seen when one of them fails.
"""
import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import MUTATIONS, TESTS

SHOWN = 4  # names of tests in a line of the table
LINE = 300  # letters of a failure
ROOT = Path(__file__).resolve().parent.parent


def copy_tree(to):
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in names.stdout.decode().split("\0"):
        source = ROOT / name
        if not name or not source.exists():
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if not (to / name).exists():
            shutil.copy2(source, to / name)
        elif (to / name).read_bytes() != source.read_bytes():
            shutil.copy(source, to / name)  # newer than the object of the last mistake
    if (ROOT / "build").exists() and not (to / "build").exists():
        shutil.copytree(ROOT / "build", to / "build", ignore=shutil.ignore_patterns("emu", "cuda", "sanitize", "asan", "tsan", "fuzz", "dist", "systems"))


def changed(text, old, new):
    """text with `new` in the place of `old`, or None unless `old` occurs exactly once."""
    # Between two tokens of which one is no word, white space is optional.
    tokens = re.findall(r"\w+|[^\w\s]", old)
    pattern = r"\s*".join(re.escape(t) for t in tokens)
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        return None
    return text[:found[0].start()] + new.strip() + text[found[0].end():]


def again(m, file, old):
    """Is `old` a text that an earlier edit of the mistake makes?"""
    return any(f == file and changed(new, old, "") is not None for f, _, new in m.edits)


def build(tree, make):
    p = subprocess.run(shlex.split(make) + ["build/carat", "build/carat_test"], cwd=tree, capture_output=True,
                       text=True)
    return None if p.returncode == 0 else (p.stderr or p.stdout).strip().splitlines()[-6:]


def failing(tree, tests, seconds=300):
    """Names of the tests that fail, and the first line of the first failure."""
    p = subprocess.Popen(["build/carat_test", "-j", "1"] + tests, cwd=tree, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        out, _ = p.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        return ["(a test that does not end)"], ""
    names = re.findall(r"^FAIL (\S+)", out, re.M)
    first = re.search(r"^FAIL .*\n((?:  .*\n)+)", out, re.M)
    lines = [x for x in first.group(1).splitlines() if re.search(r"\.c:\d+: ", x)] if first else []
    return names, lines[0].strip()[:LINE] if lines else ""


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("sets", nargs="*")
    ap.add_argument("--only", metavar="WORD", default="")
    ap.add_argument("--from", dest="start", metavar="WORD", help="leave out those before the first "
                    "whose name holds WORD")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--trust", action="store_true", help="do not run the tests without a mistake first")
    ap.add_argument("--dir", help="where the copy is; kept, and used again")
    ap.add_argument("--make", default="make -j2 CFLAGS=-Wno-error",
                    help="how to build; a mistake may leave a variable unused")
    o = ap.parse_args()
    todo = [m for m in MUTATIONS if (not o.sets or m.set in o.sets) and o.only in m.name]
    if o.start:
        todo = todo[next((i for i, m in enumerate(todo) if o.start in m.name), len(todo)):]
    if o.list:
        lost = [m for m in todo if not all(changed((ROOT / file).read_text(), old, new) or again(m, file, old)
                                           for file, old, new in m.edits)]
        print(*(f"{m.set}: {m.name}{': **not one place**' if m in lost else ''}" for m in todo), sep="\n")
        return 1 if lost else 0
    tree = Path(o.dir or tempfile.mkdtemp(prefix="carat-mutate-"))
    copy_tree(tree)
    os.environ["CARAT_ROOT"] = str(tree)
    bad = 0
    problem = build(tree, o.make)
    for name in sorted({m.set for m in todo} if not o.trust else []):
        seen = problem or failing(tree, TESTS[name])[0]
        if seen:
            print(f"without a mistake, {name}: {seen}")
            return 1
    rows = []
    for m in todo:
        before = {}
        for file, old, new in m.edits:
            text = (tree / file).read_text()
            before.setdefault(file, text)
            text = changed(text, old, new)
            if text is None:
                rows.append((m, f"**not one place in {file}**"))
                break
            (tree / file).write_text(text)
        else:
            problem = build(tree, o.make)
            if problem:
                rows.append((m, "**does not build**"))
                print(*problem, sep="\n")
            else:
                names, first = failing(tree, TESTS[m.set])
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                rows.append((m, ", ".join(names[:SHOWN]) + more if names else "**not seen**"))
                print(f"{m.set}: {m.name}: {rows[-1][1]}\n    {first}", flush=True)
        bad += rows[-1][1].startswith("**")
        if rows[-1][1].startswith("**"):
            print(f"{m.set}: {m.name}: {rows[-1][1]}", flush=True)
        for file, text in before.items():
            (tree / file).write_text(text)
    print("\n| set | mistake | seen by |\n| --- | --- | --- |")
    for m, verdict in rows:
        print(f"| {m.set} | {m.name} | {verdict} |")
    if not o.dir:
        shutil.rmtree(tree)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
