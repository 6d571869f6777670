# SPDX-License-Identifier: Apache-2.0
"""Runs `isotach bench store` and pytorch_save.py (both ways) one after another and prints one table.

Each compares its own saving steps with its own steps that save nothing, in turns, so that the table's ratios do not
depend on who computes faster. Ours logs every step on top of the snapshots: a crash loses nothing; theirs goes back to
the last whole save, half an interval on average.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from compare import HERE, TUNED, Failed, plain_environment, run_process, say


def p99(values):
    return sorted(values)[(len(values) * 99 + 99) // 100 - 1]


def ours(options):
    command = [os.environ["ISOTACH"], "bench", "store", "--model", options.model, "--batch", str(options.batch), "--seq",
               str(options.sequence), "--threads", str(options.threads), "--interval", str(options.interval), "--steps",
               str(options.steps), "--pairs", str(options.pairs), "--folder", options.folder, "--json"]
    result = json.loads(run_process(command, plain_environment(), options.limit)[0])
    full = 12 * result["parameters"]
    return {"name": "isotach: log every step and snapshots", "ratio": result["time_ratio"], "spread": result["spread"],
            "p99": result["p99_ratio"], "still": None, "bytes": full, "lost": 0, "back": result["recovery_s"]}


def pytorch(options, mode):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [os.path.join(os.environ["PEERS_VENV"], "bin", "python"), os.path.join(HERE, "pytorch_save.py"),
                   options.model, *map(str, (options.batch, options.sequence, options.threads, options.interval,
                                             options.steps, options.pairs)), mode, folder]
        text, _, _ = run_process(command, plain_environment() | TUNED, options.limit)
    result = json.loads(text.splitlines()[-1])
    means = {kind: [statistics.mean(walls) for walls in result[kind]] for kind in ("saving", "nothing")}
    flat = {kind: [wall for walls in result[kind] for wall in walls] for kind in ("saving", "nothing")}
    name = {"save": "torch.save", "async": "torch.distributed async_save"}[mode]
    return {"name": f"PyTorch {result['version']}: {name}",
            "ratio": statistics.median(a / b for a, b in zip(means["saving"], means["nothing"])),
            "spread": max(means["nothing"]) / min(means["nothing"]) - 1, "p99": p99(flat["saving"]) / p99(flat["nothing"]),
            "still": statistics.median(result["stood_still_s"]), "bytes": result["bytes"], "lost": options.interval / 2,
            "back": result["load_s"]}


def show(row):
    still = "" if row["still"] is None else f"{row['still']:.2f}"
    print(f"{row['name']:<48} {row['ratio']:>8.4f} {row['spread']:>8.4f} {row['p99']:>8.3f} {still:>12} "
          f"{row['bytes'] / 1e9:>8.2f} {row['lost']:>12g} {row['back']:>9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="checkpoint")
    parser.add_argument("--model", default="gpt2-124m", help="gpt2-124m or llama-110m")
    parser.add_argument("--shape", default="4x256", help="sequences x tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--interval", type=int, default=20, help="steps between saves")
    parser.add_argument("--steps", type=int, default=20, help="steps of a stretch")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", default=".", help="on the storage in question")
    parser.add_argument("--limit", type=float, default=7200, help="seconds for one contender")
    options = parser.parse_args()
    options.batch, options.sequence = map(int, options.shape.split("x"))
    print(f"{options.model}, {options.shape} tokens a step, {options.threads} threads, a save every {options.interval} steps")
    print(f"{'':<48} {'time':>8} {'spread':>8} {'P99':>8} {'stands still':>12} {'GB':>8} {'steps lost':>12} {'back, s':>9}")
    failed = False
    for contender in (lambda: ours(options), lambda: pytorch(options, "save"), lambda: pytorch(options, "async")):
        try:
            show(contender())
        except (Failed, subprocess.SubprocessError, OSError) as error:
            say(f"failed: {error}")
            failed = True
    print("time, P99: saving steps over those of the same process that save nothing (median of pairs; all steps)\n"
          "stands still: of training, at each save, s; steps lost: by a crash, on average; back: ours from the launch to\n"
          "the first new step with its replay, theirs the load alone")
    sys.exit(1 if failed else 0)


main()
