/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log of a running incarnation: every step's reduced gradient, in exactly the bits the optimizer consumes, and
 * a commit. A thread of its own writes from the gradient's memory while the next step computes; up to ISO_WAL_DEPTH
 * steps are in its hands, and the caller asks before it writes over a buffer again.
 *
 * Invariants
 *  1. CRC-32C is taken from the buffer before any I/O; nothing is read back.
 *  2. A step counts when its commit frame is written, with `disk` when a sync submitted after that has succeeded; the
 *     frames before it were written first.
 *  3. After a failed write or sync the file is not touched again: the step, still in its buffer, goes whole to a new
 *     segment. When that fails too, writing is suspended, loudly, until a snapshot closes the gap.
 *  4. Segments are created exclusively and never reused.
 *  5. Before a step counts, the thread looks for a newer incarnation: what a superseded process writes never counts.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK_ELEMENTS = 1 << 23 /* of a payload frame; a multiple of the norm's blocks */ };

typedef struct entry {
  iso_wal_record record;
  iso_cursor *cursors;
  const char *reduced;
} entry;

struct iso_wal {
  iso_wal_options options;
  char *folder;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* guarded: */
  entry queue[ISO_WAL_DEPTH];
  int queued; /* entries in hand, the oldest at `head` */
  int head;
  bool stop, roll, busy;
  int64_t restart; /* first step after a restart; 0: none asked for */
  int64_t first;   /* of the row of steps being written */
  int64_t next;    /* step that would continue it */
  bool broken;     /* something was not written and no restart was reached since: no row goes on */
  iso_wal_state state;
  /* the thread's: */
  int fd;
  char *path;
  int number;
  int64_t offset, frames;
  char *block, *tail; /* ISO_WAL_BLOCK each, aligned */
  char *body;         /* of a commit */
  size_t body_bytes;
};

/* ---- files ---- */

static iso_status put(iso_wal *log, const void *data, size_t bytes) {
  ISO_TRY(iso_file_pwrite(log->fd, log->path, data, bytes, log->offset));
  log->offset += (int64_t)bytes;
  return ISO_OK;
}

static iso_status close_segment(iso_wal *log) {
  if (log->fd < 0) return ISO_OK;
  const int fd = log->fd;
  log->fd = -1;
  const bool synced = iso_os.fdatasync(fd) == 0;
  const iso_status status = synced ? ISO_OK : iso_os_fail("sync", log->path);
  (void)iso_os.close(fd);
  return status;
}

/* Written past the page cache where the file system can. */
static int create_file(const char *path) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  int fd;
  do fd = iso_os.open(path, flags | O_DIRECT, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd >= 0 || errno != EINVAL) return fd;
  do fd = iso_os.open(path, flags, 0666);
  while (fd < 0 && errno == EINTR);
  if (fd >= 0 || errno != EEXIST) return fd;
  return iso_os.open(path, O_WRONLY | O_CLOEXEC, 0666); /* the first attempt made it and then refused O_DIRECT */
}

static iso_status open_segment(iso_wal *log, int64_t first_step) {
  iso_wal_segment head = {.incarnation = log->options.incarnation,
                          .shard = log->options.shard,
                          .number = log->number++,
                          .elements = log->options.elements,
                          .first_step = first_step,
                          .gradient = log->options.gradient,
                          .optimizer_version = log->options.optimizer_version};
  char name[40];
  snprintf(head.uuid, sizeof head.uuid, "%s", log->options.uuid);
  iso_wal_segment_name(&head, name);
  snprintf(log->path, strlen(log->folder) + sizeof name + 2, "%s/%s", log->folder, name);
  log->fd = create_file(log->path);
  if (log->fd < 0) return iso_os_fail("create", log->path);
  log->offset = log->frames = 0;
  iso_wal_segment_encode(&head, log->block);
  ISO_TRY(put(log, log->block, ISO_WAL_BLOCK));
  pthread_mutex_lock(&log->lock);
  log->state.segments++;
  pthread_mutex_unlock(&log->lock);
  return log->options.disk ? iso_path_sync(log->folder) : ISO_OK;
}

/* ---- frames ---- */

