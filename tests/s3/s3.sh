#!/bin/sh
# labels: long
# SPDX-License-Identifier: Apache-2.0
#
# s3:// against moto, which checks secrets, through a proxy that is slow and goes wrong. Needs python3 and, once, a
# package index.
. "$(dirname "$0")/common.sh"
blobs=${ISO_BUILD:-$root/build}/blobs
# fails STATUS WORDS COMMAND...: exit status and a message that holds WORDS.
fails() {
  status=$1
  words=$2
  shift 2
  timeout 120 "$@" >"$work/out" 2>"$work/err"
  got=$?
  [ $got -eq "$status" ] && grep -qF -- "$words" "$work/err" && return 0
  echo "exit status $got instead of $status, or not '$words' in: $(cat "$work/err")"
  return 1
}
count() { proxy '{}' | sed "s/.*\"$1\": \([0-9]*\).*/\1/"; }
same() { # same NAME COMMAND...: prints what is expected in $work/NAME
  name=$1
  shift
  timeout 400 "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }
  cat "$work/err"
  cmp -s "$work/out" "$work/$name" || { diff "$work/out" "$work/$name" | head -n 5; return 1; }
}

# ---- a corpus with several pages of keys, and keys that need care ----

mkdir -p "$work/data/many" "$work/data/odd"
python3 - "$work/data" <<'END'
import gzip, os, random, sys
folder, dice = sys.argv[1], random.Random(1)
words = [bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz", k=dice.randint(1, 9))) for _ in range(5000)]
def text(n): return b" ".join(dice.choices(words, k=n))
open(folder + "/big.txt", "wb").write(text(1_200_000))
for i in range(1100): open(f"{folder}/many/{i}.txt", "wb").write(text(dice.randint(1, 30)))
for name in ["a b.txt", "a+b.txt", "a%2Fb.txt", "caf\u00e9 \U0001f600.txt", "&<>'.txt", "~tilde=?#.txt", "empty.txt"]:
    open(f"{folder}/odd/{name}", "wb").write(b"" if name == "empty.txt" else name.encode())
data = text(300_000)
open(folder + "/text.gz", "wb").write(gzip.compress(data[:1_000_000], 1) + gzip.compress(data[1_000_000:], 1))
open(os.path.dirname(folder) + "/text", "wb").write(data)
END
"$blobs" sum "$work/data" 1 >"$work/all" 2>/dev/null || exit 1
"$blobs" sum "$work/data/big.txt" 1 >"$work/big" 2>/dev/null || exit 1

export LIFE_S=1400
"$root/tests/s3/serve" start "$work/state" corpus "$work/data" >"$work/environment" || exit 1
. "$work/environment"
secret=$AWS_SECRET_ACCESS_KEY

# ---- a network without faults ----

"$blobs" list s3://corpus/ >"$work/listed" || failed=1
check "all pages of the listing" test "$(wc -l <"$work/listed")" -eq 1109
check "all objects as they are" same all "$blobs" sum s3://corpus/ 8
check "an object decompressed" sh -c '"$1" unpack s3://corpus/text.gz "$2/unpacked" && cmp "$2/unpacked" "$2/text"' - "$blobs" "$work"

# ---- who asks ----

export AWS_SECRET_ACCESS_KEY=wrong
check "a wrong secret, object" fails 3 "SignatureDoesNotMatch" "$blobs" list s3://corpus/big.txt
check "a wrong secret, prefix" fails 3 "check AWS_SECRET_ACCESS_KEY" "$blobs" list s3://corpus/
check "a wrong secret, reading" fails 3 "check AWS_SECRET_ACCESS_KEY" "$blobs" read s3://corpus/big.txt 10 x
export AWS_SECRET_ACCESS_KEY="$secret"
check "an unknown key" fails 3 "check AWS_ACCESS_KEY_ID" env AWS_ACCESS_KEY_ID=AKIANOBODY "$blobs" list s3://corpus/
before=$(count requests)
check "no credentials" fails 2 "no S3 credentials" env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY HOME=/nowhere "$blobs" list s3://corpus/
check "which is said before any request" test "$(count requests)" -eq "$before"
mkdir -p "$work/home/.aws"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$AWS_ACCESS_KEY_ID" "$secret" >"$work/home/.aws/credentials"
check "credentials from a file" same big env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY HOME="$work/home" "$blobs" sum s3://corpus/big.txt

# ---- what is not there, what changed ----

check "no such key" fails 3 "does not exist" "$blobs" list s3://corpus/none
check "no such prefix" fails 3 "no object below" "$blobs" list s3://corpus/none/
check "no such bucket" fails 3 "NoSuchBucket" "$blobs" list s3://nothing/
check "another version" fails 5 "changed while in use" "$blobs" read s3://corpus/big.txt 1000 0123456789abcdef

# ---- a bad network ----

proxy '{"latency_ms": 200, "errors": 0.01, "stall_s": 15}' >/dev/null
check "200 ms and 1% errors" same big "$blobs" sum s3://corpus/big.txt 16 16384
proxy '{"latency_ms": 5, "jitter": 1, "errors": 0.25, "stall_s": 4}' >/dev/null
export ISOTACH_S3_STALL_S=2
check "25% errors" same all "$blobs" sum s3://corpus/ 8 65536
for kind in 503 500 refuse reset truncate stall; do
  check "with $kind among them" test "$(count $kind)" -gt 10
done
proxy '{"latency_ms": 0, "errors": 0, "bytes_per_s": 400000}' >/dev/null
check "a slow link is no stall" same big "$blobs" sum s3://corpus/big.txt 1 2000000
proxy '{"bytes_per_s": 0, "errors": 0.8, "kinds": ["truncate"]}' >/dev/null
check "bodies that are mostly cut" same big "$blobs" sum s3://corpus/big.txt 4 65536
export ISOTACH_S3_GIVE_UP_S=4
began=$(date +%s)
proxy '{"errors": 1, "kinds": ["503"]}' >/dev/null
check "a service that is down" fails 3 "HTTP 503" "$blobs" read s3://corpus/big.txt 1000 x
proxy '{"errors": 1, "kinds": ["refuse"]}' >/dev/null
check "connections that break" fails 3 "given up after" "$blobs" list s3://corpus/
proxy '{"errors": 1, "kinds": ["stall"], "stall_s": 30}' >/dev/null
check "a service that stands still" fails 3 "given up after" "$blobs" read s3://corpus/many/1.txt 10 x
check "all given up in time" test $(($(date +%s) - began)) -lt 60
exit $failed
