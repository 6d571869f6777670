/* SPDX-License-Identifier: Apache-2.0
 *
 * Loss and bits per byte of a text: windows of the training length through the evaluation program.
 *   bits per byte = (sum of -log2 p over predicted tokens + unpredicted tokens * log2 V) / bytes
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

typedef struct windows {
  int32_t *memory;
  iso_inputs inputs;
  int32_t *rows[4]; /* tokens, labels, positions, segments: batch x sequence */
  int64_t batch, sequence;
} windows;

static iso_status windows_init(windows *w, int64_t batch, int64_t sequence) {
  const size_t rows = (size_t)(batch * sequence);
  w->batch = batch;
  w->sequence = sequence;
  w->memory = malloc(4 * rows * sizeof(int32_t));
  if (!w->memory) return iso_fail(ISO_ERR_MEMORY, "evaluation: no memory for windows of %zu tokens", rows);
  for (int i = 0; i < 4; i++) w->rows[i] = w->memory + (size_t)i * rows;
  w->inputs = (iso_inputs){w->rows[0], w->rows[1], w->rows[2], w->rows[3]};
  return ISO_OK;
}

static iso_sequence window_at(const windows *w, int64_t index) {
  const int64_t at = index * w->sequence;
  return (iso_sequence){w->rows[0] + at, w->rows[1] + at, w->rows[2] + at, w->rows[3] + at};
}

/* A window that scores nothing. */
static void window_blank(const windows *w, int64_t index) {
  const iso_sequence s = window_at(w, index);
  for (int64_t t = 0; t < w->sequence; t++) {
    s.tokens[t] = 0;
    s.labels[t] = -100;
    s.positions[t] = (int32_t)t;
    s.segments[t] = 0;
  }
}

/* Fills the batch; *filled = windows that hold text. */
static iso_status windows_fill(const windows *w, iso_validation *validation, int64_t without, int64_t *filled,
                               iso_evaluation *out) {
  *filled = 0;
  for (int64_t i = 0; i < w->batch; i++) {
    int64_t valid = 0;
    if (*filled == i) ISO_TRY(iso_validation_next(validation, window_at(w, i), &valid));
    if (valid == 0) {
      window_blank(w, i);
      continue;
    }
    ++*filled;
    const iso_sequence s = window_at(w, i);
    for (int64_t t = 0; t < w->sequence; t++) {
      if (without >= 0 && s.labels[t] == without) {
        s.labels[t] = -100;
        out->left_out++;
      }
      out->predicted += s.labels[t] != -100;
    }
  }
  return ISO_OK;
}

iso_status iso_evaluate(iso_engine *engine, iso_validation *validation, int64_t without, iso_evaluation *out) {
  memset(out, 0, sizeof *out);
  const double began = iso_clock_s();
  windows w = {0};
  ISO_TRY(windows_init(&w, engine->options.evaluate_batch, engine->options.sequence));
  const float *losses = iso_exec_output(engine->evaluation_exec, "losses");
  iso_status status = ISO_OK;
  for (;;) {
    int64_t filled;
    status = windows_fill(&w, validation, without, &filled, out);
    if (status != ISO_OK || filled == 0) break;
    iso_exec_forward(engine->evaluation_exec, &w.inputs, 0);
    for (int64_t row = 0; row < w.batch * w.sequence; row++) out->loss_sum += losses[row];
  }
  free(w.memory);
  if (status != ISO_OK) return status;
  iso_validation_totals(validation, &out->bytes, &out->tokens, &out->unpredicted);
  out->tokens -= out->left_out;
  const double log2_e = 1.4426950408889634074;
  const double charged = iso_log((double)engine->options.model->vocabulary) * (double)out->unpredicted;
  if (out->predicted) out->loss = out->loss_sum / (double)out->predicted;
  out->perplexity = iso_exp(out->loss);
  if (out->bytes) out->bits_per_byte = (out->loss_sum + charged) * log2_e / (double)out->bytes;
  out->seconds = iso_clock_s() - began;
  return ISO_OK;
}
