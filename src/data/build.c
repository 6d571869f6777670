/* SPDX-License-Identifier: Apache-2.0
 *
 * build: a source's documents as token shards.
 *
 * The documents are cut, in order, into shards of about `shard_bytes` of stored text, and these into chunks that
 * threads encode. What comes of them goes back into order (build_order.c): a thread of its own writes it, shard after
 * shard, and others sync and publish the shards that are whole (build_shard.c), so that those who encode wait neither
 * for each other nor for the disk. When all shards are there, shards.json lists them with the tokenizer's
 * fingerprint.
 *
 * Invariants
 *  1. What is written depends on source, tokenizer and options alone, never on threads or on how often it was stopped.
 *     So does what is said of documents: the first bad one is the one that an error names.
 *  2. A shard exists when its record does; the record is published last, after both files are synced. What a killed
 *     build leaves behind has no record and is made again.
 *  3. Every document is in a shard or in the list of those left out.
 *  4. An error is logged once, whatever number of threads meets it: all threads are mute, and what is said of the first
 *     failure is said at the end.
 *
 * Memory: for each thread the text of a chunk or of a long document, and its ids; of the long document that is written
 * next, a part of the ids.
 */
#include "data/build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_SHARD = 8000000, MOST_SHARD = 256000000, MOST_SHARDS = 64 }; /* bytes of text, where none are given */
enum { LONG_DOCUMENT = 1 << 20 }; /* bytes; it is worth the help of more threads than there are chunks */
enum { CHUNK_BYTES = 1 << 18 };   /* of stored text; a longer document is one alone */
enum { PART_BYTES = 1 << 20 };    /* of ids, of the chunk that is written next */
enum { PUBLISHERS = 4 };          /* threads: what they do is wait for the disk */
enum { MOST_BYTES = 64 << 20 };   /* of ids, of a long document that comes later */
enum { MOST_WRITTEN = 8 };        /* shards that wait to be published */
enum { SYNC_BYTES = 8 << 20 };    /* of tokens, after which a shard that is being written is synced */
enum { FORMAT_VERSION = 1 };

/* Documents of one shard that one thread encodes. */
typedef struct chunk {
  int64_t first, end, shard;
  bool last; /* of the shard */
} chunk;

typedef struct builder {
  const iso_shards_options *options;
  const iso_source *source;
  chunk *chunks;                                     /* [chunk_count]: those to be encoded */
  int64_t chunk_count, shards, shard_bytes, longest; /* longest: bytes of the longest document */
  iso_build_folder taken;
  int id_bytes; /* 2 or 4 */
  int32_t eos;
  iso_crew *crew; /* threads that have no chunk help with long documents */
  iso_build_order order;
  iso_build_shard *open;    /* the writer's */
  int64_t marked;           /* the chunk at whose beginning it is marked; -1 */
  pthread_mutex_t mutex;    /* over what follows */
  pthread_cond_t moved;     /* `written` or all_written changed */
  iso_build_shard *written; /* to be published */
  int64_t written_count;
  bool all_written;
  int to_sync;                /* a descriptor of the open shard's tokens, to be synced early; -1 */
  int64_t syncing, sync_lost; /* the shard whose tokens are being synced early; the first for which that failed; -1 */
  iso_status status;          /* the first failure, and its message */
  iso_string error;
  iso_shards_report report;
} builder;

/* What a thread that encodes has. */
typedef struct encoding {
  builder *b;
  iso_encoder *encoder;
  iso_scan scan;
  iso_ids_sink sink;
  iso_loaded loaded;
  iso_build_batch *batch;
} encoding;

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

static iso_status cut(builder *b) {
  const int64_t documents = iso_source_documents(b->source);
  for (int64_t i = 0; i < documents; i++) {
    const int64_t length = iso_source_length(b->source, i);
    b->report.total_bytes += length;
    if (length > b->longest) b->longest = length;
  }
  b->shard_bytes = choose_shard_bytes(b);
  int64_t capacity = 0, in_shard = 0, in_chunk = 0;
  chunk now = {0};
  for (int64_t i = 0; i < documents; i++) {
    const int64_t length = iso_source_length(b->source, i);
    in_shard += length;
    in_chunk += length;
    now.last = in_shard >= b->shard_bytes || i + 1 == documents;
    if (!now.last && in_chunk + iso_source_length(b->source, i + 1) <= CHUNK_BYTES) continue;
    if (b->chunk_count == capacity) {
      capacity = capacity ? 2 * capacity : 256;
      chunk *grown = realloc(b->chunks, (size_t)capacity * sizeof *grown);
      if (!grown) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for a list of chunks");
      b->chunks = grown;
    }
    now.end = i + 1;
    b->chunks[b->chunk_count++] = now;
    in_chunk = 0;
    if (now.last) in_shard = 0;
    now = (chunk){.first = now.end, .shard = now.shard + now.last};
  }
  b->shards = now.shard;
  return ISO_OK;
}

