# SPDX-License-Identifier: Apache-2.0
# 40 steps in one go and in three starts leave the same bits, on one thread and on two, for one virtual worker and for
# eight. A run that is complete does nothing; changed settings are refused.
. "$ISO_ROOT/tests/cli/common.sh"

for workers in 1 8; do
  for threads in 1 2; do
    set -- "$tiny" threads=$threads parallel.virtual_workers=$workers
    rm -rf whole parts
    run 0 train "$@" run=whole
    for stop in 20 31 0; do
      run 0 train "$@" run=parts stop_at=$stop
    done
    run 0 digest whole
    cp out whole.$workers.$threads
    grep -Eqx '[0-9a-f]{64}' out || fail "digest printed $(cat out)"
    run 0 digest parts
    same out whole.$workers.$threads
    [ "$(wc -l <parts/metrics.jsonl)" -eq 40 ] || fail "metrics.jsonl has $(wc -l <parts/metrics.jsonl) lines"
    sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' whole/metrics.jsonl >losses.whole
    sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' parts/metrics.jsonl >losses.parts
    same losses.whole losses.parts
  done
  same whole.$workers.1 whole.$workers.2
done
cmp -s whole.1.1 whole.8.1 && fail "one and eight virtual workers gave the same bits, which only luck could do"

run 0 train "$tiny" threads=1 parallel.virtual_workers=8 run=parts
grep -q 'complete: step 40 of 40' out || fail "a complete run said $(tail -n 1 out)"
run 0 digest parts@40
same out whole.8.1
run 0 verify parts
run 5 train "$tiny" threads=1 parallel.virtual_workers=8 run=parts optimizer.lr=1e-3
[ "$(wc -l <err)" -eq 1 ] && grep -q 'optimizer.lr: 0.003 -> 0.001' err || fail "changed settings: $(cat err)"
run 0 train "$tiny" threads=2 parallel.virtual_workers=8 run=parts checkpoint.keep_last=1 # these change no bits
finish
