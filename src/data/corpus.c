/* SPDX-License-Identifier: Apache-2.0
 *
 * corpus: the sources of a run, their training and validation parts, their blocks, and whose the blocks are.
 *
 * Of each source, documents i with i mod every = offset are validation (or files of their own are); the rest is cut, in
 * order, into blocks of whole documents. A keyed permutation of a source's blocks is dealt round robin to the B lanes,
 * once for the run's life; within a lane another keyed permutation, new in each of the lane's epochs, orders them. Both
 * are computed where needed: nothing is shuffled in memory.
 *
 * Invariants
 *  1. Every document is in exactly one of: one block of its source, the validation part.
 *  2. Every block belongs to exactly one lane; every lane owns at least one block of every source.
 *  3. In each lane-epoch of a source, each of the lane's blocks has exactly one place.
 *  4. Blocks depend on the corpus, block_bytes, B and the split; dealing and order on the seed too; on nothing else.
 *
 * It does not read text beyond the sources' own indexing.
 */
#include "data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_BITS   48 /* of a document's place in its source */
#define LANE_BLOCKS  16 /* blocks that each lane should have, for the shuffle to be one */
#define MAX_BATCH    (1 << 20)
#define MAX_SEQUENCE (1 << 24)
#define FEW_BLOCKS   4096 /* 16 KiB, 2 ms */

typedef struct part { /* one source's training part */
  iso_source *source;
  int64_t documents, bytes;
  int64_t block_bytes, blocks;
  int64_t *block_first; /* [blocks + 1]: training documents */
  uint32_t *dealt;      /* [blocks]: in the order in which they are dealt; NULL: there are many, it is computed */
  double chance_up_to;  /* of the mixture: cumulated */
} part;

struct iso_corpus {
  iso_data_options options; /* strings and sources in the arena */
  const iso_tokenizer *tokenizer;
  iso_arena *arena;
  part *parts;
  size_t opened;          /* parts whose source is open */
  iso_source *validation; /* of validation_path, or NULL */
  int64_t *held_out;      /* of several sources: source and place in it of each held-out document; NULL */
  iso_corpus_info info;
};

static iso_status check_options(const iso_data_options *o) {
  if (o->source_count == 0) return iso_fail(ISO_ERR_CONFIG, "data.sources is empty; give at least one source");
  if (o->sequence < 1 || o->sequence > MAX_SEQUENCE)
    return iso_fail(ISO_ERR_CONFIG, "data.sequence is %lld; it must be 1 to %d", (long long)o->sequence, MAX_SEQUENCE);
  if (o->batch < 1 || o->batch > MAX_BATCH)
    return iso_fail(ISO_ERR_CONFIG, "batch.sequences is %lld; it must be 1 to %d", (long long)o->batch, MAX_BATCH);
  if (o->block_bytes < 1)
    return iso_fail(ISO_ERR_CONFIG, "data.block_bytes is %lld; it must be positive", (long long)o->block_bytes);
  if (o->max_bad_documents < 0)
    return iso_fail(ISO_ERR_CONFIG, "data.max_bad_documents is %lld; it cannot be negative",
                    (long long)o->max_bad_documents);
  int64_t every = o->validation_every, offset = o->validation_offset;
  if (every < 0 || every == 1)
    return iso_fail(ISO_ERR_CONFIG, "data.validation.every is %lld; it must be 0 (none) or at least 2",
                    (long long)every);
  if (every > 0 && (offset < 0 || offset >= every))
    return iso_fail(ISO_ERR_CONFIG, "data.validation.offset is %lld; with every = %lld it must be 0 to %lld",
                    (long long)offset, (long long)every, (long long)every - 1);
  if (every > 0 && o->validation_path && *o->validation_path)
    return iso_fail(ISO_ERR_CONFIG, "data.validation has both every and path; give one of them");
  for (size_t s = 0; s < o->source_count; s++)
    if (!(o->sources[s].weight > 0) || isinf(o->sources[s].weight))
      return iso_fail(ISO_ERR_CONFIG, "data.sources[%zu].weight is %g; it must be positive", s, o->sources[s].weight);
  return ISO_OK;
}

