/* SPDX-License-Identifier: Apache-2.0
 *
 * weights.c: stored weights in: *.safetensors of a Hugging Face folder into the flat master array.
 *
 * Names in files are the parameters' own, or, when the file was saved from the model without its head, those names
 * without the architecture's prefix ("transformer.", "model."). Which of the two holds is decided once, by the first
 * parameter, so a file that mixes them is refused.
 *
 * Invariants
 *  1. Every parameter is filled from exactly one stored tensor of its shape, or the import fails.
 *  2. Every stored tensor is used, or is of a kind that holds no information.
 *  3. No value that is not finite gets in.
 */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
  const iso_model_config *config;
  const iso_graph *graph;
  const iso_safetensors *file;
  const char *path;
  bool bare; /* names lack the prefix */
} source;

static const char *stored_name(const source *s, const char *name) {
  const char *prefix = s->config->architecture->prefix;
  const size_t length = strlen(prefix);
  return s->bare && strncmp(name, prefix, length) == 0 ? name + length : name;
}

static void choose_names(source *s) {
  const char *first = s->graph->parameters[0].name;
  s->bare = true;
  if (iso_safetensors_find(s->file, first) || !iso_safetensors_find(s->file, stored_name(s, first))) s->bare = false;
}

static iso_status check_missing(const source *s) {
  int missing = 0;
  const char *first = NULL;
  for (int i = 0; i < s->graph->parameter_count; i++) {
    const char *name = stored_name(s, s->graph->parameters[i].name);
    if (iso_safetensors_find(s->file, name)) continue;
    if (missing++ == 0) first = name;
  }
  if (missing == 0) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH, "%s: %d of the %d tensors that config.json asks for are missing, the first is %s",
                  s->path, missing, s->graph->parameter_count, first);
}

/* ---- stored tensors that are no parameters ---- */

static bool ends_with(const char *text, const char *ending) {
  const size_t a = strlen(text), b = strlen(ending);
  return a >= b && strcmp(text + a - b, ending) == 0;
}

/* A head stored beside the embedding that it is tied to: accepted when it is the same. */
static iso_status check_tied_head(const source *s, const iso_safetensor *head) {
  const iso_safetensor *embedding = iso_safetensors_find(s->file, stored_name(s, s->graph->parameters[0].name));
  bool same = embedding && head->rank == embedding->rank && head->elements == embedding->elements &&
              memcmp(head->shape, embedding->shape, (size_t)head->rank * sizeof *head->shape) == 0;
  if (same && strcmp(head->dtype, embedding->dtype) == 0) {
    same = head->bytes == 0 || memcmp(head->data, embedding->data, (size_t)head->bytes) == 0;
  } else if (same) {
    const size_t bytes = (size_t)head->elements * sizeof(float);
    float *values[] = {malloc(bytes), malloc(bytes)};
    iso_status status = values[0] && values[1] ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", s->path);
    if (status == ISO_OK) status = iso_safetensor_to_f32(head, values[0]);
    if (status == ISO_OK) status = iso_safetensor_to_f32(embedding, values[1]);
    if (status == ISO_OK) same = memcmp(values[0], values[1], bytes) == 0;
    free(values[0]);
    free(values[1]);
    if (status != ISO_OK) return status;
  }
  if (same) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH,
                  "%s: %s differs from the embedding, but config.json ties them; set tie_word_embeddings to false",
                  s->path, head->name);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static iso_status check_extra(const source *s, const char **names) {
  size_t extra = 0;
  const char *first = NULL;
  for (size_t i = 0; i < iso_safetensors_count(s->file); i++) {
    const iso_safetensor *tensor = iso_safetensors_at(s->file, i);
    if (bsearch(&tensor->name, names, (size_t)s->graph->parameter_count, sizeof *names, compare_names)) continue;
    bool ignored = false;
    for (const char *const *ending = s->config->architecture->ignored; *ending; ending++)
      ignored |= ends_with(tensor->name, *ending);
    if (s->config->tied && strcmp(tensor->name, "lm_head.weight") == 0) {
      ISO_TRY(check_tied_head(s, tensor));
      ignored = true;
    }
    if (!ignored && extra++ == 0) first = tensor->name;
  }
  if (extra == 0) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH, "%s: %zu tensors have no place in a %s of this config, the first is %s", s->path,
                  extra, s->config->architecture->name, first);
}

static iso_status check_names(const source *s) {
  ISO_TRY(check_missing(s));
  const size_t count = s->graph->parameter_count > 0 ? (size_t)s->graph->parameter_count : 0;
  const char **names = calloc(count + 1, sizeof *names);
  if (!names) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to import it", s->path);
  for (size_t i = 0; i < count; i++) names[i] = stored_name(s, s->graph->parameters[i].name);
  qsort(names, count, sizeof *names, compare_names);
  iso_status status = check_extra(s, names);
  free(names);
  return status;
}

/* ---- values ---- */

static void print_shape(char text[96], int rank, const int64_t *shape) {
  int length = snprintf(text, 96, "[");
  for (int i = 0; i < rank && length < 70; i++)
    length += snprintf(text + length, 96 - (size_t)length, "%s%lld", i ? ", " : "", (long long)shape[i]);
  snprintf(text + length, 96 - (size_t)length, "]");
}

static iso_status read_parameter(const source *s, const iso_parameter *parameter, float *out) {
  const iso_safetensor *tensor = iso_safetensors_find(s->file, stored_name(s, parameter->name));
  bool fits = tensor->rank == parameter->rank;
  for (int i = 0; fits && i < tensor->rank; i++) fits = tensor->shape[i] == parameter->shape[i];
  if (!fits) {
    char stored[96], wanted[96];
    print_shape(stored, tensor->rank, tensor->shape);
    print_shape(wanted, parameter->rank, parameter->shape);
    return iso_fail(ISO_ERR_MISMATCH, "%s: %s has shape %s, but config.json asks for %s", tensor->file, tensor->name,
                    stored, wanted);
  }
  ISO_TRY(iso_safetensor_to_f32(tensor, out));
  for (int64_t i = 0; i < tensor->elements; i++)
    if (!isfinite(out[i]))
      return iso_fail(ISO_ERR_FORMAT, "%s: %s holds a value that is not finite, at element %lld", tensor->file,
                      tensor->name, (long long)i);
  return ISO_OK;
}

iso_status iso_model_import(const iso_model_config *config, const iso_graph *graph, const char *path, float *master) {
  iso_safetensors *file = NULL;
  ISO_TRY(iso_safetensors_open(path, &file));
  source s = {.config = config, .graph = graph, .file = file, .path = path};
  choose_names(&s);
  iso_status status = check_names(&s);
  for (int i = 0; i < graph->parameter_count && status == ISO_OK; i++)
    status = read_parameter(&s, &graph->parameters[i], master + graph->parameters[i].offset);
  iso_safetensors_close(&file);
  return status;
}
