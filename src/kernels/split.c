/* SPDX-License-Identifier: Apache-2.0
 *
 * The one rule by which kernels deal output elements to threads: contiguous parts, cut at multiples of a grain, sizes
 * that differ by one grain at most, larger parts first.
 */
#include "kernels/kernels.h"

void iso_split(int64_t count, int64_t grain, const iso_worker *worker, int64_t *begin, int64_t *end) {
  int64_t grains = (count + grain - 1) / grain;
  int64_t each = grains / worker->threads, extra = grains % worker->threads;
  int64_t thread = worker->thread;
  int64_t first = thread * each + (thread < extra ? thread : extra);
  int64_t last = first + each + (thread < extra ? 1 : 0);
  *begin = first * grain < count ? first * grain : count;
  *end = last * grain < count ? last * grain : count;
}
