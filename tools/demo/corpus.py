"""The corpus of the demo model: what is drawn how often, and how a document becomes tokens.

    python3 corpus.py show [--n 5] [--tokens 300]               print documents
    python3 corpus.py eval --tokens 8192 --n 50 --seed 1 [--skill recall]   held-out cases, one JSON object per line
    python3 corpus.py fixtures                                  the short held-out cases of all skills
    python3 corpus.py check TEMPLATE                            compare `render` with a chat template (needs jinja2)

Documents are made from a seeded random generator. A part of them, chosen by a checksum of the
question or answer, never appears in training: the held-out cases are drawn from that part.
"""
import argparse
import json
import random
import sys
import zlib

import facts
import reading
import skills
import words as w

_SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "Be brief.", "You are carat.", "Be concise.", "You are a friendly assistant.", "Help the user.",
           "Answer in one sentence.", "You are the demo model of carat.", "Be polite.", "Answer the question of the user.", "You are a careful reader.",
           "Use the tools if they help.", "Do what the user asks.", "Keep it short.", "You are an assistant that answers questions.", "Be exact.",
           "You are a helpful, concise assistant.", "Think before you answer.", "Reply in English."]


# ---- documents --------------------------------------------------------------------------------

def held_out(doc):
    """True if this document is reserved for evaluation."""
    m = doc["messages"]
    user = next(x["content"] for x in reversed(m) if x["role"] == "user")
    key = m[-1]["content"] if doc["skill"] in ("sums", "copy", "recall", "two_hop", "count", "story") else user.lower().strip("?!. ")
    return zlib.crc32(key.encode()) % 41 == 7


def knowledge(r, thinking):
    if r.random() < 0.24:
        q, a = facts.unknown(r, w)
        return skills.pair("refusal", q, a, "I do not know anything about this." if thinking else None)
    q, a, _ = facts.fact(r)
    return skills.pair("facts", q, a, "The user asks about something that I know." if thinking else None)


_SHORT = [(knowledge, 26), (skills.sums, 20), (skills.copy, 12), (skills.order, 17), (skills.count_up, 2), (skills.story, 2)]
_FUNCS, _WEIGHTS = zip(*_SHORT)


def single(r, thinking):
    """One question and its answer."""
    while True:
        d = r.choices(_FUNCS, _WEIGHTS)[0](r, thinking)
        if not held_out(d):
            return d


def chat(r, thinking, tokens):
    """Several unrelated questions in one conversation."""
    out, used = None, 0
    for _ in range(r.choice((2, 2, 3, 3, 4, 5, 7))):
        k = r.random()
        if k < 0.12:
            d = reading.recall(r, r.randrange(30, 120), thinking, turns=1)
        elif k < 0.16:
            d = reading.two_hop(r, r.randrange(30, 120), thinking, turns=1)
        else:
            d = single(r, thinking)
        d["messages"] = [m for m in d["messages"] if m["role"] != "system"] if out else d["messages"]
        size = sum(reading.count(m.get("content", "")) for m in d["messages"])
        if out and used + size > tokens:
            break
        used += size
        if out is None:
            out = dict(d, skill="chat")
        else:
            out["messages"] = out["messages"] + d["messages"]
    return out


def with_tools(r, thinking):
    """A tool call, alone or inside a conversation, or a conversation with tools that nobody needs."""
    k = r.random()
    if k < 0.12:
        d = single(r, thinking)
        d["tools"] = skills.some_tools(r)
        return d
    while True:
        d = skills.tools(r, thinking)
        if not held_out(d):
            break
    if k < 0.27:
        before = single(r, thinking)
        d["messages"] = before["messages"] + d["messages"]
    elif k < 0.42:
        after = single(r, thinking)
        d["messages"] = d["messages"] + after["messages"]
    return d


