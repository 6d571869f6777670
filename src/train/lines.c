/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's .jsonl files: a JSON object a line, which begins with the step that it belongs to and ends in the CRC-32C of
 * the line (store/record.h).
 *
 * Invariants
 *  1. On a resume, lines beyond the resumed step, damaged ones, and what a kill or a power cut left half written move
 * to aside/, so that each step's lines stand once and are those that were written.
 *  2. A line is there once its append returned, whatever happens to the process then. One that could not be written is
 *     kept, and goes before the next; closing tries once more.
 *  3. Each start writes to a file of its own, which begins with the lines that stay: a process that was stopped and
 *     replaced, and wakes up again, writes to the one that is no longer there.
 *  4. No reader counts a damaged line. Lines of before they had a CRC count, as long as none that has one comes first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static const double RETRY_S = 5; /* each attempt that fails says so */

struct iso_lines {
  int fd;
  int64_t offset;
  char *path;
  iso_string kept;    /* lines not written yet */
  iso_status failure; /* why */
  double retry_s;     /* when to try again */
};

/* ---- what a file holds ---- */

static const char prefix[] = "{\"step\": ";

typedef enum line_kind { LINE_GOOD, LINE_UNPROTECTED, LINE_DAMAGED, LINE_TORN } line_kind;

typedef struct scan {
  const char *at, *end;
  bool once;        /* a step has one line */
  bool sealed;      /* a line with a CRC has come */
  int64_t newest;   /* step so far */
  int64_t number;   /* of the line, from 1 */
  const char *line; /* with its newline */
  size_t bytes;
  int64_t step;
  char cause[96]; /* of a damaged one */
} scan;

static line_kind damaged(scan *s, const char *cause) {
  snprintf(s->cause, sizeof s->cause, "%s", cause);
  return LINE_DAMAGED;
}

/* Without a newline: a kill tore it, or what should be one was altered. */
static line_kind judge_end(scan *s) {
  const size_t whole = iso_record_line_end(s->line, s->bytes);
  return whole && whole < s->bytes ? damaged(s, "its end is altered") : LINE_TORN;
}

/* Zeros stand where a power cut came before the disk had the line. One alone may be a flipped bit, but not where a
 * line begins or ends: no one bit makes a zero of a brace or a newline. */
static bool has_hole(const char *line, size_t bytes) {
  const char *zero = memchr(line, 0, bytes);
  if (!zero || zero == line) return zero;
  const size_t behind = (size_t)(line + bytes - zero) - 1;
  if (behind >= sizeof prefix - 1 && memcmp(zero + 1, prefix, sizeof prefix - 1) == 0) return true;
  return memchr(zero + 1, 0, behind);
}

static line_kind judge(scan *s) {
  const size_t length = s->bytes - 1;
  if (s->line[length] != '\n') return judge_end(s);
  if (has_hole(s->line, length)) return LINE_TORN;
  const iso_seal seal = iso_record_check_line(s->line, length, s->cause);
  if (seal == ISO_SEAL_BROKEN) return LINE_DAMAGED;
  if (seal == ISO_SEAL_NONE && s->sealed) return damaged(s, "it has no CRC-32C, but lines before it have: altered");
  if (length < sizeof prefix || memcmp(s->line, prefix, sizeof prefix - 1) != 0 || s->line[length - 1] != '}')
    return damaged(s, "it is not an object that begins with its step: cut or altered");
  s->step = strtoll(s->line + sizeof prefix - 1, NULL, 10);
  if (s->step < s->newest || (s->once && s->step == s->newest)) {
    snprintf(s->cause, sizeof s->cause, "step %lld comes behind step %lld", (long long)s->step, (long long)s->newest);
    return LINE_DAMAGED;
  }
  s->newest = s->step;
  s->sealed = seal == ISO_SEAL_GOOD;
  return s->sealed ? LINE_GOOD : LINE_UNPROTECTED;
}

static scan scan_of(const char *name, const char *data, size_t bytes) {
  return (scan){.at = data, .end = data + bytes, .once = strcmp(name, "metrics") == 0};
}

static bool next_line(scan *s, line_kind *kind) {
  if (s->at == s->end) return false;
  const char *end = memchr(s->at, '\n', (size_t)(s->end - s->at));
  s->line = s->at;
  s->at = end ? end + 1 : s->end;
  s->bytes = (size_t)(s->at - s->line);
  s->number++;
  *kind = judge(s);
  return true;
}

static void count(iso_lines_found *found, const char *name, const scan *s, line_kind kind) {
  if (kind == LINE_TORN) found->torn++;
  if (kind == LINE_UNPROTECTED) found->unprotected++;
  if (kind != LINE_DAMAGED) return;
  if (++found->damaged <= ISO_LINES_NAMED)
    iso_string_printf(&found->faults, "%s.jsonl, line %lld: %s\n", name, (long long)s->number, s->cause);
}

void iso_lines_found_fini(iso_lines_found *found) {
  iso_string_fini(&found->faults);
}

iso_status iso_lines_read(const char *run, const char *name, char **data, size_t *bytes, iso_lines_found *found) {
  iso_string path = {0};
  bool exists;
  *data = NULL;
  *bytes = 0;
  iso_string_printf(&path, "%s/%s.jsonl", run, name);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists) status = iso_file_read(path.data, data, bytes);
  iso_string_fini(&path);
  if (status != ISO_OK || !*data) return status;
  scan s = scan_of(name, *data, *bytes);
  line_kind kind;
  size_t kept = 0;
  while (next_line(&s, &kind)) {
    if (found) count(found, name, &s, kind);
    if (kind != LINE_GOOD && kind != LINE_UNPROTECTED) continue;
    memmove(*data + kept, s.line, s.bytes);
    kept += s.bytes;
  }
  (*data)[kept] = 0;
  *bytes = kept;
  return ISO_OK;
}

