/* SPDX-License-Identifier: Apache-2.0
 *
 * One process writes to a target that a run's durable state lives in, whichever host it is on.
 *
 * A target knows only one thing that two processes cannot both do: to make a name that must not exist. So ownership is
 * a row of names, owner/%012lld: the owner is who made the highest number. A sign of life makes the next one and
 * removes the one before, and so does letting go. Each holds one line:
 *
 *   "<host> <pid> <boot id> <start of the process in clock ticks since boot> <32 random hex digits> crc32c:<so far>\n"
 *   "released crc32c:<so far>\n"
 *
 * Invariants
 *  1. Who makes number n + 1 has seen n, and that its owner is gone, or was silent for SILENT_S by this host's clock.
 *  2. An owner that is not sure to be the owner (its last sign of life began more than LEASE_S ago) acknowledges
 *     nothing before its next sign of life; LEASE_S and a request are shorter than SILENT_S. No clocks are compared.
 *  3. Numbers never go back: the next one is made before the one before is removed, and the last one stays. A lower one
 *     can be made again by who slept that long: whoever made a number looks whether it is the highest.
 */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BEAT_S = 5, LEASE_S = 20, SILENT_S = 30, LOOK_MS = 500, MOST_TRIES = 8, RELEASE_S = 3 };

struct iso_target_lock {
  iso_target *target;
  iso_owner me;
  iso_string line;
  int64_t number;
  double beat_s; /* when the last sign of life began */
};

/* Goes on while a machine sleeps. */
static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void name_of(int64_t number, char name[40]) {
  snprintf(name, 40, "owner/%012lld", (long long)number);
}

static int64_t number_of(const char *name) {
  long long number = 0;
  int end = 0;
  return sscanf(name, "owner/%12lld%n", &number, &end) == 1 && end == 18 && !name[end] ? number : 0;
}

/* The highest number; 0: there is none. Those below `below` are removed. */
static iso_status look(iso_target *target, int64_t below, int64_t *newest) {
  iso_target_entry *entries;
  size_t count;
  *newest = 0;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? target->ops->list(target, arena, "owner/", &entries, &count)
                            : iso_fail(ISO_ERR_MEMORY, "'%s': no memory to look for its owner", target->where);
  for (size_t i = 0; status == ISO_OK && i < count; i++) {
    const int64_t number = number_of(entries[i].name);
    if (number > *newest) *newest = number;
    if (number && number < below) status = target->ops->remove(target, entries[i].name);
  }
  iso_arena_destroy(&arena);
  return status;
}

/* *known false: it is gone meanwhile, or released. */
static iso_status read_owner(iso_target *target, int64_t number, iso_owner *who, bool *known) {
  char name[40], *text;
  size_t bytes;
  name_of(number, name);
  ISO_TRY(target->ops->get(target, name, &text, &bytes));
  *known = text && iso_owner_parse(text, who);
  free(text);
  return ISO_OK;
}

static iso_status busy(const iso_target *target, const iso_owner *who, const char *advice) {
  return iso_fail(ISO_ERR_BUSY, "run in use: '%s' is held by process %ld on host %s; %s", target->where, who->pid,
                  who->host, advice);
}

/* Looks for signs of life of who made `number`, for SILENT_S. */
static iso_status watch(iso_target *target, int64_t number, iso_owner *who) {
  bool held;
  iso_note("'%s' was last held by process %ld on host %s: looking for %d s whether it is silent", target->where,
           who->pid, who->host, SILENT_S);
  for (const double until = now_s() + SILENT_S; now_s() < until;) {
    int64_t newest;
    nanosleep(&(struct timespec){0, LOOK_MS * 1000000L}, NULL);
    if (iso_http_stopping()) return ISO_STOPPED;
    ISO_TRY(look(target, 0, &newest));
    if (newest == number) continue;
    ISO_TRY(read_owner(target, newest, who, &held));
    return held ? busy(target, who, "it is alive; stop it first") : ISO_OK;
  }
  iso_warn("'%s': taking over from process %ld on host %s, which is silent", target->where, who->pid, who->host);
  return ISO_OK;
}

/* Whether who made `number` may be replaced. */
static iso_status judge(iso_target_lock *l, int64_t number, bool take_over) {
  iso_owner who;
  bool known;
  ISO_TRY(read_owner(l->target, number, &who, &known));
  if (!known || iso_owner_is_gone(&who, &l->me)) return ISO_OK;
  const bool rebooted = strcmp(who.host, l->me.host) == 0 && strcmp(who.boot, l->me.boot) != 0;
  if (!take_over && !rebooted)
    return busy(l->target, &who, "stop it, or, if it is known to be gone or to hang, say --take-over");
  return watch(l->target, number, &who);
}

