/* SPDX-License-Identifier: Apache-2.0
 *
 * data: from a corpus to batch slots, ahead of the step.
 *
 *   path, glob ─ blobs ─> source ─ corpus ─> blocks dealt to lanes ─ lane ─> tokens ─ packer ─> ring slots ─> step
 *
 * Invariants
 *  1. The batch of a step is a pure function of (config, seed, lane cursors at that step); threads, slots and timing
 *     change nothing.
 *  2. Within a lane-epoch every document of the lane's blocks comes exactly once, whole, in block order.
 *  3. A cursor is that of the last step handed out, never of what was read ahead.
 *  4. No document is dropped or altered silently.
 *
 * Letters: B sequence slots of the global batch (lane b fills slot b), T tokens of a sequence, S sources.
 */
#ifndef ISO_DATA_H
#define ISO_DATA_H

#include "text/text.h"
#include "io/io.h"

typedef struct iso_source_options {
  const char *path;   /* file, folder (all regular files below it, sorted) or glob */
  const char *format; /* "auto" (by names and first bytes) or a name of the table in formats.c */
  double weight;
  const char *separator; /* text: splits documents; "" = the file is one document. The separator itself belongs to no
                            document. */
  bool parse_special;
  bool refuse_empty; /* a file without a document is an error, else a warning */
  bool skip_damaged; /* what is wrong with a file as a whole, or from a place on, is a bad document of its own, and what
                        comes before is kept; else an error. Of a file without a document too. */
  bool text_only;    /* token ids are refused, by name */
  const char *skip_by;            /* what leaves bad documents out, in messages; NULL: data.on_bad; "": nothing does,
                                     and the reader says itself which file has no document */
  const char *field;              /* JSON lines, Parquet: where the text is; NULL or "": "text" */
  const char *token_type;         /* shards without a header: "uint16" or "uint32"; else NULL, "" or "auto" */
  const char *cache;              /* folder of what is made once (iso_cache_folder); NULL or "": the user's */
  const iso_tokenizer *tokenizer; /* token shards: whose ids they hold; kept. NULL: such sources are refused. A corpus
                                     sets it. */
  const char *set_field;          /* what names the field, in messages; NULL or "": the source's field */
} iso_source_options;

typedef struct iso_data_options {
  const iso_source_options *sources;
  size_t source_count;
  int64_t sequence; /* T */
  int64_t batch;    /* B */
  uint64_t seed;
  bool document_mask, pad;
  int64_t block_bytes;
  int slots, threads;
  int prefetch;   /* threads that read text ahead of the lanes; -1: some where a source is remote, else none */
  bool on_demand; /* no data threads: a take reads and tokenises its batch itself */
  bool skip_bad;  /* on_bad: skip */
  int64_t max_bad_documents;
  int64_t validation_every, validation_offset;
  const char *validation_path;     /* "" or file/folder/glob; split by the first source's separator */
  const struct iso_skipped *known; /* bad documents that earlier starts listed: counted, not reported again */
  int64_t known_count;
} iso_data_options;

/* ---- source.c: the documents of one source ------------------------------------------------------- */

/* How many documents, where each is, its stored bytes, and what they mean. Documents are counted from 0 over the files
 * in order. Thread-safe once open. */
typedef struct iso_source iso_source;
typedef struct iso_document {
  int64_t file, offset, length; /* which file of the source, stored bytes in it; length >= 1 */
} iso_document;
typedef struct iso_data_file {
  const char *path;      /* as it was listed */
  iso_blob *blob;        /* what is read: the file, or what was unpacked from it once */
  int64_t bytes;         /* of the blob that count: documents lie within */
  uint32_t crc32c;       /* of the blob's bytes, once the source is open */
  uint32_t index_crc32c; /* Megatron: of its .idx */
  int token_type;        /* of a token shard: see iso_token_bytes */
  bool unpacked;         /* the blob is not the file */
  iso_damage damage;     /* with skip_damaged: what is wrong with it; of an archive or a column its `kept` is `bytes` */
} iso_data_file;
typedef enum iso_content { ISO_CONTENT_TEXT, ISO_CONTENT_TOKENS } iso_content;
iso_status iso_source_open(const iso_source_options *options, iso_source **out) ISO_MUST_CHECK;
void iso_source_close(iso_source **source);
iso_content iso_source_content(const iso_source *source);
const char *iso_source_format(const iso_source *source); /* name in the table of formats */
bool iso_source_remote(const iso_source *source);        /* reads may take long: prefetch */
int64_t iso_source_files(const iso_source *source);
const iso_data_file *iso_source_file(const iso_source *source, int64_t file);
const iso_source_options *iso_source_options_of(const iso_source *source);
int64_t iso_source_documents(const iso_source *source);
iso_document iso_source_document(const iso_source *source, int64_t index);
/* Are the stored bytes of all documents their text, in local files? Then long ones can be read in parts. */
bool iso_source_is_plain(const iso_source *source);
/* Its length alone, without a search for its file. */
int64_t iso_source_length(const iso_source *source, int64_t index);
/* Files with damage, each with a bad document, the last of the file, that stands for what is left out; it has one byte,
 * behind those of the file. *first: number of the first such file, -1. */
int64_t iso_source_damaged(const iso_source *source, int64_t *first);
bool iso_source_is_damage(const iso_source *source, int64_t index);
/* About how many bytes of text a document is, by which blocks are cut and shares are counted: its length, of shards 4
 * bytes a token. */
int64_t iso_source_size(const iso_source *source, int64_t index);
/* Reads stored bytes of a file into `buffer`. MISMATCH when the file is not as it was when the source was opened. */
iso_status iso_source_read(const iso_source *source, int64_t file, int64_t offset, int64_t length,
                           char *buffer) ISO_MUST_CHECK;
