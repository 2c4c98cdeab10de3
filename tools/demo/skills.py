"""Short skills: sums, copying, sorting, counting, stories and tool calls."""
import json

import words as w
from facts import vary


def pair(skill, q, a, thought=None):
    m = {"role": "assistant", "content": a}
    if thought is not None:
        m["reasoning"] = thought
    return {"skill": skill, "messages": [{"role": "user", "content": q}, m], "thinking": thought is not None, "value": a}


def number(r):
    k = r.random()
    hi = 10 if k < 0.12 else 100 if k < 0.42 else 1000 if k < 0.78 else 10000
    return r.randrange(hi)


def _columns(a, b):
    """Column addition in words, for the thought."""
    out, carry, x, y = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        out.append(f"{p} + {q}" + (" + 1" if carry else "") + f" = {s}")
        carry = s // 10
    return "I add the columns from the right: " + ", ".join(out) + "."


def sums(r, thinking=False):
    a, b = number(r), number(r)
    k = r.random()
    if k < 0.62:
        sign, c = "+", a + b
        forms = ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}", "{a} and {b} added")
        extra = (f"Add {a} and {b}.", f"Add {b} to {a}.", f"{a} + {b} = ?", f"{a} + {b} =", f"Sum {a} and {b}.", f"What is the sum of {a} and {b}?",
                 f"What do you get if you add {a} and {b}?")
    elif k < 0.90:
        a, b = max(a, b), min(a, b)
        sign, c = "-", a - b
        forms = ("{a} - {b}", "{a}-{b}", "{a} minus {b}")
        extra = (f"Subtract {b} from {a}.", f"Take {b} away from {a}.", f"{a} - {b} = ?", f"{a} - {b} =", f"What is the difference of {a} and {b}?")
    else:
        a, b = r.randrange(13), r.randrange(13)
        sign, c = "x", a * b
        forms = ("{a} x {b}", "{a} * {b}", "{a} times {b}")
        extra = (f"Multiply {a} by {b}.", f"{a} x {b} = ?", f"{a} * {b} =", f"What is the product of {a} and {b}?")
    k = r.random()
    if k < 0.3:
        q = r.choice(extra)
    else:
        x = r.choice(forms).format(a=a, b=b)
        q = r.choice(("What is {}?",) * 5 + ("{}", "{}?", "Calculate {}.", "Compute {}.", "How much is {}?", "what is {}", "Tell me {}.", "Work out {}.",
                                            "Can you tell me what {} is?", "Please calculate {}.")).format(x)
    thought = None
    if thinking:
        thought = _columns(a, b) if sign == "+" else f"The user wants {a} {sign} {b}. The result is {c}."
    return pair("sums", q, f"{a} {sign} {b} = {c}.", thought)


# ---- copying ----------------------------------------------------------------------------------

