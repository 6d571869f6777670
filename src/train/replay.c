/* SPDX-License-Identifier: Apache-2.0
 *
 * From a stored state to one of a later step by the run's log, and what is said of that: which segments gave which
 * steps, what was refused and why, how many steps it was and how long it took.
 *
 * Nothing is printed here: whoever recovers says it, in one line each, or puts the first cause into its error.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { MOST_LINES = 8 /* of what was refused */ };

/* The steps of one segment in a row, from `first` to at most `to`; false: none. */
typedef struct stretch {
  int64_t segment, first, last;
} stretch;

static bool next_stretch(const iso_wal_index *index, int64_t first, int64_t to, stretch *out) {
  const iso_wal_step *step = first <= to ? iso_wal_index_find(index, first) : NULL;
  if (!step) return false;
  *out = (stretch){step->segment, first, first};
  while (out->last < to && (step = iso_wal_index_find(index, out->last + 1)) != NULL && step->segment == out->segment)
    out->last++;
  return true;
}

/* "log/A (1 to 20), log/B (21 to 37)"; of many the first and the last. */
static void name_segments(const iso_wal_index *index, int64_t from, int64_t to, iso_string *out) {
  stretch s;
  int64_t count = 0, i = 0;
  for (int64_t at = from; next_stretch(index, at, to, &s); at = s.last + 1) count++;
  for (int64_t at = from; next_stretch(index, at, to, &s); at = s.last + 1, i++) {
    if (count > 4 && i == 1) iso_string_printf(out, ", %lld segments more", (long long)(count - 2));
    if (count > 4 && i > 0 && i < count - 1) continue;
    iso_string_printf(out, "%slog/%s (%lld to %lld)", i ? ", " : "", index->files[s.segment].name, (long long)s.first,
                      (long long)s.last);
  }
}

void iso_replay_init(const iso_device *device, const iso_graph *graph, iso_state *state, iso_arena *arena,
                     iso_replay *with) {
  *with = (iso_replay){.kernels = iso_device_kernels(device),
                       .team = iso_device_team(device),
                       .threads = iso_device_threads(device),
                       .state = state,
                       .optimizer_version = ISO_OPTIMIZER_VERSION};
  for (uint32_t flags = 0; flags < ISO_WAL_DECAYS; flags++) {
    const iso_config config = {.optimizer = {.decay_embeddings = flags & 1, .decay_norms = flags & 2}};
    iso_decay_ranges(&config, graph, arena, &with->decay[flags].ranges, &with->decay[flags].count);
  }
}

iso_status iso_log_replay(const char *folder, const char *uuid, const iso_replay *with, int64_t last,
                          iso_snapshot_info *info, iso_recovery *out) {
  iso_wal_index index;
  *out = (iso_recovery){.from = info->step};
  iso_status status = iso_wal_index_read(folder, uuid, false, 0, &index, &out->faults);
  if (status != ISO_OK) return status;
  status = iso_wal_replay(&index, with, last, info, &out->report, &out->faults);
  out->report.acknowledged = index.newest_durable;
  out->unread = iso_wal_index_unread(&index, info->step + 1) ||
                (out->report.damaged_step > 0 && iso_fault_unread(&out->faults, 0));
  name_segments(&index, out->from + 1, info->step, &out->segments);
  iso_string_append(&out->torn, index.torn.length ? index.torn.data : "", index.torn.length);
  iso_wal_index_fini(&index);
  return status;
}

void iso_recovery_fini(iso_recovery *recovery) {
  iso_string_fini(&recovery->segments);
  iso_string_fini(&recovery->faults);
  iso_string_fini(&recovery->torn);
}

static void print_lines(const char *run, const iso_string *lines, const char *what, bool warning) {
  int64_t count = 0;
  for (const char *at = lines->length ? lines->data : ""; *at; count++) {
    const int length = (int)strcspn(at, "\n");
    if (count < MOST_LINES && warning) iso_warn("%s: %s: %.*s", run, what, length, at);
    if (count < MOST_LINES && !warning) iso_note("%s: %s: %.*s", run, what, length, at);
    at += length;
    if (*at) at++;
  }
  if (count > MOST_LINES)
    iso_note("%s: and %lld lines more; isotach verify %s names all", run, (long long)(count - MOST_LINES), run);
}

void iso_recovery_print(const iso_recovery *r, const char *run) {
  print_lines(run, &r->torn, "refused, an end of the log that was never finished", false);
  print_lines(run, &r->faults, "refused, the log is damaged", true);
  if (!r->report.steps) return;
  iso_note("%s: replayed %lld steps, %lld to %lld, of %s in %.2f s (%.2f GB/s)", run, (long long)r->report.steps,
           (long long)r->from + 1, (long long)(r->from + r->report.steps),
           r->segments.length ? r->segments.data : "log", r->report.seconds,
           r->report.seconds > 0 ? (double)r->report.bytes * 1e-9 / r->report.seconds : 0.0);
}

iso_status iso_step_unreachable(const char *run, const char *uuid, int64_t step, bool from_first,
                                const iso_differed *differed) {
  iso_reach reach;
  iso_string text = {0}, why = {0}, what = {0};
  ISO_TRY(iso_reach_read(run, uuid, from_first, &reach));
  iso_reach_print(&reach, &text);
  if (differed) {
    iso_string_printf(&why, "the weights of rank %lld differed in step %lld, were last the same behind step %lld, and ",
                      (long long)differed->rank, (long long)differed->step, (long long)step);
    iso_string_printf(&what, "; say with --from-step S where to begin (what is behind step %lld may be wrong)",
                      (long long)step);
  }
  const iso_status status =
      iso_fail(ISO_ERR_NOT_FOUND, "%s: %sstep %lld cannot be had; snapshots and log lead to these steps: %s%s", run,
               why.length ? why.data : "", (long long)step, text.length ? text.data : "", what.length ? what.data : "");
  iso_string_fini(&text);
  iso_string_fini(&why);
  iso_string_fini(&what);
  iso_reach_fini(&reach);
  return status;
}
