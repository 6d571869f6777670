# SPDX-License-Identifier: Apache-2.0
#
# isotach doctor with ranks that Open MPI's mpirun starts: what they are alike in, links and clocks, and each thing that
# differs is named by its rank.
. "$ISO_ROOT/tests/cli/common.sh"

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
[ -n "$mpirun" ] && "$mpirun" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE' && [ -f "$ISO_BUILD/isotach-mpi.so" ] ||
  { echo "skipped: no mpirun of Open MPI with isotach-mpi.so (openmpi-bin and libopenmpi-dev)"; exit 77; }

# doctor WANTED WORDS...: as mpirun starts it; WANTED is a pattern of exit codes, a busy machine may add warnings
doctor() {
  doctor_wanted=$1
  shift
  timeout -k 5 100 "$mpirun" "$@" >out 2>err </dev/null
  code=$?
  case $code in
  $doctor_wanted) ;;
  *) fail "mpirun $*: exit code $code, wanted $doctor_wanted: $(cat err)" ;;
  esac
}
set -- "$ISOTACH" doctor --quick "$tiny" run=here parallel.virtual_workers=4 --steps-s 0 --json

doctor '[01]' -n 3 "$@"
python3 - out <<'EOF' || fail "three ranks: $(cat out err)"
import json, sys
said = json.load(open(sys.argv[1]))
rows = {c["check"]: c for c in said["checks"]}
assert said["ranks"] == 3
assert rows["ranks"]["verdict"] == "ok" and "3 ranks on 1 host by Open MPI" in rows["ranks"]["found"], rows["ranks"]
assert sorted(tuple(l["ranks"]) for l in said["links"]) == [(0, 1), (0, 2), (1, 2)]
assert all(l["latency_ns"] > 0 and l["gb_per_s"] > 0 for l in said["links"])
assert "messages, 3 of 3 ranks" in rows["links of ranks"]["found"], rows["links of ranks"]
assert rows["clock skew"]["verdict"] == "ok", rows["clock skew"] # of one host
assert rows["real steps"]["found"] == "not asked for" and rows["tokenizer"]["verdict"] == "ok"
EOF
[ -e here ] && fail "doctor wrote into the run's folder"

# real steps, by all ranks together; where they cannot be taken, that is said and nobody waits
for seconds in 2 10 30; do # a busy machine may need more of them
  doctor '[01]' -n 2 "$ISOTACH" doctor --quick "$tiny" run=here parallel.virtual_workers=4 steps=100000 \
    --steps-s $seconds --json
  grep -q 'too few to judge' out || break
done
python3 - out <<'EOF' || fail "real steps of two ranks: $(cat out err)"
import json, sys
rows = {c["check"]: c for c in json.load(open(sys.argv[1]))["checks"]}
assert rows["real steps"]["verdict"] == "ok", rows["real steps"]
assert "standard deviation" in rows["reduction wait"]["found"] and "steps level" in rows and "data wait" in rows
EOF
doctor 2 -n 2 "$ISOTACH" doctor --quick "$tiny" run=here parallel.virtual_workers=4 tokenizer.path=nowhere --steps-s 2 --json
tr '{' '\n' <out | grep '"check": "real steps"' | grep '"verdict": "stop"' | grep -q nowhere ||
  fail "steps that cannot be taken: $(cat out err)"
[ -e here ] && fail "doctor wrote into the run's folder"
[ -z "$(ls -d isotach-doctor.* 2>/dev/null)" ] || fail "doctor left $(ls -d isotach-doctor.*)"

doctor 2 -n 1 "$@" : -n 1 env ISOTACH_CPU=scalar "$@"
grep -q 'rank 1 (host [^)]*) has tier scalar' out || fail "another tier is not named: $(cat out err)"
doctor 2 -n 1 "$@" : -n 1 "$@" seed=7
grep -q 'rank 1 (host [^)]*) has another config' out || fail "another config is not named: $(cat out err)"
cp "$ISOTACH" other && printf 'x' >>other && cp "$ISO_BUILD"/isotach-mpi.so .
shift
doctor 1 -n 1 "$ISOTACH" "$@" : -n 1 ./other "$@"
grep -q 'rank 1 (host [^)]*) has another build' out || fail "another build is not named: $(cat out err)"
finish
