# SPDX-License-Identifier: Apache-2.0
# Every reference case in the project, in both types: logits, loss, gradients, ten steps of training, greedy tokens.
. "$ISO_ROOT/tests/cli/common.sh"

count=0
for case in "$ISO_ROOT"/tests/data/golden/*/; do
  case=${case%/}
  [ -f "$case/case.json" ] || continue
  count=$((count + 1))
  for dtype in float32 bfloat16; do
    run 0 validate "$case/model" --reference "$case" --dtype $dtype
    [ "$code" -eq 0 ] || cat out
  done
done
[ $count -ge 8 ] || fail "only $count reference cases found"

# A model with a few other weights is told apart, one with other shapes is refused.
case=$ISO_ROOT/tests/data/golden/llama-gqa
cp -r "$case/model" other && chmod -R u+w other
half=$(($(wc -c <other/model.safetensors) / 2))
dd if=other/model.safetensors of=other/model.safetensors bs=1 skip=$((half - 4096)) seek=$half count=1024 conv=notrunc 2>/dev/null
run 1 validate other --reference "$case"
grep -q BROKEN out || fail "no bound is broken by other weights: $(cat out)"
run 5 validate "$case/model" --reference "$ISO_ROOT/tests/data/golden/llama-tied-llama3rope"
run 0 validate "$case/model" --reference "$case" --json
grep -q '"passed": true' out || fail "--json: $(cat out)"
finish
