"""Tokens per second and latency of `carat serve` with 1, 4 and 16 clients. Needs only Python.

    ./carat synth 26b-a4b m.gguf --vocab models/demo.gguf --full-vocab
    ./carat serve -m m.gguf --parallel 16 --ctx 4096 --checkpoint-mb 0 --log off &
    python3 tools/server_load.py http://127.0.0.1:8080 [--clients 1,4,16] [--prompt 512]
                                 [--tokens 256] [--rounds 3] [--seconds 15] [--csv]

Prompts are random token ids, so nothing is in a cache; answers have --tokens tokens.

    together   all clients ask at once. Tokens/s of all of them, from the last client's first token to
               the first client's last token: in this time all are answered and no prompt is computed
               (best and median of --rounds; 0: left out). Also the time to each client's first token, which
               includes the others' prompts
    load       for --seconds each client asks again as soon as it has its answer, and clients start at
               different times. Tokens/s of answers beside prompts, the time to the first token (TTFT)
               and between tokens, at the median and the 99th percentile. The first third of the time is
               left out; "-": no request that came after it had its first token in time

Prints a table, and the ratio of each rate to that of one client; with --csv lines without ratios, and with the
server's time between two passes of `together`, in us, from /metrics.
`together` is to be compared with `carat bench -p 0 -n TOKENS -d PROMPT -s CLIENTS`: both then have the
same keys before their tokens. One thread has all clients, and takes some 5 us of a token: with a thread
each they waited for each other, and 64 of them were the slower end.
"""
import argparse
import json
import random
import selectors
import socket
import statistics
import time
import urllib.parse
import urllib.request


def get(path):
    with urllib.request.urlopen(f"http://{URL.hostname}:{URL.port}{path}", timeout=120) as r:
        return json.loads(r.read())


def between():
    """Time of the server between passes so far, in seconds, and how many passes."""
    with urllib.request.urlopen(f"http://{URL.hostname}:{URL.port}/metrics", timeout=120) as r:
        lines = [line.split() for line in r.read().decode().splitlines() if not line.startswith("#")]
    sums = {}
    for line in lines:
        name = line[0].split("{")[0]
        sums[name] = sums.get(name, 0) + float(line[-1])
    return (sums["carat_busy_seconds_total"] - sums["carat_pass_seconds_total"], sums["carat_passes_total"])


