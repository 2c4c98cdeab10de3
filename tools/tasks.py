#!/usr/bin/env python3
"""What does a setting cost? Runs tasks against two settings of a server and says which answers changed, task by task.

    python3 tools/tasks.py make [--tokens 8000] [--sums 20] [--tools 20] [--recall 24] [--seed 1] > TASKS.jsonl
    python3 tools/tasks.py run TASKS.jsonl... --a SETTING --b SETTING [--carat ./carat] [--common OPTIONS]
    python3 tools/tasks.py check

A SETTING is the URL of a server with OpenAI's chat completions (http://127.0.0.1:8080), or options of `carat serve`, for
which a server of its own is started: --a= --b="--kv-pool 768 --kv-policy scored", --b="--sparse flash:0.1", --b="--kv-type q4_0", --b="--draft lookup".
Setting A runs twice: what differs between its two runs is noise, and is counted beside what differs in B.

Tasks are JSON lines in the published forms of
    HumanEval  prompt, entry_point, test             MBPP   text or prompt, test_list
    GSM8K      question, answer with "#### 72"       MATH   problem, solution with \\boxed{}, or answer
    BFCL       question, function; the file of possible answers (id, ground_truth) is named beside it
    xLAM       query, tools, answers                 chat   messages, tools, and expect with match, or calls
`make` writes tasks of the last form that the bundled model was trained for: sums, calls of tools, and facts in long texts.
Answers are greedy. Programs that a model wrote run in a process of their own, with limits of time, memory, file size and
processes, in an empty directory, and without a network where the system allows that. That is no jail: use a machine or a
container that has nothing to lose for tasks and models of strangers. `check` tries the judges and the sandbox.
"""
import argparse
import collections
import concurrent.futures
import fractions
import http.client
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

# ---- Programs that a model wrote ---------------------------------------------------------------

CODE_SECONDS, CODE_MEMORY, CODE_FILE, CODE_OUTPUT = 10, 1 << 30, 16 << 20, 2000

# Lowers the limits of its own process before it reads the program. argv: file, seconds, memory, bytes of a file.
_BOOT = """
import resource, sys
path, seconds, memory, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for what, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, file),
                   (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_NPROC, 64)):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
del resource
sys.argv = [path]
with open(path) as f:
    text = f.read()
exec(compile(text, path, "exec"), {"__name__": "__main__"})
"""

_walls = None


def walls():
    """The words before a program that take its network and other processes away; [] where the system forbids that."""
    global _walls
    if _walls is None:
        words = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
        _walls = []
        if shutil.which("unshare"):
            try:
                done = subprocess.run(words + ["true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
                _walls = words if done.returncode == 0 else []
            except (OSError, subprocess.TimeoutExpired):
                pass
    return _walls


def run_program(text, seconds=CODE_SECONDS):
    """(whether it ended with status 0, the end of what it said)"""
    with tempfile.TemporaryDirectory(prefix="carat-task-") as box:
        path = os.path.join(box, "program.py")
        with open(path, "w") as f:
            f.write(text)
        with open(os.path.join(box, "output"), "w+b") as out:
            p = subprocess.Popen(walls() + [sys.executable, "-I", "-c", _BOOT, path, str(seconds), str(CODE_MEMORY), str(CODE_FILE)], cwd=box,
                                 stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                 env={"PATH": "/usr/bin:/bin", "HOME": box, "TMPDIR": box, "LC_ALL": "C.UTF-8"})
            try:
                status = p.wait(2 * seconds)
            except subprocess.TimeoutExpired:
                status = None
            try:
                os.killpg(p.pid, signal.SIGKILL)    # whatever it left behind
            except ProcessLookupError:
                pass
            p.wait()
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - CODE_OUTPUT))
            said = out.read().decode("utf8", "replace").strip()
    if status is None:
        return False, f"no end within {2 * seconds} s"
    return status == 0, said


# ---- Judges ------------------------------------------------------------------------------------

