/* SPDX-License-Identifier: Apache-2.0
 *
 * io: files that hold tensors, things that are read by ranges wherever they are, and the few file habits that keep what
 * is written whole.
 *
 * Invariants
 *  1. A safetensors file is accepted only if every rule of the format holds (docs/formats.md lists them in the order in
 * which they are checked); nothing is read through an offset that was not checked first.
 *  2. The header is checked on a private copy, never on the mapping: a file that changes under the reader cannot undo a
 * check.
 *  3. A writer never leaves a half-written file under its final name.
 *  4. CRC-32C is computed on the source buffer, before the bytes are handed to the system.
 *  5. A blob is what it was when it was listed, or its reads fail: size and version are compared by every read.
 */
#ifndef ISO_IO_H
#define ISO_IO_H

#include "base/base.h"

#include <stdatomic.h>

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
  const char *path;   /* borrowed until the close */
  int fd;             /* -1: closed */
  int64_t bytes;      /* so far */
  uint32_t crc;       /* so far */
  bool direct;        /* past the page cache, as long as what is written is aligned */
  const char *advice; /* borrowed; what to do when the disk is full, NULL: "free some space" */
} iso_sink;
/* The file must not exist: names are never reused. */
iso_status iso_sink_open(iso_sink *sink, const char *path) ISO_MUST_CHECK;
/* The same, written past the page cache where the file system can, and while memory, sizes and places are multiples of
 * ISO_SINK_ALIGN: large files then neither fill the cache nor wait for it. */
enum { ISO_SINK_ALIGN = 512 };
iso_status iso_sink_open_direct(iso_sink *sink, const char *path) ISO_MUST_CHECK;
iso_status iso_sink_write(iso_sink *sink, const void *data, size_t bytes) ISO_MUST_CHECK;
/* fdatasync and close. The file is not to be trusted when this fails, and is not synced a second time. */
iso_status iso_sink_commit(iso_sink *sink) ISO_MUST_CHECK;
/* Closes if open and removes the file. For an attempt that was given up. */
void iso_sink_abandon(iso_sink *sink);
/* Publishes a small file under a name that must be free: temporary file, synced, renamed without replacing, folder
 * synced. `taken` tells that the name exists already (ISO_OK is returned then, and nothing was changed). */
iso_status iso_file_publish(const char *path, const void *data, size_t bytes, bool *taken) ISO_MUST_CHECK;

/* ---- blob_list.c: what a path means ---------------------------------------------------------------- */

/* Something that is read by ranges: a local file or an object in S3, as it was when it was listed. */
typedef struct iso_blob_info {
  char *path; /* local path or s3://bucket/key, in the arena */
  int64_t bytes;
  char version[96]; /* local: time of the last change, "seconds.nanoseconds"; S3: the ETag without quotes */
} iso_blob_info;

bool iso_blob_is_remote(const char *path);
/* `path`: a file, a folder (every regular file below it, hidden ones too) or a glob; s3://bucket/key, or
 * s3://bucket/prefix/ for every object below. Sorted by strcmp; at least one. The list is in the arena.
 * NOT_FOUND, IO; CONFIG for what cannot be read by ranges (devices, pipes); FORMAT for folders that contain
 * themselves. */
iso_status iso_blobs_list(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) ISO_MUST_CHECK;
/* Fills in bytes and version of the regular file `path` as it is now; `path` itself is copied to the arena. */
iso_status iso_blob_local(iso_arena *arena, const char *path, iso_blob_info *out) ISO_MUST_CHECK;

/* ---- blob.c: ranged reads --------------------------------------------------------------------------- */

/* A blob holds no file descriptor between reads, so any number may be open. Thread-safe: several threads may read one
 * blob at a time. */
typedef struct iso_blob iso_blob;
iso_status iso_blob_open(const iso_blob_info *info, iso_blob **out) ISO_MUST_CHECK; /* info is copied */
void iso_blob_close(iso_blob **blob);
const iso_blob_info *iso_blob_info_of(const iso_blob *blob);
/* Exactly `length` bytes from `offset`, which must lie within the blob (INTERNAL otherwise). MISMATCH when the blob
 * changed since it was listed; nothing is to be believed of `buffer` then. Remote reads are tried again after transport
 * errors, with growing pauses, for a bounded time; IO with the last cause when that does not help. */
