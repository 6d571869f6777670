/* SPDX-License-Identifier: Apache-2.0
 *
 * Content that is made once and kept in a cache folder: decompressed archives, columns of Parquet files, indexes.
 *
 *   CACHE/spool/KEY/BYTES-CRC     the content; its name says its size and its CRC-32C (8 hex digits)
 *   CACHE/spool/KEY/HOST-ID.tmp   an attempt to make it
 *   CACHE/spool/KEY/lock          held by its maker, so that the processes of one run do not all make it
 *
 * Invariants
 *  1. A file under a published name is whole: it was synced before, and the rename does not replace.
 *  2. It is used only after its size and its CRC agree with its name; what does not is removed, and made again.
 *  3. The lock spares work and is not needed for anything else: where the file system has none, or a folder is shared
 * by machines whose locks do not meet, several make the content and the first one's is used by all.
 *  4. Attempts that this machine gave up (killed makers) are removed by the next maker. Those of other machines only
 *     when nothing was written to them for a day.
 *
 * It never removes valid content: the user may remove the folder whenever no run uses it.
 */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { KEY_DIGITS = 64, CHECK_BYTES = 4 << 20, WAIT_MS = 200, WAIT_NOTE_S = 10, FOREIGN_ATTEMPT_S = 86400 };

typedef struct spool {
  const char *cache;
  const char *folder; /* CACHE/spool/KEY, in the arena */
  iso_arena *arena;
  uint32_t host; /* a hash of this machine's name */
} spool;

const char *iso_cache_folder(const char *configured, iso_string *out) {
  const char *own = getenv("ISOTACH_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (configured && *configured)
    iso_string_printf(out, "%s", configured);
  else if (own && *own)
    iso_string_printf(out, "%s", own);
  else if (xdg && *xdg == '/') /* relative ones are to be ignored, says the specification */
    iso_string_printf(out, "%s/isotach", xdg);
  else if (home && *home)
    iso_string_printf(out, "%s/.cache/isotach", home);
  else
    iso_fail(ISO_ERR_CONFIG, "there is no cache folder: HOME is not set; set data.cache or ISOTACH_CACHE");
  return out->length > 0 && !iso_string_failed(out) ? out->data : NULL;
}

/* ---- names ---- */

static bool hex_digits(const char *text, size_t count) {
  return strspn(text, "0123456789abcdef") >= count;
}

/* Parses "BYTES-CRC". */
static bool published_name(const char *name, int64_t *bytes, uint32_t *crc) {
  size_t digits = strspn(name, "0123456789");
  if (digits == 0 || digits > 18 || name[digits] != '-' || strlen(name + digits + 1) != 8) return false;
  if (!hex_digits(name + digits + 1, 8)) return false;
  *bytes = strtoll(name, NULL, 10);
  *crc = (uint32_t)strtoul(name + digits + 1, NULL, 16);
  return true;
}

static iso_status no_memory(const spool *s) {
  return iso_fail(ISO_ERR_MEMORY, "cannot use the cache folder '%s': out of memory", s->cache);
}

/* ---- finding ---- */

/* Whether the open file is what its name says. ISO_OK with *good false: it is not. */
static iso_status check(int fd, const char *path, int64_t bytes, uint32_t crc, bool *good) {
  *good = false;
  char *buffer = malloc(CHECK_BYTES);
  if (!buffer) return iso_fail(ISO_ERR_MEMORY, "cannot check '%s': out of memory", path);
  iso_status status = ISO_OK;
  uint32_t found = 0;
  int64_t at = 0;
  iso_transfer progress;
  iso_transfer_init(&progress, "checking", path, bytes);
  for (;;) {
    ssize_t got = iso_os.pread(fd, buffer, CHECK_BYTES, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = iso_os_fail("read", path);
    if (got <= 0 || at > bytes) break;
    found = iso_crc32c(found, buffer, (size_t)got);
    at += got;
    iso_transfer_at(&progress, at);
  }
  *good = status == ISO_OK && at == bytes && found == crc;
  free(buffer);
  return status;
}

/* The published content, if there is any: out->path is NULL otherwise. `remove`: damaged ones are removed. Another
 * process may remove one at any moment; that is as if there were none. */
static iso_status find(const spool *s, bool remove, iso_blob_info *out) {
  *out = (iso_blob_info){0};
  char **names = NULL;
  size_t count = 0;
  if (!iso_path_is_folder(s->folder)) return ISO_OK;
  ISO_TRY(iso_path_list(s->arena, s->folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    int64_t bytes;
    uint32_t crc;
    if (!published_name(names[i], &bytes, &crc)) continue;
    const char *path = iso_path_join(s->arena, s->folder, names[i]);
    if (!path) return no_memory(s);
    int fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0) return iso_os_fail("open", path);
    bool good;
    iso_status status = check(fd, path, bytes, crc, &good);
    (void)iso_os.close(fd);
    if (status != ISO_OK) return status;
    if (good) return iso_blob_local(s->arena, path, out);
    if (!remove) continue;
    iso_warn("'%s' in the cache is damaged: its size and CRC are not those in its name; it is made again", path);
    if (iso_os.unlink(path) != 0 && errno != ENOENT) return iso_os_fail("remove", path);
  }
  return ISO_OK;
}

/* ---- making ---- */

/* Waits for the lock, held in *fd then (-1: the file system has none), and looks again: another maker may have
 * published meanwhile. */
static iso_status lock(const spool *s, int *fd, iso_blob_info *out) {
  *out = (iso_blob_info){0};
  const char *path = iso_path_join(s->arena, s->folder, "lock");
  if (!path) return no_memory(s);
  *fd = iso_os.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (*fd < 0) return iso_os_fail("create", path);
  double next_note_s = iso_clock_s() + 1;
  while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) { /* no locks here */
      (void)iso_os.close(*fd);
      *fd = -1;
      break;
    }
    if (iso_clock_s() >= next_note_s) {
      iso_note("waiting for the process that makes '%s'", s->folder);
      next_note_s = iso_clock_s() + WAIT_NOTE_S;
    }
    nanosleep(&(struct timespec){0, WAIT_MS * 1000000L}, NULL);
  }
  return find(s, true, out);
}

