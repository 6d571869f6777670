# SPDX-License-Identifier: Apache-2.0
#
# isotach doctor: rows, exit codes, faults that are put in, and nothing left behind.
. "$ISO_ROOT/tests/cli/common.sh"

# row CHECK VERDICT: the JSON in `out` has this check with this verdict
row() {
  tr '{' '\n' <out | grep "\"check\": \"$1\"" | grep -q "\"verdict\": \"$2\"" ||
    fail "doctor: $1 is not $2: $(tr '{' '\n' <out | grep "\"check\": \"$1\"")"
}
# doctor WANTED WORDS...: WANTED is a pattern of exit codes; a busy machine may add warnings
doctor() {
  doctor_wanted=$1
  shift
  timeout -k 5 100 "$ISOTACH" doctor --quick "$@" >out 2>err </dev/null
  code=$?
  case $code in
  $doctor_wanted) ;;
  *) fail "isotach doctor $*: exit code $code, wanted $doctor_wanted: $(cat err)" ;;
  esac
}

doctor '[01]' "$tiny" run=here --steps-s 1 --json
for check in build limits clock 'matrix products' tokenizer corpus memory 'real steps' storage publishing 'write bandwidth' \
  sync; do
  tr '{' '\n' <out | grep -q "\"check\": \"$check\"" || fail "doctor: no row for $check"
done
row tokenizer ok
row corpus ok
row memory ok
row 'real steps' ok
row publishing ok
[ -e here ] && fail "doctor wrote into the run's folder"
[ -z "$(ls -d isotach-doctor.* 2>/dev/null)" ] || fail "doctor left $(ls -d isotach-doctor.*)"

# the table for people: a row each, no line of JSON, and the summary last
doctor '[01]' "$tiny" run=here --steps-s 0
head -n 1 out | grep -q '^check  *verdict  *found$' || fail "no head of the table: $(head -n 1 out)"
tail -n 1 out | grep -q '^here: fit' || fail "no summary: $(tail -n 1 out)"
grep -q '^real steps  *skipped' out || fail "steps that were not asked for are not said to be skipped"

# what would stop a run: named, exit code 2, and no steps are tried
doctor 2 "$tiny" run=here tokenizer.path=nowhere --steps-s 1 --json
row inputs stop
row 'real steps' skipped
grep -q 'do not start here: inputs' err || fail "what stops the run is not named: $(cat err)"
doctor 2 "$tiny" run=here memory.limit_gb=0.001 --steps-s 1 --json
row memory stop
grep -q '0.001 GB are allowed by memory.limit_gb' out || fail "the limit is not named: $(cat out)"
row 'real steps' skipped
: >file
doctor 2 "$tiny" run=file/below/run --steps-s 0 --json
row storage stop
grep -q 'file is a file' out || fail "what is in the way is not named: $(cat out)"
doctor 2 "$tiny" run=here --steps-s 0 checkpoint.mirror=file/mirror --json
row mirror stop
doctor '[01]' "$tiny" run=here --steps-s 0 checkpoint.mirror=mirror --json
row mirror ok
[ -z "$(ls mirror)" ] || fail "doctor left $(ls mirror) in the mirror"

doctor 2 "$tiny" run=here --steps-s 1 --json model.config.hidden_size=16384 model.config.intermediate_size=65536 \
  model.config.num_hidden_layers=200
row memory stop
row 'real steps' skipped
export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=y AWS_ENDPOINT_URL=http://127.0.0.1:9
ISOTACH_S3_GIVE_UP_S=1 doctor 2 "$tiny" run=here --steps-s 0 --json checkpoint.mirror=s3://bucket/prefix
row mirror stop
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL

# warnings
ISOTACH_CPU=scalar doctor 1 "$tiny" run=here --steps-s 0 --json
row build warning
(
  ulimit -n 64
  timeout -k 5 100 "$ISOTACH" doctor --quick "$tiny" run=here --steps-s 0 --json >out 2>err
)
row limits warning

# ranks are tried as ranks
doctor '[01]' "$tiny" run=here --ranks 2 parallel.virtual_workers=2 --steps-s 1 --json
row 'real steps' ok
tr '{' '\n' <out | grep -q '"check": "reduction wait"' || fail "two ranks have no row for the reduction's wait"

# a misspelt key is that error
run 2 doctor "$tiny" batch.sequencess=3
grep -q 'batch.sequences' err || fail "the nearest key is not named: $(cat err)"
finish
