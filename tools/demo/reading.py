"""Documents to search: facts hidden in filler text, key-value lists, and chains of two facts."""
import words as w


only = 0.12     # share of questions that want the value alone; later training raises it


def count(text):
    """Tokens in a text, roughly; corpus.py puts the tokenizer in here."""
    return len(text) // 4


class Fact:
    """One fact: how it is stated, how it is asked for, and the one way it is answered."""
    __slots__ = ("key", "value", "lead", "says", "asks", "np")

    def __init__(self, key, value, lead, says, asks, np):
        self.key, self.value, self.lead, self.says, self.asks, self.np = key, value, lead, says, asks, np

    def answer(self):
        return f"{self.lead} {self.value}."

    def missing(self):
        subject = self.lead.removesuffix(" is in the").removesuffix(" lives in").removesuffix(" is a").removesuffix(" is")
        return f"{subject} is not in the text, sorry."


_CODES = ("secret code;code;access code;pin;pin code;number;serial number;magic number;passcode;door code;locker code;room number;"
          "phone number;ticket number;key number;weight;price;height;age;score;secret number;security code;order number").split(";")
_NAMES = ("password;code word;secret word;label;nickname;passphrase;brand;secret;name;keyword;magic word").split(";")
_OF_THING = {"owner": w.person, "colour": lambda r: r.choice(w.COLOR), "color": lambda r: r.choice(w.COLOR),
             "home": lambda r: r.choice(w.CITY), "month": lambda r: r.choice(w.MONTH), "maker": w.person}
_OF_PERSON = {"favourite food": lambda r: r.choice(w.FOOD), "favourite animal": lambda r: r.choice(w.ANIMAL),
              "favourite colour": lambda r: r.choice(w.COLOR), "home town": lambda r: r.choice(w.CITY),
              "best friend": w.person, "job": lambda r: r.choice(w.JOB), "favorite color": lambda r: r.choice(w.COLOR),
              "favorite food": lambda r: r.choice(w.FOOD), "birthday": lambda r: f"{r.randrange(1, 29)} {r.choice(w.MONTH)}",
              "favourite fruit": lambda r: r.choice(w.FRUIT)}


def _word_value(r):
    k = r.random()
    if k < 0.5:
        return r.choice(w.WORDS)
    if k < 0.7:
        return r.choice(w.WORDS) + " " + r.choice(w.WORDS)
    if k < 0.85:
        return w.syllables(r, r.choice((2, 3)))
    return w.mixed(r)


def of_thing(r):
    k, thing = r.random(), w.things(r)
    if k < 0.6:
        attr, value = r.choice(_CODES), w.digits
    elif k < 0.85:
        attr, value = r.choice(_NAMES), _word_value
    else:
        attr = r.choice(list(_OF_THING))
        value = _OF_THING[attr]

    def make():
        e = thing(r) if r.random() < 0.85 else r.choice(w.PLACE)
        v, np = value(r), f"the {attr} of the {e}"
        says = ([f"The {attr} of the {e} is {v}."] * 5 + [f"For the {e}, the {attr} is {v}.", f"The {e} has the {attr} {v}.",
                f"The {e}'s {attr} is {v}.", f"{v} is the {attr} of the {e}." if v[0].isdigit() else f"The {attr} of the {e} is: {v}."])
        asks = [f"What is the {attr} of the {e}?"] * 6 + [
            f"Tell me the {attr} of the {e}.", f"Which {attr} has the {e}?", f"Find the {attr} of the {e}.", f"And the {attr} of the {e}?",
            f"I need the {attr} of the {e}.", f"What is the {e}'s {attr}?", f"Do you know the {attr} of the {e}?",
            f"What was the {attr} of the {e}?", f"the {attr} of the {e}?", f"Please give me the {attr} of the {e}.",
            f"What does the text say about the {attr} of the {e}?", f"Which is the {attr} of the {e}?"]
        return Fact(e, v, f"The {attr} of the {e} is", says, asks, np)
    return make


