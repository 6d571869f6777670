# SPDX-License-Identifier: Apache-2.0
#
# vitals.tensorboard: each start leaves a file of events, bits are those of a run without it, and verify has nothing
# against them. What they hold: tests/vitals/test_events.c, tensorboard.sh.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=with steps=60 stop_at=20 vitals.tensorboard=true
run 0 train "$tiny" run=with steps=60 vitals.tensorboard=true vitals.metrics_port=0
run 0 train "$tiny" run=without steps=60
isotach digest with >a
isotach digest without >b
same a b
[ "$(ls with/tensorboard | grep -c '^events.out.tfevents.[0-9]*\.')" -eq 2 ] || fail "not two files: $(ls with/tensorboard)"
for file in with/tensorboard/*; do
  for text in brain.Event:2 'vocab_size' gradients/layers.1 tokens_per_s; do
    grep -aq "$text" "$file" || fail "no $text in $file"
  done
done
[ -e without/tensorboard ] && fail "events that nobody asked for"
run 0 verify with
finish
