/* SPDX-License-Identifier: Apache-2.0
 *
 * build: a source's documents as token shards.
 *
 * The documents are cut, in order, into shards of about `shard_bytes` of stored text. A shard is a pair of files in the
 * layout of Megatron's indexed datasets (.bin: ids back to back, .idx: where each document is), so that other trainers
 * read them too, and a record of it (.json: counts, CRC-32C). Threads take shards one after the other. When all are
 * there, shards.json lists them with the tokenizer's fingerprint. A thread of its own syncs and publishes what they
 * have written, so that none waits for the disk.
 *
 * Invariants
 *  1. What is written depends on source, tokenizer and options alone, never on threads or on how often it was stopped.
 *  2. A shard exists when its record does; the record is published last, after both files are synced. What a killed
 *     build leaves behind has no record and is made again.
 *  3. Every document is in a shard or in the list of those left out.
 *
 * Layout of .idx: shared/reference of Megatron-Core's IndexedDataset, see docs/data.md.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_SHARD = 8000000, MOST_SHARD = 256000000, MOST_SHARDS = 64 }; /* bytes of text, where none are given */
enum { LONG_DOCUMENT = 1 << 20 }; /* bytes; it is worth the help of more threads than there are shards */
enum { BUFFER_BYTES = 1 << 20, INDEX_VERSION = 1, CODE_I32 = 4, CODE_U16 = 8, FORMAT_VERSION = 1 };

typedef struct builder {
  const iso_shards_options *options;
  const iso_source *source;
  int64_t *first;                       /* [shards + 1]: first document of each shard */
  int64_t shards, shard_bytes, longest; /* longest: bytes of the longest document */
  iso_build_folder taken;
  iso_crew *crew; /* threads without a shard of their own help with long documents */
  int id_bytes;   /* 2 or 4 */
  int32_t eos;
  struct shard *written; /* to be published */
  int64_t written_count;
  bool all_written;
  pthread_cond_t moved;   /* `written` or all_written changed */
  atomic_llong next, bad; /* bad documents so far, also of shards that were there */
  atomic_bool stop;
  pthread_mutex_t mutex; /* over what follows */
  iso_status status;
  iso_shards_report report;
} builder;

/* One shard being made: by the thread that encodes it, then by the one that publishes. */
typedef struct shard {
  struct shard *after; /* in the list of those to be published */
  builder *b;
  iso_encoder *encoder;
  int64_t number;
  iso_sink bin, idx;
  iso_string bin_path, idx_path; /* temporary names */
  iso_string bad;                /* numbers of those left out, as in a JSON array */
  char *buffer;
  size_t used;
  int32_t *lengths;
  int64_t documents, tokens, bytes, bad_count;
  iso_ids_sink sink;
  iso_loaded loaded;
} shard;

static iso_string name_of(const builder *b, int64_t number, const char *ending) {
  iso_string name = {0};
  iso_build_name(&name, b->options->folder, number, ending);
  return name;
}

/* ---- cutting ---- */

/* As many equal shards as a power of two says: threads end together, and there are not too many files. */
static int64_t choose_shard_bytes(const builder *b) {
  const int64_t given = b->options->shard_bytes, total = b->report.total_bytes;
  int64_t count = 1;
  if (given > 0) return given;
  while (count < MOST_SHARDS && total / (2 * count) >= LEAST_SHARD) count *= 2;
  const int64_t part = (total + count - 1) / count;
  return part > MOST_SHARD ? MOST_SHARD : part < LEAST_SHARD ? LEAST_SHARD : part;
}

static iso_status cut_shards(builder *b) {
  const int64_t documents = iso_source_documents(b->source);
  for (int64_t i = 0; i < documents; i++) {
    const int64_t length = iso_source_length(b->source, i);
    b->report.total_bytes += length;
    if (length > b->longest) b->longest = length;
  }
  b->shard_bytes = choose_shard_bytes(b);
  int64_t capacity = 64;
  b->first = malloc((size_t)capacity * sizeof *b->first);
  if (!b->first) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for the list of shards");
  int64_t bytes = 0;
  b->first[0] = 0;
  for (int64_t i = 0; i < documents; i++) {
    bytes += iso_source_length(b->source, i);
    if (bytes < b->shard_bytes && i + 1 < documents) continue;
    bytes = 0;
    if (++b->shards == capacity) {
      capacity *= 2;
      int64_t *larger = realloc(b->first, (size_t)capacity * sizeof *larger);
      if (!larger) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for the list of shards");
      b->first = larger;
    }
    b->first[b->shards] = i + 1;
  }
  return ISO_OK;
}

