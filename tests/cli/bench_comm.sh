# SPDX-License-Identifier: Apache-2.0
# bench comm: processes of this host, started by mpirun where it is, else by fork; the sums are checked by the bench
# itself. With MPI there is something to compare with, without it the field is null and standard error says why.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 bench comm --ranks 2 --bytes 1048576 --rounds 2 --json
grep -q '^{"ranks": 2, "rounds": 2, ' out || fail "the document begins: $(cat out)"
grep -q '"rows": \[{"op": "reduce_scatter", "bytes": 1048576, "gb_per_s": [0-9.e+-]*, "mpi_gb_per_s": ' out ||
  fail "the row is: $(cat out)"
[ "$(wc -l <out)" -eq 1 ] || fail "more than a document: $(cat out)"
if [ -f "$ISO_BUILD/isotach-mpi.so" ] && command -v mpirun >/dev/null; then
  grep -q '"library": "[^"]*MPI' out || fail "no library is named: $(cat out)"
  grep -q '"mpi_gb_per_s": null' out && fail "MPI was not measured: $(cat out)"
  run 0 bench comm --ranks 4 --bytes 65536 --rounds 1
  grep -q '^reduce_scatter .* MPI .* ratio ' out || fail "the table is: $(cat out)"
  # A launcher that starts another number of ranks than was asked for.
  timeout -k 5 60 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 2 "$ISOTACH" bench comm \
    --ranks 4 --bytes 65536 >out 2>err && fail "two ranks passed for four"
  grep -q "Open MPI's mpirun has started 2 ranks, but --ranks is 4" err || fail "two ranks for four: $(cat err)"
  # The mpirun of another MPI: each process is a world of its own, and says so instead of measuring.
  PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2
  export PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
  run 5 bench comm --ranks 2 --bytes 65536
  unset PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
  grep -q "MPICH's mpiexec (Hydra) says rank 1 of 2, but MPI (.*) says rank 0 of 1; start with " err ||
    fail "a world of one passed for two: $(cat err)"
fi

# Without mpirun.
for ranks in 2 4 8; do
  timeout -k 5 60 env PATH=/nonexistent "$ISOTACH" bench comm --ranks $ranks --bytes 65536 --rounds 2 --json >out 2>err ||
    fail "without mpirun: $(cat err)"
  grep -q "\"ranks\": $ranks" out || fail "without mpirun: $(cat out)"
  grep -q '"mpi_gb_per_s": null' out || fail "without mpirun: $(cat out)"
  grep -q 'no MPI to compare with' err || fail "without mpirun: $(cat err)"
done

refused 2 'bench comm: --ranks must be a power of two, not 3' bench comm --ranks 3
PMI_RANK=2 PMI_SIZE=2
export PMI_RANK PMI_SIZE
refused 2 'launch: PMI_RANK=2, but PMI_SIZE=2; both come from the launcher: unset them, or start with mpirun or srun' bench comm
unset PMI_RANK PMI_SIZE
refused 2 'bench comm: --bytes must be a multiple of 8, 4 for each of 2 ranks' bench comm --bytes 12
finish
