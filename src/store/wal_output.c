/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments of the step log on their way to storage: one open file, frames behind each other, payload straight from the
 * gradient's own memory or packed into the buffer of a write in flight. A step's ranges are written in the order in
 * which they become final, most of them while the step still computes others.
 *
 * Invariants
 *  1. CRC-32C is taken from the buffer before any I/O; nothing is read back.
 *  2. A commit frame is begun when all writes before it are reaped, a sync when the commit's is.
 *  3. Segments are created exclusively and never reused; after a failure nothing is written to the file again, which is
 *     cut back to the steps that count: what a failed write left behind them is no damage that anyone should look into.
 *  4. When a call returns no write is in flight: the gradient is the caller's again.
 */
#include "store/wal_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK_ELEMENTS = 1 << 23, FIRST_ELEMENTS = 1 << 19 }; /* of a payload frame; multiples of the norm's blocks */

static double thread_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- opening ---- */

/* Values of a packed frame. */
static int64_t packed_most(const iso_wal_options *o) {
  return o->elements < ISO_WAL_PACKED ? o->elements : ISO_WAL_PACKED;
}

/* The head of a frame, and a packed one's content or a plain one's last block. */
static size_t buffer_bytes(const iso_wal_options *o) {
  return ISO_WAL_BLOCK +
         (o->packed == ISO_WAL_OFF ? ISO_WAL_BLOCK : iso_wal_padded(iso_wal_packed_bound(o->gradient, packed_most(o))));
}

size_t iso_wal_output_bytes(const iso_wal_options *o) {
  return ISO_WRITES_DEPTH * buffer_bytes(o) +
         (o->packed == ISO_WAL_OFF ? 0 : iso_wal_coder_bytes(o->gradient, packed_most(o)));
}

iso_status iso_wal_output_init(iso_wal_output *out, const iso_wal_options *o) {
  iso_string folder = {0};
  iso_string_printf(&folder, "%s/log", o->run);
  *out = (iso_wal_output){.options = o, .folder = folder.data, .fd = -1};
  out->body_bytes = iso_wal_commit_bytes((size_t)o->cursors);
  out->path = iso_string_failed(&folder) ? NULL : malloc(folder.length + 64);
  void *body = NULL;
  const bool made = posix_memalign(&body, ISO_WAL_BLOCK, iso_wal_padded(out->body_bytes)) == 0;
  out->body = made ? body : NULL;
  if (!out->folder || !out->path || !out->body)
    return iso_fail(ISO_ERR_MEMORY, "log: no memory for the step log of '%s'", o->run);
  memset(out->body, 0, iso_wal_padded(out->body_bytes));
  ISO_TRY(iso_writes_open(o->several != ISO_WAL_OFF, buffer_bytes(o), &out->writes));
  if (o->packed != ISO_WAL_OFF) ISO_TRY(iso_wal_coder_create(o->gradient, packed_most(o), &out->coder));
  return iso_path_make(out->folder);
}

void iso_wal_output_fini(iso_wal_output *out) {
  iso_writes_close(&out->writes);
  iso_wal_coder_destroy(&out->coder);
  free(out->folder);
  free(out->path);
  free(out->body);
}

/* ---- segments ---- */

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

static iso_status put(iso_wal_output *out, const struct iovec *parts, int count) {
  ISO_TRY(iso_writes_put(out->writes, out->fd, out->path, parts, count, out->offset));
  for (int i = 0; i < count; i++) out->offset += (int64_t)parts[i].iov_len;
  return ISO_OK;
}

/* So much of the next write's own buffer. */
static iso_status put_buffer(iso_wal_output *out, char *buffer, size_t bytes) {
  return put(out, &(struct iovec){buffer, bytes}, 1);
}

static iso_status open_segment(iso_wal_output *out, int64_t first_step) {
  const iso_wal_options *o = out->options;
  iso_wal_segment head = {.incarnation = o->incarnation,
                          .shard = o->shard,
                          .number = out->number++,
                          .elements = o->elements,
                          .first_step = first_step,
                          .gradient = o->gradient,
                          .optimizer_version = o->optimizer_version};
  char name[40];
  snprintf(head.uuid, sizeof head.uuid, "%s", o->uuid);
  iso_wal_segment_name(&head, name);
  snprintf(out->path, strlen(out->folder) + sizeof name + 2, "%s/%s", out->folder, name);
  out->fd = create_file(out->path);
  if (out->fd < 0) return iso_os_fail("create", out->path);
  out->offset = out->frames = 0;
  out->whole = false;
  out->segments++;
  char *block = iso_writes_buffer(out->writes);
  iso_wal_segment_encode(&head, block);
  ISO_TRY(put_buffer(out, block, ISO_WAL_BLOCK));
  return o->disk ? iso_path_sync(out->folder) : ISO_OK;
}