def fenced(text):
    """The blocks of code of an answer, or all of it."""
    blocks = re.findall(r"```[a-zA-Z0-9_+-]*[ \t]*\n(.*?)(?:```|\Z)", text, re.S)
    return blocks or [text]


def human_eval_program(task, answer):
    entry = task["entry_point"]
    blocks = fenced(answer)
    code = next((b for b in blocks if re.search(rf"^\s*def\s+{re.escape(entry)}\b", b, re.M)), None)
    if code is None:    # the body alone
        code = task["prompt"] + blocks[0]
    else:               # imports and helpers stand before the function
        code = task["prompt"][:task["prompt"].find(f"def {entry}")] + "\n" + code
    return f"{code}\n\n{task['test']}\n\ncheck({entry})\n"


def mbpp_program(task, answer):
    setup = task.get("test_setup_code") or "\n".join(task.get("test_imports") or [])
    return "\n".join([setup, "\n".join(fenced(answer)), *task["test_list"]]) + "\n"


def boxed(text):
    """What the last \\boxed{} of a text holds; None: there is none."""
    at = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if at < 0:
        return None
    depth, start = 0, text.index("{", at)
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1:i]
    return None


_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?|-?\.\d+")


def as_number(text):
    """A fraction, or None."""
    t = text.strip().rstrip(".").replace(",", "").replace("$", "").replace("\\%", "").replace("%", "").replace(" ", "")
    m = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}", t)
    t = f"{m[1]}{m[2]}/{m[3]}" if m else t
    try:
        return fractions.Fraction(t)
    except (ValueError, ZeroDivisionError):
        return None


def last_number(text):
    marked = re.findall(r"####\s*([^\n]+)", text)
    inside = boxed(text)
    for t in ([marked[-1]] if marked else []) + ([inside] if inside else []):
        found = _NUMBER.findall(t)
        if found:
            return as_number(found[-1])
    found = _NUMBER.findall(text)
    return as_number(found[-1]) if found else None


def plain_math(text):
    """One spelling of equal formulas."""
    t = text.strip().strip("$").rstrip(".")
    for old, new in (("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\,", ""), ("\\;", ""), ("\\ ", ""), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"),
                     ("^\\circ", ""), ("^{\\circ}", ""), ("\\%", ""), ("\\$", ""), ("\\{", "{"), ("\\}", "}"), ("\n", "")):
        t = t.replace(old, new)
    t = re.sub(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}", r"\1", t)
    t = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", t)
    t = re.sub(r"\\sqrt(\d)", r"\\sqrt{\1}", t)
    t = re.sub(r"^[a-zA-Z]\s*=\s*", "", t)
    return re.sub(r"\s+", "", t)


def same_math(have, want):
    a, b = as_number(plain_math(have)), as_number(plain_math(want))
    return a == b if a is not None and b is not None else plain_math(have) == plain_math(want)


def math_answer(text):
    inside = boxed(text)
    if inside is not None:
        return inside
    m = re.findall(r"(?:answer is|answer:)\s*\**\$?([^\n$]+)", text, re.I)
    return m[-1] if m else (text.strip().splitlines() or [""])[-1]


def same_value(have, want):
    """Numbers by value, texts by their letters and digits, lists and objects by their members."""
    if isinstance(have, bool) or isinstance(want, bool):
        return have is want
    if isinstance(have, (int, float)) and isinstance(want, (int, float)):
        return have == want
    if isinstance(have, str) and isinstance(want, str):
        plain = [re.sub(r"[ ,./\-_*^'\"]", "", x).lower() for x in (have, want)]
        return plain[0] == plain[1]
    if isinstance(have, list) and isinstance(want, list):
        return len(have) == len(want) and all(map(same_value, have, want))
    if isinstance(have, dict) and isinstance(want, dict):
        return have.keys() == want.keys() and all(same_value(have[k], want[k]) for k in have)
    return have == want


