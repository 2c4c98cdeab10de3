"""What prompt compression keeps: recall through `carat serve --compress`, and the time to the first token.

    python3 tools/demo/compress_eval.py [--carat ./carat] [--tokens 4000,16000] [--keep off,0.3,0.1]
                                        [--texts 4] [--asks 6] [--seed 31] [--show] [--serve=--OPTION]

A text is a message, and each question about it another one after it: texts, facts and answers are those of
recall.py. Greedy; a case counts if the whole answer is right. Prints for each length and share: right answers,
tokens of the prompts before and after, and the median milliseconds of scoring and of the prompt.
"""
import argparse
import json
import random
import statistics

import recall


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--carat", default="./carat")
    p.add_argument("--tokens", default="4000,16000")
    p.add_argument("--keep", default="off,0.5,0.3,0.2,0.1,0.05")
    p.add_argument("--texts", type=int, default=4)
    p.add_argument("--asks", type=int, default=6)
    p.add_argument("--seed", type=int, default=31)
    p.add_argument("--ctx", type=int, default=32768)
    p.add_argument("--serve", action="append", default=[], help="an argument for `carat serve`")
    p.add_argument("--show", action="store_true", help="print the wrong answers")
    a = p.parse_args()
    a.serve += ["--checkpoint-mb", "0"]
    server = recall.Server(a, "f16")
    for tokens in map(int, a.tokens.split(",")):
        texts = [recall.text_of_length(server, f"recall {tokens} {a.seed} {i}", tokens, a.asks) for i in range(a.texts)]
        for keep in a.keep.split(","):
            right, before, after, score, prompt = 0, 0, 0, [], []
            for frame, asks in texts:
                text = frame.replace("{q}", "").replace("```", "").strip()  # a fenced text is code, and stays whole
                for q, expect in asks:
                    r = server.ask("/v1/chat/completions", {
                        "messages": [{"role": "user", "content": text}, {"role": "user", "content": q}],
                        "compress": keep if keep in ("off", "auto") else float(keep), "temperature": 0, "max_tokens": 120})
                    got, u = r["choices"][0]["message"]["content"], r["usage"]
                    if keep != "off" and not u["compression"]["texts"]:
                        print(f"    not shortened: {u['compression'].get('why')}")
                    c = u.get("compression", {"original_tokens": u["prompt_tokens"], "kept_tokens": u["prompt_tokens"], "ms": 0})
                    right += got == expect
                    before, after = before + c["original_tokens"], after + c["kept_tokens"]
                    score.append(c["ms"])
                    prompt.append(r["timings"]["prompt_ms"])
                    if a.show and got != expect:
                        print(f"    {q!r}\n    expected {expect!r}\n    got      {got!r}")
            n = len(score)
            print(f"{tokens:6} {keep:5}  {right:3}/{n:3}  {before // n:6} -> {after // n:6} tokens   "
                  f"scored in {statistics.median(score):7.0f} ms, prompt in {statistics.median(prompt):7.0f} ms", flush=True)
    server.close()


if __name__ == "__main__":
    main()
