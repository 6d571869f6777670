/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress line: one line rewritten in place on a terminal, a line now and then elsewhere, never an escape code in
 * a file.
 */
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

static void print_line(const iso_progress_step *step, char *line, size_t bytes) {
  char eta[32], wait[128] = "";
  print_time(step->eta_s, eta, sizeof eta);
  if (step->data_wait >= 0.01)
    snprintf(wait, sizeof wait, step->data_stage[0] ? "  data wait %.0f%% (%s %.80s)" : "  data wait %.0f%%",
             100 * step->data_wait, step->data_stage, step->data_source);
  snprintf(line, bytes,
           "step %lld/%lld  loss %.4f  lr %.2e  %.0f tok/s  MFU %.1f%%  mem %.2f GB  durable %lld  ETA %s%s%s",
           (long long)step->step, (long long)step->steps, step->loss, step->lr, step->tokens_per_s, 100 * step->mfu,
           (double)step->memory_bytes * 1e-9, (long long)step->durable_step, eta, wait,
           step->refused ? "  REFUSED (not finite)" : "");
}

void iso_progress_show(iso_progress *progress, const iso_progress_step *step, bool last) {
  const double now = iso_clock_s();
  const double interval = progress->terminal ? 0.1 : 10.0;
  if (!last && !step->refused && step->step != 1 && now - progress->last_s < interval) return;
  progress->last_s = now;
  char line[512];
  print_line(step, line, sizeof line);
  if (progress->terminal) {
    const int width = terminal_width();
    printf("\r%.*s\033[K", width > 1 ? width - 1 : 1, line);
    progress->open = true;
    if (last) iso_progress_end(progress);
  } else {
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
