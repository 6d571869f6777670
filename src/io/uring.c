/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes that are in flight while the caller, one thread, makes its next buffer ready: several at once by io_uring
 * where the kernel has it, or one at once by a thread (writer.c).
 *
 * Invariants
 *  1. A buffer handed over is the kernel's until its write is reaped: iso_writes_drain returns only when all are,
 *     whatever failed.
 *  2. The first failure is kept: nothing is begun behind it until iso_writes_clear.
 *  3. Writes that a test or a simulation puts in place of pwrite are never bypassed: then there is neither io_uring,
 * but for the four calls that iso_os may have for it, nor the thread, and the caller writes itself.
 *
 * Writes may reach the file in any order; who needs an order drains in between.
 */
#include "io/io.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct slot {
  char *buffer;
  struct iovec parts[ISO_WRITES_PARTS];
  int count;
  int64_t offset;
  int fd;
  bool in_flight;
} slot;

typedef struct engine {
  void *handle; /* NULL: it is not there */
  int (*begin)(void *writes, int fd, const struct iovec *parts, int count, int64_t offset, int tag);
  int (*reap)(void *writes, int *tag, ssize_t *result);
  void (*close)(void *writes);
} engine;

struct iso_writes {
  engine ring, thread;
  engine *by;       /* NULL: the caller writes itself */
  bool ring_failed; /* it is not used again: what it did not take stands in it yet */
  int depth, in_flight, next;
  int failed; /* errno of the first failure */
  slot slots[ISO_WRITES_DEPTH];
};

/* ---- io_uring ---- */

static void *ring_open(int depth) {
  struct io_uring *ring = malloc(sizeof *ring);
  if (!ring) return NULL;
  const int error = io_uring_queue_init((unsigned)depth, ring, 0);
  if (error == 0) return ring;
  free(ring);
  errno = -error;
  return NULL;
}

static int ring_begin(void *handle, int fd, const struct iovec *parts, int count, int64_t offset, int tag) {
  struct io_uring *ring = handle;
  struct io_uring_sqe *entry = io_uring_get_sqe(ring);
  if (!entry) {
    errno = EBUSY;
    return -1;
  }
  io_uring_prep_writev(entry, fd, parts, (unsigned)count, (__u64)offset);
  io_uring_sqe_set_data64(entry, (__u64)tag);
  int submitted;
  do submitted = io_uring_submit(ring);
  while (submitted == -EINTR || submitted == -EAGAIN);
  if (submitted == 1) return 0;
  errno = submitted < 0 ? -submitted : EIO;
  return -1;
}

static int ring_reap(void *handle, int *tag, ssize_t *result) {
  struct io_uring *ring = handle;
  struct io_uring_cqe *entry;
  int error;
  do error = io_uring_wait_cqe(ring, &entry);
  while (error == -EINTR);
  if (error) {
    errno = -error;
    return -1;
  }
  *tag = (int)io_uring_cqe_get_data64(entry);
  *result = entry->res;
  io_uring_cqe_seen(ring, entry);
  return 0;
}

static void ring_close(void *handle) {
  io_uring_queue_exit(handle);
  free(handle);
}

/* ---- slots ---- */

iso_status iso_writes_open(bool several, size_t buffer_bytes, iso_writes **out) {
  *out = NULL;
  iso_writes *w = calloc(1, sizeof *w);
  if (!w) return iso_fail(ISO_ERR_MEMORY, "no memory for writes in flight");
  const bool real = iso_os_writes_are_real();
  if (iso_os.writes_open)
    w->ring = (engine){.begin = iso_os.writes_begin, .reap = iso_os.writes_reap, .close = iso_os.writes_close};
  else
    w->ring = (engine){.begin = ring_begin, .reap = ring_reap, .close = ring_close};
  if (several && iso_os.writes_open)
    w->ring.handle = iso_os.writes_open(ISO_WRITES_DEPTH);
  else if (several && real)
    w->ring.handle = ring_open(ISO_WRITES_DEPTH);
  w->thread = (engine){real ? iso_writer_open() : NULL, iso_writer_begin, iso_writer_reap, iso_writer_close};
  w->depth = w->ring.handle || w->thread.handle ? ISO_WRITES_DEPTH : 1;
  (void)iso_writes_use(w, several);
  for (int i = 0; i < w->depth; i++) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, 4096, buffer_bytes) != 0) {
      iso_writes_close(&w);
      return iso_fail(ISO_ERR_MEMORY, "no memory for %d writes of %zu bytes in flight", ISO_WRITES_DEPTH, buffer_bytes);
    }
    w->slots[i].buffer = buffer;
    memset(buffer, 0, buffer_bytes);
  }
  *out = w;
  return ISO_OK;
}