def document(r, tokens):
    """A random training document of at most about `tokens` tokens (less for most short skills)."""
    thinking = r.random() < 0.25
    k = r.random()
    if k < 0.50:
        d = single(r, thinking)
    elif k < 0.64:
        d = chat(r, thinking, min(tokens, 500))
    elif k < 0.86:
        d = with_tools(r, thinking)
    elif k < 0.88:
        d = skills.copy(r, thinking, long=True)
    else:
        d = read(r, r.randrange(30, max(40, min(tokens - 100, 420))), thinking)
    return add_system(r, d)


def read(r, tokens, thinking):
    """A document to search, of about `tokens` tokens."""
    while True:
        turns = r.choice((2, 4, 6, 10)) if tokens > 3000 else None
        d = (reading.two_hop if r.random() < 0.22 else reading.recall)(r, tokens, thinking, turns)
        if not held_out(d):
            return d


def long_document(r, tokens, thinking=None):
    """The same for long texts, sometimes with another short question at the end or a long copy."""
    thinking = r.random() < 0.2 if thinking is None else thinking
    d = read(r, tokens, thinking)
    k = r.random()
    if k < 0.15:
        d["messages"] += single(r, thinking)["messages"]
    return add_system(r, d, 0.2)


def hops(r, tokens, thinking=False):
    """A text with several questions of two hops, most of them for the value alone."""
    while True:
        d = reading.two_hop(r, tokens, thinking, r.choice((2, 4, 6)), miss=0.02, only_hops=r.random() < 0.8, alone=0.8)
        if not held_out(d):
            return add_system(r, d)


def ahead(r, tokens, thinking=False):
    """A text whose question stands before it and wants the value alone: two searches, without a word between."""
    while True:
        d = reading.recall(r, tokens, thinking, r.choice((1, 1, 2, 4)), miss=0.02, frame=r.choice(reading.AHEAD), alone=0.8)
        if not held_out(d):
            return add_system(r, d)


def add_system(r, d, p=0.3):
    if r.random() < p and d["messages"][0]["role"] != "system":
        d["messages"] = [{"role": "system", "content": r.choice(_SYSTEM)}] + d["messages"]
    k = r.random()
    d["keep_empty"], d["no_empty"] = k < 0.25, k > 0.6
    return d


# ---- rendering --------------------------------------------------------------------------------

def _value(v, quoted):
    if v is None:
        return "null"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, str):
        return f'<|"|>{v}<|"|>'
    if isinstance(v, dict):
        return "{" + ",".join((f'<|"|>{k}<|"|>' if quoted else k) + ":" + _value(x, quoted) for k, x in sorted(v.items(), key=lambda i: i[0].lower())) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(_value(x, quoted) for x in v) + "]"
    return str(v)


def declaration(t):
    f = t["function"]
    s = f'declaration:{f["name"]}{{description:<|"|>{f["description"]}<|"|>'
    p = f.get("parameters")
    if p:
        s += ",parameters:{"
        if p.get("properties"):
            props = []
            for k, v in sorted(p["properties"].items(), key=lambda i: i[0].lower()):
                items = [f'description:<|"|>{v["description"]}<|"|>'] if v.get("description") else []
                if v.get("enum"):
                    items.append("enum:" + _value(v["enum"], True))
                props.append(k + ":{" + ",".join(items + [f'type:<|"|>{v["type"].upper()}<|"|>']) + "}")
            s += "properties:{" + ",".join(props) + "},"
        if p.get("required"):
            s += "required:[" + ",".join(f'<|"|>{x}<|"|>' for x in p["required"]) + "],"
        s += f'type:<|"|>{p["type"].upper()}<|"|>' + "}"
    return s + "}"


def call_text(f):
    return f'call:{f["name"]}{{' + ",".join(f"{k}:{_value(v, False)}" for k, v in sorted(f["arguments"].items(), key=lambda i: i[0].lower())) + "}"


EMPTY = "<|channel>thought\n<channel|>"


