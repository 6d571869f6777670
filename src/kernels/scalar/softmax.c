/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.c (scalar): softmax with cross-entropy and its gradient in plain C, in float64.
 *
 * A row with a NaN or +infinity gives a NaN loss; -infinity is a probability of zero.
 */
#include "kernels/scalar/scalar.h"

static void cross_entropy_row(const iso_cross_entropy_args *args, int64_t row) {
  const iso_matrix *z = &args->logits;
  int64_t columns = z->cols;
  int32_t label = args->labels[row];
  if (label < 0) {
    args->loss[row] = 0;
    for (int64_t j = 0; args->dlogits.data && j < columns; j++) iso_scalar_store(&args->dlogits, row, j, 0);
    return;
  }
  double top = iso_scalar_load(z, row, 0), sum = 0;
  for (int64_t j = 1; j < columns; j++) {
    double value = iso_scalar_load(z, row, j);
    if (value > top) top = value;
  }
  for (int64_t j = 0; j < columns; j++) sum += iso_exp(iso_scalar_load(z, row, j) - top);
  args->loss[row] = (float)(iso_log(sum) + (top - iso_scalar_load(z, row, label)));
  for (int64_t j = 0; args->dlogits.data && j < columns; j++) {
    double p = iso_exp(iso_scalar_load(z, row, j) - top) / sum;
    iso_scalar_store(&args->dlogits, row, j, j == label ? p - 1 : p);
  }
}

static void cross_entropy(const iso_cross_entropy_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->logits.rows, 1, worker, &begin, &end);
  for (int64_t row = begin; row < end; row++) cross_entropy_row(args, row);
}

void iso_overlay_scalar_softmax(iso_kernels *table) {
  table->cross_entropy = cross_entropy;
}