/* ---- one shard ---- */

static iso_status flush(shard *s) {
  const int64_t at = s->bin.bytes;
  if (s->used) ISO_TRY(iso_sink_write(&s->bin, s->buffer, s->used));
  /* Asks the system to begin writing to the disk, so that the sync at the end has little left. It may decline. */
  if (s->used) (void)sync_file_range(s->bin.fd, at, (off_t)s->used, SYNC_FILE_RANGE_WRITE);
  s->used = 0;
  return ISO_OK;
}

/* Counts bad documents of all shards, whoever finds them. `where` says what lists them. */
static iso_status count_bad(builder *b, int64_t more, const char *where) {
  if (more == 0 || atomic_fetch_add(&b->bad, more) + more <= b->options->max_bad) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "data build: more than %lld bad documents (%s)", (long long)b->options->max_bad,
                  where);
}

static void narrow(uint16_t *restrict to, const int32_t *restrict ids, size_t count) {
  enum { WIDE = 32 }; /* a constant length is what compilers make vectors of */
  size_t i = 0;
  for (; i + WIDE <= count; i += WIDE)
    for (size_t k = 0; k < WIDE; k++) to[i + k] = (uint16_t)ids[i + k];
  for (; i < count; i++) to[i] = (uint16_t)ids[i];
}

/* A sink: ids to the shard's file. */
static iso_status put_ids(void *context, const int32_t *ids, size_t count) {
  shard *s = context;
  const size_t size = (size_t)s->b->id_bytes;
  if (atomic_load(&s->b->stop)) return ISO_STOPPED; /* a document may be long */
  for (size_t i = 0; i < count;) {
    if (s->used + size > BUFFER_BYTES) ISO_TRY(flush(s));
    const size_t room = (BUFFER_BYTES - s->used) / size, step = count - i < room ? count - i : room;
    char *to = s->buffer + s->used;
    if (size == 4)
      memcpy(to, ids + i, step * 4);
    else
      narrow((uint16_t *)(void *)to, ids + i, step);
    s->used += step * size;
    i += step;
  }
  return ISO_OK;
}

/* A long document goes into the file as it is read; when it turns out to be bad the file is as it was before. */
static iso_status put_stream(shard *s, int64_t index) {
  ISO_TRY(flush(s));
  const iso_sink before = s->bin;
  ISO_TRY(iso_document_stream(&s->loaded, s->b->source, index, s->encoder, s->b->eos, s->b->options->skip_bad, true));
  if (!s->loaded.bad) return ISO_OK;
  s->used = 0;
  if (iso_os.ftruncate(s->bin.fd, before.bytes) != 0) return iso_os_fail("truncate", s->bin.path);
  s->bin = before;
  return ISO_OK;
}

static iso_status put_document(shard *s, int64_t index, const iso_document *place, const char *stored) {
  builder *b = s->b;
  iso_loaded *loaded = &s->loaded;
  if (stored)
    ISO_TRY(iso_document_load(loaded, b->source, index, stored, s->encoder, b->eos, b->options->skip_bad, true));
  else
    ISO_TRY(put_stream(s, index));
  s->bytes += place->length;
  if (loaded->bad) {
    iso_string_printf(&s->bad, "%s%lld", s->bad_count++ ? ", " : "", (long long)index);
    return count_bad(b, 1, "the warnings name them");
  }
  if (loaded->count > INT32_MAX)
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "data build: document %lld of \"%s\" has %lld tokens, more than an index holds", (long long)index,
                    iso_source_file(b->source, place->file)->path, (long long)loaded->count);
  s->lengths[s->documents++] = (int32_t)loaded->count;
  s->tokens += loaded->count;
  return ISO_OK;
}

