/* SPDX-License-Identifier: Apache-2.0
 *
 * text: tokenizers. Text in, the reference implementations' ids out, and back.
 *
 * Invariants
 *  1. Ids equal the reference's (Hugging Face `tokenizers` for tokenizer.json, SentencePiece for its tokenizer.model,
 *     tiktoken for rank files) for every input.
 *  2. No input is dropped silently: what cannot be represented is an error with its byte position.
 *  3. Encoding is linear in the worst case (no quadratic merges), and bounded in stack.
 *  4. A tokenizer is immutable after it is opened: any number of threads encode with it at once, each with its own
 *     iso_encoder.
 * It does not add BOS/EOS or templates.
 */
#ifndef ISO_TEXT_H
#define ISO_TEXT_H

#include "base/base.h"

#include <string.h>

/* ---- tokenizer.c: opening, ids, fingerprint ------------------------------------------------------ */

typedef struct iso_tokenizer iso_tokenizer;

/* Opens a folder holding tokenizer.json (else tokenizer.model, else one *.tiktoken file), or such a file. A
 * tokenizer.model is SentencePiece's or a rank file: its bytes tell. `pattern` (may be "") is the pre-tokenizer's name
 * or regex for a rank file whose name does not tell. Every option that is not implemented is refused by name. */
iso_status iso_tokenizer_open(const char *path, const char *pattern, iso_tokenizer **out) ISO_MUST_CHECK;
void iso_tokenizer_close(iso_tokenizer **tokenizer);
/* Does the folder hold a file that iso_tokenizer_open would take? Nothing is opened or logged. */
bool iso_tokenizer_is_in(const char *folder);
/* Number of ids: highest id + 1, added tokens included. */
int64_t iso_tokenizer_vocabulary(const iso_tokenizer *tokenizer);
/* Id of end of text: what tokenizer_config.json / generation_config.json beside it say, else the first present of
 * "<|endoftext|>", "<|end_of_text|>",
 * "</s>", "<eos>"; -1 when there is none. */
int64_t iso_tokenizer_eos(const iso_tokenizer *tokenizer);
/* 64 hex digits: SHA-256 over what decides ids (vocabulary, merges or ranks, pattern, normalizer, added tokens). */
const char *iso_tokenizer_fingerprint(const iso_tokenizer *tokenizer);
/* The folder or file it came from. */
const char *iso_tokenizer_path(const iso_tokenizer *tokenizer);
/* Bytes of one id: what it decodes to after others (SentencePiece: control pieces to none). NULL when the id is not in
 * the vocabulary. */
const char *iso_tokenizer_bytes(const iso_tokenizer *tokenizer, int64_t id, size_t *length);
/* Copies the file that defines it, and tokenizer_config.json beside a tokenizer.json or .model, into `folder`; a rank
 * file's pattern, if it was given, as tokenizer.pattern, which opening that folder reads; an end of text that
 * generation_config.json told as such a file. */
iso_status iso_tokenizer_copy(const iso_tokenizer *tokenizer, const char *folder) ISO_MUST_CHECK;

/* ---- encode.c ------------------------------------------------------------------------------------ */

/* A thread's scratch and output. `ids` holds the last result until the next call. */
typedef struct iso_encoder iso_encoder;
iso_encoder *iso_encoder_create(const iso_tokenizer *tokenizer);
void iso_encoder_destroy(iso_encoder **encoder);
/* Encodes `length` bytes. Invalid UTF-8 is replaced (each maximal ill-formed sequence becomes U+FFFD) when
 * `replace_invalid`, else FORMAT error with position. With `parse_special`, added tokens in the text become their ids;
 * else they are text. Returned ids are owned by the encoder. */
iso_status iso_encode(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool replace_invalid,
                      const int32_t **ids, size_t *count) ISO_MUST_CHECK;
/* Takes ids as they come; an error of it ends the encoding, which returns it. */
typedef struct iso_ids_sink {
  iso_status (*put)(void *context, const int32_t *ids, size_t count);
  void *context;
} iso_ids_sink;
/* Hands the ids of `text`, which must be valid UTF-8 (iso_utf8_valid_prefix), to a sink in blocks, so that those of a
 * long text are never held at once (where a text may be refused, they are). MISMATCH, a text that the vocabulary cannot
 * represent, comes before the first block and is not logged: iso_last_error() has the cause. */
iso_status iso_encode_to(iso_encoder *encoder, const char *text, size_t length, bool parse_special,
                         const iso_ids_sink *sink, size_t *count) ISO_MUST_CHECK;
/* Can there be a text that the vocabulary cannot represent? */
bool iso_encoder_refuses(const iso_encoder *encoder);
/* Appends the bytes of the ids. An id outside the vocabulary is a MISMATCH error naming it. */
iso_status iso_decode(const iso_tokenizer *tokenizer, const int32_t *ids, size_t count, iso_string *out) ISO_MUST_CHECK;

