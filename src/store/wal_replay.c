/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: from a snapshot's state to the state after any later step, by the optimizer alone. The log holds the
 * gradients in the bits that the optimizer consumed, and the optimizer is the same kernel, so the bits are those of the
 * run.
 *
 * Two ways lead there. With care: a thread reads and checks the next step while the team applies this one. Fast: steps
 * are applied as they are read (wal_ahead.c), which the bits on disk may turn out not to deserve; then the state is
 * loaded anew and all is done with care. Steps that are compressed are read with care in either case.
 *
 * Invariants
 *  1. In the end a step is applied whole or not at all, and only if every CRC-32C of it was right.
 *  2. Steps are applied in order without a gap; the first one that is missing or damaged ends the replay.
 *  3. Counters and cursors are always those of the last step applied.
 */
#include "store/store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { AHEAD = 2 };

typedef struct loaded {
  iso_wal_plan *plan;          /* not NULL: to be applied as it is read, nothing is in `reduced` */
  char *reduced;               /* made with the first step that is read here */
  const iso_wal_segment *head; /* of its segment */
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
  bool careful;
  void *scratch; /* of plans */
  int64_t issued;
  _Atomic int64_t consumed;
  _Atomic bool halt;
  bool spoiled; /* part of a damaged step was applied */
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
  iso_wal_plan_destroy(&slot->plan);
  slot->status = ISO_OK;
  slot->there = entry != NULL;
  if (!entry) return;
  slot->head = &r->index->files[entry->segment].head;
  slot->gradient = slot->head->gradient;
  slot->status = ISO_ERR_MISMATCH; /* said by who applies it */
  if (slot->head->elements != r->with->state->elements) return;
  if (slot->head->optimizer_version != r->with->optimizer_version && !r->with->any_version) return;
  slot->status = ISO_OK;
  if (!r->careful) {
    slot->status = iso_wal_plan_make(r->index, entry, &slot->record, &slot->cursors, &slot->plan, r->faults);
    if (slot->plan || slot->status != ISO_OK) return;
  }
  if (!slot->reduced) slot->reduced = malloc(r->reduced_bytes);
  slot->status =
      slot->reduced
          ? iso_wal_step_read(r->index, entry, slot->reduced, &slot->record, &slot->cursors, r->faults)
          : iso_fail(ISO_ERR_MEMORY, "log: no memory for a gradient of %zu bytes to replay", r->reduced_bytes);
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
    if (slot->plan) iso_wal_plan_prefetch(slot->plan, &r->issued, &r->consumed, &r->halt);
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

/* false: damaged, and the state is of no use any more. */
static bool apply(replayer *r, const loaded *slot, iso_snapshot_info *info) {
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
  if (!record->refused && slot->plan) {
    if (!iso_wal_plan_apply(slot->plan, with, &u.args, r->scratch, &r->consumed)) return false;
  } else if (!record->refused) {
    iso_team_run(with->team, update_thread, &u);
  }
  info->step = record->step;
  info->adam_step = record->adam_step;
  info->tokens = record->tokens;
  info->refused = record->refused_total;
  if (info->cursor_count) memcpy(info->cursors, slot->cursors, info->cursor_count * sizeof *info->cursors);
  return true;
}

static iso_status refuse(const replayer *r, const loaded *slot, int64_t step) {
  if (slot->head->elements != r->with->state->elements)
    return iso_fail(ISO_ERR_MISMATCH, "log: step %lld is of a model of %lld elements, the state has %lld",
                    (long long)step, (long long)slot->head->elements, (long long)r->with->state->elements);
  return iso_fail(ISO_ERR_MISMATCH,
                  "log: step %lld was taken by optimizer kernel version %d, this is version %d: replayed weights and "
                  "moments may differ from the run's in their last bits; use the version that wrote it, name a "
                  "snapshot's step, or resume with --accept",
                  (long long)step, slot->head->optimizer_version, r->with->optimizer_version);
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
    if (slot->status == ISO_ERR_MISMATCH) return refuse(r, slot, info->step + 1);
    ISO_TRY(slot->status);
    if (!info->cursors) { /* first weights that no start has laid out */
      info->cursors = calloc(slot->record.cursor_count + 1, sizeof *info->cursors);
      if (!info->cursors) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the cursors of a step");
      info->cursor_count = slot->record.cursor_count;
    }
    if (slot->record.cursor_count != info->cursor_count)
      return iso_fail(ISO_ERR_MISMATCH, "log: step %lld has %zu data cursors, the snapshot %zu",
                      (long long)slot->record.step, slot->record.cursor_count, info->cursor_count);
    r->spoiled = !apply(r, slot, info);
    if (r->spoiled) return ISO_OK;
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
  if (!r->careful) {
    r->scratch = iso_slab_alloc(iso_wal_plan_scratch(r->with->threads), "pieces of the log");
    if (!r->scratch) return ISO_ERR_MEMORY;
  }
  pthread_t reader;
  const int error = pthread_create(&reader, NULL, read_ahead, r);
  if (error) return iso_fail(ISO_ERR_MEMORY, "log: cannot start the thread that reads: %s", strerror(error));
  const iso_status status = apply_all(r, info, report);
  pthread_mutex_lock(&r->lock);
  r->stop = true;
  r->halt = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
  pthread_join(reader, NULL);
  return status;
}

/* `spoiled`: a step turned out to be damaged when part of it had been applied. */
static iso_status replay(const iso_wal_index *index, const iso_replay *with, int64_t last, bool careful,
                         iso_snapshot_info *info, iso_replay_report *report, iso_string *faults, bool *spoiled) {
  replayer r = {.index = index,
                .with = with,
                .first = info->step + 1,
                .last = last,
                .faults = faults,
                .careful = careful,
                .reduced_bytes = (size_t)with->state->elements * sizeof(float)};
  pthread_mutex_init(&r.lock, NULL);
  pthread_cond_init(&r.changed, NULL);
  const iso_status status = run(&r, info, report);
  for (int i = 0; i < AHEAD; i++) {
    iso_wal_plan_destroy(&r.slots[i].plan);
    free(r.slots[i].reduced);
    free(r.slots[i].cursors);
  }
  iso_slab_free(r.scratch, iso_wal_plan_scratch(with->threads));
  pthread_cond_destroy(&r.changed);
  pthread_mutex_destroy(&r.lock);
  *spoiled = r.spoiled;
  return status;
}

/* `to` becomes `from` but for its cursors' memory, which is its own. */
static iso_status copy_info(const iso_snapshot_info *from, iso_snapshot_info *to) {
  iso_cursor *cursors = NULL;
  if (from->cursors) {
    cursors = calloc(from->cursor_count + 1, sizeof *cursors);
    if (!cursors) return iso_fail(ISO_ERR_MEMORY, "log: no memory for %zu cursors", from->cursor_count);
    memcpy(cursors, from->cursors, from->cursor_count * sizeof *cursors);
  }
  free(to->cursors);
  *to = *from;
  to->cursors = cursors;
  return ISO_OK;
}

iso_status iso_wal_replay(const iso_wal_index *index, const iso_replay *with, int64_t last, iso_snapshot_info *info,
                          iso_replay_report *report, iso_string *faults) {
  *report = (iso_replay_report){0};
  if (!iso_wal_index_find(index, info->step + 1) || info->step >= last) return ISO_OK;
  const double began = iso_clock_s();
  iso_snapshot_info origin = {0};
  bool spoiled;
  ISO_TRY(copy_info(info, &origin));
  iso_status status = replay(index, with, last, with->restore == NULL, info, report, faults, &spoiled);
  if (status == ISO_OK && spoiled) {
    *report = (iso_replay_report){0};
    status = with->restore(with);
    if (status == ISO_OK) status = copy_info(&origin, info);
    if (status == ISO_OK) status = replay(index, with, last, true, info, report, faults, &spoiled);
  }
  iso_snapshot_info_fini(&origin);
  report->seconds = iso_clock_s() - began;
  return status;
}
