/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for TensorBoard, RUN/tensorboard/events.out.tfevents.*: a file for each start, of records
 *
 *   uint64 length, uint32 masked CRC-32C of the length, the bytes, uint32 masked CRC-32C of the bytes
 *
 * (little-endian; masked: rotated right by 15 and 0xa282ead8 added), each of which is an Event. Formats: TensorFlow's
 * lib/io/record_writer.h, util/event.proto, framework/summary.proto and tensor.proto.
 *
 * Invariants
 *  1. A file begins with its version and a session that starts at this start's first step, by which TensorBoard drops
 *     what an earlier start had beyond it: each step is shown once.
 *  2. What is not written yet is at most FLUSH_S old; a kill cuts a file, which its readers put up with.
 *  3. When a file cannot be written, that is said once, and it ends there.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/vitals/vitals.h"

#define FLUSH_S 1.0
enum { FLUSH_BYTES = 1 << 20 };

/* Fields: Event, Summary, Summary.Value, HistogramProto, SummaryMetadata, TensorProto, SessionLog. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum {
  HISTOGRAM_MIN = 1,
  HISTOGRAM_MAX,
  HISTOGRAM_COUNT,
  HISTOGRAM_SUM,
  HISTOGRAM_SQUARES,
  HISTOGRAM_LIMITS,
  HISTOGRAM_BUCKETS
};
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, METADATA_CLASS = 4, CLASS_TENSOR = 2 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_TEXT = 8, TYPE_TEXT = 7 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };

struct iso_events {
  int fd; /* -1: it could not be written */
  int64_t offset;
  char *path;
  iso_string pending, event, summary, value, inner, deepest; /* messages being made */
  double flushed_s;
};

