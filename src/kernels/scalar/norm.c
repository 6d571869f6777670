/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.c (scalar): RMSNorm and LayerNorm and their gradients in plain C, sums in float64 in index order.
 *
 * With n = (x - mean) * rstd (mean = 0 for RMSNorm), g = dy * w, and < > the mean over the D elements of a group:
 *   RMSNorm    dx = rstd * (g - n <g n>)
 *   LayerNorm  dx = rstd * (g - <g> - n <g n>)
 *   dweight = sum over groups of dy * n,  dbias = sum over groups of dy.
 */
#include "kernels/scalar/scalar.h"

static void norm_group(const iso_norm_args *args, int64_t row, int64_t group) {
  int64_t width = args->width, first = group * width;
  int64_t at = row * (args->stats_ld ? args->stats_ld : args->x.cols / width) + group;
  double mean = 0, squares = 0;
  if (args->layer) {
    for (int64_t j = 0; j < width; j++) mean += iso_scalar_load(&args->x, row, first + j);
    mean = (float)(mean / (double)width);
  }
  for (int64_t j = 0; j < width; j++) {
    double centred = iso_scalar_load(&args->x, row, first + j) - mean;
    squares += centred * centred;
  }
  float rstd = (float)(1 / __builtin_sqrt(squares / (double)width + args->eps));
  for (int64_t j = 0; j < width; j++) {
    double y = (iso_scalar_load(&args->x, row, first + j) - mean) * rstd * args->weight[j];
    iso_scalar_store(&args->y, row, first + j, args->bias ? y + args->bias[j] : y);
  }
  if (args->rstd) args->rstd[at] = rstd;
  if (args->layer && args->mean) args->mean[at] = (float)mean;
}

static void norm(const iso_norm_args *args, const iso_worker *worker) {
  int64_t begin, end, groups = args->width > 0 ? args->x.cols / args->width : 0;
  iso_split(args->x.rows, 1, worker, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    for (int64_t group = 0; group < groups; group++) norm_group(args, row, group);
}

static double normalised(const iso_norm_grad_args *args, int64_t row, int64_t group, int64_t j) {
  int64_t at = row * (args->x.cols / args->width) + group;
  double mean = args->layer ? args->mean[at] : 0;
  return (iso_scalar_load(&args->x, row, group * args->width + j) - mean) * args->rstd[at];
}

/* a + b first: the sum is the norm's x. */
static void add_norm(const iso_add_norm_args *args, const iso_worker *worker) {
  int64_t begin, end, width = args->norm.width, groups = width > 0 ? args->norm.x.cols / width : 0;
  iso_split(args->norm.x.rows, 1, worker, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    for (int64_t j = 0; j < groups * width; j++)
      iso_scalar_store(&args->norm.x, row, j, iso_scalar_load(&args->a, row, j) + iso_scalar_load(&args->b, row, j));
    for (int64_t group = 0; group < groups; group++) norm_group(&args->norm, row, group);
  }
}

/* dx; unless `fused` is NULL plus its skip, then also as its copy. */
static void norm_grad_group(const iso_norm_grad_args *args, const iso_norm_grad_add_args *fused, int64_t row,
                            int64_t group) {
  int64_t width = args->width, first = group * width, at = row * (args->x.cols / width) + group;
  double sum_g = 0, sum_gn = 0;
  for (int64_t j = 0; j < width; j++) {
    double g = (double)iso_scalar_load(&args->dy, row, first + j) * args->weight[j];
    sum_g += g;
    sum_gn += g * normalised(args, row, group, j);
  }
  double mean_g = args->layer ? sum_g / (double)width : 0, mean_gn = sum_gn / (double)width;
  for (int64_t j = 0; j < width; j++) {
    double g = (double)iso_scalar_load(&args->dy, row, first + j) * args->weight[j];
    double dx = args->rstd[at] * (g - mean_g - normalised(args, row, group, j) * mean_gn);
    if (fused) dx = iso_scalar_load(&fused->skip, row, first + j) + (float)dx;
    if (fused && fused->copy.data) iso_scalar_store(&fused->copy, row, first + j, dx);
    iso_scalar_store(&args->dx, row, first + j, dx);
  }
}

/* dweight first: dx may have the storage of dy, so all threads meet before it is written. */
static void norm_grad_with(const iso_norm_grad_args *args, const iso_norm_grad_add_args *fused,
                           const iso_worker *worker) {
  int64_t begin, end, groups = args->width > 0 ? args->x.cols / args->width : 0;
  iso_split(args->width, ISO_COLUMN_GRAIN, worker, &begin, &end);
  for (int64_t j = begin; j < end; j++) {
    double dweight = 0, dbias = 0;
    for (int64_t row = 0; row < args->x.rows; row++)
      for (int64_t group = 0; group < groups; group++) {
        double dy = iso_scalar_load(&args->dy, row, group * args->width + j);
        dweight += dy * normalised(args, row, group, j);
        dbias += dy;
      }
    args->dweight[j] = (args->accumulate ? args->dweight[j] : 0) + (float)dweight;
    if (args->dbias) args->dbias[j] = (args->accumulate ? args->dbias[j] : 0) + (float)dbias;
  }
  iso_team_barrier(worker->team);
  iso_split(args->x.rows, 1, worker, &begin, &end);
  for (int64_t row = begin; row < end; row++)
    for (int64_t group = 0; group < groups; group++) norm_grad_group(args, fused, row, group);
}

static void norm_grad(const iso_norm_grad_args *args, const iso_worker *worker) {
  norm_grad_with(args, NULL, worker);
}

static void norm_grad_add(const iso_norm_grad_add_args *args, const iso_worker *worker) {
  norm_grad_with(&args->grad, args, worker);
}

void iso_overlay_scalar_norm(iso_kernels *table) {
  table->norm = norm;
  table->norm_grad = norm_grad;
  table->add_norm = add_norm;
  table->norm_grad_add = norm_grad_add;
}
