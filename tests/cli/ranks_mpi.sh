# SPDX-License-Identifier: Apache-2.0
# Ranks that Open MPI's mpirun starts (ranks_mpich.sh: MPICH's): the same bits as --ranks and one process, the exit code
# is the verdict, a rank that dies or stops is named by the others, and no process stays.
want=${want:-openmpi}
. "$ISO_ROOT/tests/cli/common.sh"

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
launchers=
for name in mpirun.openmpi mpirun.mpich mpirun mpiexec.hydra; do
  version=$("$name" --version 2>/dev/null | head -n 3) || continue
  case $version in
  *"Open MPI"* | *OpenRTE*) kind=openmpi module=isotach-mpi.so ;;
  *HYDRA*) kind=mpich module=isotach-mpich.so ;;
  *) continue ;;
  esac
  [ -f "$ISO_BUILD/$module" ] || continue
  case $launchers in *":$kind"*) continue ;; esac
  launchers="$launchers $name:$kind"
done
case $launchers in
*":$want"*) ;;
*)
  echo "skipped: no mpirun of $want with a module of its MPI (openmpi-bin and libopenmpi-dev, mpich and libmpich-dev)"
  exit 77
  ;;
esac

# ours: processes of this binary that were started by this test.
ours() {
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe" 2>/dev/null)" = "$binary" ] && [ "$(readlink "$p/cwd" 2>/dev/null)" = "$scratch" ] && echo "${p#/proc/}"
  done
}
binary=$(readlink -f "$ISOTACH")
scratch=$(pwd -P)

# rank NUMBER: its process
rank() {
  for p in $(ours); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -q -e "^OMPI_COMM_WORLD_RANK=$1\$" -e "^PMI_RANK=$1\$" && echo "$p"
  done | head -n 1
}

lines() { cat k/metrics.jsonl 2>/dev/null | wc -l; }

# begin RANKS WORDS...: starts run k with them, until it has taken a few steps
begin() {
  count=$1
  shift
  before=$(lines)
  timeout -k 5 100 "$mpirun" -n "$count" "$ISOTACH" train "$tiny" threads=1 steps=1000000 \
    optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2 run=k "$@" >log 2>log.err &
  pid=$!
  for _ in $(seq 600); do
    [ "$(lines)" -ge $((before + 5)) ] && break
    sleep 0.05
  done
}

# ends WHAT SECONDS: so fast; nothing stays. $code is mpirun's.
ends() {
  began=$(date +%s)
  wait $pid
  code=$?
  [ $(($(date +%s) - began)) -le "$2" ] || fail "$1: took $(($(date +%s) - began)) s"
  for _ in $(seq 60); do
    [ -z "$(ours)" ] && break
    sleep 0.05
  done
  for p in $(ours); do
    fail "$1: process $p is still there"
    kill -KILL "$p"
  done
}

