/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's vital signs as the loop has them: each step's budgets and evidence of all ranks go to the watch (signs.c);
 * what begins or ends to be out of bounds, or is so for another reason, is said in a line and kept in breaches.jsonl;
 * vitals.json says once a second, then, and at the end how the run is, for those who look on.
 *
 * Invariants
 *  1. Nothing here ends a run: a file that cannot be written is said once.
 *  2. vitals.json is no record of the run: it is not synced, and no start reads it.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/health.h"

static const double WINDOW_S = 5, LIVE_S = 1, LOG_S = 0.2;

struct iso_health {
  const iso_run *run;
  int ranks;
  iso_sensors *sensors;
  iso_watch *watch;
  iso_lines *breaches; /* NULL: there are none */
  bool failed;         /* and said */
  bool unwritten;      /* vitals.json; said */
  iso_budget *budgets; /* [ranks], of a step; of those since vitals.json: */
  iso_budget *sums;
  iso_budget *means;      /* [ranks], of the steps in vitals.json */
  iso_evidence *evidence; /* [ranks] */
  int64_t summed;
  double live_s, log_s;         /* when it was written; when the log was asked */
  double log_bytes, log_busy_s; /* then */
  iso_watch_step last;
  iso_step_metrics metrics; /* of the last step; step 0: there was none. So is the next */
  iso_progress_step shown;
  char host[256];
  iso_string text;
};

static double window_s(void) {
  const char *text = getenv("ISOTACH_WINDOW_S");
  const double seconds = text ? strtod(text, NULL) : 0;
  return seconds > 0 ? seconds : WINDOW_S;
}

iso_status iso_health_open(const iso_run *run, iso_health **out) {
  *out = NULL;
  iso_health *h = calloc(1, sizeof *h);
  if (!h) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its vital signs", run->config.run);
  h->run = run;
  h->ranks = run->options.ranks ? iso_ranks_plan_get(run->options.ranks)->count : 1;
  h->budgets = calloc((size_t)h->ranks, sizeof *h->budgets);
  h->sums = calloc((size_t)h->ranks, sizeof *h->sums);
  h->means = calloc((size_t)h->ranks, sizeof *h->means);
  h->evidence = calloc((size_t)h->ranks, sizeof *h->evidence);
  iso_owner me;
  iso_owner_self(&me);
  snprintf(h->host, sizeof h->host, "%s", me.host);
  iso_status status = h->budgets && h->sums && h->means && h->evidence
                          ? iso_watch_create(h->ranks, window_s(), &h->watch)
                          : ISO_ERR_MEMORY;
  char path[4096];
  snprintf(path, sizeof path, "%s/breaches.jsonl", run->config.run);
  bool exists = false;
  if (status == ISO_OK) status = iso_path_probe(path, &exists);
  if (status == ISO_OK && exists) status = iso_lines_open(run->config.run, "breaches", run->at.step, &h->breaches);
  if (status != ISO_OK) {
    iso_health_close(&h);
    return status;
  }
  (void)!iso_sensors_start(&h->sensors); /* said; the run goes without */
  *out = h;
  return ISO_OK;
}

static void publish(iso_health *h);

void iso_health_close(iso_health **health) {
  iso_health *h = *health;
  if (!h) return;
  if (h->metrics.step) publish(h); /* what was not durable when steps were over may be now */
  (void)!iso_lines_close(&h->breaches);
  iso_sensors_stop(&h->sensors);
  iso_watch_destroy(&h->watch);
  iso_string_fini(&h->text);
  free(h->budgets);
  free(h->sums);
  free(h->means);
  free(h->evidence);
  free(h);
  *health = NULL;
}

const char *iso_health_host(const iso_health *h, int rank) {
  const iso_world *world = h->run->options.ranks ? iso_ranks_plan_get(h->run->options.ranks)->world : NULL;
  return world ? iso_world_host_name(world, rank) : h->host;
}

const iso_watch *iso_health_watch(const iso_health *h) {
  return h->watch;
}

int iso_health_ranks(const iso_health *h) {
  return h->ranks;
}

