# SPDX-License-Identifier: Apache-2.0
# labels: long
# Ranks on two hosts (network namespaces): the bits of one process, wherever the ranks are; what one finds is said once.
. "$ISO_ROOT/tests/hosts/common.sh"

set -- "$tiny" threads=1 steps=24 parallel.virtual_workers=4 parallel.check_every=10
run 0 train "$@" run=one
run 0 digest one
mv out expected
sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*"grad_norm": \([^,]*\),.*/\1 \2 \3/' one/metrics.jsonl >losses.one

for shape in "2 2" "3 1" "1 1" "1 2"; do
  rm -rf two
  across $shape "$ISOTACH" train "$@" run=two >out 2>err || fail "$shape: $(cat err)"
  grep -q "^# [0-9] ranks of Open MPI's mpirun on 2 hosts, 1 thread each" out || fail "$shape: $(head -n 30 out)"
  grep -q 'isotach: error' err && fail "$shape: $(cat err)"
  sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*"grad_norm": \([^,]*\),.*/\1 \2 \3/' two/metrics.jsonl >losses.two
  same losses.one losses.two
  run 0 digest two
  same expected out
done

# Placed in turns, ranks of a host are neighbours nevertheless; and another place for the ranks at each start.
rm -rf two
across 2 2 --map-by node "$ISOTACH" train "$@" run=two stop_at=7 >out 2>err || fail "by node: $(cat err)"
grep -q '^# hosts by their names: isohost-a (ranks 0-1), isohost-b (2-3)$' out &&
  grep -q "^# ranks are numbered along it: rank 1 is the launcher's 2$" out || fail "by node: $(grep '^#' out)"
run 0 train "$@" run=two stop_at=13 --ranks 3
across 1 2 "$ISOTACH" train "$@" run=two >out 2>err || fail "the rest: $(cat err)"
run 0 digest two
same expected out
run 0 verify two --replay

across 2 2 "$ISOTACH" train "$@" run=none data.sources.0.path=nowhere >out 2>err
code=$?
[ $code -eq 3 ] && [ "$(grep -c 'isotach: error' err)" -eq 1 ] || fail "no corpus: exit code $code, $(cat err)"
[ -e none ] && fail "a run that cannot start made a folder"

# A weight that changes in one rank is found at the next check.
across 2 2 "$ISO_BUILD/isotach-flip-weight" train "$@" run=flipped >out 2>err
code=$?
[ $code -eq 5 ] && [ "$(grep -c 'isotach: error' err)" -eq 1 ] || fail "a flipped weight: exit code $code, $(cat err)"
grep -q 'error: step 10: the weights of rank 1 (host isohost-a) are not those of most others' err ||
  fail "a flipped weight: $(cat err)"
[ -z "$(everyone | while read -r p; do readlink "/proc/$p/exe"; done | grep isotach)" ] || fail "a process stayed"
finish
