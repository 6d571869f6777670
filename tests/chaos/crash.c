/* SPDX-License-Identifier: Apache-2.0
 *
 * crash --points N [--seed S] [--jobs J] [--delays US] [--scenario I] [--sabotage NAME]
 *
 * N simulated crashes of small runs. A run is recorded at the OS seam; at each point its folder is made as a kill or a
 * power cut in that very call would leave it, the product recovers from that and trains to the end. Checked each time:
 * the state recovered is at least as new as the last step that was called durable, and has the bits that the
 * uninterrupted run had there; the end has the bits of its end. The recovery is recorded too, and cut again.
 *
 * A run that has a second place (a mirror, a target) may lose either with all that it holds; what comes back from the
 * second place is then as new as what was said to be there.
 *
 * A point counts once: two cuts that leave the same folder are one. Points are dealt evenly to the kinds of call. With
 * --sabotage the program of that name beside this one runs, built with that fault put in on purpose. With --delays
 * threads lose time between their calls and runs are recorded often: what depends on how threads interleave comes up.
 * CRASH_LOUD=1 shows what the runs say, CRASH_DUMP=1 all calls before a loss.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEPTH = 3, SHOWN = 6, LIMIT_S = 120, MOST_SCENARIOS = 16 };

typedef struct tally {
  int64_t points, lost, wrong, repeated;
  int64_t by[STRATA], of[MOST_SCENARIOS], kills, cuts, recovered_again;
} tally;

typedef struct session {
  tally sums;
  int64_t wanted;
  dice random;
  disk *worlds; /* one of each scenario */
  uint64_t *seen;
  int seen_count, seen_capacity, told;
  int64_t fault, fault_step; /* (call, way) to fail next; every so many is this process's */
  int64_t only;              /* this scenario; -1: all */
  int64_t delays;            /* of threads between their calls, at most; in us */
} session;

static volatile sig_atomic_t rings; /* of the alarm, within this point */

static void set_alarm(void) {
  rings = 0;
  alarm(LIMIT_S);
}

static bool is_new(session *s, uint64_t hash) {
  for (int i = s->seen_count; i-- > 0;)
    if (s->seen[i] == hash) return false;
  if (s->seen_count == s->seen_capacity) {
    s->seen_capacity = s->seen_capacity * 2 + 1024;
    s->seen = realloc(s->seen, (size_t)s->seen_capacity * sizeof *s->seen);
    if (!s->seen) abort();
  }
  s->seen[s->seen_count++] = hash;
  return true;
}

static void tell(session *s, const scenario *sc, const disk *d, const cut *c, stratum at, int depth, const verdict *v) {
  const op *o = c->at < d->count ? &d->ops[c->at] : NULL;
  if (s->told++ >= SHOWN) return;
  if (getenv("CRASH_DUMP")) disk_dump(d, c);
  fprintf(stderr, "crash: %s (%s, depth %d): %s at call %d of %d (%s %s, %s), mode %d%s: %s%s\n",
          v->lost ? "LOST" : "WRONG", sc->name, depth, c->power ? "power cut" : "kill", c->at, d->count,
          o ? op_names[o->kind] : "end", o && o->name ? o->name : "", stratum_names[at], c->power ? c->mode : -1,
          disk_gone[c->gone], v->text, d->history);
}

/* The log has every step from behind `first` up to `last`; safe: and a power cut takes none of them. */
static bool log_leads(const disk *d, int64_t first, int64_t last, bool safe) {
  iso_wal_index index;
  iso_string faults = {0};
  if (iso_wal_index_read(d->root, NULL, false, 0, &index, &faults) != ISO_OK) return false;
  bool leads = true;
  for (int64_t step = first + 1; step <= last && leads; step++) {
    const iso_wal_step *found = iso_wal_index_find(&index, step);
    char name[64];
    leads = found != NULL;
    if (!found || !safe) continue;
    snprintf(name, sizeof name, "log/%.50s", index.files[found->segment].name);
    leads = disk_holds(d, name, found->commit + 2 * ISO_WAL_BLOCK);
  }
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  return leads;
}

/* Damages the newest snapshot: it is to be set aside, and an older one and the log lead on. Only where there is one,
 * and the log has caught up: of what it has not written yet the newest snapshot has the only copy. With durability disk
 * it must have synced it too, or the next power cut takes the copy that is left. */
