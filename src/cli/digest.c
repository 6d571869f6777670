/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach digest: 64 hex digits over master weights, moments and step. Two runs with the same digest are the same run.
 */
#include "cli/cli.h"

iso_status iso_verb_digest(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  ISO_TRY(iso_args_bring_run(args));
  iso_stored stored;
  char run[sizeof stored.run];
  int64_t step;
  ISO_TRY(iso_run_path_split(args->words[0], run, sizeof run, &step));
  ISO_TRY(iso_stored_open(run, step, &stored));
  char hex[65];
  iso_status status = ISO_OK;
  iso_state_digest(&stored.state, stored.info.step, hex);
  if (!hex[0]) {
    status = iso_fail(ISO_ERR_MEMORY, "digest: no memory to hash the state");
  } else if (json) {
    iso_string out = {0};
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "run", stored.run);
    iso_json_put_int(&out, "step", stored.info.step);
    iso_json_put_text(&out, "digest", hex);
    iso_json_shut(&out, '}');
    status = iso_json_print(&out);
  } else {
    printf("%s\n", hex);
  }
  iso_stored_close(&stored);
  return status;
}
