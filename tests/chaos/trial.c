/* SPDX-License-Identifier: Apache-2.0
 *
 * One run under the seam: the product's own iso_train, from config to report, over a model that takes a fraction of a
 * millisecond a step. What it should give is known from runs without a log that were stopped behind each step.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const scenario scenarios[] = {
    {.name = "disk", .disk = true, .several = true},
    {.name = "process, packed", .packed = true, .several = true},
    {.name = "disk, stopped and resumed", .disk = true, .stop_at = 7},
    {.name = "disk, packed, every 8th snapshot kept", .disk = true, .packed = true, .several = true, .keep_every = 8},
    {.name = "disk, log suspended for a while", .disk = true, .several = true, .gap = true},
    {.name = "process, log suspended for a while", .gap = true, .stop_at = 13},
    {.name = "disk, gone back to step 13", .disk = true, .several = true, .stop_at = 15, .back_to = 13},
};
const int scenario_count = (int)ISO_COUNT(scenarios);

enum { CORPUS_BYTES = 6000, SEGMENT_BYTES = 100000, SNAPSHOT_EVERY = 4 };
static iso_config config;
static char digests[STEPS + 1][65];

static const char yaml[] =
    "steps: %d\nseed: 3\nthreads: 1\n"
    "model:\n  config: {architectures: [LlamaForCausalLM], vocab_size: 512, hidden_size: 16,\n"
    "    intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2,\n"
    "    num_key_value_heads: 1, max_position_embeddings: 32, tie_word_embeddings: true,\n"
    "    rms_norm_eps: 1.0e-5, rope_theta: 10000, initializer_range: 0.05, bos_token_id: null}\n"
    "tokenizer: {path: %s/examples/tiny/tokenizer}\n"
    "data: {sources: [{path: %s/corpus.txt, separator: \"\\n\\n\"}], sequence: 15, slots: 2, threads: 1}\n"
    "batch: {sequences: 2}\n"
    "optimizer: {lr: 1e-2, warmup_steps: 2, clip_norm: 0.5}\n"
    "fusion: off\n";

/* back_to: the start goes back to that step; 0: it does not. accept: it gives up what cannot be had. */
static iso_status train_how(const char *root, const scenario *s, int64_t back_to, bool accept, int64_t stop_at) {
  static const scenario plain = {.name = "without a log"};
  iso_config own = config;
  iso_train_result result;
  const iso_train_options options = {
      .quiet = true, .segment_bytes = SEGMENT_BYTES, .go_back = back_to > 0, .from_step = back_to, .accept = accept};
  own.run = root;
  own.stop_at = stop_at;
  own.checkpoint.snapshot_every = s ? SNAPSHOT_EVERY : 0;
  own.log.enabled = s != NULL;
  if (!s) s = &plain;
  own.checkpoint.keep_every = s->keep_every;
  own.log.io = s->several ? "uring" : "thread";
  own.log.compress = s->packed ? "on" : "off";
  own.log.durability = s->disk ? "disk" : "process";
  iso_status status = iso_train(&own, &options, &result);
  if (status == ISO_OK && result.step != (stop_at ? stop_at : STEPS) && result.step != 0)
    status = iso_fail(ISO_ERR_INTERNAL, "the run ended behind step %lld", (long long)result.step);
  return status;
}

static iso_status train(const char *root, const scenario *s, int64_t stop_at) {
  return train_how(root, s, 0, false, stop_at);
}

/* Step and digest of the newest state that the folder leads to. */
static iso_status read_state(const char *root, int64_t *step, char digest[65]) {
  iso_stored stored;
  ISO_TRY(iso_stored_open(root, -1, &stored));
  *step = stored.info.step;
  iso_state_digest(&stored.state, *step, digest);
  iso_stored_close(&stored);
  return ISO_OK;
}

static bool write_inputs(const char *scratch, char path[512]) {
  char *text, corpus[512];
  size_t bytes;
  iso_string lines = {0};
  if (iso_file_read(ISO_ROOT "/examples/tiny/plays.txt", &text, &bytes) != ISO_OK) return false;
  snprintf(corpus, sizeof corpus, "%s/corpus.txt", scratch);
  snprintf(path, 512, "%s/run.yaml", scratch);
  iso_string_printf(&lines, yaml, STEPS, ISO_ROOT, scratch);
  const bool done = iso_file_replace(corpus, text, bytes < CORPUS_BYTES ? bytes : CORPUS_BYTES) == ISO_OK &&
                    iso_file_replace(path, lines.data, lines.length) == ISO_OK;
  iso_string_fini(&lines);
  free(text);
  return done;
}

bool trial_prepare(const char *scratch) {
  char path[512], root[512], digest[65];
  int64_t step = 0;
  if (!write_inputs(scratch, path) || iso_config_read(path, NULL, 0, &config) != ISO_OK) return false;
  snprintf(root, sizeof root, "%s/steps", scratch);
  for (int64_t s = 1; s <= STEPS; s++)
    if (train(root, NULL, s) != ISO_OK || read_state(root, &step, digests[s]) != ISO_OK || step != s) return false;
  snprintf(root, sizeof root, "%s/whole", scratch);
  if (train(root, NULL, 0) != ISO_OK || read_state(root, &step, digest) != ISO_OK) return false;
  return step == STEPS && strcmp(digest, digests[STEPS]) == 0;
}

