# SPDX-License-Identifier: Apache-2.0
#
# isotach doctor: rows, exit codes, faults that are put in, and nothing left behind.
. "$ISO_ROOT/tests/cli/common.sh"

# row CHECK VERDICT: the JSON in `out` has this check with this verdict
row() {
  tr '{' '\n' <out | grep "\"check\": \"$1\"" | grep -q "\"verdict\": \"$2\"" ||
    fail "doctor: $1 is not $2: $(tr '{' '\n' <out | grep "\"check\": \"$1\"")"
}
# doctor WANTED WORDS...: WANTED is a pattern of exit codes; a busy machine may add warnings
doctor() {
  doctor_wanted=$1
  shift
  timeout -k 5 100 "$ISOTACH" doctor --quick "$@" >out 2>err </dev/null
  code=$?
  case $code in
  $doctor_wanted) ;;
  *) fail "isotach doctor $*: exit code $code, wanted $doctor_wanted: $(cat err)" ;;
  esac
}

doctor '[01]' "$tiny" run=here --steps-s 1 --json
for check in build limits clock links 'matrix products' 'existing run' tokenizer corpus memory 'real steps' storage publishing 'write bandwidth' \
  sync; do
  tr '{' '\n' <out | grep -q "\"check\": \"$check\"" || fail "doctor: no row for $check"
done
row tokenizer ok
row corpus ok
row memory ok
row 'real steps' ok
row publishing ok
[ -e here ] && fail "doctor wrote into the run's folder"
[ -z "$(ls -d isotach-doctor.* 2>/dev/null)" ] || fail "doctor left $(ls -d isotach-doctor.*)"

# the table for people: a row each, no line of JSON, and the summary last
doctor '[01]' "$tiny" run=here --steps-s 0
head -n 1 out | grep -q '^check  *verdict  *found$' || fail "no head of the table: $(head -n 1 out)"
tail -n 1 out | grep -q '^here: fit' || fail "no summary: $(tail -n 1 out)"
grep -q '104 KB to train on, 4.05 KB held out, 1 source; the run takes 39,040 tokens' out || fail "units do not fit: $(cat out)"
grep -q '^storage .*; 3 snapshots of 1.43 MB, a step.s log of 238 KB' out || fail "units do not fit: $(cat out)"
grep -q '^real steps  *skipped' out || fail "steps that were not asked for are not said to be skipped"

# what would stop a run: named, exit code 2, and no steps are tried
doctor 2 "$tiny" run=here tokenizer.path=nowhere --steps-s 1 --json
row inputs stop
row 'real steps' skipped
grep -q 'do not start here: inputs' err || fail "what stops the run is not named: $(cat err)"
doctor 2 "$tiny" run=here memory.limit_gb=0.001 --steps-s 1 --json
row memory stop
grep -q '1.00 MB are allowed by memory.limit_gb' out || fail "the limit is not named: $(cat out)"
row 'real steps' skipped
: >file
doctor 2 "$tiny" run=file/below/run --steps-s 0 --json
row storage stop
grep -q 'file is a file' out || fail "what is in the way is not named: $(cat out)"
ln -s nowhere dangling
doctor 2 "$tiny" run=dangling/run --steps-s 0 --json
row storage stop
grep -q 'dangling is a symbolic link that leads nowhere' out || fail "a link to nothing is not named: $(cat out)"
doctor 2 "$tiny" run=/./ --steps-s 0 --json
row storage stop
grep -q 'is the root of the file system' out || fail "the root is not named: $(cat out)"
doctor 2 "$tiny" run=here/"$(printf 'long%.0s' $(seq 80))" --steps-s 0 --json
row storage stop
grep -q 'a name in it has 320 bytes, more than the 255' out || fail "a name that no folder can have is not named: $(cat out)"
doctor 2 "$tiny" run=here --steps-s 0 checkpoint.mirror=file/mirror --json
row mirror stop
doctor '[01]' "$tiny" run=here --steps-s 0 checkpoint.mirror=mirror --json
row mirror ok
[ -z "$(ls mirror)" ] || fail "doctor left $(ls mirror) in the mirror"

