/* SPDX-License-Identifier: Apache-2.0
 *
 * orders [--seed S]
 *
 * Crashes that chance seldom meets, each made on purpose. All are of one kind: a start changes something that a durable
 * step hangs on before what replaces it is on the disk; a power cut in between, or right after, then loses the step.
 *
 * A start whose disk refuses to read the newest snapshot must not move it away while it is the only copy of a durable
 * step, nor before the log that leads as far is synced. The disk reads again after the next power cut, so whatever the
 * start did, the step is to be there.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVERY = 11 /* calls between the kills */ };

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
    trial_look(&d, acked, &v);
    sum->cuts++;
    sum->lost += v.lost || v.wrong;
    if ((v.lost || v.wrong) && sum->lost <= 3)
      fprintf(stderr, "orders: %s: power cut at call %d of %d: %s\n", sc->name, at, started->count, v.text);
    disk_fini(&d);
  }
}

/* A kill in that call; then a start that cannot read the newest snapshot, which a durable step may hang on. */
static void refuse_to_read(const scenario *sc, const disk *world, int at, tally *sum) {
  disk d;
  char path[128];
  const cut kill = {.at = at, .seed = (uint64_t)at};
  const int64_t acked = disk_acked(world, at, sc->disk, false);
  disk_after(&d, world, &kill);
  d.acked = acked;
  const int64_t newest = newest_published(&d, path);
  if (newest > 0 && acked > 0) {
    fault_plan plan = {.kind = FAULT_READ, .error = EIO, .under = path, .count = INT64_MAX};
    sum->starts++;
    *(trial_fault(sc, &d, &plan) ? &sum->went_on : &sum->refused) += 1;
    cut_everywhere(sc, &d, acked, sum);
  }
  disk_fini(&d);
}

static bool examine(const char *root, const scenario *sc, uint64_t seed, tally *sum) {
  disk world;
  dice random = {.seed = seed};
  disk_init(&world, root);
  if (!trial_first(sc, &world, &random)) return false;
  for (int at = (int)dice_below(&random, EVERY); at < world.count; at += EVERY) refuse_to_read(sc, &world, at, sum);
  disk_fini(&world);
  return true;
}

int main(int count, char **given) {
  uint64_t seed = count == 3 && strcmp(given[1], "--seed") == 0 ? strtoull(given[2], NULL, 10) : 1;
  char scratch[64], root[128];
  struct stat shm;
  tally sum = {0};
  snprintf(scratch, sizeof scratch, "%s/isotach-orders.XXXXXX", stat("/dev/shm", &shm) == 0 ? "/dev/shm" : "/tmp");
  if (!mkdtemp(scratch)) return 2;
  if (!getenv("CRASH_LOUD")) iso_log_quiet(true);
  snprintf(root, sizeof root, "%s/run", scratch);
  bool good = trial_prepare(scratch);
  for (int i = 0; i < scenario_count && good; i++)
    if (scenarios[i].disk && scenarios[i].gap) good = examine(root, &scenarios[i], seed, &sum);
  disk removing;
  disk_init(&removing, scratch);
  disk_fini(&removing);
  if (!good) fprintf(stderr, "orders: a run without a crash failed: %s\n", iso_last_error());
  printf("%lld starts that could not read the newest snapshot: %lld went on by the log, %lld were refused\n",
         (long long)sum.starts, (long long)sum.went_on, (long long)sum.refused);
  printf("lost %lld of %lld\n", (long long)sum.lost, (long long)sum.cuts);
  return !good || !sum.went_on || !sum.refused ? 2 : sum.lost ? 1 : 0;
}