/* Adds what was done since the last call. With the lock. */
static void add(builder *b, const iso_shards_report *more) {
  iso_shards_report *r = &b->report;
  r->documents += more->documents;
  r->tokens += more->tokens;
  r->bytes += more->bytes;
  r->bad += more->bad;
  r->made += more->made;
  r->reused += more->reused;
  if (more->reused) r->bytes_reused += more->bytes;
  if (b->options->progress) b->options->progress(b->options->context, r);
}

/* The same for a thread that is mute, and speaks here. */
static void account(builder *b, const iso_shards_report *more) {
  iso_log_mute(false);
  pthread_mutex_lock(&b->mutex);
  add(b, more);
  pthread_mutex_unlock(&b->mutex);
  iso_log_mute(true);
}

/* `where` says what lists them. */
static iso_status check_bad(const builder *b, int64_t bad, const char *where) {
  if (bad <= b->options->max_bad) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "data build: more than %lld bad documents (%s)", (long long)b->options->max_bad,
                  where);
}

/* Counts the shards that are there, and leaves their chunks out. Before there are threads. */
static iso_status reuse(builder *b) {
  int64_t kept = 0, shard = -1;
  bool there = false;
  for (int64_t i = 0; i < b->chunk_count; i++) {
    const chunk *c = &b->chunks[i];
    if (c->shard != shard) {
      iso_build_record r;
      shard = c->shard;
      ISO_TRY(iso_build_record_read(b->options->folder, shard, &there, &r));
      if (there)
        add(b, &(iso_shards_report){
                   .documents = r.documents, .tokens = r.tokens, .bytes = r.text_bytes, .bad = r.bad, .reused = 1});
    }
    if (!there) b->chunks[kept++] = *c;
  }
  b->chunk_count = kept;
  return check_bad(b, b->report.bad, "the records of the shards list them");
}

/* ---- writing ---- */

static iso_status leave_out(builder *b, const iso_build_bad *bad) {
  const bool skip = b->options->skip_bad;
  iso_log_mute(!skip);
  const iso_status status = iso_document_tell(b->source, bad->document, &bad->why, skip);
  iso_log_mute(true);
  ISO_TRY(status);
  iso_build_shard_leave_out(b->open, bad->document);
  account(b, &(iso_shards_report){.bad = 1});
  return check_bad(b, b->report.bad, "the warnings name them");
}

/* Hands a written shard to those who publish; waits while many are there. */
static void hand_over(builder *b) {
  pthread_mutex_lock(&b->mutex);
  while (b->written_count >= MOST_WRITTEN && b->status == ISO_OK) pthread_cond_wait(&b->moved, &b->mutex);
  iso_build_shard **end = &b->written;
  while (*end) end = &(*end)->after;
  *end = b->open;
  b->open = NULL;
  b->written_count++;
  if (b->to_sync >= 0) { /* who publishes it syncs it */
    (void)close(b->to_sync);
    b->to_sync = b->syncing = -1;
  }
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
}

/* What is synced early need not be waited for at the end: a disk takes it while threads encode. One at a time. */
static void sync_early(builder *b) {
  iso_build_shard *s = b->open;
  if (s->bin.bytes - s->asked < SYNC_BYTES) return;
  pthread_mutex_lock(&b->mutex);
  if (b->syncing < 0) {
    b->to_sync = fcntl(s->bin.fd, F_DUPFD_CLOEXEC, 0); /* without one it is synced at the end */
    if (b->to_sync >= 0) b->syncing = s->number;
    s->asked = s->bin.bytes;
    pthread_cond_broadcast(&b->moved);
  }
  pthread_mutex_unlock(&b->mutex);
}

