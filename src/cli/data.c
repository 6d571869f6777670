/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data: its verbs.
 */
#include "cli/cli.h"

iso_status iso_verb_data(iso_args *args) {
  static const iso_verb table[] = {
      {"data build", iso_verb_data_build, "PATH|CONFIG --tokenizer T --out DIR [--threads N] [--json]",
       "text as token shards, resumable, the same bytes for any number of threads"},
      {"data info", iso_verb_data_info, "PATH|CONFIG ... [--tokenizer T] [--json]",
       "documents, tokens, lengths, duplicates, suspicious documents"},
      {"data check", iso_verb_data_check, "PATH|CONFIG ... [--tokenizer T] [--json]",
       "whether text and vocabulary fit each other"},
      {"data trace", iso_verb_data_trace, "RUN --steps A:B [--slot N] [--json]",
       "which bytes of which documents each sequence of a run held"},
  };
  return iso_subverb_run(args, table, ISO_COUNT(table));
}
