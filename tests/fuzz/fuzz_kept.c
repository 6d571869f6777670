/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as what a start finds in the cache folder under the right name, with the right size and CRC: the
 * first byte says of which format the source is, and whether they stand for what was unpacked or for the bounds of its
 * documents. They are refused with a message, or every document lies within its file and gives a text or a cause.
 *
 *   fuzz_kept corpus
 */
#include "data/data.h"
#include "scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT, JSONL, PARQUET, SHARD, KINDS };

static struct {
  iso_source_options options;
  char path[128], kept[2][512]; /* of the folders that hold what was unpacked, and bounds; "": none */
  iso_string was[2];            /* what stood there */
  char name[2][64];
  struct timespec times[2][2]; /* of what stood there: what is made from it is named by them */
} kinds[KINDS];

/* The one file in a folder of the cache. */
static bool published(const char *in, char *name) {
  DIR *dir = opendir(in);
  bool found = false;
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    if (strchr(entry->d_name, '-')) found = snprintf(name, 64, "%.60s", entry->d_name) > 0;
  if (dir) closedir(dir);
  return found;
}

/* Which folder holds what of this kind's source, in a cache of its own. */
static void look_at_cache(int kind) {
  char spool[256], name[64], path[600];
  snprintf(spool, sizeof spool, "%s/spool", kinds[kind].options.cache);
  DIR *dir = opendir(spool);
  check(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir));) {
    snprintf(path, sizeof path, "%s/%s", spool, entry->d_name);
    if (entry->d_name[0] == '.' || !published(path, name)) continue;
    const size_t end = strlen(path);
    snprintf(path + end, sizeof path - end, "/%s", name);
    char *bytes;
    size_t size;
    struct stat info;
    check(iso_file_read(path, &bytes, &size) == ISO_OK && stat(path, &info) == 0);
    const int which = size >= 8 && memcmp(bytes, "ISOIDX1\n", 8) == 0;
    path[end] = '\0';
    strcpy(kinds[kind].kept[which], path);
    strcpy(kinds[kind].name[which], name);
    iso_string_append(&kinds[kind].was[which], bytes, size);
    kinds[kind].times[which][0] = kinds[kind].times[which][1] = info.st_mtim;
    free(bytes);
  }
  closedir(dir);
}

static void add_kind(int kind, const char *name, const char *format, const void *data, size_t size) {
  iso_source *source;
  static char caches[KINDS][128];
  snprintf(kinds[kind].path, sizeof kinds[kind].path, "%s", path_of(name));
  snprintf(caches[kind], sizeof caches[kind], "%s/cache%d", folder, kind);
  if (kind == PARQUET) {
    write_file(kinds[kind].path, data, size);
  } else {
    gzFile out = gzopen(kinds[kind].path, "wb");
    check(out && gzwrite(out, data, (unsigned)size) == (int)size && gzclose(out) == Z_OK);
  }
  kinds[kind].options = (iso_source_options){.path = kinds[kind].path,
                                             .format = format,
                                             .weight = 1,
                                             .separator = "\n\n",
                                             .token_type = "uint16",
                                             .tokenizer = tokenizer,
                                             .cache = caches[kind]};
  check(iso_source_open(&kinds[kind].options, &source) == ISO_OK);
  iso_source_close(&source);
  look_at_cache(kind);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  static const char parts[] = "one\n\ntwo\n\nthree";
  static const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"tw\\u00e9\"}\nbad\n";
  make_scratch();
  const uint16_t eos = (uint16_t)iso_tokenizer_eos(tokenizer), ids[] = {5, eos, 6, 7, eos, 9999};
  char *rows;
  size_t bytes;
  check(iso_file_read(ISO_TEST_DATA "/datapath/nulls.parquet", &rows, &bytes) == ISO_OK);
  add_kind(TEXT, "x.txt.gz", "text", parts, strlen(parts));
  add_kind(JSONL, "x.jsonl.gz", "jsonl", lines, strlen(lines));
  add_kind(PARQUET, "x.parquet", "parquet", rows, bytes);
  add_kind(SHARD, "x.bin.gz", "tokens", ids, sizeof ids);
  free(rows);
  return 0;
}

static void read_documents(const iso_source *source) {
  int32_t *ids = NULL;
  size_t capacity = 0, bytes;
  iso_string scratch = {0};
  for (int64_t i = 0; i < iso_source_documents(source) && i < 1000; i++) {
    const iso_document place = iso_source_document(source, i);
    const iso_data_file *file = iso_source_file(source, 0);
    int64_t count;
    const char *text;
    iso_bad bad;
    check(place.length >= 1 && place.offset >= 0);
    check(place.offset + place.length <= file->bytes + file->damage.is && iso_source_size(source, i) >= 0);
    char *stored = malloc((size_t)place.length);
    check(stored && iso_source_read(source, 0, place.offset, place.length, stored) == ISO_OK);
    if (iso_source_content(source) == ISO_CONTENT_TOKENS) {
      check(iso_source_tokens(source, i, stored, (size_t)place.length, &ids, &capacity, &count, &bad) == ISO_OK);
      for (int64_t t = 0; t < count && !bad.is; t++) check(ids[t] >= 0 && ids[t] < iso_tokenizer_vocabulary(tokenizer));
    } else {
      check(iso_source_text(source, i, stored, (size_t)place.length, &scratch, &text, &bytes, &bad) == ISO_OK);
    }
    check(!bad.is || bad.cause[0]);
    free(stored);
  }
  iso_string_fini(&scratch);
  free(ids);
}