/* ---- the split ---- */

static int64_t validation_documents(const iso_data_options *o, int64_t documents) {
  if (o->validation_every == 0 || documents <= o->validation_offset) return 0;
  return (documents - o->validation_offset - 1) / o->validation_every + 1;
}

int64_t iso_corpus_train_index(const iso_corpus *corpus, int64_t source, int64_t k) {
  (void)source;
  int64_t every = corpus->options.validation_every;
  if (every == 0) return k;
  int64_t place = k % (every - 1); /* among the every - 1 training documents of a round */
  return k / (every - 1) * every + place + (place >= corpus->options.validation_offset);
}

void iso_corpus_validation_index(const iso_corpus *corpus, int64_t v, iso_source **source, int64_t *document) {
  if (corpus->validation) {
    *source = corpus->validation;
    *document = v;
    return;
  }
  const int64_t s = corpus->held_out ? corpus->held_out[v] >> PLACE_BITS : 0;
  const int64_t place = corpus->held_out ? corpus->held_out[v] & (((int64_t)1 << PLACE_BITS) - 1) : v;
  *source = corpus->parts[s].source;
  *document = place * corpus->options.validation_every + corpus->options.validation_offset;
}

/* Held-out documents of several sources take turns, each source by its share, so that the first ones, which an
 * evaluation may be limited to, are of all. */
static iso_status mix_held_out(iso_corpus *corpus) {
  const size_t sources = corpus->options.source_count;
  const int64_t all = corpus->info.validation_documents;
  if (sources < 2 || all == 0) return ISO_OK;
  int64_t *here = iso_arena_alloc(corpus->arena, sources * sizeof *here);
  int64_t *next = iso_arena_alloc(corpus->arena, sources * sizeof *next);
  corpus->held_out = iso_arena_alloc(corpus->arena, (size_t)all * sizeof *corpus->held_out);
  if (!here || !next || !corpus->held_out)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for the held-out documents");
  for (size_t s = 0; s < sources; s++) {
    here[s] = validation_documents(&corpus->options, iso_source_documents(corpus->parts[s].source));
    next[s] = 0;
  }
  for (int64_t v = 0; v < all; v++) {
    size_t least = sources;
    for (size_t s = 0; s < sources; s++) /* the one whose next document's middle lies first */
      if (next[s] < here[s] && (least == sources || (2 * (double)next[s] + 1) / (double)here[s] <
                                                        (2 * (double)next[least] + 1) / (double)here[least]))
        least = s;
    corpus->held_out[v] = (int64_t)least << PLACE_BITS | next[least]++;
  }
  return ISO_OK;
}

static int64_t train_length(const iso_corpus *corpus, int64_t source, int64_t k) {
  return iso_source_size(corpus->parts[source].source, iso_corpus_train_index(corpus, source, k));
}

/* ---- blocks ---- */

/* Cuts into blocks of at most `limit` bytes, a longer document alone; writes their first documents when `first`. */
static int64_t cut(const int64_t *lengths, int64_t documents, int64_t limit, int64_t *first) {
  int64_t blocks = 0, used = 0;
  for (int64_t k = 0; k < documents; k++) {
    if (k == 0 || lengths[k] > limit - used) {
      if (first) first[blocks] = k;
      blocks++;
      used = 0;
    }
    used = used > limit - lengths[k] ? limit : used + lengths[k];
  }
  if (first) first[blocks] = documents;
  return blocks;
}

