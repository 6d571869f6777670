/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning-rate schedules and which parameters decay. Pure functions of the config; no libm, so the bits are the same
 * everywhere.
 */
#include <string.h>

#include "train/train.h"

/* With lr, r = min_lr_ratio, w = warmup_steps, n = steps:
 *   step <= w:  lr step / w
 *   cosine:     lr (r + (1-r) (1 + cos(pi p)) / 2),  p = (step - w) / (n - w)
 *   linear:     lr (1 - (1-r) p)
 *   wsd:        lr, then over the last d = decay_steps (0: a fifth of n) lr (1 - (1-r) (step - (n-d)) / d) */
double iso_learning_rate(const iso_config *config, int64_t step) {
  const double lr = config->optimizer.lr, ratio = config->optimizer.min_lr_ratio;
  const int64_t warmup = config->optimizer.warmup_steps, steps = config->steps;
  const char *schedule = config->optimizer.schedule;
  if (step <= warmup) return lr * (double)step / (double)warmup;
  if (strcmp(schedule, "constant") == 0) return lr;
  const double progress = steps > warmup ? (double)(step - warmup) / (double)(steps - warmup) : 1.0;
  if (strcmp(schedule, "cosine") == 0) {
    const double pi = 3.14159265358979323846;
    return lr * (ratio + (1 - ratio) * (1 + iso_cos(pi * progress)) / 2);
  }
  if (strcmp(schedule, "linear") == 0) return lr * (1 - (1 - ratio) * progress);
  int64_t decay = config->optimizer.decay_steps ? config->optimizer.decay_steps : steps / 5;
  if (decay > steps - warmup) decay = steps - warmup;
  if (step <= steps - decay) return lr;
  return lr * (1 - (1 - ratio) * (double)(step - (steps - decay)) / (double)decay);
}

static bool decays(const iso_config *config, iso_decay_class class) {
  switch (class) {
  case ISO_DECAY_MATRIX:
    return true;
  case ISO_DECAY_EMBEDDING:
    return config->optimizer.decay_embeddings;
  case ISO_DECAY_NORM:
  case ISO_DECAY_BIAS:
    return config->optimizer.decay_norms;
  case ISO_DECAY_COUNT:
    break;
  }
  return false;
}

void iso_decay_ranges(const iso_config *config, const iso_graph *graph, iso_arena *arena, int64_t **ranges,
                      int64_t *count) {
  int64_t *pairs = iso_arena_alloc(arena, sizeof *pairs * 2 * (size_t)(graph->parameter_count + 1));
  int64_t used = 0;
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *parameter = &graph->parameters[i];
    if (!decays(config, parameter->decay_class)) continue;
    if (used && pairs[2 * used - 1] == parameter->offset) {
      pairs[2 * used - 1] += parameter->elements;
      continue;
    }
    pairs[2 * used] = parameter->offset;
    pairs[2 * used + 1] = parameter->offset + parameter->elements;
    used++;
  }
  *ranges = pairs;
  *count = used;
}
