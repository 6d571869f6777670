# SPDX-License-Identifier: Apache-2.0
#
# What the scripts of this folder share: `. common.sh` gives a scratch folder to work in and a few checks.
# ISOTACH is the binary, ISO_ROOT the repository.
set -u

: "${ISOTACH:?the binary to test}" "${ISO_ROOT:?the repository}"
export LC_ALL=C
scratch=$(mktemp -d "${TMPDIR:-/tmp}/isotach-cli.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
tiny=$ISO_ROOT/examples/tiny.yaml
failures=0

isotach() { timeout -k 5 100 "$ISOTACH" "$@"; }

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# run WANTED_CODE WORDS...: runs isotach; standard output and error are in the files out and err.
run() {
  run_wanted=$1
  shift
  isotach "$@" >out 2>err </dev/null
  code=$?
  [ "$code" -eq "$run_wanted" ] || fail "isotach $*: exit code $code, wanted $run_wanted: $(cat err)"
}

# refused CODE MESSAGE WORDS...: fails with this code, prints nothing on standard output and exactly this one line.
# ROOT stands for the repository in MESSAGE.
refused() {
  message=$2
  code_wanted=$1
  shift 2
  run "$code_wanted" "$@"
  [ -s out ] && fail "isotach $*: printed on standard output: $(head -c 200 out)"
  [ "$(wc -l <err)" -eq 1 ] || fail "isotach $*: $(wc -l <err) lines on standard error: $(cat err)"
  sed -e "s#$ISO_ROOT#ROOT#g" -e "s#$scratch#SCRATCH#g" err >err.plain
  printf 'isotach: error: %s\n' "$message" | cmp -s - err.plain ||
    fail "isotach $*: said  $(cat err.plain)
  wanted isotach: error: $message"
}

# same FILE FILE
same() { cmp -s "$1" "$2" || fail "$1 and $2 differ: $(diff "$1" "$2" | head -n 5)"; }

# stop PID: sends SIGSTOP and waits until no thread of it runs; one that is in a system call stops only behind it.
stop() {
  kill -STOP "$1"
  for _ in $(seq 2000); do
    sed 's/.*) //' /proc/"$1"/task/*/stat 2>/dev/null | grep -qv '^[TZ]' || return 0
    sleep 0.01
  done
  fail "process $1 does not stop"
}

finish() {
  [ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
  exit 0
}
