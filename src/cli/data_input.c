/* SPDX-License-Identifier: Apache-2.0
 *
 * What the verbs of `isotach data` read: the sources of a run config, or paths with flags.
 */
#include <string.h>

#include "cli/cli.h"

/* A run config by its name. */
static bool is_config(const char *word) {
  const char *dot = strrchr(word, '.');
  return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

static iso_status from_config(iso_args *args, iso_data_input *input) {
  iso_config *config = &input->config;
  if (input->format[0] || input->field[0] || input->separator[0] || input->parse_special)
    return iso_fail(ISO_ERR_USAGE, "%s: a config says format, field and separator itself; leave these flags out",
                    args->verb->name);
  ISO_TRY(iso_config_read(args->words[0], args->words + 1, args->word_count - 1, config));
  input->has_config = true;
  iso_data_options options;
  iso_run_data_options(config, input->options, &options);
  input->count = (int)options.source_count;
  if (!input->tokenizer_path[0]) {
    input->tokenizer_path = config->tokenizer.path;
    input->pattern = config->tokenizer.pattern;
  }
  return ISO_OK;
}

static iso_status from_words(iso_args *args, iso_data_input *input) {
  input->separator = iso_unescape(input->arena, input->separator);
  if (!input->separator) return iso_fail(ISO_ERR_USAGE, "%s: --separator has an unknown escape", args->verb->name);
  if (args->word_count > ISO_MAX_SOURCES)
    return iso_fail(ISO_ERR_USAGE, "%s: %d paths are more than the %d of a run; give a folder or a glob",
                    args->verb->name, args->word_count, ISO_MAX_SOURCES);
  for (int i = 0; i < args->word_count; i++) {
    input->options[input->count++] = (iso_source_options){.path = args->words[i],
                                                          .format = input->format[0] ? input->format : "auto",
                                                          .weight = 1,
                                                          .separator = input->separator,
                                                          .parse_special = input->parse_special,
                                                          .field = input->field,
                                                          .token_type = input->token_type,
                                                          .cache = input->cache,
                                                          .set_field = "--field"};
  }
  return ISO_OK;
}

iso_status iso_data_input_open(iso_args *args, iso_data_input *input, bool need_tokenizer) {
  input->arena = iso_arena_create();
  if (!input->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory", args->verb->name);
  ISO_TRY(is_config(args->words[0]) ? from_config(args, input) : from_words(args, input));
  if (need_tokenizer && !input->tokenizer_path[0])
    return iso_fail(ISO_ERR_USAGE, "%s: --tokenizer is missing: the folder or file of a tokenizer", args->verb->name);
  if (input->tokenizer_path[0]) ISO_TRY(iso_tokenizer_open(input->tokenizer_path, input->pattern, &input->tokenizer));
  for (int i = 0; i < input->count; i++) {
    input->options[i].tokenizer = input->tokenizer;
    input->options[i].refuse_empty = input->refuse_empty;
    input->options[i].skip_damaged = !input->refuse_empty;
    input->options[i].skip_by = input->skip_by;
    ISO_TRY(iso_source_open(&input->options[i], &input->sources[i]));
  }
  if (input->threads == 0) input->threads = iso_cpu_count();
  return ISO_OK;
}

void iso_data_input_close(iso_data_input *input) {
  for (int i = 0; i < input->count; i++) iso_source_close(&input->sources[i]);
  iso_tokenizer_close(&input->tokenizer);
  if (input->has_config) iso_config_fini(&input->config);
  iso_arena_destroy(&input->arena);
}
