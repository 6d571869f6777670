/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.c (avx512): sets no entry yet; the plain-C kernels run.
 */
#include "kernels/rows.h"

void iso_overlay_avx512_rows(iso_kernels *table) {
  (void)table;
}