/* Writes under the name that says the size and the CRC; that of what stood there before goes. */
static void replace(int kind, int which, const char *bytes, size_t size) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", kinds[kind].kept[which], kinds[kind].name[which]);
  unlink(path);
  snprintf(kinds[kind].name[which], sizeof kinds[kind].name[which], "%zu-%08x", size, iso_crc32c(0, bytes, size));
  snprintf(path, sizeof path, "%s/%s", kinds[kind].kept[which], kinds[kind].name[which]);
  write_file(path, bytes, size);
}

/* Removes what was made from bytes of ours. */
static void clean(int kind) {
  char spool[256], path[600], command[700];
  snprintf(spool, sizeof spool, "%s/spool", kinds[kind].options.cache);
  DIR *dir = opendir(spool);
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    snprintf(path, sizeof path, "%s/%s", spool, entry->d_name);
    if (entry->d_name[0] == '.' || !strcmp(path, kinds[kind].kept[0]) || !strcmp(path, kinds[kind].kept[1])) continue;
    snprintf(command, sizeof command, "%s/lock", path);
    unlink(command);
    char name[64];
    if (published(path, name)) {
      snprintf(command, sizeof command, "%s/%s", path, name);
      unlink(command);
    }
    check(rmdir(path) == 0);
  }
  if (dir) closedir(dir);
}

/* As unpack.c has it. */
typedef struct tail {
  int64_t kept, is_damaged;
  char cause[160], magic[8];
} tail;

/* Bytes that may pass for what was unpacked: a part of it, any bytes, and mostly the right tail. */
static void make_unpacked(const iso_string *was, int part, const uint8_t *data, size_t size, iso_string *out) {
  tail t = {.magic = "ISOUNP1"};
  t.magic[7] = '\n';
  iso_string_append(out, was->data, (was->length - sizeof t) * (size_t)part / 4);
  iso_string_append(out, (const char *)data + 1, size - 1);
  t.kept = (int64_t)out->length;
  if (data[0] & 1) t.kept -= data[0] / 8;
  t.is_damaged = data[0] >> 1 & 1;
  if (t.is_damaged) strcpy(t.cause, "it is");
  if (data[0] & 4 && size >= 64) memcpy(&t, data, 64);
  iso_string_append(out, (const char *)&t, sizeof t);
}

/* Bytes that may pass for bounds: a head with the right count, and any extents, made small ones where asked. */
static void make_bounds(const iso_string *was, int part, const uint8_t *data, size_t size, iso_string *out) {
  enum { HEAD = 32, EXTENT = 16 };
  if (part) iso_string_append(out, was->data, was->length < HEAD ? was->length : HEAD);
  iso_string_append(out, (const char *)data, size);
  if (part < 2 || out->length < HEAD) return;
  const uint64_t count = (out->length - HEAD) / EXTENT;
  out->length = HEAD + EXTENT * (size_t)count;
  memcpy(out->data + 24, &count, 8);
  for (uint64_t i = 0; i < 2 * count && part == 3; i++) {
    int64_t number;
    memcpy(&number, out->data + HEAD + 8 * i, 8);
    number = (number & 15) | (number & ISO_EXTENT_BAD);
    memcpy(out->data + HEAD + 8 * i, &number, 8);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  const int kind = data[0] % KINDS, which = data[0] / KINDS % 2, part = data[0] / KINDS / 2 % 4;
  const iso_string *was = &kinds[kind].was[which];
  char path[600];
  iso_string bytes = {0};
  if (!kinds[kind].kept[which][0]) return 0;
  (which ? make_bounds : make_unpacked)(was, part, data + 1, size - 1, &bytes);
  replace(kind, which, bytes.data ? bytes.data : "", bytes.length);
  for (int skip = 0; skip < 2; skip++) {
    iso_source_options options = kinds[kind].options;
    iso_source *source;
    options.skip_damaged = skip;
    if (iso_source_open(&options, &source) == ISO_OK) {
      read_documents(source);
      iso_source_close(&source);
    } else {
      check(iso_last_error()[0] != 0);
    }
  }
  replace(kind, which, was->data, was->length); /* the times too: bounds are named by them */
  snprintf(path, sizeof path, "%s/%s", kinds[kind].kept[which], kinds[kind].name[which]);
  check(utimensat(AT_FDCWD, path, kinds[kind].times[which], 0) == 0);
  clean(kind);
  iso_string_fini(&bytes);
  return 0;
}
