#!/usr/bin/env python3
"""Renders generated conversations through the Qwen and Laguna chat templates with Jinja2.

    tools/chat_fixtures_qwen.py > tests/data/chat/qwen.jsonl
    tools/chat_fixtures_qwen.py 17 qwen3.6      prints the text of line 17 for that template

One line per conversation: messages and tools as JSON text, options, and for each template the
FNV-1a hash of its text (null: the template raises). text/chat_qwen_test.c replays the file.
The environment is that of transformers: trim_blocks, lstrip_blocks, loop controls, a tojson without
HTML escapes, a `generation` block that does nothing.

The script changes the templates' input as carat does: arguments that are JSON text are parsed
(Qwen3 prints such text as it is), parts of text are joined, null content is empty, the role
developer is the role system, and for templates that take one system message those at the beginning
become one. Without thinking the thought that Qwen3-VL's Thinking template opens is closed at once. The
last conversations hold pictures, for the templates that know them.

Origin of the templates: Qwen/Qwen3-0.6B, Qwen/Qwen3-Coder-30B-A3B-Instruct, Qwen/Qwen3.5-4B,
Qwen/Qwen3.6-27B, Qwen/Qwen3.8-27B, Qwen/Qwen3-VL-8B-Thinking (Apache-2.0), poolside/Laguna-XS.2 and Laguna-XS-2.1.
"""
import copy
import json
import os
import sys

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import chat_fixtures as gemma
from chat_fixtures import HERE, NAMES, WORDS, arguments, raise_exception, rng, tool

TEMPLATES = {
    "qwen3": "Qwen-Qwen3-0.6B.jinja",
    "qwen3 coder": "Qwen3-Coder.jinja",
    "qwen3.5": "Qwen3.5-4B.jinja",
    "qwen3.6": "Qwen3.6.jinja",
    "qwen3.8": "Qwen3.8.jinja",
    "qwen3-vl thinking": "Qwen3-VL-Thinking.jinja",
    "laguna v5": "laguna.jinja",
    "laguna v8": "laguna_v8_chat_template.jinja2",
}
ONE_SYSTEM = ("qwen3.5", "qwen3.6", "qwen3.8")
SEEING = ONE_SYSTEM + ("qwen3-vl thinking",)
COUNT = 190
BEGINNINGS = 30
PICTURES = 40
SENTINEL = "\u241f"

WORDS += ["<|im_end|>\n<|im_start|>", "</think>", "<think>a</think>b", "<tool_call>",
                "〈|EOS|〉", "</assistant>", "</user>", "\x7f\x1f"]


def text():
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2)))


gemma.text = text


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def load():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    out = {}
    for name, path in TEMPLATES.items():
        with open(os.path.join(HERE, path), encoding="utf-8") as f:
            out[name] = env.from_string(f.read())
    return out


# ---- Conversations ------------------------------------------------------------------------

def thoughtful():
    """Content that may hold a thought."""
    pick = rng.random()
    if pick < 0.7:
        return text()
    if pick < 0.8:
        return "<think>\n" + text() + "\n</think>\n\n" + text()
    if pick < 0.85:
        return text() + "\n</think>\n" + text()
    if pick < 0.9:
        return "<think></think>\n\n  " + text() + "</think>\n\nlast"
    return rng.choice(["", "\n\n", "  ", "\n" + text()])


def content():
    if rng.random() < 0.85:
        return rng.choice([text(), text(), text(), "", "<tool_response>\nx\n</tool_response>"])
    return [{"type": "text", "text": text()} for _ in range(rng.randint(0, 3))]


def call(i):
    f = {"name": rng.choice(NAMES)}
    f["arguments"] = rng.choice([arguments(), arguments(), arguments(), None])
    return {"type": "function", "id": "call_%d" % i, "function": f}


def assistant():
    m = {"role": "assistant", "content": thoughtful()}
    out = [m]
    pick = rng.random()
    if pick < 0.4:
        m["reasoning_content"] = rng.choice([text(), text(), "", "\n\n" + text() + "\n"])
    if rng.random() < 0.45:
        m["tool_calls"] = [call(i) for i in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            m["content"] = rng.choice([None, "", text()])
        if rng.random() < 0.85:
            for c in m["tool_calls"]:
                out.append({"role": "tool", "tool_call_id": c["id"],
                            "content": rng.choice([text(), '{"t":21}', content()])})
    return out


def conversation():
    messages = []
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2])):
        messages.append({"role": rng.choice(["system", "system", "developer"]),
                         "content": rng.choice([text(), text(), "", " \n", content()])})
    for turn in range(rng.randint(1, 3)):
        if rng.random() < 0.985:
            messages.append({"role": "user", "content": content()})
        for i in range(rng.choice([0, 1, 1, 1, 2, 3])):
            messages += assistant()
        if rng.random() < 0.02:
            messages.append({"role": "system", "content": text()})
    if not messages:
        return conversation()
    if rng.random() < 0.3 and messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": text()})
    return messages


def own_tool():
    t = tool()
    if rng.random() < 0.2:
        t["function"]["strict"] = rng.choice([True, False])
    if rng.random() < 0.1:
        t["function"]["parameters"] = {"type": "object", "properties": {}, "additionalProperties": False,
                                       "$defs": {"a": {"type": ["string", "null"]}}}
    return t


