/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that mirrors a run: pass after pass as steps become durable here, and again after pauses while the mirror
 * cannot be reached. The run never waits for it. The same thread writes a first target (checkpoint.target): then the
 * run calls durable what is there.
 *
 * Invariants
 *  1. Whatever happens to the mirror, the run goes on, but for one thing: another process has gone on from the mirror.
 *  2. An outage is said once when it begins and once when it is over.
 *  3. What the thread does is bounded by two pieces of memory and one request at a time.
 *  4. RUN/mirror.json (of a first target target.json) says where the mirror is and how far, for those who look at the
 * run.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double FIRST_PAUSE_S = 1, LAST_PAUSE_S = 30, IDLE_S = 5, BATCH_S = 0.05, NOTE_S = 2, GIVE_UP_S = 15,
                    HUNG_S = 5, LAST_PAUSE_OF_FIRST_S = 5, IDLE_OF_FIRST_S = 0.2;

enum { FUTILE = 3 }; /* last passes, from which on what is written again and again is no progress */

struct iso_mirror {
  char *run;
  char uuid[37];
  iso_target *target;
  iso_target_lock *owned; /* a first target; NULL: a mirror */
  void (*settle)(void);
  iso_mirror_shared shared;
  iso_mirror_work *work; /* the thread's, after the claim */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* guarded: */
  bool woken, finish, ended, complete;
  int futile; /* last passes in a row that failed and took no more there than the one before: the same again */
  iso_mirror_state state;
  double outage_since_s;
  /* the thread's: */
  double noted_s;
};

/* ---- mirror.json ---- */

static const char *step_key(const char *role) {
  return strcmp(role, "target") == 0 ? "durable_step" : "mirrored_step";
}

static void note_write(iso_mirror *m, bool now) {
  if (!now && iso_clock_s() < m->noted_s + NOTE_S) return;
  m->noted_s = iso_clock_s();
  iso_string text = {0}, path = {0};
  pthread_mutex_lock(&m->lock);
  const iso_mirror_state state = m->state;
  pthread_mutex_unlock(&m->lock);
  const char *role = iso_target_role(m->target);
  iso_string_printf(&path, "%s/%s.json", m->run, role);
  iso_string_printf(&text, "{\n  \"%s\": ", role);
  iso_json_quote(&text, m->target->where, strlen(m->target->where));
  iso_string_printf(&text, ",\n  \"%s\": %lld,\n  \"outages\": %lld,\n  \"outage\": ", step_key(role),
                    (long long)m->shared.mirrored, (long long)state.outages);
  const char *cause = state.outage || state.lost ? state.cause : "";
  iso_json_quote(&text, cause, strlen(cause));
  iso_record_seal(&text);
  if (!iso_string_failed(&text) && !iso_string_failed(&path))
    (void)!iso_file_replace(path.data, text.data, text.length); /* a folder that takes nothing is said by the run */
  iso_string_fini(&text);
  iso_string_fini(&path);
}

iso_status iso_mirror_note_read(const char *run, const char *role, iso_mirror_note *note, bool *there) {
  iso_string path = {0}, name = {0};
  iso_json *json;
  const char *where, *cause;
  *note = (iso_mirror_note){0};
  iso_string_printf(&name, "%s.json", role);
  iso_string_printf(&path, "%s/%s.json", run, role);
  iso_status status = iso_string_failed(&path) || iso_string_failed(&name) ? ISO_ERR_MEMORY : ISO_OK;
  if (status == ISO_OK) status = iso_path_probe(path.data, there);
  if (status != ISO_OK || !*there) {
    iso_string_fini(&path);
    iso_string_fini(&name);
    return status;
  }
  iso_string faults = {0};
  bool sealed;
  status = iso_record_read_any(path.data, name.data, &json, &sealed, &faults);
  if (status != ISO_OK)
    status = iso_fail(status, "%s/%s; the next start with checkpoint.%s writes it anew", run, iso_fault_first(&faults),
                      role);
  iso_string_fini(&faults);
  if (status == ISO_OK) {
    status = iso_json_int(json, path.data, step_key(role), 0, &note->step);
    if (status == ISO_OK) status = iso_json_int(json, path.data, "outages", 0, &note->outages);
    if (status == ISO_OK) status = iso_json_string(json, path.data, role, "", &where);
    if (status == ISO_OK) status = iso_json_string(json, path.data, "outage", "", &cause);
    if (status == ISO_OK) {
      snprintf(note->where, sizeof note->where, "%s", where);
      snprintf(note->cause, sizeof note->cause, "%s", cause);
    }
    iso_json_destroy(&json);
  }
  iso_string_fini(&path);
  iso_string_fini(&name);
  return status;
}

/* ---- outages ---- */