/* Makes the number behind `number`, with that line, and removes those before; *made false: another process owns the
 * target. Whose number is not the highest afterwards came too late: the row had gone on, and its name had gone. */
static iso_status claim(iso_target_lock *l, int64_t number, const iso_string *line, bool *made) {
  char name[40];
  bool taken = false;
  int64_t newest;
  name_of(number + 1, name);
  const double began_s = now_s();
  *made = false;
  ISO_TRY(l->target->ops->put(l->target, name, line->data, line->length, &taken));
  if (taken) return ISO_OK;
  ISO_TRY(look(l->target, number + 1, &newest));
  if (newest > number + 1) return l->target->ops->remove(l->target, name);
  *made = true;
  l->number = number + 1;
  l->beat_s = began_s;
  return ISO_OK;
}

static iso_status acquire(iso_target_lock *l, bool take_over) {
  char attempt[33];
  int64_t newest;
  ISO_TRY(iso_attempt_id(attempt));
  iso_owner_self(&l->me);
  iso_string_printf(&l->line, "%s %ld %s %llu %s", l->me.host, l->me.pid, l->me.boot, l->me.start, attempt);
  iso_record_seal_plain(&l->line);
  if (iso_string_failed(&l->line)) return ISO_ERR_MEMORY;
  for (int tries = 0; tries < MOST_TRIES; tries++) {
    bool made;
    ISO_TRY(look(l->target, 0, &newest));
    if (newest) ISO_TRY(judge(l, newest, take_over));
    ISO_TRY(claim(l, newest, &l->line, &made));
    if (made) return ISO_OK;
  }
  return iso_fail(ISO_ERR_BUSY, "run in use: other processes are taking '%s' at this moment; try again",
                  l->target->where);
}

iso_status iso_target_lock_acquire(iso_target *target, bool take_over, iso_target_lock **out) {
  *out = NULL;
  iso_target_lock *l = calloc(1, sizeof *l);
  if (!l) return iso_fail(ISO_ERR_MEMORY, "no memory to own '%s'", target->where);
  l->target = target;
  const iso_status status = acquire(l, take_over);
  if (status != ISO_OK) {
    iso_target_lock_release(&l);
    return status;
  }
  *out = l;
  return ISO_OK;
}

static iso_status taken_over(const iso_target_lock *l) {
  iso_owner who;
  bool known;
  int64_t newest;
  char by[300] = "another process";
  ISO_TRY(look(l->target, 0, &newest));
  ISO_TRY(read_owner(l->target, newest, &who, &known));
  if (known) snprintf(by, sizeof by, "process %ld on host %s", who.pid, who.host);
  return iso_fail(ISO_ERR_BUSY, "'%s' was taken over by %s; what this process writes counts no more, so it ends",
                  l->target->where, by);
}

iso_status iso_target_lock_beat(iso_target_lock *l) {
  bool made;
  if (!l->number) return taken_over(l);
  if (now_s() < l->beat_s + BEAT_S) return ISO_OK;
  ISO_TRY(claim(l, l->number, &l->line, &made));
  if (made) return ISO_OK;
  l->number = 0; /* nothing here is ours any more */
  return taken_over(l);
}

bool iso_target_lock_holds(const iso_target_lock *l) {
  return l->number && now_s() < l->beat_s + LEASE_S;
}

/* Whoever comes next need not wait then. */
static void let_go(iso_target_lock *l) {
  iso_string released = {0};
  bool made;
  iso_string_printf(&released, "released");
  iso_record_seal_plain(&released);
  if (!iso_string_failed(&released)) (void)!claim(l, l->number, &released, &made);
  iso_string_fini(&released);
}

void iso_target_lock_release(iso_target_lock **address) {
  static atomic_bool never; /* a signal that ended the run does not end these requests */
  iso_target_lock *l = *address;
  if (!l) return;
  *address = NULL;
  iso_log_mute(true);
  iso_s3_patience_of_thread(RELEASE_S);
  iso_http_stop_by(&never);
  if (l->number) let_go(l);
  iso_http_stop_by(NULL);
  iso_s3_patience_of_thread(0);
  iso_log_mute(false);
  iso_string_fini(&l->line);
  free(l);
}
