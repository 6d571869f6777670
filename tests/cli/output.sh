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
{ isotach inspect graph "$tiny" 2>err; echo $? >code; } | true
[ "$(cat code)" -eq 3 ] || [ "$(cat code)" -eq 0 ] || fail "closed pipe: exit code $(cat code)"
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