static iso_status too_small(const iso_corpus *corpus, const part *p) {
  const char *path = iso_source_options_of(p->source)->path;
  const char *separator = iso_source_options_of(p->source)->separator;
  long long lanes = (long long)corpus->options.batch;
  if (p->documents == 0 && iso_source_documents(p->source) == 0)
    return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" holds no text: %lld file%s without a document", path,
                    (long long)iso_source_files(p->source), iso_plural(iso_source_files(p->source)));
  if (p->documents == 0)
    return iso_fail(ISO_ERR_CONFIG,
                    "data: corpus too small: all %lld documents of \"%s\" are held out by data.validation%s",
                    (long long)iso_source_documents(p->source), path,
                    *separator ? "; give more text" : "; set a separator that splits its files into documents");
  return iso_fail(ISO_ERR_CONFIG,
                  "data: corpus too small: \"%s\" has %lld training documents (%lld bytes), and each of the %lld lanes "
                  "needs one; give at least %lld documents%s, or set batch.sequences to %lld or less",
                  path, (long long)p->documents, (long long)p->bytes, lanes, lanes,
                  *separator ? "" : " (a separator splits files into documents)",
                  (long long)(p->documents > 1 ? p->documents : 1));
}

static iso_status cut_part(iso_corpus *corpus, int64_t s) {
  part *p = &corpus->parts[s];
  int64_t lanes = corpus->options.batch;
  ISO_TRY(iso_source_check_sound(p->source));
  int64_t all = iso_source_documents(p->source);
  p->documents = all - validation_documents(&corpus->options, all);
  int64_t *lengths = malloc((size_t)(p->documents + 1) * sizeof *lengths);
  if (!lengths)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory to cut %lld documents into blocks", (long long)p->documents);
  for (int64_t k = 0; k < p->documents; k++) p->bytes += lengths[k] = train_length(corpus, s, k);
  iso_status status = ISO_OK;
  if (p->documents < lanes) {
    status = too_small(corpus, p);
  } else {
    p->block_bytes = corpus->options.block_bytes;
    while ((p->blocks = cut(lengths, p->documents, p->block_bytes, NULL)) < LANE_BLOCKS * lanes &&
           p->blocks < p->documents && p->block_bytes > 1)
      p->block_bytes /= 2;
    p->block_first = malloc((size_t)(p->blocks + 1) * sizeof *p->block_first);
    if (p->block_first)
      cut(lengths, p->documents, p->block_bytes, p->block_first);
    else
      status = iso_fail(ISO_ERR_MEMORY, "data: no memory for %lld blocks", (long long)p->blocks);
  }
  free(lengths);
  return status;
}

/* ---- lanes ---- */

/* 64 bits that name one permutation. */
static uint64_t permutation_key(const iso_corpus *corpus, int64_t source, uint64_t lane, uint64_t epoch) {
  uint32_t bits[4];
  iso_rng(corpus->options.seed, ISO_RNG_SHUFFLE, epoch, (uint64_t)source << 32 | lane, bits);
  return (uint64_t)bits[0] << 32 | bits[1];
}

#define DEAL UINT32_MAX /* in the place of a lane: the permutation that deals blocks */

int64_t iso_corpus_lane_blocks(const iso_corpus *corpus, int64_t source, int64_t lane) {
  int64_t lanes = corpus->options.batch;
  return (corpus->parts[source].blocks - lane + lanes - 1) / lanes;
}

static uint64_t deal(const iso_corpus *corpus, int64_t source, uint64_t place) {
  return iso_rng_permute(corpus->options.seed, permutation_key(corpus, source, DEAL, 0),
                         (uint64_t)corpus->parts[source].blocks, place);
}

/* So that the small blocks of a small corpus do not cost more to find than to tokenise. Without it all is the same. */
static void deal_few(iso_corpus *corpus) {
  for (size_t s = 0; s < corpus->options.source_count; s++) {
    part *p = &corpus->parts[s];
    p->dealt = p->blocks <= FEW_BLOCKS ? malloc((size_t)p->blocks * sizeof *p->dealt) : NULL;
    for (int64_t i = 0; p->dealt && i < p->blocks; i++) p->dealt[i] = (uint32_t)deal(corpus, (int64_t)s, (uint64_t)i);
  }
}

