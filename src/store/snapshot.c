/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a snapshot: one file that is a header and three regions of memory (master weights, first and second moments),
 * then the manifest that makes it count. The regions are written in chunks, each asked of a source just before: the
 * arrays themselves (iso_snapshot_write), or snapshot_stream.c, which knows when they may be read.
 *
 * Order of events; a crash between any two leaves the snapshot that was there before, or this one
 *   folder made -> file created exclusively -> header and regions written, CRC-32C taken from memory -> file synced ->
 * folder synced -> manifest written beside, synced, renamed without replacing -> folder synced -> snapshots/ synced
 *
 * Invariants
 *  1. Nothing is copied here: writes go out of the memory that the source names, which must not change until it is put
 * back.
 *  2. The file's bytes are a function of the state alone, so that the same state written twice has the same CRC.
 *  3. Before the manifest is published an attempt that fails removes what it made, and only that. After it nothing is
 * removed.
 *  4. A process looks for a newer incarnation before it begins and before it publishes.
 */
#include "store/store.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 4096 };
static const char *const prefixes[3] = {"", "moment1.", "moment2."};

/* ---- the file's header ------------------------------------------------------------------------------------ */

static iso_status check_state(const iso_state *state) {
  int64_t elements = 0;
  for (size_t i = 0; i < state->tensor_count; i++) {
    const iso_tensor_out *t = &state->tensors[i];
    int64_t own = iso_shape_elements(t->rank, t->shape);
    if (strncmp(t->name, prefixes[1], strlen(prefixes[1])) == 0 ||
        strncmp(t->name, prefixes[2], strlen(prefixes[2])) == 0) {
      return iso_fail(ISO_ERR_FORMAT,
                      "snapshot: a parameter must not be called '%.100s', that is how moments are named", t->name);
    }
    if (t->dtype != ISO_F32 || own < 0 || __builtin_add_overflow(elements, own, &elements)) {
      return iso_fail(ISO_ERR_INTERNAL, "snapshot: parameter '%.100s' is not a float32 tensor of a possible shape",
                      t->name);
    }
  }
  if (elements != state->elements || elements > INT64_MAX / 16) {
    return iso_fail(ISO_ERR_INTERNAL, "snapshot: the state has %lld elements, its tensors %lld",
                    (long long)state->elements, (long long)elements);
  }
  return ISO_OK;
}

/* Names and covers of the three arrays in the arena, and the header of the file that holds them. */
static iso_status describe(iso_arena *arena, const iso_state *state, iso_manifest_file *file, iso_string *header) {
  static const char *const metadata[] = {"format", "pt", "isotach", "snapshot-1", NULL};
  size_t count = state->tensor_count, at = 0;
  ISO_TRY(check_state(state));
  iso_tensor_out *all = iso_arena_alloc(arena, (3 * count + 1) * sizeof *all);
  file->covers = iso_arena_alloc(arena, (3 * count + 1) * sizeof *file->covers);
  if (!all || !file->covers) return ISO_ERR_MEMORY;
  for (int array = 0; array < 3; array++) {
    for (size_t i = 0; i < count; i++, at++) {
      all[at] = state->tensors[i];
      all[at].name = iso_arena_printf(arena, "%s%s", prefixes[array], state->tensors[i].name);
      if (!all[at].name) return ISO_ERR_MEMORY;
      file->covers[at] = (iso_manifest_cover){all[at].name, 0, iso_shape_elements(all[at].rank, all[at].shape)};
    }
  }
  file->cover_count = at;
  ISO_TRY(iso_safetensors_header(all, at, metadata, ALIGN, header));
  file->bytes = (int64_t)header->length + 12 * state->elements;
  return ISO_OK;
}

