# SPDX-License-Identifier: Apache-2.0
"""Runs ours and each peer in turn, round by round, and prints a table with ratios.

Rules
 1. Every run is a process of its own; contenders are interleaved, and each round begins with another one, so that a
    machine whose speed drifts treats all alike. What is printed is the median over rounds of each run's median step.
 2. The bfloat16 peak is measured by `isotach bench step` right before and after every peer's run, and between the timed
    steps of ours; MFU is a share of the best of those. One formula of FLOP per token, that of isotach, serves all.
 3. Peak memory is what the kernel says of the finished process (getrusage). The first step's time is from launch to
    the end of step 1: of the first round, with nothing compiled yet, and of the later ones, with warm caches.
 4. "tuned" sets the allocator as below; "as installed" runs with none of it.
 5. A peer that fails is a row that says so, and the exit code is 1.
 6. What other processes (or the hypervisor) took of the machine during a run is measured too: numbers from a machine
    that is not idle show it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000", "MALLOC_TOP_PAD_": "268435456",
         "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MODELS = ["gpt2-124m", "llama-110m"]
SHAPES = ["4x256", "8x1024"]
PROBE = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": True}


class Failed(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


def now_s():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """What others took of the machine's CPU time since it was made, as a fraction."""

    def __init__(self):
        self.began, self.busy = now_s(), self.busy_s()

    @staticmethod
    def busy_s():
        try:
            with open("/proc/stat", encoding="ascii") as file:
                ticks = [int(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting

    def others(self, usage):
        spent = self.busy_s() - self.busy - usage.ru_utime - usage.ru_stime
        return max(0.0, spent / ((now_s() - self.began) * (os.cpu_count() or 1)))


def run_process(command, environment, limit_s):
    """Standard output, what the kernel says of the process, and when it began. Failed when it does not end well."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        watch = Watch()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            lines = [line for line in err.read().splitlines() if line.strip()]
            raise Failed(f"exit code {process.returncode}: {lines[-1] if lines else 'no message'}"[:300])
        return out.read(), {"memory_bytes": usage.ru_maxrss * 1024, "others": watch.others(usage)}, watch.began


def plain_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}


def clock_environment(options):
    return plain_environment() | ({"LD_PRELOAD": options.preload} if options.preload else {})


def build_preload(options):
    options.preload = os.path.join(options.scratch, "cputime.so")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", options.preload,
                    os.path.join(HERE, "cputime.c")], check=True)


class Isotach:
    name, setting, ours = "isotach", "", True

    def __init__(self, options):
        self.options = options
        self.probe = os.path.join(options.scratch, "config.json")
        with open(self.probe, "w", encoding="utf-8") as file:
            json.dump(PROBE, file)

    def bench(self, model, batch, sequence, steps, warmup, dtype="bfloat16"):
        command = [self.options.isotach, "bench", "step", "--model", model, "--dtype", dtype, "--batch", str(batch),
                   "--seq", str(sequence), "--threads", str(self.options.threads), "--steps", str(steps), "--warmup",
                   str(warmup), "--json"]
        text, kernel, _ = run_process(command, clock_environment(self.options), self.options.limit)
        return json.loads(text), kernel

    def peak(self, dtype="bfloat16"):
        return self.bench(self.probe, 1, 16, 20, 0, dtype)[0]["peak_gflops"]

    def run(self, case):
        result, kernel = self.bench(case.model, case.batch, case.sequence, self.options.steps, self.options.warmup)
        rate, peak = result["tokens_per_s"], result["peak_gflops"]
        case.flop_per_token = result["mfu"] * peak * 1e9 / rate
        return kernel | {"tokens_per_s": rate, "peak_gflops": peak, "first_step_s": result["first_step_s"]}


class PyTorch:
    name, ours = "PyTorch", False

    def __init__(self, options, mode, tuned):
        self.options, self.mode, self.tuned = options, mode, tuned
        self.setting = f"{mode}, {'tuned' if tuned else 'as installed'}"

    def run(self, case):
        options = self.options
        environment = plain_environment() | (TUNED if self.tuned else {})
        cache = f"{case.model}-{case.batch}-{case.sequence}-{self.setting}".replace(", ", "-").replace(" ", "-")
        environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(options.scratch, cache)
        command = [os.path.join(options.venv, "bin", "python"), os.path.join(HERE, "pytorch_step.py"), case.model,
                   *map(str, (case.batch, case.sequence, options.threads, options.warmup, options.steps)), self.mode,
                   "cpu" if options.cpu_time else "wall"]
        before = options.ours.peak()
        text, kernel, launched = run_process(command, environment, options.limit)
        result = json.loads(text.splitlines()[-1])
        return kernel | {"tokens_per_s": case.batch * case.sequence / statistics.median(result["times"]),
                         "peak_gflops": max(before, options.ours.peak()),
                         "first_step_s": result["first_step_at"] - launched, "version": result["version"]}


class LlmC:
    """llm.c's CPU program: GPT-2 124M in float32, in the shape that its source states; its peak is the float32 one."""

    name, ours = "llm.c", False

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        with open(os.path.join(folder, "train_gpt2.c"), encoding="utf-8") as file:
            source = file.read()
        found = [re.search(rf"int {letter} = (\d+);", source) for letter in "BT"]
        self.tokens = int(found[0][1]) * int(found[1][1]) if all(found) else 0
        self.setting = f"float32, {found[0][1]}x{found[1][1]}" if self.tokens else "float32"

    def run(self, case):
        if not self.tokens:
            raise Failed("train_gpt2.c states no B and T")
        wanted, seconds = self.options.warmup + self.options.steps, []
        environment = clock_environment(self.options) | {"OMP_NUM_THREADS": str(self.options.threads)}
        before, first = self.options.ours.peak("float32"), 0.0
        watch = Watch()
        process = subprocess.Popen(["stdbuf", "-oL", "./train_gpt2"], cwd=self.folder, env=environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in process.stdout:
            took = re.search(r"step \d+: train loss .*took ([0-9.]+) ms", line)
            if took:
                seconds.append(float(took[1]) / 1e3)
                first = first or now_s() - watch.began
            if len(seconds) == wanted:
                process.terminate()
                break
        process.stdout.close()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode, others = 0, watch.others(usage)
        if len(seconds) < wanted:
            raise Failed(f"./train_gpt2 in {self.folder} took {len(seconds)} of {wanted} steps")
        return {"tokens_per_s": self.tokens / statistics.median(seconds[self.options.warmup:]),
                "peak_gflops": max(before, self.options.ours.peak("float32")), "memory_bytes": usage.ru_maxrss * 1024,
                "first_step_s": first, "others": others}


class Case:
    """One model and shape, with what each contender did in each round."""

    def __init__(self, model, shape, contenders):
        self.model = model
        self.batch, self.sequence = map(int, shape.split("x"))
        self.contenders = [c for c in contenders if not (isinstance(c, LlmC) and model != "gpt2-124m")]
        self.results = [[] for _ in self.contenders]
        self.failures = [None] * len(self.contenders)
        self.flop_per_token = 0.0

    def title(self):
        return f"{self.model}, {self.batch} x {self.sequence} tokens a step"

    def round(self, number):
        count = len(self.contenders)
        for k in range(count):
            i = (k + number) % count
            contender = self.contenders[i]
            if self.failures[i]:
                continue
            label = f"{contender.name} {contender.setting}".strip()
            try:
                result = contender.run(self)
                self.results[i].append(result)
                say(f"{self.title()}, round {number + 1}, {label}: {result['tokens_per_s']:.1f} tokens/s "
                    f"({100 * result['others']:.0f}% of the machine went to others)")
            except (Failed, ValueError, KeyError, OSError) as error:
                self.failures[i] = str(error) or type(error).__name__
                say(f"{self.title()}, round {number + 1}, {label}: {self.failures[i]}")

    def rows(self):
        rows = []
        for contender, results, failure in zip(self.contenders, self.results, self.failures):
            row = {"model": self.model, "batch": self.batch, "seq": self.sequence, "contender": contender.name,
                   "setting": contender.setting}
            if failure or not results:
                rows.append(row | {"failed": failure or "no round was run"})
                continue
            middle = {key: statistics.median(r[key] for r in results)
                      for key in ("tokens_per_s", "peak_gflops", "memory_bytes", "others")}
            row |= middle | {"first_step_s": results[0]["first_step_s"], "rounds": len(results)}
            row["tokens_per_s_by_round"] = [r["tokens_per_s"] for r in results]
            if len(results) > 1:
                row["first_step_warm_s"] = statistics.median(r["first_step_s"] for r in results[1:])
            if self.flop_per_token:
                row["mfu"] = statistics.median(
                    r["tokens_per_s"] * self.flop_per_token / (r["peak_gflops"] * 1e9) for r in results)
            if "version" in results[0]:
                row["version"] = results[0]["version"]
            rows.append(row)
        ours = rows[0]
        for row in rows[1:]:
            if "failed" not in row and "failed" not in ours:
                row["speed_ratio"] = ours["tokens_per_s"] / row["tokens_per_s"]
                row["memory_ratio"] = ours["memory_bytes"] / row["memory_bytes"]
        return rows


def print_table(case, options):
    threads = "1 thread by its CPU time" if options.cpu_time else f"{options.threads} threads"
    print(f"\n{case.title()}, bfloat16, {threads}, {options.rounds} rounds of {options.warmup} + {options.steps} steps")
    print(f"{'':32} {'tokens/s':>9} {'MFU':>7} {'ours/its':>9} {'memory':>9} {'ours/its':>9} {'first step, s':>14} {'others':>7}")
    for row in case.rows():
        label = f"{row['contender']} {row['setting']}".strip()
        if "failed" in row:
            print(f"{label:32} {row['failed']}")
            continue
        ratio = f"{row['speed_ratio']:.2f}" if "speed_ratio" in row else ""
        memory = f"{row['memory_ratio']:.2f}" if "memory_ratio" in row else ""
        mfu = f"{100 * row['mfu']:.1f}%" if "mfu" in row else ""
        first = f"{row['first_step_s']:.1f}"
        if "first_step_warm_s" in row:
            first += f" / {row['first_step_warm_s']:.1f}"
        print(f"{label:32} {row['tokens_per_s']:9.1f} {mfu:>7} {ratio:>9} {row['memory_bytes'] * 1e-9:6.2f} GB "
              f"{memory:>9} {first:>14} {100 * row['others']:6.0f}%")


def read_options():
    parser = argparse.ArgumentParser(prog="bench/peers/run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 + 3 steps instead of 5 + 10, one round: does it work?")
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated (all)")
    parser.add_argument("--shape", action="append", metavar="BxT", help="may be repeated (4x256 and 8x1024)")
    parser.add_argument("--peer", action="append", metavar="TEXT",
                        help="only peers whose name or setting contains it; may be repeated (all)")
    parser.add_argument("--rounds", type=int, help="(3)")
    parser.add_argument("--steps", type=int, help="timed in each run (10)")
    parser.add_argument("--warmup", type=int, help="steps before them (5)")
    parser.add_argument("--threads", type=int, default=2, help="(2)")
    parser.add_argument("--cpu-time", action="store_true", help="one thread and its CPU time: for a machine in use")
    parser.add_argument("--limit", type=float, default=3600, metavar="S", help="seconds that one run may take (3600)")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    options = parser.parse_args()
    options.warmup = options.warmup if options.warmup is not None else 2 if options.quick else 5
    options.steps = options.steps or (3 if options.quick else 10)
    options.rounds = options.rounds or (1 if options.quick else 3)
    for shape in options.shape or []:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", shape):
            parser.error(f"--shape {shape} is not BxT, as in 4x256")
    if options.rounds < 1 or options.threads < 1 or options.steps < 1 or options.warmup < 1:
        parser.error("--rounds, --steps, --warmup and --threads must be 1 or more")
    options.preload = ""
    if options.cpu_time:
        options.threads = 1
    options.isotach, options.venv = os.environ["ISOTACH"], os.environ["PEERS_VENV"]
    return options


def main():
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="peers.") as options.scratch:
        if options.cpu_time:
            build_preload(options)
        options.ours = Isotach(options)
        peers = [PyTorch(options, mode, tuned) for mode in ("compiled", "eager") for tuned in (True, False)]
        if os.environ.get("LLMC"):
            peers.append(LlmC(options, os.environ["LLMC"]))
        if options.peer:
            peers = [p for p in peers if any(text in f"{p.name} {p.setting}" for text in options.peer)]
        cases = [Case(model, shape, [options.ours, *peers])
                 for shape in options.shape or SHAPES for model in options.model or MODELS]
        if os.getloadavg()[0] > 1 and not options.cpu_time:
            say(f"warning: the machine is not idle (load {os.getloadavg()[0]:.1f}); times will be off")
        for case in cases:
            for number in range(options.rounds):
                case.round(number)
            if not options.json:
                print_table(case, options)
    rows = [row for case in cases for row in case.rows()]
    if options.json:
        print(json.dumps({"threads": options.threads, "cpu_time": options.cpu_time, "rounds": options.rounds, "warmup": options.warmup,
                          "steps": options.steps, "date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