set -- "$tiny" threads=1 steps=24 parallel.virtual_workers=4
run 0 train "$@" run=one
run 0 digest one
mv out expected
for pair in $launchers; do
  mpirun=${pair%:*} kind=${pair#*:}
  [ $kind = $want ] || continue
  for n in 1 2 3 4; do
    timeout -k 5 100 "$mpirun" -n $n "$ISOTACH" train "$@" run=$kind$n >out 2>err || fail "$mpirun -n $n: $(cat err)"
    [ $n -eq 1 ] || grep -q "^# $n ranks of .* on 1 host, 1 thread each" out || fail "$mpirun -n $n: $(cat out)"
    [ "$(grep -c 'isotach: error' err)" -eq 0 ] || fail "$mpirun -n $n said $(cat err)"
    run 0 digest $kind$n
    same expected out
  done

  # What all find is said once, and its code is mpirun's.
  timeout -k 5 100 "$mpirun" -n 3 "$ISOTACH" train "$@" run=none nothing=1 >out 2>err
  code=$?
  [ $code -eq 2 ] || fail "$mpirun, a wrong key: exit code $code"
  [ "$(grep -c 'isotach: error' err)" -eq 1 ] || fail "$mpirun, a wrong key: $(cat err)"
  timeout -k 5 100 "$mpirun" -n 3 "$ISOTACH" train "$@" run=none parallel.virtual_workers=2 >out 2>err
  code=$?
  [ $code -eq 2 ] || fail "$mpirun, too many ranks: exit code $code"
  grep -q "3 ranks of .*: more than the run's 2 virtual workers" err || fail "$mpirun, too many ranks: $(cat err)"
  timeout -k 5 100 "$mpirun" -n 2 "$ISOTACH" train "$@" --ranks 3 run=none >out 2>err
  [ $? -eq 2 ] && grep -q -- '--ranks 3, but .* has started 2' err || fail "$mpirun and --ranks: $(cat err)"
  timeout -k 5 100 "$mpirun" -n 2 "$ISOTACH" train "$@" run=${kind}big optimizer.lr=1000 optimizer.max_refused=2 >out 2>err
  code=$?
  [ $code -eq 8 ] && [ "$(grep -c 'isotach: error' err)" -eq 1 ] || fail "$mpirun, not finite: $code, $(cat err)"
  [ -e none ] && fail "$mpirun: a run that cannot start made a folder"

  # All print one document; and a file that does not name this host is an error of one line.
  timeout -k 5 100 "$mpirun" -n 2 "$ISOTACH" topology --json >out 2>err || fail "$mpirun, topology: $(cat err)"
  [ "$(wc -l <out)" -eq 1 ] && grep -q '"ranks": \[0, 1\], "launched": \[0, 1\], .*"pairs": 0, "measured": \[\]}$' out ||
    fail "$mpirun, topology: $(cat out)"
  echo 'SwitchName=rack1 Nodes=another' >topology.conf
  timeout -k 5 100 "$mpirun" -n 2 "$ISOTACH" train "$@" run=none parallel.topology=topology.conf >out 2>err
  [ $? -eq 2 ] && [ "$(grep -c 'isotach: error' err)" -eq 1 ] && [ ! -e none ] &&
    grep -q "error: $scratch/topology.conf: host $(hostname) stands at no switch" err || fail "$mpirun, a host in no rack: $(cat err)"

  # A rank that stands still.
  rm -rf k
  begin 4
  victim=$(rank 2)
  kill -STOP "$victim"
  ends "$kind, a stopped rank" 20
  [ $code -eq 9 ] || fail "$kind, a stopped rank: exit code $code: $(cat log.err)"
  [ "$(grep -c "error: rank [013], in the .* of step [0-9]*: rank 2 (host .*, process $victim) did nothing for 2 s" log.err)" -eq 3 ] ||
    fail "$kind, a stopped rank: $(cat log.err)"
  grep -q '"verdict": "lost"' k/status.json && grep -q '"exit_code": 9' k/status.json ||
    fail "$kind, a stopped rank: $(cat k/status.json)"
  run 0 verify k

  # One that dies: mpirun leaves the others about a second, Hydra some milliseconds.
  begin 4
  victim=$(rank 2)
  kill -KILL "$victim"
  ends "$kind, a killed rank" 10
  [ $code -ne 0 ] || fail "$kind, a killed rank: exit code 0"
  [ $kind = mpich ] || {
    [ "$(grep -c "error: rank [013], in the .* of step [0-9]*: rank 2 (host .*, process $victim) is gone" log.err)" -eq 3 ] ||
      fail "$kind, a killed rank: $(cat log.err)"
    grep -q '"verdict": "lost"' k/status.json || fail "$kind, a killed rank: $(cat k/status.json)"
  }
  run 0 verify k
  begin 3
  kill -KILL "$(rank 0)"
  ends "$kind, rank 0 killed" 10
  [ $code -ne 0 ] || fail "$kind, rank 0 killed: exit code 0"
  run 0 verify k

  # Told to stop. (mpirun ends them itself about a second later.)
  begin 3
  kill -TERM "$(rank 0)"
  ends "$kind, SIGTERM to rank 0" 20
  [ $code -eq 75 ] || fail "$kind, SIGTERM to rank 0: exit code $code: $(cat log.err)"
  grep -q '"verdict": "stopped"' k/status.json || fail "$kind, SIGTERM to rank 0: $(cat k/status.json)"
  [ $kind = mpich ] || {
    begin 3
    kill -TERM "$(ps -o ppid= -p "$(rank 0)")"
    ends "$kind, SIGTERM to mpirun" 20
    grep -q '"verdict": "stopped"' k/status.json || fail "$kind, SIGTERM to mpirun: $(cat k/status.json)"
  }
  run 0 verify k

  # The run's bits are those of one that was never interrupted.
  stop=$(($(lines) + 10))
  timeout -k 5 100 "$mpirun" -n 3 "$ISOTACH" train "$tiny" threads=1 steps=1000000 optimizer.schedule=constant \
    parallel.virtual_workers=4 run=k stop_at=$stop >out 2>err || fail "$kind, going on: $(cat err)"
  run 0 train "$tiny" threads=1 steps=1000000 optimizer.schedule=constant parallel.virtual_workers=4 run=$kind.single \
    stop_at=$stop
  run 0 digest $kind.single
  mv out single
  run 0 digest k
  same single out
done

[ $want = openmpi ] || finish

# Without a module, or with that of another MPI, ranks are refused; one process works.
mkdir alone
cp "$ISOTACH" alone/isotach
set -- $launchers
mpirun=${1%:*}
timeout -k 5 100 "$mpirun" -n 2 alone/isotach train "$tiny" threads=1 run=none >out 2>err
code=$?
[ $code -eq 2 ] && grep -q 'MPI: there is no module isotach-mpi.so beside the program; install libopenmpi-dev' err ||
  fail "without a module: exit code $code, $(cat err)"
timeout -k 5 100 alone/isotach train "$tiny" threads=1 steps=6 run=alone.run >out 2>err || fail "alone: $(cat err)"
if [ $# -eq 2 ]; then
  cp "$ISO_BUILD/isotach-mpi.so" alone/
  timeout -k 5 100 "${2%:*}" -n 2 alone/isotach train "$tiny" threads=1 run=none >out 2>err
  code=$?
  [ $code -eq 5 ] && grep -q 'but MPI (.*) says rank 0 of 1' err || fail "the other MPI's module: exit code $code, $(cat err)"
fi
finish