/* ---- border.c: where a text may be cut -------------------------------------------------------------- */

/* The first place in [from, length) that is certain: what is left and right of it gives the ids that it gives in the
 * whole, where the right side is said to be none that a text begins with (iso_crew_encode does). It is decided by the
 * two characters there alone, which must be whole and stand below `length`. `length`: there is none. Linear. */
size_t iso_text_border(const iso_tokenizer *tokenizer, const char *text, size_t from, size_t length,
                       bool parse_special);
/* Are there any for this tokenizer? */
bool iso_tokenizer_has_borders(const iso_tokenizer *tokenizer);

/* ---- crew.c: several threads on one long text -------------------------------------------------------- */

typedef struct iso_crew iso_crew;
/* For `threads` threads, each of which may encode texts of its own until it leaves. Keeps `tokenizer`. */
iso_crew *iso_crew_create(const iso_tokenizer *tokenizer, int threads);
void iso_crew_destroy(iso_crew **crew);
/* A text: all of it, or what reads it. */
typedef struct iso_long_text {
  const char *text; /* valid UTF-8; NULL: it is read */
  size_t length;
  iso_status (*read)(void *context, size_t offset, size_t bytes, char *to); /* front to back, one call at a time */
  void *context;
} iso_long_text;
/* As iso_encode_to, with the same ids, in parts that threads of the crew that help encode too; the sink is called by
 * this thread, in order. What is read is not held whole. A text that is read and turns out not to be UTF-8 ends it:
 * *valid < length is where, and the sink has taken some ids. Where texts may be refused (iso_encoder_refuses) it must
 * not be read, and this thread is alone. */
iso_status iso_crew_encode(iso_crew *crew, iso_encoder *encoder, const iso_long_text *text, bool parse_special,
                           const iso_ids_sink *sink, size_t *count, size_t *valid) ISO_MUST_CHECK;
/* A thread has no more texts of its own. (The message of a failure is iso_last_error of the text's own thread,
 * whichever thread met it.) */
void iso_crew_leave(iso_crew *crew);
/* Encodes parts of others' texts until all threads have left. An error is that of the text's own thread as well. */
void iso_crew_help(iso_crew *crew, iso_encoder *encoder);
/* One part, by a thread that has not left but has nothing to do for now; false: there is none. */
bool iso_crew_help_once(iso_crew *crew, iso_encoder *encoder);

/* ---- trainer.c: learning a vocabulary ------------------------------------------------------------- */

typedef struct iso_bpe_options {
  int64_t vocabulary;  /* ids in all, special tokens and the 256 bytes included */
  const char *pattern; /* "gpt2", "cl100k", "qwen2", "o200k" */
  const char *eos;     /* special token appended last, e.g. "<|endoftext|>" */
} iso_bpe_options;
/* Learns byte-level BPE merges over `count` texts (borrowed): repeatedly the most frequent pair, ties to the smallest
 * (left bytes, right bytes), and writes tokenizer.json and tokenizer_config.json into `folder`, loadable by Hugging
 * Face. Deterministic. CONFIG when the vocabulary is below 257; when the texts run out of pairs the vocabulary is
 * smaller and a note says so. */
iso_status iso_bpe_train(const iso_bpe_options *options, const char *const *texts, const size_t *lengths, size_t count,
                         const char *folder) ISO_MUST_CHECK;

/* ---- check.c: reference vectors -------------------------------------------------------------------- */

typedef struct iso_vector_report {
  int64_t rows;
  int64_t matched;
} iso_vector_report;
/* Runs every row of a vectors.jsonl (layout: docs/tokenizers.md); prints each mismatch as one line to `out` (may be
 * NULL). */
iso_status iso_tokenizer_check(const iso_tokenizer *tokenizer, const char *vectors_path, FILE *out,
                               iso_vector_report *report) ISO_MUST_CHECK;

/* ---- UTF-8, one character (unicode.c) --------------------------------------------------------------- */

/* Appends one code point. */
void iso_utf8_append(iso_string *out, uint32_t code);
/* Whether it is a byte inside a character, not its first. */
static inline bool iso_utf8_continues(uint8_t byte) {
  return (byte & 0xC0) == 0x80;
}
/* Code point at `at` of valid UTF-8 and, in *bytes, its length. */
static inline uint32_t iso_utf8_decode(const uint8_t *at, size_t *bytes) {
  uint32_t b = at[0];
  if (b < 0x80) return *bytes = 1, b;
  if (b < 0xE0) return *bytes = 2, (b & 0x1F) << 6 | (at[1] & 0x3F);
  if (b < 0xF0) return *bytes = 3, (b & 0x0F) << 12 | (uint32_t)(at[1] & 0x3F) << 6 | (at[2] & 0x3F);
  return *bytes = 4, (b & 0x07) << 18 | (uint32_t)(at[1] & 0x3F) << 12 | (uint32_t)(at[2] & 0x3F) << 6 | (at[3] & 0x3F);
}

