/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach init: a run.yaml to begin with.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "cli/cli.h"

static const char starter[] =
    "# A run of isotach. `isotach train run.yaml` trains it; the same command again resumes it.\n"
    "# `isotach help config` lists every key with its default. Paths are relative to this file.\n"
    "run: runs/first             # the run's folder (relative to where the command is called)\n"
    "seed: 0\n"
    "steps: 1000\n"
    "\n"
    "model:\n"
    "  config:                   # keys of a Hugging Face config.json, or the path of one\n"
    "    architectures: [LlamaForCausalLM]\n"
    "    vocab_size: 4096        # at least the tokenizer's\n"
    "    hidden_size: 256\n"
    "    intermediate_size: 688\n"
    "    num_hidden_layers: 6\n"
    "    num_attention_heads: 4\n"
    "    num_key_value_heads: 4\n"
    "    max_position_embeddings: 512\n"
    "    tie_word_embeddings: true\n"
    "\n"
    "# isotach tokenizer train text.txt --separator '\\n\\n' --vocabulary 4096 --out tokenizer \\\n"
    "#                         --validation-every 20\n"
    "tokenizer: {path: tokenizer}\n"
    "\n"
    "data:\n"
    "  sources:\n"
    "    - path: text.txt        # a file, a folder or a glob\n"
    "      separator: \"\\n\\n\"     # cuts it into documents\n"
    "  validation: {every: 20}   # every twentieth document is held out and evaluated at the end\n"
    "  sequence: 256\n"
    "\n"
    "batch: {sequences: 16}\n"
    "optimizer: {lr: 1e-3, warmup_steps: 50, weight_decay: 0.1}\n"
    "precision: {compute: bfloat16}\n";

iso_status iso_verb_init(iso_args *args) {
  ISO_TRY(iso_args_parse(args, NULL, 0, 0, 0));
  if (args->help) return ISO_OK;
  const char *path = "run.yaml";
  const int fd = iso_os.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) return iso_fail(ISO_ERR_USAGE, "'%s' is there already; move it away or edit it", path);
  if (fd < 0) return iso_os_fail("create", path);
  iso_status status = iso_file_pwrite(fd, path, starter, strlen(starter), 0);
  if (iso_os.close(fd) != 0 && status == ISO_OK) status = iso_os_fail("write", path);
  if (status == ISO_OK) printf("%s: name your text and tokenizer in it, then: isotach train %s\n", path, path);
  return status;
}
