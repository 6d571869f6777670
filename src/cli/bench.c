/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench: each bench measures the machine's peak in the same minute as the work, and prints their ratio.
 */
#include "cli/cli.h"

iso_status iso_verb_bench(iso_args *args) {
  static const iso_verb table[] = {
      {"bench gemm", iso_verb_bench_gemm, "[--quick] [--dtype T] [--threads N] [--json]",
       "the three products of training over shapes of real models"},
      {"bench step", iso_verb_bench_step, "[--model NAME | CONFIG.json] [--batch B] [--seq T]",
       "whole training steps: tokens/s and MFU"},
      {"bench sweep", iso_verb_bench_sweep, "[--quick] [--max-memory GB] [--json]",
       "training steps over model sizes and sequence lengths"},
      {"bench store", iso_verb_bench_store, "[--model NAME | CONFIG.json] [--batch B] [--seq T] [--json]",
       "training with log and snapshots beside training that saves nothing"},
      {"bench tokenizer", iso_verb_bench_tokenizer, "--tokenizer DIR --input FILE [--threads N] [--json]",
       "text to ids: MB/s in one cold pass"},
      {"bench data", iso_verb_bench_data,
       "CONFIG [key=value ...] [--steps N] [--on-demand] [--tokens-per-s R] [--json]",
       "what the data ring takes from the real step of a config, beside batches filled beforehand"},
      {"bench comm", iso_verb_bench_comm, "[--ranks N] [--bytes B] [--rounds K] [--json]",
       "sums over processes of this host beside MPI's; training does not use them yet"},
  };
  return iso_subverb_run(args, table, ISO_COUNT(table));
}
