/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach verify: everything that a run has stored is read and checked; each fault is a line. Snapshots, identity and
 * incarnations check themselves, and so do the small files beside them; the copies of the run's inputs must have the
 * CRCs that inputs.json names, are read as the other verbs would, and the tokenizer must be the one that the newest
 * snapshot names. What an older version wrote without a CRC is said. With --replay the log is also replayed from each
 * snapshot to the next.
 *
 * Nothing is written and no lock is taken: the run may go on meanwhile, and what it deletes is no fault.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* What was looked at, and what was found. */
typedef struct verification {
  const char *run;
  iso_arena *arena;
  FILE *out;   /* of `lines` */
  char *lines; /* faults */
  size_t length;
  int64_t snapshots, segments, log_steps, log_bytes, oldest_step, newest_step, durable_step;
  iso_string torn, reach, unprotected; /* lines; steps; lines */
  bool replay, mirror;
  iso_proof *proofs;
  size_t proof_count;
  double seconds;
} verification;

static void put_lines(iso_string *out, const char *key, const char *lines) {
  iso_json_open(out, key, '[');
  for (const char *at = lines; *at;) {
    const size_t length = strcspn(at, "\n");
    char *line = strndup(at, length);
    if (line) iso_json_put_text(out, NULL, line);
    free(line);
    at += length + (at[length] == '\n');
  }
  iso_json_shut(out, ']');
}

static const char *result_word(iso_proof_result result) {
  return result == ISO_PROVEN ? "proven" : result == ISO_REFUTED ? "refuted" : "not proven";
}

