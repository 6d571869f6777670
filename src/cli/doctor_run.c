/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, the run's folder: what a start with this config would find there, and do. It begins anew, goes on
 * behind a step, has nothing to do, or is refused: because another process has the run, because settings that decide
 * bits differ, because a durable step is gone.
 *
 * Nothing there is written, moved, locked or read in full: snapshots are judged by their manifests and sizes, the log
 * by its frames' heads.
 */
#include <string.h>

#include "cli/cli.h"

static const char check[] = "existing run", wanted[] = "a start that goes on where the run is, or begins it";

/* ---- whose it is ---- */

/* Another process has the run; the row is added. */
static bool is_taken(iso_doctor *d) {
  iso_lock_view h;
  if (iso_lock_look(d->config.run, &h) != ISO_OK) {
    iso_doctor_failed(d, check, ISO_VERDICT_WARNING, wanted, "check the permissions of `run`");
    return true;
  }
  if (!h.held && (!h.claimed || h.gone)) return false;
  if (h.claimed)
    iso_doctor_add(d, check, ISO_VERDICT_STOP, wanted,
                   h.fresh ? "wait for that process or stop it; or take another `run`"
                           : "if that process is known to be gone or to hang, start with --take-over",
                   "a start is refused: process %ld on host %s has the run, its last heartbeat was %.0f s ago",
                   h.owner.pid, h.owner.host, h.age_s);
  else
    iso_doctor_add(d, check, ISO_VERDICT_STOP, wanted, "wait for that process",
                   "a start is refused: a process that is just starting has the run");
  return true;
}

/* ---- what it would go on from ---- */

typedef struct found {
  iso_incarnation newest;
  iso_acknowledged said;
  int64_t step;      /* that snapshots and log lead to; -1: to none */
  const char *reach; /* in words */
} found;

static iso_status read_run(iso_doctor *d, found *f, bool *exists) {
  const char *folder = d->config.run;
  char uuid[37];
  bool first;
  iso_reach reach;
  iso_string words = {0};
  *exists = false;
  *f = (found){.step = -1, .reach = "none"};
  if (!iso_path_exists(folder)) return ISO_OK;
  ISO_TRY(iso_run_folder_read(folder, uuid, exists));
  if (!*exists) return ISO_OK;
  ISO_TRY(iso_incarnation_newest(folder, &f->newest));
  ISO_TRY(iso_acknowledged_read(folder, &f->said));
  ISO_TRY(iso_incarnation_first_known(folder, &first));
  ISO_TRY(iso_reach_read(folder, uuid, first, &reach));
  if (reach.count) f->step = reach.ranges[reach.count - 1].last;
  iso_reach_print(&reach, &words);
  iso_reach_fini(&reach);
  f->reach = words.data ? iso_arena_strdup(d->arena, words.data) : NULL;
  iso_string_fini(&words);
  return f->reach ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "doctor: no memory");
}

/* Settings that decide bits and differ from those of the run's last start; "" when none do. */
static const char *differences(iso_doctor *d, const found *f, const iso_run *run) {
  iso_tier tier;
  iso_config before;
  iso_string text = {0};
  if (strcmp(f->newest.config_digest, run->digest) != 0) {
    const char *stored = iso_path_join(d->arena, d->config.run, "config.yaml");
    if (stored && iso_config_read(stored, NULL, 0, &before) == ISO_OK) {
      (void)iso_config_difference(&before, &run->config, &text);
      iso_config_fini(&before);
    }
    if (!text.length) iso_string_printf(&text, "model, tokenizer, corpus or the program's kernels");
  }
  if (iso_cpu_tier(&tier) == ISO_OK && strcmp(f->newest.tier, iso_tier_name(tier)) != 0)
    iso_string_printf(&text, "%sISA tier: %s -> %s", text.length ? "; " : "", f->newest.tier, iso_tier_name(tier));
  if (f->newest.optimizer_version != ISO_OPTIMIZER_VERSION)
    iso_string_printf(&text, "%soptimizer kernel version: %d -> %d", text.length ? "; " : "",
                      f->newest.optimizer_version, ISO_OPTIMIZER_VERSION);
  const char *kept = text.data ? iso_arena_strdup(d->arena, text.data) : "";
  iso_string_fini(&text);
  return kept ? kept : "";
}

static void say_new(iso_doctor *d) {
  const char *mirror = d->config.checkpoint.mirror, *target = d->config.checkpoint.target;
  const char *elsewhere = target[0] ? target : mirror;
  if (elsewhere[0])
    iso_doctor_add(d, check, ISO_VERDICT_OK, wanted, "",
                   "none here: a start fetches the run from %s if it is there, else begins it", elsewhere);
  else
    iso_doctor_add(d, check, ISO_VERDICT_OK, wanted, "", "none: a start begins the run");
}

static void judge(iso_doctor *d, const found *f, const iso_run *run) {
  const char *changed = run ? differences(d, f, run) : "";
  const long long step = (long long)f->step, last = (long long)iso_run_last_step(&d->config);
  const bool lost = f->said.stated > (f->step > 0 ? f->step : 0) && !f->said.before_boot;
  if (lost)
    iso_doctor_add(d, check, ISO_VERDICT_STOP, wanted,
                   "isotach verify names what is damaged; look into aside/, or go on from there with --accept",
                   "a start is refused: step %lld was durable, but snapshots and log lead to: %s",
                   (long long)f->said.stated, f->reach);
  else if (changed[0] && f->newest.number && f->step > 0)
    iso_doctor_add(d, check, ISO_VERDICT_STOP, wanted, "use the old settings, another `run`, or start with --accept",
                   "a start is refused: it would go on behind step %lld with other settings: %s", step, changed);
  else if (f->step >= last)
    iso_doctor_add(d, check, ISO_VERDICT_OK, wanted, "",
                   "a start has nothing to train: step %lld of %lld is taken (start %d)", step, last, f->newest.number);
  else if (f->step > 0)
    iso_doctor_add(d, check, ISO_VERDICT_OK, wanted, "",
                   "a start resumes behind step %lld of %lld, as start %d; the last one had %lld rank%s, tier %s", step,
                   last, f->newest.number + 1, (long long)f->newest.ranks, iso_plural(f->newest.ranks), f->newest.tier);
  else
    iso_doctor_add(d, check, ISO_VERDICT_OK, wanted, "",
                   "without a step that lasts: a start begins it anew, as start %d", f->newest.number + 1);
}

void iso_doctor_run(iso_doctor *d, const iso_run *run) {
  found f;
  bool exists;
  if (iso_path_is_folder(d->config.run) && is_taken(d)) return;
  if (iso_path_exists(d->config.run) && !iso_path_is_folder(d->config.run))
    return; /* the check of the storage says it */
  if (read_run(d, &f, &exists) != ISO_OK)
    iso_doctor_failed(d, check, ISO_VERDICT_STOP, wanted, "isotach verify names what is damaged");
  else if (exists)
    judge(d, &f, run);
  else
    say_new(d);
}
