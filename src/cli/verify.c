/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach verify: everything that a run has stored is read and checked; each fault is a line.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static iso_status print_json(const char *run, iso_status status, const char *lines) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", run);
  iso_json_put_bool(&out, "ok", status == ISO_OK);
  iso_json_open(&out, "faults", '[');
  for (const char *at = lines; *at;) {
    const size_t length = strcspn(at, "\n");
    char *line = strndup(at, length);
    if (line) iso_json_put_text(&out, NULL, line);
    free(line);
    at += length + (at[length] == '\n');
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

iso_status iso_verb_verify(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  const char *run = args->words[0];
  ISO_TRY(iso_run_folder_check(run));
  char *lines = NULL;
  size_t length = 0;
  FILE *faults = open_memstream(&lines, &length);
  if (!faults) return iso_fail(ISO_ERR_MEMORY, "verify: no memory for the list of faults");
  const iso_status status = iso_snapshot_verify(run, faults);
  if (fclose(faults) != 0) {
    free(lines);
    return iso_fail(ISO_ERR_MEMORY, "verify: no memory for the list of faults");
  }
  iso_status printed = ISO_OK;
  if (json && (status == ISO_OK || status == ISO_ERR_CHECK)) {
    printed = print_json(run, status, lines);
  } else if (!json) {
    printf("%s", lines);
    if (status == ISO_OK) printf("%s: no fault found\n", run);
  }
  free(lines);
  return status == ISO_OK ? printed : status;
}