/* The same, as bytes that stay until the source is closed (small files: a copy; large ones: a map). */
iso_status iso_source_borrow(iso_source *source, int64_t file, int64_t offset, int64_t length,
                             const char **bytes) ISO_MUST_CHECK;

/* What is wrong with a document; decided by its bytes alone. */
typedef struct iso_bad {
  bool is;
  char cause[160];
  int64_t byte; /* of the file (or what it unpacks to); -1: no single one */
} iso_bad;
/* Stored bytes of document `index` -> its text, in `stored` itself or in `scratch` (overwritten). ISO_OK with bad->is
 * set when it has none; the caller applies data.on_bad. UTF-8 is not checked here but by iso_document_load. */
iso_status iso_source_text(const iso_source *source, int64_t index, const char *stored, size_t length,
                           iso_string *scratch, const char **text, size_t *bytes, iso_bad *bad) ISO_MUST_CHECK;
/* The same of a shard: its ids, checked against the vocabulary, with EOS as the last; `*ids` (malloc'd, grown) is
 * overwritten. */
iso_status iso_source_tokens(const iso_source *source, int64_t index, const char *stored, size_t length, int32_t **ids,
                             size_t *capacity, int64_t *count, iso_bad *bad) ISO_MUST_CHECK;

/* ---- formats.c: the table of formats, format_*.c: one each ----------------------------------------- */

/* One file being indexed. */
typedef struct iso_indexer {
  const iso_source_options *options;
  iso_data_file *file; /* crc32c is of what iso_indexer_next has read, unless the format sets it */
  iso_source *source;  /* where documents go */
  int64_t position;    /* of iso_indexer_next */
  iso_transfer progress;
  struct iso_token_manifest *manifest; /* shards.json of the folder looked at last */
  bool muted;                          /* only progress is logged */
  bool damaged;                        /* a MISMATCH is the file's: it is not what shards.json says */
} iso_indexer;
/* The next `length` bytes of the file, checksummed. */
iso_status iso_indexer_next(iso_indexer *indexer, void *buffer, int64_t length) ISO_MUST_CHECK;
/* Where the stored bytes of a document are. */
typedef struct iso_extent {
  int64_t offset, length; /* ISO_EXTENT_BAD in the offset: it was added as bad */
} iso_extent;
#define ISO_EXTENT_BAD (INT64_C(1) << 62)
/* The source's documents from number `from` on, until the next is added. */
const iso_extent *iso_indexer_added(const iso_indexer *indexer, int64_t from, int64_t *count);
/* Where document `index` and those behind it are, in its file *file, up to document *end. */
const iso_extent *iso_source_run(const iso_source *source, int64_t index, int64_t *file, int64_t *end);
/* Forgets them, and begins the file anew. */
void iso_indexer_restart(iso_indexer *indexer, int64_t from);
/* Another file of the source by its path, among those that hold no documents, or a local one: NULL when it is not
 * there. Close it. */
iso_status iso_indexer_beside(iso_indexer *indexer, const char *path, iso_blob **out) ISO_MUST_CHECK;
/* One document, after those added before; one of no bytes is none. `bad`: the format's `text` will say why. */
iso_status iso_indexer_add(iso_indexer *indexer, int64_t offset, int64_t length, bool bad) ISO_MUST_CHECK;

typedef struct iso_format {
  const char *name; /* in data.sources[].format */
  const char *what; /* in messages */
  iso_content content;
  const char *suffixes[4]; /* names that promise it; NULL: end */
  /* Do a file's first bytes (at most 16) say that it is one? NULL: they say nothing. */
  bool (*probe)(const uint8_t *first, size_t bytes);
  /* Replaces the file's blob by one whose documents can be read in place. NULL: they can be as it is. */
  iso_status (*unpack)(const iso_source_options *options, iso_data_file *file);
  /* Adds the documents of one file. */
  iso_status (*index)(iso_indexer *indexer);
  /* Text: stored bytes -> text; `flagged`: it was added as bad. NULL: they are the text. */
  iso_status (*text)(const iso_source_options *options, const iso_data_file *file, int64_t offset, bool flagged,
                     const char *stored, size_t length, iso_string *scratch, const char **text, size_t *bytes,
                     iso_bad *bad);
} iso_format;
extern const iso_format iso_formats[];
extern const size_t iso_format_count;
/* Is it worth a look whether the file is compressed? Not where a look is a request and the name says what it is. */
bool iso_format_may_be_packed(const char *path);
/* Does a file of the list hold no documents of its own, as indexes and descriptions of token shards? */
bool iso_format_is_companion(const iso_format *format, const char *path);
/* The one format of all files of a source: that of the options, or what names and first bytes say. CONFIG when files
 * differ, UNSUPPORTED by name. */
iso_status iso_format_choose(const iso_source_options *options, const iso_data_file *files, int64_t count,
                             const iso_format **out) ISO_MUST_CHECK;

/* ---- unpack.c: what is read instead of a file ------------------------------------------------------- */

/* Names content made from a blob: a digest of its path, size and version, and of `more`. */
void iso_unpack_key(const iso_blob_info *info, const char *const *more, size_t count, char key[65]);
/* Replaces the file's blob by what `fill` writes, kept in the cache folder under `key`. `damage`: NULL without
 * skip_damaged; what `fill` sets there is kept with it, and becomes the file's. */
iso_status iso_unpack(const iso_source_options *options, iso_data_file *file, const char key[65],
                      iso_status (*fill)(void *context, iso_sink *sink, iso_damage *damage),
                      void *context) ISO_MUST_CHECK;
/* Replaces the blob of a compressed file by what it holds, unpacked once into the cache folder. */
iso_status iso_unpack_archive(const iso_source_options *options, iso_data_file *file) ISO_MUST_CHECK;

/* ---- damaged.c: files that are left out, whole or in part ------------------------------------------------- */

