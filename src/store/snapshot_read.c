/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a snapshot: examining it without loading, and loading it into the flat state.
 *
 * Both go through files front to back with pread, taking the CRC-32C of every byte, and never through a mapping: a
 * failing disk must end in an error, not in a signal.
 *
 * Invariants
 *  1. A load that succeeds has seen the CRC of every byte of every file, and written every element of master (and of
 * the moments that were asked for) exactly once.
 *  2. Examining reports every fault that it finds, not only the first, and logs none: the caller knows whether a fault
 * is news.
 */
#include "store/store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4 << 20, SCRATCH_ALIGN = 4096 };
static const char *const prefixes[3] = {"", "moment1.", "moment2."};

/* Which of the three arrays a stored tensor belongs to, and its parameter's name. */
static int split_name(const char *stored, const char **parameter) {
  for (int array = 2; array > 0; array--) {
    size_t length = strlen(prefixes[array]);
    if (strncmp(stored, prefixes[array], length) == 0) {
      *parameter = stored + length;
      return array;
    }
  }
  *parameter = stored;
  return 0;
}

/* ---- coverage --------------------------------------------------------------------------------------------------- */

typedef struct piece {
  const char *parameter;
  int array;
  int64_t begin, end;
  const char *file;
} piece;

static int by_place(const void *left, const void *right) {
  const piece *a = left, *b = right;
  int order = strcmp(a->parameter, b->parameter);
  if (order) return order;
  if (a->array != b->array) return a->array - b->array;
  if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
  return a->end < b->end ? -1 : a->end > b->end;
}

/* All pieces of all files, sorted by (parameter, array, begin). */
static iso_status collect(const iso_manifest *m, piece **pieces, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < m->file_count; i++) *count += m->files[i].cover_count;
  *pieces = iso_arena_alloc(m->arena, (*count + 1) * sizeof **pieces);
  if (!*pieces) return ISO_ERR_MEMORY;
  size_t used = 0;
  for (size_t i = 0; i < m->file_count; i++) {
    const iso_manifest_file *file = &m->files[i];
    for (size_t k = 0; k < file->cover_count; k++) {
      piece *p = &(*pieces)[used++];
      *p = (piece){.begin = file->covers[k].begin, .end = file->covers[k].end, .file = file->name};
      p->array = split_name(file->covers[k].tensor, &p->parameter);
    }
  }
  if (used) qsort(*pieces, used, sizeof **pieces, by_place);
  return ISO_OK;
}

/* End of the run of pieces from `first` on that belong to one array of one parameter; FORMAT when they do not follow
 * each other. */
static iso_status tile(const piece *pieces, size_t count, size_t first, size_t *next, int64_t *elements,
                       iso_string *faults) {
  const piece *p = &pieces[first];
  int64_t end = 0;
  size_t i = first;
  for (; i < count && pieces[i].array == p->array && strcmp(pieces[i].parameter, p->parameter) == 0; i++) {
    bool same_again = i > first && pieces[i].begin == pieces[i - 1].begin && pieces[i].end == pieces[i - 1].end;
    if (pieces[i].begin != end || same_again) {
      iso_string_printf(faults, "manifest.json: elements of '%s%.100s' are %s at %lld\n", prefixes[p->array],
                        p->parameter, pieces[i].begin > end ? "missing" : "covered twice",
                        (long long)(pieces[i].begin > end ? end : pieces[i].begin));
      return ISO_ERR_FORMAT;
    }
    end = pieces[i].end;
  }
  *next = i;
  *elements = end;
  return ISO_OK;
}

/* Each parameter has all three arrays, each element once, and together they are as many as the manifest says. */
static iso_status check_coverage(const iso_manifest *m, iso_string *faults) {
  piece *pieces;
  size_t count, at = 0;
  int64_t total = 0;
  ISO_TRY(collect(m, &pieces, &count));
  while (at < count) {
    const char *parameter = pieces[at].parameter;
    int64_t elements[3] = {0};
    for (int array = 0; array < 3; array++) {
      if (at == count || pieces[at].array != array || strcmp(pieces[at].parameter, parameter) != 0) {
        iso_string_printf(faults, "manifest.json: no file holds '%s%.100s'\n", prefixes[array], parameter);
        return ISO_ERR_FORMAT;
      }
      ISO_TRY(tile(pieces, count, at, &at, &elements[array], faults));
    }
    if (elements[0] != elements[1] || elements[0] != elements[2]) {
      iso_string_printf(faults, "manifest.json: '%.100s' and its moments differ in size\n", parameter);
      return ISO_ERR_FORMAT;
    }
    total += elements[0];
  }
  if (total == m->elements) return ISO_OK;
  iso_string_printf(faults, "manifest.json: its files cover %lld elements, it says %lld\n", (long long)total,
                    (long long)m->elements);
  return ISO_ERR_FORMAT;
}