/* ==== Inside the folder: other folders use nothing below this line ================================= */

/* ---- encode.c ---- */

/* As iso_encode of a valid text that stands in the middle of another, behind a certain border, or at its beginning.
 * The ids are handed over: the encoder takes the array that was there, which is malloc'd or NULL, for the next ones. */
iso_status iso_encode_part(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool beginning,
                           int32_t **ids, size_t *capacity, size_t *count) ISO_MUST_CHECK;
/* The same to a sink, as iso_encode_to. */
iso_status iso_encode_part_to(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool beginning,
                              const iso_ids_sink *sink, size_t *count) ISO_MUST_CHECK;

/* ---- unicode.c, unicode_tables.c (written by tools/unicode-tables) --------------------------------- */

/* Class of a code point, in the low 4 bits of iso_unicode_value; the flags above are about NFC. */
enum {
  ISO_CLASS_OTHER,
  ISO_CLASS_SPACE,   /* \s but CR and LF */
  ISO_CLASS_NEWLINE, /* CR, LF */
  ISO_CLASS_NUMBER,  /* \p{N} */
  ISO_CLASS_LU,
  ISO_CLASS_LT,
  ISO_CLASS_LL,
  ISO_CLASS_LM,
  ISO_CLASS_LO,
  ISO_CLASS_MARK, /* \p{M} */
  ISO_CLASS_MASK = 15,
  ISO_NFC_COMBINING = 0x40, /* combining class not 0 */
  ISO_NFC_CHECK = 0x80      /* NFC quick check not "yes" */
};
extern const uint32_t iso_unicode_runs[];
extern const size_t iso_unicode_run_count;
extern const uint32_t iso_unicode_inert[][2];
extern const size_t iso_unicode_inert_count;
/* One byte per code point: class and flags. Filled once, by the first caller. */
const uint8_t *iso_unicode_table(void);
/* Is the character one that today's NFC moves or composes and the reference's does not? */
bool iso_unicode_is_inert(uint32_t code);
/* Bytes before the first ill-formed sequence. */
size_t iso_utf8_valid_prefix(const char *text, size_t length);
/* Appends `text` with each maximal ill-formed sequence replaced by U+FFFD. */
void iso_utf8_replace(const char *text, size_t length, iso_string *out);

/* ---- normalize.c ----------------------------------------------------------------------------------- */

/* NFC as the reference has it. Sets *changed and appends to `out` (emptied first) only when the text is not NFC yet. */
iso_status iso_nfc(const char *text, size_t length, iso_string *out, bool *changed) ISO_MUST_CHECK;

/* ---- vocabulary.c ---------------------------------------------------------------------------------- */

enum { ISO_VOCABULARY_LIMIT = 10 * 1000 * 1000, ISO_TOKEN_BYTES_LIMIT = 1 << 16, ISO_NO_RANK = INT32_MAX };

typedef struct iso_token {
  uint64_t offset; /* of its bytes in the vocabulary's `bytes` */
  uint32_t length; /* of its bytes */
  bool present;
  bool mapped; /* `bytes` are what byte-level characters stand for; else it is text that no merge can make */
} iso_token;

/* Tokens by id, and ids by bytes. Zero-initialise. */
typedef struct iso_vocabulary {
  iso_string bytes;
  iso_token *tokens; /* [count] */
  int64_t count;     /* highest id + 1 */
  int64_t capacity;  /* of tokens */
  int64_t used;      /* ids present */
  int32_t *slots;    /* open addressing by (bytes, mapped); -1 empty */
  uint64_t slot_count;
  int32_t byte_ids[256]; /* id of each single byte, -1 when there is none (set by iso_vocabulary_finish) */
} iso_vocabulary;
/* Adds a token. `where` names the file in errors: an id outside 0..10 million or used twice, bytes known already. */
iso_status iso_vocabulary_add(iso_vocabulary *vocabulary, const char *where, int64_t id, const char *bytes,
                              size_t length, bool mapped) ISO_MUST_CHECK;
void iso_vocabulary_finish(iso_vocabulary *vocabulary);
/* Id of the token with these bytes, -1 when there is none. */
int32_t iso_vocabulary_find(const iso_vocabulary *vocabulary, const char *bytes, size_t length, bool mapped);
void iso_vocabulary_fini(iso_vocabulary *vocabulary);
uint64_t iso_hash_bytes(const char *bytes, size_t length);
/* Byte-level characters of tokenizer.json (each byte stands as one printable character) to bytes, appended to `out`.
 * False when some character is no such one. */
