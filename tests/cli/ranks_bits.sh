# SPDX-License-Identifier: Apache-2.0
# labels: long
# 50 steps of eight virtual workers on 1, 2, 3, 4, 6 and 8 ranks, of one thread or two, and on another number at each
# start: the same bits. The model's gradient is many norm blocks, so that ranks' shares cut tensors, and is clipped.
. "$ISO_ROOT/tests/cli/common.sh"

set -- "$tiny" steps=50 parallel.virtual_workers=8 parallel.check_every=10 model.config.hidden_size=128 \
  model.config.vocab_size=3000 model.config.intermediate_size=352 model.config.num_hidden_layers=3
for ranks in 1 2 3 4 6 8; do
  for threads in 1 2; do
    for zero in 0 1 3; do # 2 is 1 in all but its name
      rm -rf run
      run 0 train "$@" run=run threads=$threads --ranks $ranks parallel.zero=$zero
      run 0 digest run
      mv out digest.$ranks.$threads.$zero
      same digest.1.1.0 digest.$ranks.$threads.$zero
      [ $ranks -eq 1 ] && break
    done
  done
done
awk -F'"grad_norm": ' '{ split($2, a, ","); if (a[1] > 0.25) acts++ } END { exit acts < 25 }' run/metrics.jsonl ||
  fail "clipping hardly acts"
i=0
for ranks in 8 3 6 1 4 2 8 3; do
  i=$((i + 6))
  run 0 train "$@" run=mixed threads=1 --ranks $ranks stop_at=$i parallel.zero=$((i / 6 % 4))
done
run 0 train "$@" run=mixed threads=2 --ranks 4 checkpoint.snapshot_every=1
run 0 digest mixed
same digest.1.1.0 out
run 0 train "$@" run=mixed threads=1 --ranks 3 --from-step 49 evaluate.every=1
grep -q 'evaluation at step 50' out || fail "no evaluation: $(tail -n 3 out)"
run 0 digest mixed
same digest.1.1.0 out
run 0 verify mixed --replay

# float32 throughout, without a log.
for ranks in 1 3; do
  run 0 train "$@" run=f$ranks threads=1 --ranks $ranks parallel.zero=1 precision.compute=float32 log.enabled=false
  run 0 digest f$ranks
  mv out float.$ranks
done
same float.1 float.3
finish
