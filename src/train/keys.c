/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key of a run config: type, default, bounds, meaning, and whether it decides bits. docs and `isotach help
 * config` come from here.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

#define AT(field)     offsetof(iso_config, field)
#define SOURCE(field) offsetof(iso_source_config, field)
#define COUNT         "0 9000000000000000"

const iso_key iso_keys[] = {
    {"run", ISO_KEY_STRING, AT(run), "runs/run", NULL, "the run's folder; the same command again resumes it", false},
    {"seed", ISO_KEY_INT, AT(seed), "0", COUNT, "of weights, data order and sampling", true},
    {"steps", ISO_KEY_INT, AT(steps), "1000", "1 1000000000", "optimizer steps: the length of the schedule", true},
    {"stop_at", ISO_KEY_INT, AT(stop_at), "0", COUNT,
     "stop cleanly after this step with status 0, schedule unchanged; 0: never", false},
    {"threads", ISO_KEY_INT, AT(threads), "0", "0 1024",
     "compute threads (of each rank); 0: the cores this process may use", false},
    {"model.config", ISO_KEY_PATH, AT(model.config), "config.json", NULL,
     "a Hugging Face config.json, or its keys written here", false},
    {"model.init_from", ISO_KEY_PATH, AT(model.init_from), "", NULL,
     "a Hugging Face folder whose weights the run begins with; empty: random ones", true},
    {"tokenizer.path", ISO_KEY_PATH, AT(tokenizer.path), "", NULL,
     "folder with tokenizer.json or tokenizer.model, the file itself, or a tiktoken rank file", false},
    {"tokenizer.pattern", ISO_KEY_STRING, AT(tokenizer.pattern), "", NULL,
     "a rank file's pre-tokenizer, if its name does not tell: gpt2, cl100k, o200k or a regex", false},
    {"data.validation.every", ISO_KEY_INT, AT(data.validation.every), "0", COUNT,
     "documents i of each source with i mod every = offset are held out; 0: none", true},
    {"data.validation.offset", ISO_KEY_INT, AT(data.validation.offset), "0", COUNT, "see every; counted from 0", true},
    {"data.validation.path", ISO_KEY_PATH, AT(data.validation.path), "", NULL, "or held-out files of their own", false},
    {"data.pad", ISO_KEY_BOOL, AT(data.pad), "false", NULL,
     "a sequence holds one document, the rest is padding; else documents are packed", true},
    {"data.sequence", ISO_KEY_INT, AT(data.sequence), "1024", "1 16777216", "tokens of a sequence", true},
    {"data.document_mask", ISO_KEY_BOOL, AT(data.document_mask), "true", NULL,
     "documents of one sequence do not attend to each other; positions restart", true},
    {"data.block_bytes", ISO_KEY_INT, AT(data.block_bytes), "1048576", "1 1099511627776",
     "bytes; largest block of a corpus, the unit of shuffling", true},
    {"data.slots", ISO_KEY_INT, AT(data.slots), "4", "2 8",
     "batches prepared ahead; of small ones more, up to 64 in 512 KiB", false},
    {"data.threads", ISO_KEY_INT, AT(data.threads), "1", "1 64", "threads that read and tokenize", false},
    {"data.prefetch", ISO_KEY_AUTO, AT(data.prefetch), "auto", "0 1024",
     "threads that read text ahead; auto: 16 where a source is remote, else none", false},
    {"data.on_demand", ISO_KEY_BOOL, AT(data.on_demand), "false", NULL,
     "no data threads: each step reads and tokenizes its batch itself (to compare with)", false},
    {"data.on_bad", ISO_KEY_CHOICE, AT(data.on_bad), "error", "error skip",
     "a document that cannot be read, a damaged file: stop, or leave it out", true},
    {"data.max_bad_documents", ISO_KEY_INT, AT(data.max_bad_documents), "100", COUNT,
     "stop when on_bad: skip left out more than these", false},
    {"data.cache", ISO_KEY_STRING, AT(data.cache), "", NULL,
     "folder for what is made once, relative to the working directory; empty: $ISOTACH_CACHE, else the user's cache",
     false},
    {"batch.sequences", ISO_KEY_INT, AT(batch.sequences), "8", "1 16777216", "sequences of the global batch", true},
    {"batch.micro", ISO_KEY_INT, AT(batch.micro), "0", "0 16777216",
     "sequences per pass and worker; 0: from config, see docs/training.md", true},
    {"optimizer.lr", ISO_KEY_REAL, AT(optimizer.lr), "3e-4", "0 1000", "peak learning rate", true},
    {"optimizer.min_lr_ratio", ISO_KEY_REAL, AT(optimizer.min_lr_ratio), "0.1", "0 1",
     "last learning rate over the peak", true},
    {"optimizer.schedule", ISO_KEY_CHOICE, AT(optimizer.schedule), "cosine", "cosine linear wsd constant",
     "shape of the decay after warm-up", true},
    {"optimizer.warmup_steps", ISO_KEY_INT, AT(optimizer.warmup_steps), "0", COUNT, "steps of linear warm-up", true},
    {"optimizer.decay_steps", ISO_KEY_INT, AT(optimizer.decay_steps), "0", COUNT,
     "wsd: steps of the final linear decay; 0: a fifth of all", true},
    {"optimizer.beta1", ISO_KEY_REAL, AT(optimizer.beta1), "0.9", "0 1", "decay of the first moment, below 1", true},
    {"optimizer.beta2", ISO_KEY_REAL, AT(optimizer.beta2), "0.95", "0 1", "decay of the second moment, below 1", true},
    {"optimizer.eps", ISO_KEY_REAL, AT(optimizer.eps), "1e-8", "1e-30 1", "added to the root of the second moment",
     true},
    {"optimizer.weight_decay", ISO_KEY_REAL, AT(optimizer.weight_decay), "0.1", "0 1000",
     "decoupled; times the learning rate", true},
    {"optimizer.decay_embeddings", ISO_KEY_BOOL, AT(optimizer.decay_embeddings), "false", NULL,
     "decay embeddings too (a tied head is one)", true},
    {"optimizer.decay_norms", ISO_KEY_BOOL, AT(optimizer.decay_norms), "false", NULL, "decay norms and biases too",
     true},
    {"optimizer.clip_norm", ISO_KEY_REAL, AT(optimizer.clip_norm), "1.0", "0 1e30",
     "largest global gradient norm; 0: no clipping", true},
    {"optimizer.max_refused", ISO_KEY_INT, AT(optimizer.max_refused), "10", COUNT,
     "stop after more than these non-finite steps in a row", false},
    {"precision.compute", ISO_KEY_CHOICE, AT(precision.compute), "bfloat16", "float32 bfloat16",
     "type of activations and products", true},
    {"precision.gradient", ISO_KEY_CHOICE, AT(precision.gradient), "auto", "auto float32 bfloat16",
     "type of the reduced gradient; auto: the compute type", true},
    {"precision.reduce", ISO_KEY_CHOICE, AT(precision.reduce), "float32", "float32 bfloat16",
     "type of partial sums between workers (bfloat16: not in this version)", true},
    {"parallel.virtual_workers", ISO_KEY_AUTO, AT(parallel.virtual_workers), "auto", "1 65536",
     "leaves of the gradient's sum, a power of two, fixed for a run's life; auto: ranks of the first start, rounded up",
     true},
    {"parallel.zero", ISO_KEY_INT, AT(parallel.zero), "1", "0 3",
     "what the ranks of a host have once: 0 nothing, 1 masters and moments, 2 as 1, 3 the compute copy too", false},
    {"parallel.timeout_s", ISO_KEY_REAL, AT(parallel.timeout_s), "30", "0 1e9",
     "seconds that a rank may do nothing while others wait for it; 0: no limit", false},
    {"parallel.check_every", ISO_KEY_INT, AT(parallel.check_every), "100", COUNT,
     "steps between comparisons of the ranks' weights; 0: none", false},
    {"parallel.topology", ISO_KEY_PATH, AT(parallel.topology), "", NULL,
     "Slurm's topology.conf, or a file like it, that says which host is in which rack; empty: hosts' names say it",
     false},
    {"memory.limit_gb", ISO_KEY_REAL, AT(memory.limit_gb), "0", "0 1e9",
     "GB (1e9 bytes) this process (each rank) may plan; 0: what is free", false},
    {"memory.recompute", ISO_KEY_CHOICE, AT(memory.recompute), "auto", "auto off",
     "recompute activations when memory is short", false},
    {"fusion", ISO_KEY_FUSION, AT(fusion), "auto", NULL,
     "auto (measured where bits are equal), on or off; then -name or +name of inspect fusion; only -joint_linear and "
     "off change bits",
     true},
    {"checkpoint.snapshot_every", ISO_KEY_AUTO, AT(checkpoint.snapshot_every), "auto", COUNT,
     "steps between snapshots; auto: by replay_target_s; 0: only at the end", false},
    {"checkpoint.replay_target_s", ISO_KEY_REAL, AT(checkpoint.replay_target_s), "60", "0 1e9",
     "seconds that replaying the log may take at a start: automatic snapshots keep it below (without a log: seconds of "
     "work between them)",
     false},
    {"checkpoint.staging_mb", ISO_KEY_AUTO, AT(checkpoint.staging_mb), "auto", COUNT,
     "MB (1e6 bytes) for what of a snapshot is not written when an update begins; auto: by the speed of storage and "
     "steps; too small: updates wait",
     false},
    {"checkpoint.keep_last", ISO_KEY_INT, AT(checkpoint.keep_last), "2", "1 1000000", "newest snapshots kept", false},
    {"checkpoint.keep_every", ISO_KEY_INT, AT(checkpoint.keep_every), "0", COUNT,
     "also keep snapshots at multiples of this step; 0: none", false},
    {"checkpoint.target", ISO_KEY_STRING, AT(checkpoint.target), "", NULL,
     "where the run's durable state lives, a folder or s3://bucket/prefix: a step is durable once it is there, and the "
     "`run` folder may be lost; empty: in the run folder",
     false},
    {"checkpoint.mirror", ISO_KEY_STRING, AT(checkpoint.mirror), "", NULL,
     "a second place, a folder or s3://bucket/prefix, written behind the run; read when the run folder is gone or "
     "damaged",
     false},
    {"log.enabled", ISO_KEY_BOOL, AT(log.enabled), "true", NULL,
     "log every step's reduced gradient, so that a crash loses no durable step", false},
    {"log.durability", ISO_KEY_CHOICE, AT(log.durability), "process", "process disk",
     "what a durable step survives: process: a kill; disk: a power cut (a sync each step)", false},
    {"log.compress", ISO_KEY_CHOICE, AT(log.compress), "auto", "auto on off",
     "pack the logged gradients (bfloat16: about 0.7 of the bytes); auto: where that is measured not to slow the run",
     false},
    {"log.io", ISO_KEY_CHOICE, AT(log.io), "auto", "auto uring thread",
     "several writes of the log in flight (io_uring), or one after the other; auto: what is measured to be faster",
     false},
    {"log.when_slow", ISO_KEY_CHOICE, AT(log.when_slow), "wait_then_suspend", "wait_then_suspend wait stop",
     "when storage cannot keep up or fails: wait max_wait_s, then go on without the log until a snapshot is written; "
     "wait as long as it takes; or stop",
     false},
    {"log.max_wait_s", ISO_KEY_REAL, AT(log.max_wait_s), "30", "0 1e9",
     "seconds before when_slow acts, and after which storage that does not answer is said to hang", false},
    {"evaluate.every", ISO_KEY_INT, AT(evaluate.every), "0", COUNT,
     "steps between evaluations of the held-out text; 0: only at the end", false},
    {"evaluate.max_bytes", ISO_KEY_INT, AT(evaluate.max_bytes), "0", COUNT,
     "bytes of held-out text an evaluation on the way reads; 0: all", false},
    {"vitals.metrics_port", ISO_KEY_INT, AT(vitals.metrics_port), "0", "0 65535",
     "port on 127.0.0.1 of http /metrics for Prometheus; 0: none", false},
    {"vitals.dashboard", ISO_KEY_STRING, AT(vitals.dashboard), "", NULL,
     "address:port of the dashboard, 127.0.0.1:8080; elsewhere than on loopback it asks for a token; empty: none",
     false},
    {"vitals.tensorboard", ISO_KEY_BOOL, AT(vitals.tensorboard), "false", NULL,
     "write events for TensorBoard to tensorboard/ in the run folder", false},
};
const size_t iso_key_count = ISO_COUNT(iso_keys);