void iso_health_fill(const iso_health *h, iso_step_metrics *m) {
  iso_watch_values(h->watch, &m->signs);
  m->breached = iso_watch_breached(h->watch);
}

/* ---- breaches ---- */

static void say(const iso_health *h, const iso_breach *b) {
  const char *host = iso_health_host(h, b->rank);
  char when[32];
  struct tm utc;
  const time_t since = (time_t)b->since_time_s;
  iso_string machine = {0};
  gmtime_r(&since, &utc);
  strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
  if (b->begins || b->changes) {
    iso_machine_say(&b->machine, &machine);
    iso_warn("sign %s %s: %s; rank %d, host %s, since step %lld (%s); cause: %s, %.2f of the last %.1f s: %s; the "
             "machine: %s",
             iso_sign_names[b->sign],
             b->begins ? "is out of bounds" : "stays out of bounds, now by another rank or cause", b->text, b->rank,
             host, (long long)b->since_step, when, iso_cause_names[b->cause], b->cause_s, b->window_s, b->detail,
             machine.data ? machine.data : "");
  } else if (!b->closes) {
    iso_note("sign %s is within bounds again at step %lld: %s; it was out since step %lld (%s), for %.1f s",
             iso_sign_names[b->sign], (long long)b->step, b->text, (long long)b->since_step, when, b->seconds);
  }
  iso_string_fini(&machine);
}

static void keep(iso_health *h, const iso_breach *b) {
  iso_string *t = &h->text;
  t->length = 0;
  iso_string_printf(t, "{\"step\": %lld, \"time\": %.3f, \"event\": \"%s\", \"sign\": \"%s\", \"value\": %.9g, ",
                    (long long)b->step, b->time_s,
                    b->begins    ? "begin"
                    : b->changes ? "change"
                                 : "end",
                    iso_sign_names[b->sign], b->value);
  iso_string_printf(t, "\"bound\": %.9g, \"unit\": \"%s\", \"measure\": \"%s\", \"text\": ", b->bound,
                    iso_sign_units[b->sign], b->measure);
  iso_json_quote(t, b->text, strlen(b->text));
  iso_string_printf(t, ", \"rank\": %d, \"host\": ", b->rank);
  iso_json_quote(t, iso_health_host(h, b->rank), strlen(iso_health_host(h, b->rank)));
  iso_string_printf(t, ", \"since_step\": %lld, \"since_time\": %.3f, \"seconds\": %.3f, \"cause\": \"%s\", ",
                    (long long)b->since_step, b->since_time_s, b->seconds, iso_cause_names[b->cause]);
  iso_string_printf(t, "\"cause_s\": %.6f, \"detail\": ", b->cause_s);
  iso_json_quote(t, b->detail, strlen(b->detail));
  iso_string_printf(t, ", \"machine\": ");
  iso_machine_print(&b->machine, t);
  iso_record_seal_line(t, 0);
  iso_status status = iso_string_failed(t) ? ISO_ERR_MEMORY : ISO_OK;
  if (status == ISO_OK && !h->breaches) status = iso_lines_open(h->run->config.run, "breaches", b->step, &h->breaches);
  if (status == ISO_OK) status = iso_lines_append(h->breaches, t->data, t->length);
  if (status != ISO_OK && !h->failed) iso_warn("%s: breaches.jsonl cannot be written (see above)", h->run->config.run);
  h->failed = status != ISO_OK;
}

static void tell(iso_health *h, const iso_breach *breaches, int count) {
  for (int i = 0; i < count; i++) {
    say(h, &breaches[i]);
    keep(h, &breaches[i]);
  }
}

/* ---- vitals.json ---- */

