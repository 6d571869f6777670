# SPDX-License-Identifier: Apache-2.0
# A mirror that does not take what is not the run's state: said, and the run's end waits for it no longer than for a
# mirror that does not answer.
. "$ISO_ROOT/tests/cli/common.sh"

mkdir -p odd/starts.json/x
began=$(date +%s)
run 0 train "$tiny" threads=1 run=held steps=120 checkpoint.mirror=odd stop_at=20
[ $(($(date +%s) - began)) -lt 60 ] || fail "the end of the run waited $(($(date +%s) - began)) s"
grep -q "mirror '.*/odd' is not complete" err || fail "it is not said: $(cat err)"
run 0 verify held
finish