def fits_possible(arguments, possible):
    """BFCL: for each argument the values that are right; "" among them: it may be absent."""
    def fits(have, allowed):
        if isinstance(have, dict) and any(isinstance(p, dict) for p in allowed):
            return any(isinstance(p, dict) and fits_possible(have, p) for p in allowed)
        return any(same_value(have, p) for p in allowed)
    return (set(arguments) <= set(possible) and all(fits(arguments[k], possible[k]) for k in arguments) and
            all(k in arguments or "" in allowed for k, allowed in possible.items()))


def calls_match(have, want, fits):
    """Each wanted call by one call, in any order. have: [(name, arguments)]; want: [(name, what fits)]."""
    if len(have) != len(want):
        return False
    if not have:
        return True
    name, arguments = have[0]
    return any(name == w[0] and fits(arguments, w[1]) and calls_match(have[1:], want[:i] + want[i + 1:], fits) for i, w in enumerate(want))


# ---- Forms of tasks ----------------------------------------------------------------------------

class Task:
    def __init__(self, kind, name, messages, judge, tools=None, thinking=None, tokens=512):
        self.kind, self.name, self.messages, self.judge = kind, name, messages, judge
        self.tools, self.thinking, self.tokens = tools, thinking, tokens


def user(text):
    return [{"role": "user", "content": text}]


def code_task(kind, name, text, program):
    def judge(a):
        return run_program(program(a["text"]))[0]
    return Task(kind, name, user(text), judge, tokens=1024)


def human_eval(x, name):
    ask = f"Complete this function. Answer with the whole function in a block of code.\n\n```python\n{x['prompt']}\n```"
    return code_task("HumanEval", name, ask, lambda a: human_eval_program(x, a))


def mbpp(x, name):
    ask = f"{x.get('text') or x['prompt']}\nAnswer with a block of Python. It must pass:\n" + "\n".join(x["test_list"])
    return code_task("MBPP", name, ask, lambda a: mbpp_program(x, a))


def gsm8k(x, name):
    want = last_number(x["answer"])
    ask = x["question"] + "\n\nThink step by step, and end with a line '#### ' and the number."
    return Task("GSM8K", name, user(ask), lambda a: last_number(a["text"]) == want, tokens=1024)


def hendrycks(x, name):
    want = str(x["answer"]) if x.get("answer") not in (None, "") else boxed(x.get("solution") or "")
    if want is None:
        raise ValueError(f"task {name}: no answer, and no \\boxed{{}} in a solution")
    ask = x["problem"] + "\n\nPut the final answer into \\boxed{}."
    return Task("MATH", name, user(ask), lambda a: same_math(math_answer(a["text"]), want), tokens=2048)