def render(doc):
    """[(text, learn)] of a whole conversation as the chat template writes it; learn marks what the model writes."""
    msgs, thinking, tools = doc["messages"], doc["thinking"], doc.get("tools")
    out = [("<bos>", False)]
    system = msgs[0]["role"] == "system"
    if thinking or tools or system:
        s = "<|turn>system\n" + ("<|think|>\n" if thinking else "") + (msgs[0]["content"].strip() if system else "")
        s += "".join("<|tool>" + declaration(t) + "<tool|>" for t in tools or ())
        out.append((s + "<turn|>\n", False))
    msgs = msgs[1:] if system else msgs
    last_user = max((i for i, m in enumerate(msgs) if m["role"] == "user"), default=-1)
    i, open_turn = 0, False
    while i < len(msgs):
        m = msgs[i]
        i += 1
        if m["role"] != "assistant":
            out.append((f'<|turn>{m["role"]}\n{m["content"].strip()}<turn|>\n', False))
            continue
        current = i - 1 > last_user
        learn = current or not thinking         # past thoughts are not shown, so past turns do not teach thinking
        if not open_turn:
            out.append(("<|turn>model\n", False))
            # The template opens a fresh turn with an empty thought, but leaves it out of past turns
            # and of a turn that is continued after a tool result.
            if not thinking and (current and not (m.get("tool_calls") and doc.get("no_empty")) or doc.get("keep_empty")):
                out.append((EMPTY, False))
        if m.get("reasoning") and current:
            if open_turn:
                out.append(("<|channel>thought\n", False))
                out.append((m["reasoning"] + "\n<channel|>", True))
            else:
                out.append(("<|channel>thought\n" + m["reasoning"] + "\n<channel|>", True))
        if m.get("tool_calls"):
            for c in m["tool_calls"]:
                out.append(("<|tool_call>" + call_text(c["function"]) + "<tool_call|>", learn))
            first = True
            while i < len(msgs) and msgs[i]["role"] == "tool":
                out.append(("<|tool_response>", learn and first))
                out.append((f'response:{msgs[i]["name"]}{{value:{_value(msgs[i]["content"], False)}}}<tool_response|>', False))
                first = False
                i += 1
            if first:
                out.append(("<|tool_response>", learn))
            open_turn = True
            continue
        out.append((m["content"].strip() + "<turn|>", learn))
        out.append(("\n", False))
        open_turn = False
    return out


def tokens_of(tok, doc):
    """(ids, weights): at least 1 where the model writes, more where such tokens are few (texts to search, long texts); a little elsewhere."""
    ids, learn = [], []
    for text, on in render(doc):
        t = tok.encode(text)
        ids += t
        learn += [on] * len(t)
    base = 0.1 * min(1.0, 400 / len(ids))
    full = (3.0 if doc["skill"] in ("recall", "two_hop") else 1.0) + min(5.0, len(ids) / 3000)
    return ids, [full if x else base for x in learn]


# ---- held-out cases ----------------------------------------------------------------------------

def case(doc):
    """A test case: the conversation before the last answer, and what the answer must be."""
    m = doc["messages"]
    return {"skill": doc["skill"], "messages": m[:-1], "tools": doc.get("tools") or [], "thinking": doc["thinking"],
            "expect": m[-1]["content"], "match": "contains" if doc["skill"] == "story" or doc["thinking"] else "exact"}


def call_case(doc):
    """The first half of a tool conversation: the call is what is expected."""
    i = next(i for i, m in enumerate(doc["messages"]) if m.get("tool_calls"))
    calls = "".join("<|tool_call>" + call_text(c["function"]) + "<tool_call|>" for c in doc["messages"][i]["tool_calls"])
    return {"skill": "tool_call", "messages": doc["messages"][:i], "tools": doc["tools"], "thinking": doc["thinking"], "expect": calls, "match": "contains"}


