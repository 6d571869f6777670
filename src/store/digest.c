/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest of a training state: SHA-256 over bytes that do not depend on how the state is laid out or split.
 *
 * For each tensor in the order of names (bytes compared as unsigned): the name's length as 8 bytes, the name, the
 * number of elements as 8 bytes, then its master weights, first and second moments as little-endian float32; at the end
 * the step as 8 bytes. All 8-byte numbers are little-endian.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

typedef struct part {
  const char *name;
  int64_t offset, elements; /* in the flat arrays */
} part;

static int by_name(const void *left, const void *right) {
  return strcmp(((const part *)left)->name, ((const part *)right)->name);
}

static void add_number(iso_sha256 *hash, int64_t value) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)value >> 8 * i);
  iso_sha256_update(hash, bytes, sizeof bytes);
}

static void add_floats(iso_sha256 *hash, const float *array, const part *p) {
  static const float zeros[1024];
  if (array) {
    iso_sha256_update(hash, array + p->offset, (size_t)p->elements * sizeof *array);
    return;
  }
  for (int64_t left = p->elements; left > 0; left -= (int64_t)ISO_COUNT(zeros)) {
    iso_sha256_update(hash, zeros, left < (int64_t)ISO_COUNT(zeros) ? (size_t)left * sizeof *zeros : sizeof zeros);
  }
}

void iso_state_digest(const iso_state *state, int64_t step, char hex[65]) {
  part *parts = calloc(state->tensor_count + 1, sizeof *parts);
  iso_sha256 *hash = iso_sha256_create();
  int64_t offset = 0;
  hex[0] = 0;
  if (parts && hash) {
    for (size_t i = 0; i < state->tensor_count; i++) {
      const iso_tensor_out *t = &state->tensors[i];
      parts[i] = (part){t->name, offset, iso_shape_elements(t->rank, t->shape)};
      offset += parts[i].elements;
    }
    if (state->tensor_count) qsort(parts, state->tensor_count, sizeof *parts, by_name);
    for (size_t i = 0; i < state->tensor_count; i++) {
      add_number(hash, (int64_t)strlen(parts[i].name));
      iso_sha256_update(hash, parts[i].name, strlen(parts[i].name));
      add_number(hash, parts[i].elements);
      add_floats(hash, state->master, &parts[i]);
      add_floats(hash, state->moment1, &parts[i]);
      add_floats(hash, state->moment2, &parts[i]);
    }
    add_number(hash, step);
  }
  if (hash) iso_sha256_finish(&hash, hex);
  if (!parts) hex[0] = 0; /* out of memory: no digest rather than a wrong one */
  free(parts);
}