static iso_status write_batch(builder *b, const iso_build_batch *batch) {
  const chunk *c = &b->chunks[batch->number];
  if (!b->open) ISO_TRY(iso_build_shard_open(b->options->folder, c->shard, b->id_bytes, &b->open));
  iso_build_shard *s = b->open;
  for (size_t i = 0; i < batch->bad_count; i++) ISO_TRY(leave_out(b, &batch->bad[i]));
  if (batch->status != ISO_OK) return iso_fail(batch->status, "%s", batch->error.data ? batch->error.data : "");
  if (batch->more && b->marked != batch->number) {
    iso_build_shard_mark(s);
    b->marked = batch->number;
  }
  if (batch->takes_back && b->marked == batch->number) ISO_TRY(iso_build_shard_take_back(s));
  const int64_t tokens = s->tokens;
  ISO_TRY(iso_build_shard_put(s, batch->ids, batch->used));
  ISO_TRY(iso_build_shard_count(s, batch->lengths, batch->documents));
  s->bytes += batch->bytes;
  account(b, &(iso_shards_report){
                 .documents = (int64_t)batch->documents, .tokens = s->tokens - tokens, .bytes = batch->bytes});
  sync_early(b);
  if (batch->more || !c->last) return ISO_OK;
  ISO_TRY(iso_build_shard_end(s));
  hand_over(b);
  return ISO_OK;
}

/* Keeps the message of this thread's failure if it is the first. */
static void fail_with(builder *b, iso_status status) {
  pthread_mutex_lock(&b->mutex);
  if (b->status == ISO_OK) {
    b->status = status;
    iso_string_printf(&b->error, "%s", iso_last_error());
  }
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
}

/* Writes what is due, unless another thread does. */
static void write_batches(builder *b) {
  for (iso_build_batch *batch; (batch = iso_build_order_next(&b->order));) {
    const iso_status status = write_batch(b, batch);
    if (status != ISO_OK) {
      fail_with(b, status);
      iso_build_order_stop(&b->order);
    }
    iso_build_order_done(&b->order, batch);
  }
}

/* ---- one chunk ---- */

static void narrow(uint16_t *restrict to, const int32_t *restrict ids, size_t count) {
  enum { WIDE = 32 }; /* a constant length is what compilers make vectors of */
  size_t i = 0;
  for (; i + WIDE <= count; i += WIDE)
    for (size_t k = 0; k < WIDE; k++) to[i + k] = (uint16_t)ids[i + k];
  for (; i < count; i++) to[i] = (uint16_t)ids[i];
}

/* Of the chunk that is written next, what there is goes on its way. */
static iso_status give_part(encoding *e) {
  builder *b = e->b;
  const int64_t number = e->batch->number;
  const bool awaited = iso_build_order_is_awaited(&b->order, number, e->batch->used >= MOST_BYTES);
  if (iso_build_order_is_stopped(&b->order)) return ISO_STOPPED;
  if (!awaited) return ISO_OK;
  iso_build_batch *next = iso_build_order_batch(&b->order, number);
  if (!next) return ISO_ERR_MEMORY;
  e->batch->more = true;
  iso_build_order_give(&b->order, e->batch);
  e->batch = next;
  write_batches(b);
  return ISO_OK;
}

/* A sink: ids to the batch. */
static iso_status put_ids(void *context, const int32_t *ids, size_t count) {
  encoding *e = context;
  const size_t bytes = count * (size_t)e->b->id_bytes;
  if (e->batch->used >= PART_BYTES) ISO_TRY(give_part(e));
  iso_build_batch *batch = e->batch;
  if (batch->capacity - batch->used < bytes) ISO_TRY(iso_build_batch_reserve(batch, bytes));
  char *to = batch->ids + batch->used;
  if (e->b->id_bytes == 4)
    memcpy(to, ids, bytes);
  else
    narrow((uint16_t *)(void *)to, ids, count);
  batch->used += bytes;
  return ISO_OK;
}

/* A long document, which is a chunk of its own, is encoded as it is read. When it turns out to be bad, nothing of it
 * counts. */
static iso_status put_stream(encoding *e, int64_t index) {
  const builder *b = e->b;
  ISO_TRY(iso_document_stream(&e->loaded, b->source, index, e->encoder, b->eos, true, false));
  if (!e->loaded.bad) return ISO_OK;
  e->batch->used = 0;
  e->batch->takes_back = true;
  return ISO_OK;
}

static iso_status put_document(encoding *e, int64_t index, const iso_document *place, const char *stored) {
  const builder *b = e->b;
  iso_loaded *loaded = &e->loaded;
  if (stored)
    ISO_TRY(iso_document_load(loaded, b->source, index, stored, e->encoder, b->eos, true, false));
  else
    ISO_TRY(put_stream(e, index));
  e->batch->bytes += place->length;
  if (loaded->bad) return iso_build_batch_leave_out(e->batch, index, &loaded->why);
  if (loaded->count > INT32_MAX)
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "data build: document %lld of \"%s\" has %lld tokens, more than an index holds", (long long)index,
                    iso_source_file(b->source, place->file)->path, (long long)loaded->count);
  return iso_build_batch_count(e->batch, (int32_t)loaded->count);
}