def of_person(r):
    if r.random() < 0.55:
        attr, value = r.choice(_CODES + _NAMES[:2]), w.digits
    else:
        attr = r.choice(list(_OF_PERSON))
        value = _OF_PERSON[attr]
    person = w.people(r)

    def make():
        p = person(r)
        v = value(r)
        says = [f"{p}'s {attr} is {v}."] * 3 + [f"The {attr} of {p} is {v}."] * 2 + [f"{p} has the {attr} {v}."]
        asks = [f"What is {p}'s {attr}?", f"What is the {attr} of {p}?"] * 3 + [
            f"Tell me {p}'s {attr}.", f"And {p}'s {attr}?", f"Which {attr} has {p}?", f"Find the {attr} of {p}.", f"I need {p}'s {attr}."]
        return Fact(p, v, f"{p}'s {attr} is", says, asks, f"{p}'s {attr}")
    return make


def where_is(r):
    def make():
        e, v = w.thing(r), r.choice(w.PLACE)
        return Fact(e, v, f"The {e} is in the", [f"The {e} is in the {v}."] * 2 + [f"Someone left the {e} in the {v}.", f"You can find the {e} in the {v}."],
                    [f"Where is the {e}?"] * 3 + [f"Where can I find the {e}?", f"In which place is the {e}?", f"Find the {e}."], f"the {e}")
    return make


def lives_in(r):
    def make():
        p, v = w.person(r), r.choice(w.CITY)
        return Fact(p, v, f"{p} lives in", [f"{p} lives in {v}."] * 2 + [f"{p} has a house in {v}."],
                    [f"Where does {p} live?"] * 2 + [f"In which city does {p} live?", f"Where is the home of {p}?"], p)
    return make


def works_as(r):
    def make():
        p, v = w.person(r), r.choice(w.JOB)
        return Fact(p, v, f"{p} is a", [f"{p} is a {v}.", f"{p} works as a {v}."],
                    [f"What does {p} do?", f"What is the job of {p}?", f"What is {p}'s job?", f"What does {p} work as?"], p)
    return make


def key_value(r):
    """Lines such as `lamp-17 = 4821`; one line form and one kind of key per document."""
    line = r.choice(("{}: {}", "{} = {}", "{} -> {}", '"{}": "{}",', "{}, {}", "| {} | {} |", "{}\t{}", "key {} has the value {}.",
                     "The value of {} is {}.", "- {}: {}", "set {} {}", "{}={}"))
    kind = r.choice((w.mixed, w.mixed, w.person, w.thing, lambda r: r.choice(w.WORDS), lambda r: w.syllables(r, r.choice((2, 3))),
                     lambda r: "key" + w.digits(r, r.choice((1, 2, 3))), lambda r: "key " + w.digits(r, r.choice((1, 2, 3)))))
    value = r.choice((w.digits, w.digits, _word_value, w.mixed))

    def make():
        k, v = kind(r), value(r)
        asks = [f"What is the value of {k}?"] * 5 + [f"Which value has {k}?", f"Look up {k}.", f"value of {k}?", f"Find {k}.", f"And {k}?",
                                                     f"What is {k}?", f"Give me the value of {k}.", f"{k}?"]
        return Fact(k, v, f"The value of {k} is", [line.format(k, v)], asks, f"the value of {k}")
    make.lines = True
    return make


_MAKERS = [of_thing] * 9 + [of_person] * 5 + [key_value] * 4 + [where_is, lives_in, works_as]
_CARRY = ["Remember this: {}", "Important: {}", "Note: {}", "By the way, {}", "As everyone knows, {}", "Do not forget: {}", "({})", "Someone wrote: {}",
          "Here is a fact: {}", "Keep in mind that {}", "It is written on the wall that {}", "The note says: {}", "Listen: {}", "*** {} ***"]


def state(r, fact):
    s = r.choice(fact.says)
    if r.random() < 0.25 and s[0].isupper() and s[-1] == ".":
        c = r.choice(_CARRY)
        if not c[:-2].endswith((": ", "(", "*** ")) and s.startswith("The "):
            s = s[0].lower() + s[1:]
        if c.endswith(("{}", "{})")) and s.endswith(".") and c == "({})":
            s = s[:-1]
            return c.format(s) + "."
        s = c.format(s)
    return s


