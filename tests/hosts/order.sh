# SPDX-License-Identifier: Apache-2.0
# labels: long
# Ranks on hosts that are host names only (UTS namespaces on one machine), placed by the launcher in blocks and in turns:
# ranks of a host are neighbours, and so are hosts of a rack, by names, by a topology.conf or by what the last start
# kept; the bits are those of one process; a rank that stops is named by its number and host; what is wrong with a file
# is said in one line.
. "$ISO_ROOT/tests/cli/common.sh"

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "host names of one's own take root"
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || skip "there is no mpirun (openmpi-bin)"
"$mpirun" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE' || skip "mpirun is not Open MPI's (openmpi-bin)"
[ -f "$ISO_BUILD/isotach-mpi.so" ] || skip "there is no isotach-mpi.so (libopenmpi-dev)"
unshare --uts true 2>err || skip "namespaces are not allowed here: $(head -n 1 err)"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe

cat >named <<'NAMED'
shift "$OMPI_COMM_WORLD_RANK"
name=$1
shift
while [ "$1" != -- ]; do shift; done
shift
exec unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "$name" "$@"
NAMED

# named "HOST HOST..." WORDS...: isotach WORDS with a rank on each of these, in this order; $code is mpirun's
named() {
  hosts=$1
  shift
  # shellcheck disable=SC2086
  timeout -k 5 100 "$mpirun" -n "$(echo $hosts | wc -w)" --bind-to none sh "$PWD/named" $hosts -- "$ISOTACH" "$@" >out 2>err </dev/null
  code=$?
}

# said WHAT LINE: it is a line of the output
said() { grep -qxF "$2" out || fail "$1: no line '$2' in: $(grep '^#' out; cat err)"; }

set -- "$tiny" threads=1 steps=12 parallel.virtual_workers=8
run 0 train "$@" run=one
run 0 digest one
mv out expected

cat >switches.conf <<'END'
SwitchName=top Switches=zeta,alpha
SwitchName=zeta Nodes=r1n1,r2n[1]
SwitchName=alpha Nodes=r[1-2]n2 # beside them
END
cat >others.conf <<'END'
SwitchName=left Nodes=r1n1
SwitchName=middle Nodes=r2n[1-2]
SwitchName=right Nodes=r1n2
END
blocks="r1n1 r1n1 r1n2 r2n1 r2n1 r2n2" turns="r1n1 r2n1 r1n2 r2n2 r1n1 r2n1" last="r2n2 r2n1 r1n2 r1n1 r1n1 r2n1"

# placed NAME HOSTS LINE WORDS...: a run like this has that order, and the bits of one process
placed() {
  name=$1 hosts=$2 line=$3
  shift 3
  named "$hosts" train "$@" run="$name"
  [ $code -eq 0 ] && ! grep -q 'isotach: \(error\|warning\)' err || fail "$name: exit code $code, $(cat err)"
  said "$name" "$line"
  run 0 digest "$name"
  same expected out
}

placed blocks "$blocks" '# hosts by their names: r1n1 (ranks 0-1), r1n2 (2) | r2n1 (3-4), r2n2 (5)' "$@"
placed turns "$turns" '# hosts by their names: r1n1 (ranks 0-1), r1n2 (2) | r2n1 (3-4), r2n2 (5)' "$@"
placed last "$last" '# hosts by their names: r2n2 (rank 0), r2n1 (1-2) | r1n1 (3-4), r1n2 (5)' "$@"
placed switches "$turns" "# hosts by $PWD/switches.conf: r1n1 (ranks 0-1), r2n1 (2-3) | r1n2 (4), r2n2 (5)" "$@" parallel.topology=switches.conf
placed others "$turns" "# hosts by $PWD/others.conf: r1n1 (ranks 0-1) | r2n1 (2-3), r2n2 (4) | r1n2 (5)" "$@" parallel.topology=others.conf
placed given "c b a c b a" '# hosts by their names: c (ranks 0-1), a (2-3), b (4-5)' "$@"
placed two "zoo bar zoo bar" '# hosts as the launcher gave them: zoo (ranks 0-1), bar (2-3)' "$@"
grep -q topology switches/config.yaml 2>/dev/null && fail "config.yaml says what versions before it do not know"

