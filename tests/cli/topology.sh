# SPDX-License-Identifier: Apache-2.0
# topology: the tree has what the machine has, in text and JSON; with hwloc also that of another machine.
. "$ISO_ROOT/tests/cli/common.sh"

cpus=$(getconf _NPROCESSORS_ONLN)
unset HWLOC_SYNTHETIC HWLOC_XMLFILE
run 0 topology --json
[ "$(wc -l <out)" -eq 1 ] || fail "more than a document: $(cat out)"
grep -q "\"cpus\": $cpus," out || fail "$cpus CPUs are online: $(cat out)"
cores=$(sed 's/.*"cores": \([0-9]*\),.*/\1/' out)
packages=$(sed 's/.*"packages": \([0-9]*\),.*/\1/' out)
[ "$(grep -o '"kind": "cpu"' out | wc -l)" -eq "$cpus" ] || fail "the tree has not $cpus CPUs: $(cat out)"
[ "$(grep -o '"kind": "core"' out | wc -l)" -eq "$cores" ] || fail "the tree has not $cores cores: $(cat out)"
[ "$(grep -o '"kind": "package"' out | wc -l)" -eq "$packages" ] || fail "the tree has not $packages packages: $(cat out)"
if ! grep -q 'are not measured' err && ! grep -q '"pairs": 0,' out; then
  grep -q '"latency_ns": {"median": [0-9.e+-]*, "lower_quartile": [0-9.e+-]*, "upper_quartile": [0-9.e+-]*}' out ||
    fail "no latency: $(cat out)"
  grep -q '"gb_per_s": {"median": [0-9]' out || fail "no bandwidth: $(cat out)"
fi

run 0 topology
head -n 1 out | grep -q '^host .' || fail "the tree begins: $(head -n 1 out)"
[ "$(grep -c '^ *core.*: CPU ' out)" -eq "$cores" ] || fail "not $cores lines of cores: $(cat out)"
grep -q "^$packages package.* $cores core.* $cpus CPU.*; this process may use CPU [0-9]" out || fail "the totals: $(cat out)"

if grep -q 'from hwloc' out; then
  HWLOC_SYNTHETIC='pack:2 node:1 l3:1 l2:2 core:1 pu:2'
  export HWLOC_SYNTHETIC
  run 0 topology
  unset HWLOC_SYNTHETIC
  sed -e 1d -e 's/, [0-9.]* [GM]iB//' out >tree
  cat >wanted <<'END'
  package 0
    NUMA node 0
      L3 cache
        core 0: CPU 0-1
        core 1: CPU 2-3
  package 1
    NUMA node 1
      L3 cache
        core 2: CPU 4-5
        core 3: CPU 6-7
2 packages, 2 NUMA nodes, 4 cores, 8 CPUs, from hwloc
END
  same tree wanted
  grep -q 'another machine, as a variable HWLOC_' err || fail "a machine that is not this one: $(cat err)"
  HWLOC_SYNTHETIC='core:2 pu:1(indexes=0,8192)'
  export HWLOC_SYNTHETIC
  refused 2 'topology: hwloc names CPU 8192; this version knows CPUs up to 8191' topology
  unset HWLOC_SYNTHETIC
fi

refused 2 'topology: unknown flag --jsn; the nearest is --json' topology --jsn
refused 3 "cannot read 'nowhere.yaml': No such file or directory; check the path" topology nowhere.yaml

# With a config also the hosts of its run: none before the first start, and none of a start on one host alone.
run 0 topology "$tiny" run=none --json
grep -q '"run_hosts": {"run": "none", "start": 0, "order": null}}$' out || fail "a run that is none: $(cat out)"
run 0 topology "$tiny" run=none
grep -q 'hosts of start' out && fail "a run that is none: $(cat out)"
refused 2 'topology: --json takes no value' topology --json=1
finish
