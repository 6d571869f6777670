# SPDX-License-Identifier: Apache-2.0
# Snapshots that stream while steps go on: the same bits with and without them, whatever staging holds; SIGUSR1 asks for
# one; kills in the middle of one lose nothing; keep_last and keep_every; every file is what safetensors readers expect.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
snapshots_of() { ls "$1/snapshots" 2>/dev/null | sed 's/^step-0*//; s/-.*//' | tr '\n' ' '; }
# lines RUN COUNT: waits until the run has taken that many steps.
lines() {
  for _ in $(seq 400); do
    [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return
    sleep 0.02
  done
  fail "$1 takes no steps: $(cat log.err)"
}

# The bits do not depend on snapshots, threads, or what staging holds.
run 0 train "$tiny" run=none steps=60 checkpoint.snapshot_every=0
whole=$(digest_of none)
for staging in 0 1 auto; do
  for threads in 1 2 3; do
    name=every-$staging-$threads
    run 0 train "$tiny" run=$name steps=60 threads=$threads checkpoint.snapshot_every=1 checkpoint.staging_mb=$staging \
      checkpoint.keep_every=20
    [ "$(digest_of $name)" = "$whole" ] || fail "$name ends with other bits"
    run 0 verify $name
  done
done
[ "$(snapshots_of every-auto-2)" = "20 40 59 60 " ] || fail "keep_last 2, keep_every 20: $(snapshots_of every-auto-2)"
[ "$(digest_of every-auto-1@47)" = "$(digest_of every-0-3@47)" ] || fail "@47 differs"

# Every state file, read by nothing but the format's own rules.
cat >check.py <<'EOF'
import json, struct, sys
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    meta = header.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in meta.values())
    assert (8 + length) % 4096 == 0, "the region is not aligned"
    at = 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        count = 1
        for n in t["shape"]:
            count *= n
        assert t["dtype"] == "F32" and begin == at and end - begin == 4 * count, name
        at = end
    assert 8 + length + at == len(data), "bytes behind the last tensor"
    names = [n for n in header if not n.startswith("moment")]
    assert names and all("moment1." + n in header and "moment2." + n in header for n in names)
    values = struct.unpack("<%df" % (at // 4), data[8 + length:])
    assert all(v == v for v in values) and any(values)
EOF
if command -v python3 >/dev/null; then
  python3 check.py every-0-2/snapshots/*/*.safetensors every-auto-3/snapshots/*/*.safetensors ||
    fail "a state file is not as safetensors readers expect"
else
  echo "python3 is not there: files are not read by it"
fi

# SIGUSR1 writes one behind the next step, although the log is whole; the run goes on.
"$ISOTACH" train "$tiny" run=asked steps=1000000 optimizer.schedule=constant >log 2>log.err </dev/null &
pid=$!
lines asked 20
kill -USR1 $pid
for _ in $(seq 200); do [ -n "$(ls asked/snapshots/*/manifest.json 2>/dev/null)" ] && break; sleep 0.02; done
[ "$(snapshots_of asked | wc -w)" -eq 1 ] || fail "SIGUSR1: snapshots $(snapshots_of asked): $(cat log.err)"
kill -0 $pid || fail "SIGUSR1 ended the run: $(cat log.err)"
kill -USR1 $pid
for _ in $(seq 200); do [ "$(ls asked/snapshots/*/manifest.json 2>/dev/null | wc -l)" -eq 2 ] && break; sleep 0.02; done
kill -TERM $pid
wait $pid
[ $? -eq 75 ] || fail "SIGTERM: $(cat log.err)"
[ "$(snapshots_of asked | wc -w)" -eq 2 ] || fail "SIGUSR1 twice: snapshots $(snapshots_of asked): $(cat log.err)"
grep -q 'the snapshot of step [0-9]* is written' log.err || fail "SIGUSR1: $(cat log.err)"
run 0 verify asked

# A larger state, so that writing takes as long as several steps: killed in the middle of it, again and again.
set -- "$tiny" steps=36 batch.sequences=2 model.config.hidden_size=256 model.config.intermediate_size=1024 \
  model.config.num_hidden_layers=6 data.sequence=32
run 0 train "$@" run=large-none checkpoint.snapshot_every=0
for staging in 0 auto; do
  for after in 0.35 0.25 0.45 0.6; do
    "$ISOTACH" train "$@" run=large-$staging checkpoint.snapshot_every=2 checkpoint.staging_mb=$staging stop_at=30 \
      >log 2>log.err </dev/null &
    pid=$!
    for _ in $(seq 200); do ls large-$staging/snapshots/*/*.safetensors >/dev/null 2>&1 && break; sleep 0.02; done
    sleep "$after"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    run 0 verify large-$staging
  done
  run 0 train "$@" run=large-$staging checkpoint.snapshot_every=2 checkpoint.staging_mb=$staging
  [ "$(digest_of large-$staging)" = "$(digest_of large-none)" ] || fail "large-$staging, killed, ends with other bits"
  [ "$(snapshots_of large-$staging)" = "34 36 " ] || fail "large-$staging keeps $(snapshots_of large-$staging)"
  run 0 verify large-$staging
done
finish