static bool damage_newest(disk *d, bool safe) {
  char newest[128] = "", name[256];
  int published = 0, folder = -1;
  int64_t step = -1, older = -1, last = d->acked;
  int incarnation;
  const int snapshots = disk_find(d, "snapshots");
  for (int i = 0; i < d->entry_count; i++) {
    if (snapshots < 0 || d->entries[i].folder != snapshots) continue;
    snprintf(name, sizeof name, "snapshots/%s/manifest.json", d->entries[i].name);
    if (disk_find(d, name) < 0 || !iso_snapshot_name_parse(d->entries[i].name, &step, &incarnation)) continue;
    published++;
    if (step > last) last = step;
    const bool newer = strcmp(d->entries[i].name, newest) > 0;
    int64_t passed = step;
    if (newer && newest[0] && !iso_snapshot_name_parse(newest, &passed, &incarnation)) return false;
    if ((!newer || newest[0]) && passed > older) older = passed;
    if (!newer) continue;
    snprintf(newest, sizeof newest, "%s", d->entries[i].name);
    folder = d->entries[i].inode;
  }
  if (published < 2 || !log_leads(d, older, last, safe)) return false;
  for (int i = 0; i < d->entry_count; i++) {
    if (d->entries[i].folder != folder || strncmp(d->entries[i].name, "state-", 6) != 0) continue;
    snprintf(name, sizeof name, "snapshots/%s/%s", newest, d->entries[i].name);
    return disk_damage(d, name, 5000);
  }
  return false;
}

/* Damages the newest snapshot or a segment of the log: it is to come back from the second place. */
static bool damage_first(session *s, disk *d) {
  int found = 0;
  char chosen[300] = "", name[300];
  for (int i = 0; i < d->entry_count; i++) {
    const disk_entry *e = &d->entries[i];
    if (strstr(e->name, ".tmp")) continue;
    const int log = disk_find(d, "log");
    if (log >= 0 && e->folder == log) {
      snprintf(name, sizeof name, "log/%.127s", e->name);
    } else if (strncmp(e->name, "state-", 6) == 0) {
      name[0] = 0;
      for (int k = 0; k < d->entry_count && !name[0]; k++)
        if (d->entries[k].inode == e->folder)
          snprintf(name, sizeof name, "snapshots/%.127s/%.127s", d->entries[k].name, e->name);
      if (disk_find(d, name) != e->inode) continue; /* it lies elsewhere */
    } else {
      continue;
    }
    if (dice_below(&s->random, ++found) == 0) snprintf(chosen, sizeof chosen, "%s", name);
  }
  return found > 0 && disk_damage(d, chosen, dice_below(&s->random, 60000));
}

static void again(session *s, const scenario *sc, disk *d, int depth);

static void count(session *s, const scenario *sc, stratum at, const cut *c, int depth, const verdict *v) {
  s->sums.points++;
  s->sums.of[sc - scenarios]++;
  s->sums.by[at]++;
  s->sums.lost += v->lost;
  s->sums.wrong += v->wrong;
  s->sums.kills += !c->power;
  s->sums.cuts += c->power;
  s->sums.recovered_again += depth > 0;
}

/* What the cut leaves must lead to. */
static duty duty_of(const scenario *sc, const disk *from, const cut *c) {
  duty to = {.here = disk_acked(from, c->at, sc->disk, c->power), .second = disk_mirrored(from, c->at)};
  /* What the second place lacked when the first went is gone; so is what it had not got again when it went itself. One
   * that is torn by that power cut, or was by an earlier one, may hold word of steps that it does not lead to. */
  const int64_t shown = disk_acked(from, c->at, sc->disk, false);
  const bool torn = (c->gone == FIRST_PLACE && (c->power || from->boots > 0 || from->bereft)) ||
                    (c->gone == SECOND_PLACE && c->power && from->target); /* the folder owes nothing to a power cut */
  to.may_give_up = sc->second && (from->harmed || from->doubted || torn || (from->bereft && shown > to.second));
  if (c->gone == FIRST_PLACE) to.here = 0;
  if (c->gone == SECOND_PLACE) to.second = 0;
  to.acked = to.here > to.second ? to.here : to.second;
  return to;
}

/* Now and then something of what is left is damaged, and some of it with that. */
static bool harm(session *s, const scenario *sc, disk *d, const cut *c, duty *to) {
  if (c->gone || dice_below(&s->random, 4)) return false;
  if (!sc->second) return !c->power && damage_newest(d, sc->disk);
  const int64_t newest = trial_newest(d);
  if (!damage_first(s, d)) return false;
  to->may_give_up = to->may_give_up || newest > to->second;
  to->acked = to->second;
  to->here = 0;
  return true;
}