doctor 2 "$tiny" run=here --steps-s 1 --json model.config.hidden_size=16384 model.config.intermediate_size=65536 \
  model.config.num_hidden_layers=200
row memory stop
row 'real steps' skipped
export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=y AWS_ENDPOINT_URL=http://127.0.0.1:9
ISOTACH_S3_GIVE_UP_S=1 doctor 2 "$tiny" run=here --steps-s 0 --json checkpoint.mirror=s3://bucket/prefix
row mirror stop
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL

# warnings, which are no errors
ISOTACH_CPU=scalar doctor 1 "$tiny" run=here --steps-s 0 --json
row build warning
grep -q '^isotach: warning: doctor: here is fit, with warnings: build' err || fail "the warning is not said as one: $(cat err)"
grep -q 'error' err && fail "warnings are called an error: $(cat err)"
(
  ulimit -n 64
  timeout -k 5 100 "$ISOTACH" doctor --quick "$tiny" run=here --steps-s 0 --json >out 2>err
)
row limits warning

# ranks are tried as ranks
doctor '[01]' "$tiny" run=here --ranks 2 parallel.virtual_workers=2 --steps-s 1 --json
row 'real steps' ok
tr '{' '\n' <out | grep -q '"check": "reduction wait"' || fail "two ranks have no row for the reduction's wait"
python3 - out <<'EOF' || fail "links between ranks: $(cat out)"
import json, os, sys
said = json.load(open(sys.argv[1]))
rows = {c["check"]: c for c in said["checks"]}
row = rows["links of ranks"]
assert "pairs of ranks" in row["found"], row
for link in said["links"]:
    assert link["ranks"] == [0, 1] and link["latency_ns"] > 0 and link["gb_per_s"] > 0, link
    assert set(link["cpus"]) <= os.sched_getaffinity(0) and len(set(link["cpus"])) == 2, link
if len(os.sched_getaffinity(0)) == 1: assert row["verdict"] == "warning" and "share a processor" in row["found"], row
EOF

# a rank that stands still for 0.1 s, one time in many steps: the mean says nothing, the deviation does. Many short steps.
timeout -k 5 100 "$ISOTACH" doctor --quick "$tiny" run=here --ranks 2 parallel.virtual_workers=2 steps=1000000 threads=1 \
  --steps-s 4 --json >out 2>err </dev/null &
examiner=$!
until [ "$(cat isotach-doctor.*/run/metrics.jsonl 2>/dev/null | wc -l)" -ge 20 ]; do
  kill -0 $examiner 2>/dev/null || break
  sleep 0.02
done
owner=$(cut -d" " -f2 isotach-doctor.*/run/lock)
launcher=$(cut -d" " -f4 "/proc/$owner/stat")
other=$(tr " " "\n" <"/proc/$launcher/task/$launcher/children" | grep -v "^$owner\$" | head -n 1)
stop "$other"
sleep 0.1
kill -CONT "$other"
wait $examiner
code=$?
[ $code -eq 1 ] || fail "doctor: exit code $code, wanted 1: $(cat err)"
row 'reduction wait' warning
tr '{' '\n' <out | grep '"check": "reduction wait"' | grep -q 'deviation below [0-9.]* ms (0.3 ms or 0.2%)' ||
  fail "the bound of the deviation is not said: $(cat out)"

# ---- a run that is there: what a start would do, and nothing is changed in it ----

