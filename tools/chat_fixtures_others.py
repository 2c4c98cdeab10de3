#!/usr/bin/env python3
"""Renders generated conversations through the chat templates of gpt-oss, Llama 3 and Gemma 3 with
Jinja2.

    tools/chat_fixtures_others.py > tests/data/chat/others.jsonl
    tools/chat_fixtures_others.py 17 harmony      prints the text of line 17 for that template

One line per conversation, as tools/chat_fixtures_qwen.py has it: the hash of each template's text.
null: carat refuses the conversation, as the template does. "": it is no reference, because the
template raises or leaves something out where carat does not. text/chat_others_test.c replays the
file.

The script changes the templates' input as carat does (text/chat_harmony.c, chat_llama.c,
gemma3.c): arguments that are JSON text are parsed, parts of text are joined, null content is empty, the role
developer is the role system; for gpt-oss system messages are gathered at the front.

Origin of the templates: openai/gpt-oss-120b (Apache-2.0), meta-llama/Meta-Llama-3-8B-Instruct,
Llama-3.1-8B-Instruct (that of 3.3 is the same) and Llama-3.2-3B-Instruct, google/gemma-3-4b-it.
"""
import copy
import json
import os
import sys

import chat_fixtures_qwen as qwen
from chat_fixtures import HERE, rng, schema, text as gemma_text, tool
from chat_fixtures_qwen import SENTINEL, Generation, as_sent, flat, fnv, loopcontrols, tojson
from chat_fixtures_qwen import ImmutableSandboxedEnvironment, raise_exception

TEMPLATES = {
    "harmony": "openai-gpt-oss-120b.jinja",
    "llama3": "Meta-Llama-3-8B-Instruct.jinja",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct.jinja",
    "llama3.2": "meta-llama-Llama-3.2-3B-Instruct.jinja",
    "gemma3": "google-gemma-3.jinja",
}
BOS = {"gemma3": "<bos>"}
COUNT = 300
BEGINNINGS = 40
DATES = {"%Y-%m-%d": "2026-11-29", "%d %b %Y": "29 Nov 2026"}

qwen.WORDS += ["<|end|>", "<|start|>assistant", "<|channel|>final", "<|call|>", "<|message|>"]


def load():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = DATES.get
    out = {}
    for name, path in TEMPLATES.items():
        with open(os.path.join(HERE, path), encoding="utf-8") as f:
            out[name] = env.from_string(f.read())
    return out


# ---- Tools ----------------------------------------------------------------------------------

def odd_schema():
    """Schemas with several types, which TypeScript has a spelling for."""
    pick = rng.randrange(5)
    if pick == 0:
        return {"oneOf": [schema(2) for _ in range(rng.randint(0, 3))], "description": gemma_text()}
    if pick == 1:
        return {"type": ["object", "object"], "default": "x", "enum": ["x", "y"]}
    if pick == 2:
        return {"type": "array", "nullable": True, "items": rng.choice([
            {"type": "array", "items": odd_schema()}, {"type": "boolean"}, {"type": "integer"},
            {"type": ["object", "object"]}, {"oneOf": [{"type": "string"}, {"type": "number"}]}])}
    if pick == 3:
        return {"type": "object", "required": ["a"], "properties": {
            "a": schema(1), "b": odd_schema(), "c": {"type": "string", "nullable": True}}}
    return {"oneOf": [{"type": "string", "enum": ["a", "b"], "default": rng.choice([None, 1.5, "é"])},
                      {"type": "boolean", "description": "yes or no"}], "default": "a"}


def own_tool():
    t = tool()
    f = t["function"]
    properties = f.get("parameters", {}).get("properties")
    if properties is not None and rng.random() < 0.6:
        properties["more"] = odd_schema()
    return t


# ---- Rendering ------------------------------------------------------------------------------