/* The damage that a message of iso_fail tells of, without the file's name and the advice. */
void iso_damage_tell(iso_damage *damage, const char *path, const char *message);
/* As iso_index_file; with skip_damaged what is wrong with the file is kept in it, and the document that stands for it
 * added. *empty: the file has no document, and nothing else is wrong with it. */
iso_status iso_index_damaged(iso_indexer *indexer, const iso_format *format, bool *empty) ISO_MUST_CHECK;
/* Why a source without any sound document has none: FORMAT, with its first damage; ISO_OK when it has one. */
iso_status iso_source_check_sound(const iso_source *source) ISO_MUST_CHECK;

/* ---- index_cache.c ---------------------------------------------------------------------------------- */

/* Adds the documents of the indexer's file, as found before or by the format. */
iso_status iso_index_file(iso_indexer *indexer, const iso_format *format) ISO_MUST_CHECK;

/* ---- format_text.c --------------------------------------------------------------------------------- */

iso_status iso_text_index(iso_indexer *indexer) ISO_MUST_CHECK;

/* ---- jsonl.c: the string in a line of JSON ----------------------------------------------------------- */

typedef struct iso_jsonl_line {
  bool good;
  size_t begin, length; /* good: the string's content, escaped as in the line */
  char cause[160];      /* else: what is wrong, and its byte */
  size_t at;
} iso_jsonl_line;
/* Buffers from line to line. Zero-initialise. */
typedef struct iso_jsonl_scratch {
  struct iso_jsonl_key *keys;
  size_t key_capacity;
  iso_string left, right;
  const char *set_field; /* what names the field, in causes; NULL: the source's field */
} iso_jsonl_scratch;
void iso_jsonl_scratch_fini(iso_jsonl_scratch *scratch);
/* Checks a line (without its line's end) and finds the string of `field`; dots lead into objects. MEMORY only. */
iso_status iso_jsonl_scan(const char *line, size_t length, const char *field, iso_jsonl_scratch *scratch,
                          iso_jsonl_line *out) ISO_MUST_CHECK;
/* The string that escaped content stands for, over what `out` held; false when an escape is none. */
bool iso_jsonl_unescape(const char *raw, size_t length, iso_string *out);

/* ---- format_jsonl.c ---------------------------------------------------------------------------------- */

bool iso_jsonl_probe(const uint8_t *first, size_t bytes);
iso_status iso_jsonl_index(iso_indexer *indexer) ISO_MUST_CHECK;
iso_status iso_jsonl_text(const iso_source_options *options, const iso_data_file *file, int64_t offset, bool flagged,
                          const char *stored, size_t length, iso_string *scratch, const char **text, size_t *bytes,
                          iso_bad *bad) ISO_MUST_CHECK;

/* ---- format_parquet.c --------------------------------------------------------------------------------- */

bool iso_parquet_probe(const uint8_t *first, size_t bytes);
iso_status iso_parquet_unpack(const iso_source_options *options, iso_data_file *file) ISO_MUST_CHECK;
iso_status iso_parquet_index(iso_indexer *indexer) ISO_MUST_CHECK;
iso_status iso_parquet_text(const iso_source_options *options, const iso_data_file *file, int64_t offset, bool flagged,
                            const char *stored, size_t length, iso_string *scratch, const char **text, size_t *bytes,
                            iso_bad *bad) ISO_MUST_CHECK;

/* ---- format_tokens.c: ids, with llm.c's header or none ------------------------------------------------ */

enum { /* 1 to 8 are Megatron's codes */
       ISO_TOKEN_U8 = 1,
       ISO_TOKEN_I8,
       ISO_TOKEN_I16,
       ISO_TOKEN_I32,
       ISO_TOKEN_I64,
       ISO_TOKEN_F64,
       ISO_TOKEN_F32,
       ISO_TOKEN_U16,
       ISO_TOKEN_U32,
       ISO_TOKEN_TYPES
};
int iso_token_bytes(int type);
const char *iso_token_type_name(int type);
int iso_token_type_find(const char *name); /* 0: no such type */
bool iso_tokens_probe(const uint8_t *first, size_t bytes);
/* What the first `held` bytes (at least 12, or the whole file) of a file of `bytes` say: type of its ids and where they
 * begin. `declared`: the type when there is no header, 0: not known. */
iso_status iso_tokens_head(const char *path, const uint8_t *first, size_t held, int64_t bytes, int declared, int *type,
                           int64_t *begin) ISO_MUST_CHECK;
iso_status iso_tokens_index(iso_indexer *indexer) ISO_MUST_CHECK;
/* CONFIG without a tokenizer that has an EOS. */
iso_status iso_tokens_check_tokenizer(const iso_indexer *indexer) ISO_MUST_CHECK;
iso_status iso_tokens_decode(const iso_source_options *options, const iso_data_file *file, int64_t offset,
                             const char *stored, size_t length, int32_t **ids, size_t *capacity, int64_t *count,
                             iso_bad *bad) ISO_MUST_CHECK;

/* ---- format_megatron.c: .bin with .idx ------------------------------------------------------------------ */

typedef struct iso_megatron_counts {
  int token_type;
  int64_t sequences, entries; /* entries: of the document array */
  bool modes;
} iso_megatron_counts;
/* Checks an index's head against the size of its file. */
iso_status iso_megatron_head(const char *path, const uint8_t head[34], int64_t bytes,
                             iso_megatron_counts *out) ISO_MUST_CHECK;
bool iso_megatron_probe(const uint8_t *first, size_t bytes);
iso_status iso_megatron_index(iso_indexer *indexer) ISO_MUST_CHECK;

/* ---- token_manifest.c: shards.json ------------------------------------------------------------------------------ */

