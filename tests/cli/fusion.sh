# SPDX-License-Identifier: Apache-2.0
# inspect fusion: every row, every place that is not fused with its cause; the key decides bits, and a run says what it did.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 inspect fusion "$tiny" fusion=on
for row in joint_linear add_norm norm_grad_add grad_cast linear_loss attention attention_grad round_norm adamw_cast; do
  grep -q "^$row  *" out || fail "inspect fusion does not list $row"
done
tail -n 1 out | grep -Eqx '([0-9]+) of \1 places fused: joint_linear [0-9]+, .*' || fail "not all is fused: $(tail -n 1 out)"
grep -q 'not at' out && fail "a place is not fused: $(grep 'not at' out)"
grep -q 'measured at' out && fail "on measures: $(cat out)"
run 0 inspect fusion "$tiny" threads=1
grep -Eq '^ *measured at f32\[[0-9,]*\]: [0-9.]+ us, unfused [0-9.]+ us$' out || fail "auto does not measure: $(cat out)"
run 0 inspect fusion "$tiny" fusion='off +add_norm'
tail -n 1 out | grep -Eqx '([0-9]+) of [0-9]+ places fused: joint_linear 0, add_norm \1, norm_grad_add 0, .*' || fail "one alone: $(tail -n 1 out)"
refused 2 'command line: `fusion`: "+addnorm" is no fusion; the nearest is "add_norm" (a mode auto, on or off, then -name or +name of `isotach inspect fusion`)' \
  inspect fusion "$tiny" fusion='off +addnorm'
run 0 inspect fusion "$tiny" fusion=off
grep -q 'not at model.layers.0.self_attn.q_proj.weight: switched off' out || fail "no cause: $(cat out)"
tail -n 1 out | grep -Eqx 'fusion is off: 0 of [0-9]+ places fused' || fail "ends with $(tail -n 1 out)"
run 0 inspect fusion "$ISO_ROOT/examples/demo.yaml" --json
grep -q '"name": "joint_linear".*"places": 12, "fused": 12, "not_fused": \[\]' out || fail "--json: $(cat out)"

# Same bits on one thread and two; another form is another configuration.
run 0 train "$tiny" run=one threads=1 steps=6
grep -Eq '^# [0-9]+ of [0-9]+ places fused: .*; compiled in [0-9.]+ s \([0-9.]+ s of it to measure\), .*% of 6 steps at the peak$' out || fail "train does not say what is fused"
run 0 train "$tiny" run=two threads=2 steps=6
run 0 digest one
cp out digest
run 0 digest two
same out digest
run 0 train "$tiny" run=off threads=2 steps=6 stop_at=3 fusion=off
grep -q '^# fusion is off: ' out || fail "train does not say that fusion is off"
refused 5 'off: a resume would change the run: fusion: off -> auto; use the old settings, another `run`, or --accept' \
  train "$tiny" run=off threads=2 steps=6
run 0 train "$tiny" run=off threads=2 steps=6 fusion=off

# Forms of equal bits may change between the starts of a run, and a run says which it took.
run 0 train "$tiny" run=forms threads=2 steps=6 stop_at=2 fusion=on
run 0 train "$tiny" run=forms threads=1 steps=6 stop_at=4 fusion='off +joint_linear'
grep -q '"add_norm": {"places": [0-9]*, "fused": 0}' forms/fusion.json || fail "fusion.json: $(cat forms/fusion.json)"
run 0 train "$tiny" run=forms threads=2 steps=6 fusion='auto -grad_cast'
run 0 digest forms
same out digest
grep -q '"fusion": {"measure_s": .*"grad_cast": {"places": [0-9]*, "fused": 0}' forms/report.json || fail "report.json: $(cat forms/report.json)"
finish