def normal(name, messages):
    """The messages as the templates get them."""
    out = copy.deepcopy(messages)
    for m in out:
        if name != "gemma3" or m["role"] in ("system", "developer") or not m["content"]:
            m["content"] = flat(m["content"])
        thought = m.pop("reasoning_content", "")
        if thought:
            m["thinking"] = thought
        for c in m.get("tool_calls", []):
            a = c["function"]["arguments"]
            a = json.loads(a) if isinstance(a, str) and a.strip() else a
            c["function"]["arguments"] = {} if isinstance(a, str) or a is None else a
    if name != "harmony":
        return [dict(m, role="system") if m["role"] == "developer" else m for m in out]
    said = [m["content"] for m in out if m["role"] in ("system", "developer")]
    out = [m for m in out if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(t for t in said if t)}] * bool(said) + out


def plain(message):
    for key in ("content", "thinking"):
        for mark in ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"):
            if mark in message.get(key, ""):
                return False
    calls = message.get("tool_calls", [])
    return len(calls) < 2 and not (calls and message["content"] and "thinking" in message)


def refused(name, messages, tools, o):
    """What carat refuses, and the template takes."""
    first = messages[0]["role"] == "system"
    calls = any(m["role"] == "tool" or "tool_calls" in m for m in messages)
    if name == "harmony":
        return False
    if name == "gemma3":
        turns = [m["role"] for m in messages[first:]]
        return tools or calls or not turns or turns != (["user", "assistant"] * len(turns))[:len(turns)]
    if name == "llama3":
        return tools or calls
    return tools and (messages[first:] + [{"role": ""}])[0]["role"] != "user"


def is_reference(name, messages, tools):
    if name == "harmony":
        return all(plain(m) for m in messages) and all(
            "description" in t["function"] for t in tools or [])
    return all(len(m.get("tool_calls", [])) < 2 for m in messages)


def render(template, name, messages, tools, o):
    """The text; None: refused; "": no reference."""
    messages = normal(name, messages)
    if refused(name, messages, tools, o):
        return None
    if not is_reference(name, messages, tools):
        return ""
    v = dict(reasoning_effort={"xhigh": "high", None: "medium"}.get(o["effort"], o["effort"]),
             add_generation_prompt=o["generate"] and not o["continue"],
             bos_token=BOS.get(name, "<|begin_of_text|>"))
    if o["continue"]:
        messages[-1]["content"] += SENTINEL
    try:
        text = template.render(messages=messages, tools=tools, **v)
    except ValueError:
        return None
    except TypeError:
        return ""
    if o["continue"]:
        return text.split(SENTINEL)[0]
    opens = name == "harmony" and o["generate"] and not o["thinking"] and not tools
    return text + "<|channel|>final<|message|>" * opens


def simple():
    """Users and answers in turns."""
    roles = ["system"] * rng.randint(0, 1) + ["user", "assistant"] * 3
    return [{"role": r, "content": qwen.content()} for r in roles[:rng.randint(1, 6)]]


def main():
    templates = load()
    show = (int(sys.argv[1]), sys.argv[2]) if len(sys.argv) == 3 else None
    for i in range(COUNT + BEGINNINGS):
        begin = i >= COUNT
        messages = simple() if rng.random() < 0.3 else qwen.conversation()
        if begin:
            messages = qwen.begun(messages, ["The answer is", "{\"a\":", "No ", ""], gemma_text)
        for m in messages:  # more lines that the template takes
            if "tool_calls" in m:
                m["tool_calls"] = m["tool_calls"][:rng.choice([1, 1, 1, 3])]
                if m["content"] and rng.random() < 0.8:
                    m.pop("reasoning_content", None)
        messages = as_sent(messages)
        tools = None if i % 3 == 0 else [own_tool() for _ in range(rng.randint(1, 2))] if rng.random() < 0.5 else None
        o = {"thinking": rng.random() < 0.9, "preserve": False, "drop": False,
             "effort": rng.choice([None, "low", "medium", "high", "xhigh"]),
             "generate": begin or rng.random() < 0.8, "continue": begin}
        want = []
        for name, template in templates.items():
            got = render(template, name, messages, tools, o)
            want.append(got and fnv(got.encode()))
            if show == (i + 1, name):
                print(got)
        qwen.print_line(o, messages, tools, want, show)


if __name__ == "__main__":
    main()