/* One point: cut, recover, check; then perhaps within that. */
static void try_point(session *s, const scenario *sc, const disk *from, const cut *c, stratum at, int depth) {
  disk d;
  verdict v;
  set_alarm();
  duty to = duty_of(sc, from, c);
  disk_after(&d, from, c);
  const bool fresh = is_new(s, disk_hash());
  if (!fresh) s->sums.repeated++;
  if (fresh) {
    d.acked = to.here;
    d.published = c->power ? to.here : c->gone == FIRST_PLACE ? 0 : disk_acked(from, c->at, false, true);
    d.mirrored = to.second;
    const bool harmed = depth == 0 && harm(s, sc, &d, c, &to);
    d.doubted = to.may_give_up;
    if (harmed) at = sc->second ? AT_RESTORE : AT_ASIDE;
    if (harmed && (sc->second || !sc->disk)) d.published = 0; /* was that snapshot, perhaps */
    if (harmed && sc->second) d.acked = 0;
    trial_recover(sc, &d, &to, &v);
    const int64_t there = sc->second ? v.here : v.recovered;
    if (c->power && there > d.published) d.published = there; /* everything there was on the disk */
    count(s, sc, at, c, depth, &v);
    if (v.lost || v.wrong) tell(s, sc, from, c, at, depth, &v);
    if (depth + 1 < DEPTH && !v.lost && !v.wrong) again(s, sc, &d, depth + 1);
  }
  disk_fini(&d);
}

static int choose_scenario(session *s) {
  return s->only >= 0 ? (int)s->only : (int)dice_below(&s->random, scenario_count);
}

static cut choose(session *s, const scenario *sc, int at) {
  const bool power = dice_below(&s->random, 10) < (sc->disk || sc->second ? 7 : 4);
  const int64_t gone = sc->second ? dice_below(&s->random, 10) : 9;
  return (cut){.at = at,
               .power = power,
               .gone = gone < 3    ? FIRST_PLACE
                       : gone == 3 ? SECOND_PLACE
                                   : NEITHER,
               .mode = dice_below(&s->random, 4) ? (int)dice_below(&s->random, CUT_MODES) : 0,
               .seed = dice_roll(&s->random)};
}

/* One of d's own ops of that kind; STRATA: of any. -1: there is none. */
static int pick(session *s, const disk *d, stratum at) {
  int found = 0, chosen = -1;
  for (int i = d->own; i < d->count; i++)
    if ((at == STRATA || d->ops[i].at == at) && dice_below(&s->random, ++found) == 0) chosen = i;
  return chosen;
}

/* A crash within a recovery, now and then two in a row. */
static void again(session *s, const scenario *sc, disk *d, int depth) {
  static const stratum kinds[] = {AT_ASIDE, AT_RECOVERY, AT_RECOVERY, STRATA};
  if (s->sums.points >= s->wanted) return;
  int at = d->restored_at ? pick(s, d, AT_RESTORE) : -1;
  if (at < 0) at = pick(s, d, kinds[dice_below(&s->random, ISO_COUNT(kinds))]);
  if (at < 0) at = pick(s, d, AT_RECOVERY);
  if (at < 0 || dice_below(&s->random, 3) == 0) return;
  cut c = choose(s, sc, at);
  const bool half_back = d->restoring || at < d->restored_at;
  if (half_back && c.gone == SECOND_PLACE) c.gone = NEITHER; /* one of the two is there */
  try_point(s, sc, d, &c, d->ops[at].at, depth);
}

enum { FAULT_CALLS = 512, FAULT_KINDS = 6, FAULT_STRIDE = 181 };

/* Of a run that goes on from where another was killed halfway, every call is made to fail in every way in turn;
 * then it is cut at its end. */
static void try_fault(session *s) {
  static const int errors[] = {EIO, ENOSPC, EINTR, EIO};
  const int which = choose_scenario(s);
  const scenario *sc = &scenarios[which];
  const disk *world = &s->worlds[which];
  const int64_t turn = s->fault;
  const int kind = (int)((turn / FAULT_CALLS + turn % FAULT_CALLS) % FAULT_KINDS);
  s->fault += s->fault_step;
  fault_plan plan = {.kind = kind < 4    ? FAULT_FAIL
                             : kind == 4 ? FAULT_SHORT
                                         : FAULT_SYNC,
                     .error = kind < 4 ? errors[kind] : EIO,
                     .at = turn * FAULT_STRIDE % (kind == 5 ? 64 : FAULT_CALLS), /* there are fewer syncs */
                     .count = kind == 3 ? 1 + dice_below(&s->random, 6) : 1};
  const cut before = {.at = world->count / 2, .seed = dice_roll(&s->random)};
  const int64_t acked = disk_acked(world, before.at, sc->disk, false),
                published = disk_acked(world, before.at, false, true), mirrored = disk_mirrored(world, before.at);
  disk d;
  set_alarm();
  disk_after(&d, world, &before);
  d.acked = acked;
  d.published = published;
  d.mirrored = mirrored;
  (void)trial_fault(sc, &d, &plan);
  const cut after = choose(s, sc, d.count);
  if (plan.met) try_point(s, sc, &d, &after, AT_FAULT, DEPTH - 1);
  disk_fini(&d);
}

