# SPDX-License-Identifier: Apache-2.0
# Going back on purpose: a new branch begins after a step; what came later is kept aside and never wins again, whichever
# verb looks and however the start was cut. Settings that change begin with a fresh snapshot.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
kept() { ls "$1/aside" 2>/dev/null | grep -c "$2"; }

# A complete run with snapshots at 30, 45, 50 and 60, and its log behind 30.
run 0 train "$tiny" run=old steps=60 stop_at=50 checkpoint.snapshot_every=15 checkpoint.keep_last=4
run 0 train "$tiny" run=old steps=60 checkpoint.snapshot_every=15 checkpoint.keep_last=4
ls old/snapshots | grep -q step-00000030 || fail "the run to go back in has $(ls old/snapshots)"
for step in 36 40 60; do digest_of old@$step >old.$step; done

# A step that is out of reach changes nothing and names those that are in reach.
cp -r old before
refused 3 "old: step 61 cannot be had; snapshots and log lead to these steps: 0, 30 to 60" train "$tiny" run=old steps=60 --from-step 61
refused 3 "old: step 7 cannot be had; snapshots and log lead to these steps: 0, 30 to 60" train "$tiny" run=old steps=60 --from-step 7
diff -r old before >differs || fail "a refused --from-step changed the run: $(cat differs)"
refused 3 "'none' does not exist; name a run folder" train "$tiny" run=none --from-step 5
[ ! -e none ] || fail "a refused --from-step made a folder"
run 5 train "$tiny" run=old steps=60 optimizer.lr=1e-3 --from-step 37

# The new branch, with other settings.
run 0 train "$tiny" run=old steps=60 optimizer.lr=1e-3 --from-step 37 --accept stop_at=42 checkpoint.keep_last=4
grep -q 'begins anew after step 37 as incarnation 3' err || fail "--from-step 37 said: $(cat err)"
grep -q 'used snapshot step-00000030-0001' err || fail "--from-step 37 does not say what it used: $(cat err)"
grep -q 'replayed 7 steps, 31 to 37, of log/0001' err || fail "--from-step 37 does not say what it replayed: $(cat err)"
[ "$(digest_of old@36)" = "$(cat old.36)" ] || fail "a step before the branch has changed"
[ "$(digest_of old@40)" != "$(cat old.40)" ] || fail "a step of the old branch is still read"
[ -n "$(digest_of old@40)" ] || fail "a step of the new branch cannot be read"
run 3 digest old@60
run 3 export old@60 exported
ls old/snapshots | grep -q 'step-00000037-0003' || fail "changed settings did not begin with a snapshot: $(ls old/snapshots)"
[ "$(kept old step-000000)" -eq 3 ] || fail "aside has $(ls old/aside)"
[ "$(kept old '[.]log-')" -ge 1 ] || fail "no log segment is aside: $(ls old/aside)"
[ "$(kept old metrics)" -eq 1 ] || fail "the cut-off lines of metrics.jsonl are not aside: $(ls old/aside)"
[ "$(wc -l <old/metrics.jsonl)" -eq 42 ] || fail "metrics.jsonl has $(wc -l <old/metrics.jsonl) lines"
[ "$(sed 's/^{"step": *\([0-9]*\).*/\1/' old/metrics.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 42) " ] || fail "metrics.jsonl: not each step once"
run 0 verify old
run 0 inspect log old --json
run 0 inspect snapshot old --json
run 0 generate old A --max-tokens 2
# It goes on as any run does, and what is aside stays there.
run 0 train "$tiny" run=old steps=60 optimizer.lr=1e-3 checkpoint.keep_last=6
run 0 digest old@60
[ "$(digest_of old)" != "$(cat old.60)" ] || fail "the old branch came back"
digest_of old >new.60
run 0 verify old
[ "$(kept old step-000000)" -ge 3 ] || fail "something was deleted from aside: $(ls old/aside)"
# The same branch made without a detour has the same bits.
cp -r before straight
run 0 train "$tiny" run=straight steps=60 optimizer.lr=1e-3 --from-step 37 --accept
[ "$(digest_of straight)" = "$(cat new.60)" ] || fail "the same branch in one go differs"

# Back once more, to before the branch: of both branches nothing is left behind step 33.
run 0 train "$tiny" run=old steps=60 optimizer.lr=1e-3 --from-step 33 stop_at=33
run 3 digest old@34
run 3 digest old@37
[ "$(wc -l <old/metrics.jsonl)" -eq 33 ] || fail "metrics.jsonl has $(wc -l <old/metrics.jsonl) lines, not 33"
grep -q '"durable_step": 33' old/status.json || fail "status.json: $(cat old/status.json)"
run 0 verify old

# Nothing but the published incarnation decides: with all else of that start undone, the old branch stays void.
cp -r before cut
run 0 train "$tiny" run=cut steps=60 --from-step 37 stop_at=37
cp -r before undone
cp cut/incarnations/0003.json undone/incarnations/
for verb in "digest undone@38" "digest undone@60" "export undone@45 exported"; do
  # shellcheck disable=SC2086
  run 3 $verb
done
[ "$(digest_of undone)" = "$(digest_of cut)" ] || fail "undone: the old branch wins"
run 0 verify undone
run 0 train "$tiny" run=undone steps=60 stop_at=39 checkpoint.keep_last=4
[ "$(kept undone step-000000)" -eq 3 ] || fail "the next start did not set aside what an earlier one left: $(ls undone/aside)"
run 3 digest undone@40
run 0 verify undone

# A start with changed settings that was killed before its first snapshot: the next one begins with it.
run 0 train "$tiny" run=plain steps=60 stop_at=20
cp -r plain killed
run 0 train "$tiny" run=plain steps=60 stop_at=22 optimizer.lr=1e-3 --accept
ls plain/snapshots | grep -q 'step-00000020-0002' || fail "--accept did not begin with a snapshot: $(ls plain/snapshots)"
cp plain/incarnations/0002.json killed/incarnations/
for name in config.yaml model.json inputs.json; do cp plain/$name killed/$name.next; done
run 0 digest killed
run 0 verify killed
run 0 train "$tiny" run=killed steps=60 stop_at=22 optimizer.lr=1e-3
ls killed/snapshots | grep -q 'step-00000020-0003' || fail "a killed --accept is forgotten: $(ls killed/snapshots)"
[ "$(digest_of killed)" = "$(digest_of plain)" ] || fail "a killed --accept gives other bits"
[ ! -e killed/config.yaml.next ] || fail "config.yaml.next is left"
run 0 verify killed

# A seed decides where the lanes are: it cannot change under way, and that is said by its name.
run 5 train "$tiny" run=plain steps=60 seed=2 optimizer.lr=1e-3 --accept
grep -q 'seed: 1 -> 2' err && grep -q 'keep seed, batch and data' err || fail "seed=2 --accept said: $(cat err)"
[ "$(ls plain/incarnations | wc -l)" -eq 2 ] || fail "a refused start published an incarnation"
finish