typedef struct iso_token_manifest iso_token_manifest;
typedef struct iso_token_manifest_file {
  const char *name;
  int64_t bytes, tokens, index_bytes; /* -1: not said */
  uint32_t crc32c, index_crc32c;
  int token_type;
} iso_token_manifest_file;
/* The entry of the file being indexed, NULL when its folder has no shards.json (a warning says so). MISMATCH when it is
 * another tokenizer's, or does not list the file. */
iso_status iso_token_manifest_find(iso_indexer *indexer, const iso_token_manifest_file **entry) ISO_MUST_CHECK;
/* MISMATCH when the file's size is not what its entry says. */
iso_status iso_token_manifest_size(iso_indexer *indexer, const iso_token_manifest_file *entry) ISO_MUST_CHECK;
/* MISMATCH when the file, now read, is not what its entry says. */
iso_status iso_token_manifest_check(iso_indexer *indexer, const iso_token_manifest_file *entry,
                                    int64_t tokens) ISO_MUST_CHECK;
void iso_token_manifest_close(iso_token_manifest **manifest);

/* ---- corpus.c: sources, their split, blocks and lanes -------------------------------------------- */

typedef struct iso_corpus iso_corpus;
/* Opens and indexes (document bounds only, 16 bytes each). Keeps `tokenizer`; copies `options`. CONFIG when the corpus
 * is too small for B lanes: says how many documents/bytes there are and what would do. */
iso_status iso_corpus_open(const iso_data_options *options, const iso_tokenizer *tokenizer,
                           iso_corpus **out) ISO_MUST_CHECK;
void iso_corpus_close(iso_corpus **corpus);
/* Bytes of a block finally chosen (recorded with the run; of several sources the smallest), documents and bytes of the
 * training and of the validation part. */
typedef struct iso_corpus_info {
  int64_t block_bytes, blocks;
  int64_t train_documents, train_bytes, validation_documents, validation_bytes;
  char digest[65]; /* SHA-256 over base names, contents' CRC-32C, sizes, document counts and block bounds: a changed
                      corpus is refused on resume */
} iso_corpus_info;
void iso_corpus_info_get(const iso_corpus *corpus, iso_corpus_info *info);
/* Stored bytes of document i of the training (or validation) part, in corpus order, borrowed until the corpus is
 * closed. Errors as iso_source_borrow. */
iso_status iso_corpus_document(const iso_corpus *corpus, bool validation, int64_t index, const char **bytes,
                               size_t *length) ISO_MUST_CHECK;

/* Reads every held-out document: FORMAT for the first bad one, with file, document and byte. */
iso_status iso_corpus_check_validation(const iso_corpus *corpus) ISO_MUST_CHECK;

/* For lanes and validation: */
const iso_data_options *iso_corpus_options(const iso_corpus *corpus);
const iso_tokenizer *iso_corpus_tokenizer(const iso_corpus *corpus);
iso_source *iso_corpus_source(const iso_corpus *corpus, int64_t source);
/* Where training document k of a source / validation document v of the corpus is. */
int64_t iso_corpus_train_index(const iso_corpus *corpus, int64_t source, int64_t k);
void iso_corpus_validation_index(const iso_corpus *corpus, int64_t v, iso_source **source, int64_t *document);
/* Blocks of a source that a lane owns, and the training documents [*first, *end) of the one it visits at place `index`
 * of `epoch`. */
int64_t iso_corpus_lane_blocks(const iso_corpus *corpus, int64_t source, int64_t lane);
void iso_corpus_lane_block(const iso_corpus *corpus, int64_t source, int64_t lane, int64_t epoch, int64_t index,
                           int64_t *first, int64_t *end);
/* Source of a lane's draw number `draw` (from 0). */
int64_t iso_corpus_draw(const iso_corpus *corpus, int64_t lane, int64_t draw);

/* ---- document.c: one document to tokens ------------------------------------------------------------ */

/* What names a document in messages. */
typedef struct iso_document_name {
  const char *path;
  int64_t index;       /* in its source */
  int64_t offset;      /* of its first byte in the file */
  const char *skip_by; /* as in iso_source_options */
  const char *in;      /* what bytes are counted in; NULL: the file */
} iso_document_name;
iso_document_name iso_document_name_of(const iso_source *source, int64_t index);
/* Appends file, number and, unless it is -1, the byte of the file. */
void iso_document_name_put(const iso_document_name *name, int64_t byte, iso_string *out);
/* One document's tokens. Zero-initialise, but for `sink` and `crew`; buffers are kept from document to document. */
typedef struct iso_loaded {
  const iso_ids_sink *sink; /* takes the ids of text in blocks, EOS last; NULL: they go to `ids` */
  iso_crew *crew;           /* encodes long texts with this thread; NULL: none */
  int32_t *ids;             /* EOS last */
  size_t capacity;
  int64_t count, text_bytes; /* tokens with EOS; bytes of its text, without EOS */
  bool bad;                  /* it is bad and left out: count is 0 */
  iso_bad why;               /* then: the cause, and the byte of the file */
  iso_string scratch;
} iso_loaded;
void iso_loaded_fini(iso_loaded *loaded);
/* Tokens of document `index` of a source from its stored bytes. Bad: with `skip`, loaded->bad is set and a warning is
 * logged when `warn`; else FORMAT with file, document and byte. */
iso_status iso_document_load(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored,
                             iso_encoder *encoder, int32_t eos, bool skip, bool warn) ISO_MUST_CHECK;
/* The same of a document of a plain source, read in parts. `loaded` has a sink and a crew. When it is bad, the sink has
 * taken some ids, which the caller takes back. For texts that the tokenizer cannot refuse (iso_encoder_refuses). */
iso_status iso_document_stream(iso_loaded *loaded, const iso_source *source, int64_t index, iso_encoder *encoder,
                               int32_t eos, bool skip, bool warn) ISO_MUST_CHECK;