static bool record_worlds(session *s, const char *root) {
  for (int i = 0; i < scenario_count; i++) {
    disk_init(&s->worlds[i], root);
    if (s->only >= 0 && i != s->only) continue;
    if (!trial_first(&scenarios[i], &s->worlds[i], &s->random)) return false;
  }
  return true;
}

static void forget_worlds(session *s) {
  for (int i = 0; i < scenario_count; i++) disk_fini(&s->worlds[i]);
}

/* A call of that kind, in whatever run has one. */
static void try_at(session *s, stratum at) {
  const bool restores = at == AT_RESTORE, ranks = at == AT_RANKS;
  int which = 0, op_at = -1;
  for (int tries = 0; op_at < 0 && tries < 4 * scenario_count; tries++) {
    which = choose_scenario(s);
    const scenario *sc = &scenarios[which];
    if ((restores && !sc->second) || (ranks && !sc->ranks)) continue;
    op_at = pick(s, &s->worlds[which], restores || ranks ? STRATA : at);
  }
  if (op_at < 0) return;
  cut c = choose(s, &scenarios[which], op_at);
  if (restores) c.gone = FIRST_PLACE;
  if (!restores && c.gone == FIRST_PLACE && at != AT_SECOND) c.gone = NEITHER;
  try_point(s, &scenarios[which], &s->worlds[which], &c, at, 0);
}

/* The worlds are recorded anew now and then: threads interleave differently each time. */
static bool work(session *s, const char *root) {
  const int64_t each = s->delays ? 150 : 1500;
  int64_t renew = each;
  disk worlds[MOST_SCENARIOS] = {0};
  s->worlds = worlds;
  bool good = record_worlds(s, root);
  for (int turn = 0; good && s->sums.points < s->wanted; turn++) {
    const stratum at = (stratum)(turn % (STRATA + 3));
    if (at >= AT_FAULT) {
      try_fault(s);
      continue;
    }
    try_at(s, at);
    if (s->sums.points < renew) continue;
    forget_worlds(s);
    good = record_worlds(s, root);
    renew += each;
  }
  forget_worlds(s);
  free(s->seen);
  return good;
}

/* ---- several processes ----------------------------------------------------------------------------------------------
 */

/* The first alarm may come from a machine that was stopped for a while. */
static void too_long(int number) {
  (void)number;
  if (rings++ == 0) {
    static const char first[] = "crash: a point takes longer than two minutes, or the machine was stopped\n";
    (void)!write(STDERR_FILENO, first, sizeof first - 1);
    alarm(LIMIT_S);
    return;
  }
  static const char text[] = "crash: a point takes longer than four minutes: something hangs\n";
  (void)!write(STDERR_FILENO, text, sizeof text - 1);
  _exit(3);
}

/* What the command line asks for. */
typedef struct request {
  int64_t points, seed, jobs, delays, only;
  char scratch[64];
} request;

static int run_worker(int worker, const request *q, int out) {
  char root[256];
  session s = {.wanted = q->points / q->jobs + (worker < q->points % q->jobs),
               .fault = worker,
               .fault_step = q->jobs,
               .only = q->only,
               .delays = q->delays};
  s.random.seed = (uint64_t)q->seed + (uint64_t)worker * 1000003;
  snprintf(root, sizeof root, "%s/run-%d", q->scratch, worker);
  seam_wander((int)q->delays);
  signal(SIGALRM, too_long);
  int cpus[256];
  const int cores = iso_cpu_order(cpus, 256);
  cpu_set_t own;
  CPU_ZERO(&own);
  if (cores > 0) CPU_SET(cpus[worker % cores], &own);
  if (cores > 0) sched_setaffinity(0, sizeof own, &own);
  const bool good = work(&s, root);
  return good && write(out, &s.sums, sizeof s.sums) == sizeof s.sums ? 0 : 2;
}

