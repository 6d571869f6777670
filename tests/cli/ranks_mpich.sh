# SPDX-License-Identifier: Apache-2.0
# As ranks_mpi.sh, under MPICH's mpiexec.
want=mpich
. "$ISO_ROOT/tests/cli/ranks_mpi.sh"