/* The same for a text given as it is. */
iso_status iso_document_encode(iso_loaded *loaded, iso_encoder *encoder, const char *text, size_t length,
                               bool parse_special, int32_t eos, const iso_document_name *name, bool skip,
                               bool warn) ISO_MUST_CHECK;
/* The text of document `index` of a source of text, in `stored` or in loaded->scratch, checked to be UTF-8. Bad: as
 * iso_document_load says. */
iso_status iso_document_text(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored, bool skip,
                             bool warn, const char **text, size_t *bytes) ISO_MUST_CHECK;
/* Says of a document that was found bad, by loaded->why: FORMAT, or with `skip` a warning. */
iso_status iso_document_tell(const iso_source *source, int64_t index, const iso_bad *why, bool skip) ISO_MUST_CHECK;
/* Is it good? FORMAT as above when it is not. Text is not tokenised: whether the vocabulary has it is not asked. */
iso_status iso_document_check(iso_loaded *loaded, const iso_source *source, int64_t index,
                              const char *stored) ISO_MUST_CHECK;

/* ---- scan.c: the documents of a source, once, in order ---------------------------------------------- */

typedef struct iso_scan {
  const iso_source *source;
  int64_t next, end;           /* documents */
  int64_t run_end, run_offset; /* those read: up to this one, from this byte of their file */
  int64_t file;
  const iso_extent *extent; /* of the next one, in the run */
  bool is_left;             /* the run is one document, which was not read */
  bool leave_long;          /* documents that would be read alone are not read: *stored is NULL */
  char *bytes;
  size_t capacity;
} iso_scan;
/* Documents [first, end). */
void iso_scan_init(iso_scan *scan, const iso_source *source, int64_t first, int64_t end);
/* The same of a scan that was initialised; its memory is kept. */
void iso_scan_set(iso_scan *scan, int64_t first, int64_t end);
void iso_scan_fini(iso_scan *scan);
/* The next document and its stored bytes, which stay until the next call; *index is -1 at the end. */
iso_status iso_scan_next(iso_scan *scan, int64_t *index, iso_document *place, const char **stored) ISO_MUST_CHECK;

/* ---- build.c: token shards --------------------------------------------------------------------------- */

typedef struct iso_shards_report {
  int64_t shards, made, reused;
  int64_t bytes_reused;                  /* of `bytes`, in shards that were there */
  int64_t documents, tokens, bytes, bad; /* so far; bytes of stored text */
  int64_t total_bytes;                   /* of all there is to do */
} iso_shards_report;
typedef struct iso_shards_options {
  const iso_source *source; /* of text */
  const iso_tokenizer *tokenizer;
  const char *folder; /* made if need be */
  int threads;
  int64_t shard_bytes; /* of stored text; at least one document; 0: by the size of the whole */
  bool skip_bad;
  int64_t max_bad;
  void (*progress)(void *context, const iso_shards_report *report); /* may be NULL; one call at a time */
  void *context;
} iso_shards_options;
/* Writes what is not there yet. The same options give the same files for any number of threads and interruptions.
 * BUSY, MISMATCH (the folder is another build's), FORMAT (bad documents), IO, SPACE. */
iso_status iso_shards_build(const iso_shards_options *options, iso_shards_report *report) ISO_MUST_CHECK;

/* ---- survey.c: what a source holds --------------------------------------------------------------------- */

enum {
  ISO_ANOMALY_BOM,
  ISO_ANOMALY_ZERO_WIDTH,
  ISO_ANOMALY_BIDI,
  ISO_ANOMALY_REPLACEMENT,
  ISO_ANOMALY_CONTROL,
  ISO_ANOMALY_PRIVATE,
  ISO_ANOMALY_NONCHARACTER,
  ISO_ANOMALY_SPACE,
  ISO_ANOMALY_COMBINING,
  ISO_ANOMALIES
};
enum {
  ISO_SUSPECT_SHORT,
  ISO_SUSPECT_LINE,
  ISO_SUSPECT_REPEAT,
  ISO_SUSPECT_SYMBOLS,
  ISO_SUSPECT_DAMAGED,
  ISO_SUSPECT_DENSE,
  ISO_SUSPECTS
};
const char *iso_anomaly_name(int anomaly);
const char *iso_suspect_name(int suspect);
bool iso_is_full_width(uint32_t code);
bool iso_is_emoji(uint32_t code); /* blocks of pictographs, not every emoji */

typedef struct iso_finding {
  int64_t times, documents, first; /* how often, in how many, the first of them; -1: none */
} iso_finding;
/* What is wrong with some bad documents; causes that differ in numbers only are one. */
typedef struct iso_bad_cause {
  int64_t documents, first; /* how many; the first of them */
  int64_t byte;             /* of its file; -1: no single one */
  char cause[160];          /* of the first */
} iso_bad_cause;
enum { ISO_BAD_CAUSES = 3 };
typedef struct iso_survey {
  int64_t documents, bytes, characters; /* of good documents, as text */
  int64_t bad, bad_causes;              /* documents that are no text; how many causes */
  iso_bad_cause causes[ISO_BAD_CAUSES]; /* those met first, in that order */
  int64_t longest, longest_bytes;
  int64_t duplicates, first_duplicate, duplicate_of; /* documents whose text came before */
  int64_t full_width, emoji;
  iso_finding anomalies[ISO_ANOMALIES], suspects[ISO_SUSPECTS];
  /* with a tokenizer: */
  int64_t tokens, vocabulary; /* EOS included */
  int64_t fragments;          /* tokens that are no whole characters */
  int64_t *token_counts;      /* [vocabulary] */
  uint8_t *is_fragment;       /* [vocabulary] */
  iso_finding changed;        /* documents that decode to another text */
} iso_survey;
/* Reads all documents. `tokenizer` may be NULL for text. Release with iso_survey_fini; nothing to release on failure.
 */