const iso_key iso_source_keys[] = {
    {"path", ISO_KEY_PATH, SOURCE(path), "", NULL,
     "file, folder (all files below it) or glob; s3:// too (docs/storage.md)", false},
    {"format", ISO_KEY_CHOICE, SOURCE(format), "auto", "auto text jsonl parquet tokens megatron",
     "auto: by names and first bytes", true},
    {"weight", ISO_KEY_REAL, SOURCE(weight), "1", "0 1e9",
     "share of the text drawn from this source, beside the other sources'; of bytes as stored, escapes included", true},
    {"field", ISO_KEY_STRING, SOURCE(field), "text", NULL,
     "JSON lines, Parquet: the field or column that holds the text", true},
    {"token_type", ISO_KEY_CHOICE, SOURCE(token_type), "auto", "auto uint16 uint32",
     "type of the ids in token files without a header; auto: the files say", false},
    {"separator", ISO_KEY_STRING, SOURCE(separator), "", NULL,
     "text: splits a file into documents; empty: one document a file", true},
    {"parse_special", ISO_KEY_BOOL, SOURCE(parse_special), "false", NULL,
     "special tokens written in the text become their ids", true},
};
const size_t iso_source_key_count = ISO_COUNT(iso_source_keys);

static bool in_choices(const char *choices, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = choices; *at;) {
    const size_t span = strcspn(at, " ");
    if (length && span == length && strncmp(at, word, span) == 0) return true;
    at += span;
    at += strspn(at, " ");
  }
  return false;
}

