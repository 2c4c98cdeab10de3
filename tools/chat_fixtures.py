#!/usr/bin/env python3
"""Renders generated conversations through the Gemma 4 chat templates with Jinja2.

    tools/chat_fixtures.py > tests/data/chat/fixtures.jsonl

One line per conversation: messages and tools as JSON text, options, and the text of each template (null:
the template raises or prints Python text, so it is no reference; a list: the edit that turns the text
for "large" into this one). text/chat_test.c replays the file. The script changes the templates' input
in two ways, as carat does: arguments that are JSON text are parsed, and a schema type that is a list
becomes its first type and `nullable`. It changes their output in one: the repair of the missing
generation prompt, which text/chat_gemma.c describes.
"""
import copy
import json
import os
import random
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "chat")
TEMPLATES = {
    "first": "google-gemma-4-31B-it-interleaved.jinja",
    "late": "google-gemma-4-31B-it.jinja",
    "small": "gemma4_e2b_chat_template.jinja2",
    "large": "gemma4_31b_chat_template.jinja2",
}
COUNT = 205
rng = random.Random(20261120)


def raise_exception(message):
    raise ValueError(message)


def load():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = raise_exception
    out = {}
    for name, path in TEMPLATES.items():
        with open(os.path.join(HERE, path), encoding="utf-8") as f:
            out[name] = env.from_string(f.read())
    return out


# ---- Conversations ------------------------------------------------------------------------

WORDS = ["Hello", "weather in Rome?", "2 + 2", "  padded  ", "line one\nline two", "été déjà",
         "日本語のテキスト", "emoji 😊👍🏽", "quotes \" and ' and \\", "{braces: [1, 2]}", "tab\there",
         "<b>html</b> & more", "a: b, c: d", "trailing newline\n", "\n\nleading", "x" * 40,
         "\u00a0nbsp\u00a0", "\u3000ideographic\u2003", "<turn|> as text", "<|think|>",
         "mid <|channel>thought\nhidden<channel|> end", "100%", "C:\\path\\file", "$x^2$"]
KEYS = ["city", "City", "CITY", "days", "unit", "a_b", "Zeta", "alpha", "été", "Äpfel", "äpfel",
        "x1", "items", "ключ", "Ключ", "query", "_private", "kebab-case", "Name", "value"]
NAMES = ["get_weather", "search", "f", "namespace.tool", "Überschrift", "run_code"]


def text():
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))


def number():
    return rng.choice([0, 1, -1, 42, 2**53, 10**25, -7, 1.5, 0.1, -0.25, 1e5, 1e-7, 1e22, 123456.789,
                       1e16, 0.0001, 12345678901234567.0, -0.0, 5e-324, 3.0])