/* Payload goes out of its own memory but for the last part of a block, which is padded. */
static iso_status put_frame(iso_wal *log, iso_wal_frame *frame, const char *data, double *crc_s) {
  const size_t bytes = (size_t)frame->bytes, whole = bytes / ISO_WAL_BLOCK * ISO_WAL_BLOCK;
  const double began = iso_clock_s();
  frame->number = log->frames;
  frame->payload_crc = iso_crc32c(0, data, whole);
  if (whole < bytes) {
    memset(log->tail, 0, ISO_WAL_BLOCK);
    memcpy(log->tail, data + whole, bytes - whole);
    frame->payload_crc = iso_crc32c(frame->payload_crc, log->tail, ISO_WAL_BLOCK);
  }
  *crc_s += iso_clock_s() - began;
  iso_wal_frame_encode(frame, log->block);
  ISO_TRY(put(log, log->block, ISO_WAL_BLOCK));
  if (whole) ISO_TRY(put(log, data, whole));
  if (whole < bytes) ISO_TRY(put(log, log->tail, ISO_WAL_BLOCK));
  log->frames++;
  return ISO_OK;
}

static iso_status put_step(iso_wal *log, const entry *e, double *crc_s) {
  const iso_wal_options *o = &log->options;
  const int64_t size = (int64_t)iso_dtype_size(o->gradient);
  uint32_t payloads_crc = 0;
  int64_t payloads = 0;
  iso_wal_frame frame = {
      .kind = ISO_WAL_PAYLOAD, .incarnation = o->incarnation, .shard = o->shard, .step = e->record.step};
  for (int64_t begin = 0; begin < o->elements && !e->record.refused; begin += CHUNK_ELEMENTS, payloads++) {
    frame.begin = begin;
    frame.end = begin + CHUNK_ELEMENTS < o->elements ? begin + CHUNK_ELEMENTS : o->elements;
    frame.bytes = (frame.end - begin) * size;
    ISO_TRY(put_frame(log, &frame, e->reduced + begin * size, crc_s));
    payloads_crc = iso_crc32c(payloads_crc, &frame.payload_crc, sizeof frame.payload_crc);
  }
  const size_t bytes = iso_wal_commit_bytes(e->record.cursor_count);
  if (bytes > log->body_bytes) return iso_fail(ISO_ERR_INTERNAL, "log: a commit grew to %zu bytes", bytes);
  iso_wal_commit_encode(&e->record, payloads, payloads_crc, log->body);
  frame.kind = ISO_WAL_COMMIT;
  frame.begin = 0;
  frame.end = o->elements;
  frame.bytes = (int64_t)bytes;
  return put_frame(log, &frame, log->body, crc_s);
}

/* ---- what counts: all with the lock ---- */

/* The row counts once it begins right behind a durable step. */
static void count_durable(iso_wal *log) {
  if (log->first <= log->state.durable + 1 && log->next - 1 > log->state.durable) log->state.durable = log->next - 1;
}

/* Here a row begins, unless the one before it comes so far. */
static void begin_row(iso_wal *log) {
  if (log->next != log->restart) log->first = log->next = log->restart;
  log->restart = 0;
  log->broken = false;
}

/* ---- the thread ---- */

static iso_status write_once(iso_wal *log, const entry *e, iso_wal_state *spent) {
  const int64_t before = log->fd < 0 ? 0 : log->offset;
  double began = iso_clock_s();
  if (log->fd < 0) ISO_TRY(open_segment(log, e->record.step));
  ISO_TRY(put_step(log, e, &spent->crc_s));
  spent->bytes += log->offset - before;
  spent->write_s += iso_clock_s() - began;
  if (!log->options.disk) return ISO_OK;
  began = iso_clock_s();
  const bool synced = iso_os.fdatasync(log->fd) == 0;
  spent->sync_s += iso_clock_s() - began;
  return synced ? ISO_OK : iso_os_fail("sync", log->path);
}

/* A step that could not be written goes to a new segment, once. */
static iso_status write_entry(iso_wal *log, const entry *e, iso_wal_state *spent) {
  iso_status status = write_once(log, e, spent);
  if (status == ISO_OK) return ISO_OK;
  if (log->fd >= 0) (void)iso_os.close(log->fd);
  log->fd = -1;
  iso_warn("log: step %lld could not be written (%s); trying a new segment", (long long)e->record.step,
           iso_last_error());
  status = write_once(log, e, spent);
  if (status == ISO_OK) return ISO_OK;
  if (log->fd >= 0) (void)iso_os.close(log->fd);
  log->fd = -1;
  return status;
}