bool iso_byte_level_decode(const char *text, size_t length, iso_string *out);
void iso_byte_level_encode(const char *bytes, size_t length, iso_string *out);

/* ---- bpe.c ------------------------------------------------------------------------------------------ */

typedef struct iso_pair {
  uint64_t key; /* left id << 32 | right id */
  int32_t rank; /* lower merges first */
  int32_t id;   /* what the pair becomes */
} iso_pair;

/* Merges by pair. Zero-initialise. */
typedef struct iso_pairs {
  iso_pair *slots; /* open addressing; key UINT64_MAX empty */
  uint64_t slot_count, used;
} iso_pairs;
iso_status iso_pairs_reserve(iso_pairs *pairs, uint64_t count) ISO_MUST_CHECK;
/* Adds a merge; false when the pair is there already. Room must be reserved. */
bool iso_pairs_add(iso_pairs *pairs, int32_t left, int32_t right, int32_t rank, int32_t id);
const iso_pair *iso_pairs_find(const iso_pairs *pairs, int32_t left, int32_t right);
void iso_pairs_fini(iso_pairs *pairs);
/* All merges a rank file implies: every way to cut a token in two tokens, ranked by the token's id. */
iso_status iso_pairs_from_ranks(iso_pairs *pairs, const iso_vocabulary *vocabulary) ISO_MUST_CHECK;

/* Scratch of iso_bpe_merge. Zero-initialise. */
typedef struct iso_bpe_scratch {
  void *memory;
  size_t bytes;
} iso_bpe_scratch;
/* Merges ids[0..count) in place until no adjacent pair has a rank: lowest rank first, leftmost first among equals.
 * O(count log count). Returns the new count; SIZE_MAX when memory is short (logged). */
size_t iso_bpe_merge(const iso_pairs *pairs, int32_t *ids, size_t count, iso_bpe_scratch *scratch);
/* The same, but no further than `stop` >= 1 ids. */
size_t iso_bpe_merge_to(const iso_pairs *pairs, int32_t *ids, size_t count, size_t stop, iso_bpe_scratch *scratch);
/* Room of so many bytes; what was there is lost. */
bool iso_bpe_reserve(iso_bpe_scratch *scratch, size_t bytes);

/* ---- trie.c: the tokens that begin at a place ------------------------------------------------------------ */

typedef struct iso_trie_slot {
  uint32_t link;   /* where its children stand: base << 8 | the byte that leads to it; base 0: it has none */
  uint32_t number; /* of the word that ends here; UINT32_MAX: none */
} iso_trie_slot;
typedef struct iso_trie {
  iso_trie_slot *starts; /* [65536] after two bytes: first << 8 | second */
  iso_trie_slot *slots;  /* a child stands at base + byte, if the slot names the byte */
} iso_trie;
typedef struct iso_trie_word {
  const uint8_t *bytes; /* borrowed */
  uint32_t length;      /* 2 at least */
  uint32_t number;
} iso_trie_word;
/* By bytes, a beginning before what goes on. */
void iso_trie_sort(iso_trie_word *words, uint32_t count);
/* Of sorted words, all different. False: no memory, or too large. */
bool iso_trie_build(iso_trie *trie, const iso_trie_word *words, uint32_t count);
void iso_trie_fini(iso_trie *trie);
/* Goes on by one byte; false: no word does. */
static inline bool iso_trie_next(const iso_trie *trie, iso_trie_slot *slot, uint8_t byte) {
  const uint32_t base = slot->link >> 8;
  if (base == 0) return false;
  *slot = trie->slots[base + byte];
  return (uint8_t)slot->link == byte;
}

/* ---- matcher.c: the same ids from left to right ----------------------------------------------------------- */

typedef struct iso_matcher_token {
  uint32_t length;  /* bytes */
  uint32_t shorter; /* longest token that is a shorter beginning of it; UINT32_MAX: none */
} iso_matcher_token;
typedef struct iso_matcher_halves {
  uint32_t left, right; /* of its last merge; 0 for bytes */
} iso_matcher_halves;

/* In a trie's number: the token's own, and the mark of one that no row can hold. */
enum { ISO_MATCHER_NUMBER = (1 << 20) - 1, ISO_MATCHER_UNORDERED = 1 << 20 };