def value(depth=0):
    pick = rng.randint(0, 9)
    if depth < 3 and pick == 0:
        return [value(depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and pick == 1:
        return {rng.choice(KEYS): value(depth + 1) for _ in range(rng.randint(0, 4))}
    if pick < 6:
        return text()
    return rng.choice([True, False, None, number(), number()])


def arguments():
    return {rng.choice(KEYS): value() for _ in range(rng.randint(0, 5))}


def schema(depth=0):
    kind = rng.choice(["string", "string", "integer", "number", "boolean", "array", "object",
                       "String", None, ["string", "null"], ["null", "integer"]])
    s = {}
    if rng.random() < 0.6:
        s["description"] = rng.choice(["", "City name", text()])
    if kind is not None:
        s["type"] = kind
    if rng.random() < 0.25:
        s["nullable"] = rng.choice([True, False])
    if rng.random() < 0.2:
        s["default"] = value(2)
    if rng.random() < 0.1:
        s["minimum"] = 3
    if kind in ("string", "String") and rng.random() < 0.5:
        s["enum"] = rng.choice([["C", "F"], [], ["été", "a b"], ["x", None, 3]])
    if kind == "array" and rng.random() < 0.8:
        s["items"] = rng.choice([{}, {"type": "string"}, {"type": ["string", "null"]},
                                 schema(depth + 1) if depth < 2 else {"type": "number"},
                                 {"type": "string", "format": "date", "default": None,
                                  "minLength": 2, "Pattern": "^a"}])
    if kind == "object":
        if depth < 2 and rng.random() < 0.7:
            s["properties"] = properties(depth + 1)
        elif rng.random() < 0.5:
            s["additionalProperties"] = rng.choice([False, {"type": "string"}])
        if rng.random() < 0.5:
            s["required"] = rng.sample(KEYS, rng.randint(0, 2))
    if kind == "object" and rng.random() < 0.2:
        s["title"] = "T"
    return s


def properties(depth=0):
    return {rng.choice(KEYS + ["type", "description"]): schema(depth)
            for _ in range(rng.randint(0, 4))}


def tool():
    f = {"name": rng.choice(NAMES)}
    if rng.random() < 0.9:
        f["description"] = rng.choice(["Look up the weather.", text(), ""])
    if rng.random() < 0.9:
        p = {"type": "object"}
        if rng.random() < 0.9:
            p["properties"] = properties()
            p["required"] = rng.sample(list(p["properties"]), rng.randint(0, len(p["properties"])))
        f["parameters"] = p
    if rng.random() < 0.15:
        f["response"] = rng.choice([{"type": "object", "description": "The result"},
                                    {"type": "OBJECT"}])
    return {"type": "function", "function": f}


def content(allow_media=True):
    pick = rng.random()
    if pick < 0.75:
        return text()
    parts = []
    for _ in range(rng.randint(0, 3)):
        kind = rng.random()
        if kind < 0.7 or not allow_media:
            parts.append({"type": "text", "text": text()})
        else:
            parts.append(rng.choice([{"type": "image"}, {"type": "audio"}, {"type": "video"}]))
    return parts


def call(i):
    c = {"type": "function", "function": {"name": rng.choice(NAMES)}}
    if rng.random() < 0.9:
        c["id"] = "call_%d" % i
    c["function"]["arguments"] = rng.choice([arguments(), arguments(), arguments(), None])
    return c


def assistant(last):
    """One assistant message and the tool messages that answer it."""
    m = {"role": "assistant"}
    out = [m]
    if rng.random() < 0.4:
        m[rng.choice(["reasoning", "reasoning_content"])] = text()
    if rng.random() < 0.5:
        m["tool_calls"] = [call(i) for i in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            m["content"] = rng.choice([None, "", content(False), content()])
        how = rng.random()
        if how < 0.15:
            m["tool_responses"] = [
                {"name": c["function"]["name"], "response": rng.choice([value(), arguments()])}
                for c in m["tool_calls"]]
        elif how < 0.85 or not last:
            for c in m["tool_calls"]:
                t = {"role": "tool", "content": rng.choice([text(), '{"t":21}', content(), text()])}
                if "id" in c:
                    t["tool_call_id"] = c["id"]
                if "id" not in c or rng.random() < 0.3:
                    t["name"] = rng.choice(NAMES)
                out.append(t)
    else:
        m["content"] = content()
    return out


def conversation():
    messages = []
    if rng.random() < 0.5:
        c = text() if rng.random() < 0.8 else [{"type": "text", "text": text()}
                                               for _ in range(rng.randint(1, 2))]
        messages.append({"role": rng.choice(["system", "developer"]), "content": c})
    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": content()})
        for i in range(rng.choice([0, 1, 1, 1, 2, 3])):
            messages += assistant(True)
        if rng.random() < 0.05:
            messages.append({"role": "system", "content": text()})
    if rng.random() < 0.3 and messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": text()})
    return messages


# ---- Rendering ----------------------------------------------------------------------------

def normal_types(s):
    """Type lists become one type and nullable, outside of `items` (the template prints those)."""
    if not isinstance(s, dict):
        return s
    s = dict(s)
    if isinstance(s.get("type"), list):
        s["nullable"] = s.get("nullable") or "null" in s["type"]
        s["type"] = next(t for t in s["type"] if t != "null")
    if isinstance(s.get("properties"), dict):
        s["properties"] = {k: normal_types(v) for k, v in s["properties"].items()}
    elif s.get("type") == "object":
        s = {k: v if k in ("type", "description", "required") else normal_types(v)
             for k, v in s.items()}
    if isinstance(s.get("items"), dict) and isinstance(s["items"].get("properties"), dict):
        s["items"] = dict(s["items"])
        s["items"]["properties"] = {k: normal_types(v) for k, v in s["items"]["properties"].items()}
    return s


def render(template, name, messages, tools, thinking, preserve, generate):
    args = dict(messages=messages, tools=tools, enable_thinking=thinking,
                preserve_thinking=preserve, bos_token="<bos>")
    base = template.render(add_generation_prompt=False, **args)
    if not generate:
        return base
    full = template.render(add_generation_prompt=True, **args)
    added = full[len(base):]
    if base.endswith("<turn|>\n") and not added.startswith("<|turn>model\n"):
        full = base + "<|turn>model\n" + (added if name == "first" else "")
    return full


SENTINEL = "\u241f"


def begin_answer(template, name, messages, tools, thinking, preserve):
    """What Hugging Face's continue_final_message makes of it: the text up to the end of the last
    message's content. A turn that is nothing but that content begins as an answer does."""
    marked = copy.deepcopy(messages)
    last = marked[-1]
    last["content"] = (last.get("content") or "") + SENTINEL
    text = template.render(messages=marked, tools=tools, enable_thinking=thinking,
                           preserve_thinking=preserve, bos_token="<bos>",
                           add_generation_prompt=False).split(SENTINEL)[0]
    turn = text[text.rindex("<|turn>model\n") + len("<|turn>model\n"):]
    if name != "small" and not thinking and turn == (messages[-1].get("content") or ""):
        text = text[:len(text) - len(turn)] + "<|channel>thought\n<channel|>" + turn
    return text


def beginnings():
    """Conversations that end with the beginning of an answer."""
    for i in range(40):
        messages = conversation()
        while messages[-1]["role"] != "user":
            messages.pop()
        kind = i % 5
        if kind == 1:  # the turn has begun earlier
            messages.append({"role": "assistant", "content": rng.choice(["First.", "One, two,"])})
        last = {"role": "assistant", "content": rng.choice(["The answer is", "{\"a\":", "No"])}
        if kind == 2:
            last[rng.choice(["reasoning", "reasoning_content"])] = text()
        if kind >= 3:
            names = [rng.choice(NAMES) for _ in range(rng.randint(1, 2))]
            if kind == 3:
                last["tool_calls"] = [dict(call(k), function={"name": n, "arguments": arguments()})
                                      for k, n in enumerate(names)]
            last["tool_responses"] = [{"name": n, "response": arguments()} for n in names]
        yield messages + [last]


def unusable(name, messages):
    """Inputs on which this template prints Python text."""
    first_system = messages[0]["role"] in ("system", "developer")
    if name in ("first", "late") and first_system and not isinstance(messages[0]["content"], str):
        return True
    if name == "late":
        by_id = set()
        for m in messages:
            if m.get("tool_calls"):
                by_id = {c.get("id") for c in m["tool_calls"]}
            if m["role"] == "tool" and m.get("tool_call_id") not in by_id and not m.get("name"):
                return True
    return False


def edit(base, text):
    """text as [bytes kept from the front of base, middle, bytes kept from its back]."""
    a, b = base.encode(), text.encode()
    front = 0
    while front < min(len(a), len(b)) and a[front] == b[front]:
        front += 1
    while front < len(b) and front and (b[front] & 0xC0) == 0x80:
        front -= 1
    back = 0
    while back < min(len(a), len(b)) - front and a[-1 - back] == b[-1 - back]:
        back += 1
    while back and (b[len(b) - back] & 0xC0) == 0x80:
        back -= 1
    return [front, b[front:len(b) - back].decode(), back]


def print_beginnings(templates):
    for messages in beginnings():
        thinking, preserve = rng.random() < 0.5, rng.random() < 0.3
        twice = messages[-2]["role"] == "assistant"
        want = {}
        for name, template in templates.items():
            try: # the late template closes the first of two messages and opens nothing: no reference
                want[name] = None if unusable(name, messages) or (name == "late" and twice) else \
                    begin_answer(template, name, messages, None, thinking, preserve)
            except Exception as e:
                want[name] = None
        for name in ("first", "late", "small"):
            want[name] = want[name] and want["large"] and edit(want["large"], want[name])
        print(json.dumps({"messages": json.dumps(messages, ensure_ascii=False), "tools": None,
                          "thinking": thinking, "preserve": preserve, "generate": True,
                          "continue": True, "want": want}, ensure_ascii=False))


def main():
    templates = load()
    for i in range(COUNT):
        messages = conversation()
        tools = [tool() for _ in range(rng.randint(1, 3))] if rng.random() < 0.5 else None
        thinking, preserve = rng.random() < 0.5, rng.random() < 0.3
        generate = rng.random() < 0.8
        as_sent = copy.deepcopy(messages)
        for m in as_sent:
            for c in m.get("tool_calls", []):
                if rng.random() < 0.6:
                    a = c["function"]["arguments"]
                    c["function"]["arguments"] = "" if a is None else json.dumps(
                        a, ensure_ascii=rng.random() < 0.5)
        normal = copy.deepcopy(tools)
        for t in normal or []:
            if "parameters" in t["function"]:
                t["function"]["parameters"] = normal_types(t["function"]["parameters"])
        want = {}
        for name, template in templates.items():
            try:
                want[name] = None if unusable(name, messages) else render(
                    template, name, messages, normal, thinking, preserve, generate)
            except Exception as e:  # the template raised: no reference
                print("case %d, %s: %s" % (i, name, e), file=sys.stderr)
                want[name] = None
        for name in ("first", "late", "small"):
            want[name] = want[name] and want["large"] and edit(want["large"], want[name])
        print(json.dumps({"messages": json.dumps(as_sent, ensure_ascii=rng.random() < 0.3),
                          "tools": tools and json.dumps(tools, ensure_ascii=False),
                          "thinking": thinking, "preserve": preserve, "generate": generate,
                          "want": want}, ensure_ascii=False))
    print_beginnings(templates)


if __name__ == "__main__":
    main()