iso_status iso_blob_read(iso_blob *blob, int64_t offset, int64_t length, void *buffer) ISO_MUST_CHECK;
/* MISMATCH when a local blob is no longer as listed; for those who map the file. ISO_OK for remote ones, whose reads
 * check. */
iso_status iso_blob_check(const iso_blob *blob) ISO_MUST_CHECK;
/* From any thread: while on, remote reads and listings in progress and new ones end soon with ISO_STOPPED. */
void iso_blob_interrupt(bool on);

/* ---- uring.c: writes of which several are in flight ------------------------------------------------------ */

/* For one thread. Writes are begun in order and reach storage in any. */
typedef struct iso_writes iso_writes;
enum { ISO_WRITES_DEPTH = 4, ISO_WRITES_PARTS = 3 };
/* `several`: where the kernel (or what stands in for it in iso_os) can; else one at once, by a thread. Each write in
 * flight has a buffer of buffer_bytes, 4 KiB aligned, for those whose data has no place of its own. */
iso_status iso_writes_open(bool several, size_t buffer_bytes, iso_writes **out) ISO_MUST_CHECK;
/* From now on several at once, or one; returns whether several. */
bool iso_writes_use(iso_writes *writes, bool several);
/* The buffer of the next write, once it is free. */
void *iso_writes_buffer(iso_writes *writes);
/* Begins a write of up to ISO_WRITES_PARTS parts behind each other; their data must stay as it is until
 * iso_writes_drain. Fails, too, when an earlier one has. */
iso_status iso_writes_put(iso_writes *writes, int fd, const char *path, const struct iovec *parts, int count,
                          int64_t offset) ISO_MUST_CHECK;
/* Waits until none is in flight. The first failure, of whichever. */
iso_status iso_writes_drain(iso_writes *writes, const char *path) ISO_MUST_CHECK;
/* The same, and forgets a failure. */
void iso_writes_clear(iso_writes *writes);
void iso_writes_close(iso_writes **writes);

/* ---- writer.c: the thread that writes one after the other ------------------------------------------------- */

/* As the four calls of iso_os for several writes; up to ISO_WRITES_DEPTH are begun and not reaped. NULL: no thread. */
void *iso_writer_open(void);
int iso_writer_begin(void *writer, int fd, const struct iovec *parts, int count, int64_t offset, int tag);
int iso_writer_reap(void *writer, int *tag, ssize_t *result);
void iso_writer_close(void *writer);

/* ---- transfer.c: lines on the log for what takes long ----------------------------------------------- */

typedef struct iso_transfer {
  const char *what, *path; /* borrowed: "decompressing", of what */
  int64_t total;           /* bytes; 0: not known */
  double began_s, next_s;
  bool shown;
} iso_transfer;
void iso_transfer_init(iso_transfer *transfer, const char *what, const char *path, int64_t total);
/* Call as often as you like: a line after 2 seconds, then every 5. */
void iso_transfer_at(iso_transfer *transfer, int64_t done);
/* The last line, if there was one before. */
void iso_transfer_end(iso_transfer *transfer, int64_t done);

/* ---- compress.c: gzip and Zstandard ------------------------------------------------------------------ */

typedef enum iso_compression { ISO_PLAIN, ISO_GZIP, ISO_ZSTD } iso_compression;
/* By the blob's first bytes, checked against its name: a name that promises gzip (.gz) or Zstandard (.zst, .zstd) over
 * other bytes is a FORMAT error. Under any other name the bytes decide. */
iso_status iso_compression_of(iso_blob *blob, iso_compression *how) ISO_MUST_CHECK;
const char *iso_compression_name(iso_compression how); /* "plain", "gzip", "zstd" */
/* What is wrong with a file, for those who keep what comes before. */
typedef struct iso_damage {
  bool is;
  int64_t kept;    /* bytes of the output that are to be trusted: what comes before */
  char cause[160]; /* says where */
} iso_damage;
/* The whole blob, decompressed, into the sink; ISO_PLAIN copies. Several members or frames follow each other.
 * Truncated, corrupt, and followed by anything else: FORMAT with the position; with `damage` it is OK, and the sink has
 * got `kept` bytes or more. Of a truncated file all that came out is kept (unless it ends in zeros), of any other the
 * units before the damage.
 * Progress goes to the log. */
iso_status iso_decompress(iso_blob *from, iso_compression how, iso_sink *to, iso_damage *damage) ISO_MUST_CHECK;
/* A block whose decompressed size is known (a Parquet page): FORMAT unless it is exactly to_bytes. `what` begins the
 * message. */
