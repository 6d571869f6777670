/* SPDX-License-Identifier: Apache-2.0
 *
 * How the reduced gradient is spread, layer by layer: a histogram whose bins are half octaves of both signs, so that a
 * number's bin is a few of its bits.
 *
 * Invariants
 *  1. The gradient is only read, between steps, when nobody writes it.
 *  2. At most ISO_SPREAD_SAMPLES elements of a layer are looked at, every n-th one, whatever the model's size.
 *  3. What is not finite is counted by itself and is in no bin.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

size_t iso_layer_name(const char *name, const char **begin) {
  static const char *const lists[] = {"layers.", "h."}; /* of Llama's family, of GPT-2 */
  for (size_t i = 0; i < ISO_COUNT(lists); i++) {
    const char *at = strstr(name, lists[i]);
    const size_t length = strlen(lists[i]);
    const size_t digits = at && (at == name || at[-1] == '.') ? strspn(at + length, "0123456789") : 0;
    *begin = at;
    if (digits && at[length + digits] == '.') return length + digits;
  }
  static const char *const prefixes[] = {"model.", "transformer."};
  *begin = name;
  for (size_t i = 0; i < ISO_COUNT(prefixes); i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) *begin = name + strlen(prefixes[i]);
  return strcspn(*begin, ".");
}

static int64_t elements_of(const iso_tensor_out *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
  return count;
}

/* In the order in which layers come in the flat state; one whose tensors do not stand together is several. */
iso_status iso_gradients_create(const iso_state *state, iso_gradients **out) {
  iso_gradients *g = calloc(1, sizeof *g);
  *out = g;
  if (g) g->layers = calloc(state->tensor_count + 1, sizeof *g->layers);
  if (!g || !g->layers) {
    iso_gradients_destroy(out);
    return iso_fail(ISO_ERR_MEMORY, "no memory for histograms of gradients");
  }
  int64_t at = 0;
  for (size_t i = 0; i < state->tensor_count; i++) {
    const char *name;
    const size_t length = iso_layer_name(state->tensors[i].name, &name);
    iso_layer_spread *last = g->count ? &g->layers[g->count - 1] : NULL;
    if (!last || strlen(last->name) != length || strncmp(last->name, name, length) != 0) {
      last = &g->layers[g->count++];
      snprintf(last->name, sizeof last->name, "%.*s", (int)length, name);
      last->begin = at;
    }
    at += elements_of(&state->tensors[i]);
    last->end = at;
  }
  return ISO_OK;
}

void iso_gradients_destroy(iso_gradients **gradients) {
  if (!*gradients) return;
  free((*gradients)->layers);
  free(*gradients);
  *gradients = NULL;
}

static float element_at(const void *values, iso_dtype type, int64_t i) {
  if (type != ISO_BF16) return ((const float *)values)[i];
  const uint32_t bits = (uint32_t)((const iso_bf16 *)values)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Half octaves from 2^-ISO_SPREAD_OCTAVES up; below that is the middle bin, of zero. */
static int bin_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const int half = (int)((bits >> 22) & 0x1ff) - 2 * (127 - ISO_SPREAD_OCTAVES);
  const int size = half < 0 ? 0 : half >= ISO_SPREAD_BINS ? ISO_SPREAD_BINS : half + 1;
  return bits >> 31 ? ISO_SPREAD_BINS - size : ISO_SPREAD_BINS + size;
}

static void measure(const void *values, iso_dtype type, iso_layer_spread *s) {
  const int64_t stride = (s->end - s->begin + ISO_SPREAD_SAMPLES - 1) / ISO_SPREAD_SAMPLES;
  memset(s->bins, 0, sizeof s->bins);
  s->count = s->not_finite = 0;
  s->sum = s->squares = 0;
  s->least = INFINITY, s->most = -INFINITY;
  for (int64_t i = s->begin; i < s->end; i += stride) {
    const float value = element_at(values, type, i);
    if (!isfinite(value)) {
      s->not_finite++;
      continue;
    }
    s->count++;
    s->sum += (double)value;
    s->squares += (double)value * (double)value;
    if (value < s->least) s->least = value;
    if (value > s->most) s->most = value;
    s->bins[bin_of(value)]++;
  }
}

void iso_gradients_measure(iso_gradients *gradients, const void *values, iso_dtype type) {
  for (size_t i = 0; i < gradients->count; i++) measure(values, type, &gradients->layers[i]);
}

/* Between bin i and bin i + 1. */
double iso_spread_limit(int bin) {
  const int size = bin < ISO_SPREAD_BINS ? ISO_SPREAD_BINS - 1 - bin : bin - ISO_SPREAD_BINS;
  const double octave = ldexp(1, size / 2 - ISO_SPREAD_OCTAVES), limit = size % 2 ? 1.5 * octave : octave;
  return bin < ISO_SPREAD_BINS ? -limit : limit;
}