/* What a pass came to; says when an outage begins or is over, or that the run goes on elsewhere. */
static void take_result(iso_mirror *m, iso_status status) {
  pthread_mutex_lock(&m->lock);
  iso_mirror_state *s = &m->state;
  const bool was = s->outage;
  const double lasted_s = iso_clock_s() - m->outage_since_s;
  const bool lost = status == ISO_ERR_BUSY || status == ISO_ERR_MISMATCH;
  if (status != ISO_OK && status != ISO_STOPPED) snprintf(s->cause, sizeof s->cause, "%.250s", iso_last_error());
  if (lost) s->lost = status;
  if (status == ISO_OK) s->outage = false;
  if (status != ISO_OK && status != ISO_STOPPED && !lost && !was) {
    s->outage = true;
    s->outages++;
    m->outage_since_s = iso_clock_s();
  }
  const bool begins = s->outage && !was, ends = was && !s->outage;
  const char *role = iso_target_role(m->target), *reached = m->owned ? "durable" : "mirrored";
  pthread_mutex_unlock(&m->lock);
  iso_log_mute(false);
  if (begins)
    iso_warn("%s '%s' cannot be written (%s); training goes on, %s is step %lld; trying again", role, m->target->where,
             iso_last_error(), reached, (long long)m->shared.mirrored);
  if (ends)
    iso_note("%s '%s' is written again after %.0f s; %s is step %lld", role, m->target->where, lasted_s, reached,
             (long long)m->shared.mirrored);
  iso_log_mute(true);
  note_write(m, begins || ends || lost || status == ISO_OK);
}

/* ---- the thread ---- */

/* Waits for something to do, at most max_s, not shorter than least_s unless the run ends. */
static void wait_for_work(iso_mirror *m, double least_s, double max_s, bool *finish) {
  const double began = iso_clock_s();
  pthread_mutex_lock(&m->lock);
  for (;;) {
    const double waited = iso_clock_s() - began;
    if (m->shared.stop || m->finish || waited >= max_s || (m->woken && waited >= least_s)) break;
    const double until_s = m->woken ? least_s : max_s;
    (void)iso_condition_wait(&m->changed, &m->lock, began + until_s);
  }
  m->woken = false;
  *finish = m->finish;
  pthread_mutex_unlock(&m->lock);
}

static void *run_thread(void *argument) {
  iso_mirror *m = argument;
  double pause_s = 0;
  int64_t wrote = -1, reached = -1;
  bool finish = false, over = false;
  if (m->settle) m->settle();
  iso_log_mute(true);
  iso_s3_patience_of_thread(GIVE_UP_S);
  iso_http_stop_by(&m->shared.stop);
  while (!over) {
    const bool last = finish;
    const int64_t before = m->shared.bytes;
    const iso_status status = iso_mirror_pass(m->work, last);
    take_result(m, status);
    const bool same = m->shared.bytes - before == wrote && m->shared.mirrored == reached;
    wrote = m->shared.bytes - before;
    reached = m->shared.mirrored;
    pthread_mutex_lock(&m->lock);
    m->futile = last && status != ISO_OK && same ? m->futile + 1 : 0;
    m->complete = last && status == ISO_OK;
    over = m->complete || m->state.lost || status == ISO_STOPPED || m->shared.stop;
    pthread_mutex_unlock(&m->lock);
    if (over) break;
    pause_s = status == ISO_OK ? 0 : pause_s > 0 ? 2 * pause_s : FIRST_PAUSE_S;
    const double longest_s = m->owned ? LAST_PAUSE_OF_FIRST_S : LAST_PAUSE_S;
    if (pause_s > longest_s) pause_s = longest_s;
    if (finish && pause_s > 0) { /* the last pass again, while whoever closes waits */
      for (double until = iso_clock_s() + FIRST_PAUSE_S; iso_clock_s() < until && !m->shared.stop;)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
      continue;
    }
    const double least_s = m->owned ? 0 : BATCH_S, most_s = m->owned ? IDLE_OF_FIRST_S : IDLE_S;
    wait_for_work(m, pause_s > 0 ? pause_s : least_s, pause_s > 0 ? pause_s : most_s, &finish);
  }
  note_write(m, true);
  iso_http_stop_by(NULL);
  pthread_mutex_lock(&m->lock);
  m->ended = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

static void destroy(iso_mirror *m) {
  iso_target_lock_release(&m->owned);
  iso_mirror_work_destroy(&m->work);
  iso_target_close(&m->target);
  pthread_cond_destroy(&m->changed);
  pthread_mutex_destroy(&m->lock);
  free(m->run);
  free(m);
}

/* Who went on from the mirror meanwhile is known before the first step. A first target must be there. */
static iso_status first_claim(iso_mirror *m, bool first) {
  iso_log_mute(true);
  iso_s3_patience_of_thread(GIVE_UP_S);
  const iso_status status = iso_mirror_claim(m->work);
  iso_s3_patience_of_thread(0);
  iso_log_mute(false);
  if ((first && status != ISO_OK) || status == ISO_ERR_BUSY || status == ISO_ERR_MISMATCH || status == ISO_STOPPED)
    return iso_fail(status, "%s", iso_last_error());
  return ISO_OK;
}

iso_status iso_mirror_open(const char *run, const char *uuid, int incarnation, int64_t durable, iso_target *target,
                           iso_target_lock *owned, void (*settle)(void), iso_mirror **out) {
  *out = NULL;
  iso_mirror *m = calloc(1, sizeof *m);
  if (!m) return iso_fail(ISO_ERR_MEMORY, "mirror of '%s': out of memory", run);
  pthread_mutex_init(&m->lock, NULL);
  iso_condition_init(&m->changed);
  m->run = strdup(run);
  m->settle = settle;
  m->shared.durable = durable;
  snprintf(m->uuid, sizeof m->uuid, "%s", uuid);
  iso_status status = m->run ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "mirror of '%s': out of memory", run);
  if (status == ISO_OK)
    status = iso_mirror_work_create(m->run, m->uuid, incarnation, target, owned, &m->shared, &m->work);
  if (status == ISO_OK) status = first_claim(m, owned != NULL);
  m->target = status == ISO_OK ? target : NULL;
  m->owned = status == ISO_OK ? owned : NULL;
  const int error = status == ISO_OK ? iso_thread_start(&m->thread, run_thread, m) : 0;
  if (error) {
    status = iso_fail(ISO_ERR_MEMORY, "mirror: cannot start its thread: %s", strerror(error));
    m->target = NULL;
    m->owned = NULL;
  }
  if (status != ISO_OK) {
    destroy(m);
    return status;
  }
  *out = m;
  return ISO_OK;
}