/* What a short write left is written at once; so is one that the kernel would not begin. */
static void finish(iso_writes *w, slot *s, size_t done) {
  size_t before = 0; /* bytes of the parts before */
  for (int i = 0; i < s->count; before += s->parts[i++].iov_len) {
    const char *data = s->parts[i].iov_base;
    while (done < before + s->parts[i].iov_len && !w->failed) {
      const ssize_t put =
          iso_os.pwrite(s->fd, data + (done - before), before + s->parts[i].iov_len - done, s->offset + (int64_t)done);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) w->failed = put < 0 ? errno : EIO;
      if (put > 0) done += (size_t)put;
    }
  }
}

static void reap(iso_writes *w) {
  int tag;
  ssize_t result;
  if (w->by->reap(w->by->handle, &tag, &result) != 0) { /* cannot be, with a ring that is open */
    iso_warn("io_uring: a completion cannot be had: %s; waiting", strerror(errno));
    const struct timespec pause = {.tv_sec = 1};
    nanosleep(&pause, NULL);
    return;
  }
  slot *s = &w->slots[tag];
  s->in_flight = false;
  w->in_flight--;
  const bool again = result == -EINTR || result == -EAGAIN;
  if (result < 0 && !again && !w->failed) w->failed = (int)-result;
  if (result >= 0 || again) finish(w, s, again ? 0 : (size_t)result);
}

bool iso_writes_use(iso_writes *w, bool several) {
  engine *by = w->thread.handle ? &w->thread : NULL;
  if (several && w->ring.handle && !w->ring_failed) by = &w->ring;
  while (by != w->by && w->in_flight > 0) reap(w);
  w->by = by;
  return by == &w->ring;
}

static slot *free_slot(iso_writes *w) {
  while (w->in_flight == w->depth) reap(w);
  while (w->slots[w->next].in_flight) w->next = (w->next + 1) % w->depth;
  return &w->slots[w->next];
}

void *iso_writes_buffer(iso_writes *w) {
  return free_slot(w)->buffer;
}

iso_status iso_writes_put(iso_writes *w, int fd, const char *path, const struct iovec *parts, int count,
                          int64_t offset) {
  slot *s = free_slot(w);
  memcpy(s->parts, parts, (size_t)count * sizeof *parts);
  s->count = count;
  s->offset = offset;
  s->fd = fd;
  while (!w->failed && w->by) {
    if (w->by->begin(w->by->handle, fd, s->parts, count, offset, (int)(s - w->slots)) == 0) {
      s->in_flight = true;
      w->in_flight++;
      return ISO_OK;
    }
    if (w->by == &w->thread) break; /* cannot be: it takes as many as there are slots */
    w->ring_failed = true;
    (void)iso_writes_use(w, false);
  }
  finish(w, s, 0);
  if (!w->failed) return ISO_OK;
  errno = w->failed;
  return iso_os_fail("write", path);
}

iso_status iso_writes_drain(iso_writes *w, const char *path) {
  while (w->in_flight > 0) reap(w);
  if (!w->failed) return ISO_OK;
  errno = w->failed;
  return iso_os_fail("write", path);
}

void iso_writes_clear(iso_writes *w) {
  while (w->in_flight > 0) reap(w);
  w->failed = 0;
}

void iso_writes_close(iso_writes **address) {
  iso_writes *w = *address;
  if (!w) return;
  while (w->in_flight > 0) reap(w);
  if (w->ring.handle) w->ring.close(w->ring.handle);
  if (w->thread.handle) w->thread.close(w->thread.handle);
  for (int i = 0; i < w->depth; i++) free(w->slots[i].buffer);
  free(w);
  *address = NULL;
}
