/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over a run folder: what its mirror lacks is copied, what the run no longer has is removed there.
 *
 * The pass reads files only; it holds two pieces of memory and never a buffer of the step. Killed between any two
 * operations, the mirror holds the state that it held before, or a newer one, and the next pass goes on.
 *
 * Order: identity and incarnation; inputs; whole steps of the log; snapshots, their files first, the manifest last and
 * never replacing; then what is superseded goes, manifests first; then metrics and the like, now and then.
 *
 * Invariants
 *  1. Each pass, and each removal, first looks for a newer incarnation in the mirror.
 *  2. Only what counts here is copied: steps up to the durable one, with their CRCs checked; files of a snapshot whose
 *     bytes are those of its manifest.
 *  3. Nothing is removed until every snapshot that the run has is complete in the mirror.
 *  4. Between the pieces of a large file the log's new steps go first.
 *  5. A first target (checkpoint.target) is written by who owns it, and leads to a step only while it is owned for
 * sure. Of the log it holds what joins the state that it leads to.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static const double SLOW_S = 30, SLOW_BYTES_PER_S = 1e6;

static iso_status no_memory(const iso_mirror_work *w) {
  return iso_fail(ISO_ERR_MEMORY, "mirror of '%s': out of memory", w->run);
}

/* Makes room for one more of `size` bytes each. */
iso_status iso_mirror_reserve(void *list, size_t count, size_t *capacity, size_t size) {
  void **address = list;
  if (count < *capacity) return ISO_OK;
  void *grown = realloc(*address, (2 * *capacity + 16) * size);
  if (!grown) return iso_fail(ISO_ERR_MEMORY, "mirror: out of memory");
  *address = grown;
  *capacity = 2 * *capacity + 16;
  return ISO_OK;
}

iso_status iso_mirror_reserve_bytes(char **buffer, size_t *have, size_t bytes) {
  if (*have >= bytes) return ISO_OK;
  free(*buffer);
  *buffer = malloc(bytes);
  *have = *buffer ? bytes : 0;
  return *buffer ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "mirror: out of memory");
}

void iso_mirror_count(iso_mirror_work *w, int64_t bytes) {
  w->shared->bytes += bytes;
  w->shared->things++;
}

iso_status iso_mirror_goes_on(const iso_mirror_work *w) {
  if (w->shared->stop) return ISO_STOPPED;
  return w->lock ? iso_target_lock_beat(w->lock) : ISO_OK;
}

/* ---- identity ---- */

static iso_status claim_run(iso_mirror_work *w) {
  char *data, uuid[37], *own;
  size_t bytes, own_bytes;
  iso_json *json = NULL;
  ISO_TRY(w->target->ops->get(w->target, "run.json", &data, &bytes));
  if (data) {
    const bool known =
        iso_json_parse(data, bytes, "run.json", &json) == ISO_OK && iso_record_text(json, "uuid", uuid, sizeof uuid);
    const bool same = known && strcmp(uuid, w->uuid) == 0;
    iso_json_destroy(&json);
    free(data);
    if (same) return ISO_OK;
    return iso_fail(ISO_ERR_MISMATCH, "%s '%s' holds another run (%s, this one is %s); choose another checkpoint.%s",
                    iso_target_role(w->target), w->target->where, known ? uuid : "its run.json is damaged", w->uuid,
                    iso_target_role(w->target));
  }
  const char *path = iso_path_join(w->arena, w->run, "run.json");
  bool taken = false;
  if (!path) return no_memory(w);
  ISO_TRY(iso_file_read(path, &own, &own_bytes));
  iso_status status = w->target->ops->put(w->target, "run.json", own, own_bytes, &taken);
  free(own);
  if (status == ISO_OK && taken)
    status = iso_fail(ISO_ERR_MISMATCH, "%s '%s' holds another run; choose another checkpoint.%s",
                      iso_target_role(w->target), w->target->where, iso_target_role(w->target));
  return status;
}