iso_status iso_survey_take(const iso_source *source, const iso_tokenizer *tokenizer, int threads,
                           iso_survey *survey) ISO_MUST_CHECK;
/* Counts of two surveys with one vocabulary; the lower number stands for what was found first. Duplicates and causes
 * are not added: each survey knows only its own. */
void iso_survey_add(iso_survey *to, const iso_survey *from);
void iso_survey_fini(iso_survey *survey);

/* ---- packer.c: documents to sequences ------------------------------------------------------------ */

/* Where one sequence's arrays are: T entries each. */
typedef struct iso_sequence {
  int32_t *tokens, *labels, *positions, *segments; /* labels: target of each position, -100 = not scored */
} iso_sequence;

/* A stream of documents' tokens. Between calls it stands at a token (position < count), or at its end. */
typedef struct iso_feed {
  const int32_t *ids;      /* the current document's tokens, EOS last */
  int64_t count, position; /* position == count: `next` is due */
  /* Loads the next document (count >= 1, position may be inside it), or sets *end, again and again. */
  iso_status (*next)(void *context, struct iso_feed *feed, bool *end);
  void *context;
} iso_feed;
/* Writes the next T positions and moves T tokens on. *valid: positions that have a next token (T but at the stream's
 * end); the rest is `fill`, not scored. *scored: labels other than -100. */
iso_status iso_feed_pack(iso_feed *feed, int64_t sequence_tokens, bool document_mask, int32_t fill, iso_sequence out,
                         int64_t *valid, int64_t *scored) ISO_MUST_CHECK;

/* The same with one document a sequence (data.pad): the next tokens of the current one, then `fill`, not scored. */
iso_status iso_feed_pad(iso_feed *feed, int64_t sequence_tokens, bool document_mask, int32_t fill, iso_sequence out,
                        int64_t *scored) ISO_MUST_CHECK;

/* ---- walk.c: where a lane goes --------------------------------------------------------------------- */

typedef struct iso_data_cursor { /* of one lane and source */
  int64_t epoch, block, offset;  /* offset: tokens of the block already passed */
} iso_data_cursor;
/* Cursors of a batch: lane-major, S of each lane in source order, then with S > 1 the lane's mixture state: epoch =
 * draws so far, block = current source, offset = 0. All zero is the beginning. B * (S + (S > 1)). */
size_t iso_data_cursor_count(const iso_data_options *options);

/* A place on a lane's way; knows nothing of text. */
typedef struct iso_walk {
  const iso_corpus *corpus;
  int64_t lane, sources;
  iso_data_cursor *cursors; /* [sources]: of the current source its block, of the others the next one */
  int64_t draws, source;    /* source: current one, once draws > 0 */
  int64_t next, end;        /* of the current block: training documents still to come */
} iso_walk;
iso_status iso_walk_init(iso_walk *walk, const iso_corpus *corpus, int64_t lane) ISO_MUST_CHECK; /* at the beginning */
/* At the start of the block that the cursors name. MISMATCH when they cannot be of this corpus. */
iso_status iso_walk_set(iso_walk *walk, const iso_data_cursor *cursors) ISO_MUST_CHECK;
iso_status iso_walk_copy(iso_walk *to, const iso_walk *from) ISO_MUST_CHECK; /* initialises `to` */
void iso_walk_fini(iso_walk *walk);
/* Closes the current block, draws a source and opens its next block. */
void iso_walk_next_block(iso_walk *walk);
/* Where training document k of the current source is. */
iso_document iso_walk_document(const iso_walk *walk, int64_t k);
/* Documents read at once. */
typedef struct iso_span {
  int64_t draw, source, file, offset, bytes;
  int64_t first, end; /* training documents */
} iso_span;
/* Training document k of the current block, and as many after it as lie in the same file and within `limit` bytes. */
void iso_walk_span(const iso_walk *walk, int64_t k, int64_t limit, iso_span *span);

/* Bytes of text (as iso_source_size has them) of the blocks that lanes have begun by the cursors of a batch, of each
 * source: what the mixture drew. */
iso_status iso_walk_drawn(const iso_corpus *corpus, const iso_data_cursor *cursors, int64_t *bytes) ISO_MUST_CHECK;

/* ---- threads.c: data threads beside the compute team ------------------------------------------------ */

/* Remembers the cores of the calling thread: data threads may use them all. To be called before a team pins threads;
 * else data threads stay where the thread that starts them is. */
void iso_data_threads_place(void);
/* What a thread started with iso_thread_start begins with. */
void iso_data_thread_settle(void);
/* Only lets this thread run on every core that the process was given (threads that mostly wait for storage). */
void iso_data_thread_spread(void);

/* ---- prefetch.c: text of slow sources, ahead of the lanes -------------------------------------------- */

typedef struct iso_prefetch iso_prefetch;
/* `threads` fetch threads, once iso_prefetch_run starts them; before that, each lane that reads by it begins. */
iso_status iso_prefetch_start(const iso_corpus *corpus, int threads, iso_prefetch **out) ISO_MUST_CHECK;
iso_status iso_prefetch_begin(iso_prefetch *prefetch, const iso_walk *walk) ISO_MUST_CHECK;
iso_status iso_prefetch_run(iso_prefetch *prefetch) ISO_MUST_CHECK;
/* Wakes whoever waits in iso_prefetch_take, which returns ISO_STOPPED from then on. NULL: nothing. */
void iso_prefetch_interrupt(iso_prefetch *prefetch);
void iso_prefetch_stop(iso_prefetch **prefetch);
/* The lane's next span; waits for it. `bytes`: malloc'd, the caller's; NULL: it could not be read. */
iso_status iso_prefetch_take(iso_prefetch *prefetch, int64_t lane, iso_span *span, char **bytes) ISO_MUST_CHECK;
/* Bytes of text ahead of each of `lanes` lanes; beyond it, one span of at most half of it, or one document. */
int64_t iso_prefetch_limit(int64_t lanes);
int64_t iso_prefetch_most_bytes(iso_prefetch *prefetch); /* ahead at any time so far, over all lanes */