static iso_status write_index(shard *s) {
  static const char magic[9] = "MMIDIDX\0";
  const uint64_t version = INDEX_VERSION, sequences = (uint64_t)s->documents, bounds = sequences + 1;
  const uint8_t code = s->b->id_bytes == 2 ? CODE_U16 : CODE_I32;
  ISO_TRY(iso_sink_write(&s->idx, magic, sizeof magic));
  ISO_TRY(iso_sink_write(&s->idx, &version, 8));
  ISO_TRY(iso_sink_write(&s->idx, &code, 1));
  ISO_TRY(iso_sink_write(&s->idx, &sequences, 8));
  ISO_TRY(iso_sink_write(&s->idx, &bounds, 8));
  ISO_TRY(iso_sink_write(&s->idx, s->lengths, (size_t)s->documents * 4));
  int64_t *row = malloc((size_t)bounds * sizeof *row);
  if (!row) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for the index of shard %lld", (long long)s->number);
  int64_t offset = 0;
  for (int64_t i = 0; i < s->documents; i++) {
    row[i] = offset;
    offset += (int64_t)s->lengths[i] * s->b->id_bytes;
  }
  iso_status status = iso_sink_write(&s->idx, row, (size_t)s->documents * 8);
  for (int64_t i = 0; i <= s->documents; i++) row[i] = i;
  if (status == ISO_OK) status = iso_sink_write(&s->idx, row, (size_t)bounds * 8);
  free(row);
  return status;
}

static iso_status publish_file(shard *s, iso_sink *sink, const char *ending) {
  ISO_TRY(iso_sink_commit(sink));
  iso_string name = name_of(s->b, s->number, ending);
  iso_status status = ISO_OK;
  if (iso_string_failed(&name)) status = ISO_ERR_MEMORY;
  /* Without a record, what has the name is what a killed build left. */
  else if (iso_os.unlink(name.data) != 0 && errno != ENOENT)
    status = iso_os_fail("remove", name.data);
  else if (iso_os.rename_noreplace(sink->path, name.data) != 0)
    status = iso_os_fail("publish", name.data);
  iso_string_fini(&name);
  return status;
}

static iso_status publish_shard(shard *s) {
  ISO_TRY(publish_file(s, &s->bin, "bin"));
  ISO_TRY(publish_file(s, &s->idx, "idx"));
  ISO_TRY(iso_path_sync(s->b->options->folder));
  iso_string name = name_of(s->b, s->number, "json"), text = {0};
  iso_string_printf(
      &text,
      "{\"name\": \"shard-%05lld.bin\", \"bytes\": %lld, \"crc32c\": %u, \"tokens\": %lld, \"documents\": "
      "%lld, \"index_bytes\": %lld, \"index_crc32c\": %u, \"text_bytes\": %lld, \"bad_documents\": %lld, "
      "\"bad\": [%s]}\n",
      (long long)s->number, (long long)s->bin.bytes, s->bin.crc, (long long)s->tokens, (long long)s->documents,
      (long long)s->idx.bytes, s->idx.crc, (long long)s->bytes, (long long)s->bad_count,
      s->bad.data ? s->bad.data : "");
  bool taken = false;
  iso_status status = iso_string_failed(&name) || iso_string_failed(&text) || iso_string_failed(&s->bad)
                          ? ISO_ERR_MEMORY
                          : iso_file_publish(name.data, text.data, text.length, &taken);
  if (status == ISO_OK && taken) status = iso_fail(ISO_ERR_BUSY, "data build: '%s' appeared meanwhile", name.data);
  iso_string_fini(&text);
  iso_string_fini(&name);
  return status;
}

/* Adds what was done since the last call. */
static void account(builder *b, const iso_shards_report *more) {
  pthread_mutex_lock(&b->mutex);
  iso_shards_report *r = &b->report;
  r->documents += more->documents;
  r->tokens += more->tokens;
  r->bytes += more->bytes;
  r->bad += more->bad;
  r->made += more->made;
  r->reused += more->reused;
  if (b->options->progress) b->options->progress(b->options->context, r);
  pthread_mutex_unlock(&b->mutex);
}

