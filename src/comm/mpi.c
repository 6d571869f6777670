/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach-mpi.so: the module that knows MPI, so that the program itself starts on machines without it.
 *
 * Training uses it to find the other ranks and, between hosts, for messages: small ones of which a few are under way,
 * posted and asked for without waiting. Collectives are not MPI's; `isotach bench comm` compares with one.
 *
 * Invariants
 *  1. One lock is around each call, so that MPI need not be told of threads: MPI_THREAD_SERIALIZED is enough. Only
 *     gather, reduce_scatter and finalize wait inside it.
 *  2. Errors of messages are returned, not fatal; what MPI itself does about a peer that dies is its own.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

enum { MOST_REQUESTS = 16384 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char library_name[MPI_MAX_LIBRARY_VERSION_STRING];
static MPI_Comm lanes[ISO_MPI_LANES]; /* so that messages of one kind do not match those of another */
static MPI_Request requests[MOST_REQUESTS];
static int free_numbers[MOST_REQUESTS], free_count;

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
  if (check("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), error, capacity)) return 1;
  if (given < MPI_THREAD_SERIALIZED) {
    (void)snprintf(error, capacity, "MPI_Init_thread: this MPI was built without threads");
    return 1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int i = 0; i < ISO_MPI_LANES; i++) {
    if (check("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &lanes[i]), error, capacity)) return 1;
    MPI_Comm_set_errhandler(lanes[i], MPI_ERRORS_RETURN);
  }
  for (int i = 0; i < MOST_REQUESTS; i++) free_numbers[free_count++] = MOST_REQUESTS - 1 - i;
  MPI_Get_library_version(library_name, &length);
  library_name[strcspn(library_name, ",\n")] = '\0'; /* what follows is where it was built */
  return check("MPI_Comm_rank", MPI_Comm_rank(MPI_COMM_WORLD, rank), error, capacity) ||
         check("MPI_Comm_size", MPI_Comm_size(MPI_COMM_WORLD, ranks), error, capacity);
}

static int finalize(char *error, size_t capacity) {
  pthread_mutex_lock(&lock);
  const int failed = check("MPI_Finalize", MPI_Finalize(), error, capacity);
  pthread_mutex_unlock(&lock);
  return failed;
}

static const char *library(void) {
  return library_name;
}

static int gather(const void *mine, void *all, int bytes, char *error, size_t capacity) {
  pthread_mutex_lock(&lock);
  const int code = MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD);
  pthread_mutex_unlock(&lock);
  return check("MPI_Allgather", code, error, capacity);
}

static int reduce_scatter(const float *in, float *out, const int *counts, char *error, size_t capacity) {
  pthread_mutex_lock(&lock);
  const int code = MPI_Reduce_scatter(in, out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  pthread_mutex_unlock(&lock);
  return check("MPI_Reduce_scatter", code, error, capacity);
}

/* ---- messages ---- */

static int post(int lane, bool sends, int peer, void *data, size_t bytes) {
  int number = -1;
  pthread_mutex_lock(&lock);
  if (free_count > 0) {
    MPI_Request *request = &requests[free_numbers[free_count - 1]];
    const int code = sends ? MPI_Isend(data, (int)bytes, MPI_BYTE, peer, 0, lanes[lane], request)
                           : MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, 0, lanes[lane], request);
    if (code == MPI_SUCCESS) number = free_numbers[--free_count]; /* else tried again, until the wait has its end */
  }
  pthread_mutex_unlock(&lock);
  return number;
}

static int send_message(int lane, int peer, const void *data, size_t bytes) {
  return post(lane, true, peer, (void *)(uintptr_t)data, bytes);
}

static int receive_message(int lane, int peer, void *data, size_t bytes) {
  return post(lane, false, peer, data, bytes);
}

/* A message that has failed is never complete: whoever waits for it has an end of its own. */
static bool complete(int number) {
  int done = 0;
  pthread_mutex_lock(&lock);
  if (requests[number] != MPI_REQUEST_NULL && MPI_Test(&requests[number], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
    done = 0;
  if (done) free_numbers[free_count++] = number;
  pthread_mutex_unlock(&lock);
  return done;
}

__attribute__((visibility("default"))) const iso_mpi *iso_mpi_module(void) {
  static const iso_mpi module = {.version = ISO_MPI_VERSION,
                                 .init = init,
                                 .finalize = finalize,
                                 .library = library,
                                 .gather = gather,
                                 .reduce_scatter = reduce_scatter,
                                 .send = send_message,
                                 .receive = receive_message,
                                 .complete = complete};
  return &module;
}
