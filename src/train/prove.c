/* SPDX-License-Identifier: Apache-2.0
 *
 * The proof that a run's log is what it says: from each snapshot the log is replayed to the next one, and every bit of
 * weights and moments, every cursor and every counter must be equal.
 *
 * One state is held in memory; the next snapshot is compared with it as it is read. After a proof the state is that of
 * the next snapshot already, so each is read once and each step replayed once.
 *
 * Invariants
 *  1. Nothing is written, and no lock is taken: a run may go on meanwhile. What it deletes while we look is no fault.
 *  2. A pair that cannot be proven (a gap in the log, another optimizer kernel) is named with the cause; it is refuted
 *     only when both ends and the log between are whole and do not agree.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

typedef struct prover {
  iso_arena *arena; /* of the proofs */
  iso_stored stored;
  iso_graph *graph;
  iso_device *device;
  iso_wal_index index;
  iso_replay with;
  iso_snapshot_entry *entries; /* those that count, oldest first */
  size_t count;
  bool loaded;                    /* memory holds the state that stored.info tells of */
  const iso_snapshot_entry *from; /* of the pair being proven; NULL: the first weights */
} prover;

static bool is_there(const iso_snapshot_entry *entry) {
  iso_string path = {0};
  bool there = true;
  iso_string_printf(&path, "%s/manifest.json", entry->folder);
  if (iso_string_failed(&path) || iso_path_probe(path.data, &there) != ISO_OK) there = true;
  iso_string_fini(&path);
  return there;
}