/* A small file of the run, unless the mirror has it from us already. One that is not there is left out. */
static iso_status put_file(iso_mirror_work *w, const char *name, const char *as) {
  char *data;
  size_t bytes;
  bool exists;
  iso_mirror_memo *m = NULL;
  const char *path = iso_path_join(w->arena, w->run, name);
  if (!path) return no_memory(w);
  ISO_TRY(iso_path_probe(path, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  const uint32_t crc = iso_crc32c(0, data, bytes);
  for (size_t i = 0; i < w->memo_count && !m; i++)
    if (strcmp(w->memos[i].name, as) == 0) m = &w->memos[i];
  const bool known = m && m->crc == crc && m->bytes == bytes;
  iso_status status = known ? ISO_OK : w->target->ops->put(w->target, as, data, bytes, NULL);
  free(data);
  if (known || status != ISO_OK) return status;
  iso_mirror_count(w, (int64_t)bytes);
  if (!m && w->memo_count < ISO_COUNT(w->memos) && strlen(as) < sizeof m->name) m = &w->memos[w->memo_count++];
  if (m) {
    snprintf(m->name, sizeof m->name, "%s", as);
    m->crc = crc;
    m->bytes = bytes;
  }
  return ISO_OK;
}

static const char *const decisive[] = {"config.yaml", "model.json", "inputs.json"};

/* As a start does it here: the inputs beside the old ones, then the incarnation, then in their places. */
static iso_status begin_incarnation(iso_mirror_work *w, const char *name, const char *data, size_t bytes, bool *taken) {
  char next[64];
  for (size_t i = 0; i < ISO_COUNT(decisive); i++) {
    snprintf(next, sizeof next, "%s.next", decisive[i]);
    ISO_TRY(put_file(w, decisive[i], next));
  }
  ISO_TRY(w->target->ops->put(w->target, name, data, bytes, taken));
  iso_mirror_count(w, (int64_t)bytes);
  return ISO_OK;
}

static iso_status settle_inputs(iso_mirror_work *w) {
  char next[64];
  for (size_t i = 0; i < ISO_COUNT(decisive); i++) ISO_TRY(put_file(w, decisive[i], decisive[i]));
  for (size_t i = 0; i < ISO_COUNT(decisive); i++) {
    snprintf(next, sizeof next, "%s.next", decisive[i]);
    ISO_TRY(w->target->ops->remove(w->target, next));
  }
  return ISO_OK;
}

static iso_status superseded(const iso_mirror_work *w, int number) {
  return iso_fail(ISO_ERR_BUSY,
                  "run '%s': incarnation %d was begun from %s '%s' by another process, so this one (%d) no longer "
                  "counts; stop it, and remove its folder or use --take-over to go on from the %s",
                  w->run, number, iso_target_role(w->target), w->target->where, w->incarnation,
                  iso_target_role(w->target));
}

/* Publishes one incarnation, or compares the one that is there. */
static iso_status claim_one(iso_mirror_work *w, int number, bool there) {
  char name[48], *own, *data = NULL;
  size_t own_bytes, bytes = 0;
  bool exists, taken = false;
  snprintf(name, sizeof name, "incarnations/%04d.json", number);
  const char *path = iso_path_join(w->arena, w->run, name);
  if (!path) return no_memory(w);
  ISO_TRY(iso_path_probe(path, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_file_read(path, &own, &own_bytes));
  iso_status status = ISO_OK;
  if (!there)
    status = number == w->incarnation ? begin_incarnation(w, name, own, own_bytes, &taken)
                                      : w->target->ops->put(w->target, name, own, own_bytes, &taken);
  else
    status = w->target->ops->get(w->target, name, &data, &bytes);
  if (status == ISO_OK && data) taken = bytes != own_bytes || memcmp(data, own, bytes) != 0;
  free(data);
  free(own);
  if (status == ISO_OK && taken) status = superseded(w, number);
  return status;
}

static iso_status read_incarnations(iso_mirror_work *w) {
  iso_incarnation *list;
  size_t list_count;
  ISO_TRY(iso_incarnation_list(w->arena, w->run, &list, &list_count));
  free(w->incarnations);
  w->incarnations = malloc((list_count + 1) * sizeof *list);
  if (!w->incarnations) return no_memory(w);
  if (list_count) memcpy(w->incarnations, list, list_count * sizeof *list);
  w->incarnation_count = list_count;
  return ISO_OK;
}

iso_status iso_mirror_claim_again(iso_mirror_work *w) {
  iso_target_entry *entries;
  size_t entry_count;
  if (w->lock) ISO_TRY(iso_target_lock_beat(w->lock));
  if (w->lock && w->claimed && iso_target_lock_holds(w->lock)) return ISO_OK; /* nobody begins one meanwhile */
  if (!w->claimed) ISO_TRY(claim_run(w));
  ISO_TRY(w->target->ops->list(w->target, w->arena, "incarnations/", &entries, &entry_count));
  for (size_t i = 0; i < entry_count; i++) {
    int number = 0;
    if (sscanf(entries[i].name, "incarnations/%d.json", &number) == 1 && number > w->incarnation)
      return superseded(w, number);
  }
  if (w->claimed && entry_count > 0) return ISO_OK;
  bool began = false;
  for (int k = 1; k <= w->incarnation; k++) {
    char name[48];
    bool there = false;
    snprintf(name, sizeof name, "incarnations/%04d.json", k);
    for (size_t i = 0; i < entry_count && !there; i++) there = strcmp(entries[i].name, name) == 0;
    ISO_TRY(claim_one(w, k, there));
    began = k == w->incarnation;
  }
  if (began) ISO_TRY(settle_inputs(w));
  ISO_TRY(read_incarnations(w));
  w->claimed = true;
  return ISO_OK;
}

/* ---- what the mirror leads to ---- */

void iso_mirror_tell_step(iso_mirror_work *w, bool exact) {
  int64_t step = exact ? 0 : w->leads; /* after a pass that failed not all is looked at yet that is known to be there */
  for (size_t i = 0; i < w->complete_count; i++) {
    int64_t own;
    int incarnation;
    if (iso_snapshot_name_parse(w->complete[i], &own, &incarnation) &&
        own <= iso_mirror_counted_until(w, incarnation) && own > step)
      step = own;
  }
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < w->range_count; i++) {
      if (w->ranges[i].first > step + 1 || w->ranges[i].last <= step) continue;
      step = w->ranges[i].last;
      more = true;
    }
  }
  if (exact || step > w->leads) w->leads = step;
  if (w->lock && !iso_target_lock_holds(w->lock)) return; /* another process may own it by now */
  if (exact || w->leads > w->shared->mirrored) w->shared->mirrored = w->leads;
}

static bool is_in(char (*list)[64], size_t list_count, const char *name) {
  for (size_t i = 0; i < list_count; i++)
    if (strcmp(list[i], name) == 0) return true;
  return false;
}

static iso_status add_name(iso_mirror_work *w, char (**list)[64], size_t *list_count, size_t *capacity,
                           const char *name) {
  if (is_in(*list, *list_count, name)) return ISO_OK;
  ISO_TRY(iso_mirror_reserve(list, *list_count, capacity, sizeof **list));
  snprintf((*list)[(*list_count)++], sizeof **list, "%s", name);
  return ISO_OK;
}

/* Once: what earlier processes left in the mirror. */
static iso_status list_mirror(iso_mirror_work *w) {
  iso_target_entry *entries;
  size_t entry_count;
  if (w->listed) return ISO_OK;
  ISO_TRY(w->target->ops->sweep(w->target));
  ISO_TRY(w->target->ops->list(w->target, w->arena, "", &entries, &entry_count));
  for (size_t i = 0; i < entry_count; i++) {
    const char *name = entries[i].name, *slash = strrchr(name, '/');
    iso_wal_segment parsed;
    iso_mirror_segment *s;
    char snapshot[64];
    if (strncmp(name, "log/", 4) == 0 && iso_wal_segment_name_parse(name + 4, &parsed)) {
      ISO_TRY(iso_mirror_segment_of(w, name + 4, &s));
      s->there = entries[i].bytes > w->target->unsure ? entries[i].bytes - w->target->unsure : 0;
    } else if (strncmp(name, "snapshots/", 10) == 0 && strcmp(slash, "/manifest.json") == 0 &&
               (size_t)(slash - name) < 10 + sizeof snapshot) {
      snprintf(snapshot, sizeof snapshot, "%.*s", (int)(slash - name - 10), name + 10);
      ISO_TRY(add_name(w, &w->complete, &w->complete_count, &w->complete_capacity, snapshot));
    }
  }
  w->listed = true;
  return ISO_OK;
}

/* ---- snapshots ---- */

/* *gone: it was pruned here meanwhile; *bad: its bytes are not those of the manifest. */
static iso_status copy_file(iso_mirror_work *w, const char *folder, const char *name, const iso_manifest_file *file,
                            bool *gone, bool *bad) {
  const iso_target_ops *ops = w->target->ops;
  const size_t piece = iso_target_piece(file->bytes);
  iso_probe probe;
  iso_string faults = {0};
  iso_target_writer *writer;
  uint32_t crc = 0;
  const char *path = iso_path_join(w->arena, folder, file->name);
  if (!path) return no_memory(w);
  ISO_TRY(iso_mirror_reserve_bytes(&w->piece, &w->piece_bytes, piece));
  const bool opened = iso_probe_open(&probe, path, file->name, &faults) == ISO_OK;
  *gone = !opened;
  *bad = opened && probe.bytes != file->bytes;
  iso_status status = *gone || *bad ? ISO_OK : ops->begin(w->target, name, -1, file->bytes, &writer);
  if (*gone || *bad || status != ISO_OK) {
    iso_probe_close(&probe);
    iso_string_fini(&faults);
    return status;
  }
  for (int64_t at = 0; at < file->bytes && status == ISO_OK && !*bad;) {
    const size_t part = file->bytes - at < (int64_t)piece ? (size_t)(file->bytes - at) : piece;
    *bad = iso_probe_read(&probe, w->piece, part, at, &faults) != ISO_OK;
    if (*bad) break;
    crc = iso_crc32c(crc, w->piece, part);
    at += (int64_t)part;
    *bad = at == file->bytes && crc != file->crc; /* before the last piece goes */
    if (!*bad) status = ops->write(writer, w->piece, part);
    if (status == ISO_OK && at < file->bytes && !w->leaps) status = iso_mirror_copy_log(w);
    if (status == ISO_OK) status = iso_mirror_goes_on(w);
  }
  iso_probe_close(&probe);
  iso_string_fini(&faults);
  if (status != ISO_OK || *bad) {
    ops->cancel(&writer);
    return status;
  }
  ISO_TRY(ops->finish(&writer));
  iso_mirror_count(w, file->bytes);
  return ISO_OK;
}

static iso_status copy_files(iso_mirror_work *w, const iso_snapshot_entry *e, const iso_manifest *manifest, bool *gone,
                             bool *bad) {
  iso_target_entry *there;
  size_t there_count;
  const char *prefix = iso_arena_printf(w->arena, "snapshots/%s/", e->name);
  if (!prefix) return no_memory(w);
  ISO_TRY(w->target->ops->list(w->target, w->arena, prefix, &there, &there_count));
  for (size_t i = 0; i < manifest->file_count && !*gone && !*bad; i++) {
    const char *name = iso_arena_printf(w->arena, "%s%s", prefix, manifest->files[i].name);
    bool have = false;
    if (!name) return no_memory(w);
    for (size_t k = 0; k < there_count && !have; k++) /* names are never used twice */
      have = strcmp(there[k].name, name) == 0 && there[k].bytes == manifest->files[i].bytes;
    if (!have) ISO_TRY(copy_file(w, e->folder, name, &manifest->files[i], gone, bad));
  }
  return ISO_OK;
}

static iso_status publish_manifest(iso_mirror_work *w, const iso_snapshot_entry *e, const iso_string *text) {
  bool taken = false;
  const char *name = iso_arena_printf(w->arena, "snapshots/%s/manifest.json", e->name);
  if (!name) return no_memory(w);
  ISO_TRY(iso_mirror_claim_again(w));
  /* One that is there already is another attempt at the same state: it counts as well. */
  ISO_TRY(w->target->ops->put(w->target, name, text->data, text->length, &taken));
  iso_mirror_count(w, (int64_t)text->length);
  return add_name(w, &w->complete, &w->complete_count, &w->complete_capacity, e->name);
}

/* The manifest's text is kept from the beginning: what is complete there counts, also when it was pruned here
 * meanwhile. */
static iso_status copy_whole(iso_mirror_work *w, const iso_snapshot_entry *e, const iso_manifest *manifest, bool *gone,
                             bool *bad) {
  char *data;
  size_t bytes;
  const char *path = iso_path_join(w->arena, e->folder, "manifest.json");
  if (!path) return no_memory(w);
  ISO_TRY(iso_path_probe(path, gone));
  *gone = !*gone;
  if (*gone) return ISO_OK;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  const iso_string text = {.data = data, .length = bytes};
  iso_status status = copy_files(w, e, manifest, gone, bad);
  if (status == ISO_OK && !*gone && !*bad) status = publish_manifest(w, e, &text);
  free(data);
  return status;
}

static iso_status copy_snapshot(iso_mirror_work *w, const iso_snapshot_entry *e) {
  iso_manifest manifest;
  iso_string faults = {0};
  bool gone = false, bad = false;
  iso_status status = iso_manifest_read(e->folder, &manifest, &faults);
  if (status == ISO_ERR_FORMAT) {
    bool exists;
    const char *path = iso_path_join(w->arena, e->folder, "manifest.json");
    status = path ? iso_path_probe(path, &exists) : ISO_ERR_MEMORY;
    bad = status == ISO_OK && exists;
  } else if (status == ISO_OK) {
    status = copy_whole(w, e, &manifest, &gone, &bad);
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  if (status != ISO_OK || !bad) return status;
  iso_warn("run '%s': snapshot %s is damaged here and not mirrored", w->run, e->name);
  return add_name(w, &w->damaged, &w->damaged_count, &w->damaged_capacity, e->name);
}

static bool is_wanted(const iso_mirror_work *w, const iso_snapshot_entry *e) {
  if (!e->has_manifest || e->is_void || e->incarnation > w->incarnation) return false;
  return !is_in(w->complete, w->complete_count, e->name) && !is_in(w->damaged, w->damaged_count, e->name);
}

/* Newest first; `behind`: only those of later steps than the mirror leads to. */
static iso_status copy_snapshots(iso_mirror_work *w, const iso_snapshot_entry *entries, size_t entry_count,
                                 bool behind) {
  for (size_t i = 0; i < entry_count; i++) {
    if (!is_wanted(w, &entries[i]) || (behind && entries[i].step <= w->leads)) continue;
    ISO_TRY(copy_snapshot(w, &entries[i]));
    iso_mirror_tell_step(w, false);
  }
  return ISO_OK;
}

/* ---- what goes ---- */

/* A snapshot of the mirror that the run no longer has, and a newer one that it has. */
static bool may_go(const char *name, const iso_snapshot_entry *entries, size_t entry_count) {
  int64_t step;
  int incarnation;
  bool newer = false;
  if (!iso_snapshot_name_parse(name, &step, &incarnation)) return false;
  for (size_t i = 0; i < entry_count; i++) {
    if (strcmp(entries[i].name, name) == 0) return false;
    newer = newer || (entries[i].has_manifest && !entries[i].is_void &&
                      (entries[i].step > step || entries[i].incarnation > incarnation));
  }
  return newer;
}

static void forget(char (*list)[64], size_t *list_count, const char *name) {
  for (size_t i = 0; i < *list_count; i++)
    if (strcmp(list[i], name) == 0) memmove(list[i], list[--*list_count], sizeof *list);
}

static iso_status remove_snapshots(iso_mirror_work *w, const iso_snapshot_entry *entries, size_t entry_count) {
  iso_target_entry *there;
  size_t there_count;
  ISO_TRY(w->target->ops->list(w->target, w->arena, "snapshots/", &there, &there_count));
  for (int manifests = 1; manifests >= 0; manifests--) { /* first those */
    for (size_t i = 0; i < there_count; i++) {
      char name[64];
      const char *slash = strrchr(there[i].name, '/');
      snprintf(name, sizeof name, "%.*s", (int)(slash - there[i].name - 10), there[i].name + 10);
      if ((strcmp(slash, "/manifest.json") == 0) != manifests || !may_go(name, entries, entry_count)) continue;
      ISO_TRY(iso_mirror_claim_again(w));
      forget(w->complete, &w->complete_count, name);
      ISO_TRY(w->target->ops->remove(w->target, there[i].name));
    }
  }
  return ISO_OK;
}

static iso_status remove_old(iso_mirror_work *w, const iso_snapshot_entry *entries, size_t entry_count) {
  int64_t oldest = -1;
  bool more = false;
  for (size_t i = 0; i < entry_count; i++) {
    const iso_snapshot_entry *e = &entries[i];
    if (!e->has_manifest || e->is_void) continue;
    if (!is_in(w->complete, w->complete_count, e->name)) return ISO_OK;
    if (oldest < 0 || e->step < oldest) oldest = e->step;
  }
  if (oldest < 0) return ISO_OK;
  for (size_t i = 0; i < w->complete_count; i++) more = more || may_go(w->complete[i], entries, entry_count);
  if (more) ISO_TRY(remove_snapshots(w, entries, entry_count));
  return iso_mirror_prune_log(w, oldest);
}

/* ---- what goes now and then ---- */

/* The lines of steps that the mirror leads to: bytes from the file's beginning. */
static size_t lines_until(const char *data, size_t bytes, int64_t step) {
  static const char key[] = "{\"step\": ";
  size_t kept = 0;
  while (kept < bytes) {
    const char *end = memchr(data + kept, '\n', bytes - kept);
    if (!end || strncmp(data + kept, key, sizeof key - 1) != 0) break;
    if (strtoll(data + kept + sizeof key - 1, NULL, 10) > step) break;
    kept = (size_t)(end - data) + 1;
  }
  return kept;
}

static iso_status put_lines(iso_mirror_work *w, const char *name) {
  char *data;
  size_t bytes;
  bool exists;
  iso_target_writer *writer;
  const char *path = iso_path_join(w->arena, w->run, name);
  if (!path) return no_memory(w);
  ISO_TRY(iso_path_probe(path, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  bytes = lines_until(data, bytes, w->shared->mirrored);
  const size_t piece = iso_target_piece((int64_t)bytes);
  iso_status status = w->target->ops->begin(w->target, name, -1, (int64_t)bytes, &writer);
  if (status == ISO_OK) {
    for (size_t at = 0; at < bytes && status == ISO_OK; at += piece)
      status = w->target->ops->write(writer, data + at, bytes - at < piece ? bytes - at : piece);
    if (status == ISO_OK)
      status = w->target->ops->finish(&writer);
    else
      w->target->ops->cancel(&writer);
  }
  free(data);
  if (status == ISO_OK) iso_mirror_count(w, (int64_t)bytes);
  if (w->slow_s < iso_clock_s() + SLOW_S + (double)bytes / SLOW_BYTES_PER_S)
    w->slow_s = iso_clock_s() + SLOW_S + (double)bytes / SLOW_BYTES_PER_S;
  return status;
}

/* That this start has ended since the weights of ranks differed: the next one goes back, wherever it is. */
static iso_status put_differed(iso_mirror_work *w) {
  char name[32];
  iso_differed_name(w->incarnation, name);
  return put_file(w, name, name);
}

static iso_status put_slow_things(iso_mirror_work *w) {
  static const char *const lines[] = {"metrics.jsonl", "evaluations.jsonl", "skipped.jsonl"};
  w->slow_s = iso_clock_s() + SLOW_S;
  for (size_t i = 0; i < ISO_COUNT(lines); i++) ISO_TRY(put_lines(w, lines[i]));
  ISO_TRY(put_file(w, "status.json", "status.json"));
  ISO_TRY(put_file(w, "starts.json", "starts.json"));
  return put_file(w, "report.json", "report.json");
}

/* The tokenizer's copy, and what is not decisive. */
static iso_status put_inputs(iso_mirror_work *w) {
  char **names = NULL;
  size_t name_count = 0;
  bool exists;
  const char *folder = iso_path_join(w->arena, w->run, "tokenizer");
  if (!folder) return no_memory(w);
  ISO_TRY(put_file(w, "fusion.json", "fusion.json"));
  ISO_TRY(iso_path_probe(folder, &exists));
  if (exists) ISO_TRY(iso_path_list(w->arena, folder, &names, &name_count));
  for (size_t i = 0; i < name_count; i++) {
    const char *name = iso_arena_printf(w->arena, "tokenizer/%s", names[i]);
    if (!name) return no_memory(w);
    if (!strstr(name, ".tmp-")) ISO_TRY(put_file(w, name, name));
  }
  return ISO_OK;
}

/* ---- the pass ---- */

/* A first target that is far behind: a snapshot of the newest steps, before the log. */
static iso_status leap(iso_mirror_work *w) {
  iso_snapshot_entry *entries;
  size_t entry_count;
  ISO_TRY(iso_snapshot_list(w->arena, w->run, &entries, &entry_count));
  w->leaps = true;
  const iso_status status = copy_snapshots(w, entries, entry_count, true);
  w->leaps = false;
  return status;
}

static iso_status pass(iso_mirror_work *w, bool last) {
  iso_snapshot_entry *entries;
  size_t entry_count;
  w->puts_off = false;
  ISO_TRY(iso_mirror_claim_again(w));
  const bool first = !w->listed;
  ISO_TRY(list_mirror(w));
  ISO_TRY(put_differed(w)); /* before the last steps, which must not be gone on from */
  if (first) ISO_TRY(put_inputs(w));
  iso_mirror_tell_step(w, false);
  if (w->shared->behind) ISO_TRY(leap(w));
  ISO_TRY(iso_mirror_copy_log(w)); /* listed before the snapshots: what is pruned then has one that is listed */
  iso_mirror_tell_step(w, false);
  ISO_TRY(iso_snapshot_list(w->arena, w->run, &entries, &entry_count));
  ISO_TRY(copy_snapshots(w, entries, entry_count, false));
  ISO_TRY(iso_mirror_copy_log(w)); /* steps behind a gap join a snapshot that came only now */
  w->puts_off = w->shared->behind && !last;
  if (w->puts_off) return ISO_OK; /* there will be time for the rest */
  ISO_TRY(iso_mirror_copy_old_log(w));
  ISO_TRY(remove_old(w, entries, entry_count));
  if (last || iso_clock_s() >= w->slow_s) ISO_TRY(put_slow_things(w));
  return ISO_OK;
}

static iso_status in_arena(iso_mirror_work *w, iso_status (*work)(iso_mirror_work *w, bool last), bool last) {
  w->arena = iso_arena_create();
  const iso_status status = w->arena ? work(w, last) : no_memory(w);
  iso_arena_destroy(&w->arena);
  return status;
}

static iso_status only_claim(iso_mirror_work *w, bool unused) {
  return unused ? ISO_OK : iso_mirror_claim_again(w);
}

iso_status iso_mirror_claim(iso_mirror_work *w) {
  return in_arena(w, only_claim, false);
}

/* What the pass came to is told while the target is owned for sure, or it came to nothing. */
static iso_status end_pass(iso_mirror_work *w) {
  if (w->lock && !iso_target_lock_holds(w->lock)) ISO_TRY(iso_target_lock_beat(w->lock));
  iso_mirror_tell_step(w, !w->puts_off);
  if (w->shared->mirrored == w->leads) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "'%s' takes a sign of life too slowly, so that another process may own it by now",
                  w->target->where);
}

iso_status iso_mirror_pass(iso_mirror_work *w, bool last) {
  iso_status status = in_arena(w, pass, last);
  if (status == ISO_OK) status = end_pass(w);
  if (status == ISO_OK || status == ISO_STOPPED) return status;
  w->claimed = w->listed = false; /* what is there is looked at again */
  w->segment_count = w->range_count = w->complete_count = w->memo_count = 0;
  return status;
}

iso_status iso_mirror_work_create(const char *run, const char *uuid, int incarnation, iso_target *target,
                                  iso_target_lock *lock, iso_mirror_shared *shared, iso_mirror_work **out) {
  *out = calloc(1, sizeof **out);
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "mirror of '%s': out of memory", run);
  **out = (iso_mirror_work){
      .run = run, .uuid = uuid, .incarnation = incarnation, .target = target, .lock = lock, .shared = shared};
  return ISO_OK;
}

void iso_mirror_work_destroy(iso_mirror_work **address) {
  iso_mirror_work *w = *address;
  if (!w) return;
  free(w->incarnations);
  free(w->segments);
  free(w->ranges);
  free(w->complete);
  free(w->damaged);
  free(w->piece);
  free(w->step);
  free(w);
  *address = NULL;
}
