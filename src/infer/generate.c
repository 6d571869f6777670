/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: feed the prompt, then token by token.
 */
#include <stdlib.h>

#include "infer/infer.h"

static int64_t eos_of(const iso_lm *lm) {
  const int64_t own = lm->tokenizer ? iso_tokenizer_eos(lm->tokenizer) : -1;
  return lm->model.eos >= 0 ? lm->model.eos : own;
}

static void report(const iso_lm *lm, const iso_generate_options *options, int32_t token) {
  if (!options->on_token) return;
  size_t length = 0;
  const char *bytes = lm->tokenizer ? iso_tokenizer_bytes(lm->tokenizer, token, &length) : NULL;
  options->on_token(options->context, token, bytes ? bytes : "", bytes ? length : 0);
}

static iso_status generate(const iso_lm *lm, iso_session *session, iso_candidate *scratch, const int32_t *prompt,
                           int64_t count, const iso_generate_options *options, int32_t *out, int64_t *out_count) {
  const float *logits;
  ISO_TRY(iso_session_feed(session, prompt, count, &logits));
  const int64_t eos = eos_of(lm);
  while (*out_count < options->max_tokens) {
    int32_t token;
    ISO_TRY(iso_sample(logits, lm->model.vocabulary, &options->sampling, count + *out_count, scratch, &token));
    if (options->stop_at_eos && token == eos) break;
    out[(*out_count)++] = token;
    report(lm, options, token);
    if (*out_count < options->max_tokens) ISO_TRY(iso_session_feed(session, &token, 1, &logits));
  }
  return ISO_OK;
}

iso_status iso_generate(const iso_lm *lm, const int32_t *prompt, int64_t count, const iso_generate_options *options,
                        int32_t *out, int64_t *out_count) {
  *out_count = 0;
  if (count < 1) return iso_fail(ISO_ERR_USAGE, "generate: the prompt has no tokens; give at least one character");
  if (options->max_tokens < 1) return ISO_OK;
  iso_session *session;
  ISO_TRY(iso_session_create(lm, options->compute, count + options->max_tokens, &session));
  iso_candidate *scratch = malloc((size_t)lm->model.vocabulary * sizeof *scratch);
  iso_status status =
      scratch ? ISO_OK
              : iso_fail(ISO_ERR_MEMORY, "generate: no memory for %lld candidates", (long long)lm->model.vocabulary);
  if (status == ISO_OK) status = generate(lm, session, scratch, prompt, count, options, out, out_count);
  free(scratch);
  iso_session_destroy(&session);
  return status;
}