static int by_tensor(const void *left, const void *right) {
  return strcmp(((const iso_manifest_cover *)left)->tensor, ((const iso_manifest_cover *)right)->tensor);
}

/* The file holds exactly what the manifest says, as float32. */
static iso_status check_table(const iso_manifest_file *file, const iso_safetensors_table *table, iso_string *faults) {
  if (file->cover_count) qsort(file->covers, file->cover_count, sizeof *file->covers, by_tensor);
  for (size_t i = 0; i < file->cover_count || i < table->count; i++) {
    const iso_safetensor *t = i < table->count ? &table->tensors[i] : NULL;
    const iso_manifest_cover *cover = i < file->cover_count ? &file->covers[i] : NULL;
    if (!t || !cover || strcmp(t->name, cover->tensor) != 0) {
      iso_string_printf(faults, "%s: its tensors are not those that the manifest names\n", file->name);
      return ISO_ERR_FORMAT;
    }
    if (t->elements != cover->end - cover->begin || strcmp(t->dtype, "F32") != 0) {
      iso_string_printf(faults, "%s: '%.100s' is not the %lld float32 elements that the manifest names\n", file->name,
                        t->name, (long long)(cover->end - cover->begin));
      return ISO_ERR_FORMAT;
    }
  }
  return ISO_OK;
}

/* ---- one file, front to back --------------------------------------------------------------------------------------
 */

/* Opens the file and compares its size with the manifest's. */
static iso_status open_file(const char *path, const iso_manifest_file *file, iso_probe *probe, iso_string *faults) {
  ISO_TRY(iso_probe_open(probe, path, file->name, faults));
  if (probe->bytes == file->bytes) return ISO_OK;
  iso_string_printf(faults, "%s: it has %lld bytes, the manifest says %lld\n", file->name, (long long)probe->bytes,
                    (long long)file->bytes);
  iso_probe_close(probe);
  return ISO_ERR_FORMAT;
}

/* What a scratch buffer for a file of `bytes` needs. */
static size_t chunk_bytes(int64_t bytes) {
  return bytes < CHUNK_BYTES ? (size_t)bytes + 1 : CHUNK_BYTES;
}

/* Reads `bytes` from `offset` on, into `out` or (NULL) nowhere, and continues the CRC. `scratch` has chunk_bytes of the
 * file. */
static iso_status stream(const iso_probe *probe, int64_t offset, int64_t bytes, char *out, char *scratch, uint32_t *crc,
                         iso_string *faults) {
  while (bytes > 0) {
    size_t chunk = bytes < CHUNK_BYTES ? (size_t)bytes : CHUNK_BYTES;
    char *into = out ? out : scratch;
    ISO_TRY(iso_probe_read(probe, into, chunk, offset, faults));
    *crc = iso_crc32c(*crc, into, chunk);
    offset += (int64_t)chunk;
    bytes -= (int64_t)chunk;
    if (out) out += chunk;
  }
  return ISO_OK;
}

/* The same of the whole file, from the disk itself: neither fills the page cache nor copies out of it. What cannot be
 * read so is read through the cache. */
static iso_status stream_direct(const iso_probe *probe, char *scratch, uint32_t *crc, iso_string *faults) {
  iso_probe direct = *probe;
  int64_t offset = 0;
  direct.fd = iso_os.open(probe->path, O_RDONLY | O_CLOEXEC | O_DIRECT, 0);
  while (direct.fd >= 0 && probe->bytes - offset >= CHUNK_BYTES) {
    const size_t known = faults->length;
    if (iso_probe_read(&direct, scratch, CHUNK_BYTES, offset, faults) != ISO_OK) {
      faults->length = known;
      if (faults->data) faults->data[known] = 0;
      break;
    }
    *crc = iso_crc32c(*crc, scratch, CHUNK_BYTES);
    offset += CHUNK_BYTES;
  }
  iso_probe_close(&direct);
  return stream(probe, offset, probe->bytes - offset, NULL, scratch, crc, faults);
}

