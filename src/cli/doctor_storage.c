/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, the storage: what the run's folder stands on, whether names can be published without replacing, how
 * much a plain writer gets onto it and how long a sync takes, and whether the mirror answers and keeps its promise.
 *
 * The writer opens with O_DIRECT where the file system has that. It stops after a second and a half, a gigabyte, or a
 * tenth of what is free.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/cli.h"

enum { PIECE = 8 << 20, SYNCS = 40, PAGE = 4096 };
static const double write_s = 1.5, most_bytes = 1e9, sync_p95_s = 0.05, sign_rate = 800e6;

typedef struct kind {
  unsigned long magic;
  const char *name;
} kind;
static const kind kinds[] = {{0xEF53, "ext4"},        {0x58465342, "xfs"},   {0x9123683E, "btrfs"},
                             {0x01021994, "tmpfs"},   {0x858458F6, "ramfs"}, {0x6969, "nfs"},
                             {0x794C7630, "overlay"}, {0x65735546, "fuse"},  {0x2FC12FC1, "zfs"},
                             {0xBD00BD0, "lustre"},   {0x47504653, "gpfs"},  {0xFF534D42, "cifs"}};

static const char *kind_of(const char *folder) {
  struct statfs info;
  if (statfs(folder, &info) != 0) return "unknown";
  for (size_t i = 0; i < ISO_COUNT(kinds); i++)
    if ((unsigned long)info.f_type == kinds[i].magic) return kinds[i].name;
  return "another";
}

static void check_place(iso_doctor *d, const char *folder) {
  const char *name = kind_of(folder);
  const bool memory = strcmp(name, "tmpfs") == 0 || strcmp(name, "ramfs") == 0;
  const double free_bytes = (double)iso_disk_free(folder);
  /* The kept snapshots, one that is being written, and as much of the log as the steps between two snapshots. */
  const double need = d->state_bytes * (double)(d->config.checkpoint.keep_last + 1);
  const bool none = d->state_bytes > 0 && free_bytes >= 0 && free_bytes < d->state_bytes, few = free_bytes < need;
  iso_doctor_add(d, "storage",
                 none            ? ISO_VERDICT_STOP
                 : memory || few ? ISO_VERDICT_WARNING
                                 : ISO_VERDICT_OK,
                 "a disk with room for the kept snapshots, one more, and the log between them",
                 none || few ? "free space, choose another `run`, or lower checkpoint.keep_last"
                             : "memory is gone after a power cut: choose a folder on a disk",
                 "%s with %s free; %lld snapshots of %s, %s%s", name,
                 free_bytes >= 0 ? iso_doctor_bytes(d, free_bytes) : "?", (long long)d->config.checkpoint.keep_last + 1,
                 d->state_bytes > 0 ? iso_doctor_bytes(d, d->state_bytes) : "a size not known",
                 d->log_bytes > 0 ? "a step's log of " : "no log",
                 d->log_bytes > 0 ? iso_doctor_bytes(d, d->log_bytes) : "");
}

/* Writes one page; false, logged. */
static bool put_page(const char *path, const char *text) {
  char page[PAGE] = {0};
  (void)strncpy(page, text, sizeof page - 1);
  return iso_file_replace(path, page, sizeof page) == ISO_OK;
}

static void check_names(iso_doctor *d, const char *folder) {
  const char *wanted = "a rename that does not replace, or a hard link", *advice = "choose another `run` folder";
  const char *one = iso_path_join(d->arena, folder, "one"), *two = iso_path_join(d->arena, folder, "two");
  if (!one || !two || !put_page(one, "one") || !put_page(two, "two")) {
    iso_doctor_failed(d, "publishing", ISO_VERDICT_STOP, wanted, advice);
    return;
  }
  errno = 0;
  const bool kept = iso_os.rename_noreplace(one, two) != 0 && errno == EEXIST;
  const bool moved = iso_os.unlink(two) == 0 && iso_os.rename_noreplace(one, two) == 0 && iso_path_exists(two);
  const int cause = errno;
  const bool synced = iso_path_sync(folder) == ISO_OK;
  iso_doctor_add(d, "publishing", kept && moved && synced ? ISO_VERDICT_OK : ISO_VERDICT_STOP, wanted, advice,
                 "a taken name is %s, a free one is %s%s%s, the folder can%s be synced",
                 kept ? "refused" : "NOT refused", moved ? "given" : "NOT given", kept && moved ? "" : ": ",
                 kept && moved ? "" : strerror(cause), synced ? "" : "not");
}

/* Bytes/s of a plain writer; 0 when it could not write. */
static double plain_rate(const iso_doctor *d, const char *path) {
  char *piece = iso_slab_alloc(PIECE, "doctor's writer");
  if (!piece) return 0;
  for (size_t i = 0; i < PIECE; i += 16) iso_rng(3, ISO_RNG_TEST, 0, i, (uint32_t *)(void *)(piece + i));
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  int fd = iso_os.open(path, flags | O_DIRECT, 0666);
  if (fd < 0 && errno == EINVAL) fd = iso_os.open(path, flags, 0666);
  double most = 0.1 * (double)iso_disk_free(path), done = 0;
  if (most > most_bytes) most = most_bytes;
  const double began = iso_clock_s();
  bool good = fd >= 0;
  if (!good) (void)iso_os_fail("create", path);
  while (good && done < most && iso_clock_s() - began < write_s * d->patience) {
    good = iso_file_pwrite(fd, path, piece, PIECE, (int64_t)done) == ISO_OK;
    done += PIECE;
  }
  if (good && iso_os.fdatasync(fd) != 0) good = iso_os_fail("sync", path) == ISO_OK;
  const double seconds = iso_clock_s() - began;
  if (fd >= 0) (void)iso_os.close(fd);
  iso_slab_free(piece, PIECE);
  return good && done > 0 ? done / seconds : 0;
}