int64_t iso_snapshot_bytes(const iso_state *state) {
  iso_manifest_file file = {0};
  iso_string header = {0};
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? describe(arena, state, &file, &header) : ISO_ERR_MEMORY;
  /* The manifest lists names and ranges as the header does, and cursors: never more than the header again and a block.
   */
  int64_t bytes = status == ISO_OK ? file.bytes + (int64_t)header.length + ALIGN : -1;
  iso_string_fini(&header);
  iso_arena_destroy(&arena);
  return bytes;
}

/* ---- one attempt --------------------------------------------------------------------------------------------- */

typedef struct attempt {
  const char *run;
  const iso_state *state;
  const iso_snapshot_source *source; /* NULL: the arrays themselves */
  iso_arena *arena;
  iso_string header;
  iso_manifest manifest; /* of what is to be written; owns nothing (cursors are the caller's) */
  iso_manifest_file file;
  char name[64];         /* step-%08d-%04d */
  const char *snapshots; /* paths */
  const char *folder;
  const char *file_path;
  const char *manifest_path;
} attempt;

static iso_status prepare(attempt *a, const iso_snapshot_info *info) {
  char file_name[64];
  bool exists;
  iso_manifest *m = &a->manifest;
  ISO_TRY(iso_run_folder_read(a->run, m->uuid, &exists));
  if (!exists) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder: it has no run.json", a->run);
  ISO_TRY(iso_attempt_id(m->attempt));
  ISO_TRY(describe(a->arena, a->state, &a->file, &a->header));
  iso_snapshot_name(info->step, info->incarnation, a->name);
  snprintf(file_name, sizeof file_name, "state-%s-%05d.safetensors", m->attempt, 0);
  a->file.name = iso_arena_strdup(a->arena, file_name);
  a->snapshots = iso_path_join(a->arena, a->run, "snapshots");
  a->folder = a->snapshots ? iso_path_join(a->arena, a->snapshots, a->name) : NULL;
  a->file_path = a->folder ? iso_path_join(a->arena, a->folder, file_name) : NULL;
  a->manifest_path = a->folder ? iso_path_join(a->arena, a->folder, "manifest.json") : NULL;
  if (!a->file.name || !a->file_path || !a->manifest_path) return ISO_ERR_MEMORY;
  m->elements = a->state->elements;
  m->info = *info;
  m->files = &a->file;
  m->file_count = 1;
  return ISO_OK;
}

/* ---- where the regions come from --------------------------------------------------------------------------------- */

static int64_t chunk_bytes(const attempt *a) {
  return a->source ? a->source->chunk_bytes : ISO_SNAPSHOT_CHUNK;
}

int64_t iso_snapshot_chunks(const iso_state *state, int64_t bytes) {
  return 3 * ((state->elements * (int64_t)sizeof(float) + bytes - 1) / bytes);
}

iso_snapshot_part iso_snapshot_chunk(const iso_state *state, int64_t bytes, int64_t index) {
  const char *const arrays[3] = {(const char *)state->master, (const char *)state->moment1,
                                 (const char *)state->moment2};
  const int64_t each = iso_snapshot_chunks(state, bytes) / 3, begin = index % each * bytes;
  const int64_t left = state->elements * (int64_t)sizeof(float) - begin;
  return (iso_snapshot_part){arrays[index / each] + begin, (size_t)(left < bytes ? left : bytes)};
}

static void now(const attempt *a, const char *doing) {
  if (a->source) a->source->now(a->source->context, doing);
}

/* All chunks in order: to the sink, or only into the CRC. STOPPED, without a word, when the source gave up. */
static iso_status pass_regions(const attempt *a, iso_sink *sink, uint32_t *crc) {
  const int64_t count = iso_snapshot_chunks(a->state, chunk_bytes(a));
  iso_status status = ISO_OK;
  for (int64_t i = 0; i < count && status == ISO_OK; i++) {
    const iso_snapshot_part live = iso_snapshot_chunk(a->state, chunk_bytes(a), i);
    const void *from = a->source ? a->source->take(a->source->context, i) : live.data;
    if (!from) return ISO_STOPPED;
    if (sink) {
      status = iso_sink_write(sink, from, live.bytes);
    } else {
      *crc = iso_crc32c(*crc, from, live.bytes);
    }
    if (a->source) a->source->put(a->source->context, i);
  }
  return status;
}

