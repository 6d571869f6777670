# SPDX-License-Identifier: Apache-2.0
# Weights that differ between ranks (a bit that a build flips) stop the run at the next check, which names the rank. The
# next start, of any number of ranks, goes back by itself behind the last check that passed, once, and ends with the bits
# of a run that was never disturbed; so it does when rank 0 is killed right where it finds them.
. "$ISO_ROOT/tests/cli/common.sh"

set -- "$tiny" threads=1 steps=24 parallel.virtual_workers=4 parallel.check_every=6
run 0 train "$@" --ranks 2 run=whole
run 0 digest whole
mv out whole.digest
ls whole | grep -q differed && fail "a run whose weights did not differ has $(ls whole)"

# flip BUILD CODE RANKS RUN SETTINGS...: the weights of rank 1 differ from step 10 on, which the check before step 12
# finds.
flip() {
  build=$1 wanted=$2 ranks=$3 name=$4
  shift 4
  rm -rf "$name"
  timeout -k 5 100 "$ISO_BUILD/isotach-$build" train "$tiny" threads=1 steps=24 parallel.virtual_workers=4 \
    parallel.check_every=6 --ranks "$ranks" run="$name" "$@" >out 2>err </dev/null
  code=$?
  [ $code -eq "$wanted" ] || fail "$build on $ranks ranks, $*: exit code $code, wanted $wanted: $(cat err)"
  [ -f "$name/differed-0001.json" ] || fail "$build on $ranks ranks, $*: no record: $(ls "$name")"
  ls "$name" | grep -q 'differed.*tmp' && [ "$build" = flip-weight ] && fail "left behind: $(ls "$name")"
}

# went_back RUN STEP INCARNATION: the start that has just ended said so, and what the run came to.
went_back() {
  [ "$(grep -c "begins anew after step $2 as incarnation $3, since the weights of rank 1 differed in step 12 and were last the same behind step 5; later" err)" -eq 1 ] ||
    fail "$1: said $(cat err)"
  run 0 digest "$1"
  same whole.digest out
  run 0 verify "$1"
}

for zero in 1 0; do # of copies that are gathered, and of masters of its own
  flip flip-weight 5 2 two parallel.zero=$zero
  [ "$(grep -c error err)" -eq 1 ] || fail "2 ranks said $(cat err)"
  grep -q 'error: step 12: the weights of rank 1 are not those of rank 0 .*, so one of the two is damaged; .* behind step 5, .*: test the memory; the next start goes back there by itself (--from-step S: elsewhere)$' err ||
    fail "2 ranks said $(cat err)"
  flip flip-weight 5 3 three parallel.zero=$zero
  grep -q 'error: step 12: the weights of rank 1 are not those of most others .*, so its copy is damaged' err ||
    fail "3 ranks said $(cat err)"
done

# What is there is shown, and whole; nothing of it is changed by looking.
run 0 verify two
run 0 inspect log two
grep -q '^incarnation 1 ended in step 12: the weights of rank 1 differed, and were last the same behind step 5, to which the next start goes back$' out ||
  fail "inspect log: $(cat out)"
run 0 digest two
grep -q 'warning: two: the weights of rank 1 differed in step 12: this state may be wrong, .* step 5 (two@5)' err || fail "digest: $(cat err)"
run 0 digest two@5
[ -s err ] && fail "digest of a sound step: $(cat err)"
cp -r two damaged
cp -r two elsewhere
cp -r two refused
cp -r two one
cp -r two gone

# The same ranks, one process, another number of them; each once: a stop and a start behind it do not go back again.
run 0 train "$@" --ranks 2 run=two stop_at=15
grep -q 'begins anew after step 5 as incarnation 2, since' err || fail "the next start said $(cat err)"
run 0 inspect log two
grep -q '^incarnation 1 ended in step 12: .* behind step 5$' out || fail "inspect log: $(cat out)"
run 0 train "$@" --ranks 2 run=two
grep -q 'begins anew' err && fail "a second start said $(cat err)"
grep -q '^# resuming after step 15 ' out || fail "a second start: $(grep resuming out)"
run 0 digest two
same whole.digest out
run 0 verify two --replay
run 0 train "$@" run=one
went_back one 5 2
run 0 train "$@" --ranks 4 run=three
went_back three 5 2
run 0 train "$@" --ranks 4 run=three
grep -q 'begins anew' err && fail "a complete run went back: $(cat err)"

