/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach-mpi.so: the module that knows MPI, so that the program itself starts on machines without it.
 *
 * It is what `isotach bench comm` starts its ranks and compares with; collectives of training are not done by MPI.
 * Only the thread that called init calls the others.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

static char library_name[MPI_MAX_LIBRARY_VERSION_STRING];

static int check(const char *what, int code, char *error, size_t capacity) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "no text";
  int length = 0;
  MPI_Error_string(code, text, &length);
  (void)snprintf(error, capacity, "%s: %s", what, text);
  return 1;
}

static int init(int *rank, int *ranks, char *error, size_t capacity) {
  int given = 0, length = 0;
  if (check("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given), error, capacity)) return 1;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Get_library_version(library_name, &length);
  library_name[strcspn(library_name, ",\n")] = '\0'; /* what follows is where it was built */
  return check("MPI_Comm_rank", MPI_Comm_rank(MPI_COMM_WORLD, rank), error, capacity) ||
         check("MPI_Comm_size", MPI_Comm_size(MPI_COMM_WORLD, ranks), error, capacity);
}

static int finalize(char *error, size_t capacity) {
  return check("MPI_Finalize", MPI_Finalize(), error, capacity);
}

static const char *library(void) {
  return library_name;
}

static int gather(const void *mine, void *all, int bytes, char *error, size_t capacity) {
  return check("MPI_Allgather", MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD), error,
               capacity);
}

static int reduce_scatter(const float *in, float *out, const int *counts, char *error, size_t capacity) {
  return check("MPI_Reduce_scatter", MPI_Reduce_scatter(in, out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), error,
               capacity);
}

__attribute__((visibility("default"))) const iso_mpi *iso_mpi_module(void) {
  static const iso_mpi module = {ISO_MPI_VERSION, init, finalize, library, gather, reduce_scatter};
  return &module;
}
