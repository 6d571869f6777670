/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach-mpi.so: the module that knows MPI, so that the program itself starts on machines without it.
 *
 * Training uses it to find the other ranks and, between hosts, for messages: small ones of which a few are under way,
 * posted and asked for without waiting. Collectives are not MPI's; `isotach bench comm` compares with one.
 *
 * Invariants
 *  1. Messages are one thread's, which posts them in the order in which they were given and asks for them; who gives
 * one or asks for it only looks at a table. So nobody else stands still when MPI does: Open MPI 4.1 waits seconds for
 *     mpirun inside MPI_Test when a peer has died.
 *  2. One lock is around each call, so that MPI_THREAD_SERIALIZED is enough.
 *  3. Errors of messages are not fatal: one that has failed never completes. What MPI itself does about a peer that
 * dies is its own.
 */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"

enum { MOST_REQUESTS = 16384 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool finalized; /* under `lock`: the thread, whose last messages are never asked for, calls no more */
static char library_name[MPI_MAX_LIBRARY_VERSION_STRING];
static MPI_Comm lanes[ISO_MPI_LANES]; /* so that messages of one kind do not match those of another */

typedef struct message {
  int lane, peer;
  bool sends;
  void *data;
  int bytes;
  atomic_bool done;
} message;
static message messages[MOST_REQUESTS];
/* Under `table`: numbers that are free, and those that are given and not posted, in order. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static int free_numbers[MOST_REQUESTS], free_count, queue[MOST_REQUESTS], queue_first, queue_count;

static int check(const char *what, int code, char *error, size_t capacity) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "no text";
  int length = 0;
  MPI_Error_string(code, text, &length);
  (void)snprintf(error, capacity, "%s: %s", what, text);
  return 1;
}

static void *run(void *argument);

static int start_thread(char *error, size_t capacity) {
  pthread_t thread;
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  const int code = pthread_create(&thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code == 0) return pthread_detach(thread);
  (void)snprintf(error, capacity, "no thread for messages: %s", strerror(code));
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
         check("MPI_Comm_size", MPI_Comm_size(MPI_COMM_WORLD, ranks), error, capacity) || start_thread(error, capacity);
}

static int finalize(char *error, size_t capacity) {
  pthread_mutex_lock(&lock);
  const int failed = check("MPI_Finalize", MPI_Finalize(), error, capacity);
  finalized = true;
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

/* What the thread has posted. */
static MPI_Request active[MOST_REQUESTS];
static int active_numbers[MOST_REQUESTS], active_count;

static void post_given(void) {
  pthread_mutex_lock(&table);
  while (queue_count > 0) {
    const int number = queue[queue_first];
    queue_first = (queue_first + 1) % MOST_REQUESTS;
    queue_count--;
    pthread_mutex_unlock(&table);
    message *m = &messages[number];
    MPI_Request *request = &active[active_count];
    pthread_mutex_lock(&lock);
    const int code = finalized  ? MPI_ERR_OTHER
                     : m->sends ? MPI_Isend(m->data, m->bytes, MPI_BYTE, m->peer, 0, lanes[m->lane], request)
                                : MPI_Irecv(m->data, m->bytes, MPI_BYTE, m->peer, 0, lanes[m->lane], request);
    pthread_mutex_unlock(&lock);
    if (code == MPI_SUCCESS) active_numbers[active_count++] = number;
    pthread_mutex_lock(&table);
  }
  pthread_mutex_unlock(&table);
}

/* true: some message is complete. */
static bool ask(void) {
  static int indices[MOST_REQUESTS];
  static MPI_Status statuses[MOST_REQUESTS]; /* not looked at */
  int count = 0;
  pthread_mutex_lock(&lock);
  const int code = finalized ? MPI_ERR_OTHER : MPI_Testsome(active_count, active, &count, indices, statuses);
  pthread_mutex_unlock(&lock);
  if (code != MPI_SUCCESS || count == MPI_UNDEFINED || count <= 0) return false;
  for (int i = 0; i < count; i++) atomic_store(&messages[active_numbers[indices[i]]].done, true);
  int kept = 0;
  for (int i = 0; i < active_count; i++) {
    if (active[i] == MPI_REQUEST_NULL) continue; /* as MPI_Testsome leaves those that are complete */
    active[kept] = active[i];
    active_numbers[kept++] = active_numbers[i];
  }
  active_count = kept;
  return true;
}

/* Awake while messages come, then less and less. */
static void rest(int idle) {
  if (idle < 200) return;
  if (idle < 300) {
    (void)sched_yield();
    return;
  }
  (void)nanosleep(&(struct timespec){.tv_nsec = idle < 1000 ? 50000 : 500000}, NULL);
}

static void *run(void *argument) {
  for (int idle = 0;;) {
    pthread_mutex_lock(&table);
    while (queue_count == 0 && active_count == 0) pthread_cond_wait(&added, &table);
    if (queue_count > 0) idle = 0;
    pthread_mutex_unlock(&table);
    post_given();
    idle = ask() ? 0 : idle + 1;
    rest(idle);
  }
  return argument;
}

static int post(int lane, bool sends, int peer, void *data, size_t bytes) {
  int number = -1;
  pthread_mutex_lock(&table);
  if (free_count > 0) {
    number = free_numbers[--free_count];
    message *m = &messages[number];
    m->lane = lane;
    m->peer = peer;
    m->sends = sends;
    m->data = data;
    m->bytes = (int)bytes;
    atomic_store(&m->done, false);
    queue[(queue_first + queue_count++) % MOST_REQUESTS] = number;
    pthread_cond_signal(&added);
  }
  pthread_mutex_unlock(&table);
  return number;
}

static int send_message(int lane, int peer, const void *data, size_t bytes) {
  return post(lane, true, peer, (void *)(uintptr_t)data, bytes);
}

static int receive_message(int lane, int peer, void *data, size_t bytes) {
  return post(lane, false, peer, data, bytes);
}

static bool complete(int number) {
  if (!atomic_load(&messages[number].done)) return false;
  pthread_mutex_lock(&table);
  free_numbers[free_count++] = number;
  pthread_mutex_unlock(&table);
  return true;
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
