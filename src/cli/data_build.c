/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data build: a source's text as token shards.
 */
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { BAR = 24 };
static const double DRAW_EVERY_S = 0.2, SAY_EVERY_S = 10;

typedef struct progress {
  double began, last;
  bool terminal, drawn;
} progress;

/* Of what this process encoded, in bytes of text a second. */
static double rate_of(const iso_shards_report *r, double seconds) {
  return seconds > 0 ? (double)(r->bytes - r->bytes_reused) / seconds : 0;
}

static void show(void *context, const iso_shards_report *r) {
  progress *p = context;
  const double now = iso_clock_s(), seconds = now - p->began;
  if (r->bytes == r->bytes_reused || now - p->last < (p->terminal ? DRAW_EVERY_S : SAY_EVERY_S)) return;
  p->last = now;
  const double share = r->total_bytes ? (double)r->bytes / (double)r->total_bytes : 1;
  const double rate = rate_of(r, seconds), left = ((double)r->total_bytes - (double)r->bytes) / rate;
  if (!p->terminal) {
    iso_note("data build: %.0f%%, %lld tokens, %.0f MB/s, %.0f s left", 100 * share, (long long)r->tokens, rate * 1e-6,
             left);
    return;
  }
  char bar[BAR + 1];
  for (int i = 0; i < BAR; i++) bar[i] = i < (int)(share * BAR) ? '#' : '.';
  bar[BAR] = '\0';
  fprintf(stderr, "\r[%s] %3.0f%%  %.1f M tokens  %.0f MB/s  %.0f s left ", bar, 100 * share, (double)r->tokens * 1e-6,
          rate * 1e-6, left);
  p->drawn = true;
}

static iso_status print_report(const char *folder, const iso_shards_report *r, double seconds, bool json) {
  if (!json) {
    printf("%s: %lld shard%s (%lld made, %lld there already), %lld document%s, %lld token%s, %.2f bytes a token, %.1f "
           "s, %.0f MB/s\n",
           folder, (long long)r->shards, iso_plural(r->shards), (long long)r->made, (long long)r->reused,
           (long long)r->documents, iso_plural(r->documents), (long long)r->tokens, iso_plural(r->tokens),
           r->tokens ? (double)r->bytes / (double)r->tokens : 0.0, seconds, 1e-6 * rate_of(r, seconds));
    if (r->bad)
      printf("%lld bad document%s left out; the records shard-*.json list %s\n", (long long)r->bad, iso_plural(r->bad),
             r->bad == 1 ? "it" : "them");
    return ISO_OK;
  }
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "folder", folder);
  iso_json_put_int(&out, "shards", r->shards);
  iso_json_put_int(&out, "made", r->made);
  iso_json_put_int(&out, "reused", r->reused);
  iso_json_put_int(&out, "documents", r->documents);
  iso_json_put_int(&out, "tokens", r->tokens);
  iso_json_put_int(&out, "text_bytes", r->bytes);
  iso_json_put_int(&out, "bad", r->bad);
  iso_json_put_real(&out, "seconds", seconds);
  iso_json_put_real(&out, "mb_per_s", 1e-6 * rate_of(r, seconds));
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status build(iso_args *args, iso_data_input *input, const char *folder, int64_t shard_mb, bool skip,
                        int64_t max_bad, bool json) {
  input->refuse_empty = !skip;
  input->skip_by = "--on-bad skip";
  ISO_TRY(iso_data_input_open(args, input, true));
  if (input->count != 1)
    return iso_fail(ISO_ERR_USAGE, "%s: %d sources; shards are made of one at a time (give its path)", args->verb->name,
                    input->count);
  progress p = {.began = iso_clock_s(), .last = iso_clock_s(), .terminal = isatty(STDERR_FILENO) == 1};
  const iso_shards_options options = {.source = input->sources[0],
                                      .tokenizer = input->tokenizer,
                                      .folder = folder,
                                      .threads = (int)input->threads,
                                      .shard_bytes = shard_mb * 1000000,
                                      .skip_bad = skip,
                                      .max_bad = max_bad,
                                      .progress = show,
                                      .context = &p};
  iso_shards_report report;
  const iso_status status = iso_shards_build(&options, &report);
  if (p.drawn) fprintf(stderr, "\n");
  ISO_TRY(status);
  return print_report(folder, &report, iso_clock_s() - p.began, json);
}

iso_status iso_verb_data_build(iso_args *args) {
  iso_data_input input = ISO_DATA_INPUT;
  const char *folder = "", *on_bad = "error";
  int64_t shard_mb = 0, max_bad = 100;
  bool json = false;
  const iso_flag flags[] = {
      ISO_DATA_INPUT_FLAGS(input),
      {"out", ISO_FLAG_TEXT, &folder, "folder to write; the same command again goes on where it stopped", 0, 0},
      {"shard-mb", ISO_FLAG_INT, &shard_mb, "text that a shard takes, in MB; 0: by the size of all, 8 to 256 (0)", 0,
       1e6},
      {"on-bad", ISO_FLAG_TEXT, &on_bad, "error, or skip: leave bad documents out and list them (error)", 0, 0},
      {"max-bad", ISO_FLAG_INT, &max_bad, "bad documents left out at most (100)", 0, 9e15},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  if (!folder[0]) return iso_fail(ISO_ERR_USAGE, "%s: --out is missing", args->verb->name);
  const bool skip = strcmp(on_bad, "skip") == 0;
  if (!skip && strcmp(on_bad, "error") != 0)
    return iso_fail(ISO_ERR_USAGE, "%s: --on-bad must be error or skip, not \"%s\"", args->verb->name, on_bad);
  const iso_status status = build(args, &input, folder, shard_mb, skip, max_bad, json);
  iso_data_input_close(&input);
  return status;
}
