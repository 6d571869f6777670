/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a text source, cut by any separator. The first byte says how they are stored (as they are; as
 * an archive; compressed, and cut somewhere), the second how long the separator is. Documents are those that a plain
 * search finds; of an archive that was cut they are the first of them. The survey counts what is there.
 *
 *   fuzz_text corpus
 */
#include "data/data.h"
#include "scratch.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PLAIN, ARCHIVE, CUT, KINDS };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  make_scratch();
  return 0;
}

/* As one gzip member, of which the last bytes are missing. Returns whether any are. */
static bool write_cut(const char *path, const void *data, size_t size, uint8_t where) {
  gzFile out = gzopen(path, "wb");
  check(out && gzwrite(out, data, (unsigned)size) == (int)size && gzclose(out) == Z_OK);
  char *bytes;
  size_t all;
  check(iso_file_read(path, &bytes, &all) == ISO_OK);
  const size_t left = all * (where + 1u) / 256;
  write_file(path, bytes, left);
  free(bytes);
  return left < all;
}

/* The documents of the text, the slow way, against those of the source; `whole`: all of them are there. */
static void compare(const iso_source *source, const char *text, size_t size, const char *separator, bool whole) {
  const size_t width = strlen(separator);
  const int64_t damaged =
      iso_source_documents(source) > 0 && iso_source_is_damage(source, iso_source_documents(source) - 1);
  const int64_t found = iso_source_documents(source) - damaged;
  int64_t count = 0;
  size_t begin = 0;
  for (size_t at = 0; at <= size && (whole || count < found);) {
    const bool end = at == size, hit = width && size - at >= width && memcmp(text + at, separator, width) == 0;
    if (!end && !hit) {
      at++;
      continue;
    }
    if (at > begin) {
      const iso_document place = iso_source_document(source, count++);
      char *stored = malloc((size_t)place.length);
      check(place.offset == (int64_t)begin && place.length == (int64_t)(at - begin));
      check(iso_source_read(source, 0, place.offset, place.length, stored) == ISO_OK);
      check(memcmp(stored, text + begin, at - begin) == 0);
      free(stored);
    }
    if (end) break;
    begin = at += width;
  }
  check(count == found && (!whole || !damaged));
}

/* Every document is good or bad, and the good ones are counted. `slowly`: with a tokenizer and threads, which is slow.
 */
static void survey(const iso_source *source, bool slowly) {
  for (int with = 0; with <= slowly; with++) {
    iso_survey s;
    check(iso_survey_take(source, with ? tokenizer : NULL, 1 + with, &s) == ISO_OK);
    const int64_t all = iso_source_documents(source);
    check(s.documents + s.bad == all && s.bytes >= s.documents && s.duplicates < all + (all == 0));
    check((s.bad > 0) == (s.bad_causes > 0) && s.longest_bytes <= s.bytes);
    check(!with || s.tokens >= s.documents);
    for (int64_t i = 0; i < ISO_BAD_CAUSES && i < s.bad_causes; i++)
      check(s.causes[i].first >= 0 && s.causes[i].first < all && s.causes[i].cause[0]);
    iso_survey_fini(&s);
  }
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk) {
  (void)info, (void)flag, (void)walk;
  return remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char separator[16] = "";
  if (size < 4) return 0;
  const int kind = data[0] % KINDS;
  size_t width = data[1] % 12;
  const uint8_t where = data[2];
  data += 3;
  size -= 3;
  if (width > size) width = size;
  memcpy(separator, data, width);
  separator[strlen(separator)] = '\0'; /* it ends at its first NUL */
  data += width;
  size -= width;
  const char *path = path_of(kind == PLAIN ? "x.txt" : "x.gz");
  bool whole = true;
  if (kind == CUT)
    whole = !write_cut(path, data, size, where);
  else
    write_file(path, data, size);
  const iso_source_options options = {.path = path,
                                      .format = "text",
                                      .weight = 1,
                                      .separator = separator,
                                      .skip_damaged = where & 1 || kind == CUT,
                                      .tokenizer = tokenizer,
                                      .cache = path_of("cache")};
  iso_source *source;
  if (iso_source_open(&options, &source) == ISO_OK) {
    if (kind != ARCHIVE && (kind == PLAIN ? size > 0 && data[0] != 0x1F && data[0] != 0x28 : true))
      compare(source, (const char *)data, size, separator, whole);
    survey(source, where % 32 < 2);
    iso_source_close(&source);
  } else {
    check(iso_last_error()[0] != 0 && kind != CUT);
  }
  if (kind != PLAIN) {
    check(nftw(path_of("cache"), remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0 || !iso_path_exists(path_of("cache")));
  }
  return 0;
}