static iso_status write_regions(attempt *a) {
  iso_sink sink;
  const bool direct = a->state->elements * (int64_t)sizeof(float) % ISO_SINK_ALIGN == 0; /* so all regions are */
  void *header;
  if (posix_memalign(&header, ALIGN, a->header.length) != 0)
    return iso_fail(ISO_ERR_MEMORY, "snapshot %s: no memory for a header of %zu bytes", a->name, a->header.length);
  memcpy(header, a->header.data, a->header.length);
  now(a, "writing its file");
  iso_status status = direct ? iso_sink_open_direct(&sink, a->file_path) : iso_sink_open(&sink, a->file_path);
  if (status == ISO_OK) status = iso_sink_write(&sink, header, a->header.length);
  free(header);
  if (sink.fd < 0) return status;
  if (status == ISO_OK) status = pass_regions(a, &sink, NULL);
  now(a, "syncing its file");
  if (status == ISO_OK) status = iso_sink_commit(&sink);
  if (status != ISO_OK) iso_sink_abandon(&sink);
  a->file.crc = sink.crc;
  return status;
}

static iso_status publish(attempt *a) {
  iso_string text = {0};
  bool taken = false;
  iso_status status = iso_manifest_render(&a->manifest, &text);
  now(a, "publishing its manifest");
  if (status == ISO_OK) status = iso_path_sync(a->folder);
  if (status == ISO_OK) status = iso_incarnation_check(a->run, a->manifest.info.incarnation);
  if (status == ISO_OK) status = iso_file_publish(a->manifest_path, text.data, text.length, &taken);
  if (status == ISO_OK && taken) {
    status = iso_fail(ISO_ERR_BUSY,
                      "snapshot %s of '%s' was published by another process meanwhile; only one may write to a run",
                      a->name, a->run);
  }
  iso_string_fini(&text);
  if (status != ISO_OK) {
    /* Unless the manifest is known not to be there, it may name the file. */
    struct stat info;
    bool unpublished = taken || (iso_os.stat(a->manifest_path, &info) != 0 && errno == ENOENT);
    if (unpublished) (void)iso_os.unlink(a->file_path);
  }
  return status;
}

/* Free space is asked for first, so that a full disk is found before it is full. */
static iso_status check_space(const attempt *a) {
  int64_t needed = a->file.bytes + (int64_t)a->header.length + ALIGN, there = iso_disk_free(a->snapshots);
  if (there < 0 || there >= needed) return ISO_OK;
  return iso_fail(ISO_ERR_SPACE, "snapshot %s needs %.1f MiB, the disk of '%s' has %.1f MiB left; free some space",
                  a->name, (double)needed / 1048576, a->run, (double)there / 1048576);
}

static iso_status make_folders(const attempt *a) {
  if (iso_os.mkdir(a->snapshots, 0777) == 0) {
    ISO_TRY(iso_path_sync(a->run));
  } else if (errno != EEXIST) {
    return iso_os_fail("create folder", a->snapshots);
  }
  ISO_TRY(check_space(a));
  if (iso_os.mkdir(a->folder, 0777) != 0 && errno != EEXIST) return iso_os_fail("create folder", a->folder);
  return ISO_OK;
}

/* ---- a snapshot of that name is there already ------------------------------------------------------------------ */