def json_types(schema):
    """BFCL's names of types as those of JSON Schema."""
    if isinstance(schema, list):
        return [json_types(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string", "bool": "boolean", "int": "integer", "list": "array", "str": "string"}
    return {k: names.get(v, v) if k == "type" and isinstance(v, str) else json_types(v) for k, v in schema.items()}


def declared(functions):
    return [f if "function" in f else {"type": "function", "function": json_types(f)} for f in functions]


def bfcl(x, name, truths):
    truth = x.get("ground_truth") or truths.get(x.get("id"))
    if truth is None and "irrelevance" not in str(x.get("id")):
        raise ValueError(f"task {name}: no ground_truth; name the file of possible answers too")
    want = [(f, possible) for one in truth or [] for f, possible in one.items()]
    messages = x["question"][0] if isinstance(x["question"][0], list) else x["question"]
    functions = x["function"] if isinstance(x["function"], list) else [x["function"]]
    return Task("BFCL", name, messages, lambda a: calls_match(a["calls"], want, fits_possible), declared(functions))


def xlam(x, name):
    parse = [json.loads(v) if isinstance(v, str) else v for v in (x["tools"], x["answers"])]
    want = [(c["name"], c["arguments"]) for c in parse[1]]
    tools = [f if "function" in f else {"type": "function", "function": {
        "name": f["name"], "description": f.get("description", ""), "parameters": f["parameters"] if "properties" in f.get("parameters", {}) else
        {"type": "object", "properties": json_types({k: {"type": re.split(r"[\[,(]", str(p.get("type", "string")))[0].strip().lower(),
                                                         "description": p.get("description", "")} for k, p in f.get("parameters", {}).items()})}}}
             for f in parse[0]]
    return Task("xLAM", name, user(x["query"]), lambda a: calls_match(a["calls"], want, same_value), tools)


def chat(x, name):
    kind = x.get("skill") or "chat"
    if "calls" in x:
        want = [(c["name"], c["arguments"]) for c in x["calls"]]
        judge = lambda a: calls_match(a["calls"], want, same_value)
    elif x.get("match") == "contains":
        judge = lambda a: x["expect"].strip() in a["text"]
    else:
        judge = lambda a: a["text"].strip() == x["expect"].strip()
    return Task(kind, name, x["messages"], judge, x.get("tools") or None, x.get("thinking"), x.get("max_tokens", 256))


def task_of(x, name, truths):
    if "messages" in x and ("expect" in x or "calls" in x):
        return chat(x, name)
    if "entry_point" in x and "test" in x:
        return human_eval(x, name)
    if "test_list" in x:
        return mbpp(x, name)
    if "problem" in x and ("solution" in x or "answer" in x):
        return hendrycks(x, name)
    if "function" in x and isinstance(x.get("question"), list):
        return bfcl(x, name, truths)
    if {"query", "tools", "answers"} <= x.keys():
        return xlam(x, name)
    if isinstance(x.get("question"), str) and "####" in str(x.get("answer")):
        return gsm8k(x, name)
    raise ValueError(f"task {name} has no form that is known: its keys are {', '.join(sorted(x))}")


def read_tasks(paths):
    """Every task of the files. A line with an id and a ground_truth alone belongs to the task of that id."""
    lines, truths, tasks = [], {}, []
    for path in paths:
        with open(path, encoding="utf8") as f:
            for i, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    x = json.loads(line)
                except ValueError as e:
                    raise ValueError(f"{path}, line {i}: {e}") from None
                if not isinstance(x, dict):
                    raise ValueError(f"{path}, line {i}: no JSON object")
                if "ground_truth" in x and "question" not in x:
                    truths[x.get("id")] = x["ground_truth"]
                else:
                    lines.append((x, str(x.get("task_id", x.get("id", x.get("unique_id", f"{os.path.basename(path)}:{i}"))))))
    for x, name in lines:
        tasks.append(task_of(x, name, truths))
    return tasks


# ---- Servers -----------------------------------------------------------------------------------

class Server:
    """A running server: one of its own, or somebody's."""
    def __init__(self, setting, carat, common, body):
        self.process, self.body = None, body
        if setting.startswith(("http://", "https://")):
            self.url = urllib.parse.urlsplit(setting)
            return
        words = [carat, "serve", "--no-config", "--port", "0", "--log", "off", *shlex.split(common), *shlex.split(setting)]
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.said)
        line = self.process.stdout.readline().decode("utf8", "replace")     # printed once the model is loaded
        found = re.search(r"http://[^\s/]+:\d+", line)
        if not found:
            self.close()
            self.said.seek(0)
            raise RuntimeError(f"{shlex.join(words)} did not start: {self.said.read().decode('utf8', 'replace').strip()}")
        self.url = urllib.parse.urlsplit(found[0])

    def close(self):
        if not self.process:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def ask(self, task, limit):
        """{"text", "calls", "thought", "end", "error"}"""
        body = {"messages": task.messages, "temperature": 0, "seed": 0, "max_tokens": limit or task.tokens, **self.body}
        if task.tools:
            body["tools"] = task.tools
        if task.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": bool(task.thinking)}
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        c = kind(self.url.hostname, self.url.port, timeout=1800)
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
        try:
            c.request("POST", self.url.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions", json.dumps(body), headers)
            r = c.getresponse()
            raw = r.read()
            if r.status != 200:
                return failed(f"status {r.status}: {raw[:300].decode('utf8', 'replace')}")
            choice = json.loads(raw)["choices"][0]
            message = choice["message"]
            calls = []
            for call in message.get("tool_calls") or []:
                try:
                    calls.append((call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")))
                except ValueError:
                    calls.append((call["function"]["name"], {"": call["function"]["arguments"]}))
            return {"text": message.get("content") or "", "thought": message.get("reasoning_content") or "", "calls": calls,
                    "end": choice.get("finish_reason"), "error": None}
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as e:
            return failed(repr(e))
        finally:
            c.close()


def failed(why):
    return {"text": "", "thought": "", "calls": [], "end": None, "error": why}


def answers(setting, a, tasks, body, label):
    server = Server(setting, a.carat, a.common, body)
    begun, out = time.time(), []
    try:
        with concurrent.futures.ThreadPoolExecutor(a.clients) as pool:
            for i, x in enumerate(pool.map(lambda t: server.ask(t, a.max_tokens), tasks)):
                out.append(x)
                if sys.stderr.isatty():
                    print(f"\r{label}: {i + 1} of {len(tasks)} ", end="", file=sys.stderr, flush=True)
    finally:
        server.close()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    for task, x in zip(tasks, out):
        try:
            x["right"] = x["error"] is None and bool(task.judge(x))
        except Exception as e:      # an answer that a judge cannot read is wrong
            x["right"], x["error"] = False, f"the judge: {e!r}"
    return out, time.time() - begun


# ---- The comparison ----------------------------------------------------------------------------

def same(x, y):
    return (x["text"], x["calls"], x["thought"]) == (y["text"], y["calls"], y["thought"])


def shown(x):
    return "error: " + x["error"] if x["error"] else (x["thought"] and f"[{x['thought']}] ") + x["text"] + "".join(f" {n}({json.dumps(v)})" for n, v in x["calls"])


def difference(x, y):
    """The two answers around their first difference."""
    a, b = shown(x), shown(y)
    at = next((i for i, (p, q) in enumerate(zip(a, b)) if p != q), min(len(a), len(b)))
    cut = lambda t: json.dumps(("..." if at > 20 else "") + t[max(0, at - 20):at + 50], ensure_ascii=False)
    return f"{cut(a)} and {cut(b)}"


def sign_test(lost, won):
    """The chance that a fair coin divides so many changes at least as unevenly."""
    n, k = lost + won, min(lost, won)
    return min(1.0, sum(math.comb(n, i) for i in range(k + 1)) * 2 / 2 ** n) if n else 1.0


def report(tasks, first, again, other, out=print):
    """Prints what changed; returns the number of tasks that A answers rightly in both runs and B does not."""
    word = {True: "right", False: "wrong"}
    for t, a, c, b in zip(tasks, first, again, other):
        if same(a, b) and same(a, c):
            continue
        noise = "" if same(a, c) else f"; A again: {'other words' if a['right'] == c['right'] else word[c['right']]}"
        if same(a, b):
            out(f"{t.kind} {t.name}: A and B are equal{noise}")
        else:
            what = f"A {word[a['right']]}, B {word[b['right']]}" if a["right"] != b["right"] else f"both {word[a['right']]}, other words"
            out(f"{t.kind} {t.name}: {what}{noise}: {difference(a, b)}")
    out(f"\n{'tasks':<16}{'n':>6}{'A':>7}{'again':>7}{'B':>7}{'lost':>7}{'won':>6}{'A / B differ':>14}{'A / again':>11}")
    kinds = list(dict.fromkeys(t.kind for t in tasks))
    total_lost = 0
    for kind in kinds + (["all"] if len(kinds) > 1 else []):
        rows = [r for t, *r in zip(tasks, first, again, other) if kind in ("all", t.kind)]
        lost = sum(a["right"] and c["right"] and not b["right"] for a, c, b in rows)
        won = sum(not a["right"] and not c["right"] and b["right"] for a, c, b in rows)
        out(f"{kind:<16}{len(rows):>6}" + "".join(f"{sum(r[i]['right'] for r in rows):>7}" for i in range(3)) +
            f"{lost:>7}{won:>6}{sum(not same(a, b) for a, c, b in rows):>14}{sum(not same(a, c) for a, c, b in rows):>11}")
        total_lost, p = lost, sign_test(lost, won)
    errors = collections.Counter(x["error"] for run in (first, again, other) for x in run if x["error"])
    out(f"\n{total_lost} lost, sign test p = {p:.3g}. Lost: right in both runs of A, wrong in B.")
    for why, n in errors.most_common(5):
        out(f"{n} failed: {why}")
    return total_lost


def run(a):
    tasks = read_tasks(a.tasks)
    if a.kind:
        tasks = [t for t in tasks if t.kind in a.kind]
    tasks = tasks[a.first:a.first + a.limit] if a.limit else tasks[a.first:]
    if not tasks:
        sys.exit("tasks.py: there are no tasks")
    if any(t.kind in ("HumanEval", "MBPP") for t in tasks):
        print("programs run " + ("without a network" if walls() else "with the network of this machine: unshare is not allowed here"), file=sys.stderr)
    runs, seconds = [], []
    for label, setting, body in (("A", a.a, a.body_a), ("A again", a.a, a.body_a), ("B", a.b, a.body_b)):
        x, s = answers(setting, a, tasks, json.loads(body), label)
        runs.append(x)
        seconds.append(s)
    if a.json:
        with open(a.json, "w", encoding="utf8") as f:
            for t, x, y, z in zip(tasks, *runs):
                f.write(json.dumps({"kind": t.kind, "task": t.name, "a": x, "again": y, "b": z}, ensure_ascii=False) + "\n")
    print(f"A: {a.a or 'no options'} {a.body_a if a.body_a != '{}' else ''}\nB: {a.b or 'no options'} {a.body_b if a.body_b != '{}' else ''}\n"
          f"common: {a.common or 'no options'}; {len(tasks)} tasks in {', '.join(f'{s:.0f}' for s in seconds)} s\n")
    lost = report(tasks, *runs)
    broken = sum(x["error"] is not None for x in runs[0]) == len(tasks)
    return 1 if broken or (a.most_lost is not None and lost > a.most_lost) else 0


# ---- Tasks for the bundled model ----------------------------------------------------------------

def make(a):
    """Held-out documents of the kinds that the bundled model has learned (tools/demo)."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo"))
    import corpus
    import recall_cases
    r = random.Random(f"tasks {a.seed}")
    n = 0

    def count(text):
        """Tokens of the bundled model, whose digits are a token each."""
        if not a.carat:
            return sum(map(str.isdigit, text)) + sum(not c.isdigit() for c in text) // 4
        return int(subprocess.run([a.carat, "tokenize", "--count", "-f", "-"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout)

    def put(x):
        nonlocal n
        n += 1
        print(json.dumps({"id": str(n), **x}, ensure_ascii=False))
    for _ in range(a.sums):
        put(corpus.case(corpus.draw(r, "sums", 0)))
    for _ in range(a.tools):
        d = corpus.draw(r, "tools", 0)
        i = next(i for i, m in enumerate(d["messages"]) if m.get("tool_calls"))
        calls = [c["function"] for c in d["messages"][i]["tool_calls"]]
        put({"skill": "tool calls", "messages": d["messages"][:i], "tools": d["tools"], "thinking": False,
             "calls": [{"name": c["name"], "arguments": json.loads(c["arguments"]) if isinstance(c["arguments"], str) else c["arguments"]} for c in calls]})
    left = a.recall
    while left > 0:
        case = recall_cases.at_depths(r, a.needles, a.tokens, count)
        for ask in case["asks"][:left]:
            put({"skill": f"recall {ask['depth']} %", "messages": user(case["frame"].replace("{q}", ask["q"])), "thinking": False, "expect": ask["a"],
                 "match": "exact"})
            left -= 1


# ---- Checks of this program ---------------------------------------------------------------------

def check():
    inner = "def check(f):\n    assert f(2) == 3\n"
    code = {"prompt": "import math\n\ndef inc(x):\n    \"\"\"one more\"\"\"\n", "entry_point": "inc", "test": inner}
    said = lambda t: {"text": t, "calls": [], "thought": "", "end": "stop", "error": None}
    programs = [("    return x + 1", True), ("    return x + 2", False), ("```python\ndef inc(x):\n    return x + 1\n```", True),
                ("Sure:\n```\ndef inc(x):\n    return math.floor(x) + 1\n```\nDone.", True), ("```python\ndef inc(x):\n    while True: pass\n```", False),
                ("```python\ndef inc(x):\n    return [0] * (1 << 33)\n```", False), ("```python\ndef inc(x):\n    open('big', 'wb').write(b'0' * (1 << 26))\n    return 3\n```", False),
                ("```python\nimport os\ndef inc(x):\n    os.kill(os.getppid(), 0)\n    return 3 if os.getcwd().startswith(os.environ['HOME']) else 0\n```", True)]
    task = human_eval(code, "0")
    global CODE_SECONDS
    CODE_SECONDS = 2
    for text, want in programs:
        assert run_program(human_eval_program(code, text), 2)[0] == want, text
    assert task.judge(said("    return x + 1"))
    assert task_of({"text": "add", "test_list": ["assert add(1, 2) == 3"]}, "1", {}).judge(said("```python\ndef add(a, b):\n    return a + b\n```"))
    if walls():
        reach = "import socket\ns = socket.create_connection(('127.0.0.1', %d), 2)\n"
        import socket
        with socket.create_server(("127.0.0.1", 0)) as s:
            assert not run_program(reach % s.getsockname()[1], 2)[0], "a program has reached the network"
    leave = run_program("import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(987)'])\n", 2)
    assert leave[0], leave
    g = task_of({"question": "q", "answer": "x\n#### 1,234"}, "2", {})
    assert g.judge(said("so it is\n#### 1234")) and g.judge(said("It is $1,234.00.")) and not g.judge(said("#### 1235")) and not g.judge(said(""))
    m = task_of({"problem": "p", "solution": "Thus \\boxed{\\dfrac{1}{2}}."}, "3", {})
    for text, want in (("\\boxed{\\frac12}", True), ("\\boxed{0.5}", True), ("\\boxed{1/2}", True), ("\\boxed{\\frac{1}{3}}", False), ("the answer is 1/2", True), ("", False)):
        assert m.judge(said(text)) == want, text
    assert same_math("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\dfrac{\\pi}{2})") and same_math("x = 5", "5") and not same_math("x^2", "x^3")
    call = lambda *c: {**said(""), "calls": list(c)}
    b = task_of({"id": "simple_0", "question": [[{"role": "user", "content": "area?"}]],
                 "function": [{"name": "area", "description": "", "parameters": {"type": "dict", "properties": {"base": {"type": "float"}}}}]}, "4",
                {"simple_0": [{"area": {"base": [10], "unit": ["units", ""]}}]})
    assert b.tools[0]["function"]["parameters"] == {"type": "object", "properties": {"base": {"type": "number"}}}
    for have, want in (([("area", {"base": 10.0})], True), ([("area", {"base": 10, "unit": "Units"})], True), ([("area", {"base": 9})], False),
                       ([("area", {"base": 10, "x": 1})], False), ([], False), ([("volume", {"base": 10})], False), ([("area", {})], False)):
        assert b.judge(call(*have)) == want, have
    x = task_of({"query": "q", "tools": json.dumps([{"name": "f", "description": "", "parameters": {"n": {"type": "int, optional", "description": ""}}}]),
                 "answers": json.dumps([{"name": "f", "arguments": {"n": 1}}, {"name": "f", "arguments": {"n": 2}}])}, "5", {})
    assert x.tools[0]["function"]["parameters"]["properties"]["n"]["type"] == "integer"
    assert x.judge(call(("f", {"n": 2}), ("f", {"n": 1}))) and not x.judge(call(("f", {"n": 1}), ("f", {"n": 1})))
    c = task_of({"messages": user("q"), "expect": "yes", "match": "exact"}, "6", {})
    assert c.judge(said(" yes\n")) and not c.judge(said("yes."))
    assert task_of({"problem": "p", "answer": 204}, "4a", {}).judge(said("So \\boxed{204}"))
    assert task_of({"problem": "p", "answer": 0, "solution": "none"}, "4b", {}).judge(said("\\boxed{0}"))
    for odd in ({"question": "q"}, {}, {"messages": []}, {"problem": "p", "solution": "none"}):
        try:
            task_of(odd, "7", {})
            raise AssertionError("a task without a form was taken")
        except ValueError:
            pass
    lines = []
    right, wrong = {**said("a"), "right": True}, {**said("b"), "right": False}
    assert report([c, c, c], [right, right, wrong], [right, wrong, wrong], [wrong, right, wrong], lines.append) == 1
    assert "A right, B wrong" in lines[0] and "A again: wrong" in lines[1] and len(lines) == 5, lines
    assert abs(sign_test(0, 5) - 0.0625) < 1e-9 and sign_test(0, 0) == 1
    print("ok" + ("" if walls() else ": programs keep the network, unshare is not allowed here"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="what", required=True)
    q = sub.add_parser("run", help="run tasks against two settings")
    q.add_argument("tasks", nargs="+", metavar="TASKS.jsonl")
    q.add_argument("--a", default="", metavar="SETTING")
    q.add_argument("--b", required=True, metavar="SETTING")
    q.add_argument("--body-a", default="{}", metavar="JSON", help="fields of A's requests")
    q.add_argument("--body-b", default="{}", metavar="JSON", help="fields of B's requests")
    q.add_argument("--carat", default="./carat")
    q.add_argument("--common", default="", metavar="OPTIONS", help="options of both servers that are started: \"-m FILE --ctx 16k\"")
    q.add_argument("--clients", type=int, default=1, help="requests at once (default 1)")
    q.add_argument("--max-tokens", type=int, default=0, metavar="N", help="of an answer (default: by the form)")
    q.add_argument("--kind", action="append", help="tasks of this kind alone; repeatable")
    q.add_argument("--first", type=int, default=0, metavar="N", help="leave out so many tasks")
    q.add_argument("--limit", type=int, default=0, metavar="N", help="at most so many tasks")
    q.add_argument("--json", metavar="FILE", help="write every answer")
    q.add_argument("--most-lost", type=int, metavar="N", help="exit with 1 if B loses more tasks")
    q = sub.add_parser("make", help="write tasks for the bundled model")
    for name, n in (("sums", 20), ("tools", 20), ("recall", 24), ("tokens", 8000), ("seed", 1)):
        q.add_argument("--" + name, type=int, default=n)
    q.add_argument("--carat", help="count tokens with this program and the bundled model (default: digits, and four of other characters, are a token)")
    q.add_argument("--needles", choices=("one", "several", "paraphrased"), default="one", help="facts at each depth")
    sub.add_parser("check", help="try the judges and the sandbox")
    a = p.parse_args()
    try:
        sys.exit(run(a) if a.what == "run" else make(a) if a.what == "make" else check())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:     # the reader has enough; nothing is left for the flush at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except (ValueError, RuntimeError, OSError) as e:
        sys.exit(f"tasks.py: {e}")


if __name__ == "__main__":
    main()
