/* SPDX-License-Identifier: Apache-2.0
 *
 * Any text under any model: an evaluation engine over the model's weights and windows over the text.
 */
#include <string.h>

#include "infer/infer.h"

static iso_status open_engine(const iso_lm *lm, const iso_evaluate_options *options, int64_t sequence,
                              iso_engine *engine) {
  int64_t batch = 2048 / sequence;
  if (batch < 1) batch = 1;
  const iso_engine_options engine_options = {.model = &lm->model,
                                             .compute = options->compute,
                                             .gradient = options->compute,
                                             .workers = 1,
                                             .micro = batch,
                                             .sequence = sequence,
                                             .evaluate_batch = batch,
                                             .segments = options->document_mask};
  ISO_TRY(iso_engine_init(lm->device, &engine_options, engine));
  memcpy(engine->flat.master, lm->master, lm->master_bytes);
  iso_flat_refresh(&engine->flat, lm->device);
  return ISO_OK;
}

/* Tokens of a window, if the model can be evaluated at all. */
static iso_status choose_window(const iso_lm *lm, const iso_evaluate_options *options, int64_t *sequence) {
  if (!lm->tokenizer)
    return iso_fail(ISO_ERR_NOT_FOUND, "%s: has no tokenizer.json or tokenizer.model, which evaluation needs",
                    lm->path);
  *sequence = options->sequence ? options->sequence : lm->trained_sequence;
  if (!*sequence) *sequence = lm->model.positions < 1024 ? lm->model.positions : 1024;
  if (*sequence <= lm->model.positions) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "%s: windows of %lld tokens are more than the model's %lld positions; lower --sequence", lm->path,
                  (long long)*sequence, (long long)lm->model.positions);
}

/* Closes the validation. */
static iso_status evaluate(const iso_lm *lm, const iso_evaluate_options *options, int64_t sequence,
                           iso_validation *validation, iso_evaluation *out) {
  iso_engine engine;
  iso_status status = open_engine(lm, options, sequence, &engine);
  if (status == ISO_OK) {
    status = iso_evaluate(&engine, validation, options->without_eos ? iso_tokenizer_eos(lm->tokenizer) : -1, out);
    iso_engine_fini(&engine);
  }
  iso_validation_close(&validation);
  return status;
}

iso_status iso_lm_evaluate(const iso_lm *lm, const char *name, const char *text, size_t length,
                           const iso_evaluate_options *options, iso_evaluation *out) {
  int64_t sequence = 0;
  iso_validation *validation;
  ISO_TRY(choose_window(lm, options, &sequence));
  const char *separator = options->separator ? options->separator : lm->separator;
  ISO_TRY(iso_validation_open_text(lm->tokenizer, name, text, length, separator, sequence, options->document_mask,
                                   false, &validation));
  return evaluate(lm, options, sequence, validation, out);
}

iso_status iso_lm_evaluate_documents(const iso_lm *lm, const iso_source *source, int64_t first, int64_t end,
                                     const iso_evaluate_options *options, iso_evaluation *out) {
  int64_t sequence = 0;
  iso_validation *validation;
  ISO_TRY(choose_window(lm, options, &sequence));
  ISO_TRY(iso_validation_open_source(lm->tokenizer, source, first, end, sequence, options->document_mask, &validation));
  return evaluate(lm, options, sequence, validation, out);
}
