# SPDX-License-Identifier: Apache-2.0
# Wrong input: exactly one line that names object and cause, an exit code by kind, nothing on standard output, and no
# run folder left behind.
. "$ISO_ROOT/tests/cli/common.sh"

# The example with one line changed.
changed() { sed -e "s#tiny/#$ISO_ROOT/examples/tiny/#g" -e "$1" "$tiny" >changed.yaml; }

# ---- the config ----
changed 's/^batch: .*/batch: {sequencs: 16}/'
line=$(grep -n sequencs changed.yaml | cut -d: -f1)
refused 2 "changed.yaml:$line:9: unknown key \`batch.sequencs\`; the nearest is \`batch.sequences\`" train changed.yaml
refused 2 'command line: unknown key `optimizer.warmup_step`; the nearest is `optimizer.warmup_steps`' \
  train "$tiny" optimizer.warmup_step=1
refused 2 'command line: unknown key `vitals.x`; the nearest is `vitals.dashboard`' train "$tiny" vitals.x=1
refused 2 'command line: the value of `run` is not UTF-8 at its byte 4; give another name' train "$tiny" "run=$(printf 'bad\377')"
refused 2 'ROOT/examples/tiny.yaml: `run` = s3://b/r is no folder; give a folder of this machine, and the other place as `checkpoint.target` or `checkpoint.mirror`' \
  train "$tiny" run=s3://b/r
for root in / // /./ /../; do
  refused 2 "\`run\` = $root is the root of the file system; give a folder of the run's own" train "$tiny" "run=$root"
done
changed 's/^steps: .*/steps: many/'
line=$(grep -n 'steps: many' changed.yaml | cut -d: -f1)
refused 2 "changed.yaml:$line:8: \`steps\` must be a whole number, not \"many\"" train changed.yaml
changed 's/^seed: .*/seed: {a: 1}/'
line=$(grep -n '^seed' changed.yaml | cut -d: -f1)
refused 2 "changed.yaml:$line:1: \`seed\` must be a single value, not a mapping" train changed.yaml
refused 3 "cannot read 'none.yaml': No such file or directory; check the path" train none.yaml
refused 2 'command line: "steps" is neither a flag nor key=value' train "$tiny" steps
refused 2 'inspect: --dump-after "fold" is no pass; the passes are: build, join, autodiff, simplify, precision, update, choose, recompute, fuse, schedule, lower, memplan, barriers, check' \
  inspect graph "$tiny" --dump-after fold

# ---- what the config names ----
refused 3 "cannot read '/nowhere/tokenizer': No such file or directory; check the path" \
  train "$tiny" run=run tokenizer.path=/nowhere/tokenizer
refused 5 "ROOT/examples/tiny/tokenizer: the tokenizer has 512 ids but the model's vocab_size is 300; raise vocab_size to at least 512" \
  train "$tiny" run=run model.config.vocab_size=300
run 2 train "$tiny" run=run batch.sequences=4096
[ "$(wc -l <err)" -eq 1 ] && grep -q 'too small\|at least\|documents' err || fail "corpus too small: $(cat err)"
run 3 train "$tiny" run=run data.sources.0.path=/nowhere
[ "$(wc -l <err)" -eq 1 ] && grep -q /nowhere err || fail "missing corpus: $(cat err)"
run 7 train "$tiny" run=run memory.limit_gb=0.001
[ "$(wc -l <err)" -eq 1 ] && grep -q 'GB' err || fail "too little memory: $(cat err)"
rm -rf run

# ---- damaged files ----
mkdir tokenizer
head -c 3000 "$ISO_ROOT/examples/tiny/tokenizer/tokenizer.json" >tokenizer/tokenizer.json
run 4 tokenizer encode tokenizer --text x
[ "$(wc -l <err)" -eq 1 ] && grep -q 'tokenizer/tokenizer.json' err || fail "corrupt tokenizer: $(cat err)"
run 4 train "$tiny" run=run tokenizer.path=tokenizer
[ "$(wc -l <err)" -eq 1 ] || fail "corrupt tokenizer in a run: $(cat err)"
[ -e run ] && fail "a run folder was left by a run that never began"

cp -r "$ISO_ROOT/tests/data/golden/llama-gqa/model" model && chmod -R u+w model
run 0 import model
size=$(wc -c <model/model.safetensors)
head -c $((size - 5)) model/model.safetensors >cut && mv cut model/model.safetensors
for words in "import model" "generate model x" "export model other"; do
  # shellcheck disable=SC2086
  run 4 $words
  [ "$(wc -l <err)" -eq 1 ] && grep -q 'model.safetensors' err || fail "corrupt weights, $words: $(cat err)"
done
refused 3 "cannot read 'nowhere': No such file or directory; check the path" import nowhere
refused 3 "'nowhere' does not exist; name a run folder" digest nowhere
refused 3 "'model' is no run folder: it has no run.json" verify model
refused 3 "'model' is no run folder: it has no run.json" inspect snapshot model

# ---- init does not overwrite ----
run 0 init
cp run.yaml first.yaml
refused 2 "'run.yaml' is there already; move it away or edit it" init
same run.yaml first.yaml
run 0 inspect memory run.yaml
finish