iso_status iso_wal_output_close(iso_wal_output *out) {
  if (out->fd < 0) return ISO_OK;
  const int fd = out->fd;
  out->fd = -1;
  const bool synced = iso_os.fdatasync(fd) == 0;
  const iso_status status = synced ? ISO_OK : iso_os_fail("sync", out->path);
  (void)iso_os.close(fd);
  return status;
}

void iso_wal_output_abandon(iso_wal_output *out) {
  iso_writes_clear(out->writes);
  if (out->fd < 0) return;
  if (out->whole) (void)iso_os.ftruncate(out->fd, out->counted);
  (void)iso_os.close(out->fd);
  out->fd = -1;
  if (!out->whole) (void)iso_os.unlink(out->path); /* nothing that counts stands in it, and retries may be many */
}

/* ---- frames ---- */

/* Values go out of their own memory but for the last part of a block, which is padded. */
static iso_status put_frame(iso_wal_output *out, iso_wal_frame *frame, const char *data, iso_wal_spent *spent) {
  const size_t bytes = (size_t)frame->bytes, whole = bytes / ISO_WAL_BLOCK * ISO_WAL_BLOCK;
  char *block = iso_writes_buffer(out->writes), *last = block + ISO_WAL_BLOCK;
  const double began = iso_clock_s();
  frame->number = out->frames;
  frame->payload_crc = iso_crc32c(0, data, whole);
  if (whole < bytes) {
    memcpy(last, data + whole, bytes - whole);
    memset(last + (bytes - whole), 0, ISO_WAL_BLOCK - (bytes - whole));
    frame->payload_crc = iso_crc32c(frame->payload_crc, last, ISO_WAL_BLOCK);
  }
  spent->crc_s += iso_clock_s() - began;
  iso_wal_frame_encode(frame, block);
  struct iovec parts[ISO_WRITES_PARTS] = {{block, ISO_WAL_BLOCK}};
  int count = 1;
  if (whole) parts[count++] = (struct iovec){(void *)(uintptr_t)data, whole};
  if (whole < bytes) parts[count++] = (struct iovec){last, ISO_WAL_BLOCK};
  ISO_TRY(put(out, parts, count));
  out->frames++;
  return ISO_OK;
}

/* Head and packed content stand in the buffer of one write. */
static iso_status put_packed(iso_wal_output *out, iso_wal_frame *frame, const char *data, iso_wal_spent *spent) {
  char *block = iso_writes_buffer(out->writes), *content = block + ISO_WAL_BLOCK;
  double began = iso_clock_s();
  const size_t bytes = iso_wal_pack(out->coder, data, frame->end - frame->begin, content);
  spent->pack_s += iso_clock_s() - began;
  began = iso_clock_s();
  memset(content + bytes, 0, iso_wal_padded(bytes) - bytes);
  frame->bytes = (int64_t)bytes;
  frame->number = out->frames;
  frame->payload_crc = iso_crc32c(0, content, iso_wal_padded(bytes));
  spent->crc_s += iso_clock_s() - began;
  iso_wal_frame_encode(frame, block);
  ISO_TRY(put_buffer(out, block, ISO_WAL_BLOCK + iso_wal_padded(bytes)));
  out->frames++;
  return ISO_OK;
}

/* Elements of the gradient, in frames. A step's first frame is a short one: storage idles until its CRC is taken. */
static iso_status put_range(iso_wal_output *out, iso_wal_frame *frame, const char *reduced, iso_wal_span range,
                            bool first, uint32_t *payloads_crc, iso_wal_spent *spent) {
  const iso_dtype type = out->options->gradient;
  const int64_t size = (int64_t)iso_dtype_size(type);
  const int64_t chunk = frame->codec == ISO_WAL_PLANES ? ISO_WAL_PACKED : CHUNK_ELEMENTS;
  for (int64_t begin = range.begin, length = first ? FIRST_ELEMENTS : chunk; begin < range.end;
       begin = frame->end, length = chunk) {
    frame->begin = begin;
    frame->end = begin + length < range.end ? begin + length : range.end;
    frame->bytes = (frame->end - begin) * size;
    ISO_TRY((frame->codec == ISO_WAL_PLANES ? put_packed : put_frame)(out, frame, reduced + begin * size, spent));
    *payloads_crc = iso_crc32c(*payloads_crc, &frame->payload_crc, sizeof frame->payload_crc);
  }
  return ISO_OK;
}

