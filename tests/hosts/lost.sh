# SPDX-License-Identifier: Apache-2.0
# labels: long
# Two hosts: a rank that is killed or stopped, and a link that is cut, are named on every rank within the time with the
# host; no rank stays; and the run goes on with the bits of one that was never interrupted.
. "$ISO_ROOT/tests/hosts/common.sh"

options="threads=1 steps=1000000 optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2"
lines() { cat k/metrics.jsonl 2>/dev/null | wc -l; }

# ours: ranks that run
ours() {
  for p in $(everyone); do
    [ "$(readlink "/proc/$p/exe")" = "$(readlink -f "$ISOTACH")" ] && echo "$p"
  done
}

# rank NUMBER: its process
rank() {
  for p in $(ours); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -q "^OMPI_COMM_WORLD_RANK=$1\$" && echo "$p"
  done | head -n 1
}

begin() {
  before=$(lines)
  across 2 2 "$ISOTACH" train "$tiny" $options run=k >log 2>log.err &
  pid=$!
  for _ in $(seq 1200); do
    [ "$(lines)" -ge $((before + 5)) ] && return
    sleep 0.05
  done
  fail "no steps: $(cat log.err)"
}

# gone WHAT SECONDS: so fast no rank is there any more
gone() {
  for _ in $(seq $(($2 * 20))); do
    [ -z "$(ours)" ] && break
    sleep 0.05
  done
  for p in $(ours); do
    fail "$1: process $p is still there after $2 s"
    kill -KILL "$p"
  done
}

# named WHAT RANKS PATTERN: each of these ranks has said it in one line
named() {
  for r in $2; do
    said=$(grep 'isotach: error' "ranks/1/rank.$r/stderr")
    echo "$said" | grep -q "error: rank $r, in the .* of step [0-9]*: $3" || fail "$1: rank $r said '$said'"
    [ "$(echo "$said" | wc -l)" -eq 1 ] || fail "$1: rank $r said '$said'"
  done
}

begin
victim=$(rank 2)
kill -STOP "$victim"
for _ in $(seq 200); do
  grep -q '"verdict": "lost"' k/status.json && break
  sleep 0.05
done
grep -q '"verdict": "lost"' k/status.json || fail "a stopped rank: $(cat k/status.json)"
gone 'a stopped rank' 10
named 'a stopped rank' '0 1 3' 'rank 2 (host isohost-b.*) did nothing for 2 s'
wait $pid
[ $? -eq 9 ] || fail "a stopped rank: not mpirun's exit code 9: $(cat log.err)"
run 0 verify k

begin
kill -KILL "$(rank 3)"
gone 'a killed rank' 10
wait $pid
named 'a killed rank' '0 1 2' 'rank 3 (host isohost-b.*) is \(gone\|not heard of any more\)'
grep -q '"verdict": "lost"' k/status.json || fail "a killed rank: $(cat k/status.json)"
run 0 verify k

# Each side says of the other that it did nothing. (mpirun cannot reach its daemon there, and is ended.)
begin
ip -n $net_a link set $link_a down
gone 'a cut link' 12
named 'a cut link' '0 1' 'rank [23] (host isohost-b) did nothing for 2 s'
named 'a cut link' '2 3' 'rank [01] (host isohost-a) did nothing for 2 s'
grep -q '"verdict": "lost"' k/status.json || fail "a cut link: $(cat k/status.json)"
for p in $(everyone); do
  case $(readlink "/proc/$p/exe") in *sshd) ;; *) kill -KILL "$p" ;; esac
done
wait $pid
ip -n $net_a link set $link_a up
run 0 verify k

stop=$(($(lines) + 10))
for _ in $(seq 50); do
  on a timeout 5 ssh -F "$scratch/ssh_config" $address_b true 2>err && break
  sleep 0.2
done
across 2 2 "$ISOTACH" train "$tiny" $options run=k stop_at=$stop >out 2>err || fail "going on: $(cat err)"
run 0 train "$tiny" $options run=single stop_at=$stop
run 0 digest single
mv out expected
run 0 digest k
same expected out
finish