/* ---- writing ---- */

static iso_status set_aside(iso_arena *arena, const char *run, const char *name, const char *data, size_t bytes) {
  const char *folder = iso_path_join(arena, run, "aside");
  ISO_TRY(iso_path_make(folder));
  for (int i = 1; i < 100000; i++) {
    const char *path = iso_path_join(arena, folder, iso_arena_printf(arena, "%s-%05d.jsonl", name, i));
    if (!iso_path_exists(path)) return iso_file_replace(path, data, bytes);
  }
  return iso_fail(ISO_ERR_IO, "%s: holds 100,000 cut-off %s files; move some away", folder, name);
}

/* Lines that stay, and what goes. */
static void part(const char *name, const char *data, size_t bytes, int64_t step, iso_string *kept, iso_string *gone,
                 iso_lines_found *found) {
  scan s = scan_of(name, data, bytes);
  line_kind kind;
  while (next_line(&s, &kind)) {
    const bool good = kind == LINE_GOOD || kind == LINE_UNPROTECTED;
    count(found, name, &s, kind);
    iso_string_append(good && s.step <= step ? kept : gone, s.line, s.bytes);
  }
}

static iso_status cut_back(iso_arena *arena, const char *run, const char *name, const char *path, int64_t step,
                           int64_t *offset) {
  bool exists;
  *offset = 0;
  ISO_TRY(iso_path_probe(path, &exists)); /* one that cannot be looked at is not taken for none */
  if (!exists) return ISO_OK;
  char *data;
  size_t bytes;
  iso_string kept = {0}, gone = {0};
  iso_lines_found found = {0};
  ISO_TRY(iso_file_read(path, &data, &bytes));
  part(name, data, bytes, step, &kept, &gone, &found);
  const bool failed = iso_string_failed(&kept) || iso_string_failed(&gone);
  iso_status status = failed ? ISO_ERR_MEMORY : ISO_OK;
  if (status == ISO_OK && gone.length) status = set_aside(arena, run, name, gone.data, gone.length);
  if (status == ISO_OK && found.damaged)
    iso_warn("%s/%s; %lld such line%s moved to aside/", run, iso_fault_first(&found.faults), (long long)found.damaged,
             found.damaged == 1 ? " was" : "s were");
  if (status == ISO_OK) status = iso_file_replace(path, kept.length ? kept.data : "", kept.length);
  *offset = (int64_t)kept.length;
  iso_string_fini(&kept);
  iso_string_fini(&gone);
  iso_lines_found_fini(&found);
  free(data);
  return status;
}

iso_status iso_lines_open(const char *run, const char *name, int64_t step, iso_lines **out) {
  *out = NULL;
  iso_arena *arena = iso_arena_create();
  iso_lines *lines = calloc(1, sizeof *lines);
  if (!arena || !lines) {
    iso_arena_destroy(&arena);
    free(lines);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open %s.jsonl", run, name);
  }
  const char *path = iso_path_join(arena, run, iso_arena_printf(arena, "%s.jsonl", name));
  lines->path = strdup(path);
  lines->fd = -1;
  iso_status status = lines->path ? cut_back(arena, run, name, path, step, &lines->offset) : ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    lines->fd = iso_os.open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (lines->fd < 0 || iso_os.ftruncate(lines->fd, lines->offset) != 0)
      status = iso_fail(ISO_ERR_IO, "%s: cannot open for writing: %s", path, strerror(errno));
  }
  iso_arena_destroy(&arena);
  if (status != ISO_OK) {
    (void)!iso_lines_close(&lines);
    return status;
  }
  *out = lines;
  return ISO_OK;
}

iso_status iso_lines_append(iso_lines *lines, const char *text, size_t bytes) {
  iso_string_append(&lines->kept, text, bytes);
  if (iso_string_failed(&lines->kept)) return ISO_ERR_MEMORY; /* logged already */
  if (lines->failure != ISO_OK && bytes > 0 && iso_clock_s() < lines->retry_s) return lines->failure;
  lines->failure = iso_file_pwrite(lines->fd, lines->path, lines->kept.data, lines->kept.length, lines->offset);
  lines->retry_s = iso_clock_s() + RETRY_S;
  if (lines->failure != ISO_OK) return lines->failure;
  lines->offset += (int64_t)lines->kept.length;
  lines->kept.length = 0;
  return ISO_OK;
}

iso_status iso_lines_sync(iso_lines *lines) {
  if (iso_os.fdatasync(lines->fd) == 0) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "%s: cannot sync: %s", lines->path, strerror(errno));
}

iso_status iso_lines_close(iso_lines **address) {
  if (!address || !*address) return ISO_OK;
  iso_lines *lines = *address;
  iso_status status = lines->kept.length ? iso_lines_append(lines, "", 0) : ISO_OK;
  if (lines->fd >= 0 && iso_os.close(lines->fd) != 0)
    status = iso_fail(ISO_ERR_IO, "%s: close: %s", lines->path, strerror(errno));
  free(lines->path);
  iso_string_fini(&lines->kept);
  free(lines);
  *address = NULL;
  return status;
}