/* Tokens that merging can make, by number: bytes, then by rank. Zero-initialise. */
typedef struct iso_matcher {
  bool usable;                /* else nothing below is set and merging has to be done */
  bool wide;                  /* the machine has AVX-512 and may use it */
  bool complete;              /* every mapped token of the vocabulary is among them */
  uint32_t count;             /* tokens */
  iso_matcher_token *tokens;  /* [count] */
  iso_matcher_halves *halves; /* [count] */
  int32_t *ids;               /* [count] in the vocabulary; -1: a byte without one */
  iso_trie trie;              /* of all of them but bytes */
  uint64_t *whole;            /* bits of the mapped tokens that are not among them, by their marks */
  uint32_t *byte_merges;      /* [65536] what two bytes become; UINT32_MAX: nothing */
  uint64_t *merges;           /* left, right and what they become, for other pairs, open addressing */
  uint64_t *filter;           /* bits of these pairs' hashes: most pairs do not merge */
  uint64_t *leaving; /* [65536] bits of two bytes, the first inside a character: some token goes on behind it */
  uint64_t merge_mask;
  int merge_shift, filter_shift;
} iso_matcher;
/* Sets `usable`, false when these merges do not allow it or memory is short: then only time is lost. */
void iso_matcher_build(iso_matcher *matcher, const iso_vocabulary *vocabulary, const iso_pairs *pairs);
void iso_matcher_fini(iso_matcher *matcher);
static inline uint32_t iso_matcher_mark(const uint8_t *bytes, size_t length) { /* of 14 bits */
  const uint32_t mixed = (uint32_t)length + bytes[0] * 61u + bytes[length / 2] * 1021u + bytes[length - 1] * 8191u;
  return mixed * 0x9E3779B1u >> 18;
}
/* Whether a piece may be a token that no merging makes: false is certain. */
static inline bool iso_matcher_may_be_whole(const iso_matcher *matcher, const void *piece, size_t length) {
  if (matcher->complete) return false;
  const uint32_t mark = iso_matcher_mark(piece, length);
  return matcher->whole[mark >> 6] >> (mark & 63) & 1;
}
/* Ids of a piece of at least one byte, as iso_bpe_merge gives them; `ids` has room for `length`. A byte without an id
 * gives -1. SIZE_MAX: not decided, merge instead. */
size_t iso_matcher_encode(const iso_matcher *matcher, const uint8_t *text, size_t length, int32_t *ids,
                          iso_bpe_scratch *scratch);

/* ---- stretch.c: long pieces, cut where no token reaches over ---------------------------------------------- */

/* A walk over a piece. Zero-initialise but for the first three. */
typedef struct iso_stretch {
  const iso_matcher *matcher; /* usable */
  const uint8_t *text;
  size_t length;
  size_t at, steps; /* where the next stretch begins */
} iso_stretch;
/* Moves `at` < length behind the next stretch, whose ids are those it has alone; returns its id when it is one token,
 * else -1. */
int32_t iso_stretch_next(iso_stretch *stretch);

/* ---- learn.c: the merges of a training text -------------------------------------------------------------- */

typedef struct iso_piece {
  const char *bytes; /* borrowed */
  size_t length;
  int64_t count; /* times it occurs */
} iso_piece;
typedef struct iso_merge {
  int32_t left, right;
} iso_merge;
/* Learns merges over distinct pieces until `vocabulary` (which gets the 256 bytes as ids 0..255 first) has `tokens` ids
 * or no pair is left. A merge that would make the bytes `forbidden` is passed over. *merges is malloc'd. */
iso_status iso_bpe_learn(const iso_piece *pieces, size_t count, int64_t tokens, const char *forbidden,
                         size_t forbidden_length, iso_vocabulary *vocabulary, iso_merge **merges,
                         size_t *merge_count) ISO_MUST_CHECK;

/* ---- split.c, regex.c: pre-tokenizers ----------------------------------------------------------------- */

typedef enum iso_splitter {
  ISO_SPLIT_GPT2,
  ISO_SPLIT_CL100K, /* Llama-3 too */
  ISO_SPLIT_QWEN2,  /* cl100k with single digits */
  ISO_SPLIT_O200K,
  ISO_SPLIT_DIGIT,  /* each \p{N} alone */
  ISO_SPLIT_DIGITS, /* runs of \p{N} */
  ISO_SPLIT_REGEX,  /* matches of any regular expression, and what lies between them */
  ISO_SPLIT_NONE
} iso_splitter;
/* End of the piece of valid UTF-8 that begins at `at` < end. Not for ISO_SPLIT_REGEX. */
size_t iso_split_next(iso_splitter splitter, const uint8_t *text, size_t at, size_t end);
/* ---- window.c: the same for 64 bytes of ASCII at once */

/* Bit i > 0 of the result: a piece begins at text + i, where text begins one and has ISO_WINDOW bytes and more behind
 * them. The bits are all such places up to the highest one; 0: cut one piece with iso_split_next. */
enum { ISO_WINDOW = 64 };
typedef uint64_t (*iso_window_function)(iso_splitter splitter, const uint8_t *text);
iso_window_function iso_window_find(iso_tier tier);

