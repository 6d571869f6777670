/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's flat state as the store sees it, and how a run and a step are written in one word.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

iso_status iso_state_describe(const iso_graph *graph, iso_arena *arena, iso_state *state) {
  iso_tensor_out *tensors = iso_arena_alloc(arena, sizeof *tensors * (size_t)(graph->parameter_count + 1));
  if (!tensors) return iso_fail(ISO_ERR_MEMORY, "state: no memory to describe %d tensors", graph->parameter_count);
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *parameter = &graph->parameters[i];
    tensors[i] = (iso_tensor_out){.name = parameter->name, .dtype = ISO_F32, .rank = parameter->rank};
    memcpy(tensors[i].shape, parameter->shape, sizeof parameter->shape);
  }
  *state =
      (iso_state){.tensors = tensors, .tensor_count = (size_t)graph->parameter_count, .elements = graph->flat_elements};
  return ISO_OK;
}

iso_status iso_run_path_split(const char *path, char *run, size_t capacity, int64_t *step) {
  *step = -1;
  if (strlen(path) >= capacity) return iso_fail(ISO_ERR_USAGE, "%.60s...: the path is too long", path);
  snprintf(run, capacity, "%s", path);
  char *at = strrchr(run, '@');
  if (!at || iso_path_exists(run)) return ISO_OK;
  const size_t digits = strspn(at + 1, "0123456789");
  if (digits == 0 || digits > 18 || at[1 + digits])
    return iso_fail(ISO_ERR_USAGE, "%s: \"%s\" is no step; write RUN@STEP with a whole number", path, at + 1);
  *step = strtoll(at + 1, NULL, 10);
  *at = 0;
  return ISO_OK;
}