def facts(r, n):
    """n facts with different keys, and as many that the document does not state."""
    makers = [m(r) for m in ([r.choice(_MAKERS)] if r.random() < 0.5 else [r.choice(_MAKERS) for _ in range(3)])]
    if any(hasattr(m, "lines") for m in makers):
        makers = [m for m in makers if hasattr(m, "lines")][:1]
    out, absent, seen = [], [], set()
    for _ in range(20 * n):
        f = r.choice(makers)()
        if f.lead in seen:
            continue
        seen.add(f.lead)
        if len(out) < n:
            out.append(f)
        else:
            absent.append(f)
            if len(absent) >= 6:
                break
    return out, absent, hasattr(makers[0], "lines")


def passage(r, says, tokens, lines):
    """The statements in order, spread over filler text of about `tokens` tokens."""
    need = tokens - sum(map(count, says)) - len(says)
    if need < 12:
        return ("\n" if lines or r.random() < 0.4 else " ").join(says)
    unit, sep = w.filler(r)
    fill, have = [], 0
    while have < need:
        s = unit()
        have += count(s) + 1
        fill.append(s)
    n = len(fill) + 1
    if lines and r.random() < 0.5 or r.random() < 0.1:       # all together somewhere
        at = r.randrange(n)
        block = ("\n" if lines else sep).join(says)
        return sep.join(fill[:at]) + "\n" + block + "\n" + sep.join(fill[at:])
    slots = sorted(r.randrange(n) for _ in says)
    out, i = [], 0
    for s, at in zip(says, slots):
        out += fill[i:at] + [s]
        i = at
    out += fill[i:]
    return ("\n" if lines else sep).join(out)


_FRAMES = ["{t}\n\n{q}", "{t}\n\n{q}", "{t}\n{q}", "{t} {q}", "{q}\n\n{t}", "{q}\n{t}", "Text:\n{t}\n\nQuestion: {q}", "Question: {q}\n\nText:\n{t}",
           "Read this text and answer the question.\n\n{t}\n\nQuestion: {q}", "Here is a text.\n\n{t}\n\n{q}",
           "Answer the question with the help of the text.\nQuestion: {q}\nText: {t}", "<text>\n{t}\n</text>\n{q}", "Context: {t}\n\nQuestion: {q}",
           "Document:\n{t}\n\nNow answer: {q}", "```\n{t}\n```\n{q}", "{q} Look in this text:\n\n{t}", "{t}\n\n---\n{q}", "{t}\n\nQ: {q}",
           "I have a question about this text: {q}\n\n{t}"]
AHEAD = [f for f in _FRAMES if f.find("{q}") < f.find("{t}")]      # the question stands before the text
_GIVE = ["{t}", "Here is a text:\n{t}", "Read this:\n\n{t}", "Please read this text. I will ask about it.\n\n{t}", "{t}\n\nI will ask you about this text.",
         "Remember the following.\n{t}"]
GOT_IT = "I have read it. Ask me."
_ONLY = [" Answer with the value only.", " Only the value, please.", " Reply with the value only.", " Just the value.", " Give only the value."]


def ask(r, f, found, thinking, alone):
    """(question, assistant message) for one fact; `alone` is how often the value is wanted without a sentence."""
    q = r.choice(f.asks)
    k = r.random()
    if k < 0.08 and not q.startswith(f.key):
        q = q[0].lower() + q[1:]
    a = f.answer() if found else f.missing()
    if k > 1 - alone and found:
        q, a = q + r.choice(_ONLY), f.value
    m = {"role": "assistant", "content": a}
    if thinking:
        m["reasoning"] = (f"I look for {f.np} in the text. " + (f"It says: {f.value}." if found else "It is not there."))
    return q, m