static void suspend(iso_wal *log, int64_t step, iso_status status) {
  pthread_mutex_lock(&log->lock);
  log->state.suspended = log->broken = true;
  log->state.status = status;
  snprintf(log->state.cause, sizeof log->state.cause, "step %lld: %.200s", (long long)step, iso_last_error());
  pthread_mutex_unlock(&log->lock);
}

#ifdef ISO_SABOTAGE_ACK_EARLY
static void acknowledge_early(iso_wal *log, int64_t step) {
  pthread_mutex_lock(&log->lock);
  if (step == log->next) log->next++;
  count_durable(log);
  pthread_mutex_unlock(&log->lock);
}
#endif

static void handle(iso_wal *log, const entry *e) {
  iso_wal_state spent = {0};
#ifdef ISO_SABOTAGE_ACK_EARLY
  acknowledge_early(log, e->record.step);
#endif
  pthread_mutex_lock(&log->lock);
  const bool roll = log->roll, skip = log->state.suspended;
  log->roll = false;
  pthread_mutex_unlock(&log->lock);
  if (skip) return;
  iso_status status = ISO_OK;
  if (log->fd >= 0 && (roll || log->offset >= log->options.segment_bytes)) status = close_segment(log);
  if (status != ISO_OK) iso_warn("log: %s", iso_last_error());
  status = write_entry(log, e, &spent);
  if (status == ISO_OK) status = iso_incarnation_check(log->options.run, log->options.incarnation);
  if (status != ISO_OK) {
    suspend(log, e->record.step, status);
    return;
  }
  pthread_mutex_lock(&log->lock);
  iso_wal_state *s = &log->state;
  if (e->record.step == log->next) {
    log->next++;
    count_durable(log);
  }
  s->bytes += spent.bytes;
  s->write_s += spent.write_s;
  s->sync_s += spent.sync_s;
  s->crc_s += spent.crc_s;
  if (!e->record.refused) s->raw_bytes += log->options.elements * (int64_t)iso_dtype_size(log->options.gradient);
  pthread_mutex_unlock(&log->lock);
}

static void *run_thread(void *argument) {
  iso_wal *log = argument;
  pthread_mutex_lock(&log->lock);
  while (true) {
    while (log->queued == 0 && !log->stop) pthread_cond_wait(&log->changed, &log->lock);
    if (log->queued == 0) break;
    const entry e = log->queue[log->head];
    if (log->restart && e.record.step >= log->restart && !log->state.suspended) begin_row(log);
    log->busy = true;
    pthread_mutex_unlock(&log->lock);
    handle(log, &e);
    pthread_mutex_lock(&log->lock);
    log->busy = false;
    log->head = (log->head + 1) % ISO_WAL_DEPTH;
    log->queued--; /* this one: iso_wal_suspend leaves it */
    pthread_cond_broadcast(&log->changed);
  }
  pthread_mutex_unlock(&log->lock);
  const iso_status closed = close_segment(log);
  if (closed != ISO_OK) suspend(log, log->next - 1, closed);
  return NULL;
}

/* ---- the caller's side ---- */

static void *aligned_block(size_t bytes) {
  void *block = NULL;
  return posix_memalign(&block, ISO_WAL_BLOCK, iso_wal_padded(bytes)) == 0 ? block : NULL;
}

static void destroy(iso_wal *log) {
  for (int i = 0; i < ISO_WAL_DEPTH; i++) free(log->queue[i].cursors);
  free(log->folder);
  free(log->path);
  free(log->block);
  free(log->tail);
  free(log->body);
  pthread_cond_destroy(&log->changed);
  pthread_mutex_destroy(&log->lock);
  free(log);
}

static iso_status prepare(iso_wal *log) {
  const iso_wal_options *o = &log->options;
  iso_string folder = {0};
  iso_string_printf(&folder, "%s/log", o->run);
  log->folder = folder.data;
  log->block = aligned_block(ISO_WAL_BLOCK);
  log->tail = aligned_block(ISO_WAL_BLOCK);
  log->body_bytes = iso_wal_commit_bytes((size_t)o->cursors);
  log->body = aligned_block(log->body_bytes);
  log->path = iso_string_failed(&folder) ? NULL : malloc(folder.length + 64);
  bool ok = log->folder && log->block && log->tail && log->body && log->path;
  for (int i = 0; i < ISO_WAL_DEPTH && ok; i++) {
    log->queue[i].cursors = calloc((size_t)o->cursors + 1, sizeof(iso_cursor));
    ok = log->queue[i].cursors != NULL;
  }
  if (!ok) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the step log of '%s'", o->run);
  memset(log->body, 0, iso_wal_padded(log->body_bytes));
  return iso_path_make(log->folder);
}