# The user says where to: also that nothing is given up. Then it counts no more either.
run 0 train "$@" run=elsewhere --from-step 3 stop_at=4
grep -q 'begins anew after step 3 as incarnation 2; later' err || fail "--from-step 3 said $(cat err)"
run 0 train "$@" run=elsewhere
grep -q 'begins anew' err && fail "behind --from-step: $(cat err)"
run 0 digest elsewhere
same whole.digest out

# What the next start is refused for stays so, however often it may start again.
timeout -k 5 100 "$ISOTACH" train "$@" --ranks 2 --restarts 2 run=refused optimizer.lr=1e-2 >out 2>err
code=$?
[ $code -eq 5 ] && [ "$(grep -c 'a resume would change the run' err)" -eq 1 ] || fail "other settings: exit code $code, $(cat err)"
run 0 train "$@" run=refused
went_back refused 5 2

# One that is damaged is not passed over, another run's is.
sed -i 's/"same_step": 5/"same_step": 7/' damaged/differed-0001.json
run 4 train "$@" run=damaged
[ "$(wc -l <err)" -eq 1 ] && grep -q 'damaged/differed-0001.json: .*; the weights of ranks differed, .* --from-step S' err ||
  fail "a damaged record: $(cat err)"
run 1 verify damaged
grep -q '^differed-0001.json: ' out || fail "verify of a damaged record: $(cat out)"
run 0 train "$@" run=damaged --from-step 5
run 0 digest damaged
same whole.digest out
run 0 train "$@" run=foreign stop_at=15
cp two/differed-0001.json foreign
run 1 verify foreign
grep -q "^differed-0001.json: it is of run" out || fail "verify of another run's record: $(cat out)"
run 0 train "$@" run=foreign
grep -q 'foreign/differed-0001.json: it is of run .*; it does not count' err || fail "another run's record: $(cat err)"
grep -q '^# resuming after step 15 ' out || fail "another run's record: $(grep resuming out)"

# The step cannot be had: one line, and nothing is changed.
rm gone/log/*-000000.log 2>/dev/null || rm gone/log/0001*
rm -rf gone/snapshots gone.before
cp -r gone gone.before
refused 3 'gone: the weights of rank 1 differed in step 12, were last the same behind step 5, and step 5 cannot be had; snapshots and log lead to these steps: 0; say with --from-step S where to begin (what is behind step 5 may be wrong)' \
  train "$@" run=gone
diff -r -x lock gone gone.before >differs || fail "a refused start changed the run: $(cat differs)"

# Snapshots and log that are older than others, but lead to the last check that passed, stay; without a log the snapshot
# does.
for log in true false; do
  flip flip-weight 5 2 kept checkpoint.snapshot_every=2 checkpoint.keep_last=1 log.enabled=$log
  run 0 verify kept
  run 0 train "$@" --ranks 2 run=kept checkpoint.snapshot_every=2 checkpoint.keep_last=1 log.enabled=$log
  [ $log = true ] && went_back kept 5 2
  [ $log = true ] || went_back kept 4 2
done

# Rank 0 is killed where it finds them, before it has written that and behind it; a rank is lost then.
for build in die-finding die-found; do
  flip $build 9 2 killed
  run 0 verify killed
  run 0 train "$@" --ranks 3 run=killed
  went_back killed 5 2
done

# --restarts starts again by itself: the build flips in step 10 each time, so every start goes back there.
timeout -k 5 100 "$ISO_BUILD/isotach-flip-weight" train "$@" --ranks 2 --restarts 2 run=again >out 2>err
code=$?
[ $code -eq 5 ] && [ "$(grep -c 'start [23] of at most 3: goes on behind step 5$' err)" -eq 2 ] || fail "--restarts: exit code $code, $(cat err)"
run 0 train "$@" --ranks 2 run=again
went_back again 5 4

# The run folder is lost: the record is in mirror or target.
for place in mirror target; do
  flip flip-weight 5 2 moved checkpoint.$place="$scratch/$place"
  rm -rf moved
  run 0 train "$@" --ranks 2 run=moved checkpoint.$place="$scratch/$place"
  went_back moved 5 2
done
finish
