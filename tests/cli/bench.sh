# SPDX-License-Identifier: Apache-2.0
# bench step and bench sweep: their JSON has what is promised and the numbers agree with each other; a model that does
# not fit is a row with its reason; wrong flags are refused. How fast anything is, is not tested.
. "$ISO_ROOT/tests/cli/common.sh"

# number KEY FILE: the first number under this key.
number() { sed -n "s/.*\"$1\": \([-+.eE0-9]*\).*/\1/p" "$2" | head -n 1; }
holds() { # holds EXPRESSION WORDS...: an awk condition
  condition=$1
  shift
  awk "BEGIN { exit !($condition) }" || fail "not so: $* ($condition)"
}

cat >config.json <<'END'
{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
 "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": true}
END

# Launch to the end of step 1 lies within the command's own time.
began=$(date +%s.%N)
run 0 bench step config.json --batch 2 --seq 32 --steps 3 --warmup 1 --threads 1 --json
ended=$(date +%s.%N)
[ -s err ] && fail "bench step said $(cat err)"
[ "$(wc -l <out)" -eq 1 ] || fail "bench step --json printed $(wc -l <out) lines"
for key in tokens_per_s mfu peak_gflops peak_rss_bytes first_step_s median_step_s loss; do
  [ -n "$(number $key out)" ] || fail "bench step --json has no $key: $(cat out)"
done
holds "$(number first_step_s out) > 0 && $(number first_step_s out) < $ended - $began + 0.05" "first step within the run"
holds "$(number peak_rss_bytes out) > 1e6" "a process takes a megabyte"
rate=$(number tokens_per_s out)
holds "($rate * $(number median_step_s out) - 64) ^ 2 < 1e-6" "tokens/s is tokens over the median"
# 6 N + 6 L T C: a layer has 4 C^2 + 3 C F weights and two norms, then the final norm and the tied head.
flop="(6 * (2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64 + 128 * 64) + 6 * 2 * 32 * 64)"
holds "($(number mfu out) / ($rate * $flop / ($(number peak_gflops out) * 1e9)) - 1) ^ 2 < 1e-12" "MFU by its formula"
cp out first
run 0 bench step config.json --batch 2 --seq 32 --steps 1 --warmup 3 --threads 2 --json
[ "$(number loss out)" = "$(number loss first)" ] || fail "step 4 on one thread and on two: $(cat first out)"

# Ranks: the same bits on 3 of them and on 4 (four leaves both), whatever they share out.
for ranks in 3 4; do
  for zero in 0 1 3; do
    run 0 bench step config.json --batch 4 --seq 32 --steps 3 --warmup 1 --threads 1 --ranks $ranks --zero $zero --json
    [ -s err ] && fail "bench step --ranks $ranks said $(cat err)"
    [ "$(wc -l <out)" -eq 1 ] || fail "bench step --ranks $ranks --json printed $(wc -l <out) lines"
    [ -f ranks ] || cp out ranks
    [ "$(number loss out)" = "$(number loss ranks)" ] || fail "$ranks ranks, --zero $zero: $(cat ranks out)"
    share=$(number exposed_reduce_share out) most=$(number exposed_reduce_share_most out)
    holds "$share > 0 && $share <= $most && $most < 1" "what ranks wait is a share of a step: $share, at most $most"
  done
done
refused 2 'bench step: --batch 6 cannot be shared out among 4 leaves (--ranks 3)' bench step config.json --batch 6 --ranks 3

run 0 bench step --help
grep -q 'timed steps (10)' out || fail "ten timed steps are the default"
grep -q 'steps before them (5)' out || fail "five steps to warm up are the default"
refused 2 'bench step: --micro 3 does not divide --batch 4' bench step config.json --micro 3
refused 2 "bench step: --seq 65 is more than the model's 64 positions" bench step config.json --seq 65
refused 2 'no model is called gpt3; there are gpt2-124m, llama-110m and llama-30m' bench step gpt3

# Two sequences of 128 fit in the memory given, larger ones are rows with the reason.
run 0 bench sweep --tokens 256 --max-memory 0.14 --seconds 0 --json
[ -s err ] && fail "bench sweep said $(cat err)"
sed 's/}, /}\n/g' out >rows
[ "$(grep -c '"model"' rows)" -eq 23 ] || fail "bench sweep has $(grep -c '"model"' rows) rows"
for size in 5m 14m 30m 110m 340m 680m 1b; do
  grep -q "\"$size\"" rows || fail "bench sweep has no model of $size"
done
for length in 128 256 512 1024 2048 4096 8192 16384 32768; do
  grep -q "\"seq\": $length," rows || fail "bench sweep has no length $length"
done
[ "$(grep -c '"skipped": "needs .* GB, --max-memory is 0.14"' rows)" -ge 18 ] || fail "rows that do not fit: $(cat rows)"
grep '"seq": 128,' rows | head -n 1 >row
for key in parameters tokens_per_s mfu peak_gflops attention_share arena_bytes_per_token steps; do
  holds "$(number $key row) + 0 > 0" "$key of $(cat row)"
done
holds "$(number attention_share row) < 1" "attention is a part of the step"
for row in 1024 32768; do # what a token takes does not grow with the sequence
  grep "\"seq\": $row," rows | head -n 1 >long
  holds "$(number arena_bytes_per_token long) < 1.2 * $(number arena_bytes_per_token row)" "arena at $row tokens"
done
run 0 bench sweep --tokens 256 --max-memory 0.001 --quick
[ "$(grep -c 'skipped: needs' out)" -eq 8 ] || fail "bench sweep --quick: $(cat out)"
refused 2 'bench sweep: --max-memory must be from 0 to 1000000, not -1' bench sweep --max-memory -1
# Saving beside not saving: the log, not compressed (auto packs it where storage is slow), is the gradients, two bytes a
# parameter and a block or two, and nothing stays behind.
sed -i 's/"vocab_size": 128/"vocab_size": 512/' config.json
mkdir storage
run 0 bench store --model config.json --batch 2 --seq 32 --pairs 3 --steps 12 --interval 5 --replay 4 --compress off --folder storage \
  --json
for key in time_ratio spread p99_ratio log_bytes_over_snapshot bandwidth_share crc_share replay_ratio replay_cpu_ratio busy_share recovery_s; do
  holds "$(number $key out) > 0" "$key of $(cat out)"
done
holds "$(number steps out) == 30" "three stretches of twelve steps, of which two do not count"
holds "$(number log_bytes_per_step out) > 2 * $(number parameters out)" "a step's log holds its gradient"
holds "$(number log_bytes_per_step out) < 2 * $(number parameters out) + 40960" "and little else"
[ -z "$(ls storage)" ] || fail "bench store left $(ls storage)"
refused 2 'bench store: --corpus and --tokenizer belong together' bench store --corpus x
refused 2 "bench store: --seq 65 is more than the model's 64 positions" bench store --model config.json --seq 65
finish
