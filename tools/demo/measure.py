"""Runs held-out cases through `carat run`, greedily, and counts the right answers.

    python3 tools/demo/measure.py [--carat ./carat] [-m FILE] [--run=--OPTION] [--show] CASES.jsonl ...
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile


def answer(a, case, folder):
    """What carat says: the text after any thought, or the calls as (name, arguments)."""
    messages, tools = case["messages"], case["tools"]
    cmd = [a.carat, "run", "--greedy", "-q", "-n", "1500"] + (["-m", a.model] if a.model else []) + a.run
    if case["thinking"]:
        cmd.append("--think")
    if tools:
        json.dump(tools, open(folder + "/tools.json", "w"))
        cmd += ["--tools", folder + "/tools.json"]
    if messages[-1]["role"] == "tool":      # the model calls the tool itself; this is what it gets back
        for m in messages:
            cmd += ["--result", m["content"]] if m["role"] == "tool" else []
        messages = messages[:max(i for i, m in enumerate(messages) if m["role"] == "user") + 1]
    if messages[:-1]:
        json.dump(messages[:-1], open(folder + "/messages.json", "w"))
        cmd += ["--messages", folder + "/messages.json"]
    open(folder + "/prompt", "w").write(messages[-1]["content"])
    cmd += ["-p", folder + "/prompt"]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    if r.returncode:
        sys.exit(f"{' '.join(cmd)}\n{r.stderr.decode()}")
    return r.stdout.decode().rstrip("\n")


def wanted_calls(text):
    """The calls of a `tool_call` case in the form in which carat prints them."""
    return [c.partition("<tool_call|>")[0].removeprefix("call:") for c in text.split("<|tool_call>")[1:]]


def rendered(line):
    """One printed call (a line of JSON) in the form of the chat format."""
    import corpus
    c = json.loads(line)
    args = c["arguments"] if isinstance(c["arguments"], dict) else json.loads(c["arguments"])
    return corpus.call_text({"name": c["name"], "arguments": args}).removeprefix("call:")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--carat", default="./carat")
    p.add_argument("-m", "--model")
    p.add_argument("--run", action="append", default=[], help="an argument for `carat run`: --run=--kv-type=q4_0")
    p.add_argument("--show", action="store_true", help="print the wrong answers")
    p.add_argument("cases", nargs="+")
    a = p.parse_args()
    right, total = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for file in a.cases:
            for line in open(file, encoding="utf-8"):
                case = json.loads(line)
                name = case["skill"] + (" (thinking)" if case["thinking"] else "")
                name += "" if os.path.basename(file) == "skills.jsonl" else f" [{os.path.basename(file)}]"
                got = answer(a, case, folder)
                if case["skill"] == "tool_call":
                    try:
                        ok = [rendered(x) for x in got.splitlines() if x.startswith("{")] == wanted_calls(case["expect"])
                    except (ValueError, KeyError):
                        ok = False
                elif case["skill"] == "tools" and case["expect"] in got:
                    ok = True
                else:
                    ok = got == case["expect"] if case["match"] == "exact" else case["expect"] in got
                total[name] += 1
                right[name] += ok
                if a.show and not ok:
                    print(f"{name}: {case['messages'][-1]['content'][-300:]!r}\n    expected {case['expect']!r}\n    got      {got!r}")
    for name in total:
        print(f"{name:40} {right[name]:4}/{total[name]:4}  {100 * right[name] / total[name]:5.1f} %")


if __name__ == "__main__":
    main()
