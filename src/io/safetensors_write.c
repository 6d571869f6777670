/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing safetensors files: a header for tensors that lie back to back, and whole files.
 *
 * Invariants
 *  1. What is written here passes every check of safetensors_header.c: names are unique UTF-8, shapes do not overflow.
 *  2. A file appears under its name only after its data is synced; before that it has a temporary name beside it.
 *  3. The same tensors in the same order give the same bytes: nothing of time, place or attempt enters a header.
 */
#include "io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100000000, MAX_RANK = 8 };

int64_t iso_shape_elements(int rank, const int64_t *shape) {
  int64_t elements = 1;
  for (int i = 0; i < rank; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(elements, shape[i], &elements)) return -1;
  }
  return elements;
}

static const char *format_name(iso_dtype dtype) {
  switch (dtype) {
  case ISO_F32:
    return "F32";
  case ISO_BF16:
    return "BF16";
  case ISO_I32:
    return "I32";
  case ISO_F16:
    return "F16";
  case ISO_F64:
    return "F64";
  case ISO_I64:
    return "I64";
  case ISO_U8:
    return "U8";
  }
  return NULL;
}

/* Strings that a reader must get back exactly: UTF-8 (iso_json_quote would replace stray bytes). */
static bool is_utf8(const char *text) {
  size_t length = strlen(text);
  for (size_t at = 0; at < length;) {
    int span = iso_utf8_span(text + at, length - at);
    if (span == 0) return false;
    at += (size_t)span;
  }
  return true;
}

static int by_text(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Strings at list[0], list[stride], ...: each valid, none twice. */
static iso_status check_names(const char *const *list, size_t count, size_t stride, const char *what) {
  const char **sorted = calloc(count + 1, sizeof *sorted);
  if (!sorted) return iso_fail(ISO_ERR_MEMORY, "safetensors header: no memory to check %zu names", count);
  iso_status status = ISO_OK;
  for (size_t i = 0; i < count; i++) sorted[i] = list[i * stride];
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    if (!is_utf8(sorted[i])) {
      status = iso_fail(ISO_ERR_FORMAT, "safetensors header: %s '%.100s' is not UTF-8", what, sorted[i]);
    }
  }
  if (count) qsort(sorted, count, sizeof *sorted, by_text);
  for (size_t i = 1; i < count && status == ISO_OK; i++) {
    if (strcmp(sorted[i - 1], sorted[i]) == 0) {
      status = iso_fail(ISO_ERR_FORMAT, "safetensors header: %s '%.100s' comes twice", what, sorted[i]);
    }
  }
  free(sorted);
  return status;
}

static iso_status check_tensors(const iso_tensor_out *tensors, size_t count) {
  const char **names = calloc(count + 1, sizeof *names);
  if (!names) return iso_fail(ISO_ERR_MEMORY, "safetensors header: no memory to check %zu names", count);
  for (size_t i = 0; i < count; i++) names[i] = tensors[i].name;
  iso_status status = check_names(names, count, 1, "tensor");
  free(names);
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    const iso_tensor_out *t = &tensors[i];
    const char *cause = strcmp(t->name, "__metadata__") == 0        ? "the name is reserved"
                        : t->rank < 0 || t->rank > MAX_RANK         ? "rank is not 0 to 8"
                        : !format_name(t->dtype)                    ? "unknown type"
                        : iso_shape_elements(t->rank, t->shape) < 0 ? "shape is negative or overflows"
                                                                    : NULL;
    if (cause) status = iso_fail(ISO_ERR_FORMAT, "safetensors header: tensor '%.100s': %s", t->name, cause);
  }
  return status;
}

static iso_status check_metadata(const char *const *metadata, size_t *pairs) {
  *pairs = 0;
  if (!metadata) return ISO_OK;
  for (; metadata[2 * *pairs]; ++*pairs) {
    const char *value = metadata[2 * *pairs + 1];
    if (!value || !is_utf8(value)) {
      return iso_fail(ISO_ERR_FORMAT, "safetensors header: metadata '%.100s' has no UTF-8 value", metadata[2 * *pairs]);
    }
  }
  return check_names(metadata, *pairs, 2, "metadata");
}

static int64_t tensor_bytes(const iso_tensor_out *t) {
  int64_t bytes;
  int64_t elements = iso_shape_elements(t->rank, t->shape);
  return __builtin_mul_overflow(elements, (int64_t)iso_dtype_size(t->dtype), &bytes) ? -1 : bytes;
}

