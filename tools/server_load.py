"""Tokens per second and latency of `carat serve` with 1, 4 and 16 clients. Needs only Python.

    ./carat synth 26b-a4b m.gguf --vocab models/demo.gguf --full-vocab
    ./carat serve -m m.gguf --parallel 16 --ctx 4096 --checkpoint-mb 0 --log off &
    python3 tools/server_load.py http://127.0.0.1:8080 [--clients 1,4,16] [--prompt 512]
                                 [--tokens 256] [--seconds 15]

Prompts are random token ids, so nothing is in a cache; answers have --tokens tokens.

    together   all clients ask at once. Tokens/s of all of them, from the last client's first token to
               the first client's last token: in this time all are answered and no prompt is computed
               (best and median of three rounds). Also the time to each client's first token, which
               includes the others' prompts
    load       for --seconds each client asks again as soon as it has its answer, and clients start at
               different times. Tokens/s of answers beside prompts, the time to the first token (TTFT)
               and between tokens, at the median and the 99th percentile

Prints a table, and the ratio of each rate to that of one client.
"""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse


def get(path):
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)
    c.request("GET", path)
    return json.loads(c.getresponse().read())


def ask(rng, until=None):
    """Times of the request and of each token. A stream has an event per token."""
    body = {"prompt": [rng.randrange(300, 2000) for _ in range(o.prompt)], "max_tokens": o.tokens,
            "temperature": o.temperature, "ignore_eos": True, "stream": True, "seed": 1}
    c = http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)
    start, came = time.perf_counter(), []
    c.request("POST", "/v1/completions", json.dumps(body))
    r = c.getresponse()
    if r.status != 200:
        raise SystemExit(f"{r.status}: {r.read().decode()[:500]}")
    for line in r:
        if line.startswith(b"data: {"):
            came.append(time.perf_counter())
            if b'"error"' in line:
                raise SystemExit(line.decode())
        if until and time.perf_counter() > until:
            break
    c.close()
    return start, came[:-1] if not until else came  # the last event says why it ended


def in_threads(n, work):
    out, threads = [None] * n, []
    for i in range(n):
        threads.append(threading.Thread(target=lambda i=i: out.__setitem__(i, work(i))))
        threads[-1].start()
    for t in threads:
        t.join()
    assert all(x is not None for x in out), "a client failed"
    return out


def together(n, round_no):
    runs = in_threads(n, lambda i: ask(random.Random(1000 * round_no + i)))
    begin, end = max(came[0] for _, came in runs), min(came[-1] for _, came in runs)
    inside = sum(sum(begin < t <= end for t in came) for _, came in runs)
    return inside / (end - begin) if end > begin else 0, [came[0] - start for start, came in runs]


def load(n):
    begin = time.perf_counter() + 0.2
    until = begin + o.seconds

    def client(i):
        rng, runs = random.Random(77 + i), []
        time.sleep(0.2 + i / n * o.tokens / 100)
        while time.perf_counter() < until:
            runs.append(ask(rng, until))
        return runs

    runs = [r for one in in_threads(n, client) for r in one]
    third = begin + o.seconds / 3  # by then all of them are at it
    rate = sum(sum(third < t <= until for t in came) for _, came in runs) / (until - third)
    first = [came[0] - start for start, came in runs if came and start > third]
    gaps = [b - a for _, came in runs for a, b in zip(came, came[1:]) if a > third]
    return rate, first, gaps


def at(values, share):
    v = sorted(values)
    return v[min(len(v) - 1, int(share * len(v)))] * 1e3 if v else float("nan")


def main():
    ask(random.Random(0))  # warm
    slots = len(get("/slots"))
    print(f"{get('/v1/models')['data'][0]['id']}: {slots} slots; prompts of {o.prompt}, answers of {o.tokens} "
          f"tokens, temperature {o.temperature:g}; ms")
    print("clients | together tok/s (median) ratio | TTFT p50   p99 | load tok/s ratio |  TTFT p50    p99    n |"
          " token p50   p99")
    one = None
    for n in map(int, o.clients.split(",")):
        rounds = [together(n, k) for k in range(3)]
        rates, firsts = [r for r, _ in rounds], [t for _, f in rounds for t in f]
        rate, first, gaps = load(n)
        one = one or (max(rates), rate)
        print(f"{n:7} | {max(rates):14.1f} {statistics.median(rates):9.1f} {max(rates) / one[0]:5.2f} |"
              f" {at(firsts, .5):8.0f} {at(firsts, .99):5.0f} | {rate:10.1f} {rate / one[1]:5.2f} |"
              f" {at(first, .5):9.0f} {at(first, .99):6.0f} {len(first):4} | {at(gaps, .5):9.2f} {at(gaps, .99):5.2f}",
              flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    p.add_argument("--clients", default="1,4,16")
    p.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    p.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    p.add_argument("--seconds", type=float, default=15, help="of load for each number of clients")
    p.add_argument("--temperature", type=float, default=0)
    o = p.parse_args()
    URL = urllib.parse.urlparse(o.url)

    main()
