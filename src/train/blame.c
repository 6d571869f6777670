/* SPDX-License-Identifier: Apache-2.0
 *
 * Which cause took how much of a window of steps: the budget says where the time went, the machine why. Each cause has
 * seconds of its own, so the one with the most is named first, and a list of them can be summed over a run.
 */
#include <math.h>
#include <string.h>

#include "train/train.h"

const char *const iso_cause_names[ISO_CAUSES] = {"source", "stopped", "preempted", "throttled", "steal", "clock",
                                                 "memory", "disk",    "s3",        "other",     "rank",  "unknown"};

static const double CLOCK_LOW = 0.95;       /* of the best clock */
static const double MEMORY_LOW = 0.05;      /* of all memory */
static const double MEMORY_SHARE = 1.0 / 3; /* of preemption: waiting for memory that explains it */
static const double OTHER_MOST = 0.02;      /* of the time: what host work may take */

static bool memory_is_low(const iso_machine *m) {
  return m->memory_available_bytes < MEMORY_LOW * m->memory_bytes;
}

/* Of a sum over so many and one over `more`; NaN: not known. */
static void add_mean(double *mean, double over, double value, double more) {
  if (isnan(value)) return;
  *mean = isnan(*mean) || over <= 0 ? value : (*mean * over + value * more) / (over + more);
}

static void add_count(double *sum, double value) {
  if (!isnan(value)) *sum = isnan(*sum) ? value : *sum + value;
}

void iso_window_add(iso_window *sum, const iso_window *w) {
  iso_machine *m = &sum->machine;
  const iso_machine *n = &w->machine;
  const bool first = sum->steps == 0;
  if (first) {
    *sum = *w;
    return;
  }
  const double before = sum->seconds, more = w->seconds;
  add_mean(&m->pressure_cpu, before, n->pressure_cpu, more);
  add_mean(&m->pressure_memory, before, n->pressure_memory, more);
  add_mean(&m->pressure_io, before, n->pressure_io, more);
  add_mean(&m->steal, before, n->steal, more);
  add_mean(&m->throttled, before, n->throttled, more);
  add_mean(&m->stopped, before, n->stopped, more);
  add_mean(&m->disk_busy, before, n->disk_busy, more);
  add_mean(&m->disk_write_s, (double)sum->steps, n->disk_write_s, (double)w->steps);
  add_count(&m->major_faults, n->major_faults);
  add_count(&m->s3_requests, n->s3_requests);
  add_count(&m->s3_errors, n->s3_errors);
  m->memory_bytes = n->memory_bytes;
  m->memory_available_bytes = fmin(m->memory_available_bytes, n->memory_available_bytes);
  m->page_cache_bytes = fmin(m->page_cache_bytes, n->page_cache_bytes);
  m->running = fmax(m->running, n->running);
  m->processors = fmin(m->processors, n->processors);
  m->clock_best_ghz = fmax(m->clock_best_ghz, n->clock_best_ghz);
  m->celsius = fmax(m->celsius, n->celsius);
  m->clock_ghz = fmin(m->clock_ghz, n->clock_ghz);
  sum->seconds += w->seconds;
  sum->steps += w->steps;
  sum->kept.stopped_s += w->kept.stopped_s;
  sum->kept.throttled_s += w->kept.throttled_s;
  sum->kept.steal_s += w->kept.steal_s;
  sum->kept.memory_s += w->kept.memory_s;
  for (int p = 0; p < ISO_PARTS; p++) sum->sums.parts[p] += w->sums.parts[p];
  for (int i = 0; i < ISO_LATE_STAGES; i++)
    for (int j = 0; j < ISO_LATE_SOURCES; j++) sum->late.seconds[i][j] += w->late.seconds[i][j];
}

