/* SPDX-License-Identifier: Apache-2.0
 *
 * A reference case on disk (layout: docs/validation.md): tensors, the optimizer's settings, the greedy continuation and
 * the reference's own errors.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "infer/infer.h"

static iso_status missing(const iso_reference *r, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "%s: case has no %s; make it with tools/make-case.py", r->folder, what);
}

const iso_safetensor *iso_reference_tensor(const iso_reference *r, const char *prefix, const char *name) {
  char key[512];
  snprintf(key, sizeof key, "%s%s", prefix, name);
  const iso_safetensor *found = iso_safetensors_find(r->tensors, key);
  if (found || strncmp(name, "transformer.", 12) != 0) return found;
  snprintf(key, sizeof key, "%s%s", prefix, name + 12);
  return iso_safetensors_find(r->tensors, key);
}

static iso_status read_i32(iso_reference *r, const char *name, int rank, bool required, int32_t **out,
                           const iso_safetensor **tensor) {
  const iso_safetensor *found = iso_safetensors_find(r->tensors, name);
  *out = NULL;
  if (tensor) *tensor = found;
  if (!found) return required ? missing(r, name) : ISO_OK;
  if (found->rank != rank || found->elements == 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s must have %d dimensions and values", r->folder, name, rank);
  *out = iso_arena_alloc(r->arena, (size_t)found->elements * sizeof(int32_t));
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for %s", r->folder, name);
  return iso_safetensor_to_i32(found, *out);
}

static iso_status to_floats(iso_reference *r, const iso_safetensor *tensor, float **out) {
  *out = iso_arena_alloc(r->arena, (size_t)tensor->elements * sizeof(float) + 16);
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for %s", r->folder, tensor->name);
  return iso_safetensor_to_f32(tensor, *out);
}

static iso_status read_floats(iso_reference *r, const char *name, int64_t elements, float **out) {
  const iso_safetensor *found = iso_safetensors_find(r->tensors, name);
  if (!found) return missing(r, name);
  if (found->elements != elements)
    return iso_fail(ISO_ERR_FORMAT, "%s: %s has %lld values, expected %lld", r->folder, name,
                    (long long)found->elements, (long long)elements);
  return to_floats(r, found, out);
}

static iso_status check_ids(const iso_reference *r, const char *name, const int32_t *ids, int64_t count, int64_t low,
                            int64_t high) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] != -100 && (ids[i] < low || ids[i] >= high))
      return iso_fail(ISO_ERR_MISMATCH, "%s: %s holds %d at %lld, outside %lld to %lld", r->folder, name, ids[i],
                      (long long)i, (long long)low, (long long)high - 1);
  return ISO_OK;
}

static iso_status read_optimizer(iso_reference *r) {
  const iso_json *train = iso_json_get(r->json, "train");
  if (!train) return missing(r, "train settings in case.json");
  const char *where = r->folder;
  ISO_TRY(iso_json_double(train, where, "beta1", 0.9, &r->beta1));
  ISO_TRY(iso_json_double(train, where, "beta2", 0.95, &r->beta2));
  ISO_TRY(iso_json_double(train, where, "eps", 1e-8, &r->eps));
  ISO_TRY(iso_json_double(train, where, "weight_decay", 0, &r->weight_decay));
  ISO_TRY(iso_json_double(train, where, "clip_norm", 0, &r->clip_norm));
  const cJSON *rates = iso_json_get(train, "lr_by_step");
  if (!cJSON_IsArray(rates) || cJSON_GetArraySize(rates) != r->steps)
    return missing(r, "lr_by_step for each step of train.input_ids");
  r->lr = iso_arena_alloc(r->arena, sizeof *r->lr * (size_t)r->steps);
  int64_t i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, rates) r->lr[i++] = item->valuedouble;
  r->decay = iso_json_get(train, "decay");
  return ISO_OK;
}

static iso_status read_ids(iso_reference *r, const iso_json *list, const char *what, int32_t **out, int64_t *count) {
  if (!cJSON_IsArray(list)) return missing(r, what);
  *count = cJSON_GetArraySize(list);
  *out = iso_arena_alloc(r->arena, sizeof(int32_t) * (size_t)(*count + 1));
  int64_t i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, list) {
    if (!cJSON_IsNumber(item)) return missing(r, what);
    (*out)[i++] = item->valueint;
  }
  return ISO_OK;
}

static iso_status read_case(iso_reference *r, int64_t vocabulary) {
  const iso_safetensor *ids, *train;
  ISO_TRY(read_i32(r, "input_ids", 2, true, &r->input_ids, &ids));
  r->batch = ids->shape[0];
  r->sequence = ids->shape[1];
  const int64_t rows = r->batch * r->sequence;
  const iso_safetensor *found;
  ISO_TRY(read_i32(r, "labels", 2, true, &r->labels, &found));
  if (found->elements != rows) return missing(r, "labels of input_ids' shape");
  ISO_TRY(read_i32(r, "segment_ids", 2, false, &r->segment_ids, &found));
  if (found && found->elements != rows) return missing(r, "segment_ids of input_ids' shape");
  ISO_TRY(read_i32(r, "position_ids", 2, false, &r->position_ids, &found));
  if (found && found->elements != rows) return missing(r, "position_ids of input_ids' shape");
  ISO_TRY(read_i32(r, "train.input_ids", 3, true, &r->train_ids, &train));
  r->steps = train->shape[0];
  r->train_batch = train->shape[1];
  if (train->shape[2] != r->sequence) return missing(r, "train.input_ids with the sequence length of input_ids");
  ISO_TRY(check_ids(r, "input_ids", r->input_ids, rows, 0, vocabulary));
  ISO_TRY(check_ids(r, "labels", r->labels, rows, 0, vocabulary));
  if (r->position_ids) ISO_TRY(check_ids(r, "position_ids", r->position_ids, rows, 0, r->sequence));
  ISO_TRY(check_ids(r, "train.input_ids", r->train_ids, train->elements, 0, vocabulary));
  ISO_TRY(read_floats(r, "logits", rows * vocabulary, &r->logits));
  ISO_TRY(read_floats(r, "loss", 1, &r->loss));
  ISO_TRY(read_floats(r, "train.loss", r->steps, &r->train_loss));
  ISO_TRY(read_floats(r, "train.grad_norm", r->steps, &r->train_norm));
  ISO_TRY(read_optimizer(r));
  const iso_json *greedy = iso_json_get(r->json, "greedy");
  ISO_TRY(read_ids(r, iso_json_get(greedy, "prompt"), "greedy.prompt", &r->prompt, &r->prompt_count));
  ISO_TRY(read_ids(r, iso_json_get(greedy, "tokens"), "greedy.tokens", &r->greedy, &r->greedy_count));
  return check_ids(r, "greedy.prompt", r->prompt, r->prompt_count, 0, vocabulary);
}

iso_status iso_reference_open(const char *folder, int64_t vocabulary, iso_reference *r) {
  memset(r, 0, sizeof *r);
  r->arena = iso_arena_create();
  if (!r->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", folder);
  r->folder = iso_arena_strdup(r->arena, folder);
  iso_status status = iso_json_read(iso_path_join(r->arena, folder, "case.json"), &r->json);
  if (status == ISO_OK) status = iso_safetensors_open(iso_path_join(r->arena, folder, "case.safetensors"), &r->tensors);
  if (status == ISO_OK) status = read_case(r, vocabulary);
  if (status != ISO_OK) iso_reference_close(r);
  return status;
}

void iso_reference_close(iso_reference *r) {
  iso_safetensors_close(&r->tensors);
  iso_json_destroy(&r->json);
  iso_arena_destroy(&r->arena);
  memset(r, 0, sizeof *r);
}

bool iso_reference_decays(const iso_reference *r, const char *name) {
  const cJSON *item;
  cJSON_ArrayForEach(item, r->decay) {
    if (!cJSON_IsString(item)) continue;
    if (strcmp(item->valuestring, name) == 0) return true;
    if (strncmp(name, "transformer.", 12) == 0 && strcmp(item->valuestring, name + 12) == 0) return true;
  }
  return false;
}

double iso_reference_autocast_error(const iso_reference *r, const char *kind, const char *name) {
  const iso_json *errors = iso_json_get(iso_json_get(r->json, "errors_against_float64"), "bfloat16");
  const iso_json *value = errors ? iso_json_get(errors, kind) : NULL;
  if (value && name) {
    const iso_json *of = iso_json_get(value, name);
    if (!of && strncmp(name, "transformer.", 12) == 0) of = iso_json_get(value, name + 12);
    value = of;
  }
  return value && cJSON_IsNumber(value) ? value->valuedouble : 0;
}
