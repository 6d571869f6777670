# SPDX-License-Identifier: Apache-2.0
# A mirror in a second folder: a run whose folder is gone goes on from it with the same bits, what is damaged comes back
# from it, and of two processes that go on from one mirror the first stops.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
first_of() { ls "$1" | head -n 1; }
flip() { # flip FILE OFFSET: one byte becomes another
  byte=$(od -An -tu1 -j"$2" -N1 "$1" | tr -d ' ')
  printf "\\$(printf %o $(((byte + 1) % 256)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
until_mirrored() { # until the mirror holds a snapshot
  tries=0
  until ls mirror/snapshots/*/manifest.json >/dev/null 2>&1 || [ $tries -gt 1000 ]; do
    tries=$((tries + 1))
    sleep 0.02
  done
}
settings="steps=120 checkpoint.snapshot_every=20 checkpoint.mirror=mirror"

run 0 train "$tiny" threads=1 run=plain steps=120
plain=$(digest_of plain)

# Killed, and its folder gone: restored aloud, and the bits are those of a run that was left alone.
# shellcheck disable=SC2086
"$ISOTACH" train "$tiny" threads=1 run=a $settings >out 2>err </dev/null &
pid=$!
until_mirrored
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
run 0 verify mirror # a folder mirror is a run folder
mv a gone
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings
grep -q "there was no run here; mirror '.*/mirror' holds it: restored" err || fail "a restore is not said: $(cat err)"
[ "$(digest_of a)" = "$plain" ] || fail "restored: the run ends with $(digest_of a), not $plain"
run 0 verify a --mirror
grep -q '"mirrored_step": 120' a/status.json || fail "status.json: $(cat a/status.json)"
run 0 inspect log a
grep -q "^mirrored step 120, in " out || fail "inspect log does not say how far the mirror is"

# A mirror that lacks something, or has it otherwise, is not complete.
cp -r mirror whole
rm "mirror/snapshots/$(first_of a/snapshots)/manifest.json" # the mirror may hold older ones, too
run 1 verify a --mirror
grep -q 'manifest.json: not in the mirror' out || fail "verify --mirror: $(cat out)"
rm -rf mirror && cp -r whole mirror
flip "mirror/log/$(first_of a/log)" 9000
run 1 verify a --mirror
grep -q 'the mirror holds other bytes' out || fail "verify --mirror: $(cat out)"
rm -rf mirror && cp -r whole mirror

# What is damaged in the run folder comes back from the mirror; the damaged thing is set aside.
rm -rf mirror
settings="steps=120 checkpoint.snapshot_every=20 checkpoint.mirror=mirror stop_at=55"
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=b $settings
cp -r b b.whole && cp -r mirror mirror.whole
restore_both() { rm -rf b mirror && cp -r b.whole b && cp -r mirror.whole mirror; }
rm -rf b
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=b $settings
python3 - b/starts.json b.whole/starts.json <<'END' || fail "what the starts before knew did not come back"
import json, sys
now, before = (json.load(open(path)) for path in sys.argv[1:])
assert now["run"] == before["run"] and now["starts"][:len(before["starts"])] == before["starts"], (now, before)
END
restore_both
goes_on() { # goes_on WHAT: the run is resumed with the right bits, and something was set aside
  run 0 train "$tiny" threads=1 run=b steps=120 checkpoint.mirror=mirror
  grep -q "$1" err || fail "$1 is not said: $(cat err)"
  [ "$(digest_of b)" = "$plain" ] || fail "$1: the run ends with $(digest_of b), not $plain"
  run 0 verify b --mirror
}
flip b/snapshots/step-00000055-0001/state-*.safetensors 5000
goes_on "step-00000055-0001: damaged: .*; set aside as aside/.* and replaced by the mirror's"
restore_both
rm -rf b/snapshots/step-00000055-0001 mirror/snapshots/step-00000055-0001
cp -r b b.logged && cp -r mirror mirror.logged
log=$(ls b/log | tail -n 1)
truncate -s -100000 "b/log/$log"
goes_on "log/$log: cut short; set aside"
rm -rf b mirror && cp -r b.logged b && cp -r mirror.logged mirror
flip "b/log/$log" 300000
goes_on "log/$log: altered; set aside"
restore_both
rm b/run.json
goes_on "there was no run here"
restore_both
echo x >>b/incarnations/0001.json
goes_on "incarnations/0001.json: damaged; set aside"

# Another run's mirror, and places that are none.
rm -rf b && run 0 train "$tiny" threads=1 run=b steps=40 stop_at=3
run 5 train "$tiny" threads=1 run=b steps=40 checkpoint.mirror=mirror
grep -q "holds another run" err || fail "another run's mirror: $(cat err)"
run 2 train "$tiny" threads=1 run=b steps=40 checkpoint.mirror=b
run 2 train "$tiny" threads=1 run=b steps=40 checkpoint.mirror=b/snapshots

# Two hosts: who goes on from the mirror makes the other stop, at once or at its next start.
restore_both
mv b first
run 0 train "$tiny" threads=1 run=second steps=120 checkpoint.mirror=mirror stop_at=60
run 6 train "$tiny" threads=1 run=first steps=120 checkpoint.mirror=mirror
grep -q "goes on elsewhere: incarnation 2 was begun from mirror" err || fail "superseded: $(cat err)"
run 0 train "$tiny" threads=1 run=first steps=120 checkpoint.mirror=mirror --take-over
[ "$(digest_of first)" = "$plain" ] || fail "taken over from the mirror: $(digest_of first), not $plain"
run 6 train "$tiny" threads=1 run=second steps=120 checkpoint.mirror=mirror
rm -rf mirror first
"$ISOTACH" train "$tiny" threads=1 run=first steps=100000 checkpoint.mirror=mirror checkpoint.snapshot_every=100 >o1 2>e1 </dev/null &
pid=$!
until_mirrored
"$ISOTACH" train "$tiny" threads=1 run=third steps=100000 checkpoint.mirror=mirror >o2 2>e2 </dev/null &
other=$!
(sleep 60; kill -9 $pid $other 2>/dev/null) & # should they not end
watch=$!
wait $pid
code=$?
kill -TERM $other
wait $other
other_code=$?
kill $watch 2>/dev/null
[ $other_code -eq 75 ] || fail "the process that went on ends with $other_code: $(cat e2)"
[ "$code" -eq 6 ] || fail "a process whose run went on elsewhere ends with $code: $(cat e1)"
grep -q "so this one (1) no longer counts" e1 || fail "and says: $(cat e1)"
run 0 verify mirror
finish