void iso_blame(const iso_window *w, double seconds[ISO_CAUSES]) {
  const double *parts = w->sums.parts;
  const iso_machine *m = &w->machine;
  for (int c = 0; c < ISO_CAUSES; c++) seconds[c] = 0;
  /* A data thread that had no core was not late for its source's sake. */
  const double scheduled = fmin(iso_late_sum(&w->late, ISO_LATE_SCHEDULE), parts[ISO_PART_DATA]);
  seconds[ISO_CAUSE_SOURCE] = parts[ISO_PART_DATA] - scheduled;
  seconds[ISO_CAUSE_DISK] = parts[ISO_PART_STORAGE];
  seconds[ISO_CAUSE_RANK] = parts[ISO_PART_REDUCE];
  seconds[ISO_CAUSE_STOPPED] = w->kept.stopped_s;
  seconds[ISO_CAUSE_THROTTLED] = w->kept.throttled_s;
  seconds[ISO_CAUSE_STEAL] = w->kept.steal_s;
  const double preempted = parts[ISO_PART_PREEMPTED] - seconds[ISO_CAUSE_THROTTLED]; /* which waits, too */
  seconds[ISO_CAUSE_PREEMPTED] = fmax(preempted, 0) + scheduled;
  const double clock = m->clock_ghz / m->clock_best_ghz;
  if (clock < CLOCK_LOW) seconds[ISO_CAUSE_CLOCK] = (1 - clock) * parts[ISO_PART_COMPUTE];
  seconds[ISO_CAUSE_MEMORY] = w->kept.memory_s;
  if (memory_is_low(m) && seconds[ISO_CAUSE_MEMORY] < 0.02 * w->seconds)
    seconds[ISO_CAUSE_MEMORY] = 0.02 * w->seconds; /* it will be */
  if (parts[ISO_PART_OTHER] > OTHER_MOST * parts[ISO_PART_WALL]) seconds[ISO_CAUSE_OTHER] = parts[ISO_PART_OTHER];
  if (m->s3_errors > 0 && seconds[ISO_CAUSE_SOURCE] + seconds[ISO_CAUSE_DISK] > 0.01 * w->seconds) {
    seconds[ISO_CAUSE_S3] = seconds[ISO_CAUSE_SOURCE] + seconds[ISO_CAUSE_DISK];
    seconds[ISO_CAUSE_SOURCE] = seconds[ISO_CAUSE_DISK] = 0;
  }
}

/* The kernel's search for memory takes processors, and pages that are read back come late: of a machine that is short
 * of it tasks wait for processors, too. It is this process that is hit if it had pages read back, or has none left. */
bool iso_blame_is_memory(const iso_window *w, double preempted) {
  const iso_machine *m = &w->machine;
  return (m->major_faults > 0 || memory_is_low(m)) && w->kept.memory_s > MEMORY_SHARE * preempted;
}

/* ---- in words ---- */

static void say_source(const iso_window *w, char *out, size_t bytes) {
  iso_late_stage stage;
  int source;
  const bool known = iso_late_most(&w->late, ISO_LATE_READ, &stage, &source);
  if (known && w->data && source < (int)w->data->source_count)
    snprintf(out, bytes, "batches came late, at: %s of \"%.300s\"", iso_late_names[stage],
             w->data->sources[source].path);
  else
    snprintf(out, bytes, "batches came late");
}

static void say_steal(const iso_machine *m, char *out, size_t bytes) {
  char share[16] = "part";
  if (isfinite(m->steal)) snprintf(share, sizeof share, "%.1f%%", 100 * m->steal);
  snprintf(out, bytes, "the host of this virtual machine took %s of its processors", share);
}

static void say_s3(const iso_machine *m, char *out, size_t bytes) {
  if (isfinite(m->s3_errors) && isfinite(m->s3_requests))
    snprintf(out, bytes, "%.0f of %.0f request%s to S3 failed", m->s3_errors, m->s3_requests,
             iso_plural((int64_t)m->s3_requests));
  else
    snprintf(out, bytes, "requests to S3 failed");
}

static void say_preempted(const iso_window *w, char *out, size_t bytes) {
  const iso_machine *m = &w->machine;
  const bool squeezed = m->processors < w->began_processors;
  char tasks[48] = "";
  if (isfinite(m->running))
    snprintf(tasks, sizeof tasks, "%.0f task%s ready to run, ", m->running, m->running == 1 ? " is" : "s are");
  snprintf(out, bytes, "others had its processors: %sit may use %.0f processor%s", tasks, m->processors,
           iso_plural((int64_t)m->processors));
  const size_t length = strlen(out);
  if (squeezed && length < bytes) snprintf(out + length, bytes - length, ", %.0f when it started", w->began_processors);
}

static void say_clock(const iso_machine *m, char *out, size_t bytes) {
  char heat[32] = "";
  if (isfinite(m->celsius)) snprintf(heat, sizeof heat, ", at %.0f C", m->celsius);
  snprintf(out, bytes, "its core clock is %.2f GHz, %.0f%% of %.2f%s", m->clock_ghz,
           100 * m->clock_ghz / m->clock_best_ghz, m->clock_best_ghz, heat);
}

static void say_memory(const iso_machine *m, char *out, size_t bytes) {
  char left[64] = "";
  if (isfinite(m->memory_available_bytes) && isfinite(m->memory_bytes))
    snprintf(left, sizeof left, "%.2f of %.2f GB are left, ", 1e-9 * m->memory_available_bytes, 1e-9 * m->memory_bytes);
  snprintf(out, bytes, "memory is short: %stasks waited for memory %.1f%% of the time", left,
           isfinite(m->pressure_memory) ? 100 * m->pressure_memory : 0);
}

static void say_disk(const iso_window *w, char *out, size_t bytes) {
  const iso_machine *m = &w->machine;
  snprintf(out, bytes, "steps waited for storage; the log was writing %.0f%% of the time, %.1f ms a step",
           isfinite(m->disk_busy) ? 100 * m->disk_busy : 0, isfinite(m->disk_write_s) ? 1e3 * m->disk_write_s : 0);
}

