/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench tokenizer: bytes of text per second that a tokenizer takes, in one cold pass.
 *
 * The vocabulary is opened and the file read before the clock starts; encoders, whose memories of words begin empty,
 * are made and every document is encoded once while it runs. A document is what `data build` would hand over at once:
 * about 256 KB, cut behind the last line end that fits (behind the next one, or at the end, where no line is that
 * short); or, with --separator, what lies between two of them, as a text source has it. Threads take the next document
 * when they are done with one.
 *
 * Ids go where a caller would find them and their checksum, by document, into one for all, so that two runs (threads,
 * tiers, versions) can be compared; --ids writes them out in a second pass that is not timed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

enum { DOCUMENT_BYTES = 1 << 18, THREADS_MAX = 1024 };

typedef struct bench_document {
  size_t offset, bytes;
  uint32_t crc; /* of its ids */
  size_t tokens;
} bench_document;

typedef struct bench {
  const char *verb, *tokenizer_path, *input, *pattern, *separator, *ids_path;
  int64_t threads;
  bool special, json;
  iso_tokenizer *tokenizer;
  char *text;
  size_t bytes;
  bench_document *documents;
  size_t document_count;
  atomic_size_t next;
  _Atomic int status;
  double cpu_s[THREADS_MAX];
  FILE *ids; /* NULL: timed pass */
} bench;

/* End of the document that begins at `at`; *next: where the next one begins. */
static size_t document_end(const bench *b, size_t at, size_t *next) {
  const char *from = b->text + at;
  if (*b->separator) {
    const size_t width = strlen(b->separator);
    const char *found = memmem(from, b->bytes - at, b->separator, width);
    const size_t end = found ? (size_t)(found - b->text) : b->bytes;
    *next = found ? end + width : end;
    return end;
  }
  *next = b->bytes;
  if (b->bytes - at <= DOCUMENT_BYTES) return b->bytes;
  const char *cut = memrchr(from, '\n', DOCUMENT_BYTES);
  if (!cut) cut = memchr(from + DOCUMENT_BYTES, '\n', b->bytes - at - DOCUMENT_BYTES);
  if (cut) *next = (size_t)(cut - b->text) + 1;
  return *next;
}

static iso_status cut_documents(bench *b) {
  size_t capacity = 0;
  for (size_t at = 0, next; at < b->bytes; at = next) {
    const size_t end = document_end(b, at, &next);
    if (end == at) continue;
    if (b->document_count == capacity) {
      capacity = capacity ? 2 * capacity : 64;
      bench_document *grown = realloc(b->documents, capacity * sizeof *grown);
      if (!grown) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for a list of documents", b->verb);
      b->documents = grown;
    }
    b->documents[b->document_count++] = (bench_document){.offset = at, .bytes = end - at};
  }
  return ISO_OK;
}

static double thread_cpu_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Documents one after the other until none is left. */
static iso_status encode_documents(bench *b) {
  iso_encoder *encoder = iso_encoder_create(b->tokenizer);
  iso_status status = encoder ? ISO_OK : ISO_ERR_MEMORY;
  while (status == ISO_OK) {
    const size_t index = atomic_fetch_add(&b->next, 1);
    if (index >= b->document_count) break;
    bench_document *d = &b->documents[index];
    const int32_t *ids;
    status = iso_encode(encoder, b->text + d->offset, d->bytes, b->special, true, &ids, &d->tokens);
    if (status != ISO_OK) break;
    if (!b->ids)
      d->crc = iso_crc32c(0, ids, d->tokens * sizeof *ids);
    else if (fwrite(ids, sizeof *ids, d->tokens, b->ids) != d->tokens)
      status = iso_os_fail("write", b->ids_path);
  }
  iso_encoder_destroy(&encoder);
  return status;
}

static void run_thread(void *context, int thread) {
  bench *b = context;
  const double began = thread_cpu_s();
  const iso_status status = encode_documents(b);
  b->cpu_s[thread] = thread_cpu_s() - began;
  if (status != ISO_OK) b->status = status;
}

