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
    {.name = "text", .what = "text", .suffixes = {".txt"}, .index = iso_text_index},
};
const size_t iso_format_count = ISO_COUNT(iso_formats);

static const char *const refused[][2] = {{".jsonl", "JSON lines"}, {".parquet", "Parquet"}, {".gz", "gzip"},
                                         {".zst", "Zstandard"},    {".xz", "xz"},           {".bz2", "bzip2"},
                                         {".lz4", "LZ4"},          {".zip", "zip"},         {".bin", "token shards"},
                                         {".idx", "token shards"}};

static bool ends_with(const char *path, const char *suffix) {
  size_t length = strlen(path), width = strlen(suffix);
  return length > width && strcmp(path + length - width, suffix) == 0;
}

static const iso_format *by_name(const char *name) {
  for (size_t i = 0; i < iso_format_count; i++)
    if (strcmp(iso_formats[i].name, name) == 0) return &iso_formats[i];
  return NULL;
}

static iso_status guess(const iso_data_file *file, const iso_format **out) {
  for (size_t i = 0; i < iso_format_count; i++)
    for (size_t s = 0; s < ISO_COUNT(iso_formats[i].suffixes) && iso_formats[i].suffixes[s]; s++)
      if (ends_with(file->path, iso_formats[i].suffixes[s])) {
        *out = &iso_formats[i];
        return ISO_OK;
      }
  for (size_t i = 0; i < ISO_COUNT(refused); i++)
    if (ends_with(file->path, refused[i][0]))
      return iso_fail(ISO_ERR_UNSUPPORTED,
                      "data: \"%s\" looks like %s, which this build does not read; convert it to text, or set "
                      "format: text to read its bytes as they are",
                      file->path, refused[i][1]);
  *out = by_name("text");
  return ISO_OK;
}

iso_status iso_format_choose(const iso_source_options *options, const iso_data_file *files, int64_t count,
                             const iso_format **out) {
  *out = NULL;
  if (strcmp(options->format, "auto") != 0) {
    *out = by_name(options->format);
    if (*out) return ISO_OK;
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: source \"%s\": format \"%s\" is not read by this build; use \"text\"",
                    options->path, options->format);
  }
  int64_t from = 0;
  for (int64_t f = 0; f < count; f++) {
    const iso_format *format;
    ISO_TRY(guess(&files[f], &format));
    if (!*out) {
      *out = format;
      from = f;
    } else if (*out != format) {
      return iso_fail(
          ISO_ERR_CONFIG,
          "data: \"%s\" holds several formats: \"%s\" is %s and \"%s\" is %s; name the files of each with a "
          "glob, as sources of their own",
          options->path, files[from].path, (*out)->what, files[f].path, format->what);
    }
  }
  return ISO_OK;
}