iso_status iso_decompress_block(const char *what, iso_compression how, const void *from, size_t bytes, void *to,
                                size_t to_bytes) ISO_MUST_CHECK;

/* ---- spool.c: content that is made once and kept in a cache folder ----------------------------------- */

/* The cache folder: `configured`, or when that is "" $ISOTACH_CACHE, $XDG_CACHE_HOME/isotach, $HOME/.cache/isotach.
 * Written to `out` and returned; NULL when none is known (logged). */
const char *iso_cache_folder(const char *configured, iso_string *out);
/* `key`: 64 hex digits that name the content (a digest of path, bytes, version and kind). Found in `cache`, with size
 * and CRC checked, or written there by `fill` and published by a rename that does not replace; two processes may make
 * it at once. A damaged one is made again. `out` is a local blob. SPACE names the folder and the bytes written. */
iso_status iso_spool_open(const char *cache, const char key[65], iso_status (*fill)(void *context, iso_sink *sink),
                          void *context, iso_arena *arena, iso_blob_info *out) ISO_MUST_CHECK;

/* ---- s3.c: objects in S3, for blob.c and blob_list.c ------------------------------------------------- */

typedef struct iso_s3_object {
  char *key; /* in the arena */
  int64_t bytes;
  char etag[96]; /* without quotes */
} iso_s3_object;

/* Objects that `path` ("s3://bucket/key" or "s3://bucket/prefix/") means, in the arena, sorted. */
iso_status iso_s3_list(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) ISO_MUST_CHECK;
/* Exactly `length` bytes from `offset` of an object that still has the ETag info->version. */
iso_status iso_s3_read(const iso_blob_info *info, int64_t offset, int64_t length, char *buffer) ISO_MUST_CHECK;
/* Every object whose key begins with the path's, none being a list too. */
iso_status iso_s3_list_all(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) ISO_MUST_CHECK;
/* Size and ETag of one object (info->path stays NULL). `missing`: there is none (ISO_OK then). */
iso_status iso_s3_head(const char *path, iso_blob_info *info, bool *missing) ISO_MUST_CHECK;

/* ---- s3_request.c: requests that are tried again ------------------------------------------------------- */

/* How long to try. 0 in the first two: as the environment says, else 300 and 10. */
typedef struct iso_s3_patience {
  double give_up_s;     /* ISOTACH_S3_GIVE_UP_S: for one read, and more for a large one */
  double stall_s;       /* ISOTACH_S3_STALL_S: an attempt ends when it is slower than 4 KiB/s for so long */
  double first_pause_s; /* before the second attempt; doubled each time, with jitter */
  double last_pause_s;
} iso_s3_patience;
extern iso_s3_patience iso_s3_patience_now; /* tests change it */
/* Overrides give_up_s for this thread, which also pauses no longer than that in all; 0: no more. */
void iso_s3_patience_of_thread(double give_up_s);
double iso_s3_give_up_s(void);

struct iso_http_response; /* below */
typedef struct iso_s3_job {
  const char *path; /* s3://..., for messages */
  const char *bucket, *key;
  const char *doing; /* "read", for messages */
  const char *method;
  const char *query;   /* encoded and sorted, "" if none */
  const char *etag;    /* must still be this one; NULL: any */
  int64_t first, last; /* bytes asked for; first < 0: all */
  char *body;          /* where they go; NULL: to the response's text */
  size_t body_bytes;
  bool sends;       /* `data` goes out as the request's body */
  bool checksummed; /* which is content of an object, and carries its CRC-32C */
  bool only_new;    /* If-None-Match: * */
  bool begins_upload, wants_checksum;
  bool slow_answer; /* the service works before it answers: standing still is no stall */
  const void *data;
  size_t data_bytes;
  /* state of the attempts */
  double began_s, deadline_s, pause_s, paused_s; /* paused_s: of all pauses */
  int attempts;
  char cause[320];   /* of the last failure */
  char checksum[12]; /* base64 of the CRC-32C of data */
} iso_s3_job;
/* Before the first attempt; takes the CRC-32C of what is sent. */
void iso_s3_job_begin(iso_s3_job *job, double patience_s);
/* Signs and makes the request once. Failures of our own side only; the response tells the rest, and is to be ended in
 * any case. */
