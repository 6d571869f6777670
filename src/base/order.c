/* SPDX-License-Identifier: Apache-2.0
 *
 * order: sorted numbers and their quantiles, for what is measured. By nearest rank: a quantile is one of the values.
 */
#include <stdlib.h>

#include "base/base.h"

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void iso_sort(double *values, int64_t count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
}

double iso_quantile(const double *sorted, int64_t count, int percent) {
  return sorted[(count * percent + 99) / 100 - 1];
}
