/* SPDX-License-Identifier: Apache-2.0
 *
 * embedding.c (scalar): gather of table rows and its gradient, in plain C.
 */
#include "kernels/scalar/scalar.h"

static void embedding(const iso_embedding_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->y.rows, 1, worker, &begin, &end);
  for (int64_t i = begin; i < end; i++)
    for (int64_t j = 0; j < args->y.cols; j++)
      iso_scalar_store(&args->y, i, j, iso_scalar_load(&args->table, args->ids[i], j));
}

/* A thread owns columns, so a token that repeats is added in the order of its positions whatever the threads. */
static void embedding_grad(const iso_embedding_grad_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->dtable.cols, ISO_COLUMN_GRAIN, worker, &begin, &end);
  float *dtable = args->dtable.data;
  if (!args->accumulate)
    for (int64_t i = 0; i < args->dtable.rows; i++)
      for (int64_t j = begin; j < end; j++) dtable[i * args->dtable.ld + j] = 0;
  for (int64_t i = 0; i < args->dy.rows; i++)
    for (int64_t j = begin; j < end; j++)
      dtable[args->ids[i] * args->dtable.ld + j] += iso_scalar_load(&args->dy, i, j);
}

void iso_overlay_scalar_embedding(iso_kernels *table) {
  table->embedding = embedding;
  table->embedding_grad = embedding_grad;
}
