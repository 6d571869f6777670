/* SPDX-License-Identifier: Apache-2.0
 *
 * orders [--seed S]
 *
 * Crashes that chance seldom meets, each made on purpose. All are of one kind: a start changes something that a durable
 * step hangs on before what replaces it is on the disk; a power cut in between, or right after, then loses the step.
 *
 * A start whose disk refuses to read the newest snapshot must not move it away while it is the only copy of a durable
 * step, nor before the log that leads as far is synced. One whose disk refuses to read some of the log must not go on
 * where durable steps may follow. The disk reads again after the next power cut, so whatever the start did, the step is
 * to be there.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVERY = 11 /* calls between the kills */, FOREVER = 1 << 30 };

typedef struct tally {
  int64_t starts, refused, went_on, cuts, lost;
} tally;

/* Step and path of the newest snapshot that is published; -1: none. */
static int64_t newest_published(const disk *d, char path[128]) {
  int64_t newest = -1, step;
  int incarnation;
  char manifest[200];
  const int snapshots = disk_find(d, "snapshots");
  for (int i = 0; i < d->entry_count && snapshots >= 0; i++) {
    const disk_entry *e = &d->entries[i];
    if (e->folder != snapshots || !iso_snapshot_name_parse(e->name, &step, &incarnation)) continue;
    snprintf(manifest, sizeof manifest, "snapshots/%.100s/manifest.json", e->name);
    if (disk_find(d, manifest) < 0 || step <= newest) continue;
    newest = step;
    snprintf(path, 128, "snapshots/%.100s", e->name);
  }
  return newest;
}

/* What is there after a power cut in any call of the start, or behind its last one. */
static void cut_everywhere(const scenario *sc, const disk *started, int64_t killed_acked, tally *sum) {
  for (int at = started->own; at <= started->count; at++) {
    disk d;
    verdict v;
    const cut power = {.at = at, .power = true, .seed = (uint64_t)at};
    int64_t acked = disk_acked(started, at, sc->disk, true);
    if (killed_acked > acked) acked = killed_acked;
    disk_after(&d, started, &power);
    trial_look(sc, &d, acked, &v);
    sum->cuts++;
    sum->lost += v.lost || v.wrong;
    if ((v.lost || v.wrong) && sum->lost <= 3)
      fprintf(stderr, "orders: %s: power cut at call %d of %d: %s\n", sc->name, at, started->count, v.text);
    disk_fini(&d);
  }
}

/* A crash in that call, then a start whose reads fail as planned, and a crash in each call of that. */
static void start_blind(const scenario *sc, const disk *world, const cut *c, fault_plan *plan, tally *sum) {
  disk d;
  char path[128];
  const int64_t acked = disk_acked(world, c->at, sc->disk, c->power);
  disk_after(&d, world, c);
  d.acked = acked;
  const int64_t newest = newest_published(&d, path);
  if (!plan->under) plan->under = path;
  if (newest > 0 && acked > 0) {
    const bool went_on = trial_fault(sc, &d, plan);
    sum->starts += plan->met;
    sum->went_on += plan->met && went_on;
    sum->refused += plan->met && !went_on;
    cut_everywhere(sc, &d, acked, sum);
  }
  disk_fini(&d);
}

/* The newest snapshot cannot be read, which a durable step may hang on. */
static void without_snapshot(const scenario *sc, const disk *world, int at, tally *sum) {
  const cut kill = {.at = at, .seed = (uint64_t)at};
  fault_plan plan = {.kind = FAULT_READ, .error = EIO, .count = FOREVER};
  start_blind(sc, world, &kill, &plan, sum);
}

/* Some of the log cannot be read, after a power cut that took what metrics.jsonl said of durable steps. */
static void without_log(const scenario *sc, const disk *world, int at, dice *random, tally *sum) {
  const cut power = {.at = at, .power = true, .seed = (uint64_t)at};
  fault_plan plan = {.kind = FAULT_READ, .error = EIO, .under = "log/", .at = dice_below(random, 40), .count = FOREVER};
  start_blind(sc, world, &power, &plan, sum);
}

static bool examine(const char *root, const scenario *sc, uint64_t seed, tally sums[2]) {
  disk world;
  dice random = {.seed = seed};
  disk_init(&world, root);
  if (!trial_first(sc, &world, &random)) return false;
  for (int at = (int)dice_below(&random, EVERY); at < world.count; at += EVERY) {
    if (sc->gap) without_snapshot(sc, &world, at, &sums[0]);
    if (!sc->gap) without_log(sc, &world, at, &random, &sums[1]);
  }
  disk_fini(&world);
  return true;
}

/* Which calls there are depends on how threads interleave: where a kind was not met, others are tried. */
enum { MOST_ROUNDS = 12 };
static bool has_met_all(const tally sums[2]) {
  return sums[0].went_on && sums[0].refused && sums[1].went_on && sums[1].refused;
}

int main(int count, char **given) {
  uint64_t seed = count == 3 && strcmp(given[1], "--seed") == 0 ? strtoull(given[2], NULL, 10) : 1;
  char scratch[64], root[128];
  struct stat shm;
  tally sums[2] = {0};
  snprintf(scratch, sizeof scratch, "%s/isotach-orders.XXXXXX", stat("/dev/shm", &shm) == 0 ? "/dev/shm" : "/tmp");
  if (!mkdtemp(scratch)) return 2;
  if (!getenv("CRASH_LOUD")) iso_log_quiet(true);
  snprintf(root, sizeof root, "%s/run", scratch);
  bool good = trial_prepare(scratch, &scenarios[0]);
  for (int round = 0; round < MOST_ROUNDS && good && !has_met_all(sums); round++)
    for (int i = 0; i < scenario_count && good; i++)
      if (scenarios[i].disk && !scenarios[i].packed && !scenarios[i].stop_at && !scenarios[i].ranks &&
          !scenarios[i].slow)
        good = examine(root, &scenarios[i], seed + (uint64_t)round, sums);
  disk removing;
  disk_init(&removing, scratch);
  disk_fini(&removing);
  if (!good) fprintf(stderr, "orders: a run without a crash failed: %s\n", iso_last_error());
  for (int i = 0; i < 2; i++)
    printf("%lld starts that could not read %s: %lld went on, %lld were refused; lost %lld of %lld crashes in them\n",
           (long long)sums[i].starts, i ? "some of the log" : "the newest snapshot", (long long)sums[i].went_on,
           (long long)sums[i].refused, (long long)sums[i].lost, (long long)sums[i].cuts);
  good = good && has_met_all(sums);
  return !good ? 2 : sums[0].lost || sums[1].lost;
}