def draw(r, skill, tokens, thinking=False):
    """One held-out document of a skill."""
    while True:
        if skill == "recall":           # the value alone, asked for before the text, is a skill of its own
            d = reading.recall(r, tokens, thinking, turns=1, miss=0)
            if d["bare"] and d["ahead"]:
                continue
        elif skill == "recall_ahead":
            d = reading.recall(r, tokens, thinking, turns=1, miss=0, frame=r.choice(reading.AHEAD), alone=1)
        elif skill == "missing":
            d = reading.recall(r, tokens, thinking, turns=1, miss=1)
            if "not in the text" not in d["value"]:
                continue
        elif skill == "two_hop":
            d = reading.two_hop(r, tokens, thinking, turns=1, miss=0, only_hops=True, alone=0)
        elif skill == "two_hop_value":
            d = reading.two_hop(r, tokens, thinking, turns=1, miss=0, only_hops=True, alone=1)
            if not d["bare"]:
                continue
        elif skill in ("facts", "refusal"):
            d = knowledge(r, thinking)
        elif skill in ("sort", "order"):
            d = skills.order(r, thinking)
        else:
            d = {"sums": skills.sums, "copy": skills.copy, "count": skills.count_up, "tools": skills.tools, "story": skills.story}[skill](r, thinking)
        if d["skill"] == {"missing": "recall", "recall_ahead": "recall", "two_hop_value": "two_hop"}.get(skill, skill) and held_out(d):
            d["skill"] = skill
            return d


HARD = ("recall_ahead", "two_hop_value")        # what the model is known to be bad at
SKILLS = ("facts", "refusal", "sums", "copy", "sort", "order", "count", "tools", "recall", "recall_ahead", "missing", "two_hop", "two_hop_value")


def fixtures(seed, n=25, tokens=180):
    r = random.Random(f"held out {seed}")
    for skill in (s for s in SKILLS if s not in HARD):
        for i in range(n):
            d = draw(r, skill, tokens, thinking=i % 5 == 4)
            if skill == "tools":
                yield call_case(d)
            yield case(d)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("show", "eval", "fixtures", "check"))
    p.add_argument("template", nargs="?")
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--n", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--skill", default="recall", choices=SKILLS)
    p.add_argument("--thinking", action="store_true")
    p.add_argument("--tokenizer", help="tokenizer.json, for exact lengths")
    a = p.parse_args()
    if a.tokenizer:
        import tokenizer
        tok = tokenizer.Fast(a.tokenizer)
        reading.count = lambda text: len(tok.encode(text))
    if a.what == "show":
        r = random.Random(f"show {a.seed}")
        for _ in range(a.n):
            print("".join(f"[{t}]" if on else t for t, on in render(document(r, a.tokens))), "\n" + "-" * 60)
    elif a.what == "eval":
        r = random.Random(f"held out {a.skill} {a.tokens} {a.seed}")
        for _ in range(a.n):
            print(json.dumps(case(draw(r, a.skill, a.tokens, a.thinking)), ensure_ascii=False))
    elif a.what == "fixtures":
        for c in fixtures(a.seed):
            print(json.dumps(c, ensure_ascii=False))
    else:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        t = env.from_string(open(a.template).read())
        r = random.Random("check")
        for i in range(3000):
            d = document(r, 400)
            d["keep_empty"], d["no_empty"] = False, True
            cut = len(d["messages"]) - 1
            mine = render(d)
            whole = t.render(messages=d["messages"], tools=d.get("tools"), enable_thinking=d["thinking"], bos_token="<bos>")
            prompt = t.render(messages=d["messages"][:cut], tools=d.get("tools"), enable_thinking=d["thinking"], bos_token="<bos>", add_generation_prompt=True)
            text = "".join(x for x, _ in mine)
            answer = d["messages"][-1]["content"].strip() + "<turn|>\n"
            think = d["messages"][-1].get("reasoning")
            if think:
                answer = (("" if prompt.endswith("thought\n") else "<|channel>thought\n") + think + "\n<channel|>") + answer
            assert text == prompt + answer, (text, prompt + answer)
            assert text.replace(EMPTY, "") == whole.replace("<|channel>thought\n<channel|>", ""), (text, whole)
        print("3000 documents render as the template does")


if __name__ == "__main__":
    sys.exit(main())
