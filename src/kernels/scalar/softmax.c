/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.c (scalar): softmax with cross-entropy in two steps in plain C, formulas in float64; exponentials and the
 * sums of blocks are stored as the arguments say.
 *
 * A row with a NaN or +infinity gives a NaN loss; -infinity is a probability of zero.
 */
#include "kernels/scalar/scalar.h"

#include <math.h>

/* NaNs are skipped: they show in the sum. */
static double greatest(double top, double value) {
  return value > top ? value : top;
}

static void softmax_part_row(const iso_softmax_part_args *args, int64_t row) {
  const iso_matrix *z = &args->logits;
  double top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < z->cols; j++) top = greatest(top, iso_scalar_load(z, row, j));
  const double origin = top == -INFINITY ? 0 : top;
  for (int64_t j = 0; j < z->cols; j++) {
    const double e = iso_exp(iso_scalar_load(z, row, j) - origin);
    if (args->exponentials.data) iso_scalar_store(&args->exponentials, row, j, e);
    sum += e;
  }
  args->tops[row * args->blocks] = (float)top;
  args->sums[row * args->blocks] = (float)sum;
}

static void softmax_part(const iso_softmax_part_args *args, const iso_worker *worker) {
  int64_t row, end;
  iso_split(args->logits.rows, 1, worker, &row, &end);
  for (; row < end; row++) softmax_part_row(args, row);
}

static void softmax_finish_row(const iso_softmax_finish_args *args, int64_t row) {
  const iso_matrix *dz = &args->dlogits;
  const int64_t columns = dz->cols, blocks = (columns + ISO_SOFTMAX_BLOCK - 1) / ISO_SOFTMAX_BLOCK;
  const float *tops = args->tops + row * blocks, *sums = args->sums + row * blocks;
  const int32_t label = args->labels[row];
  if (label < 0) {
    args->loss[row] = 0;
    for (int64_t j = 0; dz->data && j < columns; j++) iso_scalar_store(dz, row, j, 0);
    return;
  }
  double top = -INFINITY, sum = 0;
  for (int64_t b = 0; b < blocks; b++) top = greatest(top, (double)tops[b]);
  for (int64_t b = 0; b < blocks; b++) sum += iso_exp(tops[b] - top) * sums[b];
  args->loss[row] = (float)(iso_log(sum) + (top - args->at_label[row]));
  for (int64_t j = 0; dz->data && j < columns; j++) {
    const double factor = iso_exp(tops[j / ISO_SOFTMAX_BLOCK] - top) / sum;
    iso_scalar_store(dz, row, j,
                     j == label ? iso_exp(args->at_label[row] - top) / sum - 1 : iso_scalar_load(dz, row, j) * factor);
  }
}

static void softmax_finish(const iso_softmax_finish_args *args, const iso_worker *worker) {
  int64_t row, end;
  iso_split(args->dlogits.rows, 1, worker, &row, &end);
  for (; row < end; row++) softmax_finish_row(args, row);
}

void iso_overlay_scalar_softmax(iso_kernels *table) {
  table->softmax_part = softmax_part;
  table->softmax_finish = softmax_finish;
}