# says WORDS: the row of the run's folder has these words
says() {
  tr '{' '\n' <out | grep '"check": "existing run"' | grep -q "$1" ||
    fail "doctor does not say '$1': $(tr '{' '\n' <out | grep '"check": "existing run"')"
}
doctor '[01]' "$tiny" run=there --steps-s 0 --json
says 'none: a start begins the run'
doctor '[01]' "$tiny" run=there checkpoint.mirror=mirror --steps-s 0 --json
says 'a start fetches the run from mirror if it is there'
run 0 train "$tiny" run=there stop_at=10
find there -type f -exec cksum {} + | sort >before
doctor '[01]' "$tiny" run=there --steps-s 0 --json
says 'a start resumes behind step 10 of 40, as start 2; the last one had 1 rank, tier'
row 'existing run' ok
doctor '[01]' "$tiny" run=there stop_at=10 --steps-s 0 --json
says 'a start has nothing to train: step 10 of 10 is taken'
doctor 2 "$tiny" run=there optimizer.lr=1e-2 --steps-s 1 --json
says 'a start is refused: it would go on behind step 10 with other settings: optimizer.lr: 0.003 -> 0.01'
row 'existing run' stop
row 'real steps' skipped
ISOTACH_CPU=scalar doctor 2 "$tiny" run=there --steps-s 0 --json
says 'other settings: ISA tier: .* -> scalar'
find there -type f -exec cksum {} + | sort >after
same before after

# one that another process has
timeout -k 5 100 "$ISOTACH" train "$tiny" run=there steps=40 stop_at=0 evaluate.every=0 >out.train 2>err.train &
holder=$!
wait $holder || fail "it does not go on: $(cat err.train)"
grep -q '^# resuming after step 10 ' out.train || fail "doctor said step 10: $(grep resuming out.train)"
timeout -k 5 100 "$ISOTACH" train "$tiny" run=busy steps=1000000 >out.train 2>err.train &
holder=$!
for _ in $(seq 600); do
  [ -s busy/metrics.jsonl ] && break
  sleep 0.05
done
pid=$(cut -d' ' -f2 busy/lock)
doctor 2 "$tiny" run=busy steps=1000000 --steps-s 0 --json
says "a start is refused: process $pid on host $(cut -d' ' -f1 busy/lock) has the run, its last heartbeat was"
kill -KILL "$pid"
wait $holder
doctor '[01]' "$tiny" run=busy steps=1000000 --steps-s 0 --json
says 'a start resumes behind step [0-9]* of 1000000, as start 2'
step=$(sed -n 's/.*resumes behind step \([0-9]*\) of.*/\1/p' out)
run 0 train "$tiny" run=busy steps=1000000 stop_at=$((step + 3))
grep -q "^# resuming after step $step " out || fail "doctor said step $step: $(grep resuming out)"
doctor 2 "$tiny" run=busy steps=40 --steps-s 0 --json
says 'other settings: steps: 1000000 -> 40'

# a durable step that is gone
cp -r there gone
rm -r gone/snapshots/* gone/log/*
doctor 2 "$tiny" run=gone --steps-s 0 --json
says 'a start is refused: step 40 was durable, but snapshots and log lead to'

# steps that others slow down: the cause is named
hogs=
for _ in $(seq $(($(nproc) * 2))); do
  sh -c 'while :; do :; done' &
  hogs="$hogs $!"
done
doctor 1 "$tiny" run=here steps=100000 log.enabled=false --steps-s 3 --json
kill $hogs
row 'other work' warning
grep -q 'the machine shows no reason' out && fail "others used the machine, and doctor sees no reason: $(cat out)"
row 'steps level' warning
tr '{' '\n' <out | grep '"check": "steps level"' | grep -q 'cause: preempted, .*others had its processors' ||
  fail "doctor does not name the cause: $(tr '{' '\n' <out | grep '"check": "steps level"')"
tr '{' '\n' <out | grep '"check": "steps level"' | grep -q 'stop what else runs here' || fail "no advice: $(cat out)"

# a misspelt key is that error
run 2 doctor "$tiny" batch.sequencess=3
grep -q 'batch.sequences' err || fail "the nearest key is not named: $(cat err)"
finish
