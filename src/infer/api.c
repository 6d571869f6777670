/* SPDX-License-Identifier: Apache-2.0
 *
 * The public interface (include/isotach.h) over the library's own: handles are heap structs, statuses are the same
 * numbers under public names.
 */
#include "isotach.h"

#include <stdlib.h>
#include <string.h>

#include "infer/infer.h"

_Static_assert((int)ISOTACH_ERR_USAGE == (int)ISO_ERR_USAGE && (int)ISOTACH_ERR_CONFIG == (int)ISO_ERR_CONFIG &&
                   (int)ISOTACH_ERR_UNSUPPORTED == (int)ISO_ERR_UNSUPPORTED &&
                   (int)ISOTACH_ERR_NOT_FOUND == (int)ISO_ERR_NOT_FOUND && (int)ISOTACH_ERR_IO == (int)ISO_ERR_IO &&
                   (int)ISOTACH_ERR_FORMAT == (int)ISO_ERR_FORMAT &&
                   (int)ISOTACH_ERR_MISMATCH == (int)ISO_ERR_MISMATCH && (int)ISOTACH_ERR_BUSY == (int)ISO_ERR_BUSY &&
                   (int)ISOTACH_ERR_MEMORY == (int)ISO_ERR_MEMORY && (int)ISOTACH_ERR_SPACE == (int)ISO_ERR_SPACE &&
                   (int)ISOTACH_ERR_CHECK == (int)ISO_ERR_CHECK && (int)ISOTACH_ERR_NUMERIC == (int)ISO_ERR_NUMERIC &&
                   (int)ISOTACH_STOPPED == (int)ISO_STOPPED && (int)ISOTACH_ERR_INTERNAL == (int)ISO_ERR_INTERNAL,
               "public statuses are the library's");

const char *isotach_version(void) {
  return ISO_VERSION;
}

const char *isotach_status_name(isotach_status status) {
  return iso_status_name((iso_status)status);
}

int isotach_exit_code(isotach_status status) {
  return iso_exit_code((iso_status)status);
}

const char *isotach_last_error(void) {
  return iso_last_error();
}

void isotach_log_quiet(int quiet) {
  iso_log_quiet(quiet != 0);
}

/* ---- training ---- */

struct isotach_config {
  iso_config config;
};

isotach_status isotach_config_open(const char *path, const char *const *overrides, size_t count, isotach_config **out) {
  if (out) *out = NULL;
  bool given = out && path && count <= INT32_MAX && (count == 0 || overrides);
  for (size_t i = 0; given && i < count; i++) given = overrides[i] != NULL;
  if (!given)
    return (isotach_status)iso_fail(ISO_ERR_USAGE,
                                    "isotach_config_open: no path, no place for the handle, or a missing override");
  isotach_config *handle = calloc(1, sizeof *handle);
  if (!handle) return (isotach_status)iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", path);
  const iso_status status = iso_config_read(path, overrides, (int)count, &handle->config);
  if (status == ISO_OK) {
    *out = handle;
  } else {
    free(handle);
  }
  return (isotach_status)status;
}

void isotach_config_close(isotach_config **config) {
  if (!config || !*config) return;
  iso_config_fini(&(*config)->config);
  free(*config);
  *config = NULL;
}

isotach_status isotach_train(const isotach_config *config, unsigned flags, isotach_train_result *result) {
  const unsigned known = ISOTACH_TRAIN_ACCEPT | ISOTACH_TRAIN_TAKE_OVER | ISOTACH_TRAIN_QUIET;
  if (!config || (flags & ~known))
    return (isotach_status)iso_fail(ISO_ERR_USAGE, "isotach_train: no config, or flags that are not known");
  const iso_train_options options = {.accept = flags & ISOTACH_TRAIN_ACCEPT,
                                     .take_over = flags & ISOTACH_TRAIN_TAKE_OVER,
                                     .quiet = flags & ISOTACH_TRAIN_QUIET};
  iso_train_result r;
  const iso_status status = iso_train(&config->config, &options, &r);
  if (result)
    *result = (isotach_train_result){.step = r.step,
                                     .parameters = r.parameters,
                                     .tokens = r.tokens,
                                     .refused = r.refused,
                                     .loss = r.loss,
                                     .seconds = r.train_s,
                                     .tokens_per_s = r.tokens_per_s,
                                     .mfu = r.mfu,
                                     .bits_per_byte = r.evaluated ? r.evaluation.bits_per_byte : -1};
  return (isotach_status)status;
}

/* ---- generation ---- */

struct isotach_model {
  iso_lm lm;
};

isotach_status isotach_model_open(const char *path, int threads, isotach_model **out) {
  if (out) *out = NULL;
  if (!out || !path || threads < 0)
    return (isotach_status)iso_fail(ISO_ERR_USAGE, "isotach_model_open: no path, or a negative number of threads");
  isotach_model *handle = calloc(1, sizeof *handle);
  if (!handle) return (isotach_status)iso_fail(ISO_ERR_MEMORY, "%s: no memory to open it", path);
  const iso_status status = iso_lm_open(path, threads, &handle->lm);
  if (status == ISO_OK) {
    *out = handle;
  } else {
    free(handle);
  }
  return (isotach_status)status;
}

void isotach_model_close(isotach_model **model) {
  if (!model || !*model) return;
  iso_lm_close(&(*model)->lm);
  free(*model);
  *model = NULL;
}

int64_t isotach_model_parameters(const isotach_model *model) {
  return model ? model->lm.graph->flat_elements : 0;
}

int64_t isotach_model_vocabulary(const isotach_model *model) {
  return model ? model->lm.model.vocabulary : 0;
}

static iso_status generate(const iso_lm *lm, const char *prompt, const iso_generate_options *options) {
  if (!lm->tokenizer)
    return iso_fail(ISO_ERR_NOT_FOUND, "%s: has no tokenizer.json or tokenizer.model, which generation needs",
                    lm->path);
  iso_encoder *encoder = iso_encoder_create(lm->tokenizer);
  int32_t *out = calloc((size_t)options->max_tokens + 1, sizeof *out);
  iso_status status = encoder && out ? ISO_OK
                                     : iso_fail(ISO_ERR_MEMORY, "isotach_generate: no memory for %lld tokens",
                                                (long long)options->max_tokens);
  const int32_t *ids;
  size_t count;
  int64_t made;
  if (status == ISO_OK) status = iso_encode(encoder, prompt, strlen(prompt), true, false, &ids, &count);
  if (status == ISO_OK) status = iso_generate(lm, ids, (int64_t)count, options, out, &made);
  free(out);
  iso_encoder_destroy(&encoder);
  return status;
}

isotach_status isotach_generate(const isotach_model *model, const char *prompt, const isotach_sampling *sampling,
                                isotach_on_token on_token, void *context) {
  if (!model || !prompt || !sampling || sampling->max_tokens < 0 || sampling->max_tokens > INT32_MAX ||
      !(sampling->temperature >= 0) || !(sampling->top_p > 0) || sampling->top_p > 1 || sampling->top_k < 0)
    return (isotach_status)iso_fail(ISO_ERR_USAGE, "isotach_generate: nothing to go on from, or sampling out of range");
  const iso_generate_options options = {
      .sampling = {sampling->temperature, sampling->top_k, sampling->top_p, sampling->seed},
      .max_tokens = sampling->max_tokens,
      .compute = ISO_F32,
      .stop_at_eos = true,
      .on_token = on_token,
      .context = context};
  return (isotach_status)generate(&model->lm, prompt, &options);
}
