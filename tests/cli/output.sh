# SPDX-License-Identifier: Apache-2.0
# Output that cannot be written is an error, not silence.
. "$ISO_ROOT/tests/cli/common.sh"

if [ -c /dev/full ]; then
  for words in help "help config" "inspect memory $tiny" "inspect graph $tiny --json"; do
    # shellcheck disable=SC2086
    isotach $words >/dev/full 2>err
    code=$?
    [ $code -eq 3 ] || fail "isotach $words on a full disk: exit code $code"
    [ "$(wc -l <err)" -eq 1 ] && grep -q 'standard output' err || fail "isotach $words on a full disk: $(cat err)"
  done
fi
# findings without their table are said to be none
if [ -c /dev/full ]; then
  isotach doctor "$tiny" --quick --steps-s 0 >/dev/full 2>err </dev/null
  code=$?
  [ $code -eq 3 ] && grep -q 'cannot write standard output' err || fail "doctor on a full disk: exit code $code: $(cat err)"
  isotach train "$tiny" run=damaged threads=1 steps=20 >out 2>err </dev/null
  sed -i 's/"verdict": "done"/"verdict": "lost"/' damaged/status.json
  isotach verify damaged >/dev/full 2>err
  code=$?
  [ $code -eq 3 ] && grep -q 'cannot write standard output' err || fail "verify on a full disk: exit code $code: $(cat err)"
fi
{ isotach inspect graph "$tiny" 2>err; echo $? >code; } | true
[ "$(cat code)" -eq 3 ] || [ "$(cat code)" -eq 0 ] || fail "closed pipe: exit code $(cat code)"

# Started with closed descriptors, a run's files must not take their numbers: nothing printed may land in a file.
run 0 train "$tiny" run=whole threads=1
run 0 digest whole
cp out whole.digest
isotach train "$tiny" run=closed threads=1 >&- 2>&- <&-
code=$?
[ $code -eq 3 ] || fail "output closed: exit code $code"
[ -s closed/lock ] && fail "the lock of a run whose output was closed holds: $(head -c 100 closed/lock)"
for name in config.yaml model.json inputs.json; do # but for the CRC of config.yaml, which names the run
  sed -e 's#"closed"#"whole"#' -e '/^  "files": /d' -e '/^  "crc32c": /d' "closed/$name" >name
  sed -e '/^  "files": /d' -e '/^  "crc32c": /d' "whole/$name" >other
  same name other
done
[ "$(grep -c '^{"step": ' closed/metrics.jsonl)" -eq 40 ] && [ "$(wc -l <closed/metrics.jsonl)" -eq 40 ] ||
  fail "metrics of a run whose output was closed: $(head -n 1 closed/metrics.jsonl)"
run 0 verify closed
run 0 digest closed
same out whole.digest

run 0 inspect memory "$tiny"
tail -n 1 out | grep -Eqx 'arena: .* use [0-9.]+%' || fail "inspect memory ends with $(tail -n 1 out)"
use=$(tail -n 1 out | sed 's/.* use \([0-9]*\).*/\1/')
[ "$use" -ge 97 ] || fail "the arena is used to $use%"
run 0 inspect memory "$ISO_ROOT/examples/demo.yaml" # before text and vocabulary exist
use=$(tail -n 1 out | sed 's/.* use \([0-9]*\).*/\1/')
[ "$use" -ge 97 ] || fail "the demo's arena is used to $use%"
for pass in $(isotach inspect graph "$tiny" --dump-after none 2>&1 | sed 's/.*are: //; s/,//g'); do
  run 0 inspect graph "$tiny" --dump-after "$pass"
  [ -s out ] || fail "--dump-after $pass printed nothing"
done
finish