static iso_status fill_shard(shard *s) {
  builder *b = s->b;
  const int64_t first = b->first[s->number], end = b->first[s->number + 1];
  iso_scan scan;
  iso_scan_init(&scan, b->source, first, end);
  scan.leave_long = iso_source_is_plain(b->source) && iso_tokenizer_has_borders(b->options->tokenizer) &&
                    !iso_encoder_refuses(s->encoder);
  s->lengths = malloc((size_t)(end - first) * sizeof *s->lengths);
  iso_status status = s->lengths ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data build: no memory for a shard's index");
  iso_shards_report seen = {0};
  while (status == ISO_OK && !atomic_load(&b->stop)) {
    int64_t index;
    iso_document place;
    const char *stored;
    status = iso_scan_next(&scan, &index, &place, &stored);
    if (status != ISO_OK || index < 0) break;
    status = put_document(s, index, &place, stored);
    if (s->bytes - seen.bytes < BUFFER_BYTES || status != ISO_OK) continue;
    const iso_shards_report more = {.documents = s->documents - seen.documents,
                                    .tokens = s->tokens - seen.tokens,
                                    .bytes = s->bytes - seen.bytes,
                                    .bad = s->bad_count - seen.bad};
    seen = (iso_shards_report){.documents = s->documents, .tokens = s->tokens, .bytes = s->bytes, .bad = s->bad_count};
    account(b, &more);
  }
  iso_scan_fini(&scan);
  if (status == ISO_OK && atomic_load(&b->stop)) status = ISO_STOPPED;
  if (status == ISO_OK) status = flush(s);
  if (status == ISO_OK) status = write_index(s);
  const iso_shards_report rest = {.documents = s->documents - seen.documents,
                                  .tokens = s->tokens - seen.tokens,
                                  .bytes = s->bytes - seen.bytes,
                                  .bad = s->bad_count - seen.bad};
  if (status == ISO_OK) account(b, &rest);
  return status;
}

static iso_status open_files(shard *s) {
  char attempt[33];
  ISO_TRY(iso_attempt_id(attempt));
  const struct {
    iso_string *path;
    const char *ending;
  } names[] = {{&s->bin_path, "bin"}, {&s->idx_path, "idx"}};
  for (size_t i = 0; i < ISO_COUNT(names); i++) {
    iso_string_printf(names[i].path, "%s/shard-%05lld.%s.%s.tmp", s->b->options->folder, (long long)s->number,
                      names[i].ending, attempt);
    if (iso_string_failed(names[i].path)) return ISO_ERR_MEMORY;
  }
  ISO_TRY(iso_sink_open(&s->bin, s->bin_path.data));
  return iso_sink_open(&s->idx, s->idx_path.data);
}

static void drop_buffers(shard *s) {
  iso_loaded_fini(&s->loaded);
  free(s->buffer);
  free(s->lengths);
  s->buffer = NULL;
  s->lengths = NULL;
}

/* Its files go too unless they have been published. */
static void end_shard(shard *s, bool published) {
  if (!published && s->bin.path) iso_sink_abandon(&s->bin);
  if (!published && s->idx.path) iso_sink_abandon(&s->idx);
  iso_string_fini(&s->bin_path);
  iso_string_fini(&s->idx_path);
  iso_string_fini(&s->bad);
  drop_buffers(s);
  free(s);
}

/* Hands a written shard to the thread that publishes; waits while as many are there as threads encode. */
static void hand_over(shard *s) {
  builder *b = s->b;
  drop_buffers(s);
  pthread_mutex_lock(&b->mutex);
  while (b->written_count >= b->options->threads && !atomic_load(&b->stop)) pthread_cond_wait(&b->moved, &b->mutex);
  shard **end = &b->written;
  while (*end) end = &(*end)->after;
  *end = s;
  b->written_count++;
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
}

