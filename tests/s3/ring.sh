#!/bin/sh
# labels: long
# SPDX-License-Identifier: Apache-2.0
#
# A corpus in S3 at 200 ms a request, of which 1% go wrong: batches come in time at 50,000 tokens/s, a run has the bits
# of a local one, and a service that is down stops the run, which then goes on where it was. Needs python3 and, once, a
# package index.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
number() { sed -n "s/.*\"$1\": \([-+0-9.e]*\).*/\1/p" out; }

# ---- 8 MB of documents of some 2 KB, a few of 300 KB, in eight objects ----

mkdir -p data
python3 - data <<'END'
import random, sys
dice = random.Random(1)
words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(1, 9))) for _ in range(3000)]
for part in range(8):
    documents = [" ".join(dice.choices(words, k=dice.randint(20, 700))) for _ in range(500)]
    documents[part * 7] = " ".join(dice.choices(words, k=50000))
    open(f"{sys.argv[1]}/part{part}.txt", "w").write("\n\n".join(documents))
END
export LIFE_S=1400 ISOTACH_CACHE="$work/cache"
"$root/tests/s3/serve" start "$work/state" corpus "$work/data" >environment || exit 1
. ./environment
tiny=$root/examples/tiny.yaml
far="data.sources.0.path=s3://corpus/ data.validation.every=9"
near="data.sources.0.path=data data.validation.every=9"

# ---- batches in time ----

proxy '{"latency_ms": 200, "errors": 0.01, "stall_s": 15}' >/dev/null
# shellcheck disable=SC2086
check "bench data from S3" run 0 bench data "$tiny" $far --tokens-per-s 50000 --steps 800 --json
cat out
check "P95 of taking a batch below 3 ms" awk "BEGIN { exit !($(number load_p95_ms) < 3) }"
check "no step starved" test "$(number starved_steps)" -eq 0
check "the pace is kept" awk "BEGIN { exit !($(number prefilled_ratio) > 0.98) }"
# shellcheck disable=SC2086
check "bench data on demand" run 0 bench data "$tiny" $far --tokens-per-s 50000 --steps 10 --on-demand --json
check "which is what the ring is for" test "$(number starved_steps)" -eq 10

# ---- the same bits ----

# shellcheck disable=SC2086
check "a local run" run 0 train "$tiny" $near run=near
run 0 digest near && cp out near.digest
# shellcheck disable=SC2086
check "a run from S3" run 0 train "$tiny" $far run=far
run 0 digest far
check "has the bits of the local one" cmp out near.digest
grep bits_per_byte near/report.json >near.value
grep bits_per_byte far/report.json >far.value
check "and its value on held-out text" cmp near.value far.value

# ---- a service that goes down ----

export ISOTACH_S3_GIVE_UP_S=4 ISOTACH_S3_STALL_S=2
# shellcheck disable=SC2086
check "the first half" run 0 train "$tiny" $far run=down stop_at=15
(
  sleep 1.5 # opening has its documents from the cache
  proxy '{"errors": 1, "kinds": ["503", "refuse"]}' >/dev/null
) &
# shellcheck disable=SC2086
check "stops when S3 is down" run 3 train "$tiny" $far run=down steps=40 data.slots=2 data.prefetch=1
wait
proxy '{"latency_ms": 20, "errors": 0.01}' >/dev/null
# shellcheck disable=SC2086
check "and goes on" run 0 train "$tiny" $far run=down
run 0 digest down
check "with the same bits" cmp out near.digest

# ---- a service that stands still, and a user who does not wait for it ----

unset ISOTACH_S3_GIVE_UP_S ISOTACH_S3_STALL_S
rm -rf down
proxy '{"latency_ms": 200, "errors": 0}' >/dev/null
# shellcheck disable=SC2086
timeout -k 5 60 "$isotach" train "$tiny" $far run=down data.prefetch=1 >out 2>err &
process=$!
sleep 2
proxy '{"errors": 1, "kinds": ["stall"], "stall_s": 100}' >/dev/null
sleep 2
began=$(date +%s)
kill -TERM $process # timeout passes it on
wait $process
code=$?
check "a stopped run says so ($code)" test $code -eq 75
check "at once" test $(($(date +%s) - began)) -lt 10
proxy '{"latency_ms": 20, "errors": 0}' >/dev/null
# shellcheck disable=SC2086
check "and goes on" run 0 train "$tiny" $far run=down
run 0 digest down
check "with the same bits once more" cmp out near.digest
exit $failed
