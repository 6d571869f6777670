/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, the inputs: model, tokenizer and corpus open and fit each other, and the memory plan fits the
 * machine.
 *
 * The sample says whether a vocabulary gives back what it is given; `isotach data check` reads the whole corpus.
 */
#include <math.h>
#include <string.h>

#include "cli/cli.h"

static const char sample[] = "The quick brown fox, 12,345.67 times:\n\tif (x != NULL) return \"caf\xC3\xA9\"; "
                             "\xE4\xB8\xAD\xE6\x96\x87 \xD0\xBC\xD0\xB8\xD1\x80 \xF0\x9F\x99\x82\r\n";

static void check_tokenizer(iso_doctor *d, const iso_run *run) {
  iso_encoder *encoder = iso_encoder_create(run->tokenizer);
  const int32_t *ids;
  size_t count = 0;
  iso_string back = {0};
  const size_t length = sizeof sample - 1;
  iso_status status = encoder ? iso_encode(encoder, sample, length, false, false, &ids, &count)
                              : iso_fail(ISO_ERR_MEMORY, "doctor: no memory to encode");
  if (status == ISO_OK) status = iso_decode(run->tokenizer, ids, count, &back);
  const bool same = status == ISO_OK && back.length == length && memcmp(back.data, sample, length) == 0;
  const long long vocabulary = (long long)iso_tokenizer_vocabulary(run->tokenizer);
  if (status != ISO_OK)
    iso_doctor_failed(d, "tokenizer", ISO_VERDICT_WARNING, "any text can be encoded",
                      "isotach data check names the documents that cannot be");
  else
    iso_doctor_add(d, "tokenizer", same ? ISO_VERDICT_OK : ISO_VERDICT_WARNING, "text comes back as it was",
                   "isotach data check counts the documents that change; a normalising vocabulary does that by design",
                   "%lld ids of the model's %lld; a sample of %zu bytes is %zu tokens and %s", vocabulary,
                   (long long)run->model.vocabulary, length, count,
                   same ? "comes back the same" : "comes back changed");
  iso_string_fini(&back);
  iso_encoder_destroy(&encoder);
}

/* Digits in groups of three: 39,040. */
static const char *grouped(const iso_doctor *d, const char *digits) {
  char text[64];
  size_t length = strlen(digits), at = 0;
  for (size_t i = 0; i < length && at + 2 < sizeof text; i++) {
    if (i && (length - i) % 3 == 0) text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = '\0';
  return iso_arena_strdup(d->arena, text);
}

static void check_corpus(iso_doctor *d, const iso_run *run) {
  const iso_corpus_info *info = &run->corpus_info;
  const int64_t step = run->config.batch.sequences * run->config.data.sequence;
  const double tokens = (double)step * (double)run->config.steps;
  char *exact = tokens < 1e15 ? iso_arena_printf(d->arena, "%lld", (long long)(step * run->config.steps)) : NULL;
  const char *count = exact ? grouped(d, exact) : iso_arena_printf(d->arena, "%.3g", tokens);
  iso_doctor_add(d, "corpus", ISO_VERDICT_OK, "", "",
                 "%lld documents, %s to train on, %s held out, %d source%s; the run takes %s tokens",
                 (long long)info->train_documents, iso_doctor_bytes(d, (double)info->train_bytes),
                 iso_doctor_bytes(d, (double)info->validation_bytes), run->config.data.source_count,
                 iso_plural(run->config.data.source_count), count ? count : "?");
}

/* Weights, two moments and a gradient, before time goes into compiling what cannot run. */
static bool state_fits(iso_doctor *d, const iso_run *run) {
  const double state = 16.0 * (double)iso_model_parameters(&run->model), room = (double)iso_memory_available();
  if (state > 0 && state <= room) return true;
  iso_doctor_add(d, "memory", ISO_VERDICT_STOP, "a plan that fits", "take a smaller model or a larger machine",
                 "weights, moments and gradients of %lld parameters take %s, %s are free",
                 (long long)iso_model_parameters(&run->model), iso_doctor_bytes(d, state), iso_doctor_bytes(d, room));
  return false;
}

static void check_memory(iso_doctor *d, const iso_run *run) {
  if (!state_fits(d, run)) return;
  iso_device *device;
  if (iso_device_create((int)run->config.threads, &device) != ISO_OK) return; /* said already */
  iso_engine_options options;
  iso_engine engine;
  iso_run_engine_options(&run->config, &run->model, run->workers, &options);
  if (iso_engine_compile(device, &options, &engine) != ISO_OK) {
    iso_doctor_failed(d, "memory", ISO_VERDICT_STOP, "a plan that fits", "as it says");
    iso_device_destroy(&device);
    return;
  }
  const int64_t plan = iso_engine_bytes(&engine), free_bytes = iso_memory_available();
  const double limit = run->config.memory.limit_gb > 0 ? run->config.memory.limit_gb * 1e9 : INFINITY;
  const double room = fmin((double)free_bytes, limit);
  const bool fits = (double)plan <= room, tight = (double)plan > 0.9 * room;
  d->state_bytes = 12.0 * (double)iso_engine_graph(&engine)->flat_elements; /* weights and two moments, float32 */
  if (run->config.log.enabled)
    d->log_bytes = (double)iso_engine_graph(&engine)->flat_elements * (double)iso_dtype_size(options.gradient);
  iso_doctor_add(d, "memory",
                 !fits   ? ISO_VERDICT_STOP
                 : tight ? ISO_VERDICT_WARNING
                         : ISO_VERDICT_OK,
                 "at most 90% of what is free or allowed",
                 "lower batch.micro or parallel.virtual_workers (isotach inspect memory CONFIG shows the plan)",
                 "the plan of one process takes %s, %s are %s%s", iso_doctor_bytes(d, (double)plan),
                 iso_doctor_bytes(d, room), limit < (double)free_bytes ? "allowed by memory.limit_gb" : "free",
                 d->ranks > 1 ? "; ranks share its state, see real steps" : "");
  iso_engine_fini(&engine);
  iso_device_destroy(&device);
}

void iso_doctor_inputs(iso_doctor *d) {
  iso_run run;
  if (iso_run_open_inputs(&d->config, &run) != ISO_OK) {
    iso_doctor_failed(d, "inputs", ISO_VERDICT_STOP, "model, tokenizer and corpus that can be read and fit each other",
                      "as it says");
    iso_doctor_run(d, NULL);
    return;
  }
  iso_doctor_run(d, &run);
  check_tokenizer(d, &run);
  check_corpus(d, &run);
  check_memory(d, &run);
  iso_run_close(&run);
}