void iso_blame_say(const iso_window *w, iso_cause cause, double seconds, char *out, size_t bytes) {
  const iso_machine *m = &w->machine;
  const double steps = w->steps ? (double)w->steps : 1;
  switch (cause) {
  case ISO_CAUSE_SOURCE:
    say_source(w, out, bytes);
    break;
  case ISO_CAUSE_STOPPED:
    snprintf(out, bytes, "the process was stopped (a signal, a debugger, or its whole machine)");
    break;
  case ISO_CAUSE_PREEMPTED:
    say_preempted(w, out, bytes);
    break;
  case ISO_CAUSE_THROTTLED:
    snprintf(out, bytes, "its control group's quota of processor time was used up");
    break;
  case ISO_CAUSE_STEAL:
    say_steal(m, out, bytes);
    break;
  case ISO_CAUSE_CLOCK:
    say_clock(m, out, bytes);
    break;
  case ISO_CAUSE_MEMORY:
    say_memory(m, out, bytes);
    break;
  case ISO_CAUSE_DISK:
    say_disk(w, out, bytes);
    break;
  case ISO_CAUSE_S3:
    say_s3(m, out, bytes);
    break;
  case ISO_CAUSE_OTHER:
    snprintf(out, bytes, "host work (lines, locks, handing over) took %.3f ms a step", 1e3 * seconds / steps);
    break;
  case ISO_CAUSE_RANK:
    snprintf(out, bytes, "it computes %.3f ms a step, and its machine shows no reason why the others wait for it",
             1e3 * w->sums.parts[ISO_PART_COMPUTE] / steps);
    break;
  default:
    snprintf(out, bytes, "its machine shows no reason");
  }
}

/* ---- what the machine says ---- */

static const struct {
  const char *name;
  size_t offset;
} rows[] = {
#define ROW(field)                                                                                                     \
  { #field, offsetof(iso_machine, field) }
    ROW(clock_ghz),
    ROW(clock_best_ghz),
    ROW(celsius),
    ROW(pressure_cpu),
    ROW(pressure_memory),
    ROW(pressure_io),
    ROW(running),
    ROW(processors),
    ROW(steal),
    ROW(throttled),
    ROW(stopped),
    ROW(memory_bytes),
    ROW(page_cache_bytes),
    ROW(memory_available_bytes),
    ROW(major_faults),
    ROW(disk_busy),
    ROW(disk_write_s),
    ROW(s3_requests),
    ROW(s3_errors),
#undef ROW
};

void iso_machine_print(const iso_machine *machine, iso_string *out) {
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    double value;
    memcpy(&value, (const char *)machine + rows[i].offset, sizeof value);
    iso_string_printf(out, isfinite(value) ? "%s\"%s\": %.9g" : "%s\"%s\": null", i ? ", " : "{", rows[i].name, value);
  }
  iso_string_append(out, "}", 1);
}

static void say(iso_string *out, const char *format, double value) {
  if (!isfinite(value)) return;
  if (out->length) iso_string_append(out, ", ", 2);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  iso_string_printf(out, format, value);
#pragma GCC diagnostic pop
}

static void say_count(iso_string *out, double value, const char *what) {
  if (!isfinite(value)) return;
  if (out->length) iso_string_append(out, ", ", 2);
  iso_string_printf(out, "%.0f %s%s", value, what, iso_plural((int64_t)value));
}

void iso_machine_say(const iso_machine *m, iso_string *out) {
  out->length = 0;
  say(out, "clock %.2f GHz", m->clock_ghz);
  say(out, "best %.2f", m->clock_best_ghz);
  say(out, "%.0f C", m->celsius);
  say(out, "pressure cpu %.1f%%", 100 * m->pressure_cpu);
  say(out, "memory %.1f%%", 100 * m->pressure_memory);
  say(out, "io %.1f%%", 100 * m->pressure_io);
  say(out, "%.0f ready to run", m->running);
  say_count(out, m->processors, "processor");
  say(out, "steal %.1f%%", 100 * m->steal);
  say(out, "throttled %.1f%%", 100 * m->throttled);
  say(out, "stopped %.1f%%", 100 * m->stopped);
  say(out, "%.2f GB free", 1e-9 * m->memory_available_bytes);
  say(out, "page cache %.2f GB", 1e-9 * m->page_cache_bytes);
  say_count(out, m->major_faults, "major fault");
  say(out, "log writes %.0f%% of the time", 100 * m->disk_busy);
  say(out, "%.2f ms a step", 1e3 * m->disk_write_s);
  say_count(out, m->s3_requests, "S3 request");
  if (m->s3_requests > 0) say(out, "%.1f%% of them failed", 100 * m->s3_errors / m->s3_requests);
}
