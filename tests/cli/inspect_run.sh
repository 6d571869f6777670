# SPDX-License-Identifier: Apache-2.0
# inspect snapshot|log: steps, sizes, ages, chains, rates, how far snapshots and log lead. export and tokenizer train do
# not write into a folder that holds something, unless they are told to.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=run steps=40 checkpoint.snapshot_every=10 checkpoint.keep_last=2
run 0 inspect snapshot run
grep -Eq '^step-00000040-0001 +40 +1 +[0-9]+ +[0-9]+ +[0-9]+ step-00000030-0001 +valid$' out || fail "inspect snapshot: $(cat out)"
[ "$(grep -c ' valid$' out)" -eq 2 ] || fail "inspect snapshot: $(cat out)"
run 0 inspect snapshot run --json
grep -q '"parent": "step-00000030-0001", "bytes_per_step": ' out || fail "inspect snapshot --json: $(cat out)"

# The log reaches back to the oldest snapshot kept, so that either leads to the newest step.
run 0 inspect log run
grep -q '^1[0-9] steps, [23][0-9] to 40: 0[.][0-9]* MB a step, ' out || fail "inspect log: $(cat out)"
grep -q '^durable step 40; steps that snapshots and log lead to: 0, 30 to 40$' out || fail "inspect log: $(cat out)"
grep -q '^incarnation 1 begins after step 0, ' out || fail "inspect log: $(cat out)"
run 0 inspect log run --json
for member in '"oldest_step": [23][0-9]' '"newest_step": 40' '"durable_step": 40' '"reach": "0, 30 to 40"' '"bytes_per_step": ' \
  '"stored_over_gradient": ' '"bytes_per_s": ' '"void_steps": 0' '"begins_after": 0'; do
  grep -q "$member" out || fail "inspect log --json lacks $member: $(cat out)"
done
rm -rf copy && cp -r run copy && rm -r copy/snapshots/step-00000040-0001
run 0 digest run
cp out newest
run 0 digest copy
same out newest

# keep_every keeps those of its steps beside the newest keep_last; the log then reaches back to the oldest of them.
run 0 train "$tiny" run=every steps=40 checkpoint.snapshot_every=5 checkpoint.keep_last=1 checkpoint.keep_every=20
[ "$(ls every/snapshots | tr '\n' ' ')" = "step-00000020-0001 step-00000040-0001 " ] || fail "keep_every: $(ls every/snapshots)"
run 0 inspect log every
grep -q 'lead to: 0, 20 to 40$' out || fail "keep_every: $(cat out)"
run 0 verify every --replay

run 0 export run@33 model
cp model/model.safetensors first
refused 2 "export: 'model' is not empty (config.json ...); name another folder, or say --force" export run model
same model/model.safetensors first
run 0 export run model --force
cmp -s model/model.safetensors first && fail "export --force wrote nothing"
mkdir empty
run 0 export run empty
cp "$ISO_ROOT/examples/tiny/plays.txt" .
run 0 tokenizer train plays.txt --vocabulary 300 --out words
refused 2 "tokenizer train: 'words' is not empty (tokenizer.json ...); name another folder, or say --force" \
  tokenizer train plays.txt --vocabulary 310 --out words
run 0 tokenizer train plays.txt --vocabulary 310 --out words --force
refused 3 "'run' is a run folder, not a Hugging Face folder; isotach export run DIR makes one of it" import run
run 2 train "$tiny" run=next model.init_from=run
[ "$(wc -l <err)" -eq 1 ] && grep -q 'is a run folder; make a Hugging Face folder of it first: isotach export' err || fail "init_from a run: $(cat err)"
[ ! -e next ] || fail "a refused init_from made a folder"
run 0 train "$tiny" run=run steps=40 stop_at=10
grep -q '^# nothing to do: step 40 of 40 is taken, stop_at = 10 lies behind it (--from-step goes back)$' out || fail "a smaller stop_at: $(tail -n 1 out)"
run 0 train "$tiny" run=unfused steps=40 stop_at=3 fusion=off
run 5 train "$tiny" run=unfused steps=40 fusion=on
grep -q 'fusion: off -> on' err || fail "another fusion: $(cat err)"
finish
