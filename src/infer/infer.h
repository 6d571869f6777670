/* SPDX-License-Identifier: Apache-2.0
 *
 * infer: a trained model put to use: generation, evaluation of any text, comparison with a reference.
 *
 * Invariants
 *  1. A model opens the same way from a Hugging Face folder and from a run folder; opening changes nothing on disk.
 *  2. The same prompt, options and seed give the same tokens on any number of threads.
 */
#ifndef ISO_INFER_H
#define ISO_INFER_H

#include "train/train.h"

/* ---- open.c: a model with its tokenizer -------------------------------------------------------------- */

typedef struct iso_lm {
  iso_device *device;
  iso_model_config model;
  iso_tokenizer *tokenizer; /* NULL when the folder has none */
  char path[4096], tokenizer_path[4096];
  int64_t step;             /* of the run; -1: a Hugging Face folder */
  int64_t trained_sequence; /* of the run; 0: unknown */
  bool document_mask;       /* of the run; true when unknown */
  const char *separator;    /* of the run's first source; "" when unknown */
  iso_arena *arena;         /* parameter descriptions */
  const iso_graph *graph;   /* for its parameters */
  float *master;            /* flat float32 weights */
  size_t master_bytes;
} iso_lm;
/* `path`: a Hugging Face folder, a run folder, or RUN@STEP. threads 0: all cores. */
iso_status iso_lm_open(const char *path, int threads, iso_lm *lm) ISO_MUST_CHECK;
void iso_lm_close(iso_lm *lm);

/* ---- session.c: the cached inference program ---------------------------------------------------------- */

/* One sequence with its key/value cache. */
typedef struct iso_session iso_session;
/* Room for `capacity` tokens. */
iso_status iso_session_create(const iso_lm *lm, iso_dtype compute, int64_t capacity, iso_session **out) ISO_MUST_CHECK;
void iso_session_destroy(iso_session **session);
/* Appends tokens; returns the logits [vocabulary] after the last one, owned by the session, until the next call.
 * MEMORY-kind CONFIG error when the capacity is exceeded. */
iso_status iso_session_feed(iso_session *session, const int32_t *tokens, int64_t count,
                            const float **logits) ISO_MUST_CHECK;
int64_t iso_session_length(const iso_session *session);

/* ---- sample.c ------------------------------------------------------------------------------------------- */

typedef struct iso_sampling {
  double temperature; /* 0: greedy */
  int64_t top_k;      /* 0: off */
  double top_p;       /* 1: off */
  uint64_t seed;
} iso_sampling;
/* Next token: softmax(logits / temperature), cut to the top_k largest, then to the smallest set with mass >= top_p,
 * drawn with the uniform number of (seed, position). Ties go to the smaller id. `scratch`: vocabulary entries. NUMERIC
 * when a logit is NaN. */
typedef struct iso_candidate {
  double weight;
  int32_t id;
} iso_candidate;
iso_status iso_sample(const float *logits, int64_t vocabulary, const iso_sampling *sampling, int64_t position,
                      iso_candidate *scratch, int32_t *token) ISO_MUST_CHECK;

/* ---- generate.c ------------------------------------------------------------------------------------------ */

typedef struct iso_generate_options {
  iso_sampling sampling;
  int64_t max_tokens;
  iso_dtype compute;
  bool stop_at_eos;
  /* Called with each new token and the bytes it decodes to; may be NULL. */
  void (*on_token)(void *context, int32_t token, const char *bytes, size_t length);
  void *context;
} iso_generate_options;
/* tokens: prompt in, [count] of them; new tokens are appended to `out` (capacity max_tokens). */
iso_status iso_generate(const iso_lm *lm, const int32_t *prompt, int64_t count, const iso_generate_options *options,
                        int32_t *out, int64_t *out_count) ISO_MUST_CHECK;

/* ---- perplexity.c: any text under any model ----------------------------------------------------------------- */

typedef struct iso_evaluate_options {
  iso_dtype compute;
  int64_t sequence;      /* window; 0: the run's, else min(positions, 1024) */
  const char *separator; /* splits a file into documents; NULL: the run's, else none */
  bool document_mask;
  bool without_eos; /* leave the end-of-text tokens out of loss and count */
} iso_evaluate_options;
/* `name` names the text in messages. */
iso_status iso_lm_evaluate(const iso_lm *lm, const char *name, const char *text, size_t length,
                           const iso_evaluate_options *options, iso_evaluation *out) ISO_MUST_CHECK;
/* The same over documents [first, end) of a source; the separator is the source's business. */
iso_status iso_lm_evaluate_documents(const iso_lm *lm, const iso_source *source, int64_t first, int64_t end,
                                     const iso_evaluate_options *options, iso_evaluation *out) ISO_MUST_CHECK;

/* ---- validate.c: against a reference case ------------------------------------------------------------------- */

typedef struct iso_validate_row {
  const char
      *kind; /* "logits", "loss", "gradients", "training loss", "gradient norm", "final weights", "greedy tokens" */
  char tensor[256];    /* the worst one's name, or the step */
  double error, bound; /* bound < 0: printed, not judged */
  bool passed;
} iso_validate_row;
enum { ISO_VALIDATE_ROWS = 16 };
typedef struct iso_validate_report {
  iso_validate_row rows[ISO_VALIDATE_ROWS];
  int count;
  bool passed;
} iso_validate_report;
/* Everything that /reference case/ holds, by the rules of docs/validation.md. CHECK is not returned here: see
 * report.passed. */
iso_status iso_validate(const char *model, const char *reference, iso_dtype compute, int threads,
                        iso_validate_report *report) ISO_MUST_CHECK;

/* ---- reference.c: a reference case ----------------------------------------------------------------------------- */

/* Everything read, checked against the vocabulary; lives until closed. */
typedef struct iso_reference {
  const char *folder;
  iso_arena *arena;
  iso_json *json;
  iso_safetensors *tensors;
  int64_t batch, sequence;                                  /* of input_ids */
  int32_t *input_ids, *labels, *segment_ids, *position_ids; /* the last two may be NULL */
  float *logits, *loss;
  int64_t steps, train_batch;
  int32_t *train_ids; /* [steps, train_batch, sequence] */
  float *train_loss, *train_norm;
  double *lr, beta1, beta2, eps, weight_decay, clip_norm;
  const iso_json *decay;
  int32_t *prompt, *greedy;
  int64_t prompt_count, greedy_count;
} iso_reference;
iso_status iso_reference_open(const char *folder, int64_t vocabulary, iso_reference *reference) ISO_MUST_CHECK;
void iso_reference_close(iso_reference *reference);
/* "<prefix><name>", also without "transformer."; NULL when the case has none. */
const iso_safetensor *iso_reference_tensor(const iso_reference *reference, const char *prefix, const char *name);
bool iso_reference_decays(const iso_reference *reference, const char *name);
/* What PyTorch's bfloat16 autocast missed float64 by; name NULL: kind is a single number. 0 when not stated. */
double iso_reference_autocast_error(const iso_reference *reference, const char *kind, const char *name);

#endif
