#!/bin/sh
# labels: long
# SPDX-License-Identifier: Apache-2.0
#
# A corpus in S3 of whose requests many fail: batches come late, and the sign data_load_latency names S3 as the cause,
# with how many requests there were and how many of them failed. Needs python3 and, once, a package index.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1

mkdir -p data
python3 - data <<'END'
import random, sys
dice = random.Random(1)
words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(1, 9))) for _ in range(3000)]
for part in range(8):
    documents = [" ".join(dice.choices(words, k=dice.randint(20, 700))) for _ in range(300)]
    open(f"{sys.argv[1]}/part{part}.txt", "w").write("\n\n".join(documents))
END
export LIFE_S=900 ISOTACH_CACHE="$work/cache" ISOTACH_WINDOW_S=2
"$root/tests/s3/serve" start "$work/state" corpus "$work/data" >environment || exit 1
. ./environment
set -- "$root/examples/tiny.yaml" data.sources.0.path=s3://corpus/ data.validation.every=0 data.block_bytes=4096 \
  data.prefetch=0 data.on_demand=true run=far

check "opening the corpus" run 0 train "$@" steps=1000000 stop_at=1
proxy '{"latency_ms": 20, "errors": 0.3, "kinds": ["503", "refuse", "truncate"]}' >/dev/null
timeout -k 5 300 "$isotach" train "$@" steps=1000000 >out 2>err &
process=$!
for _ in $(seq 1500); do
  grep -q '"sign": "data_load_latency"' far/breaches.jsonl 2>/dev/null && break
  kill -0 $process 2>/dev/null || break
  sleep 0.1
done
kill -TERM "$(cut -d" " -f2 far/lock)"
wait $process
code=$?
check "it ends in order ($code)" test $code -eq 75
check "the service's failures are named" grep -q "sign data_load_latency is out of bounds: .*cause: s3, .*requests to S3 failed.*% of them failed" err
proxy '{}' >stats
python3 - stats far/breaches.jsonl far/vitals.json <<'END' || failed=1
import json, sys
done = json.load(open(sys.argv[1]))
first = [json.loads(l) for l in open(sys.argv[2])]
breach = next(b for b in first if b["sign"] == "data_load_latency")
machine = breach["machine"]
assert breach["cause"] == "s3" and breach["event"] == "begin", breach
assert 0 < machine["s3_errors"] < machine["s3_requests"] <= done["requests"], (machine, done)
assert 0.1 < machine["s3_errors"] / machine["s3_requests"] < 0.6, machine
live = json.load(open(sys.argv[3]))["ranks"][0]["machine"]
assert live["s3_requests"] > 0 and live["s3_errors"] > 0, live
print("ok:", machine["s3_errors"], "of", machine["s3_requests"], "requests of a window failed")
END
[ $failed -eq 0 ] || cat err
exit $failed
