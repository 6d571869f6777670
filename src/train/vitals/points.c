/* SPDX-License-Identifier: Apache-2.0
 *
 * Curves of all numbers over a run of any length in bounded memory: at most ISO_POINTS points, each of as many steps.
 * When they are used up, neighbours are joined and a point is of twice as many steps from then on.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

typedef iso_point cell;

iso_points *iso_points_create(void) {
  iso_points *points = calloc(1, sizeof *points);
  if (!points) return NULL;
  points->cells = calloc(iso_vital_count * ISO_POINTS, sizeof *points->cells);
  points->steps_per_point = 1;
  if (!points->cells) iso_points_destroy(&points);
  return points;
}

void iso_points_destroy(iso_points **points) {
  if (!*points) return;
  free((*points)->cells);
  free(*points);
  *points = NULL;
}

static cell join(cell a, cell b) {
  if (!(a.weight > 0)) return b;
  if (!(b.weight > 0)) return a;
  return (cell){a.weight + b.weight, a.sum + b.sum, a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}

static void halve(iso_points *points) {
  for (size_t row = 0; row < iso_vital_count; row++) {
    cell *cells = points->cells + row * ISO_POINTS;
    for (size_t i = 0; i < ISO_POINTS / 2; i++) cells[i] = join(cells[2 * i], cells[2 * i + 1]);
    memset(cells + ISO_POINTS / 2, 0, ISO_POINTS / 2 * sizeof *cells);
  }
  for (size_t i = 0; i < ISO_POINTS / 2; i++) points->step[i] = points->step[2 * i + 1];
  points->count = ISO_POINTS / 2;
  points->steps_per_point *= 2;
}

/* Rates are means over time, everything else over steps. */
static double weight_of(const iso_vital *vital, double wall_s) {
  const bool rate = strcmp(vital->name, "tokens_per_s") == 0 || strcmp(vital->name, "mfu") == 0;
  return rate && wall_s > 0 ? wall_s : 1;
}

void iso_points_add(iso_points *points, const double *values) {
  const double wall_s = values[iso_vital_find("wall_s") - iso_vitals], step = values[0];
  if (points->count == 0 || points->in_last == points->steps_per_point) {
    if (points->count == ISO_POINTS) halve(points);
    points->in_last = 0;
    points->step[points->count++] = 0;
  }
  points->in_last++;
  const size_t last = points->count - 1;
  if (isfinite(step)) points->step[last] = (int64_t)step;
  for (size_t row = 0; row < iso_vital_count; row++) {
    const double value = values[row], weight = weight_of(&iso_vitals[row], wall_s);
    cell *at = &points->cells[row * ISO_POINTS + last];
    if (isfinite(value)) *at = join(*at, (cell){weight, weight * value, value, value});
  }
}

iso_point iso_points_get(const iso_points *points, size_t row, size_t point) {
  return points->cells[row * ISO_POINTS + point];
}

double iso_point_mean(iso_point point) {
  return point.weight > 0 ? point.sum / point.weight : NAN;
}

static void put(iso_string *out, bool first, double value) {
  iso_string_printf(out, isfinite(value) ? "%s%.5g" : "%snull", first ? "" : ",", value);
}

static void put_curve(const iso_points *points, size_t row, iso_string *out) {
  enum { MEAN, LOW, HIGH };
  static const char *const kinds[] = {"mean", "low", "high"};
  for (int kind = MEAN; kind <= (points->steps_per_point > 1 ? HIGH : MEAN); kind++) {
    iso_string_printf(out, "%s\"%s\": [", kind ? ", " : "", kinds[kind]);
    for (size_t i = 0; i < points->count; i++) {
      const iso_point point = iso_points_get(points, row, i);
      const double value = kind == MEAN ? iso_point_mean(point) : kind == LOW ? point.low : point.high;
      put(out, i == 0, point.weight > 0 ? value : NAN);
    }
    iso_string_printf(out, "]");
  }
}

void iso_points_print(const iso_points *points, iso_string *out) {
  iso_string_printf(out, "{\"step\": [");
  for (size_t i = 0; i < points->count; i++) iso_string_printf(out, "%s%lld", i ? "," : "", (long long)points->step[i]);
  iso_string_printf(out, "]");
  for (size_t row = 0; row < iso_vital_count; row++) {
    if (iso_vitals[row].type != ISO_VITAL_REAL) continue;
    iso_string_printf(out, ",\n\"%s\": {", iso_vitals[row].name);
    put_curve(points, row, out);
    iso_string_printf(out, "}");
  }
  iso_string_printf(out, "}");
}
