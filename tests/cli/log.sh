# SPDX-License-Identifier: Apache-2.0
# The step log: killed runs lose no durable step and end with the bits of one that was never killed; any step can be had;
# damage is refused by name.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
# train_killed RUN SECONDS...: starts the run, kills it after each of the times, and at last lets it end.
train_killed() {
  killed=$1
  shift
  for after in "$@"; do
    "$ISOTACH" train "$tiny" run="$killed" steps=400 >out 2>err </dev/null &
    pid=$!
    sleep "$after"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ ! -f "$killed/run.json" ] || run 0 verify "$killed"
  done
  run 0 train "$tiny" run="$killed" steps=400
}

run 0 train "$tiny" run=whole steps=400
whole=$(digest_of whole)
train_killed killed 0.3 0.5 0.2 0.7
[ "$(digest_of killed)" = "$whole" ] || fail "a run killed four times ends with $(digest_of killed), not $whole"
[ "$(sed 's/^{"step": *\([0-9]*\).*/\1/' killed/metrics.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 400) " ] ||
  fail "killed: metrics.jsonl does not have each step once"

# Any step that the log leads to, with the bits that it had then.
run 0 train "$tiny" run=short steps=400 stop_at=37
for name in killed whole; do
  run 0 train "$tiny" run=$name-kept steps=400 stop_at=37 checkpoint.snapshot_every=30
  [ "$(digest_of $name-kept@37)" = "$(digest_of short)" ] || fail "$name-kept@37 differs"
  [ "$(digest_of $name-kept@31)" != "$(digest_of short)" ] || fail "$name-kept@31 is that of step 37"
done
run 3 digest short@38
run 0 export killed-kept@33 exported
[ -f exported/model.safetensors ] || fail "export of a step of the log wrote nothing"
run 0 inspect log killed-kept --json
grep -q '"faults": ""' out || fail "inspect log: $(cat out)"

# SIGTERM leaves the last step in the log, without a snapshot.
"$ISOTACH" train "$tiny" run=stopped steps=100000 >out 2>err </dev/null &
pid=$!
sleep 0.6
kill -TERM $pid
wait $pid
[ $? -eq 75 ] || fail "SIGTERM: $(cat err)"
[ ! -d stopped/snapshots ] || fail "SIGTERM wrote a snapshot although the log was whole"
last=$(sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p' stopped/status.json)
[ "$last" -eq "$(wc -l <stopped/metrics.jsonl)" ] || fail "SIGTERM: durable step $last of $(wc -l <stopped/metrics.jsonl)"
run 0 verify stopped

# Without a log a crash goes back to a snapshot; a log that is cut or altered is refused where it was acknowledged.
run 0 train "$tiny" run=plain log.enabled=false
[ ! -d plain/log ] || fail "log.enabled=false wrote a log"
segment=$(echo stopped/log/*.log)
size=$(wc -c <"$segment")
cp -r stopped torn
dd if=/dev/zero bs=100 count=1 2>/dev/null >>"torn/log/${segment##*/}"
run 0 verify torn
run 0 train "$tiny" run=torn steps=100000 stop_at=$((last + 1))
grep -q 'never finished' err || fail "an end that was never finished goes unmentioned: $(cat err)"
cp -r stopped cut
dd if="$segment" of="cut/log/${segment##*/}" bs=4096 count=$((size / 8192)) 2>/dev/null
run 1 verify cut
run 4 train "$tiny" run=cut steps=100000
grep -q "step $last was durable, but snapshots and log lead to step" err || fail "a cut log: $(cat err)"
cp -r stopped altered
printf '\377\377' | dd of="altered/log/${segment##*/}" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
run 1 verify altered
run 4 train "$tiny" run=altered steps=100000
run 0 train "$tiny" run=altered steps=100000 stop_at=$((last + 2)) --accept
grep -q 'the steps between are lost' err || fail "--accept on a damaged log: $(cat err)"

# Settings change before the first snapshot: refused by name, and with --accept the log goes on from the old first weights.
run 0 train "$tiny" run=sealed steps=60 stop_at=20
cp -r sealed first
rm -r first/snapshots
cp -r first unfinished
run 5 train "$tiny" run=first steps=60 stop_at=20 optimizer.lr=1e-3
grep -q 'optimizer.lr: 0.003 -> 0.001' err || fail "another learning rate before the first snapshot: $(cat err)"
run 5 train "$tiny" run=first steps=60 stop_at=20 seed=2
run 5 train "$tiny" run=first steps=60 stop_at=20 model.config.rope_theta=500 --accept
grep -q 'its log goes on from the first weights' err || fail "another model before the first snapshot: $(cat err)"
for name in sealed first; do
  run 0 digest $name@20
  run 0 train "$tiny" run=$name steps=60 stop_at=25 optimizer.lr=1e-3 --accept
done
[ "$(digest_of first)" = "$(digest_of sealed)" ] || fail "--accept before the first snapshot gives other bits"
run 3 digest first@5
grep -q 'settings have changed since the first weights' err || fail "first@5: $(cat err)"
run 0 verify first

# What a line of metrics.jsonl showed as durable is not lost in silence, wherever the log of a killed run was cut.
printf '{"verdict": "running", "exit_code": -1, "step": 0, "durable_step": 0, "incarnation": 1}' >unfinished/status.json
segment=$(echo unfinished/log/*.log)
size=$(wc -c <"$segment")
cp -r unfinished headless
printf '\377' | dd of="headless/log/${segment##*/}" bs=1 seek=20 conv=notrunc 2>/dev/null
cp -r unfinished half
dd if="$segment" of="half/log/${segment##*/}" bs=4096 count=$((size / 8192)) 2>/dev/null
cp -r unfinished none
rm -r none/log
for name in headless half none; do
  run 1 verify $name
  run 4 train "$tiny" run=$name steps=60 stop_at=20
  grep -q 'was durable, but snapshots and log lead to step' err || fail "$name: $(cat err)"
done

# A run that was killed between its last step and its report states the last step's loss.
run 0 train "$tiny" run=reported steps=20
loss=$(grep -o '"loss": [0-9.]*' reported/report.json)
cp unfinished/status.json reported/status.json
rm reported/report.json
run 0 train "$tiny" run=reported steps=20
[ "$(grep -o '"loss": [0-9.]*' reported/report.json)" = "$loss" ] || fail "the report says $(cat reported/report.json), not $loss"

[ "$failures" -eq 0 ]