iso_status iso_wal_open(const iso_wal_options *options, int64_t first_step, iso_wal **out) {
  *out = NULL;
  iso_wal *log = calloc(1, sizeof *log);
  if (!log) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the step log of '%s'", options->run);
  log->options = *options;
  log->fd = -1;
  log->first = log->next = first_step;
  log->state.durable = first_step - 1;
  pthread_mutex_init(&log->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&log->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  iso_status status = prepare(log);
  int error = status == ISO_OK ? pthread_create(&log->thread, NULL, run_thread, log) : 0;
  if (error) status = iso_fail(ISO_ERR_MEMORY, "log: cannot start the thread that writes: %s", strerror(error));
  if (status != ISO_OK) {
    destroy(log);
    return status;
  }
  *out = log;
  return ISO_OK;
}

iso_status iso_wal_append(iso_wal *log, const iso_wal_record *record, const void *reduced) {
  if (record->cursor_count != (size_t)log->options.cursors)
    return iso_fail(ISO_ERR_INTERNAL, "log: a step with %zu cursors, not %lld", record->cursor_count,
                    (long long)log->options.cursors);
  pthread_mutex_lock(&log->lock);
  while (log->queued == ISO_WAL_DEPTH) pthread_cond_wait(&log->changed, &log->lock);
  entry *e = &log->queue[(log->head + log->queued) % ISO_WAL_DEPTH];
  iso_cursor *cursors = e->cursors;
  *e = (entry){.record = *record, .cursors = cursors, .reduced = reduced};
  if (record->cursor_count) memcpy(cursors, record->cursors, record->cursor_count * sizeof *cursors);
  e->record.cursors = cursors;
  e->record.durable = log->state.durable;
  log->queued++;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
  return ISO_OK;
}

static bool in_hand(const iso_wal *log, const void *reduced) {
  for (int i = 0; i < log->queued; i++)
    if (log->queue[(log->head + i) % ISO_WAL_DEPTH].reduced == reduced) return true;
  return false;
}

bool iso_wal_release(iso_wal *log, const void *reduced, double max_s) {
  struct timespec until;
#ifdef ISO_SABOTAGE_REUSE_BUFFER
  return true;
#endif
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (max_s > 1e6) max_s = 1e6;
  until.tv_sec += (time_t)max_s;
  until.tv_nsec += (long)((max_s - (double)(time_t)max_s) * 1e9);
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  pthread_mutex_lock(&log->lock);
  int error = 0;
  while (in_hand(log, reduced) && error != ETIMEDOUT) error = pthread_cond_timedwait(&log->changed, &log->lock, &until);
  const bool released = !in_hand(log, reduced);
  pthread_mutex_unlock(&log->lock);
  return released;
}

void iso_wal_suspend(iso_wal *log, const char *cause) {
  pthread_mutex_lock(&log->lock);
  if (!log->state.suspended) {
    snprintf(log->state.cause, sizeof log->state.cause, "%s", cause);
    log->state.status = ISO_ERR_IO;
  }
  log->state.suspended = log->broken = true;
  log->queued = log->busy;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_flush(iso_wal *log) {
  pthread_mutex_lock(&log->lock);
  while (log->queued > 0) pthread_cond_wait(&log->changed, &log->lock);
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_restart(iso_wal *log, int64_t first_step) {
  pthread_mutex_lock(&log->lock);
  log->restart = first_step;
  log->roll = true;
  log->state.suspended = false;
  log->state.cause[0] = 0;
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_covered(iso_wal *log, int64_t step) {
  pthread_mutex_lock(&log->lock);
  if (log->state.durable < step) log->state.durable = step;
  count_durable(log);
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_state_get(iso_wal *log, iso_wal_state *state) {
  pthread_mutex_lock(&log->lock);
  *state = log->state;
  state->gap = log->broken || log->state.suspended || log->first > log->state.durable + 1;
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_close(iso_wal **log_address) {
  iso_wal *log = *log_address;
  if (!log) return;
  pthread_mutex_lock(&log->lock);
  log->stop = true;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
  pthread_join(log->thread, NULL);
  destroy(log);
  *log_address = NULL;
}