/* Removes the attempts that nobody can be working on. */
static void clean(const spool *s, bool locked) {
  char **names = NULL, own[16];
  size_t count = 0;
  if (iso_path_list(s->arena, s->folder, &names, &count) != ISO_OK) return; /* logged; nothing depends on it */
  snprintf(own, sizeof own, "%08" PRIx32 "-", s->host);
  for (size_t i = 0; i < count; i++) {
    size_t length = strlen(names[i]);
    struct stat info;
    const char *path = iso_path_join(s->arena, s->folder, names[i]);
    if (!path || length != 8 + 1 + 32 + 4 || strcmp(names[i] + length - 4, ".tmp") != 0) continue;
    if (iso_os.stat(path, &info) != 0) continue;
    bool ours = locked && strncmp(names[i], own, 9) == 0;
    if (!ours && time(NULL) - info.st_mtim.tv_sec < FOREIGN_ATTEMPT_S) continue;
    if (iso_os.unlink(path) == 0 && info.st_size > 0)
      iso_note("removed '%s', an attempt of %.1f MiB that was not finished", path, (double)info.st_size / 1048576);
  }
}

/* Publishes a committed attempt. */
static iso_status publish(const spool *s, const iso_sink *sink, iso_blob_info *out) {
  const char *path = iso_arena_printf(s->arena, "%s/%" PRId64 "-%08" PRIx32, s->folder, sink->bytes, sink->crc);
  if (!path) return no_memory(s);
  if (iso_os.rename_noreplace(sink->path, path) != 0) {
    if (errno != EEXIST) return iso_os_fail("publish", path);
    (void)iso_os.unlink(sink->path); /* another maker came first, with the same content */
  }
  ISO_TRY(iso_path_sync(s->folder));
  return iso_blob_local(s->arena, path, out);
}

static iso_status make(const spool *s, iso_status (*fill)(void *, iso_sink *), void *context, iso_blob_info *out) {
  char attempt[33];
  ISO_TRY(iso_attempt_id(attempt));
  const char *path = iso_arena_printf(s->arena, "%s/%08" PRIx32 "-%s.tmp", s->folder, s->host, attempt);
  const char *advice = iso_arena_printf(
      s->arena, "free some space, or set data.cache or ISOTACH_CACHE to a folder elsewhere (now '%s')", s->cache);
  if (!path || !advice) return no_memory(s);
  iso_sink sink;
  ISO_TRY(iso_sink_open(&sink, path));
  sink.advice = advice;
  iso_status status = fill(context, &sink);
  if (status == ISO_OK) status = iso_sink_commit(&sink);
  if (status == ISO_OK) status = publish(s, &sink, out);
  if (status != ISO_OK) iso_sink_abandon(&sink);
  return status;
}

iso_status iso_spool_open(const char *cache, const char key[65], iso_status (*fill)(void *context, iso_sink *sink),
                          void *context, iso_arena *arena, iso_blob_info *out) {
  char name[256] = "";
  *out = (iso_blob_info){0};
  if (strlen(key) != KEY_DIGITS || !hex_digits(key, KEY_DIGITS))
    return iso_fail(ISO_ERR_INTERNAL, "'%s' is no key of the cache: 64 hex digits are", key);
  (void)gethostname(name, sizeof name - 1); /* without one, all machines share "" */
  spool s = {.cache = cache, .arena = arena, .host = iso_crc32c(0, name, strlen(name))};
  s.folder = iso_arena_printf(arena, "%s/spool/%s", cache, key);
  if (!s.folder) return no_memory(&s);
  ISO_TRY(find(&s, false, out));
  if (out->path) return ISO_OK;
  ISO_TRY(iso_path_make(s.folder));
  int fd = -1;
  iso_status status = lock(&s, &fd, out);
  if (status == ISO_OK && !out->path) {
    clean(&s, fd >= 0);
    status = make(&s, fill, context, out);
  }
  if (fd >= 0) (void)iso_os.close(fd); /* releases the lock */
  if (status != ISO_OK) *out = (iso_blob_info){0};
  return status;
}