/* Where a state came from does not make it another state: `parent` is not compared. */
static bool same_info(const iso_snapshot_info *a, const iso_snapshot_info *b) {
  return a->step == b->step && a->adam_step == b->adam_step && a->incarnation == b->incarnation &&
         a->tokens == b->tokens && a->refused == b->refused && strcmp(a->config_digest, b->config_digest) == 0 &&
         strcmp(a->tokenizer_fingerprint, b->tokenizer_fingerprint) == 0 && strcmp(a->tier, b->tier) == 0 &&
         a->cursor_count == b->cursor_count &&
         (a->cursor_count == 0 || memcmp(a->cursors, b->cursors, a->cursor_count * sizeof *a->cursors) == 0);
}

static iso_status compare_existing(const attempt *a, const iso_manifest *there) {
  uint32_t crc = iso_crc32c(0, a->header.data, a->header.length);
  ISO_TRY(pass_regions(a, NULL, &crc));
  if (there->file_count != 1 || there->files[0].bytes != a->file.bytes || there->files[0].crc != crc ||
      !same_info(&there->info, &a->manifest.info)) {
    return iso_fail(
        ISO_ERR_MISMATCH,
        "snapshot %s of '%s' exists and is valid, but holds another state; the same step must give the same bits",
        a->name, a->run);
  }
  /* Its writer may have died between the rename and these. */
  ISO_TRY(iso_path_sync(a->folder));
  return iso_path_sync(a->snapshots);
}

/* `done`: an equal snapshot is there. A damaged one is moved away, so that its name is free. */
static iso_status meet_existing(const attempt *a, bool *done) {
  bool exists;
  iso_manifest there;
  iso_string faults = {0};
  *done = false;
  ISO_TRY(iso_path_probe(a->manifest_path, &exists));
  if (!exists) return ISO_OK;
  iso_status status = iso_snapshot_examine(a->folder, a->manifest.uuid, ISO_DEEP, &there, &faults);
  if (status == ISO_OK) {
    status = compare_existing(a, &there);
    *done = status == ISO_OK;
  } else if (status == ISO_ERR_FORMAT) {
    char relative[80], moved_to[256];
    snprintf(relative, sizeof relative, "snapshots/%s", a->name);
    status = iso_run_set_aside(a->run, relative, moved_to);
    if (status == ISO_OK) {
      iso_warn("run '%s': snapshot %s is damaged: %s; set aside as %s and written again", a->run, a->name,
               iso_fault_first(&faults), moved_to);
    }
  } else {
    status = iso_fail(status, "snapshot %s of '%s': %s", a->name, a->run, iso_fault_first(&faults));
  }
  iso_manifest_fini(&there);
  iso_string_fini(&faults);
  return status;
}

static iso_status write_snapshot(attempt *a, const iso_snapshot_info *info) {
  bool done;
  if (a->state->elements && (!a->state->master || !a->state->moment1 || !a->state->moment2)) {
    return iso_fail(ISO_ERR_INTERNAL, "snapshot of step %lld: an array of the state is missing", (long long)info->step);
  }
  ISO_TRY(prepare(a, info));
  ISO_TRY(iso_incarnation_check(a->run, info->incarnation));
  ISO_TRY(meet_existing(a, &done));
  if (done) return ISO_OK;
  ISO_TRY(make_folders(a));
  iso_status status = write_regions(a);
  if (status == ISO_OK) status = publish(a);
  if (status != ISO_OK) {
    (void)iso_os.rmdir(a->folder); /* succeeds only when nothing is in it */
    return status;
  }
  return iso_path_sync(a->snapshots);
}

iso_status iso_snapshot_write_from(const char *run, const iso_state *state, const iso_snapshot_info *info,
                                   const iso_snapshot_source *source) {
  attempt a = {.run = run, .state = state, .source = source, .arena = iso_arena_create()};
  iso_status status = a.arena ? write_snapshot(&a, info) : ISO_ERR_MEMORY;
  iso_string_fini(&a.header);
  iso_arena_destroy(&a.arena);
  return status;
}

iso_status iso_snapshot_write(const char *run, const iso_state *state, const iso_snapshot_info *info) {
  return iso_snapshot_write_from(run, state, info, NULL);
}