/* By name ("gpt2", "r50k_base", "p50k_base", "cl100k", "cl100k_base", "llama3", "qwen2", "o200k", "o200k_base") or by
 * the exact regular expression; ISO_SPLIT_REGEX when it is neither. */
iso_splitter iso_splitter_find(const char *name_or_regex);
/* The regular expression that a scanner of ours implements; NULL for the digits and regex kinds. */
const char *iso_splitter_regex(iso_splitter splitter);

typedef struct iso_regex iso_regex;
iso_status iso_regex_create(const char *pattern, const char *where, iso_regex **out) ISO_MUST_CHECK;
void iso_regex_destroy(iso_regex **regex);
/* A thread's match state. */
typedef struct iso_regex_match iso_regex_match;
iso_regex_match *iso_regex_match_create(const iso_regex *regex);
void iso_regex_match_destroy(iso_regex_match **match);
/* First non-empty match in text[from, end), whose beginning and end are the subject's. *start = end when there is none.
 */
iso_status iso_regex_next(const iso_regex *regex, iso_regex_match *match, const char *text, size_t length, size_t from,
                          size_t *start, size_t *stop) ISO_MUST_CHECK;

/* ---- added.c: added tokens -------------------------------------------------------------------------- */

typedef struct iso_added_token {
  char *content; /* owned; NUL-terminated */
  size_t length;
  int32_t id;
  bool lstrip, rstrip, normalized, special;
} iso_added_token;

typedef struct iso_added_set {
  iso_added_token *tokens;
  size_t count;
  struct iso_added_node *nodes[2]; /* tries: 0 for text as it is, 1 for normalized text */
  size_t node_counts[2], capacities[2];
  bool first[2][256];      /* bytes a token can begin with */
  uint64_t inside[256][4]; /* bits of two bytes that stand next to each other in one, as given or normalized */
  bool ends[256];          /* bytes that one ends with */
  bool strips[256];        /* bytes that one with `rstrip` ends with */
} iso_added_set;
/* Keeps a copy of the content. */
iso_status iso_added_add(iso_added_set *set, const iso_added_token *token) ISO_MUST_CHECK;
/* Builds the tries. Contents of normalized tokens are normalized as `tokenizer` does. */
iso_status iso_added_finish(iso_added_set *set, const iso_tokenizer *tokenizer) ISO_MUST_CHECK;
/* Longest token that begins at `at`; NULL when there is none. */
const iso_added_token *iso_added_match(const iso_added_set *set, int which, const char *text, size_t at, size_t length,
                                       size_t *stop);
/* Longest token at the first place at or after `from` where there is one; NULL when there is none. */
const iso_added_token *iso_added_next(const iso_added_set *set, int which, const char *text, size_t from, size_t length,
                                      size_t *start, size_t *stop);
/* A walk over the tokens of `text`, with the white space that they strip. Zero-initialise but for the first four. When
 * a token that strips on its right is followed by one inside the stripped space, `done` moves back, as in the
 * reference. */
typedef struct iso_added_walk {
  const iso_added_set *set;
  int which;
  const char *text;
  size_t length;
  size_t done, from; /* where the rest begins; where to look on */
} iso_added_walk;
/* The next token, and [*start, *stop) the text before it; NULL at the end, and what is left. */
const iso_added_token *iso_added_walk_next(iso_added_walk *walk, size_t *start, size_t *stop);
void iso_added_fini(iso_added_set *set);

/* ---- words.c: what short pieces became ------------------------------------------------------------- */

enum { ISO_WORD_BYTES = 15, ISO_WORD_IDS = 3, ISO_PHRASE_BYTES = 31, ISO_PHRASE_IDS = 7 };

/* Keys are a piece's bytes, padded with zeros, and its length in the last byte; all zeros: empty. */
typedef struct iso_word {
  uint64_t key[2];
  int32_t ids[ISO_WORD_IDS];
  uint32_t count;
} iso_word;
typedef struct iso_phrase {
  uint64_t key[4];
  int32_t ids[ISO_PHRASE_IDS];
  uint32_t count;
} iso_phrase;
typedef struct iso_words {
  void *memory;
  iso_word (*words)[2]; /* by hash, the newer one first; a cache line each */
  iso_phrase *phrases;  /* by hash; longer pieces, and those of more ids */
} iso_words;
bool iso_words_init(iso_words *words);
void iso_words_fini(iso_words *words);
/* Key of a piece of at most ISO_PHRASE_BYTES bytes; 32 bytes can be read at `text`. */
void iso_phrase_key(const uint8_t *text, size_t length, uint64_t key[4]);
iso_phrase *iso_phrase_at(const iso_words *words, const uint64_t key[4]);
void iso_words_keep(iso_words *words, const uint64_t key[4], size_t length, const int32_t *ids, size_t count);

