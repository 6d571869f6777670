/* SPDX-License-Identifier: Apache-2.0
 *
 * formats: the table of what a source's files may be, and which of it a given source is.
 *
 * A format is one row and one file: how to know it, how to find the documents of a file, what their stored bytes mean.
 *
 * Invariants
 *  1. All files of a source are of one format. A name that promises one decides; then a file's first bytes; else it is
 *     text.
 *  2. A name that promises what is not read is refused, and so is a folder of several formats: nothing is read as text
 *     by accident.
 */
#include "data/data.h"

#include <string.h>

const iso_format iso_formats[] = {
    {.name = "text", .what = "text", .suffixes = {".txt", ".text", ".md"}, .index = iso_text_index},
    {.name = "jsonl",
     .what = "JSON lines",
     .suffixes = {".jsonl", ".ndjson", ".json"},
     .probe = iso_jsonl_probe,
     .index = iso_jsonl_index,
     .text = iso_jsonl_text},
    {.name = "parquet",
     .what = "Parquet",
     .suffixes = {".parquet", ".parq"},
     .probe = iso_parquet_probe,
     .unpack = iso_parquet_unpack,
     .index = iso_parquet_index,
     .text = iso_parquet_text},
    {.name = "tokens",
     .what = "token ids",
     .content = ISO_CONTENT_TOKENS,
     .suffixes = {".bin"},
     .probe = iso_tokens_probe,
     .index = iso_tokens_index},
    {.name = "megatron",
     .what = "token ids with a Megatron index",
     .content = ISO_CONTENT_TOKENS,
     .suffixes = {".idx"},
     .probe = iso_megatron_probe,
     .index = iso_megatron_index},
};
const size_t iso_format_count = ISO_COUNT(iso_formats);

static const char *const refused[][2] = {
    {".xz", "xz"}, {".bz2", "bzip2"}, {".lz4", "LZ4"}, {".zip", "zip"}, {".tar", "tar"}};

static bool ends_with(const char *path, const char *suffix) {
  size_t length = strlen(path), width = strlen(suffix);
  return length > width && strcmp(path + length - width, suffix) == 0;
}

static const iso_format *by_name(const char *name) {
  for (size_t i = 0; i < iso_format_count; i++)
    if (strcmp(iso_formats[i].name, name) == 0) return &iso_formats[i];
  return NULL;
}

/* A name without what its compression added to it. */
static size_t bare_length(const char *path) {
  static const char *const suffixes[] = {".gz", ".zst", ".zstd"};
  for (size_t i = 0; i < ISO_COUNT(suffixes); i++)
    if (ends_with(path, suffixes[i])) return strlen(path) - strlen(suffixes[i]);
  return strlen(path);
}

static bool bare_ends_with(const char *path, const char *suffix) {
  const size_t length = bare_length(path), width = strlen(suffix);
  return length > width && strncmp(path + length - width, suffix, width) == 0;
}

/* Is there a file of the list with the path of `path`, its last four characters replaced? The list is sorted. */
static bool has_sibling(const iso_data_file *files, int64_t count, const char *path, const char *suffix) {
  const size_t stem = strlen(path) - 4;
  for (int64_t f = 0; f < count; f++)
    if (strncmp(files[f].path, path, stem) == 0 && strcmp(files[f].path + stem, suffix) == 0) return true;
  return false;
}

/* Token ids in .bin are Megatron's when an .idx stands beside. */
static iso_status has_index(const iso_data_file *files, int64_t count, const char *path, bool *out) {
  *out = ends_with(path, ".bin") && has_sibling(files, count, path, ".idx");
  if (*out || !ends_with(path, ".bin") || iso_blob_is_remote(path)) return ISO_OK;
  iso_string name = {0};
  iso_string_printf(&name, "%.*s.idx", (int)(strlen(path) - 4), path);
  if (iso_string_failed(&name)) return iso_fail(ISO_ERR_MEMORY, "data: no memory to look beside \"%s\"", path);
  *out = iso_path_exists(name.data);
  iso_string_fini(&name);
  return ISO_OK;
}