# The start keeps it: for the next one without the file, and to be looked at.
named "$turns" train "$@" run=kept stop_at=4 parallel.topology=switches.conf
said 'numbers' "# ranks are numbered along it: rank 1 is the launcher's 4"
grep -q '"hosts": {"by": "file", "file": ".*switches.conf", "list": \[{"host": "r1n1", "racks": \["top", "zeta"\], "ranks": \[0, 4\]}, {"host": "r2n1"' \
  kept/incarnations/0001.json || fail "the record of a start: $(cat kept/incarnations/0001.json)"
named "$blocks" train "$@" run=kept stop_at=6
said 'kept' "# hosts by $PWD/switches.conf: r1n1 (ranks 0-1), r2n1 (2-3) | r1n2 (4), r2n2 (5)"
grep -q 'a new one' out && fail "an order of before is said to be new: $(grep '^#' out)"
named "r1n1 r2n1 r3n1" train "$@" run=kept stop_at=8
said 'another host' '# hosts by their names: r1n1 (rank 0), r2n1 (1), r3n1 (2)'
said 'another host' '# the order of hosts is a new one: host r3n1 was not there at start 2'
named "r1n1 r3n1" train "$@" run=kept stop_at=9
said 'a host less' '# the order of hosts is a new one: host r2n1 of start 3 is not there'
named "r3n1 r1n1" train "$@" run=kept stop_at=10
said 'rank 0 elsewhere' '# the order of hosts is a new one: rank 0 is on r3n1, at start 4 it was on r1n1'
run 0 train "$@" run=kept --ranks 3
run 0 digest kept
same expected out
run 0 verify kept --replay
run 0 inspect log kept
grep -A1 '^incarnation 1 ' out | grep -q "^  hosts by $PWD/switches.conf: r1n1 (ranks 0-1), r2n1 (2-3) | r1n2 (4), r2n2 (5)$" || fail "inspect log: $(head out)"
run 0 inspect log kept --json
python3 -c 'import json,sys; i = json.load(open("out"))["incarnations"]; assert i[2]["hosts"]["list"][2]["host"] == "r3n1" and "hosts" not in i[5], i' ||
  fail "inspect log --json: $(cat out)"
run 0 topology "$tiny" run=kept
grep -A2 '^hosts of start 5 of kept, in the order of their names$' out | grep -q '^host r1n1: rank 1$' || fail "topology of a run: $(cat out)"

# Names that say nothing: as given, with a warning that says why.
named "anna bert cora anna bert cora" train "$@" run=nothing
[ $code -eq 0 ] && [ "$(grep -c 'isotach: warning' err)" -eq 1 ] &&
  grep -q "warning: order of hosts: as Open MPI's mpirun gave them, since the names anna and bert are not of one form" err ||
  fail "names that say nothing: exit code $code, $(cat err)"
said 'names that say nothing' '# hosts as the launcher gave them: anna (ranks 0-1), bert (2-3), cora (4-5)'
run 0 digest nothing
same expected out

