"""Does an answer of `carat serve` depend on who else is served, or on what is reused? Needs nothing
but Python.

    python3 tools/server_answers.py [CARAT [OPTION OF carat serve ...]]     default: ./carat

48 greedy prompts of the bundled model: each alone; each alone again, when its prefix is in a cache;
then with 16 clients at once, in the same order and in another. Prints how many answers differ from
the first ones, and exits with 1 if one does or did not come: none may differ on any device.
"""
import concurrent.futures
import http.client
import json
import random
import re
import subprocess
import sys

CLIENTS, TOKENS = 16, 96
WORDS = "pear apple fig stone river cloud lamp green seven north window paper".split()
PROMPTS = ["Tell me about the sea.", "Who are you?", "What does carat do?", "Say hello.",
           "Write a poem about a cat.", "Write a poem about the rain.", "What is the capital of France?",
           "Which model does carat run?", "Are you a person?", "Tell me about a river.",
           "What is the largest of 3 19 7?", "How many words are in: the cat sat on the mat"]
PROMPTS += [f"What is {17 * i + 5} + {9 * i + 2}?" for i in range(9)]
PROMPTS += [f"What is {83 - 4 * i} - {7 * i + 1}?" for i in range(6)]
PROMPTS += [f"{verb}: {' '.join(WORDS[(5 * i + k * (i + 1)) % len(WORDS)] for k in range(3 + i % 4))}"
            for i in range(7) for verb in ("Sort these words", "Reverse these words", "Copy this")]


def ask(port, prompt):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", "/v1/chat/completions",
              json.dumps({"messages": [{"role": "user", "content": prompt}], "temperature": 0,
                          "max_tokens": TOKENS}), {"Content-Type": "application/json"})
    r = c.getresponse()
    body = json.loads(r.read())
    if r.status != 200:
        raise RuntimeError(f"{r.status}: {body}")
    return body["choices"][0]["message"]


def side_by_side(port, order):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        got = list(pool.map(lambda i: ask(port, PROMPTS[i]), order))
    return [answer for _, answer in sorted(zip(order, got), key=lambda pair: pair[0])]


def main():
    carat = sys.argv[1] if len(sys.argv) > 1 else "./carat"
    server = subprocess.Popen([carat, "serve", "--port", "0", "--parallel", str(CLIENTS), "--log", "off",
                               *sys.argv[2:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        found = re.search(r":(\d+)", server.stdout.readline())  # printed once the model is loaded
        if not found:
            server.kill()
            sys.exit(f"{carat} serve did not start: {server.communicate()[1].strip()}")
        port = int(found[1])
        every = list(range(len(PROMPTS)))
        shuffled = random.Random(5).sample(every, len(every))
        first = [ask(port, p) for p in PROMPTS]
        runs = [("again", [ask(port, p) for p in PROMPTS]),
                (f"among {CLIENTS}", side_by_side(port, every)),
                (f"among {CLIENTS} in another order", side_by_side(port, shuffled))]
        differ = [sum(a != b for a, b in zip(first, got)) for _, got in runs]
        print(f"of {len(PROMPTS)} answers differ from the first: " +
              ", ".join(f"{name} {n}" for (name, _), n in zip(runs, differ)))
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
    sys.exit(1 if any(differ) else 0)


if __name__ == "__main__":
    assert len(PROMPTS) == len(set(PROMPTS)) == 48, len(set(PROMPTS))
    main()