static const iso_format *by_suffix(const char *path) {
  for (size_t i = 0; i < iso_format_count; i++)
    for (size_t s = 0; s < ISO_COUNT(iso_formats[i].suffixes) && iso_formats[i].suffixes[s]; s++)
      if (bare_ends_with(path, iso_formats[i].suffixes[s])) return &iso_formats[i];
  return NULL;
}

bool iso_format_may_be_packed(const char *path) {
  return bare_length(path) < strlen(path) || !iso_blob_is_remote(path) || !by_suffix(path);
}

static iso_status guess(const iso_data_file *files, int64_t count, const iso_data_file *file, const iso_format **out) {
  const char *path = file->path;
  for (size_t i = 0; i < ISO_COUNT(refused); i++)
    if (ends_with(path, refused[i][0]))
      return iso_fail(ISO_ERR_UNSUPPORTED,
                      "data: \"%s\" looks like %s, which this build does not read; convert it, or set format: text to "
                      "read its bytes as they are",
                      path, refused[i][1]);
  bool indexed;
  ISO_TRY(has_index(files, count, path, &indexed));
  *out = indexed ? by_name("megatron") : by_suffix(path);
  if (*out) return ISO_OK;
  uint8_t first[16];
  const int64_t held = file->bytes < (int64_t)sizeof first ? file->bytes : (int64_t)sizeof first;
  ISO_TRY(iso_blob_read(file->blob, 0, held, first));
  for (size_t i = 0; i < iso_format_count && !*out; i++)
    if (iso_formats[i].probe && iso_formats[i].probe(first, (size_t)held)) *out = &iso_formats[i];
  if (!*out) *out = by_name("text");
  return ISO_OK;
}

bool iso_format_is_companion(const iso_format *format, const char *path) {
  return format->content == ISO_CONTENT_TOKENS &&
         (ends_with(path, ".idx") || ends_with(path, ".json") || ends_with(path, ".lock"));
}

static bool is_manifest(const char *path) {
  return ends_with(path, "/shards.json");
}

/* The folder of a shards.json holds shards, their descriptions, and what `isotach data build` locked. */
static bool beside_manifest(const iso_data_file *files, int64_t count, const char *path) {
  if (!ends_with(path, ".json") && !ends_with(path, ".lock")) return false;
  const size_t folder = (size_t)(strrchr(path, '/') ? strrchr(path, '/') - path : 0);
  for (int64_t f = 0; f < count; f++)
    if (is_manifest(files[f].path) && strncmp(files[f].path, path, folder) == 0 &&
        strcmp(files[f].path + folder, "/shards.json") == 0)
      return true;
  return false;
}

static iso_status choose_from_files(const iso_source_options *options, const iso_data_file *files, int64_t count,
                                    const iso_format **out) {
  int64_t from = -1;
  bool described = false;
  for (int64_t f = 0; f < count && !described; f++) described = is_manifest(files[f].path);
  for (int64_t f = 0; f < count; f++) {
    const iso_format *format = NULL;
    if (described && beside_manifest(files, count, files[f].path)) continue;
    if (files[f].damage.is && files[f].bytes == 0 && !by_suffix(files[f].path)) continue; /* it says nothing */
    ISO_TRY(guess(files, count, &files[f], &format));
    if (from < 0) {
      *out = format;
      from = f;
    } else if (*out != format) {
      return iso_fail(
          ISO_ERR_CONFIG,
          "data: \"%s\" holds several formats: \"%s\" is %s and \"%s\" is %s; name the files of each with a "
          "glob, as sources of their own, or set the format that all are to be read as",
          options->path, files[from].path, (*out)->what, files[f].path, format->what);
    }
  }
  if (!*out) *out = by_name("text");
  return ISO_OK;
}

iso_status iso_format_choose(const iso_source_options *options, const iso_data_file *files, int64_t count,
                             const iso_format **out) {
  *out = NULL;
  if (strcmp(options->format, "auto") == 0) return choose_from_files(options, files, count, out);
  *out = by_name(options->format);
  if (*out) return ISO_OK;
  return iso_fail(ISO_ERR_UNSUPPORTED,
                  "data: source \"%s\": there is no format \"%s\"; there are auto, text, jsonl, parquet, "
                  "tokens, megatron",
                  options->path, options->format);
}
