/* SPDX-License-Identifier: Apache-2.0
 *
 * A grid of cells that a view is drawn into: text, bars and curves, each cell one column wide with the ink that it is
 * drawn in. Where the locale is not UTF-8, all of it is ASCII.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "cli/top.h"

enum { LEVELS = 8 };
static const uint32_t marks[][2] = {{'#', 0x2588}, {'d', 0x2593}, {'r', 0x2592}, {'s', 0x2591}, {'.', 0xB7}};
static const uint32_t levels[LEVELS][2] = {{'_', 0x2581}, {'.', 0x2582}, {':', 0x2583}, {'-', 0x2584},
                                           {'=', 0x2585}, {'+', 0x2586}, {'*', 0x2587}, {'#', 0x2588}};

iso_status iso_grid_init(iso_grid *grid, int rows, int columns, bool utf8) {
  *grid = (iso_grid){.rows = rows, .columns = columns, .utf8 = utf8};
  const size_t count = (size_t)rows * (size_t)columns;
  grid->cells = malloc((count ? count : 1) * sizeof *grid->cells);
  if (!grid->cells) return iso_fail(ISO_ERR_MEMORY, "top: no memory for %d rows of %d columns", rows, columns);
  for (size_t i = 0; i < count; i++) grid->cells[i] = (iso_cell){' ', ISO_INK_PLAIN};
  return ISO_OK;
}

void iso_grid_fini(iso_grid *grid) {
  free(grid->cells);
  grid->cells = NULL;
}

static void set(iso_grid *grid, int row, int column, uint32_t text, iso_ink ink) {
  if (row < 0 || row >= grid->rows || column < 0 || column >= grid->columns) return;
  grid->cells[(size_t)row * (size_t)grid->columns + (size_t)column] = (iso_cell){text, ink};
}

/* ---- text ---- */

/* The character that `text` begins with, or '?'; *span: its bytes. */
static uint32_t next_character(const char *text, size_t length, bool utf8, int *span) {
  static const unsigned char first_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  *span = iso_utf8_span(text, length);
  if (*span == 0) {
    *span = 1;
    return '?';
  }
  uint32_t code = (unsigned char)text[0] & first_bits[*span];
  for (int i = 1; i < *span; i++) code = code << 6 | ((unsigned char)text[i] & 0x3F);
  if (*span == 1) return code >= ' ' && code < 0x7F ? code : '?';
  return utf8 && wcwidth((wchar_t)code) == 1 ? code : '?';
}

int iso_grid_put(iso_grid *grid, int row, int column, iso_ink ink, const char *format, ...) {
  char text[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  const size_t length = strlen(text);
  int span;
  for (size_t at = 0; at < length; at += (size_t)span)
    set(grid, row, column++, next_character(text + at, length - at, grid->utf8, &span), ink);
  return column;
}

int iso_grid_fill(iso_grid *grid, int row, int column, iso_ink part, int count) {
  for (int i = 0; i < count; i++) set(grid, row, column++, marks[part][grid->utf8], part);
  return column;
}

/* ---- curves ---- */

typedef struct piece { /* of a curve: what one column shows */
  double mean;         /* of what is finite; NAN: nothing is */
  bool broken;         /* something is not */
} piece;

static piece piece_of(const double *values, int begin, int end) {
  double sum = 0;
  int count = 0;
  for (int i = begin; i < end; i++)
    if (isfinite(values[i])) sum += values[i], count++;
  return (piece){count ? sum / count : NAN, count < end - begin};
}

void iso_grid_spark(iso_grid *grid, int row, int column, int columns, const double *values, int count, double *least,
                    double *most) {
  *least = *most = NAN;
  if (columns > count) columns = count;
  for (int i = 0; i < columns; i++) {
    const piece p = piece_of(values, (int)((int64_t)i * count / columns), (int)((int64_t)(i + 1) * count / columns));
    if (!isfinite(p.mean)) continue;
    if (!(p.mean >= *least)) *least = p.mean;
    if (!(p.mean <= *most)) *most = p.mean;
  }
  const double range = *most - *least;
  for (int i = 0; i < columns; i++) {
    const piece p = piece_of(values, (int)((int64_t)i * count / columns), (int)((int64_t)(i + 1) * count / columns));
    const int level = range > 0 && isfinite(range) && isfinite(p.mean)
                          ? (int)((p.mean - *least) / range * (LEVELS - 1) + 0.5)
                          : LEVELS / 2;
    set(grid, row, column + i, p.broken ? '!' : levels[level][grid->utf8], p.broken ? ISO_INK_BAD : ISO_INK_PLAIN);
  }
}

/* ---- as text ---- */

static void put_utf8(iso_string *out, uint32_t code) {
  static const unsigned char first_marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
  const int span = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  char bytes[4];
  for (int i = span - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
  bytes[0] = (char)(first_marks[span] | code);
  iso_string_append(out, bytes, (size_t)span);
}

void iso_grid_print(const iso_grid *grid, iso_string *out) {
  size_t content = out->length;
  for (int row = 0; row < grid->rows; row++) {
    const iso_cell *cells = grid->cells + (size_t)row * (size_t)grid->columns;
    int end = grid->columns;
    while (end > 0 && cells[end - 1].text == ' ') end--;
    for (int i = 0; i < end; i++) put_utf8(out, cells[i].text);
    iso_string_append(out, "\n", 1);
    if (end > 0) content = out->length;
  }
  if (!iso_string_failed(out) && out->data) {
    out->length = content;
    out->data[content] = 0;
  }
}
