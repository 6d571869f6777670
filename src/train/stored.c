/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's stored state in plain arrays, after any step that snapshots and log lead to: the model is described from
 * RUN/model.json, and no program is compiled.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

iso_status iso_run_folder_check(const char *run) {
  iso_string path = {0};
  bool folder = false, known = false;
  ISO_TRY(iso_path_probe(run, &folder));
  if (!folder) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist; name a run folder", run);
  if (!iso_path_is_folder(run)) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is a file; name a run folder", run);
  iso_string_printf(&path, "%s/run.json", run);
  const iso_status status = iso_path_probe(path.data, &known);
  iso_string_fini(&path);
  if (status != ISO_OK) return status;
  if (!known) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder: it has no run.json", run);
  return ISO_OK;
}

static iso_status describe(iso_stored *stored, iso_graph **out) {
  const iso_build_options build = {ISO_BUILD_LOGITS, 1, 1, 0, false};
  iso_graph *graph;
  ISO_TRY(iso_model_config_read(stored->inputs.model, &stored->model));
  ISO_TRY(iso_model_build(&stored->model, &build, stored->arena, &graph));
  *out = graph;
  return iso_state_describe(graph, stored->arena, &stored->state);
}

static iso_status take_memory(iso_stored *stored) {
  const size_t elements = (size_t)stored->state.elements;
  float *slab = iso_slab_alloc(3 * elements * sizeof(float), "the run's state");
  if (!slab) return ISO_ERR_MEMORY;
  stored->slab_bytes = 3 * elements * sizeof(float);
  stored->state.master = slab;
  stored->state.moment1 = slab + elements;
  stored->state.moment2 = slab + 2 * elements;
  return ISO_OK;
}

/* The first weights of a run that has no snapshot yet. */
static iso_status make_first(iso_stored *stored, const iso_graph *graph, const iso_device *device) {
  iso_config config;
  ISO_TRY(iso_config_read(stored->inputs.config, NULL, 0, &config));
  const bool imported = config.model.init_from[0] != 0;
  bool known = true;
  iso_status status = ISO_OK;
  if (imported)
    status = iso_fail(ISO_ERR_NOT_FOUND, "%s: has no valid snapshot yet, and began with other weights", stored->run);
  if (status == ISO_OK) status = iso_incarnation_first_known(stored->run, &known);
  if (status == ISO_OK && !known)
    status =
        iso_fail(ISO_ERR_NOT_FOUND,
                 "%s: no valid snapshot leads to that step, and its settings have changed since the first weights, "
                 "so they cannot be made again; name a later step (isotach inspect snapshot %s)",
                 stored->run, stored->run);
  if (status == ISO_OK) {
    memset(stored->state.master, 0, stored->slab_bytes);
    iso_model_init(graph, (uint64_t)config.seed, stored->state.master, iso_device_team(device));
  }
  iso_config_fini(&config);
  return status;
}

iso_status iso_stored_load(iso_stored *stored, const char *folder, const iso_graph *graph, const iso_device *device) {
  return folder ? iso_snapshot_load(folder, &stored->state) : make_first(stored, graph, device);
}

bool iso_stored_first_known(const iso_stored *stored) {
  iso_config config;
  bool known = false;
  if (iso_config_read(stored->inputs.config, NULL, 0, &config) != ISO_OK) return false;
  const bool imported = config.model.init_from[0] != 0;
  iso_config_fini(&config);
  return !imported && iso_incarnation_first_known(stored->run, &known) == ISO_OK && known;
}

/* What the replay's state comes from, once more. */
typedef struct origin {
  iso_stored *stored;
  const char *folder; /* NULL: the first weights */
  const iso_graph *graph;
  const iso_device *device;
} origin;

static iso_status restore(const iso_replay *with) {
  const origin *from = with->context;
  return iso_stored_load(from->stored, from->folder, from->graph, from->device);
}