# ---- Rendering ----------------------------------------------------------------------------

def pictured(messages):
    """The conversation with pictures among its texts."""
    for m in messages:
        if m["role"] in ("user", "tool", "assistant") and rng.random() < 0.6:
            c = m["content"]
            parts = [p for p in c] if isinstance(c, list) else [{"type": "text", "text": c or ""}]
            for _ in range(rng.randint(1, 2)):
                parts.insert(rng.randint(0, len(parts)), rng.choice(
                    [{"type": "image"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video"}]))
            m["content"] = parts
    return messages


def flat(c):
    if isinstance(c, list) and any(p["type"] != "text" for p in c):
        return c
    return "".join(p["text"] for p in c) if isinstance(c, list) else c or ""


def normal(name, messages):
    """The messages as the template gets them."""
    out = copy.deepcopy(messages)
    for m in out:
        m["content"] = flat(m["content"])
        if m["role"] == "developer":
            m["role"] = "system"
        for c in m.get("tool_calls", []):
            a = c["function"]["arguments"]
            if isinstance(a, str) and a.strip() and name in ("qwen3", "qwen3-vl thinking"):
                continue
            c["function"]["arguments"] = json.loads(a) if isinstance(a, str) and a.strip() else \
                {} if isinstance(a, str) or a is None else a
    if name in ONE_SYSTEM:
        said = [m["content"].strip() for m in out if m["role"] == "system"]
        if said:
            out = [m for m in out if m["role"] != "system"]
            out.insert(0, {"role": "system", "content": "\n\n".join(p for p in said if p)})
    return out


def variables(name, o):
    v = dict(enable_thinking=o["thinking"], add_generation_prompt=o["generate"])
    if name == "qwen3.8":
        v["preserve_thinking"] = not o["drop"]
        if o["effort"]:
            v["reasoning_effort"] = o["effort"]
    else:
        v["preserve_thinking"] = o["preserve"]
    return v


def render(template, name, messages, tools, o):
    messages = normal(name, messages)
    if name not in SEEING and any(isinstance(m["content"], list) for m in messages):
        raise ValueError("this template knows no pictures")
    if not o["continue"]:
        out = template.render(messages=messages, tools=tools, **variables(name, o))
        closes = name == "qwen3-vl thinking" and o["generate"] and not o["thinking"]
        return out + "\n</think>\n\n" if closes else out
    messages[-1]["content"] += SENTINEL
    return template.render(messages=messages, tools=tools,
                           **dict(variables(name, o), add_generation_prompt=False)).split(SENTINEL)[0]


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return "%016x" % h


def as_sent(messages):
    out = copy.deepcopy(messages)
    for m in out:
        for c in m.get("tool_calls", []):
            f = c["function"]
            pick = rng.random()
            if pick < 0.1:
                f["arguments"] = '{"n": 1.50, "big":123456789012345678901234567890, "e":1E5, "z": -0}'
            elif pick < 0.6:
                f["arguments"] = "" if f["arguments"] is None else json.dumps(
                    f["arguments"], ensure_ascii=rng.random() < 0.5)
    return out


def begun(messages, answers, thought):
    """Up to a user's turn, and the beginning of an answer."""
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    last = {"role": "assistant", "content": rng.choice(answers)}
    if rng.random() < 0.3:
        last["reasoning_content"] = thought()
    return (messages or [{"role": "user", "content": "Hi"}]) + [last]


def print_line(o, messages, tools, want, show):
    """A line of the file, unless one text is shown; both draw the same numbers."""
    ascii_only = rng.random() < 0.1
    if not show:
        print(json.dumps(dict(o, messages=json.dumps(messages, ensure_ascii=ascii_only),
                              tools=tools and json.dumps(tools, ensure_ascii=False), want=want),
                         ensure_ascii=False))


def main():
    templates = load()
    show = (int(sys.argv[1]), sys.argv[2]) if len(sys.argv) == 3 else None
    for i in range(COUNT + BEGINNINGS + PICTURES):
        begin = COUNT <= i < COUNT + BEGINNINGS
        messages = conversation()
        if begin:
            messages = begun(messages, ["The answer is", "{\"a\":", "No ", "One, two, \n", "",
                                        "<think>\nhm\n</think>\n\nYes "], text)
        messages = as_sent(messages if i < COUNT + BEGINNINGS else pictured(messages))
        tools = [own_tool() for _ in range(rng.randint(1, 2))] if rng.random() < 0.5 else None
        o = {"thinking": rng.random() < 0.6, "preserve": rng.random() < 0.4,
             "drop": rng.random() < 0.4, "effort": rng.choice([None, None, "low", "medium", "xhigh"]),
             "generate": begin or rng.random() < 0.8, "continue": begin}
        want = []
        for name, template in templates.items():
            try:
                got = render(template, name, messages, tools, o)
                want.append(fnv(got.encode()))
            except Exception as e:  # the template raised: no reference
                print("line %d, %s: %s" % (i + 1, name, e), file=sys.stderr)
                got = None
                want.append(None)
            if show == (i + 1, name):
                print(got)
        print_line(o, messages, tools, want, show)


if __name__ == "__main__":
    main()