/* The first 16 bytes of a word of at most ISO_WORD_BYTES; 16 bytes can be read at `text`. */
static inline void iso_word_key(const uint8_t *text, size_t length, uint64_t key[2]) {
  extern const uint64_t iso_word_masks[ISO_WORD_BYTES + 1][2];
  memcpy(key, text, 16);
  key[0] &= iso_word_masks[length][0];
  key[1] = (key[1] & iso_word_masks[length][1]) | (uint64_t)length << 56;
}
enum { ISO_WORD_BITS = 16 };
/* The two places where a word can be. */
static inline iso_word *iso_word_at(const iso_words *words, const uint64_t key[2]) {
  const uint64_t hash = (key[0] ^ (key[1] * 0x9FB21C651E98DF25u >> 7)) * 0x9E3779B97F4A7C15u;
  return words->words[hash >> (64 - ISO_WORD_BITS)];
}

/* ---- sentencepiece_normalize.c: what SentencePiece does to text before it looks for pieces ------------- */

/* The replacements of a model, longest first: a double array and the texts it leads to. */
typedef struct iso_charsmap {
  char *bytes; /* owned; NULL: none */
  size_t length;
  size_t unit_count;
  const char *texts; /* into `bytes`: NUL-terminated, one after another */
  size_t texts_length;
} iso_charsmap;
iso_status iso_charsmap_init(iso_charsmap *map, const char *where, const char *bytes, size_t length) ISO_MUST_CHECK;
void iso_charsmap_fini(iso_charsmap *map);

typedef enum iso_prefix {
  ISO_PREFIX_NONE,
  ISO_PREFIX_START,        /* U+2581 before the text, whatever it begins with */
  ISO_PREFIX_EVERY,        /* the same before each stretch between added tokens */
  ISO_PREFIX_START_UNLESS, /* unless it begins with one */
  ISO_PREFIX_EVERY_UNLESS
} iso_prefix;

/* What a tokenizer of SentencePiece's kind has beyond vocabulary, merges and added tokens. */
typedef struct iso_sentencepiece {
  iso_charsmap charsmap;
  iso_prefix prefix;
  bool escape;          /* a space becomes U+2581 */
  bool trim;            /* leading, trailing and repeated spaces go */
  bool late;            /* prefix and escape come after the added tokens of normalized text are cut out */
  bool each_mark;       /* a piece begins at every U+2581 */
  bool fuse_unknown;    /* neighbouring unknown characters are one */
  bool sentence;        /* read from tokenizer.model: control pieces decode to nothing */
  int strip;            /* spaces at the beginning that decoding takes away */
  int32_t unknown;      /* id of what nothing covers; -1: that is an error */
  bool byte_fallback;   /* what no piece covers becomes its bytes' ids instead */
  int32_t bytes[256];   /* these ids, -1: none */
  iso_added_set fixed;  /* user-defined pieces: found first, never merged */
  iso_pairs characters; /* (code point, 0) -> id a character begins with; ids above the vocabulary's: no piece of its
                         * own, but part of one */
  iso_pairs joins;      /* (code point, code point): a merge may join them */
  uint32_t *strays;     /* code points of the ids above the vocabulary's */
  int32_t stray_count;
  int32_t ascii[128]; /* characters and joins, once more, for speed */
  uint64_t ascii_joins[128][2];
  iso_token *shown; /* [vocabulary.count] what an id decodes to, in `shown_bytes` */
  iso_string shown_bytes;
} iso_sentencepiece;
/* Where a stretch of text stands. */
typedef enum iso_text_place {
  ISO_TEXT_START,  /* at the text's beginning */
  ISO_TEXT_BEHIND, /* behind an added token */
  ISO_TEXT_WITHIN  /* behind a certain border: no prefix belongs there */
} iso_text_place;
/* Appends `text` as SentencePiece normalizes it. */
void iso_sentencepiece_normalize(const iso_sentencepiece *sp, const char *text, size_t length, iso_text_place place,
                                 iso_string *out);

/* ---- sentencepiece_tables.c ------------------------------------------------------------------------------ */

/* A new, empty one for `tokenizer`, freed by iso_tokenizer_close. */
iso_status iso_sentencepiece_new(iso_tokenizer *tokenizer) ISO_MUST_CHECK;
/* The id a character begins with; one without becomes a stray. */
iso_status iso_sentencepiece_character(iso_tokenizer *tokenizer, uint32_t code, int32_t *id) ISO_MUST_CHECK;
/* Fills the tables that follow from vocabulary, merges and the switches above. `unknown_surface`: what the unknown
 * piece of a tokenizer.model decodes to. */
