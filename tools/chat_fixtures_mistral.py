#!/usr/bin/env python3
"""Renders generated conversations through the chat templates of Llama 2 and Mistral with Jinja2.

    tools/chat_fixtures_mistral.py > tests/data/chat/mistral.jsonl
    tools/chat_fixtures_mistral.py 17 mistral-v3      prints the text of line 17 for that template

One line per conversation, as in qwen.jsonl. text/mistral_test.c replays the file.

The script changes the templates' input as carat does: arguments that are JSON text are parsed (v13 prints
such text as it is), parts of text are joined, null content is empty, the role developer is the role
system, ids of other lengths than 9 become 9 letters, results get the id of their call, thoughts become
parts of the content. It takes the default system message out of their output.

Origin of the templates: meta-llama/Llama-2-7b-chat-hf, mistralai/Mistral-7B-Instruct-v0.1 to v0.3,
Mistral-Large-Instruct-2411, Mistral-Nemo-Instruct-2407, Mistral-Small-3.1-24B-Instruct-2503,
Mistral-Small-3.2-24B-Instruct-2506, Ministral-3-14B-Reasoning-2512.
"""
import copy
import json
import os
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import chat_fixtures as gemma
from chat_fixtures import HERE, NAMES, WORDS, arguments, raise_exception, rng, tool

TEMPLATES = ["llama2", "mistral-v0.1", "mistral-v0.2", "mistral-v1", "mistral-v3", "mistral-v3-tekken",
             "mistral-v7", "mistral-v7-tekken", "mistral-v11", "mistral-v13"]
WITH_TOOLS = ("mistral-v3", "mistral-v3-tekken", "mistral-v11", "mistral-v13")
COUNT = 160
SENTINEL = "\u241f"
WORDS = WORDS + ["[INST]", "[/INST]", "</s><s>", "[TOOL_CALLS]", "[ARGS]", "<<SYS>>", "[THINK]a[/THINK]", "[IMG]"]
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
n_texts = 0


def text():
    """No two alike: the templates take messages that are equal for one."""
    global n_texts
    n_texts += 1
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2))) + " %d" % n_texts \
        + rng.choice(["", "", " ", "\n"])


gemma.text = text


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def load():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: "2026-11-29"
    out = {}
    for name in TEMPLATES:
        with open(os.path.join(HERE, name + ".jinja"), encoding="utf-8") as f:
            out[name] = env.from_string(f.read())
    return out


# ---- Conversations ----

def content():
    if rng.random() < 0.85:
        return rng.choice([text(), text(), text(), "", " \n"])
    return [{"type": "text", "text": text()} for _ in range(rng.randint(1, 3))]


def call(i):
    f = {"name": rng.choice(NAMES), "arguments": rng.choice([arguments(), arguments(), None])}
    c = {"type": "function", "function": f}
    pick = rng.random()
    if pick < 0.9:
        c["id"] = "call_%d_%d" % (i, n_texts) if pick < 0.6 else "%09d" % (n_texts * 10 + i)
    return c


def calls():
    m = {"role": "assistant", "content": rng.choice([None, "", text()]),
         "tool_calls": [call(i) for i in range(rng.randint(1, 3))]}
    out = [m]
    for c in m["tool_calls"]:
        r = {"role": "tool", "content": rng.choice([text(), '{"t":21}', content()])}
        if "id" in c:
            r["tool_call_id"] = c["id"]
        out.append(r)
    return out


def conversation():
    with_calls = rng.random() < 0.5
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": content()})
    for turn in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": text() if turn else content()})
        while with_calls and rng.random() < 0.4:
            messages += calls()
        if rng.random() < 0.95:
            m = {"role": "assistant", "content": content()}
            if rng.random() < 0.3:
                m["reasoning_content"] = rng.choice([text(), ""])
            messages.append(m)
        if rng.random() < 0.03:
            messages.append({"role": "system", "content": text()})
    if rng.random() < 0.6 and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": text()})
    return messages


# ---- Rendering ----

def nine(s):
    if len(s) == 9:
        return s
    h = 0xcbf29ce484222325
    for b in s.encode():
        h = (h ^ b) * 0x100000001b3 % 2 ** 64
    out = ""
    for _ in range(9):
        out += LETTERS[h % 62]
        h //= 62
    return out


def flat(c):
    return "".join(p["text"] for p in c) if isinstance(c, list) else c or ""


def normal(name, messages):
    out = copy.deepcopy(messages)
    ids = []
    for i, m in enumerate(out):
        m["content"] = flat(m["content"])
        m["role"] = "system" if m["role"] == "developer" else m["role"]
        thought = m.pop("reasoning_content", None)
        if thought and name == "mistral-v13":
            m["content"] = [{"type": "thinking", "thinking": thought},
                            {"type": "text", "text": m["content"]}]
        for k, c in enumerate(m.get("tool_calls", [])):
            c["id"] = nine(c.get("id") or "%d.%d" % (i, k))
            a = c["function"]["arguments"]
            if isinstance(a, str) and name == "mistral-v13":
                continue
            c["function"]["arguments"] = json.loads(a) if isinstance(a, str) and a.strip() else \
                {} if isinstance(a, str) or a is None else a
        if "tool_calls" in m:
            ids = [c["id"] for c in m["tool_calls"]]
        if m["role"] == "tool":
            m["tool_call_id"] = ids.pop(0)
    return out


def render(template, name, messages, tools, o):
    messages = normal(name, messages)
    if (tools or any(m["role"] == "tool" for m in messages)) and name not in WITH_TOOLS:
        return raise_exception("carat refuses tools")
    if name == "mistral-v7" and any(m["role"] == "tool" for m in messages):
        return raise_exception("no such role")
    last = messages[-1]
    if o["continue"]:
        if isinstance(last["content"], list):
            last["content"][-1]["text"] += SENTINEL
        else:
            last["content"] += SENTINEL
    out = template.render(messages=messages, tools=tools, bos_token="<s>", eos_token="</s>",
                          add_generation_prompt=o["generate"])
    if messages[0]["role"] != "system" and name[8:] in ("v7-tekken", "v11", "v13"):
        a, b = out.index("[SYSTEM_PROMPT]"), out.index("[/SYSTEM_PROMPT]")
        out = out[:a] + out[b + len("[/SYSTEM_PROMPT]"):]
    return out[:out.rindex(SENTINEL)] if o["continue"] else out


def fnv(s):
    h = 0xcbf29ce484222325
    for b in s.encode():
        h = (h ^ b) * 0x100000001b3 % 2 ** 64
    return "%016x" % h


def lines():
    for _ in range(COUNT):
        messages = conversation()
        tools = [tool() for _ in range(rng.randint(1, 3))] if rng.random() < 0.4 else None
        last = messages[-1]
        o = {"generate": rng.random() < 0.8,
             "continue": last["role"] == "assistant" and "tool_calls" not in last and rng.random() < 0.5}
        yield messages, tools, o


def main():
    templates = load()
    for i, (messages, tools, o) in enumerate(lines()):
        want = []
        for name, template in templates.items():
            try:
                want.append(render(template, name, messages, tools, o))
            except Exception:
                want.append(None)
        if len(sys.argv) == 3:
            if i + 1 == int(sys.argv[1]):
                print(want[TEMPLATES.index(sys.argv[2])], end="")
            continue
        print(json.dumps({**o, "messages": json.dumps(messages, ensure_ascii=False),
                          "tools": json.dumps(tools, ensure_ascii=False) if tools else None,
                          "want": [fnv(w) if w is not None else None for w in want]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