static iso_status check_crc(const iso_manifest_file *file, uint32_t crc, iso_string *faults) {
  if (crc == file->crc) return ISO_OK;
  iso_string_printf(faults, "%s: its CRC-32C is %08x, the manifest says %08x\n", file->name, crc, file->crc);
  return ISO_ERR_FORMAT;
}

/* The checked header; `crc` continues over its bytes. A header that is not safetensors is logged, not added to
 * `faults`. */
static iso_status read_table(const iso_probe *probe, iso_safetensors_table *table, int64_t *data_begin, uint32_t *crc,
                             iso_string *faults) {
  uint8_t first[8] = {0};
  int64_t length;
  ISO_TRY(iso_probe_read(probe, first, probe->bytes < 8 ? (size_t)probe->bytes : 8, 0, faults));
  iso_status status = iso_safetensors_header_length(probe->path, probe->bytes, first, &length);
  char *header = status == ISO_OK ? malloc((size_t)length + 1) : NULL;
  if (status == ISO_OK && !header) status = iso_fail(ISO_ERR_MEMORY, "'%s': no memory for its header", probe->path);
  if (status != ISO_OK) return status;
  status = iso_probe_read(probe, header, (size_t)length, 8, faults);
  if (status == ISO_OK) {
    *crc = iso_crc32c(iso_crc32c(*crc, first, 8), header, (size_t)length);
    *data_begin = 8 + length;
    status = iso_safetensors_table_init(table, probe->path, probe->bytes, header, (size_t)length);
  }
  free(header);
  return status;
}

/* ---- examining ------------------------------------------------------------------------------------------------------
 */

static iso_status examine_file(const char *path, const iso_manifest_file *file, iso_depth deep, iso_string *faults) {
  iso_probe probe;
  iso_safetensors_table table;
  uint32_t crc = 0, again = 0;
  int64_t data_begin;
  ISO_TRY(open_file(path, file, &probe, faults));
  iso_status status = ISO_OK;
  if (deep) {
    void *scratch;
    if (posix_memalign(&scratch, SCRATCH_ALIGN, chunk_bytes(file->bytes)) != 0) {
      scratch = NULL;
      iso_string_printf(faults, "%s: out of memory\n", file->name);
      status = ISO_ERR_MEMORY;
    } else {
      status = deep == ISO_DEEP_DIRECT ? stream_direct(&probe, scratch, &crc, faults)
                                       : stream(&probe, 0, file->bytes, NULL, scratch, &crc, faults);
    }
    free(scratch);
    if (status == ISO_OK) status = check_crc(file, crc, faults);
    size_t known = faults->length;
    bool whole = status == ISO_OK;
    if (whole) status = read_table(&probe, &table, &data_begin, &again, faults);
    if (whole && status != ISO_OK && faults->length == known) {
      iso_string_printf(faults, "%s: %s\n", file->name,
                        iso_last_error()); /* a good CRC over nonsense: the log line is news */
    }
    if (status == ISO_OK) {
      status = check_table(file, &table, faults);
      iso_safetensors_table_fini(&table);
    }
  }
  iso_probe_close(&probe);
  return status;
}

/* The system's refusal weighs more than damage: it says that we know nothing. */
static void worse(iso_status *all, iso_status one) {
  if (*all == ISO_OK || *all == ISO_ERR_FORMAT) *all = one == ISO_OK ? *all : one;
}

iso_status iso_snapshot_examine(const char *folder, const char *uuid, iso_depth deep, iso_manifest *manifest,
                                iso_string *faults) {
  iso_status all = ISO_OK;
  ISO_TRY(iso_manifest_read(folder, manifest, faults));
  if (uuid && strcmp(uuid, manifest->uuid) != 0) {
    iso_string_printf(faults, "manifest.json: it belongs to run %s, not to %s\n", manifest->uuid, uuid);
    worse(&all, ISO_ERR_FORMAT);
  }
  for (size_t i = 0; i < manifest->file_count; i++) {
    const char *path = iso_path_join(manifest->arena, folder, manifest->files[i].name);
    worse(&all, path ? examine_file(path, &manifest->files[i], deep, faults) : ISO_ERR_MEMORY);
  }
  worse(&all, check_coverage(manifest, faults));
  if (iso_string_failed(faults)) worse(&all, ISO_ERR_MEMORY);
  return all;
}

