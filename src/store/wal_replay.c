/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: from a snapshot's state to the state after any later step, by the optimizer alone. The log holds the
 * gradients in the bits that the optimizer consumed, and the optimizer is the same kernel, so the bits are those of the
 * run.
 *
 * A thread reads and checks the next step while the team applies this one.
 *
 * Invariants
 *  1. A step is applied whole or not at all, and only after every CRC-32C of it was right.
 *  2. Steps are applied in order without a gap; the first one that is missing or damaged ends the replay.
 *  3. Counters and cursors are always those of the last step applied.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

enum { AHEAD = 2 };

typedef struct loaded {
  char *reduced;
  iso_wal_record record;
  iso_cursor *cursors;
  iso_dtype gradient;
  iso_status status; /* FORMAT: damaged */
  bool there;        /* false: the log has no such step */
} loaded;

typedef struct replayer {
  const iso_wal_index *index;
  const iso_replay *with;
  int64_t first, last; /* to be read */
  iso_string *faults;  /* the reader's until it has ended */
  size_t reduced_bytes;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  loaded slots[AHEAD];
  int64_t read, applied; /* steps so far */
  bool stop, ended;
} replayer;

static void load_step(replayer *r, int64_t step, loaded *slot) {
  const iso_wal_step *entry = iso_wal_index_find(r->index, step);
  free(slot->cursors);
  slot->cursors = NULL;
  slot->status = ISO_OK;
  slot->there = entry != NULL;
  if (!entry) return;
  const iso_wal_segment *head = &r->index->files[entry->segment].head;
  if (head->elements != r->with->state->elements) {
    slot->status = iso_fail(ISO_ERR_MISMATCH, "log: step %lld is of a model of %lld elements, the state has %lld",
                            (long long)step, (long long)head->elements, (long long)r->with->state->elements);
    return;
  }
  slot->gradient = head->gradient;
  if (head->optimizer_version != r->with->optimizer_version && !r->with->any_version) {
    slot->status = iso_fail(
        ISO_ERR_MISMATCH,
        "log: step %lld was taken by optimizer kernel version %d, this is version %d: replayed weights and moments "
        "may differ from the run's in their last bits; use the version that wrote it, name a snapshot's step, "
        "or resume with --accept",
        (long long)step, head->optimizer_version, r->with->optimizer_version);
    return;
  }
  slot->status = iso_wal_step_read(r->index, entry, slot->reduced, &slot->record, &slot->cursors, r->faults);
}

