/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's stored state in plain arrays: the model is described from RUN/model.json, and no program is compiled.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

iso_status iso_run_folder_check(const char *run) {
  iso_string path = {0};
  bool folder = false, known = false;
  ISO_TRY(iso_path_probe(run, &folder));
  if (!folder) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist; name a run folder", run);
  iso_string_printf(&path, "%s/run.json", run);
  const iso_status status = iso_path_probe(path.data, &known);
  iso_string_fini(&path);
  if (status != ISO_OK) return status;
  if (!known) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder: it has no run.json", run);
  return ISO_OK;
}

static iso_status describe(iso_stored *stored) {
  const iso_build_options build = {ISO_BUILD_LOGITS, 1, 1, 0, false};
  iso_graph *graph;
  ISO_TRY(iso_model_config_read(iso_path_join(stored->arena, stored->run, "model.json"), &stored->model));
  ISO_TRY(iso_model_build(&stored->model, &build, stored->arena, &graph));
  return iso_state_describe(graph, stored->arena, &stored->state);
}

static iso_status load(iso_stored *stored, int64_t step) {
  bool found;
  ISO_TRY(iso_run_folder_check(stored->run));
  ISO_TRY(iso_snapshot_find(stored->run, step, false, stored->folder, &stored->info, &found));
  if (!found && step >= 0)
    return iso_fail(ISO_ERR_NOT_FOUND, "%s: has no valid snapshot of step %lld (isotach inspect snapshot %s)",
                    stored->run, (long long)step, stored->run);
  if (!found) return iso_fail(ISO_ERR_NOT_FOUND, "%s: has no valid snapshot yet", stored->run);
  ISO_TRY(iso_run_inputs_check(stored->run, NULL));
  ISO_TRY(describe(stored));
  const size_t elements = (size_t)stored->state.elements;
  float *slab = iso_slab_alloc(3 * elements * sizeof(float), "the run's state");
  if (!slab) return ISO_ERR_MEMORY;
  stored->slab_bytes = 3 * elements * sizeof(float);
  stored->state.master = slab;
  stored->state.moment1 = slab + elements;
  stored->state.moment2 = slab + 2 * elements;
  return iso_snapshot_load(stored->folder, &stored->state);
}

iso_status iso_stored_open(const char *path, iso_stored *stored) {
  int64_t step;
  memset(stored, 0, sizeof *stored);
  ISO_TRY(iso_run_path_split(path, stored->run, sizeof stored->run, &step));
  stored->arena = iso_arena_create();
  if (!stored->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open it", path);
  const iso_status status = load(stored, step);
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
