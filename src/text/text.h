/* SPDX-License-Identifier: Apache-2.0
 *
 * text: tokenizers. Text in, the reference implementations' ids out, and back.
 *
 * Invariants
 *  1. Ids equal the reference's (Hugging Face `tokenizers` for tokenizer.json, tiktoken for rank files) for every input.
 *  2. No input is dropped silently: what cannot be represented is an error with its byte position.
 *  3. Encoding is linear in the worst case (no quadratic merges), and bounded in stack.
 *  4. A tokenizer is immutable after it is opened: any number of threads encode with it at once, each with its own
 *     iso_encoder.
 * It does not add BOS/EOS or templates.
 */
#ifndef ISO_TEXT_H
#define ISO_TEXT_H

#include "base/base.h"

/* ---- tokenizer.c: opening, ids, fingerprint ------------------------------------------------------ */

typedef struct iso_tokenizer iso_tokenizer;

/* Opens a folder holding tokenizer.json (or one *.tiktoken file), a tokenizer.json, or a tiktoken rank file. `pattern` (may be "") is the
 * pre-tokenizer's name or regex for a rank file whose name does not tell. Every option of tokenizer.json that is not implemented is refused by name. */
iso_status iso_tokenizer_open(const char *path, const char *pattern, iso_tokenizer **out) ISO_MUST_CHECK;
void iso_tokenizer_close(iso_tokenizer **tokenizer);
/* Number of ids: highest id + 1, added tokens included. */
int64_t iso_tokenizer_vocabulary(const iso_tokenizer *tokenizer);
/* Id of end of text: what tokenizer_config.json / generation_config.json beside it say, else the first present of "<|endoftext|>", "<|end_of_text|>",
 * "</s>", "<eos>"; -1 when there is none. */
int64_t iso_tokenizer_eos(const iso_tokenizer *tokenizer);
/* 64 hex digits: SHA-256 over what decides ids (vocabulary, merges or ranks, pattern, normalizer, added tokens). */
const char *iso_tokenizer_fingerprint(const iso_tokenizer *tokenizer);
/* The folder or file it came from. */
const char *iso_tokenizer_path(const iso_tokenizer *tokenizer);
/* Bytes of one id: what it decodes to. NULL when the id is not in the vocabulary. */
const char *iso_tokenizer_bytes(const iso_tokenizer *tokenizer, int64_t id, size_t *length);
/* Copies the files that define it (tokenizer.json, tokenizer_config.json or the rank file) into `folder`. */
iso_status iso_tokenizer_copy(const iso_tokenizer *tokenizer, const char *folder) ISO_MUST_CHECK;

/* ---- encode.c ------------------------------------------------------------------------------------ */

/* A thread's scratch and output. `ids` holds the last result until the next call. */
typedef struct iso_encoder iso_encoder;
iso_encoder *iso_encoder_create(const iso_tokenizer *tokenizer);
void iso_encoder_destroy(iso_encoder **encoder);
/* Encodes `length` bytes. Invalid UTF-8 is replaced (each maximal ill-formed sequence becomes U+FFFD) when `replace_invalid`, else FORMAT error with position.
 * With `parse_special`, added tokens in the text become their ids; else they are text. Returned ids are owned by the encoder. */
iso_status iso_encode(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool replace_invalid, const int32_t **ids, size_t *count) ISO_MUST_CHECK;
/* Appends the bytes of the ids. An id outside the vocabulary is a MISMATCH error naming it. */
iso_status iso_decode(const iso_tokenizer *tokenizer, const int32_t *ids, size_t count, iso_string *out) ISO_MUST_CHECK;

/* ---- trainer.c: learning a vocabulary ------------------------------------------------------------- */

typedef struct iso_bpe_options {
  int64_t vocabulary;   /* ids in all, special tokens and the 256 bytes included */
  const char *pattern;  /* "gpt2", "cl100k", "qwen2", "o200k" */
  const char *eos;      /* special token appended last, e.g. "<|endoftext|>" */
} iso_bpe_options;
/* Learns byte-level BPE merges over `count` texts (borrowed): repeatedly the most frequent pair, ties to the smallest (left bytes, right bytes), and
 * writes tokenizer.json and tokenizer_config.json into `folder`, loadable by Hugging Face. Deterministic. CONFIG when the vocabulary is below 257;
 * when the texts run out of pairs the vocabulary is smaller and a note says so. */
iso_status iso_bpe_train(const iso_bpe_options *options, const char *const *texts, const size_t *lengths, size_t count, const char *folder) ISO_MUST_CHECK;

/* ---- check.c: reference vectors -------------------------------------------------------------------- */

typedef struct iso_vector_report {
  int64_t rows;
  int64_t matched;
} iso_vector_report;
/* Runs every row of a vectors.jsonl (layout: docs/tokenizers.md); prints each mismatch as one line to `out` (may be NULL). */
iso_status iso_tokenizer_check(const iso_tokenizer *tokenizer, const char *vectors_path, FILE *out, iso_vector_report *report) ISO_MUST_CHECK;

#endif
