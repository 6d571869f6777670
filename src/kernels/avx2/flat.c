/* SPDX-License-Identifier: Apache-2.0
 *
 * flat.c (avx2): sets no entry yet; the plain-C kernels run.
 */
#include "kernels/rows.h"

void iso_overlay_avx2_flat(iso_kernels *table) {
  (void)table;
}
