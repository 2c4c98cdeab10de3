"""64 clients against `carat serve` for a while: chats, edits, long prompts, bad bodies, clients that
leave in the middle. Needs nothing but Python.

    ./carat serve -p 8080 --parallel 8 --queue 256 &
    python3 tools/server_soak.py http://127.0.0.1:8080 [SECONDS] [CLIENTS] [MODEL,MODEL ...]

Every greedy answer is compared with the answer that the same conversation got alone, before the load.
Afterwards no slot may be busy and no request may wait. The script prints, at each tenth of the time, the resident
memory and the part of it that is checkpoints (`carat serve --checkpoint-mb` bounds them), and exits with 1 if
anything was wrong.
"""
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
import urllib.request

QUESTIONS = ["What is carat?", "How do I measure the speed?", "What is 12 + 30?", "Who are you?",
             "Write a poem.", "What is the weather in Oslo?", "Name a colour."]
FILLER = "The quick brown fox jumps over the lazy dog. "


def wrong(text):
    with lock:
        errors.append(text)


def count(kind):
    with lock:
        counts[kind] = counts.get(kind, 0) + 1


def connect():
    return http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)


def post(path, body):
    c = connect()
    c.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body))
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, text


def metrics():
    c = connect()
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    c.close()
    sums = {}  # of all models
    for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#"):
        sums[name.split("{")[0]] = sums.get(name.split("{")[0], 0) + float(value)
    return sums


def conversations():
    for q in QUESTIONS:
        yield [{"role": "user", "content": q}]
        yield [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"},
               {"role": "user", "content": q}]
    for n in (5, 40, 90):
        yield [{"role": "user", "content": FILLER * n + QUESTIONS[0]}]


def body_of(asked, stream):
    model, messages = asked
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 48, "stream": stream}


def whole(asked):
    while True:
        status, text = post("/v1/chat/completions", body_of(asked, False))
        if status == 429:
            count("429")
            time.sleep(0.2)
            continue
        return json.loads(text)["choices"][0]["message"]["content"] if status == 200 else (status, text)


def streamed(asked, leave_after):
    """The text; None if this client left."""
    c = connect()
    c.request("POST", "/v1/chat/completions", json.dumps(body_of(asked, True)))
    r = c.getresponse()
    if r.status == 429:
        r.read()
        c.close()
        return "again"
    said, n = "", 0
    for line in r:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        v = json.loads(line[6:])
        if "error" in v:
            c.close()
            return v
        said += v["choices"][0]["delta"].get("content") or ""
        n += 1
        if n == leave_after:
            c.close()
            r.close()
            return None
    c.close()
    return said


def client(seed, until, expected):
    rng = random.Random(seed)
    while time.time() < until:
        try:
            kind = rng.random()
            asked, want = rng.choice(expected)
            if kind < 0.1:
                status, text = post("/v1/chat/completions", rng.choice(BAD))
                count("bad bodies")
                if status != 400 or not json.loads(text)["error"]["message"]:
                    wrong(f"a bad body got {status}: {text[:200]!r}")
            elif kind < 0.15:
                c = connect()  # promises more than it sends
                c.putrequest("POST", "/v1/messages")
                c.putheader("Content-Length", "1000")
                c.endheaders(b"{")
                c.close()
                count("half bodies")
            elif kind < 0.4:
                streamed(asked, rng.randrange(1, 20))
                count("left early")
            elif kind < 0.7:
                said = streamed(asked, 0)
                count("streams")
                if said not in ("again", want):
                    wrong(f"a stream said {said!r}, not {want!r}")
            else:
                said = whole(asked)
                count("whole answers")
                if said != want:
                    wrong(f"an answer was {said!r}, not {want!r}")
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            wrong(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    URL = urllib.parse.urlparse(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
    SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    MODELS = sys.argv[4].split(",") if len(sys.argv) > 4 else ["any"]
    errors, counts, lock = [], {}, threading.Lock()

    BAD = [b"", b"{", b"[]", b"\xff\xfe", b'{"messages":1}', b'{"messages":[{"role":"x"}]}', b"[" * 5000,
           json.dumps({"messages": [{"role": "user", "content": "word " * 200000}]}).encode(),
           b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",'
           b'"json_schema":{"schema":{"$ref":"#/nowhere"}}}}',
           b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}']

    expected = [((model, m), whole((model, m))) for model in MODELS for m in conversations()]
    for asked, want in expected:
        assert isinstance(want, str), f"{asked[0]}: {want}"
    start = time.time()
    threads = [threading.Thread(target=client, args=(i, start + SECONDS, expected)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    resident, kept = [], []
    for i in range(1, 11):
        time.sleep(max(0, start + SECONDS * i / 10 - time.time()))
        m = metrics()
        resident.append(m["carat_resident_memory_bytes"] / 2**20)
        kept.append(m["carat_checkpoint_bytes"] / 2**20)
    for t in threads:
        t.join()
    for _ in range(100):
        m = metrics()
        if not (m["carat_slots_busy"] or m["carat_queue_depth"] or m["carat_requests_active"]):
            break
        time.sleep(0.1)
    else:
        wrong(f"still at work: {m}")
    print(", ".join(f"{n} {k}" for k, n in sorted(counts.items())), f"in {time.time() - start:.0f} s")
    print(f"tokens {m['carat_generated_tokens_total']:.0f}, prompt {m['carat_prompt_tokens_total']:.0f} of which "
          f"{m['carat_prefix_hit_tokens_total']:.0f} cached; resident MiB: "
          + " ".join(f"{r:.0f}" for r in resident) + "; checkpoints MiB: " + " ".join(f"{k:.0f}" for k in kept))
    for e in errors[:20]:
        print("WRONG", e)
    print(f"{len(errors)} wrong")
    sys.exit(1 if errors else 0)