/* ---- whole.c: small files, read once and held --------------------------------------------------------- */

typedef struct iso_whole iso_whole;
/* Of the corpus's local sources those that fit into `limit` bytes; with `tokens` those of their documents too, as far
 * as they fit. Keeps `corpus`. */
iso_status iso_whole_create(const iso_corpus *corpus, int64_t limit, bool tokens, iso_whole **whole) ISO_MUST_CHECK;
void iso_whole_destroy(iso_whole **whole);
/* The file's bytes, which it keeps; NULL: it is not held. Errors of reading, and MISMATCH when the file has changed,
 * which is looked at once a round. For several threads. */
iso_status iso_whole_text(iso_whole *whole, int64_t source, int64_t file, const char **text) ISO_MUST_CHECK;
void iso_whole_next_round(iso_whole *whole);
/* Tokens of a document (its number in the source), EOS last. */
typedef struct iso_whole_ids {
  int64_t count;
  int32_t ids[];
} iso_whole_ids;
/* NULL: they are not held. Kept ones stay until the end. For several threads. */
const iso_whole_ids *iso_whole_ids_get(const iso_whole *whole, int64_t source, int64_t document);
void iso_whole_ids_keep(iso_whole *whole, int64_t source, int64_t document, const int32_t *ids, int64_t count);
/* Bytes of what is held so far. */
size_t iso_whole_bytes(const iso_whole *whole);

/* ---- lane.c: one lane's endless stream ------------------------------------------------------------ */

/* Text that a lane reads at once; a longer document alone. */
#define ISO_LANE_TEXT_BYTES ((size_t)64 << 10)

/* A bad document that is left out. */
typedef struct iso_skipped {
  int64_t lane, source, document; /* document: in its source */
  int64_t byte;                   /* of its file */
  const char *file;               /* the source's */
  char cause[160];
} iso_skipped;

typedef struct iso_lane iso_lane;
/* Keeps `corpus`. `cursors`: this lane's entries, NULL = the beginning. MISMATCH when they cannot be of this corpus. */
iso_status iso_lane_create(const iso_corpus *corpus, int64_t lane, const iso_data_cursor *cursors,
                           iso_lane **out) ISO_MUST_CHECK;
void iso_lane_destroy(iso_lane **lane);
/* Reads by the prefetch from now on; before the first fill. */
iso_status iso_lane_read_ahead(iso_lane *lane, iso_prefetch *prefetch) ISO_MUST_CHECK;
/* Small files are had from there from now on; before the first fill. Keeps it. */
void iso_lane_share(iso_lane *lane, iso_whole *whole);
/* From now on adds the seconds that reading takes to *read_s, which it keeps. */
void iso_lane_time_reads(iso_lane *lane, double *read_s);
/* A bad document that was reported before: counted, not reported again. */
iso_status iso_lane_know(iso_lane *lane, int64_t source, int64_t document) ISO_MUST_CHECK;
/* Is called with each good document that the lane loads, in order, with its stored bytes. */
typedef struct iso_lane_observer {
  iso_status (*seen)(void *context, int64_t source, int64_t document, const char *stored, const iso_loaded *loaded);
  void *context;
} iso_lane_observer;
void iso_lane_observe(iso_lane *lane, iso_lane_observer observer);
/* What a lane is doing now, for other threads to look at; *source: in which source. */
typedef enum iso_lane_stage { ISO_LANE_IDLE, ISO_LANE_READ, ISO_LANE_TOKENIZE, ISO_LANE_PACK } iso_lane_stage;
iso_lane_stage iso_lane_stage_get(const iso_lane *lane, int64_t *source);
/* The next sequence. `cursors`: this lane's entries after it. `bad`: distinct bad documents this lane has met so far,
 * known ones included. */
iso_status iso_lane_fill(iso_lane *lane, iso_encoder *encoder, iso_sequence out, int64_t *scored,
                         iso_data_cursor *cursors, int64_t *bad) ISO_MUST_CHECK;
/* Bad documents first met in the last fill; until the next one. */
int64_t iso_lane_skipped(const iso_lane *lane, const iso_skipped **skipped);
/* Bytes of text and tokens that it holds. */
size_t iso_lane_bytes(const iso_lane *lane);

/* ---- trace.c: which bytes a batch held --------------------------------------------------------------- */

/* A part of one document in one sequence. */
typedef struct iso_trace_piece {
  int64_t source, document; /* document: in its source */
  int64_t first, end, of;   /* tokens [first, end) of its `of` tokens; the last one is EOS */
  int64_t byte, byte_end;   /* of its text; -1: not known, since the tokenizer rewrites this text */
} iso_trace_piece;
typedef struct iso_trace iso_trace;
/* From the batch after `cursors` on (NULL: from the first). Keeps `corpus`. */
iso_status iso_trace_open(const iso_corpus *corpus, const iso_data_cursor *cursors, iso_trace **out) ISO_MUST_CHECK;
void iso_trace_close(iso_trace **trace);
/* The next sequence of one lane; `pieces` until the next call. */
iso_status iso_trace_next(iso_trace *trace, int64_t lane, const iso_trace_piece **pieces,
                          int64_t *count) ISO_MUST_CHECK;

/* ---- held.c: stored bytes of held-out documents -------------------------------------------------------- */

typedef struct iso_held iso_held;
iso_status iso_held_open(const iso_corpus *corpus, iso_held **out) ISO_MUST_CHECK; /* keeps `corpus` */
void iso_held_close(iso_held **held);
/* Stored bytes of validation document v, until the next call; quick when v goes up by one each time. */
iso_status iso_held_get(iso_held *held, int64_t v, iso_source **source, int64_t *document,
                        const char **stored) ISO_MUST_CHECK;