/* A bad document that may not be left out ends it: the writer says why. */
static iso_status encode_chunk(encoding *e, const chunk *c) {
  iso_scan_set(&e->scan, c->first, c->end);
  for (;;) {
    int64_t index;
    iso_document place;
    const char *stored;
    ISO_TRY(iso_scan_next(&e->scan, &index, &place, &stored));
    if (index < 0) return ISO_OK;
    ISO_TRY(put_document(e, index, &place, stored));
    if (e->batch->bad_count && !e->b->options->skip_bad) return ISO_OK;
  }
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

/* Waits for a written shard, or else for a descriptor to be synced; neither: there is none, and none will come. */
static iso_build_shard *take_written(builder *b, int *to_sync) {
  pthread_mutex_lock(&b->mutex);
  while (!b->written && b->to_sync < 0 && !b->all_written) pthread_cond_wait(&b->moved, &b->mutex);
  iso_build_shard *s = b->written;
  *to_sync = -1;
  if (s) {
    b->written = s->after;
    b->written_count--;
    pthread_cond_broadcast(&b->moved);
  } else {
    *to_sync = b->to_sync;
    b->to_sync = -1;
  }
  pthread_mutex_unlock(&b->mutex);
  return s;
}

/* An error of a file is told once: whoever publishes it may not see it. */
static iso_status sync_open(builder *b, int fd) {
  const iso_status status = iso_os.fdatasync(fd) == 0 ? ISO_OK : iso_os_fail("sync a shard in", b->options->folder);
  (void)close(fd);
  pthread_mutex_lock(&b->mutex);
  if (status != ISO_OK && b->sync_lost < 0) b->sync_lost = b->syncing;
  b->syncing = -1;
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
  return status;
}

/* Not one of whose tokens a part may be lost, nor those behind it: that failure is told already. */
static iso_status publish_shard(builder *b, iso_build_shard *s) {
  pthread_mutex_lock(&b->mutex);
  while (b->syncing == s->number) pthread_cond_wait(&b->moved, &b->mutex);
  const bool lost = b->sync_lost >= 0 && s->number >= b->sync_lost;
  pthread_mutex_unlock(&b->mutex);
  const iso_status status = lost ? ISO_OK : iso_build_shard_publish(s);
  const bool published = status == ISO_OK && !lost;
  iso_build_shard_close(&s, published);
  if (published) account(b, &(iso_shards_report){.made = 1});
  return status;
}

/* Publishes what is written, also when the build stops: it need not be made again. */
static void *publish(void *argument) {
  builder *b = argument;
  int fd;
  iso_log_mute(true);
  for (iso_build_shard *s; (s = take_written(b, &fd)) || fd >= 0;) {
    const iso_status status = s ? publish_shard(b, s) : sync_open(b, fd);
    if (status == ISO_OK) continue;
    fail_with(b, status);
    iso_build_order_stop(&b->order);
  }
  return NULL;
}

static iso_status encode_number(encoding *e, int64_t number) {
  builder *b = e->b;
  e->batch = iso_build_order_batch(&b->order, number);
  if (!e->batch) return ISO_ERR_MEMORY;
  const iso_status status = encode_chunk(e, &b->chunks[number]);
  iso_build_batch *batch = e->batch;
  batch->status = status;
  batch->error.length = 0;
  if (status != ISO_OK) iso_string_printf(&batch->error, "%s", iso_last_error());
  const bool ends = status != ISO_OK || (batch->bad_count && !b->options->skip_bad);
  iso_build_order_give(&b->order, batch);
  if (ends) iso_build_order_end(&b->order);
  write_batches(b);
  return ISO_OK;
}

/* The next chunk; until there is one, parts of others' long documents. */
static int64_t take_chunk(encoding *e) {
  for (;;) {
    const int64_t number = iso_build_order_take(&e->b->order);
    if (number != ISO_BUILD_FULL) return number;
    while (iso_crew_help_once(e->b->crew, e->encoder)) continue;
  }
}

static void *encode_chunks(void *argument) {
  builder *b = argument;
  iso_log_mute(true);
  encoding e = {.b = b, .encoder = iso_encoder_create(b->options->tokenizer), .sink = {put_ids, &e}};
  iso_status status = e.encoder ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data build: no memory for a thread's tokenizer");
  iso_scan_init(&e.scan, b->source, 0, 0);
  e.scan.leave_long = status == ISO_OK && iso_source_is_plain(b->source) &&
                      iso_tokenizer_has_borders(b->options->tokenizer) && !iso_encoder_refuses(e.encoder);
  e.loaded.sink = &e.sink;
  e.loaded.crew = b->crew;
  for (int64_t number; status == ISO_OK && (number = take_chunk(&e)) >= 0;) status = encode_number(&e, number);
  if (status != ISO_OK) {
    fail_with(b, status);
    iso_build_order_stop(&b->order);
  }
  iso_crew_leave(b->crew);
  if (status == ISO_OK) iso_crew_help(b->crew, e.encoder);
  iso_scan_fini(&e.scan);
  iso_loaded_fini(&e.loaded);
  iso_encoder_destroy(&e.encoder);
  return NULL;
}

/* `encode_chunks` on this thread and others; fewer do as well. */
static iso_status encode_all(builder *b) {
  const bool all = b->options->threads < b->chunk_count || b->longest > LONG_DOCUMENT;
  const int64_t wanted = all ? b->options->threads : b->chunk_count;
  pthread_t *others = calloc((size_t)wanted + 1, sizeof *others);
  b->crew = iso_crew_create(b->options->tokenizer, (int)wanted);
  if (others && b->crew) {
    int64_t started = 0;
    for (; started < wanted - 1; started++)
      if (pthread_create(&others[started], NULL, encode_chunks, b) != 0) break;
    for (int64_t i = started; i < wanted - 1; i++) iso_crew_leave(b->crew);
    encode_chunks(b);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], NULL);
  }
  const iso_status status = others && b->crew
                                ? ISO_OK
                                : iso_fail(ISO_ERR_MEMORY, "data build: no memory for %lld threads", (long long)wanted);
  iso_crew_destroy(&b->crew);
  free(others);
  return status;
}