iso_status iso_s3_attempt(iso_s3_job *job, struct iso_http_response *response) ISO_MUST_CHECK;
typedef enum iso_s3_verdict { ISO_S3_DONE, ISO_S3_AGAIN, ISO_S3_OVER } iso_s3_verdict;
/* DONE: a complete success. AGAIN: with the cause in the job. OVER: *status, logged. */
iso_s3_verdict iso_s3_judge(iso_s3_job *job, const struct iso_http_response *response,
                            iso_status *status) ISO_MUST_CHECK;
/* Waits before the next attempt, at least wanted_s. The error when there is no time for one. */
iso_status iso_s3_pause(iso_s3_job *job, double wanted_s) ISO_MUST_CHECK;
/* Attempts until a complete success, which is in `response` (to be ended by the caller in any case). */
iso_status iso_s3_persist(iso_s3_job *job, struct iso_http_response *response) ISO_MUST_CHECK;
/* Attempts that this process has made so far, and those of them that failed: no whole answer, or one that is no answer
 * to what was asked (a service that is overloaded, credentials that do not do). A name that is not there, or taken, is
 * one. */
typedef struct iso_s3_counts {
  int64_t requests, errors;
} iso_s3_counts;
void iso_s3_counts_get(iso_s3_counts *counts);
/* A CRC-32C as S3 writes it: base64. */
void iso_s3_checksum_text(uint32_t crc, char text[9]);

/* ---- s3_write.c: objects that are made ------------------------------------------------------------------ */

/* One object in one request. With `taken` it must be new: another one of that name is left as it is, and *taken says
 * so; one with the same bytes is ours, whose answer was lost. NULL: replaces. */
iso_status iso_s3_put(const char *path, const void *data, size_t bytes, bool *taken) ISO_MUST_CHECK;
/* ISO_OK when there is none any more. */
iso_status iso_s3_delete(const char *path) ISO_MUST_CHECK;
/* The same for many of one bucket, from the last one on, in few requests. */
iso_status iso_s3_delete_all(const char *const *paths, size_t count) ISO_MUST_CHECK;
/* All of an object of at most `most` bytes, malloc'd and NUL-terminated; its CRC-32C is compared if the service has it.
 * `missing`: there is none (ISO_OK then). */
iso_status iso_s3_get(const char *path, size_t most, char **data, size_t *bytes, bool *missing) ISO_MUST_CHECK;
/* One object in parts: it exists when the completion has succeeded, or not at all. */
typedef struct iso_s3_upload iso_s3_upload;
enum { ISO_S3_LEAST_PART = 5 << 20, ISO_S3_MOST_PARTS = 10000 };
iso_status iso_s3_upload_begin(const char *path, iso_s3_upload **out) ISO_MUST_CHECK;
/* The next part; all but the last have at least ISO_S3_LEAST_PART bytes. */
iso_status iso_s3_upload_part(iso_s3_upload *upload, const void *data, size_t bytes) ISO_MUST_CHECK;
/* Ends the handle; aborted when this fails. `taken` as in iso_s3_put. */
iso_status iso_s3_upload_complete(iso_s3_upload **upload, bool *taken) ISO_MUST_CHECK;
void iso_s3_upload_abort(iso_s3_upload **upload);
/* Aborts the uploads below `path` ("s3://bucket/prefix/") that a dead process left; *count of them. */
iso_status iso_s3_uploads_abort(const char *path, int64_t *count) ISO_MUST_CHECK;

/* ---- s3_config.c: where S3 is and who asks ---------------------------------------------------------- */

typedef struct iso_s3_config {
  iso_arena *arena;                            /* holds the strings */
  const char *access_key, *secret_key, *token; /* token: "" if none */
  const char *region;
  const char *endpoint; /* "https://host[:port][/path]", "": Amazon's own */
} iso_s3_config;
/* From the environment and ~/.aws, read anew. CONFIG naming what is missing. */
iso_status iso_s3_config_init(iso_s3_config *config) ISO_MUST_CHECK;
void iso_s3_config_fini(iso_s3_config *config);
/* Where a request goes: the URL without query, and the parts of it that are signed. */
typedef struct iso_s3_place {
  iso_string url, host, path;
} iso_s3_place;
iso_status iso_s3_place_init(iso_s3_place *place, const iso_s3_config *config, const char *bucket,
                             const char *key) ISO_MUST_CHECK;
void iso_s3_place_fini(iso_s3_place *place);
/* Splits "s3://bucket/key"; the key may be "". CONFIG for what is no bucket's name or no key. */
iso_status iso_s3_path_split(const char *path, char bucket[64], const char **key) ISO_MUST_CHECK;

