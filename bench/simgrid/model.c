/* SPDX-License-Identifier: Apache-2.0
 *
 * A step on paper: which part of the gradient is complete when, and how long its reduction should take.
 *
 * Operations are those of docs/performance.md: 6 N + 6 L T C a token, two thirds of them backward. The gradient is
 * complete from the last layer to the first; the embedding is tied to the head, and so comes last. Within a layer each
 * matrix takes time as it has elements.
 */
#include "sim.h"

static double layer_elements(const setup *s) {
  return 12.0 * s->width * s->width;
}

int64_t model_elements(const setup *s) {
  return (int64_t)(layer_elements(s) * s->layers) + (int64_t)(s->vocabulary + s->sequence) * s->width;
}

/* Of a rank: its share of the host's cores. */
static double seconds(const setup *s, double operations_of_token) {
  return operations_of_token * s->sequence / (CORE_SPEED * HOST_CORES / s->mates) / s->faster;
}

static double layer_forward(const setup *s) {
  return seconds(s, 2 * layer_elements(s) + 2.0 * s->sequence * s->width);
}

static double head_forward(const setup *s) {
  return seconds(s, 2.0 * s->vocabulary * s->width);
}

double forward_seconds(const setup *s) {
  return s->layers * layer_forward(s) + head_forward(s);
}

double backward_seconds(const setup *s) {
  return 2 * forward_seconds(s);
}

double complete_seconds(const setup *s, int64_t elements) {
  const double layers = (double)elements / layer_elements(s);
  return 2 * (head_forward(s) + (layers < s->layers ? layers : s->layers) * layer_forward(s));
}

/* Master weights and two moments read and written, the gradient read: by the ranks of a host together. */
double update_seconds(const setup *s) {
  return (double)model_elements(s) * 28 / HOST_MEMORY;
}

static double least(double a, double b) {
  return a < b ? a : b;
}

static double most(double a, double b) {
  return a > b ? a : b;
}
