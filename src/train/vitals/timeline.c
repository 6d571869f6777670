/* SPDX-License-Identifier: Apache-2.0
 *
 * What became of a run's durability, in order: its starts, its snapshots, and when the log was suspended. What earlier
 * starts did is read when this one begins; what this one does is noticed by the loop, step by step, as fields of the
 * run change.
 *
 * Memory is bounded: when there is no more room, every other snapshot of the older half goes, then the oldest.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "train/vitals/vitals.h"

enum { EVENTS = 512 };
typedef enum kind { START, SNAPSHOT, SUSPENDED, WHOLE, SILENT, ANSWERS } kind;
static const char *const kind_names[] = {"start",     "snapshot",   "log suspended",
                                         "log whole", "log silent", "log answers"};

typedef struct event {
  kind kind;
  int64_t step;    /* that it is about */
  int64_t at_step; /* when it was noticed */
  double time;     /* Unix; NAN: not known */
  double seconds;  /* that it took; NAN: not known */
  char text[160];
} event;

struct iso_timeline {
  pthread_mutex_t lock;
  event events[EVENTS];
  size_t count;
  int64_t snapshot_step; /* so far; so for the rest */
  bool gap, hangs;
};

static void make_room(iso_timeline *t) {
  size_t kept = 0, seen = 0;
  for (size_t i = 0; i < t->count; i++) {
    const bool thins = i < t->count / 2 && t->events[i].kind == SNAPSHOT;
    if (!thins || seen++ % 2) t->events[kept++] = t->events[i];
  }
  if (kept == t->count) memmove(t->events, t->events + 1, --kept * sizeof *t->events);
  t->count = kept;
}

static void add(iso_timeline *t, const event *e) {
  (void)pthread_mutex_lock(&t->lock);
  if (t->count == EVENTS) make_room(t);
  t->events[t->count++] = *e;
  (void)pthread_mutex_unlock(&t->lock);
}

/* ---- what was before ---- */

static void add_starts(iso_timeline *t, iso_arena *arena, const iso_run *run, const iso_history *h) {
  iso_incarnation *list = NULL;
  iso_string faults = {0};
  size_t count = 0;
  if (iso_incarnation_examine(arena, run->config.run, &list, &count, &faults) != ISO_OK && !list) count = 0;
  for (size_t i = count > EVENTS / 4 ? count - EVENTS / 4 : 0; i < count; i++) {
    event e = {START, list[i].begins_after, list[i].begins_after, NAN, NAN, ""};
    double gap_s = NAN;
    for (size_t k = 0; k < h->start_count; k++)
      if (h->starts[k].number == list[i].number) e.time = h->starts[k].time, gap_s = h->starts[k].gap_s;
    const char *ranks = iso_plural(list[i].ranks), *steps = iso_plural(run->replayed_steps);
    const bool this_one = list[i].number == run->incarnation.number;
    if (this_one) e.time = (double)time(NULL);
    if (this_one && run->replayed_steps)
      snprintf(e.text, sizeof e.text, "start %d, %lld rank%s; %lld step%s replayed from the log in %.2f s",
               list[i].number, (long long)list[i].ranks, ranks, (long long)run->replayed_steps, steps, run->replay_s);
    else if (isfinite(gap_s))
      snprintf(e.text, sizeof e.text, "start %d, %lld rank%s, %.1f s after the last step before", list[i].number,
               (long long)list[i].ranks, ranks, gap_s);
    else
      snprintf(e.text, sizeof e.text, "start %d, %lld rank%s", list[i].number, (long long)list[i].ranks, ranks);
    add(t, &e);
  }
  iso_string_fini(&faults);
}

static void add_snapshots(iso_timeline *t, iso_arena *arena, const iso_run *run) {
  iso_snapshot_entry *entries;
  size_t count;
  if (iso_snapshot_list(arena, run->config.run, &entries, &count) != ISO_OK) return;
  for (size_t i = count > EVENTS / 4 ? EVENTS / 4 : count; i-- > 0;) { /* newest first */
    struct stat about;
    if (entries[i].is_void || !entries[i].has_manifest) continue;
    const char *path = iso_path_join(arena, entries[i].folder, "manifest.json");
    event e = {SNAPSHOT, entries[i].step, entries[i].step, NAN, NAN, ""};
    if (path && stat(path, &about) == 0) e.time = (double)about.st_mtime;
    snprintf(e.text, sizeof e.text, "snapshot of step %lld, of an earlier start", (long long)e.step);
    add(t, &e);
  }
}