/* ---- loading --------------------------------------------------------------------------------------------------------
 */

typedef struct target {
  const iso_tensor_out *tensor;
  int64_t offset, elements; /* in the flat arrays */
} target;

typedef struct loader {
  const char *folder;
  iso_state *state;
  iso_manifest manifest;
  target *targets; /* sorted by name, in the manifest's arena */
  char *scratch;
  char *difference; /* comparing, not loading: of what differs first; else NULL */
  iso_string faults;
} loader;

static int target_by_name(const void *left, const void *right) {
  return strcmp(((const target *)left)->tensor->name, ((const target *)right)->tensor->name);
}

static const target *find_target(const loader *l, const char *name) {
  iso_tensor_out named = {.name = name};
  target key = {.tensor = &named};
  return l->state->tensor_count ? bsearch(&key, l->targets, l->state->tensor_count, sizeof key, target_by_name) : NULL;
}

static iso_status make_targets(loader *l) {
  const iso_state *state = l->state;
  int64_t offset = 0;
  l->targets = iso_arena_alloc(l->manifest.arena, (state->tensor_count + 1) * sizeof *l->targets);
  if (!l->targets) return ISO_ERR_MEMORY;
  for (size_t i = 0; i < state->tensor_count; i++) {
    const iso_tensor_out *t = &state->tensors[i];
    l->targets[i] = (target){t, offset, iso_shape_elements(t->rank, t->shape)};
    offset += l->targets[i].elements;
  }
  if (state->tensor_count) qsort(l->targets, state->tensor_count, sizeof *l->targets, target_by_name);
  if (offset == state->elements) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL, "snapshot '%s': the state has %lld elements, its tensors %lld", l->folder,
                  (long long)state->elements, (long long)offset);
}

/* The model's parameters are the snapshot's: every one there, none left over, sizes equal. Coverage itself is checked
 * already. */
static iso_status match_parameters(loader *l) {
  piece *pieces;
  size_t count, at = 0, matched = 0;
  ISO_TRY(collect(&l->manifest, &pieces, &count));
  while (at < count) {
    const piece *p = &pieces[at];
    int64_t elements;
    const target *t = find_target(l, p->parameter);
    ISO_TRY(tile(pieces, count, at, &at, &elements, &l->faults));
    if (!t || t->elements != elements) {
      return iso_fail(ISO_ERR_MISMATCH,
                      "snapshot '%s': tensor '%s%.100s' has %lld elements, the model has %s; is it another model's?",
                      l->folder, prefixes[p->array], p->parameter, (long long)elements,
                      t ? "another number" : "no such tensor");
    }
    matched += p->array == 0;
  }
  for (size_t i = 0; matched != l->state->tensor_count && i < l->state->tensor_count; i++) {
    bool there = false;
    for (size_t k = 0; k < count && !there; k++) there = strcmp(pieces[k].parameter, l->state->tensors[i].name) == 0;
    if (!there) {
      return iso_fail(ISO_ERR_MISMATCH,
                      "snapshot '%s': the model's tensor '%.100s' is not in it; is it another model's?", l->folder,
                      l->state->tensors[i].name);
    }
  }
  return ISO_OK;
}

static int by_offset(const void *left, const void *right) {
  const iso_safetensor *a = left, *b = right;
  if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
  return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static iso_status check_shape(const loader *l, const iso_safetensor *stored, const target *t) {
  if (stored->elements != t->elements) return ISO_OK; /* a range of elements has no shape */
  bool same = stored->rank == t->tensor->rank;
  for (int d = 0; same && d < stored->rank; d++) same = stored->shape[d] == t->tensor->shape[d];
  if (same) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH, "snapshot '%s': tensor '%.100s' has another shape than in the model", l->folder,
                  stored->name);
}

/* As stream, but the bytes are held against those in memory. */
static iso_status compare(loader *l, const iso_probe *probe, const iso_safetensor *stored, const char *memory,
                          int64_t first, uint32_t *crc) {
  for (int64_t at = 0; at < stored->bytes;) {
    const size_t chunk = stored->bytes - at < CHUNK_BYTES ? (size_t)(stored->bytes - at) : CHUNK_BYTES;
    ISO_TRY(iso_probe_read(probe, l->scratch, chunk, stored->offset + at, &l->faults));
    *crc = iso_crc32c(*crc, l->scratch, chunk);
    if (!l->difference[0] && memcmp(l->scratch, memory + at, chunk) != 0) {
      size_t i = 0;
      while (l->scratch[i] == memory[at + (int64_t)i]) i++;
      snprintf(l->difference, 200, "'%.100s' differs from element %lld on", stored->name,
               (long long)(first + (at + (int64_t)i) / (int64_t)sizeof(float)));
    }
    at += (int64_t)chunk;
  }
  return ISO_OK;
}