void iso_mirror_tell(iso_mirror *m, int64_t durable) {
  if (durable == m->shared.durable) return;
  m->shared.durable = durable;
  pthread_mutex_lock(&m->lock);
  m->woken = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
}

void iso_mirror_leap(iso_mirror *m, bool behind) {
  m->shared.behind = behind;
}

void iso_mirror_state_get(iso_mirror *m, iso_mirror_state *state) {
  pthread_mutex_lock(&m->lock);
  *state = m->state;
  pthread_mutex_unlock(&m->lock);
  state->step = m->shared.mirrored;
  state->bytes = m->shared.bytes;
  state->things = m->shared.things;
}

/* Until the thread has ended or `enough` is there, at most max_s, and during an outage outage_s in which nothing new is
 * taken: it is over only with a whole pass, which may have much to do. */
static bool wait_ended(iso_mirror *m, double max_s, double outage_s, int64_t enough) {
  const double began = iso_clock_s();
  double took = began;
  int64_t things = m->shared.things;
  bool ended;
  for (;;) {
    const double now = iso_clock_s();
    pthread_mutex_lock(&m->lock);
    ended = m->ended;
    if (m->shared.things != things) took = now;
    things = m->shared.things;
    const double since = m->futile >= FUTILE ? began : took;
    const bool over = now - began >= max_s || (m->state.outage && now - since >= outage_s);
    pthread_mutex_unlock(&m->lock);
    if (ended || over || m->shared.mirrored >= enough) return ended;
    nanosleep(&(struct timespec){0, 5000000}, NULL);
  }
}

void iso_mirror_close(iso_mirror **address, double max_s, double outage_s, int64_t enough, iso_mirror_state *last) {
  iso_mirror *m = *address;
  if (!m) return;
  *address = NULL;
  pthread_mutex_lock(&m->lock);
  m->finish = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
  bool ended = wait_ended(m, max_s, outage_s, enough);
  m->shared.stop = true;
  if (!ended) ended = wait_ended(m, HUNG_S, HUNG_S, INT64_MAX);
  pthread_mutex_lock(&m->lock);
  const bool short_of = !m->complete && !m->state.lost && m->shared.mirrored < enough;
  m->state.complete = m->complete;
  pthread_mutex_unlock(&m->lock);
  iso_mirror_state_get(m, last);
  if (short_of)
    iso_warn("%s '%s' is not complete: %s is step %lld; the next start goes on", iso_target_role(m->target),
             m->target->where, m->owned ? "durable" : "mirrored", (long long)m->shared.mirrored);
  if (!ended) { /* in a call that does not return: a mount that hangs */
    pthread_detach(m->thread);
    return;
  }
  pthread_join(m->thread, NULL);
  destroy(m);
}
