/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress line: one line rewritten in place on a terminal, a line now and then elsewhere, never an escape code in
 * a file.
 *
 * The line is made of fields. Where the terminal is too narrow for all of them whole fields are left out, what matters
 * least first (`drops`), so that step, loss, what is durable and what is wrong are there as long as they fit. Widths
 * are counted in columns: a character may be several bytes, and of a path of somebody's may be anything.
 */
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "train/train.h"

void iso_progress_init(iso_progress *progress) {
  memset(progress, 0, sizeof *progress);
  progress->terminal = isatty(STDOUT_FILENO) == 1;
  progress->started_s = iso_clock_s();
}

static int terminal_width(void) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

static void print_time(double seconds, char *out, size_t bytes) {
  if (!(seconds >= 0) || seconds > 360000000) {
    snprintf(out, bytes, "?");
  } else if (seconds < 60) {
    snprintf(out, bytes, "%.0fs", seconds);
  } else if (seconds < 3600) {
    snprintf(out, bytes, "%dm%02ds", (int)seconds / 60, (int)seconds % 60);
  } else {
    snprintf(out, bytes, "%dh%02dm", (int)(seconds / 3600), (int)(seconds / 60) % 60);
  }
}

/* ---- fields ---- */

typedef enum field { STEP, LOSS, RATE, SPEED, MFU, MEMORY, DURABLE, ETA, WAIT, WHERE, REFUSED, FIELDS } field;
static const field drops[] = {RATE, MEMORY, MFU, WHERE, SPEED, ETA, WAIT, DURABLE, LOSS, REFUSED};
enum { FIELD = 384, SOURCE_COLUMNS = 80 };
typedef char fields[FIELDS][FIELD]; /* "": is not there */

/* Columns of the character that `text` begins with, at most: marks that combine with another count too. *span: its
 * bytes; 0 columns: it is none that can be shown. */
static int columns_of(const char *text, size_t length, int *span) {
  static const uint32_t wide[][2] = {{0x1100, 0x115F}, {0x2E80, 0xA4CF},   {0xAC00, 0xD7A3},
                                     {0xF900, 0xFAFF}, {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
                                     {0xFFE0, 0xFFE6}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD}};
  static const unsigned char first_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  *span = iso_utf8_span(text, length);
  uint32_t code = *span ? (unsigned char)text[0] & first_bits[*span] : 0;
  for (int i = 1; i < *span; i++) code = code << 6 | ((unsigned char)text[i] & 0x3F);
  if (*span == 0) *span = 1;
  if (code < ' ' || (code >= 0x7F && code < 0xA0)) return 0;
  for (size_t i = 0; i < ISO_COUNT(wide); i++)
    if (code >= wide[i][0] && code <= wide[i][1]) return 2;
  return 1;
}

static int columns(const char *text) {
  int sum = 0, span;
  for (size_t left = strlen(text); left; text += span, left -= (size_t)span) sum += columns_of(text, left, &span);
  return sum;
}

/* As much as so many columns have; what cannot be shown is '?'. */
static void copy_text(const char *text, int most, char *out, size_t capacity) {
  int span;
  size_t at = 0;
  for (size_t left = strlen(text); left; text += span, left -= (size_t)span) {
    const int wide = columns_of(text, left, &span);
    if ((most -= wide ? wide : 1) < 0 || at + (size_t)span >= capacity) break;
    memcpy(out + at, wide ? text : "?", wide ? (size_t)span : 1);
    at += wide ? (size_t)span : 1;
  }
  out[at] = 0;
}

static void fill(const iso_progress_step *step, fields f) {
  char eta[32], source[4 * SOURCE_COLUMNS + 1];
  memset(f, 0, sizeof(fields));
  print_time(step->eta_s, eta, sizeof eta);
  snprintf(f[STEP], FIELD, "step %lld/%lld", (long long)step->step, (long long)step->steps);
  snprintf(f[LOSS], FIELD, "  loss %.4f", iso_unsigned_nan(step->loss));
  snprintf(f[RATE], FIELD, "  lr %.2e", step->lr);
  snprintf(f[SPEED], FIELD, "  %.0f tok/s", step->tokens_per_s);
  snprintf(f[MFU], FIELD, "  MFU %.1f%%", 100 * step->mfu);
  snprintf(f[MEMORY], FIELD, "  mem %.2f GB", (double)step->memory_bytes * 1e-9);
  snprintf(f[DURABLE], FIELD, "  durable %lld", (long long)step->durable_step);
  snprintf(f[ETA], FIELD, "  ETA %s", eta);
  if (step->refused) snprintf(f[REFUSED], FIELD, "  REFUSED (not finite)");
  if (!(step->data_wait >= 0.01)) return;
  snprintf(f[WAIT], FIELD, "  data wait %.0f%%", 100 * step->data_wait);
  if (!step->data_stage[0]) return;
  copy_text(step->data_source, SOURCE_COLUMNS, source, sizeof source);
  snprintf(f[WHERE], FIELD, " (%s %s)", step->data_stage, source);
}

/* In so many columns; 0: as many as it takes. */
static void print_line(const iso_progress_step *step, int width, char *line, size_t bytes) {
  fields f;
  int sum = 0;
  size_t at = 0;
  fill(step, f);
  for (int i = 0; i < FIELDS; i++) sum += columns(f[i]);
  for (size_t i = 0; i < ISO_COUNT(drops) && width && sum > width; i++) {
    sum -= columns(f[drops[i]]);
    f[drops[i]][0] = 0;
  }
  if (width && sum > width) f[STEP][width] = 0; /* which is ASCII */
  line[0] = 0;
  for (int i = 0; i < FIELDS && at < bytes; i++) at += (size_t)snprintf(line + at, bytes - at, "%s", f[i]);
}

void iso_progress_show(iso_progress *progress, const iso_progress_step *step, bool last) {
  const double now = iso_clock_s();
  const double interval = progress->terminal ? 0.1 : 10.0;
  if (!last && !step->refused && step->step != 1 && now - progress->last_s < interval) return;
  progress->last_s = now;
  char line[1024];
  if (progress->terminal) {
    const int width = terminal_width();
    print_line(step, width > 1 ? width - 1 : 1, line, sizeof line);
    printf("\r%s\033[K", line);
    progress->open = true;
    if (last) iso_progress_end(progress);
  } else {
    print_line(step, 0, line, sizeof line);
    printf("%s\n", line);
  }
  fflush(stdout);
}

void iso_progress_end(iso_progress *progress) {
  if (!progress->open) return;
  printf("\n");
  fflush(stdout);
  progress->open = false;
}