iso_status iso_sentencepiece_finish(iso_tokenizer *tokenizer, const char *unknown_surface) ISO_MUST_CHECK;
void iso_sentencepiece_destroy(iso_sentencepiece **sp);

/* ---- sentencepiece.c: text to pieces and back ------------------------------------------------------------ */

typedef struct iso_sentencepiece_encoder iso_sentencepiece_encoder;
iso_sentencepiece_encoder *iso_sentencepiece_encoder_create(const iso_tokenizer *tokenizer);
void iso_sentencepiece_encoder_destroy(iso_sentencepiece_encoder **encoder);
/* As iso_encode, for valid UTF-8 at the beginning of a text or behind a certain border. */
iso_status iso_sentencepiece_encode(iso_sentencepiece_encoder *encoder, const char *text, size_t length,
                                    bool parse_special, bool beginning, const int32_t **ids,
                                    size_t *count) ISO_MUST_CHECK;
/* Hands over the array that holds the last result, and takes another. */
void iso_sentencepiece_swap(iso_sentencepiece_encoder *encoder, int32_t **ids, size_t *capacity);
/* May a merge join a character to the U+2581 that a space becomes? */
bool iso_sentencepiece_joins_space(const iso_sentencepiece *sp, uint32_t code);
/* Where it may not, is the text parted there? */
bool iso_sentencepiece_parts_at_space(const iso_tokenizer *tokenizer);
/* May a character be an error? */
bool iso_sentencepiece_refuses(const iso_sentencepiece *sp);
iso_status iso_sentencepiece_decode(const iso_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                    iso_string *out) ISO_MUST_CHECK;

/* ---- the tokenizer itself: tokenizer.c; filled by huggingface.c, sentencepiece_model.c or tiktoken.c --- */

enum { ISO_SPLIT_STEPS = 8 };

typedef struct iso_split_step {
  iso_splitter splitter;
  iso_regex *regex; /* owned; for ISO_SPLIT_REGEX */
  char *pattern;    /* owned; for ISO_SPLIT_REGEX */
} iso_split_step;

struct iso_tokenizer {
  char *path;        /* as given */
  char *file;        /* the file that defines it */
  char file_sha[65]; /* of that file's bytes */
  bool is_json;
  char *pattern;                    /* owned; of a rank file whose name does not tell it; NULL: none */
  bool config_eos;                  /* `eos` is what generation_config.json says */
  iso_sentencepiece *sentencepiece; /* owned; NULL: merges begin with bytes */
  iso_vocabulary vocabulary;        /* added tokens included */
  iso_pairs pairs;
  iso_matcher matcher; /* made of the two above */
  bool whole_first;    /* a piece that is a token is taken whole before any merge */
  bool nfc;
  iso_split_step steps[ISO_SPLIT_STEPS];
  int step_count;
  iso_added_set added;
  int64_t eos;
  char fingerprint[65];
};
/* What the files of a tokenizer.json's loader share. */
typedef struct iso_huggingface {
  iso_tokenizer *tokenizer;
  const char *where;   /* the file, for messages */
  const char *unknown; /* unk_token, NULL: none; borrowed from the document */
  bool byte_fallback, fuse_unknown;
  iso_string left, right;
} iso_huggingface;
iso_status iso_huggingface_refuse(const iso_huggingface *l, const char *what, const char *name);
/* Refuses members that are not in `keys` (space-separated, each with a space before and after). */
iso_status iso_huggingface_only_keys(const iso_huggingface *l, const iso_json *object, const char *what,
                                     const char *keys) ISO_MUST_CHECK;
iso_status iso_huggingface_type_of(const iso_huggingface *l, const iso_json *object, const char *what,
                                   const char **type) ISO_MUST_CHECK;
/* Normalizer, pre-tokenizer, post-processor and decoder: huggingface_parts.c. */
iso_status iso_huggingface_load_parts(iso_huggingface *l, const iso_json *json) ISO_MUST_CHECK;
iso_status iso_huggingface_load(iso_tokenizer *tokenizer, const char *text, size_t length) ISO_MUST_CHECK;
iso_status iso_tiktoken_load(iso_tokenizer *tokenizer, const char *text, size_t length,
                             const char *pattern) ISO_MUST_CHECK;
/* SentencePiece's tokenizer.model, a protobuf. */
iso_status iso_sentencepiece_load(iso_tokenizer *tokenizer, const char *text, size_t length) ISO_MUST_CHECK;
/* Adds a step; `where` names the file in errors. */
iso_status iso_tokenizer_add_step(iso_tokenizer *tokenizer, const char *where,
                                  const char *name_or_regex) ISO_MUST_CHECK;
/* Strict base64 with padding, appended to `out`. False when it is not that. */
bool iso_base64_decode(const char *text, size_t length, iso_string *out);

#endif
