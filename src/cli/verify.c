/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach verify: everything that a run has stored is read and checked; each fault is a line. Snapshots, identity and
 * incarnations check themselves; the copies of the run's inputs are read as the other verbs would, and the tokenizer
 * must be the one that the newest snapshot names.
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

static void fault(FILE *out, const char *what) {
  fprintf(out, "%s: %s\n", what, iso_last_error());
}

static void verify_tokenizer(iso_arena *arena, const char *run, FILE *out) {
  char folder[ISO_SNAPSHOT_PATH];
  iso_snapshot_info info = {0};
  iso_tokenizer *tokenizer = NULL;
  bool found = false;
  if (iso_tokenizer_open(iso_path_join(arena, run, "tokenizer"), "", &tokenizer) != ISO_OK) {
    fault(out, "tokenizer");
  } else if (iso_snapshot_find(run, -1, false, folder, &info, &found) == ISO_OK && found &&
             strcmp(info.tokenizer_fingerprint, iso_tokenizer_fingerprint(tokenizer)) != 0) {
    fprintf(out, "tokenizer: its fingerprint is %.12s, the newest snapshot's %.12s: altered or of another run\n",
            iso_tokenizer_fingerprint(tokenizer), info.tokenizer_fingerprint);
  }
  iso_snapshot_info_fini(&info);
  iso_tokenizer_close(&tokenizer);
}

/* A stored config states every key in the one way that it is printed in. */
static void verify_config(const char *path, FILE *out) {
  iso_config config;
  char *text = NULL;
  size_t bytes = 0;
  iso_string printed = {0};
  iso_status status = iso_config_read(path, NULL, 0, &config);
  if (status == ISO_OK) {
    iso_config_print(&config, &printed);
    iso_config_fini(&config);
    status = iso_file_read(path, &text, &bytes);
  }
  if (status != ISO_OK) {
    fault(out, "config.yaml");
  } else if (bytes != printed.length || memcmp(text, printed.data, bytes) != 0) {
    fprintf(out, "config.yaml: it is not as a start writes it: cut or altered\n");
  }
  free(text);
  iso_string_fini(&printed);
}

/* What a start writes beside the snapshots; one that was killed very early may have written none of it. */
static void verify_inputs(iso_arena *arena, const char *run, FILE *out) {
  iso_model_config model;
  iso_json *inputs = NULL;
  iso_input_paths paths;
  char folder[ISO_SNAPSHOT_PATH];
  iso_snapshot_info info = {0};
  bool found = false;
  const iso_status status = iso_snapshot_find(run, -1, false, folder, &info, &found);
  iso_snapshot_info_fini(&info);
  if ((status != ISO_OK || !found) && !iso_path_exists(iso_path_join(arena, run, "status.json"))) return;
  if (iso_run_inputs_find(arena, run, &paths) == ISO_OK && paths.is_next) return; /* a start that was cut short */
  const long before = ftell(out);
  verify_config(iso_path_join(arena, run, "config.yaml"), out);
  if (iso_model_config_read(iso_path_join(arena, run, "model.json"), &model) == ISO_OK) {
    iso_model_config_fini(&model);
  } else {
    fault(out, "model.json");
  }
  if (iso_json_read(iso_path_join(arena, run, "inputs.json"), &inputs) != ISO_OK) fault(out, "inputs.json");
  iso_json_destroy(&inputs);
  if (ftell(out) == before && iso_run_inputs_check(run, NULL) != ISO_OK) fault(out, "inputs");
  verify_tokenizer(arena, run, out);
}

/* What status.json and metrics.jsonl say was durable; 0: nothing. */
static int64_t acknowledged_step(const char *run) {
  iso_acknowledged said;
  if (iso_acknowledged_read(run, &said) != ISO_OK) return 0;
  return said.shown_this_boot && said.shown > said.stated ? said.shown : said.stated;
}

/* The log leads from the oldest snapshot to the newest acknowledged step, without a gap and without a wrong bit. */
static void verify_log(const char *run, FILE *out) {
  char uuid[37];
  bool exists;
  iso_wal_index index;
  iso_string faults = {0};
  int64_t oldest, newest; /* snapshots */
  const int64_t acknowledged = acknowledged_step(run);
  if (iso_run_folder_read(run, uuid, &exists) != ISO_OK || iso_snapshot_range(run, &oldest, &newest) != ISO_OK) {
    fault(out, "log");
    return;
  }
  if (iso_wal_index_read(run, uuid, true, acknowledged, &index, &faults) != ISO_OK) {
    fprintf(out, "log: %s\n", iso_fault_first(&faults));
  } else {
    if (faults.length) fprintf(out, "%s", faults.data);
    /* A gap is closed by a snapshot behind it: a suspended log goes on there. */
    const int64_t first = index.step_count ? index.steps[0].step : index.newest_durable;
    for (int64_t step = first > newest ? first : newest + 1; step <= index.newest_durable; step++)
      if (step > 0 && !iso_wal_index_find(&index, step))
        fprintf(out, "log: step %lld was durable but is not in the log\n", (long long)step);
    iso_wal_index_fini(&index);
  }
  iso_string_fini(&faults);
}

/* All faults go to `out`; nothing is logged. CHECK when there are any. */
static iso_status verify_all(const char *run, FILE *out) {
  iso_arena *arena = iso_arena_create();
  if (!arena) return ISO_ERR_MEMORY;
  iso_log_quiet(true);
  iso_status status = iso_snapshot_verify(run, out);
  if (status == ISO_OK || status == ISO_ERR_CHECK) {
    const long before = ftell(out);
    verify_inputs(arena, run, out);
    verify_log(run, out);
    if (ftell(out) != before) status = ISO_ERR_CHECK;
  }
  iso_log_quiet(false);
  iso_arena_destroy(&arena);
  return status;
}

static size_t count_lines(const char *text) {
  size_t count = 0;
  for (; *text; text++) count += *text == '\n';
  return count;
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
  const iso_status status = verify_all(run, faults);
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
  const size_t count = count_lines(lines);
  free(lines);
  if (status == ISO_OK) return printed;
  if (status != ISO_ERR_CHECK) return iso_fail(status, "%s", iso_last_error());
  return iso_fail(status, "run '%s': %zu %s found; see the list", run, count, count == 1 ? "fault was" : "faults were");
}
