# SPDX-License-Identifier: Apache-2.0
#
# A run whose control group has a tenth of a processor says so: some steps take longer by the time that the group was
# held back, and the cause is called "throttled". One that is moved there under way says so, too. Needs the right to
# make a control group with the controller `cpu`, of version 2 or 1.
. "$ISO_ROOT/tests/cli/common.sh"
export ISOTACH_WINDOW_S=3

group=
name=isotach-test.$$
if grep -qw cpu /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null && mkdir "/sys/fs/cgroup/$name" 2>/dev/null; then
  group=/sys/fs/cgroup/$name
  set -- cpu.max '10000 100000'
else
  for folder in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct; do
    [ -e $folder/cpu.cfs_quota_us ] || [ -e $folder/cpu.shares ] || continue
    mkdir "$folder/$name" 2>/dev/null || continue
    group=$folder/$name
    break
  done
  set -- cpu.cfs_quota_us 10000
fi
pid=
leave() {
  [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
  for _ in $(seq 100); do # a group is empty only when its last process is reaped
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || { sleep 0.05 && continue; }
    break
  done
  rm -rf "$scratch"
}
trap leave EXIT
[ -n "$group" ] && [ -e "$group/$1" ] && echo "$2" >"$group/$1" 2>/dev/null ||
  { echo "skipped: no control group with a quota can be made here" >&2; exit 77; }

(
  echo 0 >"$group/cgroup.procs" && exec "$ISOTACH" train "$tiny" run=held steps=1000000 threads=1 log.enabled=false \
    checkpoint.snapshot_every=0
) >out 2>err &
pid=$!
for _ in $(seq 900); do
  kill -0 $pid 2>/dev/null || break
  grep -q '"sign": "flatness"' held/breaches.jsonl 2>/dev/null && break
  sleep 0.1
done
line=$(grep '"event": "begin", "sign": "flatness"' held/breaches.jsonl)
# Where others are ready to run, too, both hold the run back, and either may be what cost more.
contested=$(grep -Ec 'cause: preempted, .*([3-9]|[1-9][0-9]+) ready to run' err)
case $line in
*'"cause": "throttled"'*) ;;
*'"cause": "preempted"'*) [ "$contested" -gt 0 ] || fail "a quota that is used up is not named: $line $(cat err)" ;;
*) fail "a quota that is used up is not named: $line $(cat err)" ;;
esac
echo "$line" | grep -Eq '"throttled": (0\.[1-9]|1)' || fail "the evidence does not show it: $line"
[ "$contested" -gt 0 ] || grep -q "cause: throttled, .*its control group's quota of processor time was used up" err ||
  fail "not said: $(cat err)"
kill -TERM $pid
wait $pid
code=$?
[ $code -eq 75 ] || fail "exit code $code: $(cat err)"

"$ISOTACH" train "$tiny" run=moved steps=1000000 threads=1 log.enabled=false checkpoint.snapshot_every=0 >out 2>err &
pid=$!
until grep -q '"step": ' moved/metrics.jsonl 2>/dev/null; do
  kill -0 $pid 2>/dev/null || fail "it did not start: $(cat err)"
  sleep 0.05
done
echo "$pid" >"$group/cgroup.procs" || fail "it cannot be moved"
for _ in $(seq 900); do
  kill -0 $pid 2>/dev/null || break
  grep -Eq '"throttled": (0\.[1-9]|1,)' moved/vitals.json && break
  sleep 0.1
done
grep -Eq '"throttled": (0\.[1-9]|1,)' moved/vitals.json || fail "the other group is not seen: $(cat moved/vitals.json)"
kill -TERM $pid
wait $pid
code=$?
[ $code -eq 75 ] || fail "exit code $code: $(cat err)"
pid=
finish