static iso_status set_integer(const iso_key *key, int64_t *field, const char *text, const char *where) {
  char *end;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno)
    return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be a whole number%s, not \"%s\"", where, key->path,
                    key->type == ISO_KEY_AUTO ? " or `auto`" : "", text);
  const double low = strtod(key->choices, &end), high = strtod(end, NULL);
  if ((double)value < low || (double)value > high)
    return iso_fail(ISO_ERR_CONFIG, "%s: `%s` = %lld is outside %.0f to %.0f", where, key->path, value, low, high);
  *field = value;
  return ISO_OK;
}

static iso_status set_real(const iso_key *key, double *field, const char *text, const char *where) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value))
    return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be a number, not \"%s\"", where, key->path, text);
  const double low = strtod(key->choices, &end), high = strtod(end, NULL);
  if (value < low || value > high)
    return iso_fail(ISO_ERR_CONFIG, "%s: `%s` = %g is outside %g to %g", where, key->path, value, low, high);
  *field = value;
  return ISO_OK;
}

iso_status iso_key_set(const iso_key *key, void *base, iso_arena *arena, const char *text, const char *where) {
  char *field = (char *)base + key->offset;
  switch (key->type) {
  case ISO_KEY_STRING:
  case ISO_KEY_PATH:
    *(const char **)(void *)field = iso_arena_strdup(arena, text);
    return ISO_OK;
  case ISO_KEY_CHOICE:
    if (!in_choices(key->choices, text))
      return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be one of: %s; not \"%s\"", where, key->path, key->choices, text);
    *(const char **)(void *)field = iso_arena_strdup(arena, text);
    return ISO_OK;
  case ISO_KEY_FUSION: {
    iso_fusion_switches switches;
    ISO_TRY(iso_fusion_switches_read(text, iso_arena_printf(arena, "%s: `%s`", where, key->path), &switches));
    *(const char **)(void *)field = iso_arena_strdup(arena, text);
    return ISO_OK;
  }
  case ISO_KEY_AUTO:
    if (strcmp(text, "auto") == 0) {
      *(int64_t *)(void *)field = -1;
      return ISO_OK;
    }
    return set_integer(key, (int64_t *)(void *)field, text, where);
  case ISO_KEY_INT:
    return set_integer(key, (int64_t *)(void *)field, text, where);
  case ISO_KEY_REAL:
    return set_real(key, (double *)(void *)field, text, where);
  case ISO_KEY_BOOL:
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
      return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be true or false, not \"%s\"", where, key->path, text);
    *(bool *)field = text[0] == 't';
    return ISO_OK;
  }
  return ISO_OK;
}

