# SPDX-License-Identifier: Apache-2.0
# labels: long
# The collectives over hosts of a simulated cluster (bench/simgrid): real sums by 8 ranks of several shapes are the tree's,
# their time is what the model on paper says within 10%, and less than that of flat rings. Needs SimGrid's SMPI.
. "$ISO_ROOT/tests/cli/common.sh"

command -v smpicc >/dev/null && command -v smpirun >/dev/null || {
  echo "skipped: there is no smpicc (libsimgrid-dev)"
  exit 77
}
if nm "$ISO_BUILD/libiso_comm.a" 2>/dev/null | grep -q '__asan_\|__tsan_'; then
  echo "skipped: a build with sanitizers does not run within SMPI"
  exit 77
fi

# simulate WORDS...: its line is in the file out
simulate() {
  timeout -k 5 300 "$ISO_ROOT/bench/simgrid/run" "$@" >out 2>err || fail "simgrid $*: $(cat out err)"
}
# value NAME: the number that follows it
value() { sed -n "s/.* $1 \([0-9.]*\).*/\1/p" out; }

for shape in "8 --mates 4" "8 --mates 2" "8 --mates 8" "6 --mates 3" "6 --mates 1"; do
  simulate $shape --check --layers 1 --width 128 --vocabulary 5000 --bucket 524288
  grep -q ' wrong 0$' out || fail "$shape: sums are not the tree's: $(cat out err)"
done

simulate 8 --only-reduce --layers 1
ours=$(value simulated_s)
awk -v r="$(value ratio)" 'BEGIN { exit !(r > 0.9 && r < 1.1) }' || fail "the model is off: $(cat out)"
simulate 8 --only-reduce --layers 1 --algorithm ring
awk -v o="$ours" -v r="$(value simulated_s)" 'BEGIN { exit !(o > 0 && o <= 1.05 * r) }' || fail "ours takes $ours s, a ring: $(cat out)"
simulate 8 --only-reduce --layers 1 --algorithm blind-ring
awk -v o="$ours" -v r="$(value simulated_s)" 'BEGIN { exit !(o > 0 && o <= 0.6 * r) }' || fail "ours takes $ours s, a blind ring: $(cat out)"

[ "$failures" -eq 0 ]
