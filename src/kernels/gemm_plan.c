/* SPDX-License-Identifier: Apache-2.0
 *
 * How matrix products are cut into blocks, and the scratch that takes.
 */
#include "kernels/kernels.h"

size_t iso_gemm_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads) {
  return 64;
}