/* ---- s3_sign.c: AWS Signature Version 4 -------------------------------------------------------------- */

typedef struct iso_s3_header {
  const char *name, *value; /* name in lower case */
} iso_s3_header;
typedef struct iso_s3_to_sign {
  const char *method;
  const char *path;             /* encoded */
  const char *query;            /* encoded, sorted by name, "" if none */
  const iso_s3_header *headers; /* sorted by name */
  size_t header_count;
  const char *payload_sha256;
  const char *region;
  const char *time; /* UTC, "20130524T000000Z" */
} iso_s3_to_sign;
/* Appends the value of the Authorization header. MEMORY. */
iso_status iso_s3_sign(const iso_s3_to_sign *request, const char *access_key, const char *secret,
                       iso_string *authorization) ISO_MUST_CHECK;
/* Appends `text` with all but unreserved characters as %XX. */
void iso_s3_encode(iso_string *out, const char *text, size_t length, bool keep_slashes);

/* ---- s3_list.c: what S3 says in XML ------------------------------------------------------------------ */

typedef struct iso_s3_page {
  iso_arena *arena;
  iso_s3_object *objects; /* heap */
  size_t count;
  char *next;       /* how to ask for the page after it */
  bool more;        /* there is one */
  bool url_encoded; /* what the keys were */
  bool complete;
} iso_s3_page;
/* Returns what is wrong with it, or NULL. */
const char *iso_s3_page_init(iso_s3_page *page, iso_arena *arena, const char *text, size_t bytes) ISO_MUST_CHECK;
void iso_s3_page_fini(iso_s3_page *page);
typedef struct iso_s3_error {
  char code[64], message[256], region[64]; /* "" when it does not say */
} iso_s3_error;
void iso_s3_error_read(iso_s3_error *error, const char *text, size_t bytes);
/* Whether it is an ETag that we can use; without its quotes in `out`. */
bool iso_s3_etag(const char *text, size_t length, char out[96]);

/* ---- xml.c ------------------------------------------------------------------------------------------- */

/* Called at the end of each element with its path ("Root/Child") and its text. Returns what is wrong, or NULL. */
typedef const char *iso_xml_leaf(void *context, const char *path, const char *text, size_t length);
/* Returns what is wrong with the document, or NULL. */
const char *iso_xml_walk(const char *text, size_t bytes, iso_xml_leaf *leaf, void *context) ISO_MUST_CHECK;

/* ---- http.c: one HTTP request ------------------------------------------------------------------------- */

typedef struct iso_http_request {
  const char *method; /* GET, HEAD, PUT, POST or DELETE */
  const char *url;
  const char *const *headers; /* "Name: value", NULL at the end */
  char *body;                 /* where the body of a 200 or 206 goes; NULL: to the response's text */
  size_t body_bytes;          /* at most */
  double stall_s;             /* ends when slower than 4 KiB/s for so long */
  double limit_s;             /* ends after that in any case */
  const void *data;           /* what PUT and POST send, borrowed */
  size_t data_bytes;
} iso_http_request;
typedef struct iso_http_response {
  int status;             /* 0: there was none */
  bool complete;          /* all of it came */
  bool too_long;          /* the body has more than body_bytes */
  bool stopped;           /* iso_http_stop */
  bool hopeless;          /* the same request would fail again (a malformed URL, a certificate) */
  size_t body_bytes;      /* in request->body */
  iso_string text;        /* other bodies, up to 16 MiB */
  int64_t content_length; /* -1: not said */
  char etag[128], content_range[96], region[64];
  char checksum[48];    /* CRC-32C as the service has it, base64; "": not said */
  double retry_after_s; /* 0: not said */
  char cause[256];      /* why it is not complete */
} iso_http_response;
/* Fills in the response (zeroed before). Tests replace it. */
extern void (*iso_http_perform)(const iso_http_request *request, iso_http_response *response);
void iso_http_response_fini(iso_http_response *response);
/* While on, requests end at once. */
void iso_http_stop(bool on);
bool iso_http_stopping(void);
/* From now on this thread's requests end when *stop is set, and not by iso_http_stop. NULL: by that again. */
void iso_http_stop_by(atomic_bool *stop);
/* Takes one header line ("Name: value\r\n"). */
void iso_http_header_take(iso_http_response *response, const char *line, size_t bytes);

#endif