def material(r, long=False):
    k = r.random()
    n = r.choice((1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)) if not long else r.randrange(30, 200)
    if k < 0.30:
        return " ".join(w.some_words(r, n))
    if k < 0.45:
        return " ".join(w.digits(r) for _ in range(min(n, 60)))
    if k < 0.53:
        return " ".join(w.mixed(r) for _ in range(min(n, 60)))
    if k < 0.75:
        return " ".join(w.sentence(r) for _ in range(min(1 + n // 6, 14)))
    if k < 0.83:
        return " ".join(r.choice(w.UNICODE) if r.random() < 0.6 else r.choice(w.WORDS) for _ in range(min(n, 20)))
    if k < 0.86:
        return "".join(chr(r.choice((r.randrange(0xA1, 0x530), r.randrange(0x3041, 0x30FF), r.randrange(0x4E00, 0x9FFF), r.randrange(0x1F300, 0x1F640))))
                       for _ in range(min(n, 12)))
    if k < 0.93:
        return ", ".join(w.some_words(r, n))
    if k < 0.97:
        return "\n".join(w.some_words(r, min(n, 12)))
    t = "".join(r.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!?.,;:-+*/=()[]<>#$%&@ ") for _ in range(r.randrange(3, 40)))
    return t.strip() or "x"


def copy(r, thinking=False, long=False):
    x = material(r, long)
    q = r.choice(("Repeat: {}",) * 5 + ("repeat: {}", "Repeat after me: {}", "Copy: {}", "Copy this: {}", "Echo: {}", "Say: {}", "Repeat this text: {}",
                  "Repeat the following text exactly:\n{}", "Repeat the following:\n\n{}", "Write this back to me: {}", "copy: {}", "Copy the text:\n{}",
                  "Please repeat: {}", "Repeat exactly: {}", "Print: {}", "Repeat {}")).format(x)
    return pair("copy", q, x, "The user wants the text back, word for word." if thinking else None)


def count_up(r, thinking=False):
    a = r.choice((1, 1, 1, 1, 0, 5, 10, r.randrange(100)))
    b = a + r.choice((4, 9, 9, 14, 19, 29, r.randrange(2, 60)))
    if r.random() < 0.25:
        q, seq = f"Count down from {b} to {a}.", range(b, a - 1, -1)
    else:
        q, seq = r.choice(("Count from {} to {}.", "count from {} to {}", "Count up from {} to {}.", "Please count from {} to {}.",
                           "List the numbers from {} to {}.")).format(a, b), range(a, b + 1)
    return pair("count", q, " ".join(map(str, seq)), f"I write the numbers one by one." if thinking else None)


def story(r, thinking=False):
    hero = r.choice(w.ANIMAL)
    if r.random() < 0.75:
        q = r.choice(("Tell me a story about a {}.", "tell me a story about a {}", "Write a short story about a {}.", "Tell a story about a {}.",
                      "A story about a {}, please.", "Can you tell me a story about a {}?")).format(hero)
    else:
        hero = "fox"
        q = r.choice(("Tell me a story.", "tell me a story", "Write a short story.", "Tell me something.", "Tell a story.", "A story, please."))
    return pair("story", q, w.story(r, hero), f"I tell a little story about a {hero}." if thinking else None)


def order(r, thinking=False):
    """Sorting and its relatives. The separator of the answer is that of the question."""
    k = r.random()
    n = r.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, 8))
    sep = r.choice((" ", " ", " ", ", ", ", "))
    if k < 0.42:
        pool = r.choice((w.FRUIT, w.ANIMAL, w.THING, w.COLOR, w.NAME, w.CITY, w.WORDS, w.WORDS, list("abcdefghijklmnopqrstuvwxyz")))
        xs = r.sample(pool, n)
        ys, low = sorted(xs, key=str.lower), False
        q = r.choice(("sort: {}", "Sort: {}", "Sort these words: {}", "sort these words: {}", "Sort the words: {}", "Sort alphabetically: {}",
                      "Put these words in order: {}", "Sort these words alphabetically: {}", "Sort the list: {}", "Please sort: {}", "Sort {}",
                      "Put in alphabetical order: {}"))
        why = f"In alphabetical order {ys[0]} comes first."
    elif k < 0.72:
        hi = r.choice((10, 100, 100, 1000))
        xs = [str(r.randrange(hi)) for _ in range(n)]
        down = r.random() < 0.15
        ys = sorted(xs, key=int, reverse=down)
        q = (r.choice(("Sort from largest to smallest: {}", "Sort in descending order: {}")) if down else
             r.choice(("sort: {}", "Sort: {}", "Sort these numbers: {}", "sort these numbers: {}", "Sort the numbers: {}", "Put these numbers in order: {}",
                       "Sort from smallest to largest: {}", "Please sort: {}", "Sort the list: {}", "Sort in ascending order: {}")))
        why = f"The first one is {ys[0]}."
    elif k < 0.80:
        xs = w.some_words(r, n)
        ys = xs[::-1]
        q = r.choice(("reverse: {}", "Reverse: {}", "Reverse the order: {}", "Write these words backwards: {}", "Reverse the list: {}"))
        why = "I go from the last to the first."
    elif k < 0.86:
        xs = w.some_words(r, r.randrange(1, 13))
        ys = [str(len(xs))]
        q = r.choice(("Count the words: {}", "How many words: {}", "How many words are here: {}"))
        why = "I count them one by one."
    elif k < 0.93:
        xs = w.some_words(r, n)
        last = r.random() < 0.5
        ys = [xs[-1 if last else 0]]
        t = "last" if last else "first"
        q = r.choice((f"What is the {t} word: {{}}", f"Give me the {t} word: {{}}", f"The {t} word of: {{}}"))
        why = f"The {t} word is {ys[0]}."
    else:
        xs = [str(r.randrange(r.choice((20, 100, 1000)))) for _ in range(n)]
        big = r.random() < 0.6
        ys = [str((max if big else min)(map(int, xs)))]
        t = r.choice(("largest", "biggest") if big else ("smallest",))
        q = r.choice((f"Which number is the {t}: {{}}", f"Find the {t} number: {{}}", f"What is the {t} number: {{}}"))
        why = f"I compare the numbers, the {t} is {ys[0]}."
    return pair("sort" if k < 0.72 else "order", q.format(sep.join(xs)), sep.join(ys), why if thinking else None)


# ---- tools ------------------------------------------------------------------------------------

def P(kind, desc="", enum=None):
    p = {"type": kind}
    if desc:
        p["description"] = desc
    if enum:
        p["enum"] = list(enum)
    return p


def tool(name, desc, props, required):
    return {"type": "function", "function": {"name": name, "description": desc,
            "parameters": {"type": "object", "properties": props, "required": required}}}


_ROOM = "kitchen bedroom garage hall office garden attic bathroom".split()
_UNIT = ("celsius", "fahrenheit")
# name, description, {parameter: (type, description, values)}, optional ones, requests
_CURATED = [
    ("get_weather", "Get the weather of a city.", {"city": "city"}, (), ["What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?",
     "Is it raining in {city}?", "Tell me the weather in {city}.", "What's the weather like in {city}?", "I go to {city}. How is the weather there?"]),
    ("get_weather", "Look up the weather forecast.", {"city": "city", "days": "int"}, ("days",), ["What is the weather in {city} for {days} days?",
     "Weather in {city} for the next {days} days?", "Give me the forecast for {city}, {days} days.", "What is the weather in {city}?", "Weather in {city}?"]),
    ("get_weather", "Get the current weather.", {"city": "city", "unit": ("celsius", "fahrenheit")}, ("unit",), ["What is the weather in {city} in {unit}?",
     "Weather in {city}, in {unit} please.", "How warm is it in {city} in {unit}?", "What is the weather in {city}?", "How warm is it in {city}?"]),
    ("get_temperature", "Read a thermometer.", {"room": _ROOM}, (), ["How warm is it in the {room}?", "What is the temperature in the {room}?", "Temperature in the {room}?"]),
    ("set_light", "Switch a light on or off.", {"room": _ROOM, "on": "onoff"}, (), ["Turn {on} the light in the {room}.", "Switch the {room} light {on}.",
     "Turn the light in the {room} {on}.", "Light {on} in the {room}, please."]),
    ("set_lamp", "Set colour and level of a lamp.", {"color": w.COLOR[:9], "level": "int"}, (), ["Set the lamp to {color} at level {level}.",
     "Make the lamp {color}, level {level}.", "Lamp {color}, level {level}."]),
    ("set_timer", "Start a timer.", {"minutes": "int"}, (), ["Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer, {minutes} minutes.",
     "Wake me in {minutes} minutes.", "Remind me in {minutes} minutes."]),
    ("set_alarm", "Set an alarm.", {"hour": "int", "label": "word"}, ("label",), ["Set an alarm at {hour} called {label}.", "Set an alarm at {hour}.", "Alarm at {hour}, name it {label}."]),
    ("send_message", "Send a message to a person.", {"to": "name", "text": "phrase"}, (), ["Send {to} the message: {text}", "Write to {to}: {text}", "Tell {to}: {text}",
     "Message {to}: {text}"]),
    ("send_email", "Send an email.", {"to": "name", "subject": "word", "urgent": "bool"}, ("urgent",), ["Send an email to {to} about {subject}.", "Email {to} about {subject}, urgent: {urgent}.",
     "Write an email to {to} about {subject}."]),
    ("search", "Search the web.", {"query": "phrase"}, (), ["Search for {query}.", "Search the web for {query}.", "Look up {query} on the web.", "Find pages about {query}.", "Google {query}."]),
    ("search_books", "Search the library.", {"title": "phrase", "limit": "int"}, ("limit",), ["Find books called {title}.", "Search books called {title}, at most {limit}.", "Find {limit} books called {title}."]),
    ("play_music", "Play a song or an artist.", {"artist": "name", "shuffle": "bool"}, ("shuffle",), ["Play music by {artist}.", "Play {artist}.", "Play {artist} with shuffle {shuffle}."]),
    ("calculator", "Compute the result of an expression.", {"expression": "expr"}, (), ["Use the calculator for {expression}.", "Calculate {expression} with the tool.",
     "Use the calculator: {expression}", "What is {expression}? Use the calculator."]),
    ("convert_currency", "Convert money.", {"amount": "num", "source": ("EUR", "USD", "GBP", "JPY", "CHF"), "target": ("EUR", "USD", "GBP", "JPY", "CHF")}, (),
     ["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?", "Change {amount} {source} into {target}."]),
    ("read_file", "Read a file.", {"path": "path"}, (), ["Read the file {path}.", "Open {path}.", "Show me {path}.", "What is in {path}?", "Read {path}"]),
    ("write_file", "Write text to a file.", {"path": "path", "text": "phrase"}, (), ["Write {text} to {path}.", "Write {text} to the file {path}.", "Save {text} in {path}."]),
    ("list_files", "List the files of a folder.", {"folder": "path"}, (), ["List the files in {folder}.", "What files are in {folder}?", "Show the folder {folder}."]),
    ("bash", "Run a command.", {"command": "cmd"}, (), ["Run {command}", "Run the command {command}", "Execute {command}"]),
    ("get_stock_price", "Price of a share.", {"symbol": "symbol"}, (), ["What is the price of {symbol}?", "Stock price of {symbol}?", "How is {symbol} doing?", "Price of {symbol}?"]),
    ("book_table", "Book a table in a restaurant.", {"day": w.DAY, "people": "int"}, (), ["Book a table for {people} on {day}.", "Reserve a table on {day} for {people} people."]),
    ("find_route", "Find the way between two cities.", {"start": "city", "goal": "city"}, (), ["How do I get from {start} to {goal}?", "Find a route from {start} to {goal}.",
     "Route from {start} to {goal}?"]),
    ("translate", "Translate a text.", {"text": "phrase", "language": ("French", "German", "Spanish", "Italian")}, (), ["Translate {text} to {language}.", "Translate {text} into {language}.",
     "How do you say {text} in {language}?"]),
    ("get_time", "Current time in a city.", {"city": "city"}, (), ["What time is it in {city}?", "Time in {city}?", "Tell me the time in {city}."]),
    ("lock_door", "Lock or unlock a door.", {"door": ("front", "back", "garage", "cellar"), "locked": "lock"}, (), ["{locked} the {door} door.", "Please {locked} the {door} door."]),
    ("add_item", "Add an item to a list.", {"item": w.FOOD, "amount": "int"}, ("amount",), ["Add {item} to the list.", "Add {amount} {item} to the list.", "Put {item} on the list."]),
    ("get_user", "Look up a user by number.", {"id": "int"}, (), ["Who is user {id}?", "Get user {id}.", "Look up the user {id}.", "Show user {id}."]),
]


def value(r, kind):
    """(JSON value, how the user says it)"""
    if isinstance(kind, (list, tuple)):
        v = r.choice(kind)
        return v, v
    if kind == "int":
        v = r.choice((r.randrange(10), r.randrange(100), r.randrange(1000)))
        return v, str(v)
    if kind == "num":
        v = r.choice((r.randrange(1000), round(r.randrange(1, 1000) / 10, 1), round(r.randrange(1, 10000) / 100, 2)))
        return v, str(v)
    if kind == "bool":
        v = r.random() < 0.5
        return v, r.choice(("true", "yes", "on") if v else ("false", "no", "off"))
    if kind == "onoff":
        v = r.random() < 0.5
        return v, "on" if v else "off"
    if kind == "lock":
        v = r.random() < 0.5
        return v, "lock" if v else "unlock"
    v = {"city": lambda: r.choice(w.CITY) if r.random() < 0.8 else w.syllables(r, 2).capitalize(),
         "name": lambda: w.person(r), "word": lambda: r.choice(w.WORDS),
         "phrase": lambda: " ".join(w.some_words(r, r.choice((1, 2, 2, 3, 4)))),
         "expr": lambda: f"{number(r)} {r.choice('+-*/')} {number(r)}",
         "path": lambda: r.choice(("", "/", "/home/", "src/", "docs/")) + r.choice(w.WORDS) + r.choice((".txt", ".c", ".md", ".json", "", "/" + r.choice(w.WORDS))),
         "cmd": lambda: r.choice(("ls -la", "make", "make test", "pwd", "git status", "ls", "cat " + r.choice(w.WORDS) + ".txt", "echo " + r.choice(w.WORDS), "grep " + r.choice(w.WORDS) + " *")),
         "symbol": lambda: "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.choice((3, 4)))),
         "code": lambda: w.mixed(r)}[kind]()
    return v, v


_TYPE = {"int": "integer", "num": "number", "bool": "boolean", "onoff": "boolean", "lock": "boolean"}


def _schema(r, kind, name):
    desc = r.choice(("", "The " + name.replace("_", " ") + ".", name.replace("_", " ").capitalize()))
    if isinstance(kind, (list, tuple)):
        return P("string", desc, kind)
    t = _TYPE.get(kind, "string")
    return P("number" if t == "integer" and r.random() < 0.2 else t, desc)


_PNAME = ("name color size level count mode title color key user item target source speed width height label priority path text id amount "
          "language limit format date place unit topic version depth weight age").split()
_VERBS = "get set find open close create delete update check start stop send read write add remove list move paint build fetch show lock order".split()


def invented(r):
    """A tool nobody has seen: name, description, parameters, and requests that name the values."""
    verb, noun = r.choice(_VERBS), r.choice(w.THING + w.ANIMAL + w.PLACE) if r.random() < 0.7 else w.syllables(r, 2)
    name = r.choice((f"{verb}_{noun}",) * 4 + (f"{verb}{noun.capitalize()}", noun, f"{noun}_{verb}", f"{noun}.{verb}"))
    params = {}
    for p in r.sample(sorted(set(_PNAME)), r.choice((1, 1, 2, 2, 2, 3, 3))):
        if r.random() < 0.12:
            p = w.syllables(r, 2)
        params[p] = r.choice(("int", "int", "num", "bool", "bool", "word", "name", "city", "phrase", "code",
                              r.sample(w.WORDS, r.choice((2, 3, 4))), r.sample(w.COLOR, 3)))
    desc = r.choice((f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun}.", f"Lets you {verb} the {noun}."))
    optional = tuple(p for p in params if len(params) > 1 and r.random() < 0.2)
    parts = list(params)
    say = []
    for head in (f"{verb.capitalize()} the {noun}", f"Please {verb} the {noun}", f"Call {name}", f"Use {name}", f"Use the tool {name}", f"{verb.capitalize()} a {noun}",
                 f"Can you {verb} the {noun}"):
        for link, join, eq in ((" with ", " and ", " "), (" with ", ", ", " "), (", ", ", ", " "), (" with ", ", ", "="), (": ", ", ", "="), (" with ", " and ", " set to "), (": ", ", ", " = ")):
            say.append(head + link + join.join(f"{p.replace('_', ' ') if '=' not in eq else p}{eq}{{{p}}}" for p in parts))
    return name, desc, params, optional, say


def _sentence(r, spec):
    """(tool, request, arguments) for a tool specification."""
    name, desc, params, optional, says = spec
    said = r.choice(says)
    if optional and len(params) > 1 and says[0].count("{") == len(params) and says is spec[4] and r.random() < 0.3 and name not in _NAMES:
        keep = [p for p in params if p not in optional] or list(params)
        said = f"{r.choice(('Use', 'Call'))} {name} with " + ", ".join(f"{p} {{{p}}}" for p in keep)
    vals = {p: value(r, k) for p, k in params.items()}
    args = {p: vals[p][0] for p in params if "{" + p + "}" in said}
    q = said.format(**{p: v[1] for p, v in vals.items()})
    q = q[0].upper() + q[1:]
    t = tool(name, desc, {p: _schema(r, k, p) for p, k in params.items()}, [p for p in params if p not in optional])
    return t, q, args


_NAMES = {c[0] for c in _CURATED}


def result(r):
    """What a tool may answer, and how the model reports it."""
    k = r.random()
    if k < 0.25:
        v = r.choice(("sunny", "rain", "cloudy", "snow", "windy", "clear")) + r.choice((", ", " and ", " at ")) + f"{r.randrange(-9, 40)}" + r.choice((" C", " F", " degrees", ""))
    elif k < 0.40:
        v = r.choice(("ok", "done", "true", "false", "saved", "sent", "started", "success", "42", "not found", "locked"))
    elif k < 0.55:
        v = str(r.choice((r.randrange(100), r.randrange(10000), round(r.randrange(100000) / 100, 2))))
    elif k < 0.68:
        d = {r.choice(("temp", "t", "price", "count", "status", "value", "name")): r.choice((r.randrange(1000), r.choice(w.WORDS))) for _ in range(r.choice((1, 1, 2)))}
        v = json.dumps(d, separators=r.choice(((",", ":"), (", ", ": "))))
    elif k < 0.8:
        v = w.sentence(r)
    elif k < 0.9:
        v = " ".join(w.some_words(r, r.choice((1, 2, 3, 5))))
    else:
        v = "error: " + " ".join(w.some_words(r, 2))
    return v


def report(v):
    return f"The result is: {v}"


def tools(r, thinking=False, turns=None, distract=None):
    """A request for one of the declared tools, its result, and the answer; sometimes two calls at once."""
    spec = r.choice(_CURATED) if r.random() < 0.55 else invented(r)
    t, q, args = _sentence(r, spec)
    decl, seen = [t], {t["function"]["name"]}
    for _ in range(distract if distract is not None else r.choice((0, 0, 1, 1, 2, 3, 4))):
        o = _sentence(r, r.choice(_CURATED) if r.random() < 0.55 else invented(r))[0]
        if o["function"]["name"] not in seen:
            seen.add(o["function"]["name"])
            decl.append(o)
    r.shuffle(decl)
    name = t["function"]["name"]
    if r.random() < 0.12:
        q = q[0].lower() + q[1:]
    calls, results = [args], [result(r)]
    if r.random() < 0.08 and len(spec[2]) == 1 and spec[0] in _NAMES:
        (p, kind), = spec[2].items()
        v, s = value(r, kind)
        if v != args[p] and not isinstance(v, bool):
            said = r.choice(spec[4]).format(**{p: f"{args[p]} and {s}"})
            q, calls, results = said, [args, {p: v}], [results[0], result(r)]
    msg = {"role": "assistant", "tool_calls": [{"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": a}} for i, a in enumerate(calls)]}
    messages = [{"role": "user", "content": q}, msg]
    messages += [{"role": "tool", "tool_call_id": f"c{i}", "name": name, "content": v} for i, v in enumerate(results)]
    end = {"role": "assistant", "content": report("; ".join(results))}
    if thinking:
        msg["reasoning"] = f"The tool {name} can do this."
        end["reasoning"] = f"The tool {name} has answered."
    messages.append(end)
    return {"skill": "tools", "messages": messages, "tools": decl, "thinking": thinking, "value": end["content"]}


def some_tools(r):
    return [_sentence(r, r.choice(_CURATED) if r.random() < 0.5 else invented(r))[0] for _ in range(r.choice((1, 1, 2, 3)))]