static bool run_all(const request *q, tally *sum) {
  int channel[2];
  bool good = pipe(channel) == 0;
  for (int j = 0; j < q->jobs && good; j++) {
    const pid_t child = fork();
    if (child == 0) _exit(run_worker(j, q, channel[1]));
    good = child > 0;
  }
  close(channel[1]);
  for (int status; wait(&status) > 0;) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    good = false;
    if (WIFSIGNALED(status)) fprintf(stderr, "crash: a worker died of signal %d\n", WTERMSIG(status));
  }
  for (tally t; read(channel[0], &t, sizeof t) == sizeof t;)
    for (size_t i = 0; i < sizeof t / sizeof(int64_t); i++) ((int64_t *)sum)[i] += ((int64_t *)&t)[i];
  close(channel[0]);
  return good;
}

static int report(const tally *sum, bool good) {
  printf(
      "%lld points: %lld kills, %lld power cuts; %lld of them within a recovery; %lld cuts left what another had and "
      "do not count\n",
      (long long)sum->points, (long long)sum->kills, (long long)sum->cuts, (long long)sum->recovered_again,
      (long long)sum->repeated);
  for (int i = 0; i < STRATA; i++) printf("  %-14s %lld\n", stratum_names[i], (long long)sum->by[i]);
  printf("of runs\n");
  for (int i = 0; i < scenario_count; i++) printf("  %-46s %lld\n", scenarios[i].name, (long long)sum->of[i]);
  if (!good) printf("a run without a crash failed, or a worker died (see above)\n");
  printf("lost %lld of %lld, wrong %lld of %lld\n", (long long)sum->lost, (long long)sum->points, (long long)sum->wrong,
         (long long)sum->points);
  return !good ? 2 : sum->lost || sum->wrong ? 1 : 0;
}

static int usage(void) {
  fprintf(stderr, "usage: crash --points N [--seed S] [--jobs J] [--delays US] [--scenario I] "
                  "[--sabotage ack-early|skip-fsync|skip-dirsync|reuse-buffer|skip-catch-up|count-suspended]\n");
  return 2;
}

/* The program with that fault stands beside this one. */
static int run_sabotaged(const char *name, char **arguments) {
  char path[4096 + 64];
  const ssize_t length = readlink("/proc/self/exe", path, 4096);
  if (length < 0) return 2;
  snprintf(path + length, sizeof path - (size_t)length, "-%s", name);
  execv(path, arguments);
  perror(path);
  return 2;
}

int main(int count_given, char **given) {
  request q = {.seed = 1, .jobs = iso_cpu_count(), .only = -1};
  char *rest[16];
  int kept = 0;
  const char *sabotage = NULL;
  for (int i = 0; i < count_given && kept < 15; i++) {
    if (i > 0 && strcmp(given[i], "--sabotage") == 0 && i + 1 < count_given)
      sabotage = given[++i];
    else
      rest[kept++] = given[i];
  }
  rest[kept] = NULL;
  if (sabotage) return run_sabotaged(sabotage, rest);
  for (int i = 1; i < kept; i += 2) {
    int64_t *into = strcmp(rest[i], "--points") == 0     ? &q.points
                    : strcmp(rest[i], "--seed") == 0     ? &q.seed
                    : strcmp(rest[i], "--jobs") == 0     ? &q.jobs
                    : strcmp(rest[i], "--delays") == 0   ? &q.delays
                    : strcmp(rest[i], "--scenario") == 0 ? &q.only
                                                         : NULL;
    if (!into || i + 1 >= kept) return usage();
    *into = strtoll(rest[i + 1], NULL, 10);
  }
  if (q.points < 1 || q.jobs < 1 || q.only >= scenario_count || q.delays < 0 || q.delays > 100000) return usage();
  if (q.jobs > q.points) q.jobs = q.points;
  struct stat shm;
  snprintf(q.scratch, sizeof q.scratch, "%s/isotach-crash.XXXXXX", stat("/dev/shm", &shm) == 0 ? "/dev/shm" : "/tmp");
  if (!mkdtemp(q.scratch)) return 2;
  tally sum = {0};
  if (!getenv("CRASH_LOUD")) iso_log_quiet(true);
  iso_os_table plain = iso_os;
  const bool prepared = trial_prepare(q.scratch, q.only >= 0 ? &scenarios[q.only] : NULL);
  iso_os = plain;
  if (!prepared) fprintf(stderr, "crash: the run without a crash: %s\n", iso_last_error());
  const bool good = prepared && run_all(&q, &sum);
  disk removing;
  disk_init(&removing, q.scratch);
  disk_fini(&removing);
  return report(&sum, good);
}
