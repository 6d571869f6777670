/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress line on terminals of any width, and elsewhere: whole fields, what matters most stays, columns are
 * counted and not bytes, and nothing that a path has in it is a control character.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "train/train.h"

static char said[2048];

static iso_progress_step usual(void) {
  return (iso_progress_step){.step = 12345,
                             .steps = 200000,
                             .durable_step = 12344,
                             .loss = 3.14159,
                             .lr = 3e-4,
                             .tokens_per_s = 1234567,
                             .mfu = 0.512,
                             .eta_s = 7300,
                             .memory_bytes = 390000000,
                             .data_stage = "",
                             .data_source = ""};
}

/* What one call writes to a terminal of so many columns; 0: to a pipe. */
static const char *show(const iso_progress_step *step, int width) {
  int out[2] = {-1, -1};
  const int before = dup(STDOUT_FILENO);
  if (width) {
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)width};
    out[0] = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(out[0] >= 0 && grantpt(out[0]) == 0 && unlockpt(out[0]) == 0);
    out[1] = open(ptsname(out[0]), O_RDWR | O_NOCTTY);
    assert_true(out[1] >= 0);
    assert_int_equal(ioctl(out[1], TIOCSWINSZ, &size), 0);
  } else {
    assert_int_equal(pipe(out), 0);
  }
  (void)fflush(stdout);
  assert_int_equal(dup2(out[1], STDOUT_FILENO), STDOUT_FILENO);
  iso_progress progress;
  iso_progress_init(&progress);
  iso_progress_show(&progress, step, false);
  const ssize_t bytes = read(out[0], said, sizeof said - 1);
  assert_int_equal(dup2(before, STDOUT_FILENO), STDOUT_FILENO);
  (void)close(before);
  (void)close(out[0]);
  (void)close(out[1]);
  assert_true(bytes > 0);
  said[bytes] = 0;
  return said;
}

/* The same without what moves the cursor. */
static const char *line_of(const iso_progress_step *step, int width) {
  show(step, width);
  char *end = strstr(said, "\033[K");
  assert_true(said[0] == '\r' && end && end[3] == 0);
  *end = 0;
  return said + 1;
}

static void has(const char *line, const char *wanted) {
  if (!strstr(line, wanted)) fail_msg("\"%s\" is not in \"%s\"", wanted, line);
}

static void has_not(const char *line, const char *unwanted) {
  if (strstr(line, unwanted)) fail_msg("\"%s\" is in \"%s\"", unwanted, line);
}

static const char whole[] = "step 12345/200000  loss 3.1416  lr 3.00e-04  1234567 tok/s  MFU 51.2%  mem 0.39 GB  "
                            "durable 12344  ETA 2h01m";

static void elsewhere_all_of_it_is_said(void **state) {
  (void)state;
  iso_progress_step step = usual();
  show(&step, 0);
  assert_int_equal(strlen(said), sizeof whole);
  assert_int_equal(strncmp(said, whole, sizeof whole - 1), 0);
  step.data_wait = 0.3, step.data_stage = "read", step.data_source = "a/\033[2Jb\nc";
  step.refused = true;
  show(&step, 0);
  has(said, "ETA 2h01m  data wait 30% (read a/?[2Jb?c)  REFUSED (not finite)\n");
}

static void what_matters_stays(void **state) {
  (void)state;
  iso_progress_step step = usual();
  assert_string_equal(line_of(&step, 200), whole);
  assert_string_equal(line_of(&step, (int)sizeof whole), whole);
  has_not(line_of(&step, (int)sizeof whole - 1), "lr ");
  for (int width = 60; width <= 80; width++) {
    const char *line = line_of(&step, width);
    has(line, "step 12345/200000  loss 3.1416");
    has(line, "durable 12344  ETA 2h01m");
  }
  step.data_wait = 0.3, step.data_stage = "read", step.data_source = "corpus/a/long/path/to/a/file.jsonl";
  const char *line = line_of(&step, 80);
  has(line, "durable 12344  ETA 2h01m  data wait 30%");
  has_not(line, "(");
  has(line_of(&step, 200), "data wait 30% (read corpus/a/long/path/to/a/file.jsonl)");
  step.data_wait = 0, step.refused = true;
  has(line_of(&step, 80), "  REFUSED (not finite)");
  has(line_of(&step, 45), "  REFUSED (not finite)");
  step.loss = -(double)NAN; /* the sign bit of what a processor makes is set */
  has(line_of(&step, 80), "  loss nan");
}

/* A line is as wide as the terminal less one at most, and all its fields are whole. */
static void it_fits_any_width(void **state) {
  (void)state;
  iso_progress_step step = usual();
  step.data_wait = 0.3, step.data_stage = "read", step.data_source = "x", step.refused = true;
  char all[1024];
  snprintf(all, sizeof all, "%s", line_of(&step, 400));
  for (int width = 1; width < 190; width++) {
    char line[1024], *rest = line;
    snprintf(line, sizeof line, "%s", line_of(&step, width));
    assert_in_range(strlen(line), 1, width > 1 ? width - 1 : 1);
    if (width <= (int)strlen("step 12345/200000")) continue;
    for (char *field; (field = rest) != NULL;) {
      rest = strstr(field, "  ");
      if (rest) *rest = 0, rest += 2;
      const char *at = strstr(all, field);
      const char after = at ? at[strlen(field)] : 'x';
      if (after != ' ' && after != 0) fail_msg("%d columns: \"%s\" is no field of \"%s\"", width, field, all);
    }
  }
}

static void columns_count_and_not_bytes(void **state) {
  (void)state;
  iso_progress_step step = usual();
  const int with = (int)strlen(whole) + (int)strlen("  data wait 30% (read )");
  step.data_wait = 0.3, step.data_stage = "read",
  step.data_source = "\xC3\xA4\xC3\xB6\xC3\xBC"; /* three, of six bytes */
  has(line_of(&step, with + 3 + 1), "lr 3.00e-04");
  has_not(line_of(&step, with + 3), "lr 3.00e-04");
  step.data_source = "\xE6\x96\x87\xE4\xBB\xB6"; /* two that are two columns wide each */
  has(line_of(&step, with + 4 + 1), "lr 3.00e-04");
  has_not(line_of(&step, with + 4), "lr 3.00e-04");
  char longest[400] = "";
  for (int i = 0; i < 90; i++) strcat(longest, "\xE6\x96\x87"); /* cut between characters */
  strcat(longest, "\xFF");
  step.data_source = longest;
  const char *open = strstr(line_of(&step, 500), "(read ");
  assert_non_null(open);
  assert_int_equal(strlen(open), strlen("(read )") + 40 * 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(elsewhere_all_of_it_is_said),
      cmocka_unit_test(what_matters_stays),
      cmocka_unit_test(it_fits_any_width),
      cmocka_unit_test(columns_count_and_not_bytes),
  };
  return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