static void put_signs(const iso_health *h, iso_string *t) {
  iso_string_printf(t, "\"signs\": [");
  for (int i = 0; i < ISO_SIGNS; i++) {
    const iso_sign_state *s = iso_watch_state(h->watch, (iso_sign)i);
    iso_string_printf(t, "%s\n  {\"sign\": \"%s\", \"value\": ", i ? "," : "", iso_sign_names[i]);
    iso_json_number(t, s->value, 9);
    iso_string_printf(t, ", \"bound\": ");
    iso_json_number(t, s->bound, 9);
    iso_string_printf(t, ", \"unit\": \"%s\", \"measure\": ", iso_sign_units[i]);
    iso_string_printf(t, s->measure ? "\"%s\"" : "null", s->measure);
    iso_string_printf(t, ", \"out\": %s", s->out ? "true" : "false");
    if (s->out) {
      iso_string_printf(t, ", \"rank\": %d, \"host\": ", s->rank);
      iso_json_quote(t, iso_health_host(h, s->rank), strlen(iso_health_host(h, s->rank)));
      iso_string_printf(t, ", \"since_step\": %lld, \"cause\": \"%s\"", (long long)s->since_step,
                        iso_cause_names[s->cause]);
    }
    iso_string_append(t, "}", 1);
  }
  iso_string_append(t, "]", 1);
}

static void put_ranks(const iso_health *h, iso_string *t) {
  iso_string_printf(t, ",\n \"ranks\": [");
  for (int r = 0; r < h->ranks; r++) {
    iso_string_printf(t, "%s\n  {\"rank\": %d, \"host\": ", r ? "," : "", r);
    iso_json_quote(t, iso_health_host(h, r), strlen(iso_health_host(h, r)));
    for (int p = 0; p < ISO_PARTS; p++)
      iso_string_printf(t, ", \"%s\": %.9g", iso_budget_names[p], h->means[r].parts[p]);
    iso_string_printf(t, ", \"machine\": ");
    iso_machine_print(iso_watch_machine(h->watch, r), t);
    iso_string_append(t, "}", 1);
  }
  iso_string_append(t, "]", 1);
}

static void put_number(iso_string *t, const char *name, double value) {
  iso_string_printf(t, ", \"%s\": ", name);
  iso_json_number(t, value, 9);
}

