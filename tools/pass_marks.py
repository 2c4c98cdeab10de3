#!/usr/bin/env python3
"""What each kernel of a pass on a GPU costs, from the marks of a build with MARKS=1 (marks.cuh).

    make MARKS=1 BUILD=build/marks ARCH=90 cuda
    CARAT_MARKS=/tmp/marks build/marks/cuda/carat bench -m MODEL -p 0 -n 64 -r 1
    tools/pass_marks.py /tmp/marks [--sequence]

A row for each kernel and the one after it, those that cost most in all first:
    phase   us from the return of its wait to that of the next kernel's
    lead    us that its first block has waited: 0 or less, and it began late
    blocks  marks of one launch (a mark overwrites another of the same 64 ns and multiprocessor)
    late    blocks of them whose wait ended 0.3 us or more after the first one's: there was no room before
--sequence also prints forty launches in their order.
"""
import collections
import sys


def main():
    paths = [a for a in sys.argv[1:] if not a.startswith("-")]
    if len(paths) != 1 or set(sys.argv[1:]) - {paths[0], "--sequence"}:
        sys.exit(__doc__)
    marks = []
    try:
        for line in open(paths[0], encoding="ascii"):
            t0, t1, name, shape, _ = line.split()
            marks.append((int(t1), int(t0), f"{name} {shape}"))
    except OSError as e:
        sys.exit(f"pass_marks: {paths[0]}: {e.strerror}")
    except ValueError:
        sys.exit(f"pass_marks: {paths[0]}: no file of CARAT_MARKS: line {len(marks) + 1} is no mark")
    marks.sort()
    launches = []  # name, first return, first arrival, marks, late
    for t1, t0, name in marks:
        if launches and launches[-1][0] == name:
            last = launches[-1]
            last[2] = min(last[2], t0)
            last[3] += 1
            last[4] += t1 > last[1] + 300
        else:
            launches.append([name, t1, t0, 1, 0])
    if len(launches) < 3:
        sys.exit(f"pass_marks: {paths[0]}: {len(launches)} launches, and a row needs three")
    rows = collections.defaultdict(list)
    for now, after in zip(launches[1:], launches[2:]):
        rows[now[0], after[0]].append(((after[1] - now[1]) / 1e3, (now[1] - now[2]) / 1e3, now[3], now[4]))
    print(f"{'kernel':34} {'next':34} {'times':>5} {'phase':>7} {'lead':>7} {'blocks':>6} {'late':>5}")
    for (name, after), all_of in sorted(rows.items(), key=lambda r: -sum(x[0] for x in r[1])):
        mean = [sum(x[i] for x in all_of) / len(all_of) for i in range(4)]
        print(f"{name:34} {after:34} {len(all_of):5} {mean[0]:7.2f} {mean[1]:7.2f} {mean[2]:6.0f} {mean[3]:5.0f}")
    if "--sequence" in sys.argv:
        start = len(launches) // 2
        for name, t1, t0, n, late in launches[start : start + 40]:
            print(f"{(t1 - launches[start][1]) / 1e3:9.2f} {name:34} lead {(t1 - t0) / 1e3:6.2f}, {n} blocks, {late} late")


main()