static uint32_t masked(const void *bytes, size_t count) {
  const uint32_t crc = iso_crc32c(0, bytes, count);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_record(iso_events *events) {
  const uint64_t length = events->event.length;
  const uint32_t head = masked(&length, sizeof length), body = masked(events->event.data, length);
  iso_string_append(&events->pending, &length, sizeof length);
  iso_string_append(&events->pending, &head, sizeof head);
  iso_string_append(&events->pending, events->event.data, length);
  iso_string_append(&events->pending, &body, sizeof body);
  events->event.length = 0;
}

static void begin_event(iso_events *events, double time, int64_t step) {
  events->event.length = events->summary.length = events->value.length = 0;
  iso_protobuf_double(&events->event, EVENT_TIME, time);
  if (step) iso_protobuf_int(&events->event, EVENT_STEP, step);
}

static void end_summary(iso_events *events) {
  iso_protobuf_message(&events->event, EVENT_SUMMARY, &events->summary);
  add_record(events);
}

static void flush(iso_events *events) {
  iso_string *pending = &events->pending;
  events->flushed_s = iso_clock_s();
  if (events->fd < 0 || pending->length == 0) return;
  const bool whole = !iso_string_failed(pending) && !iso_string_failed(&events->event);
  const iso_status status =
      whole ? iso_file_pwrite(events->fd, events->path, pending->data, pending->length, events->offset)
            : ISO_ERR_MEMORY;
  if (status != ISO_OK) {
    iso_warn("%s: no events from here on; the run goes on", events->path);
    (void)iso_os.close(events->fd);
    events->fd = -1;
  }
  events->offset += (int64_t)pending->length;
  pending->length = 0;
}

static void add_text(iso_events *events, const char *tag, const char *text) {
  iso_protobuf_text(&events->value, VALUE_TAG, tag);
  iso_protobuf_int(&events->inner, TENSOR_TYPE, TYPE_TEXT);
  iso_protobuf_message(&events->inner, TENSOR_SHAPE, &events->deepest); /* no dimension */
  iso_protobuf_text(&events->inner, TENSOR_TEXT, text);
  iso_protobuf_message(&events->value, VALUE_TENSOR, &events->inner);
  iso_protobuf_text(&events->deepest, PLUGIN_NAME, "text");
  iso_protobuf_message(&events->inner, METADATA_PLUGIN, &events->deepest);
  iso_protobuf_int(&events->inner, METADATA_CLASS, CLASS_TENSOR);
  iso_protobuf_message(&events->value, VALUE_METADATA, &events->inner);
  iso_protobuf_message(&events->summary, SUMMARY_VALUE, &events->value);
}

static void begin_file(iso_events *events, int64_t first_step, double time, const char *config) {
  begin_event(events, time, 0);
  iso_protobuf_text(&events->event, EVENT_VERSION, "brain.Event:2");
  add_record(events);
  begin_event(events, time, first_step);
  iso_protobuf_int(&events->inner, SESSION_STATUS, SESSION_START);
  iso_protobuf_message(&events->event, EVENT_SESSION, &events->inner);
  add_record(events);
  begin_event(events, time, first_step);
  add_text(events, "config", config);
  end_summary(events);
  flush(events);
}

iso_status iso_events_open(const char *run, int64_t first_step, double time, const char *config, iso_events **out) {
  iso_string path = {0};
  iso_events *events = calloc(1, sizeof *events);
  *out = events;
  if (!events) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for events", run);
  events->fd = -1;
  iso_owner me;
  iso_owner_self(&me);
  iso_string_printf(&path, "%s/tensorboard", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_make(path.data);
  iso_string_printf(&path, "/events.out.tfevents.%010lld.%.64s.%ld.%lld", (long long)time, me.host, me.pid,
                    (long long)first_step);
  if (status == ISO_OK && iso_string_failed(&path)) status = ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    events->path = path.data;
    events->fd = iso_os.open(path.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (events->fd < 0) status = iso_os_fail("create", path.data);
  } else {
    iso_string_fini(&path);
  }
  if (status == ISO_OK) begin_file(events, first_step, time, config);
  if (status != ISO_OK) iso_events_close(out);
  return status;
}

void iso_events_step(iso_events *events, const iso_step_metrics *step, double time) {
  if (events->fd < 0) return;
  begin_event(events, time, step->step);
  for (size_t row = 0; row < iso_vital_count; row++) {
    const double value = iso_vital_value(&iso_vitals[row], step);
    if (strcmp(iso_vitals[row].name, "step") == 0 || !isfinite(value)) continue;
    iso_protobuf_text(&events->value, VALUE_TAG, iso_vitals[row].name);
    iso_protobuf_float(&events->value, VALUE_SIMPLE, (float)value);
    iso_protobuf_message(&events->summary, SUMMARY_VALUE, &events->value);
  }
  end_summary(events);
  if (events->pending.length > FLUSH_BYTES || iso_clock_s() - events->flushed_s >= FLUSH_S) flush(events);
}

static void add_histogram(iso_events *events, const iso_layer_spread *s) {
  char tag[96];
  int first = 0, last = 2 * ISO_SPREAD_BINS;
  while (first < last && !s->bins[first]) first++;
  while (last > first && !s->bins[last]) last--;
  snprintf(tag, sizeof tag, "gradients/%s", s->name);
  iso_protobuf_text(&events->value, VALUE_TAG, tag);
  iso_protobuf_double(&events->inner, HISTOGRAM_MIN, (double)s->least);
  iso_protobuf_double(&events->inner, HISTOGRAM_MAX, (double)s->most);
  iso_protobuf_double(&events->inner, HISTOGRAM_COUNT, (double)s->count);
  iso_protobuf_double(&events->inner, HISTOGRAM_SUM, s->sum);
  iso_protobuf_double(&events->inner, HISTOGRAM_SQUARES, s->squares);
  for (int bin = first; bin <= last; bin++) {
    const double limit = bin == last ? (double)s->most : iso_spread_limit(bin);
    iso_string_append(&events->deepest, &limit, sizeof limit);
  }
  iso_protobuf_message(&events->inner, HISTOGRAM_LIMITS, &events->deepest);
  for (int bin = first; bin <= last; bin++) {
    const double count = (double)s->bins[bin];
    iso_string_append(&events->deepest, &count, sizeof count);
  }
  iso_protobuf_message(&events->inner, HISTOGRAM_BUCKETS, &events->deepest);
  iso_protobuf_message(&events->value, VALUE_HISTOGRAM, &events->inner);
  iso_protobuf_message(&events->summary, SUMMARY_VALUE, &events->value);
}

void iso_events_gradients(iso_events *events, const iso_gradients *gradients, int64_t step, double time) {
  if (events->fd < 0) return;
  begin_event(events, time, step);
  for (size_t i = 0; i < gradients->count; i++)
    if (gradients->layers[i].count) add_histogram(events, &gradients->layers[i]);
  end_summary(events);
}

void iso_events_close(iso_events **out) {
  iso_events *events = *out;
  if (!events) return;
  flush(events);
  if (events->fd >= 0) (void)iso_os.close(events->fd);
  iso_string *const strings[] = {&events->pending, &events->event, &events->summary,
                                 &events->value,   &events->inner, &events->deepest};
  for (size_t i = 0; i < ISO_COUNT(strings); i++) iso_string_fini(strings[i]);
  free(events->path);
  free(events);
  *out = NULL;
}