static iso_status make_shard(builder *b, iso_encoder *encoder, int64_t number) {
  shard *s = malloc(sizeof *s);
  if (!s) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for a shard");
  *s = (shard){.b = b, .encoder = encoder, .number = number, .bin = {.fd = -1}, .idx = {.fd = -1}};
  s->buffer = malloc(BUFFER_BYTES);
  s->sink = (iso_ids_sink){put_ids, s};
  s->loaded.sink = &s->sink;
  s->loaded.crew = b->crew;
  iso_status status = s->buffer ? open_files(s) : iso_fail(ISO_ERR_MEMORY, "data build: no memory for a shard");
  if (status == ISO_OK) status = fill_shard(s);
  if (status == ISO_OK)
    hand_over(s);
  else
    end_shard(s, false);
  return status;
}

static iso_status build_or_reuse(builder *b, iso_encoder *encoder, int64_t number) {
  iso_build_record r;
  bool there;
  ISO_TRY(iso_build_record_read(b->options->folder, number, &there, &r));
  if (!there) return make_shard(b, encoder, number);
  const iso_shards_report more = {
      .documents = r.documents, .tokens = r.tokens, .bytes = r.text_bytes, .bad = r.bad, .reused = 1};
  account(b, &more);
  return count_bad(b, r.bad, "the records of the shards list them");
}

static iso_status write_manifest(builder *b) {
  iso_string text = {0}, path = {0};
  iso_string_printf(&text,
                    "{\"version\": %d, \"tokenizer\": \"%s\", \"dtype\": \"%s\", \"eos\": %d, \"tokens\": %lld, "
                    "\"documents\": %lld, \"text_bytes\": %lld, \"bad\": %lld, \"files\": [",
                    FORMAT_VERSION, iso_tokenizer_fingerprint(b->options->tokenizer),
                    b->id_bytes == 2 ? "uint16" : "int32", b->eos, (long long)b->report.tokens,
                    (long long)b->report.documents, (long long)b->report.bytes, (long long)b->report.bad);
  iso_status status = ISO_OK;
  for (int64_t i = 0; i < b->shards && status == ISO_OK; i++) {
    iso_build_record r;
    bool there;
    status = iso_build_record_read(b->options->folder, i, &there, &r);
    if (status == ISO_OK && !there)
      status = iso_fail(ISO_ERR_NOT_FOUND, "data build: the record of shard %lld is gone", (long long)i);
    if (status != ISO_OK) break;
    iso_string_printf(&text,
                      "%s\n {\"name\": \"shard-%05lld.bin\", \"bytes\": %lld, \"crc32c\": %lld, \"tokens\": %lld, "
                      "\"documents\": %lld, \"index_bytes\": %lld, \"index_crc32c\": %lld}",
                      i ? "," : "", (long long)i, (long long)r.bytes, (long long)r.crc, (long long)r.tokens,
                      (long long)r.documents, (long long)r.index_bytes, (long long)r.index_crc);
  }
  iso_string_printf(&text, "]}\n");
  iso_string_printf(&path, "%s/shards.json", b->options->folder);
  if (status == ISO_OK && (iso_string_failed(&text) || iso_string_failed(&path))) status = ISO_ERR_MEMORY;
  if (status == ISO_OK) status = iso_file_replace(path.data, text.data, text.length);
  iso_string_fini(&path);
  iso_string_fini(&text);
  return status;
}

/* ---- threads ---- */

static void end_with(builder *b, iso_status status) {
  pthread_mutex_lock(&b->mutex);
  if (b->status == ISO_OK || b->status == ISO_STOPPED) b->status = status;
  atomic_store(&b->stop, true);
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
}

/* The next written shard; NULL: there is none, and none will come. */
static shard *take_written(builder *b) {
  pthread_mutex_lock(&b->mutex);
  while (!b->written && !b->all_written) pthread_cond_wait(&b->moved, &b->mutex);
  shard *s = b->written;
  if (s) {
    b->written = s->after;
    b->written_count--;
    pthread_cond_broadcast(&b->moved);
  }
  pthread_mutex_unlock(&b->mutex);
  return s;
}

/* Publishes what is written, also when the build stops: it need not be made again. */
static void *publish(void *argument) {
  builder *b = argument;
  for (shard *s; (s = take_written(b));) {
    const iso_status status = publish_shard(s);
    if (status == ISO_OK)
      account(b, &(iso_shards_report){.made = 1});
    else
      end_with(b, status);
    end_shard(s, status == ISO_OK);
  }
  return NULL;
}

