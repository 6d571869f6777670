# SPDX-License-Identifier: Apache-2.0
#
# Two hosts on one machine: network namespaces with a link between them, each with a host name and an sshd of its own.
# What they need of the machine (root, namespaces, sshd, Open MPI's mpirun with its module) is looked for first; without
# it the test is skipped (77) with a line that says what is missing. Everything ends with the script, by process number.
. "$ISO_ROOT/tests/cli/common.sh"

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "network namespaces take root"
for command in ip unshare ssh ssh-keygen mpirun; do
  command -v "$command" >/dev/null || skip "there is no $command (iproute2, util-linux, openssh-client, openmpi-bin)"
done
sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$sshd" ] || skip "there is no sshd (openssh-server)"
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
"$mpirun" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE' || skip "mpirun is not Open MPI's (openmpi-bin)"
[ -f "$ISO_BUILD/isotach-mpi.so" ] || skip "there is no isotach-mpi.so (libopenmpi-dev)"

scratch=$(pwd -P)
net_a=iso-a-$$ net_b=iso-b-$$ link_a=ia$$ link_b=ib$$
address_a=10.99.0.1 address_b=10.99.0.2

# everyone: processes of both hosts
everyone() { ip netns pids $net_a 2>/dev/null; ip netns pids $net_b 2>/dev/null; }

clean_up() {
  for signal in TERM KILL; do
    for p in $(everyone); do kill -$signal "$p" 2>/dev/null; done
    [ -z "$(everyone)" ] || sleep 0.3
  done
  ip netns del $net_a 2>/dev/null
  ip netns del $net_b 2>/dev/null
  cd /
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

ip netns add $net_a 2>err && ip netns add $net_b 2>>err && unshare --uts true 2>>err ||
  skip "namespaces are not allowed here: $(head -n 1 err)"
ip link add $link_a type veth peer name $link_b 2>err || skip "no link between namespaces: $(head -n 1 err)"
ip link set $link_a netns $net_a
ip link set $link_b netns $net_b
for host in a b; do
  eval "net=\$net_$host link=\$link_$host address=\$address_$host"
  ip -n $net address add "$address/24" dev $link
  ip -n $net link set lo up
  ip -n $net link set $link up
done

ssh-keygen -q -t ed25519 -N '' -f key || skip "ssh-keygen cannot make a key"
cp key.pub authorized
[ -d /run/sshd ] || mkdir -p /run/sshd
cat >sshd_config <<CONFIG
HostKey $scratch/key
AuthorizedKeysFile $scratch/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
PidFile none
CONFIG
cat >ssh_config <<CONFIG
Host *
  IdentityFile $scratch/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
CONFIG

# on HOST COMMAND...: runs it there
on() {
  eval "on_net=\$net_$1"
  on_name=isohost-$1
  shift
  ip netns exec "$on_net" unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "$on_name" "$@"
}

on b "$sshd" -D -e -f "$scratch/sshd_config" >sshd.log 2>&1 &
for _ in $(seq 100); do
  on a timeout 5 ssh -F "$scratch/ssh_config" $address_b hostname >out 2>err && break
  sleep 0.1
done
grep -q '^isohost-b$' out || skip "no ssh from one namespace to the other: $(cat err sshd.log | head -n 2)"

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM

# across A B WORDS...: mpirun on host a with A ranks there and B on the other, each rank's output in ranks/1/rank.N/.
across() {
  across_a=$1 across_b=$2
  shift 2
  rm -rf ranks
  on a timeout -k 5 100 "$mpirun" --host "$address_a:$across_a,$address_b:$across_b" -n $((across_a + across_b)) \
    --oversubscribe --bind-to none --output-filename "$scratch/ranks" \
    --mca plm_rsh_agent "ssh -F $scratch/ssh_config" --mca btl_tcp_if_include 10.99.0.0/24 \
    --mca oob_tcp_if_include 10.99.0.0/24 "$@"
}
