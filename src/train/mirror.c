/* SPDX-License-Identifier: Apache-2.0
 *
 * A run and its mirror (checkpoint.mirror): what is gone or damaged here comes back from it before the run starts, and
 * a thread copies behind the run as it goes.
 *
 * An outage of the mirror never ends a run: it is said, and the mirror catches up. Only a folder that holds no run yet
 * needs an answer, since the mirror may hold this one.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { RESTORE_TRIES = 4 };

static const double START_S = 20; /* for the mirror to answer before a start */
static const double DONE_S = 1e9, STOPPED_S = 10, FAILED_S = 20, OUTAGE_S = 10; /* to wait at the end */

/* A mirror that is the run folder, lies in it, or holds it, mirrors nothing. */
static iso_status check_place(const iso_run *run, const char *where) {
  char *here = realpath(run->config.run, NULL), *there = realpath(where, NULL);
  bool same = false;
  if (here && there) {
    const size_t a = strlen(here), b = strlen(there);
    const char *longer = a > b ? here : there, *shorter = a > b ? there : here;
    const size_t n = strlen(shorter);
    same = strncmp(longer, shorter, n) == 0 && (longer[n] == 0 || longer[n] == '/');
  }
  free(here);
  free(there);
  if (!same) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "checkpoint.mirror: '%s' is the run folder, lies in it, or holds it; name another place", where);
}

/* The mirror by a path that holds wherever the process runs. */
static iso_status open_target(iso_run *run) {
  const char *where = run->config.checkpoint.mirror;
  if (!iso_blob_is_remote(where)) {
    ISO_TRY(iso_path_make(where));
    ISO_TRY(check_place(run, where));
    char *there = realpath(where, NULL);
    if (!there) return iso_os_fail("look at", where);
    where = iso_arena_strdup(run->arena, there);
    free(there);
    if (!where) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its mirror", run->config.run);
  }
  return iso_target_open(where, &run->mirror_target);
}

static void print_report(const iso_run *run, iso_restore_report *report, double seconds) {
  const char *where = run->mirror_target->where;
  for (const char *at = report->text.length ? report->text.data : ""; *at;) {
    const int length = (int)strcspn(at, "\n");
    iso_warn("%s: %.*s", run->config.run, length, at);
    at += length + (at[length] == '\n');
  }
  if (report->whole)
    iso_warn("%s: there was no run here; mirror '%s' holds it: restored %lld files, %.1f MB in %.2f s", run->config.run,
             where, (long long)report->files, (double)report->bytes * 1e-6, seconds);
  else if (report->files)
    iso_warn("%s: %lld files, %.1f MB were brought back from mirror '%s' in %.2f s", run->config.run,
             (long long)report->files, (double)report->bytes * 1e-6, where, seconds);
}

/* Without an answer from the mirror a run that is here goes on; whether one is there cannot be told. */
static iso_status without_answer(const iso_run *run, iso_status status) {
  char *cause = strdup(iso_last_error());
  bool here;
  const char *path = iso_path_join(run->arena, run->config.run, "run.json");
  const iso_status looked = path ? iso_path_probe(path, &here) : ISO_ERR_MEMORY;
  const bool passing = status == ISO_ERR_IO || status == ISO_ERR_NOT_FOUND || status == ISO_ERR_SPACE;
  if (looked == ISO_OK && passing && here) {
    iso_warn("%s: its mirror cannot be read (%s); going on with what is here", run->config.run, cause ? cause : "");
    status = ISO_OK;
  } else if (looked == ISO_OK && passing) {
    status = iso_fail(status, "%s: whether mirror '%s' holds this run cannot be told: %s", run->config.run,
                      run->config.checkpoint.mirror, cause ? cause : "");
  } else {
    status = iso_fail(status, "%s", cause ? cause : "out of memory");
  }
  free(cause);
  return looked == ISO_OK ? status : looked;
}

iso_status iso_run_mirror_restore(iso_run *run) {
  iso_restore_report report;
  const double began = iso_clock_s();
  if (!run->config.checkpoint.mirror[0]) return ISO_OK;
  ISO_TRY(open_target(run));
  iso_s3_patience_of_thread(START_S);
  iso_log_mute(true);
  iso_status status = iso_mirror_restore(run->config.run, run->mirror_target, run->options.take_over, &report);
  /* What another process still writes there may be deleted between its listing and its reading. */
  for (int tries = 1; status == ISO_ERR_NOT_FOUND && tries < RESTORE_TRIES; tries++) {
    iso_string_fini(&report.text);
    status = iso_mirror_restore(run->config.run, run->mirror_target, run->options.take_over, &report);
  }
  iso_log_mute(false);
  iso_s3_patience_of_thread(0);
  if (status != ISO_OK && status != ISO_STOPPED) status = without_answer(run, status);
  print_report(run, &report, iso_clock_s() - began);
  iso_string_fini(&report.text);
  return status;
}

iso_status iso_run_mirror_repair(iso_run *run, bool *repaired) {
  iso_restore_report report;
  const double began = iso_clock_s();
  *repaired = false;
  if (!run->mirror_target) return ISO_OK;
  iso_note("%s: comparing with mirror '%s', byte by byte", run->config.run, run->mirror_target->where);
  const iso_status status = iso_mirror_repair(run->config.run, run->mirror_target, &report);
  if (status == ISO_OK) print_report(run, &report, iso_clock_s() - began);
  *repaired = status == ISO_OK && report.files > 0;
  iso_string_fini(&report.text);
  return status;
}

iso_status iso_run_mirror_open(iso_run *run) {
  if (!run->mirror_target || run->incarnation.number == 0) return ISO_OK;
  ISO_TRY(iso_mirror_open(run->config.run, run->uuid, run->incarnation.number, run->durable_step, run->mirror_target,
                          iso_data_thread_settle, &run->mirror));
  run->mirror_target = NULL; /* kept by the mirror */
  return ISO_OK;
}

iso_status iso_run_mirror_poll(iso_run *run) {
  if (!run->mirror) return ISO_OK;
  iso_mirror_state state;
  iso_mirror_tell(run->mirror, run->durable_step);
  iso_mirror_state_get(run->mirror, &state);
  return state.lost ? iso_fail(state.lost, "%s", state.cause) : ISO_OK;
}

void iso_run_mirror_close(iso_run *run, iso_status status) {
  if (run->mirror) {
    iso_mirror_tell(run->mirror, run->durable_step);
    iso_mirror_close(&run->mirror, status == ISO_OK ? DONE_S : status == ISO_STOPPED ? STOPPED_S : FAILED_S, OUTAGE_S);
  }
  iso_target_close(&run->mirror_target);
}