/* Counters and cursors of a snapshot. `cause`: NULL, or why they cannot be had. */
static iso_status read_info(prover *p, const iso_snapshot_entry *entry, iso_snapshot_info *info, const char **cause) {
  iso_manifest manifest;
  iso_string faults = {0};
  const iso_status status = iso_manifest_read(entry->folder, &manifest, &faults);
  *cause = NULL;
  if (status == ISO_OK) {
    *info = manifest.info;
    manifest.info.cursors = NULL; /* moved */
  } else if (status == ISO_ERR_FORMAT) {
    *cause = iso_arena_printf(p->arena, "snapshot %s is damaged: %s", entry->name, iso_fault_first(&faults));
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status == ISO_ERR_FORMAT ? ISO_OK : status;
}

static iso_status load(prover *p, const iso_snapshot_entry *entry, const char **cause) {
  iso_snapshot_info_fini(&p->stored.info);
  p->loaded = false;
  ISO_TRY(read_info(p, entry, &p->stored.info, cause));
  if (*cause) return ISO_OK;
  const iso_status status = iso_snapshot_load(entry->folder, &p->stored.state);
  p->loaded = status == ISO_OK;
  if (status == ISO_ERR_FORMAT || status == ISO_ERR_MISMATCH)
    *cause = iso_arena_printf(p->arena, "snapshot %s cannot be loaded: %s", entry->name, iso_last_error());
  return *cause ? ISO_OK : status;
}

static iso_status restore(const iso_replay *with) {
  prover *p = with->context;
  return iso_stored_load(&p->stored, p->from ? p->from->folder : NULL, p->graph, p->device);
}

/* Moves the loaded state on to `to`; *cause: why it does not get there. */
static iso_status replay_to(prover *p, int64_t to, iso_proof *proof) {
  iso_replay_report report;
  iso_string faults = {0};
  const iso_status status = iso_wal_replay(&p->index, &p->with, to, &p->stored.info, &report, &faults);
  const int64_t next = p->stored.info.step + 1;
  proof->steps = report.steps;
  if (status == ISO_ERR_MISMATCH)
    proof->cause = iso_arena_strdup(p->arena, iso_last_error());
  else if (status == ISO_OK && next <= to && faults.length)
    proof->cause =
        iso_arena_printf(p->arena, "step %lld cannot be read: %s", (long long)next, iso_fault_first(&faults));
  else if (status == ISO_OK && next <= to)
    proof->cause = iso_arena_printf(p->arena, "step %lld is not in the log", (long long)next);
  iso_string_fini(&faults);
  return status == ISO_ERR_MISMATCH ? ISO_OK : status;
}

static const char *compare_counters(prover *p, const iso_snapshot_info *to) {
  const iso_snapshot_info *at = &p->stored.info;
  const struct {
    const char *name;
    int64_t replayed, stored;
  } counters[] = {{"Adam's t", at->adam_step, to->adam_step},
                  {"scored tokens", at->tokens, to->tokens},
                  {"refused steps", at->refused, to->refused},
                  {"data cursors", (int64_t)at->cursor_count, (int64_t)to->cursor_count}};
  for (size_t i = 0; i < ISO_COUNT(counters); i++)
    if (counters[i].replayed != counters[i].stored)
      return iso_arena_printf(p->arena, "%s: %lld replayed, %lld in the snapshot", counters[i].name,
                              (long long)counters[i].replayed, (long long)counters[i].stored);
  for (size_t i = 0; i < at->cursor_count; i++)
    if (memcmp(&at->cursors[i], &to->cursors[i], sizeof at->cursors[i]) != 0)
      return iso_arena_printf(p->arena, "data cursor %zu differs", i);
  return NULL;
}

/* The state has arrived at the step of `entry`: is it that snapshot? */
static iso_status compare(prover *p, const iso_snapshot_entry *entry, iso_proof *proof) {
  iso_snapshot_info info = {0};
  char difference[200];
  ISO_TRY(read_info(p, entry, &info, &proof->cause));
  if (proof->cause) return ISO_OK;
  const char *counters = compare_counters(p, &info);
  iso_snapshot_info_fini(&info);
  const iso_status status = iso_snapshot_compare(entry->folder, &p->stored.state, difference);
  if (status == ISO_ERR_FORMAT || status == ISO_ERR_MISMATCH) {
    proof->cause = iso_arena_printf(p->arena, "snapshot %s cannot be read: %s", entry->name, iso_last_error());
    return ISO_OK;
  }
  ISO_TRY(status);
  proof->result = difference[0] || counters ? ISO_REFUTED : ISO_PROVEN;
  if (proof->result == ISO_REFUTED) proof->cause = difference[0] ? iso_arena_strdup(p->arena, difference) : counters;
  return ISO_OK;
}

/* `from` NULL: the first weights. */
static iso_status prove_pair(prover *p, const iso_snapshot_entry *from, const iso_snapshot_entry *to,
                             iso_proof *proof) {
  *proof = (iso_proof){.from = from ? iso_arena_strdup(p->arena, from->name) : "the first weights",
                       .to = iso_arena_strdup(p->arena, to->name),
                       .from_step = from ? from->step : 0,
                       .to_step = to->step,
                       .result = ISO_UNPROVEN};
  if (!proof->from || !proof->to) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the proofs", p->stored.run);
  p->from = from;
  if (!from) {
    ISO_TRY(iso_stored_load(&p->stored, NULL, p->graph, p->device));
  } else if (!p->loaded) {
    ISO_TRY(load(p, from, &proof->cause));
  }
  if (!proof->cause) ISO_TRY(replay_to(p, to->step, proof));
  if (!proof->cause) ISO_TRY(compare(p, to, proof));
  p->loaded = proof->result == ISO_PROVEN;
  if (proof->result == ISO_UNPROVEN && ((from && !is_there(from)) || !is_there(to)))
    proof->cause = "the run deleted a snapshot meanwhile";
  return ISO_OK;
}

static iso_status prove_all(prover *p, bool from_first, iso_proof *proofs, size_t *done) {
  if (from_first && p->count) ISO_TRY(prove_pair(p, NULL, &p->entries[0], &proofs[(*done)++]));
  for (size_t i = 0; i + 1 < p->count; i++)
    ISO_TRY(prove_pair(p, &p->entries[i], &p->entries[i + 1], &proofs[(*done)++]));
  return ISO_OK;
}

/* Those that count, oldest first; of two at a step the older incarnation first, as they came to be. */
static iso_status list_snapshots(prover *p) {
  iso_snapshot_entry *all;
  size_t count;
  ISO_TRY(iso_snapshot_list(p->arena, p->stored.run, &all, &count));
  p->entries = iso_arena_alloc(p->arena, (count + 1) * sizeof *p->entries);
  if (!p->entries) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the proofs", p->stored.run);
  for (size_t i = count; i-- > 0;)
    if (!all[i].is_void && all[i].has_manifest) p->entries[p->count++] = all[i];
  return ISO_OK;
}

static iso_status prove(prover *p, iso_proof **proofs, size_t *count) {
  char uuid[37];
  bool exists;
  iso_string faults = {0};
  ISO_TRY(iso_run_folder_read(p->stored.run, uuid, &exists));
  ISO_TRY(list_snapshots(p));
  *proofs = iso_arena_alloc(p->arena, (p->count + 1) * sizeof **proofs);
  if (!*proofs) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the proofs", p->stored.run);
  iso_status status = iso_wal_index_read(p->stored.run, uuid, false, 0, &p->index, &faults);
  iso_string_fini(&faults);
  ISO_TRY(status);
  const bool from_first =
      p->count && p->entries[0].step > 0 && iso_wal_index_find(&p->index, 1) && iso_stored_first_known(&p->stored);
  iso_replay_init(p->device, p->graph, &p->stored.state, p->arena, &p->with);
  p->with.restore = restore;
  p->with.context = p;
  status = prove_all(p, from_first, *proofs, count);
  iso_wal_index_fini(&p->index);
  return status;
}

iso_status iso_run_prove(iso_arena *arena, const char *run, iso_proof **proofs, size_t *count) {
  prover p = {.arena = arena};
  *count = 0;
  ISO_TRY(iso_stored_prepare(run, &p.stored, &p.graph));
  iso_status status = iso_device_create(0, &p.device);
  if (status == ISO_OK) status = prove(&p, proofs, count);
  iso_device_destroy(&p.device);
  iso_stored_close(&p.stored);
  return status;
}