static iso_status print_report(const bench *b, double wall_s) {
  size_t encoded = 0;
  double cpu_s = 0;
  int64_t tokens = 0;
  uint32_t crc = 0;
  for (int t = 0; t < b->threads; t++) cpu_s += b->cpu_s[t];
  for (size_t i = 0; i < b->document_count; i++) {
    encoded += b->documents[i].bytes;
    tokens += (int64_t)b->documents[i].tokens;
    crc = iso_crc32c(crc, &b->documents[i].crc, sizeof crc);
  }
  const double bytes = (double)encoded;
  iso_string out = {0};
  if (!b->json) {
    iso_string_printf(&out,
                      "%.1f MB/s (%.1f per second of CPU time): %zu bytes in %zu documents, %lld tokens, %.3f s on "
                      "%lld threads, %.3f s of CPU time; ids %08x\n",
                      bytes / wall_s * 1e-6, bytes / cpu_s * 1e-6, encoded, b->document_count, (long long)tokens,
                      wall_s, (long long)b->threads, cpu_s, crc);
    return iso_text_print(&out);
  }
  char hex[9];
  snprintf(hex, sizeof hex, "%08x", crc);
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "tokenizer", b->tokenizer_path);
  iso_json_put_text(&out, "input", b->input);
  iso_json_put_int(&out, "threads", b->threads);
  iso_json_put_int(&out, "bytes", (int64_t)encoded);
  iso_json_put_int(&out, "documents", (int64_t)b->document_count);
  iso_json_put_int(&out, "tokens", tokens);
  iso_json_put_real(&out, "bytes_per_token", tokens ? bytes / (double)tokens : 0);
  iso_json_put_real(&out, "wall_s", wall_s);
  iso_json_put_real(&out, "cpu_s", cpu_s);
  iso_json_put_real(&out, "mb_per_s", bytes / wall_s * 1e-6);
  iso_json_put_real(&out, "mb_per_cpu_s", bytes / cpu_s * 1e-6);
  iso_json_put_text(&out, "ids_crc32c", hex);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

/* All ids, little-endian, 4 bytes each. */
static iso_status write_ids(bench *b) {
  b->ids = fopen(b->ids_path, "wb");
  if (!b->ids) return iso_os_fail("create", b->ids_path);
  b->next = 0;
  iso_status status = encode_documents(b);
  if (fclose(b->ids) != 0 && status == ISO_OK) status = iso_os_fail("write", b->ids_path);
  b->ids = NULL;
  return status;
}

static iso_status run(bench *b) {
  ISO_TRY(iso_tokenizer_open(b->tokenizer_path, b->pattern, &b->tokenizer));
  ISO_TRY(iso_file_read(b->input, &b->text, &b->bytes));
  if (b->bytes == 0) return iso_fail(ISO_ERR_FORMAT, "%s: %s is empty", b->verb, b->input);
  ISO_TRY(cut_documents(b));
  if (b->document_count == 0) return iso_fail(ISO_ERR_FORMAT, "%s: %s holds nothing but separators", b->verb, b->input);
  iso_team *team = iso_team_create((int)b->threads, false);
  if (!team) return iso_fail(ISO_ERR_MEMORY, "%s: cannot start %lld threads", b->verb, (long long)b->threads);
  const double began = iso_clock_s();
  iso_team_run(team, run_thread, b);
  const double wall_s = iso_clock_s() - began;
  iso_team_destroy(&team);
  ISO_TRY((iso_status)b->status);
  if (b->ids_path) ISO_TRY(write_ids(b));
  return print_report(b, wall_s);
}

iso_status iso_verb_bench_tokenizer(iso_args *args) {
  bench *b = calloc(1, sizeof *b);
  iso_arena *arena = b ? iso_arena_create() : NULL;
  if (!arena) {
    free(b);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory", args->verb->name);
  }
  b->verb = args->verb->name;
  b->pattern = b->separator = "";
  b->threads = 1;
  const iso_flag flags[] = {
      {"tokenizer", ISO_FLAG_TEXT, &b->tokenizer_path, "folder or file of the tokenizer", 0, 0},
      {"input", ISO_FLAG_TEXT, &b->input, "the text", 0, 0},
      {"threads", ISO_FLAG_INT, &b->threads, "threads that encode (1)", 1, THREADS_MAX},
      {"pattern", ISO_FLAG_TEXT, &b->pattern, "pre-tokenizer of a rank file whose name does not tell", 0, 0},
      {"separator", ISO_FLAG_TEXT, &b->separator, "what ends a document, as for a text source (about 256 KB are one)",
       0, 0},
      {"parse-special", ISO_FLAG_BOOL, &b->special, "special tokens written in the text become their ids", 0, 0},
      {"ids", ISO_FLAG_TEXT, &b->ids_path, "file to write the ids to, 4 bytes each, little-endian; not timed", 0, 0},
      {"json", ISO_FLAG_BOOL, &b->json, "one JSON document", 0, 0},
  };
  iso_status status = iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0);
  if (status == ISO_OK && !args->help) {
    b->separator = iso_unescape(arena, b->separator);
    if (!b->tokenizer_path || !b->input)
      status = iso_fail(ISO_ERR_USAGE, "%s: give --tokenizer and --input", b->verb);
    else if (!b->separator)
      status = iso_fail(ISO_ERR_USAGE, "%s: --separator has an unknown escape", b->verb);
    else
      status = run(b);
  }
  iso_tokenizer_close(&b->tokenizer);
  free(b->documents);
  free(b->text);
  free(b);
  iso_arena_destroy(&arena);
  return status;
}