bool trial_first(const scenario *s, disk *d, dice *random) {
  char digest[65] = "";
  int64_t step = 0;
  fault_plan gap = {.kind = FAULT_FAIL,
                    .error = ENOSPC,
                    .under = "log/",
                    .writes_only = true,
                    .at = 10 + dice_below(random, 60),
                    .count = 4 + dice_below(random, 10)};
  seam_install(d, s->gap ? &gap : NULL, 300);
  d->starts++;
  iso_status status = train(d->root, s, s->stop_at);
  if (status == ISO_OK && s->stop_at) {
    d->starts++;
    d->recovering = true;
    d->goes_back = s->back_to > 0;
    status = train_how(d->root, s, s->back_to, false, 0);
  }
  seam_remove();
  if (status == ISO_OK) status = read_state(d->root, &step, digest);
  const bool good = status == ISO_OK && step == STEPS && strcmp(digest, digests[STEPS]) == 0;
  if (!good)
    fprintf(stderr, "crash: a run without a crash (%s) ended at step %lld: %s\n", s->name, (long long)step,
            iso_last_error());
  if (good && !disk_is_complete(d)) {
    fprintf(stderr, "crash: the run's folder is not what the seam saw\n");
    return false;
  }
  return good;
}

static void blame(bool *flag, verdict *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void blame(bool *flag, verdict *out, const char *format, ...) {
  va_list arguments;
  if (out->lost || out->wrong) return;
  *flag = true;
  va_start(arguments, format);
  vsnprintf(out->text, sizeof out->text, format, arguments);
  va_end(arguments);
}

/* What a crash leaves of the small files may be half written, but never looks damaged. */
static void check_small_files(const disk *d, verdict *out) {
  char *lines = NULL;
  size_t length;
  iso_string unprotected = {0}, torn = {0};
  FILE *to = open_memstream(&lines, &length);
  const iso_status status = to ? iso_run_small_files_verify(d->root, to, &unprotected, &torn) : ISO_ERR_MEMORY;
  if (to) fclose(to);
  if (status != ISO_OK) blame(&out->wrong, out, "%.150s", lines && *lines ? lines : iso_last_error());
  if (unprotected.length) blame(&out->wrong, out, "has no CRC: %.100s", unprotected.data);
  iso_string_fini(&unprotected);
  iso_string_fini(&torn);
  free(lines);
}

/* The state that the folder leads to, as `isotach digest RUN` reads it: changes nothing. */
static void check_stored(const disk *d, int64_t acked, verdict *out) {
  char digest[65];
  const int before = d->count;
  check_small_files(d, out);
  if (read_state(d->root, &out->recovered, digest) != ISO_OK) {
    out->recovered = 0;
    if (acked > 0)
      blame(&out->lost, out, "step %lld was durable, nothing can be read: %s", (long long)acked, iso_last_error());
    return;
  }
  if (out->recovered < acked)
    blame(&out->lost, out, "step %lld was durable, %lld is read", (long long)acked, (long long)out->recovered);
  if (out->recovered > STEPS || (out->recovered > 0 && strcmp(digest, digests[out->recovered]) != 0))
    blame(&out->wrong, out, "what is read behind step %lld is not the state there", (long long)out->recovered);
  if (d->count != before) blame(&out->wrong, out, "reading changed the folder");
}

/* What the start itself said that it went on from: the first status.json of its own. */
static int64_t began_behind(const disk *d, int from) {
  for (int i = from; i < d->count; i++) {
    const char *at =
        d->ops[i].kind == OP_WRITE && d->ops[i].data ? strstr(d->ops[i].data, "\"verdict\": \"running\"") : NULL;
    const char *step = at ? strstr(at, "\"step\": ") : NULL;
    if (step) return strtoll(step + 8, NULL, 10);
  }
  return -1;
}

void trial_recover(const scenario *s, disk *d, int64_t acked, verdict *out) {
  char digest[65] = "";
  int64_t step = 0;
  *out = (verdict){0};
  const int from = d->count;
  d->starts++;
  seam_install(d, NULL, 0);
  check_stored(d, acked, out);
  iso_status status = train(d->root, s, 0);
  /* The newest snapshot damaged, and the log that led as far, which was durable against kills only, gone with the
   * power: that is a loss by damage, which a start refuses until the user gives the steps up. */
  if (status == ISO_ERR_FORMAT && d->harmed && !s->disk && acked == 0) status = train_how(d->root, s, 0, true, 0);
  seam_remove();
  if (status == ISO_STOPPED) _exit(4); /* somebody has signalled this process: that is no verdict */
  const int64_t behind = began_behind(d, from);
  if (status != ISO_OK)
    blame(&out->lost, out, "step %lld was durable, the start fails: %s", (long long)acked, iso_last_error());
  else if (behind >= 0 && behind < acked)
    blame(&out->lost, out, "step %lld was durable, the start goes on behind %lld", (long long)acked, (long long)behind);
  else if (read_state(d->root, &step, digest) != ISO_OK || step != STEPS)
    blame(&out->lost, out, "it ended at step %lld: %s", (long long)step, iso_last_error());
  else if (strcmp(digest, digests[STEPS]) != 0)
    blame(&out->wrong, out, "it went on behind step %lld and ended with another state", (long long)behind);
  if (status == ISO_OK) check_small_files(d, out);
  if (behind > out->recovered) out->recovered = behind;
}

void trial_look(disk *d, int64_t acked, verdict *out) {
  *out = (verdict){0};
  seam_install(d, NULL, 0);
  check_stored(d, acked, out);
  seam_remove();
}

bool trial_fault(const scenario *s, disk *d, fault_plan *plan) {
  d->starts++;
  seam_install(d, plan, 0);
  const iso_status status = train(d->root, s, 0);
  seam_remove();
  return status == ISO_OK; /* whatever it is, the folder must lead on */
}
