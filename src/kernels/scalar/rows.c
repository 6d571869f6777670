/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.c (scalar): add, cast and column_sum in plain C, and the overlay of all plain-C row kernels.
 */
#include "kernels/scalar/scalar.h"

static void add(const iso_add_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->a, &args->b};
  iso_row_part part = iso_row_part_of(all, 3, worker);
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++)
      iso_scalar_store(&args->y, i, j, iso_scalar_load(&args->a, i, j) + iso_scalar_load(&args->b, i, j));
}

static void cast(const iso_cast_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->x};
  iso_row_part part = iso_row_part_of(all, 2, worker);
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++)
      iso_scalar_store(&args->y, i, j, iso_scalar_load(&args->x, i, j));
}

static void column_sum(const iso_column_sum_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->x.cols, ISO_COLUMN_GRAIN, worker, &begin, &end);
  for (int64_t j = begin; j < end; j++) {
    double sum = 0;
    for (int64_t i = 0; i < args->x.rows; i++) sum += iso_scalar_load(&args->x, i, j);
    args->out[j] = args->accumulate ? args->out[j] + (float)sum : (float)sum;
  }
}

void iso_overlay_scalar_rows(iso_kernels *table) {
  table->add = add;
  table->cast = cast;
  table->column_sum = column_sum;
  iso_overlay_scalar_norm(table);
  iso_overlay_scalar_activation(table);
  iso_overlay_scalar_embedding(table);
  iso_overlay_scalar_softmax(table);
}