/* Ranges as they come. While none is there what is in flight is reaped first; waiting for the step to make more is no
 * time that writing takes. */
static iso_status put_step(iso_wal_output *out, const iso_wal_source *source, bool packed, bool *given_up,
                           iso_wal_spent *spent) {
  const iso_wal_options *o = out->options;
  uint32_t payloads_crc = 0;
  const int64_t first = out->frames;
  iso_wal_frame frame = {.kind = ISO_WAL_PAYLOAD,
                         .codec = packed ? ISO_WAL_PLANES : ISO_WAL_RAW,
                         .incarnation = o->incarnation,
                         .shard = o->shard,
                         .step = source->step};
  iso_wal_coming came = ISO_WAL_NOTHING_YET;
  for (int64_t i = 0; came != ISO_WAL_COMPLETE;) {
    iso_wal_span range;
    came = source->next(source->self, i, false, &range);
    if (came == ISO_WAL_NOTHING_YET) {
      ISO_TRY(iso_writes_drain(out->writes, out->path));
      const double began = iso_clock_s();
      came = source->next(source->self, i, true, &range);
      spent->waited_s += iso_clock_s() - began;
    }
    *given_up = came == ISO_WAL_GIVEN_UP;
    if (*given_up) return ISO_OK;
    if (came != ISO_WAL_RANGE) continue;
    ISO_TRY(put_range(out, &frame, source->reduced, range, i == 0, &payloads_crc, spent));
    i++;
  }
  ISO_TRY(iso_writes_drain(out->writes, out->path));
  const iso_wal_record *record = source->record;
  const size_t bytes = iso_wal_commit_bytes(record->cursor_count);
  if (bytes > out->body_bytes) return iso_fail(ISO_ERR_INTERNAL, "log: a commit grew to %zu bytes", bytes);
  iso_wal_commit_encode(record, out->frames - first, payloads_crc, out->body);
  frame.kind = ISO_WAL_COMMIT;
  frame.codec = ISO_WAL_RAW;
  frame.begin = 0;
  frame.end = o->elements;
  frame.bytes = (int64_t)bytes;
  ISO_TRY(put_frame(out, &frame, out->body, spent));
  return iso_writes_drain(out->writes, out->path);
}

iso_status iso_wal_output_step(iso_wal_output *out, const iso_wal_source *source, iso_wal_way way, bool *given_up,
                               iso_wal_spent *spent) {
  const int64_t before = out->fd < 0 ? 0 : out->offset;
  double began = iso_clock_s() - spent->waited_s, span = iso_span_begin();
  *given_up = false;
  iso_writes_use(out->writes, way.several);
  iso_status status = out->fd < 0 ? open_segment(out, source->step) : ISO_OK;
  if (status == ISO_OK) status = put_step(out, source, way.packed && out->coder, given_up, spent);
  if (status != ISO_OK || *given_up) {
    iso_writes_clear(out->writes);
    return status;
  }
  spent->bytes += out->offset - before;
  spent->write_s += iso_clock_s() - began - spent->waited_s;
  iso_span_end(ISO_STREAM_LOG, span, "log step", source->step, out->offset - before);
  if (out->options->disk) {
    began = iso_clock_s();
    span = iso_span_begin();
    const bool synced = iso_os.fdatasync(out->fd) == 0;
    spent->sync_s += iso_clock_s() - began;
    iso_span_end(ISO_STREAM_LOG, span, "sync log", source->step, 0);
    if (!synced) return iso_os_fail("sync", out->path);
  }
  out->whole = true;
  out->counted = out->offset;
  return ISO_OK;
}

void iso_wal_output_try(iso_wal_output *out, const char *reduced, double *pack_s, double *share) {
  const int64_t all = out->options->elements, count = packed_most(out->options);
  const size_t size = iso_dtype_size(out->options->gradient);
  const int64_t from = (all - count) / 2 / 1024 * 1024; /* from the middle: embeddings may be mostly zeros */
  const double began = thread_s();
  const size_t bytes =
      iso_wal_pack(out->coder, reduced + (size_t)from * size, count, (char *)iso_writes_buffer(out->writes));
  *pack_s = (thread_s() - began) * (double)all / (double)count;
  *share = (double)(iso_wal_padded(bytes) + ISO_WAL_BLOCK) / ((double)count * (double)size);
}
