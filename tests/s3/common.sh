# SPDX-License-Identifier: Apache-2.0
#
# What the scripts of this folder share: `. common.sh` makes a scratch folder $work, which goes with the servers
# started for it (serve, with the state "$work/state"), and gives a few checks. Skips when python3 or moto is missing.
set -u

root=${ISO_ROOT:-$(cd "$(dirname "$0")/../.." && pwd)}
isotach=${ISOTACH:-$root/build/isotach}
command -v python3 >/dev/null 2>&1 || { echo "skipped: there is no python3" >&2; exit 77; }
"$root/tools/venv" s3 >/dev/null 2>&1 || { echo "skipped: moto cannot be installed (tools/venv s3)" >&2; exit 77; }

work=$(mktemp -d "${TMPDIR:-/tmp}/isotach-s3.XXXXXX") || exit 1
trap '"$root/tests/s3/serve" stop "$work/state"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

failed=0
check() { # check WHAT COMMAND...: the command must succeed
  what=$1
  shift
  if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
proxy() { # the proxy's options as JSON
  python3 - "$1" <<'END'
import os, sys, urllib.request
request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"] + "/.proxy/set", data=sys.argv[1].encode(), method="POST")
print(urllib.request.urlopen(request, timeout=30).read().decode())
END
}
run() { # run STATUS WORDS...: isotach with that exit status; output in out and err
  wanted=$1
  shift
  timeout -k 5 300 "$isotach" "$@" >out 2>err </dev/null
  got=$?
  [ $got -eq "$wanted" ] && return 0
  echo "exit status $got instead of $wanted of isotach $*: $(tail -n 3 err)"
  return 1
}