class Ask:
    """A request that streams, and when its tokens came. A stream has an event per token."""

    MARK = b"\ndata: {"

    def __init__(self, selector, rng):
        body = json.dumps({"prompt": [rng.randrange(300, 2000) for _ in range(o.prompt)],
                           "max_tokens": o.tokens, "temperature": o.temperature, "ignore_eos": True,
                           "stream": True, "seed": 1}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: {URL.hostname}:{URL.port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n")
        self.selector, self.came, self.over, self.first, self.tail = selector, [], False, b"", b""
        self.start = time.perf_counter()
        self.socket = socket.create_connection((URL.hostname, URL.port), timeout=120)
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)
        selector.register(self.socket, selectors.EVENT_READ, self)

    def read(self):
        new, now = self.socket.recv(1 << 16), time.perf_counter()
        if len(self.first) < 12:
            self.first += new[:2000]
            if len(self.first) >= 12 and self.first[9:12] != b"200":
                raise SystemExit(self.first.decode(errors="replace"))
        if b'{"error":' in new:  # in a token's text its quotes are escaped
            raise SystemExit(new.decode(errors="replace"))
        self.tail += new
        self.came += [now] * self.tail.count(self.MARK)
        self.tail = self.tail[1 - len(self.MARK):]
        if not new:
            self.came = self.came[:-1]  # the last event says why it ended
            self.close()

    def close(self):
        if not self.over:
            self.selector.unregister(self.socket)
            self.socket.close()
        self.over = True


def drive(starts, rng_of, until=None):
    """Client i asks at starts[i]; with `until` again and again, until then. Gives all that was asked."""
    asked, at_work = [], {}
    with selectors.DefaultSelector() as selector:
        while at_work or starts:
            now = time.perf_counter()
            if until and now > until:
                break
            for i in [i for i, t in starts.items() if t <= now]:
                del starts[i]
                at_work[i] = Ask(selector, rng_of(i))
                asked.append(at_work[i])
            wait = min([t - now for t in starts.values()] + [until - now if until else 120])
            for key, _ in selector.select(max(wait, 0)):
                key.data.read()
            for i in [i for i, a in at_work.items() if a.over]:
                del at_work[i]
                if until:
                    starts[i] = 0
        for a in at_work.values():
            a.close()
    return asked


def together(n, round_no):
    runs = drive(dict.fromkeys(range(n), 0), lambda i: random.Random(1000 * round_no + i))
    begin, end = max(a.came[0] for a in runs), min(a.came[-1] for a in runs)
    inside = sum(sum(begin < t <= end for t in a.came) for a in runs)
    return inside / (end - begin) if end > begin else 0, [a.came[0] - a.start for a in runs]


def load(n):
    begin = time.perf_counter() + 0.2
    until, rngs = begin + o.seconds, [random.Random(77 + i) for i in range(n)]
    runs = drive({i: begin + i / n * o.tokens / 100 for i in range(n)}, rngs.__getitem__, until)
    third = begin + o.seconds / 3  # by then all of them are at it
    rate = sum(sum(third < t <= until for t in a.came) for a in runs) / (until - third)
    first = [a.came[0] - a.start for a in runs if a.came and a.start > third]
    gaps = [b - a for r in runs for a, b in zip(r.came, r.came[1:]) if a > third]
    return rate, first, gaps


def at(values, share, digits):
    """In ms, with so many digits; "-": there are none."""
    v = sorted(values)
    return f"{v[min(len(v) - 1, int(share * len(v)))] * 1e3:.{digits}f}" if v else "-"


def main():
    drive({0: 0}, random.Random)  # warm
    slots = len(get("/slots"))
    if o.csv:
        print("clients,together,together_median,ttft_p50,ttft_p99,load,load_ttft_p50,load_ttft_p99,n,gap_p50,gap_p99,"
              "between_us")
    else:
        print(f"{get('/v1/models')['data'][0]['id']}: {slots} slots; prompts of {o.prompt}, answers of {o.tokens} "
              f"tokens, temperature {o.temperature:g}; ms")
        print("clients | together tok/s (median) ratio | TTFT p50   p99 | load tok/s ratio |  TTFT p50    p99    n |"
              " token p50   p99")
    one = None
    for n in map(int, o.clients.split(",")):
        before = between()
        rounds = [together(n, k) for k in range(o.rounds)]
        rest = [b - a for a, b in zip(before, between())]
        rates, firsts = [r for r, _ in rounds], [t for _, f in rounds for t in f]
        best, median = (f"{max(rates):.1f}", f"{statistics.median(rates):.1f}") if rates else ("-", "-")
        rate, first, gaps = load(n)
        if o.csv:
            print(f"{n},{best},{median},{at(firsts, .5, 1)},{at(firsts, .99, 1)},"
                  f"{rate:.1f},{at(first, .5, 1)},{at(first, .99, 1)},{len(first)},{at(gaps, .5, 2)},"
                  f"{at(gaps, .99, 2)},{f'{rest[0] / rest[1] * 1e6:.0f}' if rest[1] else '-'}", flush=True)
            continue
        one = one or (max(rates, default=0), rate)
        ratio = f"{max(rates) / one[0]:.2f}" if rates else "-"
        print(f"{n:7} | {best:>14} {median:>9} {ratio:>5} |"
              f" {at(firsts, .5, 0):>8} {at(firsts, .99, 0):>5} | {rate:10.1f} {rate / one[1]:5.2f} |"
              f" {at(first, .5, 0):>9} {at(first, .99, 0):>6} {len(first):4} | {at(gaps, .5, 2):>9} {at(gaps, .99, 2):>5}",
              flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    p.add_argument("--clients", default="1,4,16")
    p.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    p.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    p.add_argument("--rounds", type=int, default=3, help="of answers together, for each number of clients")
    p.add_argument("--seconds", type=float, default=15, help="of load for each number of clients")
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--csv", action="store_true", help="a line of numbers for each number of clients")
    o = p.parse_args()
    URL = urllib.parse.urlparse(o.url)

    main()
