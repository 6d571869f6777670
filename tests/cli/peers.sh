# SPDX-License-Identifier: Apache-2.0
# bench/peers/run with stand-ins for PyTorch and llm.c, which say how fast they were: what is interleaved, the medians,
# ratios and failures. The real ones need a Python environment and an idle machine.
. "$ISO_ROOT/tests/cli/common.sh"

command -v python3 >/dev/null 2>&1 || { echo "skipped: there is no python3"; exit 77; }
peers=$ISO_ROOT/bench/peers/run
mkdir -p venv/bin llmc

# The binary: 1,000 tokens/s, MFU 50% of 800 GFLOP/s; the peers' probe finds the same peak.
cat >isotach.fake <<'END'
#!/bin/sh
echo "isotach $4" >>"$JOURNAL"
echo '{"tokens_per_s": 1000, "mfu": 0.5, "peak_gflops": 800, "first_step_s": 1.5}'
END
# PyTorch: compiled 500 tokens/s in the first round and 400 in later ones, eager fails when it is not tuned.
cat >venv/bin/python <<'END'
#!/bin/sh
setting="$8 ${GLIBC_TUNABLES:-none}"
echo "pytorch $2 $3 $4 $5 $6 $7 $setting $9" >>"$JOURNAL"
[ "$setting" = "eager none" ] && { echo "Traceback" >&2; echo "RuntimeError: out of paper" >&2; exit 1; }
step=2.048
[ "$(grep -c "$setting" "$JOURNAL")" -gt 1 ] && step=2.56
now=$(python3 -c 'import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))')
echo "a line before"
echo "{\"times\": [$step, 9, 0.1], \"first_step_at\": $now, \"version\": \"fake\"}"
END
cat >llmc/train_gpt2.c <<'END'
  int B = 4; // batch size 4
  int T = 64; // sequence length
END
cat >llmc/train_gpt2 <<'END'
#!/bin/sh
for step in 0 1 2 3 4 5 6 7; do echo "step $step: train loss 5.0 (took 2560.0 ms)"; done
sleep 30
END
chmod +x isotach.fake venv/bin/python llmc/train_gpt2
export ISOTACH="$scratch/isotach.fake" PEERS_VENV="$scratch/venv" JOURNAL="$scratch/journal"

: >journal
"$peers" --quick --rounds 2 --model gpt2-124m --shape 4x256 --json >out 2>err
code=$?
[ $code -eq 1 ] || fail "a failed peer, exit code $code: $(cat err)"
cat >check.py <<'END'
import json
document = json.load(open("out"))
rows = {f"{r['contender']} {r['setting']}".strip(): r for r in document["rows"]}
assert document["warmup"] == 2 and document["steps"] == 3 and document["rounds"] == 2, document
assert list(rows) == ["isotach", "PyTorch compiled, tuned", "PyTorch compiled, as installed", "PyTorch eager, tuned",
                      "PyTorch eager, as installed"], list(rows)
ours, compiled = rows["isotach"], rows["PyTorch compiled, tuned"]
assert ours["tokens_per_s"] == 1000 and abs(ours["mfu"] - 0.5) < 1e-9 and ours["first_step_s"] == 1.5, ours
assert ours["memory_bytes"] > 1e5 and ours["others"] >= 0, ours
# 1,024 tokens in 2.048 s, then in 2.56 s
assert [round(x, 6) for x in compiled["tokens_per_s_by_round"]] == [500, 400], compiled
assert abs(compiled["tokens_per_s"] - 450) < 1e-6 and abs(compiled["speed_ratio"] - 1000 / 450) < 1e-6, compiled
assert abs(compiled["mfu"] - 0.225) < 1e-9, compiled
assert 0 < compiled["first_step_s"] < 60 and "first_step_warm_s" in compiled, compiled
assert rows["PyTorch eager, as installed"]["failed"] == "exit code 1: RuntimeError: out of paper", rows
lines = [line.split() for line in open("journal")]
pytorch = [" ".join(line[1:]) for line in lines if line[0] == "pytorch"]
assert len(pytorch) == 7, pytorch  # what failed is not tried again
assert all(line.split()[:6] == ["gpt2-124m", "4", "256", "2", "2", "3"] for line in pytorch), pytorch
ours_at = [i for i, line in enumerate(lines) if line == ["isotach", "gpt2-124m"]]
assert len(ours_at) == 2 and any(lines[i][0] == "pytorch" for i in range(*ours_at)), lines
END
ISOTACH="$scratch/isotach.fake" python3 check.py || fail "$(cat out)"

LLMC="$scratch/llmc" "$peers" --quick --model gpt2-124m --shape 4x256 --peer compiled --peer llm.c >out 2>err ||
  fail "exit code $?: $(cat err)"
grep -q '^gpt2-124m, 4 x 256 tokens a step, bfloat16, 2 threads, 1 rounds of 2 + 3 steps$' out || fail "$(cat out)"
grep -Eq '^isotach  *1000\.0  *50\.0%  *0\.[0-9]+ GB  *1\.5 ' out || fail "ours: $(cat out)"
grep -Eq '^llm\.c float32, 4x64  *100\.0  *5\.0%  *10\.00 ' out || fail "llm.c: $(cat out)"
grep -q 'eager' out && fail "--peer compiled shows eager"

"$peers" --quick --model gpt2-124m --shape 4x256 --peer "eager, tuned" --cpu-time >out 2>err || fail "$(cat err)"
grep -q '1 thread by its CPU time, 1 rounds' out || fail "--cpu-time: $(cat out)"
tail -n 1 journal | grep -q 'isotach .*config.json' || fail "no peak after the last run: $(tail -n 1 journal)"
grep pytorch journal | tail -n 1 | grep -q 'gpt2-124m 4 256 1 2 3 eager .* cpu' || fail "--cpu-time: $(tail -n 2 journal)"

"$peers" --shape 4by256 >out 2>err
[ $? -eq 2 ] && grep -q 'is not BxT' err || fail "a wrong shape: $(cat err)"
ISOTACH=/nowhere "$peers" >out 2>err
[ $? -eq 1 ] && grep -q 'run make first' err || fail "no binary: $(cat err)"
"$peers" --help | grep -q 'as installed' || fail "--help"
"$ISO_ROOT/tools/venv" nonsense >out 2>err
[ $? -eq 2 ] && grep -q "no group 'nonsense'" err || fail "tools/venv nonsense: $(cat err)"
finish