void iso_corpus_lane_block(const iso_corpus *corpus, int64_t source, int64_t lane, int64_t epoch, int64_t index,
                           int64_t *first, int64_t *end) {
  const part *p = &corpus->parts[source];
  uint64_t seed = corpus->options.seed;
  uint64_t mine = (uint64_t)iso_corpus_lane_blocks(corpus, source, lane);
  uint64_t key = permutation_key(corpus, source, (uint64_t)lane, (uint64_t)epoch);
  uint64_t card = iso_rng_permute(seed, key, mine, (uint64_t)index);
  uint64_t dealt = (uint64_t)lane + card * (uint64_t)corpus->options.batch;
  uint64_t block = p->dealt ? p->dealt[dealt] : deal(corpus, source, dealt);
  *first = p->block_first[block];
  *end = p->block_first[block + 1];
}

/* A source's chance per draw is weight / mean bytes of its blocks: shares of text, not of blocks, follow the weights.
 */
static void set_chances(iso_corpus *corpus) {
  size_t sources = corpus->options.source_count;
  double total = 0;
  for (size_t s = 0; s < sources; s++) {
    part *p = &corpus->parts[s];
    total += corpus->options.sources[s].weight * ((double)p->blocks / (double)p->bytes);
    p->chance_up_to = total;
  }
  for (size_t s = 0; s < sources; s++) corpus->parts[s].chance_up_to /= total;
}

int64_t iso_corpus_draw(const iso_corpus *corpus, int64_t lane, int64_t draw) {
  int64_t last = (int64_t)corpus->options.source_count - 1;
  if (last == 0) return 0;
  double u = iso_rng_uniform(corpus->options.seed, ISO_RNG_MIXTURE, (uint64_t)lane, (uint64_t)draw);
  int64_t s = 0;
  while (s < last && u >= corpus->parts[s].chance_up_to) s++;
  return s;
}

/* ---- opening ---- */

static iso_status copy_options(iso_corpus *corpus, const iso_data_options *o) {
  corpus->options = *o;
  iso_source_options *sources = iso_arena_alloc(corpus->arena, o->source_count * sizeof *sources);
  corpus->parts = iso_arena_alloc(corpus->arena, o->source_count * sizeof *corpus->parts);
  corpus->options.validation_path = iso_arena_strdup(corpus->arena, o->validation_path ? o->validation_path : "");
  if (!sources || !corpus->parts || !corpus->options.validation_path)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for %zu sources", o->source_count);
  corpus->options.sources = sources;
  for (size_t s = 0; s < o->source_count; s++) {
    iso_source_options own = o->sources[s];
    own.tokenizer = corpus->tokenizer;
    own.refuse_empty = !o->skip_bad;
    own.skip_damaged = o->skip_bad;
    ISO_TRY(iso_source_open(&own, &corpus->parts[s].source));
    corpus->opened = s + 1;
    sources[s] = *iso_source_options_of(corpus->parts[s].source); /* strings live as long as the source */
  }
  return ISO_OK;
}

static iso_status open_validation(iso_corpus *corpus) {
  const iso_data_options *o = &corpus->options;
  iso_corpus_info *info = &corpus->info;
  if (*o->validation_path) {
    iso_source_options own = o->sources[0];
    own.path = o->validation_path;
    own.tokenizer = corpus->tokenizer;
    own.refuse_empty = !o->skip_bad;
    own.skip_damaged = o->skip_bad;
    ISO_TRY(iso_source_open(&own, &corpus->validation));
    ISO_TRY(iso_source_check_sound(corpus->validation));
    info->validation_documents = iso_source_documents(corpus->validation);
  } else {
    for (size_t s = 0; s < o->source_count; s++)
      info->validation_documents += validation_documents(o, iso_source_documents(corpus->parts[s].source));
  }
  if (!corpus->validation) ISO_TRY(mix_held_out(corpus));
  if (info->validation_documents == 0 && corpus->validation)
    return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" holds no text to validate on", o->validation_path);
  if (info->validation_documents == 0 && o->validation_every)
    return iso_fail(ISO_ERR_CONFIG,
                    "data: no document i has i mod %lld = %lld: the sources have %lld documents; lower "
                    "data.validation.offset",
                    (long long)o->validation_every, (long long)o->validation_offset, (long long)info->train_documents);
  for (int64_t v = 0; v < info->validation_documents; v++) {
    iso_source *source;
    int64_t document;
    iso_corpus_validation_index(corpus, v, &source, &document);
    info->validation_bytes += iso_source_size(source, document);
  }
  return ISO_OK;
}

