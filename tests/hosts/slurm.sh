# SPDX-License-Identifier: Apache-2.0
# labels: long
# Ranks under srun, with a Slurm of one node that this test starts (its own munge key, ports, spool; nothing of it is
# the system's): --mpi=pmix goes with Open MPI, pmi2 with MPICH, with the bits of one process; the exit code is the
# verdict; a rank that dies or stops is named; a launcher that MPI does not find is refused.
. "$ISO_ROOT/tests/cli/common.sh"

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "slurmd takes root"
PATH=$PATH:/usr/sbin
for command in munged slurmctld slurmd srun sinfo; do
  command -v $command >/dev/null || skip "there is no $command (munge, slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins)"
done
scratch=$(pwd -P)
export SLURM_CONF=$scratch/slurm.conf
started= pid=

# ours: ranks that run
binary=$(readlink -f "$ISOTACH")
ours() {
  for p in /proc/[0-9]*; do
    [ "$(readlink "$p/exe" 2>/dev/null)" = "$binary" ] && [ "$(readlink "$p/cwd" 2>/dev/null)" = "$scratch" ] && echo "${p#/proc/}"
  done
}

# steps: Slurm's own processes that look after a step of ours
steps() {
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in
    *slurmstepd*) tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -q "$scratch" && echo "${p#/proc/}" ;;
    esac
  done
}

clean_up() {
  for p in $pid $(ours) $(steps) $started; do kill "$p" 2>/dev/null; done
  sleep 0.5
  for p in $pid $(ours) $(steps) $started; do kill -KILL "$p" 2>/dev/null; done
  cd /
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

# begin_daemon LOG COMMAND...
begin_daemon() {
  log=$1
  shift
  "$@" >"$log" 2>&1 &
  started="$! $started"
}

mkdir state spool
host=$(hostname -s)
port=$((20000 + $$ % 20000))
dd if=/dev/urandom of=key bs=128 count=1 2>/dev/null
chmod 600 key
begin_daemon munged.log munged --force --foreground --socket="$scratch/munge.socket" --key-file="$scratch/key" \
  --pid-file="$scratch/munge.pid" --log-file="$scratch/munge.out" --seed-file="$scratch/munge.seed"
cat >slurm.conf <<CONFIG
ClusterName=isotach
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldPort=$port
SlurmdPort=$((port + 1))
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONFIG
cat >cgroup.conf <<CONFIG
CgroupPlugin=cgroup/v1
CgroupMountpoint=$scratch/none
CONFIG
for _ in $(seq 50); do
  [ -S munge.socket ] && break
  sleep 0.1
done
begin_daemon slurmctld.log slurmctld -D -c
begin_daemon slurmd.log slurmd -D
for _ in $(seq 100); do
  timeout 5 sinfo -h -o %T 2>/dev/null | grep -q '^idle' && break
  sleep 0.2
done
timeout 5 sinfo -h -o %T 2>/dev/null | grep -q '^idle' ||
  skip "a Slurm of one node does not start: $(cat munged.log slurmctld.log slurmd.log | grep -i error | head -n 3)"

kinds=$(timeout 10 srun --mpi=list 2>&1)
pairs=
case $kinds in *pmix*) [ -f "$ISO_BUILD/isotach-mpi.so" ] && pairs="pmix" ;; esac
case $kinds in *pmi2*) [ -f "$ISO_BUILD/isotach-mpich.so" ] && pairs="$pairs pmi2" ;; esac
[ -n "$pairs" ] || skip "Slurm has neither pmix with an Open MPI module nor pmi2 with one of MPICH (libopenmpi-dev, libmpich-dev)"

lines() { cat k/metrics.jsonl 2>/dev/null | wc -l; }

# rank NUMBER: its process
rank() {
  for p in $(ours); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -q "^SLURM_PROCID=$1\$" && echo "$p"
  done | head -n 1
}

begin() {
  before=$(lines)
  timeout -k 5 100 srun --mpi=$kind -K1 -n 3 "$ISOTACH" train "$tiny" threads=1 steps=1000000 \
    optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2 run=k >log 2>log.err &
  pid=$!
  for _ in $(seq 600); do
    [ "$(lines)" -ge $((before + 5)) ] && break
    sleep 0.05
  done
}

# ends WHAT SECONDS
ends() {
  began=$(date +%s)
  wait $pid
  code=$?
  pid=
  [ $(($(date +%s) - began)) -le "$2" ] || fail "$1: took $(($(date +%s) - began)) s"
  for _ in $(seq 100); do
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
for kind in $pairs; do
  for n in 1 2 4; do
    timeout -k 5 100 srun --mpi=$kind -n $n "$ISOTACH" train "$@" run=$kind$n >out 2>err || fail "$kind, $n: $(cat err)"
    [ $n -eq 1 ] || grep -q "^# $n ranks of Slurm's srun on 1 host, 1 thread each" out || fail "$kind, $n: $(cat out)"
    run 0 digest $kind$n
    same expected out
  done
  timeout -k 5 100 srun --mpi=$kind -n 3 "$ISOTACH" train "$@" run=none nothing=1 >out 2>err
  code=$?
  [ $code -eq 2 ] && [ "$(grep -c 'isotach: error' err)" -eq 1 ] || fail "$kind, a wrong key: $code, $(cat err)"

  rm -rf k
  begin
  victim=$(rank 2)
  kill -STOP "$victim"
  ends "$kind, a stopped rank" 20
  [ $code -ne 0 ] || fail "$kind, a stopped rank: exit code 0"
  [ "$(grep -c "error: rank [01], in the .* of step [0-9]*: rank 2 (host .*, process $victim) did nothing for 2 s" log.err)" -eq 2 ] ||
    fail "$kind, a stopped rank: $(cat log.err)"
  grep -q '"verdict": "lost"' k/status.json || fail "$kind, a stopped rank: $(cat k/status.json)"
  run 0 verify k

  begin
  kill -KILL "$(rank 1)"
  ends "$kind, a killed rank" 20
  [ $code -ne 0 ] || fail "$kind, a killed rank: exit code 0"
  echo "# $kind, a killed rank: srun's exit code is $code, ranks said $(grep -c 'isotach: error: rank' log.err) lines"
  run 0 verify k

  begin
  kill -TERM "$(rank 0)"
  ends "$kind, SIGTERM to rank 0" 20
  [ $code -eq 75 ] || fail "$kind, SIGTERM to rank 0: exit code $code: $(cat log.err)"
  grep -q '"verdict": "stopped"' k/status.json || fail "$kind, SIGTERM to rank 0: $(cat k/status.json)"
done

# Without --mpi no rank finds the others.
timeout -k 5 100 srun --mpi=none -n 2 "$ISOTACH" train "$@" run=none >out 2>err
code=$?
[ $code -eq 5 ] && grep -q "Slurm's srun says rank [01] of 2, but MPI could not find the others; start with srun --mpi=pmix" err ||
  fail "--mpi=none: exit code $code, $(cat err)"
[ -e none ] && fail "a run that cannot start made a folder"
finish
