# SPDX-License-Identifier: Apache-2.0
#
# What ends no run: signals that ask for something before or behind the steps, a limit on the size of files, pipes and
# links where a file is to be written; and what reaches no terminal: control characters of names.
. "$ISO_ROOT/tests/cli/common.sh"

# SIGUSR1 and SIGUSR2 from the first moment to the last
for number in USR1 USR2; do
  "$ISOTACH" train "$tiny" run=asked-$number threads=1 steps=40 >out 2>err </dev/null &
  pid=$!
  # the third digit from the right has both signals: ignored, or caught
  until grep -q '^Sig\(Ign\|Cgt\):.*[^0]..$' "/proc/$pid/status" 2>/dev/null && grep -q train "/proc/$pid/cmdline"; do
    kill -0 $pid 2>/dev/null || break
  done
  while kill -$number $pid 2>/dev/null; do :; done
  wait $pid
  code=$?
  [ $code = 0 ] || fail "SIG$number up to the end: exit code $code: $(cat err)"
done
isotach digest asked-USR1 >a
isotach digest asked-USR2 >b
same a b

# files may not grow beyond 100 kB
(
  ulimit -f 100
  timeout -k 5 100 "$ISOTACH" doctor "$tiny" run=small --quick --json >out 2>err </dev/null
  echo $? >code
)
case $(cat code) in
1 | 2) ;;
*) fail "doctor under a file limit: exit code $(cat code): $(cat err)" ;;
esac
[ -z "$(ls -d isotach-doctor.* 2>/dev/null)" ] || fail "doctor left $(ls -d isotach-doctor.*)"
(
  ulimit -f 100
  timeout -k 5 100 "$ISOTACH" train "$tiny" run=small threads=1 steps=20 >out 2>err </dev/null
  echo $? >code
)
[ "$(cat code)" -lt 128 ] || fail "train under a file limit: exit code $(cat code): $(cat err)"

# storage that takes no more lines ends no training, whether there is a log or not
(
  ulimit -f 60
  timeout -k 5 100 "$ISOTACH" train "$tiny" run=unlogged threads=1 steps=200 log.enabled=false >out 2>err </dev/null
  echo $? >code
)
[ "$(cat code)" = 3 ] || fail "train whose lines and snapshots find no room: exit code $(cat code): $(cat err)"
grep -q 'metrics.jsonl cannot be written (see above); its lines are kept in memory meanwhile' err || fail "not said: $(cat err)"
grep -q '^step 200/200 ' out || fail "the steps were not taken: $(tail -n 2 out)"

# a pipe and a link where vitals.json and a trace are to be written
run 0 train "$tiny" run=odd threads=1 steps=20 stop_at=2
mkfifo odd/vitals.json.next odd/trace-00000003.json.next
echo mine >mine
run 0 train "$tiny" run=odd threads=1 steps=20 stop_at=10 --trace 60s
[ -f odd/vitals.json ] && [ -f odd/trace-00000003.json ] || fail "not written: $(ls odd)"
ln -s "$PWD/mine" odd/vitals.json.next
ln -s "$PWD/mine" odd/trace-00000011.json.next
run 0 train "$tiny" run=odd threads=1 steps=20 --trace 60s
[ "$(cat mine)" = mine ] || fail "a link was followed"

# control characters
name=$(printf 'a\033[31mb\007')
run 0 train "$tiny" run="$name" threads=1 steps=20 stop_at=2
for words in train doctor; do
  [ $words = train ] || isotach doctor "$tiny" run="$name" steps=20 --quick --steps-s 0 >out 2>err </dev/null
  grep -q 'a?\[31mb' out || fail "$words does not name the run"
  cat out err | tr -d '\n\t\r -~\200-\377' | grep -q . && fail "control characters of $words"
done
sed 's/"name": "linear_cross_entropy"/"name": "\\u001b[31mevil\\u0007"/' odd/trace-00000011.json >evil.json
run 0 trace evil.json
tr -d '\n\t -~\200-\377' <out | grep -q . && fail "control characters of a trace"
finish