static bool write_live(const iso_health *h) {
  char path[4096], next[4112];
  snprintf(path, sizeof path, "%s/vitals.json", h->run->config.run);
  snprintf(next, sizeof next, "%s.next", path);
  (void)iso_os.unlink(next); /* whatever it is: no link is followed, no pipe waited for */
  const int fd = iso_os.open(next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const int64_t bytes = (int64_t)h->text.length;
  const bool whole = iso_os.pwrite(fd, h->text.data, h->text.length, 0) == bytes && iso_os.ftruncate(fd, bytes) == 0;
  const bool there = iso_os.close(fd) == 0 && whole && iso_os.rename(next, path) == 0;
  if (!there) (void)iso_os.unlink(next);
  return there;
}

/* By itself in a profile (bench/vitals). */
__attribute__((noinline)) static void publish(iso_health *h) {
  iso_string *t = &h->text;
  const iso_run *run = h->run;
  const iso_step_metrics *m = &h->metrics;
  const iso_progress_step *shown = &h->shown;
  for (int r = 0; h->summed && r < h->ranks; r++)
    for (int p = 0; p < ISO_PARTS; p++) h->means[r].parts[p] = h->sums[r].parts[p] / (double)h->summed;
  t->length = 0;
  iso_string_printf(t, "{\"step\": %lld, \"steps\": %lld, \"durable_step\": %lld, \"incarnation\": %lld",
                    (long long)m->step, (long long)shown->steps, (long long)run->durable_step,
                    (long long)m->incarnation);
  iso_string_printf(t, ", \"time\": %.3f", h->last.time_s);
  put_number(t, "loss", m->loss);
  put_number(t, "tokens_per_s", shown->tokens_per_s);
  put_number(t, "mfu", shown->mfu);
  put_number(t, "eta_s", shown->eta_s);
  iso_string_printf(t, ", \"ring_depth\": %lld, \"ring_slots\": %d, \"log_behind\": %lld, \"memory_bytes\": %lld",
                    (long long)m->ring_depth, run->data.slots, (long long)(m->step - run->durable_step),
                    (long long)shown->memory_bytes);
  iso_string_printf(t, ",\n ");
  put_signs(h, t);
  put_ranks(h, t);
  iso_string_append(t, "\n}\n", 3);
  const bool written = !iso_string_failed(t) && write_live(h);
  if (!written && !h->unwritten)
    iso_warn("%s: vitals.json cannot be written; until it can, isotach top shows older numbers", run->config.run);
  h->unwritten = !written;
  memset(h->sums, 0, (size_t)h->ranks * sizeof *h->sums);
  h->summed = 0;
}

void iso_health_put_rank(const iso_health *h, int rank, iso_string *t) {
  iso_string_printf(t, "\"rank\": %d, \"host\": ", rank);
  iso_json_quote(t, iso_health_host(h, rank), strlen(iso_health_host(h, rank)));
}

void iso_health_look(const iso_health *h, iso_string *t) {
  iso_string_append(t, "{", 1);
  put_signs(h, t);
  iso_string_printf(t, ",\n \"ranks\": [");
  for (int r = 0; r < h->ranks; r++) {
    iso_string_printf(t, r ? ",\n  {" : "\n  {");
    iso_health_put_rank(h, r, t);
    iso_string_printf(t, ", \"steps\": %lld", (long long)iso_watch_tally(h->watch, r, ISO_PART_WALL)->count);
    for (int p = 0; p < ISO_PARTS; p++) {
      const iso_tally *tally = iso_watch_tally(h->watch, r, (iso_budget_part)p);
      iso_string_printf(t, ", \"%s\": {\"now\": %.6g, \"p50\": %.6g, \"p95\": %.6g, \"mean\": %.6g}",
                        iso_budget_names[p], h->means[r].parts[p], iso_tally_quantile(tally, 50),
                        iso_tally_quantile(tally, 95), iso_tally_mean(tally));
    }
    iso_string_append(t, "}", 1);
  }
  iso_string_append(t, "]}", 2);
}

/* ---- a step ---- */

static void ask_log(iso_health *h, double now) {
  iso_wal_state log;
  if (!h->run->wal || now - h->log_s < LOG_S) return;
  iso_wal_state_get(h->run->wal, &log);
  h->log_s = now;
  h->log_bytes = (double)log.bytes;
  h->log_busy_s = log.write_s - log.crc_s - log.pack_s + log.sync_s;
}

void iso_health_step(iso_health *h, const iso_step_metrics *m, const iso_progress_step *shown, iso_progress *progress) {
  iso_ranks *ranks = h->run->options.ranks;
  const iso_breach *breaches;
  struct timespec time;
  iso_sensors_get(h->sensors, &h->evidence[0]);
  if (ranks) iso_ranks_health_set(ranks, &m->budget, &h->evidence[0]);
  if (ranks)
    iso_ranks_health_get(ranks, h->budgets, h->evidence); /* of the step before */
  else
    h->budgets[0] = m->budget;
  if (h->budgets[0].parts[ISO_PART_WALL] <= 0) return; /* there was none */
  for (int r = 0; r < h->ranks; r++)
    for (int p = 0; p < ISO_PARTS; p++) h->sums[r].parts[p] += h->budgets[r].parts[p];
  h->summed++;
  clock_gettime(CLOCK_REALTIME, &time);
  const double now = iso_clock_s();
  ask_log(h, now);
  h->last = (iso_watch_step){.step = m->step,
                             .now_s = now,
                             .time_s = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec,
                             .budgets = h->budgets,
                             .evidence = h->evidence,
                             .log_bytes = h->log_bytes,
                             .log_busy_s = h->log_busy_s,
                             .data = &h->run->data};
  h->metrics = *m;
  h->shown = *shown;
  const int count = iso_watch_add(h->watch, &h->last, &breaches);
  if (count) iso_progress_end(progress);
  tell(h, breaches, count);
  if (now - h->live_s < LIVE_S && m->step < shown->steps && !count) return;
  h->live_s = now;
  publish(h);
}

void iso_health_end(iso_health *h) {
  const iso_breach *breaches;
  if (!h || !h->last.budgets) return;
  const int count = iso_watch_end(h->watch, &h->last, &breaches);
  tell(h, breaches, count);
  publish(h);
}
