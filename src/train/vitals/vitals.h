/* SPDX-License-Identifier: Apache-2.0
 *
 * vitals: what a run says of itself while it goes on and when it ends. One table of names (names.c) stands behind
 * every output, so that a number is called the same wherever it is read.
 *
 * Invariants
 *  1. A number of a step is a field of iso_step_metrics and a row of iso_vitals; every output walks the table, and none
 *     has names of its own for them.
 *  2. Outputs read what a step has done and change nothing of it: bits are the same with and without them.
 *  3. An output that cannot be written is said and never ends a run.
 */
#ifndef ISO_TRAIN_VITALS_H
#define ISO_TRAIN_VITALS_H

#include "train/train.h"

/* ---- names.c: the table of names -------------------------------------------------------------------- */

typedef enum iso_vital_type { ISO_VITAL_REAL, ISO_VITAL_WHOLE, ISO_VITAL_FLAG } iso_vital_type;
typedef struct iso_vital {
  const char *name; /* in metrics.jsonl and everywhere else */
  iso_vital_type type;
  size_t offset;    /* in iso_step_metrics: double, int64_t, bool */
  const char *unit; /* "": a number without one */
  const char *help;
} iso_vital;
/* In the order of a line of metrics.jsonl. */
extern const iso_vital iso_vitals[];
extern const size_t iso_vital_count;
/* NULL: there is none of that name. */
const iso_vital *iso_vital_find(const char *name);
/* As a number; flags are 0 or 1. */
double iso_vital_value(const iso_vital *vital, const iso_step_metrics *step);
/* `"name": value` for all, with commas between them; numbers that are not finite are null. */
void iso_vitals_print(const iso_step_metrics *step, iso_string *out);

#endif