def recall(r, tokens, thinking=False, turns=None, n=None, miss=0.12, frame=None, alone=None):
    """A passage of about `tokens` tokens and one or more questions about it; `alone` as for `ask`."""
    most = max(1, min(24, tokens // 45)) if tokens < 700 else 24
    n = n or r.randrange(1, most + 1)
    if n == 24 and tokens > 900 and r.random() < 0.3:
        n = r.randrange(24, min(300, tokens // 30))
    fs, absent, lines = facts(r, n)
    text = passage(r, [state(r, f) for f in fs], tokens, lines)
    return dialogue(r, text, fs, absent, thinking, turns, miss, frame, "recall", only if alone is None else alone)


def dialogue(r, text, fs, absent, thinking, turns, miss, frame, skill, alone):
    turns = turns or r.choice((1, 1, 2, 3, 4, 6))
    picks = []
    for _ in range(turns):
        if absent and r.random() < miss:
            f = r.choice(absent)
            picks.append((f, False))
        else:
            picks.append((r.choice(fs), True))
    picks = list({p[0].lead: p for p in picks}.values())
    messages = []
    k = r.random()
    first, bare, ahead = True, False, False
    if frame is None and k < 0.06:
        messages.append({"role": "system", "content": r.choice(_GIVE).format(t=text)})
        first = False
    elif frame is None and k < 0.13:
        messages += [{"role": "user", "content": r.choice(_GIVE).format(t=text)}, {"role": "assistant", "content": GOT_IT}]
        first = False
    for f, found in picks:
        form = (frame or r.choice(_FRAMES)) if first else "{q}"
        # Two hops to the value alone need the question after the text: the way from question to
        # person to person to value is three searches, and the model has two global layers.
        ahead = form in AHEAD
        q, a = ask(r, f, found, thinking, 0 if skill == "two_hop" and ahead else alone)
        bare = found and a["content"] == f.value
        q, first = form.format(t=text, q=q), False
        messages += [{"role": "user", "content": q}, a]
    return {"skill": skill, "messages": messages, "thinking": thinking, "value": picks[-1][0].value if picks[-1][1] else "not in the text",
            "bare": bare, "ahead": ahead}


def hop_base(style, obj, attr, p, v):
    return (f"The {attr} of {p}'s {obj} is {v}.", f"{p}'s {obj} has the {attr} {v}.", f"{p}'s {attr} is {v}.", f"{p}'s {obj} {attr} is {v}.")[style]


def hop_alias(r, obj, p, y):
    return r.choice((f"{p}'s {obj} is the one of {y}.", f"{p}'s {obj} is the same as {y}'s.", f"{p} uses {y}'s {obj}.", f"{p} shares the {obj} of {y}.",
                     f"{p} has the same {obj} as {y}."))


def hop_lead(obj, attr, p, y):
    return f"The {attr} of {p}'s {obj} is that of {y}:"


def hop_asks(obj, attr, p):
    return [f"What is the {attr} of {p}'s {obj}?"] * 3 + [f"What is {p}'s {obj} {attr}?", f"What is {p}'s {attr}?", f"Which {attr} has {p}'s {obj}?",
                                                       f"Tell me the {attr} of {p}'s {obj}.", f"And {p}'s {obj}?"]


def two_hop(r, tokens, thinking=False, turns=None, frame=None, miss=0.05, only_hops=False, alone=None):
    """X's locker is the one of Y, and Y's locker has a code: ask for the code of X's locker."""
    obj = r.choice("locker desk room boat garage safe box bicycle house office cabin car".split())
    attr = r.choice(("code", "code", "number", "pin", "key number", "price"))
    n = r.randrange(2, max(3, min(12, tokens // 60)))
    people, person = [], w.people(r)
    while len(people) < 2 * n + 3:
        p = person(r)
        if p not in people:
            people.append(p)
    style = r.randrange(4)

    def asks(p):
        return hop_asks(obj, attr, p)
    says, fs, hops = [], [], []
    for i in range(n):
        y, v = people[i], w.digits(r)
        lead = f"The {attr} of {y}'s {obj} is"
        says.append(hop_base(style, obj, attr, y, v))
        fs.append(Fact(y, v, lead, [], asks(y), f"the {attr} of {y}'s {obj}"))
        if i < 1 or r.random() < 0.6:
            x = people[n + i]
            says.append(hop_alias(r, obj, x, y))
            hops.append(Fact(x, v, hop_lead(obj, attr, x, y), [], asks(x), f"the {attr} of {x}'s {obj}, which is that of {y}"))
    z = people[-1]
    absent = [Fact(z, "", f"The {attr} of {z}'s {obj} is", [], asks(z), f"the {attr} of {z}'s {obj}")]
    r.shuffle(says)
    text = passage(r, says, tokens, False)
    pool = hops if only_hops else hops * 2 + fs
    return dialogue(r, text, pool, absent, thinking, turns, miss, frame, "two_hop", only if alone is None else alone)