/* Damaged files alone may be too many; a lane would meet them one by one. */
static iso_status limit_damaged(const iso_corpus *corpus) {
  int64_t all = 0, first, path = -1;
  for (size_t s = 0; s < corpus->options.source_count; s++) {
    const int64_t damaged = iso_source_damaged(corpus->parts[s].source, &first);
    if (damaged && path < 0) path = (int64_t)s;
    all += damaged;
  }
  if (all <= corpus->options.max_bad_documents) return ISO_OK;
  const iso_source *source = corpus->parts[path].source;
  (void)iso_source_damaged(source, &first);
  const iso_data_file *file = iso_source_file(source, first);
  return iso_fail(ISO_ERR_FORMAT,
                  "data: %lld files are damaged, each counts as one bad document, and data.max_bad_documents is %lld; "
                  "the first is \"%s\": %s; get them again or raise the limit",
                  (long long)all, (long long)corpus->options.max_bad_documents, file->path, file->damage.cause);
}

static void hash_number(iso_sha256 *hash, int64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)number >> (8 * i));
  iso_sha256_update(hash, bytes, sizeof bytes);
}

static void hash_source(iso_sha256 *hash, const iso_source *source) {
  if (strcmp(iso_source_format(source), "text") != 0) { /* of text, as it was before there were others */
    const char *const strings[] = {iso_source_format(source), iso_source_options_of(source)->field};
    for (size_t i = 0; i < ISO_COUNT(strings); i++) iso_sha256_update(hash, strings[i], strlen(strings[i]) + 1);
  }
  hash_number(hash, iso_source_files(source));
  for (int64_t f = 0; f < iso_source_files(source); f++) {
    const iso_data_file *file = iso_source_file(source, f);
    const char *slash = strrchr(file->path, '/');
    const char *name = slash ? slash + 1 : file->path;
    iso_sha256_update(hash, name, strlen(name) + 1);
    hash_number(hash, file->bytes);
    hash_number(hash, file->crc32c);
    if (file->index_crc32c) hash_number(hash, file->index_crc32c);
  }
  hash_number(hash, iso_source_documents(source));
}

static iso_status make_digest(iso_corpus *corpus) {
  iso_sha256 *hash = iso_sha256_create();
  if (!hash) return iso_fail(ISO_ERR_MEMORY, "data: no memory for a digest");
  for (size_t s = 0; s < corpus->options.source_count; s++) {
    const part *p = &corpus->parts[s];
    hash_source(hash, p->source);
    hash_number(hash, p->blocks);
    for (int64_t b = 0; b < p->blocks; b++) {
      iso_document first =
          iso_source_document(p->source, iso_corpus_train_index(corpus, (int64_t)s, p->block_first[b]));
      hash_number(hash, p->block_first[b]);
      hash_number(hash, first.file);
      hash_number(hash, first.offset);
    }
  }
  if (corpus->validation) hash_source(hash, corpus->validation);
  hash_number(hash, corpus->info.validation_documents);
  hash_number(hash, corpus->info.validation_bytes);
  iso_sha256_finish(&hash, corpus->info.digest);
  return ISO_OK;
}