/* ---- validation.c: held-out text in order ---------------------------------------------------------- */

/* Validation text in order as windows of T: call until `*valid` is 0. `valid` counts the real positions of the window
 * (the last one may be short: its rest is filled with EOS, not scored). */
typedef struct iso_validation iso_validation;
/* Bad documents are warned of, but not those before number *told, which earlier ones have read; kept, and raised. */
iso_status iso_validation_open(const iso_corpus *corpus, int64_t max_bytes /* 0: all */, int64_t *told,
                               iso_validation **out) ISO_MUST_CHECK;
/* The same over one text given whole (`name` for messages and text borrowed until closed): documents are its parts by
 * `separator`. */
iso_status iso_validation_open_text(const iso_tokenizer *tokenizer, const char *name, const char *text, size_t length,
                                    const char *separator, int64_t sequence, bool document_mask, bool parse_special,
                                    iso_validation **out) ISO_MUST_CHECK;
/* The same over documents [first, end) of a source, which is kept. A bad one is FORMAT. */
iso_status iso_validation_open_source(const iso_tokenizer *tokenizer, const iso_source *source, int64_t first,
                                      int64_t end, int64_t sequence, bool document_mask,
                                      iso_validation **out) ISO_MUST_CHECK;
void iso_validation_close(iso_validation **validation);
iso_status iso_validation_next(iso_validation *validation, iso_sequence sequence, int64_t *valid) ISO_MUST_CHECK;
/* So far: bytes of documents, tokens (EOS included), tokens that nothing predicts (each document's first under the
 * mask; the very first without). */
void iso_validation_totals(const iso_validation *validation, int64_t *bytes, int64_t *tokens, int64_t *unpredicted);

/* ---- ring.c: batch slots ---------------------------------------------------------------------------- */

typedef struct iso_slot {
  int64_t step;
  int32_t *tokens, *labels, *positions, *segments; /* [B*T] each, row b = lane b */
  int64_t *scored;                                 /* [B]: scored positions of each sequence */
  iso_data_cursor *cursors;                        /* [iso_data_cursor_count]: after this step */
  int64_t bad_documents;                           /* distinct documents left out so far (on_bad: skip) */
  iso_skipped *skipped;                            /* those first met in this step, by lane */
  int64_t skipped_count;
} iso_slot;

typedef struct iso_ring iso_ring;
/* What the ring will hold, for the memory plan. A document longer than ISO_LANE_TEXT_BYTES comes on top. */
typedef struct iso_ring_plan {
  size_t slots;    /* the batches */
  size_t lanes;    /* text and tokens of one document a lane */
  size_t prefetch; /* text ahead of the lanes */
} iso_ring_plan;
/* `remote`: a source is, as far as prefetch: -1 asks. */
void iso_ring_plan_get(const iso_data_options *options, bool remote, iso_ring_plan *plan);
/* How many slots a run has: options->slots, or more where they are small (up to 64, and 512 KiB in all), since short
 * steps need more of them. The others take options->slots as it is. */
int iso_ring_slots(const iso_data_options *options);
/* Memory of the slots: bytes per slot * slots. */
size_t iso_ring_bytes(const iso_data_options *options);
/* Starts data threads; batches from `first_step` on, with lanes at `cursors` (NULL: the beginning). `options` may
 * differ from the corpus's in slots, threads, prefetch, on_demand and known only. */
iso_status iso_ring_start(const iso_corpus *corpus, const iso_data_options *options, int64_t first_step,
                          const iso_data_cursor *cursors, iso_ring **out) ISO_MUST_CHECK;
void iso_ring_stop(iso_ring **ring);
/* Next slot in step order; blocks until it is filled. wait_s: seconds that it took. An error met by a data thread is
 * returned here, at its step (logged once by the thread that met it; iso_ring_error has the line). Take, release and
 * iso_ring_waits_get are for one thread. */
iso_status iso_ring_take(iso_ring *ring, iso_slot **slot, double *wait_s) ISO_MUST_CHECK;
void iso_ring_release(iso_ring *ring, iso_slot *slot);
/* Blocks until `slots` slots are filled, the step after them cannot be had, or most_s seconds have passed. */
void iso_ring_settle(iso_ring *ring, int slots, double most_s);
/* Data threads rest, once they have done what they are at, until it is called again with `false`; no take meanwhile. */
void iso_ring_pause(iso_ring *ring, bool on);
/* Slots filled and waiting now. */
int iso_ring_depth(const iso_ring *ring);
/* The message of the error that iso_ring_take returned; "" if none. */
const char *iso_ring_error(const iso_ring *ring);
/* What the ring was doing when takes had to wait. A stage is "read", "tokenize", "pack", or "schedule": the data thread
 * had not begun, it waited for a core. A source is its path. "" before the first dry take; never behind it. */
typedef struct iso_ring_waits {
  int64_t takes, dry;                   /* takes in all; starved ones: takes that found no filled slot */
  double wait_s;                        /* seconds that takes took, in all */
  double last_wait_s;                   /* of the last starved one */
  const char *last_stage, *last_source; /* in which most of it passed */
  double longest_wait_s;                /* the same of the longest one */
  const char *stage, *source;
} iso_ring_waits;
void iso_ring_waits_get(const iso_ring *ring, iso_ring_waits *waits);
/* Seconds of processor time that data threads (not those of the prefetch) have taken so far. */
double iso_ring_cpu_s(const iso_ring *ring);
/* Bytes of text and tokens of all lanes and of the prefetch at its fullest; when the ring is at rest (tests). */
size_t iso_ring_held(const iso_ring *ring);

#endif