/* Shortest decimal that reads back as the same double. */
static void print_real(double value, iso_string *out) {
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value && !strstr(text, "e+")) break;
  }
  iso_string_printf(out, "%s", text);
}

void iso_key_print(const iso_key *key, const void *base, iso_string *out) {
  const char *field = (const char *)base + key->offset;
  switch (key->type) {
  case ISO_KEY_STRING:
  case ISO_KEY_PATH: {
    const char *text = *(const char *const *)(const void *)field;
    iso_json_quote(out, text, strlen(text));
    break;
  }
  case ISO_KEY_FUSION:
  case ISO_KEY_CHOICE:
    iso_string_printf(out, "%s", *(const char *const *)(const void *)field);
    break;
  case ISO_KEY_AUTO:
  case ISO_KEY_INT: {
    const int64_t value = *(const int64_t *)(const void *)field;
    if (key->type == ISO_KEY_AUTO && value < 0) {
      iso_string_printf(out, "auto");
    } else {
      iso_string_printf(out, "%lld", (long long)value);
    }
    break;
  }
  case ISO_KEY_REAL:
    print_real(*(const double *)(const void *)field, out);
    break;
  case ISO_KEY_BOOL:
    iso_string_printf(out, "%s", *(const bool *)field ? "true" : "false");
    break;
  }
}

