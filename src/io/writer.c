/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that writes what it is handed, in that order, one after the other: who hands over takes the CRC of the next
 * piece meanwhile. Begun and reaped as io_uring's writes are (uring.c). Where storage takes one write at a time, as a
 * file system does with those that make a file longer, this is as fast as a plain writer; several in flight are not.
 *
 * Invariants
 *  1. Parts are the thread's from begin until reap.
 *  2. Writes are begun and reaped by one thread; they are reaped in the order in which they were begun.
 */
#include <errno.h>
#include <stdlib.h>

#include "io/io.h"

typedef struct job {
  const struct iovec *parts;
  int count, fd, tag;
  int64_t offset;
  ssize_t result;
} job;

typedef struct writer {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int64_t begun, done, reaped; /* job i stands at i % ISO_WRITES_DEPTH */
  bool closing;
  job jobs[ISO_WRITES_DEPTH];
} writer;

static void *run(void *argument) {
  writer *w = argument;
  pthread_mutex_lock(&w->lock);
  for (;;) {
    while (w->done == w->begun && !w->closing) pthread_cond_wait(&w->changed, &w->lock);
    if (w->done == w->begun) break;
    job *j = &w->jobs[w->done % ISO_WRITES_DEPTH];
    pthread_mutex_unlock(&w->lock);
    const ssize_t put = pwritev(j->fd, j->parts, j->count, j->offset);
    j->result = put < 0 ? -errno : put;
    pthread_mutex_lock(&w->lock);
    w->done++;
    pthread_cond_broadcast(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

void *iso_writer_open(void) {
  writer *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  if (iso_thread_start(&w->thread, run, w) == 0) return w;
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
  return NULL;
}

int iso_writer_begin(void *handle, int fd, const struct iovec *parts, int count, int64_t offset, int tag) {
  writer *w = handle;
  pthread_mutex_lock(&w->lock);
  const bool full = w->begun - w->reaped == ISO_WRITES_DEPTH;
  if (!full) {
    w->jobs[w->begun % ISO_WRITES_DEPTH] = (job){parts, count, fd, tag, offset, 0};
    w->begun++;
    pthread_cond_broadcast(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
  if (full) errno = EBUSY;
  return full ? -1 : 0;
}

int iso_writer_reap(void *handle, int *tag, ssize_t *result) {
  writer *w = handle;
  pthread_mutex_lock(&w->lock);
  while (w->done == w->reaped) pthread_cond_wait(&w->changed, &w->lock);
  const job *j = &w->jobs[w->reaped++ % ISO_WRITES_DEPTH];
  *tag = j->tag;
  *result = j->result;
  pthread_mutex_unlock(&w->lock);
  return 0;
}

void iso_writer_close(void *handle) {
  writer *w = handle;
  pthread_mutex_lock(&w->lock);
  w->closing = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  (void)pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}
