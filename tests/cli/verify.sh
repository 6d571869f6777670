# SPDX-License-Identifier: Apache-2.0
# A damaged snapshot is named by verify, set aside by the next start, and the older one and the log are used.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=run threads=1 stop_at=20
run 0 train "$tiny" run=run threads=1 stop_at=31
run 0 digest run@20
cp out twenty
run 0 digest run
cp out last
run 0 verify run
run 0 inspect snapshot run
[ "$(grep -c ' valid$' out)" -eq 2 ] || fail "inspect snapshot: $(cat out)"

file=$(ls run/snapshots/step-00000031-*/*.safetensors)
printf 'X' | dd of="$file" bs=1 seek=20000 conv=notrunc 2>/dev/null
run 1 verify run
grep -q 'step-00000031' out || fail "verify does not name the damaged snapshot: $(cat out)"
run 0 inspect snapshot run
grep -q 'step-00000031.* damaged: ' out || fail "inspect snapshot: $(cat out)"
run 0 digest run # by the log behind the older one
same out last
run 0 digest run@20
same out twenty
run 0 train "$tiny" run=run threads=1
run 0 train "$tiny" run=whole threads=1
run 0 digest whole
cp out whole.digest
run 0 digest run
same out whole.digest
ls run/aside | grep -q 'step-00000031' || fail "the damaged snapshot is not in aside/"

# The copies of a run's inputs are part of it: gone, cut, or another run's, each is a line that names it.
cp "$ISO_ROOT/examples/tiny/tokenizer/"* .
sed 's/<|endoftext|>/<|beginoftext|>/g' tokenizer.json >other.json
for name in config.yaml model.json inputs.json tokenizer/tokenizer.json; do
  for how in gone cut; do
    rm -rf copy && cp -r run copy && rm "copy/$name"
    [ $how = cut ] && head -c 40 "run/$name" >"copy/$name"
    run 1 verify copy
    [ "$(wc -l <out)" -eq 1 ] && grep -q "${name%/*}" out && [ "$(wc -l <err)" -eq 1 ] ||
      fail "verify with $name $how: $(cat out err)"
  done
done
# A digit changed in the model's config, and another run's model: weights would land in the wrong model.
for change in 's/"rope_theta":[[:space:]]*1/"rope_theta": 2/' 's/"rms_norm_eps":[[:space:]]*1/"rms_norm_eps": 3/'; do
  rm -rf copy && cp -r run copy && sed "$change" run/model.json >copy/model.json
  cmp -s run/model.json copy/model.json && fail "nothing changed by $change"
  run 1 verify copy
  grep -q '^inputs: ' out || fail "verify with $change: $(cat out err)"
  for verb in digest "export" generate; do
    case $verb in export) run 4 export copy exported ;; generate) run 4 generate copy A ;; *) run 4 digest copy ;; esac
    grep -q 'is not what the run was started with' err || fail "$verb with $change: $(cat err)"
  done
done
rm -rf copy && cp -r run copy && cp other.json copy/tokenizer/tokenizer.json
rm -f copy/tokenizer/tokenizer_config.json
run 1 verify copy
grep -q '^tokenizer: ' out || fail "verify with another tokenizer: $(cat out err)"
finish