/* Each tensor's place in the flat state is known: bytes go straight there. `file->covers` are sorted by check_table. */
static iso_status load_tensors(loader *l, const iso_probe *probe, const iso_manifest_file *file,
                               iso_safetensors_table *table, uint32_t *crc) {
  float *const arrays[3] = {l->state->master, l->state->moment1, l->state->moment2};
  ISO_TRY(check_table(file, table, &l->faults));
  if (table->count) qsort(table->tensors, table->count, sizeof *table->tensors, by_offset);
  for (size_t i = 0; i < table->count; i++) {
    const iso_safetensor *stored = &table->tensors[i];
    iso_manifest_cover key = {.tensor = stored->name};
    const iso_manifest_cover *cover = bsearch(&key, file->covers, file->cover_count, sizeof key, by_tensor);
    const char *parameter;
    int array = split_name(stored->name, &parameter);
    const target *t = find_target(l, parameter);
    if (!cover || !t)
      return iso_fail(ISO_ERR_INTERNAL, "snapshot '%s': '%.100s' slipped through", l->folder, stored->name);
    ISO_TRY(check_shape(l, stored, t));
    float *out = arrays[array] ? arrays[array] + t->offset + cover->begin : NULL;
    if (l->difference && out) {
      ISO_TRY(compare(l, probe, stored, (const char *)out, cover->begin, crc));
    } else {
      ISO_TRY(stream(probe, stored->offset, stored->bytes, (char *)out, l->scratch, crc, &l->faults));
    }
  }
  return check_crc(file, *crc, &l->faults);
}

static iso_status load_file(loader *l, const iso_manifest_file *file) {
  iso_probe probe;
  iso_safetensors_table table;
  int64_t data_begin;
  uint32_t crc = 0;
  const char *path = iso_path_join(l->manifest.arena, l->folder, file->name);
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(open_file(path, file, &probe, &l->faults));
  iso_status status = read_table(&probe, &table, &data_begin, &crc, &l->faults);
  if (status == ISO_OK) {
    status = load_tensors(l, &probe, file, &table, &crc);
    iso_safetensors_table_fini(&table);
  }
  iso_probe_close(&probe);
  return status;
}

static iso_status load_all(loader *l) {
  ISO_TRY(iso_manifest_read(l->folder, &l->manifest, &l->faults));
  ISO_TRY(check_coverage(&l->manifest, &l->faults));
  ISO_TRY(make_targets(l));
  ISO_TRY(match_parameters(l));
  int64_t largest = 0;
  for (size_t i = 0; i < l->manifest.file_count; i++) {
    if (l->manifest.files[i].bytes > largest) largest = l->manifest.files[i].bytes;
  }
  l->scratch = malloc(chunk_bytes(largest));
  if (!l->scratch) return iso_fail(ISO_ERR_MEMORY, "snapshot '%s': out of memory", l->folder);
  for (size_t i = 0; i < l->manifest.file_count; i++) ISO_TRY(load_file(l, &l->manifest.files[i]));
  return ISO_OK;
}

static iso_status load_or_compare(const char *folder, iso_state *state, char *difference) {
  loader l = {.folder = folder, .state = state, .difference = difference};
  iso_status status = load_all(&l);
  /* A line in `faults` is a cause that nobody has logged. */
  if (status != ISO_OK && l.faults.length) {
    status = iso_fail(status, "snapshot '%s': %s; it cannot be loaded", folder, iso_fault_first(&l.faults));
  }
  free(l.scratch);
  iso_string_fini(&l.faults);
  iso_manifest_fini(&l.manifest);
  return status;
}

iso_status iso_snapshot_load(const char *folder, iso_state *state) {
  return load_or_compare(folder, state, NULL);
}

iso_status iso_snapshot_compare(const char *folder, const iso_state *state, char difference[200]) {
  iso_state same = *state; /* only read */
  difference[0] = 0;
  return load_or_compare(folder, &same, difference);
}