static iso_status build(iso_corpus *corpus, const iso_data_options *options) {
  ISO_TRY(copy_options(corpus, options));
  iso_corpus_info *info = &corpus->info;
  for (size_t s = 0; s < options->source_count; s++) {
    ISO_TRY(cut_part(corpus, (int64_t)s));
    const part *p = &corpus->parts[s];
    info->blocks += p->blocks;
    info->train_documents += p->documents;
    info->train_bytes += p->bytes;
    if (s == 0 || p->block_bytes < info->block_bytes) info->block_bytes = p->block_bytes;
  }
  set_chances(corpus);
  deal_few(corpus);
  ISO_TRY(limit_damaged(corpus));
  ISO_TRY(open_validation(corpus));
  return make_digest(corpus);
}

iso_status iso_corpus_open(const iso_data_options *options, const iso_tokenizer *tokenizer, iso_corpus **out) {
  *out = NULL;
  ISO_TRY(check_options(options));
  if (iso_tokenizer_eos(tokenizer) < 0)
    return iso_fail(ISO_ERR_CONFIG,
                    "data: tokenizer \"%s\" has no end-of-text token, which ends each document; name one as eos_token "
                    "in tokenizer_config.json beside it",
                    iso_tokenizer_path(tokenizer));
  iso_corpus *corpus = calloc(1, sizeof *corpus);
  if (!corpus) return iso_fail(ISO_ERR_MEMORY, "data: no memory to open the corpus");
  corpus->tokenizer = tokenizer;
  corpus->arena = iso_arena_create();
  iso_status status = corpus->arena ? build(corpus, options) : iso_fail(ISO_ERR_MEMORY, "data: no memory for an arena");
  if (status != ISO_OK) {
    iso_corpus_close(&corpus);
    return status;
  }
  *out = corpus;
  return ISO_OK;
}

void iso_corpus_close(iso_corpus **corpus_address) {
  iso_corpus *corpus = *corpus_address;
  if (!corpus) return;
  for (size_t s = 0; s < corpus->opened; s++) {
    iso_source_close(&corpus->parts[s].source);
    free(corpus->parts[s].block_first);
    free(corpus->parts[s].dealt);
  }
  iso_source_close(&corpus->validation);
  iso_arena_destroy(&corpus->arena);
  free(corpus);
  *corpus_address = NULL;
}

/* ---- looking in ---- */

void iso_corpus_info_get(const iso_corpus *corpus, iso_corpus_info *info) {
  *info = corpus->info;
}

const iso_data_options *iso_corpus_options(const iso_corpus *corpus) {
  return &corpus->options;
}

const iso_tokenizer *iso_corpus_tokenizer(const iso_corpus *corpus) {
  return corpus->tokenizer;
}

iso_source *iso_corpus_source(const iso_corpus *corpus, int64_t source) {
  return corpus->parts[source].source;
}

iso_status iso_corpus_document(const iso_corpus *corpus, bool validation, int64_t index, const char **bytes,
                               size_t *length) {
  iso_source *source;
  int64_t document;
  if (validation) {
    iso_corpus_validation_index(corpus, index, &source, &document);
  } else {
    int64_t s = 0;
    while (index >= corpus->parts[s].documents) index -= corpus->parts[s++].documents;
    source = corpus->parts[s].source;
    document = iso_corpus_train_index(corpus, s, index);
  }
  iso_document place = iso_source_document(source, document);
  *length = (size_t)place.length;
  return iso_source_borrow(source, place.file, place.offset, place.length, bytes);
}

iso_status iso_corpus_check_validation(const iso_corpus *corpus) {
  iso_loaded loaded = {0};
  iso_held *held;
  ISO_TRY(iso_held_open(corpus, &held));
  iso_status status = ISO_OK;
  for (int64_t v = 0; v < corpus->info.validation_documents && status == ISO_OK; v++) {
    iso_source *source;
    int64_t document;
    const char *stored;
    status = iso_held_get(held, v, &source, &document, &stored);
    if (status == ISO_OK) status = iso_document_check(&loaded, source, document, stored);
  }
  iso_held_close(&held);
  iso_loaded_fini(&loaded);
  return status;
}