static iso_status print_json(const verification *v, iso_status status) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", v->run);
  iso_json_put_bool(&out, "ok", status == ISO_OK);
  put_lines(&out, "faults", v->lines);
  iso_json_put_int(&out, "snapshots", v->snapshots);
  iso_json_put_int(&out, "log_segments", v->segments);
  iso_json_put_int(&out, "log_steps", v->log_steps);
  iso_json_put_int(&out, "log_bytes", v->log_bytes);
  iso_json_put_int(&out, "log_first_step", v->oldest_step);
  iso_json_put_int(&out, "log_last_step", v->newest_step);
  iso_json_put_int(&out, "durable_step", v->durable_step);
  iso_json_put_text(&out, "steps", v->reach.length ? v->reach.data : "none");
  put_lines(&out, "unfinished", v->torn.length ? v->torn.data : "");
  put_lines(&out, "unprotected", v->unprotected.length ? v->unprotected.data : "");
  if (v->replay) {
    iso_json_open(&out, "replay", '[');
    for (size_t i = 0; i < v->proof_count; i++) {
      const iso_proof *proof = &v->proofs[i];
      iso_json_open(&out, NULL, '{');
      iso_json_put_text(&out, "from", proof->from);
      iso_json_put_text(&out, "to", proof->to);
      iso_json_put_int(&out, "steps", proof->steps);
      iso_json_put_text(&out, "result", result_word(proof->result));
      if (proof->cause) iso_json_put_text(&out, "cause", proof->cause);
      iso_json_shut(&out, '}');
    }
    iso_json_shut(&out, ']');
  }
  iso_json_put_real(&out, "seconds", v->seconds);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static void print_text(const verification *v, iso_status status) {
  printf("%s", v->lines);
  for (const char *at = v->unprotected.length ? v->unprotected.data : ""; *at; at += strcspn(at, "\n") + 1)
    printf("not protected by a CRC, as written by an older version: %.*s\n", (int)strcspn(at, "\n"), at);
  for (size_t i = 0; i < v->proof_count; i++) {
    const iso_proof *proof = &v->proofs[i];
    if (proof->result == ISO_REFUTED) continue; /* a fault */
    printf("%s: %s + %lld steps of the log = %s%s%s\n", result_word(proof->result), proof->from,
           (long long)(proof->to_step - proof->from_step), proof->to, proof->cause ? ": " : "",
           proof->cause ? proof->cause : "");
  }
  if (status == ISO_OK)
    printf(
        "%s: no fault found in %lld snapshot%s and %lld steps of the log (%.1f MB, %lld segments); steps that can be "
        "had: %s\n",
        v->run, (long long)v->snapshots, iso_plural(v->snapshots), (long long)v->log_steps, (double)v->log_bytes * 1e-6,
        (long long)v->segments, v->reach.length ? v->reach.data : "none");
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
  } else if (iso_snapshot_find(run, -1, NULL, folder, &info, &found) == ISO_OK && found &&
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

/* By the CRCs that inputs.json names. Of a start that is putting its copies in their places, the next look is right. */
static void verify_copies(verification *v, iso_input_paths *paths, FILE *out) {
  iso_string faults = {0};
  bool listed = false;
  iso_status status = ISO_OK;
  for (int look = 0; look < 3; look++) {
    iso_string_fini(&faults);
    status = iso_run_inputs_examine(v->run, paths, &listed, &faults);
    if (status != ISO_ERR_FORMAT || iso_run_inputs_find(v->arena, v->run, paths) != ISO_OK) break;
  }
  if (status != ISO_OK && !faults.length) fault(out, "inputs.json");
  if (status != ISO_OK && faults.length) (void)fputs(faults.data, out);
  if (status == ISO_OK && !listed)
    iso_string_printf(&v->unprotected, "config.yaml (keys that decide no bits), tokenizer/\n");
  iso_string_fini(&faults);
}

/* What a start writes beside the snapshots; one that was killed very early may have written none of it. */
static void verify_inputs(verification *v) {
  iso_arena *arena = v->arena;
  const char *run = v->run;
  FILE *out = v->out;
  iso_model_config model;
  iso_json *inputs = NULL;
  iso_input_paths paths;
  char folder[ISO_SNAPSHOT_PATH];
  iso_snapshot_info info = {0};
  bool found = false;
  const iso_status status = iso_snapshot_find(run, -1, NULL, folder, &info, &found);
  iso_snapshot_info_fini(&info);
  if ((status != ISO_OK || !found) && !iso_path_exists(iso_path_join(arena, run, "status.json"))) return;
  const long before = ftell(out);
  const bool found_set = iso_run_inputs_find(arena, run, &paths) == ISO_OK;
  if (paths.inputs && iso_path_exists(paths.inputs)) verify_copies(v, &paths, out);
  if (ftell(out) != before || (found_set && paths.is_next)) return; /* is_next: a start that was cut short */
  verify_config(iso_path_join(arena, run, "config.yaml"), out);
  if (iso_model_config_read(iso_path_join(arena, run, "model.json"), &model) == ISO_OK) {
    iso_model_config_fini(&model);
  } else {
    fault(out, "model.json");
  }
  if (iso_run_inputs_json(iso_path_join(arena, run, "inputs.json"), &inputs) != ISO_OK) fault(out, "inputs.json");
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

static void describe_log(verification *v, const iso_wal_index *index) {
  v->segments = (int64_t)index->file_count;
  for (size_t i = 0; i < index->file_count; i++) v->log_bytes += index->files[i].bytes;
  for (size_t i = 0; i < index->step_count; i++)
    v->log_steps += i == 0 || index->steps[i].step != index->steps[i - 1].step;
  if (index->step_count) {
    v->oldest_step = index->steps[0].step;
    v->newest_step = index->steps[index->step_count - 1].step;
  }
  if (index->torn.length) iso_string_append(&v->torn, index->torn.data, index->torn.length);
}

/* The log leads from the oldest snapshot to the newest acknowledged step, without a gap and without a wrong bit. */
static void verify_log(verification *v) {
  char uuid[37];
  bool exists, known = false;
  iso_wal_index index;
  iso_reach reach;
  iso_string faults = {0};
  int64_t oldest, newest;                                 /* snapshots */
  const int64_t acknowledged = acknowledged_step(v->run); /* before the log, which may go on meanwhile */
  if (iso_run_folder_read(v->run, uuid, &exists) != ISO_OK || iso_snapshot_range(v->run, &oldest, &newest) != ISO_OK) {
    fault(v->out, "log");
    return;
  }
  if (iso_wal_index_read(v->run, uuid, true, acknowledged, &index, &faults) != ISO_OK) {
    fprintf(v->out, "log: %s\n", iso_fault_first(&faults));
  } else {
    if (faults.length) fprintf(v->out, "%s", faults.data);
    /* A gap is closed by a snapshot behind it: a suspended log goes on there. */
    const int64_t first = index.step_count ? index.steps[0].step : index.newest_durable;
    for (int64_t step = first > newest ? first : newest + 1; step <= index.newest_durable; step++)
      if (step > 0 && !iso_wal_index_find(&index, step))
        fprintf(v->out, "log: step %lld was durable but is not in the log\n", (long long)step);
    v->durable_step = index.newest_durable > newest ? index.newest_durable : newest;
    describe_log(v, &index);
    iso_wal_index_fini(&index);
  }
  iso_string_fini(&faults);
  if (iso_incarnation_first_known(v->run, &known) == ISO_OK && iso_reach_read(v->run, uuid, known, &reach) == ISO_OK) {
    iso_reach_print(&reach, &v->reach);
    iso_reach_fini(&reach);
  }
}

static void verify_replay(verification *v) {
  if (iso_run_prove(v->arena, v->run, &v->proofs, &v->proof_count) != ISO_OK) fault(v->out, "replay");
  for (size_t i = 0; i < v->proof_count; i++)
    if (v->proofs[i].result == ISO_REFUTED)
      fprintf(v->out, "replay: %s + %lld steps of the log is not %s: %s\n", v->proofs[i].from,
              (long long)v->proofs[i].steps, v->proofs[i].to, v->proofs[i].cause);
}

/* Whether such another place has all that the run would need to go on from there. */
static void verify_place(verification *v, const char *role, bool *any) {
  iso_mirror_note note;
  iso_target *target;
  bool there;
  iso_status status = iso_mirror_note_read(v->run, role, &note, &there);
  if (status == ISO_OK && !there) return;
  *any = true;
  if (status == ISO_OK) status = iso_target_open(note.where, &target);
  if (status == ISO_OK) {
    target->first = strcmp(role, "target") == 0;
    status = iso_mirror_verify(v->run, target, v->out);
    iso_target_close(&target);
  }
  if (status != ISO_OK && status != ISO_ERR_CHECK) fault(v->out, role);
}

static void verify_mirror(verification *v) {
  bool any = false;
  verify_place(v, "target", &any);
  verify_place(v, "mirror", &any);
  if (!any) fprintf(v->out, "mirror: the run has neither checkpoint.target nor checkpoint.mirror\n");
}

/* All faults go to v->out; nothing is logged. CHECK when there are any. */
static iso_status verify_all(verification *v) {
  const double began = iso_clock_s();
  const bool quiet = iso_log_quiet(true);
  iso_status status = iso_snapshot_verify(v->run, v->out, &v->snapshots);
  if (status == ISO_OK || status == ISO_ERR_CHECK) {
    const long before = ftell(v->out);
    fprintf(v->out, "%s", iso_brought_damage());
    verify_inputs(v);
    (void)!iso_run_small_files_verify(v->run, v->out, &v->unprotected, &v->torn);
    verify_log(v);
    if (v->replay) verify_replay(v);
    if (v->mirror) verify_mirror(v);
    if (ftell(v->out) != before) status = ISO_ERR_CHECK;
  }
  iso_log_quiet(quiet);
  v->seconds = iso_clock_s() - began;
  return status;
}

static size_t count_lines(const char *text) {
  size_t count = 0;
  for (; *text; text++) count += *text == '\n';
  return count;
}

static iso_status report(const verification *v, iso_status status, bool json) {
  iso_status printed = ISO_OK;
  if (json && (status == ISO_OK || status == ISO_ERR_CHECK)) {
    printed = print_json(v, status);
  } else if (!json) {
    print_text(v, status);
  }
  const size_t count = count_lines(v->lines);
  if (status == ISO_OK) return printed;
  if (status != ISO_ERR_CHECK) return iso_fail(status, "%s", iso_last_error());
  return iso_fail(status, "run '%s': %zu %s found; see the list", v->run, count,
                  count == 1 ? "fault was" : "faults were");
}

iso_status iso_verb_verify(iso_args *args) {
  bool json = false;
  verification v = {0};
  const iso_flag flags[] = {
      {"replay", ISO_FLAG_BOOL, &v.replay, "also prove that each snapshot and the log behind it give the next one", 0,
       0},
      {"mirror", ISO_FLAG_BOOL, &v.mirror, "also compare the run with its target and its mirror, byte by byte", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  ISO_TRY(iso_args_bring_run(args));
  v.run = args->words[0];
  ISO_TRY(iso_run_folder_check(v.run));
  v.arena = iso_arena_create();
  v.out = v.arena ? open_memstream(&v.lines, &v.length) : NULL;
  iso_status status = v.out ? verify_all(&v) : iso_fail(ISO_ERR_MEMORY, "verify: no memory for the list of faults");
  const bool listed = v.out && fclose(v.out) == 0;
  if (v.out && !listed) status = iso_fail(ISO_ERR_MEMORY, "verify: no memory for the list of faults");
  if (listed) status = report(&v, status, json);
  free(v.lines);
  iso_string_fini(&v.torn);
  iso_string_fini(&v.reach);
  iso_string_fini(&v.unprotected);
  iso_arena_destroy(&v.arena);
  return status;
}
