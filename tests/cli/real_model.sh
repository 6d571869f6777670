# SPDX-License-Identifier: Apache-2.0
# labels: long
# A real pretrained model (SmolLM2-135M-Instruct, a Llama), if ISO_REAL_MODEL names its Hugging Face folder in float32:
# greedy continuation, loss and bits per byte are what transformers computes.
. "$ISO_ROOT/tests/cli/common.sh"

[ -n "${ISO_REAL_MODEL:-}" ] || { echo "skipped: ISO_REAL_MODEL names no folder"; exit 77; }
run 0 generate "$ISO_REAL_MODEL" "The capital of France is" --greedy --max-tokens 24 --ids
echo "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34 34 216 33 34 42 33" >expected
same out expected

printf '%s %s' "The water cycle describes how water moves between the oceans, the air and the land. The sun heats the sea," \
  "and some of the water rises as vapour. High in the cold air it turns into clouds, and later it falls as rain or snow." >text
[ "$(wc -c <text)" -eq 224 ] || fail "the text has $(wc -c <text) bytes"
run 0 evaluate "$ISO_REAL_MODEL" text --no-eos --json
number() { sed "s/.*\"$1\": \([0-9.]*\).*/\1/" out; }
awk -v loss="$(number loss)" -v bits="$(number bits_per_byte)" 'BEGIN {
  exit !(loss > 3.057567 - 2e-5 && loss < 3.057567 + 2e-5 && bits > 1.054204 - 1e-5 && bits < 1.054204 + 1e-5) }' ||
  fail "loss $(number loss), wanted 3.057567; bits per byte $(number bits_per_byte), wanted 1.054204"
finish
