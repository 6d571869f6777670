/* SPDX-License-Identifier: Apache-2.0
 *
 * io: files that hold tensors, and the few file habits that keep them whole.
 *
 * Invariants
 *  1. A safetensors file is accepted only if every rule of the format holds (docs/formats.md lists them in the order in
 * which they are checked); nothing is read through an offset that was not checked first.
 *  2. The header is checked on a private copy, never on the mapping: a file that changes under the reader cannot undo a
 * check.
 *  3. A writer never leaves a half-written file under its final name.
 *  4. CRC-32C is computed on the source buffer, before the bytes are handed to the system.
 */
#ifndef ISO_IO_H
#define ISO_IO_H

#include "base/base.h"

/* ---- safetensors.c: reading ---------------------------------------------------------------------- */

typedef struct iso_safetensor {
  const char *name;
  const char *dtype; /* as written, e.g. "BF16"; all dtypes of the format are accepted by the reader */
  int rank;
  int64_t shape[8];
  int64_t elements;
  int64_t bytes;
  int64_t offset;   /* of the first byte, from the beginning of its file */
  const char *file; /* path of its file */
  const void *data; /* mapped, read-only, as aligned as the file has it (possibly not at all); NULL if bytes is 0 */
} iso_safetensor;

/* One file, or all shards of an index, mapped read-only. */
typedef struct iso_safetensors iso_safetensors;
/* `path`: a .safetensors file, a model.safetensors.index.json, or a folder holding model.safetensors or its index.
 * Every shard of an index is opened and checked, and the index must name exactly the tensors that they hold.
 * NOT_FOUND, IO, MEMORY; FORMAT naming the broken rule; UNSUPPORTED above 8 dimensions. */
iso_status iso_safetensors_open(const char *path, iso_safetensors **out) ISO_MUST_CHECK;
void iso_safetensors_close(iso_safetensors **file);
size_t iso_safetensors_count(const iso_safetensors *file);
const iso_safetensor *iso_safetensors_at(const iso_safetensors *file, size_t index);       /* sorted by name */
const iso_safetensor *iso_safetensors_find(const iso_safetensors *file, const char *name); /* NULL: none */
/* Metadata value or NULL. With shards: of the first shard that has the key. */
const char *iso_safetensors_metadata(const iso_safetensors *file, const char *key);
/* Elements as float32: F32, BF16 and F16 (F64 too, rounded); any other type is UNSUPPORTED by name. */
iso_status iso_safetensor_to_f32(const iso_safetensor *tensor, float *out) ISO_MUST_CHECK;
/* Elements as int32: I32, or I64 within range (MISMATCH outside). */
iso_status iso_safetensor_to_i32(const iso_safetensor *tensor, int32_t *out) ISO_MUST_CHECK;

/* ---- safetensors_header.c: the rules of the format ------------------------------------------------ */

/* A checked header. Tensors are sorted by name, with offset filled in and data NULL. Strings live in `pool`. */
typedef struct iso_safetensors_table {
  iso_safetensor *tensors;
  size_t count;
  const char **metadata; /* key, value, key, value ... */
  size_t metadata_count; /* pairs */
  char *pool;
} iso_safetensors_table;
/* Checks the first rules on the file's first 8 bytes: how long the header is. `file` names the file in errors. */
iso_status iso_safetensors_header_length(const char *file, int64_t file_bytes, const uint8_t first[8],
                                         int64_t *length) ISO_MUST_CHECK;
/* Parses and checks a header of `length` bytes (without the 8 before it) of a file of file_bytes. `file` is kept. */
iso_status iso_safetensors_table_init(iso_safetensors_table *table, const char *file, int64_t file_bytes,
                                      const char *header, size_t length) ISO_MUST_CHECK;
void iso_safetensors_table_fini(iso_safetensors_table *table);
/* Bits of one element of a dtype of the format, 0 if there is no such dtype. */
int iso_safetensors_dtype_bits(const char *dtype);

/* ---- safetensors_write.c --------------------------------------------------------------------------- */

typedef struct iso_tensor_out {
  const char *name;
  iso_dtype dtype; /* F32, BF16, I32, F16, F64, I64, U8 */
  int rank;
  int64_t shape[8];
  const void *data; /* row-major, borrowed */
} iso_tensor_out;

/* Elements of a shape, or -1 when a dimension is negative or the product overflows. */
int64_t iso_shape_elements(int rank, const int64_t *shape);
/* Header (8-byte length and JSON, padded with spaces so that the data begins at a multiple of `align`, a power of two
 * of at least 8) for tensors that lie back to back in the order given. Appends to `header`, which is empty before.
 * `metadata`: NULL-terminated key, value, key, value list, or NULL. FORMAT on duplicate or malformed names and
 * impossible shapes. */
iso_status iso_safetensors_header(const iso_tensor_out *tensors, size_t count, const char *const *metadata,
                                  size_t align, iso_string *header) ISO_MUST_CHECK;
/* Writes a whole file: temporary name in the same folder, data synced, renamed over `path`, folder synced. Order of
 * data = order given. `crc` and `bytes` (each may be NULL): CRC-32C and size of the whole file, computed on the source
 * buffers. */
iso_status iso_safetensors_write(const char *path, const iso_tensor_out *tensors, size_t count,
                                 const char *const *metadata, uint32_t *crc, int64_t *bytes) ISO_MUST_CHECK;

/* ---- file.c: writing so that a crash leaves the old or the new ------------------------------------- */

/* 32 lower-case hex digits from the system's random source: the name of one attempt to write something. */
iso_status iso_attempt_id(char hex[33]) ISO_MUST_CHECK;
/* fsync of the folder that holds `path`. */
iso_status iso_parent_sync(const char *path) ISO_MUST_CHECK;

/* A new file, written front to back, its CRC-32C taken from the source buffers. */
typedef struct iso_sink {
  const char *path; /* borrowed until the close */
  int fd;           /* -1: closed */
  int64_t bytes;    /* so far */
  uint32_t crc;     /* so far */
} iso_sink;
/* The file must not exist: names are never reused. */
iso_status iso_sink_open(iso_sink *sink, const char *path) ISO_MUST_CHECK;
iso_status iso_sink_write(iso_sink *sink, const void *data, size_t bytes) ISO_MUST_CHECK;
/* fdatasync and close. The file is not to be trusted when this fails, and is not synced a second time. */
iso_status iso_sink_commit(iso_sink *sink) ISO_MUST_CHECK;
/* Closes if open and removes the file. For an attempt that was given up. */
void iso_sink_abandon(iso_sink *sink);
/* Publishes a small file under a name that must be free: temporary file, synced, renamed without replacing, folder
 * synced. `taken` tells that the name exists already (ISO_OK is returned then, and nothing was changed). */
iso_status iso_file_publish(const char *path, const void *data, size_t bytes, bool *taken) ISO_MUST_CHECK;

#endif