static int by_time(const void *a, const void *b) {
  const event *x = a, *y = b;
  if (x->at_step != y->at_step) return x->at_step < y->at_step ? -1 : 1;
  return (x->kind > y->kind) - (x->kind < y->kind);
}

iso_status iso_timeline_create(const iso_run *run, const iso_history *history, iso_timeline **out) {
  iso_timeline *t = calloc(1, sizeof *t);
  iso_arena *arena = iso_arena_create();
  *out = t;
  if (t) (void)pthread_mutex_init(&t->lock, NULL);
  if (t && arena) {
    t->snapshot_step = run->snapshot_step;
    add_starts(t, arena, run, history);
    add_snapshots(t, arena, run);
    qsort(t->events, t->count, sizeof *t->events, by_time);
  } else {
    iso_timeline_destroy(out);
  }
  iso_arena_destroy(&arena);
  return *out ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "no memory for the dashboard's timeline");
}

void iso_timeline_destroy(iso_timeline **timeline) {
  if (!*timeline) return;
  (void)pthread_mutex_destroy(&(*timeline)->lock);
  free(*timeline);
  *timeline = NULL;
}

/* ---- what happens ---- */

static void note_log(iso_timeline *t, const iso_run *run, event *e) {
  iso_wal_state log;
  iso_wal_state_get(run->wal, &log);
  e->step = run->durable_step;
  if (run->gap != t->gap) {
    e->kind = run->gap ? SUSPENDED : WHOLE;
    snprintf(e->text, sizeof e->text, run->gap ? "durable stays at step %lld: %s" : "durable is step %lld%s",
             (long long)run->durable_step, run->gap ? log.cause : "");
    add(t, e);
  }
  if (run->hangs != t->hangs) {
    e->kind = run->hangs ? SILENT : ANSWERS;
    snprintf(e->text, sizeof e->text, run->hangs ? "its storage has not answered for %.0f s" : "its storage answers",
             log.hangs_s);
    add(t, e);
  }
  t->gap = run->gap;
  t->hangs = run->hangs;
}

void iso_timeline_step(iso_timeline *t, const iso_run *run, double now) {
  event e = {.at_step = run->at.step, .time = now, .seconds = NAN};
  if (run->snapshot_step > t->snapshot_step) {
    iso_streamer_state state = {0};
    if (run->snapshots.streamer) iso_streamer_state_get(run->snapshots.streamer, &state);
    e.kind = SNAPSHOT;
    e.step = t->snapshot_step = run->snapshot_step;
    if (state.published && state.step == e.step) e.seconds = state.write_s;
    snprintf(e.text, sizeof e.text, "snapshot of step %lld, known at step %lld", (long long)e.step,
             (long long)e.at_step);
    add(t, &e);
    e.seconds = NAN;
  }
  if (run->wal && (run->gap != t->gap || run->hangs != t->hangs)) note_log(t, run, &e);
}

void iso_timeline_print(iso_timeline *t, iso_string *out) {
  (void)pthread_mutex_lock(&t->lock);
  iso_string_append(out, "[", 1);
  for (size_t i = 0; i < t->count; i++) {
    const event *e = &t->events[i];
    iso_string_printf(out, "%s\n{\"kind\": \"%s\", \"step\": %lld, \"at_step\": %lld, \"time\": ", i ? "," : "",
                      kind_names[e->kind], (long long)e->step, (long long)e->at_step);
    iso_string_printf(out, isfinite(e->time) ? "%.3f" : "null", e->time);
    iso_string_printf(out, ", \"seconds\": ");
    iso_json_number(out, e->seconds, 9);
    iso_string_printf(out, ", ");
    iso_json_text(out, "text", e->text);
    iso_string_append(out, "}", 1);
  }
  iso_string_append(out, "]", 1);
  (void)pthread_mutex_unlock(&t->lock);
}
