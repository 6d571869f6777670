/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layer and cross-entropy in one, without the full logits: chunks of ISO_LOSS_CHUNK rows go through product,
 * loss and both gradient products while their logits are still in scratch. Written over the kernel table, so every
 * tier has it.
 *
 * Scratch: logits [chunk, V] float32, then their gradient [chunk, V] in the compute type, then the products' own.
 * Threads meet at a barrier between stages, because each stage reads what all threads wrote.
 */
#include "kernels/kernels.h"

static size_t aligned(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

size_t iso_linear_cross_entropy_scratch(int64_t rows, int64_t width, int64_t vocabulary, iso_dtype type, int threads) {
  int64_t chunk = rows < ISO_LOSS_CHUNK ? rows : ISO_LOSS_CHUNK;
  size_t logits = (size_t)chunk * (size_t)vocabulary;
  size_t product = iso_gemm_scratch(chunk, vocabulary, width, type, threads);
  product = larger(product, iso_gemm_scratch(chunk, width, vocabulary, type, threads));
  product = larger(product, iso_gemm_scratch(vocabulary, width, chunk, type, threads));
  return aligned(logits * sizeof(float)) + aligned(logits * iso_dtype_size(type)) + product;
}

/* Rows [first, first + count) of m. */
static iso_matrix rows_of(const iso_matrix *m, int64_t first, int64_t count) {
  iso_matrix part = *m;
  part.rows = count;
  if (m->data) part.data = (char *)m->data + (size_t)(first * m->ld) * iso_dtype_size(m->dtype);
  return part;
}

void iso_linear_cross_entropy(const iso_kernels *kernels, const iso_linear_cross_entropy_args *args,
                              const iso_worker *worker) {
  iso_dtype type = args->x.dtype;
  int64_t rows = args->x.rows, vocabulary = args->weight.rows;
  int64_t largest = rows < ISO_LOSS_CHUNK ? rows : ISO_LOSS_CHUNK;
  bool gradient = args->dx.data && args->dweight.data;
  size_t size = (size_t)largest * (size_t)vocabulary;
  char *logits = worker->scratch, *dlogits = logits + aligned(size * sizeof(float));
  iso_worker inner = *worker;
  inner.scratch = dlogits + aligned(size * iso_dtype_size(type));
  bool accumulate = args->accumulate;
  int64_t first = 0;
  do { /* once also for no rows: dweight is then zeroed by a product of depth 0 */
    int64_t count = rows - first < ISO_LOSS_CHUNK ? rows - first : ISO_LOSS_CHUNK;
    iso_matrix x = rows_of(&args->x, first, count);
    iso_matrix z = {logits, count, vocabulary, vocabulary, ISO_F32};
    iso_matrix dz = {gradient ? dlogits : NULL, count, vocabulary, vocabulary, type};
    iso_gemm_args forward = {.a = x, .b = args->weight, .c = z, .b_transposed = true};
    kernels->gemm(&forward, &inner);
    iso_team_barrier(worker->team);
    iso_cross_entropy_args loss = {z, dz, args->labels + first, args->loss + first};
    kernels->cross_entropy(&loss, &inner);
    iso_team_barrier(worker->team);
    if (gradient) {
      iso_gemm_args to_x = {.a = dz, .b = args->weight, .c = rows_of(&args->dx, first, count)};
      kernels->gemm(&to_x, &inner);
      iso_team_barrier(worker->team);
      iso_gemm_args to_weight = {.a = dz, .b = x, .c = args->dweight, .a_transposed = true, .accumulate = accumulate};
      kernels->gemm(&to_weight, &inner);
      iso_team_barrier(worker->team);
      accumulate = true;
    }
    first += count;
  } while (first < rows);
}