/* Memory holds the state after the snapshot, or the first weights, and then after `last`. */
static iso_status make_state(iso_stored *stored, const iso_graph *graph, const char *uuid, bool found, int64_t last) {
  iso_device *device;
  iso_recovery recovery = {0};
  ISO_TRY(iso_device_create(0, &device));
  origin from = {stored, found ? stored->folder : NULL, graph, device};
  iso_replay with;
  iso_replay_init(device, graph, &stored->state, stored->arena, &with);
  with.restore = restore;
  with.context = &from;
  iso_status status = restore(&with);
  if (status == ISO_OK) status = iso_log_replay(stored->run, uuid, &with, last, &stored->info, &recovery);
  if (status == ISO_OK && recovery.faults.length && last != INT64_MAX && stored->info.step < last)
    status = iso_fail(ISO_ERR_FORMAT, "%s: step %lld cannot be had, the log is damaged: %s", stored->run,
                      (long long)last, iso_fault_first(&recovery.faults));
  if (status == ISO_OK && recovery.faults.length && stored->info.step == 0)
    status = iso_fail(ISO_ERR_FORMAT, "%s: no step can be had, the log is damaged: %s", stored->run,
                      iso_fault_first(&recovery.faults));
  if (status == ISO_OK && recovery.faults.length && last == INT64_MAX)
    iso_warn("%s: the log is damaged, step %lld is the newest that can be had: %s", stored->run,
             (long long)stored->info.step, iso_fault_first(&recovery.faults));
  iso_recovery_fini(&recovery);
  iso_device_destroy(&device);
  return status;
}

static iso_status prepare(iso_stored *stored, iso_graph **graph) {
  ISO_TRY(iso_run_folder_check(stored->run));
  ISO_TRY(iso_run_inputs_find(stored->arena, stored->run, &stored->inputs));
  ISO_TRY(iso_run_inputs_warn(stored->run, &stored->inputs));
  ISO_TRY(describe(stored, graph));
  return take_memory(stored);
}

/* The newest state is what is asked for, and the next start will not go on from it. */
static void warn_differed(const char *run, const char *uuid) {
  iso_incarnation newest;
  iso_differed d;
  bool found = false;
  const bool quiet = iso_log_quiet(true); /* what is damaged is said by who needs it */
  const bool read = iso_incarnation_newest(run, &newest) == ISO_OK && newest.number > 0 &&
                    iso_differed_find(run, uuid, newest.number, &d, &found) == ISO_OK;
  iso_log_quiet(quiet);
  if (read && found)
    iso_warn("%s: the weights of rank %lld differed in step %lld: this state may be wrong, that behind step %lld "
             "(%s@%lld) is the last of which all ranks had the same",
             run, (long long)d.rank, (long long)d.step, (long long)d.same_step, run, (long long)d.same_step);
}

static iso_status load(iso_stored *stored, int64_t step) {
  bool found, exists;
  char uuid[37];
  iso_graph *graph;
  ISO_TRY(iso_run_folder_check(stored->run));
  ISO_TRY(iso_run_folder_read(stored->run, uuid, &exists));
  if (step < 0) warn_differed(stored->run, uuid);
  ISO_TRY(iso_snapshot_find(stored->run, step, NULL, stored->folder, &stored->info, &found));
  ISO_TRY(prepare(stored, &graph));
  ISO_TRY(make_state(stored, graph, uuid, found, step < 0 ? INT64_MAX : step));
  if (!found && stored->info.step == 0 && step < 0)
    return iso_fail(ISO_ERR_NOT_FOUND, "%s: has neither a valid snapshot nor a step in its log yet", stored->run);
  if (step >= 0 && stored->info.step != step)
    return iso_step_unreachable(stored->run, uuid, step, iso_stored_first_known(stored), NULL);
  return ISO_OK;
}

static iso_status begin(const char *run, iso_stored *stored) {
  memset(stored, 0, sizeof *stored);
  snprintf(stored->run, sizeof stored->run, "%s", run);
  stored->arena = iso_arena_create();
  return stored->arena ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "%s: no memory to open it", run);
}

iso_status iso_stored_open(const char *run, int64_t step, iso_stored *stored) {
  ISO_TRY(begin(run, stored));
  const iso_status status = load(stored, step);
  if (status != ISO_OK) iso_stored_close(stored);
  return status;
}

iso_status iso_stored_prepare(const char *run, iso_stored *stored, iso_graph **graph) {
  ISO_TRY(begin(run, stored));
  const iso_status status = prepare(stored, graph);
  if (status != ISO_OK) iso_stored_close(stored);
  return status;
}

void iso_stored_close(iso_stored *stored) {
  iso_slab_free(stored->state.master, stored->slab_bytes);
  iso_snapshot_info_fini(&stored->info);
  iso_model_config_fini(&stored->model);
  iso_arena_destroy(&stored->arena);
  memset(stored, 0, sizeof *stored);
}
