# SPDX-License-Identifier: Apache-2.0
# labels: long
# Ids of a few megabytes for each tokenizer at hand beside those of the reference libraries, which tools/venv installs.
. "$ISO_ROOT/tests/cli/common.sh"

build=$(dirname "$ISOTACH")
VENV=$build/venv "$ISO_ROOT/tools/venv" tokenizers >venv 2>&1 || { echo "skipped: $(tail -1 venv)"; exit 77; }
VENV=$build/venv BUILD=$build timeout -k 5 1200 "$ISO_ROOT/bench/tokenizers/exact" --megabytes 6 --seed 7 >exact 2>&1 ||
  fail "ids differ: $(cat exact)"
[ "$(grep -c ' 0 differ ' exact)" -eq 9 ] || fail "not 9 comparisons: $(cat exact)"
finish