static const char *last_word(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot ? dot + 1 : path;
}

/* What other trainers call it, where the spelling alone would not lead to our key. */
static const char *const other_names[][2] = {
    {"learning_rate", "optimizer.lr"},
    {"lr_scheduler_type", "optimizer.schedule"},
    {"lr_decay_style", "optimizer.schedule"},
    {"clip_grad", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"gradient_clipping", "optimizer.clip_norm"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_eps", "optimizer.eps"},
    {"lr_warmup_iters", "optimizer.warmup_steps"},
    {"global_batch_size", "batch.sequences"},
    {"train_batch_size", "batch.sequences"},
    {"micro_batch_size", "batch.micro"},
    {"seq_length", "data.sequence"},
    {"seq_len", "data.sequence"},
    {"max_seq_length", "data.sequence"},
    {"max_steps", "steps"},
    {"train_iters", "steps"},
    {"output_dir", "run"},
    {"save", "run"},
    {"save_interval", "checkpoint.snapshot_every"},
    {"save_steps", "checkpoint.snapshot_every"},
    {"eval_interval", "evaluate.every"},
    {"eval_steps", "evaluate.every"},
    {"source", "data.sources"},
    {"data_path", "data.sources"},
    {"train_data_path", "data.sources"},
    {"dtype", "precision.compute"},
    {"bf16", "precision.compute"},
    {"num_workers", "data.threads"},
    {"tokenizer_model", "tokenizer.path"},
};

/* Bytes of the section that a key names, with its dot; 0: none that there is. */
static size_t section_of(const char *path) {
  const char *dot = strchr(path, '.');
  const size_t length = dot ? (size_t)(dot - path) + 1 : 0;
  for (size_t i = 0; length && i < iso_key_count; i++)
    if (strncmp(path, iso_keys[i].path, length) == 0) return length;
  return 0;
}

const char *iso_key_nearest(const char *path) {
  const char *best = iso_keys[0].path;
  const size_t section = section_of(path), like = strlen(last_word(path)) / 3;
  size_t best_distance = (size_t)-1;
  for (size_t i = 0; i < iso_key_count; i++) {
    /* where the word is like none, the section is right at least */
    const bool meant = strncmp(path, iso_keys[i].path, section) == 0;
    const size_t word = iso_edit_distance(last_word(path), last_word(iso_keys[i].path));
    if (!meant && word > like) continue;
    const size_t whole = iso_edit_distance(path, iso_keys[i].path);
    const size_t distance = whole < word + 1 ? whole : word + 1;
    if (distance < best_distance) {
      best_distance = distance;
      best = iso_keys[i].path;
    }
  }
  for (size_t i = 0; i < ISO_COUNT(other_names); i++) {
    const size_t distance = iso_edit_distance(last_word(path), other_names[i][0]);
    if (distance < best_distance && (!section || distance <= like)) {
      best_distance = distance;
      best = other_names[i][1];
    }
  }
  return best;
}
