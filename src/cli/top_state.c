/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run folder says of its run, live or not, as a look from the outside finds it.
 *
 * Whether the run goes on is told by its lock: by the process that it names where that is of this host, else by its
 * heartbeat. vitals.json, which a run under way replaces once a second, has the budget by rank and the signs;
 * metrics.jsonl the newest steps; status.json the verdict, and report.json the budget of a start that has ended. Each
 * may be missing, of an earlier start, or damaged: what the others say is shown then, and `note` says what is not.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/top.h"
#include "train/vitals/vitals.h"

enum { METRICS_BYTES = 1 << 20, BREACHES_BYTES = 1 << 18, VITALS_BYTES = 1 << 26, DISK_BYTES = 1 << 16 };

/* What is read anew at each look. */
typedef struct looking {
  iso_top *top;
  iso_json *vitals, *status, *report; /* NULL: there is none */
  double vitals_s, lock_s, status_s;  /* when it was written; 0: there is none */
  double began_s;                     /* the run's process; 0: not known */
  bool alive, silent;                 /* the process that has the run */
} looking;

/* ---- members ---- */

static double number_of(const iso_json *object, const char *key) {
  const iso_json *item = iso_json_get(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static int64_t whole_of(const iso_json *object, const char *key, int64_t fallback) {
  int64_t value;
  return object && iso_record_int(object, key, 0, &value) ? value : fallback;
}

static void note(iso_top *top, const char *text) {
  if (!top->note[0]) snprintf(top->note, sizeof top->note, "%s", text);
}

static void note_damaged(iso_top *top, int64_t lines, const char *name) {
  char text[sizeof top->note];
  if (!lines) return;
  snprintf(text, sizeof text, "%lld damaged line%s of %s left out; isotach verify names them", (long long)lines,
           iso_plural(lines), name);
  note(top, text);
}

static double file_time(const char *path) {
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return 0;
  return (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec;
}

static const char *in_run(const iso_top *top, const char *name, char path[4200]) {
  snprintf(path, 4200, "%s/%s", top->run, name);
  return path;
}

/* A damaged one counts as missing, and is noted. */
static iso_json *read_record(looking *l, const char *name) {
  char path[4200];
  iso_string faults = {0};
  iso_json *json = NULL;
  bool sealed, exists = false;
  if (iso_path_probe(in_run(l->top, name, path), &exists) == ISO_OK && exists &&
      iso_record_read_any(path, name, &json, &sealed, &faults) != ISO_OK) {
    json = NULL;
    if (faults.length) note(l->top, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return json;
}

/* ---- who has the run ---- */

static double clock_s(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void find_owner(looking *l) {
  iso_top *top = l->top;
  iso_lock_view seen;
  if (iso_lock_look(top->run, &seen) != ISO_OK) note(top, iso_last_error());
  if (seen.altered) note(top, "lock: it is altered, and names no process");
  top->owner = seen.claimed ? seen.owner : (iso_owner){0};
  l->lock_s = seen.beat_s;
  /* Of another host, and of a lock that cannot be read, only the heartbeat is seen; one that names nobody may still be
   * some process's. */
  l->alive = seen.here ? !seen.gone : seen.claimed || !seen.read ? seen.fresh : seen.held;
  l->silent = seen.claimed && !seen.here && !seen.fresh;
  if (seen.here && l->alive && seen.owner.start)
    l->began_s =
        clock_s(CLOCK_REALTIME) - clock_s(CLOCK_BOOTTIME) + (double)seen.owner.start / (double)sysconf(_SC_CLK_TCK);
}

/* ---- a process that was stopped ---- */

/* Its state as the kernel says it, and its parent; 0: not known. */
static char process_state(long pid, long *parent) {
  char path[64], *text = NULL, state = 0;
  size_t bytes;
  *parent = 0;
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  if (iso_file_read(path, &text, &bytes) != ISO_OK) return 0;
  const char *behind = strrchr(text, ')'); /* its name may hold anything */
  if (!behind || sscanf(behind + 1, " %c %ld", &state, parent) != 2) state = 0;
  free(text);
  return state;
}

static bool is_stopped(long pid) {
  long parent;
  const char state = process_state(pid, &parent);
  return state == 'T' || state == 't';
}

/* Ranks of one host are children of one process, begun in their order (train/ranks_start.c), the first is the run's
 * owner; as long as all are there, which child it is says which rank. */
static void find_stopped_rank(iso_top *top) {
  char path[96], *text = NULL;
  size_t bytes;
  long parent, stopped = 0;
  int64_t rank = -1, count = 0;
  (void)process_state(top->owner.pid, &parent);
  snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", parent, parent);
  if (parent <= 1 || iso_file_read(path, &text, &bytes) != ISO_OK) return;
  char *at = text, *end;
  for (long pid; (pid = strtol(at, &end, 10)) > 0 && end > at; at = end, count++) {
    if (count == 0 && pid != top->owner.pid) break;
    if (rank >= 0 || !is_stopped(pid)) continue;
    rank = count;
    stopped = pid;
  }
  free(text);
  if (rank < 0 || count != top->rank_count) return;
  top->stopped_rank = rank;
  top->stopped_pid = stopped;
}

/* Only where no step was taken for a while. */
static void find_stopped(looking *l) {
  iso_top *top = l->top;
  iso_owner me;
  top->stopped_pid = 0;
  top->stopped_rank = -1;
  if (top->phase != ISO_TOP_RUNNING || top->now - top->since_s < 5) return;
  iso_owner_self(&me);
  if (strcmp(top->owner.host, me.host) != 0) return;
  if (top->rank_count > 1)
    find_stopped_rank(top);
  else if (is_stopped(top->owner.pid))
    top->stopped_pid = top->owner.pid;
}

/* ---- metrics.jsonl ---- */

static void take_value(const iso_json *line, const iso_vital *vital, iso_step_metrics *step) {
  char *field = (char *)step + vital->offset;
  const int64_t whole = whole_of(line, vital->name, 0);
  const double real = number_of(line, vital->name);
  const bool flag = cJSON_IsTrue(iso_json_get(line, vital->name));
  if (vital->type == ISO_VITAL_WHOLE) memcpy(field, &whole, sizeof whole);
  if (vital->type == ISO_VITAL_REAL) memcpy(field, &real, sizeof real);
  if (vital->type == ISO_VITAL_FLAG) memcpy(field, &flag, sizeof flag);
}

static void take_breached(iso_top *top, const iso_json *line) {
  char *text = cJSON_PrintUnformatted(iso_json_get(line, "breached"));
  snprintf(top->last_breached, sizeof top->last_breached, "%s", text ? text : "");
  cJSON_free(text);
}

static void take_step(iso_top *top, const iso_json *line) {
  iso_step_metrics *last = &top->last;
  for (size_t i = 0; i < iso_vital_count; i++) take_value(line, &iso_vitals[i], last);
  take_breached(top, line);
  const double time = number_of(line, "time");
  if (isfinite(time)) top->last_s = time;
  if (top->recent_count == ISO_TOP_RECENT) {
    memmove(top->recent, top->recent + 1, (ISO_TOP_RECENT - 1) * sizeof *top->recent);
    top->recent_count--;
  }
  top->recent[top->recent_count++] = (iso_top_step){last->step, last->loss, last->tokens_per_s};
  top->refused += last->refused;
}

static void take_line(iso_top *top, const char *line, size_t bytes) {
  char cause[96];
  int64_t step;
  iso_json *json = NULL;
  if (iso_record_check_line(line, bytes, cause) == ISO_SEAL_BROKEN ||
      iso_json_parse(line, bytes, "metrics.jsonl", &json) != ISO_OK || !iso_record_int(json, "step", 1, &step))
    top->damaged++;
  else
    take_step(top, json);
  iso_json_destroy(&json);
}

static iso_status read_metrics(iso_top *top) {
  char path[4200], *lines = NULL;
  bool anew;
  const iso_status status =
      iso_tail_next(&top->metrics, in_run(top, "metrics.jsonl", path), METRICS_BYTES, &lines, &anew);
  if (status == ISO_ERR_MEMORY) return status;
  if (status != ISO_OK) note(top, iso_last_error());
  if (anew) {
    top->recent_count = 0;
    top->refused = top->damaged = 0;
    top->last = (iso_step_metrics){0};
    top->last_s = 0;
  }
  for (char *at = lines, *end; at && (end = strchr(at, '\n')); at = end + 1) take_line(top, at, (size_t)(end - at));
  free(lines);
  note_damaged(top, top->damaged, "metrics.jsonl");
  return ISO_OK;
}

/* ---- signs ---- */

static iso_top_sign *sign_of(iso_top *top, const iso_json *json) {
  const iso_json *name = iso_json_get(json, "sign");
  for (int i = 0; i < ISO_SIGNS; i++)
    if (cJSON_IsString(name) && strcmp(name->valuestring, iso_sign_names[i]) == 0) return &top->signs[i];
  return NULL;
}

static void take_cause(iso_top *top, const iso_json *line) {
  iso_top_sign *sign = sign_of(top, line);
  if (!sign) return;
  iso_json_copy_text(line, "cause", sign->cause, sizeof sign->cause);
  iso_json_copy_text(line, "detail", sign->detail, sizeof sign->detail);
  sign->cause_s = number_of(line, "cause_s");
}

static void read_breaches(iso_top *top) {
  char path[4200], *lines = NULL, cause[96];
  bool anew;
  if (iso_tail_next(&top->breaches, in_run(top, "breaches.jsonl", path), BREACHES_BYTES, &lines, &anew) != ISO_OK) {
    note(top, iso_last_error());
    return;
  }
  if (anew) top->damaged_breaches = 0;
  for (int i = 0; anew && i < ISO_SIGNS; i++) top->signs[i].cause[0] = top->signs[i].detail[0] = 0;
  for (char *at = lines, *end; at && (end = strchr(at, '\n')); at = end + 1) {
    iso_json *json = NULL;
    const size_t bytes = (size_t)(end - at);
    if (iso_record_check_line(at, bytes, cause) != ISO_SEAL_BROKEN &&
        iso_json_parse(at, bytes, "breaches.jsonl", &json) == ISO_OK)
      take_cause(top, json);
    else
      top->damaged_breaches++;
    iso_json_destroy(&json);
  }
  free(lines);
  note_damaged(top, top->damaged_breaches, "breaches.jsonl");
}

/* Of an older run, or one without vitals.json: as the last line has them. */
static void signs_of_line(iso_top *top) {
  const iso_sign_values *values = &top->last.signs;
  const bool known = top->last.step > 0;
  const double all[ISO_SIGNS] = {values->data_load_latency, values->allreduce_wait, values->checkpoint_bandwidth,
                                 values->flatness};
  for (int i = 0; i < ISO_SIGNS; i++) {
    top->signs[i].value = known ? all[i] : NAN;
    top->signs[i].bound = NAN;
    top->signs[i].rank = top->signs[i].since_step = -1;
    top->signs[i].host[0] = top->signs[i].measure[0] = 0;
    top->signs[i].out = known && strstr(top->last_breached, iso_sign_names[i]) != NULL;
  }
}

static void read_signs(looking *l) {
  const iso_json *one;
  signs_of_line(l->top);
  cJSON_ArrayForEach(one, iso_json_get(l->vitals, "signs")) {
    iso_top_sign *sign = sign_of(l->top, one);
    if (!sign) continue;
    sign->value = number_of(one, "value");
    sign->bound = number_of(one, "bound");
    sign->out = cJSON_IsTrue(iso_json_get(one, "out"));
    sign->rank = whole_of(one, "rank", -1);
    sign->since_step = whole_of(one, "since_step", -1);
    iso_json_copy_text(one, "host", sign->host, sizeof sign->host);
    iso_json_copy_text(one, "measure", sign->measure, sizeof sign->measure);
  }
}

/* ---- the budget by rank ---- */

/* A part is a number, or an object with its mean. */
static void take_rank(const iso_json *json, int place, iso_top_rank *rank) {
  rank->rank = whole_of(json, "rank", place);
  iso_json_copy_text(json, "host", rank->host, sizeof rank->host);
  for (int p = 0; p < ISO_PARTS; p++) {
    const iso_json *part = iso_json_get(json, iso_budget_names[p]);
    rank->budget.parts[p] = cJSON_IsObject(part) ? number_of(part, "mean") : number_of(json, iso_budget_names[p]);
  }
}

static iso_status take_ranks(iso_top *top, const iso_json *list) {
  int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
  if (count > ISO_TOP_RANKS) count = ISO_TOP_RANKS;
  const bool of_line = count == 0 && top->last.step > 0;
  if (of_line) count = 1;
  free(top->ranks);
  top->rank_count = 0;
  top->ranks = calloc((size_t)count + 1, sizeof *top->ranks);
  if (!top->ranks) return iso_fail(ISO_ERR_MEMORY, "top: no memory for %d ranks", count);
  const iso_json *one;
  cJSON_ArrayForEach(one, list) {
    if (top->rank_count < count) take_rank(one, top->rank_count, &top->ranks[top->rank_count]);
    top->rank_count += top->rank_count < count;
  }
  if (of_line) top->ranks[top->rank_count++].budget = top->last.budget;
  return ISO_OK;
}

/* ---- all together ---- */

/* Whether the process that has the run has taken a step, as far as can be told. */
static bool is_fresh(const looking *l, const char *verdict) {
  const iso_top *top = l->top;
  const int64_t start = whole_of(l->status, "incarnation", 0);
  if (top->since_s == 0 || top->since_s < l->began_s - 0.1) return false;
  return top->incarnation >= start || strcmp(verdict, "running") != 0;
}

/* Without a verdict: a start that got to its end leaves a report of its last step. */
static bool has_report(const looking *l) {
  return !l->top->verdict[0] && l->top->step > 0 && whole_of(l->report, "steps", -1) == l->top->step;
}

static void judge_phase(looking *l) {
  iso_top *top = l->top;
  const bool runs = strcmp(top->verdict, "running") == 0, ended = top->verdict[0] && !runs;
  if (l->alive) {
    const bool fresh = is_fresh(l, top->verdict);
    top->phase = !fresh ? ISO_TOP_STARTING : ended ? ISO_TOP_ENDED : ISO_TOP_RUNNING;
  } else if (ended || has_report(l)) {
    top->phase = ISO_TOP_ENDED;
  } else if (l->silent) {
    top->phase = ISO_TOP_SILENT;
  } else {
    top->phase = top->step || runs ? ISO_TOP_KILLED : ISO_TOP_UNBEGUN;
  }
  if (top->phase == ISO_TOP_ENDED) {
    if (l->status) top->since_s = l->status_s;
    top->step = whole_of(l->status, "step", top->step);
    top->durable_step = whole_of(l->status, "durable_step", top->durable_step);
    top->log_behind = top->step - top->durable_step;
  } else if (top->phase == ISO_TOP_KILLED || top->phase == ISO_TOP_SILENT) {
    if (l->lock_s > top->since_s) top->since_s = l->lock_s;
    if (top->since_s == 0) top->since_s = l->status_s;
  }
}

/* Numbers of the whole run: of vitals.json, and of the newest line, which is newer if anything. */
static void take_numbers(looking *l) {
  iso_top *top = l->top;
  const iso_step_metrics *last = &top->last;
  top->since_s = l->vitals_s;
  top->step = whole_of(l->vitals, "step", 0);
  top->steps = whole_of(l->vitals, "steps", 0);
  top->durable_step = whole_of(l->vitals, "durable_step", 0);
  top->incarnation = whole_of(l->vitals, "incarnation", 0);
  top->loss = number_of(l->vitals, "loss");
  top->tokens_per_s = number_of(l->vitals, "tokens_per_s");
  top->mfu = number_of(l->vitals, "mfu");
  top->eta_s = number_of(l->vitals, "eta_s");
  top->ring_depth = whole_of(l->vitals, "ring_depth", -1);
  top->ring_slots = whole_of(l->vitals, "ring_slots", -1);
  top->memory_bytes = whole_of(l->vitals, "memory_bytes", -1);
  const int64_t start = whole_of(l->status, "incarnation", 0);
  const bool older = top->incarnation < start; /* what it says is of an earlier start, which may have got further */
  if (older) top->step = top->durable_step = whole_of(l->status, "step", 0);
  top->lr = last->step ? last->lr : NAN;
  top->grad_norm = last->step ? last->grad_norm : NAN;
  const bool further = last->incarnation > top->incarnation || last->step >= top->step;
  if (last->step && (older || further)) {
    if (top->last_s > top->since_s) top->since_s = top->last_s;
    top->step = last->step;
    top->durable_step = last->durable_step;
    top->incarnation = last->incarnation;
    top->loss = last->loss;
    top->ring_depth = last->ring_depth;
    if (!l->vitals) top->tokens_per_s = last->tokens_per_s, top->mfu = last->mfu;
  }
  top->log_behind = top->step ? top->step - top->durable_step : -1;
  iso_json_copy_text(l->status, "verdict", top->verdict, sizeof top->verdict);
  top->exit_code = whole_of(l->status, "exit_code", -1);
}

static void read_vitals(looking *l) {
  char path[4200];
  bool exists = false;
  struct stat info;
  if (iso_path_probe(in_run(l->top, "vitals.json", path), &exists) != ISO_OK || !exists) return;
  if (iso_os.stat(path, &info) == 0 && info.st_size > VITALS_BYTES) {
    note(l->top, "vitals.json: it is far too large");
    return;
  }
  if (iso_json_read(path, &l->vitals) != ISO_OK) {
    l->vitals = NULL;
    if (iso_path_exists(path)) note(l->top, iso_last_error());
    return;
  }
  const double time = number_of(l->vitals, "time");
  l->vitals_s = isfinite(time) ? time : 0;
}

static iso_status look(looking *l) {
  char path[4200];
  iso_top *top = l->top;
  if (!iso_path_is_folder(top->run)) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is gone", top->run);
  top->note[0] = 0;
  find_owner(l); /* first: what a process wrote before it was gone is read behind that */
  l->status = read_record(l, "status.json");
  l->status_s = number_of(l->status, "time"); /* older ones have none; a copied file's own time is the copy's */
  if (!isfinite(l->status_s)) l->status_s = file_time(in_run(top, "status.json", path));
  read_vitals(l);
  ISO_TRY(read_metrics(top));
  take_numbers(l);
  if (!l->alive) l->report = read_record(l, "report.json");
  judge_phase(l);
  read_signs(l);
  read_breaches(top);
  const iso_json *whole = iso_json_get(l->report, "ranks");
  top->whole_start = cJSON_GetArraySize(whole) > 0 && whole_of(l->report, "steps", -1) == top->step;
  ISO_TRY(take_ranks(top, top->whole_start ? whole : iso_json_get(l->vitals, "ranks")));
  find_stopped(l);
  if (top->phase == ISO_TOP_RUNNING && top->now - top->since_s > 5 && iso_disk_free(top->run) < DISK_BYTES)
    note(top, "its disk is full: the run cannot write what it does, and may have got further than this");
  return ISO_OK;
}

iso_status iso_top_look(iso_top *top, double now) {
  looking l = {.top = top};
  top->now = now;
  const bool muted = iso_log_mute(true);
  iso_status status = look(&l);
  iso_log_mute(muted);
  iso_json_destroy(&l.vitals);
  iso_json_destroy(&l.status);
  iso_json_destroy(&l.report);
  return status == ISO_OK ? ISO_OK : iso_fail(status, "top: %s", iso_last_error());
}

iso_status iso_top_open(const char *run, iso_top **out) {
  *out = NULL;
  ISO_TRY(iso_run_folder_check(run));
  iso_top *top = calloc(1, sizeof *top);
  if (!top) return iso_fail(ISO_ERR_MEMORY, "top: no memory");
  top->run = run;
  *out = top;
  return ISO_OK;
}

void iso_top_close(iso_top **top) {
  if (!*top) return;
  free((*top)->ranks);
  free(*top);
  *top = NULL;
}