iso_status iso_safetensors_header(const iso_tensor_out *tensors, size_t count, const char *const *metadata,
                                  size_t align, iso_string *header) {
  size_t pairs, begin = header->length;
  int64_t offset = 0;
  if (align < 8 || (align & (align - 1)) != 0) {
    return iso_fail(ISO_ERR_INTERNAL, "safetensors header: alignment %zu is not a power of two of at least 8", align);
  }
  ISO_TRY(check_tensors(tensors, count));
  ISO_TRY(check_metadata(metadata, &pairs));
  iso_string_append(header, "\0\0\0\0\0\0\0\0{", 9);
  for (size_t i = 0; i < pairs; i++) {
    iso_string_printf(header, "%s", i ? "," : "\"__metadata__\":{");
    iso_json_quote(header, metadata[2 * i], strlen(metadata[2 * i]));
    iso_string_append(header, ":", 1);
    iso_json_quote(header, metadata[2 * i + 1], strlen(metadata[2 * i + 1]));
    if (i + 1 == pairs) iso_string_append(header, "}", 1);
  }
  for (size_t i = 0; i < count; i++) {
    const iso_tensor_out *t = &tensors[i];
    int64_t end, bytes = tensor_bytes(t);
    if (bytes < 0 || __builtin_add_overflow(offset, bytes, &end)) {
      return iso_fail(ISO_ERR_FORMAT, "safetensors header: tensor '%.100s': the file's size overflows", t->name);
    }
    if (i || pairs) iso_string_append(header, ",", 1);
    iso_json_quote(header, t->name, strlen(t->name));
    iso_string_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", format_name(t->dtype));
    for (int d = 0; d < t->rank; d++) iso_string_printf(header, d ? ",%lld" : "%lld", (long long)t->shape[d]);
    iso_string_printf(header, "],\"data_offsets\":[%lld,%lld]}", (long long)offset, (long long)end);
    offset = end;
  }
  iso_string_append(header, "}", 1);
  while (!iso_string_failed(header) && (header->length - begin) % align != 0) iso_string_append(header, " ", 1);
  if (iso_string_failed(header)) return ISO_ERR_MEMORY; /* logged already */
  uint64_t length = header->length - begin - 8;
  if (length > MAX_HEADER_BYTES) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors header: %llu bytes for %zu tensors are above the format's limit of %d",
                    (unsigned long long)length, count, MAX_HEADER_BYTES);
  }
  for (int i = 0; i < 8; i++) header->data[begin + (size_t)i] = (char)(length >> 8 * i);
  return ISO_OK;
}

static iso_status write_all(iso_sink *sink, const iso_string *header, const iso_tensor_out *tensors, size_t count) {
  ISO_TRY(iso_sink_write(sink, header->data, header->length));
  for (size_t i = 0; i < count; i++) {
    ISO_TRY(iso_sink_write(sink, tensors[i].data, (size_t)tensor_bytes(&tensors[i])));
  }
  return iso_sink_commit(sink);
}

iso_status iso_safetensors_write(const char *path, const iso_tensor_out *tensors, size_t count,
                                 const char *const *metadata, uint32_t *crc, int64_t *bytes) {
  iso_string header = {0}, temporary = {0};
  char attempt[33];
  iso_sink sink;
  iso_status status = iso_safetensors_header(tensors, count, metadata, 8, &header);
  if (status == ISO_OK) status = iso_attempt_id(attempt);
  if (status != ISO_OK) goto done;
  iso_string_printf(&temporary, "%s.%s.tmp", path, attempt);
  if (iso_string_failed(&temporary)) {
    status = ISO_ERR_MEMORY; /* logged already */
    goto done;
  }
  status = iso_sink_open(&sink, temporary.data);
  if (status != ISO_OK) goto done;
  status = write_all(&sink, &header, tensors, count);
  if (status == ISO_OK && iso_os.rename(temporary.data, path) != 0) status = iso_os_fail("replace", path);
  if (status != ISO_OK) {
    iso_sink_abandon(&sink);
    goto done;
  }
  status = iso_parent_sync(path);
  if (crc) *crc = sink.crc;
  if (bytes) *bytes = sink.bytes;
done:
  iso_string_fini(&header);
  iso_string_fini(&temporary);
  return status;
}