static void *work(void *argument) {
  builder *b = argument;
  iso_encoder *encoder = iso_encoder_create(b->options->tokenizer);
  iso_status status = encoder ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data build: no memory for a thread's tokenizer");
  while (status == ISO_OK && !atomic_load(&b->stop)) {
    const int64_t number = atomic_fetch_add(&b->next, 1);
    if (number >= b->shards) break;
    status = build_or_reuse(b, encoder, number);
  }
  if (status != ISO_OK) end_with(b, status);
  iso_crew_leave(b->crew);
  if (status == ISO_OK) iso_crew_help(b->crew, encoder);
  iso_encoder_destroy(&encoder);
  return NULL;
}

static iso_status run_threads(builder *b) {
  const bool all = b->options->threads < b->shards || b->longest > LONG_DOCUMENT;
  const int64_t wanted = all ? b->options->threads : b->shards;
  pthread_t *threads = calloc((size_t)wanted + 1, sizeof *threads);
  b->crew = iso_crew_create(b->options->tokenizer, (int)wanted);
  if (!threads || !b->crew) {
    free(threads);
    return iso_fail(ISO_ERR_MEMORY, "data build: no memory for %lld threads", (long long)wanted);
  }
  pthread_t publisher;
  int64_t started = 0;
  const int failed = pthread_create(&publisher, NULL, publish, b);
  if (failed == 0) {
    for (; started < wanted - 1; started++)
      if (pthread_create(&threads[started], NULL, work, b) != 0) break; /* fewer do as well */
    for (int64_t i = started; i < wanted - 1; i++) iso_crew_leave(b->crew);
    work(b);
    for (int64_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_mutex_lock(&b->mutex);
    b->all_written = true;
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(publisher, NULL);
  } else {
    errno = failed;
    b->status = iso_os_fail("start a thread for", b->options->folder);
  }
  free(threads);
  return b->status;
}

iso_status iso_shards_build(const iso_shards_options *options, iso_shards_report *report) {
  builder b = {.options = options, .source = options->source, .taken = {.lock = -1}};
  const int64_t eos = iso_tokenizer_eos(options->tokenizer);
  *report = (iso_shards_report){0};
  if (eos < 0)
    return iso_fail(ISO_ERR_CONFIG, "data build: the tokenizer '%s' has no end-of-text token, which must end documents",
                    iso_tokenizer_path(options->tokenizer));
  if (iso_source_content(options->source) == ISO_CONTENT_TOKENS)
    return iso_fail(ISO_ERR_CONFIG, "data build: \"%s\" holds tokens already", iso_source_options_of(b.source)->path);
  if (iso_source_documents(options->source) == 0)
    return iso_fail(ISO_ERR_CONFIG, "data build: \"%s\" holds no document", iso_source_options_of(b.source)->path);
  b.eos = (int32_t)eos;
  b.id_bytes = iso_tokenizer_vocabulary(options->tokenizer) <= 65536 ? 2 : 4;
  pthread_mutex_init(&b.mutex, NULL);
  pthread_cond_init(&b.moved, NULL);
  iso_status status = cut_shards(&b);
  if (status == ISO_OK) status = iso_build_folder_take(options, b.shard_bytes, b.eos, &b.taken);
  if (status == ISO_OK) status = run_threads(&b);
  if (status == ISO_OK && b.report.documents == 0)
    status = iso_fail(ISO_ERR_FORMAT,
                      "data build: each of the %lld documents of \"%s\" is bad (the warnings and the records of the "
                      "shards say why)",
                      (long long)b.report.bad, iso_source_options_of(b.source)->path);
  if (status == ISO_OK) status = write_manifest(&b);
  iso_crew_destroy(&b.crew);
  iso_build_folder_leave(options, &b.taken, status != ISO_OK && b.report.made + b.report.reused == 0);
  b.report.shards = b.shards;
  *report = b.report;
  free(b.first);
  pthread_cond_destroy(&b.moved);
  pthread_mutex_destroy(&b.mutex);
  return status;
}