static void *read_ahead(void *argument) {
  replayer *r = argument;
  for (int64_t step = r->first; step <= r->last; step++) {
    pthread_mutex_lock(&r->lock);
    while (r->read - r->applied == AHEAD && !r->stop) pthread_cond_wait(&r->changed, &r->lock);
    const bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    if (stop) break;
    loaded *slot = &r->slots[r->read % AHEAD];
    load_step(r, step, slot);
    pthread_mutex_lock(&r->lock);
    r->read++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (!slot->there || slot->status != ISO_OK) break;
  }
  pthread_mutex_lock(&r->lock);
  r->ended = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

/* ---- applying ---- */

typedef struct update {
  const iso_replay *with;
  iso_adamw_args args;
} update;

static void update_thread(void *argument, int thread) {
  const update *u = argument;
  const iso_worker worker = {thread, u->with->threads, u->with->team, NULL};
  u->with->kernels->adamw(&u->args, &worker);
}

static void apply(const replayer *r, const loaded *slot, iso_snapshot_info *info) {
  const iso_replay *with = r->with;
  const iso_wal_record *record = &slot->record;
  update u = {.with = with,
              .args = {.master = with->state->master,
                       .moment1 = with->state->moment1,
                       .moment2 = with->state->moment2,
                       .reduced = slot->reduced,
                       .reduced_type = slot->gradient,
                       .decay_ranges = with->decay[record->decay].ranges,
                       .decay_count = with->decay[record->decay].count,
                       .end = with->state->elements,
                       .lr = record->lr,
                       .beta1 = record->beta1,
                       .beta2 = record->beta2,
                       .eps = record->eps,
                       .weight_decay = record->weight_decay,
                       .clip = record->clip,
                       .bias1 = record->bias1,
                       .bias2 = record->bias2}};
  if (!record->refused) iso_team_run(with->team, update_thread, &u);
  info->step = record->step;
  info->adam_step = record->adam_step;
  info->tokens = record->tokens;
  info->refused = record->refused_total;
  memcpy(info->cursors, slot->cursors, info->cursor_count * sizeof *info->cursors);
}

/* The next step once it is read; NULL: there is none. */
static loaded *wait_for(replayer *r) {
  pthread_mutex_lock(&r->lock);
  while (r->read == r->applied && !r->ended) pthread_cond_wait(&r->changed, &r->lock);
  loaded *slot = r->read > r->applied ? &r->slots[r->applied % AHEAD] : NULL;
  pthread_mutex_unlock(&r->lock);
  return slot;
}

static iso_status apply_all(replayer *r, iso_snapshot_info *info, iso_replay_report *report) {
  for (loaded *slot; (slot = wait_for(r)) != NULL;) {
    if (!slot->there) return ISO_OK;
    if (slot->status == ISO_ERR_FORMAT) {
      report->damaged_step = info->step + 1;
      return ISO_OK;
    }
    ISO_TRY(slot->status);
    if (!info->cursors) { /* first weights that no start has laid out */
      info->cursors = calloc(slot->record.cursor_count + 1, sizeof *info->cursors);
      if (!info->cursors) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the cursors of a step");
      info->cursor_count = slot->record.cursor_count;
    }
    if (slot->record.cursor_count != info->cursor_count)
      return iso_fail(ISO_ERR_MISMATCH, "log: step %lld has %zu data cursors, the snapshot %zu",
                      (long long)slot->record.step, slot->record.cursor_count, info->cursor_count);
    apply(r, slot, info);
    report->steps++;
    if (!slot->record.refused) report->bytes += r->with->state->elements * (int64_t)iso_dtype_size(slot->gradient);
    pthread_mutex_lock(&r->lock);
    r->applied++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
  }
  return ISO_OK;
}

static iso_status run(replayer *r, iso_snapshot_info *info, iso_replay_report *report) {
  for (int i = 0; i < AHEAD; i++) {
    r->slots[i].reduced = malloc(r->reduced_bytes);
    if (!r->slots[i].reduced)
      return iso_fail(ISO_ERR_MEMORY, "log: no memory for %d gradients of %zu bytes to replay", AHEAD,
                      r->reduced_bytes);
  }
  pthread_t reader;
  const int error = pthread_create(&reader, NULL, read_ahead, r);
  if (error) return iso_fail(ISO_ERR_MEMORY, "log: cannot start the thread that reads: %s", strerror(error));
  const iso_status status = apply_all(r, info, report);
  pthread_mutex_lock(&r->lock);
  r->stop = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
  pthread_join(reader, NULL);
  return status;
}

iso_status iso_wal_replay(const iso_wal_index *index, const iso_replay *with, int64_t last, iso_snapshot_info *info,
                          iso_replay_report *report, iso_string *faults) {
  *report = (iso_replay_report){0};
  if (!iso_wal_index_find(index, info->step + 1) || info->step >= last) return ISO_OK;
  const double began = iso_clock_s();
  replayer r = {.index = index, .with = with, .first = info->step + 1, .last = last, .faults = faults};
  r.reduced_bytes = (size_t)with->state->elements * sizeof(float);
  pthread_mutex_init(&r.lock, NULL);
  pthread_cond_init(&r.changed, NULL);
  const iso_status status = run(&r, info, report);
  for (int i = 0; i < AHEAD; i++) {
    free(r.slots[i].reduced);
    free(r.slots[i].cursors);
  }
  pthread_cond_destroy(&r.changed);
  pthread_mutex_destroy(&r.lock);
  report->seconds = iso_clock_s() - began;
  return status;
}