static void check_rate(iso_doctor *d, const char *folder) {
  const char *path = iso_path_join(d->arena, folder, "rate");
  const double rate = path ? plain_rate(d, path) : 0;
  if (path) (void)iso_os.unlink(path);
  if (rate <= 0) {
    iso_doctor_failed(d, "write bandwidth", ISO_VERDICT_STOP, "a file that can be written and synced",
                      "check the storage of `run`");
    return;
  }
  const double need = d->step_s > 0 ? d->log_bytes / d->step_s : 0;
  const bool enough = rate >= 1.25 * need;
  const char *wanted =
      need > 0
          ? iso_arena_printf(d->arena, "%.0f MB/s: the log of a step in a step, and a quarter more", 1.25e-6 * need)
          : "";
  iso_doctor_add(d, "write bandwidth", enough ? ISO_VERDICT_OK : ISO_VERDICT_WARNING, wanted,
                 "log.compress: on, or faster storage: the log would be suspended (log.when_slow)",
                 "a plain writer: %.0f MB/s%s", rate * 1e-6,
                 rate >= sign_rate ? "" : "; the sign checkpoint_bandwidth will then want 90% of that");
}

static void check_sync(iso_doctor *d, const char *folder) {
  const char *path = iso_path_join(d->arena, folder, "sync");
  double took[SYNCS];
  const char page[PAGE] = {1};
  const int fd = path ? iso_os.open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
  const double until_s = iso_clock_s() + write_s * d->patience;
  int count = 0;
  for (; fd >= 0 && count < SYNCS && iso_clock_s() < until_s; count++) {
    const double began = iso_clock_s();
    if (iso_file_pwrite(fd, path, page, sizeof page, (int64_t)count * PAGE) != ISO_OK || iso_os.fdatasync(fd) != 0)
      break;
    took[count] = iso_clock_s() - began;
  }
  if (fd >= 0) (void)iso_os.close(fd);
  if (count == 0) {
    iso_doctor_add(d, "sync", ISO_VERDICT_STOP, "a file that can be synced", "check the storage of `run`",
                   "cannot write and sync %s: %s", path ? path : folder, strerror(errno));
    return;
  }
  iso_sort(took, count);
  const double p95 = iso_quantile(took, count, 95);
  const bool disk = strcmp(d->config.log.durability, "disk") == 0;
  const double most = disk && d->step_s > 0 && d->step_s < sync_p95_s ? d->step_s : sync_p95_s;
  iso_doctor_add(d, "sync", p95 <= most ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                 disk ? "P95 below a step and below 50 ms: log.durability is disk" : "P95 below 50 ms",
                 "the durable step will lag by more steps; choose faster storage, or log.durability: process",
                 "a page: median %.2f ms, P95 %.2f ms of %d", 1e3 * took[count / 2], 1e3 * p95, count);
}

/* A name that is there must not be given again: the conditional PUT of S3, a link of a folder. */
static void check_other_place(iso_doctor *d, const char *role, const char *where) {
  if (!where[0]) return;
  const char *wanted = "writes that do not replace",
             *advice = "check its address, credentials and permissions, and that it has If-None-Match on PUT";
  const char *name = iso_arena_printf(d->arena, "doctor-%lld-%.0f", (long long)getpid(), 1e6 * iso_clock_s());
  iso_target *target;
  if (!name || iso_target_open(where, &target) != ISO_OK) {
    iso_doctor_failed(d, role, ISO_VERDICT_STOP, wanted, advice);
    return;
  }
  bool first = false, second = false;
  const double began = iso_clock_s();
  iso_status status = target->ops->put(target, name, "one", 3, &first);
  const double seconds = iso_clock_s() - began;
  if (status == ISO_OK) status = target->ops->put(target, name, "two", 3, &second);
  if (status != ISO_OK)
    iso_doctor_failed(d, role, ISO_VERDICT_STOP, wanted, advice);
  else
    iso_doctor_add(d, role, !first && second ? ISO_VERDICT_OK : ISO_VERDICT_STOP, wanted,
                   "use a service with If-None-Match on PUT: two processes could both take the run",
                   "%s: a new name is %s in %.1f ms, a taken one is %s", where, first ? "NOT given" : "given",
                   1e3 * seconds, second ? "refused" : "NOT refused");
  (void)target->ops->remove(target, name);
  iso_target_close(&target);
}

void iso_doctor_storage(iso_doctor *d) {
  const char *folder = iso_doctor_folder(d);
  if (!folder) {
    iso_doctor_failed(d, "storage", ISO_VERDICT_STOP, "a folder that can be written to", "check `run`");
    return;
  }
  check_place(d, folder);
  check_names(d, folder);
  check_rate(d, folder);
  check_sync(d, folder);
  iso_folder_remove(folder);
  check_other_place(d, "target", d->config.checkpoint.target);
  check_other_place(d, "mirror", d->config.checkpoint.mirror);
}
