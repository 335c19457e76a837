#!/usr/bin/env python3
"""Speed against llama.cpp on the same model file: interleaved runs, medians, ratios.

usage: compare_llama_cpp.py MODEL_BENCH LLAMA_BENCH MODEL.gguf [--rounds N] [--threads N] [--depth N]

MODEL_BENCH is build/release/bench/model_bench, LLAMA_BENCH a llama-bench binary. Both run one after
the other in every round, so that both see the same noise of the machine.
"""
import argparse
import json
import statistics
import subprocess


def ours(args, what, tokens):
    out = subprocess.run(
        [args.model_bench, "--model", args.model, "--threads", str(args.threads), "--what", what, "--tokens", str(tokens)],
        check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])["tokens_per_s"]


def theirs(args, prompt, generate, depth):
    out = subprocess.run(
        [args.llama_bench, "-m", args.model, "-t", str(args.threads), "-p", str(prompt), "-n", str(generate), "-d", str(depth),
         "-r", "1", "-o", "json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)[-1]["avg_ts"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model_bench")
    parser.add_argument("llama_bench")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=4096)
    args = parser.parse_args()
    cases = [
        ("prefill 512", lambda: ours(args, "prefill", 512), lambda: theirs(args, 512, 0, 0)),
        ("decode", lambda: ours(args, "decode", 1), lambda: theirs(args, 0, 32, 0)),
        (f"decode at {args.depth}", lambda: ours(args, "decode", args.depth), lambda: theirs(args, 0, 32, args.depth)),
    ]
    for name, run_ours, run_theirs in cases:
        a, b = [], []
        for _ in range(args.rounds):
            a.append(run_ours())
            b.append(run_theirs())
        ratio = statistics.median(x / y for x, y in zip(a, b))
        print(f"{name:16} pagezip {statistics.median(a):8.1f}  llama.cpp {statistics.median(b):8.1f} tokens/s  ratio {ratio:5.2f}"
              f"  (ours {min(a):.0f}..{max(a):.0f}, theirs {min(b):.0f}..{max(b):.0f})", flush=True)


if __name__ == "__main__":
    main()
