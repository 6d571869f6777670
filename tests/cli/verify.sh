# SPDX-License-Identifier: Apache-2.0
# A damaged snapshot is named by verify, set aside by the next start, and the older one is used.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=run threads=1 stop_at=20
run 0 train "$tiny" run=run threads=1 stop_at=31
run 0 digest run@20
cp out twenty
run 0 verify run
run 0 inspect snapshot run
[ "$(grep -c ' valid$' out)" -eq 2 ] || fail "inspect snapshot: $(cat out)"

file=$(ls run/snapshots/step-00000031-*/*.safetensors)
printf 'X' | dd of="$file" bs=1 seek=20000 conv=notrunc 2>/dev/null
run 1 verify run
grep -q 'step-00000031' out || fail "verify does not name the damaged snapshot: $(cat out)"
run 0 inspect snapshot run
grep -q 'step-00000031.* damaged: ' out || fail "inspect snapshot: $(cat out)"
run 0 digest run
same out twenty
run 0 train "$tiny" run=run threads=1
run 0 train "$tiny" run=whole threads=1
run 0 digest whole
cp out whole.digest
run 0 digest run
same out whole.digest
ls run/aside | grep -q 'step-00000031' || fail "the damaged snapshot is not in aside/"
finish
