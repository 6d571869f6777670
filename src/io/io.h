/* SPDX-License-Identifier: Apache-2.0
 *
 * io: files that hold tensors.
 *
 * Invariants
 *  1. A safetensors file is accepted only if every rule of the format holds (docs/formats.md lists them with their order); nothing is read through an
 *     offset that was not checked first.
 *  2. A writer never leaves a half-written file under its final name.
 */
#ifndef ISO_IO_H
#define ISO_IO_H

#include "base/base.h"

/* ---- safetensors.c: reading ----------------------------------------------------------------------- */

typedef struct iso_safetensor {
  const char *name;
  const char *dtype; /* as written, e.g. "BF16"; all dtypes of the format are accepted by the reader */
  int rank;
  int64_t shape[8];
  int64_t elements;
  int64_t bytes;
  const void *data; /* mapped, read-only, as aligned as the file has it (possibly not at all) */
} iso_safetensor;

/* One file, or all shards of an index, mapped read-only. */
typedef struct iso_safetensors iso_safetensors;
/* `path`: a .safetensors file, a model.safetensors.index.json, or a folder holding model.safetensors or its index. */
iso_status iso_safetensors_open(const char *path, iso_safetensors **out) ISO_MUST_CHECK;
void iso_safetensors_close(iso_safetensors **file);
size_t iso_safetensors_count(const iso_safetensors *file);
const iso_safetensor *iso_safetensors_at(const iso_safetensors *file, size_t index); /* sorted by name */
const iso_safetensor *iso_safetensors_find(const iso_safetensors *file, const char *name); /* NULL: none */
/* Metadata value or NULL. */
const char *iso_safetensors_metadata(const iso_safetensors *file, const char *key);
/* Elements as float32: F32, BF16 and F16 (F64 too, rounded); any other type is UNSUPPORTED by name. */
iso_status iso_safetensor_to_f32(const iso_safetensor *tensor, float *out) ISO_MUST_CHECK;
/* Elements as int32: I32, or I64 within range. */
iso_status iso_safetensor_to_i32(const iso_safetensor *tensor, int32_t *out) ISO_MUST_CHECK;

/* ---- safetensors_write.c --------------------------------------------------------------------------- */

typedef struct iso_tensor_out {
  const char *name;
  iso_dtype dtype; /* F32, BF16, I32, F16, F64, I64, U8 */
  int rank;
  int64_t shape[8];
  const void *data; /* row-major, borrowed */
} iso_tensor_out;

/* Header (8-byte length and JSON, padded with spaces so that the data begins at a multiple of `align`, at least 8) for tensors that lie back to back in the
 * order given. Appends to `header`. `metadata`: NULL-terminated key, value, key, value list, or NULL. FORMAT on duplicate names. */
iso_status iso_safetensors_header(const iso_tensor_out *tensors, size_t count, const char *const *metadata, size_t align, iso_string *header) ISO_MUST_CHECK;
/* Writes a whole file: temporary name in the same folder, data synced, renamed over `path`, folder synced. Order of data = order given. `crc` (may be NULL): CRC-32C of the
 * whole file, computed on the source buffers. */
iso_status iso_safetensors_write(const char *path, const iso_tensor_out *tensors, size_t count, const char *const *metadata, uint32_t *crc, int64_t *bytes) ISO_MUST_CHECK;

#endif