named "$turns" topology "$tiny" run=none parallel.topology=switches.conf --json
python3 - out <<'PYTHON' || fail "topology: exit code $code, $(cat out err)"
import json, sys
said = json.load(open(sys.argv[1]))
assert said["order_by"] == "file" and said["file"].endswith("/switches.conf") and said["cause"] == ""
hosts = said["hosts"]
assert [h["host"] for h in hosts] == ["r1n1", "r2n1", "r1n2", "r2n2"]
assert [h["racks"][1] for h in hosts] == ["zeta", "zeta", "alpha", "alpha"]
assert [h["ranks"] for h in hosts] == [[0, 1], [2, 3], [4], [5]]
assert [h["launched"] for h in hosts] == [[0, 4], [1, 5], [2], [3]]
assert said["pairs"] == 6 and len(said["measured"]) == 6
assert all(m["latency_ns"] > 0 and m["gb_per_s"] > 0 for m in said["measured"])
assert said["measured"][0] == {**said["measured"][0], "ranks": [0, 2], "both_in": "zeta"}
PYTHON
named "$turns" topology
cat >wanted <<'END'
rack r1n*
  host r1n1: ranks 0-1 (the launcher's 0, 4)
  host r1n2: rank 2
rack r2n*
  host r2n1: ranks 3-4 (the launcher's 1, 5)
  host r2n2: rank 5 (the launcher's 3)
6 ranks of Open MPI's mpirun on 4 hosts, whose order is that of their names
END
sed -n -e 's/; [0-9].*//' -e 1,7p out >tree
same tree wanted

# Wrong files: one line, and no run.
wrong() {
  printf "$2" >bad
  named "$turns" train "$tiny" threads=1 steps=12 parallel.virtual_workers=8 run=none parallel.topology=bad
  [ $code -eq 2 ] && [ "$(grep -c 'isotach: ' err)" -eq 1 ] && grep -qF "isotach: error: $PWD/bad$3" err || fail "$1: exit code $code, $(cat err)"
  [ -e none ] && fail "$1: a run that cannot start made a folder"
}
wrong 'a missing host' 'SwitchName=s Nodes=r1n[1-2],r2n1\n' ': host r2n2 stands at no switch; add it to the Nodes= of its own, or leave parallel.topology empty'
wrong 'a host twice' 'SwitchName=s Nodes=r[1-2]n[1-2]\nSwitchName=t Nodes=r2n2\n' ': host r2n2 stands twice, at switch s (line 1) and at t (line 2); leave it at one'
wrong 'a circle' 'SwitchName=s Switches=t\nSwitchName=t Switches=s\n' ':1: below itself, by its Switches= or theirs, is switch "s"'
wrong 'no topology.conf' 'r1n1 rack1\n' ':1: not KEY=VALUE: "r1n1"'
head -c 2000000 /dev/zero | tr '\0' '#' >huge
named "$turns" train "$@" run=none parallel.topology=huge
[ $code -eq 2 ] && grep -q 'error: .*/huge: has 2000000 bytes; a topology.conf has at most 1 MiB' err || fail "a huge file: exit code $code, $(cat err)"
named "$turns" train "$@" run=none parallel.topology=/dev/zero
[ $code -eq 2 ] && grep -q 'error: /dev/zero: is no plain file' err || fail "no plain file: exit code $code, $(cat err)"
named "$turns" train "$@" run=none parallel.topology=nowhere
[ $code -ne 0 ] && [ "$(grep -c 'isotach: error: cannot .*nowhere' err)" -eq 1 ] || fail "no file: exit code $code, $(cat err)"

# A rank that stops is named by its number in the order: the launcher's 1 is rank 2.
named "a1 a2 a1 a2" train "$tiny" threads=1 steps=1000000 optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2 run=k &
pid=$!
for _ in $(seq 600); do
  [ "$(cat k/metrics.jsonl 2>/dev/null | wc -l)" -ge 5 ] && break
  sleep 0.05
done
victim=
for p in /proc/[0-9]*; do
  [ "$(readlink "$p/exe" 2>/dev/null)" = "$(readlink -f "$ISOTACH")" ] && [ "$(readlink "$p/cwd" 2>/dev/null)" = "$(pwd -P)" ] &&
    tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK=1$' && victim=${p#/proc/}
done
[ -n "$victim" ] || fail "no rank to stop: $(cat err)"
[ -z "$victim" ] || kill -STOP "$victim"
wait $pid
for r in 0 1 3; do
  grep -q "error: rank $r, in the .* of step [0-9]*: rank 2 (host a2.*) did nothing for 2 s" err || fail "a stopped rank: rank $r: $(cat err)"
done
grep -q '"verdict": "lost"' k/status.json || fail "a stopped rank: $(cat k/status.json)"
[ -z "$victim" ] || [ ! -e "/proc/$victim" ] || kill -KILL "$victim"
finish