static iso_status run_threads(builder *b) {
  pthread_t publishers[PUBLISHERS];
  int failed = 0, publishing = 0;
  while (failed == 0 && publishing < PUBLISHERS) {
    failed = pthread_create(&publishers[publishing], NULL, publish, b);
    publishing += failed == 0;
  }
  if (publishing == 0) { /* else fewer do as well */
    errno = failed;
    return iso_os_fail("start a thread for", b->options->folder);
  }
  if (encode_all(b) != ISO_OK) fail_with(b, ISO_ERR_MEMORY);
  iso_build_shard_close(&b->open, false);
  pthread_mutex_lock(&b->mutex);
  b->all_written = true;
  pthread_cond_broadcast(&b->moved);
  pthread_mutex_unlock(&b->mutex);
  for (int i = 0; i < publishing; i++) pthread_join(publishers[i], NULL);
  return b->status;
}

/* Encodes, writes and publishes what is not there, and says what failed first. */
static iso_status run(builder *b) {
  iso_status status = iso_build_order_init(&b->order, b->chunk_count);
  iso_log_mute(true);
  if (status == ISO_OK) status = run_threads(b);
  iso_log_mute(false);
  iso_build_order_fini(&b->order);
  if (status != ISO_OK) status = iso_fail(status, "%s", b->error.data ? b->error.data : iso_last_error());
  return status;
}

iso_status iso_shards_build(const iso_shards_options *options, iso_shards_report *report) {
  builder b = {.options = options,
               .source = options->source,
               .taken = {.lock = -1},
               .marked = -1,
               .to_sync = -1,
               .syncing = -1,
               .sync_lost = -1};
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
  iso_status status = cut(&b);
  if (status == ISO_OK) status = iso_build_folder_take(options, b.shard_bytes, b.eos, &b.taken);
  if (status == ISO_OK) status = reuse(&b);
  if (status == ISO_OK && b.chunk_count) status = run(&b);
  if (status == ISO_OK && b.report.documents == 0)
    status = iso_fail(ISO_ERR_FORMAT,
                      "data build: each of the %lld documents of \"%s\" is bad (the warnings and the records of the "
                      "shards say why)",
                      (long long)b.report.bad, iso_source_options_of(b.source)->path);
  if (status == ISO_OK) status = write_manifest(&b);
  iso_build_folder_leave(options, &b.taken, status != ISO_OK && b.report.made + b.report.reused == 0);
  b.report.shards = b.shards;
  *report = b.report;
  free(b.chunks);
  iso_string_fini(&b.error);
  pthread_cond_destroy(&b.moved);
  pthread_mutex_destroy(&b.mutex);
  return status;
}
