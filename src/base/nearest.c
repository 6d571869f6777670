/* SPDX-License-Identifier: Apache-2.0
 *
 * The word that a person may have meant: of a list, the one with the fewest insertions, deletions and replacements.
 */
#include <string.h>

#include "base/base.h"

enum { LONGEST = 127 };

size_t iso_edit_distance(const char *a, const char *b) {
  const size_t n = strlen(a), m = strlen(b);
  size_t row[LONGEST + 1];
  if (n > LONGEST || m > LONGEST) return LONGEST + 1;
  for (size_t j = 0; j <= m; j++) row[j] = j;
  for (size_t i = 1; i <= n; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t best = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  return row[m];
}

const char *iso_nearest(const char *word, const char *const *names, size_t count) {
  const char *best = "";
  size_t best_distance = (size_t)-1;
  for (size_t i = 0; i < count; i++) {
    const size_t distance = iso_edit_distance(word, names[i]);
    if (distance < best_distance) {
      best_distance = distance;
      best = names[i];
    }
  }
  return best;
}
